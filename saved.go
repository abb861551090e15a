package ratelimit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// saved is what an earlier process had counted: for each limit of the zones that don't sync, by its key in the pool. It holds hashes of keys, no keys.
type saved struct {
	at     int64 // nanoseconds since the Unix epoch
	limits map[string]table.Saved
}

// The form of what is kept: a line that says what it is; the instant; for each limit the length of its name, the name, how many keys
// it has, and for each key its ID, how many reports it has, and for each report epoch, elsewhere, own, level and the level's instant; at the end a
// checksum of all before it. Numbers are varints, levels the bits of a float64.
const (
	savedMark = "tide counters "
	savedLine = savedMark + "1\n"
)

var (
	errForeign = errors.New("it does not hold saved counters")
	errVersion = errors.New("it was saved by another version")
	errDamaged = errors.New("it is damaged or cut off")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func encodeSaved(s saved) []byte {
	b := binary.AppendVarint([]byte(savedLine), s.at)
	for _, name := range slices.Sorted(maps.Keys(s.limits)) {
		b = binary.AppendUvarint(b, uint64(len(name)))
		b = append(b, name...)
		b = appendKeys(b, s.limits[name])
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func appendKeys(b []byte, keys table.Saved) []byte {
	b = binary.AppendUvarint(b, uint64(len(keys)))
	for id, reports := range keys {
		b = append(b, id[:]...)
		b = binary.AppendUvarint(b, uint64(len(reports)))
		for _, r := range reports {
			b = binary.AppendVarint(b, r.Epoch)
			b = binary.AppendVarint(b, r.Elsewhere)
			b = binary.AppendVarint(b, r.Own)
			b = binary.BigEndian.AppendUint64(b, math.Float64bits(r.Level))
			b = binary.AppendVarint(b, r.LevelAt)
		}
	}
	return b
}

// decodeSaved reads what encodeSaved made. It takes no more memory than in proportion to what it reads.
func decodeSaved(b []byte) (s saved, err error) {
	s.limits = make(map[string]table.Saved)
	switch {
	case !isSaved(b):
		return s, errForeign
	case !bytes.HasPrefix(b, []byte(savedLine)):
		if len(b) < len(savedLine) {
			return s, errDamaged
		}
		return s, errVersion
	case len(b) < len(savedLine)+crc32.Size:
		return s, errDamaged
	}
	body, sum := b[:len(b)-crc32.Size], b[len(b)-crc32.Size:]
	if binary.BigEndian.Uint32(sum) != crc32.Checksum(body, castagnoli) {
		return s, errDamaged
	}
	r := savedReader{b: body[len(savedLine):]}
	s.at = r.number()
	for len(r.b) > 0 {
		name := string(r.bytes(r.length(1)))
		s.limits[name] = r.keys()
	}
	if r.bad {
		return saved{}, errDamaged
	}
	return s, nil
}

// isSaved says that b is what this program has saved, in any version and however damaged: it may be replaced. So may an empty file, which is what
// some file systems leave of one that was written just before the power failed.
func isSaved(b []byte) bool {
	n := min(len(b), len(savedMark))
	return string(b[:n]) == savedMark[:n]
}

// savedReader takes values off the front. After the first that is not there, bad is set and all others are zero.
type savedReader struct {
	b   []byte
	bad bool
}

func (r *savedReader) fail() {
	r.b, r.bad = nil, true
}

func (r *savedReader) bytes(n int) []byte {
	if n > len(r.b) {
		r.fail()
		return nil
	}
	taken := r.b[:n]
	r.b = r.b[n:]
	return taken
}

// length is a number of things of which each takes up so many bytes at least.
func (r *savedReader) length(each int) int {
	n, width := binary.Uvarint(r.b)
	if width <= 0 || n > uint64((len(r.b)-width)/each) {
		r.fail()
		return 0
	}
	r.b = r.b[width:]
	return int(n)
}

func (r *savedReader) number() int64 {
	n, width := binary.Varint(r.b)
	if width <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[width:]
	return n
}

func (r *savedReader) level() float64 {
	b := r.bytes(8)
	if b == nil {
		return 0
	}
	return math.Float64frombits(binary.BigEndian.Uint64(b))
}

// mostCounted is more than a table can have counted: a million requests in each second of two centuries.
const mostCounted = 1 << 53

// report takes only what a table can have saved.
func (r *savedReader) report() algorithms.Report {
	report := algorithms.Report{Epoch: r.number(), Elsewhere: r.number(), Own: r.number(), Level: r.level(), LevelAt: r.number()}
	if report.Own < 0 || report.Own > report.Elsewhere || report.Elsewhere > mostCounted || !(report.Level >= 0 && report.Level <= mostCounted) {
		r.fail()
	}
	return report
}

func (r *savedReader) keys() table.Saved {
	n := r.length(len(table.ID{}) + 1)
	keys := make(table.Saved, n)
	for range n {
		var id table.ID
		copy(id[:], r.bytes(len(id)))
		reports := make([]algorithms.Report, r.length(12))
		for i := range reports {
			reports[i] = r.report()
		}
		keys[id] = reports
	}
	return keys
}

// fromAClockSetBack is how far in the future something may have been saved: a clock may have been set right by a little since.
const fromAClockSetBack = time.Minute
