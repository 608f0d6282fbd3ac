package conformance

import (
	"errors"
	"os"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// newSRQ makes an SRQ with an MR of its PD.
func newSRQ(t *testing.T, dev *uverbs.Device, o uverbs.SRQOptions) (*uverbs.PD, *uverbs.SRQ) {
	t.Helper()
	pd, err := dev.AllocPD()
	must(t, err)
	closeLater(t, pd)
	srq, err := pd.CreateSRQ(o)
	testenv.Skip(t, err)
	must(t, err)
	closeLater(t, srq)
	return pd, srq
}

// TestSRQ: two QPs take their receives from one queue.
func TestSRQ(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard)
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		pd, srq := newSRQ(t, dev, uverbs.SRQOptions{MaxWR: 50, MaxSGE: 2})
		if a := srq.Attr(); a.MaxWR < 50 || a.MaxSGE < 2 {
			t.Fatalf("attributes %+v, asked for 50 and 2", a)
		}
		buf, err := uverbs.AllocBuffer(bufferSize, uverbs.BufferOptions{})
		must(t, err)
		closeLater(t, buf)
		mr, err := pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
		must(t, err)
		closeLater(t, mr)
		cq, err := dev.CreateCQ(uverbs.CQOptions{Size: 100})
		must(t, err)
		closeLater(t, cq)
		var takers, senders [2]*side
		for i := range takers {
			qp, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, SRQ: srq})
			must(t, err)
			closeLater(t, qp)
			takers[i] = &side{dev: dev, pd: pd, buf: buf, mr: mr, cq: cq, qp: &queuePair{QP: qp}}
			must(t, qp.Init())
			senders[i] = newSide(t, dev, uverbs.QPOptions{})
			connect(t, senders[i], takers[i])
			if c := qp.Caps(); c.MaxRecvWR != 0 || c.MaxRecvSGE != 0 {
				t.Errorf("a QP with an SRQ has a receive queue: %+v", c)
			}
			if err := qp.PostRecv(1); !errors.Is(err, uverbs.ErrNoRecvQueue) {
				t.Errorf("PostRecv on a QP with an SRQ: %v", err)
			}
			if err := qp.PostRecvs(uverbs.RecvWR{}); !errors.Is(err, uverbs.ErrNoRecvQueue) {
				t.Errorf("PostRecvs on a QP with an SRQ: %v", err)
			}
		}
		for round := range 3 {
			must(t, srq.PostRecv(1, mr.SGE(0, 50), mr.SGE(100, 50)))
			must(t, srq.PostRecvs(uverbs.RecvWR{ID: 2, SGL: []uverbs.SGE{mr.SGE(1000, 100)}}))
			for i, from := range senders {
				want := from.fill(0, 100, byte(round*10+i))
				must(t, from.qp.PostSend(send(3, from.mr.SGE(0, 100))))
				from.want(t, 3, uverbs.WCSend)
				wc := takers[i].want(t, uint64(1+i), uverbs.WCRecv)
				if wc.ByteLen != 100 {
					t.Fatalf("received %d bytes", wc.ByteLen)
				}
				if i == 0 {
					takers[i].holds(t, 0, want[:50])
					takers[i].holds(t, 100, want[50:])
				} else {
					takers[i].holds(t, 1000, want)
				}
			}
		}
		var busy *uverbs.Error
		if err := srq.Close(); !errors.As(err, &busy) {
			t.Errorf("an SRQ in use was closed: %v", err)
		}
	})
}

func TestSRQAttributes(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		pd, srq := newSRQ(t, openDevice(t, deviceName), uverbs.SRQOptions{MaxWR: 20})
		must(t, srq.SetLimit(5))
		attr, err := srq.Query()
		must(t, err)
		if attr.Limit != 5 && !onMLX5 || attr.MaxWR < 20 || attr.MaxSGE < 1 {
			t.Errorf("attributes %+v, want limit 5 and room for 20", attr)
		}
		must(t, srq.SetLimit(0))
		argError(t, srq.SetLimit(srq.Attr().MaxWR+1), "limit")
		argError(t, srq.SetLimit(-1), "limit")
		for i := range 10 {
			must(t, srq.PostRecv(uint64(i)))
		}
		err = srq.Resize(300)
		testenv.Skip(t, err)
		must(t, err)
		if got := srq.Attr().MaxWR; got < 300 {
			t.Fatalf("resized to %d, asked for 300", got)
		}
		attr, err = srq.Query()
		must(t, err)
		if attr.MaxWR < 300 {
			t.Errorf("the kernel says %d after a resize to 300", attr.MaxWR)
		}
		posted := 10
		for ; posted < 1000; posted++ {
			if err := srq.PostRecv(1); err != nil {
				if !errors.Is(err, uverbs.ErrQueueFull) {
					t.Fatal(err)
				}
				break
			}
		}
		if want := srq.Attr().MaxWR; posted != want {
			t.Errorf("%d receives fit, ten of them from before the resize, want %d", posted, want)
		}
		argError(t, srq.Resize(0), "MaxWR")
		if err := srq.Resize(2); err == nil {
			t.Error("resized below what is posted")
		}
		for field, o := range map[string]uverbs.SRQOptions{"MaxWR": {MaxWR: 1 << 30}, "MaxSGE": {MaxSGE: 1 << 20}} {
			_, err := pd.CreateSRQ(o)
			argError(t, err, field)
		}
		must(t, srq.Close(), srq.Close())
		_, err = srq.Query()
		for _, err := range []error{err, srq.PostRecv(1), srq.PostRecvs(), srq.SetLimit(1), srq.Resize(30)} {
			errorIs(t, err, os.ErrClosed, "after Close")
		}
	})
}

// TestSRQOfDatagrams: UD queue pairs take from an SRQ as well.
func TestSRQOfDatagrams(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		pd, srq := newSRQ(t, dev, uverbs.SRQOptions{})
		a := newSide(t, dev, uverbs.QPOptions{Type: ib.UD})
		b := newSide(t, dev, uverbs.QPOptions{Type: ib.UD, SRQ: srq})
		must(t, srq.PostRecv(1, srqMemory(t, pd, b).SGE(0, 1000)))
		must(t, a.qp.PostSend(datagram(2, wayTo(t, a, b), b, a.mr.SGE(0, 100))))
		a.want(t, 2, uverbs.WCSend)
		b.want(t, 1, uverbs.WCRecv)
	})
}

// TestSRQLimitEvent checks that one event comes when fewer receives are left than the limit says.
func TestSRQLimitEvent(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		pd, srq := newSRQ(t, dev, uverbs.SRQOptions{MaxWR: 20})
		a := newSide(t, dev, uverbs.QPOptions{Type: ib.UD})
		b := newSide(t, dev, uverbs.QPOptions{Type: ib.UD, SRQ: srq})
		ah := wayTo(t, a, b)
		mr := srqMemory(t, pd, b)
		for i := range 6 {
			must(t, srq.PostRecv(uint64(i), mr.SGE(0, 100)))
		}
		must(t, srq.SetLimit(4))
		for i := range 4 {
			must(t, a.qp.PostSend(datagram(1, ah, b, a.mr.SGE(0, 10))))
			a.want(t, 1, uverbs.WCSend)
			b.want(t, uint64(i), uverbs.WCRecv)
		}
		ev, err := dev.NextEvent(withDeadline(t))
		must(t, err)
		if ev.Type != uverbs.EventSRQLimitReached || ev.SRQ != srq {
			t.Errorf("event %s, want %s of the SRQ", ev, uverbs.EventSRQLimitReached)
		}
		if attr, err := srq.Query(); err != nil || attr.Limit != 0 {
			t.Errorf("the limit is %d, %v after its event, want 0", attr.Limit, err)
		}
	})
}
