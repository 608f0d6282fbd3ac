package classic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
)

// LoopServer answers messages of up to a size until the client has enough, and returns how many
// there were.
func LoopServer(ctx context.Context, l *rdmacm.ID, largest int) (answered int, err error) {
	request, t, err := requestTerms(ctx, l, largest)
	if err != nil {
		return 0, err
	}
	e := &End{ID: request.ID}
	defer func() { err = errors.Join(err, e.Close()) }()
	o := pingpong(int(t.size))
	o.Sleeps = true
	if err := e.Open(o); err != nil {
		return 0, err
	}
	if err := e.ID.Accept(rdmacm.ConnParam{RNRRetryCount: connTries}); err != nil {
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
func LoopClient(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort, size, count int) (err error) {
	id, err := c.NewID(rdmacm.TCP)
	if err != nil {
		return err
	}
	e := &End{ID: id}
	defer func() { err = errors.Join(err, e.Close()) }()
	if err := id.ResolveWait(ctx, rdmacm.Addr{}, rdmacm.AddrOf(addr)); err != nil {
		return err
	}
	o := pingpong(size)
	o.Sleeps = true
	if err := e.Open(o); err != nil {
		return err
	}
	wants := terms{uint32(size), uint32(count)}
	if err := id.Connect(rdmacm.ConnParam{RetryCount: connTries, RNRRetryCount: connTries, PrivateData: wants.encode()}); err != nil {
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
