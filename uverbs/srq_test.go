package uverbs

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// TestSRQLife creates an SRQ by each way, posts to it until it is full, modifies and
// closes it.
func TestSRQLife(t *testing.T) {
	eachFakePath(t, func(t *testing.T, d *Device, k *fakeKernel, method, legacy string) {
		pd := value(d.AllocPD())(t)
		k.took()
		srq := value(pd.CreateSRQ(SRQOptions{MaxWR: 6, MaxSGE: 2}))(t)
		k.sent(method + " CREATE_SRQ")
		if a := srq.Attr(); a.MaxWR != 7 || a.MaxSGE != 2 || srq.SRQN() != 0x200+srq.handle {
			t.Errorf("attributes %+v and number %#x", a, srq.SRQN())
		}
		sge := SGE{Addr: 1, Length: 2, LKey: 3}
		must(t, srq.PostRecv(1, sge, sge), srq.PostRecvs(make([]RecvWR, 6)...))
		if err := srq.PostRecv(8); err != ErrQueueFull {
			t.Errorf("the eighth receive: %v, want ErrQueueFull", err)
		}
		if err := srq.PostRecv(8, sge, sge, sge); err != ErrQueueFull {
			t.Errorf("full and too many SGEs: %v", err)
		}
		if got := k.rings[srq.handle][0].producer.Acquire(); got != 7 {
			t.Errorf("the ring's index is %d, want 7", got)
		}
		k.took()
		must(t, srq.SetLimit(3))
		var req abi.ModifySRQ
		modify := k.last("MODIFY_SRQ")
		in := modify.in
		if legacy == "write" { // the driver's part follows
			in = in[:len(bytesOf(&req))]
		}
		copy(bytesOf(&req), in)
		if want := (abi.ModifySRQ{SRQHandle: srq.handle, AttrMask: srqLimit, SRQLimit: 3}); req != want {
			t.Errorf("request %+v, want %+v", req, want)
		}
		if a, err := srq.Query(); err != nil || a != (SRQAttr{MaxWR: 31, MaxSGE: 2, Limit: 5}) {
			t.Errorf("query: %+v, %v", a, err)
		}
		k.refuse["MODIFY_SRQ"] = syscall.EINVAL
		errorIs(t, srq.SetLimit(2), syscall.EINVAL, "refused")
		if err := srq.Resize(20); !errors.Is(err, syscall.EINVAL) || srq.Attr().MaxWR != 7 {
			t.Errorf("a refused resize: %v, size %d", err, srq.Attr().MaxWR)
		}
		errorIs(t, pd.Close(), syscall.EBUSY, "a PD with an SRQ was closed")
		k.took()
		must(t, srq.Close(), srq.Close())
		k.sent(method + " DESTROY_SRQ")
		errorIs(t, srq.PostRecv(1), os.ErrClosed, "PostRecv after Close")
		if n := k.ringsMapped(); n != 0 {
			t.Errorf("%d bytes of rings are still mapped", n)
		}
		must(t, pd.Close())
	})
}

func TestSRQRefused(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd := value(d.AllocPD())(t)
	for field, o := range map[string]SRQOptions{"MaxWR": {MaxWR: 1001}, "MaxSGE": {MaxSGE: 4}} {
		_, err := pd.CreateSRQ(o)
		if arg, ok := errors.AsType[*ArgError](err); !ok || arg.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	k.refuse["CREATE_SRQ"] = syscall.ENOMEM
	errorIs(t, second(pd.CreateSRQ(SRQOptions{})), syscall.ENOMEM, "refused")
	d.attr.MaxSRQ = 0
	errorIs(t, second(pd.CreateSRQ(SRQOptions{})), errors.ErrUnsupported, "a device without SRQs")
	if len(d.targets.all) != 0 {
		t.Errorf("%d targets are left", len(d.targets.all))
	}
	must(t, pd.Close())
}

// TestMulticastBytes compares ATTACH_MCAST with struct ib_uverbs_attach_mcast.
func TestMulticastBytes(t *testing.T) {
	f := newFakeQP(t, QPOptions{Type: ib.UD})
	group := gid(t, "ff0e::7:1")
	for verb, do := range map[string]func(ib.GID, uint16) error{"ATTACH_MCAST": f.qp.AttachMulticast, "DETACH_MCAST": f.qp.DetachMulticast} {
		must(t, do(group, 0x1234))
		want := append(append([]byte{}, group[:]...), byte(f.qp.handle), 0, 0, 0, 0x34, 0x12, 0, 0)
		if got := f.last(verb).in; !bytes.Equal(got, want) {
			t.Errorf("%s is %x, want %x", verb, got, want)
		}
		f.refuse[verb] = syscall.EINVAL
		hint := map[string]string{"ATTACH_MCAST": "lid is 0x0, allowed: on InfiniBand the LID of the group, 0xc000 to 0xfffe", "DETACH_MCAST": "not attached"}[verb]
		if err := do(group, 0); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), hint) {
			t.Errorf("%s refused: %v", verb, err)
		}
		if arg, ok := errors.AsType[*ArgError](do(gid(t, "10.1.0.1"), 0)); !ok || arg.Field != "GID" {
			t.Errorf("%s of a unicast address: %v", verb, arg)
		}
	}
	rc := newFakeQP(t, QPOptions{})
	if arg, ok := errors.AsType[*ArgError](rc.qp.AttachMulticast(group, 0)); !ok || arg.Field != "QP type" {
		t.Errorf("attach RC: %v", arg)
	}
}
