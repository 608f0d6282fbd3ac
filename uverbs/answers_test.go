package uverbs

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/mmio/rxe"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// FuzzAnswers has the kernel answer anything to the queries. There is an error or an
// attribute, with a text, and no panic.
func FuzzAnswers(f *testing.F) {
	f.Add(bytesOf(&abi.QueryQPResp{QPState: 3}), bytesOf(&abi.QueryPortResp{State: 4, GIDTblLen: 2, ActiveMTU: 3, LinkLayer: 2}), make([]byte, 64))
	f.Add(bytesOf(&abi.QueryQPResp{QPState: 255}), bytesOf(&abi.QueryPortResp{State: 4, GIDTblLen: 1<<32 - 1}), []byte{})
	f.Add([]byte{}, []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, qp, port, gids []byte) {
		k := newFakeQP(t, QPOptions{})
		copy(bytesOf(&k.query), qp)
		copy(bytesOf(&k.port), port)
		k.gids = make([]abi.GIDEntry, min(len(gids)/32, int(k.port.GIDTblLen)))
		copy(sliceBytes(k.gids), gids)
		text := func(v any, err error) { fmt.Fprint(io.Discard, v, err) }
		attr, err := k.dev.QueryPort(1)
		text(attr, err)
		text(attr.Phys(), nil)
		text(attr.Width(), nil)
		text(attr.Speed(), nil)
		text(k.dev.GIDTable(1))
		text(k.qp.Query())
		k.state(SQD)
		k.refuse["MODIFY_QP"] = syscall.EINVAL
		text(nil, k.qp.Modify(QPAttr{AH: AHAttr{Port: 1}}, AttrAV))
		delete(k.refuse, "MODIFY_QP")
		k.state(Reset)
		text(k.qp.Endpoint())
		peer := Endpoint{QPN: 1}
		if len(k.gids) > 0 {
			copy(peer.GID[:], bytesOf(&k.gids[0].GID))
		}
		text(nil, k.qp.Connect(t.Context(), peer))
	})
}

// TestCreateQPHostile: sizes that the rings which the kernel made cannot have. The QP is
// destroyed again, and nothing stays mapped or in use.
func TestCreateQPHostile(t *testing.T) {
	for name, change := range map[string]func(c *abi.QPCap, sq, rq *fakeRing){
		"send queue":         func(c *abi.QPCap, _, _ *fakeRing) { c.MaxSendWR = 1<<32 - 1 },
		"receive queue":      func(c *abi.QPCap, _, _ *fakeRing) { c.MaxRecvWR = 1 << 20 },
		"send SGEs":          func(c *abi.QPCap, _, _ *fakeRing) { c.MaxSendSGE = 1<<32 - 1 },
		"receive SGEs":       func(c *abi.QPCap, _, _ *fakeRing) { c.MaxRecvSGE = 100 },
		"inline":             func(c *abi.QPCap, _, _ *fakeRing) { c.MaxInlineData = 1 << 31 },
		"send element":       func(_ *abi.QPCap, sq, _ *fakeRing) { copy(sq.mem, u32(3)) },
		"receive element":    func(_ *abi.QPCap, _, rq *fakeRing) { copy(rq.mem, u32(63)) },
		"send mask":          func(_ *abi.QPCap, sq, _ *fakeRing) { copy(sq.mem[4:], u32(5)) },
		"receive mask":       func(_ *abi.QPCap, _, rq *fakeRing) { copy(rq.mem[4:], u32(1<<31-1)) },
		"send index":         func(_ *abi.QPCap, sq, _ *fakeRing) { sq.consumer.Release(1 << 20) },
		"receive index":      func(_ *abi.QPCap, _, rq *fakeRing) { rq.producer.Release(1<<32 - 1) },
		"address of nothing": nil,
	} {
		t.Run(name, func(t *testing.T) {
			d, k := fakeDevice(t, pathIoctl)
			pd, cq := value(d.AllocPD())(t), value(d.CreateCQ(1, CQOptions{}))(t)
			fake := d.cmd.fake
			d.cmd.fake = func(cmd *ioctlCommand, write []byte) syscall.Errno {
				errno := fake(cmd, write)
				c := k.calls[len(k.calls)-1]
				if c.verb != "CREATE_QP" {
					return errno
				}
				if change == nil {
					k.put(c.drv+16, u64(1)) // sq_mi.offset, which is no multiple of a page
					return errno
				}
				var got abi.QPCap
				copy(bytesOf(&got), k.input(c.attr(abi.UVERBS_ATTR_CREATE_QP_CAP)))
				change(&got, k.rings[k.next][0], k.rings[k.next][1])
				k.put(c.attr(abi.UVERBS_ATTR_CREATE_QP_RESP_CAP).Data, bytesOf(&got))
				return errno
			}
			k.took()
			_, err := pd.CreateQP(QPOptions{SendCQ: cq, RecvCQ: cq})
			if change != nil && !errors.Is(err, rxe.ErrCorrupt) || change == nil && !errors.Is(err, syscall.EINVAL) {
				t.Errorf("error is %v", err)
			}
			k.sent("ioctl CREATE_QP", "ioctl DESTROY_QP")
			must(t, cq.Close(), pd.Close(), d.Close())
			if n := k.ringsMapped(); n != 0 {
				t.Errorf("%d bytes of rings stay mapped", n)
			}
		})
	}
}

// TestCompChannelHostile: a descriptor that is none.
func TestCompChannelHostile(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	fake := d.cmd.fake
	d.cmd.fake = func(cmd *ioctlCommand, write []byte) syscall.Errno {
		errno := fake(cmd, write)
		if c := k.calls[len(k.calls)-1]; c.verb == "CREATE_COMP_CHANNEL" {
			k.put(c.core, u32(1<<32-1))
		}
		return errno
	}
	if _, err := d.CreateCompChannel(); !errors.Is(err, syscall.EBADF) || !strings.Contains(err.Error(), "completion channel of rxe0") {
		t.Errorf("error is %v, want EBADF", err)
	}
	must(t, d.Close())
}
