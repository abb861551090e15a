package cluster

import "fmt"

// A port on loopback that is ours.
type port struct {
	number   int
	reserved reservation
}

func (p port) addr() string { return fmt.Sprintf("127.0.0.1:%d", p.number) }

// takePort takes any free port. Caddy would share a port with another Caddy of the same user
// without a word.
func takePort() (port, error) {
	reserved, number, err := bind()
	if err != nil {
		return port{}, fmt.Errorf("taking a port on loopback: %w", err)
	}
	return port{number, reserved}, nil
}
