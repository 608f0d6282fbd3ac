package vfiouser

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const sealed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

func TestVersion(t *testing.T) {
	c := connect(t)
	b := c.must(cmdVersion, append([]byte{0, 0, 3, 0}, "{}\x00"...))
	if !bytes.HasPrefix(b, []byte{0, 0, 3, 0, '{'}) || !bytes.Contains(b, []byte(`"max_msg_fds":8`)) || b[len(b)-1] != 0 {
		t.Errorf("%q", b)
	}
	c.refused(unix.ENOTSUP, cmdVersion, []byte{1, 0, 0, 0})
	c.refused(unix.EINVAL, cmdVersion, append([]byte{0, 0, 0, 0}, "{}"...))
	c.refused(unix.EINVAL, cmdVersion, []byte{0})
	c.refused(unix.ENOTSUP, 15, make([]byte, 64))
	if err := c.hangUp(); err != nil {
		t.Error(err)
	}
}

func TestInfo(t *testing.T) {
	c := connect(t)
	if b := c.must(cmdGetInfo, words(16, 0, 0, 0)); !bytes.Equal(b, words(16, infoReset|infoPCI, 9, 5)) {
		t.Errorf("device: %x", b)
	}
	for index, size := range map[uint32]uint64{0: testBAR, 1: 0, 6: 0, 7: 4096, 8: 0} {
		b := c.must(cmdRegionInfo, words(32, 0, index, 0, 0, 0, 0, 0))
		if got := le.Uint64(b[16:]); got != size || (le.Uint32(b[4:]) == regionRead|regionWrite) != (size > 0) {
			t.Errorf("region %d: %x", index, b)
		}
	}
	c.refused(unix.EINVAL, cmdRegionInfo, words(32, 0, 9, 0, 0, 0, 0, 0))
	for index, count := range map[uint32]uint32{0: 0, 2: testVectors, 4: 0} {
		if b := c.must(cmdIRQInfo, words(16, 0, index, 0)); le.Uint32(b[12:]) != count {
			t.Errorf("interrupt %d: %x", index, b)
		}
	}
	c.refused(unix.EINVAL, cmdIRQInfo, words(16, 0, 5, 0))
	c.must(cmdDeviceReset, nil)
	if c.dev.resets != 1 {
		t.Errorf("%d resets", c.dev.resets)
	}
}

func TestRegions(t *testing.T) {
	c := connect(t)
	if b := c.must(cmdRegionRead, access(0x10, 0, 8)); !bytes.Equal(b[16:], []byte{0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17}) {
		t.Errorf("read %x", b)
	}
	c.must(cmdRegionWrite, access(0x20, 0, 4, 1, 2, 3, 4))
	c.send(cmdRegionWrite, flagNoReply, access(0x28, 0, 2, 5, 6)) // no answer
	c.must(cmdRegionWrite, access(testBAR-1, 0, 1, 9))
	want := []string{"\x20\x00\x00\x00\x00\x00\x00\x00\x01\x02\x03\x04", "\x28\x00\x00\x00\x00\x00\x00\x00\x05\x06", "\xff\xff\x0f\x00\x00\x00\x00\x00\x09"}
	if strings.Join(c.dev.writes, "|") != strings.Join(want, "|") {
		t.Errorf("stores %q", c.dev.writes)
	}
	for _, bad := range []struct {
		off           uint64
		region, count uint32
	}{{testBAR, 0, 1}, {testBAR - 1, 0, 2}, {^uint64(0), 0, 1}, {^uint64(0) - 3, 0, 8}, {0, 0, 0}, {0, 0, maxData + 1}, {0, 1, 4}, {4095, 7, 2}, {0, 9, 4}, {0, ^uint32(0), 4}} {
		c.refused(unix.EINVAL, cmdRegionRead, access(bad.off, bad.region, bad.count))
		c.refused(unix.EINVAL, cmdRegionWrite, access(bad.off, bad.region, bad.count, make([]byte, min(bad.count, 64))...))
	}
	c.refused(unix.EINVAL, cmdRegionWrite, access(0, 0, 4, 1, 2, 3))
	c.refused(unix.EINVAL, cmdRegionWrite, access(0, 0, 4, 1, 2, 3, 4, 5))
	if len(c.dev.writes) != len(want) {
		t.Error("a refused store reached the device")
	}
}

func TestConfigSpace(t *testing.T) {
	c := connect(t)
	read := func(off uint64, n uint32) []byte { return c.must(cmdRegionRead, access(off, configRegion, n))[16:] }
	if b := read(0, 4); !bytes.Equal(b, []byte{0xb3, 0x15, 0x18, 0x10}) {
		t.Errorf("IDs %x", b)
	}
	// The capabilities are a list that ends.
	var caps []byte
	for at := read(pciCapList, 1)[0]; at != 0 && len(caps) < 8; at = read(uint64(at)+1, 1)[0] {
		caps = append(caps, read(uint64(at), 1)[0])
	}
	if !bytes.Equal(caps, []byte{capIDExpress, capIDMSIX}) {
		t.Errorf("capabilities %x", caps)
	}
	if n := le.Uint16(read(pciMSIX+2, 2)); n != testVectors-1 {
		t.Errorf("MSI-X control %#x", n)
	}
	// The address of a BAR is known as soon as both halves are written.
	c.must(cmdRegionWrite, access(pciBAR0, configRegion, 4, 0, 0, 0x30, 0xfe))
	c.must(cmdRegionWrite, access(pciBAR0+4, configRegion, 4, 0x38, 0, 0, 0))
	if at := c.srv.BAR(0); at != 0x38_fe300000 {
		t.Errorf("BAR 0 is at %#x", at)
	}
	// Fixed fields keep their values, others can be set, and a BAR shows its size.
	all := bytes.Repeat([]byte{0xff}, 64)
	c.must(cmdRegionWrite, access(0, configRegion, 64, all...))
	c.must(cmdRegionWrite, access(pciMSIX, configRegion, 12, all[:12]...))
	for _, tt := range []struct {
		off  uint64
		want []byte
	}{
		{0, []byte{0xb3, 0x15, 0x18, 0x10, 0x47, 0x05, 0x10, 0x00}},
		{pciBAR0, []byte{0x0c, 0x00, 0xf0, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0}},
		{pciMSIX, []byte{capIDMSIX, 0, testVectors - 1, 0xc0, 0x00, 0x20, 0x00, 0x00, 0x00, 0x30, 0x00, 0x00}},
	} {
		if b := read(tt.off, uint32(len(tt.want))); !bytes.Equal(b, tt.want) {
			t.Errorf("at %#x: %x, want %x", tt.off, b, tt.want)
		}
	}
}

func TestMemory(t *testing.T) {
	c := connect(t)
	fd := memfd(t, 1<<20, sealed)
	if _, err := unix.Pwrite(fd, []byte("hello"), 0x3000); err != nil {
		t.Fatal(err)
	}
	c.must(cmdDMAMap, dmaMap(dmaRead|dmaWrite, 0x2000, 0x10000, 0x8000), fd)
	b, err := c.srv.Bytes(0x11000, 5)
	if err != nil || string(b) != "hello" {
		t.Fatalf("%q, %v", b, err)
	}
	copy(b, "HELLO")
	var back [5]byte
	if _, err := unix.Pread(fd, back[:], 0x3000); err != nil || string(back[:]) != "HELLO" {
		t.Errorf("the file has %q, %v", back, err)
	}
	if b, err := c.srv.Bytes(0x17ffe, 100); err != nil || len(b) != 2 || cap(b) != 2 {
		t.Errorf("at the end: %d bytes, %v", len(b), err)
	}
	for _, addr := range []uint64{0, 0xffff, 0x18000, ^uint64(0)} {
		if _, err := c.srv.Bytes(addr, 1); !errors.Is(err, ErrNotMapped) {
			t.Errorf("%#x: %v", addr, err)
		}
	}
	for _, n := range []int{0, -1} {
		if _, err := c.srv.Bytes(0x10000, n); !errors.Is(err, ErrNotMapped) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}

	// Descriptors that are no memory are refused, or mapped without being accessible.
	c.refused(unix.EEXIST, cmdDMAMap, dmaMap(dmaRead|dmaWrite, 0, 0x17000, 0x2000), fd)
	c.refused(unix.EEXIST, cmdDMAMap, dmaMap(dmaRead|dmaWrite, 0, 0xf000, 0x1001), fd)
	c.refused(unix.EINVAL, cmdDMAMap, dmaMap(dmaRead|dmaWrite, 0, 0x100000, 0), fd)
	c.refused(unix.EINVAL, cmdDMAMap, dmaMap(dmaRead|dmaWrite, 0, ^uint64(0)-0xfff, 0x2000), fd)
	c.refused(unix.EINVAL, cmdDMAMap, dmaMap(dmaRead|dmaWrite, 0x800, 0x100000, 0x1000), fd)
	c.refused(unix.EINVAL, cmdDMAMap, dmaMap(dmaRead|dmaWrite, 0, 0x100000, 1<<21), fd)
	c.refused(unix.EINVAL, cmdDMAMap, dmaMap(dmaRead|dmaWrite, ^uint64(0)-0xfff, 0x100000, 0x1000), fd)
	c.refused(unix.EINVAL, cmdDMAMap, dmaMap(dmaRead|dmaWrite, 0, 0x100000, 0x1000), fd, fd)
	c.refused(unix.EPERM, cmdDMAMap, dmaMap(dmaRead|dmaWrite, 0, 0x100000, 0x1000), memfd(t, 1<<20, 0))
	c.refused(unix.EPERM, cmdDMAMap, dmaMap(dmaRead|dmaWrite, 0, 0x100000, 0x1000), eventfd(t))
	c.must(cmdDMAMap, dmaMap(dmaRead, 0, 0x200000, 0x1000), fd)
	c.must(cmdDMAMap, dmaMap(dmaRead|dmaWrite, 0, 0x300000, 0x1000))
	for _, addr := range []uint64{0x100000, 0x200000, 0x300000} {
		if _, err := c.srv.Bytes(addr, 1); !errors.Is(err, ErrNotMapped) {
			t.Errorf("%#x is accessible: %v", addr, err)
		}
	}

	c.refused(unix.ENOENT, cmdDMAUnmap, dmaUnmap(0, 0x400000, 0x1000))
	c.refused(unix.EINVAL, cmdDMAUnmap, dmaUnmap(0, 0x10000, 0x1000))
	c.refused(unix.EINVAL, cmdDMAUnmap, dmaUnmap(0, 0x10000, 0))
	c.refused(unix.ENOTSUP, cmdDMAUnmap, dmaUnmap(1, 0x10000, 0x8000))
	c.refused(unix.EINVAL, cmdDMAUnmap, dmaUnmap(unmapAll, 0x10000, 0x8000))
	c.must(cmdDMAUnmap, dmaUnmap(0, 0x10000, 0x8000))
	if _, err := c.srv.Bytes(0x11000, 5); !errors.Is(err, ErrNotMapped) {
		t.Errorf("after unmapping: %v", err)
	}
	b[0] = 'h' // a transfer that was under way does no harm
	c.must(cmdDMAMap, dmaMap(dmaRead|dmaWrite, 0x2000, 0x10000, 0x8000), fd)
	if n := len(c.srv.memory.files); n != 1 {
		t.Errorf("the same piece of the file is mapped %d times", n)
	}
	c.must(cmdDMAUnmap, dmaUnmap(unmapAll, 0, 0))
	if _, err := c.srv.Bytes(0x11000, 5); !errors.Is(err, ErrNotMapped) {
		t.Errorf("after unmapping all: %v", err)
	}
}

func TestInterrupts(t *testing.T) {
	c := connect(t)
	a, b := eventfd(t), eventfd(t)
	c.srv.Interrupt(1) // nobody listens yet
	c.must(cmdSetIRQs, words(20, irqDataEventFD|irqTrigger, irqMSIX, 1, 2), a, b)
	if n := raised(t, a); n != 1 {
		t.Errorf("a pending interrupt came %d times", n)
	}
	c.srv.Interrupt(2)
	c.srv.Interrupt(-1)
	c.srv.Interrupt(testVectors)
	if x, y := raised(t, a), raised(t, b); x != 0 || y != 1 {
		t.Errorf("%d and %d interrupts", x, y)
	}
	c.must(cmdSetIRQs, words(20, irqDataNone|irqTrigger, irqMSIX, 1, 1)) // the client tests one
	if n := raised(t, a); n != 1 {
		t.Errorf("%d interrupts", n)
	}
	c.must(cmdSetIRQs, words(20, irqDataEventFD|irqTrigger, irqMSIX, 1, 1)) // taken away
	c.srv.Interrupt(1)
	if n := raised(t, a); n != 0 {
		t.Errorf("%d interrupts at an eventfd that was taken away", n)
	}
	c.must(cmdSetIRQs, words(20, irqDataNone|irqTrigger, irqMSIX, 0, 0)) // all off
	c.srv.Interrupt(2)
	if n := raised(t, b); n != 0 {
		t.Errorf("%d interrupts after all were taken away", n)
	}

	c.refused(unix.EINVAL, cmdSetIRQs, words(20, irqDataEventFD|irqTrigger, irqMSIX, 0, 2), a)
	c.refused(unix.EINVAL, cmdSetIRQs, words(20, irqDataEventFD|irqTrigger, irqMSIX, testVectors, 1), a)
	c.refused(unix.EINVAL, cmdSetIRQs, words(20, irqDataEventFD|irqTrigger, irqMSIX, ^uint32(0), 2), a, b)
	c.refused(unix.EINVAL, cmdSetIRQs, words(20, irqDataEventFD|irqTrigger, 0, 0, 1), a)
	c.refused(unix.ENOTSUP, cmdSetIRQs, words(20, 2|irqTrigger, irqMSIX, 0, 1, 1))
	c.refused(unix.EINVAL, cmdSetIRQs, words(20, 0))
}

// Bytes that are no message end the connection.
func TestGarbled(t *testing.T) {
	for name, head := range map[string]header{
		"a reply":   {cmd: cmdGetInfo, flags: flagReply},
		"too long":  {cmd: cmdGetInfo, size: maxMessage + 1},
		"too short": {cmd: cmdGetInfo, size: headerSize - 1},
	} {
		c := connect(t)
		b := head.appendTo(nil, 0)
		if head.size > 0 {
			le.PutUint32(b[4:], head.size)
		}
		if _, err := c.conn.Write(b); err != nil {
			t.Fatal(err)
		}
		if err := <-c.ended; err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	// A message that is cut off.
	c := connect(t)
	if _, err := c.conn.Write(header{cmd: cmdGetInfo}.appendTo(nil, 100)); err != nil {
		t.Fatal(err)
	}
	if err := c.hangUp(); err == nil {
		t.Error("a message that is cut off: no error")
	}
}

// A client that is killed is gone, even if it has not read all of its answers.
func TestKilled(t *testing.T) {
	for range 20 {
		c := connect(t)
		for range 50 {
			c.send(cmdGetInfo, 0, words(16, 0, 0, 0))
		}
		must(t, c.hangUp())
	}
}

// Descriptors that nobody takes are closed, and those that were taken with the connection.
func TestDescriptors(t *testing.T) {
	fd, event := memfd(t, 1<<20, sealed), eventfd(t)
	before := openFDs(t)
	c := connect(t)
	for range 20 {
		c.must(cmdGetInfo, words(16, 0, 0, 0), fd, event)
		c.refused(unix.EINVAL, cmdDMAMap, dmaMap(dmaRead|dmaWrite, 0, 0, 0), fd)
		c.refused(unix.EINVAL, cmdSetIRQs, words(20, irqDataEventFD|irqTrigger, irqMSIX, 0, 2), event)
	}
	c.must(cmdDMAMap, dmaMap(dmaRead|dmaWrite, 0, 0x10000, 0x8000), fd)
	c.must(cmdSetIRQs, words(20, irqDataEventFD|irqTrigger, irqMSIX, 0, 2), event, event)
	if err := c.hangUp(); err != nil {
		t.Error(err)
	}
	if _, err := c.srv.Bytes(0x10000, 1); !errors.Is(err, ErrNotMapped) {
		t.Errorf("memory of a client that is gone: %v", err)
	}
	if after := openFDs(t); after > before {
		t.Errorf("%d descriptors are open, %d before", after, before)
	}
}

// Whatever bytes a message has: an answer, or the end of the connection.
func TestMutations(t *testing.T) {
	fd := memfd(t, 1<<20, sealed)
	rng := rand.New(rand.NewPCG(1, 2))
	good := []struct {
		cmd  command
		body []byte
	}{
		{cmdVersion, append([]byte{0, 0, 3, 0}, "{}\x00"...)}, {cmdGetInfo, words(16, 0, 0, 0)}, {cmdRegionInfo, words(32, 0, 0, 0, 0, 0, 0, 0)},
		{cmdIRQInfo, words(16, 0, 2, 0)}, {cmdSetIRQs, words(20, irqDataEventFD|irqTrigger, irqMSIX, 0, 1)}, {cmdDeviceReset, nil},
		{cmdDMAMap, dmaMap(3, 0, 0x10000, 0x8000)}, {cmdDMAUnmap, dmaUnmap(0, 0x10000, 0x8000)},
		{cmdRegionRead, access(0, 0, 4)}, {cmdRegionWrite, access(0, 7, 4, 1, 2, 3, 4)},
	}
	c := connect(t)
	for range 3000 {
		m := good[rng.IntN(len(good))]
		body := bytes.Clone(m.body)
		for range rng.IntN(3) {
			if len(body) > 0 {
				body[rng.IntN(len(body))] = byte(rng.Uint32())
			}
		}
		if rng.IntN(10) == 0 {
			body = body[:rng.IntN(len(body)+1)]
		}
		if rng.IntN(2) == 0 {
			c.call(m.cmd, body, fd)
		} else {
			c.call(m.cmd, body)
		}
		if b, err := c.srv.Bytes(rng.Uint64N(1<<18), 64); err == nil {
			b[0]++ // it must be there
		}
	}
}

func FuzzMessage(f *testing.F) {
	f.Add(uint16(cmdDMAMap), dmaMap(3, 0, 0x10000, 0x8000))
	f.Add(uint16(cmdRegionRead), access(0, 0, 4))
	f.Add(uint16(cmdRegionWrite), access(0, 7, 4, 1, 2, 3, 4))
	f.Add(uint16(cmdSetIRQs), words(20, irqDataEventFD|irqTrigger, irqMSIX, 0, 1))
	f.Fuzz(func(t *testing.T, cmd uint16, body []byte) {
		cfg := Config{Vectors: testVectors}
		cfg.BARs[0] = testBAR
		s := New(cfg)
		s.dev = &device{}
		out, err := s.handle(&message{header: header{cmd: command(cmd)}, body: body})
		if err == nil && len(out) > len(body)+maxData {
			t.Errorf("%d bytes of answer", len(out))
		}
	})
}
