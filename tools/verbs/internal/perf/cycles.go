//go:build amd64 || arm64

package perf

// cycles reads the processor's counter: the time stamp counter of amd64, the generic timer of arm64.
func cycles() int64
