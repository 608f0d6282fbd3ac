package uverbs

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/goverbs/goverbs/uverbs/internal/inproc"
)

// softChildEnv tells a process that runs the test binary what to do instead of the tests: softEnv is
// read once, so that each test of it needs a process of its own.
const softChildEnv = "GOVERBS_TEST_SOFT_CHILD"

func init() {
	if what := os.Getenv(softChildEnv); what != "" {
		softChild(strings.Fields(what))
		os.Exit(0)
	}
}

// softChild does what a test wants and prints what it sees.
func softChild(args []string) {
	print := func(d *Device, err error) {
		if err != nil {
			fmt.Println("error:", err)
			return
		}
		fmt.Println("opened", d.Name(), "in process:", d.Info().InProcess)
	}
	switch args[0] {
	case "list":
		infos, err := Devices()
		for _, i := range infos {
			if i.InProcess {
				fmt.Printf("%s driver %s ports %d err %v\n", i.Name, i.Driver, i.Ports, i.Err)
			}
		}
		fmt.Println("error:", err)
	case "open":
		print(Open(args[1], OpenOptions{}))
	case "first":
		print(OpenFirst())
	case "addr":
		print(OpenAddr(netip.MustParseAddr(args[1])))
	case "netdev":
		print(OpenNetdev(args[1]))
	case "lazy":
		fmt.Println(len(inproc.All()))
		Open("nobody", OpenOptions{})
		fmt.Println(len(inproc.All()))
		os.Setenv(softEnv, "127.77.0.9")
		Devices()
		fmt.Println(len(inproc.All()))
	case "together":
		var all sync.WaitGroup
		for i := range 16 {
			all.Go(func() {
				if i%2 == 0 {
					Devices()
				}
				d, err := Open("soft1", OpenOptions{})
				if err != nil {
					fmt.Println("error:", err)
					return
				}
				d.Close()
			})
		}
		all.Wait()
		fmt.Println(len(inproc.All()))
	}
}

// softProcess runs the test binary with devices and something to do, and returns what it prints.
func softProcess(t *testing.T, devices, what string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), softEnv+"="+devices, softChildEnv+"="+what)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s with %q: %v\n%s", what, devices, err, out)
	}
	return string(out)
}

// TestSoftEnv: the devices of the environment are listed and opened like others, and a device that
// cannot be made is listed and opened with the reason.
func TestSoftEnv(t *testing.T) {
	const refused = `environment variable GOVERBS_SOFT: device "192.0.2.7": soft: Addr is 192.0.2.7, must be an address of this host`
	for _, c := range []struct {
		devices, what string
		want          []string
	}{
		{"local;local,name=left", "list", []string{"soft0 driver rxe ports 1 err <nil>\nleft driver rxe ports 1 err <nil>\n", "error: <nil>"}},
		{"  local \t;\n; local ", "list", []string{"soft0 driver rxe ports 1 err <nil>\nsoft1 driver rxe ports 1 err <nil>\n"}},
		{"192.0.2.7 local", "list", []string{"soft0 driver rxe ports 1 err <nil>\n192.0.2.7 driver rxe ports 0 err " + refused, "error: <nil>"}},
		{"local,mtu=1500", "list", []string{`device "local,mtu=1500": soft: MTU is 1500, must be 256, 512, 1024, 2048 or 4096`, "error: <nil>"}},
		{"local,name=a local,name=a", "list", []string{"a driver rxe ports 1 err <nil>\na driver rxe ports 0 err environment", `Name is "a", must be a name that no other device`}},
		{"local", "open soft0", []string{"opened soft0 in process: true"}},
		{"192.0.2.7", "open 192.0.2.7", []string{"error: uverbs: open 192.0.2.7: " + refused}},
		{"192.0.2.7,name=x", "open x", []string{"error: uverbs: open x: environment variable GOVERBS_SOFT: device"}},
		{"192.0.2.7", "open other", []string{"no device of this name", `"192.0.2.7" (cannot be used: ` + refused}},
		{"192.0.2.7", "addr 192.0.2.7", []string{"error: uverbs: open device of address 192.0.2.7: " + refused}},
		{"192.0.2.7", "addr 192.0.2.8", []string{"this host has no such address", `devices here: "192.0.2.7" (cannot be used: `}},
		{"127.77.0.1:14791 127.77.0.2:14791,name=b", "addr ::1", []string{"error: uverbs: open device of address ::1: ", "no usable RDMA device has it; ", "soft0 has fe80::", ", 127.77.0.1, fd73:", "; b has fe80::", ", 127.77.0.2, fd73:"}},
		{"192.0.2.7", "netdev lo", []string{"no usable RDMA device is on this interface", `"192.0.2.7" (cannot be used: `}},
		{"local", "netdev lo", []string{"opened soft0 in process: true"}},
		{"local", "addr 127.0.0.1", []string{"opened soft0 in process: true"}},
		{"local", "lazy", []string{"0\n1\n1\n"}},
		{"local local local", "together", []string{"3\n"}},
		{"", "lazy", []string{"0\n0\n0\n"}},
	} {
		out := softProcess(t, c.devices, c.what)
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s=%q, %s: there is no %q in\n%s", softEnv, c.devices, c.what, want, out)
			}
		}
	}
}

// TestSoftEnvFirst: the first device is one of the environment; if it cannot be made and the kernel has no
// device, the error says why, and without a list how to get one.
func TestSoftEnvFirst(t *testing.T) {
	if out := softProcess(t, "local", "first"); out != "opened soft0 in process: true\n" {
		t.Errorf("the first device with %s=local: %s", softEnv, out)
	}
	infos, err := kernelDevices(devDir)
	none := err != nil || len(infos) == 0
	for _, c := range []struct{ devices, what, want string }{
		{"192.0.2.7", "first", `no usable RDMA device; devices here: "192.0.2.7" (cannot be used: environment`},
		{"", "first", softEnv + "=auto"},
		{"", "open nobody", softEnv + "=auto"},
	} {
		if out := softProcess(t, c.devices, c.what); strings.Contains(out, c.want) != none {
			t.Errorf("%s=%q, %s, no device of the kernel: %t; %q is there or not:\n%s", softEnv, c.devices, c.what, none, c.want, out)
		}
	}
}

// TestSoftEnvAuto: a device whose address is chosen does not share it with one of another process.
func TestSoftEnvAuto(t *testing.T) {
	c := value(net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	defer c.Close()
	device := fmt.Sprintf("auto:%d", c.LocalAddr().(*net.UDPAddr).Port)
	if out := softProcess(t, device, "addr 127.0.0.2"); !strings.Contains(out, "opened soft0") {
		t.Errorf("%s beside a socket on 127.0.0.1: %s", device, out)
	}
	if out := softProcess(t, strings.Replace(device, "auto", "127.0.0.1", 1), "addr 127.0.0.1"); !strings.Contains(out, "must be a UDP port that is free on 127.0.0.1") {
		t.Errorf("a port that is taken: %s", out)
	}
}

// TestSoftEnvCost: a program without the variable pays no memory for it.
func TestSoftEnvCost(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { softFailures() }); n != 0 {
		t.Errorf("%g allocations", n)
	}
}
