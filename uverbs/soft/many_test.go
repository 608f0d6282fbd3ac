package soft_test

import (
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/uverbs"
)

// manyQPs is the number of queue pairs of TestManyQPs, of which two are connected to each other.
const manyQPs = 10_000

// inUse returns the memory of the process that the Go runtime has in use, in bytes.
func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// createMany creates n connected QPs on two devices: QP i is connected to QP i^1.
func createMany(t testing.TB, sides [2]*side, n int) []*uverbs.QP {
	t.Helper()
	qps := make([]*uverbs.QP, n)
	for i := range qps {
		s := sides[i%2]
		o := uverbs.QPOptions{SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 1, MaxRecvWR: 1}
		var err error
		if qps[i], err = s.pd.CreateQP(o); err == nil {
			err = qps[i].Init()
		}
		if err != nil {
			t.Fatalf("QP %d: %v", i, err)
		}
	}
	for i, q := range qps {
		e, err := qps[i^1].Endpoint()
		if err == nil {
			err = q.Connect(t.Context(), e)
		}
		if err != nil {
			t.Fatalf("QP %d: %v", i, err)
		}
	}
	return qps
}

// sendMany sends a message from each QP to its peer, and checks that each has arrived once.
func sendMany(t testing.TB, sides [2]*side, qps []*uverbs.QP) {
	t.Helper()
	arrived := make([]bool, len(qps))
	const batch = 64 // QPs that have a message under way
	for first := 0; first < len(qps); first += batch {
		last := min(first+batch, len(qps))
		for i := first; i < last; i++ {
			if err := qps[i].PostRecv(uint64(i), sides[i%2].mr.SGE(8*(i-first), 8)); err != nil {
				t.Fatal(err)
			}
		}
		for i := first; i < last; i++ {
			if err := qps[i].PostSend(uverbs.SendWR{Opcode: uverbs.WRSend, SGL: []uverbs.SGE{sides[i%2].mr.SGE(4096, i%8)}, Flags: uverbs.SendSignaled}); err != nil {
				t.Fatal(err)
			}
		}
		for want := 2 * (last - first); want > 0; {
			for _, s := range sides {
				var wcs [32]uverbs.WC
				n, err := s.cq.Poll(wcs[:])
				if err != nil {
					t.Fatal(err)
				}
				for _, wc := range wcs[:n] {
					if wc.Status != uverbs.WCSuccess {
						t.Fatal(wc.Status)
					}
					want--
					if wc.Opcode != uverbs.WCRecv {
						continue
					}
					if int(wc.ByteLen) != int(wc.ID^1)%8 || arrived[wc.ID] {
						t.Fatalf("QP %d received %d bytes, arrived before: %v", wc.ID, wc.ByteLen, arrived[wc.ID])
					}
					arrived[wc.ID] = true
				}
			}
		}
	}
	for i, ok := range arrived {
		if !ok {
			t.Errorf("no message arrived at QP %d", i)
		}
	}
}

// TestManyQPs: 10,000 queue pairs need no goroutines of their own, and little memory, and each receives
// a message.
func TestManyQPs(t *testing.T) {
	for way, newDevice := range ways {
		t.Run(way, func(t *testing.T) {
			a, b := twoSides(t, newDevice, uverbs.QPOptions{})
			sides := [2]*side{a, b}
			goroutines, memory := runtime.NumGoroutine(), inUse()
			qps := createMany(t, sides, manyQPs)
			sendMany(t, sides, qps)
			if n := runtime.NumGoroutine() - goroutines; n > 10 {
				var which strings.Builder
				pprof.Lookup("goroutine").WriteTo(&which, 1)
				t.Errorf("%d more goroutines\n%s", n, which.String())
			}
			const limit = 8 << 10 // the two rings take 1.4 KiB, whatever the page size
			if each := (inUse() - memory) / manyQPs; each > limit {
				t.Errorf("%d bytes for each QP, want at most %d", each, limit)
			}
			for _, q := range qps {
				if err := q.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
