package conformance

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// says checks that an error's text holds all of the words.
func says(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one that says %q", words)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

// saysNot checks what an error must not say.
func saysNot(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if strings.Contains(err.Error(), w) {
			t.Errorf("error %q says %q", err, w)
		}
	}
}

func TestUnknownDevice(t *testing.T) {
	testenv.Guest(t)
	_, err := uverbs.Open("rxe99", uverbs.OpenOptions{})
	says(t, err, "rxe99", rig.Devices[0], rig.Devices[1])
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not fs.ErrNotExist", err)
	}
}

func TestNoDevice(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsLinks(t)
	for _, l := range slices.Backward(links) { // so that the first is back first
		must(t, netlinkrdma.DeleteLink(l.name))
		t.Cleanup(func() { addLink(t, l.name, l.netdev) })
	}
	_, err := uverbs.OpenFirst()
	saysAll(t, "OpenFirst", err, "uverbs: open first device: there is no RDMA device here; verbs doctor ... ")
	says(t, err, "verbs link add rxe0 type rxe netdev eth0", "verbs dev set DEV netns NS")
	if !errors.Is(err, uverbs.ErrNoDevice) {
		t.Errorf("%v is not ErrNoDevice", err)
	}
	_, err = uverbs.Open("rxe0", uverbs.OpenOptions{})
	if !errors.Is(err, uverbs.ErrNoDevice) {
		t.Errorf("%v is not ErrNoDevice", err)
	}
	must(t, netlinkrdma.SetNetNSMode(netlinkrdma.NetNSExclusive))
	t.Cleanup(func() { must(t, netlinkrdma.SetNetNSMode(netlinkrdma.NetNSShared)) })
	_, err = uverbs.Open("rxe0", uverbs.OpenOptions{})
	says(t, err, "no RDMA device", "netns mode is exclusive", "verbs dev set DEV netns NS", "verbs link add rxe0 type rxe netdev eth0")
}

// links are the RDMA links of the VM.
var links = []struct{ name, netdev string }{{"rxe0", rig.Netdevs[0]}, {"rxe1", rig.Netdevs[1]}}

// addLink adds an rxe link and waits until its GIDs are there.
func addLink(t *testing.T, name, netdev string) {
	t.Helper()
	must(t, netlinkrdma.AddLink(name, "rxe", netdev))
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		dev, err := uverbs.Open(name, uverbs.OpenOptions{})
		if err != nil {
			continue
		}
		table, err := dev.GIDTable(1)
		dev.Close()
		if e, ok := uverbs.ChooseGID(table, ib.GID{}); err == nil && ok && e.GID.Addr().Is4() {
			return
		}
	}
	t.Fatalf("%s has no IPv4 GID after %s", name, deadline)
}

// TestModuleNotLoaded runs in a VM of its own, which has no RDMA module loaded.
func TestModuleNotLoaded(t *testing.T) {
	testenv.Boot(t, bareEnv, "rxe/bare")
	_, err := uverbs.OpenFirst()
	says(t, err, "modprobe")
	_, err = uverbs.Devices()
	if err == nil {
		_, err = uverbs.Open("rxe0", uverbs.OpenOptions{})
	}
	says(t, err, "modprobe")
}

// bareEnv is set to 1 in the VM without RDMA modules.
const bareEnv = "GOVERBS_BARE"
