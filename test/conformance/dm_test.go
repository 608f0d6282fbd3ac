package conformance

import (
	"bytes"
	"errors"
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
	dm, err := s.dev.AllocDM(length, uverbs.DMOptions{LogAlign: 6})
	testenv.Skip(t, err)
	must(t, err)
	closeLater(t, dm)
	return dm
}

// TestDeviceMemory reaches memory of the device from the other side and from this one, by two MRs that
// begin at different places, as far as their rights and their length go.
func TestDeviceMemory(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		o := refusing
		o.MaxSendSGE, o.MaxRecvSGE = 2, 2
		a, b := pair(t, o)
		dm := deviceMemory(t, b, 4096)
		all := uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite | uverbs.AccessRemoteRead | uverbs.AccessRemoteAtomic
		whole, err := b.pd.RegDMMR(dm, 0, 4096, all)
		must(t, err)
		closeLater(t, whole)
		part, err := b.pd.RegDMMR(dm, 1024, 512, uverbs.AccessLocalWrite|uverbs.AccessRemoteRead)
		must(t, err)
		closeLater(t, part)
		do := func(op uverbs.WROpcode, mr *uverbs.MR, at uint64, sge uverbs.SGE) uverbs.WC {
			t.Helper()
			wr := send(1, sge)
			wr.Opcode, wr.RemoteAddr, wr.RKey, wr.CompareAdd = op, at, mr.RKey(), 5
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

		clear(a.buf.Bytes()[:8])
		well(do(uverbs.WRRDMAWrite, whole, 64, a.mr.SGE(0, 8)))
		well(do(uverbs.WRAtomicFAA, whole, 64, a.mr.SGE(8, 8)))
		well(do(uverbs.WRAtomicFAA, whole, 64, a.mr.SGE(16, 8)))
		well(do(uverbs.WRRDMARead, whole, 64, a.mr.SGE(24, 8)))
		if got := a.buf.Bytes()[8:32]; !bytes.Equal(got, []byte{8: 5, 16: 10, 23: 0}) {
			t.Errorf("two additions of 5 were told 0, then 5, and left 10: %x", got)
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
		if err := dm.Close(); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("Close with MRs: %v, want EBUSY", err)
		}
	})
}

// TestDeviceMemoryLimits: there is as much as the device says, once, and all of it again when it was
// freed; what is too long or too aligned is refused.
func TestDeviceMemoryLimits(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		s := newSide(t, openDevice(t, deviceName), uverbs.QPOptions{})
		must(t, deviceMemory(t, s, 1).Close())
		most := s.dev.QueryDevice().MaxDMSize
		if most == 0 {
			t.Fatal("there is memory of the device, and none by its attributes")
		}
		_, err := s.dev.AllocDM(int(most)+1, uverbs.DMOptions{})
		argError(t, err, "length")
		if _, err := s.dev.AllocDM(64, uverbs.DMOptions{LogAlign: 40}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("an alignment of 2^40: %v, want EINVAL", err)
		}
		var counts []int
		for range 2 {
			var got []*uverbs.DM
			for {
				dm, err := s.dev.AllocDM(int(most), uverbs.DMOptions{})
				if err != nil {
					if !errors.Is(err, syscall.ENOMEM) {
						t.Errorf("no more memory of the device: %v, want ENOMEM", err)
					}
					break
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
	})
}
