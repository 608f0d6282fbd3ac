package abi

import "testing"

// known is where the headers of a kernel disagree with this package.
var known = map[string]layoutKnown{
	"5.10": {absent: 31},
	"6.1":  {absent: 9},
	"6.12": {absent: 3},
	"7.2":  {absent: 0},
}

// TestLayout holds every size, offset and constant of this package against the
// kernel's headers that are installed, whether they are older or newer than
// those that it was generated from.
func TestLayout(t *testing.T) { checkLayout(t, known) }
