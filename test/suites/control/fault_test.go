package control

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// must fails a test on an error.
var must = testenv.Must

// openBench opens a card's test bench, of a machine that is alone.
func openBench(t *testing.T, device string) func(format string, args ...any) string {
	t.Helper()
	b, err := testenv.OpenCard(device)
	must(t, err)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return func(format string, args ...any) string {
		t.Helper()
		answer, err := b.Do(format, args...)
		must(t, err)
		return answer
	}
}

// eventually waits for what the kernel does by itself.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(program.Patience); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not after %v: %s", program.Patience, what)
		}
	}
}

// state reads a port's state, or "" if the device is not there.
func state(device string) string {
	b, err := os.ReadFile("/sys/class/infiniband/" + device + "/ports/1/state")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// TestLink: a link that goes down is a port that is down, and an event.
func TestLink(t *testing.T) {
	setting(t)
	do := openBench(t, first)
	events := watch(t, first)
	do("link down")
	events("IBV_EVENT_PORT_ERR")
	eventually(t, "the port is down", func() bool { return strings.HasSuffix(state(first), "DOWN") })
	do("link up")
	events("IBV_EVENT_PORT_ACTIVE")
	eventually(t, "the port is active", func() bool { return strings.HasSuffix(state(first), "ACTIVE") })
}

// watch runs ibv_asyncwatch, and gives a function that waits for an event.
func watch(t *testing.T, device string) func(event string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), program.Patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "ibv_asyncwatch", "-d", device)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it watches for ever
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	wait := func(event string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), event) {
				return
			}
		}
		t.Fatalf("ibv_asyncwatch has ended without %q: %v", event, lines.Err())
	}
	wait("async event FD") // it listens from here on
	return wait
}

// TestPacketFaults: lost and doubled packets cost time and nothing else.
func TestPacketFaults(t *testing.T) {
	e := setting(t)
	do := openBench(t, first)
	// Not at the end: whoever waits for the last acknowledgement waits for a program that may
	// be gone.
	for _, skip := range []int{50, 200, 400, 700} {
		do("packets drop 0 %d 3", skip)
	}
	do("packets duplicate 0 300 50")
	line := []string{"ibv_rc_pingpong", "-n", "200", "-c"}
	play(t, append(line[:4:4], e.server...), append(line[:4:4], e.client...))
}

// TestCommandFault: a command that the card refuses is an error of the verb.
func TestCommandFault(t *testing.T) {
	e := setting(t)
	do := openBench(t, first)
	do("fail-command CREATE_QP 8 0x4711 0 1")
	out := fails(t, append([]string{"ibv_rc_pingpong"}, e.server...)...)
	if !strings.Contains(out, "Couldn't create QP") {
		t.Errorf("ibv_rc_pingpong says %q", out)
	}
	// The kernel does not log commands of a user context (DEVX), which libmlx5 opens if the card supports DEVX.
	if !testenv.CardIs("devx") && !strings.Contains(kernelLog(t), "syndrome (0x4711)") {
		t.Error("the kernel's log has nothing of the syndrome")
	}
	play(t, append([]string{"ibv_rc_pingpong", "-n", "20"}, e.server...), append([]string{"ibv_rc_pingpong", "-n", "20"}, e.client...))
}

// kernelLog gives the kernel's messages.
func kernelLog(t *testing.T) string {
	t.Helper()
	b := make([]byte, 8<<20)
	n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, b)
	must(t, err)
	return string(b[:n])
}

// TestFatal: a card that dies is an event for programs, and the driver brings it up again when
// it is well.
func TestFatal(t *testing.T) {
	testenv.Tags(t, testenv.DeadCard)
	testenv.Guest(t)
	do := openBench(t, second)
	events := watch(t, second)
	do("fatal")
	events("IBV_EVENT_DEVICE_FATAL")
	do("well")
	eventually(t, "the card is back", func() bool { return do("command INIT_HCA") == "2" && state(second) != "" })
	if n := do("violations"); n != "0" {
		t.Errorf("%s violations", n)
	}
}

// TestReload unloads the drivers, which take down all that they have made on the cards, and
// loads them again.
func TestReload(t *testing.T) {
	testenv.Tags(t, testenv.DeadCard)
	testenv.Guest(t)
	var do [2]func(string, ...any) string
	for i, card := range []string{first, second} {
		do[i] = openBench(t, card)
	}
	order := []string{"mlx5_ib", "mlx5_core"}
	for _, name := range order {
		unload(t, name)
	}
	for i := range do {
		if n := do[i]("command DISABLE_HCA"); n != "1" {
			t.Errorf("card %d was disabled %s times", i, n)
		}
		if n := do[i]("violations"); n != "0" {
			t.Errorf("card %d has seen %s violations", i, n)
		}
	}
	for _, name := range []string{order[1], order[0]} {
		load(t, name)
	}
	for _, card := range []string{first, second} {
		eventually(t, card+" is there", func() bool { return state(card) != "" })
	}
	if out := program.Launch(t, "ibv_devinfo", "-d", first).Wait(t); !strings.Contains(out, "vendor_part_id:\t\t\t4120") {
		t.Errorf("ibv_devinfo says %q", out)
	}
}

// unload unloads a module.
func unload(t *testing.T, name string) {
	t.Helper()
	eventually(t, name+" is unloaded", func() bool {
		err := unix.DeleteModule(name, unix.O_NONBLOCK)
		if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EBUSY) {
			t.Fatalf("unload %s: %v", name, err)
		}
		return err == nil
	})
}

// load loads a module of the guest.
func load(t *testing.T, name string) {
	t.Helper()
	found := ""
	err := filepath.WalkDir("/lib/modules", func(path string, _ fs.DirEntry, err error) error {
		if filepath.Base(path) == name+".ko" {
			found = path
		}
		return err
	})
	if err != nil || found == "" {
		t.Fatalf("module %s: %q, %v", name, found, err)
	}
	f, err := os.Open(found)
	must(t, err)
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil {
		t.Fatalf("load %s: %v", found, err)
	}
}
