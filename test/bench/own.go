package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// open opens a device, for a PD and memory, which go with it.
func open(device string, size int) (dev *uverbs.Device, pd *uverbs.PD, buf *uverbs.Buffer, err error) {
	if buf, err = uverbs.AllocBuffer(size, uverbs.BufferOptions{}); err != nil {
		return nil, nil, nil, err
	}
	if dev, err = uverbs.Open(device, uverbs.OpenOptions{}); err != nil {
		return nil, nil, nil, err
	}
	if pd, err = dev.AllocPD(); err != nil {
		dev.Close()
		return nil, nil, nil, err
	}
	return dev, pd, buf, nil
}

// registrations times the registration and the deregistration of memory that is there already, and
// prints the nanoseconds of both each time.
func registrations(out io.Writer, device string, size, count int) error {
	dev, pd, buf, err := open(device, size)
	if err != nil {
		return err
	}
	defer dev.Close()
	for i := 0; i < size; i += 4096 {
		buf.Bytes()[i] = 1
	}
	for range count {
		begin := time.Now()
		mr, err := pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
		if err != nil {
			return err
		}
		registered := time.Now()
		if err := mr.Close(); err != nil {
			return err
		}
		fmt.Fprintf(out, "%d %d\n", registered.Sub(begin).Nanoseconds(), time.Since(registered).Nanoseconds())
	}
	return nil
}

// many makes MRs, CQs and RC queue pairs, which take the CQs in turn and are connected with themselves. Messages
// of 64 bytes go over one queue pair, CQ and MR after the other, each sent, received and polled before the next,
// after one over each that is not timed. Then all are closed. It prints the nanoseconds to make one object, per
// message, and to close one object. Objects that there are fewer of than of the others do not count.
func many(out io.Writer, device string, qps, cqs, mrs, messages int) error {
	dev, pd, buf, err := open(device, 4096)
	if err != nil {
		return err
	}
	defer dev.Close()
	buf.Bytes()[0] = 1
	q, c, m := make([]*uverbs.QP, qps), make([]*uverbs.CQ, cqs), make([]*uverbs.MR, mrs)
	most := max(qps, cqs, mrs)
	made, err := timed(most, []series{
		{mrs, func(i int) (err error) {
			m[i], err = pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
			return err
		}},
		{cqs, func(i int) (err error) { c[i], err = dev.CreateCQ(uverbs.CQOptions{Size: 4}); return err }},
		{qps, func(i int) (err error) { q[i], err = newSelf(pd, c[i%cqs]); return err }},
	})
	if err != nil {
		return err
	}
	sgl := make([]uverbs.SGE, 1)
	send, wcs := uverbs.SendWR{Opcode: uverbs.WRSend, SGL: sgl}, make([]uverbs.WC, 1)
	var begin time.Time
	for i := range most + messages {
		if i == most {
			runtime.GC() // what making the objects has left; messages make no garbage
			begin = time.Now()
		}
		qp, cq, mr := q[i%qps], c[i%cqs], m[i%mrs]
		sgl[0] = mr.SGE(0, 64)
		if err := qp.PostRecv(0, mr.SGE(2048, 64)); err != nil {
			return err
		}
		if err := qp.PostSend(send); err != nil {
			return err
		}
		for done := 0; done < 2; {
			k, err := cq.Poll(wcs)
			if err != nil {
				return err
			}
			for i := range wcs[:k] {
				if err := wcs[i].Err(); err != nil {
					return err
				}
			}
			done += k
		}
	}
	sent := time.Since(begin)
	closed, err := timed(most, []series{
		{qps, func(i int) error { return q[i].Close() }},
		{cqs, func(i int) error { return c[i].Close() }},
		{mrs, func(i int) error { return m[i].Close() }},
	})
	if err != nil {
		return err
	}
	per := func(d time.Duration, n int) float64 { return float64(d.Nanoseconds()) / float64(n) }
	fmt.Fprintf(out, "%.1f %.1f %.1f\n", per(made, most), per(sent, messages), per(closed, most))
	return nil
}

// A series is something done n times.
type series struct {
	n  int
	do func(i int) error
}

// timed does several series one after the other and returns the time of those that have length counted.
func timed(counted int, all []series) (total time.Duration, err error) {
	for _, s := range all {
		begin := time.Now()
		for i := range s.n {
			if err := s.do(i); err != nil {
				return 0, fmt.Errorf("object %d of %d: %w", i+1, s.n, err)
			}
		}
		if s.n == counted {
			total += time.Since(begin)
		}
	}
	return total, nil
}

// newSelf makes a queue pair that is connected with itself.
func newSelf(pd *uverbs.PD, cq *uverbs.CQ) (*uverbs.QP, error) {
	qp, err := pd.CreateQP(uverbs.QPOptions{
		SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, SignalAll: true,
	})
	if err != nil {
		return nil, err
	}
	here, err := qp.Endpoint()
	if err != nil {
		return nil, err
	}
	return qp, qp.Connect(context.Background(), here)
}
