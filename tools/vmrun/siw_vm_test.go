package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

const rpingPackages = "ibverbs-providers,rdmacm-utils"

// A guest in which rping talks with itself over siw has one processor. With two, the client's
// first message may come while siw's accept has sent its reply and not yet made the QP the
// socket's reader (siw_accept, drivers/infiniband/sw/siw/siw_cm.c): nothing reads it then, and both wait.
var oneProcessor = []string{"-cpus", "1"}

// roleKinds checks that the guest has the devices and network devices, as RDMA:NET, of which
// an empty one is none, and no others. Each pair but that of InfiniBand, which has no
// connections here, has a rping over it: the server is at the second's address.
func roleKinds(args []string) int {
	bad := 0
	complain := func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, format+"\n", args...)
		bad++
	}
	devices, err := os.ReadDir("/sys/class/infiniband")
	if err != nil || len(devices) != len(args) {
		complain("devices %v, %v; want %v", devices, err, args)
	}
	for i, arg := range args {
		dev, netdev, _ := strings.Cut(arg, ":")
		state, err := os.ReadFile("/sys/class/infiniband/" + dev + "/ports/1/state")
		if err != nil || !strings.Contains(string(state), "ACTIVE") {
			complain("port of %s: %q, %v", dev, state, err)
		}
		if netdev == "" {
			continue
		}
		_, err = os.Stat("/sys/class/net/" + netdev)
		if err != nil {
			complain("%s: %v", dev, err)
		}
		if i%2 == 0 {
			continue
		}
		if err := rping(fmt.Sprintf("10.1.%d.2", i/2)); err != nil {
			complain("%s: %v", dev, err)
		}
	}
	return bad
}

// rping runs rdma-core's program with itself.
func rping(addr string) error {
	server := exec.Command("rping", "-s", "-a", addr, "-C", "10")
	if err := server.Start(); err != nil {
		return err
	}
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait() // it is about the client
	}()
	// Where a kernel may be interrupted while it accepts, as 7.2, the server must come first besides.
	const first = -20
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, server.Process.Pid, first); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		out, err := exec.CommandContext(ctx, "rping", "-c", "-a", addr, "-C", "10", "-v", "-V").CombinedOutput()
		if ctx.Err() != nil {
			return fmt.Errorf("rping to %s has not ended in a minute: %s", addr, out)
		}
		if strings.Contains(string(out), "ECONNREFUSED") || strings.Contains(string(out), "REJECTED") {
			continue // the server is not there yet
		}
		if n := strings.Count(string(out), "ping data: rdma-ping-"); err != nil || n != 10 {
			return fmt.Errorf("rping to %s: %w, %d pings: %s", addr, err, n, out)
		}
		return nil
	}
}

// roleSiwHost has rdma-core's rdma_server and rdma_client talk from host to host: a message
// each way. The fault that oneProcessor avoids may happen between hosts as well, if seldom: then
// each begins anew. The client knows when they have talked, and says so by TCP: the server's
// program may fail at its end, if the client's hangs up before a completion has come.
func roleSiwHost([]string) int {
	const (
		doorbell = "7999"
		timeout  = 150 * time.Second
	)
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	server := os.Getenv("VMRUN_HOST") == "1"
	line := []string{"rdma_client", "-s", os.Getenv("VMRUN_PEER")}
	if server {
		line = []string{"rdma_server"}
		l, err := net.Listen("tcp", ":"+doorbell)
		if err != nil {
			fmt.Println(err)
			return 1
		}
		go func() {
			if c, err := l.Accept(); err == nil {
				fmt.Println("talked")
				c.Close()
				os.Exit(0)
			}
		}()
	}
	for {
		short, stop := context.WithTimeout(ctx, 20*time.Second)
		out, err := exec.CommandContext(short, line[0], line[1:]...).CombinedOutput()
		hung := short.Err() != nil
		stop()
		switch {
		case ctx.Err() != nil, !server && !hung && err != nil && !strings.Contains(string(out), "rdma_connect: "):
			fmt.Printf("%s: %v: %s\n", line[0], err, out)
			return 1
		case !server && err == nil && strings.Contains(string(out), "end 0"):
			fmt.Println("talked")
			c, err := net.Dial("tcp", net.JoinHostPort(os.Getenv("VMRUN_PEER"), doorbell))
			if err != nil {
				fmt.Println(err)
				return 1
			}
			c.Close()
			return 0
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// The module is built for a kernel of Debian's, with the system's gcc, and works: for the one
// whose gcc is the system's, and for the one that is compiled with the newest.
func TestVMSiw(t *testing.T) {
	needVM(t)
	t.Parallel()
	for _, k := range []string{"6.1", "latest"} {
		got := vmrun(t, "", append(oneProcessor, "-kernel", k, "-device", "siw", "-with", rpingPackages, self(t), "role-kinds", "siw0:ve0", "siw1:ve1")...)
		if got.Status != 0 || got.Stderr != "" {
			t.Errorf("Linux %s: %+v", k, got)
		}
	}
}

func TestVMSiwHosts(t *testing.T) {
	needVM(t)
	t.Parallel()
	got := vmrun(t, "", "-hosts", "2", "-cpus", "1", "-device", "siw", "-with", rpingPackages, self(t), "role-siw-host")
	if got.Status != 0 || !strings.Contains(got.Stdout, "1: talked\n") || !strings.Contains(got.Stdout, "2: talked\n") {
		t.Errorf("%+v", got)
	}
}

// Three kinds of devices are together in one guest, and one can talk over each.
func TestVMKinds(t *testing.T) {
	needVM(t)
	t.Parallel()
	got := vmrun(t, "", append(oneProcessor, "-device", "rxe+siw+mlx5", "-hca", hca(t), "-with", rpingPackages,
		self(t), "role-kinds", "rxe0:ve0", "rxe1:ve1", "siw0:ve2", "siw1:ve3", "mlx5_0:eth0", "mlx5_1:eth1")...)
	if got.Status != 0 || !strings.Contains(got.Stderr, "hca: card 1 (roce): ") {
		t.Errorf("%+v", got)
	}
	got = vmrun(t, "", append(oneProcessor, "-device", "mlx5,mode=ib+siw", "-hca", hca(t), "-with", rpingPackages,
		self(t), "role-kinds", "mlx5_0:", "mlx5_1:", "siw0:ve2", "siw1:ve3")...)
	if got.Status != 0 || !strings.Contains(got.Stderr, "hca: card 1 (ib): ") {
		t.Errorf("%+v", got)
	}
}
