package classic

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
)

// The slots of a chatter, who hears into all but the last.
const (
	lineSize = uverbs.GRHSize + 256 // a datagram comes after a header
	heard    = 16
)

// Chat says the lines that come from a channel to a multicast group, and gives those that it
// hears to a function, with who has said them. A group hears itself: what this side has said
// is left out. It ends with the lines or the context.
func Chat(ctx context.Context, c *rdmacm.Channel, local, group netip.Addr, lines <-chan string, hear func(from uint32, line string)) (err error) {
	m, err := Join(ctx, c, local, group, Options{Space: rdmacm.UDP, Size: lineSize, Slots: heard + 1, Recvs: heard, Sleeps: true})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	failed := make(chan error, 1)
	arrivals := source(ctx, m.Comp.Next, failed)
	defer func() {
		cancel()
		<-failed
		err = errors.Join(err, m.Leave())
	}()
	next := lines // nil while a line is on its way, as there is one slot to say from
	completed := func(wc *uverbs.WC) error {
		if wc.Opcode != uverbs.WCRecv {
			next = lines
			return nil
		}
		if wc.SrcQP != m.QP.QPN() {
			hear(wc.SrcQP, string(m.Slot(int(wc.ID))[uverbs.GRHSize:wc.ByteLen]))
		}
		return m.Recv(int(wc.ID))
	}
	if err := m.rearm(completed); err != nil {
		return err
	}
	for {
		select {
		case line, ok := <-next:
			if !ok {
				return nil
			}
			if limit := lineSize - uverbs.GRHSize; len(line) > limit {
				return fmt.Errorf("a line has %d bytes, allowed: up to %d", len(line), limit)
			}
			if err := m.Say(heard, copy(m.Slot(heard), line)); err != nil {
				return err
			}
			next = nil
		case <-arrivals:
			if err := m.rearm(completed); err != nil {
				return err
			}
		case err := <-failed:
			failed <- err
			return err
		}
	}
}
