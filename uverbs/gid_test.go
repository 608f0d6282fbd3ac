package uverbs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// gid parses a GID that must be right.
func gid(t testing.TB, s string) ib.GID {
	t.Helper()
	g, err := ib.ParseGID(s)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestGIDTableTooLong: a table beyond reason is an error, and not an empty table.
func TestGIDTableTooLong(t *testing.T) {
	d, k := fakeDevice(t, pathIoctl)
	k.port.GIDTblLen = maxGIDs
	if table, err := d.GIDTable(1); !errors.Is(err, syscall.EOVERFLOW) {
		t.Errorf("%d entries, %v, want EOVERFLOW", len(table), err)
	}
}

func TestQueryGID(t *testing.T) {
	d, k := fakeDevice(t, pathIoctl)
	k.gids = []abi.GIDEntry{{PortNum: 2, GIDIndex: 3}, {PortNum: 1, GIDIndex: 3, GIDType: uint32(ib.GIDTypeRoCEv2), NetdevIfindex: 7}}
	addr := gid(t, "10.1.0.1")
	copy(bytesOf(&k.gids[1].GID), addr[:])
	want := GIDEntry{Port: 1, Index: 3, GID: addr, Type: ib.GIDTypeRoCEv2, Netdev: 7}
	if got, err := d.GID(1, 3); got != want || err != nil {
		t.Errorf("entry is %+v, %v, want %+v", got, err, want)
	}
	if _, err := d.GID(1, 2); !errors.Is(err, syscall.ENODATA) || !strings.Contains(err.Error(), "entry 2 of port 1 is not used") {
		t.Errorf("an unused entry: %v", err)
	}
	for _, index := range []int{-1, 4} {
		_, err := d.GID(1, index)
		if arg, ok := errors.AsType[*ArgError](err); !ok || arg.Field != "index" || arg.Allowed != "0 to 3" {
			t.Errorf("index %d: %v", index, err)
		}
	}
	k.refuse["QUERY_GID_ENTRY"] = syscall.EPROTONOSUPPORT
	d.info.Name = "none0" // a guest has an rxe0
	errorIs(t, second(d.GID(1, 3)), fs.ErrNotExist, "without ioctl, and without sysfs")
	k.refuse["QUERY_GID_ENTRY"] = syscall.EIO
	errorIs(t, second(d.GID(1, 3)), syscall.EIO, "refused")
}

// TestSysfsGIDs reads a tree as the kernel lays it out.
func TestSysfsGIDs(t *testing.T) {
	root := filepath.Join(t.TempDir(), "class", "infiniband")
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o777))
		must(t, os.WriteFile(path, []byte(text+"\n"), 0o666))
	}
	port := "rxe0/ports/1/"
	write(port+"gids/0", "fe80:0000:0000:0000:0000:00ff:fe00:0001")
	write(port+"gid_attrs/types/0", "RoCE v2")
	write(port+"gid_attrs/ndevs/0", "eth0")
	write("../net/eth0/ifindex", "7")
	write(port+"gids/1", "0000:0000:0000:0000:0000:0000:0000:0000")
	write(port+"gids/2", "0000:0000:0000:0000:0000:ffff:0a01:0001")
	write(port+"gid_attrs/types/2", "IB/RoCE v1")
	attr := PortAttr{GIDTableLen: 3, LinkLayer: ib.LinkLayerEthernet}
	got, err := sysfsGIDs(root, "rxe0", 1, attr)
	must(t, err)
	want := []GIDEntry{
		{Port: 1, Index: 0, GID: gid(t, "fe80::ff:fe00:1"), Type: ib.GIDTypeRoCEv2, Netdev: 7},
		{Port: 1, Index: 2, GID: gid(t, "10.1.0.1"), Type: ib.GIDTypeRoCEv1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	attr.LinkLayer = ib.LinkLayerInfiniBand
	if got, err := sysfsGIDs(root, "rxe0", 1, attr); err != nil || got[1].Type != ib.GIDTypeIB {
		t.Errorf("on InfiniBand: %v, %v", got, err)
	}
	attr.GIDTableLen = 4
	errorIs(t, second(sysfsGIDs(root, "rxe0", 1, attr)), fs.ErrNotExist, "a missing entry")
	for i, used := range []bool{true, false, true} {
		e, ok, err := sysfsGID(root, "rxe0", 1, i, attr.LinkLayer)
		if ok != used || err != nil || used && e.Index != i {
			t.Errorf("entry %d is %+v, %v, %v", i, e, ok, err)
		}
	}
	write(port+"gids/3", "garbage")
	if _, err := sysfsGIDs(root, "rxe0", 1, attr); err == nil {
		t.Error("garbage is taken for a GID")
	}
}
