package classic

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
)

// The slots of a ping-pong.
const (
	in  = 0
	out = 1
)

// pingpong is the end of one.
func pingpong(size int) Options { return Options{Space: rdmacm.TCP, Size: size, Slots: 2, Recvs: 1} }

// PingpongServer answers messages. It waits by polling, which is the fastest way, and costs a
// processor.
func PingpongServer(ctx context.Context, l *rdmacm.ID, size, count int) error {
	request, err := l.NextRequest(ctx)
	if err != nil {
		return err
	}
	e, err := Accept(ctx, request, pingpong(size))
	if err != nil {
		return err
	}
	defer e.Close()
	if err := pong(ctx, e, e.Poll, count); err != nil {
		return err
	}
	return e.Gone(ctx)
}

// PingpongClient sends messages and waits for the answer to each.
func PingpongClient(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort, size, count int) error {
	e, _, err := Dial(ctx, c, addr, pingpong(size))
	if err != nil {
		return err
	}
	defer e.Close()
	if err := ping(ctx, e, e.Poll, count); err != nil {
		return err
	}
	return e.Hangup(ctx)
}

// completions is a way to wait for a completion, such as [End.Poll].
type completions func(context.Context) (uverbs.WC, error)

// ping sends messages and checks that they come back.
func ping(ctx context.Context, e *End, next completions, count int) error {
	for i := range count {
		for j := range e.Slot(out) {
			e.Slot(out)[j] = byte(i + j)
		}
		if err := e.Send(out, e.size); err != nil {
			return err
		}
		if _, err := e.Until(ctx, next, i+1, i+1); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		if !bytes.Equal(e.Slot(in), e.Slot(out)) {
			return fmt.Errorf("message %d has come back as another", i)
		}
		if err := e.Recv(in); err != nil {
			return err
		}
	}
	return nil
}

// pong sends back what comes.
func pong(ctx context.Context, e *End, next completions, count int) error {
	for i := range count {
		if _, err := e.Until(ctx, next, i, i+1); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		copy(e.Slot(out), e.Slot(in))
		if err := e.Recv(in); err != nil { // before the answer, on which the next message follows
			return err
		}
		if err := e.Send(out, e.size); err != nil {
			return err
		}
	}
	_, err := e.Until(ctx, next, count, count)
	return err
}
