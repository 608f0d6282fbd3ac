package cm

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// iwarp skips a test on other transports, whose tests say the same of them.
func iwarp(t *testing.T) *rdmacm.Channel {
	t.Helper()
	c := openKernel(t)
	testenv.Needs(t, "iWARP", "siw")
	return c
}

// quietOnce is what there was when the first of the tests that leave nothing began; those between
// them leave nothing either.
var quietOnce struct {
	sync.Once
	kernelUse
}

// iwarpLeaves is iwarp for a test that looks in the end whether anything is left of it.
func iwarpLeaves(t *testing.T) *rdmacm.Channel {
	t.Helper()
	testenv.Guest(t)
	testenv.Needs(t, "iWARP", "siw")
	quietOnce.Do(func() { quietOnce.kernelUse = quiet(t) })
	t.Cleanup(func() { nothingLeft(t, quietOnce.kernelUse) }) // the last one
	return iwarp(t)
}

// TestIWARP connects two devices with QPs that are made by hand, which the kernel moves: the side
// that accepts may not send first, and what it receives lets it send.
func TestIWARP(t *testing.T) {
	c := iwarp(t)
	l, addr := listen(t, c, rdmacm.TCP, first)
	id := newID(t, c, rdmacm.TCP)
	resolve(t, c, id, addr)
	client := newEnd(t, id, ib.RC)
	hello, welcome := bytes.Repeat([]byte("h"), 56), bytes.Repeat([]byte("w"), 196)
	must(t, id.Connect(rdmacm.ConnParam{PrivateData: hello, ResponderResources: 3, InitiatorDepth: 2, QPN: client.qp.QPN()}))
	request := next(t, c, rdmacm.EventConnectRequest)
	if request.Listen != l || request.ID == l || !bytes.Equal(request.Param.PrivateData, hello) ||
		request.Param.ResponderResources != 2 || request.Param.InitiatorDepth != 3 {
		t.Errorf("request is %+v", request)
	}
	t.Cleanup(func() { must(t, request.ID.Close()) })
	server := newEnd(t, request.ID, ib.RC)
	must(t, server.qp.PostRecv(1, server.mr.SGE(0, 4096)), client.qp.PostRecv(1, client.mr.SGE(2048, 2048)))
	must(t, request.ID.Accept(rdmacm.ConnParam{PrivateData: welcome, ResponderResources: 2, InitiatorDepth: 2, QPN: server.qp.QPN()}))
	must(t, server.qp.SetKernelState(ib.QPRTR))
	for range 2 { // of both sides, in any order
		ctx := within(t)
		e := value(c.Next(ctx))(t)
		if e.Type != rdmacm.EventEstablished || e.Err() != nil {
			t.Fatalf("event is %s, %v", e.Type, e.Err())
		}
		if e.ID == id && !bytes.Equal(e.Param.PrivateData, welcome) {
			t.Errorf("answer is %+v", e)
		}
	}
	must(t, client.qp.SetKernelState(ib.QPRTS))
	answer := uverbs.SendWR{ID: 3, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{server.mr.SGE(0, 27)}}
	if err := server.qp.PostSend(answer); !errors.Is(err, uverbs.ErrState) || !strings.Contains(err.Error(), "the side that connects sends first") {
		t.Errorf("the side that has accepted sends first: %v", err)
	}
	copy(client.mr.Bytes(), "over the connection manager")
	must(t, client.qp.PostSend(uverbs.SendWR{ID: 2, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{client.mr.SGE(0, 27)}}))
	client.poll(t)
	if wc := server.poll(t); string(server.mr.Bytes()[:wc.ByteLen]) != "over the connection manager" {
		t.Errorf("received %q", server.mr.Bytes()[:wc.ByteLen])
	}
	must(t, server.qp.PostSend(answer))
	server.poll(t)
	if wc := client.poll(t); string(client.mr.Bytes()[2048:][:wc.ByteLen]) != "over the connection manager" {
		t.Errorf("the answer is %q", client.mr.Bytes()[2048:][:wc.ByteLen])
	}
	must(t, id.Disconnect())
	for range 2 { // this side need not wait for the other
		if e := next(t, c, rdmacm.EventDisconnected); e.ID != request.ID && e.ID != id {
			t.Error("disconnected is another ID")
		}
	}
}

// TestIWARPRefused: what is said of connections that are not made.
func TestIWARPRefused(t *testing.T) {
	c := iwarpLeaves(t)
	ctx := within(t)
	connect := func(to netip.AddrPort, p rdmacm.ConnParam) error {
		id := newID(t, c, rdmacm.TCP)
		must(t, id.ResolveWait(ctx, rdmacm.Addr{}, rdmacm.AddrOf(to)))
		p.QPN = newEnd(t, id, ib.RC).qp.QPN()
		_, err := id.ConnectWait(ctx, p)
		return err
	}
	says := func(what string, err error, is error, words string) {
		t.Helper()
		if !errors.Is(err, is) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, want %v and %q", what, err, is, words)
		}
	}
	says("nobody listens", connect(netip.AddrPortFrom(first, 9), rdmacm.ConnParam{}), syscall.ECONNREFUSED, "nobody listens there")

	// The program rejects.
	l := newID(t, c, rdmacm.TCP)
	must(t, l.Bind(rdmacm.Addr{IP: first}), l.Listen(4))
	addr := value(l.Addrs())(t).Local
	to := netip.AddrPortFrom(first, addr.Port)
	rejected := make(chan error, 1)
	go func() {
		e, err := l.NextRequest(ctx)
		if err == nil {
			err = errors.Join(e.ID.Reject([]byte("not you"), rdmacm.ReasonConsumer), e.ID.Close())
		}
		rejected <- err
	}()
	err := connect(to, rdmacm.ConnParam{})
	must(t, <-rejected)
	says("a rejection", err, syscall.ECONNREFUSED, "the program there has rejected the connection")
	var e *rdmacm.EventError
	if !errors.As(err, &e) || string(e.PrivateData) != "not you" {
		t.Errorf("the rejection comes with %+v", e)
	}
}

// TestIWARPOtherProtocols: a peer that speaks TCP but no MPA, another version of it, or nothing at all
// for a while, is no connection; nor is one that ends. The listener goes on.
func TestIWARPOtherProtocols(t *testing.T) {
	c := iwarpLeaves(t)
	ctx := within(t)
	l := value(Listen(ctx, net.JoinHostPort(first.String(), "0"), ListenOptions{}))(t)
	defer l.Close()
	// Of what is said to the listener it says nothing but by ending the connection.
	for name, greeting := range map[string]string{
		"another protocol": "GET / HTTP/1.0\r\nHost: localhost\r\n\r\n",
		"version 9":        "MPA ID Req Frame\x00\x09\x00\x00",
		"a reply":          "MPA ID Rep Frame\x00\x01\x00\x00",
	} {
		conn := value(net.Dial("tcp", l.Addr().String()))(t)
		value(conn.Write([]byte(greeting)))(t)
		conn.SetReadDeadline(time.Now().Add(4 * timeout))
		if n, err := conn.Read(make([]byte, 64)); err == nil {
			t.Errorf("%s is answered with %d bytes", name, n)
		}
		conn.Close()
	}
	// Answers of a listener that does not speak iWARP. (Some that are worse crash the kernel.)
	for name, answer := range map[string]string{
		"another version": "MPA ID Rep Frame\x10\x09\x00\x04\x00\x01\x00\x01",
		"a reject":        "MPA ID Rep Frame\x30\x02\x00\x04\x00\x01\x00\x01", "nothing": "",
	} {
		tcp := value(net.Listen("tcp", net.JoinHostPort(first.String(), "0")))(t)
		go func() {
			if conn, err := tcp.Accept(); err == nil {
				conn.Read(make([]byte, 256))
				conn.Write([]byte(answer))
				conn.Close()
			}
			tcp.Close()
		}()
		id := newID(t, c, rdmacm.TCP)
		must(t, id.ResolveWait(ctx, rdmacm.Addr{}, rdmacm.AddrOf(netip.MustParseAddrPort(tcp.Addr().String()))))
		_, err := id.ConnectWait(ctx, rdmacm.ConnParam{QPN: newEnd(t, id, ib.RC).qp.QPN()})
		if err == nil || !strings.Contains(err.Error(), tcp.Addr().String()) || !strings.Contains(err.Error(), "MPA") && !strings.Contains(err.Error(), "rejected") {
			t.Errorf("%s: %v", name, err)
		}
	}
	client, server := connect(t, l, DialOptions{})
	must(t, client.Send(ctx, []byte("it goes on")))
	if got := value(server.Recv(ctx))(t); string(got) != "it goes on" {
		t.Errorf("received %q", got)
	}
}

// TestIWARPSilent: a peer that has connected and does not send first, as one that is gone, is
// told of in time. This side may not ask.
func TestIWARPSilent(t *testing.T) {
	c := iwarp(t)
	ctx := within(t)
	l := value(Listen(ctx, net.JoinHostPort(first.String(), "0"), ListenOptions{ConnOptions: ConnOptions{Tuning: Tuning{AckTimeout: time.Millisecond, RetryCount: 1}}}))(t)
	defer l.Close()
	id := newID(t, c, rdmacm.TCP)
	must(t, id.ResolveWait(ctx, rdmacm.Addr{}, l.addr))
	qpn := newEnd(t, id, ib.RC).qp.QPN()
	connected := make(chan error, 1)
	go func() {
		greeting := greeting{kind: greetingRequest, depth: 4, size: 100}
		_, err := id.ConnectWait(ctx, rdmacm.ConnParam{QPN: qpn, PrivateData: greeting.encode()})
		connected <- err
	}()
	server := value(l.Accept(ctx))(t)
	must(t, <-connected)
	if _, err := server.Recv(ctx); !errors.Is(err, syscall.ETIMEDOUT) || !strings.Contains(err.Error(), "send first on iWARP") {
		t.Errorf("Recv: %v", err)
	}
	must(t, server.Close())
}

// TestIWARPDatagrams: datagrams and groups are refused as features that the device has not.
func TestIWARPDatagrams(t *testing.T) {
	c := iwarp(t)
	ctx := within(t)
	address := net.JoinHostPort(first.String(), "0")
	for what, ask := range map[string]func() error{
		"ListenPacket": func() error {
			p, err := ListenPacket(ctx, address, PacketOptions{})
			if err == nil {
				p.Close()
			}
			return err
		},
		"DialPacket": func() error {
			p, err := DialPacket(ctx, net.JoinHostPort(first.String(), "7"), PacketOptions{})
			if err == nil {
				p.Close()
			}
			return err
		},
		"Join": func() error {
			id := newID(t, c, rdmacm.UDP)
			must(t, id.Bind(rdmacm.Addr{IP: first}))
			_, err := id.Join(netip.MustParseAddr("239.1.2.3"), rdmacm.JoinFullMember)
			return err
		},
	} {
		err := ask()
		var f *uverbs.FeatureError
		if !errors.As(err, &f) || f.Driver != "siw" || !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v", what, err)
		}
		t.Logf("%s: %v", what, err)
	}
}
