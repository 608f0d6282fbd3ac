package sa

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/ibsim"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// subnet is a port with a subnet manager, and whoever else answers.
type subnet struct {
	qp0    func() error                                    // whether there can be an agent of QP0
	answer func(req *mad.Packet, to umad.Addr) *mad.Packet // nil is no answer

	mu   sync.Mutex
	own  mad.PortInfo // guarded by mu
	sent []umad.Addr  // guarded by mu: where requests to the SA went
}

// newSubnet returns a subnet whose manager has LID 1, and a client.
func newSubnet(t *testing.T, o Options, answer func(req *mad.Packet, to umad.Addr) *mad.Packet) (*subnet, *Client) {
	t.Helper()
	s := &subnet{answer: answer, qp0: func() error { return nil }, own: mad.PortInfo{LID: 5, MasterSMLID: 1, MasterSMSL: 3}}
	answers := ibsim.NewAnswers(s.send)
	answers.Admit = func(_ uint32, r umad.Registration) error {
		if r.QPN == 0 {
			return s.qp0()
		}
		return nil
	}
	port := umad.NewPort("mem0", 1, answers)
	c, err := NewClient(port, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), port.Close()); err != nil {
			t.Error(err)
		}
	})
	return s, c
}

// noQP0 is the error of the kernel for a port without QP0.
func noQP0() error { return syscall.EPROTONOSUPPORT }

// send answers a message.
func (s *subnet) send(m *umad.Message) ([]byte, error) {
	req, err := mad.Parse(m.MAD)
	if err != nil {
		return nil, err
	}
	var p *mad.Packet
	s.mu.Lock()
	if req.Class.SMP() {
		p = req.Reply()
		err = p.Put(&s.own)
		s.mu.Unlock()
	} else {
		s.sent = append(s.sent, m.Addr)
		s.mu.Unlock()
		p = s.answer(req, m.Addr)
	}
	if p == nil || err != nil {
		return nil, err
	}
	return ibsim.Encode(p)
}

// setSM changes the LID of the subnet manager that the port knows.
func (s *subnet) setSM(lid uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own.MasterSMLID = lid
}

// TestTable: tables arrive whole, also from a type that is known at run time, and an empty one is no error.
func TestTable(t *testing.T) {
	var seen *mad.Packet
	var many []mad.Attribute
	for lid := range uint16(300) {
		many = append(many, &mad.NodeRecord{LID: lid + 1, NodeDescription: mad.NodeDescription{NodeString: fmt.Sprint("node ", lid)}})
	}
	s, c := newSubnet(t, Options{SMKey: 0x4711}, func(req *mad.Packet, to umad.Addr) *mad.Packet {
		seen = req
		if req.Attribute == mad.AttrNodeRecord {
			return ibsim.Records(req, many...)
		}
		return ibsim.Records(req)
	})
	nodes, err := Table(t.Context(), c, &mad.NodeRecord{LID: 9}, mad.NodeLID)
	if err != nil || len(nodes) != 300 || nodes[299].LID != 300 || nodes[1].NodeDescription.NodeString != "node 1" {
		t.Errorf("%d nodes, %v", len(nodes), err)
	}
	if seen.SA.SMKey != 0x4711 || seen.SA.ComponentMask != 1 || seen.Data[1] != 9 || seen.Method != mad.MethodGetTable {
		t.Errorf("request %+v, data %x", seen, seen.Data)
	}
	any, err := c.Records(t.Context(), &mad.NodeRecord{}, 0)
	if err != nil || len(any) != 300 || any[299].(*mad.NodeRecord).LID != 300 {
		t.Errorf("%d records, %v", len(any), err)
	}
	if links, err := Table(t.Context(), c, &mad.LinkRecord{}, 0); err != nil || links != nil {
		t.Errorf("%v, %v", links, err)
	}
	if to := s.sent[0]; to.LID != 1 || to.SL != 3 || to.QPN != 1 {
		t.Errorf("sent to %+v", to)
	}
	path := mad.PathRecord{DLID: 7}
	if err := c.Get(t.Context(), &path, mad.PathDLID); !errors.Is(err, ErrNoRecord) || path.DLID != 7 {
		t.Errorf("%+v, %v", path, err)
	}
}

// TestNoRecordsStatus: the status "no records" for a table is an empty table.
func TestNoRecordsStatus(t *testing.T) {
	_, c := newSubnet(t, Options{}, func(req *mad.Packet, _ umad.Addr) *mad.Packet {
		p := req.Reply()
		p.Status = mad.StatusNoRecords
		return p
	})
	if nodes, err := Table(t.Context(), c, &mad.NodeRecord{}, 0); err != nil || nodes != nil {
		t.Errorf("%v, %v", nodes, err)
	}
	if nodes, err := c.Records(t.Context(), &mad.NodeRecord{}, 0); err != nil || nodes != nil {
		t.Errorf("%v, %v", nodes, err)
	}
}

// TestAddrOf finds the LID of a port, and the service level of the path to it.
func TestAddrOf(t *testing.T) {
	_, c := newSubnet(t, Options{}, func(req *mad.Packet, _ umad.Addr) *mad.Packet {
		switch {
		case req.Attribute == mad.AttrNodeRecord && req.SA.ComponentMask == mad.NodePortGUID && req.Data[31] == 0x42:
			return ibsim.Records(req, &mad.NodeRecord{LID: 12})
		case req.Attribute == mad.AttrPathRecord && req.Data[41] == 12 && req.Data[43] == 5:
			return ibsim.Records(req, &mad.PathRecord{SL: 4})
		}
		return ibsim.Records(req)
	})
	if a, err := c.AddrOf(t.Context(), 0x42); err != nil || a != (umad.Addr{LID: 12, SL: 4}) {
		t.Errorf("%+v, %v", a, err)
	}
	if a, err := c.AddrOf(t.Context(), 0x43); !errors.Is(err, ErrNoRecord) || !strings.Contains(err.Error(), "0000:0000:0000:0043") {
		t.Errorf("%+v, %v", a, err)
	}
}

// TestFailover: when the subnet manager does not answer, the client asks the one that has taken over; and
// it does not ask twice if there is no other.
func TestFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var alive atomic.Int32
		alive.Store(1)
		s, c := newSubnet(t, Options{}, func(req *mad.Packet, to umad.Addr) *mad.Packet {
			if int32(to.LID) != alive.Load() {
				return nil
			}
			return ibsim.Records(req, &mad.NodeRecord{LID: to.LID})
		})
		ask := func() ([]mad.NodeRecord, error) { return Table(t.Context(), c, &mad.NodeRecord{}, 0) }
		if r, err := ask(); err != nil || r[0].LID != 1 {
			t.Fatalf("%v, %v", r, err)
		}
		alive.Store(2)
		start := time.Now()
		if r, err := ask(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the manager is dead and no other is known: %v, %v", r, err)
		}
		if d := time.Since(start); d < 15*time.Second || d > 20*time.Second {
			t.Errorf("three tries of 5 s took %v", d)
		}
		s.setSM(2)
		if r, err := ask(); err != nil || r[0].LID != 2 {
			t.Errorf("another has taken over: %v, %v", r, err)
		}
		s.mu.Lock()
		n := len(s.sent)
		s.mu.Unlock()
		if r, err := ask(); err != nil || r[0].LID != 2 || len(s.sent) != n+1 {
			t.Errorf("the client forgot where the manager is: %v, %v", r, err)
		}
	})
}

// TestFixedSM: a client with an address asks there, and nowhere else.
func TestFixedSM(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newSubnet(t, Options{SM: umad.Addr{LID: 9}, Tries: 1, Timeout: time.Second}, func(req *mad.Packet, to umad.Addr) *mad.Packet { return nil })
		s.qp0 = noQP0
		if _, err := c.Records(t.Context(), &mad.NodeRecord{}, 0); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		if len(s.sent) != 1 || s.sent[0].LID != 9 {
			t.Errorf("sent to %v", s.sent)
		}
	})
}

// TestNoSM: the errors when there is no subnet manager, or no way to find it.
func TestNoSM(t *testing.T) {
	s, c := newSubnet(t, Options{}, nil)
	s.setSM(0)
	var e *umad.Error
	if _, err := c.Records(t.Context(), &mad.NodeRecord{}, 0); !errors.Is(err, ErrNoSM) || !errors.As(err, &e) || e.Device != "mem0" {
		t.Error(err)
	}
	s.qp0 = noQP0
	if _, err := c.Records(t.Context(), &mad.NodeRecord{}, 0); !errors.Is(err, umad.ErrNoQP0) {
		t.Error(err)
	}
	if _, err := c.Records(t.Context(), &mad.PathRecord{SL: 16}, 0); !errors.Is(err, mad.ErrRange) {
		t.Error(err)
	}
	if !errors.Is(ErrNotInfiniBand, errors.ErrUnsupported) {
		t.Error("ErrNotInfiniBand is not ErrUnsupported")
	}
}

// TestLocalPort: the kernel says where the subnet manager is if the port has no QP0. No other error is
// replaced by what the kernel says.
func TestLocalPort(t *testing.T) {
	defer func(f func(string) ([]netlinkrdma.Port, error)) { kernelPorts = f }(kernelPorts)
	layer := ib.LinkLayerInfiniBand
	kernelPorts = func(device string) ([]netlinkrdma.Port, error) {
		if device != "mem0" {
			t.Errorf("device %s", device)
		}
		return []netlinkrdma.Port{{Num: 2, LID: 9}, {Num: 1, LinkLayer: layer, LID: 6, SMLID: 2, State: ib.PortActive}}, nil
	}
	s, c := newSubnet(t, Options{}, nil)
	s.qp0 = noQP0
	own, err := LocalPort(t.Context(), c.port)
	if err != nil || own.LID != 6 || own.MasterSMLID != 2 || own.LocalPortNum != 1 || own.PortState != ib.PortActive {
		t.Errorf("%+v, %v", own, err)
	}
	layer = ib.LinkLayerEthernet
	if _, err := LocalPort(t.Context(), c.port); !errors.Is(err, ErrNotInfiniBand) {
		t.Error(err)
	}
	s.qp0 = func() error { return syscall.ENOMEM }
	if _, err := LocalPort(t.Context(), c.port); !errors.Is(err, syscall.ENOMEM) {
		t.Error(err)
	}
	s.qp0 = func() error { return nil }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := LocalPort(ctx, c.port); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestFindOnce: many first requests at once look for the subnet manager once, a caller that has to wait
// can give up, and the other fields of Options.SM are kept.
func TestFindOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newSubnet(t, Options{SM: umad.Addr{PKeyIndex: 3, QKey: 0x80010007}, Window: 16}, func(req *mad.Packet, _ umad.Addr) *mad.Packet { return ibsim.Records(req) })
		var agents atomic.Int32
		s.qp0 = func() error {
			agents.Add(1)
			time.Sleep(time.Second)
			return nil
		}
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				if _, err := c.Records(t.Context(), &mad.NodeRecord{}, 0); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Go(func() {
			time.Sleep(time.Millisecond) // another call looks for it
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			start := time.Now()
			if _, err := c.Records(ctx, &mad.NodeRecord{}, 0); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Millisecond {
				t.Errorf("%v after %v", err, time.Since(start))
			}
		})
		wg.Wait()
		if n := agents.Load(); n != 1 {
			t.Errorf("the subnet manager was looked for %d times", n)
		}
		if to := s.sent[15]; len(s.sent) != 16 || to != (umad.Addr{LID: 1, SL: 3, QPN: 1, PKeyIndex: 3, QKey: 0x80010007}) {
			t.Errorf("%d requests, the last to %+v", len(s.sent), to)
		}
	})
}

// TestHostile: whatever the SA answers, a request ends with an error.
func TestHostile(t *testing.T) {
	node := func(req *mad.Packet) *mad.Packet { return ibsim.Records(req, &mad.NodeRecord{LID: 1}) }
	for name, c := range map[string]struct {
		answer func(req *mad.Packet) *mad.Packet
		check  func(err error) bool
	}{
		"offset 0": {func(req *mad.Packet) *mad.Packet {
			p := node(req)
			p.SA.AttributeOffset = 0
			return p
		}, isEOF},
		"offset too small": {func(req *mad.Packet) *mad.Packet {
			p := node(req)
			p.SA.AttributeOffset = 13
			return p
		}, isEOF},
		"cut": {func(req *mad.Packet) *mad.Packet {
			p := node(req)
			p.Data = p.Data[:50]
			return p
		}, isEOF},
		"aborted": {func(req *mad.Packet) *mad.Packet {
			p := node(req)
			p.RMPP.Type, p.RMPP.Status = mad.RMPPAbort, 126
			return p
		}, func(err error) bool { return errors.As(err, new(*mad.RMPPError)) }},
		"refused": {func(req *mad.Packet) *mad.Packet {
			p := req.Reply()
			p.Status = 0x700
			return p
		}, func(err error) bool { return err != nil && strings.Contains(err.Error(), "request denied") }},
		"redirected in a circle": {func(req *mad.Packet) *mad.Packet {
			p := req.Reply()
			if err := p.Put(&mad.ClassPortInfo{RedirectLID: 1, RedirectQP: 1}); err != nil {
				panic(err)
			}
			p.Status = mad.StatusRedirect
			return p
		}, func(err error) bool { return errors.Is(err, syscall.ELOOP) }},
		"redirected to nowhere": {func(req *mad.Packet) *mad.Packet {
			p := req.Reply()
			p.Status = mad.StatusRedirect
			return p
		}, func(err error) bool { return errors.As(err, new(*mad.StatusError)) }},
		"another transaction": {func(req *mad.Packet) *mad.Packet {
			p := node(req)
			p.TID++
			return p
		}, isTimeout},
		"another class": {func(req *mad.Packet) *mad.Packet {
			p := node(req)
			p.Class = mad.ClassPerf
			p.Data = nil
			return p
		}, isTimeout},
		"another attribute": {func(req *mad.Packet) *mad.Packet {
			p := node(req)
			p.Attribute = mad.AttrPathRecord
			return p
		}, isTimeout},
		"a request": {func(req *mad.Packet) *mad.Packet {
			p := node(req)
			p.Method = mad.MethodGet
			return p
		}, isTimeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			_, client := newSubnet(t, Options{Timeout: time.Second, Tries: 2}, func(req *mad.Packet, _ umad.Addr) *mad.Packet { return c.answer(req) })
			if r, err := Table(t.Context(), client, &mad.NodeRecord{}, 0); !c.check(err) {
				t.Errorf("%s: %v, %v", name, r, err)
			}
			if r, err := client.Records(t.Context(), &mad.NodeRecord{}, 0); !c.check(err) {
				t.Errorf("%s: %v, %v", name, r, err)
			}
		})
	}
	// A distance that is larger than all data means one record.
	_, client := newSubnet(t, Options{}, func(req *mad.Packet, _ umad.Addr) *mad.Packet {
		p := node(req)
		p.SA.AttributeOffset = 0xffff
		return p
	})
	if r, err := Table(t.Context(), client, &mad.NodeRecord{}, 0); err != nil || len(r) != 1 {
		t.Errorf("offset 65535: %v, %v", r, err)
	}
}

func isEOF(err error) bool     { return errors.Is(err, io.ErrUnexpectedEOF) }
func isTimeout(err error) bool { return errors.As(err, new(*umad.TimeoutError)) }

// TestRedirect: the agent that an answer names gets the request.
func TestRedirect(t *testing.T) {
	s, c := newSubnet(t, Options{}, func(req *mad.Packet, to umad.Addr) *mad.Packet {
		if to.LID == 8 {
			return ibsim.Records(req, &mad.NodeRecord{LID: 33})
		}
		p := req.Reply()
		if err := p.Put(&mad.ClassPortInfo{RedirectLID: 8, RedirectQP: 0x1234, RedirectQKey: 0x80010001, RedirectSL: 2}); err != nil {
			t.Error(err)
		}
		p.Status = mad.StatusRedirect
		return p
	})
	if r, err := Table(t.Context(), c, &mad.NodeRecord{}, 0); err != nil || len(r) != 1 || r[0].LID != 33 {
		t.Errorf("%v, %v", r, err)
	}
	if to := s.sent[1]; to != (umad.Addr{LID: 8, QPN: 0x1234, QKey: 0x80010001, SL: 2}) {
		t.Errorf("redirected to %+v", to)
	}
}

// TestCancel: a request ends with its context, and with the client.
func TestCancel(t *testing.T) {
	_, c := newSubnet(t, Options{}, func(*mad.Packet, umad.Addr) *mad.Packet { return nil })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := c.Records(ctx, &mad.NodeRecord{}, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	time.AfterFunc(10*time.Millisecond, func() { c.Close() })
	if _, err := c.Records(t.Context(), &mad.NodeRecord{}, 0); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
}

// FuzzAnswer has the SA answer with any bytes: a request ends, and nothing panics.
func FuzzAnswer(f *testing.F) {
	f.Add(uint8(0), uint16(0), uint8(7), uint8(1), uint16(14), make([]byte, 224))
	f.Add(uint8(1), uint16(2), uint8(0), uint8(0), uint16(0), make([]byte, 200))
	f.Fuzz(func(t *testing.T, method uint8, status uint16, flags, typ uint8, offset uint16, data []byte) {
		if len(data) > 1<<16 {
			return
		}
		_, c := newSubnet(t, Options{Timeout: 10 * time.Millisecond, Tries: 1}, func(req *mad.Packet, _ umad.Addr) *mad.Packet {
			p := req.Reply()
			p.Method |= mad.Method(method)
			p.Status, p.RMPP.Flags, p.RMPP.Type, p.SA.AttributeOffset = mad.Status(status), flags&7, mad.RMPPType(typ), offset
			if p.Data = data; flags&1 == 0 {
				p.Data = data[:min(len(data), 200)]
			}
			return p
		})
		for _, like := range []mad.Attribute{&mad.NodeRecord{}, &mad.LinkRecord{}, &mad.ServiceRecord{}} {
			_, _ = c.Records(t.Context(), like, 0)
			_ = c.Get(t.Context(), like, 0)
		}
	})
}
