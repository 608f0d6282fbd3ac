package conformance

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// hasODP reports whether a device must have on-demand paging: rxe has it in newer kernels, siw never, the
// model of a ConnectX always, and a card if its firmware says so.
func hasODP(t *testing.T, dev *uverbs.Device) bool {
	switch {
	case rig.IWARP(), rig.EFA():
		return false
	case testenv.Modelled():
		return true
	case onMLX5:
		return dev.Attr().ODPGeneralCaps != 0
	}
	return since(t, 6, 15)
}

// checkODPCaps checks a device's capabilities of the transports. rxe has on-demand paging for RC
// and UD, and for no other transport.
func checkODPCaps(t *testing.T, dev *uverbs.Device) {
	t.Helper()
	a := dev.Attr()
	var rc, ud uverbs.ODPCaps
	if hasODP(t, dev) {
		rc, ud = uverbs.ODPSend|uverbs.ODPRecv|uverbs.ODPWrite|uverbs.ODPRead, uverbs.ODPSend|uverbs.ODPRecv
	}
	if (a.ODPCapsRC != 0) != (rc != 0) || a.ODPCapsRC&rc != rc {
		t.Errorf("on-demand paging of RC is %#x, want %#x", a.ODPCapsRC, rc)
	}
	if !onMLX5 && ((a.ODPCapsUD != 0) != (ud != 0) || a.ODPCapsUD&ud != ud || a.ODPCapsUC != 0 || a.ODPCapsXRC != 0) {
		t.Errorf("on-demand paging of UD, UC and XRC is %#x, %#x and %#x, want %#x, 0 and 0", a.ODPCapsUD, a.ODPCapsUC, a.ODPCapsXRC, ud)
	}
}

// memoryUse returns a line of /proc/self/status such as VmRSS, in bytes.
func memoryUse(t *testing.T, name string) int {
	t.Helper()
	f, err := os.Open("/proc/self/status")
	must(t, err)
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		key, value, _ := strings.Cut(s.Text(), ":")
		if key != name {
			continue
		}
		var kb int
		_, err := fmt.Sscanf(strings.TrimSpace(value), "%d kB", &kb)
		must(t, err)
		return kb << 10
	}
	t.Fatalf("/proc/self/status has no %s", name)
	return 0
}

func TestOnDemandPaging(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		if got := dev.Attr().ODPGeneralCaps != 0; got != hasODP(t, dev) {
			t.Fatalf("the device says %t about on-demand paging, want %t", got, hasODP(t, dev))
		}
		checkODPCaps(t, dev)
		a, b := newSide(t, dev, uverbs.QPOptions{}), newSide(t, dev, uverbs.QPOptions{})
		connect(t, a, b)
		buf := newBuffer(t, 8<<20)
		pinned := memoryUse(t, "VmPin")
		mr, err := b.pd.RegMR(buf, uverbs.MROptions{Access: remoteRights | uverbs.AccessOnDemand})
		if !hasODP(t, dev) {
			absent(t, err, "on-demand paging")
			return
		}
		must(t, err)
		closeLater(t, mr)
		if now := memoryUse(t, "VmPin"); now != pinned {
			t.Errorf("%d bytes are pinned, before it were %d", now, pinned)
		}
		queryMR(t, mr)
		// Messages of one packet to pages that nobody has touched. rxe of Linux 7.2 loses the
		// offset within a page, so that each has to go to the start of one.
		for i, offset := range []int{0, 5 << 20, 8<<20 - 4096} {
			want := a.fill(0, 1000, byte(i))
			got := buf.Bytes()[offset:][:1000]
			addr := mr.Addr() + uint64(offset)
			if st := a.rdma(t, uverbs.WRRDMAWrite, a.mr.SGE(0, 1000), addr, mr.RKey()); st != uverbs.WCSuccess || !bytes.Equal(got, want) {
				t.Errorf("RDMA WRITE to %d: %s, or it is not there", offset, st)
			}
			if st := a.rdma(t, uverbs.WRRDMARead, a.mr.SGE(30000, 1000), addr, mr.RKey()); st != uverbs.WCSuccess {
				t.Errorf("RDMA READ of %d: %s", offset, st)
			}
			a.holds(t, 30000, want)
			want = a.fill(0, 1000, byte(i+100))
			must(t, b.qp.PostRecv(1, mr.SGE(offset, 1000)), a.qp.PostSend(send(2, a.mr.SGE(0, 1000))))
			a.want(t, 2, uverbs.WCSend)
			b.want(t, 1, uverbs.WCRecv)
			if !bytes.Equal(got, want) {
				t.Errorf("what was received at %d is not what was sent", offset)
			}
		}
	})
}

// TestOnDemandHuge reaches huge pages that nobody has touched, by a region with on-demand paging. With AccessHugeTLB
// mlx5 of Linux 7.2 would reach other memory.
func TestOnDemandHuge(t *testing.T) {
	testenv.Guest(t)
	testenv.Needs(t, "on-demand paging of huge pages", "mlx5")
	const size = 4 << 20
	reserveHuge(t, size>>21)
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{})
		buf, err := uverbs.AllocBuffer(size, uverbs.BufferOptions{HugePages: true})
		must(t, err)
		closeLater(t, buf)
		_, err = b.pd.RegMR(buf, uverbs.MROptions{Access: remoteRights | uverbs.AccessOnDemand | uverbs.AccessHugeTLB})
		argError(t, err, "access")
		mr, err := b.pd.RegMR(buf, uverbs.MROptions{Access: remoteRights | uverbs.AccessOnDemand})
		if !hasODP(t, b.dev) {
			absent(t, err, "on-demand paging")
			return
		}
		must(t, err)
		closeLater(t, mr)
		for i, offset := range []int{0, 2<<20 - 500, size - 1000} { // also over the end of a page
			want := a.fill(0, 1000, byte(i+1))
			addr := mr.Addr() + uint64(offset)
			if st := a.rdma(t, uverbs.WRRDMAWrite, a.mr.SGE(0, 1000), addr, mr.RKey()); st != uverbs.WCSuccess || !bytes.Equal(buf.Bytes()[offset:][:1000], want) {
				t.Errorf("RDMA WRITE to %d: %s, or it is not there", offset, st)
			}
			if st := a.rdma(t, uverbs.WRRDMARead, a.mr.SGE(30000, 1000), addr, mr.RKey()); st != uverbs.WCSuccess {
				t.Errorf("RDMA READ of %d: %s", offset, st)
			}
			a.holds(t, 30000, want)
		}
	})
}

// resident returns how many bytes of a buffer are in memory. The process as a whole says less, since
// Go's runtime gives memory back at any time.
func resident(t *testing.T, buf *uverbs.Buffer) (bytes int) {
	t.Helper()
	const entrySize, present = 8, 1 << 63 // of /proc/self/pagemap
	f, err := os.Open("/proc/self/pagemap")
	must(t, err)
	defer f.Close()
	page := os.Getpagesize()
	entries := make([]byte, len(buf.Bytes())/page*entrySize)
	_, err = f.ReadAt(entries, int64(addrOf(buf))/int64(page)*entrySize)
	must(t, err)
	for ; len(entries) > 0; entries = entries[entrySize:] {
		if binary.NativeEndian.Uint64(entries)&present != 0 {
			bytes += page
		}
	}
	return bytes
}

func TestAdviseMR(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		const size = 8 << 20
		dev := openDevice(t, deviceName)
		pd, buf := newPD(t, dev), newBuffer(t, size)
		access := remoteRights
		if hasODP(t, dev) {
			access |= uverbs.AccessOnDemand
		}
		mr, err := pd.RegMR(buf, uverbs.MROptions{Access: access})
		must(t, err)
		closeLater(t, mr)
		flush := uverbs.AdviseOptions{Flush: true}
		sgl := []uverbs.SGE{mr.SGE(0, size/2), mr.SGE(size/2, size/2)}
		if !hasODP(t, dev) || os.Getenv("RDMAABI") == "write" {
			absent(t, pd.AdviseMR(uverbs.AdvicePrefetch, sgl, flush), "ADVISE_MR")
			return
		}
		must(t, pd.AdviseMR(uverbs.AdvicePrefetchNoFault, sgl, flush))
		if n := resident(t, buf); n > size/4 {
			t.Errorf("%d bytes became resident without a fault", n)
		}
		marks := []int{1, size/2 - 1, size - 2}
		for _, at := range marks {
			buf.Bytes()[at] = 0xaa
		}
		must(t, pd.AdviseMR(uverbs.AdvicePrefetchWrite, sgl, flush))
		if n := resident(t, buf); n < size*3/4 {
			t.Errorf("of %d bytes %d became resident", size, n)
		}
		must(t, pd.AdviseMR(uverbs.AdvicePrefetch, sgl, flush), pd.AdviseMR(uverbs.AdvicePrefetch, sgl, uverbs.AdviseOptions{}))
		for _, at := range marks {
			if buf.Bytes()[at] != 0xaa {
				t.Errorf("byte %d has changed", at)
			}
		}
		if n := bytes.Count(buf.Bytes(), []byte{0}); n != size-len(marks) {
			t.Errorf("%d bytes are 0, want %d", n, size-len(marks))
		}

		outside := sgl[1]
		outside.Addr += size
		for name, err := range map[string]error{
			"outside":    pd.AdviseMR(uverbs.AdvicePrefetch, []uverbs.SGE{outside}, flush),
			"other PD":   newPD(t, dev).AdviseMR(uverbs.AdvicePrefetch, sgl, flush),
			"wrong lkey": pd.AdviseMR(uverbs.AdvicePrefetch, []uverbs.SGE{{Addr: mr.Addr(), Length: 1, LKey: 1}}, flush),
		} {
			if err == nil {
				t.Errorf("%s: no error", name)
				continue
			}
			says(t, err, "ADVISE_MR", "on-demand MR of this PD")
		}
	})
}
