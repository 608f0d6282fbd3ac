package conformance

import (
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// TestMW allocates memory windows. rxe of Linux 5.10 does not support them.
func TestMW(t *testing.T) {
	testenv.NeedsIB(t, "memory windows")
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		pd := newPD(t, dev)
		has := !rxeBefore(t, 5, 14)
		if got := dev.Attr().MaxMW != 0; got != has {
			t.Errorf("the device says %t about memory windows, want %t", got, has)
		}
		keys := map[uint32]bool{}
		for _, typ := range []uverbs.MWType{uverbs.MWType1, uverbs.MWType2} {
			for range 20 {
				mw, err := pd.AllocMW(typ)
				if !has {
					absent(t, err, "ALLOC_MW")
					continue
				}
				must(t, err)
				if mw.RKey() == 0 || keys[mw.RKey()] || mw.Type() != typ {
					t.Errorf("%s has key %#x", mw.Type(), mw.RKey())
				}
				keys[mw.RKey()] = true
				errorIs(t, pd.Close(), syscall.EBUSY, "close the PD")
				closeLater(t, mw)
			}
		}
		_, err := pd.AllocMW(3)
		argError(t, err, "type")
	})
}
