package gauge

import "github.com/caddy-tide/ratelimit/internal/keys"

const (
	rows       = 4
	cellsInRow = 1 << 10
)

// cells are the gauges of a stripe's keys beyond max_keys: a key has a cell in each row and shares
// it with others, so its gauge is at most the least of its cells. None is told to other nodes.
type cells struct {
	used  int64 // slots given out
	count [rows][cellsInRow]int32
}

// of returns the cell of a key in a row.
func (c *cells) of(key keys.Key, row int) *int32 {
	return &c.count[row][key.B>>(16*row)%cellsInRow]
}

// least is at least what a key has.
func (c *cells) least(key keys.Key) int64 {
	least := *c.of(key, 0)
	for row := 1; row < rows; row++ {
		least = min(least, *c.of(key, row))
	}
	return int64(least)
}

func (c *cells) add(key keys.Key, n int32) {
	for row := range rows {
		*c.of(key, row) += n
	}
	c.used += int64(n)
}

// takeCell is Take for a key without a gauge of its own.
func (t *Table) takeCell(st *stripe, a *Ask) (Slot, State) {
	s := State{Bound: a.Alone, Overflow: true}
	if st.cells != nil {
		s.Own = st.cells.least(a.Key)
	}
	if s.Own >= s.Bound {
		return Slot{}, s
	}
	if st.cells == nil {
		st.cells = new(cells)
	}
	st.cells.add(a.Key, 1)
	st.inUse++
	s.Own, s.Allowed = s.Own+1, true
	return Slot{table: t, key: a.Key}, s
}

// freeCell gives a slot of such a key back.
func (st *stripe) freeCell(key keys.Key) {
	if st.cells.add(key, -1); st.cells.used == 0 {
		st.cells = nil
	}
}
