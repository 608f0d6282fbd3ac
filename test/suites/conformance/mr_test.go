package conformance

import (
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// remoteRights let a peer read and write.
const remoteRights = uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite | uverbs.AccessRemoteRead

// since reports whether the kernel is of a version or newer.
func since(t *testing.T, major, minor int) bool {
	k := testenv.Kernel(t)
	return slices.Compare(k[:], []int{major, minor}) >= 0
}

// lacksFeature fails the test unless err is a FeatureError that names a feature.
func lacksFeature(t *testing.T, err error, feature string) {
	t.Helper()
	var f *uverbs.FeatureError
	if !errors.As(err, &f) || !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(f.Feature, feature) {
		t.Errorf("error is %v, want a FeatureError about %s", err, feature)
	}
}

// absent is lacksFeature for what the test is about, so that the matrix of results shows it.
func absent(t *testing.T, err error, feature string) {
	t.Helper()
	lacksFeature(t, err, feature)
	testenv.Lacks(t, err)
}

// newPD allocates a PD that is closed at the end of the test.
func newPD(t *testing.T, dev *uverbs.Device) *uverbs.PD {
	t.Helper()
	pd, err := dev.AllocPD()
	must(t, err)
	closeLater(t, pd)
	return pd
}

// newBuffer allocates a buffer that is closed at the end of the test.
func newBuffer(t *testing.T, size int) *uverbs.Buffer {
	t.Helper()
	buf, err := uverbs.AllocBuffer(size, uverbs.BufferOptions{})
	must(t, err)
	closeLater(t, buf)
	return buf
}

// rdma posts an RDMA request and returns the status that it ends with.
func (s *side) rdma(t *testing.T, op uverbs.WROpcode, sge uverbs.SGE, addr uint64, rkey uint32) uverbs.WCStatus {
	t.Helper()
	must(t, s.qp.PostSend(uverbs.SendWR{ID: 1, Opcode: op, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{sge}, RemoteAddr: addr, RKey: rkey}))
	return s.next(t).Status
}

// usable writes to a region of the peer and reads it back.
func usable(t *testing.T, a *side, mr *uverbs.MR, offset int) {
	t.Helper()
	want := a.fill(0, 3000, byte(offset))
	addr := mr.Addr() + uint64(offset)
	if st := a.rdma(t, uverbs.WRRDMAWrite, a.mr.SGE(0, 3000), addr, mr.RKey()); st != uverbs.WCSuccess {
		t.Fatalf("RDMA WRITE to %#x: %s", addr, st)
	}
	if st := a.rdma(t, uverbs.WRRDMARead, a.mr.SGE(30000, 3000), addr, mr.RKey()); st != uverbs.WCSuccess {
		t.Fatalf("RDMA READ of %#x: %s", addr, st)
	}
	a.holds(t, 30000, want)
	if string(mr.Bytes()[offset:][:3000]) != string(want) {
		t.Fatalf("the bytes at %#x are not what was written", addr)
	}
}

// refusing are the options of a QP whose peer may refuse a request without an answer, as
// rxe of Linux 5.10 does.
var refusing = uverbs.QPOptions{Path: uverbs.PathOptions{Timeout: 15, RetryCount: refusingRetries()}}

// refusingRetries is one, for 2·134 ms, as the machine may be slow. With packets that are lost it is more.
func refusingRetries() uint8 {
	if testenv.SoftFaults() != "" {
		return 5
	}
	return 1
}

func TestRegMRAt(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "chosen MR addresses")
	eachPath(t, func(t *testing.T) {
		for name, o := range map[string]uverbs.MROptions{
			"own address":  {Offset: 4196, Length: 9000},
			"zero":         {Offset: 8192, IOVA: new(uint64(0))},
			"low":          {Offset: 4096 + 100, Length: 9000, IOVA: new(uint64(3*4096 + 100))},
			"high":         {Offset: 7, Length: 12288, IOVA: new(uint64(1<<47 + 7))},
			"whole buffer": {IOVA: new(uint64(1 << 32))},
		} {
			t.Run(name, func(t *testing.T) {
				a, b := pair(t, refusing)
				o.Access = remoteRights
				if name == "low" && b.mr.Addr()>>12%2 == 1 {
					o.Offset += 4096 // mlx5_ib of Linux 5.10 wants an IOVA as aligned as the memory
				}
				mr, err := b.pd.RegMR(b.buf, o)
				must(t, err)
				closeLater(t, mr)
				usable(t, a, mr, 0)
				usable(t, a, mr, 1)
				usable(t, a, mr, mr.Len()-3000)
				// It is known by this address to local work requests too.
				want := a.fill(0, 2000, 77)
				must(t, b.qp.PostRecv(1, mr.SGE(500, 2000)), a.qp.PostSend(send(2, a.mr.SGE(0, 2000))))
				a.want(t, 2, uverbs.WCSend)
				b.want(t, 1, uverbs.WCRecv)
				b.holds(t, o.Offset+500, want)
				if st := a.rdma(t, uverbs.WRRDMAWrite, a.mr.SGE(0, 2), mr.Addr()+uint64(mr.Len())-1, mr.RKey()); st == uverbs.WCSuccess {
					t.Error("a write beyond the region succeeds")
				}
			})
		}
	})
}

// TestAccessFlags registers with each right.
func TestAccessFlags(t *testing.T) {
	testenv.NeedsIB(t, "chosen MR addresses")
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		pd, buf := newPD(t, dev), newBuffer(t, 8192)
		// rxe of Linux 6.1 and older takes flags that it does not know.
		strict, rights := since(t, 6, 12) || rig.EFA(), !rig.EFA()
		for _, c := range []struct {
			access  uverbs.Access
			has     bool
			feature string
		}{
			{uverbs.AccessMWBind, rights, "access MW_BIND"},
			{uverbs.AccessRemoteAtomic, rights, "access REMOTE_ATOMIC"},
			{uverbs.AccessRelaxedOrdering, true, ""},
			{1 << 29, true, ""}, // a wish that no kernel knows
			{uverbs.AccessZeroBased, !strict || onMLX5, "access ZERO_BASED"},
			{uverbs.AccessHugeTLB, !strict || onMLX5, "access HUGETLB"},
			{uverbs.AccessFlushGlobal, strict && !onMLX5 && rights, "access FLUSH_GLOBAL"},
			{uverbs.AccessOnDemand, hasODP(t, dev), "on-demand paging"},
		} {
			mr, err := pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | c.access})
			if !c.has {
				lacksFeature(t, err, c.feature)
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", c.access, err)
				continue
			}
			must(t, mr.Close())
		}
		_, err := pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessFlushPersistent})
		if !strict || onMLX5 || rig.EFA() {
			lacksFeature(t, err, "access FLUSH_PERSISTENT")
		} else if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("FLUSH_PERSISTENT of ordinary memory: %v, want EINVAL", err)
		} else {
			says(t, err, "persistent memory only")
		}
		_, err = pd.RegMR(buf, uverbs.MROptions{Access: 1<<10 | uverbs.AccessLocalWrite})
		argError(t, err, "access")
		says(t, err, "LOCAL_WRITE|0x400", "REMOTE_ATOMIC|MW_BIND")
	})
}

// TestZeroBased checks that the addresses of a zero-based MR start at 0, if the driver supports
// that.
func TestZeroBased(t *testing.T) {
	testenv.NeedsIB(t, "chosen MR addresses")
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, refusing)
		mr, err := b.pd.RegMR(b.buf, uverbs.MROptions{Access: rightsOnDevice(b.dev, remoteRights) | uverbs.AccessZeroBased, Offset: 4096})
		if since(t, 6, 12) && !onMLX5 || rig.EFA() {
			absent(t, err, "ZERO_BASED")
			return
		}
		must(t, err)
		closeLater(t, mr)
		if mr.Addr() != 0 {
			t.Errorf("address is %#x", mr.Addr())
		}
		usable(t, a, mr, 5)
	})
}

// TestRegUnpinnableMemory registers memory that the kernel cannot pin.
func TestRegUnpinnableMemory(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		pd := newPD(t, openDevice(t, deviceName))
		// Unmapping a part leaves a hole that is too small for the mappings that Go's runtime makes
		// meanwhile.
		around, err := unix.Mmap(-1, 0, 3*8192, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		must(t, err)
		defer unix.Munmap(around)
		readOnly := around[8192 : 2*8192]
		mr, err := pd.RegSlice(readOnly, uverbs.AccessRemoteRead)
		must(t, err)
		sge := mr.SGE(0, 0)
		must(t, mr.Close())
		_, err = pd.RegSlice(readOnly, uverbs.AccessLocalWrite)
		errorIs(t, err, syscall.EFAULT, "read-only memory")
		says(t, err, "REG_MR", "given: 8192 bytes at 0x", "access LOCAL_WRITE", "is not writable (r--")
		saysNot(t, err, "not mapped")
		if _, _, errno := unix.Syscall(unix.SYS_MUNMAP, uintptr(sge.Addr), uintptr(len(readOnly)), 0); errno != 0 {
			t.Fatal(errno)
		}
		_, err = pd.RegSlice(readOnly, 0)
		errorIs(t, err, syscall.EFAULT, "unmapped memory")
		says(t, err, "REG_MR", "is not mapped")
		saysNot(t, err, "writable")
		hidden, err := unix.Mmap(-1, 0, 8192, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		must(t, err)
		_, err = pd.RegSlice(hidden, uverbs.AccessLocalWrite)
		says(t, err, "REG_MR", "is not readable (---")
		must(t, unix.Munmap(hidden))
		_, err = pd.RegMR(newBuffer(t, 8192), uverbs.MROptions{Offset: 1, IOVA: new(uint64(0))})
		argError(t, err, "IOVA")
	})
}

// TestRegDeviceMemory checks that pages without memory behind them are mapped and cannot be pinned.
// The BIOS of a PC is always there for this.
func TestRegDeviceMemory(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsArch(t, "a BIOS in memory", "amd64")
	testenv.NeedsKernel(t, "pages that cannot be pinned")
	testenv.Tags(t, testenv.Machine)
	f, err := os.Open("/dev/mem")
	must(t, err)
	defer f.Close()
	rom, err := unix.Mmap(int(f.Fd()), 0xf0000, 8192, unix.PROT_READ, unix.MAP_SHARED)
	must(t, err)
	defer unix.Munmap(rom)
	_, err = newPD(t, openDevice(t, deviceName)).RegSlice(rom, 0)
	errorIs(t, err, syscall.EFAULT, "memory of a device")
	says(t, err, "REG_MR", "the pages of /dev/mem cannot be pinned", "RegDMABuf")
}

// queryMR compares what the kernel has noted with what the library says.
func queryMR(t *testing.T, mr *uverbs.MR) {
	t.Helper()
	got, err := mr.Query()
	if os.Getenv("RDMAABI") == "write" {
		lacksFeature(t, err, "QUERY_MR")
		return
	}
	want := uverbs.MRAttr{LKey: mr.LKey(), RKey: mr.RKey(), Length: uint64(mr.Len()), IOVA: mr.Addr()}
	if err != nil || got != want {
		t.Errorf("Query: %+v, %v, want %+v", got, err, want)
	}
}

func TestQueryMR(t *testing.T) {
	testenv.NeedsIB(t, "chosen MR addresses")
	eachPath(t, func(t *testing.T) {
		pd, buf := newPD(t, openDevice(t, deviceName)), newBuffer(t, 3*4096)
		for _, o := range []uverbs.MROptions{{}, {Access: remoteRights}, {Access: remoteRights, Offset: 4097, Length: 5, IOVA: new(uint64(1<<40 + 1))}} {
			mr, err := pd.RegMR(buf, o)
			must(t, err)
			queryMR(t, mr)
			must(t, mr.Close())
			errorIs(t, errorOf(mr.Query()), os.ErrClosed, "Query after Close")
		}
	})
}
