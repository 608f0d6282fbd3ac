package umad

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// AgentOptions describe an agent.
type AgentOptions struct {
	// Class is the management class of the agent's MADs.
	Class mad.Class

	// Methods lists the methods of the requests that the agent serves, see [Agent.Receive]. If it is
	// empty, the agent only sends. No other agent on the port, of this or another program, can serve the same method of the
	// class.
	Methods []mad.Method
	OUI     uint32 // OUI identifies the vendor; an agent that serves a vendor class must have it.
	RMPP    bool   // RMPP says that messages can have several packets; it is always so for ClassSA.

	Window  int           // Window is how many calls of Do wait for an answer at most; 0 means 16.
	Timeout time.Duration // Timeout is how long the answer to each try may take; 0 means 1 s.
	Tries   int           // Tries is how often a request is sent if no answer comes; 0 means 3.
}

// withDefaults replaces zeros, and removes the bit of responses from the methods. It fails with EINVAL if a value is out of range.
func (o AgentOptions) withDefaults() (AgentOptions, error) {
	const positive = "0 or more"
	switch {
	case o.OUI >= 1<<24:
		return o, badValue("OUI", fmt.Sprintf("%#x", o.OUI), "up to 0xffffff")
	case o.Window < 0:
		return o, badValue("Window", o.Window, positive)
	case o.Timeout < 0:
		return o, badValue("Timeout", o.Timeout, positive)
	case o.Tries < 0:
		return o, badValue("Tries", o.Tries, positive)
	}
	o.Methods = slices.Clone(o.Methods)
	for i := range o.Methods {
		o.Methods[i] &^= mad.MethodResponse
	}
	o.Window, o.Timeout, o.Tries = cmp.Or(o.Window, 16), cmp.Or(o.Timeout, time.Second), cmp.Or(o.Tries, 3)
	return o, nil
}

// maxRequests is how many requests of others an agent keeps until they are received.
const maxRequests = 64

// Agent sends requests of a management class, and can serve requests of other ports. Its methods can be
// called concurrently.
type Agent struct {
	port   *Port
	id     uint32
	o      AgentOptions
	window chan struct{} // has an element for each request that is outstanding

	mu      sync.Mutex
	waiting map[uint32]chan *Message // guarded by mu: by the lower half of the transaction ID

	sending sync.RWMutex // held for reading by a send, and by Close

	requests chan *Message
	closed   chan struct{}
	once     sync.Once
}

// deliver hands a message to the call that waits for it. It never blocks: a message is dropped if no call
// waits for it or the queue is full, as the network may drop it. It reports whether the message was taken.
func (a *Agent) deliver(m *Message) bool {
	if len(m.MAD) < mad.HeaderSize {
		return false
	}
	to := a.requests
	if method := mad.Method(m.MAD[3]); m.TimedOut || method&mad.MethodResponse != 0 || method == mad.MethodTrapRepress {
		a.mu.Lock()
		to = a.waiting[binary.BigEndian.Uint32(m.MAD[12:])] // nil if no call waits for it
		a.mu.Unlock()
	} else if mad.Class(m.MAD[1]) != a.o.Class || !slices.Contains(a.o.Methods, method) {
		return false // it was for an agent that is closed now, and had the same number
	}
	select {
	case to <- m:
		return true
	default:
		return false
	}
}

// expect returns a transaction ID and the channel for what comes with it.
func (a *Agent) expect() (tid uint32, answers chan *Message) {
	answers = make(chan *Message, 2) // a time-out, and the answer that comes all the same
	a.mu.Lock()
	defer a.mu.Unlock()
	for {
		// Agents of a port do not have transaction IDs in common: the kernel gives a new agent the number
		// of one that was closed, for which answers may still come.
		tid = a.port.lastTID.Add(1)
		if _, taken := a.waiting[tid]; !taken && tid != 0 {
			a.waiting[tid] = answers
			return tid, answers
		}
	}
}

// forget drops what comes with a transaction ID from now on.
func (a *Agent) forget(tid uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.waiting, tid)
}

// Do sends a request and returns the answer. It chooses the transaction ID. If the answer reports an
// error, Do returns the answer together with the error, a [*mad.StatusError] or a [*mad.RMPPError]. If it
// says that another agent answers, and names that agent's LID, Do asks that one.
//
// A request without an answer in time is sent again; after the last try Do fails with a
// [*TimeoutError]. If ctx ends first, Do returns the error of ctx.
func (a *Agent) Do(ctx context.Context, to Addr, req *mad.Packet) (*mad.Packet, error) {
	if err := a.enter(ctx, req); err != nil {
		return nil, err
	}
	defer func() { <-a.window }()
	for range maxRedirects {
		answer, err := a.ask(ctx, to, req)
		next, ok := redirected(answer, to)
		if !ok {
			return answer, err
		}
		to = next
	}
	return nil, a.port.err(fmt.Sprintf("%v: redirected %d times, the last time to %v", req, maxRedirects, to), syscall.ELOOP)
}

// maxRedirects is how many agents a call of Do asks.
const maxRedirects = 4

// redirected returns where an answer redirects a request to that was sent to an address.
func redirected(answer *mad.Packet, from Addr) (to Addr, ok bool) {
	if answer == nil || answer.Class.SMP() || answer.Status&mad.StatusRedirect == 0 {
		return to, false
	}
	var info mad.ClassPortInfo
	if mad.Unmarshal(answer.Data, &info) != nil || info.RedirectLID == 0 {
		return to, false
	}
	to = Addr{LID: info.RedirectLID, QPN: info.RedirectQP, QKey: info.RedirectQKey, SL: info.RedirectSL, PathBits: from.PathBits, PKeyIndex: from.PKeyIndex}
	return to, true
}

// ask sends a request to one agent.
func (a *Agent) ask(ctx context.Context, to Addr, req *mad.Packet) (*mad.Packet, error) {
	tid, answers := a.expect()
	defer a.forget(tid)
	p := *req
	p.TID = uint64(tid)
	m, err := a.message(to, &p)
	if err != nil {
		return nil, err
	}
	m.Timeout = a.o.Timeout
	start := time.Now()
	for try := 1; try <= a.o.Tries; try++ {
		// The transport refuses a transaction ID that is in use. That happens if it was slow to report
		// that the last try has failed; then that try goes on.
		if err := a.transmit(m); err != nil && (try == 1 || !errors.Is(err, syscall.EINVAL)) {
			return nil, a.sendErr(req, m.Addr, err)
		}
		answer, err := a.await(ctx, answers, &p)
		if answer != nil || err != nil {
			return answer, err
		}
	}
	return nil, &TimeoutError{a.port.device, a.port.number, m.Addr, req.String(), time.Since(start), a.o.Tries}
}

// transmit sends a message, unless the agent is closed: its number may be another agent's then.
func (a *Agent) transmit(m *Message) error {
	if !a.sending.TryRLock() { // Close waits
		return os.ErrClosed
	}
	defer a.sending.RUnlock()
	select {
	case <-a.closed:
		return os.ErrClosed
	default:
		return a.port.transport.Send(m)
	}
}

// message encodes a MAD. The QP of the agent must be that of its class.
func (a *Agent) message(to Addr, p *mad.Packet) (*Message, error) {
	if p == nil {
		return nil, a.port.err("send", badValue("MAD", "nil", "a packet"))
	}
	if p.Class.SMP() != a.o.Class.SMP() {
		return nil, a.port.err(fmt.Sprintf("send %v by an agent of class %#02x, which has another QP", p, uint8(a.o.Class)), syscall.EINVAL)
	}
	b, err := p.Marshal()
	return &Message{Agent: a.id, Addr: to.forClass(p.Class), MAD: b}, err
}

// enter waits until a request may be sent.
func (a *Agent) enter(ctx context.Context, req *mad.Packet) error {
	if req == nil {
		return a.port.err("send", badValue("MAD", "nil", "a packet"))
	}
	if err := a.over(ctx, req); err != nil {
		return err
	}
	select {
	case a.window <- struct{}{}:
		return nil
	default:
	}
	select {
	case a.window <- struct{}{}:
		return nil
	case <-ctx.Done():
	case <-a.closed:
	case <-a.port.done:
	}
	return a.over(ctx, req)
}

// over returns why a call does not go on waiting, if its context, the agent or the port has ended.
func (a *Agent) over(ctx context.Context, req *mad.Packet) error {
	if ctx.Err() != nil {
		return a.stopped(req, context.Cause(ctx))
	}
	// A select with one case and a default takes no lock.
	select {
	case <-a.closed:
		return a.stopped(req, os.ErrClosed)
	default:
	}
	select {
	case <-a.port.done:
		return a.port.reason
	default:
	}
	return nil
}

// grace is how much longer an agent waits than the transport. The kernel says nothing about a MAD that
// it could not send.
func (a *Agent) grace() time.Duration { return a.o.Timeout/4 + 100*time.Millisecond }

// await waits for the answer to one try. It returns neither an answer nor an error if none comes.
func (a *Agent) await(ctx context.Context, answers chan *Message, req *mad.Packet) (*mad.Packet, error) {
	until := time.Now().Add(a.o.Timeout + a.grace())
	for {
		m, err := a.next(ctx, req, answers, until)
		if m == nil || m.TimedOut {
			return nil, err
		}
		p, err := mad.Parse(m.MAD)
		if err != nil {
			return nil, a.port.err(fmt.Sprintf("answer to %v", req), err)
		}
		if p.Class == req.Class && (p.Attribute == req.Attribute || p.Status&mad.StatusRedirect != 0) {
			return p, p.Err()
		} // else it is an answer to something else
	}
}

// stopped returns the error of a call that ends early.
func (a *Agent) stopped(req *mad.Packet, cause error) error {
	op := "receive"
	if req != nil {
		op = req.String()
	}
	return a.port.err(op, cause)
}

// Query sends a request as [Agent.Do] does, and decodes the answer's attribute.
func (a *Agent) Query(ctx context.Context, to Addr, req *mad.Packet, answer mad.Attribute) error {
	p, err := a.Do(ctx, to, req)
	if err != nil {
		return err
	}
	return p.Decode(answer)
}

// Send sends a MAD to which no answer is expected, such as an answer or a trap. The caller chooses the
// transaction ID; that of a MAD of the same class that is still under way is refused with EINVAL.
func (a *Agent) Send(to Addr, p *mad.Packet) error {
	m, err := a.message(to, p)
	if err != nil {
		return err
	}
	if err := a.transmit(m); err != nil {
		return a.sendErr(p, m.Addr, err)
	}
	return nil
}

// Receive returns the next request for one of the methods that the agent serves, and where it comes
// from. Requests are dropped while 64 are waiting, and if they are malformed.
func (a *Agent) Receive(ctx context.Context) (*mad.Packet, Addr, error) {
	for {
		m, err := a.next(ctx, nil, a.requests, time.Time{})
		if err != nil {
			return nil, Addr{}, err
		}
		if p, err := mad.Parse(m.MAD); err == nil {
			return p, m.Addr, nil
		}
	}
}

// Serve answers requests until ctx ends, the agent or port is closed, or the device is removed. It calls
// answer for each, one after the other, and sends what that returns, unless it is nil. An answer normally
// begins as [mad.Packet.Reply]. An answer that cannot be sent is dropped: a request may have come twice,
// or from an address that does not exist.
func (a *Agent) Serve(ctx context.Context, answer func(req *mad.Packet, from Addr) *mad.Packet) error {
	for {
		req, from, err := a.Receive(ctx)
		if err != nil {
			return err
		}
		if p := answer(req, from); p != nil {
			if err := a.Send(from, p); errors.Is(err, os.ErrClosed) || errors.Is(err, ErrDeviceRemoved) {
				return err
			}
		}
	}
}

// Close ends the agent. Calls that wait return [os.ErrClosed].
func (a *Agent) Close() (err error) {
	a.once.Do(func() {
		close(a.closed)
		a.port.transport.Interrupt()
		a.sending.Lock() // sends that have begun end before
		defer a.sending.Unlock()
		a.port.mu.Lock()
		defer a.port.mu.Unlock()
		delete(a.port.agents, a.id)
		if a.port.closed || a.port.ended() {
			return // and with it the agents
		}
		// After the device was removed, the kernel knows no agent any more.
		if e := a.port.transport.Unregister(a.id); e != nil && !errors.Is(e, syscall.EINVAL) {
			err = a.port.err("unregister agent", e)
		}
	})
	return err
}
