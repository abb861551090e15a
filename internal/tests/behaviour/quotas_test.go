package behaviour_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"

	ratelimit "github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// A reload after which a limit by a calendar starts at zero says so, once for each such limit. One
// that changes something else says nothing.
func TestAReloadWarnsOfAnotherCalendar(t *testing.T) {
	for i, tt := range []struct{ before, after, says string }{
		{"limit 5/month", "limit 5/month\ncalendar Europe/Berlin", "5/month by Europe/Berlin;"},
		{"limit 5/month\ncalendar Europe/Berlin", "limit 5/month", "5/month by UTC;"},
		{"limit 5/month 2/day\ncalendar UTC", "limit 5/month 2/day\ncalendar UTC from 15", "5/month by UTC from 15;"},
		{"limit 5/month 2/day\ncalendar UTC from 15", "limit 5/month 2/day\ncalendar UTC", "5/month by UTC;"},
		{"limit 5/month 2/day\ncalendar UTC", "limit 5/month 2/day\ncalendar Asia/Kathmandu", "2/day by Asia/Kathmandu;5/month by Asia/Kathmandu;"},
		{"limit 5/30d\nalgorithm fixed_window", "limit 5/month", "5/month by UTC;"},
		{"limit 5/month", "limit 5/year", "5/year by UTC;"},
		{"limit 5/month", "limit 5/month 9/year", "9/year by UTC;"},

		{"limit 5/month", "limit 5/30d\nalgorithm fixed_window", ""},
		{"limit 5/month", "limit 5/month\ncalendar UTC", ""},
		{"limit 5/month\ncalendar UTC", "limit 5/month\ncalendar UTC from 1", ""},
		{"limit 5/day\ncalendar UTC from 15", "limit 5/day\ncalendar UTC from 16", ""},
		{"limit 5/month 9/year\ncalendar Europe/Berlin from 15", "limit 7/month 9/year\ncalendar Europe/Berlin from 15", ""},
		{"limit 5/month 9/year", "limit 5/month", ""},
	} {
		namespace := fmt.Sprint(t.Name(), i)
		site := func(options string) *sitetest.Site {
			return sitetest.NewSite(t, &ratelimit.App{Namespace: namespace}, sitetest.ZoneBlock("plan", options))
		}
		before, after := site(tt.before), site(tt.after)
		logs := after.Watched()
		before.End() // the other one is the current one now
		said := map[string]bool{}
		for _, line := range logs.All() {
			fields := line.ContextMap()
			said[fmt.Sprintf("%v by %v;", fields["limit"], fields["calendar"])] = true
			if fields["zone"] != "plan" || line.Message != "a zone's calendar or window has changed: this limit starts at zero, so all have their whole quota once more" {
				t.Errorf("from %q to %q it says %q with %v", tt.before, tt.after, line.Message, fields)
			}
		}
		if n := logs.FilterField(zap.String("code", "TIDE052")).Len(); n != logs.Len() || n != len(said) {
			t.Errorf("from %q to %q: %d lines, %d of them with the code, %d of limits", tt.before, tt.after, logs.Len(), n, len(said))
		}
		if text := strings.Join(slices.Sorted(maps.Keys(said)), ""); text != tt.says {
			t.Errorf("from %q to %q it warns of %q, want %q", tt.before, tt.after, text, tt.says)
		}
		after.End()
	}
}
