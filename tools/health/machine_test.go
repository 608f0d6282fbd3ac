package health

import (
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
)

// TestLiveNetdev: a virtual network interface has the kind that the kernel names, and the loopback
// interface does not have one.
func TestLiveNetdev(t *testing.T) {
	runtime.LockOSThread() // and never unlock: the thread ends with the test
	testenv.NeedsRights(t, "a network namespace", unix.Unshare(unix.CLONE_NEWNET))
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "link"
	link := &netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}
	testenv.Must(t, netlink.LinkAdd(link))
	for index, want := range map[int]netdev{1: {Name: "lo"}, link.Index: {Name: "link", Kind: "veth"}} {
		if got, err := liveNetdev(index); err != nil || got.Name != want.Name || got.Kind != want.Kind {
			t.Errorf("interface %d is %+v, %v; want %+v", index, got, err, want)
		}
	}
	if kind, err := linkKind(1 << 20); err == nil {
		t.Errorf("an interface that does not exist has kind %q", kind)
	}
}
