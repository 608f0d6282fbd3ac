package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
)

// vmlink runs the guest's command.
func vmlink(args ...string) error {
	out, err := exec.Command("vmlink", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("vmlink %v: %w: %s", args, err, out)
	}
	return nil
}

func portState(dev string) string {
	b, err := os.ReadFile("/sys/class/infiniband/" + dev + "/ports/1/state")
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(b))
}

// qdiscs names the queues of a device.
func qdiscs(dev string) string {
	link, err := netlink.LinkByName(dev)
	if err != nil {
		return err.Error()
	}
	all, err := netlink.QdiscList(link)
	if err != nil {
		return err.Error()
	}
	var types []string
	for _, q := range all {
		types = append(types, q.Type())
	}
	return strings.Join(types, " ")
}

// roleVeth changes the default network of one host.
func roleVeth([]string) int {
	for _, step := range []struct {
		args string
		look func() string
		want string
	}{
		{"netem loss 1%", func() string { return qdiscs("ve0") }, "netem"},
		{"ve1 netem delay 5ms reorder 10%", func() string { return qdiscs("ve1") }, "netem"},
		{"netem off", func() string { return qdiscs("ve0") }, "noqueue"},
		{"netem off", func() string { return qdiscs("ve1") }, "netem"},
		{"down", func() string { return portState("rxe0") }, "1: DOWN"},
		{"up", func() string { return portState("rxe0") }, "4: ACTIVE"},
		{"ve1 down", func() string { return portState("rxe1") }, "1: DOWN"},
		{"ve1 up", func() string { return portState("rxe1") }, "4: ACTIVE"},
	} {
		if err := vmlink(strings.Fields(step.args)...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if got := eventually(step.look, step.want); got != step.want {
			fmt.Fprintf(os.Stderr, "after vmlink %s: %q, want %q\n", step.args, got, step.want)
			return 1
		}
	}
	if err := vmlink("nosuch0", "down"); err == nil || !strings.Contains(err.Error(), "device nosuch0: ") {
		fmt.Fprintf(os.Stderr, "a device that is not there: %v\n", err)
		return 1
	}
	return 0
}

// eventually looks until it sees what it wants, as the kernel does some of its work
// later.
func eventually(look func() string, want string) string {
	got := look()
	for deadline := time.Now().Add(10 * time.Second); got != want && time.Now().Before(deadline); got = look() {
		time.Sleep(5 * time.Millisecond)
	}
	return got
}

const echoPort = "7"

// roleLink, on host 2, sends datagrams back, and changes its end of the link when it
// is told; on host 1, it finds out what the link does.
func roleLink([]string) int {
	play := echo
	if os.Getenv("VMRUN_HOST") == "1" {
		play = probe
	}
	if err := play(); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func echo() error {
	c, err := net.ListenPacket("udp4", ":"+echoPort)
	if err != nil {
		return err
	}
	b := make([]byte, 1500)
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return err
		}
		text := string(b[:n])
		if args, ok := strings.CutPrefix(text, "vmlink "); ok {
			if err := vmlink(strings.Fields(args)...); err != nil {
				return err
			}
		}
		if _, err := c.WriteTo(b[:n], from); err != nil {
			return err
		}
		if text == "bye" {
			return nil
		}
	}
}

// probes is the number of datagrams sent to find out what a link does. All of them
// fit into a socket's buffer.
const probes = 50

func probe() error {
	c, err := net.Dial("udp4", net.JoinHostPort(os.Getenv("VMRUN_PEER"), echoPort))
	if err != nil {
		return err
	}
	// What the command line said: lost is a part, on each way.
	if err := ask(c, "hello"); err != nil {
		return err
	}
	if got, err := volley(c, 1, 5*time.Second); err != nil || len(got) == 0 || len(got) == probes {
		return fmt.Errorf("with -loss 30%%: %d of %d came back, %v", len(got), probes, err)
	}
	if err := errors.Join(vmlink("netem", "off"), ask(c, "vmlink netem off")); err != nil {
		return err
	}
	if got, err := volley(c, 2, time.Minute); err != nil || len(got) != probes {
		return fmt.Errorf("with netem off: %v came back, %v", got, err)
	}
	if err := vmlink("netem", "delay", "30ms", "reorder", "50%"); err != nil {
		return err
	}
	if got, err := volley(c, 3, time.Minute); err != nil || len(got) != probes || slices.IsSorted(got) {
		return fmt.Errorf("with reorder: %v came back, %v", got, err)
	}
	if err := vmlink("netem", "delay", "30ms"); err != nil {
		return err
	}
	begin := time.Now()
	if err := ask(c, "once"); err != nil || time.Since(begin) < 30*time.Millisecond {
		return fmt.Errorf("with a delay of 30 ms: %v after %v", err, time.Since(begin))
	}
	if err := vmlink("netem", "loss", "100%"); err != nil {
		return err
	}
	if got, err := volley(c, 4, time.Second); err != nil || len(got) != 0 || portState("rxe0") != "4: ACTIVE" {
		return fmt.Errorf("with loss 100%%: %v came back, %v; port %s", got, err, portState("rxe0"))
	}
	if err := errors.Join(vmlink("netem", "off"), vmlink("down")); err != nil {
		return err
	}
	if got := eventually(func() string { return portState("rxe0") }, "1: DOWN"); got != "1: DOWN" {
		return fmt.Errorf("after down: port %s", got)
	}
	if err := vmlink("eth0", "up"); err != nil {
		return err
	}
	if err := ask(c, "bye"); err != nil {
		return fmt.Errorf("after up: %w", err)
	}
	fmt.Println("link probed")
	return nil
}

// ask sends a datagram until it comes back.
func ask(c net.Conn, text string) error {
	b := make([]byte, 1500)
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		_, err := c.Write([]byte(text))
		for err == nil {
			_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
			var n int
			if n, err = c.Read(b); err == nil && string(b[:n]) == text {
				return nil
			}
		}
		if text == "bye" && errors.Is(err, syscall.ECONNREFUSED) {
			return nil // it heard, and its answer was lost
		}
		time.Sleep(10 * time.Millisecond) // it may not listen yet
	}
	return fmt.Errorf("no answer to %q", text)
}

// volley sends numbered datagrams, and gives the numbers that come back before
// nothing more has come for the time of silence.
func volley(c net.Conn, round int, silence time.Duration) ([]int, error) {
	for i := range probes {
		if _, err := fmt.Fprintf(c, "probe %d %d", round, i); err != nil {
			return nil, err
		}
	}
	var got []int
	b := make([]byte, 1500)
	for len(got) < probes {
		_ = c.SetReadDeadline(time.Now().Add(silence))
		n, err := c.Read(b)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return got, nil
		}
		if err != nil {
			return got, err
		}
		var r, i int
		if _, err := fmt.Sscanf(string(b[:n]), "probe %d %d", &r, &i); err == nil && r == round {
			got = append(got, i)
		}
	}
	return got, nil
}

// roleThree, on host 2 of three, finds out whether the others are there, and what netem does to one of them. The
// others send datagrams back.
func roleThree([]string) int {
	play := echo
	if os.Getenv("VMRUN_HOST") == "2" {
		play = probeOne
	}
	if err := play(); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func probeOne() error {
	var hosts [4]net.Conn
	for _, host := range []int{1, 3} {
		c, err := net.Dial("udp4", net.JoinHostPort(fmt.Sprint("10.2.0.", host), echoPort))
		if err != nil {
			return err
		}
		hosts[host] = c
		if err := ask(c, "hello"); err != nil {
			return fmt.Errorf("host %d: %w", host, err)
		}
	}
	if err := vmlink("netem", "to", "10.2.0.3", "loss", "100%"); err != nil {
		return err
	}
	if got, err := volley(hosts[1], 1, time.Minute); err != nil || len(got) != probes {
		return fmt.Errorf("with loss to host 3: %d of host 1's %d came back, %v", len(got), probes, err)
	}
	if got, err := volley(hosts[3], 1, time.Second); err != nil || len(got) != 0 {
		return fmt.Errorf("with loss to host 3: %d of its %d came back, %v", len(got), probes, err)
	}
	if err := vmlink("netem", "off"); err != nil {
		return err
	}
	if got, err := volley(hosts[3], 2, time.Minute); err != nil || len(got) != probes {
		return fmt.Errorf("with netem off: %d of host 3's %d came back, %v", len(got), probes, err)
	}
	fmt.Println("hosts probed:", os.Getenv("VMRUN_HOSTS"))
	return errors.Join(ask(hosts[1], "bye"), ask(hosts[3], "bye"))
}

func TestVMThreeHosts(t *testing.T) {
	needVM(t)
	t.Parallel()
	got := vmrun(t, "", "-hosts", "3", self(t), "role-three")
	want := result{Stdout: "2: hosts probed: 3\n", Stderr: "vmrun: host 1: status 0, host 2: status 0, host 3: status 0\n"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestVMLink(t *testing.T) {
	needVM(t)
	t.Parallel()
	got := vmrun(t, "", "-hosts", "2", "-loss", "30%", self(t), "role-link")
	want := result{Stdout: "1: link probed\n", Stderr: "vmrun: host 1: status 0, host 2: status 0\n"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
