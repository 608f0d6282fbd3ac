package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// calls times the posting of small inline SENDs, their doorbells included, the polling of their
// completions, one by one, and a system call that does next to nothing with a file. It prints the nanoseconds
// per call of each round.
func calls(out io.Writer, device string, size, count, rounds int) error {
	dev, err := uverbs.Open(device, uverbs.OpenOptions{})
	if err != nil {
		return err
	}
	defer dev.Close()
	c, err := newCaller(dev, size, count)
	if err != nil {
		return err
	}
	for done := 0; done < rounds; {
		post, poll, ok, err := c.round()
		if err != nil {
			return err
		}
		if ok {
			done++
			system, err := systemCalls(count)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "%.1f %.1f %.1f\n", post, poll, system)
		}
	}
	return nil
}

// systemCalls makes a system call some times and returns the nanoseconds per call.
func systemCalls(count int) (float64, error) {
	begin := time.Now()
	for range count {
		if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, 1, syscall.F_GETFD, 0); errno != 0 {
			return 0, errno
		}
	}
	return float64(time.Since(begin).Nanoseconds()) / float64(count), nil
}

// gidIndex returns which of the port's GIDs a QP of ours uses, for programs that must be told.
func gidIndex(device string) (int, error) {
	dev, err := uverbs.Open(device, uverbs.OpenOptions{})
	if err != nil {
		return 0, err
	}
	defer dev.Close()
	c, err := newCaller(dev, 64, 1)
	if err != nil {
		return 0, err
	}
	attr, err := c.qp.Query()
	return int(attr.AH.GRH.SGIDIndex), err
}

// caller is a QP that is connected with itself. All of it goes with the device.
type caller struct {
	count      int
	qp         *uverbs.QP
	send, recv *uverbs.CQ
	mr         *uverbs.MR
	wrs        [1]uverbs.SendWR
	wcs        [1]uverbs.WC
}

// memory registers as much memory in a new PD.
func (c *caller) memory(dev *uverbs.Device, size int) (*uverbs.PD, error) {
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, err
	}
	buf, err := uverbs.AllocBuffer(size, uverbs.BufferOptions{})
	if err != nil {
		return nil, err
	}
	c.mr, err = pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
	return pd, err
}

// newCaller makes the QP.
func newCaller(dev *uverbs.Device, size, count int) (*caller, error) {
	c := &caller{count: count}
	pd, err := c.memory(dev, size)
	if err != nil {
		return nil, err
	}
	for _, cq := range []**uverbs.CQ{&c.send, &c.recv} {
		if *cq, err = dev.CreateCQ(uverbs.CQOptions{Size: count}); err != nil {
			return nil, err
		}
	}
	c.qp, err = pd.CreateQP(uverbs.QPOptions{
		SendCQ: c.send, RecvCQ: c.recv, MaxSendWR: count, MaxRecvWR: count, MaxInline: size, SignalAll: true,
	})
	if err != nil {
		return nil, err
	}
	here, err := c.qp.Endpoint()
	if err != nil {
		return nil, err
	}
	c.wrs[0] = uverbs.SendWR{Opcode: uverbs.WRSend, Inline: make([]byte, size)}
	return c, c.qp.Connect(context.Background(), here)
}

// settle is how long is waited between posting and polling.
const settle = 10 * time.Millisecond

// round posts and polls, and returns the nanoseconds per call. They are not ok if a completion
// was not there yet, so that what was timed was a wait.
func (c *caller) round() (post, poll float64, ok bool, err error) {
	for range c.count {
		if err := c.qp.PostRecv(0, c.mr.SGE(0, c.mr.Len())); err != nil {
			return 0, 0, false, err
		}
	}
	begin := time.Now()
	for i := range c.count {
		c.wrs[0].ID = uint64(i)
		if err := c.qp.PostSend(c.wrs[:]...); err != nil {
			return 0, 0, false, err
		}
	}
	posted := time.Since(begin)
	if err := c.drain(c.recv, c.count); err != nil {
		return 0, 0, false, err
	}
	for drained := time.Now(); time.Since(drained) < settle; { // the completions of the sends are there, or about to be
		runtime.Gosched() // as a program does that polls; asleep, it would find cold what it is timed with
	}
	missing := 0
	begin = time.Now()
	for range c.count {
		n, err := c.send.Poll(c.wcs[:])
		if err != nil {
			return 0, 0, false, err
		}
		missing += 1 - n
	}
	polled := time.Since(begin)
	perCall := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / float64(c.count) }
	return perCall(posted), perCall(polled), missing == 0, c.drain(c.send, missing)
}

// drain polls until there were so many completions.
func (c *caller) drain(cq *uverbs.CQ, count int) error {
	for count > 0 {
		n, err := cq.Poll(c.wcs[:])
		if err != nil {
			return err
		}
		if n > 0 {
			if err := c.qp.Err(&c.wcs[0]); err != nil {
				return err
			}
		}
		count -= n
	}
	return nil
}
