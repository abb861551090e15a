package cluster

import "time"

// A Status is what a node reports of its zones and its sync with Redis.
type Status struct {
	Zones []Zone `json:"zones"`
	Redis *Redis `json:"redis"`
	// Strict is how zones with sync_rate strict fare, the zero value where there is none.
	Strict Circuits `json:"strict"`
}

// A Zone is one limit of a zone. Own was counted on the node, Remote on the others as far as it
// knows, in all that a decision can still use; Unsent is the part of Own that Redis doesn't know.
// Node is the field of its part in Redis. Sync is nil where counts stay on the node.
type Zone struct {
	Zone      string `json:"zone"`
	Algorithm string `json:"algorithm"`
	Limit     int64  `json:"limit"`
	Window    string `json:"window"`
	SyncRate  string `json:"sync_rate"`
	Keys      int    `json:"keys"`
	Own       int64  `json:"own"`
	// Concurrent is set where Own is what runs.
	Concurrent bool   `json:"concurrent"`
	Remote     int64  `json:"remote"`
	Unsent     int64  `json:"unsent"`
	Node       string `json:"node"`

	Sync *Sync `json:"sync"`
}

// A Sync is how far the sync of a limit has come: how many cycles it has completed, the first one
// at once, and when the last of them was.
type Sync struct {
	Cycles int64     `json:"cycles"`
	Synced time.Time `json:"synced"`
}

// Redis is the state of the sync with Redis.
type Redis struct {
	Up       bool              `json:"up"`
	Failing  map[string]string `json:"failing"`
	Nodes    int64             `json:"nodes"`
	Syncs    int64             `json:"syncs"`
	Keys     int64             `json:"keys"`
	Failures int64             `json:"failures"`
	Last     time.Time         `json:"last"`
	Offset   Duration          `json:"clock_offset"`
}

// Circuits keep requests to strict zones from waiting for a Redis that does not answer. Open is how
// many are open now, Trips how often one has opened, Timeouts how many requests have waited in
// vain.
type Circuits struct {
	Open     int   `json:"open"`
	Trips    int64 `json:"trips"`
	Timeouts int64 `json:"timeouts"`
}

// A Duration is written as text, like 1.5ms.
type Duration struct{ time.Duration }

// UnmarshalText reads it.
func (d *Duration) UnmarshalText(text []byte) (err error) {
	d.Duration, err = time.ParseDuration(string(text))
	return err
}

// Zone returns the first limit of a zone by its name, the zero Zone where there is none. An empty
// name is any.
func (s Status) Zone(name string) Zone {
	for _, z := range s.Zones {
		if z.Zone == name || name == "" {
			return z
		}
	}
	return Zone{}
}

// Known is what the node decides by: its own and what it knows of the others.
func (z Zone) Known() int64 { return z.Own + z.Remote }
