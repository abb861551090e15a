package algorithms

// Size is how many requests the bucket holds: so many can come at once.
func (a TokenBucket) Size() int64 { return a.kernel().size }

// Size is how many requests the bucket holds: so many can come at once.
func (a GCRA) Size() int64 { return a.kernel().size }

// Size is how many requests the queue holds, with the one that is served.
func (a LeakyBucket) Size() int64 { return a.kernel().size }
