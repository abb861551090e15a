package algorithms

import (
	"math"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A talker is a bucket that is synced every second.
type talker struct{ keyed[BucketState] }

// talkers makes one of each kind, of 100 in 100 seconds that come 200 at once.
func talkers() (all []talker) {
	for _, k := range bucketKinds {
		all = append(all, talker{k.make(100, 100*time.Second, 200).(keyed[BucketState])})
	}
	return all
}

func (k talker) say(now int64) BucketUpdate {
	return k.machine.(Bucketed[BucketState]).Update(k.s, k.limit, now, time.Second)
}

func (k talker) merge(now int64, h BucketReply) {
	k.machine.(Bucketed[BucketState]).MergeReply(k.s, k.limit, now, h)
}

// What is in a bucket is what the store says, less what has drained since, and what this node has
// spent meanwhile.
func TestTheFillBoundsWhatOthersSpent(t *testing.T) {
	const second = int64(time.Second)
	for _, test := range []struct {
		name         string
		confirmed    int64 // spent before it is said
		since, at    int64 // spent after, and so many seconds later
		whole, age   int64 // the store's level, 10 seconds later, and how old it is
		level        float64
		idle, others int64 // what others may have spent that has drained, and what they have in all
	}{
		{"all of it stands", 50, 0, 0, 70, 0, 70, 0, 30},
		{"the store has less than is known here", 50, 0, 0, 25, 0, 25, 0, 150},
		{"it has drained since it was told", 50, 0, 0, 70, 4, 66, 0, 30},
		{"all of it has", 50, 0, 0, 3, 4, 0, 1, 3},
		{"what came since is on top", 50, 20, 0, 70, 0, 90, 0, 30},
		{"also beyond the size", 50, 120, 10, 170, 0, 290, 0, 120},
		{"the store was idle", 50, 0, 0, -30, 0, 0, 30, 0},
		{"what came since has drained in that time", 50, 8, 2, -30, 0, 0, 22, 0},
		{"some of it has", 50, 20, 2, -30, 0, 12, 22, 0},
		{"as far as it was idle", 50, 20, 2, -5, 0, 15, 0, 0},
	} {
		for _, k := range talkers() {
			start := epoch - epoch%second
			k.take(start, test.confirmed, 0)
			update := k.say(start)
			k.take(start+test.at*second, test.since, 0)
			now := start + 10*second
			h := BucketReply{Total: update.Total, Others: test.others, BucketLevel: BucketLevel{Whole: test.whole, At: now - test.age*second, Rate: 100}}
			for range 2 { // the same answer once more changes nothing
				k.merge(now, h)
				if got := k.level(now); got != test.level {
					t.Errorf("%s: %s: level %v, want %v", k.Kind, test.name, got, test.level)
				}
			}
			known := k.take(now, 0, 0).Remaining
			if held := known - k.take(now, 0, 40).Remaining; known >= 40 && held != 40-test.idle {
				t.Errorf("%s: %s: %d of 40 unseen are held against a request, want %d", k.Kind, test.name, held, 40-test.idle)
			}
			if c := k.ledger().Cur; c != (EpochCount{Own: test.confirmed + test.since, Acked: test.confirmed, Remote: test.others}) {
				t.Errorf("%s: %s: %+v", k.Kind, test.name, c)
			}
		}
	}
}

// What is said is all that was spent, and what of that the store may not have: at most what still
// stands, and what drains in two intervals. Otherwise an outage of an hour would leave a client
// with the debt of an hour.
func TestABucketSaysWhatTheStoreMayLack(t *testing.T) {
	const second = int64(time.Second)
	for _, k := range talkers() {
		now := epoch - epoch%second
		start := now / int64(time.Microsecond)
		update := func(when string, want BucketUpdate) {
			t.Helper()
			want.Size, want.Rate = 200, 100
			if got := k.say(now); got != want {
				t.Errorf("%s: %s: %+v, want %+v", k.Kind, when, got, want)
			}
		}
		update("nothing yet", BucketUpdate{Incarnation: start})
		k.take(now, 30, 0)
		now += second / 2
		update("what came", BucketUpdate{Incarnation: start, Total: 30, Unacked: 30, UnackedFor: 5e5, Whole: 29, Rest: 5e7, Decided: true})
		now += second / 2
		update("once more, as there was no answer", BucketUpdate{Incarnation: start, Total: 30, Unacked: 30, UnackedFor: 1e6, Whole: 29, Decided: true})
		now += 9 * second
		update("as far as it stands", BucketUpdate{Incarnation: start, Total: 30, Unacked: 22, UnackedFor: 2e6, Whole: 20, Decided: true})
		for range 3600 {
			now += second
			k.take(now, 1, 0)
		}
		update("after an hour", BucketUpdate{Incarnation: start, Total: 3630, Unacked: 22, UnackedFor: 2e6, Whole: 20, Decided: true})
		k.merge(now, BucketReply{Total: 3630, BucketLevel: BucketLevel{Whole: 20, At: now, Rate: 100}})
		update("when it was answered", BucketUpdate{Incarnation: start, Total: 3630, Whole: 20})
		k.take(now+second, 4, 0)
		k.refund(now+second, 6)
		now += 2 * second
		update("less, after a refund", BucketUpdate{Incarnation: start, Total: 3628, Whole: 16, Decided: true})
	}
}

// A state has another name where its total begins anew: then the store takes what it has of the old
// one for that of another node, and not for more than there is now.
func TestABucketThatBeginsAnewHasAnotherName(t *testing.T) {
	for _, k := range talkers() {
		k.take(epoch, 9, 0)
		last := k.say(epoch)
		k.merge(epoch, BucketReply{Total: 9, BucketLevel: BucketLevel{Whole: 9, At: epoch, Rate: 100}})
		k.take(epoch, 5, 0)
		for _, test := range []struct {
			name        string
			do          func()
			total, left int64
		}{
			{"the store has an older copy", func() { k.machine.(Bucketed[BucketState]).Restart(k.s, epoch) }, 5, 14},
			{"a reset", func() { k.machine.Reset(k.s, k.limit, epoch, 0) }, 0, 0},
			{"a reset and a step back", func() {
				k.take(epoch, 5, 0)
				k.machine.Reset(k.s, k.limit, epoch-int64(time.Hour), 0)
			}, 0, 0},
			{"a total that is large", func() {
				k.s.ledger.Cur = EpochCount{Own: maxTotal, Acked: maxTotal}
			}, 0, 0},
		} {
			test.do()
			update := k.say(epoch)
			if update.Total != test.total || update.Unacked != test.total || update.Incarnation <= last.Incarnation || k.level(epoch) != float64(test.left) {
				t.Errorf("%s: %s: %+v after %+v, want a later start and %d of %d", k.Kind, test.name, update, last, test.total, test.left)
			}
			last = update
		}
	}
}

// A copy shares nothing with its state.
func TestACopyOfABucketIsItsOwn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.SampledFrom(bucketKinds).Draw(t, "kind")
		s, w := k.stirred(t)
		was, copied := s.clone(), s.clone()
		stir(t, copied, w)
		if !reflect.DeepEqual(s.state(), was.state()) {
			t.Fatalf("%+v after work on a copy, want %+v", s.state(), was.state())
		}
	})
}

// What a request is told is how the bucket stood when it was granted: without what the store has
// given to those behind it.
func TestStand(t *testing.T) {
	for _, k := range talkers() {
		m := k.machine.(Bucketed[BucketState])
		for _, test := range []struct {
			whole, behind int64
			want          float64
		}{{70, 0, 69}, {70, 20, 49}, {-3, 0, 0}, {10, 20, 0}} {
			s := m.StateAt(k.limit, epoch, BucketLevel{Whole: test.whole, At: epoch - int64(time.Second), Rate: 100}, test.behind)
			if got, rate := m.(Machine[BucketState]).Level(&s, k.limit, epoch); got != test.want || rate != 100 {
				t.Errorf("%s: %d a second ago, %d behind: level %v at %d, want %v at 100", k.Kind, test.whole, test.behind, got, rate, test.want)
			}
		}
		s := m.StateAt(k.limit, epoch, BucketLevel{Whole: 1, Rest: math.MaxInt64, At: epoch, Rate: 100}, 0)
		if got, _ := m.(Machine[BucketState]).Level(&s, k.limit, epoch); got < 1 || got >= 2 {
			t.Errorf("%s: a level of nonsense is %v", k.Kind, got)
		}
	}
}

// A penalty that fills a bucket with a part of a request is a whole one in the total. An answer
// that lacks it leaves the bucket full, and no more: else who waits as told is denied once more.
func TestAPenaltyThatAnAnswerLacksOnlyFillsTheBucket(t *testing.T) {
	for at := range int64(40) {
		var b bucket
		var s BucketState
		l, now := Params{Kind: GCRA, Limit: 3, Burst: 2, Window: 5 * time.Second}.Compile(), int64(time.Hour)+at*int64(100*time.Millisecond)
		b.Take(&s, l, now, 2, 0)
		update := b.Update(&s, l, now, time.Second)
		asked := now
		now += int64(500 * time.Millisecond)
		b.Penalize(&s, l, now, 1)
		b.MergeReply(&s, l, now, BucketReply{BucketLevel: BucketLevel{Whole: 2, At: asked, Rate: 3}, Total: update.Total, Added: 2})
		if level, _ := b.Level(&s, l, now); level > 2 {
			t.Errorf("%d00 ms on, %.2f are in a bucket of 2", at, level)
		}
	}
}

// What is said first of a bucket, which has drained since it was spent, and was filled by penalties
// with parts of a request, has a store that has nothing take what stands in it. A store that takes
// more denies who waits as this node told.
func TestTheFirstOfABucketIsWhatStands(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b bucket
		var s BucketState
		l := Params{
			Kind: GCRA, Limit: rapid.Int64Range(1, 6).Draw(t, "limit"), Burst: rapid.Int64Range(0, 4).Draw(t, "burst"),
			Window: rapid.SampledFrom([]time.Duration{time.Second, 4 * time.Second, 7 * time.Second}).Draw(t, "window"),
		}.Compile()
		now := epoch
		for range rapid.IntRange(1, 12).Draw(t, "requests") {
			now += rapid.SampledFrom([]int64{0, int64(time.Millisecond), int64(300 * time.Millisecond), int64(time.Second)}).Draw(t, "later")
			if !b.Take(&s, l, now, 1, 0).Allowed {
				b.Penalize(&s, l, now, 1)
			}
		}
		now += rapid.SampledFrom([]int64{0, int64(1700 * time.Microsecond), int64(time.Second)}).Draw(t, "said later")
		interval := rapid.SampledFrom([]time.Duration{0, time.Second, time.Hour}).Draw(t, "interval")
		parts := l.Window / int64(time.Microsecond)
		for _, again := range []string{"", ", said again without an answer"} {
			update := b.Update(&s, l, now, interval)
			stands, fresh := update.Whole*parts+update.Rest, update.Unacked*parts
			has := fresh - update.Rate*update.UnackedFor // as bucket in say.lua works it out
			if stands >= fresh {
				has = max(has, stands)
			}
			if more := has - stands; more < -1 || more > update.Rate {
				t.Fatalf("%d/%d of a request stand, and the store has %d/%d more by %+v%s", stands, parts, more, parts, update, again)
			}
			now += int64(time.Millisecond)
		}
	})
}
