package ibsim

import (
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// Answers is a umad.Transport without a subnet, for tests of single answers: a function makes them.
type Answers struct {
	// Answer returns the MAD that answers a message, or nil for none. The call that sends returns
	// the error.
	Answer func(m *umad.Message) ([]byte, error)
	// Admit returns an error if the agent must not be registered. A nil function admits all.
	Admit func(agent uint32, r umad.Registration) error

	in chan *umad.Message

	mu   sync.Mutex
	last uint32 // guarded by mu: the number of the last agent
}

// NewAnswers returns a transport with a function that answers.
func NewAnswers(answer func(m *umad.Message) ([]byte, error)) *Answers {
	return &Answers{Answer: answer, in: make(chan *umad.Message, 10000)}
}

// NoQP0 returns a port without QP0, like a RoCE port.
func NoQP0(device string) *umad.Port {
	a := NewAnswers(func(*umad.Message) ([]byte, error) { return nil, nil })
	a.Admit = func(_ uint32, r umad.Registration) error {
		if r.QPN == 0 {
			return syscall.EPROTONOSUPPORT
		}
		return nil
	}
	return umad.NewPort(device, 1, a)
}

// Register implements umad.Transport.
func (a *Answers) Register(r umad.Registration) (uint32, error) {
	a.mu.Lock()
	a.last++
	agent := a.last
	a.mu.Unlock()
	if a.Admit != nil {
		if err := a.Admit(agent, r); err != nil {
			return 0, err
		}
	}
	return agent, nil
}

// Unregister implements umad.Transport.
func (a *Answers) Unregister(uint32) error { return nil }

// Send implements umad.Transport.
func (a *Answers) Send(m *umad.Message) error {
	b, err := a.Answer(m)
	if err == nil && b != nil {
		a.Deliver(&umad.Message{Agent: m.Agent, Addr: m.Addr, MAD: b})
	}
	return err
}

// Deliver queues a message for Receive.
func (a *Answers) Deliver(m *umad.Message) { a.in <- m }

// Receive implements umad.Transport.
func (a *Answers) Receive(wait time.Duration) (*umad.Message, error) {
	select {
	case m := <-a.in: // nil from Interrupt
		return m, nil
	case <-time.After(wait):
		return nil, nil
	}
}

// Interrupt implements umad.Transport.
func (a *Answers) Interrupt() {
	select {
	case a.in <- nil:
	default:
	}
}

// Close implements umad.Transport.
func (a *Answers) Close() error { return nil }

// Encode encodes an answer as the kernel delivers it: the last packet of several has no padding.
func Encode(p *mad.Packet) ([]byte, error) {
	b, err := p.Marshal()
	if p.Class == mad.ClassSA && p.RMPP.Flags&mad.RMPPActive != 0 {
		b = b[:56+len(p.Data)]
	}
	return b, err
}
