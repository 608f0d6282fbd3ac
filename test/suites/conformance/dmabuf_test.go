package conformance

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/mlx5"
)

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
		} else if onMLX5 || since(t, 6, 12) { // to rxe it makes no difference
			testenv.NotSupported(t, "/dev/udmabuf")
		}
		for _, f := range files {
			for _, o := range []uverbs.MROptions{{}, {Access: uverbs.AccessLocalWrite | uverbs.AccessRelaxedOrdering, Offset: 4096, Length: 100, IOVA: new(uint64(0))}} {
				mr, err := pd.RegDMABuf(f, o)
				// mlx5_ib looks at the file first. It takes a dma-buf if the card changes the pages of regions
				// by work requests (umr_modify_entity_size_disabled is 0).
				wants := onMLX5 && f != memory
				switch {
				case wants && err == nil:
					must(t, mr.Close())
				case onMLX5 && !wants && errors.Is(err, syscall.EINVAL):
				default:
					absent(t, err, "REG_DMABUF_MR")
				}
				var feature *uverbs.FeatureError
				if os.Getenv("RDMAABI") != "write" && since(t, 5, 12) && errors.As(err, &feature) && feature.Driver != rig.Driver {
					t.Errorf("%s: %v, want an error that names the driver", f.Name(), err)
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

// TestDataDirect: a device without a data direct function refuses the option by name, whatever the kernel's
// reason. The kernel looks at the file only afterwards, so it need not be a dma-buf.
func TestDataDirect(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		fd, err := unix.MemfdCreate("memory", unix.MFD_CLOEXEC)
		must(t, err)
		f := os.NewFile(uintptr(fd), "memory")
		defer f.Close()
		must(t, f.Truncate(16384))
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
