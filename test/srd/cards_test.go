package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// end is a QP on a modelled card, with all that it needs.
type end struct {
	dev *uverbs.Device
	pd  *uverbs.PD
	cq  *uverbs.CQ
	qp  *uverbs.QP
	mr  *uverbs.MR
	ah  *uverbs.AH // of the other end
	to  uverbs.SendWR
}

// pair makes two ends, on a card each, that send to each other. The memory has the rights that the card permits.
func pair(t *testing.T, o uverbs.QPOptions) (a, b *end) {
	t.Helper()
	testenv.Boot(t, "GOVERBS_EFA", "efa/verbs")
	o.Type = max(o.Type, ib.UD)
	one := func(name string) *end {
		e := &end{dev: value(uverbs.Open(name, uverbs.OpenOptions{}))(t)}
		t.Cleanup(func() {
			if err := e.dev.CloseAll(); err != nil {
				t.Error(err)
			}
		})
		e.pd = value(e.dev.AllocPD())(t)
		e.cq = value(e.dev.CreateCQ(uverbs.CQOptions{Size: 1024}))(t)
		q := o
		q.SendCQ, q.RecvCQ = e.cq, e.cq
		e.qp = value(e.pd.CreateQP(q))(t)
		testenv.Must(t, e.qp.ReadyUD(qkey))
		access := uverbs.AccessLocalWrite
		attr, _ := e.dev.EFA()
		if attr.RDMARead {
			access |= uverbs.AccessRemoteRead
		}
		if attr.RDMAWrite {
			access |= uverbs.AccessRemoteWrite
		}
		e.mr = value(e.pd.RegMR(value(uverbs.AllocBuffer(2<<20, uverbs.BufferOptions{}))(t), uverbs.MROptions{Access: access}))(t)
		return e
	}
	a, b = one("efa_0"), one("efa_1")
	a.knows(t, b)
	b.knows(t, a)
	return a, b
}

// knows creates the AH for the other end.
func (e *end) knows(t *testing.T, other *end) {
	t.Helper()
	remote := value(other.qp.Endpoint())(t)
	e.ah = value(e.pd.CreateAH(value(e.qp.PathTo(remote))(t)))(t)
	e.to = uverbs.SendWR{Opcode: uverbs.WRSend, AH: e.ah, RemoteQPN: remote.QPN, RemoteQKey: qkey, Flags: uverbs.SendSignaled, RemoteAddr: other.mr.Addr(), RKey: other.mr.RKey()}
}

// poll returns n completions.
func (e *end) poll(t *testing.T, n int) []uverbs.WC {
	t.Helper()
	wcs, got := make([]uverbs.WC, n), 0
	for limit := time.Now().Add(time.Minute); got < n; {
		k, err := e.cq.Poll(wcs[got:])
		testenv.Must(t, err)
		if got += k; time.Now().After(limit) {
			t.Fatalf("%d completions of %d", got, n)
		}
	}
	return wcs
}

// one posts a request and returns its completion.
func (e *end) one(t *testing.T, wr uverbs.SendWR) uverbs.WC {
	t.Helper()
	testenv.Must(t, e.qp.PostSend(wr))
	return e.poll(t, 1)[0]
}

// TestMany: of messages that complete in any order each arrives once, as it was sent, and each request with
// SendSignaled completes once, with its own ID; others do not.
func TestMany(t *testing.T) {
	const rounds, batch, size = 40, 15, 256
	a, b := pair(t, uverbs.QPOptions{Type: ib.SRD})
	sent, seen := uint64(0), map[uint64]bool{}
	for range rounds {
		for i := range batch {
			testenv.Must(t, b.qp.PostRecv(uint64(i), b.mr.SGE(i*size, size)))
		}
		var wrs []uverbs.SendWR
		var want, done []uint64
		for i := range batch {
			wr := a.to
			wr.ID, wr.Opcode, wr.Imm, wr.SGL = sent, uverbs.WRSendWithImm, uint32(sent), []uverbs.SGE{a.mr.SGE(i*size, 8+i)}
			if binary.LittleEndian.PutUint64(a.mr.Bytes()[i*size:], sent); i%3 != 0 {
				wr.Flags = 0
			} else {
				want = append(want, sent)
			}
			wrs, sent = append(wrs, wr), sent+1
		}
		testenv.Must(t, a.qp.PostSend(wrs...))
		for _, wc := range b.poll(t, batch) {
			n := binary.LittleEndian.Uint64(b.mr.Bytes()[int(wc.ID)*size:])
			if err := wc.Err(); err != nil || seen[n] || n >= sent || uint32(n) != wc.Imm || wc.Flags != uverbs.WCWithImm || wc.Opcode != uverbs.WCRecv ||
				int(wc.ByteLen) != 8+int(n%batch) || wc.SrcQP != a.qp.QPN() || wc.QPN != b.qp.QPN() {
				t.Fatalf("message %d arrives as %+v: %v", n, wc, err)
			}
			seen[n] = true
		}
		for _, wc := range a.poll(t, len(want)) {
			if wc.Err() != nil || wc.Opcode != uverbs.WCSend || wc.QPN != a.qp.QPN() {
				t.Fatalf("a send completes as %+v", wc)
			}
			done = append(done, wc.ID)
		}
		if slices.Sort(done); !slices.Equal(done, want) {
			t.Fatalf("requests %d complete, want %d", done, want)
		}
	}
	if n, err := a.cq.Poll(make([]uverbs.WC, 1)); n != 0 || err != nil {
		t.Errorf("%d completions more, %v", n, err)
	}
	testenv.Must(t, b.qp.PostRecv(7, b.mr.SGE(0, 8)))
	if sent, wc := a.one(t, a.to), b.poll(t, 1)[0]; sent.Err() != nil || wc.Err() != nil || wc.ID != 7 || wc.ByteLen != 0 {
		t.Errorf("a message of no bytes completes as %+v and arrives as %+v", sent, wc)
	}
}

// TestUD sends datagrams, of which the card loses some, until one has arrived.
func TestUD(t *testing.T) {
	const grh = 40
	a, b := pair(t, uverbs.QPOptions{Type: ib.UD, MaxSendSGE: 2})
	copy(a.mr.Bytes(), "datagram")
	a.to.SGL = []uverbs.SGE{a.mr.SGE(0, 3), a.mr.SGE(3, 5)}
	wcs := make([]uverbs.WC, 1)
	for range 20 {
		testenv.Must(t, b.qp.PostRecv(1, b.mr.SGE(0, 4096)))
		for n := 0; n == 0; n = value(b.cq.Poll(wcs))(t) {
			if wc := a.one(t, a.to); wc.Err() != nil {
				t.Fatal(a.qp.Err(&wc))
			}
		}
		if wc := wcs[0]; wc.Err() != nil || wc.ByteLen != grh+8 || wc.SrcQP != a.qp.QPN() || string(b.mr.Bytes()[grh:grh+8]) != "datagram" {
			t.Errorf("the datagram arrives as %+v, %q", wc, b.mr.Bytes()[:grh+8])
		}
	}
	read := a.to
	read.Opcode = uverbs.WRRDMARead
	if err := a.qp.PostSend(read); !errors.Is(err, uverbs.ErrOpcode) {
		t.Errorf("READ of a UD QP: %v", err)
	}
}

// TestRDMA reads and writes memory of the peer, or is refused if the card cannot.
func TestRDMA(t *testing.T) {
	a, b := pair(t, uverbs.QPOptions{Type: ib.SRD})
	for i := range b.mr.Bytes() {
		b.mr.Bytes()[i] = byte(i * 7)
	}
	for _, size := range []int{1, 4096, 1 << 20} {
		for _, c := range []struct {
			op   uverbs.WROpcode
			lack string
			want uverbs.WCOpcode
		}{{uverbs.WRRDMARead, "no-read", uverbs.WCRDMARead}, {uverbs.WRRDMAWrite, "no-write", uverbs.WCRDMAWrite}, {uverbs.WRRDMAWriteWithImm, "no-write", uverbs.WCRDMAWrite}} {
			wr := a.to
			wr.ID, wr.Opcode, wr.Imm, wr.SGL = uint64(size), c.op, 5, []uverbs.SGE{a.mr.SGE(0, size)}
			if c.op != uverbs.WRRDMARead { // the kernel of Linux 6.1 does not know that cards can
				wr.RemoteAddr += 1 << 20
			}
			err := a.qp.PostSend(wr)
			if testenv.CardIs(c.lack) || testenv.Kernel(t)[0] == 6 && testenv.Kernel(t)[1] == 1 && c.lack == "no-write" {
				if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), c.op.String()) {
					t.Errorf("%s on a card that cannot: %v", c.op, err)
				}
				continue
			}
			if c.op == uverbs.WRRDMAWriteWithImm {
				testenv.Must(t, b.qp.PostRecv(9, b.mr.SGE(0, 1)))
			}
			testenv.Must(t, err)
			if wc := a.poll(t, 1)[0]; wc.Err() != nil || wc.ID != uint64(size) || wc.Opcode != c.want {
				t.Fatalf("%s of %d bytes completes as %+v: %v", c.op, size, wc, a.qp.Err(&wc))
			}
			there := b.mr.Bytes()[wr.RemoteAddr-a.to.RemoteAddr:][:size]
			if !bytes.Equal(a.mr.Bytes()[:size], there) {
				t.Errorf("%s of %d bytes has other bytes", c.op, size)
			}
			if c.op == uverbs.WRRDMAWriteWithImm {
				if wc := b.poll(t, 1)[0]; wc.Err() != nil || wc.ID != 9 || wc.Opcode != uverbs.WCRecvRDMAWrite || wc.Imm != 5 || int(wc.ByteLen) != size {
					t.Errorf("the peer's completion is %+v", wc)
				}
			}
		}
	}
}

// TestUnsolicited: with the option a WRITE with immediate data takes no receive. Both sides must have it.
func TestUnsolicited(t *testing.T) {
	_, without := pair(t, uverbs.QPOptions{Type: ib.SRD})
	if attr, _ := without.dev.EFA(); !attr.UnsolicitedWrite {
		_, err := without.pd.CreateQP(uverbs.QPOptions{Type: ib.SRD, SendCQ: without.cq, RecvCQ: without.cq, UnsolicitedWrite: true})
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "UnsolicitedWrite") {
			t.Errorf("the option on a card or kernel without: %v", err)
		}
		return
	}
	a, b := pair(t, uverbs.QPOptions{Type: ib.SRD, UnsolicitedWrite: true})
	write := a.to
	write.Opcode, write.Imm, write.SGL = uverbs.WRRDMAWriteWithImm, 5, []uverbs.SGE{a.mr.SGE(0, 100000)}
	testenv.Must(t, b.qp.PostRecv(9, b.mr.SGE(1<<20, 8)))
	for range 3 {
		if wc := a.one(t, write); wc.Err() != nil {
			t.Fatal(a.qp.Err(&wc))
		}
		got := b.poll(t, 1)[0]
		if want := (uverbs.WC{Opcode: uverbs.WCRecvRDMAWrite, ByteLen: 100000, Imm: 5, QPN: b.qp.QPN(), SrcQP: a.qp.QPN(), Flags: uverbs.WCWithImm, SLID: got.SLID}); got != want {
			t.Errorf("a WRITE arrives as %+v, want %+v", got, want)
		}
	}
	send := a.to
	send.SGL = []uverbs.SGE{a.mr.SGE(0, 8)}
	if wc := a.one(t, send); wc.Err() != nil {
		t.Error(a.qp.Err(&wc))
	}
	if wc := b.poll(t, 1)[0]; wc.ID != 9 || wc.Opcode != uverbs.WCRecv {
		t.Errorf("behind them a SEND arrives as %+v", wc)
	}
	write.RemoteQPN, write.RemoteAddr, write.RKey = without.qp.QPN(), without.mr.Addr(), without.mr.RKey()
	testenv.Must(t, without.qp.PostRecv(1, without.mr.SGE(0, 8)))
	wc := a.one(t, write)
	if err := a.qp.Err(&wc); wc.Status != uverbs.WCRemInvReqErr || !strings.Contains(err.Error(), "the peer does not support a feature") {
		t.Errorf("a WRITE to a QP without the option: %v", err)
	}
}

// TestCompCounters: the card counts completions, or the error says that it cannot.
func TestCompCounters(t *testing.T) {
	a, b := pair(t, uverbs.QPOptions{Type: ib.SRD})
	caps, err := a.dev.CompCounterCaps()
	if kernel := testenv.Kernel(t); !testenv.CardIs("no-counters") && slices.Compare(kernel[:], []int{7, 3}) >= 0 {
		testenv.Must(t, err)
		countCompletions(t, a, b, caps)
	} else {
		for _, err := range []error{err, errOf(a.dev.CreateCompCounter(uverbs.CompCounterOptions{}))} {
			if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "_COMP_CNTR") {
				t.Errorf("a card or a kernel without counters: %v", err)
			}
		}
	}
}

// countCompletions has a card count in memory of the library, of the program and of a dma-buf heap.
func countCompletions(t *testing.T, a, b *end, caps uverbs.CompCounterCaps) {
	t.Helper()
	buf := value(uverbs.AllocBuffer(4096, uverbs.BufferOptions{}))(t)
	t.Cleanup(func() { testenv.Must(t, buf.Close()) })
	sends, far := value(a.dev.CreateCompCounter(uverbs.CompCounterOptions{}))(t), value(b.dev.CreateCompCounter(uverbs.CompCounterOptions{Buffer: buf, Offset: 4080}))(t)
	if heap, err := uverbs.AllocBuffer(4096, uverbs.BufferOptions{Heap: "system"}); !errors.Is(err, errors.ErrUnsupported) && !errors.As(err, new(*uverbs.ArgError)) {
		testenv.Must(t, err)
		c := value(a.dev.CreateCompCounter(uverbs.CompCounterOptions{Buffer: heap, Offset: 8}))(t)
		testenv.Must(t, c.SetErrors(3))
		if n, errs, err := c.Read(); n != 0 || errs != 3 || err != nil {
			t.Errorf("a counter in a dma-buf is %d and %d, %v", n, errs, err)
		}
		testenv.Must(t, c.Close(), heap.Close())
	} else {
		t.Logf("no dma-buf heap: %v", err)
	}
	ops := uverbs.CompCounterSend | uverbs.CompCounterWrite | uverbs.CompCounterRead
	testenv.Must(t, a.qp.AttachCompCounter(sends, ops), b.qp.AttachCompCounter(far, uverbs.CompCounterRecv|uverbs.CompCounterRemoteWrite|uverbs.CompCounterRemoteRead))
	if want := ops | uverbs.CompCounterRecv | uverbs.CompCounterRemoteRead | uverbs.CompCounterRemoteWrite; caps.Ops != want || caps.MaxCounters != 32 || caps.MaxValue != 1<<48-1 {
		t.Errorf("counters can %+v", caps)
	}
	read := func(what string, c *uverbs.CompCounter, n, errs uint64) {
		t.Helper()
		if got, gotErrs, err := c.Read(); got != n || gotErrs != errs || err != nil {
			t.Errorf("%s: %d completions and %d errors, %v; want %d and %d", what, got, gotErrs, err, n, errs)
		}
	}
	a.to.SGL = []uverbs.SGE{a.mr.SGE(0, 64)}
	for _, op := range []uverbs.WROpcode{uverbs.WRSend, uverbs.WRRDMAWrite, uverbs.WRRDMARead, uverbs.WRRDMAWrite} {
		a.to.Opcode = op
		testenv.Must(t, b.qp.PostRecv(1, b.mr.SGE(0, 64)))
		if wc := a.one(t, a.to); wc.Err() != nil {
			t.Fatal(a.qp.Err(&wc))
		}
	}
	a.to.RKey ^= 0x800
	a.one(t, a.to)
	read("sender", sends, 4, 1)
	read("receiver", far, 4, 0)
	testenv.Must(t, b.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState)) // three receives are flushed
	read("receives that are flushed", far, 4, 3)
	testenv.Must(t, far.Set(10), far.Add(5), far.SetErrors(20), far.AddErrors(1))
	read("changed", far, 15, 21)
	for what, err := range map[string]error{
		"the largest value": far.Set(caps.MaxValue + 1), "8 bytes too far": errOf(a.dev.CreateCompCounter(uverbs.CompCounterOptions{Buffer: buf, Offset: 4088})),
	} {
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, err := range map[string]error{
		"SEND has a counter": a.qp.AttachCompCounter(sends, uverbs.CompCounterSend), "a QP has it": far.Close(), "a counter has it": buf.Close(),
	} {
		if !errors.Is(err, syscall.EBUSY) {
			t.Errorf("%s: %v", what, err)
		}
	}
	testenv.Must(t, b.qp.Close(), far.Close())
}

// errOf returns the error of a call.
func errOf[T any](_ T, err error) error { return err }

// TestFailures: a request that fails says why, and leaves the QP as it is.
func TestFailures(t *testing.T) {
	a, b := pair(t, uverbs.QPOptions{Type: ib.SRD})
	a.to.SGL = []uverbs.SGE{a.mr.SGE(0, 64)}
	change := func(f func(*uverbs.SendWR)) uverbs.SendWR {
		wr := a.to
		wr.SGL = slices.Clone(wr.SGL)
		f(&wr)
		return wr
	}
	cases := map[string]struct {
		wr     uverbs.SendWR
		status uverbs.WCStatus
		text   string
	}{
		"QP that does not exist": {change(func(w *uverbs.SendWR) { w.RemoteQPN ^= 0x80 }), uverbs.WCRemInvRDReqErr, "the peer has no such QP"},
		"wrong Q_Key":            {change(func(w *uverbs.SendWR) { w.RemoteQKey++ }), uverbs.WCRemInvRDReqErr, "compare RemoteQPN and RemoteQKey"},
		"wrong lkey":             {change(func(w *uverbs.SendWR) { w.SGL[0].LKey ^= 0x800 }), uverbs.WCLocProtErr, "lkey"},
		"outside the MR":         {change(func(w *uverbs.SendWR) { w.SGL[0].Addr += 4 << 20 }), uverbs.WCLocProtErr, "outside its MR"},
	}
	if !testenv.CardIs("no-read") {
		cases["wrong rkey"] = struct {
			wr     uverbs.SendWR
			status uverbs.WCStatus
			text   string
		}{change(func(w *uverbs.SendWR) { w.Opcode, w.RKey = uverbs.WRRDMARead, w.RKey^0x800 }), uverbs.WCRemAccessErr, "rkey"}
	}
	for name, c := range cases {
		wc := a.one(t, c.wr)
		if err := a.qp.Err(&wc); wc.Status != c.status || !errors.Is(err, c.status) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: status %s, %v; want %s with %q", name, wc.Status, err, c.status, c.text)
		}
		testenv.Must(t, b.qp.PostRecv(1, b.mr.SGE(0, 64)))
		if wc := a.one(t, a.to); wc.Err() != nil {
			t.Errorf("after %s a send fails: %v", name, a.qp.Err(&wc))
		}
		b.poll(t, 1)
	}
	if testenv.CardIs("no-read") {
		return
	}
	testenv.Must(t, b.ah.Close())
	wc := a.one(t, change(func(w *uverbs.SendWR) { w.Opcode = uverbs.WRRDMARead }))
	if err := a.qp.Err(&wc); wc.Status != uverbs.WCRemOpErr || !strings.Contains(err.Error(), "the peer has no AH for this side") {
		t.Errorf("READ from a peer without an AH: %v", err)
	}
}

// TestFull: a queue takes as many requests as it has, whichever complete, and batches are all or nothing.
func TestFull(t *testing.T) {
	a, b := pair(t, uverbs.QPOptions{Type: ib.SRD, MaxSendWR: 16})
	depth := a.qp.Caps().MaxSendWR
	a.to.SGL = []uverbs.SGE{a.mr.SGE(0, 8)}
	for range 3 { // without a receive a message waits for ever
		for range depth {
			testenv.Must(t, a.qp.PostSend(a.to))
		}
		if err := a.qp.PostSend(a.to); err != uverbs.ErrQueueFull {
			t.Errorf("one more than %d: %v", depth, err)
		}
		for range depth {
			testenv.Must(t, b.qp.PostRecv(1, b.mr.SGE(0, 8)))
		}
		a.poll(t, depth)
		b.poll(t, depth)
	}
}

// TestInline sends data that the request itself has, of all lengths.
func TestInline(t *testing.T) {
	first, _ := pair(t, uverbs.QPOptions{Type: ib.SRD})
	sizes := map[int]int{1: 32} // what MaxInline is for a MaxInline that a program wants
	wide, err := first.pd.CreateQP(uverbs.QPOptions{Type: ib.SRD, SendCQ: first.cq, RecvCQ: first.cq, MaxInline: 33})
	if err == nil { // the card and the kernel, since Linux 7.0, have wide requests
		sizes[33] = 80
		testenv.Must(t, wide.Close())
	} else if !strings.Contains(err.Error(), "MaxInline is 33, allowed: 0 to 32") {
		t.Error(err)
	}
	for asked, most := range sizes {
		a, b := pair(t, uverbs.QPOptions{Type: ib.SRD, MaxInline: asked})
		if got := a.qp.Caps().MaxInline; got != most {
			t.Fatalf("MaxInline is %d, want %d", got, most)
		}
		data := bytes.Repeat([]byte("0123456789"), 9)
		for n := 1; n <= most; n++ {
			testenv.Must(t, b.qp.PostRecv(1, b.mr.SGE(0, 4096)))
			wr := a.to
			wr.Inline = data[:n]
			if wc := a.one(t, wr); wc.Err() != nil {
				t.Fatalf("%d bytes: %v", n, a.qp.Err(&wc))
			}
			if wc := b.poll(t, 1)[0]; int(wc.ByteLen) != n || string(b.mr.Bytes()[:n]) != string(data[:n]) {
				t.Errorf("%d bytes arrive as %d, %q", n, wc.ByteLen, b.mr.Bytes()[:n])
			}
		}
		wr := a.to
		if wr.Inline = data[:most+1]; !errors.Is(a.qp.PostSend(wr), uverbs.ErrInlineTooLong) {
			t.Errorf("%d bytes are not too many", most+1)
		}
		wr.Opcode, wr.Inline = uverbs.WRRDMAWrite, data[:most]
		switch err := a.qp.PostSend(wr); {
		case asked == 1 && (err == nil || !strings.Contains(err.Error(), "RDMA_WRITE") && !strings.Contains(err.Error(), "MaxInline")):
			t.Errorf("inline WRITE in a narrow request: %v", err)
		case asked != 1:
			testenv.Must(t, err)
			if wc := a.poll(t, 1)[0]; wc.Err() != nil || string(b.mr.Bytes()[:most]) != string(data[:most]) {
				t.Errorf("inline WRITE: %v, %q", a.qp.Err(&wc), b.mr.Bytes()[:most])
			}
		}
	}
}

// TestReset: after a reset nothing of before completes, and the QP serves as a new one does.
func TestReset(t *testing.T) {
	a, b := pair(t, uverbs.QPOptions{Type: ib.SRD})
	a.to.SGL = []uverbs.SGE{a.mr.SGE(0, 8)}
	for i := range 5 {
		for range 3 + i { // they wait for receives
			testenv.Must(t, a.qp.PostSend(a.to))
		}
		testenv.Must(t, a.qp.Modify(uverbs.QPAttr{State: ib.QPReset}, uverbs.AttrState))
		if err := a.qp.PostSend(a.to); err == nil || !strings.Contains(err.Error(), "is in RESET") {
			t.Errorf("a send in RESET: %v", err)
		}
		testenv.Must(t, a.qp.ReadyUD(qkey))
		if attr := value(a.qp.Query())(t); attr.State != ib.QPRTS || attr.QKey != qkey || attr.Caps != a.qp.Caps() {
			t.Errorf("after the reset the QP is %+v", attr)
		}
		testenv.Must(t, b.qp.PostRecv(7, b.mr.SGE(0, 8)))
		a.to.ID = uint64(i)
		if wc := a.one(t, a.to); wc.Err() != nil || wc.ID != uint64(i) {
			t.Errorf("after a reset a send completes as %+v: %v", wc, a.qp.Err(&wc))
		}
		b.poll(t, 1)
	}
	testenv.Must(t, b.qp.PostRecv(8, b.mr.SGE(0, 8)), b.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState))
	if wc := b.poll(t, 1)[0]; wc.Status != uverbs.WCWRFlushErr || wc.ID != 8 || wc.Opcode != uverbs.WCRecv || !strings.Contains(b.qp.Err(&wc).Error(), "by Modify") {
		t.Errorf("a receive of a QP in ERR completes as %+v: %v", wc, b.qp.Err(&wc))
	}
}

// value ends a test on an error.
func value[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		testenv.Must(t, err)
		return v
	}
}
