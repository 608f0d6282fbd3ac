package netlinkrdma

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// sysfsTree is the /sys of a host with an rxe, a dual-port InfiniBand and an
// iWARP device.
func sysfsTree() fstest.MapFS {
	tree := fstest.MapFS{}
	for name, content := range map[string]string{
		"class/infiniband/rxe0/node_type":                 "1: CA\n",
		"class/infiniband/rxe0/node_guid":                 "5054:00ff:fe00:0001\n",
		"class/infiniband/rxe0/sys_image_guid":            "5054:00ff:fe00:0002\n",
		"class/infiniband/rxe0/fw_ver":                    "\n",
		"class/infiniband/rxe0/parent":                    "ve0\n",
		"class/infiniband/rxe0/ports/1/state":             "4: ACTIVE\n",
		"class/infiniband/rxe0/ports/1/phys_state":        "5: LinkUp\n",
		"class/infiniband/rxe0/ports/1/link_layer":        "Ethernet\n",
		"class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0": "ve0\n",
		"class/net/ve0/ifindex":                           "3\n",
		"class/infiniband/mlx5_0/node_type":               "1: CA\n",
		"class/infiniband/mlx5_0/node_guid":               "b859:9f03:00a9:1d2c\n",
		"class/infiniband/mlx5_0/sys_image_guid":          "b859:9f03:00a9:1d2c\n",
		"class/infiniband/mlx5_0/fw_ver":                  "20.31.1014\n",
		"class/infiniband/mlx5_0/device/uevent":           "PCI_ID=15B3:101B\nDRIVER=mlx5_core\nPCI_CLASS=20700\n",
		"class/infiniband/mlx5_0/ports/10/state":          "1: DOWN\n",
		"class/infiniband/mlx5_0/ports/10/phys_state":     "3: Disabled\n",
		"class/infiniband/mlx5_0/ports/10/link_layer":     "Ethernet\n",
		"class/infiniband/mlx5_0/ports/2/state":           "2: INIT\n",
		"class/infiniband/mlx5_0/ports/2/phys_state":      "2: Polling\n",
		"class/infiniband/mlx5_0/ports/2/link_layer":      "InfiniBand\n",
		"class/infiniband/mlx5_0/ports/2/lid":             "0x2a\n",
		"class/infiniband/mlx5_0/ports/2/sm_lid":          "0x1\n",
		"class/infiniband/mlx5_0/ports/2/lid_mask_count":  "3\n",
		"class/infiniband/mlx5_0/ports/2/cap_mask":        "0xa651e848\n",
		"class/infiniband/mlx5_0/ports/2/gids/0":          "fe80:0000:0000:0000:b859:9f03:00a9:1d2c\n",
		"class/infiniband/iw0/node_type":                  "4: RNIC\n",
		"class/infiniband/iw0/node_guid":                  "0000:0000:0000:0001\n",
		"class/infiniband/iw0/sys_image_guid":             "0000:0000:0000:0001\n",
		"class/infiniband/iw0/ports/1/state":              "4: ACTIVE\n",
		"class/infiniband/iw0/ports/1/phys_state":         "5: LinkUp\n",
		"class/infiniband/iw0/ports/1/link_layer":         "Ethernet\n",
		"class/infiniband_verbs/abi_version":              "6\n",
		"class/infiniband_verbs/uverbs0/ibdev":            "mlx5_0\n",
		"class/infiniband_verbs/uverbs0/dev":              "231:192\n",
		"class/infiniband_verbs/uverbs0/abi_version":      "1\n",
		"class/infiniband_verbs/uverbs1/ibdev":            "rxe0\n",
		"class/infiniband_verbs/uverbs1/dev":              "231:193\n",
		"class/infiniband_verbs/uverbs1/abi_version":      "2\n",
		"class/infiniband_mad/abi_version":                "5\n",
		"class/infiniband_mad/umad0/ibdev":                "mlx5_0\n",
		"class/infiniband_mad/umad0/port":                 "2\n",
		"class/infiniband_mad/umad0/dev":                  "231:0\n",
		"class/infiniband_mad/umad1/ibdev":                "mlx5_0\n",
		"class/infiniband_mad/umad1/port":                 "10\n",
		"class/infiniband_mad/umad1/dev":                  "231:1\n",
		"class/infiniband_mad/issm0/ibdev":                "mlx5_0\n",
		"class/infiniband_mad/issm0/port":                 "2\n",
		"class/infiniband_mad/issm0/dev":                  "231:64\n",
		"class/misc/rdma_cm/dev":                          "10:58\n",
		"class/misc/rdma_cm/abi_version":                  "4\n",
	} {
		tree[name] = &fstest.MapFile{Data: []byte(content)}
	}
	return tree
}

func TestSysfsDevices(t *testing.T) {
	c := deafClient(unix.EACCES, sysfsTree())
	got, err := c.devices()
	want := []Device{
		{Name: "iw0", NodeType: ib.NodeRNIC, NodeGUID: 1, SysImageGUID: 1, Protocol: ProtocolIWARP, Ports: 1, FromSysfs: true},
		{Name: "mlx5_0", NodeType: ib.NodeCA, NodeGUID: 0xb8599f0300a91d2c, SysImageGUID: 0xb8599f0300a91d2c,
			Protocol: ProtocolIB, Firmware: "20.31.1014", DriverID: DriverMLX5, Ports: 2, FromSysfs: true},
		{Name: "rxe0", NodeType: ib.NodeCA, NodeGUID: 0x505400fffe000001, SysImageGUID: 0x505400fffe000002,
			Protocol: ProtocolRoCE, DriverID: DriverRXE, Ports: 1, FromSysfs: true},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	_, err = c.deviceByName("rxe7")
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "known devices: iw0, mlx5_0, rxe0") {
		t.Error(err)
	}
}

// TestSysfsSubfunction: a subfunction has the driver of its PCI function.
func TestSysfsSubfunction(t *testing.T) {
	for name, want := range map[string]DriverID{
		"mlx5_core": DriverMLX5, "mlx5_core.sf": DriverMLX5, "mlx5_core_sf": DriverUnknown, "bnxt_en": DriverBNXTRE, ".mlx5_core": DriverUnknown, "": DriverUnknown,
	} {
		tree := sysfsTree()
		tree["class/infiniband/mlx5_0/device/uevent"].Data = []byte("DRIVER=" + name + "\nMODALIAS=auxiliary:mlx5_core.sf\n")
		if got := sysfsDriver(&sysfsDir{fsys: tree, dir: "class/infiniband/mlx5_0"}); got != want {
			t.Errorf("driver %q: %v, want %v", name, got, want)
		}
	}
}

// TestSysfsEFA: sysfs shows an EFA device as Linux 6.1 does.
func TestSysfsEFA(t *testing.T) {
	tree := fstest.MapFS{}
	for name, content := range map[string]string{
		"node_type": "7: unspecified\n", "node_guid": "0000:0000:0000:0000\n", "sys_image_guid": "0000:0000:0000:0000\n", "fw_ver": "0.0.0.0\n",
		"device/uevent": "DRIVER=efa\nPCI_ID=1D0F:EFA2\n", "ports/1/link_layer": "Unspecified\n", "ports/1/state": "4: ACTIVE\n", "ports/1/phys_state": "5: LinkUp\n",
	} {
		tree["class/infiniband/efa_0/"+name] = &fstest.MapFile{Data: []byte(content)}
	}
	c := deafClient(unix.EACCES, tree)
	want := []Device{{Name: "efa_0", NodeType: ib.NodeUnspecified, Protocol: ProtocolEFA, Firmware: "0.0.0.0", DriverID: DriverEFA, Ports: 1, FromSysfs: true}}
	got, err := c.devices()
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Fatalf("%v\n%s", err, diff)
	}
	ports, err := c.ports(got[0])
	if diff := cmp.Diff([]Port{{Num: 1, State: ib.PortActive, PhysState: ib.PhysLinkUp}}, ports); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

func TestSysfsProtocol(t *testing.T) {
	for _, tt := range []struct {
		node      ib.NodeType
		driver    DriverID
		linkLayer string
		want      Protocol
	}{
		{ib.NodeCA, DriverMLX5, "InfiniBand", ProtocolIB},
		{ib.NodeCA, DriverMLX5, "Ethernet", ProtocolRoCE},
		{ib.NodeCA, DriverHFI1, "InfiniBand", ProtocolOPA},
		{ib.NodeSwitch, DriverUnknown, "InfiniBand", ProtocolIB},
		{ib.NodeRNIC, DriverIRDMA, "Ethernet", ProtocolIWARP},
		{ib.NodeUSNIC, DriverUSNIC, "Ethernet", ProtocolUSNIC},
		{ib.NodeUSNICUDP, DriverUSNIC, "Ethernet", ProtocolUSNIC},
		{ib.NodeUnspecified, DriverEFA, "Ethernet", ""},
	} {
		if got := sysfsProtocol(Device{NodeType: tt.node, DriverID: tt.driver}, tt.linkLayer); got != tt.want {
			t.Errorf("%v, %v, %s: %q, want %q", tt.node, tt.driver, tt.linkLayer, got, tt.want)
		}
	}
}

func TestSysfsPorts(t *testing.T) {
	c := deafClient(unix.EACCES, sysfsTree())
	want := map[string][]Port{
		"rxe0": {{Num: 1, State: ib.PortActive, PhysState: ib.PhysLinkUp, LinkLayer: ib.LinkLayerEthernet, Netdev: "ve0", NetdevIndex: 3}},
		"mlx5_0": {
			{Num: 2, State: ib.PortInit, PhysState: ib.PhysPolling, LinkLayer: ib.LinkLayerInfiniBand, LID: 42, SMLID: 1, LMC: 3,
				SubnetPrefix: 0xfe80000000000000, CapFlags: 0xa651e848},
			{Num: 10, State: ib.PortDown, PhysState: ib.PhysDisabled, LinkLayer: ib.LinkLayerEthernet},
		},
	}
	for name, want := range want {
		// The device may be listed over netlink and asked for when that fails, or come from sysfs.
		for _, dev := range []Device{{Name: name}, {Name: name, FromSysfs: true}} {
			got, err := c.ports(dev)
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("%s: %v\n%s", name, err, diff)
			}
		}
	}
	errorIs(t, second(c.ports(Device{Name: "rxe7", FromSysfs: true})), fs.ErrNotExist, "unknown device")
	// The interface moved to another network namespace.
	tree := sysfsTree()
	delete(tree, "class/net/ve0/ifindex")
	got, err := deafClient(unix.EACCES, tree).ports(Device{Name: "rxe0"})
	if err != nil || len(got) != 1 || got[0].Netdev != "" {
		t.Errorf("interface elsewhere: %+v, %v", got, err)
	}
}

func TestSysfsCharDevs(t *testing.T) {
	c := deafClient(unix.EACCES, sysfsTree())
	for _, dev := range []Device{{Name: "rxe0"}, {Name: "rxe0", FromSysfs: true}} {
		cd, err := c.uverbsDev(dev)
		if diff := cmp.Diff(CharDev{Name: "uverbs1", Major: 231, Minor: 193, ABI: 2, DriverID: DriverRXE}, cd); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
	}
	errorIs(t, second(c.uverbsDev(Device{Name: "iw0", FromSysfs: true})), errors.ErrUnsupported, "device without uverbs")
	cd, err := c.cmDev()
	if diff := cmp.Diff(CharDev{Name: "rdma_cm", Major: 10, Minor: 58, ABI: 4}, cd); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

func TestSysfsMADDevs(t *testing.T) {
	c := deafClient(unix.EACCES, sysfsTree())
	for _, tt := range []struct {
		client string
		port   uint32
		want   CharDev
	}{
		{clientUMAD, 2, CharDev{Name: "umad0", Major: 231, ABI: 5}},
		{clientUMAD, 10, CharDev{Name: "umad1", Major: 231, Minor: 1, ABI: 5}},
		{clientISSM, 2, CharDev{Name: "issm0", Major: 231, Minor: 64, ABI: 5}},
	} {
		for _, dev := range []Device{{Name: "mlx5_0", Ports: 10}, {Name: "mlx5_0", Ports: 10, FromSysfs: true}} {
			cd, err := c.madDev(dev, tt.port, tt.client)
			if diff := cmp.Diff(tt.want, cd); err != nil || diff != "" {
				t.Errorf("%s of port %d: %v\n%s", tt.client, tt.port, err, diff)
			}
		}
	}
	for _, tt := range []struct {
		client, dev string
		port        uint32
	}{{clientISSM, "mlx5_0", 10}, {clientUMAD, "iw0", 1}} {
		errorIs(t, second(c.madDev(Device{Name: tt.dev, Ports: 10, FromSysfs: true}, tt.port, tt.client)), errors.ErrUnsupported, "%s of port %d of %s", tt.client, tt.port, tt.dev)
	}
	errorIs(t, second(c.madDev(Device{Name: "mlx5_0", Ports: 10, FromSysfs: true}, 11, clientUMAD)), fs.ErrNotExist, "a port that the device does not have")
	tree := sysfsTree()
	for name := range tree {
		if strings.HasPrefix(name, sysfsMADClass) {
			delete(tree, name)
		}
	}
	_, err := deafClient(unix.EACCES, tree).madDev(Device{Name: "mlx5_0", Ports: 10, FromSysfs: true}, 2, clientUMAD)
	if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "modprobe ib_umad") {
		t.Errorf("without ib_umad: %v", err)
	}
}

// Whatever is broken or missing is an error that names the file.
func TestSysfsErrors(t *testing.T) {
	for name, content := range map[string]string{
		"class/infiniband/rxe0/node_type":            "CA\n",
		"class/infiniband/rxe0/node_guid":            "5054:00ff:fe00:zzzz\n",
		"class/infiniband/rxe0/sys_image_guid":       "",
		"class/infiniband/rxe0/ports/one/state":      "",
		"class/infiniband/rxe0/ports/1/state":        "256: HUGE\n",
		"class/infiniband/rxe0/ports/1/phys_state":   "-1\n",
		"class/infiniband/mlx5_0/ports/2/lid":        "0x100000000\n",
		"class/infiniband/mlx5_0/ports/2/gids/0":     "none\n",
		"class/net/ve0/ifindex":                      "-3\n",
		"class/infiniband_verbs/uverbs1/dev":         "231\n",
		"class/infiniband_verbs/uverbs1/abi_version": "\n",
		"class/infiniband_mad/umad0/dev":             "231\n",
		"class/infiniband_mad/umad0/port":            "two\n",
		"class/infiniband_mad/abi_version":           "\n",
		"class/misc/rdma_cm/dev":                     ":\n",
	} {
		tree := sysfsTree()
		tree[name] = &fstest.MapFile{Data: []byte(content)}
		c := deafClient(unix.EACCES, tree)
		_, devErr := c.devices()
		_, portErr := c.ports(Device{Name: strings.Split(name+"/rxe0", "/")[2], FromSysfs: true})
		_, vePortErr := c.ports(Device{Name: "rxe0", FromSysfs: true})
		_, uverbsErr := c.uverbsDev(Device{Name: "rxe0", FromSysfs: true})
		_, cmErr := c.cmDev()
		_, madErr := c.madDev(Device{Name: "mlx5_0", Ports: 10, FromSysfs: true}, 2, clientUMAD)
		file := strings.Replace(name, "/one/state", "", 1)
		if err := errors.Join(devErr, portErr, vePortErr, uverbsErr, cmErr, madErr); !strings.Contains(fmtError(err), file) {
			t.Errorf("%s: %v", name, err)
		}
	}
	tree := sysfsTree()
	delete(tree, "class/infiniband/rxe0/ports/1/state")
	if p, err := deafClient(unix.EACCES, tree).ports(Device{Name: "rxe0"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("port without state: %+v, %v", p, err)
	}
}

// In the real /sys the entries of a class are symbolic links.
func TestSysfsSymlinks(t *testing.T) {
	root := t.TempDir()
	must(t, os.CopyFS(root, sysfsTree()))
	class, devices := filepath.Join(root, "class/infiniband"), filepath.Join(root, "devices")
	must(t, os.Rename(class, devices))
	must(t, os.Mkdir(class, 0o700))
	for _, name := range []string{"rxe0", "mlx5_0", "iw0"} {
		must(t, os.Symlink("../../devices/"+name, filepath.Join(class, name)))
	}
	want, err := deafClient(unix.EACCES, sysfsTree()).devices()
	must(t, err)
	got, err := deafClient(unix.EACCES, os.DirFS(root)).devices()
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}
