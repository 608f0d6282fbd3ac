package main

import (
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// srdList is how many requests of SRD are posted, and completions polled, at a time in rows about that.
const srdList, srdKey = 16, 0x1234567

// srdRows are what one program prints of each round, in this order.
var srdRows = []string{"post/send/n=1", "builder/send/n=1", "post/send/n=16", "builder/send/n=16", "post/read/n=16", "builder/read/n=16", "poll/n=1", "poll/n=16"}

// srd times the posting of SENDs and READs of registered memory by SRD, their doorbells and the polling of their
// completions included, from one QP of the device to another, and the polling alone. It prints the nanoseconds per
// request of each round.
func srd(out io.Writer, device string, size, count, rounds int) error {
	dev, err := uverbs.Open(device, uverbs.OpenOptions{})
	if err != nil {
		return err
	}
	defer dev.Close() // and all that is made
	d, err := newDatagrams(dev, size, count)
	if err != nil {
		return err
	}
	for done := 0; done < rounds; {
		line, ok, err := d.round()
		if err != nil {
			return err
		}
		if ok {
			done++
			fmt.Fprintln(out, line)
		}
	}
	return nil
}

// datagrams is a QP that sends, and one that receives. All of it goes with the device.
type datagrams struct {
	caller
	peer *uverbs.QP
	wr   uverbs.SendWR
	wrs  [srdList]uverbs.SendWR
	wcs  [srdList]uverbs.WC
}

// newDatagrams makes the QPs.
func newDatagrams(dev *uverbs.Device, size, count int) (*datagrams, error) {
	d := &datagrams{caller: caller{count: count}}
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, err
	}
	buf, err := uverbs.AllocBuffer(size, uverbs.BufferOptions{})
	if err != nil {
		return nil, err
	}
	if d.mr, err = pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteRead}); err != nil {
		return nil, err
	}
	for _, cq := range []**uverbs.CQ{&d.send, &d.recv} {
		if *cq, err = dev.CreateCQ(uverbs.CQOptions{Size: count}); err != nil {
			return nil, err
		}
	}
	for _, qp := range []**uverbs.QP{&d.qp, &d.peer} {
		if *qp, err = pd.CreateQP(uverbs.QPOptions{Type: ib.SRD, SendCQ: d.send, RecvCQ: d.recv, MaxSendWR: count, MaxRecvWR: count, SignalAll: true}); err != nil {
			return nil, err
		}
		if err := (*qp).ReadyUD(srdKey); err != nil {
			return nil, err
		}
	}
	to, err := d.peer.Endpoint()
	if err != nil {
		return nil, err
	}
	path, err := d.qp.PathTo(to)
	if err != nil {
		return nil, err
	}
	d.wr = uverbs.SendWR{Opcode: uverbs.WRSend, SGL: []uverbs.SGE{d.mr.SGE(0, size)}, RemoteAddr: d.mr.Addr(), RKey: d.mr.RKey(), RemoteQPN: to.QPN, RemoteQKey: srdKey}
	d.wr.AH, err = pd.CreateAH(path)
	return d, err
}

// round does all once, and returns the line. It is not ok if a completion was not there yet, so that what was timed
// was a wait.
func (d *datagrams) round() (line string, ok bool, err error) {
	var took [6]float64
	var polls [2]float64
	missing := 0
	for i, post := range []func() error{d.post, d.build, func() error { return d.postList(uverbs.WRSend) }, d.buildSends, func() error { return d.postList(uverbs.WRRDMARead) }, d.buildReads} {
		n := 1
		if i >= 2 {
			n = srdList
		}
		sends := i < 4
		for range d.count {
			if !sends {
				break
			}
			if err := d.peer.PostRecv(0, d.mr.SGE(0, d.mr.Len())); err != nil {
				return "", false, err
			}
		}
		begin := time.Now()
		if err := post(); err != nil {
			return "", false, err
		}
		posted := time.Since(begin)
		if sends {
			if err := d.drain(d.recv, d.count); err != nil {
				return "", false, err
			}
		}
		for drained := time.Now(); time.Since(drained) < settle; { // the completions are there, or about to be
			runtime.Gosched()
		}
		begin = time.Now()
		late := d.count
		for range d.count / n {
			k, err := d.send.Poll(d.wcs[:n])
			if err != nil {
				return "", false, err
			}
			late -= k
		}
		polled := time.Since(begin)
		if err := d.drain(d.send, late); err != nil {
			return "", false, err
		}
		missing += late
		took[i] = float64((posted + polled).Nanoseconds()) / float64(d.count)
		polls[min(i/2, 1)] = float64(polled.Nanoseconds()) / float64(d.count)
	}
	for _, v := range append(took[:], polls[:]...) {
		line += fmt.Sprintf("%.1f ", v)
	}
	return line, missing == 0, nil
}

// post posts SENDs one by one.
func (d *datagrams) post() error {
	d.wrs[0] = d.wr
	for i := range d.count {
		d.wrs[0].ID = uint64(i)
		if err := d.qp.PostSend(d.wrs[:1]...); err != nil {
			return err
		}
	}
	return nil
}

// postList posts requests in lists.
func (d *datagrams) postList(op uverbs.WROpcode) error {
	for i := range d.wrs {
		d.wrs[i] = d.wr
		d.wrs[i].Opcode = op
	}
	for i := 0; i < d.count; i += srdList {
		for k := range d.wrs {
			d.wrs[k].ID = uint64(i + k)
		}
		if err := d.qp.PostSend(d.wrs[:]...); err != nil {
			return err
		}
	}
	return nil
}

// build posts SENDs one by one with the builder.
func (d *datagrams) build() error {
	wr, sge := &d.wr, d.wr.SGL[0]
	for i := range d.count {
		b := d.qp.BeginSend()
		b.To(wr.AH, wr.RemoteQPN, wr.RemoteQKey)
		b.SendSGE(uint64(i), 0, sge)
		if err := b.Post(); err != nil {
			return err
		}
	}
	return nil
}

// buildSends posts lists of SENDs with the builder.
func (d *datagrams) buildSends() error {
	wr, sge := &d.wr, d.wr.SGL[0]
	for i := 0; i < d.count; i += srdList {
		b := d.qp.BeginSend()
		b.To(wr.AH, wr.RemoteQPN, wr.RemoteQKey)
		for k := range srdList {
			b.SendSGE(uint64(i+k), 0, sge)
		}
		if err := b.Post(); err != nil {
			return err
		}
	}
	return nil
}

// buildReads posts lists of READs with the builder.
func (d *datagrams) buildReads() error {
	wr, sge := &d.wr, d.wr.SGL[0]
	for i := 0; i < d.count; i += srdList {
		b := d.qp.BeginSend()
		b.To(wr.AH, wr.RemoteQPN, wr.RemoteQKey)
		for k := range srdList {
			b.ReadSGE(uint64(i+k), 0, wr.RemoteAddr, wr.RKey, sge)
		}
		if err := b.Post(); err != nil {
			return err
		}
	}
	return nil
}
