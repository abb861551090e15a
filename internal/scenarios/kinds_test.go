package main

import (
	"fmt"
	"strings"
	"testing"
)

// Scenarios that differ in the same lines are of one kind, whatever the numbers and names in them.
func TestKinds(t *testing.T) {
	var c comparison
	for seed, of := range []struct{ before, now string }{
		0: {"   1.0000  loaded\n   2.0000  request 1: 200", "   1.0000  loaded\n   1.5000  log info zone=\"z00\" wait=2\n   2.0000  request 1: 200"},
		1: {"   1.0000  loaded\n   9.0000  request 7: 429", "   1.0000  loaded\n   3.5000  log info zone=\"z13\" wait=0.25\n   9.0000  request 7: 429"},
		2: {"   1.0000  loaded", "   1.0010  loaded"},
		3: {"   1.0000  request 1: 200", "   1.0000  request 1: 429"},
		4: {"   1.0000  a\n           b\n           c\n           d", "   1.0000  e\n           f\n           g\n           h"},
	} {
		c.add(fmt.Sprint(seed), strings.Split(of.before, "\n"), strings.Split(of.now, "\n"))
	}
	c.unsteady = 1
	var got strings.Builder
	c.write(&got, 9)
	const want = `Of 9 scenarios 3 are the same, 5 differ, and 1 differ from themselves and are left out.

2: all by
	+log info zone="zN" wait=N
as scenario 0:
	 loaded
	+log info zone="z00" wait=2
	 request 1: 200

1: all by
	-a
	- b
	and what follows from it
as scenario 4:
	-a
	-           b
	-           c
	-           d
	+e
	+           f
	+           g
	+           h

1: all by
	-request N: N
	+request N: N
as scenario 3:
	-request 1: 200
	+request 1: 429

1: all by
	the same at other instants
as scenario 2:
	-   1.0000  loaded
	+   1.0010  loaded
`
	if got.String() != want {
		t.Errorf("write prints:\n%s\nwant:\n%s", got.String(), want)
	}
}

func TestNormal(t *testing.T) {
	for line, want := range map[string]string{
		`redis counts: <namespace>:3:{26}:z01:f-1.7s:2qwB6qUeWd0u3chuMMvrFw:946684802 1,-1`: `redis counts: <namespace>:N:{N}:zN:fNs:ID:N N,N`,
		`log info key="a" key_id="4c53e8d2" remote_ip="203.0.113.9" zone="z02-1"`:           `log info key=KEY key_id=ID remote_ip="ADDRESS" zone="zN"`,
		`"id":"4c53e8d2fbaf1b52d0a25452f683a66c","key":"2001:db8::1"`:                       `"id":"ID","key":"ADDRESS"`,
	} {
		if got := normal(line); got != want {
			t.Errorf("normal(%s) = %s, want %s", line, got, want)
		}
	}
}

func TestParse(t *testing.T) {
	got := parse("scenario 3\n   1.0000  loaded\n           more\nscenario 10\n   2.0000  loaded\n")
	if len(got) != 2 || !got.has("3", "   1.0000  loaded\n           more") || !got.has("10", "   2.0000  loaded") {
		t.Errorf("parse = %q, want two lines of scenario 3, one of 10", got)
	}
}
