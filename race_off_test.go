//go:build !race

package ratelimit

const raced = false
