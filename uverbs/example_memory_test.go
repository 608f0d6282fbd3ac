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

// Each small message has a slot of its own. The number of the slot is the ID of the work
// request, so that the completion tells which slot is free again.
func ExampleBufferPool() {
	dev := must(uverbs.OpenFirst())
	pd := must(dev.AllocPD())
	pool := must(uverbs.NewBufferPool(pd, uverbs.PoolOptions{SlotSize: 256, Slots: 1000}))
	out := make([]uverbs.Slot, 1000)
	post := func(qp *uverbs.QP, msg string) {
		s := must(pool.Get())
		out[s.Index()] = s
		n := copy(s.Bytes(), msg)
		check(qp.PostSend(uverbs.SendWR{ID: uint64(s.Index()), Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{s.SGE(n)}}))
	}
	completed := func(wc *uverbs.WC) { check(pool.Put(out[wc.ID])) }
	_, _ = post, completed
	check(pool.Close())
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
