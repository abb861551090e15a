// A snapshot keeps counters over a restart of the process, in a file or in Caddy's storage.

package lifecycle

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
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

// The encoding, in which numbers are varints, of the level the bits of a float64:
//
//	"tide counters 4\n"  at
//	for each limit       length of its name, name
//	                     number of reset keys, reset of all: stamp, at, until
//	  for each of them   ID (16 bytes), stamp, at, until
//	                     number of keys
//	  for each key       ID (16 bytes), number of reports
//	    for each report  epoch, remote, own, level, levelAt, rate
//	checksum of all before it (CRC-32C)
//
// It is written here and not by a package because reading it must take no more memory than in
// proportion to what is read, whatever that is: gob takes what the number of a map's entries asks
// for. As JSON, or in records of one size, a million keys would be three times as large.
const (
	mark      = "tide counters "
	firstLine = mark + "4\n"
)

// ErrForeign is the error for something else in the place of a snapshot.
var ErrForeign = errors.New("it does not hold saved counters")

var (
	errVersion = errors.New("it was saved by another version")
	errDamaged = errors.New("it is damaged or cut off")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (s Snapshot) encode() []byte {
	b := []byte(firstLine)
	add := func(numbers ...int64) {
		for _, n := range numbers {
			b = binary.AppendVarint(b, n)
		}
	}
	add(s.At)
	for name, counts := range s.Limits {
		add(int64(len(name)))
		b = append(b, name...)
		set := s.Resets[name]
		add(int64(len(set.Keys)), set.All.Stamp, set.All.At, set.All.Until)
		for id, r := range set.Keys {
			b = append(b, id[:]...)
			add(r.Stamp, r.At, r.Until)
		}
		add(int64(len(counts)))
		for id, reports := range counts {
			b = append(b, id[:]...)
			add(int64(len(reports)))
			for _, r := range reports {
				add(r.Epoch, r.Remote, r.Own, int64(math.Float64bits(r.Level)), r.LevelAt, r.Rate)
			}
		}
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeSnapshot reads what encode made.
func decodeSnapshot(b []byte) (Snapshot, error) {
	switch {
	case !isMarked(b, mark):
		return Snapshot{}, ErrForeign
	case len(b) >= len(firstLine) && !bytes.HasPrefix(b, []byte(firstLine)):
		return Snapshot{}, errVersion
	case len(b) < len(firstLine)+crc32.Size:
		return Snapshot{}, errDamaged
	}
	b, sum := b[:len(b)-crc32.Size], b[len(b)-crc32.Size:]
	if binary.BigEndian.Uint32(sum) != crc32.Checksum(b, castagnoli) {
		return Snapshot{}, errDamaged
	}
	r := reader{b: b[len(firstLine):]}
	s := Snapshot{At: r.number(), Limits: make(map[string]table.SavedCounts), Resets: make(map[string]reset.Set)}
	for len(r.b) > 0 {
		name := string(r.bytes(r.count(1)))
		if set := r.resets(); set.All != (reset.Reset{}) || len(set.Keys) > 0 {
			s.Resets[name] = set
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

func (r *reader) bytes(n int) (taken []byte) {
	if n > len(r.b) {
		r.fail()
		return nil
	}
	taken, r.b = r.b[:n], r.b[n:]
	return taken
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

// count reads a number of things of which each takes up so many bytes at least.
func (r *reader) count(each int) int {
	n := r.number()
	if n < 0 || n > int64(len(r.b)/each) {
		r.fail()
		return 0
	}
	return int(n)
}

func (r *reader) id() (id keys.ID) {
	copy(id[:], r.bytes(len(id)))
	return id
}

func (r *reader) reset() reset.Reset {
	return reset.Reset{Stamp: r.number(), At: r.number(), Until: r.number()}
}

func (r *reader) resets() reset.Set {
	n := r.count(len(keys.ID{}) + 3)
	set := reset.Set{All: r.reset(), Keys: make(map[[16]byte]reset.Reset, n)}
	for range n {
		id := r.id()
		set.Keys[id] = r.reset()
	}
	return set
}

func (r *reader) counts() table.SavedCounts {
	n := r.count(len(keys.ID{}) + 1)
	counts := make(table.SavedCounts, n)
	for range n {
		id := r.id()
		reports := make([]algorithms.Report, r.count(6))
		for i := range reports {
			reports[i] = r.report()
		}
		counts[id] = reports
	}
	return counts
}

// maxCount is more than a table can have counted: a million requests in each second of two
// centuries.
const maxCount = 1 << 53

// report reads a report, and takes only what a table can have saved.
func (r *reader) report() algorithms.Report {
	report := algorithms.Report{
		Epoch: r.number(), Remote: r.number(), Own: r.number(), Level: math.Float64frombits(uint64(r.number())), LevelAt: r.number(), Rate: r.number(),
	}
	if report.Own < 0 || report.Own > report.Remote || report.Remote > maxCount || !(report.Level >= 0 && report.Level <= maxCount) || report.Rate < 0 {
		r.fail()
	}
	return report
}
