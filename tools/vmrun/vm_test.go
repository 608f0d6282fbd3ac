package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/tools/vmrun/internal/guest"
)

// The test binary plays every part: it is the vmrun under test, the guest's
// init, and the programs that run in the guest.
const roleVar = "VMRUN_TEST_ROLE"

func TestMain(m *testing.M) {
	if guest.IsInit() {
		guest.Main()
	}
	if guest.IsLink() {
		os.Exit(guest.LinkMain(os.Args[1:]))
	}
	if os.Getenv(roleVar) == "vmrun" {
		os.Exit(execute(os.Args[1:]))
	}
	if len(os.Args) > 1 {
		if play, ok := roles[os.Args[1]]; ok {
			os.Exit(play(os.Args[2:]))
		}
	}
	os.Exit(m.Run())
}

// roles are the programs in the guest; the first argument names one.
var roles = map[string]func(args []string) int{
	"role-echo":     roleEcho,
	"role-guest":    roleGuest,
	"role-killed":   roleKilled,
	"role-write":    roleWrite,
	"role-sysrq":    roleSysrq,
	"role-hang":     roleHang,
	"role-flood":    roleFlood,
	"role-bare":     roleBare,
	"role-host":     roleHost,
	"role-fail":     roleFail,
	"role-link":     roleLink,
	"role-veth":     roleVeth,
	"role-cards":    roleCards,
	"role-uar":      roleUAR,
	"role-kinds":    roleKinds,
	"role-siw-host": roleSiwHost,
	"role-clock":    roleClock,
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

// result is what a run of vmrun came to.
type result struct {
	Status         int
	Stdout, Stderr string
}

// needVM is for tests that boot a machine. go test -short leaves them out;
// the project's make test does not.
func needVM(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a machine; not under -short")
	}
}

func self(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if !isStatic(exe) {
		t.Fatal("the test binary must be static: run with CGO_ENABLED=0")
	}
	return exe
}

func vmrunCmd(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, self(t), args...)
	cmd.Env = append(os.Environ(), roleVar+"=vmrun")
	return cmd
}

func vmrun(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	cmd := vmrunCmd(t, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), withoutProgress(errs.String())}
}

// withoutProgress drops the lines about downloads and builds, which a cold cache brings.
func withoutProgress(stderr string) string {
	var keep strings.Builder
	for line := range strings.Lines(stderr) {
		if !strings.HasPrefix(line, "vmrun: download") && !strings.HasPrefix(line, "vmrun: buil") && !strings.HasPrefix(line, "vmrun: waiting for another") {
			keep.WriteString(line)
		}
	}
	return keep.String()
}

func TestVMProcess(t *testing.T) {
	needVM(t)
	t.Parallel()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	stdin := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB, four windows
	got := vmrun(t, stdin, "-env", "HELLO=good day", self(t), "role-echo", "-x", "a b", "")
	want := result{
		Status: 7,
		Stdout: fmt.Sprintf("args [\"-x\" \"a b\" \"\"]\ndir %s\nHELLO good day\ntestdata this is the test's data\n%s", dir, stdin),
		Stderr: "stdin 1048576 <nil>\n",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestVMPrograms(t *testing.T) {
	needVM(t)
	t.Parallel()
	back := filepath.Join(t.TempDir(), "back.txt")
	got := vmrun(t, "", "--kernel=6.1", "-file", "vm_test.go:/extra/", "-out", "/tmp/out.txt:"+back,
		self(t), "role-guest", "---", self(t), "role-veth", "---", self(t), "role-killed", "---", self(t), "role-write", "/tmp/out.txt")
	if d := cmp.Diff(result{Status: 128 + int(syscall.SIGTERM)}, got); d != "" {
		t.Error(d)
	}
	if b, err := os.ReadFile(back); err != nil || string(b) != "from the guest\n" {
		t.Errorf("file from the guest: %q, %v", b, err)
	}
}

func TestVMClock(t *testing.T) {
	needVM(t)
	t.Parallel()
	got := vmrun(t, "", "-icount", self(t), "role-clock")
	if got.Status != 0 {
		t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
}

func TestVMPanic(t *testing.T) {
	needVM(t)
	t.Parallel()
	got := vmrun(t, "", self(t), "role-sysrq", "c")
	if got.Status != statusKernel || got.Stdout != "about to write c\n" {
		t.Errorf("status %d, output %q; want %d and what the program wrote", got.Status, got.Stdout, statusKernel)
	}
	for _, want := range []string{"Kernel panic - not syncing: sysrq triggered crash", "sysrq_handle_crash", "while program 1 of 1 ran"} {
		if !strings.Contains(got.Stderr, want) {
			t.Errorf("no %q in\n%s", want, got.Stderr)
		}
	}
}

func TestVMTimeout(t *testing.T) {
	needVM(t)
	t.Parallel()
	var got result
	for _, timeout := range []string{"20s", "60s", "180s"} { // enough to boot, also on a machine that is busy
		got = vmrun(t, "", "-timeout", timeout, self(t), "role-hang")
		if got.Stdout != "" {
			break
		}
	}
	if got.Status != statusTimeout || got.Stdout != "hanging\n" {
		t.Errorf("status %d, output %q; want %d and what the program wrote", got.Status, got.Stdout, statusTimeout)
	}
	for _, want := range []string{"SIGQUIT: quit", "sysrq: Show Blocked State", "timeout: while program 1 of 1 ran"} {
		if !strings.Contains(got.Stderr, want) {
			t.Errorf("no %q in\n%s", want, got.Stderr)
		}
	}
}

// With a warm cache, nothing is asked of apt or the network, not even for a set
// of modules that was never loaded before.
func TestVMBare(t *testing.T) {
	needVM(t)
	if got := vmrun(t, "", "fetch", "6.1"); got.Status != 0 || got.Stdout != "" {
		t.Fatalf("fetch: %+v", got)
	}
	t.Setenv("PATH", "")
	got := vmrun(t, "", "-no-sysfs", "-load", "none", "-module", "veth,dummy", self(t), "role-bare")
	if d := cmp.Diff(result{}, got); d != "" {
		t.Error(d)
	}
	got = vmrun(t, "", "get", "-suite", "sid", "surely-not-fetched")
	if got.Status != statusFailure || !strings.Contains(got.Stderr, "no apt on this system") {
		t.Errorf("without apt: %+v", got)
	}
}

// A signal ends QEMU, too, and so does the death of vmrun.
func TestVMSignals(t *testing.T) {
	needVM(t)
	t.Parallel()
	for _, tt := range []struct {
		sig    syscall.Signal
		status int
	}{{syscall.SIGINT, 130}, {syscall.SIGKILL, -1}} {
		cmd := vmrunCmd(t, self(t), "role-hang")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, len("hanging\n"))); err != nil {
			t.Fatalf("the program was not started: %v", err)
		}
		machine := childOf(t, cmd.Process.Pid)
		if err := cmd.Process.Signal(tt.sig); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != tt.status {
			t.Errorf("%v: status %d, want %d", tt.sig, got, tt.status)
		}
		gone := false
		for deadline := time.Now().Add(10 * time.Second); !gone && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			gone = !alive(machine)
		}
		if !gone {
			t.Errorf("%v: QEMU is still there", tt.sig)
		}
	}
}

// childOf gives the process id of the only child.
func childOf(t *testing.T, pid int) int {
	t.Helper()
	found, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	child := 0
	for _, f := range found {
		b, err := os.ReadFile(f)
		if err == nil && len(b) > 0 {
			if _, err := fmt.Sscan(string(b), &child); err != nil {
				t.Fatal(err)
			}
		}
	}
	if child == 0 {
		t.Fatal("vmrun has no child")
	}
	return child
}

// alive reports whether a process runs; a zombie does not.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// Whoever takes the output may go away; the program is told, as in a pipe.
func TestVMClosedOutput(t *testing.T) {
	needVM(t)
	t.Parallel()
	cmd := vmrunCmd(t, self(t), "role-flood")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	out.Close()
	_ = cmd.Wait()
	if got, want := cmd.ProcessState.ExitCode(), 128+int(syscall.SIGPIPE); got != want {
		t.Errorf("status %d, want %d", got, want)
	}
}

const pingpong = `ibv_rc_pingpong -d rxe0 -g 1 -n 100 > /tmp/server & sleep 1
ibv_rc_pingpong -d rxe0 -g 1 -n 100 10.1.0.1 > /tmp/client || exit 1
wait $! || exit 2
grep -c usec/iter /tmp/server /tmp/client
ibv_devices`

// rdma-core's programs are the reason for -with.
func TestVMPackages(t *testing.T) {
	needVM(t)
	t.Parallel()
	got := vmrun(t, "", "-with", "ibverbs-utils,ibverbs-providers,dash,coreutils,grep", "sh", "-c", pingpong)
	if got.Status != 0 || !strings.HasPrefix(got.Stdout, "/tmp/server:1\n/tmp/client:1\n") || !strings.Contains(got.Stdout, "rxe1") {
		t.Errorf("%+v", got)
	}
}

// verbs builds our command for the guests.
func verbs(t *testing.T) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "verbs")
	cmd := exec.Command("go", "build", "-o", out, "./tools/verbs")
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build verbs: %v: %s", err, b)
	}
	return out
}

// lines gives the lines that one host wrote.
func lines(out, prefix string) []string {
	var found []string
	for line := range strings.Lines(out) {
		if rest, ok := strings.CutPrefix(line, prefix); ok {
			found = append(found, strings.TrimSpace(rest))
		}
	}
	return found
}

func TestVMHosts(t *testing.T) {
	needVM(t)
	t.Parallel()
	back := filepath.Join(t.TempDir(), "back")
	got := vmrun(t, "input\n", "-hosts", "2", "-file", verbs(t)+":/bin/verbs", "-out", "/tmp/host:"+back, self(t), "role-host")
	if got.Status != 0 || got.Stderr != "vmrun: host 1: status 0, host 2: status 0\n" {
		t.Errorf("%+v", got)
	}
	for host, peer := range map[string]string{"1": "10.2.0.2", "2": "10.2.0.1"} {
		if d := cmp.Diff([]string{"peer " + peer, "ping-pong done"}, lines(got.Stdout, host+": ")); d != "" {
			t.Errorf("host %s: %s", host, d)
		}
	}
	for name, want := range map[string]string{back: "1", back + ".2": "2"} {
		if b, err := os.ReadFile(name); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}

func TestVMHostFails(t *testing.T) {
	needVM(t)
	t.Parallel()
	got := vmrun(t, "", "-hosts", "2", "-net", "eth", "vmlink", "netem", "delay", "1ms", "---", self(t), "role-hang", "+++", self(t), "role-fail")
	if got.Status != 3 {
		t.Errorf("status %d, want 3", got.Status)
	}
	if d := cmp.Diff([]string{"hanging"}, lines(got.Stdout, "1: ")); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"failing"}, lines(got.Stdout, "2: ")); d != "" {
		t.Error(d)
	}
	want := "2: no line end\nvmrun: host 1: stopped because the other host failed, while program 2 of 2 ran\n" +
		"vmrun: host 1: stopped, host 2: status 3\n"
	if d := cmp.Diff(want, got.Stderr); d != "" {
		t.Error(d)
	}
}

func TestVMOtherArch(t *testing.T) {
	needVM(t)
	t.Parallel()
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	got := vmrun(t, "", "-arch", other, "-kernel", "6.12", "-with", "coreutils", "uname", "-m")
	want := result{Stdout: map[string]string{"amd64": "x86_64\n", "arm64": "aarch64\n"}[other]}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
