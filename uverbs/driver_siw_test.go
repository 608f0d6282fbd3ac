package uverbs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/siw"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Offsets and sizes as rdma/siw-abi.h has them.
const (
	siwSQESize, siwRQESize, siwCQESize = 120, 112, 32

	siwFlags  = 8  // of all elements
	siwOpcode = 11 // siw_sqe.opcode
	siwData   = 40 // siw_sqe.sge[1]
	siwValid  = 1  // SIW_WQE_VALID
	siwInline = 2  // SIW_WQE_INLINE
)

// siwRig is a QP and its CQ whose rings are in the test's hand: it plays the kernel.
type siwRig struct {
	qp           *QP
	cq           *CQ
	sq, rq, ring []byte
	sqAt, cqAt   int
	n            int // elements of each ring
}

// siwRigSize is the usual number of elements of each ring.
const siwRigSize = 8

// newSiwRig makes a QP in RTS whose doorbells nobody hears.
func newSiwRig(tb testing.TB) *siwRig {
	tb.Helper()
	return newSiwRigOf(tb, siwRigSize)
}

// newSiwRigOf makes one with n elements in each ring.
func newSiwRigOf(tb testing.TB, n int) *siwRig {
	tb.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { null.Close() })
	dev := &Device{cmd: fileCommands(tb, null, pathWrite, siwDriver{}), driver: siwDriver{}, info: DeviceInfo{Name: "siw0"}}
	mem := func(n int) []byte {
		r := value(mmio.MapAnonymous(n, false))(tb)
		tb.Cleanup(func() { r.Close() })
		return r.Bytes()
	}
	r := &siwRig{n: n, sq: mem(siwSQESize * n), rq: mem(siwRQESize * n), ring: mem(siwCQESize*n + 8)}
	r.cq = &CQ{object: object{dev: dev, kind: "CQ"}, kind: kindSiw, cqDrivers: cqDrivers{siw: &siwCQ{ring: value(siw.NewCompQueue(r.ring, n))(tb)}}}
	r.qp = &QP{object: object{dev: dev, kind: "QP"}, kind: kindSiw, typ: ib.RC, handle: qpHandle, qpn: 9, sendCQ: r.cq, recvCQ: r.cq}
	r.qp.siw.sq = value(siw.NewSendQueue(r.sq, n, 3))(tb)
	r.qp.siw.rq = value(siw.NewRecvQueue(r.rq, n, 3))(tb)
	r.qp.setOps(siwOps)
	r.qp.newDoorbell()
	r.cq.qps.Store(r.qp.qpn, r.qp)
	r.qp.state.Store(uint32(ib.QPRTS))
	return r
}

// take takes the next send, and returns its ID, flags and operation.
func (r *siwRig) take() (id uint64, flags uint16, op uint8, ok bool) {
	e := r.sq[r.sqAt%r.n*siwSQESize:][:siwSQESize]
	flags = binary.LittleEndian.Uint16(e[siwFlags:])
	if flags&siwValid == 0 {
		return 0, 0, 0, false
	}
	binary.LittleEndian.PutUint16(e[siwFlags:], 0)
	r.sqAt++
	return binary.LittleEndian.Uint64(e), flags, e[siwOpcode], true
}

// put completes something.
func (r *siwRig) put(id uint64, op uint8, status uint16, n uint32) {
	e := r.ring[r.cqAt%r.n*siwCQESize:][:siwCQESize]
	binary.LittleEndian.PutUint64(e, id)
	binary.LittleEndian.PutUint32(e[12:], n)
	binary.LittleEndian.PutUint64(e[24:], uint64(r.qp.qpn))
	at := uintptr(r.cqAt%r.n*siwCQESize + siwFlags)
	word, err := mmio.IndexAt(r.ring, at)
	if err != nil {
		panic(err)
	}
	word.Release(siwValid | uint32(op)<<8 | uint32(status)<<16)
	r.cqAt++
}

// poll returns what is in the CQ.
func (r *siwRig) poll(t *testing.T) []WC {
	t.Helper()
	wcs := make([]WC, 2*siwRigSize)
	return wcs[:value(r.cq.Poll(wcs))(t)]
}

// TestSiwUntold: what the device was not told of is in the queue all the same, also where it is told of
// one after the other.
func TestSiwUntold(t *testing.T) {
	r := newSiwRig(t)
	deaf := value(os.Open(os.DevNull))(t)
	defer deaf.Close()
	r.qp.dev.cmd = fileCommands(t, deaf, pathWrite, siwDriver{})
	r.qp.newDoorbell()
	mr := &MR{addr: 1 << 20, length: 4096, lkey: 5}
	wrs := make([]SendWR, 3)
	for i := range wrs {
		wrs[i] = SendWR{ID: uint64(i), Opcode: WRSend, SGL: []SGE{mr.SGE(0, 2)}}
	}
	for range 2 { // siwRigSize is enough
		if err := r.qp.PostSend(wrs...); !errors.Is(err, syscall.EBADF) || !strings.Contains(err.Error(), "was not told") {
			t.Errorf("%v, want EBADF, and that the device was not told", err)
		}
		for i := range wrs {
			if id, _, _, ok := r.take(); !ok || id != uint64(i) {
				t.Errorf("request %d is %d, %v", i, id, ok)
			}
		}
	}
}

// TestSiwEnclosed: short data of a list goes into the ring, so that one doorbell is for all of them, where it is
// memory that the library knows and nothing says that it is still to come.
func TestSiwEnclosed(t *testing.T) {
	const pd = 3
	mem := []byte("0123456789 and more than the kernel copies itself")
	short := []SGE{{Addr: 1 << 20, Length: 2, LKey: 0x501}}
	for name, c := range map[string]struct {
		op       WROpcode
		flags    SendFlags
		sgl      []SGE
		together int
		inline   bool
	}{
		"SEND":         {WRSend, SendSignaled, short, 3, true},
		"WRITE":        {WRRDMAWrite, 0, short, 3, true},
		"with a fence": {WRSend, SendFence, short, 1, false},
		"invalidation": {WRSendWithInv, 0, short, 1, false},
		"old key":      {WRSend, 0, []SGE{{Addr: 1 << 20, Length: 2, LKey: 0x502}}, 1, false},
		"other PD":     {WRSend, 0, []SGE{{Addr: 1 << 20, Length: 2, LKey: 0x601}}, 1, false},
		"before":       {WRSend, 0, []SGE{{Addr: 1<<20 - 1, Length: 2, LKey: 0x501}}, 1, false},
		"beyond":       {WRSend, 0, []SGE{{Addr: 1<<20 + uint64(len(mem)) - 1, Length: 2, LKey: 0x501}}, 1, false},
		"not mapped":   {WRSend, 0, []SGE{{Addr: 1 << 20, Length: 2, LKey: 0x701}}, 1, false},
		"long":         {WRSend, 0, []SGE{{Addr: 1 << 20, Length: 33, LKey: 0x501}}, 3, false},
	} {
		r := newSiwRig(t)
		r.qp.pd = pd
		for lkey, n := range map[uint32]mrRecord{0x501: {pd: pd, mem: mem}, 0x601: {pd: pd + 1, mem: mem}, 0x701: {pd: pd}} {
			n.lkey, n.addr, n.length = lkey, 1<<20, uint64(len(mem))
			r.qp.dev.mrs.insert(&n)
		}
		wrs := make([]SendWR, 3)
		for i := range wrs {
			wrs[i] = SendWR{Opcode: c.op, Flags: c.flags, SGL: c.sgl, InvalidateRKey: 1}
		}
		for i := range wrs {
			r.qp.siw.sq.Put(i, 0, siwOpcodes[c.op], siwSendFlags(c.flags), 0, 0, c.sgl[0].Addr, c.sgl[0].Length, c.sgl[0].LKey)
		}
		if n := r.qp.batchSiw(len(wrs)); n != c.together {
			t.Errorf("%s: %d together, want %d", name, n, c.together)
		}
		must(t, r.qp.PostSend(wrs...))
		must(t, r.qp.PostSend(wrs[0])) // alone it needs nothing but its doorbell
		for i := range 4 {
			e := r.sq[i*siwSQESize:][:siwSQESize]
			inline := binary.LittleEndian.Uint16(e[siwFlags:])&siwInline != 0
			if want := c.inline && i != 0 && i != 3; inline != want || inline && string(e[siwData:][:2]) != "01" {
				t.Errorf("%s: request %d is inline: %v, want %v; data %q", name, i, inline, want, e[siwData:][:2])
			}
		}
	}
}

// TestSiwOperations: each operation by each way of posting it is siw's with the requested flags,
// and operations that iWARP does not have are refused.
func TestSiwOperations(t *testing.T) {
	for op, want := range map[WROpcode]uint8{WRRDMAWrite: 0, WRRDMARead: 1, WRRDMAReadWithInv: 2, WRSend: 3, WRSendWithInv: 5, WRLocalInv: 10} {
		for flags, bits := range map[SendFlags]uint16{0: 0, SendSignaled: 4, SendSolicited: 8, SendFence: 16, SendSignaled | SendSolicited | SendFence: 28} {
			if op == WRRDMARead || op == WRRDMAReadWithInv {
				bits &^= 16
			}
			r := newSiwRig(t)
			must(t, r.qp.PostSend(SendWR{ID: 5, Opcode: op, Flags: flags, RemoteAddr: 1, RKey: 2, InvalidateRKey: 3}))
			if id, got, code, ok := r.take(); !ok || id != 5 || got != bits|siwValid || code != want {
				t.Errorf("%s, flags %d: ID %d, flags %#x, opcode %d", op, flags, id, got, code)
			}
			if sent := r.qp.sent(5); sent == nil || sent.op != op || !strings.Contains(r.qp.request(sent).String(), op.String()) {
				t.Errorf("%s is remembered as %+v", op, sent)
			}
		}
	}
	r := newSiwRig(t)
	for _, op := range []WROpcode{WRSendWithImm, WRRDMAWriteWithImm, WRCompareSwap, WRFetchAdd, WRBindMW, WRFlush, WRAtomicWrite} {
		errorIs(t, r.qp.PostSend(SendWR{Opcode: op, Inline: make([]byte, 8)}), ErrOpcode, "%s", op)
	}
	two := []SGE{{Addr: 1, Length: 1}, {Addr: 2, Length: 1}}
	for name, c := range map[string]struct {
		wr   SendWR
		want error
	}{
		"two places of a READ": {SendWR{Opcode: WRRDMARead, SGL: two}, ErrTooManySGE},
		"four SGEs":            {SendWR{Opcode: WRSend, SGL: append(two, two...)}, ErrTooManySGE},
		"inline READ":          {SendWR{Opcode: WRRDMARead, Inline: []byte{1}}, errInlineUse},
		"inline SEND_WITH_INV": {SendWR{Opcode: WRSendWithInv, Inline: []byte{1}}, errInlineUse},
		"inline and SGL":       {SendWR{Opcode: WRSend, Inline: []byte{1}, SGL: two}, errInlineUse},
		"too much inline":      {SendWR{Opcode: WRSend, Inline: make([]byte, 81)}, ErrInlineTooLong},
		"outside":              {SendWR{Opcode: WRSend, SGL: []SGE{{outside: true}}}, ErrSGERange},
		"data of LOCAL_INV":    {SendWR{Opcode: WRLocalInv, SGL: two}, errNoSGL},
	} {
		errorIs(t, r.qp.PostSend(c.wr), c.want, "%s", name)
	}
	if _, _, _, ok := r.take(); ok {
		t.Error("something that was refused is in the ring")
	}
}

// TestSiwFull: all elements can be used, and not one more; batches are all or nothing.
func TestSiwFull(t *testing.T) {
	r := newSiwRig(t)
	wrs := make([]SendWR, siwRigSize+1)
	for i := range wrs {
		wrs[i] = SendWR{ID: uint64(i), Opcode: WRSend}
	}
	var arg *ArgError
	if err := r.qp.PostSend(wrs...); !errors.As(err, &arg) {
		t.Errorf("more than the queue has: %v", err)
	}
	must(t, r.qp.PostSend(wrs[:siwRigSize-1]...))
	if err := r.qp.PostSend(wrs[:2]...); err != ErrQueueFull {
		t.Errorf("two where there is room for one: %v", err)
	}
	must(t, r.qp.PostSend(wrs[siwRigSize-1]))
	for i := range siwRigSize {
		if id, _, _, ok := r.take(); !ok || id != uint64(i) {
			t.Fatalf("the kernel takes %d, %v, want %d", id, ok, i)
		}
	}
	for i := range siwRigSize {
		must(t, r.qp.PostRecv(uint64(i)))
	}
	if err := r.qp.PostRecvs(RecvWR{}); err != ErrQueueFull {
		t.Errorf("a receive more: %v", err)
	}
}

// TestSiwPoll: every status and operation is the verbs', and one that there is not is an error.
func TestSiwPoll(t *testing.T) {
	r := newSiwRig(t)
	for status, want := range []WCStatus{
		WCSuccess, WCLocLenErr, WCLocProtErr, WCLocQPOpErr, WCWRFlushErr, WCBadRespErr, WCLocAccessErr, WCRemAccessErr, WCRemInvReqErr,
		WCGeneralErr, WCGeneralErr,
	} {
		r.put(uint64(status), siw.Recv, uint16(status), 77)
		got := r.poll(t)
		if diff := cmp.Diff([]WC{{ID: uint64(status), Status: want, Opcode: WCRecv, ByteLen: 77, QPN: 9}}, got); diff != "" {
			t.Errorf("status %d (-want +got):\n%s", status, diff)
		}
	}
	for op, want := range map[uint8]WCOpcode{0: WCRDMAWrite, 1: WCRDMARead, 2: WCRDMARead, 3: WCSend, 5: WCSend, 8: WCRecv, 10: WCLocalInv, 255: 0} {
		if r.put(1, op, 0, 0); r.poll(t)[0].Opcode != want {
			t.Errorf("opcode %d is not %s", op, want)
		}
	}
}

// TestSiwUnheard: the side that accepts may send when it has received something, and Moved knows
// what can follow what.
func TestSiwUnheard(t *testing.T) {
	r := newSiwRig(t)
	fresh := func() {
		r.qp.state.Store(uint32(ib.QPInit))
		r.qp.awaitFirstRecv.Store(true)
		r.cq.awaitFirstRecv.Store(1)
	}
	send := SendWR{ID: 1, Opcode: WRSend}
	fresh()
	must(t, r.qp.SetKernelState(ib.QPRTR))
	if err := r.qp.PostSend(send); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "the side that connects sends first") {
		t.Errorf("before anything has come: %v", err)
	}
	r.put(1, siw.Recv, 0, 5)
	r.poll(t)
	must(t, r.qp.PostSend(send))
	if n := r.cq.awaitFirstRecv.Load(); n != 0 {
		t.Errorf("%d QPs await their first receive", n)
	}
	fresh() // something comes before Moved is called
	r.put(1, siw.Recv, 0, 5)
	r.poll(t)
	must(t, r.qp.SetKernelState(ib.QPRTR), r.qp.PostSend(send))
	fresh() // the program knows better
	must(t, r.qp.SetKernelState(ib.QPRTR), r.qp.SetKernelState(ib.QPRTS), r.qp.PostSend(send))
	var arg *ArgError
	if err := r.qp.SetKernelState(ib.QPRTR); !errors.As(err, &arg) {
		t.Errorf("back to RTR: %v", err)
	}
	if err := r.qp.SetKernelState(ib.QPSQD); !errors.As(err, &arg) {
		t.Errorf("to SQD: %v", err)
	}
	if err := newQuietRig(t, 3).withDriver(rxeDriver{}).SetKernelState(ib.QPRTS); !errors.As(err, &arg) {
		t.Errorf("of rxe: %v", err)
	}
	r.qp.state.Store(uint32(ib.QPErr))
	if err := r.qp.SetKernelState(ib.QPRTS); !errors.As(err, &arg) {
		t.Errorf("out of ERR: %v", err)
	}
}

// withDriver gives the QP's device a driver, and returns the QP.
func (r *postRig) withDriver(d driver) *QP {
	r.qp.dev.driver = d
	return r.qp
}

// TestSiwModify: what the kernel alone does is refused, with words that say what to do instead.
func TestSiwModify(t *testing.T) {
	r := newSiwRig(t)
	r.qp.state.Store(uint32(ib.QPInit))
	for _, to := range []ib.QPState{ib.QPRTR, ib.QPRTS} {
		row := transitions[ib.RC][to-1][to]
		r.qp.state.Store(uint32(to - 1))
		var f *FeatureError
		if err := r.qp.Modify(QPAttr{State: to}, AttrState|row.required); !errors.As(err, &f) || !strings.Contains(err.Error(), "connection manager") {
			t.Errorf("to %s: %v", to, err)
		}
	}
}

// TestSiwAllocatesNothing holds the data path to what it promises.
func TestSiwAllocatesNothing(t *testing.T) {
	r := newSiwRig(t)
	sgl, inline, wcs := []SGE{{Addr: 1, Length: 2, LKey: 3}}, []byte("inline"), make([]WC, 4)
	if n := testing.AllocsPerRun(100, func() {
		err := errors.Join(
			r.qp.PostSend(SendWR{ID: 1, Opcode: WRRDMAWrite, Flags: SendSignaled, SGL: sgl, RemoteAddr: 1, RKey: 2}),
			r.qp.PostSend(SendWR{ID: 2, Opcode: WRSend, Inline: inline}))
		b := r.qp.BeginSend()
		b.Read(3, SendSignaled, 1, 2)
		b.SGE(sgl...)
		if err = errors.Join(err, b.Post(), r.qp.PostRecv(4, sgl...)); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			r.take()
		}
		clear(r.rq)
		r.put(1, siw.Send, 0, 2)
		if k, err := r.cq.Poll(wcs); k != 1 || err != nil {
			t.Fatal(k, err)
		}
		if err := r.cq.armSiw(); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkSiwPingPong posts a message and a receive and polls for a completion, without a kernel.
func BenchmarkSiwPingPong(b *testing.B) {
	r := newSiwRig(b)
	sgl, wcs := []SGE{{Addr: 1, Length: 2, LKey: 3}}, make([]WC, 4)
	b.ReportAllocs()
	for b.Loop() {
		if err := r.qp.PostSend(SendWR{ID: 1, Opcode: WRSend, Flags: SendSignaled, SGL: sgl}); err != nil {
			b.Fatal(err)
		}
		if err := r.qp.PostRecv(4, sgl...); err != nil {
			b.Fatal(err)
		}
		r.take()
		clear(r.rq)
		r.put(1, siw.Send, 0, 2)
		if k, err := r.cq.Poll(wcs); k != 1 || err != nil {
			b.Fatal(k, err)
		}
	}
}

// FuzzSiwPoll: whatever is in the ring, Poll returns what a program can look at.
func FuzzSiwPoll(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 1, 8, 0, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := newSiwRig(t)
		if len(b) > 0 {
			for i := range r.ring {
				r.ring[i] = b[i%len(b)]
			}
		}
		wcs := make([]WC, 3)
		for range 2 * siwRigSize {
			n, err := r.cq.Poll(wcs)
			if err != nil {
				t.Fatal(err)
			}
			for i := range wcs[:n] {
				if err := r.qp.Err(&wcs[i]); (err == nil) != (wcs[i].Status == WCSuccess) || wcs[i].Opcode.String() == "" {
					t.Errorf("completion %+v, error %v", wcs[i], err)
				}
			}
			if n == 0 {
				return
			}
		}
		t.Error("there is no end")
	})
}

// TestSiwKeys: the bits of a key that are the program's are not always the same, and stay in their byte.
func TestSiwKeys(t *testing.T) {
	seen := map[byte]bool{}
	for range 200 {
		in := siwDriver{}.mrUdata().in
		if !bytes.Equal(in[1:], make([]byte, 7)) {
			t.Fatalf("the request is % x", in)
		}
		seen[in[0]] = true
	}
	if len(seen) < 20 {
		t.Errorf("200 requests have %d keys", len(seen))
	}
}

// TestSiwDMABuf: siw has no dma-bufs at all. The error says so, and does not speak of the options, which the driver
// checks for the memory of the program alone.
func TestSiwDMABuf(t *testing.T) {
	r := newSiwRig(t)
	iova := uint64(1 << 20)
	for _, o := range []MROptions{{}, {Offset: os.Getpagesize()}, {IOVA: &iova}} {
		_, err := (&PD{object: object{dev: r.qp.dev, kind: "PD"}}).RegDMABuf(dmabufFile(t), o)
		f, ok := errors.AsType[*FeatureError](err)
		if !ok || f.Feature != "REG_DMABUF_MR" {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
