package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// open opens a device, for a PD and memory, which go with it.
func open(device string, size int) (dev *uverbs.Device, pd *uverbs.PD, buf *uverbs.Buffer, err error) {
	if buf, err = uverbs.AllocBuffer(size); err != nil {
		return nil, nil, nil, err
	}
	if dev, err = uverbs.Open(device); err != nil {
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
		mr, err := pd.RegMR(buf, uverbs.AccessLocalWrite)
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

// manyQPs makes RC queue pairs with one CQ and connects each with itself; then messages of 64 bytes
// go over one after the other in turn, each sent, received and polled before the next; then all are
// closed. It prints the nanoseconds that it took to make and connect a queue pair, those per message,
// and those to close a queue pair.
func manyQPs(out io.Writer, device string, count, messages int) error {
	dev, pd, buf, err := open(device, 4096)
	if err != nil {
		return err
	}
	defer dev.Close()
	mr, err := pd.RegMR(buf, uverbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	cq, err := dev.CreateCQ(uverbs.CQOptions{MaxCQE: 4})
	if err != nil {
		return err
	}
	qps := make([]*uverbs.QP, count)
	ctx := context.Background()
	begin := time.Now()
	for i := range qps {
		qps[i], err = pd.CreateQP(uverbs.QPOptions{
			SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, SignalAll: true,
		})
		if err != nil {
			return fmt.Errorf("queue pair %d: %w", i+1, err)
		}
		here, err := qps[i].Endpoint()
		if err != nil {
			return err
		}
		if err := qps[i].Connect(ctx, here); err != nil {
			return err
		}
	}
	made := time.Since(begin)
	send := uverbs.SendWR{Opcode: uverbs.WRSend, SGL: []uverbs.SGE{mr.SGE(0, 64)}}
	to := mr.SGE(2048, 64)
	wcs := make([]uverbs.WC, 1)
	begin = time.Now()
	for i := range messages {
		qp := qps[i%count]
		if err := qp.PostRecv(0, to); err != nil {
			return err
		}
		if err := qp.PostSend(send); err != nil {
			return err
		}
		for done := 0; done < 2; {
			n, err := cq.Poll(wcs)
			if err != nil {
				return err
			}
			for i := range wcs[:n] {
				if err := wcs[i].Err(); err != nil {
					return err
				}
			}
			done += n
		}
	}
	sent := time.Since(begin)
	begin = time.Now()
	for _, qp := range qps {
		if err := qp.Close(); err != nil {
			return err
		}
	}
	per := func(d time.Duration, n int) float64 { return float64(d.Nanoseconds()) / float64(n) }
	fmt.Fprintf(out, "%.1f %.1f %.1f\n", per(made, count), per(sent, messages), per(time.Since(begin), count))
	return nil
}
