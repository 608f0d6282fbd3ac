package uverbs

import (
	"encoding/binary"
	"errors"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/mmio/siw"
	"github.com/goverbs/goverbs/uverbs/ib"
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

// TestSiwMap: rings are mapped where the kernel's answer says. An invalid answer is an error that
// leaves nothing mapped, and the CQ does not count the QP as one that waits for its first message.
func TestSiwMap(t *testing.T) {
	d, mapped := newSiwFile(t, 8)
	cq := newSiwCQ(d)
	must(t, siwDriver{}.mapCQ(cq, udata{out: siwAnswer([]uint32{5, 16}, 7*uint64(os.Getpagesize()))}))
	if cq.Size() != 16 {
		t.Errorf("the CQ has room for %d completions, want 16", cq.Size())
	}
	before := mapped()
	siwMapBadCQs(t, d)
	srq := siwMapSRQ(t, d)
	siwMapQPs(t, cq, srq, func() int { return mapped() - before })
	must(t, siwDriver{}.freeCQ(cq))
}

// newSiwCQ returns a CQ without a ring.
func newSiwCQ(d *Device) *CQ { return &CQ{object: object{dev: d, kind: "CQ"}, kind: kindSiw} }

// siwMapBadCQs tries to map CQs with invalid answers.
func siwMapBadCQs(t *testing.T, d *Device) {
	t.Helper()
	for name, out := range map[string][]byte{
		"short":          siwAnswer([]uint32{5, 16}, 0)[:15],
		"no elements":    siwAnswer([]uint32{5, 0}, 0),
		"not of a power": siwAnswer([]uint32{5, 12}, 0),
		"not a page":     siwAnswer([]uint32{5, 16}, 1),
	} {
		c := newSiwCQ(d)
		err := siwDriver{}.mapCQ(c, udata{out: out})
		if err == nil || c.siw != nil {
			t.Errorf("CQ, %s: %v, want an error", name, err)
		}
		if name == "not a page" && !errors.Is(err, syscall.EINVAL) {
			t.Errorf("CQ, %s: %v, want EINVAL", name, err)
		}
		must(t, siwDriver{}.freeCQ(c))
	}
}

// siwMapSRQ maps the ring of an SRQ, which it frees again and returns, and tries invalid answers
// with others.
func siwMapSRQ(t *testing.T, d *Device) *SRQ {
	t.Helper()
	newSRQ := func(maxSGE int) *SRQ {
		return &SRQ{object: object{dev: d, kind: "SRQ"}, kind: kindSiw, maxSGE: maxSGE}
	}
	for name, out := range map[string][]byte{
		"short":          siwAnswer([]uint32{8, 0}, 0)[:15],
		"no elements":    siwAnswer([]uint32{0, 0}, 0),
		"not of a power": siwAnswer([]uint32{7, 0}, 0),
		"not a page":     siwAnswer([]uint32{8, 0}, 1),
	} {
		s := newSRQ(2)
		if err := (siwDriver{}).mapSRQ(s, udata{out: out}); err == nil || s.siw.rq != nil {
			t.Errorf("SRQ, %s: %v, want an error", name, err)
		}
		must(t, siwDriver{}.freeSRQ(s))
	}
	many := newSRQ(siw.MaxSGE + 1)
	if err := (siwDriver{}).mapSRQ(many, udata{out: siwAnswer([]uint32{8, 0}, 0)}); err == nil || many.siw.rq != nil {
		t.Errorf("SRQ, SGEs: %v, want an error", err)
	}
	must(t, siwDriver{}.freeSRQ(many))
	srq := newSRQ(2)
	must(t, siwDriver{}.mapSRQ(srq, udata{out: siwAnswer([]uint32{16, 0}, 6*uint64(os.Getpagesize()))}))
	if srq.maxWR != 16 {
		t.Errorf("the SRQ has room for %d receives, want 16", srq.maxWR)
	}
	must(t, siwDriver{}.freeSRQ(srq))
	return srq
}

// siwMapQPs maps and frees QPs that receive into cq, with valid and invalid answers. mapped returns
// the number of bytes that are mapped for QPs.
func siwMapQPs(t *testing.T, cq *CQ, srq *SRQ, mapped func() int) {
	t.Helper()
	page := uint64(os.Getpagesize())
	for name, c := range map[string]struct {
		out      []byte
		sge      int
		maps     int // number of rings that stay mapped until the QP is freed
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
		q := &QP{object: object{dev: cq.dev, kind: "QP"}, kind: kindSiw, typ: ib.RC, sendCQ: cq, recvCQ: cq}
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
			if n := cq.awaitFirstRecv.Load(); n != 1 || !q.awaitFirstRecv.Load() {
				t.Errorf("QP, %s: %d QPs of the CQ wait for their peer, want 1", name, n)
			}
		}
		if n := mapped(); n != c.maps*int(page) {
			t.Errorf("QP, %s: %d bytes of rings are mapped, want %d pages", name, n, c.maps)
		}
		must(t, siwDriver{}.freeQP(q), siwDriver{}.freeQP(q))
		if n := cq.awaitFirstRecv.Load(); n != 0 {
			t.Errorf("QP, %s: after it was freed, %d QPs of the CQ wait for their peer", name, n)
		}
		if n := mapped(); n != 0 {
			t.Errorf("QP, %s: after it was freed, %d bytes of rings are mapped", name, n)
		}
	}
}

// TestSiwPrepare: a request for more than siw has room for is refused before a command is sent.
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
	errorIs(t, second((siwDriver{}).prepareCQ(cq, &CQOptions{CQESize: 64})), errors.ErrUnsupported, "completions of 64 bytes")
	value(siwDriver{}.prepareCQ(cq, &CQOptions{}))(t)
	var issued []udata
	issue := func(u udata) error { issued = append(issued, u); return syscall.EIO }
	if err := (siwDriver{}).modifySRQ(nil, false, issue); err != syscall.EIO || len(issued) != 1 {
		t.Errorf("MODIFY_SRQ: %v, issued %d times, want EIO and 1", err, len(issued))
	}
	if err := (siwDriver{}).modifySRQ(nil, true, issue); !errors.Is(err, errors.ErrUnsupported) || len(issued) != 1 {
		t.Errorf("MODIFY_SRQ with a size: %v, issued %d times", err, len(issued))
	}
	for _, to := range []ib.QPState{ib.QPRTR, ib.QPRTS, ib.QPSQD, ib.QPSQE} {
		if err := (siwDriver{}).unsupportedModify(nil, to, AttrState); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("to %s: %v", to, err)
		}
	}
	for _, to := range []ib.QPState{ib.QPReset, ib.QPInit, ib.QPErr} {
		if err := (siwDriver{}).unsupportedModify(nil, to, AttrState); err != nil {
			t.Errorf("to %s: %v", to, err)
		}
	}
	if !(siwDriver{}).capabilities().connectionManaged {
		t.Error("the connection manager does not move a QP")
	}
}
