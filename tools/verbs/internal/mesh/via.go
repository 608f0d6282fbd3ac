package mesh

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
)

// HostWord stands for the name of the host in a Via.
const HostWord = "{host}"

// Via is a program that runs a command on a host, such as ssh, and carries its standard input and output.
type Via struct {
	Words []string // Words are the program and its arguments, with HostWord in them.
	Verbs []string // Verbs are the words of the program "verbs" on the hosts.
}

// Limits of a Via. Tests shorten the times.
const (
	atOnce    = 32 // programs that start at once, so that a gateway keeps up
	lastWords = 4 << 10
	maxVia    = 4 << 10
)

var (
	startTime = 30 * time.Second // to log in, and to start "verbs"
	endTime   = 2 * time.Second  // to end by itself
)

// SplitWords splits a line into words at spaces. Quotes keep spaces, and within double quotes and outside of quotes a
// backslash keeps the character that follows it. Nothing else has a meaning, as no shell reads the line.
func SplitWords(line string) (words []string, err error) {
	if len(line) > maxVia || strings.ContainsFunc(line, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return nil, fmt.Errorf("%s, allowed: up to %d printable characters", peertext.Quote(line), maxVia)
	}
	var word strings.Builder
	var quote rune
	begun, escaped := false, false
	for _, r := range line {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quote != '\'':
			begun, escaped = true, true
		case r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			begun, quote = true, r
		case quote == 0 && (r == ' ' || r == '\t'):
			if begun {
				words = append(words, word.String())
			}
			word.Reset()
			begun = false
		default:
			begun = true
			word.WriteRune(r)
		}
	}
	switch {
	case quote != 0:
		return nil, fmt.Errorf("%s, which ends within %c quotes", peertext.Quote(line), quote)
	case escaped:
		return nil, fmt.Errorf("%s, which ends with a backslash", peertext.Quote(line))
	}
	if begun {
		words = append(words, word.String())
	}
	return words, nil
}

// NewVia reads the line of a program, and that of "verbs" on the hosts.
func NewVia(line, verbs string) (*Via, error) {
	words, err := SplitWords(line)
	if err != nil {
		return nil, fmt.Errorf("--via is %w", err)
	}
	if len(words) < 2 || !strings.Contains(strings.Join(words[1:], " "), HostWord) {
		return nil, fmt.Errorf("--via is %s, allowed: a program and its arguments with %s in them, such as %q", peertext.Quote(line), HostWord, "ssh "+HostWord)
	}
	if _, err := exec.LookPath(words[0]); err != nil {
		return nil, fmt.Errorf("--via is %s, allowed: a program of this machine: %w", peertext.Quote(line), err)
	}
	remote, err := SplitWords(verbs)
	if err == nil && (len(remote) == 0 || strings.HasPrefix(remote[0], "-")) {
		err = fmt.Errorf("%s, allowed: the path or name of a program, and words before it such as sudo", peertext.Quote(verbs))
	}
	if err != nil {
		return nil, fmt.Errorf("--verbs-path is %w", err)
	}
	return &Via{words, remote}, nil
}

// hostChars are the characters of a host's name beside letters and digits: no shell that a program passes them to
// obeys one of them.
const hostChars = "._:@/%-"

// ParseHost returns a host with a name for the program. One that begins with "-" would be an option of it.
func (v *Via) ParseHost(name string) (Host, error) {
	bad := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(hostChars, r))
	}
	if name == "" || len(name) > 253 || name[0] == '-' || strings.ContainsFunc(name, bad) {
		return Host{}, fmt.Errorf("a host is %s, allowed with --via: up to 253 letters, digits and %s, and no - at the beginning", peertext.Quote(name), hostChars)
	}
	return Host{Name: name, Addr: name}, nil
}

// command returns the program with its arguments for a host.
func (v *Via) command(h Host) (words []string) {
	for _, w := range v.Words {
		words = append(words, strings.ReplaceAll(w, HostWord, h.Name))
	}
	return append(append(words, v.Verbs...), "mesh", "serve", "--stdio")
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte // guarded by mu
}

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	t.text = t.text[max(len(t.text)-lastWords, 0):]
	return len(b), nil
}

// last returns the last line that is not empty.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := bytes.TrimSpace(t.text)
	return string(bytes.TrimSpace(text[bytes.LastIndexByte(text, '\n')+1:]))
}

// link is a host whose server a program has started. It implements server.
type link struct {
	via    *Via
	host   Host
	others map[string]*link // all of the run, by host
	turn   chan struct{}    // has room for those that start at once

	pid    int
	stdin  *os.File
	said   tail            // on standard error
	ended  chan struct{}   // closed when the program has ended
	status unix.WaitStatus // read after ended
	pipe   *perf.Pipe
}

// links returns the hosts of a run.
func (v *Via) links(hosts []Host) map[string]*link {
	all := map[string]*link{}
	turn := make(chan struct{}, atOnce)
	for _, h := range hosts {
		all[h.Name] = &link{via: v, host: h, others: all, turn: turn}
	}
	return all
}

// duplex is the standard output and input of a program.
type duplex struct{ out, in *os.File }

// Read, Write and Close implement io.ReadWriteCloser.
func (d duplex) Read(b []byte) (int, error)  { return d.out.Read(b) }
func (d duplex) Write(b []byte) (int, error) { return d.in.Write(b) }
func (d duplex) Close() error                { return errors.Join(d.in.Close(), d.out.Close()) }

// Rails implements server. It starts the program first.
func (l *link) Rails(ctx context.Context) ([]perf.Rail, error) {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	err := l.start(ctx)
	<-l.turn
	if err != nil {
		return nil, err
	}
	rails, err := (&perf.Remote{Host: l.host.Name, Pipe: l.pipe}).Rails(ctx)
	return rails, l.explain(err)
}

// Probe implements server.
func (l *link) Probe(ctx context.Context, p perf.Probe) (*perf.Size, error) {
	to := l.others[p.Host]
	p.Port, p.Pipe = 0, to.pipe
	s, err := (&perf.Remote{Host: l.host.Name, Pipe: l.pipe}).Probe(ctx, p)
	if err == nil {
		return s, nil
	}
	if why := l.explain(nil); why != nil {
		return nil, &perf.NoAnswerError{Err: why}
	}
	return nil, to.explain(err)
}

// start starts the program, and waits for the server.
func (l *link) start(ctx context.Context) error {
	stdout, err := l.run()
	if err != nil {
		return err
	}
	late := time.AfterFunc(startTime, l.stop)
	interrupted := context.AfterFunc(ctx, l.stop)
	pipe, err := perf.NewPipe(duplex{stdout, l.stdin})
	inTime, wanted := late.Stop(), interrupted()
	if err == nil && inTime && wanted {
		l.pipe = pipe
		return nil
	}
	var banner *perf.BannerError
	switch {
	case !wanted:
		err = context.Cause(ctx)
	case !inTime:
		err = fmt.Errorf("%s: the server has not answered within %s%s", l, startTime, l.words())
	case errors.As(err, &banner):
		stop := time.AfterFunc(endTime, l.stop)
		l.stdin.Close()
		more, _ := io.ReadAll(io.LimitReader(stdout, 240))
		stop.Stop()
		line, _, _ := bytes.Cut(append(banner.Got, more...), []byte("\n"))
		err = fmt.Errorf("%s: it prints %s before the protocol of verbs begins; a start-up file of the shell, or the program, must not print anything", l, peertext.Quote(line))
	default:
		l.stop()
		err = cmp.Or(l.explain(nil), fmt.Errorf("%s: %w", l, err))
	}
	l.stop()
	stdout.Close()
	return err
}

// run runs the program, and returns its standard output.
func (l *link) run() (stdout *os.File, err error) {
	words := l.via.command(l.host)
	path, err := exec.LookPath(words[0])
	if err != nil {
		return nil, fmt.Errorf("--via: %w", err)
	}
	var mine, its [3]*os.File
	for i := range its {
		r, w, perr := os.Pipe()
		if err = errors.Join(err, perr); i == 0 {
			r, w = w, r
		}
		mine[i], its[i] = r, w
	}
	if err == nil {
		l.pid, err = syscall.ForkExec(path, words, &syscall.ProcAttr{
			Env: os.Environ(), Files: []uintptr{its[0].Fd(), its[1].Fd(), its[2].Fd()},
			// In a session of its own it is not interrupted before the report is made, and ends with all that it has started.
			Sys: &syscall.SysProcAttr{Setsid: true},
		})
	}
	for _, f := range its {
		f.Close()
	}
	if err != nil {
		for _, f := range mine {
			f.Close()
		}
		return nil, fmt.Errorf("--via: start %s: %w", path, err)
	}
	l.stdin, l.ended = mine[0], make(chan struct{})
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		io.Copy(&l.said, mine[2])
	}()
	go func() {
		defer close(l.ended)
		for unix.Waitid(unix.P_PID, l.pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		}
		_ = unix.Kill(-l.pid, unix.SIGKILL) // what it has left in its session, whose number is its own until Wait4
		for _, f := range mine[1:] {
			_ = f.SetReadDeadline(time.Now().Add(endTime)) // processes that have left the session may have it open
		}
		for {
			if _, err := unix.Wait4(l.pid, &l.status, 0, nil); err != unix.EINTR {
				break
			}
		}
		<-copied
		mine[2].Close()
	}()
	return mine[1], nil
}

// String returns the command up to the words of the server.
func (l *link) String() string {
	words := l.via.command(l.host)
	return peertext.Quote(strings.Join(words[:len(l.via.Words)], " "))
}

// words returns the last line of standard error, as the end of a sentence.
func (l *link) words() string {
	if last := l.said.last(); last != "" {
		return ", standard error ends with " + peertext.Quote(last)
	}
	return ""
}

// explain returns the error of a program that has ended, and otherwise the one given.
func (l *link) explain(err error) error {
	if l.pipe != nil {
		select {
		case <-l.pipe.Done(): // the program follows
			l.stop()
			if wrong := l.pipe.Err(); wrong != nil {
				return fmt.Errorf("%s: %w", l, wrong)
			}
		default:
		}
	}
	select {
	case <-l.ended:
	default:
		return err
	}
	how, hint := fmt.Sprintf("exit status %d", l.status.ExitStatus()), ""
	if l.status.Signaled() {
		how = fmt.Sprintf("signal %s", l.status.Signal())
	}
	const notFound, usage = 127, 2
	switch l.status.ExitStatus() {
	case notFound:
		hint = "; if there is no verbs in its PATH, give --verbs-path"
	case usage:
		hint = "; use the same version of verbs on all hosts"
	}
	return fmt.Errorf("%s has ended: %s%s%s", l, how, l.words(), hint)
}

// stop ends the program and the server: by the end of their input, and with signals if that is not enough. It returns
// when the program has ended.
func (l *link) stop() {
	if l.ended == nil {
		return
	}
	if l.pipe != nil {
		l.pipe.Close()
	}
	l.stdin.Close()
	for _, s := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		select {
		case <-l.ended:
			return
		case <-time.After(endTime):
			_ = unix.Kill(-l.pid, s) // or it has ended just now
		}
	}
	<-l.ended
}

// stopAll stops the programs of all hosts.
func stopAll(links map[string]*link) {
	var all sync.WaitGroup
	for _, l := range links {
		all.Go(l.stop)
	}
	all.Wait()
}
