package ibsim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// Control messages: struct sim_ctl.
const (
	ctlSize  = 80
	ctlMagic = 0xdeadbeef
	ctlData  = 16 // where the data begins

	ctlError      = 0
	ctlConnect    = 1
	ctlDisconnect = 2
)

// Packets: struct sim_request.
const (
	packetSize    = 288
	packetMAD     = 32 // where the MAD begins
	packetDropped = 110
)

// firstID is the first number that a port gives itself. Programs use their process ID, which is smaller.
const firstID = 1 << 24

// Port opens the first port of a node. It can send requests and gets the answers to them. The port is
// closed at the end of the test, if not before.
func (s *Sim) Port(node string) *umad.Port { return s.open(node, false) }

// ServingPort is Port for agents that serve requests too. A node has one program with such agents.
func (s *Sim) ServingPort(node string) *umad.Port { return s.open(node, true) }

func (s *Sim) open(node string, serve bool) *umad.Port {
	s.t.Helper()
	t := &transport{base: s.base, agents: map[uint32]umad.Registration{}, waiting: map[uint32]request{}}
	if err := t.connect(node, firstID+int(s.clients.Add(1)), serve); err != nil {
		s.t.Fatal(err)
	}
	p := umad.NewPort("ibsim-"+node, 1, t)
	s.t.Cleanup(func() { p.Close() })
	return p
}

// transport is a program's end of the sockets of ibsim, as a umad.Transport.
type transport struct {
	base    string
	client  uint32        // the number that ibsim has given
	to      *net.UnixAddr // where packets go
	control *net.UnixConn
	packets *net.UnixConn

	mu      sync.Mutex
	next    uint32
	agents  map[uint32]umad.Registration // guarded by mu
	waiting map[uint32]request           // guarded by mu: by the lower half of the transaction ID

	interrupted bool // guarded by mu
}

// request is a request without an answer yet.
type request struct {
	agent uint32
	until time.Time // when the agent no longer waits
}

// socketName returns an abstract name, which ends with a zero.
func socketName(format string, args ...any) *net.UnixAddr {
	return &net.UnixAddr{Net: "unixgram", Name: "@" + fmt.Sprintf(format, args...) + "\x00"}
}

// connect attaches to a node.
func (t *transport) connect(node string, id int, serve bool) (err error) {
	if t.control, err = net.DialUnix("unixgram", socketName("%s:ctl%d", t.base, id), socketName("%s:ctl", t.base)); err != nil {
		return err
	}
	// ibsim sends to this socket as it makes the connection. It has to exist before.
	in, err := net.ListenUnixgram("unixgram", socketName("%s:in%d", t.base, id))
	if err != nil {
		t.control.Close()
		return err
	}
	var info [48]byte
	binary.LittleEndian.PutUint32(info[:], uint32(id))
	if serve {
		info[8] = 1
	}
	copy(info[12:43], node)
	answer, err := t.ask(ctlConnect, info[:])
	if err != nil {
		in.Close()
		t.control.Close()
		return fmt.Errorf("ibsim does not connect %s, which must be a node; at most 10 programs and ports are connected: %w", node, err)
	}
	t.client, t.packets = binary.LittleEndian.Uint32(answer), in
	t.to = socketName("%s:out%d", t.base, t.client)
	return nil
}

// ask sends a control message, and returns the data of the answer.
func (t *transport) ask(kind uint32, data []byte) ([]byte, error) {
	b := make([]byte, ctlSize)
	binary.LittleEndian.PutUint32(b, ctlMagic)
	binary.LittleEndian.PutUint32(b[4:], t.client)
	binary.LittleEndian.PutUint32(b[8:], kind)
	binary.LittleEndian.PutUint32(b[12:], uint32(len(data)))
	copy(b[ctlData:], data)
	t.control.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := t.control.Write(b); err != nil {
		return nil, err
	}
	if _, err := t.control.Read(b); err != nil {
		return nil, err
	}
	if binary.LittleEndian.Uint32(b[8:]) == ctlError {
		return nil, syscall.EPROTO
	}
	return b[ctlData:], nil
}

// Register implements umad.Transport.
func (t *transport) Register(r umad.Registration) (uint32, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next++
	t.agents[t.next] = r
	return t.next, nil
}

// Unregister implements umad.Transport.
func (t *transport) Unregister(agent uint32) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.agents, agent)
	return nil
}

// Send implements umad.Transport.
func (t *transport) Send(m *umad.Message) error {
	if len(m.MAD) > mad.Size {
		return syscall.EMSGSIZE // ibsim has no RMPP
	}
	if m.Timeout > 0 {
		tid := binary.BigEndian.Uint32(m.MAD[12:])
		t.mu.Lock()
		r, taken := t.waiting[tid]
		taken = taken && time.Now().Before(r.until)
		if !taken {
			t.waiting[tid] = request{m.Agent, time.Now().Add(m.Timeout)}
		}
		t.mu.Unlock()
		if taken {
			return syscall.EINVAL
		}
	}
	var b [packetSize]byte
	binary.BigEndian.PutUint16(b[0:], m.Addr.LID)
	if mad.Class(m.MAD[1]) == mad.ClassSubnDirected {
		binary.BigEndian.PutUint16(b[4:], umad.LIDPermissive)
	}
	binary.BigEndian.PutUint32(b[8:], m.Addr.QPN)
	if !mad.Class(m.MAD[1]).SMP() {
		binary.BigEndian.PutUint32(b[12:], 1)
	}
	binary.BigEndian.PutUint64(b[24:], uint64(len(m.MAD)))
	copy(b[packetMAD:], m.MAD)
	_, err := t.packets.WriteToUnix(b[:], t.to)
	return err
}

// Receive implements umad.Transport.
func (t *transport) Receive(wait time.Duration) (*umad.Message, error) {
	if !t.begin(wait) {
		return nil, nil
	}
	for {
		b := make([]byte, packetSize)
		n, err := t.packets.Read(b)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			t.begin(0) // forgets the interrupt
			return nil, nil
		case err != nil:
			return nil, os.ErrClosed // as ibsim is gone
		case n != packetSize:
			continue
		}
		m := &umad.Message{
			Addr: umad.Addr{LID: binary.BigEndian.Uint16(b[4:]), QPN: binary.BigEndian.Uint32(b[12:])}, MAD: b[packetMAD:],
			TimedOut: binary.BigEndian.Uint32(b[16:]) == packetDropped,
		}
		if m.Agent = t.agentOf(m); m.Agent != 0 {
			return m, nil
		}
	}
}

// begin sets how long Receive waits. It reports false if Receive was interrupted.
func (t *transport) begin(wait time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.interrupted {
		t.interrupted = false
		return false
	}
	t.packets.SetReadDeadline(time.Now().Add(wait))
	return true
}

// Interrupt implements umad.Transport.
func (t *transport) Interrupt() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.interrupted = true
	t.packets.SetReadDeadline(time.Now())
}

// agentOf returns the agent for a message, 0 if there is none.
func (t *transport) agentOf(m *umad.Message) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m.TimedOut || m.MAD[3]&byte(mad.MethodResponse) != 0 {
		tid := binary.BigEndian.Uint32(m.MAD[12:])
		agent := t.waiting[tid].agent
		delete(t.waiting, tid)
		return agent
	}
	for agent, r := range t.agents {
		for _, method := range r.Methods {
			if byte(r.Class) == m.MAD[1] && byte(method) == m.MAD[3] {
				return agent
			}
		}
	}
	return 0
}

// Close implements umad.Transport. ibsim may have ended before.
func (t *transport) Close() error {
	t.ask(ctlDisconnect, nil)
	t.control.Close()
	return t.packets.Close()
}
