package efa

import (
	"bytes"
	"strings"
	"testing"
)

// Registers are read by the way of memory, and a reset forgets where that is.
func TestRegisters(t *testing.T) {
	x := newDriver(t, NewFabric(1), 0, "plain")
	for reg, want := range map[uint32]uint32{regVersion: 2, regController: 1, regCaps: 10<<1 | 48<<8, regStatus: statusReady} {
		if got := x.load(reg); got != want {
			t.Errorf("register %#x: %#x, want %#x", reg, got, want)
		}
	}
	x.store(MSIXTable, 1) // QEMU's
	x.broken()
	if got := x.load(regAQCaps); got != unreadRegister {
		t.Errorf("a register that cannot be read: %#x", got)
	}
	x.broken("register-read")
	x.store(regControl, controlReset)
	clear(x.answer)
	x.store(regRead, regStatus<<16|9)
	if !zero(x.answer) {
		t.Errorf("a register was read to %x after a reset", x.answer)
	}
	x.setAnswer(guestBase)
	if got := x.load(regStatus); got != statusReset {
		t.Errorf("status %#x during a reset", got)
	}
	x.store(regControl, 0)
	if got := x.load(regStatus); got != statusReady || x.dev.Report().Resets["reason 0"] != 2 {
		t.Errorf("status %#x after a reset, %+v", got, x.dev.Report().Resets)
	}
}

// Wrong accesses to registers are violations, and do nothing.
func TestRegisterViolations(t *testing.T) {
	for _, tt := range []struct {
		rule string
		do   func(x *driver)
	}{
		{"load", func(x *driver) { x.dev.ReadBAR(barRegisters, regStatus, make([]byte, 4)) }},
		{"load", func(x *driver) { x.dev.ReadBAR(barLLQ, 0, make([]byte, 8)) }},
		{"store-width", func(x *driver) { x.dev.WriteBAR(barRegisters, regControl, make([]byte, 8)) }},
		{"store-width", func(x *driver) { x.dev.WriteBAR(barDoorbells, 2, make([]byte, 4)) }},
		{"register", func(x *driver) { x.store(regStatus, 1) }},
		{"register-reserved", func(x *driver) { x.store(regIntrMask, 2) }},
		{"register-reserved", func(x *driver) { x.store(regControl, 2) }},
		{"reset", func(x *driver) { x.store(regControl, 0) }},
		{"reset", func(x *driver) { x.store(regControl, 1); x.store(regControl, 1) }},
		{"register-read", func(x *driver) { x.setAnswer(guestBase + 4); x.store(regRead, 1) }},
		{"register-read", func(x *driver) { x.setAnswer(8); x.store(regRead, 1) }},
		{"register-read", func(x *driver) { x.setAnswer(1 << 48); x.store(regRead, 1) }},
		{"admin-setup", func(x *driver) { x.store(regAQCaps, 64<<16|32) }},
		{"admin-setup", func(x *driver) { x.store(regAQBaseHi, 1); x.store(regAQBaseLo, 64); x.store(regAQCaps, 64<<16|33) }},
		{"admin-setup", func(x *driver) { x.store(regACQBaseHi, 1); x.store(regACQBaseLo, 64); x.store(regACQCaps, 32<<16|32) }},
		{"admin-setup", func(x *driver) { x.store(regAENQBaseLo, 64); x.store(regAENQCaps, 64<<16|16) }},
		{"admin-doorbell", func(x *driver) { x.store(regAQDoorbell, 1) }},
		{"aenq-doorbell", func(x *driver) { x.store(regAENQCons, 1) }},
		{"eq-doorbell", func(x *driver) { x.store(regEQDoorbell, eqArm|1) }},
		{"doorbell-page", func(x *driver) { x.dev.WriteBAR(barDoorbells, 4, make([]byte, 4)) }},
		{"llq", func(x *driver) { x.dev.WriteBAR(barLLQ, 0, make([]byte, 8)) }},
	} {
		x := newDriver(t, NewFabric(1), 0, "plain")
		tt.do(x)
		x.broken(tt.rule)
	}
}

// The queues for commands go around, and answers have the command's number and a checksum.
func TestCommands(t *testing.T) {
	if got := checksum([]byte("123456789")); got != 0xb4c8 { // from the catalogue of CRCs: CRC-16/USB
		t.Errorf("checksum %#x", got)
	}
	x := start(t, NewFabric(1), 0, "plain")
	for range 100 {
		a := x.must(opGetFeature, 0, 17, uint8(featNetwork))
		sum := le.Uint16(a[4:])
		a[4], a[5] = 0, 0
		if sum != checksum(a) || GID(a[8:24]) != x.dev.gid {
			t.Fatalf("answer % x with checksum %#x", a, sum)
		}
	}
	x.broken()
	x.refused(statusUnsupported, "not modelled", 21, 0)
	x.broken()
	x.refused(statusMalformed, "byte 18", opGetFeature, 0, 17, uint8(featNetwork), 18, uint8(1))
	x.refused(statusMalformed, "flags", opAllocPD, 2)
	x.broken("admin-reserved")
	if r := x.dev.Report(); r.Commands["GET_FEATURE"] != 101 || r.Commands["opcode 21"] != 1 || r.Refusals != 3 {
		t.Errorf("%+v", r)
	}
	x.store(regAQDoorbell, x.commands+33)
	x.store(regAQDoorbell, x.commands)
	x.broken("admin-reserved", "admin-doorbell")
	x.ring(regAQBaseLo, regAQCaps, commandSize<<16|32, &x.aq)
	x.broken("admin-reserved", "admin-doorbell", "admin-setup")
	y := start(t, NewFabric(1), 0, "plain")
	y.aq[2], y.aq[3] = byte(opAllocPD), 0
	y.store(regAQDoorbell, 1)
	y.broken("admin-phase")
	copy(y.aq[commandSize:], words(commandSize, 0, uint16(0x1000), 2, uint8(opAllocPD), 3, uint8(1)))
	y.store(regAQDoorbell, 2)
	if got := y.acq[commandSize:][2]; got != byte(statusMalformed) {
		t.Errorf("a command ID of 13 bits: status %d", got)
	}
	y.broken("admin-phase", "admin-reserved")
}

// Several commands with one doorbell are answered with one interrupt, and with none if they are masked.
func TestBatchOfCommands(t *testing.T) {
	x := start(t, NewFabric(1), 0, "first")
	for i := range 3 {
		copy(x.aq[i*commandSize:], words(commandSize, 0, uint16(i), 2, uint8(opAllocPD), 3, uint8(1)))
	}
	x.store(regIntrMask, 1)
	x.store(regAQDoorbell, 2)
	x.store(regIntrMask, 0)
	if x.interrupts[0] != 0 {
		t.Errorf("%d interrupts that were masked", x.interrupts[0])
	}
	x.store(regAQDoorbell, 3)
	if got := le.Uint16(x.acq[2*commandSize+8:]); x.interrupts[0] != 1 || got != 3 || le.Uint16(x.acq[4:]) != 0 {
		t.Errorf("%d interrupts, PD %d, checksum %#x of version 0.1", x.interrupts[0], got, x.acq[4:6])
	}
	x.broken()
}

func TestFeatures(t *testing.T) {
	f := NewFabric(1)
	x, old := start(t, f, 0, "plain"), start(t, f, 1, "first")
	a := x.must(opGetFeature, 0, 17, uint8(featDevice))[8:]
	if got := le.Uint64(a); got != 0x2fe {
		t.Errorf("features %#x", got)
	}
	if le.Uint32(a[32:]) != 0x3b || le.Uint32(a[36:]) != maxRDMA || le.Uint16(a[28:]) != barDoorbells || !bytes.Equal(a[40:48], x.dev.gid[8:]) {
		t.Errorf("device % x", a)
	}
	if b := old.must(opGetFeature, 0, 17, uint8(featDevice))[8:]; le.Uint64(b) != 0xfe || le.Uint32(b[32:]) != 0 || le.Uint32(b[36:]) != 0 {
		t.Errorf("device % x of the first generation", b)
	}
	if q := old.must(opGetFeature, 0, 17, uint8(featQueues))[8:]; le.Uint32(q) != maxQPs || le.Uint16(q[24:]) != 2 || le.Uint32(q[48:]) != maxLLQ || le.Uint16(q[52:]) != 1 {
		t.Errorf("queues % x", q)
	}
	if q := x.must(opGetFeature, 0, 17, uint8(featQueuesToo))[8:]; le.Uint16(q) != inlineWide {
		t.Errorf("more of queues % x", q)
	}
	old.refused(statusUnsupported, "feature 9", opGetFeature, 0, 17, uint8(featQueuesToo))
	x.refused(statusUnsupported, "feature 200", opGetFeature, 0, 17, uint8(200))
	x.refused(statusUnsupported, "feature 6", opGetFeature, 0, 17, uint8(featHost))
	if h := x.must(opGetFeature, 0, 17, uint8(featHints)); !zero(h[8:]) {
		t.Errorf("hints % x", h)
	}
	x.must(opGetFeature, 0, 17, uint8(featEQs))

	at, host := x.alloc(hostInfoSize)
	copy(host, words(hostInfoSize, 0, []byte("6.1.0"), 174, uint16(0x200)))
	x.must(opSetFeature, 2, 4, uint32(hostInfoSize), 8, at, 17, uint8(featHost))
	if got := x.dev.Report().Host; got != "6.1.0" {
		t.Errorf("host %q", got)
	}
	x.refused(statusIllegal, "buffer of 4 bytes", opSetFeature, 2, 4, uint32(4), 8, at, 17, uint8(featHost))
	host[175] = 3
	x.refused(statusIllegal, "specification 0x300", opSetFeature, 2, 4, uint32(hostInfoSize), 8, at, 17, uint8(featHost))
	x.refused(statusUnsupported, "feature 1", opSetFeature, 0, 17, uint8(featDevice))
	x.broken()
}

// The driver is told that the card works, until it does not read that any more.
func TestKeepAlive(t *testing.T) {
	x := start(t, NewFabric(1), 0, "plain")
	x.dev.KeepAlive() // nobody wants to know
	x.refused(statusIllegal, "groups 0x20", opSetFeature, 0, 17, uint8(featAENQ), 24, uint32(0x20))
	x.must(opSetFeature, 0, 17, uint8(featAENQ), 24, uint32(allGroups))
	if a := x.must(opGetFeature, 0, 17, uint8(featAENQ))[8:]; le.Uint32(a) != allGroups || le.Uint32(a[4:]) != allGroups {
		t.Errorf("groups % x", a)
	}
	before := x.interrupts[0]
	for range 20 {
		x.dev.KeepAlive()
	}
	if got := x.interrupts[0] - before; got != 15 || x.aenq[0] != groupKeepAlive || x.aenq[4] != 1 || x.aenq[15*aenqEntrySize+4] != 1 {
		t.Errorf("%d events, % x", got, x.aenq[:8])
	}
	x.store(regAENQCons, 16)
	x.dev.KeepAlive()
	if x.aenq[4] != 0 {
		t.Error("no event on the second round")
	}
	x.broken()
	x.store(regControl, controlReset)
	x.store(regAENQCons, 17) // by a handler that was late
	x.broken()
	x = start(t, NewFabric(1), 0, "plain")
	x.store(regAENQCons, 1)
	x.broken("aenq-doorbell")
}

func TestPersonalities(t *testing.T) {
	for name, want := range map[string]string{
		"plain": "plain", "first": "first no-read no-write no-rnr-retry no-unsolicited no-counters sub-cqs no-wide-data",
		"read": "read no-write no-unsolicited no-counters no-wide-data no-eqs", "batch": "batch no-unsolicited no-counters min-sq batch no-wide-data new-ahs",
	} {
		p, err := ParsePersonality(name)
		if got := p.String(); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
	}
	if _, err := ParsePersonality("big"); err == nil || !strings.Contains(err.Error(), `"big": want one of plain, first`) {
		t.Errorf("%v", err)
	}
	p, _ := ParsePersonality("first")
	if b := p.Bus(); b.ID.Vendor != 0x1d0f || b.ID.Device != 0xefa0 || b.BARs != [6]uint64{0: 0x4000, 2: 32 << 20, 4: 64 * 4096} || b.Vectors != Vectors {
		t.Errorf("%+v", b)
	}
}
