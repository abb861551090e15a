package redisconn

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// tls sets what is given of TLS. It reads the certificates, so that a file that has changed means
// other settings, and new connections.
func (o *Options) tls(t *TLS) (err error) {
	if !t.Enabled {
		if name := o.given(needTLS); name != "" {
			return fmt.Errorf("%s has no effect without TLS; add tls_enabled, or write rediss:// in the URL", name)
		}
		return nil
	}
	if (o.TLSClientCert != "") != (o.TLSClientKey != "") {
		return errors.New("tls_client_cert and tls_client_key belong together; give both, or neither")
	}
	t.ServerName = o.TLSServerName
	if o.TLSServerCertsPath != "" {
		if t.ServerCerts, err = readCerts(o.TLSServerCertsPath); err != nil {
			return fmt.Errorf("tls_server_certs_path: %w", err)
		}
	}
	if t.ClientCert, err = pemOrFile(o.TLSClientCert); err != nil {
		return fmt.Errorf("tls_client_cert: %w", err)
	}
	if t.ClientKey, err = pemOrFile(o.TLSClientKey); err != nil {
		return fmt.Errorf("tls_client_key: %w", err)
	}
	_, err = t.Config()
	return err
}

// needTLS are the options that have no effect without TLS.
var needTLS = []string{
	"tls_insecure", "tls_server_certs_path", "tls_client_cert", "tls_client_key", "tls_server_name",
}

// pemOrFile returns PEM as it is and reads what else is given as the path of a file.
func pemOrFile(s string) (string, error) {
	if s == "" || strings.Contains(s, "-----BEGIN ") {
		return s, nil
	}
	return readFile(s)
}

func readFile(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%w; correct the path, or let the user that runs Caddy read the file", err)
	}
	if len(strings.TrimSpace(string(text))) == 0 {
		return "", fmt.Errorf("%s is empty; put PEM there", path)
	}
	return string(text), nil
}

// readCerts reads a file, or all .pem, .crt and .cer files of a directory.
func readCerts(path string) (string, error) {
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return readFile(path)
	}
	files, err := os.ReadDir(path)
	if err != nil {
		return "", fmt.Errorf("%w; let the user that runs Caddy read the directory", err)
	}
	var all strings.Builder
	for _, file := range files {
		if !slices.Contains([]string{".pem", ".crt", ".cer"}, filepath.Ext(file.Name())) {
			continue
		}
		text, err := readFile(filepath.Join(path, file.Name()))
		if err != nil {
			return "", err
		}
		all.WriteString(text + "\n")
	}
	if all.Len() == 0 {
		return "", fmt.Errorf("%s has no .pem, .crt or .cer file; put the certificates there, or name a file", path)
	}
	return all.String(), nil
}
