package control

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/redistest"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// The store that the property runs against answers as the scripts do in a real Redis, whatever
// comes late, twice or never, and whenever it forgets.
func TestTheStoreIsRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for seed := range uint64(8) {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			server.Do("FLUSHALL")
			p := &pair{t: t, random: rand.New(rand.NewPCG(seed, 5)), client: server.Client(), model: newStore(), keys: ratesync.NewKeyspace("pair")}
			for range 400 {
				p.step(server)
			}
			if p.writes < 100 || p.beats < 50 {
				t.Errorf("%d writes and %d heartbeats were compared, want more", p.writes, p.beats)
			}
		})
	}
}

// pair is Redis and the store.
type pair struct {
	t      *testing.T
	random *rand.Rand
	client redis.UniversalClient
	model  *store
	keys   ratesync.Keyspace
	late   []func()
	seqs   [3]int64

	writes, beats int
}

func (p *pair) step(server *redistest.Server) {
	switch n := p.random.IntN(100); {
	case n < 60:
		p.soonOrLate(p.aWrite())
	case n < 85:
		p.soonOrLate(p.aBeat())
	case n < 98 && len(p.late) > 0:
		i := p.random.IntN(len(p.late))
		p.late[i]()
		if p.random.IntN(2) == 0 {
			p.late = slices.Delete(p.late, i, i+1)
		}
	case n == 98:
		p.age(server)
	case n == 99:
		server.Do("FLUSHALL")
		*p.model = *newStore()
	}
}

// age has an entry end long ago, as if nobody had written since.
func (p *pair) age(server *redistest.Server) {
	for id, e := range p.model.entries {
		e.Keep -= p.random.Int64N(2 * grace)
		p.model.entries[id], p.model.due = e, 0
		server.Do("HSET", p.keys.Control(), id, fmt.Sprint(e.at, " ", e.value()), "version",
			fmt.Sprint(p.model.Revision, " ", p.model.Born, " 0 ", p.model.last))
		return
	}
}

func (p *pair) soonOrLate(call func()) {
	if p.random.IntN(5) == 0 {
		p.late = append(p.late, call)
		return
	}
	call()
}

// aWrite is a call of control.lua with a few orders.
func (p *pair) aWrite() func() {
	var orders []order
	for range 1 + p.random.IntN(3) {
		o := order{Entry: Entry{ID: fmt.Sprint("override:", p.random.IntN(6)), Body: p.body()}, length: -1}
		switch now := p.model.Revision; p.random.IntN(3) {
		case 0: // one that another node has, of any age
			o.Stamp = now + p.random.Int64N(2000) - 1000
			o.Until, o.Length = now/1000+p.random.Int64N(200_000)-100_000, p.random.Int64N(1e6)
			o.Stamp, o.Until = max(0, o.Stamp), max(0, o.Until)
			o.Keep = o.Until + p.random.Int64N(100_000)
		case 1:
			o.length = 0
		default:
			o.length = p.random.Int64N(1e8)
		}
		if e, ok := p.model.entries[o.ID]; ok && p.random.IntN(3) == 0 { // as old as what is there
			o.Entry, o.length = e.Entry, -1
			if p.random.IntN(2) == 0 {
				o.Body = p.body()
			}
		}
		o.rest = p.random.Int64N(4e9) // 46 days
		orders = append(orders, o)
	}
	known := max(0, p.model.Revision+p.random.Int64N(3)-1)
	return func() { p.write(known, orders) }
}

func (p *pair) body() string {
	return []string{"", `{"share":0}`, `{"share":0.5,"note":"ä ö"}`, `{"limit":"deny"}`}[p.random.IntN(4)]
}

func (p *pair) write(known int64, orders []order) {
	p.t.Helper()
	p.writes++
	now := p.client.Time(context.Background()).Val()
	us := now.UnixMicro()
	at := strings.Replace(writeSource, "redis.call('TIME')", fmt.Sprintf("{%d, %d}", us/1e6, us%1e6), 1)
	reply, err := redis.NewScript(at).Run(context.Background(), p.client, []string{p.keys.Control()}, args(known, orders)...).StringSlice()
	if err != nil {
		p.t.Fatal(err)
	}
	holds := p.model.write(us, known, orders)
	for i, value := range reply {
		var e Entry
		if value != "" {
			e, _ = parseEntry(orders[i].ID, value)
		}
		if e != holds[i] {
			p.t.Fatalf("control.lua has %+v, the store %+v, after %+v", e, holds[i], orders)
		}
	}
	if got, v := p.stored(); !maps.Equal(got, p.model.entries) || v != p.model.Version {
		p.t.Fatalf("Redis holds %v\n%v, the store %v\n%v", v, got, p.model.Version, p.model.entries)
	}
}

// stored are the entries in Redis, and the version.
func (p *pair) stored() (all map[string]stored, v Version) {
	all = make(map[string]stored)
	for id, value := range p.client.HGetAll(context.Background(), p.keys.Control()).Val() {
		if id == "version" {
			v, _ = parseVersion(value)
			continue
		}
		at, value, _ := strings.Cut(value, " ")
		e, _ := parseEntry(id, value)
		n, _ := strconv.ParseInt(at, 10, 64)
		all[id] = stored{e, n}
	}
	return all, v
}

// aBeat is a heartbeat of one of three nodes.
func (p *pair) aBeat() func() {
	node := p.random.IntN(len(p.seqs))
	p.seqs[node]++
	seq := p.seqs[node]
	known := p.model.knownSince[fmt.Sprint("node", node)] + p.random.Int64N(5)/4
	q := question{Version{max(0, p.model.Revision+p.random.Int64N(5)-3), p.model.Born}, p.random.IntN(3) > 0, known}
	switch p.random.IntN(4) {
	case 0:
		q.Revision = max(0, p.model.Revision-p.random.Int64N(1e5))
	case 1:
		q.Born += p.random.Int64N(2)
	}
	answered := seq - 1 - p.random.Int64N(2)
	return func() { p.beat(fmt.Sprint("node", node), seq, answered, q) }
}

func (p *pair) beat(node string, seq, answered int64, q question) {
	p.t.Helper()
	p.beats++
	version := ""
	if q.ok {
		version = q.String()
	}
	raw, err := redis.NewScript(ratesync.HeartbeatLua).Run(context.Background(), p.client, []string{p.keys.Nodes(0), p.keys.Control(), p.keys.Counted()},
		node, seq, ratesync.Lease.Milliseconds(), answered, version, "1", "v1 "+node, q.knownSince).Slice()
	if err != nil {
		p.t.Fatal(err)
	}
	us := micros(raw[0].(string), raw[1].(string))
	want := p.model.beat(us, node, seq, answered, q)
	got, leases, err := parseReply(ratesync.HeartbeatReply{Node: node, Server: us * 1000, Record: raw[5:]})
	if err != nil {
		p.t.Fatal(err)
	}
	byID := func(a, b Entry) int { return slices.Compare([]string{a.ID}, []string{b.ID}) }
	slices.SortFunc(got.Entries, byID)
	slices.SortFunc(want.Entries, byID)
	if !reflect.DeepEqual(got, want) {
		p.t.Fatalf("heartbeat.lua says\n%+v, the store\n%+v", got, want)
	}
	if len(leases) != len(p.model.leases) || raw[3] != int64(len(leases)) {
		p.t.Fatalf("%d leases, %v nodes, the store has %d", len(leases), raw[3], len(p.model.leases))
	}
	for _, l := range leases {
		if l.Applied != p.model.applied[l.Node] || l.Name != "v1 "+l.Node {
			p.t.Fatalf("lease %+v, the store has %d applied", l, p.model.applied[l.Node])
		}
	}
}

func micros(seconds, micros string) int64 {
	var s, us int64
	_, err := fmt.Sscan(seconds+" "+micros, &s, &us)
	if err != nil {
		panic(err)
	}
	return s*1e6 + us
}
