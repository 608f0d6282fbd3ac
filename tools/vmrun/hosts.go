package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/goverbs/goverbs/tools/vmrun/internal/frame"
	"github.com/goverbs/goverbs/tools/vmrun/internal/guest"
	"github.com/goverbs/goverbs/tools/vmrun/internal/qemu"
)

// hostSeparator stands between the programs of two hosts on the command line.
const hostSeparator = "+++"

// splitHosts splits the arguments into the programs of each host. What is said
// once is for all of them.
func splitHosts(args []string, hosts int) ([][][]string, error) {
	var all [][][]string
	for rest, more := args, true; more; {
		one := rest
		i := slices.Index(rest, hostSeparator)
		if more = i >= 0; more {
			one, rest = rest[:i], rest[i+1:]
		}
		progs, err := splitPrograms(one)
		if err != nil {
			return nil, err
		}
		all = append(all, progs)
	}
	switch {
	case len(all) == hosts:
		return all, nil
	case len(all) == 1:
		return slices.Repeat(all, hosts), nil
	case hosts == 1:
		return nil, fmt.Errorf("%q separates the programs of two hosts, and there is one: see -hosts 2", hostSeparator)
	}
	return nil, fmt.Errorf("programs for %d hosts, and there are %d: %q separates those of two", len(all), hosts, hostSeparator)
}

// hostEnv adds to the environment what tells a program its role.
func hostEnv(env []string, host int) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(e string) bool {
		return strings.HasPrefix(e, guest.HostVar+"=") || strings.HasPrefix(e, guest.PeerVar+"=")
	})
	return append(env, guest.HostVar+"="+strconv.Itoa(host), guest.PeerVar+"="+guest.PeerIP(host))
}

// grace is how long a host may go on when the programs of the other have failed.
const grace = 5 * time.Second

// pair keeps the machines of two hosts together. Their programs start when both
// are ready; a machine stays until the programs of both have ended; and one that is
// left alone is stopped.
type pair struct {
	grace time.Duration
	mu    sync.Mutex
	sides [2]*side
}

// side is what a pair knows of one host. A nil side is that of a machine that is
// alone.
type side struct {
	pair    *pair
	send    func(frame.Kind, []byte)
	stopped event // the other host has failed

	passed int  // number of barriers behind it: 1 when the programs run, 2 when they have ended on both
	waits  bool // it is at a barrier
	gone   bool
	failed bool
}

func newPair(grace time.Duration) *pair {
	p := &pair{grace: grace}
	for i := range p.sides {
		p.sides[i] = &side{pair: p, stopped: event{ch: make(chan struct{})}}
	}
	return p
}

// arrive is called when the host has come to a barrier, and may be told to go on
// at once. Failed says whether its programs, if they have run, did.
func (s *side) arrive(failed bool) error {
	if s == nil {
		return frame.ErrFormat
	}
	s.pair.mu.Lock()
	defer s.pair.mu.Unlock()
	if s.waits || s.passed >= 2 {
		return frame.ErrFormat
	}
	s.waits, s.failed = true, failed
	s.pair.settle()
	return nil
}

// leave is called when the host's machine has ended.
func (s *side) leave(failed bool) {
	if s == nil {
		return
	}
	s.pair.mu.Lock()
	defer s.pair.mu.Unlock()
	s.gone, s.failed = true, s.failed || failed
	s.pair.settle()
}

// waiting reports whether the host waits for the other one.
func (s *side) waiting() bool {
	if s == nil {
		return false
	}
	s.pair.mu.Lock()
	defer s.pair.mu.Unlock()
	return s.waits
}

// stop is closed when the host must stop because of the other one.
func (s *side) stop() <-chan struct{} {
	if s == nil {
		return nil
	}
	return s.stopped.ch
}

// settle decides who may go on and who must stop.
func (p *pair) settle() {
	alone := slices.ContainsFunc(p.sides[:], func(s *side) bool { return s.gone && s.passed == 0 })
	failed := slices.ContainsFunc(p.sides[:], func(s *side) bool { return s.failed && (s.gone || s.waits) })
	all := !slices.ContainsFunc(p.sides[:], func(s *side) bool { return !s.gone && !s.waits })
	for _, s := range p.sides {
		switch {
		case s.gone:
		case s.passed == 0 && alone:
			s.stopped.happen()
		case all:
			s.waits = false
			s.passed++
			s.send(frame.Go, nil)
		case s.passed == 1 && !s.waits && failed:
			time.AfterFunc(p.grace, func() { p.expire(s) })
		}
	}
}

// expire stops a host whose programs still run.
func (p *pair) expire(s *side) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.passed == 1 && !s.waits {
		s.stopped.happen()
	}
}

// sessions makes what is needed to boot the hosts once.
func (a *app) sessions(im *image) ([]*session, error) {
	if len(im.hosts) == 1 {
		return []*session{newSession(im.hosts[0], a.logf, a.verbose)}, nil
	}
	var link [2]*os.File
	if a.net != guest.NetRoCE {
		var err error
		if link, err = qemu.Link(); err != nil {
			return nil, err
		}
	}
	p := newPair(grace)
	var all []*session
	for i, h := range im.hosts {
		host := i + 1
		s := newSession(h, a.forHost(host).logf, a.verbose)
		s.host, s.side, s.link = host, p.sides[i], link[i]
		s.side.send = s.send
		if host > 1 {
			s.stdin = strings.NewReader("")
		}
		prefix := strconv.Itoa(host) + ": "
		s.stdout, s.stderr = &prefixed{w: os.Stdout, prefix: prefix}, &prefixed{w: os.Stderr, prefix: prefix}
		if a.verbose {
			s.console.echo, s.kernlog.echo = "host "+prefix+"console", "host "+prefix+"kernel"
		}
		all = append(all, s)
	}
	return all, nil
}

// bootAll boots every host, and returns when all machines have ended.
func (a *app) bootAll(ctx context.Context, p *qemu.Program, o qemu.Options, all []*session) error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, s := range all {
		wg.Go(func() { errs[i] = s.boot(ctx, p, o, a.timeout) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// forHost gives an app that names the host in what it says.
func (a *app) forHost(host int) *app {
	h := *a
	h.prefix = fmt.Sprintf("host %d: ", host)
	return &h
}

// judge turns what came of all hosts into messages and an exit status.
func (a *app) judge(ctx context.Context, all []*session) (int, error) {
	if len(all) == 1 {
		return a.verdict(ctx, all[0])
	}
	var own, stopped int // the first status of a host that failed by itself, and of one that was stopped
	var sum []string
	for _, s := range all {
		h := a.forHost(s.host)
		status, err := h.verdict(ctx, s)
		if err != nil {
			h.sayf("%v", err)
			status = statusFailure
		}
		said := fmt.Sprintf("status %d", status)
		if s.end == peerFailed {
			stopped, said = cmp.Or(stopped, status), "stopped"
		} else {
			own = cmp.Or(own, status)
		}
		sum = append(sum, fmt.Sprintf("host %d: %s", s.host, said))
	}
	a.sayf("%s", strings.Join(sum, ", "))
	return cmp.Or(own, stopped), nil
}
