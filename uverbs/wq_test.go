package uverbs

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

func TestWQ(t *testing.T) {
	eachFakePath(t, func(t *testing.T, d *Device, k *fakeKernel, method, legacy string) {
		k.withObjects(d)
		pd, cq := value(d.AllocPD())(t), value(d.CreateCQ(CQOptions{Size: 7}))(t)
		k.took()
		w := value(pd.CreateWQ(WQOptions{CQ: cq, MaxWR: 100, MaxSGE: 2, Flags: WQStripVLAN | WQScatterFCS}))(t)
		c := k.last("CREATE_WQ")
		k.sent(method + " CREATE_WQ")
		got := abi.ExCreateWQ{}
		if method == "ioctl" {
			for id, to := range map[uint16]*uint32{
				abi.UVERBS_ATTR_CREATE_WQ_PD_HANDLE: &got.PDHandle, abi.UVERBS_ATTR_CREATE_WQ_CQ_HANDLE: &got.CQHandle,
				abi.UVERBS_ATTR_CREATE_WQ_TYPE: &got.WQType, abi.UVERBS_ATTR_CREATE_WQ_MAX_WR: &got.MaxWR,
				abi.UVERBS_ATTR_CREATE_WQ_MAX_SGE: &got.MaxSGE, abi.UVERBS_ATTR_CREATE_WQ_FLAGS: &got.CreateFlags,
			} {
				*to = uint32(c.attr(id).Data)
			}
			got.UserHandle = c.attr(abi.UVERBS_ATTR_CREATE_WQ_USER_HANDLE).Data
		} else {
			copy(bytesOf(&got), c.in)
		}
		if want := (abi.ExCreateWQ{UserHandle: w.cookie, PDHandle: pd.handle, CQHandle: cq.handle, MaxWR: 100, MaxSGE: 2, CreateFlags: 3}); got != want {
			t.Errorf("request is %+v, want %+v", got, want)
		}
		if w.WQN() != 0x99 || w.MaxWR() != 128 || w.MaxSGE() != 3 || w.State() != WQReset {
			t.Errorf("WQ is %+v", w)
		}
		must(t, w.Modify(WQReady))
		compare(t, k.last("MODIFY_WQ").in, []word{{"attr_mask", 4, 3}, {"wq_handle", 4, fakeHandle}, {"wq_state", 4, 1}, {"curr_wq_state", 4, 0}, {"flags", 4, 0}, {"flags_mask", 4, 0}})
		must(t, w.ModifyFlags(WQStripVLAN, WQStripVLAN|WQDelayDrop))
		compare(t, k.last("MODIFY_WQ").in, []word{{"attr_mask", 4, 4}, {"wq_handle", 4, fakeHandle}, {"wq_state", 4, 0}, {"curr_wq_state", 4, 0}, {"flags", 4, 1}, {"flags_mask", 4, 5}})
		k.sent(legacy+" MODIFY_WQ", legacy+" MODIFY_WQ")

		table := value(d.CreateRWQIndTable([]*WQ{w, w}))(t)
		compare(t, k.last("CREATE_RWQ_IND_TBL").in, []word{{"comp_mask", 4, 0}, {"log_ind_tbl_size", 4, 1}, {"wq_handles[0]", 4, fakeHandle}, {"wq_handles[1]", 4, fakeHandle}})
		if table.num != 9 {
			t.Errorf("the table's number is %d, want 9", table.num)
		}
		busy(t, w.Close(), "2 RWQIndTable")
		busy(t, cq.Close(), "1 WQ")
		one := value(d.CreateRWQIndTable([]*WQ{w}))(t)
		compare(t, k.last("CREATE_RWQ_IND_TBL").in, []word{{"comp_mask", 4, 0}, {"log_ind_tbl_size", 4, 0}, {"wq_handles[0]", 4, fakeHandle}, {"padding", 4, 0}})
		must(t, one.Close(), table.Close(), table.Close(), w.Close(), w.Close())
		k.sent(legacy+" CREATE_RWQ_IND_TBL", legacy+" CREATE_RWQ_IND_TBL", method+" DESTROY_RWQ_IND_TBL", method+" DESTROY_RWQ_IND_TBL", method+" DESTROY_WQ")
		for name, err := range map[string]error{
			"Modify": w.Modify(WQReady), "ModifyFlags": w.ModifyFlags(0, WQDelayDrop),
			"CreateRWQIndTable": func() error { _, err := d.CreateRWQIndTable([]*WQ{w}); return err }(),
		} {
			errorIs(t, err, os.ErrClosed, "%s after Close", name)
		}
		must(t, cq.Close(), pd.Close(), d.Close())
	})
}

// TestWQStates: which state may follow which.
func TestWQStates(t *testing.T) {
	d, k := objectDevice(t)
	pd, cq := value(d.AllocPD())(t), value(d.CreateCQ(CQOptions{Size: 7}))(t)
	w := value(pd.CreateWQ(WQOptions{CQ: cq}))(t)
	may := map[WQState]string{WQReset: "RESET RDY", WQReady: "RESET RDY ERR", WQErr: "RESET ERR"}
	for from, to := range may {
		for _, next := range []WQState{WQReset, WQReady, WQErr, 3} {
			w.state = from
			k.took()
			err := w.Modify(next)
			if ok := strings.Contains(" "+to+" ", " "+next.String()+" "); ok {
				must(t, err)
				if w.State() != next {
					t.Errorf("%s to %s: state is %s", from, next, w.State())
				}
			} else {
				wantArg(t, err, "to")
				k.sent()
			}
		}
	}
	w.state = WQReset
	k.refuse["MODIFY_WQ"] = syscall.ENOMEM
	if err := w.Modify(WQReady); !errors.Is(err, syscall.ENOMEM) || !strings.Contains(err.Error(), "MODIFY_WQ RESET to RDY") || w.State() != WQReset {
		t.Errorf("refused: %v, state %s", err, w.State())
	}
}

// TestWQFatal: a WQ whose fatal error was read is in WQErr, and leaves it by WQReset. The kernel has to
// be told the state that it leaves.
func TestWQFatal(t *testing.T) {
	d, k := objectDevice(t)
	pd, cq := value(d.AllocPD())(t), value(d.CreateCQ(CQOptions{Size: 7}))(t)
	w := value(pd.CreateWQ(WQOptions{CQ: cq}))(t)
	must(t, w.Modify(WQReady))
	if ev, ok := d.event(EventWQFatal, w.cookie); !ok || ev.WQ != w || w.State() != WQErr {
		t.Errorf("event %+v, %v, the state is %s", ev, ok, w.State())
	}
	wantArg(t, w.Modify(WQReady), "to")
	must(t, w.Modify(WQReset))
	compare(t, k.last("MODIFY_WQ").in, []word{{"attr_mask", 4, 3}, {"wq_handle", 4, fakeHandle}, {"wq_state", 4, 0}, {"curr_wq_state", 4, 2}, {"flags", 4, 0}, {"flags_mask", 4, 0}})
}

func TestWQRefused(t *testing.T) {
	d, k := objectDevice(t)
	pd, cq := value(d.AllocPD())(t), value(d.CreateCQ(CQOptions{Size: 7}))(t)
	k.took()
	for field, o := range map[string]WQOptions{
		"CQ": {}, "MaxWR": {CQ: cq, MaxWR: 1001}, "MaxSGE": {CQ: cq, MaxSGE: -1}, "Flags": {CQ: cq, Flags: 1 << 4},
	} {
		_, err := pd.CreateWQ(o)
		wantArg(t, err, field)
	}
	for _, wqs := range [][]*WQ{nil, make([]*WQ, 3), make([]*WQ, 1<<14)} {
		_, err := d.CreateRWQIndTable(wqs)
		wantArg(t, err, "number of WQs")
	}
	_, err := d.CreateRWQIndTable([]*WQ{nil})
	wantArg(t, err, "wqs[0]")
	k.sent()
	k.refuse["CREATE_WQ"] = syscall.EINVAL
	errorIs(t, second(pd.CreateWQ(WQOptions{CQ: cq})), syscall.EINVAL, "refused")
	delete(k.refuse, "CREATE_WQ")
	w := value(pd.CreateWQ(WQOptions{CQ: cq}))(t)
	wantArg(t, w.ModifyFlags(0, 0), "mask")
	wantArg(t, w.ModifyFlags(0, 1<<4), "mask")
	wantArg(t, w.ModifyFlags(WQDelayDrop, WQStripVLAN), "flags")
	k.refuse["CREATE_RWQ_IND_TBL"] = syscall.EINVAL
	errorIs(t, second(d.CreateRWQIndTable([]*WQ{w})), syscall.EINVAL, "refused")
	must(t, w.Close(), cq.Close(), pd.Close(), d.Close()) // no table uses the WQ
}
