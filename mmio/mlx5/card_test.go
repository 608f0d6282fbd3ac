//go:build amd64 || arm64

package mlx5

import (
	"encoding/binary"
	"testing"
	"unsafe"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/test/testenv"
)

// must fails a test on an error.
var must = testenv.Must

// Offsets and values typed from the kernel's include/linux/mlx5/{qp,cq,device}.h, and on
// purpose not taken from layout.go, which these tests check.
const (
	ownOffset  = 63
	cntOffset  = 60
	opOffset   = 56
	synOffset  = 55
	vendOffset = 54
	lenOffset  = 44
	immOffset  = 36
	idxOffset  = 32
	rqpOffset  = 24
)

// A card is the device's side of a QP and its CQ, in memory: it reads WQEs as the records and
// the register tell, and writes CQEs.
type card struct {
	tb   testing.TB
	qpn  uint32
	uar  []byte
	sqMB []byte
	rqMB []byte
	cqMB []byte

	recs    Records
	qpRec   Record
	cqRec   Record
	sendLen int // blocks
	cqeSize int
	cqeLog  int
	pi      uint32 // next CQE to write
	taken   uint16 // next block to read

	sq *SendQueue
	rq *RecvQueue
	cq *CompQueue
}

// region is memory as a device shares it.
func region(tb testing.TB, n int) []byte {
	tb.Helper()
	r, err := mmio.MapAnonymous(n, false)
	must(tb, err)
	tb.Cleanup(func() { r.Close() })
	return r.Bytes()
}

// testContext is a device as the kernel describes a ConnectX-5.
var testContext = Context{BlueFlame: 512, MaxSendWQE: 1024, MaxRecvWQE: 512, MaxBlocks: 32768, MaxRecvWR: 32768, MaxSRQWR: 32767, UserIndex: true}

// cardQPN is the number of the QP.
const cardQPN = 0x4a5b6c

func newCard(tb testing.TB, t Transport, wr, sge, inline int) *card {
	tb.Helper()
	c := &card{tb: tb, qpn: cardQPN, uar: region(tb, uarSize), cqeSize: 64}
	tb.Cleanup(func() { c.recs.Close() })
	must := func(err error) {
		tb.Helper()
		must(tb, err)
	}
	var err error
	c.qpRec, err = c.recs.Take()
	must(err)
	c.cqRec, err = c.recs.Take()
	must(err)
	ss, err := testContext.SizeSend(t, wr, sge, inline)
	must(err)
	rs, err := testContext.SizeRecv(16, 3)
	must(err)
	reg, err := NewRegister(c.uar, 0, 512, false)
	must(err)
	c.sqMB, c.rqMB, c.cqMB = region(tb, ss.Bytes()), region(tb, rs.Bytes()), region(tb, 64*64)
	c.sendLen = ss.Blocks
	c.sq, err = NewSendQueue(c.sqMB, ss, t, cardQPN, c.qpRec, reg)
	must(err)
	c.rq, err = NewRecvQueue(c.rqMB, rs, c.qpRec)
	must(err)
	c.cq, err = NewCompQueue(c.cqMB, 64, 64, c.cqRec)
	must(err)
	c.cqeLog = 6
	must(c.cq.SetNumber(0x1234, c.uar))
	return c
}

// record reads a word of a doorbell record.
func (c *card) record(r Record, i int) uint32 {
	return binary.BigEndian.Uint32(unsafe.Slice((*byte)(unsafe.Pointer(r.w)), 8)[4*i:])
}

// produced is how many blocks the record says that there are.
func (c *card) produced() uint16 { return uint16(c.record(c.qpRec, 1)) }

// wraps reports whether a WQE that begins at a block goes on at the start of the ring.
func (c *card) wraps(at uint16, wqe []byte) bool {
	return int(at)%c.sendLen*blockSize+len(wqe) > len(c.sqMB)
}

// take reads the next WQE, nil if there is none. It checks what a device would.
func (c *card) take() []byte {
	c.tb.Helper()
	if c.taken == c.produced() {
		return nil
	}
	block := func(i uint16) []byte {
		at := int(i) % c.sendLen * 64
		return c.sqMB[at : at+64]
	}
	first := block(c.taken)
	size := int(first[7]&0x3f) * 16
	if size == 0 {
		c.tb.Fatalf("WQE at block %d has no size: %x", c.taken, first)
	}
	if got := binary.BigEndian.Uint32(first) >> 8 & 0xffff; got != uint32(c.taken) {
		c.tb.Fatalf("WQE at block %d has index %d", c.taken, got)
	}
	if got := binary.BigEndian.Uint32(first[4:]) >> 8; got != c.qpn {
		c.tb.Fatalf("WQE has QP %#x", got)
	}
	var w []byte
	for len(w) < size {
		w = append(w, block(c.taken)...)
		c.taken++
	}
	if left := c.produced() - c.taken; left > uint16(c.sendLen) {
		c.tb.Fatalf("WQE goes beyond the record, which says %d", c.produced())
	}
	return w[:size]
}

// put writes the next CQE: the fields given, then the owner byte.
func (c *card) put(opcode, inline byte, fields map[int][]byte) {
	n := len(c.cqMB) / c.cqeSize
	at := int(c.pi)%n*c.cqeSize + c.cqeSize - 64
	e := c.cqMB[at : at+64]
	clear(e[:ownOffset])
	for off, b := range fields {
		copy(e[off:], b)
	}
	own := opcode<<4 | inline | byte(c.pi>>c.cqeLog&1)
	// As the device does it: the owner bit is there when all else is.
	word := (*uint32)(unsafe.Pointer(&e[60]))
	*word = *word&0xffffff | uint32(own)<<24
	c.pi++
}

func u16(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }
func u32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }
func u64(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

// sent completes the send at a block.
func (c *card) sent(block uint16) { c.put(0, 0, map[int][]byte{cntOffset: u16(block)}) }

// post posts one request that fill completes.
func (c *card) post(id uint64, op Op, flags uint8, fill func(s *SendSlot)) {
	c.tb.Helper()
	c.sq.Begin()
	c.add(id, op, flags, fill)
	c.sq.Publish()
}

// add adds one request to a batch.
func (c *card) add(id uint64, op Op, flags uint8, fill func(s *SendSlot)) {
	c.tb.Helper()
	if !c.sq.Room(int(c.sq.filled-c.sq.head) + 1) {
		c.tb.Fatal("no room")
	}
	var s SendSlot
	c.sq.Start(&s, id, op, flags)
	if fill != nil {
		fill(&s)
	}
	s.Finish()
}

// ok fails the test on an error of a slot.
func ok(tb testing.TB, err error) {
	tb.Helper()
	must(tb, err)
}

// ptr is where a record is.
func ptr(r Record) unsafe.Pointer { return unsafe.Pointer(r.w) }

func ptrOf(b []byte) unsafe.Pointer { return unsafe.Pointer(&b[0]) }
