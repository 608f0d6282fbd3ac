//go:build amd64 || arm64

package uverbs

import (
	"encoding/binary"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/hook"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// TestMlx5OutOfOrder: a QP with the option has room for half of its ring, and every MODIFY_QP says so to
// the driver. Without any of the capabilities it is not created.
func TestMlx5OutOfOrder(t *testing.T) {
	c := newMlx5Card(t, true, false, 64)
	const flagsInQueryDevice, flag = 60, 1 << 4 // of struct mlx5_ib_query_device_resp
	flags := uint32(flag - 1)
	var masks []uint32 // comp_mask of each MODIFY_QP
	c.legacy = func(l *kernel.Legacy) syscall.Errno {
		switch l.Number {
		case exCommand | abi.IB_USER_VERBS_EX_CMD_QUERY_DEVICE:
			binary.LittleEndian.PutUint32(l.DrvOut[flagsInQueryDevice:], flags)
		case exCommand | abi.IB_USER_VERBS_EX_CMD_MODIFY_QP:
			masks = append(masks, binary.LittleEndian.Uint32(l.DrvIn))
		default:
			t.Errorf("command %#x", l.Number)
		}
		return 0
	}
	c.answer = func() syscall.Errno { return syscall.ENOTTY }
	q := &QP{kind: kindMlx5, typ: ib.RC, sendCQ: c.cq, recvCQ: c.cq, qpn: cardQPN}
	q.dev, q.object.kind = c.dev, "QP"
	o := QPOptions{Type: ib.RC, SendCQ: c.cq, RecvCQ: c.cq, MaxSendWR: 8, MaxRecvWR: 5, MaxRecvSGE: 1, OutOfOrder: true}
	var f *FeatureError
	if _, err := (mlx5Driver{}).prepareQP(q, &qpSpec{QPOptions: o, pd: &PD{}}); !errors.As(err, &f) || f.Feature != "CREATE_QP with OutOfOrder" {
		t.Errorf("without the capability: %v", err)
	}
	flags = flag
	value(mlx5Driver{}.prepareQP(q, &qpSpec{QPOptions: o, pd: &PD{}}))(t)
	must(t, mlx5Driver{}.mapQP(q, udata{out: make([]byte, mlx5.QPRespSize)}))
	if q.Caps().MaxRecvWR != 8 || q.mlx5.recv.Entries != 16 {
		t.Errorf("there is room for %d receives in a ring of %d", q.Caps().MaxRecvWR, q.mlx5.recv.Entries)
	}
	q.state.Store(uint32(ib.QPRTS))
	must(t, q.Modify(QPAttr{State: ib.QPErr}, AttrState))
	if len(masks) != 1 || masks[0] != 1 {
		t.Errorf("MODIFY_QP had the masks %#x", masks)
	}
	for _, typ := range []ib.QPType{ib.RC, ib.UC, ib.UD, ib.XRCSend, ib.DCI, ib.DCT, ib.RawPacket} {
		lacking := mlx5Driver{}.unsupportedQP(&QPOptions{Type: typ, OutOfOrder: true})
		if (lacking != "") != (typ == ib.RawPacket) {
			t.Errorf("%s: unsupported is %q", typ, lacking)
		}
	}
	for _, d := range []driver{rxeDriver{}, siwDriver{}} {
		if d.unsupportedQP(&QPOptions{Type: ib.RC, OutOfOrder: true}) != "OutOfOrder" {
			t.Errorf("%s supports OutOfOrder", d.name())
		}
	}
}

// TestMlx5OutOfOrderLacks: the error says whether it is the kernel or the adapter that does not have the option.
func TestMlx5OutOfOrderLacks(t *testing.T) {
	for _, c := range []struct {
		running Version
		want    string
	}{
		{Version{6, 12}, "uverbs: CREATE_QP with OutOfOrder not supported by this kernel (needs Linux 6.13): " +
			"QUERY_DEVICE does not report the flag MLX5_IB_QUERY_DEV_RESP_FLAGS_OOO_DP"},
		{Version{6, 13}, "uverbs: CREATE_QP with OutOfOrder not supported by driver mlx5: " +
			"the adapter does not have the capability dp_ordering_force, or no capability dp_ordering_ooo_all"},
		{Version{}, "uverbs: CREATE_QP with OutOfOrder not supported by driver mlx5: " +
			"QUERY_DEVICE does not report the flag MLX5_IB_QUERY_DEV_RESP_FLAGS_OOO_DP, which Linux has since 6.13: " +
			"the adapter does not have the capability dp_ordering_force, or no capability dp_ordering_ooo_all; " +
			"or the kernel, whose version is unknown, does not have the flag"},
	} {
		if got := lacksOutOfOrder(c.running).Error(); got != c.want {
			t.Errorf("on Linux %s: %s\nwant %s", c.running, got, c.want)
		}
	}
}

// TestMlx5OutOfOrderType: if the adapter has the option for other types of QP only, the first MODIFY_QP says so.
// EOPNOTSUPP has another reason in a later one, without the option, and for atomics on a device without them.
func TestMlx5OutOfOrderType(t *testing.T) {
	for _, c := range []struct {
		typ        ib.QPType
		outOfOrder bool
		state      ib.QPState
		access     Access
		feature    string
		capability string
	}{
		{ib.RC, true, ib.QPReset, AccessRemoteWrite, "OutOfOrder of RC", "dp_ordering_ooo_all_rc"},
		{ib.UC, true, ib.QPReset, AccessRemoteWrite, "OutOfOrder of UC", "dp_ordering_ooo_all_uc"},
		{ib.UD, true, ib.QPReset, 0, "OutOfOrder of UD", "dp_ordering_ooo_all_ud"},
		{ib.XRCSend, true, ib.QPReset, AccessRemoteWrite, "OutOfOrder of XRC_INI", "dp_ordering_ooo_all_xrc"},
		{ib.XRCRecv, true, ib.QPReset, AccessRemoteWrite, "OutOfOrder of XRC_TGT", "dp_ordering_ooo_all_xrc"},
		{ib.DCI, true, ib.QPReset, AccessRemoteWrite, "OutOfOrder of DCI", "dp_ordering_ooo_all_dc"},
		{ib.RC, true, ib.QPInit, AccessRemoteWrite, "MODIFY_QP", ""},
		{ib.RC, true, ib.QPReset, AccessRemoteAtomic, "MODIFY_QP", ""},
		{ib.RC, false, ib.QPReset, AccessRemoteWrite, "MODIFY_QP", ""},
	} {
		card := newMlx5Card(t, true, false, 64)
		card.dev.attr.PhysPortCount = 1
		card.answer = func() syscall.Errno { return syscall.ENOTTY }
		card.legacy = func(*kernel.Legacy) syscall.Errno { return syscall.EOPNOTSUPP }
		q := card.qp
		q.typ = c.typ
		if c.outOfOrder {
			q.mlx5.outOfOrder = true
		}
		q.state.Store(uint32(c.state))
		attr := QPAttr{State: ib.QPInit, Port: 1, Access: c.access}
		mask := AttrState | AttrPKeyIndex | AttrPort | AttrAccess
		switch c.typ {
		case ib.UD:
			mask = AttrState | AttrPKeyIndex | AttrPort | AttrQKey
		case ib.DCI:
			mask = AttrState | AttrPKeyIndex | AttrPort
		}
		err := q.Modify(attr, mask)
		var f *FeatureError
		if !errors.As(err, &f) || f.Feature != c.feature || f.Driver != "mlx5" || !errors.Is(err, syscall.EOPNOTSUPP) {
			t.Errorf("%s in state %s: %v, want a FeatureError about %s", c.typ, c.state, err, c.feature)
			continue
		}
		if text := "the adapter does not have the capability " + c.capability; strings.Contains(err.Error(), text) != (c.capability != "") {
			t.Errorf("%s in state %s: %v", c.typ, c.state, err)
		}
		if q.State() != c.state {
			t.Errorf("%s is in state %s after the error, want %s", c.typ, q.State(), c.state)
		}
	}
}

// TestMlx5OutOfOrderDCT: both steps of making a DCT ready say so to the driver, and leave the options for
// enhanced connections alone.
func TestMlx5OutOfOrderDCT(t *testing.T) {
	c := newMlx5Card(t, true, true, 64)
	flags := uint32(0)
	c.legacy = func(l *kernel.Legacy) syscall.Errno {
		binary.LittleEndian.PutUint32(l.DrvOut[60:], flags) // of struct mlx5_ib_query_device_resp
		return 0
	}
	q := &QP{kind: kindMlx5, typ: ib.DCT, recvCQ: c.cq, srq: c.srq}
	q.dev, q.object.kind = c.dev, "QP"
	s := &qpSpec{QPOptions: QPOptions{Type: ib.DCT, SRQ: c.srq, OutOfOrder: true}, pd: &PD{}, dc: &hook.DC{}}
	var f *FeatureError
	if _, err := q.prepareDCT(s); !errors.As(err, &f) || f.Feature != "CREATE_QP with OutOfOrder" {
		t.Errorf("without the capability: %v", err)
	}
	flags = 1 << 4
	value(q.prepareDCT(s))(t)
	must(t, mlx5Driver{}.mapQP(q, udata{out: make([]byte, mlx5.QPRespSize)}))
	first, second := q.modifyUdataMlx5(), q.dctUdata()
	for step, u := range []udata{first, second} {
		if len(u.in) == 0 || binary.LittleEndian.Uint32(u.in) != 1 {
			t.Errorf("step %d: the driver gets % x", step, u.in)
		}
	}
	if first.unsupported == nil || first.unsupported.Feature != "OutOfOrder of DCT" {
		t.Errorf("EOPNOTSUPP is %v", first.unsupported)
	}
	q.mlx5.eceWanted.Store(5)
	must(t, q.dctReady(second)) // without those options
	if q.mlx5.eceWanted.Load() != 5 || q.mlx5.eceHas.Load() != 0 {
		t.Errorf("the options for enhanced connections are %#x, want %#x", q.mlx5.eceHas.Load(), q.mlx5.eceWanted.Load())
	}
	must(t, mlx5Driver{}.freeQP(q))
}
