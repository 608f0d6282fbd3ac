//go:build amd64 || arm64

package uverbs

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestCQErr: the CQ of several queue pairs explains a failure as the queue pair does that failed, and as far as it can
// after that was closed.
func TestCQErr(t *testing.T) {
	q := overRig(t, 4)
	must(t, ConnectPair(t.Context(), q[0], q[1]), ConnectPair(t.Context(), q[2], q[3]))
	cq := q[0].sendCQ
	must(t, q[1].PostRecv(1), q[0].PostSend(SendWR{ID: 2, Opcode: WRSend, Flags: SendSignaled}))
	must(t, q[2].PostSend(SendWR{ID: 3, Opcode: WRRDMAWrite, Inline: []byte{1}, RKey: 0x1234}))
	failed := WC{}
	for range 3 {
		var wcs [1]WC
		value(cq.Wait(t.Context(), wcs[:]))(t)
		wc := &wcs[0]
		owner := q[slices.IndexFunc(q, func(q *QP) bool { return q.QPN() == wc.QPN })]
		err, want := cq.Err(wc), owner.Err(wc)
		if (wc.ID == 3) != (err != nil) || err != nil && err.Error() != want.Error() {
			t.Errorf("work request %d: %v, want %v", wc.ID, err, want)
		}
		if wc.ID == 3 {
			failed = *wc
		}
	}
	if e, ok := errors.AsType[*WCError](cq.Err(&failed)); !ok || e.WC.QPN != q[2].QPN() || e.Peer.QPN != q[3].QPN() {
		t.Errorf("the failure is explained by %+v, want that of QP %d with its peer", e, q[2].QPN())
	}
	must(t, q[2].Close())
	if err := cq.Err(&failed); !errors.Is(err, WCRemAccessErr) || !strings.Contains(err.Error(), cq.dev.Name()) {
		t.Errorf("after Close of the QP: %v", err)
	}
	if err := errors.Join(cq.Err(nil), cq.Err(&WC{}), new(CQ).Err(&WC{})); err != nil {
		t.Errorf("no failure: %v", err)
	}
	errorIs(t, new(CQ).Err(&failed), WCRemAccessErr, "Err of the zero CQ")
}

// TestCompletions: a loop gets every completion once and in order, also if it is left and begun again, goes on after a
// failed work request, and ends with the error of Wait. It allocates nothing for a completion.
func TestCompletions(t *testing.T) {
	q := overRig(t, 2)
	must(t, ConnectPair(t.Context(), q[0], q[1]))
	cq := q[0].sendCQ
	const n = 20
	post := func() {
		for i := range uint64(n) {
			must(t, q[1].PostRecv(100+i))
			must(t, q[0].PostSend(SendWR{ID: i, Opcode: WRSend}))
		}
	}
	post()
	next := uint64(100)
	for next < 100+n {
		for wc, err := range cq.Completions(t.Context()) {
			must(t, err)
			if wc.ID != next {
				t.Fatalf("completion %d, want %d", wc.ID, next)
			}
			if next++; next%3 == 0 || next == 100+n {
				break
			}
		}
	}
	loop := func() {
		left := n
		for _, err := range cq.Completions(t.Context()) {
			must(t, err)
			if left--; left == 0 {
				break
			}
		}
	}
	if got := testing.AllocsPerRun(5, func() { post(); loop() }); got > 4 {
		t.Errorf("a loop over %d completions allocates %v times, want no more than a few for the loop", n, got)
	}
	must(t, q[1].PostRecv(1), q[1].PostRecv(2), q[1].Modify(QPAttr{State: ib.QPErr}, AttrState))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var ids []uint64
	var last error
	for wc, err := range cq.Completions(ctx) {
		if last = err; !IsFlush(err) {
			break
		}
		if ids = append(ids, wc.ID); len(ids) == 2 {
			cancel()
		}
	}
	if !slices.Equal(ids, []uint64{1, 2}) || !errors.Is(last, context.Canceled) {
		t.Errorf("flushed %v, and then %v, want 1, 2 and the end of the context", ids, last)
	}
}

// TestEventsLoop: a loop over events gets them in order, and the error that ends it.
func TestEventsLoop(t *testing.T) {
	q := overRig(t, 2)
	must(t, ConnectPair(t.Context(), q[0], q[1]))
	must(t, q[0].PostSend(SendWR{Opcode: WRRDMAWrite, Inline: []byte{1}, RKey: 0x1234}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var types []EventType
	var last error
	for e, err := range q[0].dev.Events(ctx) {
		if last = err; err == nil {
			types = append(types, e.Type)
			cancel()
		}
	}
	if !slices.Equal(types, []EventType{EventQPAccessErr}) || !errors.Is(last, context.Canceled) {
		t.Errorf("events %v, and then %v, want QP_ACCESS_ERR and the end of the context", types, last)
	}
}
