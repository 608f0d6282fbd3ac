package cm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/cmtest"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// newPackets takes datagrams at an address.
func newPackets(t *testing.T, addr string, o PacketOptions) *PacketConn {
	t.Helper()
	testenv.Guest(t)
	testenv.NeedsIB(t, "datagrams")
	testenv.NeedsNoLoss(t, "a datagram that is lost stays lost")
	p := value(ListenPacket(within(t), addr, o))(t)
	t.Cleanup(func() { must(t, p.Close(), p.Close()) })
	return p
}

// received takes a datagram, or fails the test.
func received(t *testing.T, p *PacketConn) (string, Peer) {
	t.Helper()
	data, from, err := p.Recv(within(t))
	must(t, err)
	return string(data), from
}

// TestPacketConn: datagrams of all sizes there and back, to whom was dialled and to whom one has
// come from.
func TestPacketConn(t *testing.T) {
	before := quiet(t)
	t.Run("all", func(t *testing.T) {
		for _, wait := range waits {
			ctx := within(t)
			o := PacketOptions{Wait: wait, Depth: 4, SendDepth: 3}
			server := newPackets(t, firstAny, o)
			client := value(DialPacket(ctx, server.LocalAddr().String(), o))(t)
			to, ok := client.DialedPeer()
			if _, listener := server.DialedPeer(); !ok || listener || to.IP() != first || to.QPN() != server.qp.QPN() {
				t.Errorf("dialled %s", to)
			}
			for i := range 100 {
				data := bytes.Repeat([]byte{byte(i)}, i*37%(client.MaxDatagram()+1))
				must(t, client.Send(ctx, data, to))
				got, from := received(t, server)
				if got != string(data) || from.QPN() != client.qp.QPN() || from.IP().Is4() == testenv.TheRig().InfiniBand() {
					t.Fatalf("datagram %d from %s is %x", i, from, got)
				}
				must(t, server.Send(ctx, []byte(got), from))
				if got, from = received(t, client); got != string(data) || from.QPN() != server.qp.QPN() {
					t.Fatalf("answer %d from %s is %x", i, from, got)
				}
			}
			for range 50 { // more than there is room for: some are lost, and nothing else
				must(t, client.Send(ctx, []byte("x"), to))
			}
			n := 0
			for range o.Depth {
				if got, _ := received(t, server); got == "x" {
					n++
				}
			}
			if n != o.Depth {
				t.Errorf("%d datagrams are there", n)
			}
			var arg *rdmacm.ArgError
			if err := client.Send(ctx, make([]byte, client.MaxDatagram()+1), to); !errors.As(err, &arg) || arg.Field != "data" {
				t.Errorf("a datagram that is too long: %v", err)
			}
			if err := server.Send(ctx, nil, Peer{}); !errors.As(err, &arg) || arg.Field != "to" {
				t.Errorf("to nobody: %v", err)
			}
			short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
			if _, _, err := client.Recv(short); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Recv: %v", err)
			}
			cancel()
			done := make(chan error, 1)
			go func() {
				_, _, err := client.Recv(ctx)
				done <- err
			}()
			time.Sleep(5 * time.Millisecond)
			must(t, client.Close())
			if err := <-done; !errors.Is(err, net.ErrClosed) || !errors.Is(err, os.ErrClosed) {
				t.Errorf("%s: Recv of what is closed: %v", wait, err)
			}
			_, joinErr := client.Join(ctx, netip.MustParseAddr("239.1.1.1"), rdmacm.JoinFullMember)
			for _, err := range []error{client.Send(ctx, nil, to), joinErr} {
				if !errors.Is(err, net.ErrClosed) {
					t.Errorf("after Close: %v", err)
				}
			}
		}
	})
	nothingLeft(t, before)
}

// TestPacketManyPeers: more peers than there are address handles kept, from goroutines that
// send and receive at once.
func TestPacketManyPeers(t *testing.T) {
	ctx := within(t)
	server := newPackets(t, firstAny, PacketOptions{})
	var all sync.WaitGroup
	all.Go(func() {
		for range 3 * 20 {
			data, from, err := server.Recv(ctx)
			if err == nil {
				err = server.Send(ctx, data, from)
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range 3 {
		all.Go(func() {
			o := PacketOptions{PrivateData: []byte("who I am")}
			if i == 1 {
				o.LocalAddr = netip.AddrPortFrom(second, 0)
			}
			p, err := DialPacket(ctx, server.LocalAddr().String(), o)
			if err != nil {
				t.Error(err)
				return
			}
			defer p.Close()
			to, _ := p.DialedPeer()
			for j := range 20 {
				word := fmt.Sprint(i, j)
				if err := p.Send(ctx, []byte(word), to); err != nil {
					t.Error(err)
					return
				}
				if got, _, err := p.Recv(ctx); err != nil || string(got) != word {
					t.Errorf("%q comes back as %q, %v", word, got, err)
				}
			}
		})
	}
	all.Wait()

	// Ways that differ in the flow label only.
	gid := testenv.TheRig().GID
	peer := Peer{attr: uverbs.AHAttr{Port: 1, DLID: value(server.dev.dev.Port(1))(t).LID, Global: true}, qpn: server.qp.QPN(), qkey: server.qkey}
	peer.attr.GRH = uverbs.GRH{DGID: value(server.dev.dev.GID(1, gid))(t).GID, SGIDIndex: uint8(gid), HopLimit: 4}
	for i := range 3 * maxAHs {
		peer.attr.GRH.FlowLabel = uint32(i)
		must(t, server.Send(ctx, []byte(fmt.Sprint(i)), peer))
		if got, _ := received(t, server); got != fmt.Sprint(i) {
			t.Fatalf("datagram %d is %q", i, got)
		}
	}
	if n := len(server.ahs.all); n > maxAHs {
		t.Errorf("%d address handles are kept", n)
	}
}

// TestPacketGroup: members of a group get what is sent to it, those that only send do not, and
// those that have left do not any more.
func TestPacketGroup(t *testing.T) {
	ctx := within(t)
	addr := netip.MustParseAddr("239.1.7.7")
	members := make([]*PacketConn, 3)
	var to Peer
	for i := range members {
		members[i] = newPackets(t, firstAny, PacketOptions{})
		flags := rdmacm.JoinFullMember
		if i == 2 {
			flags = rdmacm.JoinSendOnly
		}
		to = value(members[i].Join(ctx, addr, flags))(t)
		if to.IP() != addr || to.QPN() != rdmacm.MulticastQPN {
			t.Errorf("the group is %s", to)
		}
	}
	must(t, members[2].Send(ctx, []byte("to all"), to))
	for _, m := range members[:2] {
		if got, from := received(t, m); got != "to all" || from.QPN() != members[2].qp.QPN() {
			t.Errorf("%q from %s", got, from)
		}
	}
	must(t, members[0].Leave(addr))
	must(t, members[2].Send(ctx, []byte("to the rest"), to))
	if got, _ := received(t, members[1]); got != "to the rest" {
		t.Errorf("%q", got)
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	for _, m := range []*PacketConn{members[0], members[2]} {
		if got, _, err := m.Recv(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("who is no member gets %q, %v", got, err)
		}
	}
	var arg *rdmacm.ArgError
	if _, err := members[1].Join(ctx, addr, rdmacm.JoinFullMember); !errors.As(err, &arg) {
		t.Errorf("Join twice: %v", err)
	}
	if err := members[0].Leave(addr); !errors.As(err, &arg) {
		t.Errorf("Leave twice: %v", err)
	}
	value(members[0].Join(ctx, addr, rdmacm.JoinFullMember))(t)
	must(t, members[2].Send(ctx, []byte("again"), to))
	if got, _ := received(t, members[0]); got != "again" {
		t.Errorf("%q", got)
	}
}

// endedContext has ended, but nothing is told so while it waits.
type endedContext struct{ context.Context }

// Err implements [context.Context].
func (endedContext) Err() error { return context.Canceled }

// TestPacketUnanswerable: a datagram that cannot be answered is skipped, its receive is posted again, and Recv
// looks at its context before it takes the next one.
func TestPacketUnanswerable(t *testing.T) {
	testenv.NeedsRoCE(t, "datagrams that cannot be answered")
	ctx := within(t)
	server := newPackets(t, firstAny, PacketOptions{Depth: 4})
	client := value(DialPacket(ctx, server.LocalAddr().String(), PacketOptions{}))(t)
	defer client.Close()
	to, _ := client.DialedPeer()
	port := server.addrs.Port
	wait := time.Millisecond
	for passed := 0; passed < 3*server.o.Depth; {
		must(t, client.Send(ctx, []byte("skipped"), to), client.Send(ctx, []byte("answerable"), to))
		time.Sleep(wait)
		server.addrs.Port, server.last = 77, sender{} // which has no addresses
		if _, _, err := server.Recv(endedContext{ctx}); !errors.Is(err, context.Canceled) {
			t.Fatalf("Recv after the end of its context: %v", err)
		}
		server.addrs.Port = port
		must(t, client.Send(ctx, []byte("last"), to))
		switch got, _ := received(t, server); got {
		case "answerable":
			passed++
		case "skipped": // it arrived too late
			wait *= 2
			if got, _ := received(t, server); got != "answerable" {
				t.Fatalf("received %q", got)
			}
		default:
			t.Fatalf("received %q, so that Recv has taken two datagrams although its context had ended", got)
		}
		if got, _ := received(t, server); got != "last" {
			t.Fatalf("received %q, want the last", got)
		}
	}
}

// TestPacketTooLong: datagrams that are longer than a receive do not end a PacketConn, whatever the device does
// with its QP.
func TestPacketTooLong(t *testing.T) {
	ctx := within(t)
	old := longestDatagram
	longestDatagram = 64
	server := newPackets(t, firstAny, PacketOptions{Depth: 4})
	longestDatagram = old
	client := value(DialPacket(ctx, server.LocalAddr().String(), PacketOptions{}))(t)
	defer client.Close()
	to, _ := client.DialedPeer()
	for round := range 3 {
		for range 7 { // more than there are receives
			must(t, client.Send(ctx, make([]byte, 200), to))
		}
		arrives(t, client, server, fmt.Sprint("round ", round))
	}
}

// TestPacketSendFails: a datagram that the device does not send, because the MTU has become smaller, is told by a later
// Send. The others arrive, and so do those of the peer. rxe takes the datagram for sent.
func TestPacketSendFails(t *testing.T) {
	ctx := within(t)
	server := newPackets(t, firstAny, PacketOptions{})
	client := value(DialPacket(ctx, server.LocalAddr().String(), PacketOptions{SendDepth: 1}))(t)
	defer client.Close()
	to, _ := client.DialedPeer()
	must(t, client.Send(ctx, []byte("first"), to))
	_, from := received(t, server)
	for range 3 {
		mtu := client.mtu
		client.mtu = longestDatagram + 8
		must(t, client.Send(ctx, make([]byte, client.mtu), to))
		client.mtu = mtu
		err := client.Send(ctx, []byte("next"), to)
		if fails := testenv.TheRig().Driver != "rxe" || testenv.TheRig().Soft; fails != errors.Is(err, uverbs.WCLocLenErr) {
			t.Errorf("Send after a datagram that is too long: %v", err)
		}
		if err != nil && regexp.MustCompile(`work request [0-9]`).MatchString(err.Error()) {
			t.Errorf("the error has a number that the program has not chosen: %v", err)
		}
		if err == nil {
			received(t, server)
		}
		must(t, server.Send(ctx, []byte("answer"), from))
		received(t, client)
		must(t, client.Send(ctx, []byte("last"), to))
		if got, _ := received(t, server); got != "last" {
			t.Errorf("received %q, want the last", got)
		}
	}
}

// TestPacketRevived: Recv makes a QP ready again that was moved to state ERR, also while it waits, and a later Send
// works too.
func TestPacketRevived(t *testing.T) {
	ctx := within(t)
	if testenv.Kernel(t)[0] < 6 {
		testenv.Skip(t, &uverbs.FeatureError{Feature: "flush of sends in ERR", Since: uverbs.Version{6, 0}})
	}
	// There are more receives than datagrams of a round: rxe flushes those that are posted when the QP is moved, and
	// if all have been used, none that is posted later.
	server := newPackets(t, firstAny, PacketOptions{})
	client := value(DialPacket(ctx, server.LocalAddr().String(), PacketOptions{}))(t)
	defer client.Close()
	to, _ := client.DialedPeer()
	for round := range 3 {
		must(t, server.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState))
		from := arrives(t, client, server, fmt.Sprint("round ", round))
		must(t, server.Send(ctx, []byte("answer"), from))
		if got, _ := received(t, client); got != "answer" {
			t.Errorf("received %q", got)
		}
	}
	must(t, server.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState), server.Close())
	if _, _, err := server.Recv(ctx); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Recv after Close: %v", err)
	}
	must(t, client.Send(ctx, []byte("to nobody"), to))
}

// TestPacketRevivedLater: calls of Recv that end before they can make the QP ready again use up no receive.
func TestPacketRevivedLater(t *testing.T) {
	ctx := within(t)
	if testenv.Kernel(t)[0] < 6 {
		testenv.Skip(t, &uverbs.FeatureError{Feature: "flush of sends in ERR", Since: uverbs.Version{6, 0}})
	}
	const depth = 4
	server := newPackets(t, firstAny, PacketOptions{Depth: depth})
	client := value(DialPacket(ctx, server.LocalAddr().String(), PacketOptions{}))(t)
	defer client.Close()
	must(t, server.send.takeTurn(ctx)) // as a Send has it that waits
	must(t, server.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState))
	for range 3 * depth {
		short, cancel := context.WithTimeout(ctx, time.Millisecond)
		if _, _, err := server.Recv(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Recv: %v", err)
		}
		cancel()
	}
	<-server.send.turn
	arrives(t, client, server, "after all")
}

// TestPacketOnlySends: a program that never receives, or receives meanwhile, sends on after a failure, whatever state the
// device has moved the QP to. Exactly one call of Send returns the error, and all datagrams after it arrive.
func TestPacketOnlySends(t *testing.T) {
	if testenv.Kernel(t)[0] < 6 {
		testenv.Skip(t, &uverbs.FeatureError{Feature: "flush of sends in ERR", Since: uverbs.Version{6, 0}})
	}
	server := newPackets(t, firstAny, PacketOptions{Depth: 200})
	states := []ib.QPState{ib.QPErr}
	if rig := testenv.TheRig(); rig.Driver != "rxe" || rig.Soft { // rxe takes a datagram that is too long for sent
		states = append(states, ib.QPSQE)
	}
	for _, state := range states {
		for _, depth := range []int{1, 3, 40} {
			for _, receives := range []bool{false, true} {
				t.Run(fmt.Sprint(state, " depth ", depth, " receives ", receives), func(t *testing.T) {
					ctx := within(t)
					client := value(DialPacket(ctx, server.LocalAddr().String(), PacketOptions{SendDepth: depth}))(t)
					to, _ := client.DialedPeer()
					must(t, client.Send(ctx, []byte("first"), to))
					received(t, server)
					var receiving sync.WaitGroup
					defer receiving.Wait()
					defer client.Close()
					if receives {
						receiving.Go(func() { receivesUntilClose(t, client) })
					}
					for round := range 3 {
						sendsFail(t, client, to, state)
						var failures []error
						for i := range 2*depth + 2 {
							text := fmt.Sprint("round ", round, " datagram ", i)
							if err := client.Send(ctx, []byte(text), to); err != nil {
								failures = append(failures, err)
								continue
							}
							got, _ := received(t, server)
							for got == "" { // one of sendsFail: the device sends those that it has not looked at when the QP leaves SQE
								got, _ = received(t, server)
							}
							if len(failures) > 0 && got != text {
								t.Fatalf("received %q, want %q", got, text)
							}
						}
						want := map[ib.QPState]uverbs.WCStatus{ib.QPErr: uverbs.WCWRFlushErr, ib.QPSQE: uverbs.WCLocLenErr}[state]
						if len(failures) != 1 || !errors.Is(failures[0], want) {
							t.Errorf("failed calls of Send: %v, want one with %v", failures, want)
						}
					}
				})
			}
		}
	}
}

// sendsFail fills the send queue with datagrams of which the device does not send the first, and waits until it has moved
// the QP to the state.
func sendsFail(t *testing.T, p *PacketConn, to Peer, state ib.QPState) {
	must(t, p.send.takeTurn(within(t)))
	defer func() { <-p.send.turn }()
	for p.inFlight > 0 { // what was sent before
		p.sendsCompleted(value(p.send.next(within(t), &p.o, p.inFlight))(t))
	}
	length := 0
	if state == ib.QPErr {
		must(t, p.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState))
	} else {
		length = longestDatagram + 8
	}
	for ; p.inFlight < p.o.SendDepth; p.inFlight++ {
		must(t, p.qp.PostSend(uverbs.SendWR{ID: uint64(p.sent), Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled,
			SGL: []uverbs.SGE{p.mem.sge(0, length)}, AH: value(p.ahs.get(to.attr))(t), RemoteQPN: to.qpn, RemoteQKey: to.qkey}))
		p.sent++
		length = 0
	}
	for value(p.qp.Query())(t).State != state {
		time.Sleep(time.Millisecond)
	}
}

// TestPacketNotTold: a datagram that is in the queue, although the device could not be told of it, is one error. The
// QP may be in any state then, and a Recv may wait.
func TestPacketNotTold(t *testing.T) {
	server := newPackets(t, firstAny, PacketOptions{})
	for _, receives := range []bool{false, true} {
		t.Run(fmt.Sprint("receives ", receives), func(t *testing.T) {
			ctx := within(t)
			client := value(DialPacket(ctx, server.LocalAddr().String(), PacketOptions{SendDepth: 1}))(t)
			var receiving sync.WaitGroup
			defer receiving.Wait()
			defer client.Close()
			to, _ := client.DialedPeer()
			if receives {
				receiving.Go(func() { receivesUntilClose(t, client) })
			}
			for round := range 3 {
				must(t, client.send.takeTurn(ctx))
				err := client.sendPosted("send", &uverbs.Error{Op: "POST_SEND", Errno: syscall.EFAULT})
				if <-client.send.turn; !errors.Is(err, syscall.EFAULT) {
					t.Errorf("Send: %v", err)
				}
				for i := range 3 * client.o.SendDepth {
					text := fmt.Sprint("round ", round, " datagram ", i)
					must(t, client.Send(ctx, []byte(text), to))
					if got, _ := received(t, server); got != text {
						t.Errorf("received %q, want %q", got, text)
					}
				}
			}
		})
	}
}

// receivesUntilClose waits for datagrams, of which there is none, until p is closed.
func receivesUntilClose(t *testing.T, p *PacketConn) {
	if _, _, err := p.Recv(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Recv until Close: %v", err)
	}
}

// TestPacketCannotBreak: a Send beside a Recv that waits fails if it cannot move the QP to state ERR. Nothing would wake
// the Recv, so Send must not wait for it.
func TestPacketCannotBreak(t *testing.T) {
	ctx := within(t)
	server := newPackets(t, firstAny, PacketOptions{})
	client := value(DialPacket(ctx, server.LocalAddr().String(), PacketOptions{}))(t)
	defer client.Close()
	to, _ := client.DialedPeer()
	must(t, client.recv.takeTurn(ctx), client.qp.Modify(uverbs.QPAttr{State: ib.QPReset}, uverbs.AttrState)) // which no QP leaves for ERR
	client.broken.Store(true)
	err := client.Send(ctx, nil, to)
	if <-client.recv.turn; err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Send: %v", err)
	}
	must(t, client.Send(ctx, []byte("revived"), to))
	if got, _ := received(t, server); got != "revived" {
		t.Errorf("received %q", got)
	}
}

// TestPacketHeld: the slice that Recv has returned does not change when Send makes the QP ready again.
func TestPacketHeld(t *testing.T) {
	if testenv.Kernel(t)[0] < 6 {
		testenv.Skip(t, &uverbs.FeatureError{Feature: "flush of sends in ERR", Since: uverbs.Version{6, 0}})
	}
	ctx := within(t)
	server := newPackets(t, firstAny, PacketOptions{Depth: 3})
	client := value(DialPacket(ctx, server.LocalAddr().String(), PacketOptions{}))(t)
	defer client.Close()
	to, _ := client.DialedPeer()
	must(t, client.Send(ctx, []byte("held"), to))
	held, from, err := server.Recv(ctx)
	must(t, err)
	sendsFail(t, server, from, ib.QPErr)
	if err := server.Send(ctx, nil, from); !errors.Is(err, uverbs.WCWRFlushErr) {
		t.Errorf("Send after one that was flushed: %v", err)
	}
	must(t, server.Send(ctx, held, from))
	if got, _ := received(t, client); got != "held" {
		t.Errorf("received %q", got)
	}
	must(t, client.Send(ctx, []byte("next"), to))
	if got, _ := received(t, server); got != "next" || string(held) != "held" {
		t.Errorf("received %q, and the datagram before it is now %q", got, held)
	}
}

// arrives sends short datagrams, less and less often, until the server receives one, and returns its sender.
func arrives(t *testing.T, client, server *PacketConn, text string) Peer {
	t.Helper()
	to, _ := client.DialedPeer()
	ctx, cancel := context.WithCancel(within(t))
	var sending sync.WaitGroup
	sending.Go(func() {
		for pause := time.Millisecond; ctx.Err() == nil; pause *= 2 {
			if err := client.Send(ctx, []byte(text), to); err != nil && ctx.Err() == nil {
				t.Errorf("send: %v", err)
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	})
	defer sending.Wait()
	defer cancel()
	for {
		data, from, err := server.Recv(ctx)
		must(t, err)
		if string(data) == text {
			return from
		}
	}
}

// TestPacketNotifyError: Recv and Send do not wait for a CQ that cannot be armed.
func TestPacketNotifyError(t *testing.T) {
	ctx := within(t)
	p := newPackets(t, firstAny, PacketOptions{})
	silent := value(p.dev.dev.CreateCQ(uverbs.CQOptions{}))(t) // it has no channel
	q := packetQueue{completions: completions{ch: p.recv.ch, cq: silent, wcs: new([16]uverbs.WC)}, closing: &p.closing}
	var arg *uverbs.ArgError
	if _, err := q.next(ctx, &PacketOptions{Wait: WaitPark}, 1); !errors.As(err, &arg) || arg.Op != "Notify" || ctx.Err() != nil {
		t.Errorf("a wait for a CQ without a channel: %v", err)
	}
	must(t, silent.Close())
}

// TestPacketErrors: who cannot be dialled, and where nobody can listen.
func TestPacketErrors(t *testing.T) {
	ctx := within(t)
	server := newPackets(t, firstAny, PacketOptions{})
	type bad struct {
		addr string
		is   error
		say  string
	}
	all := []bad{{firstBad, syscall.ECONNREFUSED, firstBad}, {"192.0.2.1:9", cmtest.NoRoute(), "192.0.2.1:9"}}
	if !loopbackReached() {
		all = append(all, bad{"127.0.0.1:9", syscall.ENODEV, "loopback"})
	}
	for _, c := range all {
		if _, err := DialPacket(ctx, c.addr, PacketOptions{}); !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.say) {
			t.Errorf("DialPacket %s: %v", c.addr, err)
		}
	}
	if _, err := ListenPacket(ctx, server.LocalAddr().String(), PacketOptions{}); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("ListenPacket: %v", err)
	}
	var arg *rdmacm.ArgError
	for field, err := range map[string]error{
		"address":     second2(ListenPacket(ctx, ":0", PacketOptions{})),
		"Depth":       second2(ListenPacket(ctx, firstAny, PacketOptions{Depth: -1})),
		"Timeout":     second2(DialPacket(ctx, firstAny, PacketOptions{Timeout: -1})),
		"PrivateData": second2(DialPacket(ctx, firstBad, PacketOptions{PrivateData: make([]byte, 181)})),
	} {
		if !errors.As(err, &arg) || arg.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := server.Join(ctx, second, rdmacm.JoinFullMember); !errors.As(err, &arg) {
		t.Errorf("Join of a host: %v", err)
	}
}

// second2 returns the second of two results.
func second2(_ *PacketConn, err error) error { return err }

// TestPacketsRefused: what the device does not take is an error of the call, and not of the next one.
func TestPacketsRefused(t *testing.T) {
	ctx := within(t)
	server := newPackets(t, firstAny, PacketOptions{})
	client := value(DialPacket(ctx, server.LocalAddr().String(), PacketOptions{SendDepth: 1}))(t)
	t.Cleanup(func() { must(t, client.Close()) })
	to, _ := client.DialedPeer()
	must(t, client.Send(ctx, []byte("one"), to))
	_, from := received(t, server) // it has the receive until the next Recv
	must(t, server.qp.Modify(uverbs.QPAttr{State: ib.QPReset}, uverbs.AttrState))
	if err := server.Send(ctx, []byte("answer"), from); !errors.Is(err, uverbs.ErrState) {
		t.Errorf("Send: %v, want ErrState", err)
	}
	if _, _, err := server.Recv(ctx); !errors.Is(err, uverbs.ErrState) {
		t.Errorf("Recv: %v, want ErrState", err)
	}
}

// TestPacketFlushed: a datagram that the device has taken and flushed is an error of the next Send.
func TestPacketFlushed(t *testing.T) {
	ctx := within(t)
	if testenv.Kernel(t)[0] < 6 {
		testenv.Skip(t, &uverbs.FeatureError{Feature: "flush of sends in ERR", Since: uverbs.Version{6, 0}})
	}
	server := newPackets(t, firstAny, PacketOptions{})
	client := value(DialPacket(ctx, server.LocalAddr().String(), PacketOptions{SendDepth: 1}))(t)
	t.Cleanup(func() { must(t, client.Close()) })
	to, _ := client.DialedPeer()
	must(t, client.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState), client.Send(ctx, []byte("one"), to))
	if err := client.Send(ctx, []byte("two"), to); !errors.Is(err, uverbs.WCWRFlushErr) {
		t.Errorf("Send after one that was flushed: %v, want %v", err, uverbs.WCWRFlushErr)
	}
}

// TestJoinWhileClosing: Join and Leave of several groups run beside Close, which releases everything.
func TestJoinWhileClosing(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsIB(t, "datagrams")
	before := quiet(t)
	ctx := within(t)
	for end, round := time.Now().Add(2*time.Second), 0; time.Now().Before(end); round++ {
		p := value(ListenPacket(ctx, firstAny, PacketOptions{}))(t)
		var all sync.WaitGroup
		for i := range 6 {
			group := netip.AddrFrom4([4]byte{239, 1, 2, byte(i)})
			all.Go(func() {
				for {
					if _, err := p.Join(ctx, group, 0); err != nil {
						return
					}
					if p.Leave(group) != nil {
						return
					}
				}
			})
		}
		time.Sleep(time.Duration(round%10) * 100 * time.Microsecond)
		must(t, p.Close())
		all.Wait()
	}
	nothingLeft(t, before)
}
