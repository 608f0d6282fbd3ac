// Package ibsim runs Debian's ibsim, a simulator of InfiniBand subnets, for tests: [Sim.Port] opens ports
// of its nodes for package umad, and [Sim.Run] and [Sim.OpenSM] run unmodified programs of
// infiniband-diags and opensm on its nodes. It needs neither root nor the kernel's RDMA.
//
// The programs are not installed: "vmrun get" unpacks their packages, and the environment variable
// GOVERBS_IBSIM names the directory. Tests are skipped without it.
//
// ibsim does not support MADs of several packets (RMPP), mixed routes, or more than 10 programs and
// ports at a time.
//
// [Answers] is a port without a subnet, whose answers a test makes. It needs no program. The package
// test/suites/fabric has ports of the subnet that belongs to the ConnectX model.
package ibsim

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Env is the name of the environment variable with the directory of the unpacked packages.
const Env = "GOVERBS_IBSIM"

// Sim is a running simulator. It ends with the test.
type Sim struct {
	t     testing.TB
	root  string // of the unpacked packages
	lib   string // the directory of the libraries
	dir   string // for files
	base  string // of the names of sockets
	stdin io.Writer
	out   *bufio.Reader

	clients atomic.Int32 // how many ports were opened
}

// number distinguishes the simulators of this process.
var number atomic.Int32

// Start simulates a subnet. The topology has the format that ibnetdiscover prints. Nodes are named by the
// first quoted word of their paragraph, such as "H-0000000000100000"; without GUIDs in the topology ibsim
// chooses them, and a name without a dash is the node description too.
func Start(t testing.TB, topology string) *Sim {
	t.Helper()
	root := os.Getenv(Env)
	if root == "" {
		t.Skip(Env + " is not set: the runner's suite fabric has ibsim")
	}
	s := &Sim{t: t, root: root, dir: t.TempDir(), base: fmt.Sprintf("goverbs-%d-%d", os.Getpid(), number.Add(1))}
	libs, err := filepath.Glob(filepath.Join(root, "usr/lib/*/umad2sim/libumad2sim.so"))
	if err != nil || len(libs) != 1 {
		t.Fatalf("%s is %s, where umad2sim is %q (%v)", Env, root, libs, err)
	}
	s.lib = filepath.Dir(filepath.Dir(libs[0]))
	net := filepath.Join(s.dir, "net")
	if err := os.WriteFile(net, []byte(topology), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := s.command(false, "bin/ibsim", "-s", net)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, in := io.Pipe() // unlike cmd.StdoutPipe, it is not closed before everything was read
	cmd.Stdout = in
	s.stdin, s.out = stdin, bufio.NewReader(out)
	ended := s.start(cmd)
	go func() {
		<-ended
		in.Close()
	}()
	if text, err := s.answer(); err != nil || !strings.Contains(text, "Network simulator ready") {
		t.Fatalf("ibsim: %v\n%s", err, text)
	}
	return s
}

// loader returns the path of the dynamic loader, which the packages have too: programs do not depend on
// the C library of this machine.
func (s *Sim) loader() string {
	all, _ := filepath.Glob(filepath.Join(s.lib, "ld-linux-*.so.*"))
	if len(all) != 1 {
		s.t.Fatalf("the loader in %s is %q", s.lib, all)
	}
	return all[0]
}

// command returns the command for a program below usr. With preload, calls of umad go to the simulator.
func (s *Sim) command(preload bool, program string, args ...string) *exec.Cmd {
	words := []string{"--library-path", s.lib}
	if preload {
		words = append(words, "--preload", filepath.Join(s.lib, "umad2sim/libumad2sim.so"))
	}
	words = append(words, filepath.Join(s.root, "usr", program))
	cmd := exec.Command(s.loader(), append(words, args...)...)
	cmd.Dir = s.dir // where umad2sim makes its files
	cmd.Env = append(os.Environ(), "IBSIM_SOCKNAME="+s.base, "OSM_CACHE_DIR="+s.dir, "OSM_TMP_DIR="+s.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// start starts a program, which ends with the test. The channel is closed when it has ended.
func (s *Sim) start(cmd *exec.Cmd) (ended chan struct{}) {
	s.t.Helper()
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	ended = make(chan struct{})
	go func() {
		cmd.Wait()
		close(ended)
	}()
	s.t.Cleanup(func() {
		cmd.Process.Kill()
		<-ended
	})
	return ended
}

// prompt is what the console prints when it waits for a command.
const prompt = "sim> "

// answer reads what the console prints until it waits for the next command.
func (s *Sim) answer() (string, error) {
	var b []byte
	for !bytes.HasSuffix(b, []byte(prompt)) {
		c, err := s.out.ReadByte()
		if err != nil {
			return string(b), err
		}
		b = append(b, c)
	}
	return strings.TrimSuffix(string(b), prompt), nil
}

// Do gives the simulator's console a command, such as `Unlink "S1"[3]` or `Relink "S1"[3]`, and returns
// what it prints. It must not be called concurrently.
func (s *Sim) Do(command string) string {
	s.t.Helper()
	if _, err := io.WriteString(s.stdin, command+"\n"); err != nil {
		s.t.Fatal(err)
	}
	text, err := s.answer()
	if err != nil {
		s.t.Fatalf("%s: %v", command, err)
	}
	return text
}

// runTries is how often a program is started: umad2sim crashes now and then as a program starts.
const runTries = 5

// Run runs a program of infiniband-diags on a node and returns what it writes to standard output and to
// standard error. The error has its exit status.
func (s *Sim) Run(node, program string, args ...string) (stdout, stderr string, err error) {
	s.t.Helper()
	for range runTries {
		cmd := s.command(true, "sbin/"+program, args...)
		cmd.Env = append(cmd.Env, "SIM_HOST="+node)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		err = cmd.Run()
		stdout, stderr = out.String(), errs.String()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || !exit.Sys().(syscall.WaitStatus).Signaled() {
			break
		}
	}
	if err != nil {
		err = fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err)
	}
	return stdout, stderr, err
}

// Output is Run for a program that must succeed, and returns what it writes to standard output.
func (s *Sim) Output(node, program string, args ...string) string {
	s.t.Helper()
	out, errs, err := s.Run(node, program, args...)
	if err != nil {
		s.t.Fatalf("%v\n%s%s", err, errs, out)
	}
	return out
}

// OpenSM is a running subnet manager.
type OpenSM struct {
	cmd   *exec.Cmd
	log   *lockedLog
	ended chan struct{}
}

// OpenSM starts opensm on a node, and waits until it has brought up the subnet unless standby is set:
// then it waits until it is ready to take over.
func (s *Sim) OpenSM(node string, standby bool, args ...string) *OpenSM {
	s.t.Helper()
	want := "SUBNET UP"
	if standby {
		want = "Entering STANDBY state"
	}
	var log string
	for range runTries {
		cmd := s.command(true, "sbin/opensm", append([]string{"-f", "stdout"}, args...)...)
		cmd.Env = append(cmd.Env, "SIM_HOST="+node)
		m := &OpenSM{cmd: cmd, log: newLog(want)}
		cmd.Stdout, cmd.Stderr = m.log, m.log
		m.ended = s.start(cmd)
		select {
		case <-m.log.found:
			return m
		case <-m.ended: // the crash of umad2sim
			log = fmt.Sprintf("%v\n%s", cmd.ProcessState, m.log)
		case <-time.After(time.Minute):
			s.t.Fatalf("opensm did not say %q:\n%s", want, m.log)
		}
	}
	s.t.Fatalf("opensm ends at once, %d times: %s", runTries, log)
	return nil
}

// Kill ends the subnet manager at once, as a crash would, and returns when its sockets are gone.
func (m *OpenSM) Kill() error {
	err := m.cmd.Process.Kill()
	<-m.ended
	return err
}

// Pause stops the subnet manager until [OpenSM.Resume].
func (m *OpenSM) Pause() error { return m.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume has the subnet manager go on after [OpenSM.Pause].
func (m *OpenSM) Resume() error { return m.cmd.Process.Signal(syscall.SIGCONT) }

// Log returns what the subnet manager has written so far.
func (m *OpenSM) Log() string { return m.log.String() }

// WaitFor waits until the log has a text, and reports whether it came within a time.
func (m *OpenSM) WaitFor(text string, limit time.Duration) bool {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if strings.Contains(m.log.String(), text) {
			return true
		}
	}
	return false
}
