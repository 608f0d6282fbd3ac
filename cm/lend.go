package cm

import "context"

// lentSlots is how many slots a connection has for [Stream.ReadFrom]: one to read into, and the
// others for messages that are not acknowledged yet.
const lentSlots = 4

// lentMemory are slots for sending that a Reader fills. It may take forever, so a slot that is lent
// survives the connection.
type lentMemory struct {
	mem    memory            // none before the first ReadFrom
	next   int               // the slot to lend next
	free   [lentSlots]uint64 // a slot is free when so many messages are done
	lent   bool              // slot next is lent
	orphan bool              // the connection is destroyed, and the slot is still lent
}

// canLend reports whether the next slot is free.
func canLend(c *Conn, _ uint64) bool {
	return c.msgDone >= c.lent.free[c.lent.next] || c.err != nil || c.closing
}

// lendSlot waits until a message can be sent and returns memory for its data. The caller returns it
// with sendLent, or with returnLent.
func (c *Conn) lendSlot(ctx context.Context) ([]byte, error) {
	const what = "send"
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.begin(what); err != nil {
		return nil, err
	}
	defer c.end()
	if err := c.await(ctx, canLend, 0); err != nil {
		return nil, c.waitErr(what, err)
	}
	if err := c.waitRoom(ctx, what, 0); err != nil {
		return nil, err
	}
	l := &c.lent
	if l.mem.pool == nil {
		var err error
		if l.mem, err = c.domain.pool.alloc(lentSlots, headerSize+c.maxSend); err != nil {
			return nil, c.opError(what, err)
		}
	}
	most := c.wholePackets()
	if c.wantIfSmall(); !c.peerTakes(most) {
		most = min(most, firstData)
	}
	l.lent = true
	return l.mem.bytes(l.next)[headerSize:][:most:most], nil
}

// sendLent sends the first n bytes of the slot that is lent, or nothing if n is 0. If it fails, the
// slot remains lent.
func (c *Conn) sendLent(ctx context.Context, n int) error {
	const what = "send"
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.begin(what); err != nil {
		return err
	}
	defer c.end()
	if n > 0 {
		if err := c.waitRoom(ctx, what, n); err != nil {
			return err
		}
		b := c.qp.BeginSend()
		c.stageSlot(b, &c.lent.mem, c.lent.next, n, true)
		c.lent.free[c.lent.next] = c.msgPosted
		c.lent.next = (c.lent.next + 1) % lentSlots
		c.lent.lent = false
		c.post(b)
		return c.report()
	}
	c.lent.lent = false
	return nil
}

// returnLent takes the slot back if it is lent.
func (c *Conn) returnLent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lent.lent = false
	if c.lent.orphan {
		c.lent.orphan = false
		c.lent.mem.release()
	}
}

// release releases the slots, once the device uses none of them. If one is lent, returnLent does it.
func (l *lentMemory) release() {
	if l.lent {
		l.orphan = true
	} else {
		l.mem.release()
	}
}
