package conformance

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// gidIndex waits until the device has an address and returns the index of its GID.
func gidIndex(t *testing.T, dev *uverbs.Device, addr string) int {
	t.Helper()
	want, err := ib.ParseGID(addr)
	must(t, err)
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(time.Millisecond) {
		table, err := dev.GIDTable(1)
		must(t, err)
		for _, e := range table {
			if e.GID == want && e.Type == ib.GIDTypeRoCEv2 {
				return e.Index
			}
		}
	}
	t.Fatalf("%s is not in the GID table", addr)
	return 0
}

// TestDeleteLinkInUse deletes a device that is open and connected. rxe cannot take a device away
// from a program: the device vanishes from all lists, keeps working for programs that have it open,
// and is deleted when the last of them closes it.
func TestDeleteLinkInUse(t *testing.T) {
	for _, tt := range []struct {
		name   string
		rdma   string // one each: the kernel keeps a name a little longer than the interface
		remove func(netdev netlink.Link) error
	}{
		{"RDMA device", "rxetr", func(netlink.Link) error { return netlinkrdma.DeleteLink("rxetr") }},
		{"network interface", "rxeni", func(netdev netlink.Link) error { return netlink.LinkDel(netdev) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			testenv.Guest(t)
			testenv.NeedsLinks(t)
			must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "tr0"}, PeerName: "tr1"}))
			netdev, err := netlink.LinkByName("tr0")
			must(t, err)
			peer, err := netlink.LinkByName("tr1")
			must(t, err)
			addr, err := netlink.ParseAddr("10.9.0.1/24")
			must(t, err, netlink.AddrAdd(netdev, addr), netlink.LinkSetUp(peer), netlink.LinkSetUp(netdev), netlinkrdma.AddLink(tt.rdma, "rxe", "tr0"))
			t.Cleanup(func() { netlink.LinkDel(netdev) }) // unless it is the test
			gone := make(chan error, 1)
			t.Run("in use", func(t *testing.T) { // all is closed at its end
				dev := openDevice(t, tt.rdma)
				setLink(t, dev, "tr0", true)
				o := uverbs.QPOptions{Path: uverbs.PathOptions{GIDIndex: new(gidIndex(t, dev, "10.9.0.1"))}}
				a, b := newSide(t, dev, o), newSide(t, dev, o)
				connect(t, a, b)
				go func() { gone <- tt.remove(netdev) }()
				for end := time.Now().Add(deadline); ; time.Sleep(time.Millisecond) {
					_, err := netlinkrdma.DeviceByName(tt.rdma)
					if errors.Is(err, os.ErrNotExist) {
						break
					}
					if must(t, err); time.Now().After(end) {
						t.Fatal("the device is still in the list")
					}
				}
				if _, err := uverbs.Open(tt.rdma, uverbs.OpenOptions{}); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("open it once more: %v", err)
				} else {
					says(t, err, tt.rdma, "devices here: rxe0, rxe1")
				}
				pd, err := dev.AllocPD()
				must(t, err, pd.Close())
				if tt.name == "RDMA device" { // whose interface works on
					copy(a.buf.Bytes(), "still there")
					must(t, b.qp.PostRecv(1, b.mr.SGE(0, 100)), a.qp.PostSend(send(2, a.mr.SGE(0, 11))))
					a.want(t, 2, uverbs.WCSend)
					b.want(t, 1, uverbs.WCRecv)
					if got := string(b.buf.Bytes()[:11]); got != "still there" {
						t.Errorf("received %q", got)
					}
				}
				select {
				case err := <-gone:
					t.Errorf("the device was deleted while it is open: %v", err)
				default:
				}
			})
			select {
			case err := <-gone:
				must(t, err)
			case <-time.After(deadline):
				t.Fatal("the device was not deleted")
			}
		})
	}
}
