package conformance

import (
	"bytes"
	"errors"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/mlx5"
)

// takesDMABufs says that the driver can register dma-bufs.
var takesDMABufs = onMLX5 || rig.EFA()

// TestDMABuf registers a dma-buf. rxe does not support dma-bufs; there the test is that the kernel
// takes the command. A kernel that lets programs create dma-bufs gets a real one.
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
		} else if rig.Soft { // any machine
			t.Log("this machine has no /dev/udmabuf")
		} else if takesDMABufs || since(t, 6, 12) { // to rxe it makes no difference
			testenv.NotSupported(t, "/dev/udmabuf")
		}
		for _, f := range files {
			for _, o := range []uverbs.MROptions{{}, {Access: uverbs.AccessLocalWrite | uverbs.AccessRelaxedOrdering, Offset: 4096, Length: 100, IOVA: new(uint64(0))}} {
				mr, err := pd.RegDMABuf(f, o)
				// mlx5_ib looks at the file first. It takes a dma-buf if the card changes the pages of regions
				// by work requests (umr_modify_entity_size_disabled is 0).
				wants := takesDMABufs && f != memory
				switch {
				case wants && err == nil:
					must(t, mr.Close())
				case takesDMABufs && !wants && errors.Is(err, syscall.EINVAL):
				default:
					absent(t, err, "REG_DMABUF_MR")
				}
				var feature *uverbs.FeatureError
				if os.Getenv("RDMAABI") != "write" && since(t, 5, 12) && errors.As(err, &feature) && feature.Driver != rig.Driver {
					t.Errorf("%s: %v, want an error that names the driver", f.Name(), err)
				}
			}
			if takesDMABufs && f != memory && os.Getenv("RDMAABI") != "write" && since(t, 5, 12) {
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

// TestDataDirect: a device without a data direct function refuses the option by name, whatever the kernel's
// reason. The kernel looks at the file only afterwards, so it need not be a dma-buf.
func TestDataDirect(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		f := memoryFile(t, 16384)
		_, refused := newPD(t, dev).RegDMABuf(f, uverbs.MROptions{DataDirect: true})
		lacksFeature(t, refused, "REG_DMABUF_MR with DataDirect")
		path, noPath := mlx5.DataDirectPath(dev)
		if lacksFeature(t, noPath, "GET_DATA_DIRECT_SYSFS_PATH"); path != "" {
			t.Errorf("the path of the data direct function is %q", path)
		}
		asked := onMLX5 && since(t, 6, 12) && os.Getenv("RDMAABI") != "write" // then the driver has looked at the card
		for _, err := range []error{refused, noPath} {
			feature, _ := errors.AsType[*uverbs.FeatureError](err)
			if byDriver := !onMLX5 || asked; feature != nil && (feature.Driver == rig.Driver) != byDriver {
				t.Errorf("%v, want an error that names the driver: %t", err, byDriver)
			}
			if asked {
				says(t, err, "capability data_direct")
			}
		}
	})
}

// TestHeapBuffer: memory of a dma-buf heap serves a device that takes dma-bufs like any other. Where the kernel
// has no heaps, AllocBuffer says so; where the device takes no dma-bufs, RegMR does.
func TestHeapBuffer(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		pd := newPD(t, dev)
		_, err := uverbs.AllocBuffer(4096, uverbs.BufferOptions{Heap: "no-such"})
		if errors.Is(err, errors.ErrUnsupported) {
			lacksFeature(t, err, "memory of dma-buf heaps")
			says(t, err, "CONFIG_DMABUF_HEAPS")
			if takesDMABufs {
				testenv.Lacks(t, err)
			}
			if !takesDMABufs || os.Getenv("RDMAABI") == "write" {
				absent(t, errorOf(pd.RegDMABuf(memoryFile(t, 4096), uverbs.MROptions{})), "REG_DMABUF_MR")
			}
			return
		}
		argError(t, err, "Heap")
		if rig.Soft { // any machine: its heaps may not be for this user
			absent(t, errorOf(pd.RegDMABuf(memoryFile(t, 4096), uverbs.MROptions{})), "REG_DMABUF_MR")
			return
		}
		says(t, err, "system") // the heap that there is
		heap := func(size int) *uverbs.Buffer {
			buf, err := uverbs.AllocBuffer(size, uverbs.BufferOptions{Heap: "system"})
			must(t, err)
			closeLater(t, buf)
			if n := bytes.Count(buf.Bytes(), []byte{0}); n != size || buf.Len() != size {
				t.Errorf("%d bytes of a heap are %d, of which %d are zero", size, buf.Len(), n)
			}
			return buf
		}
		buf := heap(10000)
		mr, err := pd.RegMR(buf, uverbs.MROptions{})
		if !takesDMABufs || os.Getenv("RDMAABI") == "write" {
			must(t, buf.Close()) // the refusal has left nothing
			absent(t, err, "REG_DMABUF_MR")
			return
		}
		must(t, err)
		if mr.Addr() != addrOf(buf) || mr.Len() != 10000 || !bytes.Equal(mr.Bytes(), buf.Bytes()) {
			t.Errorf("the region has %d bytes at %#x, want the buffer's 10000 at %#x", mr.Len(), mr.Addr(), addrOf(buf))
		}
		errorIs(t, buf.Close(), syscall.EBUSY, "closing a registered buffer of a heap")
		_, err = pd.RegMR(buf, uverbs.MROptions{Length: 10001})
		argError(t, err, "Length")
		_, err = pd.RegMR(buf, uverbs.MROptions{Offset: 4096, Length: 10000})
		argError(t, err, "Length")
		_, err = pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessMWBind})
		argError(t, err, "access")
		argError(t, mr.Rereg(uverbs.ReregOptions{Buffer: newBuffer(t, 4096)}), "Buffer")
		second, err := pd.RegMR(buf, uverbs.MROptions{Offset: 4096, Length: 4096})
		must(t, err)
		if second.LKey() == mr.LKey() {
			t.Error("two regions of a buffer have the same key")
		}
		must(t, mr.Close(), second.Close(), buf.Close())

		newHeapSide := func(o uverbs.QPOptions) *side {
			s := newSide(t, dev, o)
			s.buf = heap(bufferSize + 4096)
			s.mr, err = s.pd.RegMR(s.buf, uverbs.MROptions{Offset: 4096, Length: bufferSize - 4096, Access: rightsOnDevice(s.dev, allRights)})
			must(t, err)
			closeLater(t, s.mr)
			return s
		}
		a, b := newHeapSide(uverbs.QPOptions{}), newHeapSide(uverbs.QPOptions{})
		connect(t, a, b)
		const off = 4096 // of the region in the buffer
		want := a.fill(off, 8192, 3)
		must(t, b.qp.PostRecv(1, b.mr.SGE(100, 8192)), a.qp.PostSend(send(2, a.mr.SGE(0, 8192))))
		a.want(t, 2, uverbs.WCSend)
		b.want(t, 1, uverbs.WCRecv)
		b.holds(t, off+100, want)
		want = a.fill(off+20000, 5000, 4)
		must(t, b.qp.PostRecv(3), a.qp.PostSend(uverbs.SendWR{ID: 4, Opcode: uverbs.WRRDMAWriteWithImm, Flags: uverbs.SendSignaled,
			SGL: []uverbs.SGE{a.mr.SGE(20000, 5000)}, RemoteAddr: b.mr.Addr() + 30000, RKey: b.mr.RKey(), Imm: 77}))
		a.want(t, 4, uverbs.WCRDMAWrite)
		if wc := b.want(t, 3, uverbs.WCRecvRDMAWrite); wc.Imm != 77 {
			t.Errorf("immediate data is %d, want 77", wc.Imm)
		}
		b.holds(t, off+30000, want)
		want = b.fill(off, 9000, 5)
		if st := a.rdma(t, uverbs.WRRDMARead, a.mr.SGE(40000, 9000), b.mr.Addr(), b.mr.RKey()); st != uverbs.WCSuccess {
			t.Errorf("RDMA READ: %s", st)
		}
		a.holds(t, off+40000, want)
		if !lacksAtomics(t, dev) {
			b.setWord(off+64, 1000)
			must(t, a.qp.PostSend(uverbs.SendWR{ID: 5, Opcode: uverbs.WRFetchAdd, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{a.mr.SGE(8, 8)},
				RemoteAddr: b.mr.Addr() + 64, RKey: b.mr.RKey(), CompareAdd: 5}))
			a.want(t, 5, uverbs.WCFetchAdd)
			if a.word(off+8) != 1000 || b.word(off+64) != 1005 {
				t.Errorf("fetched %d, now %d, want 1000 and 1005", a.word(off+8), b.word(off+64))
			}
		}
		if st := a.rdma(t, uverbs.WRRDMAWrite, a.mr.SGE(0, 100), b.mr.Addr()+bufferSize-4096, b.mr.RKey()); st != uverbs.WCRemAccessErr {
			t.Errorf("RDMA WRITE behind a region, in its buffer: %s", st)
		}
		u, v := newHeapSide(uverbs.QPOptions{Type: ib.UD}), newHeapSide(uverbs.QPOptions{Type: ib.UD})
		want = u.fill(off, 1000, 6)
		must(t, v.qp.PostRecv(6, v.mr.SGE(0, 1040)), u.qp.PostSend(datagram(7, wayTo(t, u, v), v, u.mr.SGE(0, 1000))))
		u.want(t, 7, uverbs.WCSend)
		v.want(t, 6, uverbs.WCRecv)
		v.holds(t, off+40, want) // behind the GRH
	})
}

// memoryFile returns a file of memory, which is no dma-buf.
func memoryFile(t *testing.T, size int64) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("memory", unix.MFD_CLOEXEC)
	must(t, err)
	f := os.NewFile(uintptr(fd), "memory")
	closeLater(t, f)
	must(t, f.Truncate(size))
	return f
}
