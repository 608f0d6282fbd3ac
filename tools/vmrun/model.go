package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// statusModel says that the programs are well, but a driver did to a modelled card what it
// must not.
const statusModel = 123

// modelTimeout is how long the model may take to see that its guests are gone.
const modelTimeout = 3 * time.Second

// model is the process that plays the cards of all guests, which one fabric joins.
type model struct {
	cmd   *exec.Cmd
	done  chan struct{}
	err   error      // valid when done is closed
	ends  []*os.File // what the guests connect to
	lines *prefixed
}

// findModel gives the path of the program: the one that is named, the one beside vmrun, or one
// in PATH.
func (o *options) findModel() (string, error) {
	if o.hca != "" {
		return exec.LookPath(o.hca)
	}
	name := o.modelled().program()
	if self, err := os.Executable(); err == nil {
		path := filepath.Join(filepath.Dir(self), name)
		if _, err := exec.LookPath(path); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("-device %s needs the program %s (make build), beside vmrun, in PATH or named with -hca: %w", o.modelled().kind, name, err)
	}
	return path, nil
}

// personalityEnv is the variable that tells programs in the guest in words in what the cards
// differ from usual ones.
const personalityEnv = "VMRUN_PERSONALITY"

// drawPersonality asks the model which personality the cards shall have, and puts it into the
// programs' environment. One that is drawn is drawn here, so that all guests know it.
func (a *app) drawPersonality(ctx context.Context) error {
	for i := range a.devices {
		p := &a.devices[i].personality
		if *p == "" {
			continue
		}
		path, err := a.findModel()
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, path, "-describe", "-personality", *p)
		cmd.Stderr = a.stderr
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("-device %s: %s: %w", a.dev, path, err)
		}
		words := strings.Fields(string(out))
		if len(words) == 0 {
			return fmt.Errorf("-device %s: %s says nothing of personality %s", a.dev, path, *p)
		}
		*p = words[0]
		a.env = append(a.env, personalityEnv+"="+strings.Join(words, " "))
	}
	return nil
}

// startModel starts the program with one socket for each card of each guest. It gives nil
// if there are no cards.
func (a *app) startModel(guests int) (*model, error) {
	n := guests * a.cards()
	if n == 0 {
		return nil, nil
	}
	path, err := a.findModel()
	if err != nil {
		return nil, err
	}
	m := &model{done: make(chan struct{}), lines: &prefixed{w: a.stderr, prefix: a.modelled().program() + ": "}}
	args := a.modelled().model()
	if p := a.modelled().personality; p != "" {
		args = append(args, "-personality", p)
	}
	if a.modelled().strict {
		args = append(args, "-strict")
	}
	if a.hcaReport != "" {
		args = append(args, "-report", a.hcaReport)
	}
	if a.hcaVerbose {
		args = append(args, "-verbose")
	}
	link, err := a.fabric()
	if err != nil {
		return nil, err
	}
	args = append(args, link...)
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	for i := range n {
		listener, door, err := socket()
		if err != nil {
			m.closeEnds()
			return nil, err
		}
		m.ends, theirs = append(m.ends, door), append(theirs, listener)
		args = append(args, "fd:"+strconv.Itoa(3+i))
	}
	m.cmd = exec.Command(path, args...)
	m.cmd.ExtraFiles = theirs
	m.cmd.Stdout, m.cmd.Stderr = m.lines, m.lines
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error)
	go func() {
		// As with QEMU: the thread that starts the process must stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := m.cmd.Start()
		started <- err
		if err == nil {
			m.err = m.cmd.Wait()
			close(m.done)
		}
	}()
	if err := <-started; err != nil {
		m.closeEnds()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// socket makes a socket that is listened to, and what can be connected to as /proc/self/fd/N
// by whoever has it: QEMU connects to a path only, and this one leaves nothing behind.
func socket() (listener, door *os.File, err error) {
	dir, err := os.MkdirTemp("", "vmrun")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "card")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if listener, err = l.File(); err != nil {
		return nil, nil, err
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		listener.Close()
		return nil, nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return listener, os.NewFile(uintptr(fd), path), nil
}

// fabric gives the model's flags for what -loss and -delay ask for.
func (a *app) fabric() ([]string, error) {
	n, err := a.netem()
	if err != nil {
		return nil, err
	}
	var args []string
	if n.Loss > 0 {
		args = append(args, "-loss", strconv.FormatFloat(float64(n.Loss)/100, 'g', -1, 64))
	}
	if n.Delay > 0 {
		args = append(args, "-delay", n.Delay.String())
	}
	return args, nil
}

// endsOf gives the sockets of one guest's cards.
func (m *model) endsOf(guest, guests int) []*os.File {
	if m == nil {
		return nil
	}
	n := len(m.ends) / guests
	return m.ends[guest*n : (guest+1)*n]
}

func (m *model) closeEnds() {
	for _, f := range m.ends {
		f.Close()
	}
}

// finish waits until the model, whose guests are gone, has written its report, and gives the
// status of the run.
func (m *model) finish(status int) (int, error) {
	if m == nil {
		return status, nil
	}
	m.closeEnds()
	select {
	case <-m.done:
	case <-time.After(modelTimeout):
		// It waits for a guest that never came.
		_ = m.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-m.done:
		case <-time.After(modelTimeout):
			m.kill()
			return 0, errors.New("the model of the cards does not end")
		}
	}
	m.lines.flush()
	var exit *exec.ExitError
	switch {
	case m.err == nil:
		return status, nil
	case errors.As(m.err, &exit) && exit.ExitCode() == 1:
		if status == 0 {
			status = statusModel
		}
		return status, nil
	}
	return 0, fmt.Errorf("the model of the cards: %w", m.err)
}

// kill ends the model at once.
func (m *model) kill() {
	if m == nil {
		return
	}
	_ = m.cmd.Process.Kill() // it may be gone already
	m.closeEnds()
	<-m.done
}
