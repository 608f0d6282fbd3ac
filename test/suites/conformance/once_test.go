package conformance

import (
	"bytes"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestOnceDuringMoveToErr moves one of two QPs to ERR while messages are on their way. Each receive
// completes once and in order: with the message that was sent as the same number, or flushed and untouched.
// After a reset the QPs carry new messages, and nothing of before happens again.
func TestOnceDuringMoveToErr(t *testing.T) {
	testenv.Tags(t, testenv.Long)
	testenv.NeedsIB(t, "manual QP state changes")
	testenv.Guest(t)
	const receives, sends, size = 100, 50, 64
	dev := openDevice(t, deviceName)
	o := uverbs.QPOptions{MaxSendWR: sends, MaxRecvWR: receives}
	a, b := newSide(t, dev, o), newSide(t, dev, o)
	connect(t, a, b)
	reset := func() {
		t.Helper()
		for _, s := range []*side{a, b} {
			must(t, s.qp.Modify(uverbs.QPAttr{State: ib.QPReset}, uverbs.AttrState), initQP(s.qp.QP))
		}
		connect(t, a, b)
	}
	// Rounds in which some messages had arrived, and others had not. Only rxe of the kernel takes so long for a batch that
	// there must be one; the others carry all of it at once.
	between, slow := 0, rig.Driver == "rxe" && !rig.Soft
	rounds := 20
	if testenv.Brief() {
		rounds = 6
	}
	for round := 0; round < rounds || slow && between == 0 && round < 10*rounds; round++ {
		clear(b.buf.Bytes())
		batch := make([]uverbs.SendWR, sends)
		for i := range batch {
			a.fill(i*size, size, byte(i+1))
			batch[i] = send(uint64(i), a.mr.SGE(i*size, size))
		}
		for i := range receives {
			must(t, b.qp.PostRecv(uint64(i), b.mr.SGE(i*size, size)))
		}
		breaks := []*side{a, b}[round%2]
		broken := make(chan error, 1)
		go func() {
			awaitByte(&b.buf.Bytes()[round%sends*size])
			broken <- breaks.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState)
		}()
		posted := sends
		if err := a.qp.PostSend(batch...); errors.Is(err, uverbs.ErrState) {
			posted = 0
		} else {
			must(t, err)
		}
		must(t, <-broken)
		if breaks == a { // b has seen nothing wrong
			must(t, b.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState))
		}
		over, arrived := false, 0
		for i := range receives {
			wc := b.next(t)
			got, want := b.buf.Bytes()[i*size:][:size], make([]byte, size)
			first := !over && wc.Status != uverbs.WCSuccess
			over = over || first
			if !over {
				arrived++
			}
			if !over && i < sends {
				copy(want, a.buf.Bytes()[i*size:])
			}
			if wc.ID != uint64(i) || over != (wc.Status == uverbs.WCWRFlushErr) || !over && i >= sends {
				t.Fatalf("round %d: receive %d completes as %+v", round, i, wc)
			}
			// The message after the last one that completed may be there.
			if cut := first && bytes.Equal(got, a.buf.Bytes()[i*size:][:size]); !bytes.Equal(got, want) && !cut {
				t.Errorf("round %d: receive %d has something else than message %d", round, i, i)
			}
		}
		if arrived > 0 && arrived < sends {
			between++
		}
		b.none(t)
		must(t, a.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState))
		for i := range posted {
			if wc := a.next(t); wc.ID != uint64(i) {
				t.Fatalf("round %d: send %d completes as %+v", round, i, wc)
			}
		}
		reset()
		clear(b.buf.Bytes())
		for i := range 5 {
			must(t, b.qp.PostRecv(uint64(1000+i), b.mr.SGE(i*size, size)), a.qp.PostSend(send(uint64(2000+i), a.mr.SGE(i*size, size))))
			a.want(t, uint64(2000+i), uverbs.WCSend)
			b.want(t, uint64(1000+i), uverbs.WCRecv)
		}
		b.holds(t, 0, a.buf.Bytes()[:5*size])
		b.holds(t, 5*size, make([]byte, 10*size))
		a.none(t)
		b.none(t)
		reset()
	}
	if between == 0 && slow {
		t.Error("no QP broke while messages arrived")
	}
}

// awaitByte waits until the device has written a byte, but not long for one that may not come.
func awaitByte(b *byte) {
	for end := time.Now().Add(20 * time.Millisecond); *b == 0 && time.Now().Before(end); {
		runtime.Gosched()
	}
}
