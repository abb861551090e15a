package stories

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig"
)

// Stories end as they are written in testdata: each has a Caddyfile, and steps that begin with ">",
// with all that is seen until the next one. UPDATE_GOLDENS=1 writes what is seen.
func TestStories(t *testing.T) {
	begin(t)
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 20 {
		t.Fatalf("found %q, %v, want stories", files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			want := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
			got := tell(t, want)
			if os.Getenv("UPDATE_GOLDENS") != "" {
				if err := os.WriteFile(file, []byte(strings.Join(got, "\n")+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if !slices.Equal(got, want) {
				t.Errorf("%s tells another story (UPDATE_GOLDENS=1 writes it):\n%s", file, strings.Join(Diff(want, got), "\n"))
			}
			if len(got) > 200 {
				t.Errorf("%s has %d lines, at most 200", file, len(got))
			}
		})
	}
}

// story is a world in which the steps of a story happen.
type story struct {
	*world
	app       string
	caddyfile string
}

// tell returns the lines of a story with what is seen now beneath its steps.
func tell(t *testing.T, lines []string) (told []string) {
	first := slices.IndexFunc(lines, isStep)
	if first < 0 {
		t.Fatal("there is no step: write lines that begin with >")
	}
	inWorld(t, 0, func(w *world) {
		s := &story{world: w, caddyfile: strings.Join(lines[:first], "\n")}
		told = slices.Clone(lines[:first])
		for _, line := range lines[first:] {
			if strings.HasPrefix(line, "#") {
				told = append(told, line)
			} else if isStep(line) {
				s.do(line[2:])
				told = append(append(told, line), s.lines()...)
			}
		}
		if w.redis != nil && w.redis.state() != "up" {
			w.recover()
		}
		w.finish(s.app)
	})
	return told
}

func isStep(line string) bool { return strings.HasPrefix(line, "> ") }

// start loads the Caddyfile of the story.
func (s *story) start() {
	app, handlers := s.adapt()
	s.app = app
	if strings.Contains(app, redisURL) {
		s.redis = newStandIn(s.world, app)
	}
	if s.load(app, handlers) != nil {
		s.t.Fatal(s.lines())
	}
}

// adapt returns the app and the handlers of the Caddyfile as JSON.
func (s *story) adapt() (app string, handlers []string) {
	text, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(s.caddyfile), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		s.t.Fatal(err)
	}
	var all struct {
		Apps map[string]json.RawMessage
	}
	options := map[string]any{}
	err = json.Unmarshal(text, &all)
	if err == nil && all.Apps["rate_limit"] != nil {
		err = json.Unmarshal(all.Apps["rate_limit"], &options)
	}
	var http any
	if err == nil {
		err = json.Unmarshal(all.Apps["http"], &http)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	options["namespace"] = s.namespace
	return jsonOf(options), handlersIn(http)
}

// handlersIn returns the handlers of rate_limit in a configuration, in order.
func handlersIn(v any) (all []string) {
	switch v := v.(type) {
	case []any:
		for _, of := range v {
			all = append(all, handlersIn(of)...)
		}
	case map[string]any:
		if v["handler"] == "rate_limit" {
			delete(v, "handler")
			return []string{jsonOf(v)}
		}
		for _, name := range []string{"servers", "srv0", "routes", "handle"} {
			all = append(all, handlersIn(v[name])...)
		}
	}
	return all
}

// do does a step.
//
//	load                     begins with the Caddyfile, first
//	get K=a ip=192.0.2.1 ends=error_502 hold early x3   requests: fields, where from, how they end
//	end 3 200, leave 3       request 3, which waits in its handler, ends; its client leaves
//	wait 20s
//	POST /rate_limit/reset {"zone":"api","key":"a"}     an operator does
//	reload limit 2/1m -> limit 5/1m                     the Caddyfile changes
//	restart                  the process ends, and begins again
//	redis refused|silent|lost|up|forgets|holds
//	other counts 2           another node does what this one did last, and counts so much more
//	metrics decisions        those that have the word
func (s *story) do(text string) {
	name, rest, _ := strings.Cut(text, " ")
	words := strings.Fields(rest)
	switch name {
	case "load":
		s.start()
	case "get":
		s.get(words)
	case "end", "leave":
		number, err := strconv.Atoi(words[0])
		if err != nil || number > len(s.visits) {
			s.t.Fatalf("> %s: there is no such request", text)
		}
		if v := s.visits[number-1]; name == "leave" {
			v.cancel()
		} else {
			v.tell(wayOf(words[1]))
		}
		s.pause(3700 * time.Microsecond)
	case "wait":
		d, err := time.ParseDuration(rest)
		if err != nil {
			s.t.Fatal(err)
		}
		s.pause(d)
	case http.MethodGet, http.MethodPost, http.MethodDelete:
		path, body, _ := strings.Cut(rest, " ")
		s.admin(name, path, body)
	case "reload", "restart":
		old, next, _ := strings.Cut(rest, " -> ")
		if !strings.Contains(s.caddyfile, old) {
			s.t.Fatalf("> %s: the Caddyfile has no %q", text, old)
		}
		if s.caddyfile = strings.ReplaceAll(s.caddyfile, old, next); name == "restart" {
			s.stop()
		}
		app, handlers := s.adapt()
		_ = s.load(app, handlers) // which notes an error
	case "redis":
		s.doRedis(rest)
	case "other":
		more, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil {
			s.t.Fatal(err)
		}
		s.redis.echo(words[0], more)
		s.pause(2900 * time.Microsecond)
	case "metrics":
		s.metrics(rest)
	default:
		s.t.Fatalf("> %s: there is no such step", text)
	}
}

// get sends requests.
func (s *story) get(words []string) {
	ip, ends, hold, times := "203.0.113.9", "200", false, 1
	var change []func(*http.Request)
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		switch {
		case name == "ip":
			ip = value
		case name == "ends":
			ends = wayOf(value)
		case word == "hold":
			hold = true
		case word == "early":
			change = append(change, inEarlyData)
		case word[0] == 'x':
			times, _ = strconv.Atoi(word[1:])
		default:
			change = append(change, header(name, value))
		}
	}
	for range times {
		s.request(ip, ends, hold, change...)
	}
}

// wayOf is how a request ends by its word.
func wayOf(word string) string { return strings.ReplaceAll(word, "_", " ") }

func (s *story) doRedis(what string) {
	switch what {
	case "up":
		s.recover()
	case "holds":
		s.redis.holds()
	case "forgets":
		s.redis.server.FlushAll()
	case "refused", "silent", "lost":
		s.redis.set(what)
	default:
		s.t.Fatal(fmt.Errorf("> redis %s: there is no such step", what))
	}
	s.pause(700 * time.Microsecond)
}
