package simulate

// MakeEach has each record get a request of its own, as if the policy kept something of requests.
// It returns whether it did not before.
func (p *Policy) MakeEach() (changed bool) {
	changed = p.isPlain()
	p.varies = true
	return changed
}
