package conformance

import (
	"errors"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// mistake is something that a program does wrong, and what the errors that follow must say. Words stand in the
// order of the error; " ... " is anything between them.
type mistake struct {
	name string
	o    uverbs.QPOptions
	ib   bool   // the mistake cannot be made on iWARP
	efa  string // what EFA does not have, for which the mistake cannot be made

	atomics bool // the mistake needs a device with atomics

	// request returns the work request of a side that fails, and call makes the call that is refused. A row
	// has one of them. They get sides that are not connected if alone is set.
	request func(t *testing.T, a, b *side) uverbs.SendWR
	call    func(t *testing.T, a, b *side) error
	alone   bool

	mine   string            // the error of the side that posts or calls
	far    string            // that error without what it knows of a peer in the same program
	theirs string            // the error of the peer's receive; empty if it has none
	old    string            // mine on rxe before Linux 6.0, where it differs
	on     map[string]string // mine by driver, or theirs by "their " and the driver, where it differs; empty if it works
	since  uverbs.Version    // the first kernel on which it works, or zero
	lost   bool              // rxe since Linux 6.12 loses the message without an error
}

// write is a signalled WRITE of 100 bytes from a to b.
func write(a, b *side) uverbs.SendWR {
	wr := send(1, a.mr.SGE(0, 100))
	wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMAWrite, b.mr.Addr(), b.mr.RKey()
	return wr
}

// read is a signalled READ of 100 bytes from b to a.
func read(a, b *side) uverbs.SendWR {
	wr := write(a, b)
	wr.Opcode = uverbs.WRRDMARead
	return wr
}

// firstSentence returns the beginning of an error, which must suffice to know what to do.
func firstSentence(err error) string {
	first, _, _ := strings.Cut(err.Error(), "; ")
	return first
}

// saysAll checks the words of an error, and that its first sentence is short.
func saysAll(t *testing.T, whose string, err error, words string) {
	t.Helper()
	if err == nil {
		t.Fatalf("%s: no error, want %q", whose, words)
	}
	t.Logf("%s: %v", whose, err)
	if first := firstSentence(err); len(first) >= 120 {
		t.Errorf("%s: the first sentence has %d characters, want less than 120: %v", whose, len(first), err)
	}
	rest := err.Error()
	for _, w := range strings.Split(words, " ... ") {
		_, after, ok := strings.Cut(rest, w)
		if !ok {
			t.Errorf("%s: the error does not say %q (there): %v", whose, w, err)
			return
		}
		rest = after
	}
}

// words returns what the error of a side must say on this driver.
func (m *mistake) words(t *testing.T) (mine, theirs string) {
	mine, theirs = m.mine, m.theirs
	if m.old != "" && rxeBefore(t, 6, 0) {
		return m.old, theirs
	}
	if w, ok := m.on[driverName()]; ok {
		mine = w
	}
	if v := m.since; v != (uverbs.Version{}) && since(t, v[0], v[1]) {
		mine = ""
	}
	if w, ok := m.on["their "+driverName()]; ok {
		theirs = w
	}
	if m.lost && (rig.EFA() || driverName() == "rxe" && since(t, 6, 12)) {
		mine, theirs = "", ""
	}
	return mine, theirs
}

// driverName tells software devices from the kernel's rxe.
func driverName() string {
	if rig.Soft {
		return "soft"
	}
	return rig.Driver
}

// TestMistakes posts each invalid request, in both directions of a connection, and reads the errors.
func TestMistakes(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "acknowledgements")
	testenv.Guest(t)
	makeMistakes(t, requestMistakes)
}

// TestHostMistakes makes the calls and requests that fail because the host does not provide something.
func TestHostMistakes(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.Guest(t)
	makeMistakes(t, hostMistakes)
}

// TestMistakenCalls makes each call that is refused.
func TestMistakenCalls(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	eachPath(t, func(t *testing.T) { makeMistakes(t, callMistakes) })
}

// makeMistakes makes each mistake of a table that can be made on the device.
func makeMistakes(t *testing.T, table []mistake) {
	for _, m := range table {
		t.Run(m.name, func(t *testing.T) {
			if m.ib || m.o.Type == ib.UD {
				testenv.NeedsIB(t, "QPs that programs connect")
			}
			if m.efa != "" {
				testenv.NotOnEFA(t, m.efa)
			}
			dev := openDevice(t, deviceName)
			if m.atomics {
				testenv.Skip(t, noAtomics(dev))
			}
			for _, turned := range []bool{false, true} {
				if turned && m.alone { // both directions are the same
					break
				}
				a, b := newSide(t, dev, m.o), newSide(t, dev, m.o)
				if !m.alone && m.o.Type != ib.UD {
					connect(t, a, b)
				}
				if turned {
					a, b = b, a
				}
				m.check(t, a, b)
			}
		})
	}
}

// check makes the mistake on side a.
func (m *mistake) check(t *testing.T, a, b *side) {
	t.Helper()
	mine, theirs := m.words(t)
	if m.call != nil {
		err := m.call(t, a, b)
		if rig.EFA() {
			testenv.Skip(t, cardLacks(err))
		}
		if mine != "" {
			saysAll(t, "the caller", err, mine)
		} else {
			must(t, err)
		}
		return
	}
	wrs := []uverbs.SendWR{m.request(t, a, b), send(flushedID, a.mr.SGE(0, 1))}
	if a.typ == ib.UD || rig.EFA() {
		wrs = wrs[:1] // the other one has no address, or would not be flushed
	}
	must(t, a.qp.PostSend(wrs...))
	if theirs != "" { // first, so that this program knows of it
		wc := b.next(t)
		saysAll(t, "the peer", b.qp.Err(&wc), theirs)
	}
	if mine == "" { // the device does it
		if wc := a.next(t); wc.Status != uverbs.WCSuccess {
			t.Errorf("the sender: %v", a.qp.Err(&wc))
		}
	} else {
		wc := a.next(t)
		err := a.qp.Err(&wc)
		saysAll(t, "the sender", err, mine)
		if e, ok := errors.AsType[*uverbs.WCError](err); ok && m.far != "" && mine != m.old && m.on[driverName()] == "" {
			far := *e
			far.AtPeer = ""
			saysAll(t, "the sender, of a peer elsewhere", &far, m.far)
		}
		a.blamesFirst(t, wc.ID)
	}
}

// flushedID is the ID of the request behind the one that fails.
const flushedID = 1 << 60

// blamesFirst checks that the request behind a failed one is flushed because of that. A reset forgets the failure.
func (s *side) blamesFirst(t *testing.T, failed uint64) {
	t.Helper()
	if s.typ == ib.UD || s.typ == ib.SRD {
		return
	}
	wc := s.next(t)
	var e *uverbs.WCError
	if err := s.qp.Err(&wc); !errors.As(err, &e) || wc.ID != flushedID || !uverbs.IsFlush(err) || e.First == nil || e.First.WC.ID != failed {
		t.Errorf("completion of %#x afterwards: %v, want a flush because of %d", wc.ID, err, failed)
	}
	s.reaches(t, ib.QPErr)
	must(t, s.qp.Modify(uverbs.QPAttr{State: ib.QPReset}, uverbs.AttrState))
	if errors.As(s.qp.Err(&wc), &e) && e.First != nil {
		t.Error("the first failure outlives a reset")
	}
}

// TestMistakeTable: each row says something.
func TestMistakeTable(t *testing.T) {
	for _, m := range mistakes {
		if m.mine == "" && m.theirs == "" || (m.request == nil) == (m.call == nil) {
			t.Errorf("row %q has no words, or not one of request and call", m.name)
		}
	}
}
