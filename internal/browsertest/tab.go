package browsertest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"os"
	"os/exec"
	"testing"
)

// A Tab is a page in a headless Chromium that is driven by the protocol of its developer tools.
type Tab struct {
	t        *testing.T
	commands *os.File
	answers  *bufio.Reader
	session  string
	calls    int
}

// NewTab starts a browser with more flags, which ends with the test.
func NewTab(t *testing.T, more ...string) *Tab {
	t.Helper()
	theirs, commands := pipe(t)
	answers, ours := pipe(t)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), find(t), flags(t, append(more, "--remote-debugging-pipe", "--hide-scrollbars", "about:blank")...)...)
	cmd.ExtraFiles = []*os.File{theirs, ours} // 3 and 4, as the flag has it
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	ours.Close()
	tab := &Tab{t: t, commands: commands, answers: bufio.NewReader(answers)}
	t.Cleanup(func() {
		commands.Close() // which ends it
		answers.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v\n%s", err, errs.String())
		}
	})
	var target struct{ TargetID string }
	tab.Call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	tab.Call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	tab.session = attached.SessionID
	tab.Call("Page.enable", nil, nil)
	return tab
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return r, w
}

type message struct {
	ID     int             `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  json.RawMessage `json:"error,omitempty"`

	SessionID string `json:"sessionId,omitempty"`
}

// Call sends a command, and decodes its answer unless result is nil.
func (tab *Tab) Call(method string, params, result any) {
	tab.t.Helper()
	text, err := json.Marshal(params)
	if err != nil {
		tab.t.Fatal(err)
	}
	if params == nil {
		text = nil
	}
	tab.calls++
	call, err := json.Marshal(message{ID: tab.calls, Method: method, Params: text, SessionID: tab.session})
	if err != nil {
		tab.t.Fatal(err)
	}
	if _, err := tab.commands.Write(append(call, 0)); err != nil {
		tab.t.Fatal(err)
	}
	m := tab.await(func(m message) bool { return m.ID == tab.calls })
	if m.Error != nil {
		tab.t.Fatalf("%s: %s", call, m.Error)
	}
	if result != nil {
		if err := json.Unmarshal(m.Result, result); err != nil {
			tab.t.Fatalf("%s: %v: %s", call, err, m.Result)
		}
	}
}

// await reads messages until one is what is wanted.
func (tab *Tab) await(wanted func(message) bool) message {
	tab.t.Helper()
	for {
		text, err := tab.answers.ReadBytes(0)
		var m message
		if err == nil {
			err = json.Unmarshal(text[:len(text)-1], &m)
		}
		if err != nil {
			tab.t.Fatal(err)
		}
		if wanted(m) {
			return m
		}
	}
}

// Go opens a page, and waits until all of it is there.
func (tab *Tab) Go(url string) {
	tab.t.Helper()
	tab.Call("Page.navigate", map[string]any{"url": url}, nil)
	tab.await(func(m message) bool { return m.Method == "Page.loadEventFired" })
}

// Show makes the window one of a size, for people who prefer a dark or a light page.
func (tab *Tab) Show(width, height int, scheme string) {
	tab.t.Helper()
	tab.Call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
	tab.Call("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]any{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// Eval decodes the value of an expression in the page.
func (tab *Tab) Eval(expression string, value any) {
	tab.t.Helper()
	var answer struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	tab.Call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &answer)
	if answer.ExceptionDetails != nil {
		tab.t.Fatalf("%s: %s", expression, answer.ExceptionDetails)
	}
	if err := json.Unmarshal(answer.Result.Value, value); err != nil {
		tab.t.Fatalf("%s: %v: %s", expression, err, answer.Result.Value)
	}
}

func (tab *Tab) picture() image.Image {
	tab.t.Helper()
	var shot struct{ Data []byte }
	tab.Call("Page.captureScreenshot", map[string]any{"format": "png"}, &shot)
	picture, err := png.Decode(bytes.NewReader(shot.Data))
	if err != nil {
		tab.t.Fatal(fmt.Errorf("what the browser drew: %w", err))
	}
	return picture
}
