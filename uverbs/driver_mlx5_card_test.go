//go:build amd64 || arm64

package uverbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// card is a device of mlx5 whose side the test plays: a CQ, and a QP with or without an SRQ.
type card struct {
	t   testing.TB
	dev *Device
	cq  *CQ
	qp  *QP
	srq *SRQ
	mem []byte // of the MR with key cardKey, at its own address
	pi  uint32 // next completion to write
	n   int    // of the CQ

	kernel.Device                                    // nil
	answer        func() syscall.Errno               // the answer to every command
	legacy        func(*kernel.Legacy) syscall.Errno // if it is set, the answer to a legacy command
}

// Do implements [kernel.Device].
func (c *card) Do(cmd *kernel.Command, _ bool) syscall.Errno {
	if l, ok := cmd.Legacy(); ok && c.legacy != nil {
		return c.legacy(&l)
	}
	return c.answer()
}

// setLinkLayer makes the device know its port, which has the link layer.
func (d *Device) setLinkLayer(l ib.LinkLayer) {
	port := newCached[PortAttr](d)
	port.value = PortAttr{LinkLayer: l, State: ib.PortActive, ActiveMTU: ib.MTU4096, GIDTableLen: 16}
	port.asked.Store(int64(time.Since(started) + time.Hour)) // recent for as long as a test runs
	d.ports.ports[1].Store(port)
}

// Keys of the card's objects.
const (
	cardQPN  = 0x123456
	cardSRQN = 0x777
	cardKey  = 0x2504
	cardCQEs = 32
)

// newMlx5Card makes one. userIndex says whether completions carry indices; size is the size of a
// completion.
func newMlx5Card(t testing.TB, userIndex, shared bool, size int) *card {
	t.Helper()
	region := func(n int) *mmio.Region {
		r, err := mmio.MapAnonymous(n, false)
		must(t, err)
		t.Cleanup(func() { r.Close() })
		return r
	}
	m := &mlx5Context{Context: mlx5.Context{
		BlueFlame: 512, MaxSendWQE: 1024, MaxRecvWQE: 512, MaxBlocks: 1024, MaxRecvWR: 1024, MaxSRQWR: 1024, UserIndex: userIndex,
	}}
	d := &Device{info: DeviceInfo{Name: "mlx5_0"}, driver: mlx5Driver{}, deviceDrivers: deviceDrivers{mlx5: m}}
	d.object.dev, d.object.kind = d, "Device"
	d.attr.PhysPortCount = 1
	d.setLinkLayer(ib.LinkLayerInfiniBand)
	m.dev = d
	uar := region(4096)
	m.uars.doorbell = &mlx5UAR{region: uar, object: true, id: 7}
	reg := value(mlx5.NewRegister(uar.Bytes(), 0, 512, false))(t)
	m.uars.plain = &mlx5Register{Register: reg, uar: m.uars.doorbell.id}
	c := &card{t: t, dev: d, mem: region(4096).Bytes(), n: cardCQEs}
	d.cmd = newCommands(c, pathAuto, "mlx5_0", d.driver)
	m.uars.cmd = d.cmd

	c.cq = &CQ{kind: kindMlx5}
	c.cq.dev, c.cq.object.kind = d, "CQ"
	value(mlx5Driver{}.prepareCQ(c.cq, &CQOptions{Size: cardCQEs - 1, CQESize: size, Flags: CQTimestamp}))(t)
	must(t, mlx5Driver{}.mapCQ(c.cq, udata{out: make([]byte, mlx5.CQRespSize)}))

	if shared {
		c.srq = &SRQ{kind: kindMlx5}
		c.srq.dev, c.srq.object.kind = d, "SRQ"
		value(mlx5Driver{}.prepareSRQ(c.srq, &SRQOptions{MaxWR: 8, MaxSGE: 3}))(t)
		must(t, mlx5Driver{}.mapSRQ(c.srq, udata{out: binary.LittleEndian.AppendUint64(nil, cardSRQN)}))
	}
	c.qp = &QP{kind: kindMlx5, typ: ib.RC, sendCQ: c.cq, recvCQ: c.cq, srq: c.srq, qpn: cardQPN}
	c.qp.dev, c.qp.object.kind = d, "QP"
	ops, _ := mlx5Driver{}.operations(ib.RC)
	c.qp.setOps(ops)
	o := QPOptions{Type: ib.RC, SendCQ: c.cq, RecvCQ: c.cq, SRQ: c.srq, MaxSendWR: 8, MaxSendSGE: 2, MaxInline: 64}
	if !shared {
		o.MaxRecvWR, o.MaxRecvSGE = 8, 3
	} else {
		c.qp.noRecv = errSRQ
	}
	value(mlx5Driver{}.prepareQP(c.qp, &qpSpec{QPOptions: o, pd: &PD{}}))(t)
	must(t, mlx5Driver{}.mapQP(c.qp, udata{out: make([]byte, mlx5.QPRespSize)}))
	c.qp.state.Store(uint32(ib.QPRTS))
	c.cq.qps.Store(uint32(cardQPN), c.qp)
	d.mrs.insert(&mrRecord{lkey: cardKey, addr: addrOf(c.mem), length: uint64(len(c.mem)), access: AccessLocalWrite, mem: c.mem})
	return c
}

// sge is a piece of the card's memory.
func (c *card) sge(offset, n int) SGE {
	return SGE{Addr: addrOf(c.mem) + uint64(offset), Length: uint32(n), LKey: cardKey}
}

// put writes a completion: opcode and inline bits, and fields by their offset in the last 64
// bytes of it.
func (c *card) put(opcode byte, fields map[int][]byte, data ...byte) {
	ring := c.cq.region.Bytes()
	size := len(ring) / c.n
	e := ring[int(c.pi)%c.n*size:][:size]
	clear(e[:size-1])
	last := e[size-64:]
	own := opcode<<4 | byte(c.pi/uint32(c.n)&1)
	if data != nil {
		if size == 128 {
			own |= 8
		} else {
			own |= 4
		}
		copy(e, data)
	}
	binary.BigEndian.PutUint32(last[56:], cardQPN)
	if c.dev.mlx5.UserIndex {
		binary.BigEndian.PutUint32(last[32:], c.qp.mlx5.index)
	} else if c.srq != nil && opcode != 0 && opcode != 13 {
		binary.BigEndian.PutUint32(last[32:], cardSRQN)
	}
	for off, b := range fields {
		copy(last[off:], b)
	}
	word, err := mmio.IndexAt(last, 60) // the owner is stored last, and with its word
	must(c.t, err)
	word.Release(word.Acquire()&0xffffff | uint32(own)<<24)
	c.pi++
}

// poll returns the completions that there are.
func (c *card) poll() []WC {
	c.t.Helper()
	var wcs [2 * cardCQEs]WC
	n, err := c.cq.Poll(wcs[:])
	if err != nil {
		c.t.Fatal(err)
	}
	return slices.Clone(wcs[:n])
}

func b16(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }
func b32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }

// fast writes a completion of an entry, without allocating.
func (c *card) fast(opcode byte, counter uint16) {
	e := c.cq.region.Bytes()[int(c.pi)%c.n*64:][:64]
	binary.BigEndian.PutUint32(e[32:], c.qp.mlx5.index)
	binary.BigEndian.PutUint32(e[56:], cardQPN)
	binary.BigEndian.PutUint16(e[60:], counter)
	e[63] = opcode<<4 | byte(c.pi/uint32(c.n)&1)
	c.pi++
}

// pingPong posts a receive, a WRITE with inline data and a SEND, completes the last two as the
// device would, and polls.
func (c *card) pingPong(i int, wcs []WC, sgl []SGE, inline []byte) {
	var err error
	if c.srq != nil {
		err = c.srq.PostRecv(1, sgl...)
	} else {
		err = c.qp.PostRecv(1, sgl...)
	}
	b := c.qp.BeginSend()
	b.Write(2, SendSignaled, 1, 2)
	b.Inline(inline)
	b.Send(3, SendSignaled)
	b.SGE(sgl...)
	if post := b.Post(); err != nil || post != nil {
		c.t.Fatal(err, post)
	}
	c.fast(0, uint16(2*i+1)) // each has one block
	entry := uint16(i)
	if c.srq != nil {
		entry = uint16(i % (c.srq.mlx5.rq.Cap() + 1))
	}
	c.fast(2, entry)
	if n, err := c.cq.Poll(wcs); n != 2 || err != nil || wcs[0].ID != 3 || wcs[1].ID != 1 {
		c.t.Fatalf("%d: %d completions %+v, %v", i, n, wcs[:n], err)
	}
}

// TestMlx5Size: a size that the card does not have is refused with the sizes that it has.
func TestMlx5Size(t *testing.T) {
	for _, f := range []struct {
		size mlx5.SizeError
		want string
	}{
		{mlx5.SizeError{What: "MaxInline", Got: 1000, Most: 956}, "MaxInline is 1000, allowed: 0 to 956 bytes"},
		{mlx5.SizeError{What: "MaxInline", Got: 1, Most: 0}, "MaxInline is 1, allowed: 0 to 0 bytes"},
		{mlx5.SizeError{What: "MaxSendWR", Got: 70000, Most: 32768}, "MaxSendWR is 70000, allowed: 1 to 32768"},
		{mlx5.SizeError{What: "MaxSRQ", Got: 3, Most: 0}, "MaxSRQ is 3, allowed: 0 (not supported by the device)"},
	} {
		err := mlx5Size("CreateQP", fmt.Errorf("ring: %w", &f.size))
		var arg *ArgError
		if !errors.As(err, &arg) || arg.Op != "CreateQP" || arg.Field != f.size.What || !strings.HasSuffix(err.Error(), f.want) {
			t.Errorf("%+v: %v, want %q", f.size, err, f.want)
		}
	}
	if other := errors.New("no memory"); mlx5Size("CreateQP", other) != other {
		t.Error("another error is not returned as it is")
	}
}
