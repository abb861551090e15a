package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TLS listens with TLS only, with a certificate for localhost and 127.0.0.1 from an authority that
// only servers with the same option share. With clientCerts it asks for one of the client's.
func TLS(clientCerts bool) Option {
	var ca *x509.Certificate
	var caKey *ecdsa.PrivateKey
	var option Option
	option = func(s *Server) {
		s.secure = option
		if ca == nil {
			ca, caKey = authority(s.t)
		}
		s.CA = encode("CERTIFICATE", ca.Raw)
		server, serverKey := issue(s.t, ca, caKey, "localhost")
		s.ClientCert, s.ClientKey = issue(s.t, ca, caKey, "client")
		write := func(name, text string) string {
			path := filepath.Join(s.dir, name)
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				s.t.Fatal(err)
			}
			return path
		}
		ask := "no"
		if clientCerts {
			ask = "yes"
		}
		s.args = append(s.args, "--tls-ca-cert-file", write("ca.pem", s.CA), "--tls-cert-file", write("server.pem", server),
			"--tls-key-file", write("server.key", serverKey), "--tls-auth-clients", ask, "--tls-replication", "yes")
		pool := x509.NewCertPool()
		pool.AddCert(ca)
		pair, err := tls.X509KeyPair([]byte(s.ClientCert), []byte(s.ClientKey))
		if err != nil {
			s.t.Fatal(err)
		}
		s.tls = &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}
	}
	return option
}

func authority(t testing.TB) (*x509.Certificate, *ecdsa.PrivateKey) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := template("authority of a test")
	c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return c, key
}

func issue(t testing.TB, ca *x509.Certificate, caKey *ecdsa.PrivateKey, name string) (cert, key string) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := template(name)
	c.DNSNames, c.IPAddresses = []string{name}, []net.IP{net.IPv4(127, 0, 0, 1)}
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand.Reader, c, ca, &private.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", keyDER)
}

func template(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
}

func encode(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}
