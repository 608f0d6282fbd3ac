package s3rdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"

	"github.com/goverbs/goverbs/uverbs"
)

// transfer moves the bytes of one token, in chunks, in order. One goroutine uses it.
type transfer struct {
	i     *Initiator
	ctx   context.Context
	token Token
	peers []netip.Addr
	lane  *lane // nil after finish
	read  bool

	slots []slot // a ring
	first int    // the oldest slot in use
	used  int    // how many are in use
	at    int64  // bytes whose requests are posted
	moved int64  // bytes whose requests have completed
	held  bool   // the oldest slot has been handed out
	err   error  // why there is no more
}

// slot is room for a chunk.
type slot struct {
	size int
	done bool // the request has completed
}

// errTimeout says that a peer is too slow.
var errTimeout = errors.New("no chunk has completed")

// errDone says that a transfer was used after its end.
var errDone = errors.New("s3rdma: the transfer has ended")

// left returns how many bytes no request has moved yet.
func (x *transfer) left() int64 { return int64(x.token.Size) - x.at }

// free returns the number of the slot that is next, or -1 if all are in use.
func (x *transfer) free() int {
	if x.used == len(x.slots) {
		return -1
	}
	return (x.first + x.used) % len(x.slots)
}

// memory returns the memory of a slot.
func (x *transfer) memory(slot int) []byte {
	return x.lane.mr.Bytes()[slot*x.i.o.Chunk:][:x.i.o.Chunk]
}

// own returns n bytes of the memory of a slot for the device.
func (x *transfer) own(slot, n int) uverbs.SGE { return x.lane.mr.SGE(slot*x.i.o.Chunk, n) }

// post posts a request for the next n bytes, with the slot that is free.
func (x *transfer) post(n int, memory uverbs.SGE) error {
	s := x.free()
	if err := x.ctx.Err(); err != nil {
		return x.fail(err)
	}
	if err := x.lane.Post(x.read, uint64(s), x.token.Addr+uint64(x.at), x.token.RKey, memory); err != nil {
		return x.fail(err)
	}
	x.slots[s] = slot{size: n}
	x.used++
	x.at += int64(n)
	return nil
}

// wait waits until the oldest request has completed, and returns its slot, which stays in use.
func (x *transfer) wait() (int, error) {
	for !x.slots[x.first].done {
		var wcs [8]uverbs.WC
		ctx, cancel := context.WithTimeout(x.ctx, x.i.o.Timeout)
		n, err := x.lane.Wait(ctx, wcs[:])
		if err != nil && ctx.Err() != nil && x.ctx.Err() == nil {
			err = fmt.Errorf("%w for %v", errTimeout, x.i.o.Timeout)
		}
		cancel()
		if err != nil {
			return 0, x.fail(err)
		}
		for i := range wcs[:n] {
			wc := &wcs[i]
			if err := x.lane.Err(wc); err != nil {
				return 0, x.fail(err)
			}
			if wc.ID >= uint64(len(x.slots)) {
				return 0, x.fail(fmt.Errorf("a completion has ID %d, want 0 to %d", wc.ID, len(x.slots)-1))
			}
			x.slots[wc.ID].done = true
		}
	}
	x.moved += int64(x.slots[x.first].size)
	return x.first, nil
}

// release gives the oldest slot back.
func (x *transfer) release() {
	x.slots[x.first], x.held = slot{}, false
	x.first, x.used = (x.first+1)%len(x.slots), x.used-1
}

// fail keeps an error, which ends the transfer.
func (x *transfer) fail(err error) error {
	if x.err == nil {
		what := "WRITE to"
		if x.read {
			what = "READ from"
		}
		x.err = fmt.Errorf("s3rdma: %s the memory of %s failed at byte %d of %d: %w", what, x.token.GID.Addr().Unmap(), x.moved, x.token.Size, err)
	}
	return x.err
}

// stop ends requests that are under way, after which only finish may follow.
func (x *transfer) stop() error {
	if x.used > 0 && x.lane.Reset() != nil {
		return x.lane.channel.Close()
	}
	return nil
}

// finish ends the transfer. Requests that are under way end first, so that none touches memory of
// the next one.
func (x *transfer) finish() error {
	if x.lane == nil {
		return nil
	}
	if x.held {
		x.release()
	}
	err := x.i.give(x.lane, x.err == nil && x.used == 0)
	x.lane = nil
	if x.err == nil {
		x.err = errDone
	}
	<-x.i.slots
	x.i.leave(x.peers)
	return err
}

// stream is what readers and writers have in common: one goroutine at a time may use them, and
// another one may end them meanwhile.
type stream struct {
	x      *transfer
	cancel context.CancelFunc // ends a call that waits
	after  error              // of calls after the end

	mu     sync.Mutex // held by all methods, but not while memory is lent
	lent   bool       // code of others has memory of the transfer
	closed bool
}

// errTwo says that two goroutines use a reader or a writer.
var errTwo = errors.New("s3rdma: another goroutine moves the data")

// begin begins a transfer for a reader or a writer.
func (s *stream) begin(ctx context.Context, i *Initiator, t Token, from netip.Addr, read bool) (err error) {
	ctx, s.cancel = context.WithCancel(ctx)
	s.after = errDone
	if s.x, err = i.begin(ctx, t, from, read); err != nil {
		s.cancel()
	}
	return err
}

// usable returns an error if a method can do nothing.
func (s *stream) usable() error {
	switch {
	case s.closed:
		return s.after
	case s.lent:
		return errTwo
	}
	return nil
}

// lend calls code of others, which has memory of the transfer, without the lock: it may be slow, and
// may want to know how far the transfer is. If the end comes meanwhile, the memory stays as it is
// until the code returns.
func (s *stream) lend(f func()) {
	s.lent = true
	s.mu.Unlock()
	defer func() { // also if f panics
		s.mu.Lock()
		s.lent = false
		if s.closed {
			s.x.finish()
		}
	}()
	f()
}

// end ends the transfer. While memory is lent, it ends the requests alone, and lend does the rest.
func (s *stream) end() error {
	s.closed = true
	if s.lent {
		return s.x.stop()
	}
	return s.x.finish()
}

// abort ends the transfer as it is. A call that waits fails.
func (s *stream) abort() error {
	s.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	return s.end()
}

// Reader reads the memory that a request offers, for a PUT. One goroutine at a time may read; Close
// may be called from another one.
type Reader struct {
	stream
	data  []byte // of the oldest slot, not read yet
	taken int64  // bytes that were handed out
}

// Reader returns a reader of the memory of a token. If there are as many transfers as there may be,
// it waits. The context ends it. The caller must close it.
func (i *Initiator) Reader(ctx context.Context, t Token) (*Reader, error) {
	return i.reader(ctx, t, netip.Addr{})
}

// reader returns a reader for a request from an address.
func (i *Initiator) reader(ctx context.Context, t Token, from netip.Addr) (*Reader, error) {
	r := new(Reader)
	if err := r.begin(ctx, i, t, from, true); err != nil {
		return nil, err
	}
	return r, nil
}

// next gets the next chunk, if there is nothing left of the last one.
func (r *Reader) next() error {
	if err := r.usable(); err != nil || len(r.data) > 0 {
		return err
	}
	x := r.x
	if x.held {
		x.release()
	}
	if x.err != nil {
		return x.err
	}
	for x.left() > 0 && x.used < len(x.slots) {
		n := int(min(x.left(), int64(x.i.o.Chunk)))
		if err := x.post(n, x.own(x.free(), n)); err != nil {
			return err
		}
	}
	if x.used == 0 {
		return io.EOF
	}
	s, err := x.wait()
	if err != nil {
		return err
	}
	r.data, x.held = x.memory(s)[:x.slots[s].size], true
	return nil
}

// Read implements [io.Reader]. It returns io.EOF after the last byte of the token.
func (r *Reader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	if err := r.next(); err != nil {
		return 0, err
	}
	return r.take(copy(p, r.data)), nil
}

// take counts n bytes as read.
func (r *Reader) take(n int) int {
	r.data, r.taken = r.data[n:], r.taken+int64(n)
	return n
}

// WriteTo implements [io.WriterTo]. It copies nothing: w gets the memory that the device has
// written.
func (r *Reader) WriteTo(w io.Writer) (sum int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		switch err := r.next(); {
		case errors.Is(err, io.EOF):
			return sum, nil
		case err != nil:
			return sum, err
		}
		data, n := r.data, 0
		r.lend(func() { n, err = w.Write(data) })
		switch {
		case n < 0 || n > len(data):
			return sum, fmt.Errorf("s3rdma: Write returns %d of %d bytes", n, len(data))
		case n < len(data) && err == nil:
			err = io.ErrShortWrite
		}
		if sum += int64(r.take(n)); err != nil {
			return sum, err
		}
	}
}

// progress returns how many bytes were handed out, and why there are no more, if that is a failure.
func (r *Reader) progress() (int64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed { // by the program, which has read enough
		return r.taken, nil
	}
	return r.taken, r.x.err
}

// Close ends the reader, also before its end. A Read that waits fails. The memory that WriteTo has
// lent to its writer stays as it is until that has returned.
func (r *Reader) Close() error { return r.abort() }

// Writer writes to the memory that a request offers, for a GET. One goroutine at a time may write;
// Close and Abort may be called from another one. After them the other methods fail.
type Writer struct {
	stream
	filled int // bytes in the slot that is free
}

// Writer returns a writer to the memory of a token. If there are as many transfers as there may be,
// it waits. The context ends it. The caller must close it.
func (i *Initiator) Writer(ctx context.Context, t Token) (*Writer, error) {
	return i.writer(ctx, t, netip.Addr{})
}

// writer returns a writer for a request from an address.
func (i *Initiator) writer(ctx context.Context, t Token, from netip.Addr) (*Writer, error) {
	w := new(Writer)
	if err := w.begin(ctx, i, t, from, false); err != nil {
		return nil, err
	}
	return w, nil
}

// errTooLong says that there is more data than room.
var errTooLong = errors.New("s3rdma: the object is larger than the memory of the token")

// room returns the room in the slot that is free, and waits until there is one.
func (w *Writer) room() ([]byte, error) {
	if err := w.usable(); err != nil {
		return nil, err
	}
	x := w.x
	switch {
	case x.err != nil:
		return nil, x.err
	case x.left() == int64(w.filled):
		return nil, errTooLong
	case x.used == len(x.slots):
		if _, err := x.wait(); err != nil {
			return nil, err
		}
		x.release()
	}
	return x.memory(x.free())[w.filled:min(int64(x.i.o.Chunk), x.left())], nil
}

// add counts bytes that were put into the room, and posts a chunk that is full.
func (w *Writer) add(n int) error {
	w.filled += n
	if w.filled == w.x.i.o.Chunk {
		return w.flush()
	}
	return nil
}

// flush posts what there is.
func (w *Writer) flush() error {
	n := w.filled
	w.filled = 0
	return w.x.post(n, w.x.own(w.x.free(), n))
}

// Write implements [io.Writer]. It returns when p is copied; Close says whether it has arrived.
func (w *Writer) Write(p []byte) (sum int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(p) > 0 {
		room, err := w.room()
		if err != nil {
			return sum, err
		}
		n := copy(room, p)
		p, sum = p[n:], sum+n
		if err := w.add(n); err != nil {
			return sum, err
		}
	}
	return sum, nil
}

// ReadFrom implements [io.ReaderFrom]. It copies nothing: r reads into the memory that the device
// sends.
func (w *Writer) ReadFrom(r io.Reader) (sum int64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		room, err := w.room()
		full := errors.Is(err, errTooLong) // unless this is the end
		if full {
			room = make([]byte, 1)
		} else if err != nil {
			return sum, err
		}
		var n int
		var end error
		w.lend(func() { n, end = r.Read(room) })
		switch err := w.usable(); {
		case err != nil:
			return sum, err
		case n < 0 || n > len(room):
			return sum, fmt.Errorf("s3rdma: Read returns %d of %d bytes", n, len(room))
		case full && n > 0:
			return sum, errTooLong
		}
		sum += int64(n)
		if err := w.add(n); err != nil {
			return sum, err
		}
		if end != nil {
			return sum, ignoreEOF(end)
		}
	}
}

// ignoreEOF returns an error unless it is the end.
func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// Close sends what is left and waits until the client's device has acknowledged everything. After
// an error the client has a part at most. It is an error if ReadFrom still reads.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.cancel()
	if w.closed {
		return nil
	}
	x := w.x
	err := cmp.Or(w.usable(), x.err)
	if err == nil && w.filled > 0 {
		err = w.flush()
	}
	for err == nil && x.used > 0 {
		if _, err = x.wait(); err == nil {
			x.release()
		}
	}
	return errors.Join(err, w.end())
}

// Abort ends the writer without sending what is left. A Write that waits fails. The memory that
// ReadFrom has lent to its reader stays as it is until that has returned.
func (w *Writer) Abort() error { return w.abort() }

// progress returns how many bytes the client's device has acknowledged.
func (w *Writer) progress() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.x.moved
}

// Pull reads the memory of a token into a region of the initiator's PD, from an offset.
func (i *Initiator) Pull(ctx context.Context, t Token, mr *uverbs.MR, offset int) error {
	return i.move(ctx, t, true, mr, offset)
}

// Push writes a region of the initiator's PD, from an offset, to all of the memory of a token.
func (i *Initiator) Push(ctx context.Context, t Token, mr *uverbs.MR, offset int) error {
	return i.move(ctx, t, false, mr, offset)
}

// PD returns the protection domain of the regions for [Initiator.Pull] and [Initiator.Push]. The
// initiator closes it.
func (i *Initiator) PD() *uverbs.PD { return i.pd }

// move is Pull or Push.
func (i *Initiator) move(ctx context.Context, t Token, read bool, mr *uverbs.MR, offset int) error {
	if offset < 0 || offset > mr.Len() || int64(t.Size) > int64(mr.Len()-offset) {
		return fmt.Errorf("s3rdma: the token has %d bytes, and the region %d from offset %d", t.Size, mr.Len()-offset, offset)
	}
	x, err := i.begin(ctx, t, netip.Addr{}, read)
	if err != nil {
		return err
	}
	for err == nil && (x.left() > 0 || x.used > 0) {
		if n := int(min(x.left(), int64(i.o.Chunk))); n > 0 && x.used < len(x.slots) {
			err = x.post(n, mr.SGE(offset+int(x.at), n))
			continue
		}
		if _, err = x.wait(); err == nil {
			x.release()
		}
	}
	return errors.Join(err, x.finish())
}
