package softrxe

import (
	"net/netip"
	"testing"

	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// TestCMMulticast has mckey receive from the software device and send to it. It cannot with IPv6, where
// cma_iboe_join_multicast of the kernel refuses groups of RoCE v2 with ENOTSUPP.
func TestCMMulticast(t *testing.T) {
	testenv.Guest(t)
	_, software := places(false)
	own := netip.AddrPortFrom(software.addr, 1).String()
	receiver := program.Launch(t, "mckey", "-m", saidTo.String(), "-b", rxeAddr.String())
	for !ended(receiver) { // it says nothing before, so each round may be too early for it
		says(t, software.peer(t, "say", own, "1"))
	}
	says(t, receiver, "data transfers complete")
	hearer := software.peer(t, "hear", own, "1")
	// It closes its QP without waiting for its sends, and new kernels drop those that are not on the wire
	// yet: of many some get there.
	says(t, program.Launch(t, "mckey", "-m", heardFrom.String(), "-b", rxeAddr.String(), "-s", "-C", "1000"))
	says(t, hearer)
}

// ended reports whether a program has ended.
func ended(p *program.Program) bool {
	select {
	case <-p.Ended:
		return true
	default:
		return false
	}
}
