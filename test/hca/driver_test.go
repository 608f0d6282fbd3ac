package hca

import (
	"errors"
	"testing"

	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// driver plays a driver against a card, in memory.
type driver struct {
	t       *testing.T
	d       *Device
	fabric  *engine.Fabric
	mem     []byte
	next    uint64 // memory from here on is free
	vectors []int  // interrupts that came
}

const (
	ramSize = 2 << 20
	ramBase = 0x100000 // where the memory is on the bus
	slots   = ramBase  // the command queue
)

var errUnmapped = errors.New("not mapped")

// Bytes is the guest's memory.
func (v *driver) Bytes(addr uint64, n int) ([]byte, error) {
	if addr < ramBase || addr >= ramBase+ramSize || n < 1 {
		return nil, errUnmapped
	}
	off := int(addr - ramBase)
	end := min(off+n, ramSize)
	return v.mem[off:end:end], nil
}

// newDriver makes a card that has been powered on.
func newDriver(t *testing.T, mode Mode) *driver {
	t.Helper()
	return newDriverOf(t, mode, Personality{})
}

// newDriverOf makes a card with a personality that has been powered on.
func newDriverOf(t *testing.T, mode Mode, p Personality) *driver {
	t.Helper()
	return newDriverWith(t, Config{Personality: p, Mode: mode})
}

// newDriverWith makes a card of a configuration, of which the rest is filled in, that has been powered on.
func newDriverWith(t *testing.T, cfg Config) *driver {
	t.Helper()
	return newDriverPrepared(t, cfg, func(*engine.Fabric, *Config) {})
}

// newDriverPrepared is newDriverWith of a configuration that needs the fabric.
func newDriverPrepared(t *testing.T, cfg Config, prepare func(*engine.Fabric, *Config)) *driver {
	t.Helper()
	v := &driver{t: t, mem: make([]byte, ramSize), next: ramBase + 4096}
	v.fabric = engine.NewFabric(engine.FabricConfig{Manual: true, Seed: 1})
	var err error
	cfg.Name, cfg.Index, cfg.Memory, cfg.Fabric = "card", 7, v, v.fabric
	cfg.Interrupt = func(i int) { v.vectors = append(v.vectors, i) }
	prepare(v.fabric, &cfg)
	v.d, err = New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.fabric.Close)
	v.store(segCmdQHigh, slots>>32)
	v.store(segCmdQLow, slots)
	return v
}

// newRunning makes a card that is initialized.
func newRunning(t *testing.T, mode Mode) *driver {
	t.Helper()
	v := newDriver(t, mode)
	v.bringUp()
	return v
}

// newRunningOf makes a card with a personality that is initialized.
func newRunningOf(t *testing.T, mode Mode, p Personality) *driver {
	t.Helper()
	v := newDriverOf(t, mode, p)
	v.bringUp()
	return v
}

func (v *driver) bringUp() {
	v.t.Helper()
	v.must(prm.EnableHCA, 0, v.in(small), small)
	issi := v.in(small)
	prm.ISSICurrent.Put(issi, issiOne)
	v.must(prm.SetISSI, 0, issi, small)
	v.give(bootPages + initPages)
	v.must(prm.InitHCA, 0, v.in(small), small)
}

// give gives the card so many pages.
func (v *driver) give(n int) {
	v.t.Helper()
	in := v.in(prm.PagesList + 8*n)
	prm.PagesNum.Put(in, uint64(n))
	for i := range n {
		be.PutUint64(in[prm.PagesList+8*i:], v.page())
	}
	v.must(prm.ManagePages, pagesGive, in, small)
}

// page takes a page of memory.
func (v *driver) page() uint64 {
	v.t.Helper()
	p := v.next
	if v.next += 4096; v.next > ramBase+ramSize {
		v.t.Fatal("no memory left")
	}
	return p
}

// store is a 32-bit store to BAR 0.
func (v *driver) store(off uint64, value uint32) {
	var b [4]byte
	be.PutUint32(b[:], value)
	v.d.WriteBAR(0, off, b[:])
}

func (v *driver) load(off uint64) uint32 {
	var b [4]byte
	v.d.ReadBAR(0, off, b[:])
	return be.Uint32(b[:])
}

// in makes a command's input.
func (v *driver) in(n int) []byte { return make([]byte, n) }

// object makes the input of a command about an object.
func (v *driver) object(n uint32) []byte {
	in := v.in(small)
	prm.ObjectNumber.Put(in, uint64(n))
	return in
}

// mailbox writes data into a chain of blocks and gives its address.
func (v *driver) mailbox(data []byte, n int, token byte) uint64 {
	var first, prev uint64
	for i := 0; i*blockData < n; i++ {
		p := v.next
		v.next += 1024
		b := v.mem[p-ramBase:][:blockSize]
		clear(b)
		if i*blockData < len(data) {
			copy(b[:blockData], data[i*blockData:])
		}
		be.PutUint32(b[blockNum:], uint32(i))
		b[blockToken] = token
		if first == 0 {
			first = p
		} else {
			be.PutUint64(v.mem[prev-ramBase+blockNext:], p)
		}
		prev = p
	}
	return first
}

// desc writes a command into slot 0 without ringing the doorbell.
func (v *driver) desc(in []byte, outLen int) []byte {
	d := v.mem[slots-ramBase:][:descSize]
	clear(d)
	d[descType] = descPCI
	be.PutUint32(d[descInLen:], uint32(len(in)))
	copy(d[descIn:descOut], in)
	token := byte(0x5a)
	if len(in) > inlineLen {
		be.PutUint64(d[descInPtr:], v.mailbox(in[inlineLen:], len(in)-inlineLen, token))
	}
	if outLen > inlineLen {
		be.PutUint64(d[descOutPtr:], v.mailbox(nil, outLen-inlineLen, token))
	}
	be.PutUint32(d[descOutLen:], uint32(outLen))
	d[descToken] = token
	d[descStatus] = 1
	return d
}

// ring has the card execute slot 0, and gives the delivery status.
func (v *driver) ring() int {
	v.t.Helper()
	v.store(segCmdDoorbell, 1)
	status := v.mem[slots-ramBase+descStatus]
	if status&1 != 0 {
		v.t.Fatal("the card has kept the command")
	}
	return int(status >> 1)
}

// answer collects the output of slot 0.
func (v *driver) answer(outLen int) []byte {
	d := v.mem[slots-ramBase:][:descSize]
	out := append([]byte(nil), d[descOut:descOutPtr]...)
	for p := be.Uint64(d[descOutPtr:]); len(out) < outLen; {
		b := v.mem[p-ramBase:][:blockSize]
		out = append(out, b[:min(blockData, outLen-len(out))]...)
		p = be.Uint64(b[blockNext:])
	}
	return out[:outLen]
}

// call executes a command.
func (v *driver) call(op prm.Op, mod uint16, in []byte, outLen int) ([]byte, prm.Status) {
	v.t.Helper()
	mark := v.next
	prm.InOpcode.Put(in, uint64(op))
	prm.InOpMod.Put(in, uint64(mod))
	v.desc(in, outLen)
	if code := v.ring(); code != prm.DeliveryOK {
		v.t.Fatalf("%s: delivery status %#x", op, code)
	}
	out := v.answer(outLen)
	v.next = mark // the mailboxes are free again
	return out, prm.Status(prm.OutStatus.Get(out))
}

// must executes a command that has to go well.
func (v *driver) must(op prm.Op, mod uint16, in []byte, outLen int) []byte {
	v.t.Helper()
	out, status := v.call(op, mod, in, outLen)
	if status != prm.OK {
		r := v.d.Report()
		v.t.Fatalf("%s: %s: %+v", op, status, r.Refused)
	}
	return out
}

// refused executes a command that has to be refused.
func (v *driver) refused(want prm.Status, op prm.Op, mod uint16, in []byte, outLen int) {
	v.t.Helper()
	out, status := v.call(op, mod, in, outLen)
	if status != want {
		v.t.Errorf("%s: %s, want %s", op, status, want)
	}
	if status != prm.OK && prm.OutSyndrome.Get(out) == 0 {
		v.t.Errorf("%s: %s without a syndrome", op, status)
	}
}

// create executes a command that gives an object's number.
func (v *driver) create(op prm.Op, in []byte) uint32 {
	v.t.Helper()
	return prm.ObjectNumber.U32(v.must(op, 0, in, small))
}

// violations checks how many there were so far.
func (v *driver) violations(want uint64) {
	v.t.Helper()
	if r := v.d.Report(); r.Violations != want {
		v.t.Errorf("%d violations, want %d: %+v", r.Violations, want, r.Engine.Violations)
	}
}

// with makes a command of so many bytes of fixed part, with pages behind it.
func (v *driver) with(pages ...uint64) []byte {
	in := v.in(list + 8*len(pages))
	for i, p := range pages {
		be.PutUint64(in[list+8*i:], p)
	}
	return in
}

func (v *driver) uar() uint32 { return v.create(prm.AllocUAR, v.in(small)) }
func (v *driver) pd() uint32  { return v.create(prm.AllocPD, v.in(small)) }

// eqIn makes CREATE_EQ's input, for 64 entries on one page.
func (v *driver) eqIn(uar uint32, vector int, events uint64, page uint64) []byte {
	in := v.with(page)
	x := in[prm.EQCtx:]
	prm.EQCLogSize.Put(x, 6)
	prm.EQCUAR.Put(x, uint64(uar))
	prm.EQCIntr.Put(x, uint64(vector))
	be.PutUint64(in[prm.EQBitmask:], events)
	return in
}

func (v *driver) eq(uar uint32, vector int, events uint64, page uint64) uint32 {
	v.t.Helper()
	return prm.EQNumber.U32(v.must(prm.CreateEQ, 0, v.eqIn(uar, vector, events, page), small))
}

// cqIn makes CREATE_CQ's input, for 64 entries of 64 bytes on one page.
func (v *driver) cqIn(uar, eqn uint32, page, dbr uint64) []byte {
	in := v.with(page)
	x := in[prm.CQCtx:]
	prm.CQCLogSize.Put(x, 6)
	prm.CQCUAR.Put(x, uint64(uar))
	prm.CQCEQN.Put(x, uint64(eqn))
	prm.CQCDBR.Put(x, dbr)
	return in
}

// newCQ makes a CQ whose entries are invalid.
func (v *driver) newCQ(uar, eqn uint32) (cqn uint32, page, dbr uint64) {
	v.t.Helper()
	page, dbr = v.page(), v.page()
	for i := range 64 {
		v.mem[page-ramBase+uint64(64*i)+63] = 0xf1
	}
	return v.create(prm.CreateCQ, v.cqIn(uar, eqn, page, dbr)), page, dbr
}
