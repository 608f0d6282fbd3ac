package abi

import "testing"

// known is where the headers of a kernel disagree with this package.
var known = map[string]layoutKnown{
	// In Linux 5.10 the address vector is not the end of rxe_send_wr but the
	// field of rxe_send_wqe behind it. It is at the same place in memory.
	"5.10": {absent: 26, differs: []string{
		"struct rxe_send_wr",
		"struct rxe_send_wr wr",
		"struct rxe_send_wr wr.ud",
		"struct rxe_send_wqe wr",
	}},
	"6.1":  {absent: 8},
	"6.12": {absent: 0},
	"7.2":  {absent: 0},
}

// TestLayout holds every size, offset and constant of this package against the
// kernel's headers that are installed, whether they are older or newer than
// those that it was generated from.
func TestLayout(t *testing.T) { checkLayout(t, known) }
