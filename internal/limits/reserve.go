package limits

import (
	"net/http"

	"github.com/caddy-tide/ratelimit/internal/matchers"
)

// others returns the reserves of a zone that are not for a request, one bit each: what they keep is
// not there for it. Matchers of addresses match nobody in early data, which proves no address. One
// that fails matches nobody as well.
func (z *Zone) others(r *http.Request) (all uint32) {
	for i, sets := range z.Reserved {
		if ok, err := matchers.Proven(sets, r); !ok || err != nil {
			all |= 1 << i
		}
	}
	return all
}
