package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// pretender is what a client pretends. It has a device at an address of its own, or none.
type pretender struct {
	dev       *uverbs.Device // reads the token by it, if it is not nil
	gid, path ib.GID         // where it says that its queue pairs and its end of the path are
	connected string         // the message with which it answers, if dev is nil; "" if it goes straight to the start
	refused   string         // what the server says of it
	told      bool           // the server has told its own queue pairs before it refuses
	until     func() bool    // when it hangs up, if it is not to wait for the end
}

// TestPerfServeVictim: whatever a client says, a server sends nothing to a host that has sent it nothing: in each
// test, with a wrong token, without one, and with the token that it has read at its own address. The
// server sends to the client's own address if all is true.
func TestPerfServeVictim(t *testing.T) {
	udp := freeUDP(t)
	const victimIP = "127.0.0.66"
	victim, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(victimIP), Port: udp})
	if err != nil {
		t.Fatal(err)
	}
	defer victim.Close()
	device, err := soft.New(soft.Options{Addr: netip.MustParseAddr("127.0.0.1"), Port: uint16(udp)})
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	dev, err := uverbs.Open(device.Name(), uverbs.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	port := fmt.Sprint(freeTCP(t))
	server := softCommand(t, fmt.Sprintf("127.0.0.2:%d", udp), "perf", "serve", "--listen", "127.0.0.2", "--port", port)
	var out bytes.Buffer
	server.Stdout, server.Stderr = &out, &out
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	addr := net.JoinHostPort("127.0.0.2", port)
	const noToken = "has not read the token"
	there, own := ib.GID(netip.MustParseAddr(victimIP).As16()), ib.GID(device.Addr().As16())
	refused := map[string]int{}
	for _, p := range []pretender{
		{gid: there, path: there, connected: `{"kind":"connected"}`, refused: noToken, told: true},
		{gid: there, path: there, connected: `{"kind":"connected","token":"AAAAAAAAAAAAAAAAAAAAAA=="}`, refused: noToken, told: true},
		{gid: there, path: there, refused: `"start" instead of "connected"`, told: true},
		{gid: there, path: own, dev: dev, refused: "is at GID " + there.String()},
	} {
		for _, test := range []struct{ op, metric string }{
			{perf.Send, perf.Lat}, {perf.Send, perf.BW}, {perf.Write, perf.Lat}, {perf.Write, perf.BW},
			{perf.Read, perf.Lat}, {perf.Read, perf.BW}, {perf.Atomic, perf.Lat}, {perf.Atomic, perf.BW},
		} {
			usual := perf.Default(test.op, test.metric)
			for _, typ := range usual.Types() {
				c := usual
				if typ == perf.XRC || typ == perf.DC || typ == perf.SRD { // which software devices do not have
					continue
				}
				c.Type, c.Both, c.Timeout = typ, test.metric == perf.BW, time.Second
				if typ == perf.UD {
					c.Sizes = []int{512}
				} else if test.op != perf.Atomic {
					c.Sizes = []int{1 << 20}
				}
				if told := p.talk(t, addr, c); told != p.told {
					t.Errorf("%s over %s, %+v: the server has told its queue pairs: %t", c.Name(), c.Type, p, told)
				}
				refused[p.refused]++
			}
		}
	}
	honest := perf.Default(perf.Write, perf.BW)
	honest.Type, honest.Both, honest.Timeout, honest.Sizes = perf.UC, true, time.Second, []int{1 << 20}
	before := device.Network().Received
	got := func() uint64 { return device.Network().Received - before }
	p := pretender{dev: dev, gid: own, path: own, until: func() bool { return got() > 1000 }} // the token takes few
	if told := p.talk(t, addr, honest); !told || !p.until() {
		t.Errorf("the server has told an honest client its queue pairs: %t, and sent it %d packets", told, got())
	}
	server.Process.Signal(syscall.SIGTERM)
	if err := server.Wait(); err != nil {
		t.Errorf("server: %v", err)
	}
	for words, n := range refused {
		got := 0
		for line := range strings.Lines(out.String()) {
			if strings.Contains(line, words) {
				got++
			}
		}
		if got != n {
			t.Errorf("the server says %q of %d clients, want %d", words, got, n)
		}
	}
	if t.Failed() {
		t.Logf("the server says:\n%s", out.String())
	}
	// Whatever the server has sent arrived before it ended, and so before this.
	const last = "the last one"
	end, err := net.DialUDP("udp4", nil, victim.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	if _, err := end.Write([]byte(last)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1<<16)
	victim.SetReadDeadline(time.Now().Add(time.Minute))
	if n, from, err := victim.ReadFrom(b); err != nil || string(b[:n]) != last {
		t.Errorf("the victim has got a datagram of %d bytes from %v: %x, %v", n, from, b[:min(n, 64)], err)
	}
}

// tokenReader reads the token of a path by RDMA READ.
type tokenReader struct {
	pd  *uverbs.PD
	cq  *uverbs.CQ
	qp  *uverbs.QP
	buf *uverbs.Buffer
	mr  *uverbs.MR
}

// newTokenReader makes the queue pair, and returns its end of the path.
func newTokenReader(t *testing.T, dev *uverbs.Device, server ib.GID) (r tokenReader, end perf.Peer) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	r.pd, err = dev.AllocPD()
	must(err)
	r.cq, err = dev.CreateCQ(uverbs.CQOptions{Size: 1})
	must(err)
	r.buf, err = uverbs.AllocBuffer(4096, uverbs.BufferOptions{})
	must(err)
	r.mr, err = r.pd.RegMR(r.buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
	must(err)
	o := uverbs.QPOptions{SendCQ: r.cq, RecvCQ: r.cq, MaxSendWR: 1}
	o.Path.MaxRdAtomic = 1
	r.qp, err = r.pd.CreateQP(o)
	must(err)
	must(r.qp.Init())
	e, err := r.qp.EndpointFor(uverbs.Endpoint{GID: server})
	must(err)
	return r, perf.Peer{QPN: e.QPN, PSN: e.PSN, GID: e.GID, Addr: r.mr.Addr(), RKey: r.mr.RKey()}
}

// read returns the token.
func (r *tokenReader) read(t *testing.T, server *perf.Peer) []byte {
	t.Helper()
	err := r.qp.Connect(t.Context(), uverbs.Endpoint{QPN: server.QPN, PSN: server.PSN, GID: server.GID})
	if err == nil {
		err = r.qp.PostSend(uverbs.SendWR{
			Opcode: uverbs.WRRDMARead, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{r.mr.SGE(0, 16)}, RemoteAddr: server.Addr, RKey: server.RKey,
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	var wcs [1]uverbs.WC
	for n := 0; n == 0 && err == nil; n, err = r.cq.Poll(wcs[:]) {
		time.Sleep(100 * time.Microsecond)
	}
	if err != nil || wcs[0].Err() != nil {
		t.Fatalf("read the token: %v, %v", err, wcs[0].Err())
	}
	return r.mr.Bytes()[:16]
}

// close destroys it.
func (r *tokenReader) close(t *testing.T) {
	t.Helper()
	if err := errors.Join(r.qp.Close(), r.mr.Close(), r.buf.Close(), r.cq.Close(), r.pd.Close()); err != nil {
		t.Error(err)
	}
}

// talk has the pretender talk to a server. It reports whether the server has told its own queue pairs.
func (p *pretender) talk(t *testing.T, addr string, c perf.Config) (told bool) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	for deadline := time.Now().Add(30 * time.Second); err != nil && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
		conn, err = net.Dial("tcp", addr)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	send := func(v any) {
		b, ok := v.([]byte)
		if !ok {
			if b, err = json.Marshal(v); err != nil {
				t.Fatal(err)
			}
		}
		conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)) // the server may have hung up
	}
	var m struct {
		Kind string
		Path *perf.Peer
	}
	read := func(kind string) bool {
		for {
			var head [4]byte
			if _, err := io.ReadFull(conn, head[:]); err != nil {
				return false
			}
			b := make([]byte, binary.BigEndian.Uint32(head[:]))
			if _, err := io.ReadFull(conn, b); err != nil {
				return false
			}
			m.Path = nil
			if json.Unmarshal(b, &m); m.Kind == kind {
				return true
			}
		}
	}
	conn.Write(binary.BigEndian.AppendUint32([]byte("goverbs perf"), perf.ProtocolVersion))
	io.ReadFull(conn, make([]byte, 16))
	limits := perf.Limits{Device: "soft0", Driver: "rxe", MaxMsg: 1 << 30, MTU: 1024, MaxWR: 1 << 14, MaxCQE: 1 << 20, MaxQPs: 1 << 10, RdAtomic: 16, Atomics: true}
	send(map[string]any{"kind": "hello", "limits": limits})
	send(map[string]any{"kind": "open", "config": c})
	if !read("opened") {
		t.Fatalf("%s over %s is not opened", c.Name(), c.Type)
	}
	path := perf.Peer{QPN: 16, PSN: 1, GID: p.path}
	var reader tokenReader
	if p.dev != nil {
		reader, path = newTokenReader(t, p.dev, ib.GID(netip.MustParseAddrPort(addr).Addr().As16()))
		defer reader.close(t)
	}
	peers := make([]perf.Peer, c.QPs)
	for i := range peers {
		peers[i] = perf.Peer{QPN: 17 + uint32(i), PSN: 1, GID: p.gid, Addr: 1 << 20, RKey: 1}
	}
	send(map[string]any{"kind": "peers", "peers": peers, "path": path})
	told = read("peers")
	switch {
	case told && p.dev != nil:
		send(map[string]any{"kind": "connected", "token": reader.read(t, m.Path)})
	case p.connected != "":
		send([]byte(p.connected))
	}
	send(map[string]any{"kind": "start", "size": c.Sizes[0]})
	for deadline := time.Now().Add(time.Minute); p.until != nil && !p.until(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return told
		}
	}
	if p.until == nil {
		read("report") // or the end
	}
	return told
}
