package probe

import (
	"context"
	"errors"
	"fmt"
	"sync"
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

// createUD creates a QP for datagrams with a Q_Key.
func (d *device) createUD(cq *uverbs.CQ, port uint8, pkey uint16, sends, receives int, qkey uint32) (*uverbs.QP, error) {
	if d.Info().IWARP() {
		return nil, fmt.Errorf("device %s is iWARP, which has no datagrams: %w", d.Name(), errors.ErrUnsupported)
	}
	qp, err := d.pd.CreateQP(uverbs.QPOptions{
		Type: ib.UD, SendCQ: cq, RecvCQ: cq, MaxSendWR: sends, MaxRecvWR: receives, MaxInline: datagramSize,
		Path: uverbs.PathOptions{Port: port, PKey: pkey},
	})
	if err != nil {
		return nil, err
	}
	return qp, qp.ReadyUD(qkey)
}

// createCQ creates a CQ whose completions have a time stamp where the device has them.
func (d *device) createCQ(size int) (*uverbs.CQ, error) {
	o := uverbs.CQOptions{Size: size, Events: true}
	if d.khz != 0 {
		o.Flags = uverbs.CQTimestamp
	}
	return d.CreateCQ(o)
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
