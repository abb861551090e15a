//go:build chaos

package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

var summary = regexp.MustCompile(`\n(\d+) requests sent, (\d+) admitted, (\d+) denied; at most (\d+) admitted in a window, where the limit is 300\. All is cleaned up\.\n$`)

// Three seconds of the demo: a heading, a line each second, and a summary that adds up.
func TestDemo(t *testing.T) {
	t.Parallel()
	needRedis(t)
	var out bytes.Buffer
	record := filepath.Join(t.TempDir(), "demo.svg")
	if err := run(t.Context(), options{length: 3 * time.Second, record: record}, &out); err != nil {
		t.Fatalf("run() = %v after %s", err, &out)
	}
	expectRecorded(t, record, "demo.svg", out.String())
	expectShow(t, out.String())
}

func needRedis(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("TIDE_REQUIRE_REDIS") == "1" {
			t.Fatal("redis-server is not installed, and TIDE_REQUIRE_REDIS asks for it")
		}
		t.Skip("redis-server is not installed")
	}
}

// expectRecorded checks that a picture has the lines of the table, and the one of the pages the
// same heading.
func expectRecorded(t *testing.T, file, picture, text string) {
	t.Helper()
	linesOf := func(file string) (all []string) {
		drawn, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)<text [^>]*>(.*)</text>$`).FindAllSubmatch(drawn, -1) {
			all = append(all, regexp.MustCompile(`</?tspan[^>]*>`).ReplaceAllString(string(m[1]), ""))
		}
		return all
	}
	got, shown := linesOf(file), linesOf("../../docs/pictures/"+picture)
	if len(got) < 4 || !strings.Contains(text, "\n"+strings.Join(got, "\n")+"\n") {
		t.Errorf("%s has the lines %q, which are not those of:\n%s", file, got, text)
	}
	if len(shown) < 20 || strings.Join(shown[:2], "\n") != strings.Join(got[:2], "\n") {
		t.Errorf("docs/pictures/%s has another heading than the table has now; draw it with -record", picture)
	}
}

func expectShow(t *testing.T, text string) {
	t.Helper()
	if strings.Contains(text, "\x1b") {
		t.Error("the output has colors, though it is no terminal")
	}
	if !strings.Contains(text, headings) {
		t.Errorf("the output has no headings:\n%s", text)
	}
	lines := 0
	for l := range strings.Lines(text) {
		if strings.Contains(l, "/300 ") {
			lines++
			if len(l) > 82 {
				t.Errorf("a line is %d bytes long: %s", len(l), l)
			}
		}
	}
	if lines < 1 || lines > 4 {
		t.Errorf("the table of 3 seconds has %d lines:\n%s", lines, text)
	}
	m := summary.FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("the output has no summary:\n%s", text)
	}
	var n [5]int
	for i := 1; i < len(m); i++ {
		n[i], _ = strconv.Atoi(m[i])
	}
	if sent, admitted, denied := n[1], n[2], n[3]; sent == 0 || sent != admitted+denied || admitted == 0 {
		t.Errorf("the summary does not add up: %s", m[0])
	}
}

// When it is interrupted it ends at once and in order.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	needRedis(t)
	ctx, interrupt := context.WithCancel(t.Context())
	out := &trigger{text: "unseen  denied", action: interrupt}
	if err := run(ctx, options{length: time.Hour}, out); err != nil {
		t.Fatalf("run() = %v after %s", err, &out.Buffer)
	}
	if !summary.MatchString(out.String()) {
		t.Errorf("the output has no summary:\n%s", &out.Buffer)
	}
	for _, addr := range regexp.MustCompile(`127\.0\.0\.1:\d+`).FindAllString(out.String(), -1) {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			t.Errorf("something still listens on %s", addr)
		}
	}
}

// trigger does something when a text is written.
type trigger struct {
	bytes.Buffer
	text   string
	action func()
}

func (w *trigger) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(w.text)) {
		w.action()
	}
	return w.Buffer.Write(p)
}

var regionsEnd = regexp.MustCompile(`\n(\d+) requests sent, (\d+) admitted, (\d+) denied\.\nAdmitted since the start, as the Redis of each region counts after \d+ s: eu (\d+), us (\d+), asia (\d+)\. All is cleaned up\.\n$`)

// Three regions, one of which is cut off and reached again: in the end each counts what was
// admitted in all of them.
func TestRegions(t *testing.T) {
	t.Parallel()
	needRedis(t)
	var out bytes.Buffer
	record := filepath.Join(t.TempDir(), "regions.svg")
	if err := run(t.Context(), options{regions: true, length: cutAfter + cutFor + 4*time.Second, record: record}, &out); err != nil {
		t.Fatalf("run() = %v after %s", err, &out)
	}
	expectRecorded(t, record, "regions.svg", out.String())
	for _, want := range []string{"asia is cut off", "asia is reached again", "a new window of 10s"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output has no %q:\n%s", want, &out)
		}
	}
	m := regionsEnd.FindStringSubmatch(out.String())
	if m == nil || m[2] == "0" || m[4] != m[2] || m[5] != m[2] || m[6] != m[2] {
		t.Errorf("the regions do not count what was admitted: %q in\n%s", m, &out)
	}
}
