package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/tools/vmrun/internal/frame"
	"github.com/goverbs/goverbs/tools/vmrun/internal/guest"
	"github.com/goverbs/goverbs/tools/vmrun/internal/klog"
	"github.com/goverbs/goverbs/tools/vmrun/internal/qemu"
)

// How long a guest has for what should take no time.
const (
	// kvmTimeout is for the first word of a guest under KVM.
	kvmTimeout = 15 * time.Second
	// oopsTimeout is for a program that may well end after the kernel has oopsed.
	oopsTimeout = 10 * time.Second
	// dumpTimeout is for the last words of a guest whose time is up.
	dumpTimeout = 3 * time.Second
	// endTimeout is for what a guest does after its programs, if it has waited for
	// others until the time was up.
	endTimeout = 10 * time.Second
)

// ending says how a boot ended.
type ending int

const (
	ended       ending = iota // every program has ended
	timedOut                  // the time was up
	machineGone               // QEMU ended before the programs did
	oopsed                    // the kernel oopsed and the programs did not end
	initFailed                // init gave up
	interrupted               // a signal came
	mute                      // nothing was heard from a guest under KVM
	peerFailed                // another host failed
)

// session is one boot and what came of it. Its fields may be read when boot has
// returned.
type session struct {
	end     ending
	exits   []guest.ExitedMsg
	running int         // number of programs that were started
	late    atomic.Bool // the time is up: a program that ends now was killed for it
	fatal   string      // what init said when it gave up
	qemuErr error
	release string

	host   int        // from 1, or 0 for a machine that is alone
	member *member    // what its group knows of the host, or nil
	links  []*os.File // the host's ends of its links
	cards  []*os.File // the host's ends of its cards' sockets
	nprogs int
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer

	logf    func(format string, args ...any)
	judge   *klog.Judge
	console *lastLines
	kernlog *lastLines

	out      *frame.Writer
	input    *frame.Outgoing
	streams  map[frame.Kind]*frame.Incoming
	fetch    map[string]string
	files    map[string]*os.File
	fetchErr error

	hello, done, oops, broken event
}

// event is something that happens once.
type event struct {
	once sync.Once
	ch   chan struct{}
}

func (e *event) happen() { e.once.Do(func() { close(e.ch) }) }

func newSession(h imageHost, logf func(string, ...any), verbose bool) *session {
	s := &session{
		logf:  logf,
		judge: klog.NewJudge(klog.KnownBugs()),
		fetch: maps.Clone(h.fetch), files: map[string]*os.File{},
		nprogs: h.nprogs, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		console: &lastLines{}, kernlog: &lastLines{},
	}
	for _, e := range []*event{&s.hello, &s.done, &s.oops, &s.broken} {
		e.ch = make(chan struct{})
	}
	if verbose {
		s.console.echo = "console"
		s.kernlog.echo = "kernel"
	}
	return s
}

// boot runs a machine from power-on to its end.
func (s *session) boot(ctx context.Context, p *qemu.Program, o qemu.Options, timeout time.Duration) error {
	o.Console = s.console
	if len(s.links) > 0 {
		o.Links, o.MAC = s.links, guest.LinkMAC(s.host)
	}
	if s.host > 0 {
		o.Append = append(slices.Clone(o.Append), guest.HostVar+"="+strconv.Itoa(s.host))
	}
	o.Cards = s.cards
	m, err := p.Start(context.WithoutCancel(ctx), o)
	for _, f := range slices.Concat(s.links, s.cards) {
		f.Close() // the machine has it, and the other end must notice when it is gone
	}
	if err != nil {
		s.member.leave(true)
		return err
	}
	s.out = frame.NewWriter(m.Port)
	s.input = frame.NewOutgoing(s.out, frame.Stdin)
	s.streams = map[frame.Kind]*frame.Incoming{
		frame.Stdout: frame.NewIncoming(s.out, frame.Stdout),
		frame.Stderr: frame.NewIncoming(s.out, frame.Stderr),
	}
	dst := map[frame.Kind]io.Writer{frame.Stdout: s.stdout, frame.Stderr: s.stderr}
	for k, in := range s.streams {
		in.SetDst(keepOpen{dst[k]})
	}

	received := make(chan struct{})
	go func() {
		defer close(received)
		s.receive(m.Port)
	}()
	s.end = s.watch(ctx, m, o.Accel == "kvm", timeout)
	m.Kill()
	<-received
	s.member.leave(s.end != ended)
	for k, in := range s.streams {
		if s.end != interrupted {
			in.Flush()
			if p, ok := dst[k].(*prefixed); ok {
				p.flush()
			}
		}
		in.Stop()
	}
	s.input.Stop()
	s.console.flush()
	s.qemuErr = m.Err()
	return nil
}

// watch waits for the end of a boot.
func (s *session) watch(ctx context.Context, m *qemu.Machine, kvm bool, timeout time.Duration) ending {
	quit := make(chan os.Signal, 1)
	signal.Notify(quit, unix.SIGQUIT)
	defer signal.Stop(quit)
	late := time.After(timeout)
	var unheard, doomed <-chan time.Time
	if kvm {
		unheard = time.After(kvmTimeout)
	}
	hello, oops := s.hello.ch, s.oops.ch
	for {
		select {
		case <-ctx.Done():
			return interrupted
		case <-s.done.ch:
			return ended
		case <-s.broken.ch:
			return initFailed
		case <-m.Done:
			// Its last messages are still in the socket.
			select {
			case <-s.done.ch:
				return ended
			case <-s.broken.ch:
				return initFailed
			case <-time.After(200 * time.Millisecond):
				return machineGone
			}
		case <-s.member.stop():
			return peerFailed
		case <-late:
			if s.member.waiting() {
				late = time.After(endTimeout) // it is another host that is late
				continue
			}
			s.late.Store(true)
			s.lastWords(m)
			return timedOut
		case <-unheard:
			return mute
		case <-doomed:
			return oopsed
		case <-hello:
			hello, unheard = nil, nil
			go s.sendStdin()
		case <-oops:
			oops, doomed = nil, time.After(oopsTimeout)
		case sig := <-quit:
			// go test asks a program that takes too long for its goroutines.
			s.send(frame.Signal, []byte{byte(sig.(syscall.Signal))})
		}
	}
}

// lastWords lets the kernel show where tasks hang, and a Go program its
// goroutines.
func (s *session) lastWords(m *qemu.Machine) {
	s.send(frame.Dump, nil)
	select {
	case <-s.done.ch:
	case <-m.Done:
	case <-time.After(dumpTimeout):
	}
}

// send sends a control message. If that can't be done the machine is gone, and
// watch finds out. It does not wait: a guest that hangs may not read.
func (s *session) send(k frame.Kind, payload []byte) {
	go func() {
		if err := s.out.Send(k, payload); err != nil {
			s.logf("sending to the guest: %v", err)
		}
	}()
}

func (s *session) sendStdin() {
	if _, err := io.Copy(s.input, s.stdin); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		s.logf("standard input: %v", err)
	}
	if err := s.input.EOF(); err != nil {
		s.logf("standard input: %v", err)
	}
}

// receive handles what the guest sends, until the port is closed.
func (s *session) receive(port io.Reader) {
	for {
		m, err := frame.Read(port)
		if err != nil {
			if errors.Is(err, frame.ErrFormat) {
				s.fail(err.Error())
			}
			return
		}
		if err := s.handle(m); err != nil {
			s.fail(fmt.Sprintf("message %q from the guest: %v", byte(m.Kind), err))
			return
		}
	}
}

// fail ends the session because of what init said or did.
func (s *session) fail(why string) {
	s.fatal = why
	s.broken.happen()
}

func (s *session) handle(m frame.Message) error {
	switch m.Kind {
	case frame.Stdout, frame.Stderr:
		return s.streams[m.Kind].Put(m.Payload)
	case frame.Credit:
		stream, n, err := frame.ParseCredit(m.Payload)
		if err == nil && stream == frame.Stdin {
			s.input.Grant(n)
		}
		return err
	case frame.Closed:
		s.input.Stop()
	case frame.Kmsg:
		s.judge.Record(m.Payload)
		fmt.Fprintln(s.kernlog, klog.Text(m.Payload))
		if s.judge.Fatal() {
			s.oops.happen()
		}
	case frame.Log:
		s.logf("guest: %s", m.Payload)
	case frame.Fatal:
		s.fail(string(m.Payload))
	case frame.Hello:
		var h guest.HelloMsg
		if err := json.Unmarshal(m.Payload, &h); err != nil {
			return err
		}
		s.release = h.Release
		s.judge.SetRelease(h.Release)
		s.hello.happen()
	case frame.Started:
		var st guest.StartedMsg
		s.running++
		return json.Unmarshal(m.Payload, &st)
	case frame.Exited:
		var e guest.ExitedMsg
		if err := json.Unmarshal(m.Payload, &e); err != nil {
			return err
		}
		if !s.late.Load() {
			s.exits = append(s.exits, e)
		}
	case frame.File:
		var f guest.FileMsg
		if err := json.Unmarshal(m.Payload, &f); err != nil {
			return err
		}
		if err := s.store(f); err != nil {
			s.fetchErr = errors.Join(s.fetchErr, err)
		}
	case frame.Barrier:
		return s.member.arrive(slices.ContainsFunc(s.exits, failed))
	case frame.Done:
		s.done.happen()
	default:
		return frame.ErrFormat
	}
	return nil
}

// failed reports whether a program ended otherwise than well.
func failed(e guest.ExitedMsg) bool { return e.Status != 0 || e.Signal != 0 || e.Error != "" }

// store writes a piece of a file that came back. The guest names only files that were requested.
func (s *session) store(m guest.FileMsg) error {
	dst, ok := s.fetch[m.Path]
	if !ok {
		return fmt.Errorf("the guest sent a file that nobody asked for: %q", m.Path)
	}
	f := s.files[m.Path]
	if f == nil {
		var err error
		if f, err = os.OpenFile(dst, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, os.FileMode(m.Mode).Perm()|0o200); err != nil {
			delete(s.fetch, m.Path)
			return err
		}
		s.files[m.Path] = f
	}
	if _, err := f.Write(m.Data); err != nil {
		return err
	}
	if m.Last {
		delete(s.files, m.Path)
		return f.Close()
	}
	return nil
}

// keepOpen is a destination that others use, too.
type keepOpen struct{ w io.Writer }

func (k keepOpen) Write(p []byte) (int, error) { return k.w.Write(p) }
func (keepOpen) Close() error                  { return nil }
