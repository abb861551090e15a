//go:build !unix

package cluster

import "net"

// reservation is nothing here: a port that was free a moment ago is hoped to be so still.
type reservation struct{}

// bind finds a free port on loopback.
func bind() (reservation, int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return reservation{}, 0, err
	}
	defer l.Close()
	return reservation{}, l.Addr().(*net.TCPAddr).Port, nil
}

func (reservation) release() {}
