package uverbs

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// MWType is the kind of a memory window (enum ibv_mw_type).
type MWType uint8

// Types of memory windows.
const (
	MWType1 MWType = 1 // bound by the device for a whole PD (IBV_MW_TYPE_1)
	MWType2 MWType = 2 // bound for one QP, with the key's last 8 bits chosen by the program (IBV_MW_TYPE_2)
)

// String returns the type's name.
func (t MWType) String() string {
	if t == MWType1 || t == MWType2 {
		return fmt.Sprintf("type %d", uint8(t))
	}
	return fmt.Sprintf("memory window type %d", uint8(t))
}

// MW is a memory window: a key of its own to a part of an MR, which a work request gives
// and takes away without asking the kernel (struct ibv_mw). It is safe for concurrent
// use.
type MW struct {
	object
	handle uint32
	number uint64 // of the device's targets
	pd     uint32 // handle of the PD
	typ    MWType
	rkey   atomic.Uint32

	failing sync.Mutex
	failed  map[uint32]uint32 // guarded by failing: binds that failed, the new key to the old
}

// AllocMW allocates a memory window, which is not bound to anything yet (ibv_alloc_mw).
// rxe has it since Linux 5.14.
func (p *PD) AllocMW(typ MWType) (*MW, error) {
	if typ != MWType1 && typ != MWType2 {
		return nil, argErr("AllocMW", "type", uint8(typ), "MWType1 (1) and MWType2 (2)")
	}
	mw := &MW{typ: typ, pd: p.handle}
	if err := mw.addParents(p.dev, "MW", "DEALLOC_MW", &p.object); err != nil {
		return nil, err
	}
	req := &abi.AllocMW{PDHandle: p.handle, MWType: uint8(typ)}
	resp := &abi.AllocMWResp{}
	if errno := p.dev.cmd.legacy(abi.IB_USER_VERBS_CMD_ALLOC_MW, bytesOf(req), bytesOf(resp), udata{}); errno != 0 {
		mw.removeParents()
		return nil, p.dev.cmd.fail("ALLOC_MW", errno, "")
	}
	mw.handle = resp.MWHandle
	mw.number = p.dev.addTarget(mw)
	mw.setRKey(resp.RKey)
	return mw, mw.markCreated(mw)
}

// Type returns the window's type.
func (w *MW) Type() MWType { return w.typ }

// RKey returns the key that the peer names the window by. Posting a bind changes it. If the
// bind fails it is what it was once the completion is polled; for that the IDs of the binds
// that are under way must differ.
func (w *MW) RKey() uint32 { return w.rkey.Load() }

// setRKey notes the key that a bind gives the window.
func (w *MW) setRKey(rkey uint32) { w.rkey.Store(rkey) }

// bindFailed goes back to the key before a bind that failed, and before those that failed
// with it.
func (w *MW) bindFailed(old, new uint32) {
	w.failing.Lock()
	defer w.failing.Unlock()
	if w.failed == nil {
		w.failed = map[uint32]uint32{}
	}
	w.failed[new] = old
	for {
		now := w.rkey.Load()
		before, ok := w.failed[now]
		if !ok {
			return
		}
		delete(w.failed, now)
		w.rkey.CompareAndSwap(now, before)
	}
}

// bindFailed finds the window of a bind that failed. Its keys have the index in common.
func (d *Device) bindFailed(old, new uint32) {
	if mw := d.windowOf(new); mw != nil {
		mw.bindFailed(old, new)
	}
}

// windowOf returns the open window that has a key or had it before a bind, or nil.
func (d *Device) windowOf(rkey uint32) *MW {
	d.targets.mu.RLock()
	defer d.targets.mu.RUnlock()
	for _, o := range d.targets.all {
		if mw, ok := o.(*MW); ok && mw.RKey()>>8 == rkey>>8 {
			return mw
		}
	}
	return nil
}

// IncRKey returns the key for the next bind of a window of type 2: the same index with
// the next of the 8 bits that the program chooses (ibv_inc_rkey).
func IncRKey(rkey uint32) uint32 {
	const tag = 0xff
	return rkey&^tag | (rkey+1)&tag
}

// Close frees the window, bound or not (ibv_dealloc_mw).
func (w *MW) Close() error {
	return w.close(func() error {
		cmd := newIoctl(abi.UVERBS_OBJECT_MW, abi.UVERBS_METHOD_MW_DESTROY)
		cmd.obj(abi.UVERBS_ATTR_DESTROY_MW_HANDLE, w.handle)
		errno := w.dev.cmd.ioctl(cmd)
		if absent(errno) {
			req := &abi.DeallocMW{MWHandle: w.handle}
			errno = w.dev.cmd.legacy(abi.IB_USER_VERBS_CMD_DEALLOC_MW, bytesOf(req), nil, udata{})
		}
		if errno == 0 {
			w.dev.dropTarget(w.number)
		}
		return w.dev.cmd.fail(w.destroy, errno, "")
	}, nil)
}
