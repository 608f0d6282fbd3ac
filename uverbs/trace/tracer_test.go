//go:build linux

package trace

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
)

// must fails a test on an error.
var must = testenv.Must

// newTestTracer returns a tracer and the calls that it has seen.
func newTestTracer(t *testing.T) (*Tracer, *[]*Call) {
	t.Helper()
	var calls []*Call
	return &Tracer{
		Sink:     func(c *Call) { calls = append(calls, c) },
		Warn:     t.Logf,
		DriverOf: func(string) (string, uint32) { return "", 0 },
	}, &calls
}

// TestExitStatus: the trace ends with the program, not with its children.
func TestExitStatus(t *testing.T) {
	for script, want := range map[string]int{
		"exit 3":                                     3,
		"(exit 4); exit 0":                           0,
		"sh -c 'exit 5'":                             5,
		"kill -TERM $$":                              128 + 15,
		"kill -KILL $$":                              128 + 9,
		"exec sh -c 'exit 6'":                        6,
		"trap 'exit 7' USR1; kill -USR1 $$":          7,
		"trap '' PIPE; kill -PIPE $$; exit 8":        8,
		"sleep 0.05 & wait; exit 9":                  9,
		"(sleep 0.1; exit 1) & exit 10":              10,
		"kill -STOP $$; exit 11":                     11, // a child lets it go on, see below
		"test $(ulimit -c) != x && echo x | cat >&2": 0,
	} {
		if strings.Contains(script, "-STOP") {
			script = "(sleep 0.1; kill -CONT $$) & " + script
		}
		tr, calls := newTestTracer(t)
		status, err := tr.Run([]string{"sh", "-c", script}, nil)
		if err != nil || status != want {
			t.Errorf("%s: status %d, want %d, %v", script, status, want, err)
		}
		for _, c := range *calls {
			if c.Call != CallExec && c.Call != CallExit {
				t.Errorf("%s: a call that has nothing to do with RDMA: %+v", script, c)
			}
		}
		if first := (*calls)[0]; first.Call != CallExec || !filepath.IsAbs(first.Text) {
			t.Errorf("%s: the first call is %+v", script, first)
		}
	}
}

// TestEnvironment: the program has the environment, the directory and the descriptors that it would have
// without the trace.
func TestEnvironment(t *testing.T) {
	t.Setenv("TRACE_TEST", "value")
	out := filepath.Join(t.TempDir(), "out")
	const script = `{ pwd; echo $TRACE_TEST; ls /proc/self/fd | wc -l; ulimit -n; ulimit -c; grep -E 'SigIgn|SigBlk' /proc/self/status; } >`
	want := run(t, script, out)
	tr, _ := newTestTracer(t)
	if status, err := tr.Run([]string{"sh", "-c", script + out}, nil); err != nil || status != 0 {
		t.Fatalf("status %d, %v", status, err)
	}
	got, err := os.ReadFile(out)
	if err != nil || string(got) != want {
		t.Errorf("traced:\n%s\nwithout a trace:\n%s%v", got, want, err)
	}
}

// run runs a script, and returns what it writes to a file.
func run(t *testing.T, script, out string) string {
	t.Helper()
	if b, err := exec.Command("sh", "-c", script+out).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	b, err := os.ReadFile(out)
	must(t, err)
	return string(b)
}

// TestBadPrograms: what cannot be traced is an error that says why.
func TestBadPrograms(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(content), mode))
		return path
	}
	for path, want := range map[string]string{
		"/no/such/program":                                "no such file",
		"no-such-program":                                 "executable file not found",
		file("text", "hello", 0o644):                      "permission denied",
		file("empty", "", 0o755):                          "exec format error",
		file("elf32", "\x7fELF\x01\x01\x01", 0o755):       "32-bit program",
		file("script", "#!/no/such/interpreter\n", 0o755): "no such file",
	} {
		tr, calls := newTestTracer(t)
		if status, err := tr.Run([]string{path}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: status %d, %v, want %q", path, status, err, want)
		}
		for _, c := range *calls {
			if c.Call == CallExec {
				t.Errorf("%s: it has run: %+v", path, c)
			}
		}
	}
}

// TestAttach attaches to a process with a child, and sees the end of both.
func TestAttach(t *testing.T) {
	cmd := exec.Command("sh", "-c", "read x; sh -c 'exit 3'; exit 4")
	in, err := cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	tr, calls := newTestTracer(t)
	go func() {
		for strings.Contains(processStatus(cmd.Process.Pid), "TracerPid:\t0") {
			time.Sleep(time.Millisecond)
		}
		in.Close()
	}()
	status, err := tr.Attach(cmd.Process.Pid)
	if err != nil || status != 4 {
		t.Errorf("status %d, %v", status, err)
	}
	ends := 0
	for _, c := range *calls {
		if c.Call == CallExit {
			ends++
		}
	}
	if ends != 2 {
		t.Errorf("%d processes ended, want 2: %v", ends, *calls)
	}
	tr, _ = newTestTracer(t)
	if _, err := tr.Attach(cmd.Process.Pid); err == nil || !strings.Contains(err.Error(), "there is no process") {
		t.Errorf("a process that has ended: %v", err)
	}
}

// TestAttachTwice: a process has one tracer.
func TestAttachTwice(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true} // this thread is the tracer
	must(t, cmd.Start())
	tr, _ := newTestTracer(t)
	_, err := tr.Attach(cmd.Process.Pid)
	if err == nil || !strings.Contains(err.Error(), "traces it already") {
		t.Errorf("%v", err)
	}
	cmd.Process.Kill()
	cmd.Wait()
}

// userEnv is set in the process of an ordinary user that TestOrdinaryUser starts.
const userEnv = "TRACE_TEST_USER"

// TestOrdinaryUser runs tests as a user without rights, who can trace programs of his own, but not others.
func TestOrdinaryUser(t *testing.T) {
	if os.Getenv(userEnv) != "" || os.Geteuid() != 0 {
		traceAsUser(t)
		return
	}
	const nobody = 65534
	dir, err := os.MkdirTemp("", "trace")
	must(t, err)
	defer os.RemoveAll(dir)
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	test := filepath.Join(dir, "trace.test")
	must(t, errors.Join(os.WriteFile(test, self, 0o755), os.Chown(dir, nobody, nobody), os.Chmod(dir, 0o755)))
	cmd := exec.Command(test, "-test.v", "-test.run", "^(TestOrdinaryUser|TestExitStatus|TestEnvironment|TestBadPrograms|TestAttach)$")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), userEnv+"=1", "TMPDIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if n := strings.Count(string(out), "--- PASS: "); err != nil || n != 5 {
		t.Errorf("%d tests passed, want 5: %v\n%s", n, err, out)
	}
}

// traceAsUser traces what an ordinary user cannot trace.
func traceAsUser(t *testing.T) {
	const root = 1 // a process of root
	tr, _ := newTestTracer(t)
	if _, err := tr.Attach(root); err == nil || !strings.Contains(err.Error(), "trace process 1: operation not permitted: ") {
		t.Errorf("a process of root: %v", err)
	}
	su, err := exec.LookPath("su")
	must(t, err)
	if _, err := tr.Run([]string{su, "--version"}, nil); err == nil || !strings.Contains(err.Error(), "set-user-ID to user 0") {
		t.Errorf("a program of root: %v", err)
	}
}

// TestNoFilter: where the kernel refuses filters, the program is traced all the same, and a warning says so.
func TestNoFilter(t *testing.T) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine
		err := installFilter([]unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: dataNr},
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_SECCOMP, Jf: 1},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EINVAL)},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		})
		if err != nil {
			t.Error(err)
			return
		}
		tr, calls := newTestTracer(t)
		var warning string
		tr.Warn = func(format string, args ...any) { warning += fmt.Sprintf(format, args...) }
		status, err := tr.Run([]string{"sh", "-c", "(exit 4); exit 5"}, nil)
		if err != nil || status != 5 || !strings.Contains(warning, "refuses seccomp filters") || !tr.every || len(*calls) < 3 {
			t.Errorf("status %d, %v, warning %q, %d calls", status, err, warning, len(*calls))
		}
	}()
	<-done
}

// TestCause: what Yama forbids is said with a way out.
func TestCause(t *testing.T) {
	for scope, want := range map[string]string{
		"": "another user's", "0": "another user's", "1": "ptrace_scope is 1, so", "2": "only root", "3": "until the next boot",
	} {
		if got := cause(scope); !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", scope, got, want)
		}
	}
}

// TestMaxBytes: a call cannot have so many bytes that a record cannot be read.
func TestMaxBytes(t *testing.T) {
	b := make([]byte, maxBytes/4)
	c := &Call{Call: CallRead, PID: os.Getpid()}
	for range 4 {
		if got := c.get(uint64(reflect.ValueOf(b).Pointer()), len(b)); len(got) != len(b) || c.Lost != "" {
			t.Fatalf("%d bytes, %s", len(got), c.Lost)
		}
	}
	if got := c.get(uint64(reflect.ValueOf(b).Pointer()), 1); got != nil || !strings.Contains(c.Lost, "more than") {
		t.Errorf("%d bytes, %s", len(got), c.Lost)
	}
	runtime.KeepAlive(b)
}

func processStatus(pid int) string {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	return string(b)
}

// TestDevicePath: which paths are character devices.
func TestDevicePath(t *testing.T) {
	for path, want := range map[string]string{
		"/dev/infiniband/uverbs0": "uverbs0", "/dev/infiniband/rdma_cm": "rdma_cm", "uverbs12": "uverbs12", "/dev/rdma_cm": "rdma_cm",
		"/dev/infiniband/by-ibdev/uverbs-rxe0": "uverbs-rxe0",
		"/sys/class/infiniband_verbs/uverbs0":  "", "/etc/passwd": "", "": "", "uverbs": "", "/dev/uverbsx": "", "/sys/class/misc/rdma_cm/abi_version": "",
	} {
		if got, ok := devicePath(path); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %t, want %q", path, got, ok, want)
		}
	}
}
