package simulate

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-tide/ratelimit/internal/accesslog"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

// A Report is what came of a replay. Its JSON is what `simulate --json` prints.
type Report struct {
	// Requests are those of the logs, Clients how many addresses they came from; that is exact up
	// to 65,536, and within 2 % beyond. From and To are when the first and the last one began.
	Requests int64     `json:"requests"`
	Clients  int64     `json:"clients"`
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	// Reached is how many came to a rate_limit.
	Reached int64 `json:"reached"`
	// DeniedInLog is how many were answered with 429 in the log.
	DeniedInLog int64 `json:"denied_in_log"`
	Nodes       int   `json:"nodes"`
	// Read is what was read.
	Read accesslog.Stats `json:"read"`
	// Zones are by their names.
	Zones []Zone `json:"zones"`
	// Uncounted are the paths of most responses 401, 403 and 429 in the log that no zone counted.
	Uncounted []Uncounted `json:"uncounted,omitempty"`
	// Warnings say what makes this replay less true, Bias what no replay can tell.
	Warnings []string `json:"warnings,omitempty"`
	Bias     []string `json:"bias"`
}

// Uncounted is how often a path, without its query, was answered with a status.
type Uncounted struct {
	Path     string `json:"path"`
	Status   int    `json:"status"`
	Requests int64  `json:"requests"`
}

// A Zone is what a zone would have done.
type Zone struct {
	Zone      string `json:"zone"`
	Limits    string `json:"limits"`
	Key       string `json:"key"`
	Algorithm string `json:"algorithm"`
	SyncRate  string `json:"sync_rate"`
	// Enforced is for which keys it denies, as `enforce` has it.
	Enforced string `json:"enforced"`
	// With are the options beside limits that are replayed.
	With []string `json:"with,omitempty"`
	// Requests are those that it limits, by Clients different keys.
	Requests int64 `json:"requests"`
	Clients  int64 `json:"clients"`
	// Denied are those that it denies, WouldDeny those that it would where it is not enforced.
	// Share is the part that both are of Requests, and DeniedClients how many keys they have.
	Denied        int64   `json:"denied"`
	WouldDeny     int64   `json:"would_deny"`
	Share         float64 `json:"denied_share"`
	DeniedClients int64   `json:"denied_clients"`
	// Banned is how many of both came during a ban.
	Banned int64 `json:"banned,omitempty"`
	// Answered is what these requests had been answered, by class: 2xx, 3xx, 4xx, 5xx or unknown.
	Answered Answers  `json:"answered"`
	Windows  []Window `json:"windows"`
	// Top are the keys that are denied most, each as one that can be told from the others.
	Top []Top `json:"top"`
	// Times are how many requests came, and were denied, in each stretch of the period.
	Times Times `json:"times"`
}

// A Window is what clients did in the window of one limit.
type Window struct {
	Limit  string `json:"limit"`
	Window string `json:"window"`
	// Most is the most that clients sent in any window, of what counts by its response: half of
	// them at most P50, and so on. It is counted in tenths of the window, and never too low.
	Most Quantiles `json:"most"`
	// OneIn is of how many clients one was looked at: 1 for all.
	OneIn int64 `json:"one_in"`
	// Candidates are other limits with this window, each alone, without a ban, and on all nodes
	// together.
	Candidates []Candidate `json:"candidates,omitempty"`
	// Suggested is the lowest candidate that touches at most one client in 1,000, not counting the
	// failing: one where there are fewer, and nobody below 20. 0 is none.
	Suggested int64 `json:"suggested"`
	// NotFollowed is how many clients are left out of the candidates, as too many come near them.
	NotFollowed int64 `json:"not_followed,omitempty"`

	mosts []int64
}

// Quantiles are those of the clients.
type Quantiles struct {
	P50  int64 `json:"p50"`
	P90  int64 `json:"p90"`
	P99  int64 `json:"p99"`
	P999 int64 `json:"p99_9"`
	Max  int64 `json:"max"`
}

// A Candidate is another limit, and whom it would touch.
type Candidate struct {
	Limit   int64 `json:"limit"`
	Clients int64 `json:"clients"`
	// Failing is how many of the clients got no other answer than 4xx in the whole log, and came
	// more often than the limit admits, as who guesses passwords: no reason for a higher one.
	Failing  int64 `json:"failing_clients"`
	Requests int64 `json:"requests"`
	// Answered is what these requests had been answered.
	Answered Answers `json:"answered"`
}

// Top is a key and how many of its requests are denied.
type Top struct {
	Key    string `json:"key"`
	Denied int64  `json:"denied"`
}

// Times are stretches of time of one length.
type Times struct {
	Start    time.Time `json:"start"`
	Seconds  float64   `json:"seconds"`
	Requests []int64   `json:"requests"`
	Denied   []int64   `json:"denied"`
}

const (
	// shownTop is how many of the keys that are denied most a report has.
	shownTop = 10
	// shownUncounted is how many paths it has of what no zone counted.
	shownUncounted = 5
	// touched is the part of the clients that a suggested limit touches at most: one in so many. Of
	// fewer it is one, and none below few.
	touched = 1000
	few     = 20
)

// report makes the report.
func (r *replay) report(read *accesslog.Stats) (*Report, error) {
	t := &r.total
	if t.Requests == 0 {
		return nil, noRequests(read)
	}
	rep := &t.Report
	rep.Clients, rep.From, rep.To = t.clients.Count(), time.Unix(0, t.first).UTC(), time.Unix(0, t.last).UTC()
	rep.Nodes, rep.Read = len(r.nodes), *read
	for _, name := range slices.Sorted(maps.Keys(r.zones)) {
		if r.Zone == "" || r.Zone == name {
			rep.Zones = append(rep.Zones, r.zone(r.zones[name]))
		}
	}
	rep.Warnings = append(slices.Clone(r.policy.Warnings), r.warnings(read)...)
	rep.Bias = r.bias(read)
	for _, h := range t.uncounted.Top(shownUncounted) {
		status, path, _ := strings.Cut(h.Value, " ")
		n, _ := strconv.Atoi(status) // which it was made of
		rep.Uncounted = append(rep.Uncounted, Uncounted{path, n, h.Count - h.Over})
	}
	return rep, nil
}

// noRequests is the error of logs without a request.
func noRequests(read *accesslog.Stats) error {
	text := fmt.Sprintf("the log has no request: %d lines were read", read.Lines)
	if len(read.Troubles) > 0 {
		x := read.Troubles[0]
		text += fmt.Sprintf("; %s line %d: %s", x.File, x.Line, x.Why)
	} else if read.Other > 0 {
		text += ", and they tell of something else; give Caddy's access log, which the directive log switches on"
	}
	return errors.New(text)
}

// zone reports a zone.
func (r *replay) zone(s *zoneStats) Zone {
	z, out := s.of, s.report
	var rated []string
	for _, l := range z.Limits {
		rated = append(rated, l.String())
	}
	out.Zone, out.Limits, out.With = z.Name, strings.Join(rated, " "), options(z)
	out.Key, out.Algorithm = strings.ReplaceAll(z.Key, "{http.vars.client_ip}", "{client_ip}"), z.Kind.String()
	out.SyncRate, out.Enforced = z.SyncRate.String(), z.Enforce.String()
	out.Clients, out.DeniedClients = s.clients.Count(), s.deniedClients.Count()
	for _, w := range s.windows {
		out.Windows = append(out.Windows, w.report())
	}
	top, in := s.top.Top(shownTop), map[string]int{}
	for _, h := range top {
		in[masked(h.Value)]++
	}
	for _, h := range top {
		key := h.Value
		if !r.ShowKeys {
			if key = masked(key); in[key] > 1 { // several clients of a network
				key += " " + hashed(h.Value)
			}
		}
		out.Top = append(out.Top, Top{key, h.Count - h.Over})
	}
	if out.Requests > 0 {
		out.Share = float64(out.Denied+out.WouldDeny) / float64(out.Requests)
		start, width, requests, denied := s.times.Counts()
		out.Times = Times{start, width.Seconds(), requests, denied}
	}
	return out
}

// options says which options beside limits are replayed.
func options(z *limits.Zone) (all []string) {
	with := func(is bool, text string) {
		if is {
			all = append(all, text)
		}
	}
	with(z.CountDenied, "count_denied")
	with(z.CountsUnits(), "cost, so that limits and the most of a client are in its units")
	with(len(z.ResponseCost.Terms) > 0, "response_cost as the log has it, when a response had ended")
	with(z.CountResponses != nil, "count_responses by the status of the log")
	with(z.ForgiveResponses != nil, "forgive_responses by the status of the log")
	for _, share := range z.Reserve {
		with(true, "reserve "+share.String()+" for requests that match")
	}
	with(z.Ban.For > 0, "ban "+z.Ban.String())
	return all
}

// report reports a window.
func (w *windowStats) report() Window {
	mosts := w.clients.mosts()
	out := Window{
		Limit: w.limit.Rate.String(), Window: config.WindowText(w.limit.Rate.Window), OneIn: 1 << w.clients.bits, mosts: mosts,
		Most: Quantiles{quantile(mosts, .5), quantile(mosts, .9), quantile(mosts, .99), quantile(mosts, .999), w.clients.most},
	}
	for _, n := range w.numbers {
		out.Candidates = append(out.Candidates, Candidate{Limit: n})
	}
	for i, t := range w.trials {
		c := &out.Candidates[i]
		c.Clients, c.Requests, c.Answered = t.deniedClients.Count(), t.report.Denied+t.report.WouldDeny, t.report.Answered
		for hash := range t.deniedClients.set {
			if one := w.clients.of(hash); one != nil && w.isFailing(one) {
				c.Failing += 1 << t.deniedClients.bits
			}
		}
	}
	if w.candidates != nil {
		out.NotFollowed = w.candidates.tally(w, out.Candidates)
	}
	for _, c := range out.Candidates {
		if c.Clients-c.Failing <= mayTouch(w.clients.count()) && out.NotFollowed == 0 && len(mosts) > 0 {
			out.Suggested = c.Limit
			break
		}
	}
	return out
}

// isFailing reports whether a client got nothing but 4xx, and tried more often than the limit
// admits, as who guesses passwords.
func (w *windowStats) isFailing(c *client) bool { return !c.served && c.most > w.limit.Rate.Limit }

// mayTouch is how many of so many clients a suggested limit touches at most.
func mayTouch(clients int64) int64 {
	if clients >= few {
		return max(1, clients/touched)
	}
	return 0
}

// masked shortens a key: addresses to their network, and all else to what tells it from others.
func masked(key string) string {
	standIn := reqkey.StandIn("")
	prefix := ""
	if rest, ok := strings.CutPrefix(key, standIn); ok {
		prefix, key = standIn, rest
	}
	address, _, _ := strings.Cut(key, "/")
	a, err := netip.ParseAddr(address)
	if err != nil {
		return prefix + hashed(key)
	}
	bits := 48
	if a.Is4() {
		bits = 24
	}
	network, _ := a.Prefix(bits) // it has that many
	return prefix + network.String()
}

// hashed tells a key from others without showing it.
func hashed(key string) string { return fmt.Sprintf("(key %06x)", hashOf(key)>>40) }

// reactedShare is the share of requests answered with 429 above which a log tells of clients that
// had reacted.
const reactedShare = .05

// warnings say what makes the replay less true.
func (r *replay) warnings(read *accesslog.Stats) (all []string) {
	t := &r.total
	caution := func(is bool, format string, args ...any) {
		if is {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	caution(float64(t.DeniedInLog) > reactedShare*float64(t.Requests),
		"%d of %d requests had been answered with 429 already: clients had reacted to a limit, so without it more would have come, and by other times", t.DeniedInLog, t.Requests)
	caution(t.Reached < t.Requests, "%d of %d requests come to no rate_limit of the configuration", t.Requests-t.Reached, t.Requests)
	caution(t.noHost > 0 && t.Reached < t.Requests, "%d requests have no host in the log; give it by --host if the sites of the configuration have names", t.noHost)
	caution(t.redacted > 0, "%d requests have a redacted header that a key or limit needs: they are counted as one client; log_credentials in the global options logs them, and then the log is a secret", t.redacted)
	caution(t.noHeaders > 0, "%d requests are in a log format without the header that a key or limit needs; use Caddy's JSON format", t.noHeaders)
	caution(r.policy.sees && read.Texts > 0, "%d requests are in a log format without the headers that a matcher may look at; use Caddy's JSON format", read.Texts)
	caution(t.noCost > 0, "%d of %d requests have no number at %s in the log: what each of them takes is cost_default, or its estimate", t.noCost, t.Requests, r.CostField)
	caution(t.noAddress > 0, "%d requests have no valid address, as in a log that hashes or removes them: no matcher of addresses matches them, and those with the same text count as one client", t.noAddress)
	caution(t.masked > 0 && t.masked > (t.Requests-t.noAddress)*99/100, "the addresses of the log end in zeros, as in one that masks them: a whole network counts as one client, so more is denied here than would be")
	caution(read.Early > 0, "too many requests began within --reorder to hold all of them back: lines may be out of order by less than that")
	for _, name := range slices.Sorted(maps.Keys(r.zones)) {
		s := r.zones[name]
		caution(len(s.windows) > 0 && s.of.CountResponses != nil && s.report.Requests > 0 && s.counted == 0,
			"zone %q: no response in the log counts by count_responses, so the zone limits nothing here; look how those are answered that should count", name)
		caution(s.report.Requests == 0 && s.of.EmptyKey == config.EmptySkip, "zone %q: it has counted no request of the log; it skips those without a key, and a header that the log leaves out can't be replayed, nor what another handler sets", name)
		caution(s.noKey > 0 && s.noKey == s.report.Requests && t.noHeaders == 0,
			"zone %q: the key is empty in all requests of the log, and the client's address stands in for it, so this says nothing of the zone; a header that the log leaves out can't be replayed, nor what another handler sets", name)
		for _, w := range s.windows {
			decisions := w.limit.Table.Overflowed()
			caution(decisions > 0, "zone %q: %d decisions were made for keys beyond max_keys, which share counters", name, decisions)
			bits := w.clients.bits
			caution(bits > 0, "zone %q: there are more clients than are looked at one by one: the most in a window of %s and the candidates are estimated from one in %d", name, config.WindowText(w.limit.Rate.Window), int64(1)<<bits)
		}
	}
	return all
}

// bias says what no replay can tell.
func (r *replay) bias(read *accesslog.Stats) []string {
	all := []string{
		"A client that is denied behaves differently from what the log shows: it waits, tries again or gives up.",
		"What came before the log begins is not counted: the first window is too lenient.",
	}
	for _, s := range r.zones {
		if s.of.CountResponses != nil {
			all = append(all, "count_responses: the log has when a response ended, and that is taken for when it began; 499, 504 and no status count, as nobody was answered; 502 is taken for an upstream that was not reached.")
			break
		}
	}
	if r.total.DeniedInLog > 0 {
		all = append(all, "Requests that the log shows as denied (429) are offered as any other.")
	}
	if read.Texts > 0 {
		all = append(all, "This log format has whole seconds: what came within a second counts as sent at once.")
	}
	return all
}
