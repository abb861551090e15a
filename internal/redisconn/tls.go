package redisconn

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
)

// TLS says how connections are secured.
type TLS struct {
	// Enabled turns TLS on.
	Enabled bool
	// Insecure accepts every certificate.
	Insecure bool
	// ServerName is the name in the server's certificate. Default: the host of the address.
	ServerName string
	// ServerCerts are the certificates to trust in place of the system's, in PEM.
	ServerCerts string
	// ClientCert and ClientKey, in PEM, prove who this node is.
	ClientCert string
	ClientKey  string
}

// Config returns the configuration of connections, nil where TLS is off.
func (t TLS) Config() (*tls.Config, error) {
	if !t.Enabled {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName, InsecureSkipVerify: t.Insecure}
	if t.ServerCerts != "" {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM([]byte(t.ServerCerts)) {
			return nil, errors.New("tls server certificates hold no certificate; give them in PEM (-----BEGIN CERTIFICATE-----)")
		}
	}
	if t.ClientCert != "" || t.ClientKey != "" {
		pair, err := tls.X509KeyPair([]byte(t.ClientCert), []byte(t.ClientKey))
		if err != nil {
			return nil, fmt.Errorf("tls client certificate and key: %w; both must be given in PEM and belong together", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
