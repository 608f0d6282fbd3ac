package hca

import (
	"bytes"
	"testing"

	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// TestMEMIC: the card's own memory is given out in pages and taken back, keys lead to it while it is
// given out, and the host reaches it in BAR 0.
func TestMEMIC(t *testing.T) {
	v := newVerbs(t, IB)
	alloc := func(from, room, size, align uint64) []byte {
		in := v.in(32)
		prm.MEMICRangeStart.Put(in, from)
		prm.MEMICRangeSize.Put(in, room)
		prm.MEMICAllocSize.Put(in, size)
		prm.MEMICAlign.Put(in, align)
		return in
	}
	free := func(at, size uint64) []byte {
		in := v.in(32)
		prm.MEMICFreeStart.Put(in, at)
		prm.MEMICFreeSize.Put(in, size)
		return in
	}
	key := func(start, length uint64) []byte {
		in := v.with()
		x := prm.Record(in, prm.MKCtx, prm.MKCSize)
		prm.MKCMode42.Put(x, uint64(engine.ModeOwn>>2))
		prm.MKCMode10.Put(x, uint64(engine.ModeOwn&3))
		prm.MKCPD.Put(x, uint64(v.pdn))
		prm.MKCQPN.Put(x, 0xffffff)
		prm.MKCStart.Put(x, start)
		prm.MKCLen.Put(x, length)
		prm.MKCLocalRead.Put(x, 1)
		return in
	}
	const dmStart = BARSize - dmSize
	const at = dmStart + 2*uarPage
	for _, in := range [][]byte{
		alloc(dmStart-uarPage, uarPage, 64, 0), alloc(at+64, uarPage, 64, 0), alloc(BARSize-uarPage, 2*uarPage, 64, 0), alloc(at, uarPage, 0, 0),
		alloc(at, uarPage, 100, 0), alloc(at, uarPage, uarPage+64, 0), alloc(at, dmSize-2*uarPage, dmMost+64, 0), alloc(at, uarPage, 64, dmMaxAlign+1),
	} {
		v.refused(prm.BadParam, prm.AllocMEMIC, 0, in, small)
	}
	v.refused(prm.BadParam, prm.CreateMKey, 0, key(at, 64), small)
	if got := prm.MEMICAllocated.Get(v.must(prm.AllocMEMIC, 0, alloc(at, uarPage, 1024, 1), small)); got != at {
		t.Fatalf("the memory is at %#x, want %#x", got, at)
	}
	v.refused(prm.NoResource, prm.AllocMEMIC, 0, alloc(at, uarPage, 64, 0), small)
	v.refused(prm.BadParam, prm.CreateMKey, 0, key(at+64, 1024), small)
	n := v.create(prm.CreateMKey, key(at+64, 960))
	if x := prm.Record(v.must(prm.QueryMKey, 0, v.object(n), list), prm.MKCtx, prm.MKCSize); prm.MKCStart.Get(x) != at+64 || prm.MKCMode42.Get(x) != 1 || prm.MKCMode10.Get(x) != 1 {
		t.Errorf("the key begins at %#x", prm.MKCStart.Get(x))
	}
	v.refused(prm.ResBusy, prm.DeallocMEMIC, 0, free(at, 1024), small)
	v.refused(prm.BadResource, prm.DeallocMEMIC, 0, free(at, 960), small)
	v.must(prm.DestroyMKey, 0, v.object(n), small)

	got := make([]byte, 8)
	for _, text := range []string{"four", "eight of"} {
		v.d.WriteBAR(0, at+1024-8, []byte(text))
		if v.d.ReadBAR(0, at+1024-8, got[:len(text)]); !bytes.Equal(got[:len(text)], []byte(text)) {
			t.Errorf("the host reads %q, want %q", got, text)
		}
	}
	v.violations(0)
	// Forbidden accesses: other widths, other addresses, and the end of the memory.
	v.d.WriteBAR(0, at, []byte("hello"))
	v.d.WriteBAR(0, at+2, []byte("1234"))
	v.violations(2)
	if v.d.ReadBAR(0, at, got); string(got) != "he1234\x00\x00" {
		t.Errorf("the host reads %q", got)
	}
	v.d.ReadBAR(0, at, got[:1])
	v.violations(3)
	v.d.ReadBAR(0, at+1024, got[:4])
	v.d.WriteBAR(0, at-4, got)
	v.violations(5)
	v.must(prm.DeallocMEMIC, 0, free(at, 1024), small)
	v.refused(prm.BadResource, prm.DeallocMEMIC, 0, free(at, 1024), small)
	v.d.WriteBAR(0, at, got)
	v.violations(6)
	v.d.WriteBAR(0, BARSize-2, []byte("1234"))
	if v.d.ReadBAR(0, BARSize-2, got[:4]); string(got[:4]) != "12\x00\x00" {
		t.Errorf("the host reads %q at the end", got[:4])
	}
	v.violations(10) // neither words nor given out
}
