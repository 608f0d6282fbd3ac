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

// hostSeparator stands between the programs of hosts on the command line.
const hostSeparator = "+++"

// splitHosts splits the arguments into the programs of each host. The programs of one host are for
// all hosts.
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
		return nil, fmt.Errorf("%q separates the programs of several hosts, and there is one: see -hosts", hostSeparator)
	}
	return nil, fmt.Errorf("programs for %d hosts, and there are %d: %q separates those of different hosts", len(all), hosts, hostSeparator)
}

// hostEnv adds to the environment what tells a program its role as one of n hosts.
func hostEnv(env []string, host, n int) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return name == guest.HostVar || name == guest.HostsVar || name == guest.PeerVar
	})
	return append(env, guest.HostVar+"="+strconv.Itoa(host), guest.HostsVar+"="+strconv.Itoa(n), guest.PeerVar+"="+guest.PeerIP(host))
}

// grace is how long a host may go on when the programs of another have failed.
const grace = 5 * time.Second

// group keeps the machines of several hosts together. Their programs start when all
// are ready; a machine stays until the programs of all have ended; and when one fails,
// the others are stopped.
type group struct {
	grace   time.Duration
	mu      sync.Mutex
	members []*member
}

// member is what a group knows of one host. A nil member stands for a machine without a group.
type member struct {
	group   *group
	send    func(frame.Kind, []byte)
	stopped event // another host has failed

	passed int  // number of barriers behind it: 1 when the programs run, 2 when they have ended on all
	waits  bool // it is at a barrier
	gone   bool
	failed bool
}

func newGroup(hosts int, grace time.Duration) *group {
	g := &group{grace: grace}
	for range hosts {
		g.members = append(g.members, &member{group: g, stopped: event{ch: make(chan struct{})}})
	}
	return g
}

// arrive is called when the host has come to a barrier, and may be told to go on
// at once. Failed says whether its programs, if they have run, did.
func (m *member) arrive(failed bool) error {
	if m == nil {
		return frame.ErrFormat
	}
	m.group.mu.Lock()
	defer m.group.mu.Unlock()
	if m.waits || m.passed >= 2 {
		return frame.ErrFormat
	}
	m.waits, m.failed = true, failed
	m.group.settle()
	return nil
}

// leave is called when the host's machine has ended.
func (m *member) leave(failed bool) {
	if m == nil {
		return
	}
	m.group.mu.Lock()
	defer m.group.mu.Unlock()
	m.gone, m.failed = true, m.failed || failed
	m.group.settle()
}

// waiting reports whether the host waits for the others.
func (m *member) waiting() bool {
	if m == nil {
		return false
	}
	m.group.mu.Lock()
	defer m.group.mu.Unlock()
	return m.waits
}

// stop is closed when the host must stop because of another one.
func (m *member) stop() <-chan struct{} {
	if m == nil {
		return nil
	}
	return m.stopped.ch
}

// settle decides who may go on and who must stop. The caller holds mu.
func (g *group) settle() {
	alone := slices.ContainsFunc(g.members, func(m *member) bool { return m.gone && m.passed == 0 })
	failed := slices.ContainsFunc(g.members, func(m *member) bool { return m.failed && (m.gone || m.waits) })
	all := !slices.ContainsFunc(g.members, func(m *member) bool { return !m.gone && !m.waits })
	for _, m := range g.members {
		switch {
		case m.gone:
		case m.passed == 0 && alone:
			m.stopped.happen()
		case all:
			m.waits = false
			m.passed++
			m.send(frame.Go, nil)
		case m.passed == 1 && !m.waits && failed:
			time.AfterFunc(g.grace, func() { g.expire(m) })
		}
	}
}

// expire stops a host whose programs still run.
func (g *group) expire(m *member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m.passed == 1 && !m.waits {
		m.stopped.happen()
	}
}

// sessions makes what is needed to boot the hosts once.
func (a *app) sessions(im *image) ([]*session, error) {
	if len(im.hosts) == 1 {
		return []*session{newSession(im.hosts[0], a.logf, a.verbose)}, nil
	}
	links := make([][]*os.File, len(im.hosts))
	if a.net != guest.NetRoCE {
		for i := 1; i < len(links); i++ { // each host has a cable to the first one, which forwards
			pair, err := qemu.Link()
			if err != nil {
				return nil, err
			}
			links[0], links[i] = append(links[0], pair[0]), pair[1:]
		}
	}
	g := newGroup(len(im.hosts), grace)
	var all []*session
	for i, h := range im.hosts {
		host := i + 1
		s := newSession(h, a.forHost(host).logf, a.verbose)
		s.host, s.member, s.links = host, g.members[i], links[i]
		s.member.send = s.send
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
