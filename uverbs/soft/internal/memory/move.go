//go:build !race

package memory

// raceEnabled reports whether the race detector is on.
const raceEnabled = false

// move copies src to dst, which is as long.
func move(dst, src []byte) { copy(dst, src) }
