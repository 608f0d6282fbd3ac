package containers

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// gvisorEnv is 1 in the boots of gVisor, a VM with the program runsc.
const gvisorEnv = "GOVERBS_GVISOR"

// bundle writes what runsc needs for a container that runs a program with the files of this VM, and returns its directory.
func bundle(t *testing.T, env, args []string, cards bool) string {
	t.Helper()
	type object = map[string]any
	linux := object{"namespaces": []object{{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}}}
	if cards {
		var devices []object
		files, err := filepath.Glob("/dev/infiniband/uverbs*")
		must(t, err)
		for _, file := range files {
			var st unix.Stat_t
			must(t, unix.Stat(file, &st))
			devices = append(devices, object{"path": file, "type": "c", "major": unix.Major(st.Rdev), "minor": unix.Minor(st.Rdev), "fileMode": 0o666})
		}
		linux["devices"] = devices
	}
	caps := []string{"CAP_IPC_LOCK", "CAP_NET_ADMIN", "CAP_NET_RAW"}
	config, err := json.Marshal(object{
		"ociVersion": "1.0.0",
		"process": object{
			"user": object{"uid": 0, "gid": 0}, "args": args, "cwd": "/",
			"env":          append([]string{"PATH=/bin:/usr/bin", sandboxed + "=1"}, env...),
			"capabilities": object{"bounding": caps, "effective": caps, "permitted": caps},
		},
		"root": object{"path": "/", "readonly": true},
		"mounts": []object{
			{"destination": "/proc", "type": "proc", "source": "proc"}, {"destination": "/sys", "type": "sysfs", "source": "sysfs"},
			{"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
		},
		"linux": linux,
	})
	must(t, err)
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644))
	return dir
}

// leaveRoot makes a mount of the root of the VM the root of this process, since runsc calls pivot_root(2), which the first
// root does not permit, and makes user namespaces, which chroot(2) alone does not.
var leaveRoot = sync.OnceValue(func() error {
	const root = "/run/root"
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("/", root, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := unix.Chdir(root); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return err
	}
	return unix.Chroot(".")
})

// inGVisor runs a program in gVisor, with the cards of the VM or with software devices only, and returns what it prints.
func inGVisor(t *testing.T, cards bool, env []string, args ...string) (string, error) {
	t.Helper()
	must(t, leaveRoot())
	flags := []string{"--ignore-cgroups", "--root=/tmp/runsc", "--network=none"}
	if cards {
		flags = []string{"--ignore-cgroups", "--root=/tmp/runsc", "--network=host", "--rdmaproxy"}
	}
	began := time.Now()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	cmd := exec.CommandContext(ctx, "/bin/runsc", append(flags, "run", "--bundle="+bundle(t, env, args, cards), strings.ReplaceAll(t.Name(), "/", "-"))...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	t.Logf("%s took %v: %v\n%s", args, time.Since(began).Round(time.Second), err, out)
	return string(out), err
}

// sandboxed is the environment variable of the program that runs in gVisor, which is this test binary.
const sandboxed = "GOVERBS_IN_GVISOR"

// runSandboxed is that program. "calls" calls the verbs of the first device, "pair" runs a server until its client has
// succeeded, and "dial" connects by cm.Dialer.
func runSandboxed(args []string) error {
	switch args[0] {
	case "pair":
		return pair(strings.Fields(args[1]), strings.Fields(args[2]))
	case "calls":
		return calls()
	case "dial":
		return dial(args[1])
	}
	return fmt.Errorf("unknown task %q", args)
}

// pair runs a server, and a client until it succeeds or the server ends.
func pair(server, client []string) error {
	s := exec.Command(server[0], server[1:]...)
	s.Stdout, s.Stderr = os.Stdout, os.Stderr
	if err := s.Start(); err != nil {
		return err
	}
	defer s.Wait()
	defer s.Process.Kill()
	var out []byte
	var err error
	for range 10 {
		time.Sleep(time.Second)
		if out, err = exec.Command(client[0], client[1:]...).CombinedOutput(); err == nil {
			break
		}
	}
	fmt.Printf("client: %s", out)
	return err
}

// calls prints what each verb answers.
func calls() error {
	say := func(name string, err error) {
		var f *uverbs.FeatureError
		switch {
		case err == nil:
			fmt.Println(name+":", "ok")
		case errors.As(err, &f):
			fmt.Println(name+":", "FeatureError:", err)
		default:
			fmt.Println(name+":", err)
		}
	}
	infos, err := uverbs.Devices()
	if err != nil {
		return err
	}
	dev, err := uverbs.Open(infos[0].Name, uverbs.OpenOptions{})
	if err != nil {
		return err
	}
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	buf, err := uverbs.AllocBuffer(1<<16, uverbs.BufferOptions{})
	if err != nil {
		return err
	}
	mr, err := pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite | uverbs.AccessMWBind})
	say("RegMR", err)
	if err == nil {
		_, err := mr.Query()
		say("MR.Query", err)
		say("MR.Rereg", mr.Rereg(uverbs.ReregOptions{Access: new(uverbs.AccessLocalWrite)}))
		next, err := uverbs.AllocBuffer(1<<16, uverbs.BufferOptions{})
		if err != nil {
			return err
		}
		say("MR.Rereg with new memory", mr.Rereg(uverbs.ReregOptions{Buffer: next}))
		say("MR.Close", mr.Close())
	}
	mw, err := pd.AllocMW(uverbs.MWType1)
	say("AllocMW", err)
	if err == nil {
		say("MW.Close", mw.Close())
	}
	_, err = dev.CreateCompChannel()
	say("CreateCompChannel", err)
	_, err = dev.CreateCQ(uverbs.CQOptions{Events: true})
	say("CreateCQ with events", err)
	cq, err := dev.CreateCQ(uverbs.CQOptions{Size: 100})
	say("CreateCQ", err)
	if err != nil {
		return err
	}
	say("CQ.Resize", cq.Resize(200))
	_, err = pd.CreateSRQ(uverbs.SRQOptions{})
	say("CreateSRQ", err)
	gids, err := dev.GIDTable(1)
	say("GIDTable", err)
	for _, e := range gids {
		if e.Type == ib.GIDTypeRoCEv2 && e.GID.Addr().Is4() {
			ah, err := pd.CreateAH(uverbs.AHAttr{Port: 1, Global: true, GRH: uverbs.GRH{DGID: e.GID, SGIDIndex: uint8(e.Index), HopLimit: 64}})
			say("CreateAH", err)
			if err == nil {
				say("AH.Close", ah.Close())
			}
		}
	}
	qp, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq})
	say("CreateQP", err)
	if err == nil {
		say("QP.Close", qp.Close())
	}
	ud, err := pd.CreateQP(uverbs.QPOptions{Type: ib.UD, SendCQ: cq, RecvCQ: cq})
	say("CreateQP for datagrams", err)
	if err == nil {
		say("DetachMulticast", ud.DetachMulticast(ib.GID(netip.MustParseAddr("ff0e::1234").As16()), 0xc000))
		say("QP.Close", ud.Close())
	}
	_, err = pd.CreateQP(uverbs.QPOptions{Type: ib.RawPacket, SendCQ: cq, RecvCQ: cq})
	say("CreateQP for raw packets", err)
	x, err := dev.OpenXRCD(uverbs.XRCDOptions{})
	say("OpenXRCD", err)
	if err == nil {
		say("XRCD.Close", x.Close())
	}
	root, err := os.Open("/")
	if err != nil {
		return err
	}
	defer root.Close()
	_, err = dev.OpenXRCD(uverbs.XRCDOptions{File: root, Flags: os.O_CREATE})
	say("OpenXRCD with a file", err)
	_, err = dev.AllocDM(4096, uverbs.DMOptions{})
	say("AllocDM", err)
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	_, err = dev.NextEvent(ctx)
	say("NextEvent", err)
	_, err = cm.Listen(ctx, "127.0.0.1:7471", cm.ListenOptions{})
	say("cm.Listen", err)
	say("CloseAll", dev.CloseAll())
	return nil
}

// dial sends a line to itself through a connection of cm.Dialer, and prints by what it went.
func dial(address string) error {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	var lc cm.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c) // until the client has closed
				_ = c.Close()
			}()
		}
	}()
	d := cm.Dialer{FallbackDelay: 30 * time.Second, Chosen: func(c cm.Choice) { fmt.Printf("%T, RDMAErr %v\n", c.Conn, c.RDMAErr) }}
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	fmt.Printf("echo %q\n", line)
	return err
}

// itself is this program, of the VM and of the sandbox.
func itself(t *testing.T, task ...string) []string {
	t.Helper()
	path, err := os.Executable()
	must(t, err)
	return append([]string{path}, task...)
}

// scene is a program in gVisor, and what it prints.
type scene struct {
	name string
	args []string
	want []string // parts of the output, in their order
	not  []string // what the output must not contain
}

// playScenes runs the programs of scenes, which must succeed.
func playScenes(t *testing.T, cards bool, env []string, scenes []scene) {
	for _, s := range scenes {
		t.Run(s.name, func(t *testing.T) {
			out, err := inGVisor(t, cards, env, s.args...)
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			rest := out
			for _, want := range s.want {
				var ok bool
				if _, rest, ok = strings.Cut(rest, want); !ok {
					t.Fatalf("no %q, or not in this order, in\n%s", want, out)
				}
			}
			for _, not := range append(s.not, "modprobe", "older than") {
				if strings.Contains(out, not) {
					t.Errorf("%q in\n%s", not, out)
				}
			}
		})
	}
}

// TestGVisorCards: what works with the cards that gVisor passes on, and what the errors say about the rest.
func TestGVisorCards(t *testing.T) {
	testenv.Boot(t, gvisorEnv, "containers/gvisor")
	const refused = " not supported by the sandbox gVisor"
	playScenes(t, true, nil, []scene{
		{"calls", itself(t, "calls"), []string{
			"RegMR: ok\n", "MR.Query: FeatureError: uverbs: QUERY_MR" + refused, "MR.Rereg: ok\n",
			"MR.Rereg with new memory: FeatureError: uverbs: REREG_MR with new memory" + refused + "\n", "MR.Close: ok\n", "AllocMW: ok\n", "MW.Close: ok\n",
			"CreateCompChannel: FeatureError: uverbs: CREATE_COMP_CHANNEL" + refused, "CreateCQ with events: FeatureError: uverbs: CREATE_COMP_CHANNEL" + refused,
			"CreateCQ: ok\n", "CQ.Resize: FeatureError: uverbs: RESIZE_CQ" + refused + "\n", "CreateSRQ: FeatureError: uverbs: CREATE_SRQ" + refused, "GIDTable: ok\n",
			"CreateAH: ok\n", "AH.Close: ok\n", "CreateQP: ok\n", "QP.Close: ok\n", "CreateQP for datagrams: ok\n",
			"DetachMulticast: uverbs: mlx5_0: DETACH_MCAST of QP ", ": invalid argument: the QP is not attached to the group", "QP.Close: ok\n",
			"CreateQP for raw packets: FeatureError: uverbs: CREATE_QP for raw packets" + refused + "\n", "OpenXRCD: ok\n", "XRCD.Close: ok\n",
			"OpenXRCD with a file: FeatureError: uverbs: OPEN_XRCD with a file" + refused + "\n",
			"AllocDM: FeatureError: uverbs: ALLOC_DM" + refused, "NextEvent: FeatureError: uverbs: ASYNC_EVENT" + refused,
			"cm.Listen: FeatureError: cm: listen on 127.0.0.1:7471: open channel: uverbs: the connection manager (/dev/infiniband/rdma_cm)" + refused,
			"CloseAll: ok\n",
		}, []string{"in use"}},
		{"devices", strings.Fields("verbs devices"), []string{"mlx5_0", "yes", "mlx5_1", "yes"}, nil},
		{"info", strings.Fields("verbs info mlx5_0"), []string{"device: mlx5_0", "PORT_ACTIVE", "10.1.0.1, RoCE v2"}, nil},
		{"doctor", strings.Fields("verbs doctor"), []string{
			"the sandbox gVisor", "no connection manager: the sandbox gVisor does not offer it", "mlx5_0: ping-pong within this process went through, polled\n",
			"mlx5_1: ping-pong within this process went through, polled\n", "RDMA works: a ping-pong went through on mlx5_0, mlx5_1\n",
		}, []string{"error ", "warning"}},
		{"pingpong", itself(t, "pair", "verbs pingpong -d mlx5_0 -n 20", "verbs pingpong -d mlx5_1 -n 20 10.1.0.1"), []string{"client:", "20 iters in "}, nil},
		{"perf", itself(t, "pair", "verbs perf serve -d mlx5_0", "verbs perf write-bw -d mlx5_1 -s 4096 -n 100 10.1.0.1"), []string{"client:", " 4096        100 "}, nil},
		{"dial", itself(t, "dial", "127.0.0.1:7471"), []string{"*net.TCPConn", "the connection manager (/dev/infiniband/rdma_cm)" + refused, "echo \"hello\\n\"\n"}, nil},
	})
	t.Run("pingpong with events", func(t *testing.T) {
		if out, err := inGVisor(t, true, nil, "verbs", "pingpong", "-e", "-d", "mlx5_0"); err == nil || !strings.Contains(out, "CREATE_COMP_CHANNEL"+refused) {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("write", func(t *testing.T) {
		out, err := inGVisor(t, true, []string{"RDMAABI=write"}, "verbs", "info", "mlx5_0")
		if err == nil || !strings.Contains(out, "GET_CONTEXT"+refused) || !strings.Contains(out, "it refuses write(), which RDMAABI=write asks for") {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// TestGVisorSoft: software devices work without any device of the host.
func TestGVisorSoft(t *testing.T) {
	testenv.Boot(t, gvisorEnv, "containers/gvisor")
	playScenes(t, false, []string{"GOVERBS_SOFT=auto"}, []scene{
		{"devices", strings.Fields("verbs devices"), []string{"soft0", "yes"}, nil},
		{"info", strings.Fields("verbs info soft0"), []string{"device: soft0", "PORT_ACTIVE"}, nil},
		{"doctor", strings.Fields("verbs doctor"), []string{
			"the sandbox gVisor", "soft0: ping-pong within this process went through, polled and with events\n", "the connection manager connects to itself",
			"RDMA works: a ping-pong went through on soft0\n",
		}, []string{"error ", "warning"}},
		{"pingpong", itself(t, "pair", "verbs pingpong -n 20", "verbs pingpong -n 20 127.0.0.1"), []string{"client:", "20 iters in "}, nil},
		{"pingpong with events", itself(t, "pair", "verbs pingpong -e -n 20", "verbs pingpong -e -n 20 127.0.0.1"), []string{"client:", "20 iters in "}, nil},
		{"perf", itself(t, "pair", "verbs perf serve", "verbs perf write-bw -s 4096 -n 100 127.0.0.1"), []string{"client:", " 4096        100 "}, nil},
		{"dial", itself(t, "dial", "127.0.0.1:7471"), []string{"*cm.Stream, RDMAErr <nil>\n", "echo \"hello\\n\"\n"}, nil},
	})
	t.Run("no device", func(t *testing.T) {
		out, err := inGVisor(t, false, nil, "verbs", "doctor")
		if err == nil || !strings.Contains(out, "the sandbox gVisor passes on no RDMA device") || strings.Contains(out, "modprobe") || strings.Contains(out, "older than") {
			t.Errorf("%v\n%s", err, out)
		}
	})
}
