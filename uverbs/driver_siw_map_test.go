package uverbs

import (
	"encoding/binary"
	"errors"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/mmio/siw"
)

// newSiwFile returns a device of siw whose command file is memory of some pages, which can be mapped
// as rings, and a function that returns how many bytes of it are mapped.
func newSiwFile(t *testing.T, pages int) (*Device, func() int) {
	t.Helper()
	f := os.NewFile(uintptr(value(unix.MemfdCreate("uverbs0", unix.MFD_CLOEXEC))(t)), "uverbs0")
	t.Cleanup(func() { f.Close() })
	must(t, f.Truncate(int64(pages*os.Getpagesize())))
	cmd := fileCommands(t, f, pathWrite, siwDriver{})
	k := &fakeKernel{t: t}
	k.mapped = k.ringsMapped()
	return &Device{cmd: cmd, driver: siwDriver{}, info: DeviceInfo{Name: "siw0"}}, k.ringsMapped
}

// siwAnswer is an answer of the kernel: numbers of 32 bits, then keys of 64.
func siwAnswer(nums []uint32, keys ...uint64) []byte {
	var b []byte
	for _, n := range nums {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	for _, k := range keys {
		b = binary.LittleEndian.AppendUint64(b, k)
	}
	return b
}

// TestSiwMap: rings are mapped as the kernel tells, and an answer that cannot be leaves nothing
// mapped, nor a QP that counts as one which nobody has sent to.
func TestSiwMap(t *testing.T) {
	page := uint64(os.Getpagesize())
	newCQ := func(d *Device) *CQ { return &CQ{object: object{dev: d, kind: "CQ"}, kind: kindSiw} }
	d, mapped := newSiwFile(t, 8)
	recv := newCQ(d)
	must(t, siwDriver{}.mapCQ(recv, udata{out: siwAnswer([]uint32{5, 16}, 7*page)}))
	if recv.Cap() != 16 {
		t.Errorf("the CQ has room for %d completions, want 16", recv.Cap())
	}
	before := mapped()

	for name, out := range map[string][]byte{
		"short":          siwAnswer([]uint32{5, 16}, 0)[:15],
		"no elements":    siwAnswer([]uint32{5, 0}, 0),
		"not of a power": siwAnswer([]uint32{5, 12}, 0),
		"not a page":     siwAnswer([]uint32{5, 16}, 1),
	} {
		c := newCQ(d)
		err := siwDriver{}.mapCQ(c, udata{out: out})
		if err == nil || c.siw != nil {
			t.Errorf("CQ, %s: %v, want an error", name, err)
		}
		if name == "not a page" && !errors.Is(err, syscall.EINVAL) {
			t.Errorf("CQ, %s: %v, want EINVAL", name, err)
		}
		must(t, siwDriver{}.freeCQ(c))
	}

	for name, out := range map[string][]byte{
		"short":          siwAnswer([]uint32{8, 0}, 0)[:15],
		"no elements":    siwAnswer([]uint32{0, 0}, 0),
		"not of a power": siwAnswer([]uint32{7, 0}, 0),
		"not a page":     siwAnswer([]uint32{8, 0}, 1),
	} {
		s := &SRQ{object: object{dev: d, kind: "SRQ"}, kind: kindSiw, maxSGE: 2}
		if err := (siwDriver{}).mapSRQ(s, udata{out: out}); err == nil || s.siw.rq != nil {
			t.Errorf("SRQ, %s: %v, want an error", name, err)
		}
		must(t, siwDriver{}.freeSRQ(s))
	}
	many := &SRQ{object: object{dev: d, kind: "SRQ"}, kind: kindSiw, maxSGE: siw.MaxSGE + 1}
	if err := (siwDriver{}).mapSRQ(many, udata{out: siwAnswer([]uint32{8, 0}, 0)}); err == nil || many.siw.rq != nil {
		t.Errorf("SRQ, SGEs: %v, want an error", err)
	}
	must(t, siwDriver{}.freeSRQ(many))
	srq := &SRQ{object: object{dev: d, kind: "SRQ"}, kind: kindSiw, maxSGE: 2}
	must(t, siwDriver{}.mapSRQ(srq, udata{out: siwAnswer([]uint32{16, 0}, 6*page)}))
	if srq.maxWR != 16 {
		t.Errorf("the SRQ has room for %d receives, want 16", srq.maxWR)
	}
	must(t, siwDriver{}.freeSRQ(srq))

	for name, c := range map[string]struct {
		out      []byte
		sge      int
		maps     int // rings that are mapped until the QP is freed
		shared   bool
		complete bool
	}{
		"good":             {siwAnswer([]uint32{9, 16, 8, 0}, 0, page), 2, 2, false, true},
		"with an SRQ":      {siwAnswer([]uint32{9, 16, 0, 0}, 0, 0), 2, 1, true, true},
		"short":            {siwAnswer([]uint32{9, 16, 8, 0}, 0, page)[:31], 2, 0, false, false},
		"no sends":         {siwAnswer([]uint32{9, 0, 8, 0}, 0, page), 2, 0, false, false},
		"no receives":      {siwAnswer([]uint32{9, 16, 0, 0}, 0, page), 2, 0, false, false},
		"sends elsewhere":  {siwAnswer([]uint32{9, 16, 8, 0}, 1, page), 2, 0, false, false},
		"receives as well": {siwAnswer([]uint32{9, 16, 8, 0}, 0, page+1), 2, 1, false, false},
		"send SGEs":        {siwAnswer([]uint32{9, 16, 8, 0}, 0, page), siw.MaxSGE + 1, 1, false, false},
		"receive SGEs":     {siwAnswer([]uint32{9, 16, 8, 0}, 0, page), 2, 2, false, false},
	} {
		q := &QP{object: object{dev: d, kind: "QP"}, kind: kindSiw, typ: RC, sendCQ: recv, recvCQ: recv}
		q.caps = QPCaps{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: c.sge, MaxRecvSGE: 2}
		if name == "receive SGEs" {
			q.caps.MaxRecvSGE = siw.MaxSGE + 1
		}
		if c.shared {
			q.srq = srq
		}
		if err := (siwDriver{}).mapQP(q, udata{out: c.out}); (err == nil) != c.complete {
			t.Errorf("QP, %s: %v", name, err)
		}
		if c.complete {
			want := QPCaps{MaxSendWR: 16, MaxRecvWR: 8, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: siw.MaxInline}
			if c.shared {
				want.MaxRecvWR, want.MaxRecvSGE = 0, 0
			}
			if q.caps != want {
				t.Errorf("QP, %s: %+v, want %+v", name, q.caps, want)
			}
			if n := recv.awaitFirstRecv.Load(); n != 1 || !q.awaitFirstRecv.Load() {
				t.Errorf("QP, %s: %d QPs of the CQ wait for their peer, want 1", name, n)
			}
		}
		if n := mapped() - before; n != c.maps*int(page) {
			t.Errorf("QP, %s: %d bytes of rings are mapped, want %d pages", name, n, c.maps)
		}
		must(t, siwDriver{}.freeQP(q), siwDriver{}.freeQP(q))
		if n := recv.awaitFirstRecv.Load(); n != 0 {
			t.Errorf("QP, %s: after it was freed, %d QPs of the CQ wait for their peer", name, n)
		}
		if n := mapped() - before; n != 0 {
			t.Errorf("QP, %s: after it was freed, %d bytes of rings are mapped", name, n)
		}
	}
	must(t, siwDriver{}.freeCQ(recv))
}

// TestSiwPrepare: what siw has no room for is refused before the kernel is asked.
func TestSiwPrepare(t *testing.T) {
	var arg *ArgError
	if _, err := (siwDriver{}).prepareQP(nil, &qpSpec{QPOptions: QPOptions{MaxInline: siw.MaxInline + 1}}); !errors.As(err, &arg) || arg.Field != "MaxInline" {
		t.Errorf("too much inline: %v", err)
	}
	u, err := siwDriver{}.prepareQP(nil, &qpSpec{QPOptions: QPOptions{MaxInline: siw.MaxInline}})
	if err != nil || len(u.out) != siw.QPRespSize {
		t.Errorf("the most inline: %v, with %d bytes for the answer", err, len(u.out))
	}
	cq := &CQ{object: object{dev: &Device{driver: siwDriver{}}}}
	if _, err := (siwDriver{}).prepareCQ(cq, &CQOptions{CQESize: 64}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("completions of 64 bytes: %v", err)
	}
	value(siwDriver{}.prepareCQ(cq, &CQOptions{}))(t)
	var issued []udata
	issue := func(u udata) error { issued = append(issued, u); return syscall.EIO }
	if err := (siwDriver{}).modifySRQ(nil, false, issue); err != syscall.EIO || len(issued) != 1 {
		t.Errorf("MODIFY_SRQ: %v, issued %d times, want EIO and 1", err, len(issued))
	}
	if err := (siwDriver{}).modifySRQ(nil, true, issue); !errors.Is(err, errors.ErrUnsupported) || len(issued) != 1 {
		t.Errorf("MODIFY_SRQ with a size: %v, issued %d times", err, len(issued))
	}
	for _, to := range []QPState{QPRTR, QPRTS, QPSQD, QPSQE} {
		if err := (siwDriver{}).unsupportedModify(to); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("to %s: %v", to, err)
		}
	}
	for _, to := range []QPState{QPReset, QPInit, QPErr} {
		if err := (siwDriver{}).unsupportedModify(to); err != nil {
			t.Errorf("to %s: %v", to, err)
		}
	}
	if !(siwDriver{}).capabilities().connectionManaged {
		t.Error("the connection manager does not move a QP")
	}
}
