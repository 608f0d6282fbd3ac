package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/goverbs/goverbs/tools/vmrun/internal/frame"
)

func (p *initProc) openStreams() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	// All programs share one standard input, as commands in a shell script do.
	p.stdinR = r
	p.stdin = frame.NewIncoming(p.out, frame.Stdin)
	p.stdin.SetDst(w)
	p.streams = map[frame.Kind]*pump{}
	for _, k := range []frame.Kind{frame.Stdout, frame.Stderr} {
		p.streams[k] = &pump{out: frame.NewOutgoing(p.out, k)}
	}
	return nil
}

func (p *initProc) runProgram(i int, prog Program) error {
	outW, err := p.streams[frame.Stdout].open()
	if err != nil {
		return err
	}
	defer outW.Close()
	errW, err := p.streams[frame.Stderr].open()
	if err != nil {
		return err
	}
	defer errW.Close()

	pid, status, err := p.procs.start(prog, p.cfg.Dir, p.self.Env, []uintptr{p.stdinR.Fd(), outW.Fd(), errW.Fd()})
	outW.Close()
	errW.Close()
	msg := ExitedMsg{Index: i}
	if err != nil {
		msg.Error = err.Error()
	} else {
		if err := p.sendJSON(frame.Started, StartedMsg{Index: i, PID: pid}); err != nil {
			return err
		}
		ws := <-status
		msg.Status = ws.ExitStatus()
		if ws.Signaled() {
			msg.Status, msg.Signal = 0, int(ws.Signal())
		}
	}
	p.streams[frame.Stdout].finish()
	p.streams[frame.Stderr].finish()
	return p.sendJSON(frame.Exited, msg)
}

// pump moves what a program writes into a pipe to the host.
type pump struct {
	out  *frame.Outgoing
	mu   sync.Mutex
	r    *os.File
	done chan struct{}
	last bool // the program has ended, only what is in the pipe is wanted
}

// leftover is how long the pipe is watched after the program has ended: a child
// that it left behind may hold it open for ever.
const leftover = 200 * time.Millisecond

func (s *pump) open() (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	s.out.Reset()
	s.mu.Lock()
	s.r, s.last, s.done = r, false, make(chan struct{})
	s.mu.Unlock()
	go s.copy(r, s.done)
	return w, nil
}

func (s *pump) copy(r *os.File, done chan struct{}) {
	defer close(done)
	defer r.Close()
	buf := make([]byte, frame.MaxPayload)
	for after := 0; after < 1<<20; {
		n, err := r.Read(buf)
		if n > 0 {
			if _, err := s.out.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
		s.mu.Lock()
		if s.last {
			after += n
			_ = r.SetReadDeadline(time.Now().Add(leftover))
		}
		s.mu.Unlock()
	}
}

// finish returns when the pipe has been read to its end.
func (s *pump) finish() {
	s.mu.Lock()
	s.last = true
	_ = s.r.SetReadDeadline(time.Now().Add(leftover))
	s.mu.Unlock()
	<-s.done
}

// hangup is for a host that takes no more: the program gets SIGPIPE or EPIPE.
func (s *pump) hangup() {
	s.out.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.r != nil {
		_ = s.r.Close()
	}
}

// sendFile sends a file back to the host. One that no program wrote is no error.
func (p *initProc) sendFile(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	buf := make([]byte, frame.MaxPayload/2) // base64 makes 4 bytes of 3
	for {
		n, err := io.ReadFull(f, buf)
		last := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !last {
			return fmt.Errorf("read %s: %w", path, err)
		}
		b, err := json.Marshal(FileMsg{Path: path, Mode: uint32(st.Mode().Perm()), Data: buf[:n], Last: last})
		if err != nil {
			return err
		}
		if err := p.out.Send(frame.File, b); err != nil {
			return err
		}
		if last {
			return nil
		}
	}
}
