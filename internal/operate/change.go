// What can be changed at run time through Caddy's admin endpoint, and what it says about that.

package operate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/hostport"
	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/saturate"
	"github.com/caddy-tide/ratelimit/internal/spelling"
)

const (
	// Root is the path of the state.
	Root = "/rate_limit/"
	// OverridesPath and EnforcementPath are the paths of what is active, and of its changes.
	OverridesPath   = Root + "overrides"
	EnforcementPath = Root + "enforcement"
	// ExplainPath and TopPath are the paths of what is only looked at.
	ExplainPath = Root + "explain"
	TopPath     = Root + "top"
	BansPath    = Root + "bans"
	NodesPath   = Root + "nodes"

	// maxBody is how many bytes the body of a request has at most.
	maxBody = 64 << 10
	// maxLimit is the greatest limit of an override, as of placeholders.
	maxLimit = 1 << 53
	// forever is a length without an end.
	forever = "forever"
)

// An endpoint is what answers the requests for a path. method is the only one that it has, "" where
// serve looks at that.
type endpoint struct {
	method string
	serve  func(http.ResponseWriter, *http.Request, *lifecycle.Config) (answer any, err error)
}

var endpoints = map[string]endpoint{
	OverridesPath:   {"", changes(overrideOf, func(s control.State) []control.EntryState { return s.Overrides })},
	EnforcementPath: {"", changes(enforcementOf, func(s control.State) []control.EntryState { return s.Enforcement })},
	ResetPath:       {http.MethodPost, serveReset},
	ExplainPath:     {http.MethodPost, serveExplain},
	TopPath:         {http.MethodGet, serveTop},
	BansPath:        {http.MethodGet, serveBans},
	BulkPath:        {"", serveBulk},
	NodesPath:       {http.MethodGet, serveNodes},
}

// Serve answers the requests for all paths but Root. An error that says nothing else is one of the
// request.
func Serve(w http.ResponseWriter, r *http.Request) error {
	answer, err := serve(w, r)
	if err == nil {
		return WriteAnswer(w, answer)
	}
	var withStatus caddy.APIError
	if errors.As(err, &withStatus) {
		return fail(withStatus.HTTPStatus, err) // Caddy looks into no error for a status
	}
	return fail(http.StatusBadRequest, err)
}

func serve(w http.ResponseWriter, r *http.Request) (answer any, err error) {
	config, e := lifecycle.Current(), endpoints[r.URL.Path]
	switch {
	case e.serve == nil:
		return nil, fail(http.StatusNotFound, fmt.Errorf("there is no %s; the state is at %s", spelling.Clip(r.URL.Path), Root))
	case e.method != "" && r.Method != e.method:
		return nil, NotAllowed(w, r, e.method, e.method)
	case config == nil:
		return nil, fail(http.StatusServiceUnavailable, errors.New("no configuration with rate_limit is running"))
	}
	return e.serve(w, r, config)
}

func fail(status int, err error) error { return caddy.APIError{HTTPStatus: status, Err: err} }

// NotAllowed is the error of a method that a path does not have. use names those that it has.
func NotAllowed(w http.ResponseWriter, r *http.Request, allow, use string) error {
	w.Header().Set("Allow", allow)
	return fail(http.StatusMethodNotAllowed, fmt.Errorf("method %s not allowed; use %s", spelling.Clip(r.Method), use))
}

// WriteAnswer writes JSON that nobody keeps.
func WriteAnswer(w http.ResponseWriter, body any) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	return json.NewEncoder(w).Encode(body)
}

// A ChangeRequest is the body of a change. Of Zone and All one is given, and of Key and ID at most
// one.
type ChangeRequest struct {
	Zone  string   `json:"zone,omitempty"`
	All   bool     `json:"all,omitempty"`
	Key   *string  `json:"key,omitempty"`
	ID    string   `json:"id,omitempty"`
	Share *float64 `json:"share,omitempty"`
	Limit string   `json:"limit,omitempty"`
	For   string   `json:"for,omitempty"`
	Note  string   `json:"note,omitempty"`
	// By is who asks, as far as a command knows. It is believed: who may ask may change all.
	By string `json:"by,omitempty"`
}

var fields = []string{"zone", "all", "key", "id", "share", "limit", "for", "note", "by"}

// Changed is the answer to a change: what holds now, and on how many nodes.
type Changed struct {
	control.EntryState
	Removed bool `json:"removed,omitempty"`
	// Holds is all that is said of the same now: what is temporary first, then what lasts.
	Holds []control.EntryState `json:"holds,omitempty"`
	// BannedUntil is when a ban of the key ends that precedes the override, nil for none.
	BannedUntil *time.Time `json:"banned_until,omitempty"`
	// StandIn is the key of requests of an address that bring none, where an address was given as a
	// key that requests bring, "" for none.
	StandIn string `json:"stand_in,omitempty"`
	// Unknown is set where no node has counted the key of an override.
	Unknown bool `json:"unknown,omitempty"`
	// AllZones is what is said of all zones, which precedes what is said of one, nil for nothing.
	AllZones *control.EntryState `json:"all_zones,omitempty"`
	control.Outcome
}

// changes answers GET with a list, and makes the change of POST and DELETE. read makes the change
// of a body.
func changes(
	read func(*lifecycle.Config, ChangeRequest, bool) (control.Change, error), list func(control.State) []control.EntryState,
) func(http.ResponseWriter, *http.Request, *lifecycle.Config) (any, error) {
	return func(w http.ResponseWriter, r *http.Request, config *lifecycle.Config) (any, error) {
		switch r.Method {
		case http.MethodGet:
			all := append([]control.EntryState{}, list(statesOf(r.Context(), config))...)
			if zone := r.URL.Query().Get("zone"); zone != "" {
				all = slices.DeleteFunc(all, func(e control.EntryState) bool { return e.Zone != zone && !e.All })
			}
			return all, nil
		case http.MethodPost, http.MethodDelete:
		default:
			return nil, NotAllowed(w, r, "GET, POST, DELETE", "GET, POST or DELETE")
		}
		body, err := decode[ChangeRequest](r.Body, fields, maxBody)
		if err != nil {
			return nil, err
		}
		remove := r.Method == http.MethodDelete
		change, err := read(config, body, remove)
		if err != nil {
			return nil, err
		}
		if change.Who = who(r, body.By); !remove {
			change.By = byOf(r, body.By)
		}
		unknown := !remove && body.Limit != "" && !change.Body.Range.IsValid() && isUnknown(config, body)
		outcome, err := config.Control().Change(r.Context(), change)
		switch {
		case errors.Is(err, control.ErrNone) && change.Key != nil && config.BansOf(change.Zone).UntilOf(*change.Key) != nil:
			return nil, fail(http.StatusNotFound, fmt.Errorf("zone %q has banned the key by itself; `caddy rate-limit reset '%s' <key>` ends that", change.Zone, change.Zone))
		case errors.Is(err, control.ErrNone):
			return nil, fail(http.StatusNotFound, fmt.Errorf("nothing is set for that, so there is nothing to remove; `caddy rate-limit status` or GET %s lists what is", r.URL.Path))
		case errors.Is(err, control.ErrFull):
			return nil, fail(http.StatusInsufficientStorage, err)
		case err != nil:
			return nil, fail(http.StatusInternalServerError, err)
		}
		entry, holds := control.Describe(change.Target, change.Body), config.Control().Holding(change.Target)
		entry.Pending = outcome.Unsent
		for _, one := range holds {
			if !remove && len(outcome.Later) == 0 && one.Temporary == entry.Temporary {
				entry = one
			}
		}
		return Changed{entry, remove, holds, bannedUntil(config, change), standIn(config, body), unknown, allZones(config, change), outcome}, nil
	}
}

// bannedUntil is until when a ban precedes an override that is set.
func bannedUntil(config *lifecycle.Config, c control.Change) *time.Time {
	if c.Target.Key == nil || c.Body.Limit == "" || c.Body.Limit == control.Deny {
		return nil
	}
	return config.BansOf(c.Target.Zone).UntilOf(*c.Target.Key)
}

// standIn is the key that a change of an address' key may have meant.
func standIn(config *lifecycle.Config, req ChangeRequest) string {
	zone, err := findZone(config, req.Zone)
	if err != nil || req.Key == nil || !standsIn(zone) {
		return ""
	}
	text := reqkey.StandIn(*req.Key)
	if _, err := zone.Template.Parse(text); err != nil {
		return ""
	}
	return text
}

// isUnknown reports whether no node has counted the key of an override, which may be mistyped.
func isUnknown(config *lifecycle.Config, req ChangeRequest) bool {
	zone, err := findZone(config, req.Zone)
	if err != nil || req.Key == nil {
		return false
	}
	k, err := keyOf(zone, req.Key, "")
	return err == nil && isUncounted(zone, k)
}

// allZones is what is said of all zones, where a change says for which keys one is enforced.
func allZones(config *lifecycle.Config, c control.Change) *control.EntryState {
	all := config.Control().Holding(control.Target{})
	if len(all) == 0 || c.Target.Key != nil || c.Target.Zone == "" {
		return nil
	}
	return &all[0]
}

// decode reads a body with these fields, of so many bytes at most.
func decode[T any](body io.Reader, fields []string, most int) (req T, err error) {
	text, err := io.ReadAll(io.LimitReader(body, int64(most)+1))
	if err != nil {
		return req, fmt.Errorf("reading the body: %w", err)
	}
	if len(text) > most {
		return req, fail(http.StatusRequestEntityTooLarge, fmt.Errorf("the body has more than %d kB", most>>10))
	}
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	if err = d.Decode(&req); err == nil {
		if _, end := d.Token(); end != io.EOF {
			err = errors.New("something follows the JSON object")
		}
	}
	if err != nil {
		err = fmt.Errorf("the body is not what is expected: %s; send a JSON object with %s", wrongIn(err, fields), strings.Join(fields, ", "))
	}
	return req, err
}

// wrongIn names the field that is wrong.
func wrongIn(err error, fields []string) string {
	var kind *json.UnmarshalTypeError
	switch field, unknown := strings.CutPrefix(err.Error(), "json: unknown field "); {
	case unknown:
		if near := spelling.Nearest(strings.Trim(field, `"`), fields); near != "" {
			return fmt.Sprintf("there is no %s, did you mean %q?", spelling.Clip(field), near)
		}
		return "there is no " + spelling.Clip(field)
	case errors.As(err, &kind):
		return fmt.Sprintf("%s is of type %s", cmp.Or(kind.Field, "it"), kind.Value)
	case errors.Is(err, io.EOF):
		return "it is empty"
	}
	return err.Error()
}

// nameIn is the name of whoever asked, "" for none: the subject of a certificate goes before what
// the request says.
func nameIn(r *http.Request, by string) string {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		return r.TLS.PeerCertificates[0].Subject.String()
	}
	return by
}

// byOf is who asked, for lists of what was changed.
func byOf(r *http.Request, by string) string {
	return reqkey.Printable(cmp.Or(nameIn(r, by), hostport.Host(who(r, ""))))
}

// who names whoever asked, and from where, for the log.
func who(r *http.Request, by string) string {
	at := r.RemoteAddr
	if at == "" || at == "@" {
		at = "a unix socket"
	}
	if name := nameIn(r, by); name != "" {
		return name + " at " + at
	}
	return at
}

// enforcementOf reads a change of the share of keys for which a zone is enforced.
func enforcementOf(config *lifecycle.Config, req ChangeRequest, remove bool) (c control.Change, err error) {
	switch {
	case req.All == (req.Zone != ""):
		return c, errors.New(`give "zone", or "all": true for all zones`)
	case req.Key != nil, req.ID != "", req.Limit != "":
		return c, fmt.Errorf("key, id and limit belong to an override; send them to %s", OverridesPath)
	case !remove && req.Share == nil:
		return c, errors.New(`give "share", from 0 to 1: 0.25 enforces the zone for a quarter of the keys, 0 is shadow mode`)
	}
	if req.Zone != "" {
		if _, err := findZone(config, req.Zone); err != nil && !(remove && len(leftOf(config, req)) == 1) {
			return c, err
		}
	}
	holds := control.EnforcementFor
	if req.Share != nil && *req.Share == 1 { // a rollout that has come to its end
		holds = control.Forever
	}
	return finish(req, remove, control.Target{Zone: req.Zone}, control.Body{Share: req.Share, Note: req.Note}, holds)
}

// leftOf returns what the record has of what a request names, though its zone may be gone: its
// enforcement, or overrides by the first digits of their ids, or their keys where these are known.
func leftOf(config *lifecycle.Config, req ChangeRequest) (all []control.Target) {
	if req.Key == nil && req.ID == "" {
		for _, e := range config.Control().Holding(control.Target{Zone: req.Zone}) {
			return append(all, e.Of())
		}
	}
	for _, e := range overridesOf(config, req.Zone) {
		if !e.Covered && (req.ID != "" && strings.HasPrefix(e.ID, strings.ToLower(req.ID)) || req.Key != nil && *req.Key != "" && e.Key == *req.Key) {
			all = append(all, e.Of())
		}
	}
	return all
}

// overridesOf returns the overrides of a zone, which may be gone.
func overridesOf(config *lifecycle.Config, zone string) []control.EntryState {
	all := config.Control().State(context.Background()).Overrides
	return slices.DeleteFunc(all, func(e control.EntryState) bool { return e.Zone != zone })
}

// overrideOf reads a change of the limits of one key.
func overrideOf(running *lifecycle.Config, req ChangeRequest, remove bool) (c control.Change, err error) {
	switch {
	case req.All, req.Share != nil:
		return c, fmt.Errorf("all and share belong to an enforcement; send them to %s", EnforcementPath)
	case req.Zone == "":
		return c, errors.New(`give "zone"`)
	case (req.Key == nil) == (req.ID == ""):
		return c, errors.New(`give "key" or "id"`)
	case !remove && req.Limit == "":
		return c, fmt.Errorf(`give "limit": a rate such as 6000/1m, %s or %s`, control.Unlimited, control.Deny)
	}
	zone, err := findZone(running, req.Zone)
	if err != nil {
		if left := leftOf(running, req); remove && len(left) == 1 {
			return control.Change{Target: left[0]}, nil
		}
		return c, err
	}
	var within netip.Prefix
	if req.Key != nil {
		if within, err = zone.Template.CheckAddress(*req.Key); err != nil && !remove {
			return c, err
		}
		if within.IsValid() {
			req.Key = new(within.String())
		}
	}
	k, err := keyOf(zone, req.Key, req.ID)
	if err == nil && !remove {
		req.Limit, err = limitIn(zone, req.Limit)
	}
	if err != nil {
		return c, err
	}
	target := control.Target{Zone: req.Zone, Key: &k.ID}
	c, err = finish(req, remove, target, control.Body{Limit: req.Limit, Range: within, Note: req.Note}, control.OverrideFor)
	if remove {
		return c, err
	}
	for _, before := range running.Control().Holding(target) {
		if c.Range = before.Range; c.Temporary || !before.Temporary {
			c.Note = cmp.Or(c.Note, before.Note) // it may say who the key is
		}
	}
	return c, err
}

// finish checks what all changes have in common. byDefault is how long one holds where that is not
// said.
func finish(req ChangeRequest, remove bool, target control.Target, body control.Body, byDefault time.Duration) (c control.Change, err error) {
	c = control.Change{Target: target, For: byDefault}
	if remove {
		return c, nil
	}
	if c.Body = body; req.For != "" {
		if c.For, err = lengthOf(req.For); err != nil {
			return c, err
		}
	}
	c.Temporary = c.For < control.Forever
	return c, body.Check()
}

func lengthOf(text string) (time.Duration, error) {
	if text == forever {
		return control.Forever, nil
	}
	d, err := caddy.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("for: %q is no duration; write 24h or 7d, or %s", spelling.Clip(text), forever)
	}
	if d < control.MinFor || d > control.Forever {
		return 0, fmt.Errorf("for: %s is not between %v and ten years; write 24h or 7d, or %s", spelling.Clip(text), control.MinFor, forever)
	}
	return d, nil
}

// findZone returns the zone of a name.
func findZone(config *lifecycle.Config, name string) (*limits.Zone, error) {
	var names []string
	for z := range config.Zones {
		if z.Name == name {
			return z, nil
		}
		names = append(names, z.Name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if near := spelling.Nearest(name, names); near != "" {
		return nil, fail(http.StatusNotFound, fmt.Errorf("there is no zone %q; did you mean %q?", spelling.Clip(name), near))
	}
	return nil, fail(http.StatusNotFound, fmt.Errorf("there is no zone %q; there are %s", spelling.Clip(name), list(names)))
}

// list names the first of many.
func list(names []string) string {
	const most = 10
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// keyOf returns the key that a request names: by its text, or by its ID where that is nil.
func keyOf(zone *limits.Zone, text *string, id string) (limits.Key, error) {
	if text == nil {
		id, err := idOf(zone, id)
		return limits.KeyOfID(id), err
	}
	raw, err := zone.Template.Parse(*text)
	switch isEmpty := *text == "" || err == nil && zone.Template.IsEmpty(raw); {
	case isEmpty && zone.EmptyKey != config.EmptyShare:
		return limits.Key{}, errors.New("key: it is empty, and no request is counted by an empty key; write one as `caddy rate-limit explain` shows it")
	case err != nil:
		return limits.Key{}, fmt.Errorf("key: %w", err)
	}
	return limits.KeyOf(raw), nil
}

// limitIn returns the limit of an override with sizes as numbers, or what is wrong with it in a
// zone.
func limitIn(zone *limits.Zone, text string) (string, error) {
	words := strings.Fields(text)
	for i, word := range words {
		var size string
		if words[i], size = config.SizeOf(word); size != "" && !zone.CountsBytes() {
			return "", fmt.Errorf("limit: %s is a size, and zone %q doesn't count bytes; write a number", size, zone.Name)
		}
	}
	text = strings.Join(words, " ")
	o, err := control.ParseLimit(text)
	if err != nil {
		return "", cmp.Or(meantLimit(zone, text), err)
	}
	for _, r := range o.Rates {
		if err := checkRate(zone, r); err != nil {
			return "", err
		}
	}
	return text, nil
}

// checkRate reports what is wrong with a rate of an override in a zone.
func checkRate(zone *limits.Zone, r config.Rate) error {
	if zone.OnlyThrottles() {
		return fmt.Errorf("limit: the zone has bandwidth only, and no limit that a number could replace; write %s to lift it for the key, or %s", control.Unlimited, control.Deny)
	}
	windows := windowsOf(zone)
	switch {
	case r.Limit > maxLimit:
		return fmt.Errorf("limit: %d is too large; write %s", r.Limit, control.Unlimited)
	case r.Window != 0 && len(windows) == 0:
		return fmt.Errorf("limit: the zone has only concurrent; write how many may run at once, as in %d", r.Limit)
	case r.Window == 0 && len(windows) > 1:
		return fmt.Errorf("limit: the zone has several limits; name the window of one, as in %d/%s", r.Limit, windows[0])
	case r.Window != 0 && !slices.Contains(windows, config.WindowText(r.Window)):
		return fmt.Errorf("limit: the zone has no limit for %s; its windows are %s%s", config.WindowText(r.Window), strings.Join(windows, ", "), inWindows(zone, r))
	}
	return nil
}

func windowsOf(zone *limits.Zone) (windows []string) {
	for l := range zone.Each {
		windows = append(windows, config.WindowText(l.Rate.Window))
	}
	return windows
}

// meantLimit returns the error for a text that was probably meant as a rate, nil for any other.
func meantLimit(zone *limits.Zone, text string) error {
	meant, ok := config.MeantRate(text)
	windows := windowsOf(zone)
	switch {
	case !ok || len(windows) == 0:
		return nil
	case slices.Contains(windows, config.WindowText(meant.Window)):
		return fmt.Errorf("limit: %q is not a rate; did you mean %s?", spelling.Clip(text), meant)
	}
	return fmt.Errorf("limit: %q is not a rate of the zone; its windows are %s%s", spelling.Clip(text), strings.Join(windows, ", "), inWindows(zone, meant))
}

// inWindows says which limits of a zone's windows have a rate, or else which are the least. It
// returns "" where the rate is too high.
func inWindows(zone *limits.Zone, r config.Rate) string {
	var same, least []string
	isTooHigh := false
	for l := range zone.Each {
		least = append(least, "1/"+config.WindowText(l.Rate.Window))
		own := config.Rate{Limit: saturate.MulDiv(r.Limit, int64(l.Rate.Window), int64(r.Window)), Window: l.Rate.Window}
		if own.Limit > 0 && own.Limit <= maxLimit {
			same = append(same, own.String())
		}
		isTooHigh = isTooHigh || own.Limit > 0
	}
	switch {
	case same != nil:
		return "; for about the same rate write " + strings.Join(same, " or ")
	case isTooHigh || r.Limit == 0:
		return ""
	}
	return fmt.Sprintf("; write at least %s, or %s", strings.Join(least, " or "), control.Deny)
}
