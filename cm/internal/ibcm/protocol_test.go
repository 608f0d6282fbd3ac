package ibcm

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// noError is the result of an operation that has succeeded.
const noError = syscall.Errno(0)

// wants compares the events and the states of two ends.
func wants(t *testing.T, h *host, id *ID, state State, events ...EventType) {
	t.Helper()
	if id.State() != state {
		t.Errorf("%s: state %s, want %s", h.addr, id.State(), state)
	}
	if got := h.types(id); !slices.Equal(got, events) {
		t.Errorf("%s: events %v, want %v", h.addr, got, events)
	}
}

// empty checks that the managers have forgotten everything.
func empty(t *testing.T, hosts ...*host) {
	t.Helper()
	for _, h := range hosts {
		m := h.m
		if n := m.Len() + len(m.remotes) + len(m.peerQPs) + len(m.sidr) + len(m.timers); n != 0 {
			t.Errorf("%s keeps %d IDs, %d peers, %d QPs, %d SIDR requests, %d timers", h.addr, m.Len(), len(m.remotes), len(m.peerQPs), len(m.sidr), len(m.timers))
		}
	}
}

func TestConnectAndDisconnect(t *testing.T) {
	n, client, server, a, p := established(t)
	wants(t, client, a, Established, EventREP)
	wants(t, server, p, Established, EventREQ, EventRTU)
	req, rep := (*server.events[p])[0].Message.(*REQ), (*client.events[a])[0].Message.(*REP)
	if string(req.Private[:7]) != "request" || string(rep.Private[:5]) != "reply" || req.GUID != 0xa || rep.GUID != 0xb {
		t.Errorf("REQ is %+v\nREP is %+v", req, rep)
	}
	if req.Primary.AckTimeout != 17 || req.Primary.LocalLID != 0xffff || req.Primary.SubnetLocal || rep.AckDelay != 15 {
		t.Errorf("primary path %+v, ACK delay %d", req.Primary, rep.AckDelay)
	}
	n.ok(a.SendDREQ())
	n.settle()
	wants(t, client, a, DREQSent, EventREP)
	wants(t, server, p, DREQRcvd, EventREQ, EventRTU, EventDREQ)
	n.ok(p.SendDREP())
	n.settle()
	wants(t, client, a, Timewait, EventREP, EventDREP)
	wants(t, server, p, Timewait, EventREQ, EventRTU, EventDREQ)
	n.run(512*time.Millisecond - 1) // 2^(17-8) ms
	wants(t, client, a, Timewait, EventREP, EventDREP)
	n.run(1)
	wants(t, client, a, Idle, EventREP, EventDREP, EventTimewaitExit)
	wants(t, server, p, Idle, EventREQ, EventRTU, EventDREQ, EventTimewaitExit)
	a.Destroy()
	p.Destroy()
	empty(t, client, server)
	// Transaction IDs: those of the request, and of the DREQ.
	for _, s := range n.sent {
		first := n.sent[0].tid
		if disconnecting := s.message.Attr() == AttrDREQ || s.message.Attr() == AttrDREP; !disconnecting && s.tid != first {
			t.Errorf("%T has transaction ID %#x, want %#x", s.message, s.tid, first)
		}
	}
}

func TestQPAttr(t *testing.T) {
	_, client, server, a, p := established(t)
	req, rep := (*server.events[p])[0].Message.(*REQ), (*client.events[a])[0].Message.(*REP)
	const access = 1<<1 | 1<<2 | 1<<3 | 1<<8 | 1<<9
	path := Path{FlowLabel: 0x1234, TrafficClass: 8, MTU: 3, Lifetime: 16, PKey: 0xffff}
	toServer, toClient := path, path
	toServer.Src, toServer.Dst, toServer.HopLimit = client.addr, server.addr, 64
	toClient.Src, toClient.Dst, toClient.HopLimit = server.addr, client.addr, 255
	for _, c := range []struct {
		name  string
		id    *ID
		state uint32
		want  QPAttr
	}{
		{"active INIT", a, QPInit, QPAttr{Mask: 1 | 1<<3 | 1<<4 | 1<<5, Access: access}},
		{"active RTR", a, QPRTR, QPAttr{Mask: 1 | 1<<7 | 1<<8 | 1<<20 | 1<<12 | 1<<17 | 1<<15, Path: toServer, DestQPN: rep.QPN, RQPSN: req.PSN, MaxDestRdAtomic: 3}},
		{"active RTS", a, QPRTS, QPAttr{Mask: 1 | 1<<16 | 1<<10 | 1<<11 | 1<<13 | 1<<9, SQPSN: rep.PSN, MaxRdAtomic: 2, Timeout: 17, RetryCount: 7, RNRRetryCount: 5}},
		{"passive INIT", p, QPInit, QPAttr{Mask: 1 | 1<<3 | 1<<4 | 1<<5, Access: access}},
		{"passive RTR", p, QPRTR, QPAttr{Mask: 1 | 1<<7 | 1<<8 | 1<<20 | 1<<12 | 1<<17 | 1<<15, Path: toClient, DestQPN: req.QPN, RQPSN: rep.PSN, MaxDestRdAtomic: 2}},
		{"passive RTS", p, QPRTS, QPAttr{Mask: 1 | 1<<16 | 1<<10 | 1<<11 | 1<<13 | 1<<9, SQPSN: req.PSN, MaxRdAtomic: 3, Timeout: 17, RetryCount: 7, RNRRetryCount: 6}},
	} {
		got, errno := c.id.QPAttr(c.state)
		if diff := cmp.Diff(c.want, got, cmpopts.EquateComparable(netip.Addr{})); errno != 0 || diff != "" {
			t.Errorf("%s: errno %d (-want +got):\n%s", c.name, errno, diff)
		}
	}
	if _, errno := a.QPAttr(4); errno != syscall.EINVAL {
		t.Errorf("SQD: %v", errno)
	}
	a.Destroy()
	if _, errno := a.QPAttr(QPInit); errno != syscall.EINVAL {
		t.Errorf("idle: %v", errno)
	}
}

// TestResponderResources: without them a QP grants no READs, and a UC QP has no attributes of READs
// and acknowledgments.
func TestResponderResources(t *testing.T) {
	n, client, server := pair(t)
	a := client.m.NewID(client.handle)
	r := client.requestTo(server)
	r.ResponderResources, r.QPType = 0, ib.UC
	n.ok(a.SendREQ(r))
	n.settle()
	p := server.last()
	if req := (*server.events[p])[0].Message.(*REQ); req.QPType() != ib.UC {
		t.Errorf("transport %d", req.Transport)
	}
	if got, errno := a.QPAttr(QPInit); errno != 0 || got.Access != 1<<1 {
		t.Errorf("access %#x, %v", got.Access, errno)
	}
	if _, errno := a.QPAttr(QPRTR); errno != syscall.EINVAL {
		t.Errorf("RTR before the reply: %v", errno)
	}
	rtr, _ := p.QPAttr(QPRTR)
	rts, _ := p.QPAttr(QPRTS)
	if rtr.Mask != 1|1<<7|1<<8|1<<20|1<<12 || rts.Mask != 1|1<<16 {
		t.Errorf("masks %#x, %#x", rtr.Mask, rts.Mask)
	}
}

// TestNoAnswer: a message is repeated at the times of the kernel, a REQ each second, and then reported.
func TestNoAnswer(t *testing.T) {
	lose := func(lost Attr) func(Message) []time.Duration {
		return func(m Message) []time.Duration {
			if m.Attr() == lost {
				return nil
			}
			return []time.Duration{0}
		}
	}
	t.Run("REQ", func(t *testing.T) {
		n, client, server := pair(t)
		n.fate = lose(AttrREQ)
		a := client.connect(server)
		n.run(74 * time.Second) // 16 times 4.608 s, as with the kernel
		wants(t, client, a, Idle, EventREQError)
		if len(n.sent) != 73 {
			t.Fatalf("%d messages, want 73", len(n.sent))
		}
		for i, s := range n.sent {
			if s.at != time.Duration(i)*time.Second || s.message.Attr() != AttrREQ {
				t.Errorf("message %d: %T at %s, want %d s", i, s.message, s.at, i)
			}
		}
		a.Destroy()
		empty(t, client, server)
	})
	t.Run("REP", func(t *testing.T) {
		n, client, server := pair(t)
		n.fate = lose(AttrREP)
		a := client.connect(server)
		n.settle()
		p := server.last()
		n.ok(p.SendREP(server.reply()))
		a.Destroy() // the REJ of which is lost
		n.fate = func(Message) []time.Duration { return nil }
		n.packets = nil
		n.run(time.Hour)
		wants(t, server, p, Idle, EventREQ, EventREPError)
		if got := n.count(AttrREP, server); got != answersPerRequest-1 { // the last answer is for a REJ
			t.Errorf("%d REPs", got)
		}
		if last := n.sent[len(n.sent)-1]; last.at != 4096*time.Millisecond {
			t.Errorf("the last at %s", last.at)
		}
		p.Destroy()
		empty(t, client, server)
	})
	t.Run("DREQ", func(t *testing.T) {
		n, client, server, a, p := established(t)
		n.fate = lose(AttrDREQ)
		n.ok(a.SendDREQ())
		n.run(time.Hour)
		wants(t, client, a, Idle, EventREP, EventDREQError, EventTimewaitExit)
		wants(t, server, p, Established, EventREQ, EventRTU)
		if got := n.count(AttrDREQ, client); got != 16 {
			t.Errorf("%d DREQs", got)
		}
		if errno := a.SendDREQ(); errno != syscall.EINVAL {
			t.Errorf("DREQ when idle: %v", errno)
		}
	})
}

// TestRepeatedMessages tests the answers to messages that arrive again.
func TestRepeatedMessages(t *testing.T) {
	n, client, server := pair(t)
	replies := 0
	n.fate = func(m Message) []time.Duration {
		if m.Attr() == AttrREP {
			if replies++; replies == 1 {
				return nil
			}
		}
		return []time.Duration{0}
	}
	a := client.connect(server)
	n.settle()
	p := server.last()
	n.run(5 * time.Second) // REQs again, in REQRcvd: no answer
	if got, want := n.count(AttrREQ, client), 6; got != want || n.count(AttrMRA, server) != 0 {
		t.Errorf("%d REQs, want %d; %d MRAs", got, want, n.count(AttrMRA, server))
	}
	p.PrepareMRA()
	n.run(time.Second) // REQ again: MRA
	wants(t, client, a, MRAREQRcvd)
	if got := n.sent[len(n.sent)-1].message; got.Attr() != AttrMRA || got.(*MRA).Timeout != 24 || got.(*MRA).Acknowledged != SubjectREQ {
		t.Errorf("answer is %+v", got)
	}
	reqs := n.count(AttrREQ, client)
	n.run(9 * time.Second) // the peer asks for 65.5 s, and gets maxMRA
	if got := n.count(AttrREQ, client); got != reqs {
		t.Errorf("%d more REQs during the time of the MRA", got-reqs)
	}
	n.run(time.Second)
	if got := n.count(AttrREQ, client); got != reqs+1 {
		t.Errorf("%d more REQs after the time of the MRA", got-reqs)
	}
	n.ok(p.SendREP(server.reply())) // lost
	n.settle()
	wants(t, client, a, MRAREQRcvd)
	n.run(4096 * time.Millisecond)
	wants(t, client, a, REPRcvd, EventREP)
	a.PrepareMRA()
	n.run(4096 * time.Millisecond) // REP again: MRA
	wants(t, server, p, MRAREPRcvd, EventREQ)
	rtus := 0
	n.fate = func(m Message) []time.Duration {
		if m.Attr() == AttrRTU {
			if rtus++; rtus == 1 {
				return nil
			}
		}
		return []time.Duration{0}
	}
	n.ok(a.SendRTU()) // lost
	n.settle()
	wants(t, server, p, MRAREPRcvd, EventREQ)
	n.run(maxMRA) // REP again: RTU again
	wants(t, client, a, Established, EventREP)
	wants(t, server, p, Established, EventREQ, EventRTU)
	if len(server.requests) != 1 {
		t.Errorf("%d requests", len(server.requests))
	}
	// A DREP that is lost is sent again, from TIMEWAIT and after the ID is gone.
	n.fate = func(m Message) []time.Duration {
		if m.Attr() == AttrDREP && n.count(AttrDREP, client) < 3 {
			return nil
		}
		return []time.Duration{0}
	}
	n.ok(p.SendDREQ())
	n.settle()
	n.ok(a.SendDREP())
	p.startTimer(0) // once within TIMEWAIT
	n.settle()
	if got := n.count(AttrDREP, client); got != 2 {
		t.Errorf("%d DREPs in TIMEWAIT", got)
	}
	a.Destroy()
	n.run(10 * time.Second)
	wants(t, server, p, Idle, EventREQ, EventRTU, EventDREP, EventTimewaitExit)
}

// TestLateDREQ: a DREQ that comes again when TIMEWAIT is over is answered, although the ID is still there.
func TestLateDREQ(t *testing.T) {
	n, client, server, a, p := established(t)
	n.fate = func(m Message) []time.Duration {
		if m.Attr() == AttrDREP && n.count(AttrDREP, client) == 1 {
			return nil
		}
		return []time.Duration{0}
	}
	n.ok(p.SendDREQ())
	n.settle()
	n.ok(a.SendDREP())
	n.run(3 * time.Second)
	wants(t, client, a, Idle, EventREP, EventDREQ, EventTimewaitExit)
	wants(t, server, p, DREQSent, EventREQ, EventRTU)
	n.run(10 * time.Second)
	wants(t, server, p, Idle, EventREQ, EventRTU, EventDREP, EventTimewaitExit)
}

// TestCrossingDREQs: both sides disconnect at the same time.
func TestCrossingDREQs(t *testing.T) {
	n, client, server, a, p := established(t)
	n.ok(a.SendDREQ(), p.SendDREQ())
	n.settle()
	wants(t, client, a, DREQRcvd, EventREP, EventDREQ)
	wants(t, server, p, DREQRcvd, EventREQ, EventRTU, EventDREQ)
	n.ok(a.SendDREP(), p.SendDREP())
	n.run(time.Minute)
	wants(t, client, a, Idle, EventREP, EventDREQ, EventTimewaitExit)
	wants(t, server, p, Idle, EventREQ, EventRTU, EventDREQ, EventTimewaitExit)
}

// TestRejections tests the reasons to reject a request, and the contents of the REJ.
func TestRejections(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(client, server *host, r *Request)
		want   Reason
		info   int
	}{
		{"no listener", func(_, _ *host, r *Request) { r.Service++ }, ReasonInvalidServiceID, 0},
		{"refused", func(_, s *host, _ *Request) { s.verdict = Refuse }, ReasonConsumer, 0},
		{"other P_Key", func(_, _ *host, r *Request) { r.Path.PKey = 0x8001 }, ReasonInvalidGID, 16},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, client, server := pair(t)
			r := client.requestTo(server)
			c.change(client, server, r)
			a := client.m.NewID(client.handle)
			n.ok(a.SendREQ(r))
			n.settle()
			wants(t, client, a, Idle, EventREJ)
			rej := (*client.events[a])[0].Message.(*REJ)
			if rej.Reason != c.want || rej.Rejected != SubjectREQ || rej.CommID != 0 || rej.RemoteCommID != a.local || int(rej.InfoLength) != c.info {
				t.Errorf("REJ is %+v", rej)
			}
			a.Destroy()
			empty(t, client, server)
		})
	}
	t.Run("ignored", func(t *testing.T) {
		n, client, server := pair(t)
		server.verdict = Ignore
		a := client.connect(server)
		n.settle()
		wants(t, client, a, REQSent)
		empty(t, server)
		server.verdict = Accept
		n.run(5 * time.Second)
		wants(t, server, server.last(), REQRcvd, EventREQ)
	})
	t.Run("by the program", func(t *testing.T) {
		n, client, server := pair(t)
		a := client.connect(server)
		n.settle()
		p := server.last()
		p.PrepareMRA()
		if errno := p.SendREJ(ReasonConsumer, nil, make([]byte, REJPrivateSize+1)); errno != syscall.EINVAL {
			t.Errorf("too much private data: %v", errno)
		}
		n.ok(p.SendREJ(ReasonConsumer, nil, []byte("why")))
		n.settle()
		wants(t, client, a, Idle, EventREJ)
		rej := (*client.events[a])[0].Message.(*REJ)
		if rej.CommID != p.local || rej.Rejected != SubjectREQ || !bytes.HasPrefix(rej.Private[:], []byte("why\x00")) {
			t.Errorf("REJ is %+v", rej)
		}
		if errno := p.SendREJ(ReasonConsumer, nil, nil); errno != syscall.EINVAL {
			t.Errorf("REJ when idle: %v", errno)
		}
	})
	t.Run("of the reply", func(t *testing.T) {
		n, client, server := pair(t)
		a := client.connect(server)
		n.settle()
		p := server.last()
		n.ok(p.SendREP(server.reply()))
		n.settle()
		n.ok(a.SendREJ(ReasonConsumer, nil, nil))
		n.settle()
		wants(t, client, a, Idle, EventREP)
		wants(t, server, p, Idle, EventREQ, EventREJ)
		if rej := (*server.events[p])[1].Message.(*REJ); rej.Rejected != SubjectREP {
			t.Errorf("REJ is %+v", rej)
		}
	})
	t.Run("by another address family", func(t *testing.T) {
		n, client, server := pair(t)
		var mad [MADSize]byte
		six := netip.MustParseAddr("fd00::1").As16()
		Encode(&mad, 1, &REQ{CommID: 7, Service: tcpService, PKey: 0xffff, Primary: PathInfo{LocalGID: six}})
		n.SendMAD(client.addr, server.addr, mad[:])
		n.settle()
		if rej, ok := n.sent[len(n.sent)-1].message.(*REJ); !ok || rej.Reason != ReasonInvalidGID {
			t.Errorf("answer is %+v", n.sent[len(n.sent)-1].message)
		}
	})
}

// TestDestroy tests what the peer is told when an ID is destroyed, for each state.
func TestDestroy(t *testing.T) {
	t.Run("REQSent", func(t *testing.T) {
		n, client, server := pair(t)
		a := client.connect(server)
		n.settle()
		a.Destroy()
		n.settle()
		p := server.last()
		wants(t, server, p, Idle, EventREQ, EventREJ)
		rej := (*server.events[p])[1].Message.(*REJ)
		if rej.Reason != ReasonTimeout || rej.InfoLength != 8 || binary.BigEndian.Uint64(rej.Info[:]) != 0xa || rej.CommID != a.local {
			t.Errorf("REJ is %+v", rej)
		}
		p.Destroy()
		empty(t, client, server)
	})
	t.Run("REQRcvd", func(t *testing.T) {
		n, client, server := pair(t)
		a := client.connect(server)
		n.settle()
		server.last().Destroy()
		n.settle()
		wants(t, client, a, Idle, EventREJ)
		empty(t, server)
	})
	t.Run("REPSent", func(t *testing.T) {
		n, client, server := pair(t)
		a := client.connect(server)
		n.settle()
		p := server.last()
		n.ok(p.SendREP(server.reply()))
		n.settle()
		p.Destroy()
		n.settle()
		wants(t, client, a, Timewait, EventREP, EventREJ)
		empty(t, server)
	})
	t.Run("REPRcvd", func(t *testing.T) {
		n, client, server := pair(t)
		a := client.connect(server)
		n.settle()
		p := server.last()
		n.ok(p.SendREP(server.reply()))
		n.settle()
		a.Destroy()
		n.settle()
		wants(t, server, p, Idle, EventREQ, EventREJ)
		empty(t, client)
	})
	t.Run("Established", func(t *testing.T) {
		n, client, server, a, p := established(t)
		a.Destroy()
		n.settle()
		wants(t, server, p, DREQRcvd, EventREQ, EventRTU, EventDREQ)
		p.Destroy()
		n.settle()
		empty(t, client, server)
		if got := n.sent[len(n.sent)-1].message.Attr(); got != AttrDREP {
			t.Errorf("the last message is %#x", got)
		}
		if n.run(time.Minute); n.count(AttrDREQ, client) != 1 {
			t.Errorf("%d DREQs", n.count(AttrDREQ, client))
		}
	})
	t.Run("DREQSent", func(t *testing.T) {
		n, client, _, a, _ := established(t)
		n.ok(a.SendDREQ())
		a.Destroy()
		n.settle()
		empty(t, client)
	})
}

// TestStaleConnection: a client that has restarted uses the QP of a connection that the server still
// knows.
func TestStaleConnection(t *testing.T) {
	n, client, server, a, p := established(t)
	qpn := (*server.events[p])[0].Message.(*REQ).QPN
	n.fate = func(Message) []time.Duration { return nil }
	a.Destroy() // of which the server learns nothing
	n.fate = nil
	restarted := n.host(client.addr.String(), 0xa)
	r := restarted.requestTo(server)
	r.QPN = qpn
	b := restarted.m.NewID(restarted.handle)
	n.ok(b.SendREQ(r))
	n.settle()
	wants(t, restarted, b, Timewait, EventREJ)
	if rej := (*restarted.events[b])[0].Message.(*REJ); rej.Reason != ReasonStaleConn {
		t.Errorf("REJ is %+v", rej)
	}
	// The server asks about the old connection, and learns that it is gone.
	wants(t, server, p, Timewait, EventREQ, EventRTU, EventDREP)
	n.run(time.Second)
	c := restarted.m.NewID(restarted.handle)
	n.ok(c.SendREQ(r))
	n.settle()
	wants(t, server, server.last(), REQRcvd, EventREQ)
}

func TestEstablish(t *testing.T) {
	n, client, server := pair(t)
	a := client.connect(server)
	n.settle()
	p := server.last()
	if errno := p.Establish(); errno != syscall.EINVAL {
		t.Errorf("before the reply: %v", errno)
	}
	n.ok(p.SendREP(server.reply()))
	n.settle()
	n.ok(p.Establish())
	wants(t, server, p, Established, EventREQ, EventEstablished)
	if errno := p.Establish(); errno != syscall.EISCONN {
		t.Errorf("when established: %v", errno)
	}
	n.ok(a.SendRTU())
	n.settle()
	wants(t, server, p, Established, EventREQ, EventEstablished)
}

// TestWrongState: operations that do not suit the state change nothing and send nothing.
func TestWrongState(t *testing.T) {
	n, client, server, a, p := established(t)
	sent := len(n.sent)
	for name, errno := range map[string]syscall.Errno{
		"SendREQ": a.SendREQ(client.requestTo(server)), "SendREP": p.SendREP(server.reply()), "SendRTU": a.SendRTU(), "SendDREP": a.SendDREP(),
		"SendREJ": a.SendREJ(ReasonConsumer, nil, nil), "SendSIDRREP": p.SendSIDRREP(&SIDRREP{}), "SendSIDRREQ": a.SendSIDRREQ(&SIDRRequest{}),
	} {
		if errno != syscall.EINVAL {
			t.Errorf("%s: %v", name, errno)
		}
	}
	a.PrepareMRA()
	id := client.m.NewID(nil)
	for name, change := range map[string]func(*Request){
		"QP type": func(r *Request) { r.QPType = 4 }, "private data": func(r *Request) { r.Private = make([]byte, REQPrivateSize+1) },
	} {
		r := client.requestTo(server)
		if change(r); id.SendREQ(r) != syscall.EINVAL {
			t.Errorf("SendREQ with another %s succeeds", name)
		}
	}
	// Messages that belong to no ID, or not to the state.
	for _, m := range []Message{
		&RTU{IDs: IDs{a.local, p.local}}, &RTU{IDs: IDs{1, 2}}, &DREP{IDs: IDs{a.local, p.local}}, &MRA{IDs: IDs{a.local, p.local}, Acknowledged: SubjectREP},
		&REP{CommID: 5, RemoteCommID: 6}, &REJ{IDs: IDs{1, 2}}, &SIDRREP{RequestID: p.local}, &DREQ{IDs: IDs{a.local, p.local}, QPN: 1},
	} {
		var mad [MADSize]byte
		Encode(&mad, 1, m)
		server.m.Receive(client.addr, server.addr, mad[:])
	}
	wants(t, client, a, Established, EventREP)
	wants(t, server, p, Established, EventREQ, EventRTU)
	if len(n.sent) != sent {
		t.Errorf("%T was sent", n.sent[sent].message)
	}
	// A DREQ to an unknown ID is answered.
	var mad [MADSize]byte
	Encode(&mad, 99, &DREQ{IDs: IDs{1, 2}})
	server.m.Receive(client.addr, server.addr, mad[:])
	last := n.sent[len(n.sent)-1]
	if drep, ok := last.message.(*DREP); !ok || drep.IDs != (IDs{2, 1}) || last.tid != 99 {
		t.Errorf("answer is %+v", last)
	}
}

func TestSIDR(t *testing.T) {
	const service = 0x0000000001110007
	n, client, server := pair(t)
	server.services[service] = true
	request := func() *ID {
		id := client.m.NewID(client.handle)
		n.ok(id.SendSIDRREQ(&SIDRRequest{
			Path: Path{Src: client.addr, Dst: server.addr, PKey: 0xffff}, Service: service, Timeout: 4096 * time.Millisecond, MaxRetries: 15, Private: []byte("hello"),
		}))
		n.settle()
		return id
	}
	a := request()
	p := server.last()
	wants(t, client, a, SIDRREQSent)
	wants(t, server, p, SIDRREQRcvd, EventSIDRREQ)
	if m := (*server.events[p])[0].Message.(*SIDRREQ); string(m.Private[:5]) != "hello" || m.PKey != 0xffff || m.Service != service {
		t.Errorf("SIDR_REQ is %+v", m)
	}
	n.run(5 * time.Second) // again: no new request
	if len(server.requests) != 1 || n.count(AttrSIDRREQ, client) != 2 {
		t.Errorf("%d requests, %d SIDR_REQs", len(server.requests), n.count(AttrSIDRREQ, client))
	}
	n.ok(p.SendSIDRREP(&SIDRREP{QPN: 5, QKey: 0x01234567, Private: [SIDRREPPrivateSize]byte{1}}))
	n.settle()
	wants(t, client, a, Idle, EventSIDRREP)
	if m := (*client.events[a])[0].Message.(*SIDRREP); m.QPN != 5 || m.QKey != 0x01234567 || m.Private[0] != 1 || m.Status != SIDRSuccess || m.Service != service {
		t.Errorf("SIDR_REP is %+v", m)
	}
	// Destroying the request rejects it, as does a port without a listener.
	b := request()
	server.last().Destroy()
	n.settle()
	delete(server.services, service)
	c := request()
	for id, want := range map[*ID]SIDRStatus{b: SIDRReject, c: SIDRUnsupported} {
		wants(t, client, id, Idle, EventSIDRREP)
		if got := (*client.events[id])[0].Message.(*SIDRREP).Status; got != want {
			t.Errorf("status %d, want %d", got, want)
		}
	}
	// No answer.
	n.fate = func(Message) []time.Duration { return nil }
	d := request()
	n.run(16 * 4096 * time.Millisecond)
	wants(t, client, d, Idle, EventSIDRREQError)
	e := request()
	for _, id := range []*ID{a, b, c, d, e, p} {
		id.Destroy()
	}
	empty(t, client, server)
}

// TestAckTimeout compares with values of the kernel's cm_ack_timeout.
func TestAckTimeout(t *testing.T) {
	for _, c := range [][3]uint8{{15, 16, 17}, {15, 15, 17}, {15, 14, 16}, {15, 13, 16}, {15, 12, 15}, {0, 18, 19}, {17, 16, 18}, {0, 31, 31}, {31, 31, 31}} {
		if got := ackTimeout(c[0], c[1]); got != c[2] {
			t.Errorf("delay %d, lifetime %d: %d, want %d", c[0], c[1], got, c[2])
		}
	}
	for code, want := range map[uint8]time.Duration{0: time.Millisecond, 8: time.Millisecond, 9: 2 * time.Millisecond, 20: 4096 * time.Millisecond, 31: 1 << 23 * time.Millisecond} {
		if got := milliseconds(code); got != want {
			t.Errorf("code %d: %s, want %s", code, got, want)
		}
	}
}

// TestStaleReply: a reply comes from a QP with which this side still has a connection. The reply is
// rejected, and the request goes on.
func TestStaleReply(t *testing.T) {
	n, client, server, a, p := established(t)
	qpn := (*client.events[a])[0].Message.(*REP).QPN
	n.fate = func(Message) []time.Duration { return nil }
	p.Destroy() // of which the client learns nothing
	n.fate = nil
	b := client.connect(server)
	n.settle()
	q := server.last()
	r := server.reply()
	r.QPN = qpn
	n.ok(q.SendREP(r))
	n.settle()
	wants(t, client, b, REQSent)
	wants(t, server, q, Timewait, EventREQ, EventREJ)
	if rej := (*server.events[q])[1].Message.(*REJ); rej.Reason != ReasonStaleConn || rej.Rejected != SubjectREP {
		t.Errorf("REJ is %+v", rej)
	}
	wants(t, client, a, Timewait, EventREP, EventDREP)
	n.run(5 * time.Second) // the request comes again
	c := server.last()
	n.ok(c.SendREP(server.reply()))
	n.settle()
	wants(t, client, b, REPRcvd, EventREP)
}
