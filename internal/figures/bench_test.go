package figures

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkScanner reads a stream of a model's tokens, each an event of its own, and one of longer
// pieces of prose: all at once, and an event with each write.
func BenchmarkScanner(b *testing.B) {
	event := func(content string) string {
		return `data: {"id":"chatcmpl-9f3KqYpXq0","object":"chat.completion.chunk","created":1694268190,"model":"gpt-4o-mini","system_fingerprint":"fp_44709d6fcb","choices":[{"index":0,"delta":{"content":"` + content + `"},"logprobs":null,"finish_reason":null}],"usage":null}` + "\n\n"
	}
	for _, bench := range []struct{ name, event string }{
		{"events", event(" Hello")},
		{"prose", event(strings.Repeat("The quick brown fox jumps over the lazy dog. ", 50))},
	} {
		stream := []byte(strings.Repeat(bench.event, 64<<10/len(bench.event)+1))
		for _, pieces := range []int{len(stream), len(bench.event)} {
			b.Run(fmt.Sprintf("%s/%d", bench.name, pieces), func(b *testing.B) {
				p, err := NewPaths([][]string{{"usage.total_tokens", "response.usage.total_tokens"}})
				if err != nil {
					b.Fatal(err)
				}
				s := p.Scanner(Events)
				b.SetBytes(int64(len(stream)))
				b.ReportAllocs()
				for b.Loop() {
					for i := 0; i < len(stream); i += pieces {
						_, _ = s.Write(stream[i:min(i+pieces, len(stream))])
					}
				}
			})
		}
	}
}
