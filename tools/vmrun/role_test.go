package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// roles are the programs in the guest; the first argument names one.
var roles = map[string]func(args []string) int{
	"role-echo":      roleEcho,
	"role-guest":     roleGuest,
	"role-killed":    roleKilled,
	"role-write":     roleWrite,
	"role-sysrq":     roleSysrq,
	"role-hang":      roleHang,
	"role-flood":     roleFlood,
	"role-bare":      roleBare,
	"role-host":      roleHost,
	"role-fail":      roleFail,
	"role-link":      roleLink,
	"role-three":     roleThree,
	"role-veth":      roleVeth,
	"role-cards":     roleCards,
	"role-addresses": roleAddresses,
	"role-uar":       roleUAR,
	"role-kinds":     roleKinds,
	"role-siw-host":  roleSiwHost,
	"role-clock":     roleClock,
}

// roleEcho shows all that a process is given.
func roleEcho(args []string) int {
	dir, err := os.Getwd()
	if err != nil {
		return 1
	}
	data, err := os.ReadFile("testdata/hello.txt")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Printf("args %q\ndir %s\nHELLO %s\ntestdata %s", args, dir, os.Getenv("HELLO"), data)
	n, err := io.Copy(os.Stdout, os.Stdin)
	fmt.Fprintf(os.Stderr, "stdin %d %v\n", n, err)
	return 7
}

// roleGuest checks what the default guest promises.
func roleGuest([]string) int {
	bad := 0
	for _, p := range []string{
		"/sys/class/infiniband/rxe0", "/sys/class/infiniband/rxe1", "/sys/class/net/ve0", "/sys/class/net/ve1",
		"/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1", "/dev/infiniband/rdma_cm", "/dev/infiniband/umad0",
		"/dev/null", "/dev/shm", "/dev/pts/ptmx", "/proc/self/status", "/tmp", "/extra/vm_test.go",
	} {
		if _, err := os.Stat(p); err != nil {
			fmt.Fprintln(os.Stderr, err)
			bad++
		}
	}
	for dev, want := range map[string]string{"rxe0": "0000:0000:0000:0000:0000:ffff:0a01:0001", "rxe1": "0000:0000:0000:0000:0000:ffff:0a01:0002"} {
		gid, err := os.ReadFile("/sys/class/infiniband/" + dev + "/ports/1/gids/1")
		if err != nil || strings.TrimSpace(string(gid)) != want {
			fmt.Fprintf(os.Stderr, "GID 1 of %s is %s (%v), want %s\n", dev, gid, err, want)
			bad++
		}
	}
	return bad
}

// roleClock has a clock that counts instructions: a loop takes what it executes, and a wait
// of minutes takes the host seconds.
func roleClock([]string) int {
	const rounds = 10_000_000
	begin, sum := time.Now(), 0
	for i := range rounds {
		sum ^= i
	}
	loop := time.Since(begin)
	time.Sleep(2 * time.Minute)
	fmt.Println(sum)
	if per := float64(loop) / rounds; per < 1 || per > 20 || time.Since(begin) < 2*time.Minute {
		fmt.Fprintf(os.Stderr, "%g instructions a round, %s in all\n", per, time.Since(begin))
		return 1
	}
	return 0
}

func roleKilled([]string) int {
	signal.Reset(syscall.SIGTERM)
	_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
	time.Sleep(time.Minute)
	return 0
}

func roleWrite(args []string) int {
	if err := os.WriteFile(args[0], []byte("from the guest\n"), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// roleHost checks what one of two hosts is promised, and then runs our ping-pong
// with the other.
func roleHost([]string) int {
	host, peer := os.Getenv("VMRUN_HOST"), os.Getenv("VMRUN_PEER")
	gid, err := os.ReadFile("/sys/class/infiniband/rxe0/ports/1/gids/1")
	if want := "0000:0000:0000:0000:0000:ffff:0a02:000" + host; err != nil || strings.TrimSpace(string(gid)) != want {
		fmt.Printf("GID 1 is %s (%v), want %s\n", gid, err, want)
		return 1
	}
	if devs, err := filepath.Glob("/sys/class/infiniband/*"); err != nil || len(devs) != 1 {
		fmt.Printf("RDMA devices %v, %v; want one\n", devs, err)
		return 1
	}
	fmt.Println("peer", peer)
	args := []string{"pingpong", "-n", "20"}
	if host == "2" {
		args = append(args, peer)
	}
	for {
		out, err := exec.Command("/bin/verbs", args...).CombinedOutput()
		if host == "2" && strings.Contains(string(out), "connection refused") {
			time.Sleep(50 * time.Millisecond) // the server is not there yet
			continue
		}
		if err != nil || !strings.Contains(string(out), "20 iters in ") {
			fmt.Printf("ping-pong: %v: %s\n", err, out)
			return 1
		}
		fmt.Println("ping-pong done")
		if b, err := io.ReadAll(os.Stdin); err != nil || string(b) != map[string]string{"1": "input\n"}[host] {
			fmt.Printf("standard input: %q, %v\n", b, err)
		}
		if err := os.WriteFile("/tmp/host", []byte(host), 0o644); err != nil {
			fmt.Println(err)
			return 1
		}
		return 0
	}
}

// roleFail says something and fails.
func roleFail([]string) int {
	fmt.Println("failing")
	fmt.Fprint(os.Stderr, "no line end")
	return 3
}

func roleSysrq(args []string) int {
	fmt.Println("about to write", args[0])
	time.Sleep(time.Second) // a kernel that panics sends nothing more, this line neither
	if err := os.WriteFile("/proc/sysrq-trigger", []byte(args[0]), 0); err != nil {
		return 1
	}
	time.Sleep(time.Minute)
	return 0
}

func roleHang([]string) int {
	fmt.Println("hanging")
	time.Sleep(time.Hour)
	return 0
}

func roleFlood([]string) int {
	line := bytes.Repeat([]byte("x"), 4096)
	for {
		if _, err := os.Stdout.Write(line); err != nil {
			return 3
		}
	}
}

// roleBare checks a guest without modules and without sysfs.
func roleBare([]string) int {
	bad := 0
	for _, dir := range []string{"/dev/infiniband", "/sys/class"} {
		if _, err := os.Stat(dir); err == nil {
			fmt.Fprintln(os.Stderr, dir, "is there")
			bad++
		}
	}
	found, err := filepath.Glob("/lib/modules/*/kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko")
	if err != nil || len(found) != 1 {
		fmt.Fprintln(os.Stderr, "rdma_rxe.ko:", found, err)
		bad++
	}
	return bad
}
