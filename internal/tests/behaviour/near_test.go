package behaviour_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

func init() { caddy.RegisterModule(new(eventListener)) }

// eventListener is bound to events by configurations of tests, and keeps those of all of them.
type eventListener struct{}

var heard struct {
	sync.Mutex
	events []caddy.Event
}

func (*eventListener) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "events.handlers.test_listener", New: func() caddy.Module { return new(eventListener) }}
}

func (*eventListener) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	return nil
}

func (*eventListener) Handle(_ context.Context, e caddy.Event) error {
	heard.Lock()
	defer heard.Unlock()
	heard.events = append(heard.events, e)
	return nil
}

// heardOf takes the data of the events that were heard of zones with this prefix.
func heardOf(prefix string) (data []map[string]any) {
	heard.Lock()
	defer heard.Unlock()
	heard.events = slices.DeleteFunc(heard.events, func(e caddy.Event) bool {
		zone, _ := e.Data["zone"].(string)
		if !strings.HasPrefix(zone, prefix) {
			return false
		}
		data = append(data, e.Data)
		return true
	})
	return data
}

// A key that has spent 80 % is told of once, by each algorithm, and so is another one. Zones that
// are not enforced tell of none.
func TestKeysNearTheirLimitAreToldOnce(t *testing.T) {
	const listens = "events {\non rate_limit_near test_listener\n}"
	for _, algorithm := range algorithms.KindNames() {
		if algorithm == "leaky_bucket" {
			continue // who comes near its end waits
		}
		zone, options := "near-"+algorithm, "limit 10/3650d\nkey {http.request.header.K}\nalgorithm "+algorithm
		s := sitetest.StartCaddy(t, listens, "rate_limit {\n"+sitetest.ZoneBlock(zone, options)+sitetest.ZoneBlock(zone+"-shadow", options+"\nenforce off")+"}\nrespond {http.rate_limit."+zone+".used}")
		for _, key := range []string{"a", "b"} {
			for i := range 12 {
				a, err := s.Get(t.Context(), "HTTP/1.1", sitetest.Header("K", key))
				if err != nil || (a.Status == http.StatusOK) != (i < 10) {
					t.Fatalf("%s: request %d: %d, %v", algorithm, i+1, a.Status, err)
				}
				if i < 10 && a.Body != fmt.Sprint(i+1) {
					t.Errorf("%s: %s used after request %d", algorithm, a.Body, i+1)
				}
				told := heardOf(zone)
				if i != 7 {
					if len(told) > 0 {
						t.Errorf("%s: told %v after request %d", algorithm, told, i+1)
					}
					continue
				}
				if len(told) != 1 || told[0]["zone"] != zone || told[0]["limit"] != int64(10) || told[0]["remaining"] != int64(2) ||
					told[0]["window"] != 3650*24*time.Hour || told[0]["client_ip"] != "127.0.0.1" || told[0]["remote_ip"] != "127.0.0.1" {
					t.Errorf("%s: told %v after 8 of 10", algorithm, told)
				}
			}
		}
	}
}

// A reload tells of no key again.
func TestAKeyNearItsLimitIsToldOnceOverAReload(t *testing.T) {
	for i, test := range []struct{ limit, requests, told int }{{10, 9, 1}, {11, 2, 0}} {
		s := sitetest.StartCaddy(t, "events {\non rate_limit_near test_listener\n}",
			"rate_limit {\n"+sitetest.ZoneBlock("near-reloaded", fmt.Sprintf("limit %d/3650d\nalgorithm fixed_window", test.limit))+"}\nrespond ok")
		s.Answers("HTTP/1.1", test.requests, http.StatusOK, test.requests)
		if told := heardOf("near-reloaded"); len(told) != test.told {
			t.Errorf("configuration %d: told %v, want %d events", i+1, told, test.told)
		}
	}
}

// The placeholder is what is spent, whatever may come at once.
func TestUsed(t *testing.T) {
	s := sitetest.StartCaddy(t, "", "rate_limit {\n"+sitetest.ZoneBlock("bucket", "limit 1000/3650d\nburst 5\nalgorithm token_bucket")+
		sitetest.ZoneBlock("two", "limit 10/3650d 4/365d\nalgorithm sliding_log")+"}\nrespond \"{http.rate_limit.bucket.used} {http.rate_limit.two.used}\"\nhandle_errors {\nrespond \"{http.rate_limit.bucket.used} {http.rate_limit.two.used}\"\n}")
	for _, want := range []string{"1 1", "2 2", "3 3", "4 4", "4 4"} {
		if a, err := s.Get(t.Context(), "HTTP/1.1"); err != nil || a.Body != want {
			t.Errorf("used %q, %v, want %q", a.Body, err, want)
		}
	}
}
