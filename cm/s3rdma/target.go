package s3rdma

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/mlx5"
)

// DefaultAccessKey is the access key that clients and servers of other makers have by default.
// Everybody knows it.
const DefaultAccessKey uint64 = 0xffeeddcc

// TargetOptions are the options of [NewTarget].
type TargetOptions struct {
	AccessKey uint64             // AccessKey is the key that servers need; by default [DefaultAccessKey].
	Path      uverbs.PathOptions // Path has the port and the GID. Access is set by the package.
}

// Target is a client's side: a target of DC, by which servers reach the memory that requests offer
// them. It is safe for concurrent use.
type Target struct {
	pd  *uverbs.PD
	end end
	at  uverbs.Endpoint

	mu      sync.Mutex
	regions int
	closed  bool
}

// end is what servers reach.
type end interface {
	Endpoint() (uverbs.Endpoint, error)
	Close() error
}

// NewTarget makes a target on a device. It fails with a [uverbs.FeatureError] if the device does
// not have DC.
func NewTarget(dev *uverbs.Device, o TargetOptions) (*Target, error) {
	return newTarget(dev, func(pd *uverbs.PD) (end, error) { return newDCT(dev, pd, o) })
}

// newTarget makes a target, whose end a function makes.
func newTarget(dev *uverbs.Device, open func(*uverbs.PD) (end, error)) (*Target, error) {
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, err
	}
	e, err := open(pd)
	if err != nil { // e may be a nil pointer
		return nil, errors.Join(err, pd.Close())
	}
	at, err := e.Endpoint()
	if err != nil {
		return nil, errors.Join(err, e.Close(), pd.Close())
	}
	return &Target{pd: pd, end: e, at: at}, nil
}

// Close closes the target. Its regions must have been closed before: it fails with EBUSY while
// there are some.
func (t *Target) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return nil
	case t.regions > 0:
		return fmt.Errorf("s3rdma: the target has %d regions, which are to be closed before: %w", t.regions, syscall.EBUSY)
	}
	if err := errors.Join(t.end.Close(), t.pd.Close()); err != nil {
		return err
	}
	t.closed = true
	return nil
}

// dct is a target of DC with the queues that it needs, which never have a receive.
type dct struct {
	*uverbs.QP
	srq *uverbs.SRQ
	cq  *uverbs.CQ
}

// newDCT makes a target of DC.
func newDCT(dev *uverbs.Device, pd *uverbs.PD, o TargetOptions) (_ *dct, err error) {
	d := new(dct)
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	if d.cq, err = dev.CreateCQ(uverbs.CQOptions{Size: 1}); err != nil {
		return nil, err
	}
	if d.srq, err = pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 1}); err != nil {
		return nil, err
	}
	o.Path.Access = uverbs.AccessRemoteRead | uverbs.AccessRemoteWrite
	d.QP, err = mlx5.CreateDCT(pd, mlx5.DCTOptions{RecvCQ: d.cq, SRQ: d.srq, AccessKey: cmp.Or(o.AccessKey, DefaultAccessKey), Path: o.Path})
	if err != nil {
		return nil, err
	}
	return d, mlx5.ReadyDC(d.QP)
}

// Close implements [end].
func (d *dct) Close() error {
	var errs []error
	if d.QP != nil {
		errs = append(errs, d.QP.Close())
	}
	if d.srq != nil {
		errs = append(errs, d.srq.Close())
	}
	if d.cq != nil {
		errs = append(errs, d.cq.Close())
	}
	return errors.Join(errs...)
}

// Region is memory that requests may offer, one at a time. It has a key for the network only while
// a request offers it. Its methods are safe for concurrent use.
type Region struct {
	t      *Target
	buf    *uverbs.Buffer // nil for a dma-buf
	file   *os.File       // nil for memory of the host
	offset int
	size   int

	mu     sync.Mutex
	lent   bool
	closed bool
}

// Alloc returns memory of the host for requests, of 1 byte to 4 GiB - 1.
func (t *Target) Alloc(size int, o uverbs.BufferOptions) (*Region, error) {
	if err := checkSize(size); err != nil {
		return nil, err
	}
	buf, err := uverbs.AllocBuffer(size, o)
	if err != nil {
		return nil, err
	}
	r, err := t.add(&Region{t: t, buf: buf, size: size})
	if err != nil {
		buf.Close()
	}
	return r, err
}

// DMABuf returns a region of memory of another device, such as a GPU, which the file of a dma-buf
// stands for. The file must stay open until the region is closed. The data of such a region never
// goes through the body of a request: a server that declines the offer is an error.
func (t *Target) DMABuf(f *os.File, offset, size int) (*Region, error) {
	if err := checkSize(size); err != nil {
		return nil, err
	}
	if offset < 0 || offset > math.MaxInt-size {
		return nil, fmt.Errorf("s3rdma: the offset of the region is %d, want 0 or more", offset)
	}
	return t.add(&Region{t: t, file: f, offset: offset, size: size})
}

// checkSize returns an error if a token cannot have a size.
func checkSize(size int) error {
	if size < 1 || size > math.MaxUint32 {
		return fmt.Errorf("s3rdma: the size of the region is %d bytes, want 1 to %d", size, uint32(math.MaxUint32))
	}
	return nil
}

// add counts a region.
func (t *Target) add(r *Region) (*Region, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, fmt.Errorf("s3rdma: the target is closed: %w", os.ErrClosed)
	}
	t.regions++
	return r, nil
}

// Bytes returns the memory, or nil of a dma-buf. Nobody may use it while a request offers the
// region.
func (r *Region) Bytes() []byte {
	if r.buf == nil {
		return nil
	}
	return r.buf.Bytes()
}

// Len returns the size of the region in bytes.
func (r *Region) Len() int { return r.size }

// Close gives the memory back. It fails with EBUSY while a request offers the region.
func (r *Region) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return nil
	case r.lent:
		return fmt.Errorf("s3rdma: a request offers the region: %w", syscall.EBUSY)
	}
	if r.buf != nil {
		if err := r.buf.Close(); err != nil {
			return err
		}
	}
	r.closed = true
	r.t.mu.Lock()
	r.t.regions--
	r.t.mu.Unlock()
	return nil
}

// usable returns an error if no request may use the region.
func (r *Region) usable() error {
	switch {
	case r.closed:
		return fmt.Errorf("s3rdma: the region is closed: %w", os.ErrClosed)
	case r.lent:
		return fmt.Errorf("s3rdma: another request uses the region: %w", syscall.EBUSY)
	}
	return nil
}

// hold returns the memory for the body of a request, until unhold.
func (r *Region) hold() ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.buf == nil {
		return nil, fmt.Errorf("%w, and no body can have the data of a dma-buf", ErrDeclined)
	}
	if err := r.usable(); err != nil {
		return nil, err
	}
	r.lent = true
	return r.buf.Bytes(), nil
}

// unhold ends hold.
func (r *Region) unhold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lent = false
}

// loan is the time in which a server has access to a region.
type loan struct {
	r     *Region
	mr    *uverbs.MR
	token Token
	ctx   context.Context
	stop  func() bool // no longer waits for the end of the context

	once sync.Once
	err  error // of the withdrawal
	late error // why the key was withdrawn before the answer came; read after once
	held bool  // the region is lent until release
}

// lend gives a server access to n bytes from an offset: to read or to write them, until the context
// or the loan ends.
func (r *Region) lend(ctx context.Context, access uverbs.Access, offset, n int) (*loan, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.usable(); err != nil {
		return nil, err
	}
	if offset < 0 || n < 1 || offset > r.size-n {
		return nil, fmt.Errorf("s3rdma: %d bytes at %d of the region, want 1 to %d bytes within it", n, offset, r.size)
	}
	mr, err := r.register(access, offset, n)
	if err != nil {
		return nil, err
	}
	l := &loan{r: r, mr: mr, ctx: ctx, token: Token{Addr: mr.Addr(), Size: uint32(n), RKey: mr.RKey(), LID: r.t.at.LID, DCTN: r.t.at.QPN, GID: r.t.at.GID}}
	r.lent = true
	l.stop = context.AfterFunc(ctx, func() { l.withdraw(context.Cause(ctx), false) })
	return l, nil
}

// register registers a part of the region at an address that nobody can guess, so that a server
// with an earlier token does not reach it, even if the kernel gives the same key again.
func (r *Region) register(access uverbs.Access, offset, n int) (*uverbs.MR, error) {
	if access == uverbs.AccessRemoteWrite {
		access |= uverbs.AccessLocalWrite
	}
	o := uverbs.MROptions{Access: access, Offset: r.offset + offset, Length: n}
	var random [8]byte
	rand.Read(random[:])
	at := binary.NativeEndian.Uint64(random[:])>>1&^pageMask | uint64(r.offset+offset)&pageMask
	o.IOVA = &at
	if r.buf != nil {
		return r.t.pd.RegMR(r.buf, o)
	}
	return r.t.pd.RegDMABuf(r.file, o)
}

// pageMask has the bits of an address within a huge page, which memory and its address for servers
// share.
const pageMask = 2<<20 - 1

// withdraw takes the key back, once: afterwards no server reaches the memory. why is nil if the
// loan ends. If hold is set, the region stays in use until release.
func (l *loan) withdraw(why error, hold bool) error {
	l.once.Do(func() {
		l.late = why
		l.err = l.mr.Close()
		l.held = hold && l.err == nil
		l.r.mu.Lock()
		l.r.lent = l.held || l.err != nil // a region whose key may still be valid cannot be offered again
		l.r.mu.Unlock()
	})
	return l.err
}

// release ends the use of a region that end has held. It is called once.
func (l *loan) release() {
	if l.held {
		l.r.unhold()
	}
}

// end ends the loan. The error says why the withdrawal failed, or why the key was withdrawn before.
func (l *loan) end(hold bool) error {
	var why error
	if !l.stop() {
		why = context.Cause(l.ctx)
	}
	if err := l.withdraw(why, hold); err != nil {
		return fmt.Errorf("s3rdma: the key of the region was not withdrawn: %w", err)
	}
	return l.late
}
