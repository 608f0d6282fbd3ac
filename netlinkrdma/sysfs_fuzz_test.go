package netlinkrdma

import (
	"bytes"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// sysfsFiles are the files that the fuzzer writes, one for each line of its input.
var sysfsFiles = []string{
	"class/infiniband/rxe0/node_type", "class/infiniband/rxe0/node_guid", "class/infiniband/rxe0/sys_image_guid", "class/infiniband/rxe0/fw_ver",
	"class/infiniband/rxe0/parent", "class/infiniband/rxe0/device/uevent", "class/infiniband/rxe0/ports/1/state", "class/infiniband/rxe0/ports/1/phys_state",
	"class/infiniband/rxe0/ports/1/link_layer", "class/infiniband/rxe0/ports/1/lid", "class/infiniband/rxe0/ports/1/sm_lid",
	"class/infiniband/rxe0/ports/1/lid_mask_count", "class/infiniband/rxe0/ports/1/cap_mask", "class/infiniband/rxe0/ports/1/gids/0",
	"class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0", "class/net/ve0/ifindex", "class/infiniband_verbs/uverbs0/ibdev",
	"class/infiniband_verbs/uverbs0/dev", "class/infiniband_verbs/uverbs0/abi_version", "class/misc/rdma_cm/dev", "class/misc/rdma_cm/abi_version",
}

// FuzzSysfs reads a /sys whose files hold anything; an empty line is a file that is missing. There is an
// error, or what is returned is within the ranges of what it stands for and printable, twice the
// same.
func FuzzSysfs(f *testing.F) {
	line := func(name string) []byte {
		return bytes.TrimSuffix(sysfsTree()["class/infiniband/"+name].Data, []byte("\n"))
	}
	f.Add("ports/1/state", bytes.Join([][]byte{line("rxe0/node_type"), line("rxe0/node_guid"), line("rxe0/sys_image_guid"), []byte("1.2"), []byte("ve0"), []byte("DRIVER=mlx5_core"),
		[]byte("4: ACTIVE"), []byte("5: LinkUp"), []byte("Ethernet"), nil, nil, nil, nil, nil, []byte("ve0"), []byte("3"), []byte("rxe0"), []byte("231:192"), []byte("1"), []byte("10:58"), []byte("4")}, []byte("\n")))
	f.Add("ports/2/state", bytes.Join([][]byte{line("mlx5_0/node_type"), line("mlx5_0/node_guid"), line("mlx5_0/sys_image_guid"), nil, nil, []byte("DRIVER=mlx5_core"),
		[]byte("2: INIT"), []byte("2: Polling"), []byte("InfiniBand"), []byte("0x2a"), []byte("0x1"), []byte("3"), []byte("0xa651e848"), []byte("fe80:0000:0000:0000:b859:9f03:00a9:1d2c"),
		[]byte("../../x"), []byte("4294967296"), []byte("rxe1"), []byte(":"), []byte("-1"), []byte("4294967296:1"), []byte("99999999999999999999")}, []byte("\n")))
	f.Add("ports/x", []byte("256: none\n"+strings.Repeat("f", 40)+"\n\x00\n\xff\n"))
	f.Add("", []byte{})
	f.Fuzz(func(t *testing.T, more string, text []byte) {
		tree := fstest.MapFS{}
		for i, b := range bytes.Split(text, []byte("\n")) {
			if i < len(sysfsFiles) && len(b) > 0 {
				tree[sysfsFiles[i]] = &fstest.MapFile{Data: b}
			}
		}
		if name := "class/infiniband/rxe0/" + more; fs.ValidPath(name) && more != "" && !strings.HasSuffix(more, "/") {
			// No file is a folder too.
			if !slices.ContainsFunc(sysfsFiles, func(s string) bool {
				return strings.HasPrefix(s, name+"/") || strings.HasPrefix(name, s+"/") || s == name
			}) {
				tree[name] = &fstest.MapFile{Data: []byte("4: ACTIVE")}
			}
		}
		c := deafClient(unix.EACCES, tree)
		devs, err := c.devices()
		if err != nil && devs != nil {
			t.Errorf("devices %+v with the error %v", devs, err)
		}
		again, err2 := c.devices()
		if !slices.Equal(devs, again) || (err == nil) != (err2 == nil) {
			t.Errorf("devices are %+v, %v and then %+v, %v", devs, err, again, err2)
		}
		for _, d := range devs {
			if d.Name != "rxe0" || !d.FromSysfs || d.Index != 0 || !isPrintable(d.Firmware) ||
				!slices.Contains([]Protocol{"", ProtocolIB, ProtocolOPA, ProtocolRoCE, ProtocolIWARP, ProtocolUSNIC}, d.Protocol) {
				t.Errorf("device is %+v", d)
			}
			ports, err := c.ports(d)
			if err != nil {
				continue
			}
			if len(ports) != int(d.Ports) {
				t.Errorf("%d ports, the device has %d", len(ports), d.Ports)
			}
			for i, p := range ports {
				switch {
				case i > 0 && p.Num <= ports[i-1].Num:
					t.Errorf("port %d follows port %d", p.Num, ports[i-1].Num)
				case p.LinkLayer != ib.LinkLayerInfiniBand && (p.LID != 0 || p.SMLID != 0 || p.LMC != 0 || p.CapFlags != 0 || p.SubnetPrefix != 0):
					t.Errorf("a port of %s has what InfiniBand has: %+v", p.LinkLayer, p)
				case (p.Netdev == "") != (p.NetdevIndex == 0) && p.NetdevIndex != 0, p.NetdevIndex < 0, p.CapFlags > 1<<32-1, !isPrintable(p.Netdev):
					t.Errorf("port is %+v", p)
				}
			}
		}
		for name, find := range map[string]func() (CharDev, error){
			"uverbs0": func() (CharDev, error) { return sysfsUverbs(tree, "rxe0") },
			"rdma_cm": func() (CharDev, error) { return sysfsCM(tree) },
		} {
			cd, err := find()
			if err == nil && (cd.Name != name || !isPrintable(cd.Name)) {
				t.Errorf("character device is %+v, want %s", cd, name)
			}
		}
	})
}

// isPrintable reports whether a text can be shown on a terminal as it is.
func isPrintable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 })
}
