// bubble: all of a story runs in one.

package stories

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/caddyserver/caddy/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/limits"
)

// standIn is the Redis of a world: a server in memory, whose time is that of the bubble,
// and a way to it that takes time, fails and notes what is asked.
type standIn struct {
	w      *world
	server *miniredis.Miniredis
	shared interface{ Release() }
	other  *redis.Client // the other node's
	first  int64         // of the numbers of strict calls

	heartbeats bool // are noted

	mu       sync.Mutex
	fault    string // up, refused, silent, lost
	passed   time.Time
	commands map[string]lastCommand // of each kind
	kinds    map[string]string      // of the scripts, by their hashes
}

// lastCommand is the last of some. Of those at one instant, which come in any order, it is the one
// with the least key.
type lastCommand struct {
	at    time.Time
	least string
	words []string
}

// redisURL is where configurations find their Redis.
const redisURL = "redis://redis:6379"

func newStandIn(w *world, app string) *standIn {
	r := &standIn{w: w, server: miniredis.NewMiniRedis(), passed: time.Now(), fault: "up", commands: make(map[string]lastCommand), kinds: make(map[string]string)}
	connect := func() *redis.Client {
		return redis.NewClient(&redis.Options{
			Dialer:     func(context.Context, string, string) (net.Conn, error) { return r.server.Dial() },
			MaxRetries: -1, DialerRetries: 1, PipelinePoolSize: -1, DisableIdentity: true, ContextTimeoutEnabled: true, PoolSize: 40,
			ReadTimeout: -1, WriteTimeout: -1,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
	}
	var a ratelimit.App
	if err := json.Unmarshal([]byte(app), &a); err != nil {
		w.t.Fatal(err)
	}
	set, err := a.Redis.Resolve(caddy.NewReplacer())
	if err != nil {
		w.t.Fatal(err)
	}
	client := connect()
	client.AddHook(r)
	r.other, r.first = connect(), time.Now().UnixMicro()
	r.shared, err = limits.OpenRedis(set.Key(), limits.RedisOptions{
		Namespace: w.namespace, Timeout: time.Second, StrictTimeout: 100 * time.Millisecond, Logger: caddy.Log().Named("rate_limit"),
	}, func() (redis.UniversalClient, error) { return client, nil })
	if err != nil {
		w.t.Fatal(err)
	}
	w.pause(time.Second)
	return r
}

// end lets go of the Redis, and notes what is in it.
func (r *standIn) end() {
	r.shared.Release()
	clock.Sleep(context.Background(), 3*time.Second)
	_ = r.other.Close()
	r.holds()
	r.server.Close()
}

// holds notes what is in Redis.
func (r *standIn) holds() {
	dump := chargesPattern.ReplaceAllString(r.w.normal(r.server.Dump()), "")
	if !r.w.rough.IsZero() {
		// Some depend on when Redis was found again.
		dump = instantPattern.ReplaceAllString(dump, "<at>")
	}
	r.w.note("redis holds\n           %s", strings.ReplaceAll(strings.TrimSpace(dump), "\n", "\n           "))
}

// pass has keys expire.
func (r *standIn) pass() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.server.FastForward(now.Sub(r.passed))
	r.passed = now
}

func (r *standIn) set(fault string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault = fault
}

func (r *standIn) state() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fault
}

// DialHook is for redis.Hook.
func (r *standIn) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessPipelineHook is for redis.Hook.
func (r *standIn) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, all []redis.Cmder) error {
		return r.ask(ctx, all, func() error { return next(ctx, all) })
	}
}

// ProcessHook is for redis.Hook.
func (r *standIn) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return r.ask(ctx, []redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

// delays are how long a way to the server takes, for each kind of call another one: what happens at
// one instant would be done in any order.
var delays = map[string]time.Duration{
	"cells": 127, "slots": 211, "heartbeat": 331, "control": 391, "probe": 477,
}

// ask makes calls, if they arrive.
func (r *standIn) ask(ctx context.Context, all []redis.Cmder, do func() error) error {
	kind := r.kindOf(textsOf(all[0].Args()))
	if kind == "hello" {
		return do() // a new connection, which whoever is first need not make
	}
	delay := cmp.Or(delays[kind], 517) * time.Microsecond
	clock.Sleep(context.Background(), delay)
	fault, err := r.state(), error(nil)
	switch fault {
	case "refused":
		err = &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	case "silent":
		<-ctx.Done()
		err = ctx.Err()
	default:
		err = do()
		for _, cmd := range all {
			r.note(textsOf(cmd.Args()), cmp.Or(cmd.Err(), err))
		}
		if fault == "lost" {
			err = io.EOF
		}
	}
	if fault != "up" {
		for _, cmd := range all {
			cmd.SetErr(err)
		}
	}
	clock.Sleep(context.Background(), delay)
	return err
}

// textsOf are the words of a command.
func textsOf(args []any) (words []string) {
	for _, arg := range args {
		switch a := arg.(type) {
		case *string:
			words = append(words, *a)
		case []byte:
			words = append(words, string(a))
		default:
			words = append(words, fmt.Sprint(a))
		}
	}
	return words
}

// kindOf is the kind of a call.
func (r *standIn) kindOf(words []string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch name := strings.ToLower(words[0]); name {
	case "evalsha":
		return cmp.Or(r.kinds[words[1]], "unknown")
	case "eval":
		sum := sha1.Sum([]byte(words[1]))
		hash, kind := hex.EncodeToString(sum[:]), "script"
		for _, k := range [][2]string{
			{"heartbeat", "leases[#leases"}, {"cells", "function ledgers("}, {"slots", "function grant("}, {"probe", "'probe'"}, {"control", "'version'"},
		} {
			if strings.Contains(words[1], k[1]) {
				kind = k[0]
				break
			}
		}
		r.kinds[hash] = kind
		return kind
	default:
		return name
	}
}

// note notes a command that the server has done: by message where it carries several, which may go
// together in any way.
func (r *standIn) note(words []string, err error) {
	kind := r.kindOf(words)
	if redis.HasErrorPrefix(err, "NOSCRIPT") || kind == "probe" {
		return
	}
	if !strings.HasPrefix(strings.ToLower(words[0]), "eval") {
		r.tell(kind, strings.Join(words, " "))
		return
	}
	n, _ := strconv.Atoi(words[2])
	keys, args := words[3:3+n], words[3+n:]
	last := lastCommand{time.Now(), slices.Min(keys), words}
	r.mu.Lock()
	if before := r.commands[kind]; last.at.After(before.at) || last.least < before.least {
		r.commands[kind] = last
	}
	r.mu.Unlock()
	for _, text := range messagesOf(kind, keys, args) {
		r.tell(kind, r.numberless(text))
	}
}

// tell notes what Redis is told. While nodes find it again, they ask at random.
func (r *standIn) tell(kind, text string) {
	r.w.mu.Lock()
	rough := time.Now().Before(r.w.rough)
	r.w.mu.Unlock()
	if kind != "heartbeat" || r.heartbeats && !rough {
		r.w.note("redis %s: %s", kind, text)
	}
}

// messagesOf are the messages of a call.
func messagesOf(kind string, keys, args []string) (all []string) {
	switch kind {
	case "cells":
		cells, _ := strconv.Atoi(args[1])
		for i := range cells { // total, epoch, what is open, and what a strict call asks for
			all = append(all, keys[i]+" "+args[4+3*i]+args[5+3*i])
		}
		bans := keys[cells:]
		if strings.HasSuffix(keys[len(keys)-1], ":told") {
			bans = bans[:len(bans)-1]
		}
		for i, key := range bans {
			if known := args[3+3*cells+i]; known != "" {
				all = append(all, key+" "+known)
			}
		}
		if bans := len(bans); len(args) > 3+3*cells+bans {
			return []string{strings.Join(all, " ") + " asks " + strings.Join(args[3+3*cells+bans:], ",")}
		}
	case "slots":
		for i, key := range keys {
			text := key + " " + args[4+i]
			if len(args) > 4+len(keys) {
				text += "," + args[4+len(keys)+i]
			}
			all = append(all, text)
		}
	case "heartbeat":
		if len(args) > 7 {
			args = append(args[:1:1], args[2:len(args)-1]...) // without its number and the name
		}
		return []string{strings.Join(args, ",")}
	default:
		return []string{strings.Join(keys, " ") + " " + strings.Join(args, ",")}
	}
	return all
}

// chargesPattern is the number of a node's last charge, and probes.
var chargesPattern = regexp.MustCompile(`(?m)^ +(<node>: "\d+"|probe: "1")\n`)

// instantPattern is instants in milliseconds and microseconds.
var instantPattern = regexp.MustCompile(`\b\d{12}(\d{3})?\b`)

var number = regexp.MustCompile(`\d{15,}`)

// numberless leaves out the numbers of strict calls, which are given in the order in which keys
// come to their turns.
func (r *standIn) numberless(text string) string {
	return number.ReplaceAllStringFunc(text, func(n string) string {
		if at, err := strconv.ParseInt(n, 10, 64); err == nil && at >= r.first && at < r.first+50_000 {
			return "<seq>"
		}
		return n
	})
}

// echo has another node do what this one did last, in one of these ways. A count is more each time.
func (r *standIn) echo(kind string, more int64) {
	r.mu.Lock()
	words := slices.Clone(r.commands[kind].words)
	r.mu.Unlock()
	if len(words) == 0 || r.state() != "up" {
		return
	}
	if kind == "cells" {
		n, _ := strconv.Atoi(words[2])
		args := words[3+n:]
		if total, err := strconv.ParseInt(args[min(4, len(args)-1)], 10, 64); err == nil && args[1] != "0" {
			args[4] = strconv.FormatInt(total+more, 10)
		}
	}
	var args []any
	for _, word := range words {
		args = append(args, ids.replace(word, func(id string) string { return "other" + id[5:] }))
	}
	err := r.other.Do(context.Background(), args...).Err()
	r.w.note("the other node: %s: %v", kind, err != nil && err != redis.Nil)
}

// ids are the random names of nodes, while a world runs.
var ids nodeIDs

type nodeIDs struct {
	mu  sync.Mutex
	all []string
}

// Read gives out random bytes, of which names are made.
func (n *nodeIDs) Read(b []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range b {
		b[i] = byte(len(n.all)>>(8*(i%4))) ^ byte(i*37+11)
	}
	if id := base64.RawURLEncoding.EncodeToString(b); len(b) == 9 {
		n.all = append(n.all, id)
	} else {
		n.all = append(n.all, "")
	}
	return len(b), nil
}

func (n *nodeIDs) replace(text string, by func(string) string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, id := range n.all {
		if id != "" && strings.Contains(text, id) {
			text = strings.ReplaceAll(text, id, by(id))
		}
	}
	return text
}

// forget begins with the first name again.
func (n *nodeIDs) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = n.all[:0]
}

// record has names of nodes be known until the test ends.
func (n *nodeIDs) record(t testing.TB) {
	before := rand.Reader
	rand.Reader = n
	t.Cleanup(func() { rand.Reader = before })
}
