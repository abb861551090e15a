// Package spelling is for errors about what people write: it finds the known word that a misspelled
// one was probably meant to be, and keeps what an error quotes short.
package spelling

import "strings"

// Clip returns s, or its beginning, so that an error stays short whatever was written.
func Clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}

// Nearest returns the one of known that a word is most likely a slip of: within two slips, and more
// right than wrong, whatever the case. It returns "" if there is none.
func Nearest(word string, known []string) string {
	nearest, least := "", 3
	word = strings.ToLower(word)
	for _, k := range known {
		if n := distance(word, strings.ToLower(k), least); n < least && 2*n < len(k) {
			nearest, least = k, n
		}
	}
	return nearest
}

// distance returns the number of single-letter changes and swaps of neighbours between two words,
// or limit if it is not below that.
func distance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return min(last[len(b)], limit)
}
