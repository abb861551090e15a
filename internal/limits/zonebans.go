package limits

// Bans returns the bans of the zone, nil where it has none.
func (z *Zone) Bans() *Bans {
	if z.Banning == nil {
		return nil
	}
	return z.Banning.Bans
}

// ConfigureBans applies a configuration that has become the current one, with its Redis.
func (z *Zone) ConfigureBans(redis *Redis) {
	if z.Banning != nil {
		z.Banning.Configure(&z.AllLimits[0], redis)
	}
}
