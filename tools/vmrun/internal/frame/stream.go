package frame

import (
	"io"
	"sync"
)

// Outgoing is the sending end of a stream: an io.Writer that waits for credit.
// It is for one writing goroutine; Grant and Stop may be called by others.
type Outgoing struct {
	w    *Writer
	kind Kind

	mu     sync.Mutex
	cond   sync.Cond
	credit int
	closed bool
}

// NewOutgoing returns the sending end of the stream kind over w.
func NewOutgoing(w *Writer, kind Kind) *Outgoing {
	o := &Outgoing{w: w, kind: kind, credit: Window}
	o.cond.L = &o.mu
	return o
}

// Write sends p, in pieces as credit allows. The error is io.ErrClosedPipe once
// the other side has said that nobody takes the bytes.
func (o *Outgoing) Write(p []byte) (int, error) {
	sent := 0
	for sent < len(p) {
		n, err := o.take(min(len(p)-sent, MaxPayload))
		if err != nil {
			return sent, err
		}
		if err := o.w.Send(o.kind, p[sent:sent+n]); err != nil {
			return sent, err
		}
		sent += n
	}
	return sent, nil
}

func (o *Outgoing) take(want int) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.credit == 0 && !o.closed {
		o.cond.Wait()
	}
	if o.closed {
		return 0, io.ErrClosedPipe
	}
	n := min(want, o.credit)
	o.credit -= n
	return n, nil
}

// EOF sends the end of the stream.
func (o *Outgoing) EOF() error { return o.w.Send(o.kind, nil) }

// Grant adds n bytes of credit.
func (o *Outgoing) Grant(n int) {
	o.mu.Lock()
	o.credit = min(o.credit+n, Window)
	o.mu.Unlock()
	o.cond.Broadcast()
}

// Stop makes Write fail from now on, a waiting one too.
func (o *Outgoing) Stop() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.cond.Broadcast()
}

// Reset is for a stream that starts anew, as stdout does with each program.
// Credit that is still under way arrives later, so it is not touched.
func (o *Outgoing) Reset() {
	o.mu.Lock()
	o.closed = false
	o.mu.Unlock()
}

// Incoming is the receiving end of a stream: it queues at most Window bytes,
// writes them to its destination in a goroutine of its own, and gives credit.
type Incoming struct {
	w    *Writer
	kind Kind

	mu    sync.Mutex
	cond  sync.Cond
	queue [][]byte // an empty element is end of file
	size  int
	busy  bool
	dst   io.WriteCloser
	stop  bool
}

// NewIncoming returns the receiving end of the stream kind; credit goes out
// over w. Bytes that come before SetDst are queued. If dst fails, the other
// side is told so and the rest of the stream is thrown away.
func NewIncoming(w *Writer, kind Kind) *Incoming {
	in := &Incoming{w: w, kind: kind}
	in.cond.L = &in.mu
	go in.run()
	return in
}

// SetDst sets where the bytes go, and forgets an earlier destination.
func (in *Incoming) SetDst(dst io.WriteCloser) {
	in.mu.Lock()
	in.dst = dst
	in.mu.Unlock()
	in.cond.Broadcast()
}

// Put queues the payload of one message. The error is ErrFormat if the sender
// had no credit for it.
func (in *Incoming) Put(p []byte) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.size += len(p); in.size > Window {
		return ErrFormat
	}
	in.queue = append(in.queue, p)
	in.cond.Broadcast()
	return nil
}

// Flush waits until everything queued has been written.
func (in *Incoming) Flush() {
	in.mu.Lock()
	defer in.mu.Unlock()
	for (len(in.queue) > 0 || in.busy) && !in.stop {
		in.cond.Wait()
	}
}

// Stop ends the goroutine; what is queued is lost.
func (in *Incoming) Stop() {
	in.mu.Lock()
	in.stop = true
	in.mu.Unlock()
	in.cond.Broadcast()
}

func (in *Incoming) run() {
	for {
		in.mu.Lock()
		in.busy = false
		in.cond.Broadcast()
		for (len(in.queue) == 0 || in.dst == nil) && !in.stop {
			in.cond.Wait()
		}
		if in.stop {
			in.mu.Unlock()
			return
		}
		p, dst := in.queue[0], in.dst
		in.queue, in.busy = in.queue[1:], true
		in.mu.Unlock()

		if !in.pass(dst, p) {
			return
		}
	}
}

// pass writes p to dst, closes dst at the end of the stream, and reports
// whether the other side can still be told.
func (in *Incoming) pass(dst io.WriteCloser, p []byte) bool {
	var err error
	if len(p) == 0 {
		err = dst.Close()
	} else {
		_, err = dst.Write(p)
	}
	in.mu.Lock()
	in.size -= len(p)
	if err != nil && in.dst == dst {
		in.dst = discard{}
	}
	in.mu.Unlock()
	if err != nil && len(p) > 0 {
		if err := in.w.Send(Closed, []byte{byte(in.kind)}); err != nil {
			in.Stop()
			return false
		}
	}
	if len(p) > 0 {
		if err := in.w.SendCredit(in.kind, len(p)); err != nil {
			in.Stop()
			return false
		}
	}
	return true
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) Close() error                { return nil }
