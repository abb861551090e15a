//go:build chaos

package cluster_test
