package limits

import (
	"net/http"
	"slices"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

// Early data (0-RTT of QUIC) comes before the handshake that proves the client's address. Where an
// address may have a part in how a zone counts a request, nobody is counted by it: the answer is
// 425, and the request comes again after the handshake (RFC 8470).

// earlyDataRules are what a zone does with early data, found at load. The zero value is a zone that
// counts it as any other request.
type earlyDataRules struct {
	// byAddress is set where an address may have a part in the zone's keys, in its limits and
	// costs, or in which requests it is for. asItCame is set where an address has none only as long
	// as no handler before has changed the request.
	byAddress, asItCame bool
	// matchers are what the zone's sets ask that no address has a part in, and except the
	// exceptions that ask nothing else.
	matchers, except caddyhttp.MatcherSets
}

// earlyDataRulesOf is asked once a zone has its limits and costs.
func earlyDataRulesOf(z *Zone) earlyDataRules {
	e := earlyDataRules{byAddress: !z.Template.IsProven()}
	note := func(n *reqkey.Number) { e.byAddress = e.byAddress || n != nil && !n.IsProven() }
	if z.cost != nil {
		for _, n := range z.cost.numbers {
			note(n)
		}
	}
	for i := range z.AllLimits {
		note(z.AllLimits[i].Number)
	}
	ask := func(set caddyhttp.MatcherSet) (proven caddyhttp.MatcherSet, all bool) {
		proven = config.ProvenIn(set)
		all = len(proven) == len(set)
		e.asItCame, e.byAddress = true, e.byAddress || !all
		return proven, all
	}
	for _, set := range z.Matchers {
		proven, _ := ask(set)
		e.matchers = append(e.matchers, proven)
	}
	for _, set := range z.Except {
		if proven, all := ask(set); all {
			e.except = append(e.except, proven)
		}
	}
	for _, set := range slices.Concat(z.ClassMatchers...) {
		ask(set)
	}
	return e
}

// askAfterHandshake has a request in early data come again if it needs an address, before anything
// of it is counted. It returns the zones that count it as any other: left out are those that are
// not for it, and those in shadow mode, which deny nobody.
func (e *Evaluation) askAfterHandshake(zones []*Zone, r *http.Request, counted []string) (others []*Zone, err error) {
	for _, z := range zones {
		if !z.needsAddress(r) {
			others = append(others, z)
			continue
		}
		if z.Enforcement().IsOff() || slices.Contains(counted, z.Name) {
			continue
		}
		ok, err := z.mayBeFor(r)
		if err != nil {
			return nil, err
		}
		if ok {
			z.Decisions.Count(answer.TooEarly)
			e.Denied, e.Denial.Reason = true, answer.TooEarly
			return nil, nil
		}
	}
	return others, nil
}

// needsAddress reports whether an address may have a part in how the zone counts a request.
func (z *Zone) needsAddress(r *http.Request) bool {
	if z.earlyData.byAddress || z.earlyData.asItCame && !config.IsAsItCame(r) {
		return true
	}
	_, empty := z.Template.Append(nil, r, reqkey.Vars(r))
	return empty && z.EmptyKey == config.EmptyClientIP
}

// mayBeFor reports whether a zone may limit a request, whatever its address is.
func (z *Zone) mayBeFor(r *http.Request) (bool, error) {
	if !config.IsAsItCame(r) {
		return true, nil
	}
	if ok, err := matches(z.earlyData.matchers, r); !ok || err != nil {
		return false, err
	}
	if len(z.earlyData.except) == 0 {
		return true, nil
	}
	excepted, err := z.earlyData.except.AnyMatchWithError(r)
	if excepted {
		z.Decisions.Count(answer.Skipped)
	}
	return !excepted, err
}
