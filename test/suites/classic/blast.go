package classic

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// numberLen is the length of a message's number, in bytes.
const numberLen = 8

// BlastServer takes messages as fast as they come, with as many receives posted ahead as depth
// says. A receive that is done is posted again at once. If the client is faster all the same,
// the device has it wait and try again.
func BlastServer(ctx context.Context, l *rdmacm.ID, size, count, depth int) error {
	if size < numberLen {
		return fmt.Errorf("the size is %d, allowed: %d and more", size, numberLen)
	}
	request, err := l.NextRequest(ctx)
	if err != nil {
		return err
	}
	e, err := Accept(ctx, request, Options{Space: rdmacm.TCP, Size: size, Slots: depth, Recvs: depth})
	if err != nil {
		return err
	}
	defer e.Close()
	// How long the client waits before it tries again is said by this side. The connection
	// manager leaves it at the longest time that there is, 655 ms.
	soon := uverbs.QPAttr{MinRNRTimer: ib.RNRTimerFor(time.Millisecond)}
	if err := e.QP.Modify(soon, uverbs.AttrMinRNRTimer); err != nil {
		return err
	}
	for i := range count {
		wc, err := e.Until(ctx, e.Poll, 0, i+1)
		if err != nil {
			return err
		}
		slot := int(wc.ID)
		if n := binary.BigEndian.Uint64(e.Slot(slot)); int(wc.ByteLen) != size || n != uint64(i) {
			return fmt.Errorf("message %d says that it is %d, and has %d bytes", i, n, wc.ByteLen)
		}
		if err := e.Recv(slot); err != nil {
			return err
		}
	}
	return e.Gone(ctx)
}

// BlastClient sends messages, each with its number, as many at a time as depth says.
func BlastClient(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort, size, count, depth int) error {
	if size < numberLen {
		return fmt.Errorf("the size is %d, allowed: %d and more", size, numberLen)
	}
	e, _, err := Dial(ctx, c, addr, Options{Space: rdmacm.TCP, Size: size, Slots: depth})
	if err != nil {
		return err
	}
	defer e.Close()
	for i := range count {
		if _, err := e.Until(ctx, e.Poll, i-depth+1, 0); err != nil { // until the slot is free
			return err
		}
		slot := i % depth
		binary.BigEndian.PutUint64(e.Slot(slot), uint64(i))
		if err := e.Send(slot, size); err != nil {
			return err
		}
	}
	if _, err := e.Until(ctx, e.Poll, count, 0); err != nil {
		return err
	}
	return e.Hangup(ctx)
}
