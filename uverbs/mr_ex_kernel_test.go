package uverbs

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// TestRegMREx gives the command that takes a DMA handle without one, because rxe does not support
// them. It shows the answers of the kernel and the driver, and why the old command registers memory
// of the process.
func TestRegMREx(t *testing.T) {
	testenv.Guest(t)
	since := Version{6, 17}
	kernel := runningKernel()
	has := kernel[0] > since[0] || kernel[0] == since[0] && kernel[1] >= since[1]

	d := value(Open("rxe0", OpenOptions{}))(t)
	defer d.Close()
	pd := value(d.AllocPD())(t)
	defer pd.Close()
	buf := value(AllocBuffer(8192, BufferOptions{}))(t)
	defer buf.Close()
	s := &region{access: AccessLocalWrite, start: addrOf(buf.Bytes()), iova: addrOf(buf.Bytes()), length: 8192}
	register := func(fd int) (*MR, error) {
		m := &MR{}
		must(t, m.use(pd, nil))
		if errno := m.registerEx(pd, s, nil, fd); errno != 0 {
			m.removeParents()
			return nil, d.regError("REG_MR_EX", errno, s)
		}
		return m, nil
	}

	null := value(os.Open("/dev/null"))(t)
	defer null.Close()
	for what, fd := range map[string]int{"memory": -1, "a file that is no dma-buf": int(null.Fd())} {
		m, err := register(fd)
		var f *FeatureError
		switch {
		case !has:
			if !errors.As(err, &f) || f.Feature != "REG_MR_EX" || f.Since != since || f.Driver != "" {
				t.Errorf("%s on Linux %s: %v, want that Linux has REG_MR_EX since %s", what, kernel, err, since)
			}
		case fd >= 0:
			if !errors.Is(err, syscall.EINVAL) || errors.As(err, &f) {
				t.Errorf("%s: %v, want EINVAL", what, err)
			}
		case err != nil:
			t.Errorf("%s: %v", what, err)
		default:
			// It has keys, and no request can use it: for this the old command is there.
			attr, err := m.Query()
			if err != nil || attr.LKey != m.LKey() || attr.Length != 0 || attr.IOVA != 0 {
				t.Errorf("Query: %+v, %v, want lkey %#x without address and length", attr, err, m.LKey())
			}
			must(t, m.Close())
		}
	}
}
