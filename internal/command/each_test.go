package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
)

// Several nodes answer for themselves, each below its address, and one that fails keeps no other
// one from being asked.
func TestSeveralNodes(t *testing.T) {
	address := func(status int, answer string) (string, *string) {
		c, asked := endpoint(t, status, answer)
		text, err := c.address()
		if err != nil {
			t.Fatal(err)
		}
		return text, asked
	}
	one, askedOne := address(http.StatusOK, `[{"name":"web1/412","version":"v1.2.0","applied":true,"self":true}]`)
	bad, _ := address(http.StatusNotFound, `{"error":"no such path"}`)
	two, askedTwo := address(http.StatusOK, `[]`)
	line := []string{"rate-limit", "nodes", "--address", one + "," + bad + ", " + two}

	out, err := executeRaw(line)
	for _, want := range []string{"Node " + one + ":\nNODE", "web1/412", "\n\nNode " + bad + ":\nIt failed: no such path\n", "\nNode " + two + ":\nNo other node is known"} {
		if !strings.Contains(out, want) {
			t.Errorf("it prints no %q:\n%s", want, out)
		}
	}
	if err == nil || err.Error() != "1 of 3 nodes failed" || *askedOne == "" || *askedTwo == "" {
		t.Errorf("it says %v, and asked %q and %q", err, *askedOne, *askedTwo)
	}

	out, err = executeRaw(append(line, "--json"))
	var answers map[string]json.RawMessage
	if json.Unmarshal([]byte(out), &answers) != nil || err == nil || len(answers) != 3 {
		t.Fatalf("with --json: %v, %s", err, out)
	}
	for node, want := range map[string]string{one: "web1/412", bad: `{"error":"no such path"}`, two: "[]"} {
		var b bytes.Buffer
		if err := json.Compact(&b, answers[node]); err != nil || !strings.Contains(b.String(), want) {
			t.Errorf("%s answered %s, %v, want %s", node, answers[node], err, want)
		}
	}

	part, _ := address(http.StatusOK, `{"zone":"api","share":0.25,"nodes":2,"applied":1,"shared":true,"pending":false}`)
	if _, err = executeRaw([]string{"rate-limit", "enforce", "api", "25%", "--address", part + "," + part}); err == nil || err.Error() != errInPart.Error() {
		t.Errorf("what is done in part on each node says %v", err)
	}
	if _, err = executeRaw([]string{"rate-limit", "nodes", "--address", one + ", "}); err == nil || !strings.Contains(err.Error(), "empty address") {
		t.Errorf("an empty address among others says %v", err)
	}
	if out, _ := executeRaw([]string{"rate-limit", "top", "--watch", "--address", one + "," + two}); !strings.Contains(out, "give one --address") {
		t.Errorf("it watches several nodes: %s", out)
	}
}

// Of a pipe all nodes get what one of them would: it is empty once it was read.
func TestSeveralNodesGetOneFile(t *testing.T) {
	list, all, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer list.Close()
	if _, err := all.WriteString("a,600/1m\n"); err != nil {
		t.Fatal(err)
	}
	all.Close()
	var addresses []string
	var asked [2]*string
	for i := range asked {
		var c client
		c, asked[i] = endpoint(t, http.StatusOK, `{"zone":"api","set":1,"removed":0,"nodes":1,"applied":1,"shared":true}`)
		address, err := c.address()
		if err != nil {
			t.Fatal(err)
		}
		addresses = append(addresses, address)
	}
	line := []string{"rate-limit", "override", "api", "--replace", "--force", "--file", fmt.Sprintf("/dev/fd/%d", list.Fd()), "--address", strings.Join(addresses, ",")}
	if out, err := executeRaw(line); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for i := range asked {
		if !strings.Contains(*asked[i], `"overrides":[{"key":"a","limit":"600/1m"}]`) {
			t.Errorf("node %d is asked %s", i, *asked[i])
		}
	}
}
