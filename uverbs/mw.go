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
	MWType1 MWType = 1 // usable by all QPs of the PD (IBV_MW_TYPE_1)
	MWType2 MWType = 2 // usable by one QP; the program chooses the last 8 bits of the key (IBV_MW_TYPE_2)
)

// String returns the type's name.
func (t MWType) String() string {
	if t == MWType1 || t == MWType2 {
		return fmt.Sprintf("type %d", uint8(t))
	}
	return fmt.Sprintf("memory window type %d", uint8(t))
}

// MW is a memory window, which gives the peer a key to part of an MR (struct ibv_mw). Work requests
// bind it to the MR and unbind it. It is safe for concurrent use.
//
// With rxe of Linux 7.2 (check_rkey), and with devices of package soft, which do the same, the key of a
// window opens all of its MR.
type MW struct {
	object
	handle uint32
	number uint64 // key in the device's targets
	pd     uint32 // handle of the PD
	typ    MWType
	rkey   atomic.Uint32

	failing sync.Mutex
	failed  map[uint32]uint32 // guarded by failing: the old key by the new key of each failed bind
}

// AllocMW allocates a memory window, which is not bound to an MR yet (ibv_alloc_mw). rxe supports
// windows since Linux 5.14.
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
	mw.setRKey(resp.RKey)
	mw.number = p.dev.targets.add(mw)
	return mw, mw.markCreated(mw)
}

// Type returns the window's type.
func (w *MW) Type() MWType { return w.typ }

// RKey returns the key for the peer. Posting a bind changes it. If the bind fails, polling its
// completion restores the old key; for that, binds that are in progress must have different IDs.
func (w *MW) RKey() uint32 { return w.rkey.Load() }

// setRKey records the window's new key.
func (w *MW) setRKey(rkey uint32) { w.rkey.Store(rkey) }

// bindFailed restores the key that the window had before a failed bind, and before earlier binds
// that failed.
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

// bindFailed passes a failed bind to its window. Both keys have the index of the window.
func (d *Device) bindFailed(old, new uint32) {
	if mw := d.windowOf(new); mw != nil {
		mw.bindFailed(old, new)
	}
}

// windowOf returns the open window that has or had a key, or nil.
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

// IncRKey returns the next key of a memory window: it increments the last 8 bits, which the program
// chooses for windows of type 2 (ibv_inc_rkey).
func IncRKey(rkey uint32) uint32 {
	const tag = 0xff
	return rkey&^tag | (rkey+1)&tag
}

// Close frees the window, even if it is bound (ibv_dealloc_mw).
func (w *MW) Close() error {
	return w.close(func() error {
		errno := w.dev.cmd.destroy(abi.UVERBS_OBJECT_MW, abi.UVERBS_METHOD_MW_DESTROY, abi.UVERBS_ATTR_DESTROY_MW_HANDLE, w.handle)
		if absent(errno) {
			req := &abi.DeallocMW{MWHandle: w.handle}
			errno = w.dev.cmd.legacy(abi.IB_USER_VERBS_CMD_DEALLOC_MW, bytesOf(req), nil, udata{})
		}
		if errno == 0 {
			w.dev.targets.drop(w.number)
		}
		return w.dev.cmd.fail(w.destroy, errno, "")
	}, nil)
}
