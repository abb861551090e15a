// A snapshot keeps counters over a restart of the process, in a file or in Caddy's storage.

package lifecycle

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
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reset"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// A Snapshot is what a process had counted: for each limit of the zones that don't sync, by its key
// in the pool. It holds hashes of keys, no keys.
type Snapshot struct {
	// At is when it was made, in nanoseconds since the Unix epoch.
	At     int64
	Limits map[string]table.SavedCounts
	// Resets are those that a limit's keys count under, where there are any.
	Resets map[string]reset.Set
}

// clockTolerance is how far in the future a snapshot may have been made: a clock may have been set
// right by a little since.
const clockTolerance = time.Minute

// IsFromFuture reports whether the clock was set back since the snapshot was made.
func (s Snapshot) IsFromFuture(now int64) bool { return s.At > now+int64(clockTolerance) }

// The encoding, in which numbers are varints, except the level, which is the bits of a float64, and
// the checksum (CRC-32C):
//
//	"tide counters 3\n"  at
//	for each limit       length of its name, name
//	                     number of resets, each as ID (16 bytes, 0 for all keys), stamp, at, until
//	                     number of keys
//	  for each key       ID (16 bytes), number of reports
//	    for each report  epoch, remote, own, level, levelAt, rate
//	checksum of all before it
//
// It is written here and not by a package because reading it must take no more memory than in
// proportion to what is read, whatever that is: gob takes what the number of a map's entries asks
// for. As JSON a million keys would be three times as large.
const (
	mark      = "tide counters "
	firstLine = mark + "3\n"
)

// ErrForeign is the error for something else in the place of a snapshot.
var ErrForeign = errors.New("it does not hold saved counters")

var (
	errVersion = errors.New("it was saved by another version")
	errDamaged = errors.New("it is damaged or cut off")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (s Snapshot) encode() []byte {
	b := binary.AppendVarint([]byte(firstLine), s.At)
	for _, name := range slices.Sorted(maps.Keys(s.Limits)) {
		b = binary.AppendUvarint(b, uint64(len(name)))
		b = append(b, name...)
		b = appendResets(b, s.Resets[name])
		b = appendKeys(b, s.Limits[name])
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func appendResets(b []byte, set reset.Set) []byte {
	if set.All == (reset.Reset{}) && len(set.Keys) == 0 {
		return binary.AppendUvarint(b, 0)
	}
	b = binary.AppendUvarint(b, uint64(1+len(set.Keys)))
	add := func(id [16]byte, r reset.Reset) {
		b = append(b, id[:]...)
		b = binary.AppendVarint(b, r.Stamp)
		b = binary.AppendVarint(b, r.At)
		b = binary.AppendVarint(b, r.Until)
	}
	add([16]byte{}, set.All)
	for id, r := range set.Keys {
		add(id, r)
	}
	return b
}

func appendKeys(b []byte, counts table.SavedCounts) []byte {
	b = binary.AppendUvarint(b, uint64(len(counts)))
	for id, reports := range counts {
		b = append(b, id[:]...)
		b = binary.AppendUvarint(b, uint64(len(reports)))
		for _, r := range reports {
			b = binary.AppendVarint(b, r.Epoch)
			b = binary.AppendVarint(b, r.Remote)
			b = binary.AppendVarint(b, r.Own)
			b = binary.BigEndian.AppendUint64(b, math.Float64bits(r.Level))
			b = binary.AppendVarint(b, r.LevelAt)
			b = binary.AppendVarint(b, r.Rate)
		}
	}
	return b
}

// decodeSnapshot reads what encode made.
func decodeSnapshot(b []byte) (s Snapshot, err error) {
	s.Limits, s.Resets = make(map[string]table.SavedCounts), make(map[string]reset.Set)
	switch {
	case !isMarked(b, mark):
		return s, ErrForeign
	case len(b) < len(firstLine):
		return s, errDamaged
	case !bytes.HasPrefix(b, []byte(firstLine)):
		return s, errVersion
	case len(b) < len(firstLine)+crc32.Size:
		return s, errDamaged
	}
	body, sum := b[:len(b)-crc32.Size], b[len(b)-crc32.Size:]
	if binary.BigEndian.Uint32(sum) != crc32.Checksum(body, castagnoli) {
		return s, errDamaged
	}
	r := reader{b: body[len(firstLine):]}
	s.At = r.number()
	for len(r.b) > 0 {
		name := string(r.bytes(r.length(1)))
		if set := r.resets(); set != nil {
			s.Resets[name] = *set
		}
		s.Limits[name] = r.counts()
	}
	if r.bad {
		return Snapshot{}, errDamaged
	}
	return s, nil
}

// isMarked reports whether b begins with a mark, of any version and however damaged: it may be
// replaced. So may an empty file, which is what some file systems leave of one that was written
// just before the power failed.
func isMarked(b []byte, mark string) bool {
	n := min(len(b), len(mark))
	return string(b[:n]) == mark[:n]
}

// reader takes values off the front of b. After the first that is not there, bad is set and all
// others are zero.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) fail() {
	r.b, r.bad = nil, true
}

func (r *reader) bytes(n int) []byte {
	if n > len(r.b) {
		r.fail()
		return nil
	}
	taken := r.b[:n]
	r.b = r.b[n:]
	return taken
}

// length reads a number of things of which each takes up so many bytes at least.
func (r *reader) length(each int) int {
	n, width := binary.Uvarint(r.b)
	if width <= 0 || n > uint64((len(r.b)-width)/each) {
		r.fail()
		return 0
	}
	r.b = r.b[width:]
	return int(n)
}

func (r *reader) number() int64 {
	n, width := binary.Varint(r.b)
	if width <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[width:]
	return n
}

func (r *reader) level() float64 {
	var b [8]byte
	copy(b[:], r.bytes(len(b)))
	return math.Float64frombits(binary.BigEndian.Uint64(b[:]))
}

// maxCount is more than a table can have counted: a million requests in each second of two
// centuries.
const maxCount = 1 << 53

// report reads a report, and takes only what a table can have saved.
func (r *reader) report() algorithms.Report {
	report := algorithms.Report{
		Epoch: r.number(), Remote: r.number(), Own: r.number(), Level: r.level(), LevelAt: r.number(), Rate: r.number(),
	}
	if report.Own < 0 || report.Own > report.Remote || report.Remote > maxCount || !(report.Level >= 0 && report.Level <= maxCount) || report.Rate < 0 {
		r.fail()
	}
	return report
}

func (r *reader) resets() *reset.Set {
	n := r.length(len(keys.ID{}) + 3)
	if n == 0 {
		return nil
	}
	set := &reset.Set{Keys: make(map[[16]byte]reset.Reset, n)}
	for range n {
		var id [16]byte
		copy(id[:], r.bytes(len(id)))
		one := reset.Reset{Stamp: r.number(), At: r.number(), Until: r.number()}
		if id == [16]byte{} {
			set.All = one
		} else {
			set.Keys[id] = one
		}
	}
	return set
}

func (r *reader) counts() table.SavedCounts {
	n := r.length(len(keys.ID{}) + 1)
	counts := make(table.SavedCounts, n)
	for range n {
		var id keys.ID
		copy(id[:], r.bytes(len(id)))
		reports := make([]algorithms.Report, r.length(13))
		for i := range reports {
			reports[i] = r.report()
		}
		counts[id] = reports
	}
	return counts
}
