package ratesync

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// Names of zones may hold what parts the names of keys, such as the colon of a site's port: no two
// tables have a key in common all the same, and the first braces of a key are those that say where
// in a Cluster it belongs.
//
// no clock: windows are a part of names.
func TestKeysOfDifferentZonesDiffer(t *testing.T) {
	var zones []string
	for _, site := range []string{"", ":80", "http://a.example:80", "a.example", "a", "a:s-1m", "{5}", "a{5}:b", ":", "a:s-1m:AAAAAAAAAAAAAAAAAAAAAA:0"} {
		zones = append(zones, site+" 5/1m", site+" 5/1m (74caf5 2)", site)
	}
	seen := map[string]string{}
	for _, prefix := range []string{"caddy", "caddy:", "a:b"} {
		for _, zone := range zones {
			for _, spec := range []Spec{{Zone: zone, Kind: 's', SubWindows: 1}, {Zone: zone, Kind: 's', SubWindows: 10, Window: time.Minute}, {Zone: zone, Kind: 'f', SubWindows: 1}} {
				key := NewKeyspace(prefix).Cells(spec).Of(keys.ID{})
				what := fmt.Sprintf("%q %+v", prefix, spec)
				if other, taken := seen[key]; taken {
					t.Errorf("%s and %s have the key %s", what, other, key)
				}
				seen[key] = what
				if want := prefix + ":3:{0}:"; key[:len(want)] != want {
					t.Errorf("the key of %s is %s, want it to begin with %s", what, key, want)
				}
			}
		}
	}
}

// A relay counts as many epochs of a cell as the nodes that say it, by its name alone.
//
// no clock: windows are a part of names.
func TestANameSaysHowItsCellsCount(t *testing.T) {
	for kind := range algorithms.KindNames() {
		want := SpecOf("a:80", algorithms.Params{Kind: algorithms.Kind(kind), Window: time.Hour})
		if got, ok := parseSpec("a:80:" + want.Name()); !ok || got != want {
			t.Errorf("%s is of %+v, %t, want %+v: regions pass over the cells of %s", want.Name(), got, ok, want, algorithms.Kind(kind))
		}
	}
	for _, p := range []algorithms.Params{
		{Kind: algorithms.FixedWindow, Window: time.Hour}, {Kind: algorithms.SlidingWindow, Window: time.Minute}, {Kind: algorithms.SlidingWindow, Window: 90 * time.Second, SubWindows: 7},
		{Kind: algorithms.SlidingLog, Window: 24 * time.Hour}, {Kind: algorithms.SlidingLog, Window: 1001 * time.Millisecond},
		{Kind: algorithms.TokenBucket, Window: time.Hour}, {Kind: algorithms.GCRA, Window: time.Second}, {Kind: algorithms.LeakyBucket, Window: time.Minute},
	} {
		want := SpecOf("a:80", p)
		if got, ok := parseSpec("a:80:" + want.Name()); !ok || got != want {
			t.Errorf("%s is of %+v, %t, want %+v", want.Name(), got, ok, want)
		}
	}
	// No limit has one of these.
	for _, name := range []string{"a:l-5us", "a:s-5us-7", "a:f-0s", "a:l--1m", "a:s-1m-32", "a:x-1m"} {
		if spec, ok := parseSpec(name); ok {
			t.Errorf("%s is of %+v", name, spec)
		}
	}
}
