package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// roleCards checks what a guest with ConnectX cards is promised.
func roleCards(args []string) int {
	bad := 0
	complain := func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, format+"\n", args...)
		bad++
	}
	for _, card := range []string{"mlx5_0", "mlx5_1"} {
		dir := "/sys/class/infiniband/" + card + "/"
		state, err := os.ReadFile(dir + "ports/1/state")
		if err != nil || !strings.Contains(string(state), "ACTIVE") {
			complain("port of %s: %q, %v", card, state, err)
		}
		layer, err := os.ReadFile(dir + "ports/1/link_layer")
		if err != nil || strings.TrimSpace(string(layer)) != args[0] {
			complain("link layer of %s: %q, %v; want %s", card, layer, err, args[0])
		}
	}
	if _, err := os.Stat("/sys/class/infiniband/rxe0"); err == nil {
		complain("there is an rxe0")
	}
	return bad
}

// roleUAR reads a doorbell's page, as an atomic operation on it does.
func roleUAR([]string) int {
	f, err := os.OpenFile("/sys/class/infiniband/mlx5_0/device/resource0", os.O_RDWR, 0)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer f.Close()
	const firstUAR = 0x100 << 12
	bar, err := unix.Mmap(int(f.Fd()), firstUAR, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Printf("read %d\n", bar[0x800])
	return 0
}

// hca builds the model of the cards, which is in another module.
func hca(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hca")
	cmd := exec.Command("go", "build", "-C", "../../test/hca", "-o", path, "./cmd/hca")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the model: %v\n%s", err, out)
	}
	return path
}

// The kernel's drivers bind to the cards, and the report says what they did.
func TestVMMlx5(t *testing.T) {
	needVM(t)
	t.Parallel()
	model, report := hca(t), filepath.Join(t.TempDir(), "report.json")
	got := vmrun(t, "", "-device", "mlx5,mode=ib", "-hca", model, "-hca-report", report, self(t), "role-cards", "InfiniBand")
	if got.Status != 0 || !strings.Contains(got.Stderr, "hca: card 1 (ib): ") {
		t.Errorf("%+v", got)
	}
	b, err := os.ReadFile(report)
	must(t, err)
	type card struct {
		Mode       string
		Commands   map[string]int
		Violations uint64
	}
	var cards []card
	must(t, json.Unmarshal(b, &cards))
	if len(cards) != 2 || slices.ContainsFunc(cards, func(c card) bool {
		return c.Mode != "ib" || c.Commands["INIT_HCA"] != 1 || c.Commands["CREATE_QP"] == 0 || c.Violations != 0
	}) {
		t.Errorf("report: %+v", cards)
	}
}

// On InfiniBand with IPoIB one host, and two, have addresses on the cards' network devices. Two hosts have met
// there, before their programs begin.
func TestVMIPoIB(t *testing.T) {
	needVM(t)
	t.Parallel()
	model := hca(t)
	got := vmrun(t, "", "-device", "mlx5,mode=ipoib", "-hca", model, self(t), "role-addresses")
	if want := "ib0 10.1.0.1/24 fd00:1::1/64\nib1 10.1.0.2/24 fd00:1::2/64\n"; got.Status != 0 || got.Stdout != want {
		t.Errorf("%+v, want %q", got, want)
	}
	got = vmrun(t, "", "-hosts", "2", "-cpus", "1", "-device", "mlx5,mode=ipoib", "-hca", model, self(t), "role-addresses")
	for _, want := range []string{"1: ib0 10.2.0.1/24 fd02::1/64\n", "2: ib0 10.2.0.2/24 fd02::2/64\n"} {
		if got.Status != 0 || !strings.Contains(got.Stdout, want) || strings.Contains(got.Stdout, "eth0") {
			t.Errorf("%+v, want %q", got, want)
		}
	}
}

// roleAddresses prints the global addresses of each network device that is up, but of the loopback device.
func roleAddresses([]string) int {
	all, err := net.Interfaces()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil {
			fmt.Println(err)
			return 1
		}
		if i.Flags&net.FlagLoopback != 0 || i.Flags&net.FlagRunning == 0 {
			continue
		}
		line := i.Name
		for _, a := range addrs {
			if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() {
				line += " " + a.String()
			}
		}
		fmt.Println(line)
	}
	return 0
}

// A forbidden access to a card fails the run, and is printed.
func TestVMMlx5Violation(t *testing.T) {
	needVM(t)
	t.Parallel()
	got := vmrun(t, "", "-device", "mlx5,mode=roce", "-hca", hca(t), self(t), "role-cards", "Ethernet", "---", self(t), "role-uar")
	if got.Status != statusModel || got.Stdout != "read 0\n" || !strings.Contains(got.Stderr, "VIOLATION of uar-read") {
		t.Errorf("%+v", got)
	}
}
