package fabric

import (
	"runtime"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/ibsim"
)

// TestSimLinkCut: a link that is cut in the middle of a walk costs the nodes behind it and nothing else; once it
// is back, the walk finds everything again. opensm runs meanwhile.
func TestSimLinkCut(t *testing.T) {
	s := ibsim.Start(t, ibsim.FatTree(100))
	s.OpenSM("h1", false)
	p := s.Port("h2")
	all := len(discover(t, p, Options{}).Nodes)
	for _, at := range []int{2, 20, 60, 100} {
		f := discover(t, p, Options{Timeout: 200 * time.Millisecond, Tries: 2, Progress: func(nodes, _ int) {
			if nodes == at {
				s.Do(`Unlink "h99"[1]`)
			}
		}})
		s.Do(`Relink "h99"[1]`)
		if len(f.Nodes) < all-1 || len(f.Nodes) > all {
			t.Errorf("cut after %d nodes: %d nodes of %d", at, len(f.Nodes), all)
		}
		for i := range f.Problems { // h99 is at port 9 of its leaf; the last request to it may have got lost
			if path := f.Problems[i].Path; len(path) != 4 || path[3] != 9 {
				t.Errorf("cut after %d nodes: %v", at, &f.Problems[i])
			}
		}
		if f := discover(t, p, Options{}); len(f.Nodes) != all || len(f.Problems) > 0 {
			t.Errorf("after the link came back: %d nodes of %d, %v", len(f.Nodes), all, f.Problems)
		}
	}
}

// BenchmarkDiscover walks a fabric of 324 hosts, and reports the time as a multiple of that of iblinkinfo
// and of ibnetdiscover, which take turns with it, and the memory of the result.
func BenchmarkDiscover(b *testing.B) {
	s := ibsim.Start(b, ibsim.FatTree(324))
	s.OpenSM("h1", false)
	p := s.Port("h2")
	var ours, links, nodes time.Duration
	timed := func(d *time.Duration, do func()) {
		start := time.Now()
		do()
		*d += time.Since(start)
	}
	var f *Fabric
	for b.Loop() {
		timed(&ours, func() { f = discover(b, p, Options{}) })
		timed(&links, func() { s.Output("h2", "iblinkinfo") })
		timed(&nodes, func() { s.Output("h2", "ibnetdiscover") })
	}
	var with, without runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&with)
	if len(f.Nodes) != 351 {
		b.Errorf("%d nodes", len(f.Nodes))
	}
	f = nil
	runtime.GC()
	runtime.ReadMemStats(&without)
	b.ReportMetric(float64(ours)/float64(links), "x-iblinkinfo")
	b.ReportMetric(float64(ours)/float64(nodes), "x-ibnetdiscover")
	b.ReportMetric(float64(with.HeapAlloc-without.HeapAlloc), "B/fabric")
}
