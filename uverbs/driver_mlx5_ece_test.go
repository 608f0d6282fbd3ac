//go:build amd64 || arm64

package uverbs

import (
	"encoding/binary"
	"errors"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/hook"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// Offsets of ece_options in the structs of mlx5-abi.h.
const (
	eceInCreate     = 48 // struct mlx5_ib_create_qp
	eceInCreateResp = 4  // struct mlx5_ib_create_qp_resp
	eceInModify     = 12 // struct mlx5_ib_modify_qp
	eceInModifyResp = 8  // struct mlx5_ib_modify_qp_resp
)

// newECEQP makes a QP of a card that has the options of offers, or no ECE if it is 0.
func newECEQP(t *testing.T, typ ib.QPType, offers uint32) (*card, *QP) {
	t.Helper()
	c := newMlx5Card(t, true, typ == ib.DCT, 64)
	c.dev.mlx5.ECE = offers != 0
	q := &QP{kind: kindMlx5, typ: typ, sendCQ: c.cq, recvCQ: c.cq, srq: c.srq}
	q.dev, q.object.kind = c.dev, "QP"
	s := &qpSpec{QPOptions: QPOptions{Type: typ, SendCQ: c.cq, RecvCQ: c.cq, MaxSendWR: 8, SRQ: c.srq}, pd: &PD{}}
	prepare := driver(mlx5Driver{}).prepareQP
	if typ == ib.DCT {
		s.dc, prepare = &hook.DC{}, (*QP).prepareDCT
	}
	u := value(prepare(q, s))(t)
	want := uint32(0)
	if offers != 0 {
		want = 0x10000000
	}
	if got := binary.LittleEndian.Uint32(u.in[eceInCreate:]); got != want {
		t.Errorf("%s: a new QP asks for the options %#x, want %#x", typ, got, want)
	}
	if typ != ib.DCT {
		binary.LittleEndian.PutUint32(u.out[eceInCreateResp:], offers)
	}
	must(t, mlx5Driver{}.mapQP(q, u))
	t.Cleanup(func() { must(t, mlx5Driver{}.freeQP(q)) })
	return c, q
}

// hasECE checks the options of a QP.
func hasECE(t *testing.T, q *QP, options uint32) {
	t.Helper()
	if e, err := q.ECE(); err != nil || e != (ECE{mlx5.ECEVendor, options}) {
		t.Errorf("the QP has %+v, %v, want the options %#x", e, err, options)
	}
}

// TestMlx5ECE: a new QP says what its device has; SetECE passes options to the device with the next
// Modify only, and the answer is what the QP has.
func TestMlx5ECE(t *testing.T) {
	const offers = 0x1000000f
	c, q := newECEQP(t, ib.RC, offers)
	var sent []uint32 // options of each MODIFY_QP, 0 if it has no driver part
	var refuse syscall.Errno
	during := func() {}
	c.legacy = func(l *kernel.Legacy) syscall.Errno {
		ece := uint32(0)
		switch l.Number {
		case abi.IB_USER_VERBS_CMD_MODIFY_QP:
			if len(l.DrvIn)+len(l.DrvOut) != 0 {
				t.Errorf("MODIFY_QP has a driver part: %x", l.DrvIn)
			}
		case exCommand | abi.IB_USER_VERBS_EX_CMD_MODIFY_QP:
			if len(l.DrvIn) != 16 || len(l.DrvOut) != 16 {
				t.Fatalf("EX_MODIFY_QP has a driver part of %d and %d bytes", len(l.DrvIn), len(l.DrvOut))
			}
			ece = binary.LittleEndian.Uint32(l.DrvIn[eceInModify:])
			binary.LittleEndian.PutUint32(l.DrvOut[eceInModifyResp:], ece&offers)
			during()
		}
		sent = append(sent, ece)
		return refuse
	}
	c.answer = func() syscall.Errno { return syscall.ENOTTY }
	modify := func(want uint32) {
		t.Helper()
		sent = nil
		q.state.Store(uint32(ib.QPRTS))
		err := q.Modify(QPAttr{State: ib.QPErr}, AttrState)
		if (err == nil) != (refuse == 0) || len(sent) < 1 || sent[0] != want { // a QUERY_QP may follow a failure
			t.Errorf("Modify has sent %#x, %v, want %#x", sent, err, want)
		}
	}
	hasECE(t, q, offers)
	modify(0)
	hasECE(t, q, offers) // no Modify changes it
	must(t, q.SetECE(ECE{mlx5.ECEVendor, 0x10000035}))
	hasECE(t, q, 0)
	refuse = syscall.EINVAL
	modify(0x10000035)
	hasECE(t, q, 0)
	refuse = 0
	modify(0x10000035) // the device does not have them yet
	hasECE(t, q, 0x10000005)
	modify(0)
	hasECE(t, q, 0x10000005)
	must(t, q.SetECE(ECE{mlx5.ECEVendor, 7}), q.SetECE(ECE{VendorID: mlx5.ECEVendor}))
	modify(0)
	hasECE(t, q, 0)
	must(t, q.SetECE(ECE{mlx5.ECEVendor, 0x10000035}))
	set := make(chan error, 1)
	during = func() { // options that come while others are under way wait, and are not lost
		during = func() {}
		go func() { set <- q.SetECE(ECE{mlx5.ECEVendor, 9}) }()
	}
	modify(0x10000035)
	must(t, <-set)
	modify(9)
	hasECE(t, q, 9)
	q.mlx5.recv.InUse = 1 // with OutOfOrder each MODIFY_QP has a driver part
	modify(0)
	hasECE(t, q, 9)
}

// TestMlx5DCTECE: a DCT passes its options when it is made ready, and then has the device's answer.
func TestMlx5DCTECE(t *testing.T) {
	for _, set := range []uint32{0, 0x10000003} {
		_, q := newECEQP(t, ib.DCT, 0x1000000f)
		hasECE(t, q, 0)
		must(t, q.SetECE(ECE{mlx5.ECEVendor, set}))
		u := q.dctUdata()
		if set == 0 && u.in != nil || set != 0 && binary.LittleEndian.Uint32(u.in[eceInModify:]) != set {
			t.Errorf("options %#x are sent as %x", set, u.in)
		}
		binary.LittleEndian.PutUint32(u.out[4:], 5) // dctn
		binary.LittleEndian.PutUint32(u.out[eceInModifyResp:], 0x10000001)
		must(t, q.dctReady(u))
		if set == 0 {
			hasECE(t, q, 0)
		} else if hasECE(t, q, 0x10000001); q.mlx5.eceWanted.Load() != 0 {
			t.Error("options that were passed would be passed again")
		}
	}
}

// TestECEAny: the version of the options of mlx5 is no option.
func TestECEAny(t *testing.T) {
	for e, want := range map[ECE]bool{
		{}: false, {mlx5.ECEVendor, 0}: false, {mlx5.ECEVendor, 0x10000000}: false, {mlx5.ECEVendor, 0xf0000000}: false,
		{mlx5.ECEVendor, 0x10000001}: true, {mlx5.ECEVendor, 0x08000000}: true, {1, 0x10000000}: true, {1, 0}: false,
	} {
		if e.Any() != want {
			t.Errorf("%+v: %v, want %v", e, e.Any(), want)
		}
	}
}

// TestNoECE: a card, a driver or a vendor without options is told apart.
func TestNoECE(t *testing.T) {
	_, q := newECEQP(t, ib.RC, 0)
	other := newFakeQP(t, QPOptions{}).qp
	for _, q := range []*QP{q, other} {
		_, err := q.ECE()
		for _, err := range []error{err, q.SetECE(ECE{mlx5.ECEVendor, 1})} {
			var feature *FeatureError
			if !errors.As(err, &feature) || feature.Feature != "ECE" || feature.Driver != q.dev.driver.name() || !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("%s: %v", q.dev.driver.name(), err)
			}
		}
	}
	if err := q.SetECE(ECE{mlx5.ECEVendor, 1}); !errors.Is(err, errNoECE) {
		t.Errorf("the error does not name the capability: %v", err)
	}
	_, q = newECEQP(t, ib.RC, 1)
	for _, vendor := range []uint32{0, 0x15b4} {
		var arg *ArgError
		if err := q.SetECE(ECE{vendor, 1}); !errors.As(err, &arg) || arg.Field != "VendorID" {
			t.Errorf("vendor %#x: %v", vendor, err)
		}
	}
	hasECE(t, q, 1)
}
