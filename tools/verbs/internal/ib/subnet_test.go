package ib

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/ibsim"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/terminal"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// subnet is the port with LID 5 of a subnet whose manager has LID 1.
type subnet struct {
	noQP0  bool // no agents of subnet management
	noSMI  bool // no subnet management of other ports, as on a virtual function of mlx5
	own    mad.PortInfo
	answer func(req *mad.Packet, to umad.Addr) *mad.Packet // nil is no answer

	mu      sync.Mutex
	answers *ibsim.Answers   // guarded by mu: of the open port
	server  uint32           // guarded by mu: the agent that serves pings
	sent    []*mad.Packet    // guarded by mu: requests but those to the own port
	replies chan *mad.Packet // of the server
}

func newSubnet(answer func(req *mad.Packet, to umad.Addr) *mad.Packet) *subnet {
	return &subnet{answer: answer, own: mad.PortInfo{LID: 5, MasterSMLID: 1, LocalPortNum: 1}, replies: make(chan *mad.Packet, 100)}
}

// admit admits an agent.
func (s *subnet) admit(agent uint32, r umad.Registration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.QPN == 0 && s.noQP0 {
		return syscall.EPROTONOSUPPORT
	}
	if len(r.Methods) > 0 {
		s.server = agent
	}
	return nil
}

// send answers a message.
func (s *subnet) send(m *umad.Message) ([]byte, error) {
	req, err := mad.Parse(m.MAD)
	if err != nil {
		return nil, err
	}
	if req.Method&mad.MethodResponse != 0 {
		s.replies <- req
		return nil, nil
	}
	if s.noSMI && req.Class == mad.ClassSubnLID {
		return nil, syscall.EPERM
	}
	var p *mad.Packet
	if req.Class == mad.ClassSubnDirected {
		p = req.Reply()
		err = p.Put(&s.own)
	} else {
		s.mu.Lock()
		s.sent = append(s.sent, req)
		s.mu.Unlock()
		p = s.answer(req, m.Addr)
	}
	if p == nil || err != nil {
		return nil, err
	}
	return ibsim.Encode(p)
}

// ask sends a request to the agent that serves pings.
func (s *subnet) ask(from umad.Addr, b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers.Deliver(&umad.Message{Agent: s.server, Addr: from, MAD: b})
}

// requests returns what was sent since the last call.
func (s *subnet) requests() []*mad.Packet {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.sent
	s.sent = nil
	return all
}

// system is a System with one port, which leads to the subnet.
func (s *subnet) system() *System {
	return &System{
		Ports: func() ([]Port, error) {
			return []Port{{"mem0", netlinkrdma.Port{Num: 1, LinkLayer: ib.LinkLayerInfiniBand, State: ib.PortActive}}}, nil
		},
		Open: func(device string, port int) (*umad.Port, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.answers = ibsim.NewAnswers(s.send)
			s.answers.Admit = s.admit
			return umad.NewPort(device, port, s.answers), nil
		},
	}
}

// run runs a command of the group, and returns what it prints.
func run(ctx context.Context, s *System, args ...string) (string, error) {
	var out bytes.Buffer
	err := runTo(ctx, s, &out, args...)
	return out.String(), err
}

// runTo runs a command of the group, which prints to a writer.
func runTo(ctx context.Context, s *System, out io.Writer, args ...string) error {
	root := &command.Root{Stdout: terminal.New(out), Stderr: terminal.New(out), FlagError: func(_ *command.Command, err error) error { return err }}
	root.Command = command.Command{Use: "verbs"}
	root.Init()
	root.Add(New(s))
	return root.Execute(ctx, append([]string{"ib"}, args...))
}

// refuse answers that the attribute is not supported.
func refuse(req *mad.Packet) *mad.Packet {
	p := req.Reply()
	p.Status = mad.StatusBadAttribute
	return p
}

// has fails the test unless the text has all lines.
func has(t *testing.T, text string, err error, lines ...string) {
	t.Helper()
	if err != nil {
		t.Errorf("%v\n%s", err, text)
	}
	flat := strings.Join(strings.Fields(text), " ")
	for _, line := range lines {
		if !strings.Contains(flat, line) {
			t.Errorf("there is no %q in\n%s", line, text)
		}
	}
}

// wantErr fails the test unless an error has a text and, if usage, is a mistake on the command line.
func wantErr(t *testing.T, err error, text string, usage bool) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) || errors.As(err, new(command.UsageError)) != usage {
		t.Errorf("%v, want %q", err, text)
	}
}

// serving returns the agent that serves pings, 0 if there is none.
func (s *subnet) serving() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.server
}
