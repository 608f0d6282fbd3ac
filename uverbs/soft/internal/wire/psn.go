package wire

// PSNs are numbers modulo 2^24. Of two PSNs, the one that is less than 2^23 behind the other is the
// earlier one.

// Add returns the PSN that lies n packets behind a, or before a if n is negative.
func Add(psn uint32, n int) uint32 { return (psn + uint32(n)) & PSNMask }

// Diff returns how many packets a lies behind b: from -2^23 to 2^23-1, negative if a is earlier.
func Diff(a, b uint32) int { return int(int32((a-b)<<8) >> 8) }
