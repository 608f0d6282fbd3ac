package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/tools/verbs/internal/top"
)

// leaveScreen is how a terminal gets its cursor and its own screen back.
const leaveScreen = "\x1b[?25h\x1b[?1049l"

// fleetRecord is a record of "verbs top".
const fleetRecord = "internal/top/testdata/fleet.json"

// tty is a pseudo terminal in which a program runs, and what it shows.
type tty struct {
	t      *testing.T
	master *os.File
	slave  *os.File
	cmd    *exec.Cmd
	before unix.Termios // the modes before it began
	ended  chan struct{}
	err    error // of the program; valid when ended is closed

	mu     sync.Mutex
	lines  [][]rune
	x, y   int
	sent   string // guarded by mu; everything
	change chan struct{}
}

// startTTY runs a command in a terminal.
func startTTY(t *testing.T, cmd *exec.Cmd, width, height int) *tty {
	t.Helper()
	master, slave := testenv.PTY(t, os.O_RDWR)
	s := &tty{t: t, master: master, slave: slave, cmd: cmd, ended: make(chan struct{}), change: make(chan struct{}, 1)}
	s.resize(width, height)
	s.before = s.mode()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
	cmd.Env = append(cmd.Env, "TERM=xterm", "LC_ALL=C.UTF-8", "NO_COLOR=")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go s.read()
	go func() {
		s.err = cmd.Wait()
		close(s.ended)
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-s.ended
		slave.Close()
		master.Close()
	})
	return s
}

// resize changes the size of the terminal.
func (s *tty) resize(width, height int) {
	s.mu.Lock()
	s.lines = make([][]rune, height)
	for i := range s.lines {
		s.lines[i] = []rune(strings.Repeat(" ", width))
	}
	s.mu.Unlock()
	if err := unix.IoctlSetWinsize(int(s.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(height), Col: uint16(width)}); err != nil {
		s.t.Fatal(err)
	}
}

// sequences are what verbs top may send to the terminal: positions, erasing, colours and modes.
var sequences = regexp.MustCompile(`^\x1b\[([?0-9;]*)([HJKmhl])`)

// read shows what the program sends.
func (s *tty) read() {
	b := make([]byte, 1<<16)
	var rest string
	for {
		n, err := s.master.Read(b)
		if err != nil {
			return
		}
		s.mu.Lock()
		s.sent += string(b[:n])
		rest = s.show(rest + string(b[:n]))
		s.mu.Unlock()
		select {
		case s.change <- struct{}{}:
		default:
		}
	}
}

// show interprets what was sent, and returns what is cut off at its end.
func (s *tty) show(text string) string {
	for text != "" {
		if text[0] == 0x1b {
			m := sequences.FindStringSubmatch(text)
			if m == nil {
				return text
			}
			text = text[len(m[0]):]
			switch m[2] {
			case "H":
				row, column, _ := strings.Cut(m[1], ";")
				y, _ := strconv.Atoi(row)
				x, _ := strconv.Atoi(column)
				s.y, s.x = y-1, x-1
			case "K":
				s.erase(s.y, s.x)
			case "J":
				for y := range s.lines {
					s.erase(y, 0)
				}
			}
			continue
		}
		r := []rune(text[:min(4, len(text))])[0]
		if r == '�' {
			return text
		}
		text = text[len(string(r)):]
		if s.y < len(s.lines) && s.x < len(s.lines[s.y]) && r >= ' ' {
			s.lines[s.y][s.x] = r
		}
		s.x++
	}
	return ""
}

func (s *tty) erase(y, x int) {
	for ; y < len(s.lines) && x < len(s.lines[y]); x++ {
		s.lines[y][x] = ' '
	}
}

// screen returns the text of the screen.
func (s *tty) screen() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var text string
	for _, l := range s.lines {
		text += strings.TrimRight(string(l), " ") + "\n"
	}
	return text
}

// until waits until the screen is as wanted.
func (s *tty) until(what string, right func(screen string) bool) {
	s.t.Helper()
	late := time.After(time.Minute)
	for !right(s.screen()) {
		select {
		case <-s.change:
		case <-time.After(20 * time.Millisecond): // what is no output
		case <-s.ended:
			s.t.Fatalf("the program ended (%v) before %s:\n%s", s.err, what, s.screen())
		case <-late:
			s.t.Fatalf("no %s:\n%s", what, s.screen())
		}
	}
}

// shows waits until the screen has some texts.
func (s *tty) shows(texts ...string) {
	s.t.Helper()
	s.until(fmt.Sprintf("%q", texts), func(screen string) bool {
		for _, text := range texts {
			if !strings.Contains(screen, text) {
				return false
			}
		}
		return true
	})
}

// press sends keys.
func (s *tty) press(keys string) {
	s.t.Helper()
	if _, err := s.master.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

// mode returns the modes of the terminal.
func (s *tty) mode() unix.Termios {
	s.t.Helper()
	mode, err := unix.IoctlGetTermios(int(s.slave.Fd()), unix.TCGETS)
	if err != nil {
		s.t.Fatal(err)
	}
	return *mode
}

// left checks that the program ends, and leaves the terminal as it was.
func (s *tty) left() {
	s.t.Helper()
	select {
	case <-s.ended:
	case <-time.After(time.Minute):
		s.t.Fatal("the program does not end")
	}
	if s.err != nil {
		s.t.Errorf("it ends with %v:\n%s", s.err, s.screen())
	}
	if s.mode() != s.before {
		s.t.Errorf("afterwards the modes of the terminal are\n%+v, want\n%+v", s.mode(), s.before)
	}
	for late := time.After(time.Minute); ; { // what it has sent may be read after its end
		s.mu.Lock()
		left := strings.Contains(s.sent, leaveScreen)
		s.mu.Unlock()
		if left {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-late:
			s.t.Fatalf("no other screen with the cursor:\n%s", s.screen())
		}
	}
}

// TestTopReplay: in a terminal a record is shown; keys pause it, go through tables and pages, and filter; the screen
// follows the size of the terminal; and at the end the terminal is as it was.
func TestTopReplay(t *testing.T) {
	s := startTTY(t, softCommand(t, "", "top", fleetRecord), 80, 24)
	s.shows("RX+TX 10s", ">mlx5_0/1", "no counter of errors", "ceph-osd", " tab table ")
	if s.mode().Lflag&unix.ICANON != 0 {
		t.Error("the terminal waits for whole lines")
	}
	s.press(" ")
	s.shows("paused; space: go on, n: the next reading")
	for i := 0; i < 40 && !strings.Contains(s.screen(), "DOWN -> ACTIVE"); i++ {
		seen := strings.Split(s.screen(), "\n")[0]
		s.press("n")
		s.until("the next reading", func(screen string) bool { return !strings.HasPrefix(screen, seen) })
	}
	s.shows("10:00:30", "mlx5_1/1   out_of_sequence", "state DOWN -> ACTIVE", "+2")
	s.press("\t\t\x1b[B\r") // opens the second process
	s.shows(">   4711 trainer", "QP 104  RC  RTS  mlx5_1/1  peer QP 7004")
	s.resize(40, 14)
	s.until("a screen of 14 lines", func(screen string) bool {
		lines := strings.Split(screen, "\n")
		return strings.HasPrefix(lines[13], " tab table  enter open") && strings.HasSuffix(lines[13], "~") && strings.Contains(screen, "trainer")
	})
	s.resize(80, 24)
	s.shows("QP 104", "REGISTERED")
	s.press("\x1b[B\r")
	s.shows("QP 100 of mlx5_0/1", "state    RTS", "peer     QP 7000")
	s.press("\x1b") // alone it is the key esc
	s.shows(">          QP 100")
	s.press("/5_2\r")
	s.until("only mlx5_2", func(screen string) bool {
		return strings.Contains(screen, "filter: 5_2") && !strings.Contains(screen, "mlx5_0")
	})
	s.press("?")
	s.shows("REGISTERED is the memory of MRs")
	s.press("q")
	s.left()
	if strings.Contains(s.sent, "\x1b[31mtest") || strings.Contains(s.sent, "trainer\x1b[31m") {
		t.Error("control characters of the record reach the terminal")
	}
}

// TestTopSignals: the terminal is as before while the program is stopped, and after it was ended by a signal or by
// Ctrl-C.
func TestTopSignals(t *testing.T) {
	for _, end := range []func(*tty){
		func(s *tty) { s.cmd.Process.Signal(syscall.SIGTERM) },
		func(s *tty) { s.press("\x03") },
		func(s *tty) { s.cmd.Process.Signal(syscall.SIGHUP) },
		func(s *tty) { // Go's runtime prints the goroutines
			s.cmd.Process.Signal(syscall.SIGQUIT)
			<-s.ended
			if !strings.Contains(s.err.Error(), "exit status 2") {
				s.t.Errorf("after SIGQUIT it ends with %v", s.err)
			}
			s.err = nil
		},
	} {
		s := startTTY(t, softCommand(t, fmt.Sprintf("127.0.0.1:%d", freeUDP(t)), "top", "--interval", "100ms", "--no-color"), 80, 24)
		s.shows("soft0/1    ACTIVE", "the kernel knows no objects of software devices")
		raw := s.mode()
		s.press("\x1a") // Ctrl-Z
		s.until("stop", func(string) bool {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
			return err == nil && strings.Contains(string(text), ") T ") && s.mode() == s.before
		})
		s.mu.Lock()
		s.show("\x1b[2J") // what the shell shows meanwhile
		s.mu.Unlock()
		s.cmd.Process.Signal(syscall.SIGCONT)
		s.shows("soft0/1    ACTIVE", " tab table ")
		s.mu.Lock()
		_, stopped, _ := strings.Cut(s.sent, leaveScreen)
		s.mu.Unlock()
		if !strings.HasPrefix(stopped, "\x1b[?1049h") {
			t.Errorf("while it is stopped it sends %.40q", stopped)
		}
		if s.mode() != raw {
			t.Errorf("after Ctrl-Z and fg the modes of the terminal are\n%+v, want\n%+v", s.mode(), raw)
		}
		end(s)
		s.left()
		if regexp.MustCompile(`\x1b\[[1-9][0-9]*m`).MatchString(s.sent) {
			t.Error("there are colours with --no-color")
		}
	}
}

// TestTopOnce: without a terminal it prints text or JSON, and a record of it can be replayed.
func TestTopOnce(t *testing.T) {
	soft := fmt.Sprintf("127.0.0.1:%d,name=left", freeUDP(t))
	file := filepath.Join(t.TempDir(), "record")
	out, err := softRun(t, soft, "top", "--once", "--interval", "100ms", "--record", file)
	for _, want := range []string{"every 100ms", "\n left/1     ACTIVE", "RX pkt/s"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("--once prints no %q: %v\n%s", want, err, out)
		}
	}
	again, err := softRun(t, "", "top", file, "--once", "--json")
	var r top.Report
	if err := json.Unmarshal([]byte(again), &r); err != nil || len(r.Ports) != 1 || r.Ports[0].Device != "left" || r.Ports[0].RxBytes == nil || r.Seconds < 0.1 {
		t.Errorf("the record prints %v, %s", err, again)
	}
	if err != nil {
		t.Error(err)
	}
	// The disk was full before the last line ended: the rest is shown.
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, text[:len(text)-9], 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	const left = ": line 2: it was cut off, and is left out\n"
	if out, err = softRun(t, "", "top", file, "--once"); err != nil || !strings.Contains(out, "\n left/1     ACTIVE") || !strings.HasSuffix(out, left) {
		t.Errorf("a record that was cut off prints %v\n%s", err, out)
	}
	const full = "and has 9 bytes; --force overwrites it\n"
	if err = os.WriteFile(file, []byte("precious\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err = softRun(t, soft, "top", "--once", "--record", file); err == nil || !strings.HasSuffix(out, full) {
		t.Errorf("a file that exists is overwritten: %v\n%s", err, out)
	}
	if text, _ := os.ReadFile(file); string(text) != "precious\n" {
		t.Errorf("the file has %q after the error", text)
	}
	if out, err = softRun(t, soft, "top", "--once", "--interval", "100ms", "--record", file, "--force"); err != nil {
		t.Errorf("--force: %v\n%s", err, out)
	}
	if out, err = softRun(t, "", "top", file, "--once"); err != nil {
		t.Errorf("after --force the record is refused: %v\n%s", err, out)
	}
	if out, err = softRun(t, "", "top", fleetRecord, "--json"); err != nil || strings.Count(out, "\n") != 39 {
		t.Errorf("the record of 40 readings prints %d lines, want 39: %v", strings.Count(out, "\n"), err)
	}
}

// TestTopErrors: what is wrong with the command line or the record is named.
func TestTopErrors(t *testing.T) {
	soft := fmt.Sprintf("127.0.0.1:%d,name=left", freeUDP(t))
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, []byte(`{"elapsed_us":0,"ports":[{"device":7}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   string
		status int
		want   string
	}{
		{"--interval 99ms", 2, "--interval is 99ms, allowed: 100ms to 1h0m0s"},
		{"--interval 2h", 2, "--interval is 2h0m0s, allowed: 100ms to 1h0m0s"},
		{"--force", 2, "--force is given without --record, allowed: with it"},
		{"--json --no-color", 2, "--no-color is given with --json, allowed: without it"},
		{"--dev right", 2, `--dev is "right", allowed: left`},
		{"a b", 2, `the arguments of verbs top are "a b", allowed: at most 1`},
		{fleetRecord + " --dev left", 2, `--dev is given with the record "` + fleetRecord + `", allowed: without one`},
		{"left", 1, "open left: no such file or directory; to show only the device left: verbs top --dev left"},
		{bad + " --once", 1, bad + ": line 1: ports.device is a number, allowed: a string"},
	} {
		out, err := softRun(t, soft, append([]string{"top"}, strings.Fields(c.args)...)...)
		exit, _ := err.(*exec.ExitError)
		if exit == nil || exit.ExitCode() != c.status || !strings.Contains(out, c.want) {
			t.Errorf("verbs top %s: %v, %s want status %d, %s", c.args, err, out, c.status, c.want)
		}
	}
}
