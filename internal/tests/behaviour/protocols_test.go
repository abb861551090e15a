package behaviour_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// reload loads the configuration again.
func reload(s *sitetest.Served) {
	s.T.Helper()
	sitetest.ReplaceConfig(s.T, s.Config)
	for _, c := range s.Clients {
		c.CloseIdleConnections() // which are of the server that ended
	}
}

var protocols = []string{"HTTP/1.1", "HTTP/2.0", "HTTP/3.0"}

// Clients that send their bodies slowly are decided on by their headers: they hold no more than
// the queue's places, nobody else waits for them, and when they go away nothing is left. By
// HTTP/1.1 nobody hears that one has gone whose body is still to be read: it has its place until
// its turn.
func TestSlowClientsHoldNoMoreThanTheQueue(t *testing.T) {
	const places = 5
	s := sitetest.StartCaddy(t, "", "rate_limit {\n zone slow {\n limit 5/30d\n algorithm leaky_bucket\n queue 5\n key {http.request.header.K}\n}\n}\nrespond ok")
	for _, protocol := range []string{"HTTP/2.0", "HTTP/3.0"} {
		ctx, leave := context.WithCancel(t.Context())
		slow := func(r *http.Request) {
			r.Method, r.ContentLength = http.MethodPost, 1000
			r.Body = io.NopCloser(io.MultiReader(strings.NewReader("x"), until{ctx}))
		}
		var clients sync.WaitGroup
		var admitted, denied atomic.Int64
		for range 30 {
			clients.Go(func() {
				switch a, err := s.Open(ctx, protocol, sitetest.Header("K", "slow "+protocol), slow); {
				case err == nil && a.StatusCode == http.StatusOK:
					admitted.Add(1)
				case err == nil && a.StatusCode == http.StatusTooManyRequests:
					denied.Add(1)
				}
			})
		}
		redistest.Eventually(t, "the others are denied by "+protocol, func() bool { return denied.Load() == 30-1-places && admitted.Load() == 1 })
		redistest.Eventually(t, "the queue is full by "+protocol, func() bool { return sitetest.InQueue(t) == places })
		for _, other := range protocols {
			s.Answers(other, 1, http.StatusOK, 1, sitetest.Header("K", protocol+" beside "+other))
		}
		leave()
		clients.Wait()
		redistest.Eventually(t, "nobody is left in the queue by "+protocol, func() bool { return sitetest.InQueue(t) == 0 })
	}
}

// until is a body of which nothing comes before a context ends.
type until struct{ context.Context }

func (u until) Read([]byte) (int, error) {
	<-u.Done()
	return 0, u.Err()
}

// A call is what a gRPC client reads of a call's answer, frame by frame.
type call struct {
	header   map[string]string
	headers  int    // HEADERS frames
	ended    bool   // by the last of them
	data     []byte // of DATA frames
	hasReset bool
}

// callByHTTP2 makes a gRPC call over a connection of its own. It sends fields and one message, as
// http2 frames, and reads until the stream ends.
func callByHTTP2(t *testing.T, connection net.Conn, authority string, fields ...string) (c call) {
	t.Helper()
	defer connection.Close()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	fields = append([]string{":method", "POST", ":scheme", "http", ":authority", authority, ":path", "/shop.Orders/List", "te", "trailers"}, fields...)
	for i := len(fields) - 2; i > 8 && fields[i][0] == ':'; i -= 2 { // another method or path
		fields[slices.Index(fields, fields[i])+1] = fields[i+1]
		fields = fields[:i]
	}
	for i := 0; i < len(fields); i += 2 {
		if err := encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			t.Fatal(err)
		}
	}
	framer := http2.NewFramer(connection, connection)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, err := connection.Write([]byte(http2.ClientPreface))
	for _, write := range []func() error{
		func() error { return framer.WriteSettings() },
		func() error {
			return framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
		},
		// A client of a stream goes on sending: it has not ended it.
		func() error { return framer.WriteData(1, false, []byte{0, 0, 0, 0, 1, 8}) },
	} {
		if err == nil {
			err = write()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	c.header = map[string]string{}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatalf("reading frames: %v, after %+v", err, c)
		}
		switch f := frame.(type) {
		case *http2.MetaHeadersFrame:
			c.headers++
			for _, field := range f.Fields {
				c.header[field.Name] = field.Value
			}
			c.ended = f.StreamEnded()
		case *http2.DataFrame:
			c.data = append(c.data, f.Data()...)
		case *http2.RSTStreamFrame:
			c.hasReset = true
			return c
		}
		if frame.Header().StreamID == 1 && frame.Header().Flags.Has(http2.FlagDataEndStream) {
			return c
		}
	}
}

// noGRPC are header fields of requests that are no calls of gRPC.
var noGRPC = [][]string{
	{"content-type", "application/grpc-web"}, {"content-type", "application/grpc-web+proto"}, {"content-type", "application/grpcx"},
	{"content-type", "application/json"}, {}, {"content-type", "application/grpc", ":method", "GET"},
}

// A gRPC client reads a denial as the status of its call, over TLS and without, whatever error
// routes there are.
func TestADeniedCallOfGRPC(t *testing.T) {
	limited := func(zone string) string {
		return "rate_limit {\n" + sitetest.ZoneBlock(strconv.Quote(zone), "limit 1/30d\nalgorithm fixed_window\nkey {http.request.header.K}") +
			"}\nheader Content-Type application/grpc\nrespond ok\nhandle_errors {\nrespond \"page {err.status_code}\"\n}\n"
	}
	clear := redistest.FreePort(t)
	s := sitetest.StartCaddy(t, "servers {\nprotocols h1 h2 h2c\n}",
		limited("grpc tls")+fmt.Sprintf("}\nhttp://localhost:%d {\nbind 127.0.0.1\n%s", clear, limited("grpc clear")))
	dial := map[string]func() net.Conn{
		"clear text": func() net.Conn {
			c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", clear))
			if err != nil {
				t.Fatal(err)
			}
			return c
		},
		"TLS": func() net.Conn {
			config := s.Clients["HTTP/2.0"].Transport.(*http.Transport).TLSClientConfig.Clone()
			config.NextProtos = []string{"h2"}
			c, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.Port), config)
			if err != nil {
				t.Fatal(err)
			}
			return c
		},
	}
	for name, connect := range dial {
		port := map[string]int{"clear text": clear, "TLS": s.Port}[name]
		do := func(key string, fields ...string) call {
			return callByHTTP2(t, connect(), fmt.Sprint("localhost:", port), append([]string{"k", key}, fields...)...)
		}
		for i, contentType := range []string{"application/grpc", "application/grpc+proto", "application/grpc+json; charset=utf-8", "Application/GRPC"} {
			key := fmt.Sprint(i)
			if c := do(key, "content-type", contentType); c.header[":status"] != "200" || string(c.data) != "ok" || c.header["grpc-status"] != "" {
				t.Errorf("%s, %s: the first call was answered %+v, want that of the handler", name, contentType, c)
			}
			c := do(key, "content-type", contentType)
			pushback, err := strconv.Atoi(c.header["grpc-retry-pushback-ms"])
			if err != nil || pushback < 1 || pushback > math.MaxInt32 {
				t.Errorf("%s: grpc-retry-pushback-ms %q, want as long as an int32 of ms can say", name, c.header["grpc-retry-pushback-ms"])
			}
			if c.headers != 1 || !c.ended || len(c.data) > 0 || c.header[":status"] != "200" || c.header["grpc-status"] != "8" ||
				c.header["content-type"] != "application/grpc" || !strings.HasPrefix(c.header["grpc-message"], "rate limit exceeded, try again in ") {
				t.Errorf("%s, %s: a denied call was answered %+v, want one frame of headers that ends the stream", name, contentType, c)
			}
			if c.header["retry-after"] != "" || c.header["cache-control"] != "" || !strings.Contains(c.header["ratelimit"], ";r=0;") {
				t.Errorf("%s: a denied call has %v, want RateLimit, and neither Retry-After nor Cache-Control", name, c.header)
			}
		}
		for i, fields := range noGRPC {
			key := fmt.Sprint("other", i)
			do(key, fields...)
			if c := do(key, fields...); c.header[":status"] != "429" || c.header["grpc-status"] != "" || string(c.data) != "page 429" {
				t.Errorf("%s, %q: denied with %+v, want 429 by the error route", name, fields, c)
			}
		}
	}
}
