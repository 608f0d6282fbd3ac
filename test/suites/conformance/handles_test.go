package conformance

import (
	"os"
	"slices"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// TestHandles compares the kernel's list of objects with the objects that the test creates and closes,
// more of them than the first question has room for.
func TestHandles(t *testing.T) {
	testenv.Guest(t)
	t.Setenv("RDMAABI", "auto")
	dev := openDevice(t, deviceName)
	before, err := dev.Handles(uverbs.ObjectPD)
	must(t, err)
	var pds []*uverbs.PD
	var want []uint32
	for range min(300, int(dev.Attr().MaxPD)/2) {
		pd, err := dev.AllocPD()
		must(t, err)
		pds, want = append(pds, pd), append(want, pd.Handle())
	}
	check := func(kind uverbs.ObjectKind, want []uint32) {
		t.Helper()
		got, err := dev.Handles(kind)
		must(t, err)
		got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
		if !slices.Equal(got, want) {
			t.Errorf("handles of each %s are %v, want %v", kind, got, want)
		}
	}
	check(uverbs.ObjectPD, append(want, before...))
	check(uverbs.ObjectMR, nil)
	buf := newBuffer(t, 4096)
	mr, err := pds[0].RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
	must(t, err)
	check(uverbs.ObjectMR, []uint32{mr.Handle()})
	must(t, mr.Close())
	check(uverbs.ObjectMR, nil)
	for _, pd := range pds {
		must(t, pd.Close())
	}
	check(uverbs.ObjectPD, before)
	cqs, err := dev.Handles(uverbs.ObjectCQ)
	must(t, err)
	cq, err := dev.CreateCQ(uverbs.CQOptions{})
	must(t, err)
	if now, err := dev.Handles(uverbs.ObjectCQ); err != nil || len(now) != len(cqs)+1 {
		t.Errorf("%d CQs before one was created, %d after it, %v", len(cqs), len(now), err)
	}
	must(t, cq.Close())
	check(uverbs.ObjectDM, nil) // rxe and siw do not have any
	_, err = dev.Handles(0)
	argError(t, err, "kind")
	must(t, dev.Close())
	errorIs(t, errorOf(dev.Handles(uverbs.ObjectPD)), os.ErrClosed, "Handles of a closed device")
}
