package redisconn

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

func TestSettingsShowNoSecret(t *testing.T) {
	set := Settings{
		Mode: Failover, Addresses: []string{"a:1"}, Username: "u", Password: "hunter2", MasterName: "m", SentinelPassword: "hunter2",
		TLS: TLS{Enabled: true, ClientKey: "hunter2"},
	}
	for _, text := range []string{set.Key(), fmt.Sprint(set), fmt.Sprintf("%+v", set), fmt.Sprintf("%#v", set), fmt.Sprintf("%v", &set), fmt.Sprintf("%s", []any{set})} {
		if strings.Contains(text, "hunter2") {
			t.Errorf("%q shows a secret", text)
		}
	}
}

func TestKeyTellsSettingsApart(t *testing.T) {
	base := Settings{Mode: Simple, Addresses: []string{"a:1"}}
	seen := map[string]string{base.Key(): "base"}
	other := base
	if base.Key() != other.Key() {
		t.Error("equal settings have different keys")
	}
	for name, change := range map[string]func(*Settings){
		"mode": func(s *Settings) { s.Mode = Cluster }, "address": func(s *Settings) { s.Addresses = []string{"a:2"} },
		"addresses": func(s *Settings) { s.Addresses = []string{"a:1", "a:2"} }, "user": func(s *Settings) { s.Username = "x" },
		"password": func(s *Settings) { s.Password = "x" }, "db": func(s *Settings) { s.DB = 1 }, "timeout": func(s *Settings) { s.Timeout = 1 },
		"pool": func(s *Settings) { s.PoolSize = 1 }, "protocol": func(s *Settings) { s.Protocol = 2 }, "master": func(s *Settings) { s.MasterName = "x" },
		"sentinel user": func(s *Settings) { s.SentinelUsername = "x" }, "sentinel password": func(s *Settings) { s.SentinelPassword = "x" },
		"tls": func(s *Settings) { s.TLS.Enabled = true }, "insecure": func(s *Settings) { s.TLS.Insecure = true },
		"server name": func(s *Settings) { s.TLS.ServerName = "x" }, "certs": func(s *Settings) { s.TLS.ServerCerts = "x" },
		"cert": func(s *Settings) { s.TLS.ClientCert = "x" }, "key": func(s *Settings) { s.TLS.ClientKey = "x" },
	} {
		s := base
		change(&s)
		if was, ok := seen[s.Key()]; ok {
			t.Errorf("settings with another %s have the key of %s", name, was)
		}
		seen[s.Key()] = name
	}
}

func TestTLSConfigErrors(t *testing.T) {
	for _, set := range []TLS{
		{Enabled: true, ServerCerts: "no pem"}, {Enabled: true, ClientCert: "no pem", ClientKey: "hunter2"}, {Enabled: true, ClientKey: "hunter2"},
	} {
		_, err := Settings{Mode: Simple, Addresses: []string{"a:1"}, TLS: set}.Client()
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Client() = %v with %+v, want an error without the key", err, set)
		}
	}
}

// A node with few CPUs has connections for many tables that send at once.
func TestPoolSize(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, c := range []struct {
		name       string
		settings   Settings
		cpus, want int
	}{
		{"one CPU", Settings{}, 1, 40},
		{"many CPUs", Settings{}, 8, 80},
		{"each server of a Cluster", Settings{Mode: Cluster}, 1, 20},
		{"given", Settings{Mode: Cluster, PoolSize: 3}, 8, 3},
	} {
		runtime.GOMAXPROCS(c.cpus)
		if got := c.settings.poolSize(); got != c.want {
			t.Errorf("%s: %d connections, want %d", c.name, got, c.want)
		}
	}
}
