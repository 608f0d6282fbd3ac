package classic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/uverbs"
)

// source has a goroutine call next again and again, and gives what it returns to a Go channel.
// It ends with the context or an error.
func source[T any](ctx context.Context, next func(context.Context) (T, error), failed chan<- error) <-chan T {
	values := make(chan T)
	go func() {
		for {
			v, err := next(ctx)
			if err != nil {
				failed <- err
				return
			}
			select {
			case values <- v:
			case <-ctx.Done():
				failed <- ctx.Err()
				return
			}
		}
	}()
	return values
}

// loop has one goroutine deal with all that happens to an end, the events of its connection
// and the completions of its work requests, as they come: where a C program polls both file
// descriptors, a Go program selects. It returns when the connection has ended.
func (e *End) loop(ctx context.Context, established func() error, completed func(*uverbs.WC) error) error {
	ctx, cancel := context.WithCancel(ctx)
	failed := make(chan error, 2)
	events := source(ctx, e.ID.Wait, failed)
	arrivals := source(ctx, e.Comp.Wait, failed)
	defer func() {
		cancel() // and wait for both, as the caller closes what they use
		<-failed
		<-failed
	}()
	if err := e.rearm(completed); err != nil {
		return err
	}
	for {
		select {
		case event := <-events:
			if event.Err() != nil || event.Type == cm.EventDisconnected {
				return event.Err()
			}
			if event.Type == cm.EventEstablished {
				if err := established(); err != nil {
					return err
				}
			}
		case <-arrivals:
			if err := e.rearm(completed); err != nil {
				return err
			}
		case err := <-failed:
			failed <- err
			return err
		}
	}
}

// rearm asks for an event of the next completion, and deals with all that there are: only
// then, as what comes in between makes no event.
func (e *End) rearm(completed func(*uverbs.WC) error) error {
	if err := e.CQ.Notify(); err != nil {
		return err
	}
	for {
		wc, ok, err := e.look()
		if wc.Status == uverbs.WCWRFlushErr { // of receives that nothing has come for
			continue
		}
		if err != nil || !ok {
			return err
		}
		if err := completed(&wc); err != nil {
			return err
		}
	}
}

// LoopServer answers messages until the client has enough, and returns how many there were.
func LoopServer(ctx context.Context, l *cm.ID, size int) (answered int, err error) {
	request, err := l.Request(ctx)
	if err != nil {
		return 0, err
	}
	e := &End{ID: request.ID}
	defer func() { err = errors.Join(err, e.Close()) }()
	o := pingpong(size)
	o.Sleeps = true
	if err := e.Open(o); err != nil {
		return 0, err
	}
	if err := e.ID.Accept(cm.ConnParam{RNRRetryCount: connTries}); err != nil {
		return 0, err
	}
	err = e.loop(ctx, func() error { return nil }, func(wc *uverbs.WC) error {
		if wc.Opcode != uverbs.WCRecv {
			return nil
		}
		answered++
		copy(e.Slot(out), e.Slot(in))
		if err := e.Recv(in); err != nil {
			return err
		}
		return e.Send(out, int(wc.ByteLen))
	})
	return answered, errors.Join(err, e.ID.Disconnect())
}

// LoopClient sends a message whenever one has come back, and disconnects after the last.
func LoopClient(ctx context.Context, c *cm.Channel, addr netip.AddrPort, size, count int) (err error) {
	id, err := c.NewID(cm.TCP)
	if err != nil {
		return err
	}
	e := &End{ID: id}
	defer func() { err = errors.Join(err, e.Close()) }()
	if err := id.ResolveWait(ctx, cm.Addr{}, cm.AddrOf(addr)); err != nil {
		return err
	}
	o := pingpong(size)
	o.Sleeps = true
	if err := e.Open(o); err != nil {
		return err
	}
	if err := id.Connect(cm.ConnParam{RetryCount: connTries, RNRRetryCount: connTries}); err != nil {
		return err
	}
	sent, done := 0, 0 // done counts the messages that are back, and the sends that are complete
	send := func() error {
		for i := range e.Slot(out) {
			e.Slot(out)[i] = byte(sent + i)
		}
		sent++
		return e.Send(out, size)
	}
	return e.loop(ctx, send, func(wc *uverbs.WC) error {
		if wc.Opcode == uverbs.WCRecv {
			if !bytes.Equal(e.Slot(in), e.Slot(out)) {
				return fmt.Errorf("message %d has come back as another", sent-1)
			}
			if err := e.Recv(in); err != nil {
				return err
			}
		}
		if done++; done < 2*sent {
			return nil
		}
		if sent == count {
			return e.ID.Disconnect()
		}
		return send()
	})
}
