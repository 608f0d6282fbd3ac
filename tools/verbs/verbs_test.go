package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/tools/verbs/internal/terminal"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// listen returns a listener on loopback.
func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// run executes the command line and returns what it prints.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return runUntil(t.Context(), args...)
}

// runUntil is run with a context.
func runUntil(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	root := newRoot()
	root.Stdout = terminal.New(&out)
	root.Stderr = terminal.New(&out)
	err := root.Execute(ctx, args)
	return out.String(), err
}

// TestFiles: a command waits neither for the writer of a named pipe nor for what it writes after an interrupt, and
// does not read a file without an end.
func TestFiles(t *testing.T) {
	pipe, picture := filepath.Join(t.TempDir(), "pipe"), filepath.Join(t.TempDir(), "a.svg")
	testenv.Must(t, unix.Mkfifo(pipe, 0o600))
	t.Cleanup(func() { // lets go of those that wait
		f, err := os.OpenFile(pipe, os.O_RDWR, 0)
		testenv.Must(t, err, f.Close())
	})
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct{ args, endless string }{
		{"top --once FILE", "line 1: it is longer than 67108864 bytes"},
		{"trace show FILE", "line 1: it is longer than 16777216 bytes"},
		{"perf plot FILE --output " + picture, "longer than 67108864 bytes"},
		{"perf send-lat a --plot " + picture + " --overlay FILE", "longer than 67108864 bytes"},
		{"doctor --expect FILE", "longer than 67108864 bytes"},
		{"mesh run --file FILE", "longer than 67108864 bytes"},
		{"mesh serve --secret-file FILE", "longer than 67108864 bytes"},
		{"mesh run --secret-file FILE a b", "longer than 67108864 bytes"},
	} {
		args := func(file string) []string { return strings.Fields(strings.Replace(c.args, "FILE", file, 1)) }
		if out, err := run(t, args("/dev/zero")...); err == nil || !strings.Contains(err.Error(), c.endless) {
			t.Errorf("verbs %s of /dev/zero: %v, want %q\n%s", c.args, err, c.endless, out)
		}
		if out, err := runUntil(interrupted, args(pipe)...); !errors.Is(err, context.Canceled) {
			t.Errorf("verbs %s of a named pipe: %v, want context.Canceled\n%s", c.args, err, out)
		}
		silent := filepath.Join(t.TempDir(), "pipe")
		testenv.Must(t, unix.Mkfifo(silent, 0o600))
		f, err := os.OpenFile(silent, os.O_RDWR, 0)
		testenv.Must(t, err)
		_, err = f.WriteString("{")
		testenv.Must(t, err)
		reading, interrupt := context.WithCancel(t.Context())
		go func() {
			for n := 1; n > 0; time.Sleep(time.Millisecond) { // until it is read
				n, _ = unix.IoctlGetInt(int(f.Fd()), unix.TIOCINQ)
			}
			interrupt()
		}()
		if out, err := runUntil(reading, args(silent)...); !errors.Is(err, context.Canceled) {
			t.Errorf("verbs %s of a silent pipe: %v, want context.Canceled\n%s", c.args, err, out)
		}
		f.Close()
	}
}

// TestSecondInterrupt ends a command that waits for the reader of a named pipe.
func TestSecondInterrupt(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	testenv.Must(t, unix.Mkfifo(pipe, 0o600))
	cmd := softCommand(t, fmt.Sprintf("127.0.0.1:%d", freeUDP(t)), "top", "--record", pipe)
	testenv.Must(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	opens := func(task string) bool {
		text, _ := os.ReadFile(filepath.Join(task, "syscall")) // a thread may have ended
		return strings.HasPrefix(string(text), fmt.Sprint(unix.SYS_OPENAT, " "))
	}
	for waits := false; ; {
		if tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", cmd.Process.Pid)); !waits && !slices.ContainsFunc(tasks, opens) {
			time.Sleep(time.Millisecond)
			continue
		}
		waits = true
		cmd.Process.Signal(os.Interrupt)
		select {
		case err := <-ended:
			if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGINT {
				t.Errorf("it ended with %v, want by SIGINT", err)
			}
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func TestOptions(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"-p 0", "--port is 0, allowed: 1 to 65535"},
		{"-p 70000", "--port is 70000, allowed: 1 to 65535"},
		{"-s 0", "--size is 0, allowed: 1 and more"},
		{"-r 1", "--recv-depth is 1, allowed: 2 and more"},
		{"--rx-depth 1", "--recv-depth is 1, allowed: 2 and more"},
		{"-n 0", "--iterations is 0, allowed: 1 and more"},
		{"--iters 0", "--iterations is 0, allowed: 1 and more"},
		{"-i 0", "--ib-port is 0, allowed: 1 to 255"},
		{"-l 16", "--sl is 16, allowed: 0 to 15"},
		{"--pkey 0x10001", `--pkey is "0x10001", allowed: 0x1 to 0x7fff`},
		{"-g -2", "--gid is -2, allowed: 0 and more"},
		{"--gid-idx x", `--gid is "x", allowed: 0 and more`},
		{"-m 1500", "--mtu is 1500, allowed: 256, 512, 1024, 2048, 4096"},
		{"-m big", `--mtu is "big", allowed: a whole number`},
		{"--type rd", "--type is rd, allowed: rc, uc, ud, srd, srq, xrc"},
		{"--type srq -q 0", "--num-qp is 0, allowed: 1 to 255"},
		{"--type srq -q 256", "--num-qp is 256, allowed: 1 to 255"},
		{"--type srq -q 16 -r 16", "--recv-depth is 16, allowed: 17 and more, for --num-qp 16"},
		{"-q 4", "--num-qp is 4, allowed: only with --type srq"},
		{"-j --odp", "--dm is set, allowed: without --odp and --iodp"},
		{"--dm -O", "--dm is set, allowed: without --odp and --iodp"},
		{"-P", "--prefetch is set, allowed: only with --odp or --iodp"},
		{"--timeout 0s", "--timeout is 0s, allowed: more than 0"},
		{"--timeout 10", "--timeout is 10, allowed: a time such as 10s or 200ms"},
		{"-e=perhaps", `--events is "perhaps", allowed: true, false`},
		{"--bogus", `unknown flag: --bogus; "verbs pingpong --help" lists the flags`},
		{"-z", `unknown shorthand flag: 'z' in -z; "verbs pingpong --help" lists the flags`},
		{"--size", `flag needs an argument: --size; "verbs pingpong --help" lists the flags`},
		{"host1 host2", `the arguments of verbs pingpong are "host1 host2", allowed: at most 1`},
		{"-s many", `--size is "many", allowed: 1 and more`},
		{"-i 300", "--ib-port is 300, allowed: 1 to 255"},
	} {
		_, err := run(t, append([]string{"pingpong"}, strings.Fields(c.args)...)...)
		if exitStatus(err) != 2 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("pingpong %s: status %d, %v, want %q", c.args, exitStatus(err), err, c.want)
		}
	}
}

func TestHelp(t *testing.T) {
	for _, c := range []struct {
		args string
		want []string
	}{
		{"--help", []string{"devices", "info", "pingpong", "RDMAABI", "RDMADEBUG"}},
		{"pingpong --help", []string{"--recv-depth", "--gid", "--events", "-e", "ibv_rc_pingpong"}},
		{"info --help", []string{"--json", "[DEV[/PORT]]"}},
		{"devices --help", []string{"--json"}},
	} {
		out, err := run(t, strings.Fields(c.args)...)
		if err != nil {
			t.Errorf("verbs %s: %v", c.args, err)
		}
		for _, w := range c.want {
			if !strings.Contains(out, w) {
				t.Errorf("verbs %s does not mention %s", c.args, w)
			}
		}
	}
}

func TestPrintDevices(t *testing.T) {
	infos := []uverbs.DeviceInfo{
		{Name: "rxe0", NodeGUID: 0x5054_00ff_fe00_0001, Protocol: "roce", Driver: "rxe", Ports: 1, CharDev: "/dev/infiniband/uverbs0"},
		{Name: "mlx5_0", Protocol: "ib", Driver: "mlx5", Ports: 2, Err: errors.New("not permitted")},
	}
	var out bytes.Buffer
	if err := printDevices(&out, infos, false); err != nil {
		t.Fatal(err)
	}
	want := `device  node GUID            driver  protocol  ports  usable
rxe0    5054:00ff:fe00:0001  rxe     roce      1      yes
mlx5_0  -                    mlx5    ib        2      no: not permitted
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	out.Reset()
	if err := printDevices(&out, infos, true); err != nil {
		t.Fatal(err)
	}
	var rows []deviceRow
	if err := json.Unmarshal(out.Bytes(), &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) != 2 || !rows[0].Usable || rows[1].Usable || rows[0].Device != "rxe0" || rows[1].Reason != "not permitted" || rows[0].CharDev != "/dev/infiniband/uverbs0" {
		t.Errorf("JSON holds %+v", rows)
	}
}

func TestPrintInfo(t *testing.T) {
	r := deviceReport{
		Device:     "rxe0",
		Driver:     "rxe",
		Attributes: deviceAttributes(uverbs.DeviceAttr{MaxQP: 17, AtomicCap: ib.AtomicHCA, NodeGUID: 0x1234}),
		Ports: []portReport{{
			Port: 1,
			Attributes: portAttributes(uverbs.PortAttr{
				State: ib.PortActive, ActiveMTU: ib.MTU1024, LinkLayer: ib.LinkLayerEthernet, ActiveWidth: 2, ActiveSpeed: 32}),
			GIDs: []gidReport{{Index: 1, GID: "0000", Address: "10.1.0.1", Type: "RoCE v2"}},
		}},
	}
	var out bytes.Buffer
	r.print(&out)
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"device: rxe0", "max_qp: 17", "atomic_cap: ATOMIC_HCA (1)", "node_guid: 0000:0000:0000:1234", "port: 1",
		"state: PORT_ACTIVE (4)", "active_mtu: 1024 (3)", "link_layer: Ethernet", "active_width: 4X (2)", "active_speed: 25.0 Gbps (32)",
		"10.1.0.1, RoCE v2",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report does not say %q:\n%s", want, out.String())
		}
	}
}
