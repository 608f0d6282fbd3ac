//go:build amd64 || arm64

package uverbs

import (
	"encoding/binary"
	"errors"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// TestMlx5OutOfOrder: a QP with the option has room for half of its ring, and every MODIFY_QP says so to
// the driver. Without the capability it is not created.
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
	q := &QP{kind: kindMlx5, typ: RC, sendCQ: c.cq, recvCQ: c.cq, qpn: cardQPN}
	q.dev, q.object.kind = c.dev, "QP"
	o := QPOptions{Type: RC, SendCQ: c.cq, RecvCQ: c.cq, MaxSendWR: 8, MaxRecvWR: 5, MaxRecvSGE: 1, OutOfOrder: true}
	var f *FeatureError
	if _, err := (mlx5Driver{}).prepareQP(q, &qpSpec{QPOptions: o, pd: &PD{}}); !errors.As(err, &f) || f.Driver != "mlx5" {
		t.Errorf("without the capability: %v", err)
	}
	flags = flag
	value(mlx5Driver{}.prepareQP(q, &qpSpec{QPOptions: o, pd: &PD{}}))(t)
	must(t, mlx5Driver{}.mapQP(q, udata{out: make([]byte, mlx5.QPRespSize)}))
	if q.Caps().MaxRecvWR != 8 || q.mlx5.recv.Entries != 16 {
		t.Errorf("there is room for %d receives in a ring of %d", q.Caps().MaxRecvWR, q.mlx5.recv.Entries)
	}
	q.state.Store(uint32(QPRTS))
	must(t, q.Modify(QPAttr{State: QPErr}, AttrState))
	if len(masks) != 1 || masks[0] != 1 {
		t.Errorf("MODIFY_QP had the masks %#x", masks)
	}
	for _, bad := range []QPOptions{{Type: XRCSend, OutOfOrder: true}, {Type: RC, SRQ: &SRQ{}, OutOfOrder: true}} {
		if (mlx5Driver{}).unsupportedQP(&bad) == "" {
			t.Errorf("%s with SRQ %v is supported", bad.Type, bad.SRQ != nil)
		}
	}
	for _, d := range []driver{rxeDriver{}, siwDriver{}} {
		if d.unsupportedQP(&QPOptions{Type: RC, OutOfOrder: true}) != "OutOfOrder" {
			t.Errorf("%s supports OutOfOrder", d.name())
		}
	}
}
