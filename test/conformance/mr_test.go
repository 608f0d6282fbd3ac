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
	buf, err := uverbs.AllocBuffer(size)
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
var refusing = uverbs.QPOptions{Path: uverbs.PathOptions{Timeout: 15, RetryCount: 1}} // 2·134 ms, as the machine may be slow

func TestRegMRAt(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "addresses of regions that are chosen")
	eachPath(t, func(t *testing.T) {
		for name, o := range map[string]uverbs.MROptions{
			"own address":  {Offset: 4196, Length: 9000},
			"zero":         {Offset: 8192, IOVA: uverbs.IOVAAt(0)},
			"low":          {Offset: 4096 + 100, Length: 9000, IOVA: uverbs.IOVAAt(3*4096 + 100)},
			"high":         {Offset: 7, Length: 12288, IOVA: uverbs.IOVAAt(1<<47 + 7)},
			"whole buffer": {IOVA: uverbs.IOVAAt(1 << 32)},
		} {
			t.Run(name, func(t *testing.T) {
				a, b := pair(t, refusing)
				o.Access = remoteRights
				if name == "low" && b.mr.Addr()>>12%2 == 1 {
					o.Offset += 4096 // mlx5_ib of Linux 5.10 wants an IOVA as aligned as the memory
				}
				mr, err := b.pd.RegMRWith(b.buf, o)
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
	testenv.NeedsIB(t, "addresses of regions that are chosen")
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		pd, buf := newPD(t, dev), newBuffer(t, 8192)
		// rxe of Linux 6.1 and older takes flags that it does not know.
		strict := since(t, 6, 12)
		for _, c := range []struct {
			access  uverbs.Access
			has     bool
			feature string
		}{
			{uverbs.AccessMWBind, true, ""},
			{uverbs.AccessRemoteAtomic, true, ""},
			{uverbs.AccessRelaxedOrdering, true, ""},
			{1 << 29, true, ""}, // a wish that no kernel knows
			{uverbs.AccessZeroBased, !strict || onMLX5, "access ZERO_BASED"},
			{uverbs.AccessHugeTLB, !strict || onMLX5, "access HUGETLB"},
			{uverbs.AccessFlushGlobal, strict && !onMLX5, "access FLUSH_GLOBAL"},
			{uverbs.AccessOnDemand, hasODP(t, dev), "on-demand paging"},
		} {
			mr, err := pd.RegMR(buf, uverbs.AccessLocalWrite|c.access)
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
		_, err := pd.RegMR(buf, uverbs.AccessFlushPersistent)
		if !strict || onMLX5 {
			lacksFeature(t, err, "access FLUSH_PERSISTENT")
		} else if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("FLUSH_PERSISTENT of ordinary memory: %v, want EINVAL", err)
		} else {
			says(t, err, "persistent memory only")
		}
		_, err = pd.RegMR(buf, 1<<10|uverbs.AccessLocalWrite)
		argError(t, err, "access")
		says(t, err, "LOCAL_WRITE|0x400", "REMOTE_ATOMIC|MW_BIND")
	})
}

// TestZeroBased: where the driver takes the flag, the region's addresses count from 0.
func TestZeroBased(t *testing.T) {
	testenv.NeedsIB(t, "addresses of regions that are chosen")
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, refusing)
		mr, err := b.pd.RegMRWith(b.buf, uverbs.MROptions{Access: remoteRights | uverbs.AccessZeroBased, Offset: 4096})
		if since(t, 6, 12) && !onMLX5 {
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

// TestRegErrors: memory that the kernel cannot pin.
func TestRegErrors(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		pd := newPD(t, openDevice(t, deviceName))
		// What is unmapped of it leaves a hole that is too small for what Go's runtime maps meanwhile.
		around, err := unix.Mmap(-1, 0, 3*8192, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		must(t, err)
		defer unix.Munmap(around)
		readOnly := around[8192 : 2*8192]
		mr, err := pd.RegSlice(readOnly, uverbs.AccessRemoteRead)
		must(t, err)
		sge := mr.SGE(0, 0)
		must(t, mr.Close())
		_, err = pd.RegSlice(readOnly, uverbs.AccessLocalWrite)
		if !errors.Is(err, syscall.EFAULT) {
			t.Errorf("read-only memory: %v, want EFAULT", err)
		}
		says(t, err, "REG_MR (8192 bytes at 0x", "access LOCAL_WRITE", "is not writable (r--")
		saysNot(t, err, "not mapped")
		if _, _, errno := unix.Syscall(unix.SYS_MUNMAP, uintptr(sge.Addr), uintptr(len(readOnly)), 0); errno != 0 {
			t.Fatal(errno)
		}
		_, err = pd.RegSlice(readOnly, 0)
		if !errors.Is(err, syscall.EFAULT) {
			t.Errorf("unmapped memory: %v, want EFAULT", err)
		}
		says(t, err, "REG_MR", "is not mapped")
		saysNot(t, err, "writable")
		hidden, err := unix.Mmap(-1, 0, 8192, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		must(t, err)
		_, err = pd.RegSlice(hidden, uverbs.AccessLocalWrite)
		says(t, err, "REG_MR", "is not readable (---")
		must(t, unix.Munmap(hidden))
		_, err = pd.RegMRWith(newBuffer(t, 8192), uverbs.MROptions{Offset: 1, IOVA: uverbs.IOVAAt(0)})
		argError(t, err, "IOVA")
	})
}

// TestRegDeviceMemory: pages that no memory is behind are mapped and cannot be pinned. The BIOS of
// a PC is such memory that is always there.
func TestRegDeviceMemory(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsArch(t, "a BIOS in memory", "amd64")
	f, err := os.Open("/dev/mem")
	must(t, err)
	defer f.Close()
	rom, err := unix.Mmap(int(f.Fd()), 0xf0000, 8192, unix.PROT_READ, unix.MAP_SHARED)
	must(t, err)
	defer unix.Munmap(rom)
	_, err = newPD(t, openDevice(t, deviceName)).RegSlice(rom, 0)
	if !errors.Is(err, syscall.EFAULT) {
		t.Errorf("memory of a device: %v, want EFAULT", err)
	}
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
	testenv.NeedsIB(t, "addresses of regions that are chosen")
	eachPath(t, func(t *testing.T) {
		pd, buf := newPD(t, openDevice(t, deviceName)), newBuffer(t, 3*4096)
		for _, o := range []uverbs.MROptions{{}, {Access: remoteRights}, {Access: remoteRights, Offset: 4097, Length: 5, IOVA: uverbs.IOVAAt(1<<40 + 1)}} {
			mr, err := pd.RegMRWith(buf, o)
			must(t, err)
			queryMR(t, mr)
			must(t, mr.Close())
			if _, err := mr.Query(); !errors.Is(err, os.ErrClosed) {
				t.Errorf("Query after Close: %v", err)
			}
		}
	})
}

// hasRereg reports whether there is reregistration: rxe of Linux 6.1 has none, that of
// 6.12 changes PD and rights, and siw has none.
func hasRereg(t *testing.T) bool { return since(t, 6, 12) && !rig.IWARP() || onMLX5 }

func TestReregAccess(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, refusing)
		mr, err := b.pd.RegMR(b.buf, uverbs.AccessLocalWrite)
		must(t, err)
		closeLater(t, mr)
		err = mr.Rereg(uverbs.ReregOptions{Access: new(remoteRights)})
		if !hasRereg(t) {
			absent(t, err, "REREG_MR")
			queryMR(t, mr)
			return
		}
		must(t, err)
		queryMR(t, mr)
		if mr.Access() != remoteRights {
			t.Errorf("rights are %s", mr.Access())
		}
		usable(t, a, mr, 100)
		must(t, mr.Rereg(uverbs.ReregOptions{Access: new(uverbs.AccessLocalWrite)}))
		queryMR(t, mr)
		if st := a.rdma(t, uverbs.WRRDMAWrite, a.mr.SGE(0, 8), mr.Addr(), mr.RKey()); st == uverbs.WCSuccess {
			t.Error("the peer can write although the right was taken away")
		}

		if onMLX5 { // mlx5 pins it anew
			c, d := pair(t, refusing)
			ro, err := d.pd.RegMR(d.buf, uverbs.AccessRemoteRead)
			must(t, err)
			closeLater(t, ro)
			must(t, ro.Rereg(uverbs.ReregOptions{Access: new(remoteRights)}))
			usable(t, c, ro, 0)
			return
		}
		// What was pinned for reading does not become writable.
		ro, err := b.pd.RegMR(b.buf, uverbs.AccessRemoteRead)
		must(t, err)
		closeLater(t, ro)
		if err := ro.Rereg(uverbs.ReregOptions{Access: new(remoteRights)}); !errors.Is(err, syscall.EACCES) {
			t.Errorf("a read-only region becomes writable: %v, want EACCES", err)
		} else {
			says(t, err, "for reading only")
		}
		queryMR(t, ro)
	})
}

func TestReregPD(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	eachPath(t, func(t *testing.T) {
		if testenv.Modelled() && kernelBefore(t, 6, 0) {
			// Where a card can't change a key by a work request, as the model can't, mlx5_ib of
			// Linux 5.10 makes it anew without its pages, and when the card refuses it, PDs are
			// lost in the kernel.
			testenv.Skip(t, &uverbs.FeatureError{Feature: "REREG_MR to another PD alone", Since: uverbs.Version{6, 0}})
		}
		dev := openDevice(t, deviceName)
		other, err := dev.AllocPD()
		must(t, err)
		defer other.Close()
		buf := newBuffer(t, 16384)
		mr, err := other.RegMR(buf, remoteRights)
		must(t, err)
		defer mr.Close()
		a, b := newSide(t, dev, refusing), newSide(t, dev, refusing)
		connect(t, a, b)

		err = mr.Rereg(uverbs.ReregOptions{PD: b.pd})
		if !hasRereg(t) {
			absent(t, err, "REREG_MR")
			if err := other.Close(); !errors.Is(err, syscall.EBUSY) {
				t.Errorf("close the PD of the region: %v, want EBUSY", err)
			}
			return
		}
		must(t, err)
		queryMR(t, mr)
		usable(t, a, mr, 0)
		must(t, other.Close()) // nobody uses it now
		if err := b.pd.Close(); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "2 MR") {
			t.Errorf("close the new PD: %v, want EBUSY because of 2 MR", err)
		}
		must(t, mr.Close())
	})
}

// TestReregTogether changes PD and rights by one command, and where the device has it the
// memory as well.
func TestReregTogether(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		other, err := dev.AllocPD()
		must(t, err)
		defer other.Close()
		mr, err := other.RegMR(newBuffer(t, 16384), uverbs.AccessLocalWrite)
		must(t, err)
		defer mr.Close()
		a, b := newSide(t, dev, refusing), newSide(t, dev, refusing)
		connect(t, a, b)
		o := uverbs.ReregOptions{PD: b.pd, Access: new(remoteRights)}
		err = mr.Rereg(o)
		if !hasRereg(t) {
			absent(t, err, "REREG_MR")
			queryMR(t, mr)
			if err := other.Close(); mr.Access() != uverbs.AccessLocalWrite || !errors.Is(err, syscall.EBUSY) {
				t.Errorf("the region has rights %s after a refusal, and its PD closes: %v, want EBUSY", mr.Access(), err)
			}
			return
		}
		must(t, err, other.Close()) // nobody uses the PD of before
		queryMR(t, mr)
		if err := b.pd.Close(); mr.Access() != remoteRights || !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "2 MR") {
			t.Errorf("the region has rights %s, and its PD closes: %v, want EBUSY because of 2 MR", mr.Access(), err)
		}
		usable(t, a, mr, 4096)

		third := newSide(t, dev, refusing)
		from := newPeer(t, third)
		o = uverbs.ReregOptions{PD: third.pd, Access: new(uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite | uverbs.AccessRemoteRead),
			Buffer: newBuffer(t, 32768), Offset: 4096, Length: 20000, IOVA: uverbs.IOVAAt(1 << 40)}
		before := mr.Addr()
		err = mr.Rereg(o)
		if !onMLX5 {
			absent(t, err, "REREG_MR")
			if queryMR(t, mr); mr.Addr() != before || mr.Access() != remoteRights {
				t.Errorf("the region is at %#x with rights %s after a refusal", mr.Addr(), mr.Access())
			}
			usable(t, a, mr, 0)
			return
		}
		if testenv.Lacks(t, err) {
			if queryMR(t, mr); mr.Addr() != before || mr.Access() != remoteRights {
				t.Errorf("the region is at %#x with rights %s after a refusal", mr.Addr(), mr.Access())
			}
			usable(t, a, mr, 0)
			return
		}
		must(t, err)
		queryMR(t, mr)
		if mr.Addr() != 1<<40 || mr.Len() != 20000 || mr.Access() != *o.Access {
			t.Errorf("the region has %d bytes at %#x with rights %s", mr.Len(), mr.Addr(), mr.Access())
		}
		usable(t, from, mr, 8000)
		if st := a.rdma(t, uverbs.WRRDMAWrite, a.mr.SGE(0, 8), mr.Addr(), mr.RKey()); st == uverbs.WCSuccess {
			t.Error("a peer of the PD of before can write")
		}
		must(t, mr.Close())
	})
}

// TestReregPDBefore: a QP of another PD cannot use a region. It is what makes the success
// of TestReregPD mean something.
func TestReregPDBefore(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "acknowledgements")
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		a, b := newSide(t, dev, refusing), newSide(t, dev, refusing)
		connect(t, a, b)
		mr, err := newPD(t, dev).RegMR(b.buf, remoteRights)
		must(t, err)
		defer mr.Close()
		if st := a.rdma(t, uverbs.WRRDMAWrite, a.mr.SGE(0, 8), mr.Addr(), mr.RKey()); st == uverbs.WCSuccess {
			t.Error("the peer can write to a region of another PD")
		}
	})
}

// TestReregMemory: rxe cannot change the memory, and the region stays as it was.
func TestReregMemory(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{})
		other := newBuffer(t, 8192)
		before := b.mr.Addr()
		if onMLX5 {
			must(t, b.mr.Rereg(uverbs.ReregOptions{Buffer: other}))
			if b.mr.Addr() == before || b.mr.Len() != 8192 {
				t.Errorf("the region is at %#x, %d bytes", b.mr.Addr(), b.mr.Len())
			}
			queryMR(t, b.mr)
			usable(t, a, b.mr, 0)
			must(t, b.mr.Close()) // before its buffer
			return
		}
		absent(t, b.mr.Rereg(uverbs.ReregOptions{Buffer: other}), "REREG_MR")
		if b.mr.Addr() != before || b.mr.Len() != bufferSize {
			t.Errorf("the region is at %#x now, %d bytes", b.mr.Addr(), b.mr.Len())
		}
		queryMR(t, b.mr)
		usable(t, a, b.mr, 0)
		argError(t, b.mr.Rereg(uverbs.ReregOptions{}), "options")
	})
}

// TestDMABuf: rxe has no dma-bufs; what is tested is that the kernel takes the command
// for one. A kernel that lets programs make dma-bufs gets a real one.
func TestDMABuf(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		pd := newPD(t, dev)
		fd, err := unix.MemfdCreate("memory", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		must(t, err)
		memory := os.NewFile(uintptr(fd), "memory")
		defer memory.Close()
		must(t, memory.Truncate(16384))
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
		must(t, err)
		files := []*os.File{memory} // which is none
		if f := udmabuf(t, memory, 16384); f != nil {
			defer f.Close()
			files = append(files, f)
		} else if onMLX5 || since(t, 6, 12) { // to rxe it makes no difference
			testenv.NotSupported(t, "/dev/udmabuf")
		}
		for _, f := range files {
			for _, o := range []uverbs.MROptions{{}, {Access: uverbs.AccessLocalWrite | uverbs.AccessRelaxedOrdering, Offset: 4096, Length: 100, IOVA: uverbs.IOVAAt(0)}} {
				mr, err := pd.RegDMABuf(f, o)
				// mlx5_ib looks at the file first. It takes a dma-buf if the card changes the pages of regions
				// by work requests (umr_modify_entity_size_disabled is 0).
				wants := onMLX5 && f != memory
				if wants && err == nil {
					must(t, mr.Close())
					continue
				}
				if onMLX5 && !wants && errors.Is(err, syscall.EINVAL) {
					continue
				}
				absent(t, err, "REG_DMABUF_MR")
				var feature *uverbs.FeatureError
				if os.Getenv("RDMAABI") != "write" && since(t, 5, 12) && errors.As(err, &feature) && feature.Driver != rig.Driver {
					t.Errorf("%s: %v, want it to be the driver that lacks it", f.Name(), err)
				}
			}
			if onMLX5 && f != memory && os.Getenv("RDMAABI") != "write" && since(t, 5, 12) {
				throughDMABuf(t, dev, f, memory)
			}
			_, err := pd.RegDMABuf(f, uverbs.MROptions{Access: 1 << 30})
			argError(t, err, "access")
			_, err = pd.RegDMABuf(f, uverbs.MROptions{Length: 16385})
			argError(t, err, "Length")
			says(t, err, "16384") // the size is known without being told
		}
	})
}
