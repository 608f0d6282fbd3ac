package conformance

import (
	"bytes"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// deviceMemory allocates memory of the device of a side, or skips the test.
func deviceMemory(t *testing.T, s *side, length int) *uverbs.DM {
	t.Helper()
	testenv.Needs(t, "device memory", "mlx5")
	dm, err := s.dev.AllocDM(length, uverbs.DMOptions{Align: 64})
	testenv.Skip(t, err)
	must(t, err)
	closeLater(t, dm)
	return dm
}

// TestDeviceMemory accesses memory of the device from the peer and from this side, by two MRs that
// begin at different places, as far as their rights and their length go.
func TestDeviceMemory(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard)
	eachPath(t, func(t *testing.T) {
		o := refusing
		o.MaxSendSGE, o.MaxRecvSGE = 2, 2
		a, b := pair(t, o)
		dm := deviceMemory(t, b, 4096)
		all := uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite | uverbs.AccessRemoteRead | uverbs.AccessRemoteAtomic
		whole, err := b.pd.RegDM(dm, 0, 4096, all)
		must(t, err)
		closeLater(t, whole)
		part, err := b.pd.RegDM(dm, 1024, 512, uverbs.AccessLocalWrite|uverbs.AccessRemoteRead)
		must(t, err)
		closeLater(t, part)
		do := func(op uverbs.WROpcode, mr *uverbs.MR, at uint64, sge uverbs.SGE) uverbs.WC {
			t.Helper()
			wr := send(1, sge)
			wr.Opcode, wr.RemoteAddr, wr.RKey, wr.CompareAdd, wr.Swap = op, at, mr.RKey(), 5, 77
			must(t, a.qp.PostSend(wr))
			return a.next(t)
		}
		well := func(wc uverbs.WC) {
			t.Helper()
			must(t, a.qp.Err(&wc))
		}
		want := slices.Clone(a.fill(0, 3000, 7))
		well(do(uverbs.WRRDMAWrite, whole, 100, a.mr.SGE(0, 3000)))
		well(do(uverbs.WRRDMARead, whole, 100, a.mr.SGE(8192, 3000)))
		a.holds(t, 8192, want)
		well(do(uverbs.WRRDMARead, part, 0, a.mr.SGE(16384, 512)))
		a.holds(t, 16384, want[1024-100:][:512])

		// From this side: what is received there, and sent from there, in two pieces.
		must(t, b.qp.PostRecv(2, whole.SGE(2048, 100), part.SGE(0, 100)))
		want = slices.Clone(a.fill(0, 200, 99))
		well(do(uverbs.WRSend, whole, 0, a.mr.SGE(0, 200)))
		b.want(t, 2, uverbs.WCRecv)
		must(t, a.qp.PostRecv(3, a.mr.SGE(8192, 200)), b.qp.PostSend(send(4, whole.SGE(2048, 100), whole.SGE(1024, 100))))
		b.want(t, 4, uverbs.WCSend)
		a.want(t, 3, uverbs.WCRecv)
		a.holds(t, 8192, want)

		must(t, b.qp.PostRecv(5))
		want = slices.Clone(a.fill(0, 64, 33))
		well(do(uverbs.WRRDMAWriteWithImm, whole, 3000, a.mr.SGE(0, 64)))
		if wc := b.want(t, 5, uverbs.WCRecvRDMAWrite); wc.ByteLen != 64 {
			t.Errorf("a WRITE with immediate data of %d bytes, want 64", wc.ByteLen)
		}
		well(do(uverbs.WRRDMARead, whole, 3000, a.mr.SGE(8192, 64)))
		a.holds(t, 8192, want)

		clear(a.buf.Bytes()[:8])
		well(do(uverbs.WRRDMAWrite, whole, 64, a.mr.SGE(0, 8)))
		if !lacksAtomics(t, a.dev) {
			well(do(uverbs.WRFetchAdd, whole, 64, a.mr.SGE(8, 8)))
			well(do(uverbs.WRFetchAdd, whole, 64, a.mr.SGE(16, 8)))
			well(do(uverbs.WRRDMARead, whole, 64, a.mr.SGE(24, 8)))
			if got := a.buf.Bytes()[8:32]; !bytes.Equal(got, []byte{8: 5, 16: 10, 23: 0}) {
				t.Errorf("two additions of 5 were told 0, then 5, and left 10: %x", got)
			}
			well(do(uverbs.WRCompareSwap, whole, 64, a.mr.SGE(8, 8))) // 10 is not 5
			well(do(uverbs.WRRDMAWrite, whole, 64, a.mr.SGE(16, 8)))
			well(do(uverbs.WRCompareSwap, whole, 64, a.mr.SGE(32, 8)))
			well(do(uverbs.WRRDMARead, whole, 64, a.mr.SGE(40, 8)))
			if a.word(8) != 10 || a.word(32) != 5 || a.word(40) != 77 {
				t.Errorf("of 10, then 5, exchanged for 77 if it is 5, were told %d and %d, and %d is left", a.word(8), a.word(32), a.word(40))
			}
		}

		for name, wrong := range map[string]func() uverbs.WC{
			"past the end": func() uverbs.WC { return do(uverbs.WRRDMARead, part, 500, a.mr.SGE(0, 13)) },
			"no right":     func() uverbs.WC { return do(uverbs.WRRDMAWrite, part, 0, a.mr.SGE(0, 8)) },
		} {
			if wc := wrong(); wc.Status != uverbs.WCRemAccessErr {
				t.Errorf("%s: %v, want %v", name, a.qp.Err(&wc), uverbs.WCRemAccessErr)
			}
			reconnect(t, a, b)
		}
		for field, c := range map[string]struct {
			offset, length int
			access         uverbs.Access
		}{"length": {4000, 200, all}, "access": {0, 100, 1 << 30}} {
			_, err := b.pd.RegDM(dm, c.offset, c.length, c.access)
			argError(t, err, field)
		}
		errorIs(t, dm.Close(), syscall.EBUSY, "Close with MRs")
	})
}

// mappedDM is memory of the device that both the processor and the peer use, and what it must hold.
type mappedDM struct {
	a    *side // the peer
	dm   *uverbs.DM
	mr   *uverbs.MR
	want []byte
}

// newMappedDM allocates memory of the device of b.
func newMappedDM(t *testing.T, a, b *side, length int) *mappedDM {
	t.Helper()
	m := &mappedDM{a: a, dm: deviceMemory(t, b, length), want: make([]byte, length)}
	var err error
	m.mr, err = b.pd.RegDM(m.dm, 0, length, uverbs.AccessLocalWrite|uverbs.AccessRemoteWrite|uverbs.AccessRemoteRead|uverbs.AccessRemoteAtomic)
	must(t, err)
	closeLater(t, m.mr)
	return m
}

// do has the peer do an operation on the memory.
func (m *mappedDM) do(t *testing.T, op uverbs.WROpcode, at uint64, sge uverbs.SGE) {
	t.Helper()
	wr := send(1, sge)
	wr.Opcode, wr.RemoteAddr, wr.RKey, wr.CompareAdd = op, at, m.mr.RKey(), 5
	must(t, m.a.qp.PostSend(wr))
	m.a.want(t, 1, map[uverbs.WROpcode]uverbs.WCOpcode{uverbs.WRRDMAWrite: uverbs.WCRDMAWrite, uverbs.WRRDMARead: uverbs.WCRDMARead, uverbs.WRFetchAdd: uverbs.WCFetchAdd}[op])
}

// check compares the memory as the processor sees it, and as the peer does.
func (m *mappedDM) check(t *testing.T, what string) {
	t.Helper()
	length := len(m.want)
	got := make([]byte, 1+length)[1:] // of any alignment
	if n, err := m.dm.ReadAt(got, 0); n != length || err != nil {
		t.Fatalf("%d bytes read, %v", n, err)
	}
	if !bytes.Equal(got, m.want) {
		t.Errorf("%s: the processor reads something else", what)
	}
	m.do(t, uverbs.WRRDMARead, 0, m.a.mr.SGE(8192, length))
	m.a.holds(t, 8192, m.want)
}

// write has the processor write to the memory.
func (m *mappedDM) write(t *testing.T, at int, p []byte) {
	t.Helper()
	copy(m.want[at:], p)
	if n, err := m.dm.WriteAt(p, int64(at)); n != len(p) || err != nil {
		t.Fatalf("%d bytes of %d written, %v", n, len(p), err)
	}
}

// refuses checks the errors of ReadAt and WriteAt for what is unaligned or outside of the memory.
func (m *mappedDM) refuses(t *testing.T) {
	t.Helper()
	for _, c := range []struct {
		length int
		off    int64
		field  string
	}{{4, -4, "off"}, {4, 2, "off"}, {6, 0, "length of b"}, {4, int64(len(m.want)), "length of b"}} {
		_, err := m.dm.ReadAt(make([]byte, c.length), c.off)
		argError(t, err, c.field)
		_, err = m.dm.WriteAt(make([]byte, c.length), c.off)
		argError(t, err, c.field)
	}
}

// TestDeviceMemoryByProcessor checks that work requests of both sides read what the processor writes
// to memory of the device, and the other way round, in each of two pieces of memory.
func TestDeviceMemoryByProcessor(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, refusing)
		const length = 5000 // on two pages
		both := [2]*mappedDM{newMappedDM(t, a, b, length), newMappedDM(t, a, b, length)}
		for i, m := range both {
			m.write(t, 0, a.fill(0, length, byte(i+1)))
			m.check(t, "all of it")
		}
		m := both[0]
		m.write(t, 4092, []byte("over the end of a page"[:8]))
		m.write(t, length-4, []byte("last"))
		m.check(t, "in the middle and at the end")
		copy(m.want[100:], a.fill(0, 3000, 77))
		m.do(t, uverbs.WRRDMAWrite, 100, a.mr.SGE(0, 3000))
		m.check(t, "what the peer has written")
		m.write(t, 64, []byte{7, 7: 0})
		if !lacksAtomics(t, a.dev) {
			m.do(t, uverbs.WRFetchAdd, 64, a.mr.SGE(0, 8))
			m.want[64] += 5
		}
		m.check(t, "what the peer has added")

		// From this side.
		m.write(t, 200, []byte("sent from the device"))
		must(t, a.qp.PostRecv(3, a.mr.SGE(0, 20)), b.qp.PostSend(send(4, m.mr.SGE(200, 20))))
		b.want(t, 4, uverbs.WCSend)
		a.want(t, 3, uverbs.WCRecv)
		a.holds(t, 0, []byte("sent from the device"))
		both[1].check(t, "the other one")

		m.refuses(t)
		must(t, m.mr.Close(), m.dm.Close())
		errorIs(t, errorOf(m.dm.ReadAt(make([]byte, 4), 0)), os.ErrClosed, "ReadAt after Close")
		both[1].check(t, "the other one, when the first is closed")
	})
}

// TestDeviceMemoryLimits allocates as much memory of the device as its attributes say, twice, and
// checks that too long and too aligned requests are refused.
func TestDeviceMemoryLimits(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		s := newSide(t, openDevice(t, deviceName), uverbs.QPOptions{})
		must(t, deviceMemory(t, s, 1).Close())
		most := s.dev.Attr().MaxDMSize
		if most == 0 {
			t.Fatal("there is memory of the device, and none by its attributes")
		}
		_, err := s.dev.AllocDM(int(most)+1, uverbs.DMOptions{})
		argError(t, err, "length")
		errorIs(t, errorOf(s.dev.AllocDM(64, uverbs.DMOptions{Align: 1 << 40})), syscall.EINVAL, "an alignment of 2^40")
		var counts []int
		for range 2 {
			var got []*uverbs.DM
			for {
				dm, err := s.dev.AllocDM(int(most), uverbs.DMOptions{})
				if err != nil {
					errorIs(t, err, syscall.ENOMEM, "no more memory of the device")
					break
				}
				if _, err := dm.WriteAt([]byte("used"), int64(most)-4); err != nil {
					t.Error(err)
				}
				got = append(got, dm)
			}
			for _, dm := range got {
				must(t, dm.Close())
			}
			counts = append(counts, len(got))
		}
		if counts[0] == 0 || counts[0] != counts[1] {
			t.Errorf("memory of %d bytes was there %d times, want the same more than none", most, counts)
		}
		deviceMemoryOfTwo(t, s.dev)
	})
}

// deviceMemoryOfTwo opens the device once more, which to the kernel is as another process, and checks that each
// has memory of the device of its own.
func deviceMemoryOfTwo(t *testing.T, dev *uverbs.Device) {
	t.Helper()
	const pieces, length = 4, 4096
	devs := []*uverbs.Device{dev, openDevice(t, deviceName)}
	var all []*uverbs.DM
	text := func(i int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, length) }
	for i := range 2 * pieces { // in turn
		dm, err := devs[i%2].AllocDM(length, uverbs.DMOptions{})
		must(t, err)
		closeLater(t, dm)
		_, err = dm.WriteAt(text(i), 0)
		must(t, err)
		all = append(all, dm)
	}
	check := func(what string) {
		t.Helper()
		got := make([]byte, length)
		for i, dm := range all {
			if dm == nil {
				continue
			}
			if _, err := dm.ReadAt(got, 0); err != nil || !bytes.Equal(got, text(i)) {
				t.Errorf("%s: piece %d is not as it was written (%v)", what, i, err)
			}
		}
	}
	check("all written")
	for i := 1; i < len(all); i += 2 { // those of the other go
		must(t, all[i].Close())
		all[i] = nil
	}
	must(t, devs[1].Close())
	check("the other is closed")
}
