package cm

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// TestCloseWithoutFlush: Close ends although the device flushes nothing, also while others wait in methods. The
// connection has another QP instead of its own, so that nothing moves that to the error state.
func TestCloseWithoutFlush(t *testing.T) {
	testenv.Guest(t)
	pd, cq := openPD(t)
	other := value(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}))(t)
	t.Cleanup(func() { must(t, other.Close()) })
	must(t, other.Init())
	before := quiet(t)
	old := flushGrace
	flushGrace = 50 * time.Millisecond
	defer func() { flushGrace = old }()
	ctx := within(t)
	for _, wait := range waits {
		l := value(Listen(ctx, net.JoinHostPort(first.String(), "0"), ListenOptions{}))(t)
		client := value(Dial(ctx, l.Addr().String(), DialOptions{ConnOptions: ConnOptions{Linger: time.Millisecond, Tuning: Tuning{Wait: wait}}}))(t)
		server := value(l.Accept(ctx))(t)
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if _, err := client.RecvInto(context.Background(), nil); !errors.Is(err, net.ErrClosed) {
					t.Errorf("Recv: %v", err)
				}
			})
			all.Go(func() {
				client.mu.Lock()
				defer client.mu.Unlock()
				client.users++
				defer client.end()
				if err := client.waitOp(context.Background(), "wait", opBit|1<<20); !errors.Is(err, net.ErrClosed) {
					t.Errorf("an operation without an end: %v", err)
				}
			})
		}
		for parked := 0; parked < 6; time.Sleep(time.Millisecond) {
			client.mu.Lock()
			parked = client.users
			client.mu.Unlock()
		}
		client.mu.Lock()
		client.closing = true // as in Close, which would send an end first
		client.qp = other
		client.notify()
		client.mu.Unlock()
		server.mu.Lock() // so that it sends nothing, which would wake the others
		must(t, client.destroy())
		all.Wait()
		server.mu.Unlock()
		server.Close()
		must(t, l.Close())
	}
	nothingLeft(t, before)
}

// TestLinger: Close waits for what is not acknowledged, and says that its time was over.
func TestLinger(t *testing.T) {
	client, server := connect(t, newListener(t, ListenOptions{}), DialOptions{ConnOptions: ConnOptions{Linger: 50 * time.Millisecond}})
	client.mu.Lock()
	client.opsPosted += uint64(client.o.Transfers) // operations that are never acknowledged; on iWARP no room for the probe
	client.mu.Unlock()
	err := client.Close()
	if !errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(err.Error(), ": the Linger of 50ms is over, and not everything has arrived: ") {
		t.Errorf("Close returns %v", err)
	}
	must(t, server.Close())
}

// TestCloseWriteAgain: the peer is sent one end, however often CloseWrite is called, and Close another.
func TestCloseWriteAgain(t *testing.T) {
	ctx := within(t)
	l := newListener(t, ListenOptions{})
	client, server := connect(t, l, DialOptions{})
	for range 10 {
		must(t, client.CloseWrite(ctx))
	}
	client.mu.Lock()
	sent := client.ctlPosted
	client.mu.Unlock()
	greeting := uint64(0)
	if onIWARP(client.dev.dev) {
		greeting = 1
	}
	if sent != 1+greeting {
		t.Errorf("%d control messages were sent, want 1 and %d to greet", sent, greeting)
	}
	must(t, server.Send(ctx, []byte("the other way")))
	if got := value(client.Recv(ctx))(t); string(got) != "the other way" {
		t.Errorf("received %q", got)
	}
	must(t, client.Close(), server.Close())
}

// TestDestroyedConnReleasesCQ: a connection that was destroyed takes no completions of the one that has its CQ now.
func TestDestroyedConnReleasesCQ(t *testing.T) {
	ctx := within(t)
	l := newListener(t, ListenOptions{ConnOptions: small})
	old, oldPeer := connect(t, l, DialOptions{ConnOptions: small})
	must(t, old.destroy())
	client, server := connect(t, l, DialOptions{ConnOptions: small})
	if client.cq != old.cq {
		t.Fatal("the CQ of the connection that was destroyed is not used again")
	}
	must(t, server.Send(ctx, []byte("for the new one")))
	must(t, server.Flush(ctx))
	if _, err := old.Recv(ctx); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Recv of the old connection: %v", err)
	}
	if got := value(client.Recv(ctx))(t); string(got) != "for the new one" {
		t.Errorf("received %q", got)
	}
	oldPeer.Close()
}

// TestCloseAcknowledgesPeerEnd: a peer that closes, and waits for its end to arrive, is sent one in answer.
func TestCloseAcknowledgesPeerEnd(t *testing.T) {
	ctx := within(t)
	l := newListener(t, ListenOptions{})
	pd, cq := openPD(t)
	buf := value(uverbs.AllocBuffer(4096, uverbs.BufferOptions{}))(t)
	mr := value(pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite}))(t)
	id := newID(t, openKernel(t), rdmacm.TCP)
	must(t, id.ResolveWait(ctx, rdmacm.Addr{}, l.addr))
	qp := value(id.CreateQP(pd, uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, MaxRecvWR: 1, MaxSendWR: 1, MaxRecvSGE: 1, MaxSendSGE: 1}))(t)
	must(t, qp.PostRecv(7, mr.SGE(2048, 2048)))
	value(id.ConnectWait(ctx, rdmacm.ConnParam{PrivateData: greeting{kind: greetingRequest, depth: 4, size: 100}.encode(), RetryCount: 6, RNRRetryCount: 6}))(t)
	server := value(l.Accept(ctx))(t)
	header{kind: msgEnd, closesRead: true}.put(buf.Bytes())
	must(t, qp.PostSend(uverbs.SendWR{Opcode: uverbs.WRSend, SGL: []uverbs.SGE{mr.SGE(0, headerSize)}}))
	if _, err := server.Recv(ctx); err != io.EOF {
		t.Errorf("Recv: %v", err)
	}
	must(t, server.Close())
	var wcs [1]uverbs.WC
	for n := 0; n == 0; n = value(cq.Poll(wcs[:]))(t) {
		must(t, ctx.Err())
	}
	must(t, wcs[0].Err())
	if h, err := parseHeader(buf.Bytes()[2048:][:wcs[0].ByteLen]); wcs[0].ID != 7 || err != nil || h.kind != msgEnd {
		t.Errorf("the peer is sent %+v, %v, in work request %d", h, err, wcs[0].ID)
	}
	must(t, id.Close(), mr.Close(), buf.Close())
}

// TestCloseUsedSRQ: an ID whose SRQ another QP uses stays open, and closes after that QP.
func TestCloseUsedSRQ(t *testing.T) {
	testenv.Guest(t)
	l := newListener(t, ListenOptions{})
	pd, cq := openPD(t)
	id := newID(t, openKernel(t), rdmacm.TCP)
	must(t, id.ResolveWait(within(t), rdmacm.Addr{}, l.addr))
	srq, err := id.CreateSRQ(pd, uverbs.SRQOptions{})
	testenv.Skip(t, err)
	must(t, err)
	qp := value(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, SRQ: srq}))(t)
	if err := id.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("Close: %v, want EBUSY", err)
	}
	must(t, qp.Close(), id.Close())
	if err := srq.PostRecv(1); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the SRQ of a closed ID: %v", err)
	}
}
