package softrxe

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// deadline bounds every wait for a completion.
const deadline = 20 * time.Second

// bufferSize is the size of the memory of an end.
const bufferSize = 256 << 10

// rights are the rights of the peer in an end's memory, unless a test says otherwise.
const rights = uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite | uverbs.AccessRemoteRead | uverbs.AccessRemoteAtomic | uverbs.AccessMWBind

// end is one end of a connection.
type end struct {
	t      *testing.T
	name   string // "a" or "b" in the record
	host   host
	dev    *uverbs.Device
	pd     *uverbs.PD
	buf    *uverbs.Buffer
	mr     *uverbs.MR
	sendCQ *uverbs.CQ
	recvCQ *uverbs.CQ
	qp     *uverbs.QP
	srq    *uverbs.SRQ // of the QP; nil: it has a receive queue of its own
	mw     *uverbs.MW  // nil: there is none
	ah     *uverbs.AH  // of the peer of datagrams; nil: there is none
	record *record
}

// newEnd makes an end whose memory has contents that depend on its name alone.
func newEnd(t *testing.T, name string, h host, o uverbs.QPOptions, r *record) *end {
	t.Helper()
	e := newEndWithoutQP(t, name, h, r)
	e.newQP(o)
	return e
}

// newEndWithoutQP makes an end without a QP.
func newEndWithoutQP(t *testing.T, name string, h host, r *record) *end {
	t.Helper()
	e := &end{t: t, name: name, host: h, dev: h.open(t), record: r}
	var err error
	e.pd, err = e.dev.AllocPD()
	must(t, err)
	closeLater(t, e.pd)
	e.buf, err = uverbs.AllocBuffer(bufferSize, uverbs.BufferOptions{})
	must(t, err)
	closeLater(t, e.buf)
	random := rand.NewChaCha8([32]byte{name[0]})
	random.Read(e.buf.Bytes())
	e.mr, err = e.pd.RegMR(e.buf, uverbs.MROptions{Access: rights})
	must(t, err)
	closeLater(t, e.mr)
	for _, cq := range []**uverbs.CQ{&e.sendCQ, &e.recvCQ} {
		*cq, err = e.dev.CreateCQ(uverbs.CQOptions{Size: 1024})
		must(t, err)
		closeLater(t, *cq)
	}
	return e
}

// newQP gives the end a QP.
func (e *end) newQP(o uverbs.QPOptions) {
	e.t.Helper()
	o.SendCQ, o.RecvCQ = e.sendCQ, e.recvCQ
	o.Path.GIDIndex = new(e.host.gidIndex(e.t, e.dev))
	var err error
	e.qp, err = e.pd.CreateQP(o)
	must(e.t, err)
	closeLater(e.t, e.qp)
	if o.Type == ib.UD {
		must(e.t, e.qp.ReadyUD(qkey))
	} else {
		must(e.t, e.qp.Init())
	}
}

// qkey is the Q_Key of QPs of type UD.
const qkey = 0x11111111

// connect connects two ends.
func connect(t *testing.T, a, b *end) {
	t.Helper()
	ea, err := a.qp.Endpoint()
	must(t, err)
	eb, err := b.qp.EndpointFor(ea)
	must(t, err)
	must(t, a.host.do(func() error { return a.qp.Connect(t.Context(), eb) }), b.host.do(func() error { return b.qp.Connect(t.Context(), ea) }))
}

// sge returns an SGE in the end's memory.
func (e *end) sge(offset, n int) uverbs.SGE { return e.mr.SGE(offset, n) }

// at is the address of an offset for the peer.
func (e *end) at(offset int) uint64 { return e.mr.Addr() + uint64(offset) }

// sum identifies the contents of the end's memory.
func (e *end) sum() uint32 { return crc32.ChecksumIEEE(e.buf.Bytes()) }

// post posts sends, which it makes signalled.
func (e *end) post(wrs ...uverbs.SendWR) {
	e.t.Helper()
	for i := range wrs {
		wrs[i].Flags |= uverbs.SendSignaled
	}
	must(e.t, e.qp.PostSend(wrs...))
}

// recv posts a receive.
func (e *end) recv(id uint64, sgl ...uverbs.SGE) {
	e.t.Helper()
	if e.srq != nil {
		must(e.t, e.srq.PostRecv(id, sgl...))
		return
	}
	must(e.t, e.qp.PostRecv(id, sgl...))
}

// next returns the next completion of a CQ. It reports whether there is one.
func (e *end) next(cq *uverbs.CQ, what string) (uverbs.WC, bool) {
	e.t.Helper()
	var wc [1]uverbs.WC
	if e.record.stalled {
		return wc[0], false
	}
	for stop := time.Now().Add(deadline); time.Now().Before(stop); time.Sleep(50 * time.Microsecond) {
		n, err := cq.Poll(wc[:])
		must(e.t, err)
		if n == 1 {
			return wc[0], true
		}
	}
	e.giveUp(fmt.Sprintf("no completion of a %s within %s", what, deadline))
	return wc[0], false
}

// giveUp ends a test in which something does not happen, or says so in the record if it may.
func (e *end) giveUp(what string) {
	e.t.Helper()
	if e.record.mayStall {
		e.record.stalled = true
		e.record.fail("%s: %s", e.name, what)
		return
	}
	e.t.Fatalf("%s%s (%s): %s; before:\n%s", e.record.title, e.name, e.host, what, e.record)
}

// sent records n completions of sends.
func (e *end) sent(n int) {
	e.t.Helper()
	for range n {
		wc, ok := e.next(e.sendCQ, "send")
		if !ok {
			return
		}
		if wc.Status != uverbs.WCSuccess {
			e.record.fail("%s: %d: %s", e.name, wc.ID, outcome(wc.Status))
			continue
		}
		length := ""
		if wc.Opcode == uverbs.WCRDMARead {
			length = fmt.Sprintf(" %d", wc.ByteLen)
		}
		e.record.note("%s: %d: %s%s", e.name, wc.ID, wc.Opcode, length)
	}
}

// outcome is a status in words, of which "flushed" is short.
func outcome(s uverbs.WCStatus) string {
	if s == uverbs.WCWRFlushErr {
		return "flushed"
	}
	return s.String()
}

// got records n completions of receives.
func (e *end) got(n int) {
	e.t.Helper()
	for range n {
		wc, ok := e.next(e.recvCQ, "receive")
		if !ok {
			return
		}
		if wc.Status != uverbs.WCSuccess {
			e.record.fail("%s: receive %d: %s", e.name, wc.ID, outcome(wc.Status))
			continue
		}
		more := ""
		if wc.Flags&uverbs.WCWithImm != 0 {
			more += fmt.Sprintf(" imm %#x", wc.Imm)
		}
		if wc.Flags&uverbs.WCWithInv != 0 {
			more += " invalidated"
		}
		e.record.note("%s: receive %d: %s %d%s", e.name, wc.ID, wc.Opcode, wc.ByteLen, more)
	}
}

// empty records that no receive has completed.
func (e *end) empty() {
	e.t.Helper()
	var wc [1]uverbs.WC
	n, err := e.recvCQ.Poll(wc[:])
	must(e.t, err)
	if n != 0 {
		e.record.fail("%s: unexpected completion of receive %d: %s", e.name, wc[0].ID, outcome(wc[0].Status))
	}
}

// fails waits until the QP is in state ERR, and records that.
func (e *end) fails() {
	e.t.Helper()
	e.reaches(ib.QPErr)
}

// reaches waits until the QP has stopped, and records its state.
func (e *end) reaches(state ib.QPState) {
	e.t.Helper()
	if e.record.stalled {
		return
	}
	for stop := time.Now().Add(deadline); time.Now().Before(stop); time.Sleep(time.Millisecond) {
		attr, err := e.qp.Query()
		must(e.t, err)
		if attr.State == state {
			e.record.fail("%s: %s", e.name, state)
			return
		}
	}
	e.giveUp(fmt.Sprintf("the QP is not in state %s after %s", state, deadline))
}

// state records the state of the QP.
func (e *end) state() {
	e.t.Helper()
	attr, err := e.qp.Query()
	must(e.t, err)
	e.record.note("%s: %s", e.name, attr.State)
}

// record is the events at both ends of a connection.
type record struct {
	title    string // what happens, for messages
	lines    []string
	failures int
	mayStall bool // the test goes on when an end waits in vain
	stalled  bool // an end has waited in vain, and nothing waits any more
}

// note adds a line.
func (r *record) note(format string, args ...any) {
	r.lines = append(r.lines, fmt.Sprintf(format, args...))
}

// fail adds a line about something that went wrong, as a test may expect.
func (r *record) fail(format string, args ...any) {
	r.note(format, args...)
	r.failures++
}

// String returns the lines.
func (r *record) String() string { return strings.Join(r.lines, "\n") }
