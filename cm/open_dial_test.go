package cm

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// devicePath is the usual path of the connection manager's device.
const devicePath = "/dev/infiniband/rdma_cm"

// bareEnv is set to 1 in the VM without RDMA modules.
const bareEnv = "GOVERBS_BARE"

// says fails the test unless an error matches another and says all the words.
func says(t *testing.T, err, is error, words ...string) {
	t.Helper()
	if !errors.Is(err, is) {
		t.Errorf("error is %v, want %v", err, is)
	}
	for _, w := range words {
		if !strings.Contains(fmt.Sprint(err), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

// TestOpenDenied: who may not open the device learns its mode and owner, and what to do.
func TestOpenDenied(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsKernel(t, "device nodes")
	st := value(os.Stat(devicePath))(t)
	must(t, os.Chmod(devicePath, 0o600))
	t.Cleanup(func() { must(t, os.Chmod(devicePath, st.Mode().Perm())) })
	said := errors.New(other(t, "may not open", "-"))
	says(t, said, said, "cm: open channel", devicePath, "permission denied", "mode -rw-------, owner 0", "user 65534", "chmod 666 "+devicePath)
}

// TestNoModuleDial runs in a VM of its own, which has no RDMA module loaded.
func TestNoModuleDial(t *testing.T) {
	testenv.Boot(t, bareEnv, "rxe/bare")
	_, err := Dial(t.Context(), firstBad, DialOptions{})
	says(t, err, errors.ErrUnsupported, "modprobe rdma_ucm")
}
