package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// must fails a test on an error.
var must = testenv.Must

// programEnv makes the test binary run as the program.
const programEnv = "GOVERBS_BROKER"

func init() {
	if os.Getenv(programEnv) != "" {
		main()
		os.Exit(0)
	}
}

// command returns a command line of the program, to run as a user.
func command(ctx context.Context, uid uint32, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, "/proc/self/exe", args...)
	c.Env = append(os.Environ(), programEnv+"=1")
	if uid != 0 {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	return c
}

// restrict leaves the file of a device to root, until the end of the test.
func restrict(t *testing.T, name string) {
	t.Helper()
	infos, err := uverbs.Devices()
	must(t, err)
	for _, d := range infos {
		if d.Name != name {
			continue
		}
		info, err := os.Stat(d.CharDev)
		if err == nil {
			err = os.Chmod(d.CharDev, 0o600)
		}
		must(t, err)
		t.Cleanup(func() { os.Chmod(d.CharDev, info.Mode()) })
		return
	}
	t.Fatalf("%s is not listed", name)
}

// borrower connects to a broker, and waits until it has lent a page.
func borrower(t *testing.T, socket string) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err == nil {
		_, err = io.ReadAtLeast(conn, make([]byte, 256), 1)
	}
	must(t, err)
	return conn
}

// TestBroker: workers of another user, who may not open the device, write into the broker's memory at the same time.
// One that goes away without a word does no harm.
func TestBroker(t *testing.T) {
	testenv.Guest(t)
	rig := testenv.TheRig()
	const nobody, workers = 65534, 4
	restrict(t, rig.Devices[0])
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("/tmp", "broker")
	must(t, err)
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "socket")
	broker := command(ctx, 0, "-socket", socket, "-device", rig.Devices[0])
	out, err := broker.StdoutPipe()
	must(t, err)
	broker.Stderr = os.Stderr
	must(t, broker.Start())
	lines := bufio.NewReader(out)
	said := func() string {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("the broker says %q, %v", line, err)
		}
		return line
	}
	if line := said(); !strings.Contains(line, "lending memory of "+rig.Devices[0]) {
		t.Errorf("the broker says %q", line)
	}
	must(t, errors.Join(os.Chmod(dir, 0o755), os.Chmod(socket, 0o666)))
	gone := borrower(t, socket)
	gone.Close()
	if line := said(); !strings.Contains(line, "it ended before it was done") {
		t.Errorf("the broker says %q of a worker that is gone", line)
	}
	ended := make(chan error, workers)
	for i := range workers {
		go func() {
			out, err := command(ctx, nobody, "-socket", socket, "-work", fmt.Sprintf("words of worker %d", i)).CombinedOutput()
			if want := fmt.Sprintf("wrote \"words of worker %d\"\n", i); err != nil || string(out) != want {
				err = fmt.Errorf("worker %d: %v: %q, want %q", i, err, out, want)
			}
			ended <- err
		}()
	}
	var wrote string
	for range workers {
		must(t, <-ended)
		wrote += said()
	}
	for i := range workers {
		if want := fmt.Sprintf("a worker wrote \"words of worker %d\"\n", i); !strings.Contains(wrote, want) {
			t.Errorf("the broker says\n%s\nwant %s", wrote, want)
		}
	}
	for range pages - 1 { // the first one's page is lost
		defer borrower(t, socket).Close()
	}
	late, err := command(ctx, nobody, "-socket", socket, "-work", "no page").CombinedOutput()
	if err == nil || !bytes.Contains(late, []byte("no page for this worker")) {
		t.Errorf("one worker too many: %v\n%s", err, late)
	}
	if out, err := command(ctx, nobody, "-socket", socket+"2", "-device", rig.Devices[0]).CombinedOutput(); err == nil || !bytes.Contains(out, []byte("permission denied")) {
		t.Errorf("an ordinary user can open the device: %v\n%s", err, out)
	}
	must(t, broker.Process.Signal(os.Interrupt))
	if err := broker.Wait(); err != nil {
		t.Errorf("the broker ends with %v", err)
	}
	if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

// TestBrokerRefused: wrong command lines, a device that has no file, and a broker that is not there.
func TestBrokerRefused(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	wrong := map[string][]string{
		"-socket is empty":      {"-work", "text"},
		"there are 1 arguments": {"-socket", "a", "b"},
		"-work has 4097 bytes":  {"-socket", "a", "-work", strings.Repeat("x", 4097)},
		"no such file":          {"-socket", filepath.Join(dir, "none"), "-work", "text"},
	}
	if os.Getenv(testenv.GuestEnv) != "1" { // there the first device is one of the kernel
		wrong["File of a software device"] = []string{"-socket", filepath.Join(dir, "socket")}
	}
	for want, args := range wrong {
		c := command(ctx, 0, args...)
		c.Env = append(c.Env, "GOVERBS_SOFT=auto")
		if out, err := c.CombinedOutput(); err == nil || !bytes.Contains(out, []byte(want)) {
			t.Errorf("%q: %v\n%s, want %q", args, err, out, want)
		}
	}
}
