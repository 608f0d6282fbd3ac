package perf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// A coordinator can also reach servers through programs that it has started, such as ssh: each carries one connection
// over its standard input and output. Both sides first send a preamble with a name of its own. Then there are frames
// of streams, each of which is a control connection: the number of the stream and the length of the frame, of 4 bytes
// each in network byte order, and the bytes. A frame with a new number begins a stream, odd ones are of the
// coordinator; and a frame without bytes ends a stream in both directions.
//
// A server that is to test another one begins a stream to the coordinator, which joins it to a stream to that server.
// So no server listens, and there is no secret: whoever may start a server may use it.
const (
	pipeMagic   = "goverbs pipe"
	pipeHeader  = 8
	pipeFrame   = 16 << 10 // the longest frame, in bytes
	pipeStreams = 16       // that the other side may have at once
	pipeQueue   = 64       // frames of a stream that nobody has read
)

// Pipe is a connection to a server that the coordinator has started, or to the coordinator.
type Pipe struct {
	rw   io.ReadWriteCloser
	in   chan net.Conn // streams that the other side has begun
	done chan struct{} // closed when the connection has ended
	err  error         // what was wrong with the other side, if that has ended it; read after done

	writing sync.Mutex

	mu      sync.Mutex
	streams map[uint32]*stream // guarded by mu; nil when the connection has ended
	last    [2]uint32          // guarded by mu; the last numbers of the other side and of this one
	theirs  int                // guarded by mu; streams of the other side
}

// stream is a stream of a Pipe.
type stream struct {
	ours  net.Conn    // whose other end its user has
	queue chan []byte // what has come for it
}

// NewPipe begins a connection to a server behind a pipe. The error is a *BannerError if something else comes before the
// protocol. Close rw to end what takes too long.
func NewPipe(rw io.ReadWriteCloser) (*Pipe, error) { return newPipe(rw, 1) }

// newPipe begins a connection, with the first number of this side's streams.
func newPipe(rw io.ReadWriteCloser, first uint32) (*Pipe, error) {
	if _, err := rw.Write(preambleOf(pipeMagic)); err != nil {
		return nil, err
	}
	version, err := checkPreamble(rw, pipeMagic)
	if err != nil {
		return nil, err
	}
	if version != ProtocolVersion {
		return nil, versionError(version)
	}
	p := &Pipe{rw: rw, in: make(chan net.Conn, pipeStreams), done: make(chan struct{}), streams: map[uint32]*stream{}}
	p.last[1] = first - 2 // may wrap around, and back with the first stream
	go p.receive()
	return p, nil
}

// Close ends the connection, and so the server.
func (p *Pipe) Close() error { return p.rw.Close() }

// Done returns a channel that is closed when the connection has ended.
func (p *Pipe) Done() <-chan struct{} { return p.done }

// Err returns what was wrong with what the other side sent, if that has ended the connection. Call it after Done.
func (p *Pipe) Err() error { return p.err }

// put writes a frame.
func (p *Pipe) put(number uint32, b []byte) error {
	p.writing.Lock()
	defer p.writing.Unlock()
	frame := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, number), uint32(len(b)))
	_, err := p.rw.Write(append(frame, b...))
	return err
}

// open begins a stream.
func (p *Pipe) open() (net.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.streams == nil {
		return nil, io.ErrClosedPipe
	}
	p.last[1] += 2
	return p.begin(p.last[1]), nil
}

// begin makes a stream. It is called with mu.
func (p *Pipe) begin(number uint32) net.Conn {
	user, ours := net.Pipe()
	s := &stream{ours, make(chan []byte, pipeQueue)}
	p.streams[number] = s
	go func() { // so that a stream that nobody reads does not hold up the others
		for b := range s.queue {
			_ = ours.SetWriteDeadline(time.Now().Add(answerTime))
			if _, err := ours.Write(b); err != nil { // nobody reads it
				p.end(number)
				break
			}
		}
		ours.Close()
	}()
	go func() {
		b := make([]byte, pipeFrame)
		for {
			n, err := ours.Read(b)
			if err != nil || p.put(number, b[:n]) != nil {
				break
			}
		}
		p.end(number)
		_ = p.put(number, nil) // unless the connection has ended
	}()
	return user
}

// end ends a stream when what has come for it is read.
func (p *Pipe) end(number uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endLocked(number)
}

func (p *Pipe) endLocked(number uint32) {
	if s := p.streams[number]; s != nil {
		close(s.queue)
		delete(p.streams, number)
		if number%2 != p.last[1]%2 {
			p.theirs--
		}
	}
}

// take adds a frame to the queue of a stream, which may be a new one of the other side. A stream whose queue is full ends.
func (p *Pipe) take(number uint32, b []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.streams[number] == nil {
		switch {
		case number%2 == p.last[1]%2 || number <= p.last[0]:
			return nil // it has ended
		case p.theirs == pipeStreams || len(p.in) == pipeStreams:
			return refusef("the other side of the pipe has more than %d streams", pipeStreams)
		}
		p.theirs++
		p.last[0] = number
		p.in <- p.begin(number) // has room: nothing else adds to it
	}
	s := p.streams[number]
	select {
	case s.queue <- b:
	default:
		s.ours.Close()
		p.endLocked(number)
	}
	return nil
}

// receive gives what comes to the streams until the connection ends.
func (p *Pipe) receive() {
	var header [pipeHeader]byte
	for {
		if _, err := io.ReadFull(p.rw, header[:]); err != nil {
			break
		}
		number, n := binary.BigEndian.Uint32(header[:]), binary.BigEndian.Uint32(header[4:])
		if n > pipeFrame {
			p.err = fmt.Errorf("the server has sent a frame of %d bytes, allowed: up to %d", n, pipeFrame)
			break
		}
		b := make([]byte, n)
		if _, err := io.ReadFull(p.rw, b); err != nil {
			break
		}
		if n == 0 {
			p.end(number)
			continue
		}
		if p.err = p.take(number, b); p.err != nil {
			break
		}
	}
	p.rw.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	for number := range p.streams {
		p.endLocked(number)
	}
	p.streams = nil
	close(p.done)
}

// accept waits for a stream of the other side.
func (p *Pipe) accept(ctx context.Context) (net.Conn, error) {
	select {
	case s := <-p.in:
		return s, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// join joins the streams that one server begins to another server, one after the other, until the context ends: however
// many it begins, the other server has no more of them than it may.
func join(ctx context.Context, from, to *Pipe) {
	for {
		var all sync.WaitGroup
		a, err := from.accept(ctx)
		if err != nil {
			return
		}
		b, err := to.open()
		if err != nil {
			a.Close() // the server sees that the stream ends
			continue
		}
		stop := context.AfterFunc(ctx, func() { a.Close(); b.Close() })
		for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
			all.Go(func() {
				defer stop()
				io.Copy(way[1], way[0])
				a.Close()
				b.Close()
			})
		}
		all.Wait()
	}
}

// pipeListener accepts the streams of a Pipe.
type pipeListener struct{ *Pipe }

// Accept and Addr implement net.Listener.
func (l pipeListener) Accept() (net.Conn, error) { return l.accept(context.Background()) }
func (l pipeListener) Addr() net.Addr            { return nil }

// ServePipe serves the coordinator at the other end of a pipe, until that closes it or the context ends. It asks the
// coordinator for no secret: whoever can start this program with this pipe has the rights of its user already.
func (s *Server) ServePipe(ctx context.Context, rw io.ReadWriteCloser) (err error) {
	late := time.AfterFunc(answerTime, func() { rw.Close() })
	s.coordinator, err = newPipe(rw, 2)
	if !late.Stop() {
		return fmt.Errorf("no coordinator has answered on standard input for %s (verbs mesh run --via)", answerTime)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		<-s.coordinator.Done()
		cancel() // ends all tests
	}()
	if err := s.Serve(ctx, pipeListener{s.coordinator}); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// trusts reports whether clients may choose the device and have the server test others.
func (s *Server) trusts() bool { return s.Secret != nil || s.coordinator != nil }
