package umad

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// calls makes calls of Do with modifiers from 0, each of which waits before the next one begins. So the first one is
// the receiver of the port. It returns a channel of the result of each.
func calls(a *Agent, contexts ...context.Context) []chan error {
	ended := make([]chan error, len(contexts))
	for i, ctx := range contexts {
		ended[i] = make(chan error, 1)
		go func() {
			p, err := a.Do(ctx, Addr{LID: 2}, portInfo(uint32(i)))
			if err == nil && p.Modifier != uint32(i) {
				err = errors.New("the answer belongs to another call")
			}
			ended[i] <- err
		}()
		synctest.Wait()
	}
	return ended
}

// hasEnded reports whether a call has ended, and its error.
func hasEnded(call chan error) (bool, error) {
	synctest.Wait()
	select {
	case err := <-call:
		return true, err
	default:
		return false, nil
	}
}

// TestReceiverHandsOn: the call that receives for the port gets the answer to another call first, and a late one of
// a call that has ended. Then another call receives.
func TestReceiverHandsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, port := newFabric(nil)
		defer port.Close()
		a := register(t, port, AgentOptions{Class: mad.ClassSubnLID, Timeout: time.Hour})
		ended := calls(a, t.Context(), t.Context(), t.Context())
		for n, i := range []int{1, 0, 2} {
			f.in <- reply(f.sent[i], nil)
			for other, call := range ended {
				if end, err := hasEnded(call); end != (other == i) || err != nil {
					t.Errorf("answer %d, to call %d: call %d has ended: %t, %v", n, i, other, end, err)
				}
			}
			f.in <- reply(f.sent[1], nil) // nobody waits for it
		}
		if len(port.receiver) != 0 {
			t.Error("no call is left, but the port has a receiver")
		}
	})
}

// TestReceiverEnds: the call that receives for the port ends with its context, in time, or with its agent, while
// calls of two other agents wait. The first of them receives then.
func TestReceiverEnds(t *testing.T) {
	cause := errors.New("enough")
	for name, tt := range map[string]struct {
		end   func(a *Agent, cancel context.CancelCauseFunc) error
		after time.Duration // since the last call began
		want  error
	}{
		"context":             {func(_ *Agent, cancel context.CancelCauseFunc) error { cancel(cause); return nil }, time.Second, cause},
		"context immediately": {func(_ *Agent, cancel context.CancelCauseFunc) error { cancel(cause); return nil }, 0, cause},
		"agent":               {func(a *Agent, _ context.CancelCauseFunc) error { return a.Close() }, time.Second, os.ErrClosed},
		"agent immediately":   {func(a *Agent, _ context.CancelCauseFunc) error { return a.Close() }, 0, os.ErrClosed},
		"time":                {func(*Agent, context.CancelCauseFunc) error { return nil }, 20 * time.Second, os.ErrDeadlineExceeded},
	} {
		synctest.Test(t, func(t *testing.T) {
			f, port := newFabric(nil)
			defer port.Close()
			first := register(t, port, AgentOptions{Class: mad.ClassSubnLID, Timeout: 10 * time.Second, Tries: 1})
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			receiver := calls(first, ctx)[0]
			others := calls(register(t, port, AgentOptions{Class: mad.ClassSubnLID, Timeout: time.Hour}), t.Context(), t.Context())
			time.Sleep(tt.after)
			begin := time.Now()
			must(t, tt.end(first, cancel))
			if err := <-receiver; !errors.Is(err, tt.want) {
				t.Errorf("%s: %v, want %v", name, err, tt.want)
			}
			if late := time.Since(begin); late > briefWait {
				t.Errorf("%s: the call ended after %v", name, late)
			}
			for i := range others {
				if end, err := hasEnded(others[i]); end {
					t.Errorf("%s: another call ended: %v", name, err)
				}
				f.in <- reply(f.sent[1+i], nil)
				if end, err := hasEnded(others[i]); !end || err != nil {
					t.Errorf("%s: another call has ended: %t, %v", name, end, err)
				}
			}
		})
	}
}

// TestReceiverFails: an error of the transport, and Close, end the calls of all agents, whichever receives.
func TestReceiverFails(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(f *fabric, p *Port) error
		want error
	}{
		"transport": {func(f *fabric, _ *Port) error { f.fail(syscall.EIO); return nil }, ErrDeviceRemoved},
		"close":     {func(_ *fabric, p *Port) error { return p.Close() }, os.ErrClosed},
	} {
		synctest.Test(t, func(t *testing.T) {
			f, port := newFabric(nil)
			defer port.Close()
			var all []chan error
			for range 3 {
				all = append(all, calls(register(t, port, AgentOptions{Class: mad.ClassSubnLID, Timeout: time.Minute}), t.Context(), t.Context())...)
			}
			time.Sleep(time.Second)
			begin := time.Now()
			must(t, tt.end(f, port))
			for i, call := range all {
				if end, err := hasEnded(call); !end || time.Since(begin) != 0 || !errors.Is(err, tt.want) || !strings.Contains(err.Error(), "mem0 port 1: receive") {
					t.Errorf("%s: call %d has ended after %v: %t, %v; want %v", name, i, time.Since(begin), end, err, tt.want)
				}
			}
		})
	}
}

// TestReceiverServes: the requests for an agent that serves are kept while no call waits, up to its limit, and a call of
// another agent gets its answer meanwhile.
func TestReceiverServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, port := newFabric(echo)
		defer port.Close()
		server := register(t, port, AgentOptions{Class: mad.ClassPing, OUI: mad.OUIOpenIB, Methods: []mad.Method{mad.MethodGet}})
		req, err := mad.NewVendor(mad.ClassPing, mad.OUIOpenIB, mad.MethodGet, 0).Marshal()
		must(t, err)
		for range 2 * maxRequests {
			f.in <- &Message{Agent: server.id, MAD: req}
		}
		synctest.Wait()
		if len(f.in) != 0 || len(server.requests) != maxRequests {
			t.Errorf("%d requests are not received, %d are kept, want 0 and %d", len(f.in), len(server.requests), maxRequests)
		}
		a := register(t, port, AgentOptions{Class: mad.ClassSubnLID})
		if _, err := a.Do(t.Context(), Addr{LID: 2}, portInfo(1)); err != nil {
			t.Error(err)
		}
		must(t, server.Close())
		synctest.Wait()
		if len(port.receiver) != 0 {
			t.Error("the agent is closed, but the port has a receiver")
		}
	})
}

// TestReceiverLooks: an answer that has come is received even if the time of the request is over.
func TestReceiverLooks(t *testing.T) {
	f, port := newFabric(nil)
	defer port.Close()
	a := register(t, port, AgentOptions{Class: mad.ClassSubnLID})
	tid, answers := a.expect()
	req := portInfo(1)
	req.TID = uint64(tid)
	b, err := req.Marshal()
	must(t, err)
	f.in <- reply(&Message{Agent: a.id, MAD: b}, nil)
	if m, err := a.next(t.Context(), req, answers, time.Now().Add(-time.Second)); m == nil || err != nil {
		t.Errorf("%+v, %v", m, err)
	}
	if m, err := a.next(t.Context(), req, answers, time.Now().Add(-time.Second)); m != nil || err != nil {
		t.Errorf("there is no other answer: %+v, %v", m, err)
	}
}

// TestForeignRequest: an agent does not get requests for another one that had its number before.
func TestForeignRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, port := newFabric(echo)
		defer port.Close()
		server := register(t, port, AgentOptions{Class: mad.ClassPing, OUI: mad.OUIOpenIB, Methods: []mad.Method{mad.MethodGet}})
		for _, p := range []*mad.Packet{portInfo(1), mad.NewVendor(mad.ClassPing, mad.OUIOpenIB, mad.MethodSet, 0), mad.NewVendor(mad.ClassPing, mad.OUIOpenIB, mad.MethodGet, 7)} {
			b, err := p.Marshal()
			must(t, err)
			f.in <- &Message{Agent: server.id, MAD: b}
		}
		if p, _, err := server.Receive(t.Context()); err != nil || p.Method != mad.MethodGet || p.Attribute != 7 {
			t.Errorf("%v, %v", p, err)
		}
	})
}

// TestCloseAfterRemoval: an agent can be closed when its device is gone, although no call has noticed that.
func TestCloseAfterRemoval(t *testing.T) {
	f, port := newFabric(nil)
	defer port.Close()
	a := register(t, port, AgentOptions{Class: mad.ClassSubnLID})
	f.fail(syscall.EIO)
	must(t, a.Close())
}
