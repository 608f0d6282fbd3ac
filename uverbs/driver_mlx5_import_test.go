//go:build amd64 || arm64

package uverbs

import (
	"bytes"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/mmio/mlx5"
)

// importFakeMlx5 imports a ConnectX-5 whose description change has changed.
func importFakeMlx5(t *testing.T, change func(b []byte)) (*Device, *fakeKernel, error) {
	t.Helper()
	return importFake(t, func(k *fakeKernel) {
		k.driver = mlx5Driver{}
		k.after(func(c *fakeCall, errno syscall.Errno) {
			if c.verb == "QUERY_CONTEXT" && errno == 0 {
				k.put(c.attr(mlx5.AttrContextResp).Out, mlx5Answer(change))
			}
		})
	}, 1)
}

// TestMlx5Import: an importer allocates a page of registers for itself, and frees it in the end.
func TestMlx5Import(t *testing.T) {
	d, k, err := importFakeMlx5(t, func([]byte) {})
	must(t, err)
	if len(k.uars) != 1 || d.mlx5.BlueFlame != 512 {
		t.Errorf("%d pages of registers, each of %d bytes", len(k.uars), d.mlx5.BlueFlame)
	}
	must(t, d.Close())
	if len(k.uars) != 0 {
		t.Errorf("%d pages of registers are left", len(k.uars))
	}
}

// TestMlx5ImportRefused: registers of the context itself cannot be shared, and the driver must
// describe the context.
func TestMlx5ImportRefused(t *testing.T) {
	_, k, err := importFakeMlx5(t, func(b []byte) { b[8] = 16 })
	var f *FeatureError
	if !errors.As(err, &f) || !strings.Contains(f.Feature, "RDMAABI=write") || k.ringsMapped() != 0 {
		t.Errorf("a context with registers: %v, and %d bytes are mapped", err, k.ringsMapped())
	}
	_, _, err = importFake(t, func(k *fakeKernel) { k.driver, k.refuse["QUERY_CONTEXT"] = mlx5Driver{}, syscall.EOPNOTSUPP })
	if !errors.As(err, &f) || f.Feature != "QUERY_CONTEXT" {
		t.Errorf("a driver that does not describe it: %v", err)
	}
}

// TestMlx5ImportDM: imported device memory is where the kernel says. Close unmaps it and does not free
// it.
func TestMlx5ImportDM(t *testing.T) {
	d, k, err := importFakeMlx5(t, func([]byte) {})
	must(t, err)
	k.after(func(c *fakeCall, errno syscall.Errno) {
		if c.verb == "QUERY_DM" && errno == 0 && c.attr(mlx5.AttrDMQueryHandle).Data == 5 {
			k.put(c.attr(mlx5.AttrDMQueryOffset).Out, u64(64))
			k.put(c.attr(mlx5.AttrDMQueryPage).Out, []byte{fakeDMPage, 0})
			k.put(c.attr(mlx5.AttrDMQueryLength).Out, u64(5000))
		}
	})
	must(t, k.file.Truncate(fakeDMOffset+2*4096))
	before := k.ringsMapped()
	dm := value(d.ImportDM(5))(t)
	if dm.Len() != 5000 || dm.Handle() != 5 {
		t.Errorf("%d bytes, handle %d", dm.Len(), dm.Handle())
	}
	want := []byte("shared memory 16")
	if _, err := dm.WriteAt(want, 8); err != nil {
		t.Error(err)
	}
	got := make([]byte, len(want))
	if _, err := k.file.ReadAt(got, fakeDMOffset+64+8); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the device has %q: %v", got, err)
	}
	k.took()
	must(t, dm.Close())
	if took := k.took(); len(took) != 0 || k.ringsMapped() != before {
		t.Errorf("Close has issued %v, and %d bytes are mapped", took, k.ringsMapped()-before)
	}
	k.refuse["QUERY_DM"] = syscall.ENOENT
	if _, err := d.ImportDM(6); !errors.Is(err, syscall.ENOENT) || !strings.Contains(err.Error(), "no DM with the handle 6") {
		t.Errorf("a wrong handle: %v", err)
	}
	var f *FeatureError
	k.refuse["QUERY_DM"] = syscall.EPROTONOSUPPORT
	if _, err := d.ImportDM(6); !errors.As(err, &f) || f.Since != (Version{5, 13}) {
		t.Errorf("an old kernel: %v", err)
	}
	must(t, d.Close())
}
