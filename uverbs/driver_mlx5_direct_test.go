//go:build amd64 || arm64

package uverbs

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// dmabufFile returns a file of 4 pages, which the fake kernel takes for a dma-buf.
func dmabufFile(t *testing.T) *os.File {
	t.Helper()
	fd := value(unix.MemfdCreate("dmabuf", unix.MFD_CLOEXEC))(t)
	f := os.NewFile(uintptr(fd), "dmabuf")
	t.Cleanup(func() { f.Close() })
	must(t, f.Truncate(int64(4*os.Getpagesize())))
	return f
}

// TestMlx5DataDirect: the option DataDirect is a flag in an attribute of the driver, which registrations
// without it do not have. Options that exclude it are refused by name, before a command is sent.
func TestMlx5DataDirect(t *testing.T) {
	d, k, err := openFakeMlx5(t, func([]byte) {})
	must(t, err)
	if path, err := d.dataDirectPath(); path != "/sys/devices/pci0000:00/0000:00:05.0" || err != nil {
		t.Errorf("the path is %q, %v", path, err)
	}
	f, page := dmabufFile(t), os.Getpagesize()
	pd := value(d.AllocPD())(t)
	for _, direct := range []bool{true, false} {
		mr := value(pd.RegDMABuf(f, MROptions{Offset: page, DataDirect: direct}))(t)
		c := k.last("REG_DMABUF_MR")
		if a := c.attr(mlx5.AttrDMABufFlags); direct != (a.Data == 1 && a.Len == 4 && a.ID == mlx5.AttrDMABufFlags) {
			t.Errorf("DataDirect %t: the attribute of the driver is %+v", direct, *a)
		}
		if at := c.attr(abi.UVERBS_ATTR_REG_DMABUF_MR_OFFSET).Data; at != uint64(page) {
			t.Errorf("DataDirect %t: the offset is %d, want %d", direct, at, page)
		}
		must(t, mr.Close())
	}
	k.took()
	for field, o := range map[string]MROptions{
		"DMAH":   {DataDirect: true, DMAH: &DMAH{}},
		"Offset": {DataDirect: true, Offset: 64},
		"IOVA":   {DataDirect: true, Offset: 64, IOVA: new(uint64(64))},
	} {
		var arg *ArgError
		if _, err := pd.RegDMABuf(f, o); !errors.As(err, &arg) || arg.Field != field {
			t.Errorf("%+v: %v, want an ArgError about %s", o, err, field)
		}
	}
	buf := value(AllocBuffer(page, BufferOptions{}))(t)
	var arg *ArgError
	if _, err := pd.RegMR(buf, MROptions{DataDirect: true}); !errors.As(err, &arg) || arg.Field != "DataDirect" {
		t.Errorf("RegMR: %v, want an ArgError about DataDirect", err)
	}
	must(t, buf.Close())
	if calls := k.took(); len(calls) != 0 {
		t.Errorf("the kernel got %v", calls)
	}
}

// TestMlx5HeapBuffer: the kernel gets a buffer of a heap as a dma-buf, at its own address, which a refusal leaves
// free. A file of memory is the heap's.
func TestMlx5HeapBuffer(t *testing.T) {
	d, k, err := openFakeMlx5(t, func([]byte) {})
	must(t, err)
	f, page := dmabufFile(t), os.Getpagesize()
	buf := &Buffer{region: value(mmio.Map(f, 0, 3*page-1))(t), size: 3*page - 1, heap: f}
	pd := value(d.AllocPD())(t)
	mr := value(pd.RegMR(buf, MROptions{Offset: page + 8, Access: AccessLocalWrite}))(t)
	c, at := k.last("REG_DMABUF_MR"), addrOf(buf.Bytes())+uint64(page)+8
	for attr, want := range map[uint16]uint64{
		abi.UVERBS_ATTR_REG_DMABUF_MR_OFFSET: uint64(page) + 8, abi.UVERBS_ATTR_REG_DMABUF_MR_LENGTH: 2*uint64(page) - 9,
		abi.UVERBS_ATTR_REG_DMABUF_MR_IOVA: at, abi.UVERBS_ATTR_REG_DMABUF_MR_FD: uint64(f.Fd()), abi.UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS: uint64(AccessLocalWrite),
	} {
		if got := c.attr(attr).Data; got != want {
			t.Errorf("attribute %d is %#x, want %#x", attr, got, want)
		}
	}
	if mr.Addr() != at || &mr.Bytes()[0] != &buf.Bytes()[page+8] {
		t.Errorf("the region is at %#x, want %#x", mr.Addr(), at)
	}
	k.took()
	other := value(AllocBuffer(page, BufferOptions{}))(t)
	plain := value(pd.RegMR(other, MROptions{}))(t)
	k.took()
	for field, call := range map[string]func() error{
		"access": func() error { _, err := pd.RegMR(buf, MROptions{Access: AccessZeroBased}); return err },
		"Length": func() error { _, err := pd.RegMR(buf, MROptions{Length: 3 * page}); return err },
		"Buffer": func() error { return plain.Rereg(ReregOptions{Buffer: buf}) },
	} {
		var arg *ArgError
		if err := call(); !errors.As(err, &arg) || arg.Field != field {
			t.Errorf("%v, want an ArgError about %s", err, field)
		}
	}
	var arg *ArgError
	if err := mr.Rereg(ReregOptions{Access: new(AccessLocalWrite)}); !errors.As(err, &arg) || arg.Field != "Buffer" {
		t.Errorf("Rereg of memory of a heap: %v, want an ArgError about Buffer", err)
	}
	if calls := k.took(); len(calls) != 0 {
		t.Errorf("the kernel got %v", calls)
	}
	if err := buf.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("closing a registered buffer: %v, want EBUSY", err)
	}
	must(t, mr.Close(), buf.Close(), plain.Close(), other.Close())
}

// TestMlx5DataDirectLacks: an error says what does not have the option. Of the kernel's reasons for EINVAL
// one is known when the adapter has no data direct function.
func TestMlx5DataDirectLacks(t *testing.T) {
	const noFunction = "the adapter has no data direct function (capability data_direct)"
	for _, c := range []struct {
		name           string
		register, path syscall.Errno
		feature        bool
		since          Version
		driver, text   string
	}{
		{"no function", syscall.EINVAL, syscall.ENODEV, true, Version{}, "mlx5", noFunction},
		{"not a dma-buf", syscall.EINVAL, 0, false, Version{}, "", "may not be a dma-buf"},
		{"older kernel", syscall.EPROTONOSUPPORT, syscall.EPROTONOSUPPORT, true, Version{6, 12}, "", "needs Linux 6.12"},
		{"kernel without on-demand paging", syscall.EOPNOTSUPP, 0, true, Version{}, "mlx5", "by driver mlx5"},
		{"no memory", syscall.ENOMEM, syscall.ENODEV, false, Version{}, "", "cannot allocate memory"},
	} {
		d, k, err := openFakeMlx5(t, func([]byte) {})
		must(t, err)
		f := dmabufFile(t)
		pd := value(d.AllocPD())(t)
		k.refuse["REG_DMABUF_MR"], k.refuse["GET_DATA_DIRECT_SYSFS_PATH"] = c.register, c.path
		_, err = pd.RegDMABuf(f, MROptions{DataDirect: true})
		feature, is := errors.AsType[*FeatureError](err)
		if is != c.feature || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %q, a FeatureError: %t", c.name, err, c.text, c.feature)
		}
		if is && (feature.Feature != "REG_DMABUF_MR with DataDirect" || feature.Since != c.since || feature.Driver != c.driver) {
			t.Errorf("%s: %+v", c.name, feature)
		}
		must(t, pd.Close()) // no region is left
	}
	d, _ := fakeDevice(t, pathAuto)
	f := dmabufFile(t)
	pd := value(d.AllocPD())(t)
	var feature *FeatureError
	if _, err := pd.RegDMABuf(f, MROptions{DataDirect: true}); !errors.As(err, &feature) || feature.Driver != "rxe" {
		t.Errorf("rxe: %v, want a FeatureError", err)
	}
}
