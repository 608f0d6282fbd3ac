package umad

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// Port is an open port for MADs. Its methods can be called concurrently.
type Port struct {
	device    string
	number    int
	transport Transport
	smi       *Port // has QP0 instead of this one; nil if this one has it

	mu     sync.Mutex
	agents map[uint32]*Agent // guarded by mu
	closed bool              // guarded by mu

	lastTID atomic.Uint32 // the lower half of the last transaction ID

	receiver chan struct{} // has an element while a goroutine receives for the agents

	done   chan struct{} // closed when nothing arrives any more
	reason error         // why; valid once done is closed
}

// NewPort returns the port that a transport leads to. The name of the device and the number of the port
// are for errors. Closing the port closes the transport.
func NewPort(device string, number int, t Transport) *Port {
	return &Port{
		device: device, number: number, transport: t, agents: map[uint32]*Agent{},
		receiver: make(chan struct{}, 1), done: make(chan struct{}),
	}
}

// Device returns the name of the RDMA device and the number of the port.
func (p *Port) Device() (name string, port int) { return p.device, p.number }

// end records that nothing arrives any more.
func (p *Port) end(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended() {
		p.reason = p.trafficErr("receive", why)
		close(p.done)
	}
}

// ended reports whether nothing arrives any more.
func (p *Port) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Register makes an agent. Close it when it is no longer needed; a port of the kernel can have 32 at a
// time. The error matches [ErrNoQP0] if the class is one of subnet management and the port does not
// support it. On a virtual function of mlx5 without subnet management it is sending that fails so.
func (p *Port) Register(o AgentOptions) (*Agent, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, p.err("register agent", err)
	}
	if o.Class.SMP() && p.smi != nil {
		return p.smi.Register(o)
	}
	r := Registration{QPN: 1, Version: o.Class.Version(), Methods: o.Methods, OUI: o.OUI, RMPP: o.RMPP || o.Class == mad.ClassSA}
	if o.Class.SMP() {
		r.QPN = 0
	}
	if len(o.Methods) > 0 {
		r.Class = o.Class
	}
	a := &Agent{
		port: p, o: o, window: make(chan struct{}, o.Window), waiting: map[uint32]chan *Message{},
		requests: make(chan *Message, maxRequests), closed: make(chan struct{}),
	}
	p.mu.Lock() // held so that deliver finds the agent
	defer p.mu.Unlock()
	if p.closed {
		return nil, p.err("register agent", os.ErrClosed)
	}
	if p.ended() {
		return nil, p.reason
	}
	if a.id, err = p.transport.Register(r); err != nil {
		return nil, p.registerErr(r, err)
	}
	p.agents[a.id] = a
	if len(o.Methods) > 0 {
		// Requests are received, and dropped if there are too many, even if nothing waits for them.
		go a.next(context.Background(), nil, nil, time.Time{})
	}
	return a, nil
}

// Close closes the port and its agents. Calls that wait return [os.ErrClosed].
func (p *Port) Close() error {
	if p.smi == nil {
		return p.close()
	}
	return errors.Join(p.smi.Close(), p.close())
}

// close closes the port of this device.
func (p *Port) close() error {
	p.mu.Lock()
	closed := p.closed
	p.closed = true
	p.mu.Unlock()
	if closed {
		return nil
	}
	p.end(os.ErrClosed)
	p.transport.Interrupt()
	p.receiver <- struct{}{} // there is no other one any more
	err := p.transport.Close()
	if err != nil {
		return p.err("close", err)
	}
	return nil
}
