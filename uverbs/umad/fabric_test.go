package umad

import (
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// fabric is a Transport in memory. A function says what comes back for what is sent.
type fabric struct {
	answer func(m *Message) []*Message
	in     chan *Message

	receives atomic.Int32 // the number of calls of Receive that wait

	mu     sync.Mutex
	agents map[uint32]Registration
	sent   []*Message
	next   uint32
	sendErr, registerErr,
	receiveErr error
}

// newFabric returns a fabric and a port of it.
func newFabric(answer func(m *Message) []*Message) (*fabric, *Port) {
	f := &fabric{answer: answer, in: make(chan *Message, 1000), agents: map[uint32]Registration{}}
	return f, NewPort("mem0", 1, f)
}

func (f *fabric) Register(r Registration) (uint32, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.registerErr != nil {
		return 0, f.registerErr
	}
	f.next++
	f.agents[f.next] = r
	return f.next, nil
}

func (f *fabric) Unregister(agent uint32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.agents, agent)
	if f.receiveErr != nil {
		return syscall.EINVAL // as the kernel after the device was removed
	}
	return nil
}

func (f *fabric) Send(m *Message) error {
	f.mu.Lock()
	f.sent = append(f.sent, m)
	err := f.sendErr
	f.mu.Unlock()
	if err != nil {
		return err
	}
	if f.answer != nil {
		for _, a := range f.answer(m) {
			f.in <- a
		}
	}
	return nil
}

func (f *fabric) Receive(wait time.Duration) (*Message, error) {
	if f.receives.Add(1) > 1 {
		panic("Receive is called twice at a time, or after Close")
	}
	defer f.receives.Add(-1)
	var late <-chan time.Time
	if len(f.in) == 0 {
		late = time.After(wait)
	}
	select {
	case m := <-f.in: // nil from Interrupt
		f.mu.Lock()
		defer f.mu.Unlock()
		return m, f.receiveErr
	case <-late:
		return nil, nil
	}
}

func (f *fabric) Interrupt() {
	select {
	case f.in <- nil:
	default:
	}
}

// fail has Receive fail.
func (f *fabric) fail(err error) {
	f.mu.Lock()
	f.receiveErr = err
	f.mu.Unlock()
	f.Interrupt()
}

func (f *fabric) Close() error {
	if f.receives.Add(1) > 1 { // and Receive is not called any more
		return errors.New("Close is called while Receive waits")
	}
	return nil
}

// failSends has sends fail, or not if err is nil.
func (f *fabric) failSends(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sendErr = err
}

// sends is how often something was sent.
func (f *fabric) sends() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.sent)
}

// reply answers a request with its own data, as a node does, after a change.
func reply(m *Message, change func(p *mad.Packet)) *Message {
	p, err := mad.Parse(m.MAD)
	if err != nil {
		panic(err)
	}
	r := p.Reply()
	r.Data = p.Data
	r.TID |= 7 << 32 // the kernel replaces the upper half
	if change != nil {
		change(r)
	}
	b, err := r.Marshal()
	if err != nil {
		panic(err)
	}
	return &Message{Agent: m.Agent, Addr: m.Addr, MAD: b}
}

// echo answers every request.
func echo(m *Message) []*Message { return []*Message{reply(m, nil)} }

// timedOut is the report that no answer came to a request.
func timedOut(m *Message) *Message {
	return &Message{Agent: m.Agent, MAD: m.MAD[:mad.HeaderSize:mad.HeaderSize], TimedOut: true}
}

// otherTID changes the transaction ID of a message.
func otherTID(m *Message) *Message {
	binary.BigEndian.PutUint32(m.MAD[12:], 4711)
	return m
}
