package uverbs

import (
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

func TestMW(t *testing.T) {
	eachFakePath(t, func(t *testing.T, d *Device, k *fakeKernel, method, legacy string) {
		pd := value(d.AllocPD())(t)
		for _, typ := range []MWType{MWType1, MWType2} {
			k.took()
			mw := value(pd.AllocMW(typ))(t)
			want := abi.AllocMW{PDHandle: pd.handle, MWType: uint8(typ)}
			if got := request[abi.AllocMW](k, "ALLOC_MW"); got != want {
				t.Errorf("request is %+v, want %+v", got, want)
			}
			if mw.Type() != typ || mw.RKey() != 0x77ff {
				t.Errorf("window is %s, key %#x", mw.Type(), mw.RKey())
			}
			if err := pd.Close(); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "1 MW") {
				t.Errorf("close the PD: %v", err)
			}
			must(t, mw.Close(), mw.Close())
			k.sent(legacy+" ALLOC_MW", method+" DEALLOC_MW")
		}
		must(t, pd.Close())
	})
}

func TestMWRefused(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd := value(d.AllocPD())(t)
	k.took()
	var arg *ArgError
	for _, typ := range []MWType{0, 3} {
		if _, err := pd.AllocMW(typ); !errors.As(err, &arg) || arg.Op != "AllocMW" || arg.Field != "type" {
			t.Errorf("type %d: %v", typ, err)
		}
	}
	k.sent()
	k.refuse["ALLOC_MW"] = syscall.EOPNOTSUPP
	var f *FeatureError
	if _, err := pd.AllocMW(MWType1); !errors.As(err, &f) || f.Feature != "ALLOC_MW" || f.Driver != "rxe" {
		t.Errorf("EOPNOTSUPP: %v", err)
	}
	must(t, pd.Close()) // has no user
	if MWType2.String() != "type 2" || MWType(9).String() != "memory window type 9" {
		t.Errorf("names are %q and %q", MWType2, MWType(9))
	}
}

func TestMWKey(t *testing.T) {
	for rkey, want := range map[uint32]uint32{0: 1, 0x77fe: 0x77ff, 0x77ff: 0x7700, 0xffffffff: 0xffffff00} {
		if got := IncRKey(rkey); got != want {
			t.Errorf("after %#x comes %#x, want %#x", rkey, got, want)
		}
	}
	var w MW
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range uint32(100) {
				w.setRKey(i)
				w.RKey()
			}
		})
	}
	wg.Wait()
	if w.RKey() != 99 {
		t.Errorf("key is %d, want 99", w.RKey())
	}
}
