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

// many makes count objects of a kind: RC queue pairs with one CQ (qps), queue pairs with a CQ each (cqs), or
// one queue pair and memory regions (mrs). Each queue pair is connected with itself. Then messages of 64 bytes
// go over one after the other in turn, each sent, received and polled before the next, of which the first over
// each object is not timed; then all are closed. It prints the nanoseconds that it took to make an object, those per message, and those to close an object.
func many(out io.Writer, device, kind string, count, messages int) error {
	n := map[string]*struct{ qps, cqs, mrs int }{"qps": {count, 1, 1}, "cqs": {count, count, 1}, "mrs": {1, 1, count}}[kind]
	if n == nil {
		return fmt.Errorf("%q is no kind of object, want qps, cqs or mrs", kind)
	}
	dev, pd, buf, err := open(device, 4096)
	if err != nil {
		return err
	}
	defer dev.Close()
	buf.Bytes()[0] = 1
	qps, cqs, mrs := make([]*uverbs.QP, n.qps), make([]*uverbs.CQ, n.cqs), make([]*uverbs.MR, n.mrs)
	begin := time.Now()
	for i := range mrs {
		if mrs[i], err = pd.RegMR(buf, uverbs.AccessLocalWrite); err != nil {
			return fmt.Errorf("region %d: %w", i+1, err)
		}
	}
	if n.mrs == 1 {
		begin = time.Now()
	}
	for i := range qps {
		if i < n.cqs {
			if cqs[i], err = dev.CreateCQ(uverbs.CQOptions{MaxCQE: 4}); err != nil {
				return fmt.Errorf("CQ %d: %w", i+1, err)
			}
		}
		if qps[i], err = newSelf(pd, cqs[i%n.cqs]); err != nil {
			return fmt.Errorf("queue pair %d: %w", i+1, err)
		}
	}
	made := time.Since(begin)
	sgl := make([]uverbs.SGE, 1)
	send, wcs := uverbs.SendWR{Opcode: uverbs.WRSend, SGL: sgl}, make([]uverbs.WC, 1)
	for i := range count + messages {
		if i == count { // each was used once
			begin = time.Now()
		}
		qp, mr := qps[i%n.qps], mrs[i%n.mrs]
		sgl[0] = mr.SGE(0, 64)
		if err := qp.PostRecv(0, mr.SGE(2048, 64)); err != nil {
			return err
		}
		if err := qp.PostSend(send); err != nil {
			return err
		}
		for done := 0; done < 2; {
			k, err := cqs[i%n.cqs].Poll(wcs)
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
	begin = time.Now()
	for i := 0; i < n.qps && n.mrs == 1; i++ {
		if err := qps[i].Close(); err != nil {
			return err
		}
	}
	for i := 0; i < n.cqs && n.cqs > 1; i++ {
		if err := cqs[i].Close(); err != nil {
			return err
		}
	}
	for i := 0; i < n.mrs && n.mrs > 1; i++ {
		if err := mrs[i].Close(); err != nil {
			return err
		}
	}
	per := func(d time.Duration, n int) float64 { return float64(d.Nanoseconds()) / float64(n) }
	fmt.Fprintf(out, "%.1f %.1f %.1f\n", per(made, count), per(sent, messages), per(time.Since(begin), count))
	return nil
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
