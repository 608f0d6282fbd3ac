package umad

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// must fails a test on an error.
var must = testenv.Must

// register makes an agent.
func register(t testing.TB, p *Port, o AgentOptions) *Agent {
	t.Helper()
	a, err := p.Register(o)
	must(t, err)
	return a
}

// portInfo asks for the PortInfo of a port.
func portInfo(port uint32) *mad.Packet { return mad.NewSMP(mad.MethodGet, mad.AttrPortInfo, port) }

// TestConcurrentRequests: each of many goroutines gets the answer to its request, in whatever order
// answers arrive, and no more than the window are outstanding.
func TestConcurrentRequests(t *testing.T) {
	var outstanding, most atomic.Int32
	var f *fabric
	f, port := newFabric(func(m *Message) []*Message {
		n := outstanding.Add(1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		go func() {
			time.Sleep(time.Duration(m.MAD[23]) * 10 * time.Microsecond)
			outstanding.Add(-1)
			f.in <- reply(m, nil)
		}()
		return nil
	})
	defer port.Close()
	a := register(t, port, AgentOptions{Class: mad.ClassSubnLID})
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			p, err := a.Do(t.Context(), Addr{LID: 2}, portInfo(uint32(i)))
			if err != nil || p.Modifier != uint32(i) || p.Method != mad.MethodGetResp {
				t.Errorf("request %d: %v, %v", i, p, err)
			}
		})
	}
	wg.Wait()
	if n := most.Load(); n > 16 || n < 2 {
		t.Errorf("%d requests were outstanding, want at most 16 and at least 2", n)
	}
	if len(a.waiting) != 0 || len(a.window) != 0 {
		t.Errorf("%d transaction IDs and %d places are not free", len(a.waiting), len(a.window))
	}
}

// TestRetries: a request is sent again if the transport reports a time-out and if it says nothing.
func TestRetries(t *testing.T) {
	for name, answer := range map[string]func(*Message) []*Message{
		"reported": func(m *Message) []*Message { return []*Message{timedOut(m)} },
		"silent":   nil,
	} {
		synctest.Test(t, func(t *testing.T) {
			f, port := newFabric(answer)
			defer port.Close()
			a := register(t, port, AgentOptions{Class: mad.ClassSubnLID, Tries: 4})
			_, err := a.Do(t.Context(), Addr{LID: 7}, portInfo(1))
			var e *TimeoutError
			if !errors.As(err, &e) || e.Tries != 4 || !errors.Is(err, os.ErrDeadlineExceeded) || f.sends() != 4 {
				t.Fatalf("%s: %v after %d sends", name, err, f.sends())
			}
			if name == "silent" && (e.Waited < 4*time.Second || e.Waited > 8*time.Second) {
				t.Errorf("waited for %v", e.Waited)
			}
			for _, part := range []string{"mem0 port 1", "SubnGet(PortInfo 0x1)", "LID 7", "(tries: 4)"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%s: %q does not say %q", name, err, part)
				}
			}
		})
	}
}

// TestLastTry: the answer to the last try counts, and a transport that still waits for the one before
// is left alone.
func TestLastTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f *fabric
		f, port := newFabric(func(m *Message) []*Message {
			f.mu.Lock()
			defer f.mu.Unlock()
			if len(f.sent) < 3 {
				return []*Message{timedOut(m)}
			}
			return echo(m)
		})
		defer port.Close()
		a := register(t, port, AgentOptions{Class: mad.ClassSubnLID})
		if _, err := a.Do(t.Context(), Addr{LID: 7}, portInfo(1)); err != nil {
			t.Error(err)
		}
		f.answer = func(m *Message) []*Message {
			f.mu.Lock()
			f.sendErr = syscall.EINVAL // the transaction ID is in use
			f.mu.Unlock()
			time.AfterFunc(1500*time.Millisecond, func() { f.in <- reply(m, nil) })
			return nil
		}
		if _, err := a.Do(t.Context(), Addr{LID: 7}, portInfo(1)); err != nil {
			t.Error(err)
		}
		if _, err := a.Do(t.Context(), Addr{LID: 7}, portInfo(1)); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "send SubnGet(PortInfo 0x1) to LID 7") {
			t.Error(err)
		}
	})
}

// TestAnswers: answers that belong to another request are dropped, and those that are broken or
// report an error are errors.
func TestAnswers(t *testing.T) {
	cut := func(m *Message) *Message { m.MAD = m.MAD[:100]; return m }
	var status *mad.StatusError
	var rmpp *mad.RMPPError
	for name, tt := range map[string]struct {
		answer func(m *Message) []*Message
		check  func(p *mad.Packet, err error) bool
	}{
		"wrong TID": {
			func(m *Message) []*Message {
				return []*Message{otherTID(reply(m, nil)), otherTID(timedOut(&Message{MAD: make([]byte, 256)})), reply(m, nil)}
			},
			func(p *mad.Packet, err error) bool { return p != nil && err == nil },
		},
		"wrong agent": {
			func(m *Message) []*Message { o := reply(m, nil); o.Agent = 9; return []*Message{o, reply(m, nil)} },
			func(p *mad.Packet, err error) bool { return p != nil && err == nil },
		},
		"wrong attribute": {
			func(m *Message) []*Message {
				return []*Message{reply(m, func(p *mad.Packet) { p.Attribute++ }), reply(m, nil)}
			},
			func(p *mad.Packet, err error) bool { return p != nil && err == nil },
		},
		"less than a header": {
			func(m *Message) []*Message {
				return []*Message{{Agent: m.Agent, MAD: m.MAD[:23]}, {Agent: m.Agent}, reply(m, nil)}
			},
			func(p *mad.Packet, err error) bool { return p != nil && err == nil },
		},
		"cut": {
			func(m *Message) []*Message { return []*Message{cut(reply(m, nil))} },
			func(p *mad.Packet, err error) bool { return p != nil && err == nil },
		},
		"cut in the header": {
			func(m *Message) []*Message { o := reply(m, nil); o.MAD = o.MAD[:55]; return []*Message{o} },
			func(p *mad.Packet, err error) bool { return p == nil && errors.Is(err, io.ErrUnexpectedEOF) },
		},
		"status": {
			func(m *Message) []*Message { return []*Message{reply(m, func(p *mad.Packet) { p.Status = 0x300 })} },
			func(p *mad.Packet, err error) bool {
				return p != nil && errors.As(err, &status) && status.Status == 0x300
			},
		},
		"aborted": {
			func(m *Message) []*Message {
				return []*Message{reply(m, func(p *mad.Packet) { p.RMPP.Flags, p.RMPP.Type, p.RMPP.Status = mad.RMPPActive, mad.RMPPAbort, 118 })}
			},
			func(p *mad.Packet, err error) bool { return p != nil && errors.As(err, &rmpp) && rmpp.Status == 118 },
		},
	} {
		_, port := newFabric(tt.answer)
		a := register(t, port, AgentOptions{Class: mad.ClassSA})
		req, err := mad.NewSA(mad.MethodGet, &mad.PathRecord{DLID: 2}, mad.PathDLID)
		must(t, err)
		if p, err := a.Do(t.Context(), Addr{LID: 1}, req); !tt.check(p, err) {
			t.Errorf("%s: %v, %v", name, p, err)
		}
		must(t, port.Close())
	}
}

// TestWaitEnds: a request that waits for an answer, or for its turn, ends with its context, its agent,
// its port and its device.
func TestWaitEnds(t *testing.T) {
	cause := errors.New("enough")
	for name, tt := range map[string]struct {
		end  func(f *fabric, p *Port, a *Agent, cancel context.CancelCauseFunc) error
		want error
	}{
		"cancel": {func(_ *fabric, _ *Port, _ *Agent, cancel context.CancelCauseFunc) error { cancel(cause); return nil }, cause},
		"agent": {func(_ *fabric, _ *Port, a *Agent, _ context.CancelCauseFunc) error {
			return errors.Join(a.Close(), a.Close())
		}, os.ErrClosed},
		"port": {func(_ *fabric, p *Port, a *Agent, _ context.CancelCauseFunc) error {
			return errors.Join(p.Close(), p.Close(), a.Close())
		}, os.ErrClosed},
		"device": {func(f *fabric, _ *Port, _ *Agent, _ context.CancelCauseFunc) error { f.fail(syscall.EIO); return nil }, ErrDeviceRemoved},
	} {
		synctest.Test(t, func(t *testing.T) {
			f, port := newFabric(nil)
			defer port.Close()
			a := register(t, port, AgentOptions{Class: mad.ClassSubnLID, Window: 1, Timeout: time.Hour})
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			errs := make(chan error)
			for range 2 {
				go func() {
					_, err := a.Do(ctx, Addr{LID: 2}, portInfo(1))
					errs <- err
				}()
			}
			go func() {
				_, _, err := a.Receive(ctx)
				errs <- err
			}()
			synctest.Wait()
			if f.sends() != 1 {
				t.Errorf("%s: sent %d requests, the window is 1", name, f.sends())
			}
			must(t, tt.end(f, port, a, cancel))
			for range 3 {
				if err := <-errs; !errors.Is(err, tt.want) || !strings.Contains(err.Error(), "mem0 port 1") {
					t.Errorf("%s: %v, want %v", name, err, tt.want)
				}
			}
			if _, err := a.Do(ctx, Addr{LID: 2}, portInfo(1)); !errors.Is(err, tt.want) {
				t.Errorf("%s: the next request: %v", name, err)
			}
		})
	}
}

// ping answers a ping with a name.
func ping(req *mad.Packet, _ Addr) *mad.Packet {
	r := req.Reply()
	r.Data = []byte("here")
	return r
}

// TestServe: requests are answered where they came from, also after an answer that could not be sent.
// Messages that are not valid requests are ignored.
func TestServe(t *testing.T) {
	f, port := newFabric(nil)
	defer port.Close()
	a := register(t, port, AgentOptions{Class: mad.ClassPing, OUI: mad.OUIOpenIB, Methods: []mad.Method{mad.MethodGet}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- a.Serve(ctx, ping) }()
	req, err := mad.NewVendor(mad.ClassPing, mad.OUIOpenIB, mad.MethodGet, 0).Marshal()
	must(t, err)
	req[8], req[15] = 0x11, 0x22 // transaction ID
	from := Addr{LID: 9, QPN: 1, SL: 3, GRH: true, GID: ib.GID{0xfe, 0x80}}
	answer := append([]byte(nil), req...)
	answer[3] |= 0x80
	for n, b := range [][]byte{req[:30], req, answer, req} { // the kernel refuses the first answer
		if n == 1 {
			f.failSends(syscall.EINVAL)
		}
		before := f.sends()
		f.in <- &Message{Agent: a.id, Addr: from, MAD: b}
		for n%2 == 1 && f.sends() == before {
			select {
			case err := <-done:
				t.Fatalf("the server has ended: %v", err)
			case <-time.After(time.Millisecond):
			}
		}
		f.failSends(nil)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	from.QKey = qkeyQP1
	m := f.sent[1]
	if p, err := mad.Parse(m.MAD); err != nil || len(f.sent) != 2 || m.Addr != from || m.Timeout != 0 ||
		p.Method != mad.MethodGetResp || p.TID != 0x1100000000000022 || !strings.HasPrefix(string(p.Data), "here\x00") {
		t.Errorf("%+v, %v: %+v", m, err, p)
	}
	for range 2 * maxRequests { // more than anybody receives
		a.deliver(&Message{MAD: req})
	}
	if len(a.requests) != maxRequests {
		t.Errorf("%d requests are kept, want %d", len(a.requests), maxRequests)
	}
}

// TestRegister: what is registered for which options, and what the errors say.
func TestRegister(t *testing.T) {
	f, port := newFabric(nil)
	for _, tt := range []struct {
		o    AgentOptions
		want Registration
	}{
		{AgentOptions{Class: mad.ClassSubnDirected}, Registration{QPN: 0, Version: 1}},
		{AgentOptions{Class: mad.ClassSA}, Registration{QPN: 1, Version: 2, RMPP: true}},
		{AgentOptions{Class: mad.ClassPing, OUI: 5, Methods: []mad.Method{mad.MethodGet}},
			Registration{QPN: 1, Version: 1, Class: mad.ClassPing, OUI: 5, Methods: []mad.Method{mad.MethodGet}}},
	} {
		a := register(t, port, tt.o)
		if got := f.agents[a.id]; fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%+v: %+v, want %+v", tt.o, got, tt.want)
		}
		must(t, a.Close())
	}
	if len(f.agents) != 0 {
		t.Errorf("%d agents are left", len(f.agents))
	}
	for _, tt := range []struct {
		err  error
		is   error
		text string
	}{
		{syscall.EPROTONOSUPPORT, ErrNoQP0, "RoCE"},
		{syscall.EPROTONOSUPPORT, errors.ErrUnsupported, "mem0 port 1: register agent for QP0"},
		{syscall.EINVAL, syscall.EINVAL, "another agent"},
		{syscall.ENOMEM, syscall.ENOMEM, "32 agents"},
		{syscall.EPIPE, ErrDeviceRemoved, "removed"},
	} {
		f.registerErr = tt.err
		_, err := port.Register(AgentOptions{Class: mad.ClassSubnLID, Methods: []mad.Method{mad.MethodTrap}})
		if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%v: %v, want %v and %q", tt.err, err, tt.is, tt.text)
		}
	}
	for want, o := range map[string]AgentOptions{
		"Window is -1, allowed: 0 or more": {Window: -1}, "Tries is -2, allowed": {Tries: -2}, "Timeout is -1s, allowed": {Timeout: -time.Second},
		"OUI is 0x1000000, allowed: up to 0xffffff": {OUI: 1 << 24},
	} {
		if _, err := port.Register(o); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "mem0 port 1: register agent: "+want) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	must(t, port.Close())
	if _, err := port.Register(AgentOptions{}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a closed port: %v", err)
	}
}

// TestBadRequest: a MAD that cannot be encoded is not sent, and none of a closed agent.
func TestBadRequest(t *testing.T) {
	f, port := newFabric(echo)
	defer port.Close()
	a := register(t, port, AgentOptions{Class: mad.ClassPing})
	big := mad.NewVendor(mad.ClassPing, 0, mad.MethodGet, 0)
	big.Data = make([]byte, 300)
	_, doErr := a.Do(t.Context(), Addr{}, big)
	if err := a.Send(Addr{}, portInfo(1)); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "another QP") {
		t.Error(err)
	}
	if err := a.Send(Addr{}, big); !errors.Is(err, mad.ErrRange) || !errors.Is(doErr, mad.ErrRange) || f.sends() != 0 {
		t.Errorf("%v, %v, %d sends", err, doErr, f.sends())
	}
	_, doErr = a.Do(t.Context(), Addr{}, nil)
	for _, err := range []error{doErr, a.Send(Addr{}, nil)} {
		if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "MAD is nil") {
			t.Error(err)
		}
	}
	must(t, a.Close())
	if err := a.Send(Addr{}, mad.NewVendor(mad.ClassPing, 0, mad.MethodGet, 0)); !errors.Is(err, os.ErrClosed) || f.sends() != 0 {
		t.Errorf("a closed agent: %v, %d sends", err, f.sends())
	}
}

// TestSendsWhileClosing: while Close waits for a send, others fail and do not wait.
func TestSendsWhileClosing(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	_, port := newFabric(func(*Message) []*Message {
		close(begun)
		<-end
		return nil
	})
	defer port.Close()
	a := register(t, port, AgentOptions{Class: mad.ClassPing})
	ping := mad.NewVendor(mad.ClassPing, 0, mad.MethodGet, 0)
	results := make(chan error, 2)
	go func() { results <- a.Send(Addr{}, ping) }()
	<-begun
	go func() { results <- a.Close() }()
	for a.sending.TryRLock() { // until Close waits
		a.sending.RUnlock()
		runtime.Gosched()
	}
	if err := a.Send(Addr{}, ping); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Send: %v, want ErrClosed", err)
	}
	close(end)
	must(t, <-results, <-results)
}

// TestSendErrors: what the kernel refuses on a port without a subnet management interface.
func TestSendErrors(t *testing.T) {
	f, port := newFabric(echo)
	defer port.Close()
	subn, perf := register(t, port, AgentOptions{Class: mad.ClassSubnLID}), register(t, port, AgentOptions{Class: mad.ClassPerf})
	self, err := mad.NewDirectedSMP(mad.MethodGet, mad.AttrNodeInfo, 0)
	must(t, err)
	next, err := mad.NewDirectedSMP(mad.MethodGet, mad.AttrNodeInfo, 0, 1)
	must(t, err)
	for _, tt := range []struct {
		a     *Agent
		p     *mad.Packet
		errno syscall.Errno
		noQP0 bool
	}{
		{subn, portInfo(1), syscall.EPERM, true},
		{subn, next, syscall.EPERM, true},
		{subn, self, syscall.EINVAL, true},
		{subn, next, syscall.EINVAL, false},
		{subn, portInfo(1), syscall.EINVAL, false},
		{subn, self, syscall.ENOMEM, false},
		{perf, mad.NewPerf(mad.MethodGet, mad.AttrPortCounters), syscall.EPERM, false},
	} {
		f.failSends(tt.errno)
		_, err := tt.a.Do(t.Context(), Addr{LID: 1}, tt.p)
		for what, err := range map[string]error{"Do": err, "Send": tt.a.Send(Addr{LID: 1}, tt.p)} {
			if !errors.Is(err, tt.errno) || errors.Is(err, ErrNoQP0) != tt.noQP0 || errors.Is(err, errors.ErrUnsupported) != tt.noQP0 ||
				strings.Contains(err.Error(), "virtual functions") != tt.noQP0 || !strings.Contains(err.Error(), "mem0 port 1: send "+tt.p.String()) {
				t.Errorf("%s of %v, %v: %v", what, tt.p, tt.errno, err)
			}
		}
	}
}
