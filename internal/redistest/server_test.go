package redistest

import (
	"context"
	"testing"
)

func TestServerKilledComesBackEmpty(t *testing.T) {
	s := Start(t)
	s.Do("SET", "k", "v")
	s.Kill()
	if err := s.Client().Ping(context.Background()).Err(); err == nil {
		t.Error("Ping() = nil after Kill, want an error")
	}
	s.Restart()
	if got := s.Do("GET", "k"); got != nil {
		t.Errorf("GET k = %v after Restart, want nil", got)
	}
}

func TestServerOnSocketAndWithTLS(t *testing.T) {
	Start(t, Unix())
	Start(t, TLS(true), Password("p"))
}

func TestClusterMovesSlot(t *testing.T) {
	c := StartCluster(t, 3)
	slot := c.Slot("{0}")
	from := c.Owner(slot)
	c.Nodes[from].Do("SET", "{0}", "v")
	to := (from + 1) % 3
	c.Move(slot, from, to, nil)
	if got := c.Nodes[to].Do("GET", "{0}"); got != "v" {
		t.Errorf("GET {0} = %v on the new owner, want v", got)
	}
}

func TestSentinelFailsOver(t *testing.T) {
	w := StartSentinel(t)
	w.Failover()
}
