package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
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

// result is what a run of vmrun came to.
type result struct {
	Status         int
	Stdout, Stderr string
}

// needVM is for tests that boot a machine. go test -short leaves them out; the suite vmtest of make
// testlong runs them.
func needVM(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a machine; not under -short")
	}
}

func self(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
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
	must(t, err)
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

// With a warm cache, nothing is fetched by apt or the network, not even for a set of modules that
// was never loaded before.
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
		must(t, err)
		must(t, cmd.Start())
		if _, err := io.ReadFull(out, make([]byte, len("hanging\n"))); err != nil {
			t.Fatalf("the program was not started: %v", err)
		}
		machine := childOf(t, cmd.Process.Pid)
		must(t, cmd.Process.Signal(tt.sig))
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
	must(t, err)
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
	must(t, err)
	must(t, cmd.Start())
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

// TestVMKernelPath: a kernel is given by the path of its image, with a directory that has its modules, as in the tree of a
// kernel developer.
func TestVMKernelPath(t *testing.T) {
	needVM(t)
	t.Parallel()
	a, err := newApp(defaults())
	must(t, err)
	k, err := a.findKernel(t.Context())
	must(t, err)
	image, root := filepath.Join(t.TempDir(), "bzImage"), filepath.Dir(filepath.Dir(k.Image)) // its package has boot and lib
	must(t, os.Symlink(k.Image, image))
	got := vmrun(t, "", "-kernel", image, "-modules", root, verbs(t), "devices")
	if got.Status != 0 || !strings.Contains(got.Stdout, "rxe0") || !strings.Contains(got.Stdout, "rxe1") {
		t.Errorf("%+v", got)
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
	want := "2: no line end\nvmrun: host 1: stopped because another host failed, while program 2 of 2 ran\n" +
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

// must fails a test on an error.
func must(tb testing.TB, errs ...error) {
	tb.Helper()
	for _, err := range errs {
		if err != nil {
			tb.Fatal(err)
		}
	}
}
