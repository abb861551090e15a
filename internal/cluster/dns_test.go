//go:build chaos

package cluster_test

import (
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// dns is a name server for the nodes of all tests. It knows no name until appear is called.
var dns struct {
	sync.Once
	conn  net.PacketConn
	err   error
	known sync.Map
	names atomic.Int64
}

// A name leads to 127.0.0.1 from when it appears.
type name struct{ host string }

func (n name) appear() { dns.known.Store(n.host+".", true) }

// startDNS returns a name that does not resolve yet. Nodes must be started after it.
func startDNS(t *testing.T) name {
	t.Helper()
	dns.Do(func() {
		if dns.conn, dns.err = net.ListenPacket("udp", "127.0.0.1:0"); dns.err != nil {
			return
		}
		dns.err = os.Setenv("TIDE_TEST_DNS", dns.conn.LocalAddr().String())
		go serveDNS(dns.conn)
	})
	if dns.err != nil {
		t.Fatal(dns.err)
	}
	return name{fmt.Sprintf("redis%d.tide.test", dns.names.Add(1))}
}

func serveDNS(conn net.PacketConn) {
	buf := make([]byte, 512)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		m.Response, m.Authoritative, m.Additionals = true, true, nil
		q := m.Questions[0]
		if _, ok := dns.known.Load(q.Name.String()); !ok {
			m.RCode = dnsmessage.RCodeNameError
		} else if q.Type == dnsmessage.TypeA {
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
				Body:   &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}},
			}}
		}
		if answer, err := m.Pack(); err == nil {
			_, _ = conn.WriteTo(answer, from)
		}
	}
}
