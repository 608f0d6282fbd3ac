package conformance

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// withWQs is the error of CREATE_WQ where there are WQs: with Ethernet.
func withWQs() map[string]string {
	if rig.InfiniBand() {
		return nil
	}
	return map[string]string{"mlx5": "CREATE_WQ ... " + tooLittle}
}

// withoutMemory is a call that creates something while the process may pin no more memory. A thread drops the
// capability, and ends with its goroutine.
func withoutMemory(create func(s *side) error) func(t *testing.T, a, b *side) error {
	return func(t *testing.T, a, b *side) error {
		var old unix.Rlimit
		must(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old), unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 4096, Max: old.Max}))
		defer func() { must(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old)) }()
		created := make(chan error)
		go func() {
			runtime.LockOSThread()
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var data [2]unix.CapUserData
			err := unix.Capget(&header, &data[0])
			data[0].Effective &^= 1 << unix.CAP_IPC_LOCK
			created <- errors.Join(err, unix.Capset(&header, &data[0]), create(a))
		}()
		return <-created
	}
}

// closed closes an object that was created, and returns the error if it was not.
func closed[T closer](o T, err error) error {
	if err != nil {
		return err
	}
	return o.Close()
}

// Rings of rxe, siw and efa are memory of the kernel, and a software device pins nothing.
const tooLittle = "cannot allocate memory: RLIMIT_MEMLOCK is 4096 bytes, too few for "

var kernelRings = map[string]string{"rxe": "", "siw": "", "efa": "", "soft": ""}

var page = os.Getpagesize()

// file maps a file of so many bytes, which is open for reading or for both.
func file(t *testing.T, size, length, open, prot, flags int) []byte {
	t.Helper()
	name := filepath.Join(t.TempDir(), "data")
	must(t, os.WriteFile(name, make([]byte, size), 0o600))
	fd, err := unix.Open(name, open, 0)
	must(t, err)
	mem, err := unix.Mmap(fd, 0, length, prot, flags)
	must(t, err, unix.Close(fd))
	t.Cleanup(func() { must(t, unix.Munmap(mem)) })
	return mem
}

// spareSides replaces two sides by two of a device whose network interface can be taken down. They use the GID of the
// address.
func spareSides(t *testing.T, a, b *side) (link netlink.Link, addr *netlink.Addr) {
	t.Helper()
	dev, netdev := spareDevice(t)
	link, err := netlink.LinkByName(netdev)
	must(t, err)
	addr, err = netlink.ParseAddr("10.9.0.1/24")
	must(t, err, netlink.AddrAdd(link, addr))
	o := fast
	o.Path.GIDIndex = new(gidIndex(t, dev, "10.9.0.1"))
	*a, *b = *newSide(t, dev, o), *newSide(t, dev, o)
	return link, addr
}

// removeGID takes an address away and waits until its GID is gone.
func removeGID(t *testing.T, dev *uverbs.Device, link netlink.Link, addr *netlink.Addr) {
	t.Helper()
	must(t, netlink.AddrDel(link, addr))
	gid, err := ib.ParseGID(addr.IP.String())
	must(t, err)
	for there := true; there; {
		event(t, dev, uverbs.EventGIDChange)
		table, err := dev.GIDTable(1)
		must(t, err)
		there = false
		for _, e := range table {
			there = there || e.GID == gid
		}
	}
}

// hostMistakes are calls and requests that fail because the host does not provide something.
var hostMistakes = []mistake{
	// Memory.
	{name: "too little memory for an MR", alone: true, call: withoutMemory(func(s *side) error {
		return closed(s.pd.RegMR(s.buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite}))
	}), mine: "REG_MR ... " + tooLittle + "65536 more; ... ulimit -l unlimited", on: map[string]string{"soft": ""}},
	{name: "too little memory for a CQ", alone: true, call: withoutMemory(func(s *side) error {
		return closed(s.dev.CreateCQ(uverbs.CQOptions{Size: 100}))
	}), mine: "CREATE_CQ ... " + tooLittle, on: kernelRings},
	{name: "too little memory for a QP", alone: true, call: withoutMemory(func(s *side) error {
		return closed(s.pd.CreateQP(uverbs.QPOptions{Type: reliable, SendCQ: s.cq, RecvCQ: s.cq}))
	}), mine: "CREATE_QP ... " + tooLittle, on: kernelRings},
	{name: "too little memory for an SRQ", efa: "SRQ", alone: true, call: withoutMemory(func(s *side) error {
		return closed(s.pd.CreateSRQ(uverbs.SRQOptions{}))
	}), mine: "CREATE_SRQ ... " + tooLittle, on: kernelRings},
	{name: "too little memory for a WQ", alone: true, call: withoutMemory(func(s *side) error {
		return closed(s.pd.CreateWQ(uverbs.WQOptions{CQ: s.cq}))
	}), mine: "CREATE_WQ", on: withWQs()},
	{name: "file that is open for reading", alone: true, call: func(t *testing.T, a, b *side) error {
		return second(a.pd.RegSlice(file(t, page, page, unix.O_RDONLY, unix.PROT_READ, unix.MAP_SHARED), uverbs.AccessLocalWrite))
	}, mine: "bad address: the memory at 0x ... is not writable (r--s); "},
	{name: "file that is mapped for reading", alone: true, call: func(t *testing.T, a, b *side) error {
		return second(a.pd.RegSlice(file(t, page, page, unix.O_RDWR, unix.PROT_READ, unix.MAP_PRIVATE), uverbs.AccessLocalWrite))
	}, mine: "bad address: the memory at 0x ... is not writable (r--p); "},
	{name: "file that is open for reading, to be read", since: uverbs.Version{6, 2}, alone: true, call: func(t *testing.T, a, b *side) error {
		return closed(a.pd.RegSlice(file(t, page, page, unix.O_RDONLY, unix.PROT_READ, unix.MAP_SHARED), 0))
	}, mine: "bad address: the pages of data cannot be pinned; before Linux 6.2 the mapping of a file must be private or writable"},
	{name: "memory past the end of its file", alone: true, call: func(t *testing.T, a, b *side) error {
		return second(a.pd.RegSlice(file(t, 100, 2*page, unix.O_RDWR, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE), uverbs.AccessLocalWrite))
	}, mine: "bad address: the pages of data cannot be pinned; likely the file ends before the memory: /"},
	{name: "shared memory that mremap has made longer", alone: true, call: func(t *testing.T, a, b *side) error {
		mem, err := unix.Mmap(-1, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
		must(t, err)
		mem, err = unix.Mremap(mem, 2*page, unix.MREMAP_MAYMOVE)
		must(t, err)
		defer func() { must(t, unix.Munmap(mem)) }()
		return second(a.pd.RegSlice(mem, uverbs.AccessLocalWrite))
	}, mine: "bad address: the pages of shared memory cannot be pinned; likely mremap(2) has made the memory longer"},

	// The port and its GIDs.
	{name: "Endpoint of a port that is down", alone: true, ib: true, call: func(t *testing.T, a, b *side) error {
		spareSides(t, a, b)
		setLink(t, a.dev, "ta0", false)
		return second(a.qp.Endpoint())
	}, mine: "network is down: port 1 is DOWN ... ip link set ta0 up"},
	{name: "Connect of a port that is down", alone: true, ib: true, call: func(t *testing.T, a, b *side) error {
		spareSides(t, a, b)
		e, err := b.qp.Endpoint()
		must(t, err)
		setLink(t, a.dev, "ta0", false)
		return a.qp.Connect(t.Context(), e)
	}, mine: "network is down: port 1 is DOWN ... ip link set ta0 up"},
	{name: "send by a port that is down", alone: true, ib: true, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		spareSides(t, a, b)
		connect(t, a, b)
		setLink(t, a.dev, "ta0", false)
		return write(a, b)
	}, mine: "port 1 is DOWN"},
	{name: "GID that is gone before Connect", alone: true, ib: true, call: func(t *testing.T, a, b *side) error {
		link, addr := spareSides(t, a, b)
		e, err := b.qp.Endpoint()
		must(t, err)
		removeGID(t, a.dev, link, addr)
		return a.qp.Connect(t.Context(), e)
	}, mine: "Connect: GID index is ... allowed: 0 to ... if it is in use; in use are 0: fe80"},
	{name: "GID that Endpoint returned is gone", alone: true, ib: true, call: func(t *testing.T, a, b *side) error {
		link, addr := spareSides(t, a, b)
		c := newSide(t, a.dev, uverbs.QPOptions{})
		e, err := b.qp.Endpoint()
		must(t, err, second(c.qp.Endpoint()))
		removeGID(t, a.dev, link, addr)
		return c.qp.Connect(t.Context(), e)
	}, mine: "Connect: local GID is 10.9.0.1, allowed: the GID that Endpoint returned, if port 1 of rxeta still has it; it has only 0: fe80"},
	{name: "GID that is gone after Connect", alone: true, ib: true, request: func(t *testing.T, a, b *side) uverbs.SendWR {
		link, addr := spareSides(t, a, b)
		connect(t, a, b)
		removeGID(t, a.dev, link, addr)
		return write(a, b)
	}, mine: "GID index 1, from which it sends, is no longer in the table of port 1; connect it again; in use: 0: fe80:"},

	// The kernel.
	{name: "feature that is not supported", alone: true, call: func(t *testing.T, a, b *side) error {
		f, err := os.Open("/proc/self/exe") // no dma-buf: the kernel looks at that last
		must(t, err)
		defer f.Close()
		t.Setenv("RDMAABI", "auto") // the command has no other form than the ioctl
		pd, err := openDevice(t, deviceName).AllocPD()
		must(t, err)
		closeLater(t, pd)
		return second(pd.RegDMABuf(f, uverbs.MROptions{Length: 4096}))
	}, old: "REG_DMABUF_MR not supported by this kernel (needs Linux 5.12)", mine: "REG_DMABUF_MR not supported by driver ",
		on: map[string]string{"mlx5": "REG_DMABUF_MR: invalid argument", "efa": "REG_DMABUF_MR: invalid argument"}},

	// Names and limits.
	{name: "device that there is not", alone: true, call: func(t *testing.T, a, b *side) error {
		return second(uverbs.Open("mlx5_77", uverbs.OpenOptions{}))
	}, mine: "open mlx5_77: no device of this name ... devices here: "},
	{name: "network interface that there is not", alone: true, call: func(t *testing.T, a, b *side) error { return second(uverbs.OpenNetdev("eth77")) },
		mine: "eth77"},
	{name: "address of another host", alone: true, call: func(t *testing.T, a, b *side) error {
		return second(uverbs.OpenAddr(netip.MustParseAddr("192.0.2.77")))
	}, mine: "192.0.2.77: this host has no such address; it has "},
	{name: "too few descriptors", alone: true, call: func(t *testing.T, a, b *side) (err error) {
		var old syscall.Rlimit
		must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old))
		f, err := os.Open(os.DevNull)
		must(t, err)
		must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: uint64(f.Fd()) + 1, Max: old.Max}), f.Close())
		defer func() { must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old)) }()
		var all []*uverbs.CompChannel
		for err == nil && len(all) < 10 {
			var ch *uverbs.CompChannel
			if ch, err = a.dev.CreateCompChannel(); err == nil {
				all = append(all, ch)
			}
		}
		for _, ch := range all {
			err = errors.Join(err, ch.Close())
		}
		return err
	}, mine: "too many open files: the limit of descriptors is ... ulimit -n", on: map[string]string{"soft": ""}}, // takes none
}
