package ibcm

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// stranger is the address of a host that has no part in the connections of others.
var stranger = netip.MustParseAddr("10.0.0.9")

// receive gives a host a message as if it came from src.
func (h *host) receive(src, dst netip.Addr, m Message) {
	var mad [MADSize]byte
	Encode(&mad, 77, m)
	h.m.Receive(src, dst, mad[:])
}

// forgeries returns a message of each type and kind about an ID, with the right numbers.
func forgeries(id *ID, guid uint64, src, dst netip.Addr) []Message {
	ids := IDs{id.remote, id.local}
	info := [InfoSize]byte(append(binary.BigEndian.AppendUint64(nil, guid), make([]byte, InfoSize-8)...))
	req := func(comm, qpn uint32, service uint64) *REQ {
		return &REQ{
			CommID: comm, Service: service, GUID: guid, QPN: qpn, PKey: 0xffff, MaxRetries: 15,
			Primary: PathInfo{LocalGID: src.As16(), RemoteGID: dst.As16()},
		}
	}
	all := []Message{
		&REP{CommID: 0x77, RemoteCommID: id.local, GUID: guid, QPN: 0x77}, &REP{CommID: id.remote, RemoteCommID: id.local, GUID: guid, QPN: id.remoteQPN},
		&RTU{IDs: ids}, &DREQ{IDs: ids, QPN: id.localQPN}, &DREP{IDs: ids},
		&SIDRREP{RequestID: id.local, QPN: 0x77, QKey: 1}, &SIDRREP{RequestID: id.local, Status: SIDRReject},
		req(id.remote, id.remoteQPN, tcpService), req(id.remote+1, id.remoteQPN, tcpService), req(id.remote+2, id.remoteQPN, 0),
		&SIDRREQ{RequestID: id.remote, PKey: 0xffff, Service: id.service},
	}
	for about := range SubjectOther + 1 {
		all = append(all, &MRA{IDs: ids, Acknowledged: about, Timeout: 31})
		for _, why := range []Reason{ReasonTimeout, ReasonInvalidServiceID, ReasonStaleConn, ReasonInvalidGID, ReasonConsumer} {
			all = append(all, &REJ{IDs: ids, Rejected: about, Reason: why, InfoLength: 8, Info: info})
		}
	}
	return all
}

// stages are connections in each state. The functions return the end that is attacked.
var stages = []struct {
	name   string
	attack func(n *network, client, server *host) *ID
}{
	{"REQSent", func(n *network, c, s *host) *ID {
		n.fate = func(Message) []time.Duration { return nil }
		return c.connect(s)
	}},
	{"MRAREQRcvd", func(n *network, c, s *host) *ID {
		a := c.connect(s)
		n.settle()
		s.last().PrepareMRA()
		n.run(5 * time.Second)
		return a
	}},
	{"REQRcvd", func(n *network, c, s *host) *ID { c.connect(s); n.settle(); return s.last() }},
	{"MRAREQSent", func(n *network, c, s *host) *ID { c.connect(s); n.settle(); s.last().PrepareMRA(); return s.last() }},
	{"REPSent", func(n *network, c, s *host) *ID { _, p := replied(n, c, s); return p }},
	{"MRAREPRcvd", func(n *network, c, s *host) *ID {
		a, p := replied(n, c, s)
		a.PrepareMRA()
		n.run(5 * time.Second)
		return p
	}},
	{"REPRcvd", func(n *network, c, s *host) *ID { a, _ := replied(n, c, s); return a }},
	{"MRAREPSent", func(n *network, c, s *host) *ID { a, _ := replied(n, c, s); a.PrepareMRA(); return a }},
	{"Established", func(n *network, c, s *host) *ID { a, _ := ready(n, c, s); return a }},
	{"Established", func(n *network, c, s *host) *ID { _, p := ready(n, c, s); return p }},
	{"DREQSent", func(n *network, c, s *host) *ID { a, _ := ready(n, c, s); n.ok(a.SendDREQ()); n.settle(); return a }},
	{"DREQRcvd", func(n *network, c, s *host) *ID { a, p := ready(n, c, s); n.ok(a.SendDREQ()); n.settle(); return p }},
	{"Timewait", func(n *network, c, s *host) *ID {
		a, p := ready(n, c, s)
		n.ok(a.SendDREQ())
		n.settle()
		n.ok(p.SendDREP())
		n.settle()
		return a
	}},
	{"SIDRREQSent", func(n *network, c, s *host) *ID {
		a := c.m.NewID(c.handle)
		n.ok(a.SendSIDRREQ(&SIDRRequest{Path: Path{Src: c.addr, Dst: s.addr, PKey: 0xffff}, Service: tcpService, Timeout: time.Second, MaxRetries: 15}))
		n.settle()
		return a
	}},
	{"SIDRREQRcvd", func(n *network, c, s *host) *ID {
		a := c.m.NewID(c.handle)
		n.ok(a.SendSIDRREQ(&SIDRRequest{Path: Path{Src: c.addr, Dst: s.addr, PKey: 0xffff}, Service: tcpService, Timeout: time.Second, MaxRetries: 15}))
		n.settle()
		return s.last()
	}},
}

// replied connects two hosts up to the REP.
func replied(n *network, client, server *host) (a, p *ID) {
	a = client.connect(server)
	n.settle()
	p = server.last()
	n.ok(p.SendREP(server.reply()))
	n.settle()
	return a, p
}

// ready connects two hosts.
func ready(n *network, client, server *host) (a, p *ID) {
	a, p = replied(n, client, server)
	n.ok(a.SendRTU())
	n.settle()
	return a, p
}

// TestStrangers: no message from an address that is not the peer's changes an ID in any state, even with all the
// right numbers. Each costs at most one answer, to its sender.
func TestStrangers(t *testing.T) {
	for _, stage := range stages {
		for _, from := range []string{"another address", "the peer to another address"} {
			t.Run(stage.name+", from "+from, func(t *testing.T) {
				n, client, server := pair(t)
				id := stage.attack(n, client, server)
				if id.State().String() != stage.name {
					t.Fatalf("the state is %s", id.State())
				}
				victim, peer := client, server
				if server.m.ids[id.local] == id {
					victim, peer = server, client
				}
				victim.verdict = Refuse
				src, dst := stranger, victim.addr
				if from != "another address" {
					src, dst = peer.addr, netip.MustParseAddr("10.0.0.8")
				}
				before, deadline, events, ids := id.State(), id.deadline, len(victim.types(id)), victim.m.Len()
				for _, guid := range []uint64{0xa, 0xb} {
					for _, m := range forgeries(id, guid, src, dst) {
						if m.Attr() == AttrREQ && src == peer.addr {
							continue // the peer may say itself that it has forgotten a connection
						}
						sent := len(n.sent)
						victim.receive(src, dst, m)
						if id.State() != before || id.deadline != deadline || len(victim.types(id)) != events || victim.m.Len() != ids {
							t.Fatalf("%+v: state %s, events %v, %d IDs of %d", m, id.State(), victim.types(id), victim.m.Len(), ids)
						}
						if answers := n.sent[sent:]; len(answers) > 1 || len(answers) == 1 && (answers[0].dst != src || answers[0].src != dst) {
							t.Fatalf("%+v: sends %+v", m, answers)
						}
					}
				}
			})
		}
	}
}

// TestGivenUp: a REJ by which a peer gives up, which has only the communication ID of the peer, ends a handshake on the
// side that has received the REQ. It ends neither one that this side has begun nor an established connection.
func TestGivenUp(t *testing.T) {
	for _, stage := range stages {
		n, client, server := pair(t)
		id := stage.attack(n, client, server)
		if id.remote == 0 { // it has heard of no peer
			continue
		}
		victim, peer := client, server
		if server.m.ids[id.local] == id {
			victim, peer = server, client
		}
		before, events := id.State(), len(victim.types(id))
		rej := &REJ{IDs: IDs{CommID: id.remote}, Rejected: SubjectOther, Reason: ReasonTimeout, InfoLength: 8}
		binary.BigEndian.PutUint64(rej.Info[:], id.remoteGUID)
		victim.receive(peer.addr, victim.addr, rej)
		if told := len(victim.types(id)) > events; told != (before >= REQRcvd && before <= MRAREPRcvd) || told != (id.State() != before) {
			t.Errorf("%s: state %s, events %v", before, id.State(), victim.types(id))
		}
	}
}

// TestClaims: a REQ that claims the GUID, the communication ID and the QP of another host does not end that host's
// connection, and does not keep its later requests out, however many there are.
func TestClaims(t *testing.T) {
	n, client, server, a, p := established(t)
	for _, victim := range []*host{client, server} { // the client does not listen
		for i := range uint32(300) {
			for guid, qpn := range map[uint64]uint32{0xa: p.remoteQPN + i, 0xb: a.remoteQPN + i} {
				victim.receive(stranger, victim.addr, &REQ{
					CommID: i, Service: tcpService, GUID: guid, QPN: qpn, PKey: 0xffff, LocalTimeout: 31, MaxRetries: 15,
					Primary: PathInfo{LocalGID: stranger.As16(), RemoteGID: victim.addr.As16()},
				})
			}
		}
	}
	n.settle()
	wants(t, client, a, Established, EventREP)
	wants(t, server, p, Established, EventREQ, EventRTU)
	for i := range uint32(20) {
		id := client.m.NewID(client.handle)
		r := client.requestTo(server)
		r.QPN = p.remoteQPN + 1 + i
		n.ok(id.SendREQ(r))
		n.settle()
		wants(t, client, id, REQSent)
		wants(t, server, server.last(), REQRcvd, EventREQ)
	}
}

// TestForeignGIDs: a REQ whose path is not that of its datagram is rejected, to its sender, and takes nothing.
func TestForeignGIDs(t *testing.T) {
	for name, change := range map[string]func(p *PathInfo){
		"the sender's GID":          func(p *PathInfo) { p.LocalGID = netip.MustParseAddr("10.0.0.66").As16() },
		"the receiver's GID":        func(p *PathInfo) { p.RemoteGID = netip.MustParseAddr("10.0.0.66").As16() },
		"no GID of the sender":      func(p *PathInfo) { p.LocalGID = [16]byte{} },
		"another family":            func(p *PathInfo) { p.LocalGID = netip.MustParseAddr("fd00::9").As16() },
		"the IPv4-compatible form":  func(p *PathInfo) { p.LocalGID = [16]byte{12: 10, 15: 9} },
		"the sender's GID as ours":  func(p *PathInfo) { p.RemoteGID = p.LocalGID },
		"the receiver's GID as his": func(p *PathInfo) { p.LocalGID = p.RemoteGID },
	} {
		n, client, server := pair(t)
		m := &REQ{CommID: 7, Service: tcpService, PKey: 0xffff, Primary: PathInfo{LocalGID: stranger.As16(), RemoteGID: server.addr.As16()}}
		change(&m.Primary)
		server.receive(stranger, server.addr, m)
		n.settle()
		if len(n.sent) != 1 || n.sent[0].dst != stranger {
			t.Fatalf("%s: sends %+v", name, n.sent)
		}
		if rej, ok := n.sent[0].message.(*REJ); !ok || rej.Reason != ReasonInvalidGID || rej.RemoteCommID != 7 || rej.InfoLength != 16 {
			t.Errorf("%s: answer is %+v", name, n.sent[0].message)
		}
		empty(t, client, server)
	}
}

// TestUnprovenAddress: until a host has shown that it receives the answers to its REQs, it gets at most three
// messages for each, whatever times the REQs ask for and whatever the program does.
func TestUnprovenAddress(t *testing.T) {
	for _, code := range []uint8{0, 20, 31} {
		for _, what := range []string{"accepts", "rejects", "rejects after a reply", "destroys after a reply", "is slow", "does nothing"} {
			t.Run(fmt.Sprintf("timeout %d, the program %s", code, what), func(t *testing.T) {
				n, client, server := pair(t)
				received := 0
				req := func() {
					received++
					server.receive(stranger, server.addr, &REQ{
						CommID: 7, Service: tcpService, GUID: 3, QPN: 4, PKey: 0xffff, LocalTimeout: code, MaxRetries: 15,
						Primary: PathInfo{LocalGID: stranger.As16(), RemoteGID: server.addr.As16(), AckTimeout: 31},
					})
				}
				req()
				p := server.last()
				switch what {
				case "accepts":
					n.ok(p.SendREP(server.reply()))
				case "rejects":
					n.ok(p.SendREJ(ReasonConsumer, nil, nil))
				case "rejects after a reply", "destroys after a reply":
					n.ok(p.SendREP(server.reply()))
					n.run(20 * time.Second)
					if what == "rejects after a reply" {
						p.SendREJ(ReasonConsumer, nil, nil) // the request may be over
					}
					p.Destroy()
				case "is slow":
					p.PrepareMRA()
					for range 50 {
						req()
					}
					n.ok(p.SendREP(server.reply()))
				}
				// Messages that prove nothing, as they have not the numbers of the answers.
				for i := range uint32(100) {
					server.receive(stranger, server.addr, &RTU{IDs: IDs{7, p.local ^ (i + 1)}})
					server.receive(stranger, server.addr, &MRA{IDs: IDs{7, p.local ^ (i + 1)}, Acknowledged: SubjectREP, Timeout: 31})
				}
				n.run(3 * time.Hour)
				if got := n.count(AttrREP, server) + n.count(AttrREJ, server) + n.count(AttrMRA, server) + n.count(AttrDREQ, server); got > answersPerRequest*received {
					t.Errorf("%d messages for %d REQs", got, received)
				}
				if what != "does nothing" {
					p.Destroy()
					empty(t, client, server)
				}
			})
		}
	}
}

// TestRepeatedREQPays: a client on a network that loses the first replies gets another one for each REQ that comes
// again.
func TestRepeatedREQPays(t *testing.T) {
	n, client, server := pair(t)
	n.fate = func(m Message) []time.Duration {
		if m.Attr() == AttrREP && n.now.Sub(start) < 24*time.Second {
			return nil
		}
		return []time.Duration{0}
	}
	a, p := replied(n, client, server)
	n.run(29 * time.Second)
	wants(t, client, a, REPRcvd, EventREP)
	n.ok(a.SendRTU())
	n.settle()
	wants(t, server, p, Established, EventREQ, EventRTU)
}

// TestLateRefusal: a peer that has not proven its address is told that its request is given up, however late.
func TestLateRefusal(t *testing.T) {
	for _, late := range []time.Duration{time.Second, 15 * time.Second, maxHalfOpen - 1} {
		n, client, server := pair(t)
		a, p := replied(n, client, server)
		n.run(late)
		p.Destroy()
		n.settle()
		wants(t, client, a, Timewait, EventREP, EventREJ)
	}
}

// TestLongestTimes: what a peer asks for does not make an ID wait longer than this side allows.
func TestLongestTimes(t *testing.T) {
	const slow = 31 // 2.3 hours
	t.Run("half-open", func(t *testing.T) {
		n, client, server := pair(t)
		n.fate = func(Message) []time.Duration { return nil }
		server.receive(client.addr, server.addr, &REQ{
			CommID: 7, Service: tcpService, GUID: 3, QPN: 4, PKey: 0xffff, LocalTimeout: slow, MaxRetries: 15,
			Primary: PathInfo{LocalGID: client.addr.As16(), RemoteGID: server.addr.As16(), AckTimeout: slow},
		})
		p := server.last()
		n.ok(p.SendREP(server.reply()))
		n.run(20 * time.Second)
		for range 3 { // an MRA does not help either
			server.receive(client.addr, server.addr, &MRA{IDs: IDs{7, p.local}, Acknowledged: SubjectREP, Timeout: slow})
		}
		n.run(maxHalfOpen - 20*time.Second - 1)
		wants(t, server, p, MRAREPRcvd, EventREQ)
		n.run(1)
		wants(t, server, p, Idle, EventREQ, EventREPError)
	})
	t.Run("the end of a connection", func(t *testing.T) {
		n, client, server := pair(t)
		server.receive(client.addr, server.addr, &REQ{
			CommID: 7, Service: tcpService, GUID: 3, QPN: 4, PKey: 0xffff, LocalTimeout: slow, MaxRetries: 15,
			Primary: PathInfo{LocalGID: client.addr.As16(), RemoteGID: server.addr.As16(), AckTimeout: slow},
		})
		p := server.last()
		n.ok(p.SendREP(server.reply()))
		server.receive(client.addr, server.addr, &RTU{IDs: IDs{7, p.local}})
		n.fate = func(Message) []time.Duration { return nil }
		n.ok(p.SendDREQ())
		n.run(16*maxResponseTimeout + milliseconds(maxAckTimeout))
		wants(t, server, p, Idle, EventREQ, EventRTU, EventDREQError, EventTimewaitExit)
	})
	t.Run("MRAs during a dial", func(t *testing.T) {
		n, client, server := pair(t)
		n.fate = func(Message) []time.Duration { return nil }
		a := client.connect(server)
		for range 75 {
			client.receive(server.addr, client.addr, &MRA{IDs: IDs{7, a.local}, Acknowledged: SubjectREQ, Timeout: slow})
			n.run(time.Second)
		}
		wants(t, client, a, Idle, EventREQError)
	})
	t.Run("TIMEWAIT after a reply", func(t *testing.T) {
		n, client, server := pair(t)
		a := client.connect(server)
		n.settle()
		client.receive(server.addr, client.addr, &REP{CommID: 7, RemoteCommID: a.local, GUID: 3, QPN: 4, AckDelay: slow})
		n.ok(a.SendRTU())
		client.receive(server.addr, client.addr, &DREQ{IDs: IDs{7, a.local}, QPN: a.localQPN})
		n.ok(a.SendDREP())
		n.run(milliseconds(maxAckTimeout))
		wants(t, client, a, Idle, EventREP, EventDREQ, EventTimewaitExit)
	})
}

// TestNumbers: each communication ID and each transaction ID is a random number of its own, so that those that a
// peer has seen tell it nothing about others.
func TestNumbers(t *testing.T) {
	next := []uint32{0, 5, 5, 9, 0x1000, 0x2000, 7}
	m := New(Config{Rand: func() (v uint32) { v, next = next[0], next[1:]; return v }})
	for i, want := range []uint32{5, 9} { // 0 is no ID, and 5 is taken
		if id := m.NewID(nil); id.local != want {
			t.Errorf("ID %d is %#x, want %#x", i, id.local, want)
		}
	}
	if got := m.newTID(); got != 0x1000<<32|0x2000 {
		t.Errorf("transaction ID %#x", got)
	}
	if id := m.NewID(nil); id.local != 7 {
		t.Errorf("the third ID is %#x", id.local)
	}
}
