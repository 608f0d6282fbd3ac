package netlinkrdma

import (
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
)

func TestAddLink(t *testing.T) {
	var asked map[int][]byte
	c := fakeClient(t, func(r request) []datagram {
		if r.cmd != abi.RDMA_NLDEV_CMD_NEWLINK {
			t.Errorf("command %d", r.cmd)
		}
		asked = r.attrs.attrs
		return r.refuse(0)
	})
	must(t, c.addLink("rxe9", RXE, "eth0"))
	want := map[int][]byte{
		2:  []byte("rxe9\x00"), // DEV_NAME
		65: []byte("rxe\x00"),  // LINK_TYPE
		51: []byte("eth0\x00"), // NDEV_NAME
	}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Error(diff)
	}
}

func TestAddLinkErrors(t *testing.T) {
	for _, tt := range []struct {
		kind  LinkKind
		errno syscall.Errno
		is    error
		want  string
	}{
		{RXE, unix.EEXIST, fs.ErrExist, "eth0 has a device of kind rxe already"},
		{RXE, unix.ENFILE, fs.ErrExist, "an RDMA device rxe9 exists already, or is still being removed"},
		{RXE, unix.ENODEV, fs.ErrNotExist, "there is no interface eth0 in this network namespace"},
		{RXE, unix.EPERM, fs.ErrPermission, "this needs CAP_NET_ADMIN, and an interface that is not a VLAN; the device of a VLAN's parent serves the addresses of the VLAN"},
		{RXE, unix.EINVAL, nil, "the kernel has no links of kind rxe (modprobe rdma_rxe), or none on this kind of interface"},
		{SIW, unix.EINVAL, nil, "the kernel has no links of kind siw (modprobe siw), or none on this kind of interface"},
		{RXE, unix.ENOENT, nil, "up to Linux 6.12 rxe needs the crc32 hash: modprobe crc32_generic"},
	} {
		c := fakeClient(t, func(r request) []datagram { return r.refuse(tt.errno) })
		err := c.addLink("rxe9", tt.kind, "eth0")
		want := "netlinkrdma: add " + string(tt.kind) + " link rxe9 on eth0: " + tt.errno.Error() + "; " + tt.want
		if fmtError(err) != want || !errors.Is(err, tt.errno) {
			t.Errorf("%v\nwant %s", err, want)
		}
		if tt.is != nil && !errors.Is(err, tt.is) {
			t.Errorf("%v does not match %v", err, tt.is)
		}
	}
}

// The kernel's own words are in the error.
func TestAddLinkExtendedAck(t *testing.T) {
	c := fakeClient(t, func(r request) []datagram {
		m := r.end(0)
		m.Header.Flags |= unix.NLM_F_ACK_TLVS
		m.Data = extAck
		return []datagram{{m}}
	})
	err := c.addLink("rxe9", RXE, "eth0")
	if !errors.Is(err, unix.ENODEV) || !strings.Contains(err.Error(), "no such device (kernel: no dev); there is no interface eth0") {
		t.Error(err)
	}
}

// The kernel is not asked for what it would refuse or cut short.
func TestAddLinkArguments(t *testing.T) {
	c := fakeClient(t, func(r request) []datagram {
		t.Errorf("the kernel got a request: %v", r.attrs.attrs)
		return r.refuse(0)
	})
	long := strings.Repeat("x", 64)
	for _, tt := range []struct {
		name   string
		kind   LinkKind
		netdev string
		want   string
	}{
		{"", RXE, "eth0", `name "": not a valid name; allowed are 1 to 63 bytes without spaces, / and %`},
		{"rxe%d", RXE, "eth0", `name "rxe%d"`},
		{"a/b", RXE, "eth0", `name "a/b"`},
		{"a\x00b", RXE, "eth0", `name "a\x00b"`},
		{long, RXE, "eth0", `name "` + long + `"`},
		{"rxe0", RXE, "", `network interface ""`},
		{"rxe0", RXE, long[:16], `network interface "xxxxxxxxxxxxxxxx": not a valid name; allowed are 1 to 15 bytes`},
		{"rxe0", "", "eth0", `link kind "": not a valid name; allowed are rxe and siw`},
	} {
		if err := c.addLink(tt.name, tt.kind, tt.netdev); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want %s", err, tt.want)
		}
	}
}

func TestDeleteLink(t *testing.T) {
	var deleted []uint32
	answer := syscall.Errno(0)
	c := fakeClient(t, func(r request) []datagram {
		if r.cmd == abi.RDMA_NLDEV_CMD_DELLINK {
			deleted = append(deleted, r.attrs.u32(abi.RDMA_NLDEV_ATTR_DEV_INDEX))
			return r.refuse(answer)
		}
		return twoDevices(r)
	})
	must(t, c.deleteLink("rxe0"))
	err := c.deleteLink("rxe1")
	const want = `netlinkrdma: delete link "rxe1": no such RDMA device; known devices: mlx5_0, rxe0`
	if fmtError(err) != want || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want %s", err, want)
	}
	if diff := cmp.Diff([]uint32{5}, deleted); diff != "" {
		t.Error(diff)
	}
	for errno, want := range map[syscall.Errno]string{
		unix.EPERM:  "netlinkrdma: delete link rxe0: operation not permitted; this needs CAP_NET_ADMIN",
		unix.EINVAL: "netlinkrdma: delete link rxe0: invalid argument; only software links can be deleted, and the driver of this one is rxe",
	} {
		answer = errno
		if err := c.deleteLink("rxe0"); fmtError(err) != want || !errors.Is(err, errno) {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
}
