package ban

// What people see of bans.

// Name notes the text of a key that is banned, which text is called for where it is not known yet.
func (r *Register) Name(id ID, text func() string) {
	st := r.stripeOf(id)
	st.mu.Lock()
	defer st.mu.Unlock()
	if _, banned := st.bans[id]; !banned || st.texts[id] != "" {
		return
	}
	if st.texts == nil {
		st.texts = make(map[ID]string)
	}
	st.texts[id] = text()
}

// Each calls f with each ban that holds at now, and the text of its key, "" where that is not
// known. f is called under a lock that requests take, and must be quick.
func (r *Register) Each(now int64, f func(id ID, b Ban, text string)) {
	r.each(func(st *stripe, id ID, e entry) {
		if e.Rest(now) > 0 {
			f(id, e.Ban, st.texts[id])
		}
	})
}
