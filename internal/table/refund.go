package table

import "github.com/caddy-tide/ratelimit/algorithms"

// RefundReserved refunds n units that were taken at an instant of a state's clock, and that are
// reserved in an epoch. stepped says that the clock has taken a step since, which moves instants by
// its length and epochs by whole ones: the instant may be in another epoch now, whose units are not
// this one. whole says that they are all that the request took: then it has not asked for anything.
func RefundReserved[S any](m algorithms.Machine[S], s *S, l algorithms.Limit, at, epoch, n int64, whole, stepped bool) {
	counts := m.Ledger(s)
	if stepped {
		before := counts.Clone()
		m.Refund(s, l, at, n)
		*counts = before
		if c, ok := counts.At(epoch); ok && c.Own > 0 {
			c.Own -= min(n, c.Own)
			counts.Put(epoch, c)
		}
	} else {
		m.Refund(s, l, at, n)
	}
	if whole && counts.Epoch == epoch {
		counts.Attempts -= min(1, counts.Attempts)
	}
}
