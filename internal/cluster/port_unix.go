//go:build unix

package cluster

import (
	"golang.org/x/sys/unix"
)

// reservation keeps a port from others as long as it is not released: a socket that is bound and
// doesn't listen. Caddy shares its ports (SO_REUSEPORT), so a process of the same user can listen
// there nevertheless, and one that is killed finds its port again.
type reservation struct{ fd int }

// bind takes any free port on loopback.
func bind() (reservation, int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return reservation{}, 0, err
	}
	unix.CloseOnExec(fd)
	port, err := bindTo(fd)
	if err != nil {
		_ = unix.Close(fd)
		return reservation{}, 0, err
	}
	return reservation{fd}, port, nil
}

func bindTo(fd int) (int, error) {
	for _, option := range []int{unix.SO_REUSEADDR, unix.SO_REUSEPORT} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 1); err != nil {
			return 0, err
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, err
	}
	addr, err := unix.Getsockname(fd)
	if err != nil {
		return 0, err
	}
	return addr.(*unix.SockaddrInet4).Port, nil
}

func (r reservation) release() { _ = unix.Close(r.fd) }
