package conformance

import (
	"encoding/binary"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestReceivesInAnyOrder: a completion tells which receive a message came into, whatever order the
// device uses receives in, and every receive completes once.
func TestReceivesInAnyOrder(t *testing.T) {
	testenv.Tags(t, testenv.Unordered)
	testenv.NeedsIB(t, "manual QP state changes")
	testenv.Guest(t)
	const posted, size = 8, 64
	a, b := pair(t, uverbs.QPOptions{MaxRecvWR: 4 * posted})
	under := map[uint64]bool{} // receives that are posted
	post := func(id uint64) {
		t.Helper()
		must(t, b.qp.PostRecv(id, b.mr.SGE(int(id)*size, size)))
		under[id] = true
	}
	next := func() uverbs.WC {
		t.Helper()
		wc := b.next(t)
		if !under[wc.ID] {
			t.Fatalf("completion %+v of a receive that is not posted", wc)
		}
		delete(under, wc.ID)
		return wc
	}
	for id := range uint64(posted) {
		post(id)
	}
	for n := range uint64(300) {
		binary.NativeEndian.PutUint64(a.buf.Bytes(), n)
		must(t, a.qp.PostSend(send(1, a.mr.SGE(0, 8))))
		a.want(t, 1, uverbs.WCSend)
		wc := next()
		if wc.Err() != nil || wc.Opcode != uverbs.WCRecv || wc.ByteLen != 8 {
			t.Fatalf("message %d: completion %+v", n, wc)
		}
		if got := binary.NativeEndian.Uint64(b.buf.Bytes()[wc.ID*size:]); got != n {
			t.Fatalf("receive %d has message %d, want %d", wc.ID, got, n)
		}
		post(wc.ID)
	}
	must(t, b.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState))
	for range posted {
		if wc := next(); wc.Status != uverbs.WCWRFlushErr {
			t.Errorf("completion %+v, want that of a flush", wc)
		}
	}
	b.none(t)
}
