package config

import (
	"strings"
	"testing"
	"time"
)

func TestRegistry(t *testing.T) {
	r := Registry{}
	login := Settings{Name: "login", Limits: []Rate{{Limit: 5, Window: time.Minute}}}
	if err := r.Add(login, "first"); err != nil {
		t.Fatal(err)
	}
	if err := r.Add(login, "second"); err != nil {
		t.Errorf("add of the same settings = %v", err)
	}
	login.Limits = []Rate{{Limit: 6, Window: time.Minute}}
	err := r.Add(login, "third")
	if err == nil {
		t.Fatal("add of other settings = nil")
	}
	for _, want := range []string{`zone "login"`, "first has `limit 5/1m`", "third has `limit 6/1m`"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("add = %v, want %s in it", err, want)
		}
	}
	login.Name = "other"
	if err := r.Add(login, "fourth"); err != nil {
		t.Errorf("add of another name = %v", err)
	}
}
