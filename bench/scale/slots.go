package main

import (
	"fmt"
	"slices"
	"strconv"
	"time"
)

const (
	slots = 16384
	tags  = 64 // hash tags of the sync: {0} to {63}
)

// slotOf is the slot of a hash tag in a Redis Cluster: CRC-16/XMODEM of it, modulo 16384.
func slotOf(tag string) int { return int(crc16(tag)) % slots }

func crc16(s string) (crc uint16) {
	for i := range len(s) {
		crc ^= uint16(s[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc
}

// tagsOf says how many of the tags each of n masters has, where they have the slots in equal parts
// in their order, as redis-cli gives them out.
func tagsOf(n int) []int {
	of := make([]int, n)
	for i := range tags {
		of[slotOf(strconv.Itoa(i))*n/slots]++
	}
	return of
}

// share is the part of all keys that the busiest of n masters has.
func share(n int) float64 { return float64(slices.Max(tagsOf(n))) / tags }

// writeSlots prints how the tags spread over clusters, and what that makes possible.
func writeSlots(all []unit) {
	fmt.Printf("\nArithmetic: the 64 hash tags on n masters, and the keys that then fill the cluster at `sync_rate 1s`. With equal ranges of slots:\n\n")
	const head = "| masters | %s | as good as | keys, 2 nodes | 10 nodes | 50 nodes |\n|---|---|---|---|---|---|\n"
	masters := []int{1, 3, 6, 12, 16, 32, 64}
	fmt.Printf(head, "tags, most and least")
	for _, n := range masters {
		of := tagsOf(n)
		fmt.Printf("| %d | %d, %d |%s\n", n, slices.Max(of), slices.Min(of), fit(all, share(n)))
	}
	fmt.Printf("\nWith the 64 slots placed by hand:\n\n")
	fmt.Printf(head, "tags at most")
	for _, n := range masters {
		least := (tags + n - 1) / n
		fmt.Printf("| %d | %d |%s\n", n, least, fit(all, float64(least)/tags))
	}
}

// fit are cells: as many masters as there would be if all had the busiest one's share, and the keys
// that fill them.
func fit(all []unit, share float64) string {
	cells := fmt.Sprintf(" %.1f |", 1/share)
	for _, u := range all {
		if u.nodes > 1 {
			cells += " " + short(most(u, time.Second, share)) + " |"
		}
	}
	return cells
}
