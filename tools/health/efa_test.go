package health

import (
	"context"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// efaHost turns a healthy machine into one whose only device is an EFA adapter, as Linux 6.1 shows it.
func efaHost(t *testing.T) patient {
	p := healthy(t)
	p.files["proc/modules"].Data = []byte("efa 1 0 - Live 0x0\nib_uverbs 1 0 - Live 0x0\nib_core 1 0 - Live 0x0\n")
	delete(p.files, "dev/infiniband/rdma_cm")
	*p.info = uverbs.DeviceInfo{Name: "efa_0", Driver: "efa", Protocol: "efa", Ports: 1, CharDev: "/dev/infiniband/uverbs0"}
	dev := netlinkrdma.Device{Name: "efa_0", Ports: 1, NodeType: ib.NodeUnspecified, Protocol: netlinkrdma.ProtocolEFA, DriverID: netlinkrdma.DriverEFA}
	p.devices = func() ([]netlinkrdma.Device, error) { return []netlinkrdma.Device{dev}, nil }
	port := netlinkrdma.Port{Num: 1, State: ib.PortActive, PhysState: ib.PhysLinkUp}
	p.ports = func(netlinkrdma.Device) ([]netlinkrdma.Port, error) { return []netlinkrdma.Port{port}, nil }
	p.facts.Port = port
	p.facts.gids = []uverbs.GIDEntry{gid(t, 0, "fe80::200:ff:fe00:ef01", ib.GIDTypeIB)}
	p.facts.gids[0].Netdev = 0
	p.probe.efa = &uverbs.EFAAttr{RDMARead: true, RDMAWrite: true, RNRRetry: true, Notify: true}
	p.cmDev = func() (netlinkrdma.CharDev, error) { return netlinkrdma.CharDev{}, fs.ErrNotExist }
	p.netdev = func(int) (netdev, error) { return netdev{}, syscall.ENODEV }
	p.own = func(portFacts, bool) []ownAddr { return nil }
	p.connect = func(context.Context, string, netip.Addr, string) attempt {
		t.Error("a connection was tried")
		return attempt{}
	}
	return p
}

// pci adds a function to the PCI bus of a machine.
func (p patient) pci(function, vendor, device string, driver bool) {
	dir := "sys/bus/pci/devices/" + function + "/"
	p.files[dir+"vendor"], p.files[dir+"device"] = &fstest.MapFile{Data: []byte(vendor + "\n")}, &fstest.MapFile{Data: []byte(device + "\n")}
	if driver {
		p.files[dir+"driver/bind"] = &fstest.MapFile{}
	}
}

// TestDoctorEFAHealthy: the doctor does not ask for anything that an EFA adapter does without.
func TestDoctorEFAHealthy(t *testing.T) {
	d := examine(t.Context(), efaHost(t).machine, nil)
	if !d.Works || d.Verdict != "RDMA works: a ping-pong went through on efa_0" {
		t.Errorf("verdict is %t, %q", d.Works, d.Verdict)
	}
	for _, f := range d.Findings {
		text := f.Title + "\n" + strings.Join(append(f.Evidence, f.Fix...), "\n")
		for _, wrong := range []string{"4791", "layer Ethernet", "modprobe rdma_ucm", "ip address", "ip link", "macvlan"} {
			if strings.Contains(text, wrong) {
				t.Errorf("%s describes %s:\n%s", f.Code, wrong, text)
			}
		}
		if f.Level == LevelWarning {
			t.Errorf("%s is a warning: %s", f.Code, text)
		}
	}
}

// TestDoctorEFA: what is usually wrong on EFA has its evidence and its fix, and what the host cannot see is called so.
func TestDoctorEFA(t *testing.T) {
	loads := func(modules string) func(patient) {
		return func(p patient) { p.files["proc/modules"].Data = append(p.files["proc/modules"].Data, modules...) }
	}
	gone := func(p patient) {
		p.devices = func() ([]netlinkrdma.Device, error) { return nil, nil }
		p.infos = func() ([]uverbs.DeviceInfo, error) { return nil, nil }
	}
	openModules := func(p patient) {
		loads("nvidia 1 0 - Live 0x0\n")(p)
		p.files["proc/driver/nvidia/version"] = &fstest.MapFile{Data: []byte("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.0\nGCC version: 12\n")}
	}
	for _, c := range []struct {
		name  string
		ill   func(patient)
		works bool
		id    Code
		level Level
		words []string
	}{
		{"rdma_ucm", func(patient) {}, true, "module.rdma_ucm", LevelInfo, []string{"EFA devices do not use it"}},
		{"rdma_cm", func(patient) {}, true, CodeRDMACM, LevelInfo, []string{"EFA devices do not use it"}},
		{"rdma_cm beside rxe", func(p patient) {
			p.infos = func() ([]uverbs.DeviceInfo, error) { return []uverbs.DeviceInfo{*p.info, fakeInfo}, nil }
		}, true, CodeRDMACM, LevelWarning, []string{"modprobe rdma_ucm"}},
		{"driver", func(patient) {}, true, CodeDevice, LevelOK, []string{`protocol "efa"`, "none, as on every EFA device"}},
		{"port", func(patient) {}, true, CodePort, LevelOK, []string{"ACTIVE", "link layer Unspecified"}},
		{"port down", func(p patient) {
			p.facts.state = ib.PortDown
			p.loopback = func(context.Context, string) (string, error) { return "", syscall.ENETDOWN }
		}, false, CodePort, LevelError, []string{"there is no link", "dmesg", "stop and start the instance"}},
		{"GID", func(patient) {}, true, CodeGID, LevelOK, []string{"the address is GID fe80:", "Q_Key"}},
		{"no GID", func(p patient) { p.facts.gids = nil }, true, CodeGID, LevelWarning, []string{"no peer can send to it", "modprobe efa"}},
		{"no GID table", func(p patient) { p.facts.gidErr = syscall.EIO }, true, CodeGID, LevelWarning, []string{"input/output error"}},
		{"capabilities", func(patient) {}, true, CodeEFA, LevelOK, []string{"RDMA READ and RDMA WRITE"}},
		{"an old device", func(p patient) { p.probe.efa = &uverbs.EFAAttr{RNRRetry: true, Notify: true} }, true, CodeEFA, LevelInfo,
			[]string{"does not have RDMA READ, RDMA WRITE", "ready: yes", "another type of instance"}},
		{"connections", func(patient) {}, true, CodeCM, LevelInfo, []string{"no connection manager", "cm.Dial"}},
		{"peer", func(p patient) { p.peer = "10.1.0.2" }, false, CodePeer, LevelError, []string{"10.1.0.2 is not tried", "SRD"}},
		{"network", func(patient) {}, true, CodeFirewall, LevelInfo, []string{"not looked at", "security group", "availability zone"}},
		{"memory", func(p patient) {
			p.probe.registered = []registration{{smallMR, nil}, {bigMR, &uverbs.Error{Op: "REG_MR", Errno: syscall.ENOMEM}}}
		}, true, CodeRegister, LevelWarning, []string{"64 MiB cannot", "ulimit"}},
		{"GPU by address", loads("nvidia 1 0 - Live 0x0\nefa_nv_peermem 1 0 - Live 0x0\n"), true, CodeGPU, LevelOK, []string{"efa_nv_peermem is listed"}},
		{"GPU as a dma-buf", openModules, true, CodeGPU, LevelInfo, []string{"dma-buf only", "PD.RegDMABuf", "Open Kernel Module"}},
		{"GPU not at all", loads("nvidia 1 0 - Live 0x0\nnvidia_uvm 1 0 - Live 0x0\n"), true, CodeGPU, LevelWarning, []string{"likely cannot", "efa_nv_peermem is not listed", "modprobe efa_nv_peermem"}},
		{"no driver", func(p patient) {
			gone(p)
			p.pci("0000:00:05.0", "0x1d0f", "0xec20", true)
			p.pci("0000:00:06.0", "0x1d0f", "0xefa1", false)
		}, false, CodeDevices, LevelError, []string{"0000:00:06.0 is an EFA card (0x1d0f:0xefa1), and has no driver", "modprobe efa", "EFA installer"}},
		{"no card", func(p patient) {
			gone(p)
			p.pci("0000:00:05.0", "0x1d0f", "0xec20", true)
		}, false, CodeDevices, LevelError, []string{"no EFA card", "attach a network interface of type EFA"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := efaHost(t)
			c.ill(p)
			d := examine(t.Context(), p.machine, nil)
			if d.Works != c.works {
				t.Errorf("works is %t, want %t: %s", d.Works, c.works, d.Verdict)
			}
			i := slices.IndexFunc(d.Findings, func(f Finding) bool { return f.Code == c.id })
			if i < 0 {
				t.Fatalf("there is no finding %s", c.id)
			}
			f := d.Findings[i]
			text := f.Title + "\n" + strings.Join(append(f.Evidence, f.Fix...), "\n")
			if f.Level != c.level {
				t.Errorf("%s is %s, want %s:\n%s", c.id, f.Level, c.level, text)
			}
			for _, w := range c.words {
				if !strings.Contains(text, w) {
					t.Errorf("%s has no %q:\n%s", c.id, w, text)
				}
			}
		})
	}
}

// TestDoctorNoAWS: a machine without functions of AWS on its PCI bus has no hint of EFA.
func TestDoctorNoAWS(t *testing.T) {
	p := healthy(t)
	p.devices = func() ([]netlinkrdma.Device, error) { return nil, nil }
	p.infos = func() ([]uverbs.DeviceInfo, error) { return nil, nil }
	p.pci("0000:00:03.0", "0x15b3", "0x1019", true)
	for _, f := range examine(t.Context(), p.machine, nil).Findings {
		if text := f.Title + strings.Join(append(f.Evidence, f.Fix...), ""); strings.Contains(text, "EFA") || strings.Contains(text, "AWS") {
			t.Errorf("%s: %s", f.Code, text)
		}
	}
}
