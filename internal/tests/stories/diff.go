// Package stories has scenarios in virtual time, with all that clients, operators, Redis and the
// log see of them.
//
// Those of testdata are stories, one for each feature, with what is seen beneath each step. Random
// ones are compared between two commits by internal/scenarios.
package stories

import "slices"

// Diff returns the lines of a and b: those that both have begin with a space, those of a alone with
// "-", those of b alone with "+".
func Diff(a, b []string) []string {
	var head, tail []string
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		head, a, b = append(head, " "+a[0]), a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		tail, a, b = append(tail, " "+a[len(a)-1]), a[:len(a)-1], b[:len(b)-1]
	}
	slices.Reverse(tail)
	return slices.Concat(head, middle(a, b), tail)
}

// middle is Diff of lines of which the first and the last ones differ, by the longest lines in
// common.
func middle(a, b []string) (all []string) {
	common := make([][]int, len(a)+1) // of the lines from one of a and one of b on
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if common[i][j] = max(common[i+1][j], common[i][j+1]); a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			}
		}
	}
	for len(a)+len(b) > 0 {
		i, j := len(common)-1-len(a), len(common[0])-1-len(b)
		switch {
		case len(a) > 0 && len(b) > 0 && a[0] == b[0]:
			all, a, b = append(all, " "+a[0]), a[1:], b[1:]
		case len(b) == 0 || len(a) > 0 && common[i+1][j] >= common[i][j+1]:
			all, a = append(all, "-"+a[0]), a[1:]
		default:
			all, b = append(all, "+"+b[0]), b[1:]
		}
	}
	return all
}
