// Package fabric tests the management of InfiniBand subnets on a simulated one, package subnet of test/hca. Its nodes
// have ports of package umad, so no kernel and no devices are needed:
//
//	top, _ := subnet.FatTree(100)
//	s := subnet.New(top, subnet.Config{})
//	s.Assign("host1", 1)
//	port, _ := openPort(s, "host1", 1)
//
// A port behaves as one of the kernel: it replaces the upper half of the transaction ID of requests, drops answers
// to requests that it does not know, reports requests without an answer, and answers requests for the
// management of its own port. An agent that serves a class (umad.AgentOptions.Methods) gets the requests
// of the class first, also those that the model's agents would answer. So a test can serve
// subnet administration, or wrong answers.
//
// Messages with several packets (RMPP) are not cut into packets: they cross the subnet whole.
package fabric_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/test/hca/subnet"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// openPort opens a port of a node, which is given by its name or description. Port 0 is the management port of a switch. Only
// one program, which is this caller, can have a port at a time; closing it lets others.
func openPort(s *subnet.Subnet, node string, number int) (*umad.Port, error) {
	t := &transport{
		agents: map[uint32]umad.Registration{}, waiting: map[request]*time.Timer{},
		some: make(chan struct{}, 1),
	}
	a, err := s.Attach(node, number, endpoint{t}, subnet.AttachOptions{})
	if err != nil {
		return nil, fmt.Errorf("simulated port: %w", err)
	}
	t.at = a
	return umad.NewPort(node, number, t), nil
}

// request identifies a request that is outstanding.
type request struct {
	tid   uint64
	class mad.Class
}

// transport implements umad.Transport.
type transport struct {
	at *subnet.Attachment

	mu      sync.Mutex
	agents  map[uint32]umad.Registration // by number
	last    uint32                       // number of the last agent
	waiting map[request]*time.Timer
	queue   []*umad.Message
	done    bool          // Close was called
	some    chan struct{} // has an element if Receive shall look into the queue
}

func (t *transport) Register(r umad.Registration) (uint32, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done {
		return 0, os.ErrClosed
	}
	for _, other := range t.agents {
		same := other.QPN == r.QPN && other.Class == r.Class && other.Version == r.Version && other.OUI == r.OUI
		if same && slices.ContainsFunc(r.Methods, func(m mad.Method) bool { return slices.Contains(other.Methods, m) }) {
			return 0, syscall.EINVAL
		}
	}
	t.last++
	t.agents[t.last] = r
	return t.last, nil
}

func (t *transport) Unregister(agent uint32) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.agents[agent]; !known {
		return syscall.EINVAL
	}
	delete(t.agents, agent)
	for r, timer := range t.waiting {
		if uint32(r.tid>>32) == agent {
			timer.Stop()
			delete(t.waiting, r)
		}
	}
	return nil
}

func (t *transport) Send(m *umad.Message) error {
	if len(m.MAD) < mad.HeaderSize {
		return syscall.EINVAL
	}
	b := slices.Clone(m.MAD)
	if err := t.begin(m, b); err != nil {
		return err
	}
	lid, lmc := t.at.LID()
	lid |= uint16(m.Addr.PathBits) & (1<<lmc - 1)
	p := &subnet.Packet{DLID: m.Addr.LID, SLID: lid, SL: m.Addr.SL, DestQP: m.Addr.QPN, SrcQP: 1, QKey: m.Addr.QKey, PKey: 0xffff, MAD: b}
	if class(b).SMP() {
		p.VL15, p.SrcQP = true, 0
		if p.DLID == umad.LIDPermissive {
			p.SLID = umad.LIDPermissive
		}
	}
	t.at.Send(p)
	return nil
}

// begin completes a message, and notes it if it is a request.
func (t *transport) begin(m *umad.Message, b []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.agents[m.Agent]; !known || t.done {
		return syscall.EINVAL
	}
	if method(b)&mad.MethodResponse != 0 || method(b) == mad.MethodTrapRepress {
		return nil // the transaction ID is the peer's
	}
	binary.BigEndian.PutUint32(b[8:], m.Agent)
	if m.Timeout <= 0 {
		return nil
	}
	r := request{binary.BigEndian.Uint64(b[8:]), class(b)}
	if t.waiting[r] != nil {
		return syscall.EINVAL
	}
	header := slices.Clone(b[:mad.HeaderSize])
	t.waiting[r] = time.AfterFunc(m.Timeout, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.waiting[r] != nil {
			delete(t.waiting, r)
			t.push(&umad.Message{Agent: m.Agent, Addr: m.Addr, MAD: header, TimedOut: true})
		}
	})
	return nil
}

// push queues a message for Receive. The lock is held.
func (t *transport) push(m *umad.Message) {
	t.queue = append(t.queue, m)
	t.Interrupt()
}

// next returns the next message, nil if there is none.
func (t *transport) next() *umad.Message {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) == 0 {
		return nil
	}
	m := t.queue[0]
	t.queue[0] = nil
	t.queue = t.queue[1:]
	return m
}

func (t *transport) Receive(wait time.Duration) (*umad.Message, error) {
	if m := t.next(); m != nil {
		return m, nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-t.some:
	case <-timer.C:
	}
	return t.next(), nil
}

// Interrupt implements umad.Transport.
func (t *transport) Interrupt() {
	select {
	case t.some <- struct{}{}:
	default:
	}
}

func (t *transport) Close() error {
	t.mu.Lock()
	t.done = true
	for _, timer := range t.waiting {
		timer.Stop()
	}
	t.mu.Unlock()
	t.at.Detach()
	return nil
}

// endpoint implements subnet.Endpoint.
type endpoint struct{ t *transport }

// LinkChanged implements subnet.Endpoint. As with umad, nobody is told.
func (endpoint) LinkChanged(bool) {}

// Receive implements subnet.Endpoint: it takes answers, and requests for which there is an agent.
func (e endpoint) Receive(p *subnet.Packet) bool {
	t, b := e.t, p.MAD
	if len(b) < mad.HeaderSize || p.VL15 != class(b).SMP() {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var agent uint32
	response := method(b)&mad.MethodResponse != 0 || method(b) == mad.MethodTrapRepress
	if response {
		r := request{binary.BigEndian.Uint64(b[8:]), class(b)}
		timer := t.waiting[r]
		if timer == nil {
			return method(b) != mad.MethodTrapRepress // nobody waits for it; one for a switch is its agent's
		}
		timer.Stop()
		delete(t.waiting, r)
		agent = uint32(r.tid >> 32)
	} else if agent = t.server(p); agent == 0 {
		return false
	}
	t.push(&umad.Message{Agent: agent, MAD: slices.Clone(b), Addr: umad.Addr{LID: p.SLID, QPN: p.SrcQP, QKey: p.QKey, SL: p.SL}})
	return true
}

// server returns the agent that serves a request, 0 if there is none.
func (t *transport) server(p *subnet.Packet) uint32 {
	b := p.MAD
	var oui uint32
	if class(b).Vendor() {
		if len(b) < mad.Size {
			return 0
		}
		oui = binary.BigEndian.Uint32(b[36:]) & 0xffffff
	}
	for number, r := range t.agents {
		if r.QPN == p.DestQP && r.Class == class(b) && r.Version == b[2] && r.OUI == oui && slices.Contains(r.Methods, method(b)) {
			return number
		}
	}
	return 0
}

func class(b []byte) mad.Class   { return mad.Class(b[1]) }
func method(b []byte) mad.Method { return mad.Method(b[3]) }
