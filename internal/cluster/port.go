package cluster

import (
	"fmt"
	"net"
)

// A port on loopback that is ours.
type port struct {
	number   int
	reserved reservation
}

func (p port) addr() string { return fmt.Sprintf("127.0.0.1:%d", p.number) }

// takePort takes any free port for 0, otherwise that one. Caddy would share a port with another
// Caddy of the same user without a word, so whether it is free is asked here, by listening without
// sharing.
func takePort(number int) (port, error) {
	if number != 0 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", number))
		if err != nil {
			return port{}, fmt.Errorf("port %d is taken by another program (%w): stop that, or choose other ports", number, err)
		}
		_ = l.Close()
	}
	reserved, number, err := bind(number)
	if err != nil {
		return port{}, fmt.Errorf("taking a port on loopback: %w", err)
	}
	return port{number, reserved}, nil
}
