package cm

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// flushed checks the error of a receive that was flushed: what it says, what it matches besides the
// status, and that it hints at no failure before it.
func flushed(t *testing.T, err error, say string, is error) {
	t.Helper()
	var e *uverbs.WCError
	if !errors.As(err, &e) || !uverbs.IsFlush(err) || e.First != nil || e.Cause == nil {
		t.Fatalf("error is %v, want a flush with a cause", err)
	}
	if is != nil && !errors.Is(err, is) {
		t.Errorf("%v does not match %v", err, is)
	}
	for _, want := range []string{"(receive)", say, "receives that were still posted are flushed"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	for _, not := range []string{"SEND", "earlier", "completion"} {
		if strings.Contains(err.Error(), not) {
			t.Errorf("the error says %q: %v", not, err)
		}
	}
}

// peerGone is what a side says whose peer has disconnected.
func peerGone() string {
	if testenv.TheRig().IWARP() {
		return "the connection manager reported DISCONNECTED: the peer disconnected"
	}
	return "the peer disconnected, or closed its ID"
}

// TestFlushedByDisconnect: both sides have a receive posted when the server disconnects. The errors
// of both say which side has disconnected, whether or not a send had the same ID.
func TestFlushedByDisconnect(t *testing.T) {
	ctx := within(t)
	c := openKernel(t)
	l, addr := listen(t, c, rdmacm.TCP, first)
	type side struct {
		id *rdmacm.ID
		qp *uverbs.QP
		cq *uverbs.CQ
		mr *uverbs.MR
	}
	newSide := func(id *rdmacm.ID) side {
		t.Helper()
		dev := value(uverbs.Open(value(id.Addrs())(t).Device, uverbs.OpenOptions{}))(t)
		pd := value(dev.AllocPD())(t)
		// A CQ for each queue, which is how the completions of rxe can be told apart.
		send, recv := value(dev.CreateCQ(uverbs.CQOptions{Size: 8}))(t), value(dev.CreateCQ(uverbs.CQOptions{Size: 8}))(t)
		buf := value(uverbs.AllocBuffer(4096, uverbs.BufferOptions{}))(t)
		mr := value(pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite}))(t)
		qp := value(id.CreateQP(pd, uverbs.QPOptions{SendCQ: send, RecvCQ: recv}))(t)
		t.Cleanup(func() {
			must(t, id.Close(), mr.Close(), buf.Close(), send.Close(), recv.Close(), pd.Close(), dev.Close())
		})
		must(t, qp.PostRecv(1, mr.SGE(0, 100)), qp.PostRecv(7, mr.SGE(0, 100)))
		return side{id, qp, recv, mr}
	}
	poll := func(s side) (wc [1]uverbs.WC) {
		t.Helper()
		for n := 0; n == 0; n = value(s.cq.Poll(wc[:]))(t) {
			must(t, ctx.Err())
		}
		return wc
	}
	accepted := async(func() (side, error) {
		request, err := l.NextRequest(ctx)
		if err != nil {
			return side{}, err
		}
		s := newSide(request.ID)
		return s, request.ID.AcceptWait(ctx, rdmacm.ConnParam{RNRRetryCount: 7})
	})
	id := newID(t, c, rdmacm.TCP)
	must(t, id.ResolveWait(ctx, rdmacm.Addr{}, rdmacm.AddrOf(addr)))
	client := newSide(id)
	value(id.ConnectWait(ctx, rdmacm.ConnParam{RetryCount: 7, RNRRetryCount: 7}))(t)
	server := value(accepted())(t)

	for _, s := range []side{client, server} { // the side that connects sends first
		must(t, s.qp.PostSend(uverbs.SendWR{ID: 7, Opcode: uverbs.WRSend, SGL: []uverbs.SGE{s.mr.SGE(200, 10)}}))
		peer := map[bool]side{true: server, false: client}[s.qp == client.qp]
		if wc := poll(peer); wc[0].ID != 1 || wc[0].Err() != nil {
			t.Fatalf("received %+v", wc[0])
		}
	}
	must(t, server.id.Disconnect())
	for e := value(client.id.Next(ctx))(t); e.Type != rdmacm.EventDisconnected; e = value(client.id.Next(ctx))(t) {
	}
	must(t, client.id.Disconnect())
	for s, want := range map[side]struct {
		say string
		is  error
	}{client: {peerGone(), syscall.ECONNRESET}, server: {"this program disconnected the ID", nil}} {
		wc := poll(s)
		if wc[0].ID != 7 {
			t.Errorf("completion of %d", wc[0].ID)
		}
		flushed(t, s.qp.Err(&wc[0]), want.say, want.is)
	}
}

// async runs f in a goroutine and returns a function that waits for it.
func async[T any](f func() (T, error)) func() (T, error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		v, err := f()
		done <- result{v, err}
	}()
	return func() (T, error) {
		r := <-done
		return r.v, r.err
	}
}

// TestConnFlushed: a connection whose peer disconnects without closing it says so, and so does the
// error of a receive that was posted.
func TestConnFlushed(t *testing.T) {
	ctx := within(t)
	client, server := connect(t, newListener(t, ListenOptions{}), DialOptions{})
	received := async(func() (bool, error) {
		_, err := client.Recv(ctx)
		return true, err
	})
	must(t, server.id.Disconnect())
	_, err := received()
	if !errors.Is(err, syscall.ECONNRESET) || strings.Contains(err.Error(), "earlier") || strings.Contains(err.Error(), "flush") {
		t.Errorf("Recv: %v, want that the peer has disconnected", err)
	}
	if !testenv.TheRig().IWARP() { // there the completion may come before the event
		flushed(t, client.qp.Err(&uverbs.WC{ID: recvBit, Status: uverbs.WCWRFlushErr, Opcode: uverbs.WCRecv}), peerGone(), syscall.ECONNRESET)
	}
}

// TestRequestNumbers: errors have no number of a work request, whatever digits the numbers share.
func TestRequestNumbers(t *testing.T) {
	first := &uverbs.WCError{WC: uverbs.WC{ID: recvBit + 21, Status: uverbs.WCLocLenErr}, Request: "receive"}
	e := &requestError{&uverbs.WCError{WC: uverbs.WC{ID: 9, Status: uverbs.WCWRFlushErr}, First: first}}
	if text := e.Error(); strings.Count(text, "work request") != 3 || !strings.Contains(text, "work request; the cause") || !strings.Contains(text, "work request (receive)") {
		t.Error(text)
	}
	e = &requestError{&uverbs.WCError{WC: uverbs.WC{ID: 9, Status: uverbs.WCLocLenErr}}}
	if text := e.Error(); !strings.HasSuffix(text, "; work request") {
		t.Error(text)
	}
}

// TestRefusedAccess: the side whose memory the peer may not use learns that its connection was reset, and why that may be.
func TestRefusedAccess(t *testing.T) {
	ctx := within(t)
	client, server := connect(t, newListener(t, ListenOptions{}), DialOptions{})
	received := async(func() ([]byte, error) { return server.Recv(ctx) })
	mine := value(client.PD().RegSlice(make([]byte, 64), uverbs.AccessLocalWrite))(t)
	theirs := value(server.PD().RegSlice(make([]byte, 64), uverbs.AccessLocalWrite|uverbs.AccessRemoteRead))(t)
	err := client.RDMAWrite(ctx, mine.SGE(0, 64), RemoteOf(theirs))
	_, explained := errors.AsType[*uverbs.WCError](err)
	if testenv.TheRig().IWARP() { // the device ends the TCP connection, and says no more
		explained = errors.Is(err, syscall.ECONNRESET)
	}
	if !explained || strings.Contains(err.Error(), "work request 4") {
		t.Errorf("RDMAWrite: %v, want an error of a work request that has no number, or on iWARP a reset", err)
	}
	_, err = received()
	if text := fmt.Sprint(err); !errors.Is(err, syscall.ECONNRESET) || strings.Contains(text, "NextEvent") || len(text) > 300 {
		t.Errorf("Recv: %v, want a short one that the connection was reset", err)
	}
	if !testenv.TheRig().IWARP() && !errors.Is(err, errCutOff) {
		t.Errorf("Recv: %v, want that the device has refused something", err)
	}
	must(t, mine.Close(), theirs.Close())
}
