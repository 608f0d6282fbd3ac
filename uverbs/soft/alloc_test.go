package soft_test

import (
	"testing"

	"github.com/goverbs/goverbs/uverbs"
)

// TestAllocs: a message allocates nothing, from the call that posts it to the last completion, within the
// process and by sockets.
func TestAllocs(t *testing.T) {
	const (
		size     = 20000 // several packets
		messages = 1000
	)
	for way, newDevice := range ways {
		a, b := twoSides(t, newDevice, uverbs.QPOptions{Path: uverbs.PathOptions{Access: uverbs.AccessRemoteWrite | uverbs.AccessRemoteRead | uverbs.AccessRemoteAtomic}})
		local, remote := []uverbs.SGE{a.mr.SGE(0, size)}, []uverbs.SGE{b.mr.SGE(0, size)}
		next := func(s *side) {
			var wcs [1]uverbs.WC
			for n := 0; n == 0; {
				var err error
				if n, err = s.cq.Poll(wcs[:]); err != nil {
					t.Fatal(err)
				}
			}
			if wcs[0].Status != uverbs.WCSuccess {
				t.Fatalf("%s: %s", way, wcs[0].Status)
			}
		}
		for _, opcode := range []uverbs.WROpcode{uverbs.WRSend, uverbs.WRRDMAWrite, uverbs.WRRDMARead, uverbs.WRFetchAdd} {
			wr := uverbs.SendWR{Opcode: opcode, Flags: uverbs.SendSignaled, SGL: local, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
			if opcode == uverbs.WRFetchAdd {
				wr.SGL = []uverbs.SGE{a.mr.SGE(0, 8)}
			}
			run := func() {
				if opcode == uverbs.WRSend {
					if err := b.qp.PostRecv(1, remote...); err != nil {
						t.Fatal(err)
					}
				}
				if err := a.qp.PostSend(wr); err != nil {
					t.Fatal(err)
				}
				next(a)
				if opcode == uverbs.WRSend {
					next(b)
				}
			}
			run()
			all := func() {
				for range messages {
					run()
				}
			}
			if n := testing.AllocsPerRun(1, all); n > messages/10 { // the garbage collector, and timers on a busy machine, allocate a few
				t.Errorf("%s, %s: %.0f allocations for %d messages", way, opcode, n, messages)
			}
		}
	}
}
