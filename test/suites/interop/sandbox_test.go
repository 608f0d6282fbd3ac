package interop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// sandbox is what a program may lack where it runs. A command works in it, unless it has words here that its output
// must have; " ... " is anything between them.
type sandbox struct {
	name  string
	enter func() error // in a mount namespace of its own
	says  map[string]string
	lists string // what the list of devices says about dev0, if not "yes"
}

// sandboxCommands are what runs in each sandbox: the programs, and the library.
var sandboxCommands = []string{"devices", "doctor", "pingpong", "open", "dial"}

// over mounts an empty directory.
func over(dir string) error { return unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY, "") }

// What several commands say.
const (
	forbidden = "socket(NETLINK_RDMA): operation not permitted; ... a security policy or sandbox forbids NETLINK_RDMA sockets; ... or let it have /sys"
	noDevices = "permission denied (its mount has the option nodev; in a container: --device /dev/infiniband/"
)

// sandboxes are the rows.
var sandboxes = []sandbox{
	{name: "no sys", enter: func() error { return over("/sys") }},
	{name: "no proc", enter: func() error { return over("/proc") }},
	{name: "no sys and no proc", enter: func() error { return errors.Join(over("/sys"), over("/proc")) }},
	{name: "no netlink", enter: func() error { return filter(unix.EPERM, unix.AF_NETLINK) }, says: map[string]string{
		"dial": "which of ... has the address is not known without netlink",
	}},
	{name: "no netlink and no sys", enter: func() error { return errors.Join(over("/sys"), filter(unix.EPERM, unix.AF_NETLINK)) }, says: map[string]string{
		"devices": forbidden, "doctor": "the devices cannot be listed: a security policy or sandbox forbids netlink, and /sys does not show them ... seccomp=FILE",
		"pingpong": forbidden, "open": forbidden, "dial": forbidden,
	}},
	{name: "root for reading only", enter: func() error {
		return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
	}},
	{name: "another user with little memory", enter: func() error {
		const limit = 64 << 10
		return errors.Join(unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit, Max: limit}),
			syscall.Setgroups(nil), syscall.Setgid(65534), syscall.Setuid(65534))
	}, says: map[string]string{"dial": "cannot allocate memory: RLIMIT_MEMLOCK is 65536 bytes, too few for ... --ulimit memlock=-1"}},
	{name: "system calls of Docker", enter: func() error { return filter(unix.EPERM, -1, notOfDocker...) }},
	{name: "files of a mount without devices", enter: func() error {
		return errors.Join(unix.Mount("/dev/infiniband", "/dev/infiniband", "", unix.MS_BIND, ""),
			unix.Mount("", "/dev/infiniband", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NODEV, ""))
	}, says: map[string]string{
		"doctor":   "uverbs0 is on a mount with the option nodev ... without the option nodev",
		"pingpong": noDevices, "open": noDevices, "dial": noDevices,
	}, lists: "no: open /dev/infiniband/uverbs0: " + noDevices},
}

// notOfDocker are system calls that the default profile of Docker 25 and later refuses to a container without more
// capabilities, of those that a program of networks, memory or measurements may want.
var notOfDocker = []uint32{
	unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_BPF,
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_MBIND, unix.SYS_SET_MEMPOLICY, unix.SYS_GET_MEMPOLICY, unix.SYS_MOVE_PAGES,
	unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_KCMP, unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_PIDFD_GETFD,
}

// sandboxEnv names a sandbox and a command for a child of the test: first to enter the one, then, without a sandbox, to
// run the other.
const sandboxEnv = "GOVERBS_SANDBOX"

// inSandbox is the child.
func inSandbox(what string) error {
	name, command, _ := strings.Cut(what, "/")
	if name == "" {
		return play(command)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(sandboxes, func(s sandbox) bool { return s.name == name })
	if i < 0 {
		return fmt.Errorf("no sandbox %q is in the table", name)
	}
	runtime.LockOSThread() // a filter is of a thread
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := sandboxes[i].enter(); err != nil {
		return fmt.Errorf("enter %s: %w", name, err)
	}
	if command == "devices" || command == "doctor" {
		return syscall.Exec(os.Getenv(VerbsEnv), []string{"verbs", command}, os.Environ())
	}
	if err := os.Setenv(sandboxEnv, "/"+command); err != nil {
		return err
	}
	return syscall.Exec(self, []string{self}, os.Environ())
}

// play runs a command that is not one program.
func play(command string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	switch command {
	case "open":
		dev, err := uverbs.Open(dev0, uverbs.OpenOptions{})
		if err != nil {
			return err
		}
		return dev.Close()
	case "dial":
		l, err := cm.Listen(ctx, rig.Addrs[0]+":0", cm.ListenOptions{})
		if err != nil {
			return err
		}
		c, err := cm.Dial(ctx, l.Addr().String(), cm.DialOptions{})
		if err != nil {
			return errors.Join(err, l.Close())
		}
		return errors.Join(c.Send(ctx, []byte("hello")), c.Close(), l.Close())
	}
	server := exec.CommandContext(ctx, os.Getenv(VerbsEnv), "pingpong", "-d", dev0, "-n", "20")
	server.Stdout, server.Stderr = os.Stdout, os.Stderr
	if err := server.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	for {
		out, err := exec.CommandContext(ctx, os.Getenv(VerbsEnv), "pingpong", "-d", dev0, "-n", "20", rig.Addrs[0]).CombinedOutput()
		if err == nil {
			return <-ended
		}
		select {
		case err := <-ended:
			return fmt.Errorf("the server: %v; the client: %s", err, out)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// TestSandboxes runs the commands in each sandbox: they work, or the error names the cause in its first sentence.
func TestSandboxes(t *testing.T) {
	testenv.Tags(t, testenv.Machine)
	testenv.Guest(t)
	testenv.Needs(t, "queues that are not counted as pinned memory", "rxe")
	for _, s := range sandboxes {
		for _, command := range sandboxCommands {
			t.Run(s.name+"/"+command, func(t *testing.T) {
				cmd := exec.CommandContext(timed(t), "/proc/self/exe")
				cmd.Env = append(os.Environ(), sandboxEnv+"="+s.name+"/"+command)
				cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
				out, err := cmd.CombinedOutput()
				t.Logf("%v\n%s", err, out)
				words, fails := s.says[command]
				if fails != (err != nil) {
					t.Fatalf("error %v, want one: %t", err, fails)
				}
				lists := cmp.Or(s.lists, "yes")
				listed := func(line string) bool { return strings.HasPrefix(line, dev0+" ") && strings.Contains(line, "  "+lists) }
				if command == "devices" && !fails && !slices.ContainsFunc(strings.Split(string(out), "\n"), listed) {
					t.Errorf("the list does not say %q about %s", lists, dev0)
				}
				rest := string(out)
				for _, w := range strings.Split(words, " ... ") {
					_, after, ok := strings.Cut(rest, w)
					if !ok {
						t.Errorf("the output does not say %q after the words before it", w)
					}
					rest = after
				}
			})
		}
	}
}
