package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goverbs/goverbs/uverbs"
	"golang.org/x/sys/unix"
)

// patience bounds every wait in a guest.
const patience = 10 * time.Second

// rights are the access rights of a side's memory.
const rights = uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite | uverbs.AccessRemoteRead | uverbs.AccessRemoteAtomic

// errWrong is in the tree of an error about what the driver did wrong. Other errors are of the attack itself.
var errWrong = errors.New("the driver is wrong")

// rig is the device that is attacked.
type rig struct {
	driver string
	dev    *uverbs.Device
	size   int // size is the size of a side's memory, in bytes.
}

// newRig opens the first device of a driver.
func newRig(driver string) (*rig, error) {
	// siw of older kernels counts what root registers, too.
	err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
	if err != nil {
		return nil, err
	}
	dev, err := uverbs.Open(driver+"0", uverbs.OpenOptions{})
	if err != nil {
		return nil, err
	}
	return &rig{driver, dev, 16 << 10}, nil
}

// side is one side of a connection.
type side struct {
	pd  *uverbs.PD
	buf *uverbs.Buffer
	mr  *uverbs.MR
	cq  *uverbs.CQ
	qp  *uverbs.QP

	sends, receives *ring // the queues in memory that is shared with the kernel, on rxe; receives is nil with an SRQ
}

// side makes one, with its QP in INIT on rxe.
func (r *rig) side(o uverbs.QPOptions) (*side, error) {
	s := &side{}
	var err error
	if s.pd, err = r.dev.AllocPD(); err != nil {
		return nil, err
	}
	if s.buf, err = uverbs.AllocBuffer(r.size, uverbs.BufferOptions{}); err != nil {
		return nil, err
	}
	if s.mr, err = s.pd.RegMR(s.buf, uverbs.MROptions{Access: rights}); err != nil {
		return nil, err
	}
	if s.cq, err = r.dev.CreateCQ(uverbs.CQOptions{Size: 256}); err != nil {
		return nil, err
	}
	o.SendCQ, o.RecvCQ = s.cq, s.cq
	before, err := mappings()
	if err != nil {
		return nil, err
	}
	if s.qp, err = s.pd.CreateQP(o); err != nil {
		return nil, err
	}
	if r.driver != "rxe" {
		return s, nil
	}
	rings, err := newRings(before)
	if err != nil {
		return nil, err
	}
	switch { // a send is larger than a receive
	case len(rings) == 2 && o.SRQ == nil:
		s.receives = rings[1]
		fallthrough
	case len(rings) == 1 && o.SRQ != nil:
		s.sends = rings[0]
	default:
		return nil, fmt.Errorf("a QP has mapped %d queues", len(rings))
	}
	return s, s.qp.Init()
}

// pair makes two sides that are connected.
func (r *rig) pair(o uverbs.QPOptions) (a, b *side, err error) {
	if a, err = r.side(o); err != nil {
		return nil, nil, err
	}
	if b, err = r.side(o); err != nil {
		return nil, nil, err
	}
	ea, err := a.qp.Endpoint()
	if err != nil {
		return nil, nil, err
	}
	eb, err := b.qp.EndpointFor(ea)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return a, b, errors.Join(a.qp.Connect(ctx, eb), b.qp.Connect(ctx, ea))
}

// next waits for a completion.
func (s *side) next() (uverbs.WC, error) {
	var wc [1]uverbs.WC
	for end := time.Now().Add(patience); time.Now().Before(end); {
		n, err := s.cq.Poll(wc[:])
		if n == 1 || err != nil {
			return wc[0], err
		}
	}
	return wc[0], errors.New("no completion")
}

// refused waits for the completion of a work request that the driver must refuse.
func (s *side) refused() error {
	wc, err := s.next()
	if err == nil && wc.Status == uverbs.WCSuccess {
		err = fmt.Errorf("%w: a work request that makes no sense succeeds", errWrong)
	}
	return err
}

// works sends a message between two new QPs, so that the kernel is seen to live.
func (r *rig) works() error {
	if r.driver == "siw" {
		return r.worksSIW()
	}
	a, b, err := r.pair(uverbs.QPOptions{})
	if err != nil {
		return err
	}
	copy(a.buf.Bytes(), "still here")
	err = errors.Join(b.qp.PostRecv(1, b.mr.SGE(0, 10)), a.qp.PostSend(uverbs.SendWR{
		ID: 2, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{a.mr.SGE(0, 10)}}))
	if err != nil {
		return err
	}
	for _, s := range []*side{a, b} {
		wc, err := s.next()
		if err != nil || wc.Status != uverbs.WCSuccess {
			return errors.Join(err, wc.Err())
		}
	}
	if got := string(b.buf.Bytes()[:10]); got != "still here" {
		return fmt.Errorf("received %q", got)
	}
	return nil
}
