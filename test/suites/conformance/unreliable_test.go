package conformance

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestUnreliable sends messages of all lengths over UC and UD. All of them arrive, in order; if software devices
// lose and reorder packets, some do not arrive, but those that do are whole, and none arrives twice.
func TestUnreliable(t *testing.T) {
	testenv.Guest(t)
	for _, typ := range []ib.QPType{ib.UC, ib.UD} {
		t.Run(typ.String(), func(t *testing.T) {
			dev := openDevice(t, deviceName)
			o := uverbs.QPOptions{Type: typ, Path: uverbs.PathOptions{MTU: ib.MTU256}}
			u := &unreliable{t: t, longest: 3000}
			if typ == ib.UD {
				o.Path, u.longest, u.header = uverbs.PathOptions{}, 900, uverbs.GRHSize
			}
			u.a, u.b = newLossySide(t, dev, o), newLossySide(t, dev, o)
			if typ == ib.UD {
				u.ah = wayTo(t, u.a, u.b)
			} else {
				connect(t, u.a, u.b)
			}
			for slot := range unreliableSlots {
				u.post(slot)
			}
			const messages = 400
			for range messages {
				u.send()
				u.keepUp()
			}
			for end := time.Now().Add(deadline); u.last < messages; u.receive() { // the last ones may be lost
				if time.Now().After(end) {
					t.Fatalf("none of the last %d messages has arrived", u.sent-messages)
				}
				u.send()
			}
			if n := len(u.arrived); testenv.SoftFaults() == "" && (n < messages || u.disorder && !rig.EFA()) || n < messages/2 {
				t.Errorf("%d of %d messages have arrived, in order: %t", n, u.sent, !u.disorder)
			}
			t.Logf("%d of %d messages have arrived, in order: %t", len(u.arrived), u.sent, !u.disorder)
		})
	}
}

// unreliableSlots is the number of receives that are posted.
const unreliableSlots = 8

// unreliable is what TestUnreliable knows of its messages, which have numbers from 1 on.
type unreliable struct {
	t        *testing.T
	a, b     *side
	ah       *uverbs.AH // of UD
	longest  int        // message in bytes
	header   int        // bytes before a message that was received
	sent     uint32
	last     uint32 // number of the message that has arrived last
	arrived  map[uint32]bool
	disorder bool
}

// message returns a message by its number.
func (u *unreliable) message(n uint32) []byte {
	m := bytes.Repeat([]byte{byte(n)}, 4+int(n)*37%(u.longest-4))
	binary.BigEndian.PutUint32(m, n)
	return m
}

// post posts the receive of a slot.
func (u *unreliable) post(slot int) {
	u.t.Helper()
	const size = bufferSize / unreliableSlots
	must(u.t, u.b.qp.PostRecv(uint64(slot), u.b.mr.SGE(slot*size, size)))
}

// send sends the next message.
func (u *unreliable) send() {
	u.t.Helper()
	u.sent++
	n := copy(u.a.buf.Bytes(), u.message(u.sent))
	wr := send(99, u.a.mr.SGE(0, n))
	if u.ah != nil {
		wr = datagram(99, u.ah, u.b, u.a.mr.SGE(0, n))
	}
	must(u.t, u.a.qp.PostSend(wr))
	u.a.want(u.t, 99, uverbs.WCSend)
}

// keepUp receives until enough receives are posted for the messages that come, or those that are under way must be
// lost.
func (u *unreliable) keepUp() {
	u.t.Helper()
	patience := deadline
	if testenv.SoftFaults() != "" {
		patience = 20 * time.Millisecond
	}
	u.receive()
	for end := time.Now().Add(patience); u.sent-u.last > unreliableSlots/2 && time.Now().Before(end); {
		u.receive()
	}
}

// receive checks the messages that have arrived.
func (u *unreliable) receive() {
	u.t.Helper()
	var wcs [unreliableSlots]uverbs.WC
	n, err := u.b.cq.Poll(wcs[:])
	must(u.t, err)
	for i := range wcs[:n] {
		must(u.t, u.b.qp.Err(&wcs[i]))
		slot := int(wcs[i].ID)
		got := u.b.buf.Bytes()[slot*bufferSize/unreliableSlots:][u.header:wcs[i].ByteLen]
		number := binary.BigEndian.Uint32(got)
		if number == 0 || number > u.sent || !bytes.Equal(got, u.message(number)) || u.arrived[number] {
			u.t.Fatalf("message %d of %d has arrived with %d bytes; before: %t", number, u.sent, len(got), u.arrived[number])
		}
		if u.arrived == nil {
			u.arrived = map[uint32]bool{}
		}
		u.arrived[number] = true
		u.disorder = u.disorder || number < u.last
		u.last = number
		u.post(slot)
	}
}
