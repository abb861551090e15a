//go:build chaos

package cluster_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// The login of the README lets five wrong passwords through over two nodes, however a client writes
// its requests, to a backend that takes any method in any case and ignores a slash at the end. Who
// knows the password is never denied.
func TestTheLoginOfTheReadmeOnTwoNodes(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, login, ok := strings.Cut(string(text), "\t\tzone login {\n")
	login, _, ended := strings.Cut(login, "\n\t\t}\n")
	if !ok || !ended {
		t.Fatal("the README has no zone login")
	}
	// However long it takes, the first limit decides.
	login = strings.Replace(login, "5/1m", "5/30d", 1)
	login = strings.Replace(login, "20/1h", "20/60d", 1)
	var guesses atomic.Int64
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.EqualFold(r.Method, http.MethodPost) && strings.EqualFold(strings.TrimSuffix(r.URL.Path, "/"), "/login") && r.Header.Get("Password") != "right" {
			guesses.Add(1)
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer backend.Close()
	c := start(t, 2, config("redis "+redistest.Start(t).URL+"\nsync_rate strict\nstrict_timeout 20s",
		"rate_limit {\nzone login {\n"+login+"\n}\n}\nhandle {\nreverse_proxy "+strings.TrimPrefix(backend.URL, "http://")+"\n}"))
	send := func(i int, password string) (status int) {
		method, path := []string{"POST", "post", "Post"}[i%3], []string{"/login", "/login/", "/LOGIN"}[i/3%3]
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+c.Nodes[i%2].Addr+path, nil)
		if err != nil {
			t.Error(err)
			return 0
		}
		r.Header.Set("Password", password)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Error(err)
			return 0
		}
		answer.Body.Close()
		return answer.StatusCode
	}
	for i := range 20 {
		if status := send(i, "right"); status != http.StatusOK {
			t.Errorf("who knows the password is answered %d", status)
		}
	}
	var clients sync.WaitGroup
	for i := range 40 {
		clients.Go(func() { send(i, "wrong") })
	}
	clients.Wait()
	if n := guesses.Load(); n != 5 {
		t.Errorf("%d of 40 guesses reached the backend, want 5", n)
	}
}
