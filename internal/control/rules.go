package control

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

const (
	// The kinds of entries, which their names begin with. A name goes on with the zone, and for an
	// override with the key before it. What is temporary has a name of its own beside what lasts.
	enforcement = "enforcement:"
	override    = "override:"
	temporary   = "temporary:"

	// EnforcementFor and OverrideFor are how long an entry is active if nothing else is said.
	EnforcementFor = time.Hour
	OverrideFor    = 24 * time.Hour
	// MinFor and maxFor bound that.
	MinFor = time.Second
	maxFor = config.MaxWindow
	// Forever is the longest.
	Forever = maxFor

	// maxNote is how many bytes a note has at most.
	maxNote = 256
)

// Words that stand for a limit.
const (
	Unlimited = "unlimited"
	Deny      = "deny"
)

// A Body is what an entry says. Of Share and Limit one is set.
type Body struct {
	// Share is the share of keys for which a zone is enforced, 0 to 1.
	Share *float64 `json:"share,omitempty"`
	// Limit is rates such as 6000/1m with spaces between them, a number for the zone's only limit,
	// unlimited or deny.
	Limit string `json:"limit,omitempty"`
	// Range is set where the key stands for all addresses of a range.
	Range netip.Prefix `json:"range,omitzero"`
	// Note says why, and By who said so.
	Note string `json:"note,omitempty"`
	By   string `json:"by,omitempty"`
}

// A Target is what an entry is about: a zone, or all of them where Zone is empty, or one key in a
// zone.
type Target struct {
	Zone string
	Key  *keys.ID
	// Temporary is set for what covers, until it ends, what lasts.
	Temporary bool
}

// name is the name of the target's entry.
func (t Target) name() string {
	name := enforcement + t.Zone
	if t.Key != nil {
		name = override + t.redisID() + ":" + t.Zone
	}
	if t.Temporary {
		name = temporary + name
	}
	return name
}

// Layers are what is temporary of a target and what lasts, in the order in which they hold.
func (t Target) Layers() [2]Target {
	first, then := t, t
	first.Temporary, then.Temporary = true, false
	return [2]Target{first, then}
}

// redisID is the ID as Redis has it in its keys, "" for none.
func (t Target) redisID() string {
	if t.Key == nil {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(t.Key[:])
}

// IDText is the ID in hex, "" for none.
func (t Target) IDText() string {
	if t.Key == nil {
		return ""
	}
	return t.Key.String()
}

// parseTarget reads the name of an entry.
func parseTarget(name string) (t Target, ok bool) {
	name, isTemporary := strings.CutPrefix(name, temporary)
	if t.Zone, ok = strings.CutPrefix(name, enforcement); !ok {
		t, ok = parseKeyed(name, override)
		ok = ok && t.Key != nil
	}
	t.Temporary = isTemporary
	return t, ok
}

// parseKeyed reads a name that goes on with an ID, which may be empty, and a zone.
func parseKeyed(name, prefix string) (t Target, ok bool) {
	rest, ok := strings.CutPrefix(name, prefix)
	text, zone, _ := strings.Cut(rest, ":")
	t.Zone = zone
	if text != "" {
		id, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil || len(id) != len(t.Key) {
			return t, false
		}
		t.Key = new(keys.ID(id))
	}
	return t, ok && zone != ""
}

// Check reports what is wrong with a body.
func (b Body) Check() error {
	if (b.Share != nil) == (b.Limit != "") {
		return errors.New("give a share for an enforcement, or a limit for an override")
	}
	if err := cmp.Or(checkText("the note", b.Note), checkText("by", b.By)); err != nil {
		return err
	}
	if b.Share != nil {
		return config.CheckShare(*b.Share)
	}
	_, err := ParseLimit(b.Limit)
	return err
}

func checkText(name, text string) error {
	switch {
	case len(text) > maxNote:
		return fmt.Errorf("%s has %d bytes; write %d at most", name, len(text), maxNote)
	case !utf8.ValidString(text):
		return fmt.Errorf("%s is no UTF-8", name)
	}
	for _, c := range text {
		if !unicode.IsPrint(c) {
			return fmt.Errorf("%s holds %+q; write it in one line, without control characters", name, c)
		}
	}
	return nil
}

// An Override is what replaces the limits of a zone for one key.
type Override struct {
	// Unlimited admits everything and counts nothing, except for what Rates names. Deny denies
	// everything.
	Unlimited, Deny bool
	// Rates replace the limits with their windows, or the only one where Window is 0.
	Rates []config.Rate
	// text is that of the key, nil where requests don't go by the override.
	text *atomic.Pointer[string]
}

// Name notes the text of the key, which text is called for where it is not known yet.
func (o *Override) Name(text func() string) {
	if o.text != nil && o.text.Load() == nil {
		o.text.Store(new(text()))
	}
}

// LimitOf returns the number for the limit with a window, which may be the zone's only one. It may
// be called on nil.
func (o *Override) LimitOf(window time.Duration, isOnly bool) (n int64, ok bool) {
	if o != nil {
		for _, r := range o.Rates {
			if r.Window == window || r.Window == 0 && isOnly {
				return r.Limit, true
			}
		}
	}
	return 0, false
}

// over returns what holds of a temporary override and the lasting one that it covers, nil for none:
// a rate covers the same window, and denying everything as a whole.
func (o *Override) over(lasting *Override) *Override {
	if lasting == nil || lasting.Deny || o.Deny || o.Unlimited {
		return o
	}
	both := *o
	both.Unlimited, both.Rates = lasting.Unlimited, slices.Clone(o.Rates)
	for _, r := range lasting.Rates {
		if _, covered := o.LimitOf(r.Window, true); !covered && r.Window != 0 {
			both.Rates = append(both.Rates, r)
		}
	}
	return &both
}

// ParseLimit reads the limit of an override.
func ParseLimit(text string) (o Override, err error) {
	words := strings.Fields(text)
	switch {
	case text == Unlimited:
		o.Unlimited = true
	case text == Deny:
		o.Deny = true
	case len(words) == 1 && !strings.Contains(text, "/"):
		var n int64
		n, err = config.ParseCount(text)
		o.Rates = []config.Rate{{Limit: n}}
	default:
		o.Rates, err = parseRates(words)
	}
	if err != nil {
		return o, fmt.Errorf("limit: %w; or write %s or %s", err, Unlimited, Deny)
	}
	return o, nil
}

// parseRates reads rates of different windows.
func parseRates(words []string) ([]config.Rate, error) {
	var o Override
	for _, word := range words {
		r, err := config.ParseRate(word)
		if _, isTwice := o.LimitOf(r.Window, false); isTwice && err == nil {
			err = fmt.Errorf("%s has two rates; write one for each window", config.WindowText(r.Window))
		}
		if err != nil {
			return nil, err
		}
		o.Rates = append(o.Rates, r)
	}
	return o.Rates, nil
}

// Rules are what the active entries say of one zone. They don't change, and are safe for
// concurrent use.
type Rules struct {
	// Enforce is for which keys the zone is enforced, nil where the configuration says that.
	Enforce *config.Enforcement

	overrides map[keys.ID]*Override
	misses    *misses // where there are overrides
	// ranges are the overrides of ranges, and bits their lengths, the longest first.
	ranges map[netip.Prefix]*Override
	bits   []int
}

// misses remembers keys without an override, for each zone that has overrides: an ID takes longer
// to compute than all else that an override costs. They take a megabyte, which is enough for some
// 100,000 keys. Each set lies in one cache line, and holds one half of a key's hash; the other one
// says which set.
type misses [missSets][missWays]atomic.Uint64

const (
	missSets = 1 << 14
	missWays = 8
)

// has reports whether a key is remembered.
func (m *misses) has(key keys.Key) bool {
	set := &m[key.A%missSets]
	for i := range set {
		if set[i].Load() == key.B {
			return true
		}
	}
	return false
}

// add remembers a key, in the place of another one where its set is full.
func (m *misses) add(key keys.Key) {
	set := &m[key.A%missSets]
	at := key.B % missWays
	for i := range set {
		if set[i].Load() == 0 {
			at = uint64(i)
			break
		}
	}
	set[at].Store(key.B)
}

// Override returns what replaces the limits for a key, nil for nothing. hash is that of the bytes
// raw.
func (r *Rules) Override(hash keys.Key, raw []byte) *Override {
	if len(r.overrides) == 0 || r.misses.has(hash) {
		return nil
	}
	o := r.OverrideOf(keys.IDOf(raw), raw)
	if o == nil {
		r.misses.add(hash)
	}
	return o
}

// OverrideOf returns the override of a key, else that of the smallest range that has it, nil for
// none. It is for who looks once; raw may be nil where only the ID is known.
func (r *Rules) OverrideOf(id keys.ID, raw []byte) *Override {
	o := r.overrides[id]
	for i := 0; o == nil && i < len(r.bits); i++ {
		if p, err := reqkey.AddressOf(raw).Prefix(r.bits[i]); err == nil {
			o = r.ranges[p]
		}
	}
	return o
}

// EachOverride calls f with each key that has one. It may be called on nil.
func (r *Rules) EachOverride(f func(keys.ID)) {
	if r != nil {
		for id := range r.overrides {
			f(id)
		}
	}
}

// addRange notes what replaces the limits for a range.
func (r *Rules) addRange(p netip.Prefix, o *Override) {
	r.ranges[p] = o
	r.bits = append(r.bits, p.Bits())
	slices.SortFunc(r.bits, func(a, b int) int { return b - a })
	r.bits = slices.Compact(r.bits)
}

// A Zone is where requests find the rules of a zone: nil where there are none.
type Zone = atomic.Pointer[Rules]

// parsed is an entry with what it says.
type parsed struct {
	Entry
	Body
	Target
	override *Override
	enforce  *config.Enforcement
}

// parse reads an entry. What other programs may have written there has no effect.
func parse(e Entry) (p parsed, ok bool) {
	p.Entry = e
	p.Target, ok = parseTarget(e.ID)
	if !ok || json.Unmarshal([]byte(e.Body), &p.Body) != nil || p.Body.Check() != nil || (p.Share != nil) != (p.Key == nil) {
		return p, false
	}
	if p.Share != nil {
		p.enforce = new(config.Enforce(*p.Share))
	} else {
		o, _ := ParseLimit(p.Limit)
		o.text = new(atomic.Pointer[string])
		if p.Range.IsValid() {
			o.text.Store(new(p.Range.String()))
		}
		p.override = &o
	}
	return p, true
}

// compile makes the rules of all zones that entries name, and those of all others, nil for none.
// What is temporary covers what lasts.
func compile(all iter.Seq[parsed]) (zones map[string]*Rules, others *Rules) {
	zones = make(map[string]*Rules)
	at := func(zone string) *Rules {
		if zones[zone] == nil {
			zones[zone] = new(Rules)
		}
		return zones[zone]
	}
	for p := range all {
		switch {
		case p.override != nil:
			r := at(p.Zone)
			if r.overrides == nil {
				r.overrides, r.misses, r.ranges = make(map[keys.ID]*Override), new(misses), make(map[netip.Prefix]*Override)
			}
			first, then := p.override, r.overrides[*p.Key]
			if then != nil && !p.Temporary {
				first, then = then, first
			}
			r.overrides[*p.Key] = first.over(then)
			if p.Range.IsValid() {
				r.addRange(p.Range, r.overrides[*p.Key])
			}
		case p.Zone == "" && (others == nil || p.Temporary):
			others = &Rules{Enforce: p.enforce}
		case p.Zone != "" && (at(p.Zone).Enforce == nil || p.Temporary):
			at(p.Zone).Enforce = p.enforce
		}
	}
	if others != nil { // what is said of all goes before what is said of one
		for _, r := range zones {
			r.Enforce = others.Enforce
		}
	}
	return zones, others
}
