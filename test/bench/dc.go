package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/mlx5"
)

const (
	dcKey     = 0x0123456789abcdef
	dcTargets = 2
)

// hasDC reports whether a device has DC.
func hasDC(device string) (bool, error) {
	dev, err := uverbs.Open(device, uverbs.OpenOptions{})
	if err != nil {
		return false, err
	}
	defer dev.Close()
	i, err := newInitiator(dev, 64, 1)
	if err == nil {
		err = i.target(0)
	}
	if errors.Is(err, errors.ErrUnsupported) {
		return false, nil
	}
	return err == nil, err
}

// dc times the posting of lists of small inline SENDs, their doorbell included: by an RC QP, and by an initiator
// of DC to one target and to two in turn. It prints the nanoseconds per message of each round.
func dc(out io.Writer, device string, size, count, rounds int) error {
	dev, err := uverbs.Open(device, uverbs.OpenOptions{})
	if err != nil {
		return err
	}
	defer dev.Close() // and all that is made
	i, err := newInitiator(dev, size, count)
	if err != nil {
		return err
	}
	for n := range i.srqs {
		if err := i.target(n); err != nil {
			return err
		}
	}
	if err := i.connect(size); err != nil {
		return err
	}
	for range rounds {
		var took [1 + dcTargets]float64
		for targets := range took {
			if took[targets], err = i.round(targets); err != nil {
				return err
			}
		}
		fmt.Fprintf(out, "%.1f %.1f %.1f\n", took[0], took[1], took[2])
	}
	return nil
}

// initiator is a DCI with its targets, and an RC QP that is connected with itself. All of it goes with the device.
type initiator struct {
	caller
	pd   *uverbs.PD
	rc   *uverbs.QP // receives by srqs[0]
	srqs [dcTargets]*uverbs.SRQ
	to   [dcTargets]uverbs.SendWR // the address of each target
	list []uverbs.SendWR          // what is posted at once
}

// newInitiator makes the DCI, without a target or an RC QP.
func newInitiator(dev *uverbs.Device, size, count int) (*initiator, error) {
	i := &initiator{caller: caller{count: count}, list: make([]uverbs.SendWR, count)}
	var err error
	if i.pd, err = i.memory(dev, size); err != nil {
		return nil, err
	}
	if i.send, err = dev.CreateCQ(uverbs.CQOptions{Size: count}); err != nil {
		return nil, err
	}
	if i.recv, err = dev.CreateCQ(uverbs.CQOptions{Size: dcTargets * count}); err != nil {
		return nil, err
	}
	if i.qp, err = mlx5.CreateDCI(i.pd, mlx5.DCIOptions{SendCQ: i.send, MaxSendWR: count, MaxInline: size, SignalAll: true}); err != nil {
		return nil, err
	}
	if err := mlx5.ReadyDC(i.qp); err != nil {
		return nil, err
	}
	inline := make([]byte, size)
	for n := range i.list {
		i.list[n] = uverbs.SendWR{Opcode: uverbs.WRSend, Inline: inline}
	}
	return i, nil
}

// target makes the DCT of number n, and an address of it.
func (i *initiator) target(n int) error {
	var err error
	if i.srqs[n], err = i.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: i.count}); err != nil {
		return err
	}
	dct, err := mlx5.CreateDCT(i.pd, mlx5.DCTOptions{RecvCQ: i.recv, SRQ: i.srqs[n], AccessKey: dcKey})
	if err != nil {
		return err
	}
	if err := mlx5.ReadyDC(dct); err != nil {
		return err
	}
	here, err := dct.Endpoint()
	if err != nil {
		return err
	}
	path, err := i.qp.PathTo(here)
	if err != nil {
		return err
	}
	i.to[n].RemoteQPN, i.to[n].DCAccessKey = here.QPN, dcKey
	i.to[n].AH, err = i.pd.CreateAH(path)
	return err
}

// connect makes the RC QP and connects it with itself. The first target is there already.
func (i *initiator) connect(size int) error {
	var err error
	i.rc, err = i.pd.CreateQP(uverbs.QPOptions{SendCQ: i.send, RecvCQ: i.recv, SRQ: i.srqs[0], MaxSendWR: i.count, MaxInline: size, SignalAll: true})
	if err != nil {
		return err
	}
	here, err := i.rc.Endpoint()
	if err != nil {
		return err
	}
	return i.rc.Connect(context.Background(), here)
}

// round posts to so many targets in turn, or by the RC QP if there is none, and returns the nanoseconds per
// message.
func (i *initiator) round(targets int) (float64, error) {
	for n := range i.count {
		if err := i.srqs[n%max(targets, 1)].PostRecv(0, i.mr.SGE(0, i.mr.Len())); err != nil {
			return 0, err
		}
	}
	post := i.post
	if targets == 0 {
		post = i.postRC
	}
	begin := time.Now()
	if err := post(targets); err != nil {
		return 0, err
	}
	took := time.Since(begin)
	if err := i.drain(i.recv, i.count); err != nil {
		return 0, err
	}
	return float64(took.Nanoseconds()) / float64(i.count), i.drain(i.send, i.count)
}

// post posts to so many targets in turn.
func (i *initiator) post(targets int) error {
	for n := range i.list {
		wr, to := &i.list[n], &i.to[n%targets]
		wr.ID, wr.AH, wr.RemoteQPN, wr.DCAccessKey = uint64(n), to.AH, to.RemoteQPN, to.DCAccessKey
	}
	return i.qp.PostSend(i.list...)
}

// postRC posts by the RC QP.
func (i *initiator) postRC(int) error {
	for n := range i.list {
		wr := &i.list[n]
		wr.ID, wr.AH = uint64(n), nil
	}
	return i.rc.PostSend(i.list...)
}
