//go:build amd64 || arm64

package uverbs

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// lacksCap checks that an error names a capability.
func lacksCap(t *testing.T, err error, capability string) {
	t.Helper()
	var f *FeatureError
	if !errors.As(err, &f) || f.Driver != "mlx5" || !strings.Contains(err.Error(), capability) {
		t.Errorf("%v, want a FeatureError about %s", err, capability)
	}
}

// isArg checks that an error is about an argument.
func isArg(t *testing.T, err error, field string) {
	t.Helper()
	var a *ArgError
	if !errors.As(err, &a) || a.Field != field {
		t.Errorf("%v, want an ArgError about %s", err, field)
	}
}

// TestMlx5OpenDEVX: which contexts are requested, with and without the option and the environment
// variable, if the kernel refuses those for DEVX or not.
func TestMlx5OpenDEVX(t *testing.T) {
	for _, c := range []struct {
		mode   devxMode
		refuse syscall.Errno // of a context for DEVX
		flags  []byte        // of each GET_CONTEXT
		err    string
	}{
		{devxOff, syscall.EINVAL, []byte{0}, ""},
		{devxPossible, 0, []byte{1}, ""},
		{devxPossible, syscall.EINVAL, []byte{1, 0}, ""},
		{devxRequired, 0, []byte{1}, ""},
		{devxRequired, syscall.EINVAL, []byte{1, 0}, "log_max_uctx"},
		{devxPossible, syscall.ENOMEM, []byte{1, 0}, ""},
	} {
		var flags []byte
		d, _ := newFakeDevice(t, pathAuto, func(k *fakeKernel) {
			k.driver, k.context = mlx5Driver{}, mlx5Answer(func([]byte) {})
			k.seen = func(cmd *kernel.Command, _ bool) {
				if cmd.Object != abi.UVERBS_OBJECT_DEVICE || cmd.Method != abi.UVERBS_METHOD_GET_CONTEXT {
					return
				}
				flags = append(flags, cmd.Attr(abi.UVERBS_ATTR_UHW_IN).In[8])
				delete(k.refuse, "GET_CONTEXT")
				if c.refuse != 0 && flags[len(flags)-1] == 1 {
					k.refuse["GET_CONTEXT"] = c.refuse
				}
			}
		})
		err := d.getContext(c.mode)
		if !slices.Equal(flags, c.flags) {
			t.Errorf("%+v: the contexts had the flags %v", c, flags)
		}
		if c.err != "" {
			lacksCap(t, err, c.err)
			continue
		}
		must(t, err)
		if has := d.mlx5.part.DEVX; has != (c.flags[len(c.flags)-1] == 1) {
			t.Errorf("%+v: DEVX is %v", c, has)
		}
		must(t, d.Close())
	}
	d, _ := newFakeDevice(t, pathAuto, func(k *fakeKernel) {
		k.driver, k.context = mlx5Driver{}, mlx5Answer(func([]byte) {})
		k.refuse["GET_CONTEXT"] = syscall.ENOMEM // which says nothing about the adapter
	})
	if err := d.getContext(devxRequired); !errors.Is(err, syscall.ENOMEM) || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a context is refused for want of memory: %v", err)
	}
	d, _ = newFakeDevice(t, pathWrite, func(k *fakeKernel) { k.driver = mlx5Driver{} })
	lacksCap(t, d.getContext(devxRequired), "RDMAABI=write")
	d, _ = newFakeDevice(t, pathAuto, func(*fakeKernel) {})
	var f *FeatureError
	if err := d.getContext(devxRequired); !errors.As(err, &f) || f.Feature != "DEVX" || f.Driver != "rxe" {
		t.Errorf("rxe: %v", err)
	}
	for v, want := range map[string]devxMode{"": devxOff, "0": devxOff, "1": devxPossible} {
		t.Setenv(devxEnv, v)
		if got, err := devxFromEnv(); got != want || err != nil {
			t.Errorf("RDMADEVX=%s: %v, %v", v, got, err)
		}
	}
	t.Setenv(devxEnv, "yes")
	if _, err := devxFromEnv(); err == nil || !strings.Contains(err.Error(), `RDMADEVX is "yes", allowed: "1"`) {
		t.Errorf("RDMADEVX=yes: %v", err)
	}
}
