package lifecycle

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// slowPlace answers each call only when it is told to.
type slowPlace struct {
	inFile
	goOn    chan error
	written []string
}

func (p *slowPlace) write(b []byte) error {
	err := <-p.goOn
	p.written = append(p.written, string(b))
	return err
}

// Nobody waits for a place that hangs, and once it answers again the newest write comes last.
func TestAPlaceThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &slowPlace{goOn: make(chan error)}
		b := bounded{slow, &turns{taken: make(chan struct{}, 1)}}
		takes := func(what string, want time.Duration, wantErr error) {
			t.Helper()
			began := time.Now()
			if err := b.write([]byte(what)); !errors.Is(err, wantErr) || time.Since(began) != want {
				t.Errorf("write(%q) = %v after %v, want %v after %v", what, err, time.Since(began), wantErr, want)
			}
		}
		second := make(chan struct{})
		go func() { // waits for the first one's turn
			defer close(second)
			time.Sleep(patience / 2)
			takes("second", patience, errHangs)
		}()
		takes("first", patience, errHangs)
		takes("third", 0, errHangs)
		if err := (bounded{inFile{}, b.turns}).Check(); !errors.Is(err, errHangs) {
			t.Errorf("another file of the directory: %v, want %v", err, errHangs)
		}
		<-second
		slow.goOn <- nil
		synctest.Wait()
		full := errors.New("no space left")
		go func() { slow.goOn <- full }()
		takes("fourth", 0, full)
		go func() { slow.goOn <- nil }()
		takes("fifth", 0, nil)
		sixth := make(chan struct{})
		go func() {
			defer close(sixth)
			takes("sixth", time.Second, nil)
		}()
		synctest.Wait()
		go func() { // it is slow, and doesn't hang any more
			time.Sleep(time.Second)
			slow.goOn <- nil
			slow.goOn <- nil
		}()
		takes("seventh", time.Second, nil)
		<-sixth
		if want := []string{"first", "fourth", "fifth", "sixth", "seventh"}; !slices.Equal(slow.written, want) {
			t.Errorf("written: %q, want %q", slow.written, want)
		}
	})
}
