package uverbs_test

import (
	"fmt"

	"github.com/goverbs/goverbs/uverbs"
)

// Register half a buffer so that the peer sees it from address 0 on, and let it write
// there for a while.
func ExamplePD_RegMR() {
	dev := must(uverbs.OpenFirst())
	pd := must(dev.AllocPD())
	buf := must(uverbs.AllocBuffer(8192, uverbs.BufferOptions{}))
	mr := must(pd.RegMR(buf, uverbs.MROptions{
		Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite,
		Offset: 4096,
		IOVA:   new(uint64(0)),
	}))
	fmt.Println("write to", mr.Addr(), "with key", mr.RKey())
	check(mr.Rereg(uverbs.ReregOptions{Access: new(uverbs.AccessLocalWrite)}))
	check(mr.Close())
	check(buf.Close())
	check(pd.Close())
	check(dev.Close())
}

// A memory window is bound by a work request; until then its key leads nowhere.
func ExamplePD_AllocMW() {
	dev := must(uverbs.OpenFirst())
	pd := must(dev.AllocPD())
	mw := must(pd.AllocMW(uverbs.MWType2))
	fmt.Println("the first bind makes the key", uverbs.IncRKey(mw.RKey()))
	check(mw.Close())
	check(pd.Close())
	check(dev.Close())
}

// Memory of huge pages takes the device fewer translations. The administrator has
// reserved them: echo 512 > /proc/sys/vm/nr_hugepages.
func ExampleAllocBuffer() {
	buf := must(uverbs.AllocBuffer(1<<30, uverbs.BufferOptions{HugePages: true, NUMANode: new(0)}))
	fmt.Println(buf.Len())
	check(buf.Close())
}

// Pages of on-demand memory are brought in before the device needs them, so that its first
// access does not wait for a page fault.
func ExamplePD_AdviseMR() {
	var pd *uverbs.PD
	var buf *uverbs.Buffer
	mr := must(pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite | uverbs.AccessOnDemand}))
	check(pd.AdviseMR(uverbs.AdvicePrefetchWrite, []uverbs.SGE{mr.SGE(0, 1<<20)}, uverbs.AdviseOptions{Flush: true}))
}
