//go:build !unix

package cluster

import (
	"fmt"
	"net"
)

// reservation is nothing here: a port that was free a moment ago is hoped to be so still.
type reservation struct{}

// bind finds a free port on loopback, or fails where the one wanted is not.
func bind(port int) (reservation, int, error) {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return reservation{}, 0, err
	}
	defer l.Close()
	return reservation{}, l.Addr().(*net.TCPAddr).Port, nil
}

func (reservation) release() {}
