package rdmacm

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/cm/internal/inprocess"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/soft"
)

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

// TestOpenHints: what is said of a device that cannot be opened, without a kernel's.
func TestOpenHints(t *testing.T) {
	dev := netlinkrdma.CharDev{Name: "rdma_cm", Major: 10, Minor: 120}
	path := filepath.Join(t.TempDir(), "rdma_cm")
	_, err := open(dev, path)
	says(t, err, fs.ErrNotExist, path, "mknod -m 666 "+path+" c 10 120", "in a container: --device "+path)
	must(t, os.WriteFile(path, nil, 0o600))
	_, err = open(dev, path)
	says(t, err, fs.ErrNotExist, path, "stale node", "10:120", "mknod")
	if hint := openHint(dev, path, syscall.EACCES); !strings.Contains(hint, "mode -rw-------") || !strings.Contains(hint, "chmod 666 "+path) {
		t.Errorf("hint on EACCES is %q", hint)
	}
	if hint := openHint(dev, path, syscall.EPERM); !strings.Contains(hint, "device control group") || !strings.Contains(hint, "10:120") || !strings.Contains(hint, "--device "+path) {
		t.Errorf("hint on EPERM is %q", hint)
	}
	must(t, os.Chmod(path, 0o660))
	if hint, want := openHint(dev, path, syscall.EACCES), fmt.Sprintf("in a container by --group-add %d, or run chmod", os.Getegid()); !strings.Contains(hint, want) {
		t.Errorf("hint on EACCES is %q, want it to say %q", hint, want)
	}
	for _, errno := range []syscall.Errno{syscall.EACCES, syscall.EMFILE} {
		if hint := openHint(dev, filepath.Join(path, "no"), errno); hint != "" {
			t.Errorf("hint on %v is %q", errno, hint)
		}
	}
}

// TestContainerHints: the error names the option that gives the container what is missing.
func TestContainerHints(t *testing.T) {
	for _, c := range []struct {
		op    string
		errno syscall.Errno
		want  string
	}{
		{opCreate, syscall.EPERM, "--security-opt seccomp=FILE"},
		{opResolve, syscall.ENETUNREACH, "--network host"},
		{opBind, syscall.EADDRNOTAVAIL, "--network host"},
		{opConnect, syscall.ENOENT, "partition key"},
	} {
		if got := hint(c.op, "", c.errno); !strings.Contains(got, c.want) {
			t.Errorf("%s, %v: %q, want it to say %q", c.op, c.errno, got, c.want)
		}
	}
}

// TestOnlyEFA: where all devices are of EFA, errors say that these have no connection manager, and what to use.
func TestOnlyEFA(t *testing.T) {
	defer func() { listDevices = netlinkrdma.Devices }()
	efa, rxe := netlinkrdma.Device{Name: "efa_0", Protocol: netlinkrdma.ProtocolEFA}, netlinkrdma.Device{Name: "rxe0", Protocol: netlinkrdma.ProtocolRoCE}
	at := Addr{IP: netip.AddrFrom4([4]byte{192, 0, 2, 1})}
	all := Addrs{Local: Addr{IP: netip.IPv4Unspecified()}}
	for _, c := range []struct {
		devices []netlinkrdma.Device
		only    bool
	}{{nil, false}, {[]netlinkrdma.Device{efa, rxe}, false}, {[]netlinkrdma.Device{efa}, true}} {
		listDevices = func() ([]netlinkrdma.Device, error) { return c.devices, nil }
		for name, err := range map[string]error{
			"ENODEV of resolve":        opError(opResolve, at.String(), syscall.ENODEV),
			"ENODEV of an event":       (&Event{Type: EventAddrError, Status: -int32(syscall.ENODEV)}).Err(),
			"an address that is bound": Addrs{Local: at}.CheckReachable(),
			"all addresses":            all.CheckReachable(),
		} {
			if err == nil && name == "all addresses" && !c.only {
				continue
			}
			says := err != nil && strings.Contains(err.Error(), "EFA devices (efa_0) have no connection manager") && strings.Contains(err.Error(), "type SRD")
			if says != c.only || !errors.Is(err, syscall.ENODEV) {
				t.Errorf("%s with %v: %v", name, c.devices, err)
			}
		}
	}
}

// TestSoftFailureHints: errors about an address that no device has say why the environment's software device, which may
// have had it, could not be made.
func TestSoftFailureHints(t *testing.T) {
	const why = "environment variable GOVERBS_SOFT: there is no such interface"
	old := softFailure
	asked := 0
	softFailure = func() error { asked++; return errors.New(why) }
	defer func() { softFailure = old }()
	at := Addr{IP: netip.AddrFrom4([4]byte{192, 0, 2, 1})}
	for name, err := range map[string]error{
		"ENODEV of bind":           opError(opBind, at.String(), syscall.ENODEV),
		"EADDRNOTAVAIL of bind":    bindErr(&at, syscall.EADDRNOTAVAIL),
		"ENODEV of resolve":        opError(opResolve, at.String(), syscall.ENODEV),
		"ENETUNREACH of resolve":   opError(opResolve, at.String(), syscall.ENETUNREACH),
		"ENODEV of an event":       (&Event{Type: EventAddrError, Status: -int32(syscall.ENODEV)}).Err(),
		"no answer to ARP":         (&Event{Type: EventAddrError, Status: -int32(syscall.ETIMEDOUT)}).Err(),
		"an address that is bound": Addrs{Local: at}.CheckReachable(),
		"no connection manager":    withSoft(errors.ErrUnsupported),
	} {
		if !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", name, err)
		}
	}
	err := (&Event{Type: EventAddrError, Status: -int32(syscall.ENODEV)}).Err()
	if before := asked; !strings.Contains(err.Error(), why) || asked != before {
		t.Errorf("the text of an error is %q, and the devices were listed for it", err)
	}
	softFailure = func() error { return nil }
	for env, want := range map[string]string{
		"":          "set GOVERBS_SOFT=auto in the environment",
		"127.0.0.9": `neither the local address nor the route to the peer selects the software device of GOVERBS_SOFT="127.0.0.9"`,
	} {
		t.Setenv("GOVERBS_SOFT", env)
		if err := withSoft(errors.ErrUnsupported); !strings.Contains(err.Error(), want) {
			t.Errorf("GOVERBS_SOFT=%q: %v, want %q", env, err, want)
		}
	}
	softFailure = func() error { asked++; return errors.New(why) }
	defer func() { kernelHasDevices = inprocess.KernelHasDevices }()
	for _, c := range []struct {
		has     bool
		err     error
		refuses bool
	}{{false, nil, true}, {true, nil, false}, {false, syscall.EPERM, false}} {
		kernelHasDevices = func() (bool, error) { return c.has, c.err }
		if err := onlySoftFailure(); errors.Is(err, syscall.ENODEV) != c.refuses || err != nil && !strings.Contains(err.Error(), why) {
			t.Errorf("the kernel has devices: %v, %v; the error is %v", c.has, c.err, err)
		}
	}
	if err := opError(opListen, "", syscall.EADDRINUSE); strings.Contains(err.Error(), why) {
		t.Errorf("a port that is taken: %v", err)
	}
}

// TestSoftDeviceHints: errors about an address that no device has name those of the software devices, and a device
// that has no socket says so about a peer that is not in this process.
func TestSoftDeviceHints(t *testing.T) {
	dev := value(soft.New(soft.Options{}))(t)
	t.Cleanup(func() { must(t, dev.Close()) })
	own := dev.Addr().String() + " of " + dev.Name()
	says(t, opError(opBind, "127.0.0.199:1", syscall.ENODEV), syscall.ENODEV, "127.0.0.199:1", "use an address of a device here: ", own)

	c := value(OpenChannel(ChannelOptions{Local: dev.Addr()}))(t)
	t.Cleanup(func() { must(t, c.Close()) })
	id := newID(t, c, TCP)
	err := id.ResolveWait(t.Context(), Addr{IP: dev.Addr()}, Addr{IP: netip.MustParseAddr("127.0.0.200"), Port: 1})
	says(t, err, syscall.ENETUNREACH, "127.0.0.200:1", "no socket to reach others", "GOVERBS_SOFT=auto")
}

// TestOpenMissing: the module is there and the node is not, or is another's.
func TestOpenMissing(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsKernel(t, "device nodes")
	dev := value(netlinkrdma.CMDev())(t)
	kept := devicePath + ".kept"
	must(t, os.Rename(devicePath, kept))
	t.Cleanup(func() { must(t, os.Rename(kept, devicePath)) })
	_, err := OpenChannel(ChannelOptions{})
	says(t, err, fs.ErrNotExist, "cm: open channel", devicePath, mknod(dev, devicePath))
	const null = 1<<8 | 3 // 1:3
	must(t, unix.Mknod(devicePath, unix.S_IFCHR|0o666, null))
	_, err = OpenChannel(ChannelOptions{})
	must(t, os.Remove(devicePath))
	says(t, err, fs.ErrNotExist, "stale node", devicePath, mknod(dev, devicePath))
	// The advice helps.
	must(t, unix.Mknod(devicePath, unix.S_IFCHR|0o666, int(unix.Mkdev(dev.Major, dev.Minor))))
	c, err := OpenChannel(ChannelOptions{})
	must(t, err, c.Close())
}

// TestNoModule runs in a VM of its own, which has no RDMA module loaded.
func TestNoModule(t *testing.T) {
	testenv.Boot(t, bareEnv, "rxe/bare")
	_, err := OpenChannel(ChannelOptions{})
	says(t, err, errors.ErrUnsupported, "cm: open channel", "the kernel has no RDMA", "modprobe rdma_ucm")
}
