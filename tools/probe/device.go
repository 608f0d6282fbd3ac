package probe

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// devices are the open devices, which all probes and answers share.
type devices struct {
	mu   sync.Mutex
	open map[string]*device
}

// device is an open device.
type device struct {
	*uverbs.Device
	pd      *uverbs.PD
	refs    int             // guarded by devices.mu
	khz     uint64          // of the clock of completions; 0 if there is none
	removed context.Context // ends when the device is removed
	end     context.CancelFunc
}

// use returns a device, which it opens if necessary, and adds a reference.
func (d *devices) use(name string) (*device, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if dev := d.open[name]; dev != nil && dev.removed.Err() == nil {
		dev.refs++
		return dev, nil
	}
	u, err := uverbs.Open(name, uverbs.OpenOptions{})
	if err != nil {
		return nil, err
	}
	dev := &device{Device: u, refs: 1}
	if dev.pd, err = u.AllocPD(); err != nil {
		return nil, errors.Join(err, u.Close())
	}
	if _, err := u.ReadClock(); err == nil {
		dev.khz = u.Attr().CoreClockKHz
	}
	dev.removed, dev.end = context.WithCancel(context.Background())
	go func() { // until the device is closed or removed
		for range u.Events(dev.removed) {
		}
		dev.end()
	}()
	d.open[name] = dev
	return dev, nil
}

// release removes a reference.
func (d *devices) release(dev *device) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if dev.refs--; dev.refs > 0 {
		return
	}
	if d.open[dev.Name()] == dev {
		delete(d.open, dev.Name())
	}
	dev.end()
	dev.CloseAll() // what a failed step has left, too
}

// queue is a QP for datagrams with its CQ and its receives.
type queue struct {
	dev      *device
	receives int // the number of them
	slot     int // bytes of each

	cq     *uverbs.CQ
	mr     *uverbs.MR
	memory []byte // readSize bytes, then the receives
	ud     *uverbs.QP
}

// readSize is the length of an RDMA READ.
const readSize = 8

// make makes the queue. The caller closes it, also after an error.
func (q *queue) make(port uint8, pkey uint16, sends int, qkey uint32) (err error) {
	if q.dev.Info().IWARP() {
		return fmt.Errorf("device %s is iWARP, which has no datagrams: %w", q.dev.Name(), errors.ErrUnsupported)
	}
	q.memory = make([]byte, readSize+q.receives*q.slot)
	if q.mr, err = q.dev.pd.RegSlice(q.memory, uverbs.AccessLocalWrite); err != nil {
		return err
	}
	o := uverbs.CQOptions{Size: q.receives + sends + 8, Events: true}
	if q.dev.khz != 0 {
		o.Flags = uverbs.CQTimestamp
	}
	if q.cq, err = q.dev.CreateCQ(o); err != nil {
		return err
	}
	q.ud, err = q.dev.pd.CreateQP(uverbs.QPOptions{
		Type: ib.UD, SendCQ: q.cq, RecvCQ: q.cq, MaxSendWR: sends, MaxRecvWR: q.receives, MaxInline: datagramSize,
		Path: uverbs.PathOptions{Port: port, PKey: pkey},
	})
	if err == nil {
		err = q.ud.ReadyUD(qkey)
	}
	for i := 0; err == nil && i < q.receives; i++ {
		err = q.post(uint64(i))
	}
	return err
}

// post posts a receive.
func (q *queue) post(i uint64) error {
	return q.ud.PostRecv(i, q.mr.SGE(readSize+int(i)*q.slot, q.slot))
}

// received returns what a receive has taken, from its GRH on.
func (q *queue) received(wc *uverbs.WC) ([]byte, error) {
	if wc.ID >= uint64(q.receives) || int(wc.ByteLen) > q.slot {
		return nil, fmt.Errorf("the device has completed receive %d of %d with %d bytes: %w", wc.ID, q.receives, wc.ByteLen, syscall.EIO)
	}
	return q.memory[readSize+int(wc.ID)*q.slot:][:wc.ByteLen], nil
}

// close closes what there is.
func (q *queue) close() {
	closeIf(q.ud)
	closeIf(q.cq)
	closeIf(q.mr)
}

// closeIf closes an object if there is one.
func closeIf[T interface {
	comparable
	Close() error
}](object T) {
	var none T
	if object != none {
		object.Close()
	}
}

// epoch is what times of the system count from.
var epoch = time.Now()

// now returns the time of the device's clock in its cycles, 0 if it cannot be read, or without one
// that of the system in nanoseconds.
func (d *device) now() uint64 {
	if d.khz != 0 {
		t, _ := d.ReadClock()
		return t
	}
	return uint64(time.Since(epoch))
}

// at returns the time of a completion by the same clock. A time stamp that is later than now is of another clock: cards
// can be set up so that completions have the time of day.
func (d *device) at(wc *uverbs.WC) uint64 {
	if d.khz != 0 {
		return min(wc.Timestamp, d.now())
	}
	return d.now()
}

// between returns the time between two readings of the clock, negative if it is not known: the clock
// was stepped back, or could not be read.
func (d *device) between(from, to uint64) time.Duration {
	n := int64(to - from)
	if n < 0 || from == 0 {
		return -1
	}
	if d.khz != 0 {
		return time.Duration(float64(n) / float64(d.khz) * 1e6)
	}
	return time.Duration(n)
}
