package s3rdma

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// Without DC, the tests use a connection to each target: this table has their numbers.
var rcTargets sync.Map // of *rcTarget by number

// rcTarget is the end of a client that makes a queue pair for each channel that asks for one.
type rcTarget struct {
	dev *uverbs.Device
	pd  *uverbs.PD
	at  uverbs.Endpoint
	cq  *uverbs.CQ

	mu  sync.Mutex
	qps []*uverbs.QP
}

// newRCTarget makes an end.
func newRCTarget(dev *uverbs.Device, pd *uverbs.PD) (*rcTarget, error) {
	cq, err := dev.CreateCQ(uverbs.CQOptions{})
	if err != nil {
		return nil, err
	}
	t := &rcTarget{dev: dev, pd: pd, cq: cq}
	q, err := t.qp()
	if err != nil {
		return nil, err
	}
	if t.at, err = q.Endpoint(); err != nil {
		return nil, err
	}
	rcTargets.Store(t.at.QPN, t)
	return t, nil
}

func (t *rcTarget) qp() (*uverbs.QP, error) {
	q, err := t.pd.CreateQP(uverbs.QPOptions{SendCQ: t.cq, RecvCQ: t.cq, MaxSendWR: 1, MaxRecvWR: 1})
	if err == nil {
		t.mu.Lock()
		t.qps = append(t.qps, q)
		t.mu.Unlock()
	}
	return q, err
}

func (t *rcTarget) Endpoint() (uverbs.Endpoint, error) { return t.at, nil }

func (t *rcTarget) Close() error {
	rcTargets.Delete(t.at.QPN)
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, q := range t.qps {
		errs = append(errs, q.Close())
	}
	return errors.Join(append(errs, t.cq.Close())...)
}

// rcChannel is a channel that connects to the target of each transfer.
type rcChannel struct {
	i  *Initiator
	cq *uverbs.CQ
	qp *uverbs.QP // nil after Reset
}

func newRCChannel(i *Initiator) (channel, error) {
	cq, err := i.dev.CreateCQ(uverbs.CQOptions{Size: 2 * i.o.Depth, Events: true})
	return &rcChannel{i: i, cq: cq}, err
}

func (c *rcChannel) Point(ctx context.Context, t Token) error {
	if err := c.Reset(); err != nil {
		return err
	}
	v, ok := rcTargets.Load(t.DCTN)
	if !ok {
		return fmt.Errorf("there is no target %d", t.DCTN)
	}
	peer, err := v.(*rcTarget).qp()
	if err != nil {
		return err
	}
	if c.qp, err = c.i.pd.CreateQP(uverbs.QPOptions{SendCQ: c.cq, RecvCQ: c.cq, MaxSendWR: c.i.o.Depth, Path: c.i.o.Path}); err != nil {
		return err
	}
	return uverbs.ConnectPair(ctx, c.qp, peer)
}

func (c *rcChannel) Post(read bool, id uint64, addr uint64, rkey uint32, sge uverbs.SGE) error {
	b := c.qp.BeginSend()
	if read {
		b.ReadSGE(id, uverbs.SendSignaled, addr, rkey, sge)
	} else {
		b.WriteSGE(id, uverbs.SendSignaled, addr, rkey, sge)
	}
	return b.Post()
}

func (c *rcChannel) Wait(ctx context.Context, wcs []uverbs.WC) (int, error) {
	return c.cq.Wait(ctx, wcs)
}

func (c *rcChannel) Err(wc *uverbs.WC) error { return c.qp.Err(wc) }

func (c *rcChannel) Reset() error {
	if c.qp == nil {
		return nil
	}
	err := c.qp.Close()
	c.qp = nil
	var wcs [16]uverbs.WC
	for {
		if n, e := c.cq.Poll(wcs[:]); n == 0 || e != nil {
			return errors.Join(err, e)
		}
	}
}

func (c *rcChannel) Close() error { return errors.Join(c.Reset(), c.cq.Close()) }

// TestMain runs the tests on software devices, or in a guest on its devices: over DC, if they have
// it.
func TestMain(m *testing.M) {
	const heap = "all TestHeap: REG_DMABUF_MR"
	os.Exit(testenv.MainFor(m, map[string]string{"rxe": heap, "mlx5": "<6.12 TestHeap: dma-buf heaps", "soft": heap}))
}

// rig is a client's target and a server's initiator.
type rig struct {
	dev       *uverbs.Device // the target's
	target    *Target
	initiator *Initiator
}

// openDevice opens one of two devices.
func openDevice(t testing.TB, i int) *uverbs.Device {
	t.Helper()
	name := testenv.TheRig().Devices[i]
	if testenv.TheRig().Soft {
		d, err := soft.New(soft.Options{})
		testenv.Must(t, err)
		t.Cleanup(func() { closed(t, d) })
		name = d.Name()
	}
	dev, err := uverbs.Open(name, uverbs.OpenOptions{})
	testenv.Must(t, err)
	t.Cleanup(func() { closed(t, dev) })
	return dev
}

// closed closes something, which must succeed.
func closed(t testing.TB, c interface{ Close() error }) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// newRig makes a rig.
func newRig(t testing.TB, o InitiatorOptions) *rig {
	t.Helper()
	testenv.Guest(t)
	r := new(rig)
	r.newTarget(t)
	r.newInitiator(t, o)
	return r
}

// newTarget gives the rig a target, on a device of its own.
func (r *rig) newTarget(t testing.TB) {
	t.Helper()
	dev := openDevice(t, 0)
	target, err := newTarget(dev, func(pd *uverbs.PD) (end, error) {
		if testenv.TheRig().Driver != "mlx5" {
			return newRCTarget(dev, pd)
		}
		return newDCT(dev, pd, TargetOptions{Path: uverbs.PathOptions{GIDIndex: new(testenv.TheRig().GID)}})
	})
	testenv.Must(t, err)
	t.Cleanup(func() { closed(t, target) })
	r.dev, r.target = dev, target
}

// newInitiator gives the rig an initiator, on a device of its own.
func (r *rig) newInitiator(t testing.TB, o InitiatorOptions) {
	t.Helper()
	dev := openDevice(t, 1)
	o.Path.GIDIndex = new(testenv.TheRig().GID)
	o.Path.Timeout, o.Path.RetryCount = 12, 2 // what fails does so soon
	i, err := newInitiator(dev, o, func(i *Initiator) (channel, error) {
		if testenv.TheRig().Driver != "mlx5" {
			return newRCChannel(i)
		}
		return newDCI(i)
	})
	testenv.Must(t, err)
	t.Cleanup(func() { closed(t, i) })
	r.initiator = i
}

// region makes a region.
func (r *rig) region(t testing.TB, n int) *Region {
	t.Helper()
	g, err := r.target.Alloc(n, uverbs.BufferOptions{})
	testenv.Must(t, err)
	t.Cleanup(func() { closed(t, g) })
	return g
}

// offer makes an offer of a whole region, and returns its token.
func (r *rig) offer(t *testing.T, g *Region, method string) (*Exchange, Token) {
	t.Helper()
	req, err := http.NewRequest(method, "http://h/b/k", nil)
	testenv.Must(t, err)
	x, err := g.Offer(t.Context(), req, 0, g.Len())
	testenv.Must(t, err)
	t.Cleanup(func() { x.loan.end(false) })
	token, err := ParseToken(req.Header.Get(tokenHeader))
	testenv.Must(t, err)
	return x, token
}
