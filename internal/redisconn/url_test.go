package redisconn

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseURL(t *testing.T) {
	for _, c := range []struct {
		url  string
		want Settings
	}{
		{"redis://localhost:6379/0", Settings{Mode: Simple, Addresses: []string{"localhost:6379"}}},
		{"redis://", Settings{Mode: Simple, Addresses: []string{"localhost:6379"}}},
		{"redis://h", Settings{Mode: Simple, Addresses: []string{"h:6379"}}},
		{"redis://[::1]", Settings{Mode: Simple, Addresses: []string{"[::1]:6379"}}},
		{"redis://:6380/5", Settings{Mode: Simple, Addresses: []string{"localhost:6380"}, DB: 5}},
		{"redis://u:p%40%2F%3A@h:1/2", Settings{Mode: Simple, Addresses: []string{"h:1"}, Username: "u", Password: "p@/:", DB: 2}},
		{"redis://:p,w@h", Settings{Mode: Simple, Addresses: []string{"h:6379"}, Password: "p,w"}},
		{"redis://u:a@b@h", Settings{Mode: Simple, Addresses: []string{"h:6379"}, Username: "u", Password: "a@b"}},
		{"redis://u:a^b|{c}\"é @h", Settings{Mode: Simple, Addresses: []string{"h:6379"}, Username: "u", Password: "a^b|{c}\"é "}},
		{"rediss://h/?skip_verify=true", Settings{Mode: Simple, Addresses: []string{"h:6379"}, TLS: TLS{Enabled: true, Insecure: true}}},
		{"unix:///run/redis.sock?db=3", Settings{Mode: Simple, Addresses: []string{"/run/redis.sock"}, DB: 3}},
		{"unix://u:p@/run/redis.sock", Settings{Mode: Simple, Addresses: []string{"/run/redis.sock"}, Username: "u", Password: "p"}},
		{"redis://a:1,b:2,c", Settings{Mode: Cluster, Addresses: []string{"a:1", "b:2", "c:6379"}}},
		{"redis://u:p@a:1?addr=b:2&addr=c:3", Settings{Mode: Cluster, Addresses: []string{"a:1", "b:2", "c:3"}, Username: "u", Password: "p"}},
		{"redis://u:p@a, redis://u:p@b", Settings{Mode: Cluster, Addresses: []string{"a:6379", "b:6379"}, Username: "u", Password: "p"}},
		{
			"redis://u:p@a,b:2/1?master_name=m&sentinel_username=su&sentinel_password=sp",
			Settings{
				Mode: Failover, Addresses: []string{"a:26379", "b:2"}, Username: "u", Password: "p", DB: 1,
				MasterName: "m", SentinelUsername: "su", SentinelPassword: "sp",
			},
		},
		{"redis://h?pool_size=7&protocol=2&timeout=250ms", Settings{Mode: Simple, Addresses: []string{"h:6379"}, PoolSize: 7, Protocol: 2, Timeout: 250 * time.Millisecond}},
		{"redis://h?dial_timeout=1&read_timeout=3&write_timeout=2s", Settings{Mode: Simple, Addresses: []string{"h:6379"}, Timeout: 3 * time.Second}},
	} {
		got, err := ParseURL(c.url)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("ParseURL(%q) = %s, %v, want %s", c.url, show(got), err, show(c.want))
		}
	}
}

// show is all of Settings, which don't show their secrets by themselves.
func show(s Settings) string {
	type plain Settings
	return fmt.Sprintf("%+v", plain(s))
}

// TestParseURLErrorsShowNoPassword: an error says what to write and nothing of what may be secret.
func TestParseURLErrorsShowNoPassword(t *testing.T) {
	for _, url := range []string{
		"http://u:hunter2@h", "hunter2", "://hunter2", "redis://u:hunter2%zz@h", "redis://u:hunter2/x@h", "redis://u:hunter2?x@h", "redis://u:hunter2#x@h",
		"redis://u:hunter2@h:notaport", "redis://u:hunter2@h:99999", "redis://u:hunter2@h/notadb", "redis://u:hunter2@h?db=hunter2", "redis://u:p@h?hunter2=1",
		"redis://u:hunter2@h?sentinel_password=hunter2&db=x", "redis://u:hunter2@h?timeout=hunter2", "redis://u:hunter2@h?%zz=hunter2",
		"unix://hunter2", "unix://u:hunter2@", "unix://u:hunter2@rel/path", "redis://u:hunter2@a,redis://u:other@b",
		"redis://u:hunter2@a,b/3", "redis://u:hunter2@h?protocol=9", "redis://u:hunter2@h/-1", "redis://u:hun[ter2", "redis://u:hunter2@h?pool_size=-1",
		"redis://u:hunter2@h?max_retries=3", "redis://u: hunter2@h\x00", "redis://@hunter2@", "redis://h:hunter2", "redis://hunter2:hunter2",
		"redis://h/0#hunter2", "redis://h?db=1#hunter2", "redis://hunter2%zz:p@h",
	} {
		_, err := ParseURL(url)
		if err == nil {
			if !strings.Contains(url, "@hunter2@") && !strings.Contains(url, "\x00") {
				t.Errorf("ParseURL(%q) = nil, want an error", url)
			}
			continue
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("ParseURL(%q) = %v: shows a secret", url, err)
		}
		if !strings.ContainsAny(err.Error(), ";,") {
			t.Errorf("ParseURL(%q) = %v: says no mend", url, err)
		}
	}
}

func FuzzParseURL(f *testing.F) {
	f.Add("redis://u:p@a,b:2/1?master_name=m")
	f.Add("unix://u:p@/s?db=1")
	f.Add("rediss://[::1]:1/0,rediss://x")
	f.Fuzz(func(t *testing.T, url string) {
		set, err := ParseURL(url)
		if err != nil {
			return
		}
		if len(set.Addresses) == 0 || set.Check() != nil {
			t.Fatalf("ParseURL(%q) = %s, which doesn't go together", url, show(set))
		}
	})
}
