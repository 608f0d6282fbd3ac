//go:build amd64 || arm64

package uverbs

import (
	"bytes"
	"errors"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// Where fakeMlx5DM puts device memory in the command file.
const (
	fakeDMPage   = 3        // the number of the page
	fakeDMOffset = 0x803000 // the same page as an offset for mmap
)

// fakeMlx5DM opens a device that has device memory. An allocation begins at *start in its page.
func fakeMlx5DM(t *testing.T, start *uint64) (*Device, *fakeKernel) {
	t.Helper()
	d, k, err := openFakeMlx5(t, func([]byte) {})
	must(t, err)
	d.attr.MaxDMSize = 1 << 20
	k.withObjects(d)
	k.after(func(c *fakeCall, errno syscall.Errno) {
		if errno == 0 && c.verb == "ALLOC_DM" {
			at, number := c.attr(mlx5.AttrDMOffset), c.attr(mlx5.AttrDMPage)
			if at.Len != 8 || number.Len != 2 {
				t.Errorf("the offset has %d bytes, the number of the page %d", at.Len, number.Len)
			}
			k.put(at.Out, u64(*start))
			k.put(number.Out, []byte{fakeDMPage, 0})
		}
	})
	must(t, k.file.Truncate(fakeDMOffset+2*4096))
	return d, k
}

// TestMlx5DM copies to and from device memory, which is mapped where the kernel says, from its first
// use until it is closed.
func TestMlx5DM(t *testing.T) {
	start := uint64(64)
	d, k := fakeMlx5DM(t, &start)
	before := k.ringsMapped()
	m := value(d.AllocDM(5000, DMOptions{}))(t)
	if n := k.ringsMapped() - before; n != 0 {
		t.Errorf("%d bytes are mapped before the memory is used", n)
	}
	data := bytes.Repeat([]byte{1, 2, 3}, 1000)
	if n, err := m.WriteAt(data, 8); n != len(data) || err != nil {
		t.Errorf("%d bytes written, %v", n, err)
	}
	got := make([]byte, 4+len(data)+4)
	if n, err := m.ReadAt(got, 4); n != len(got) || err != nil {
		t.Errorf("%d bytes read, %v", n, err)
	}
	if want := append(make([]byte, 4), append(bytes.Clone(data), 0, 0, 0, 0)...); !bytes.Equal(got, want) {
		t.Error("what is read is not what was written")
	}
	inFile := make([]byte, len(data))
	if _, err := k.file.ReadAt(inFile, fakeDMOffset+int64(start)+8); err != nil || !bytes.Equal(inFile, data) {
		t.Errorf("the device has something else: %v", err)
	}
	if n := k.ringsMapped() - before; n != 8192 {
		t.Errorf("%d bytes are mapped, want two pages", n)
	}
	wantDMRanges(t, m)
	must(t, m.Close())
	if n := k.ringsMapped() - before; n != 0 {
		t.Errorf("%d bytes are mapped after Close", n)
	}
	errorIs(t, second(m.ReadAt(got[:4], 0)), os.ErrClosed, "ReadAt after Close")
	errorIs(t, second(m.WriteAt(got[:4], 0)), os.ErrClosed, "WriteAt after Close")
}

// wantDMRanges checks which ranges of device memory of 5000 bytes can be copied.
func wantDMRanges(t *testing.T, m *DM) {
	t.Helper()
	for _, c := range []struct {
		length int
		off    int64
		field  string
	}{
		{4, -4, "off"}, {4, 2, "off"}, {0, 5004, "off"}, {4, 1 << 62, "off"}, {0, 1, "off"},
		{4, 5000, "length of b"}, {8, 4996, "length of b"}, {3, 0, "length of b"}, {5004, 0, "length of b"},
	} {
		b := make([]byte, c.length)
		_, err := m.ReadAt(b, c.off)
		wantArg(t, err, c.field)
		_, err = m.WriteAt(b, c.off)
		wantArg(t, err, c.field)
	}
	if n, err := m.ReadAt(nil, 5000); n != 0 || err != nil {
		t.Errorf("nothing at the end: %d, %v", n, err)
	}
}

// TestMlx5DMExport exports device memory by the offset that the kernel maps it at.
func TestMlx5DMExport(t *testing.T) {
	start := uint64(64)
	d, k := fakeMlx5DM(t, &start)
	m := value(d.AllocDM(5000, DMOptions{}))(t)
	made := -1
	k.after(func(c *fakeCall, errno syscall.Errno) {
		if c.verb != "EXPORT_DMABUF" || errno != 0 {
			return
		}
		if page := c.attr(abi.UVERBS_ATTR_ALLOC_DMABUF_PGOFF); page.Data != fakeDMOffset || page.Len != 8 {
			t.Errorf("the page is at %#x, in %d bytes", page.Data, page.Len)
		}
		made = value(unix.MemfdCreate("dmabuf", unix.MFD_CLOEXEC))(t)
		c.attr(abi.UVERBS_ATTR_ALLOC_DMABUF_HANDLE).Data = uint64(made)
	})
	f, offset, err := m.ExportDMABuf()
	if err != nil || offset != 64 || int(f.Fd()) != made {
		t.Errorf("exported at %d, %v", offset, err)
	}
	must(t, f.Close())
	for errno, match := range map[syscall.Errno]error{
		syscall.EPROTONOSUPPORT: errors.ErrUnsupported, syscall.EOPNOTSUPP: errors.ErrUnsupported, syscall.EINVAL: syscall.EINVAL,
	} {
		k.refuse["EXPORT_DMABUF"] = errno
		if _, _, err := m.ExportDMABuf(); !errors.Is(err, match) || !errors.Is(err, errno) {
			t.Errorf("%v: %v", errno, err)
		}
	}
	must(t, m.Close())
	start = 1 << 63 // which the memory's mapping does not reach
	m = value(d.AllocDM(5000, DMOptions{}))(t)
	if _, _, err := m.ExportDMABuf(); !errors.Is(err, mlx5.ErrLayout) {
		t.Errorf("memory at a place that cannot be: %v", err)
	}
	must(t, m.Close())
	if _, _, err := m.ExportDMABuf(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("ExportDMABuf of closed memory: %v", err)
	}
}

// TestMlx5DMNotMapped: device memory cannot be copied if the kernel's answer makes no sense or the
// mapping fails, but it can be closed.
func TestMlx5DMNotMapped(t *testing.T) {
	var start uint64
	d, k := fakeMlx5DM(t, &start)
	before := k.ringsMapped()
	b := make([]byte, 4)
	// The memory would reach beyond the mapping, or is not aligned.
	for _, start = range []uint64{4096 - 60, 2, 1 << 40} {
		m := value(d.AllocDM(64, DMOptions{}))(t)
		errorIs(t, second(m.WriteAt(b, 0)), mlx5.ErrLayout, "memory at %#x", start)
		must(t, m.Close())
	}
	if n := k.ringsMapped() - before; n != 0 {
		t.Errorf("%d bytes are mapped", n)
	}
	m := value(d.AllocDM(64, DMOptions{}))(t)
	must(t, k.file.Close())
	errorIs(t, second(m.WriteAt(b, 0)), syscall.EBADF, "no mapping")
	must(t, m.Close())
}

// TestDMFeature: without a driver that maps the memory, it cannot be copied.
func TestDMFeature(t *testing.T) {
	d, k := objectDevice(t)
	d.attr.MaxDMSize = 1 << 20
	m := value(d.AllocDM(64, DMOptions{}))(t)
	var f *FeatureError
	if _, err := m.ReadAt(make([]byte, 4), 0); !errors.As(err, &f) || f.Driver != "rxe" {
		t.Errorf("ReadAt: %v", err)
	}
	if _, err := m.WriteAt(make([]byte, 4), 0); !errors.As(err, &f) || f.Driver != "rxe" {
		t.Errorf("WriteAt: %v", err)
	}
	if _, _, err := m.ExportDMABuf(); !errors.As(err, &f) || f.Driver != "rxe" {
		t.Errorf("ExportDMABuf: %v", err)
	}
	if c := k.last("ALLOC_DM"); len(c.attrs) != 3 || c.attr(abi.UVERBS_ATTR_ALLOC_DM_LENGTH).Data != 64 {
		t.Errorf("attributes are %+v", c.attrs)
	}
	must(t, m.Close(), d.Close())
}
