package cm

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/goverbs/goverbs/cm/internal/inprocess"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
)

// device is an open device that connections share.
type device struct {
	index  uint32
	dev    *uverbs.Device
	shared *domain // the PD of the connections that have no PD of their own
	cqs    completionPool

	// mu is held while the device is opened and while it is closed, which takes as long as the
	// hardware does. Each device has its own, so that a device that hangs does not block
	// connections on another one.
	mu     sync.Mutex
	closed bool // guarded by mu: the device is closed, or could not be opened

	refs    int  // guarded by devices.mu
	closing bool // guarded by devices.mu: a timer that closes the device is set
}

// devices are the devices that are open or are being opened.
var devices = struct {
	mu   sync.Mutex // held for short times, never during a command
	open map[uint32]*device
}{open: map[uint32]*device{}}

// idleGrace is how long a device, a CQ, a region or the event loop for dialing is kept without a
// user, because a program that has closed a connection often makes another one. Tests shorten it.
var idleGrace = time.Second

// useDevice returns the device with the given index, which it opens if necessary, and adds a
// reference.
func useDevice(index uint32) (*device, error) {
	for {
		d := findDeviceEntry(index)
		err := d.open()
		if err == nil {
			return d, nil
		}
		d.forget()
		d.unref()
		if err != errDeviceClosed {
			return nil, err
		}
	}
}

// findDeviceEntry returns the entry of a device, which it makes if there is none, and adds a
// reference.
func findDeviceEntry(index uint32) *device {
	devices.mu.Lock()
	defer devices.mu.Unlock()
	d := devices.open[index]
	if d == nil {
		d = &device{index: index}
		devices.open[index] = d
	}
	d.refs++
	return d
}

// errDeviceClosed is the error of open for an entry that was just closed. The caller tries again
// with a new entry.
var errDeviceClosed = errors.New("the device has just been closed")

// open opens the device unless it is open.
func (d *device) open() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errDeviceClosed
	}
	if d.dev != nil {
		return nil
	}
	err := d.openNow()
	d.closed = err != nil
	return err
}

// openNow opens the device. The caller holds d.mu.
func (d *device) openNow() error {
	name, err := inprocess.DeviceName(d.index)
	if err != nil {
		return err
	}
	dev, err := uverbs.Open(name, uverbs.OpenOptions{})
	if err != nil {
		return err
	}
	shared := &domain{dev: d, keepFor: idleGrace}
	if shared.pd, err = dev.AllocPD(); err != nil {
		return errors.Join(err, dev.Close())
	}
	shared.refs = 1 // the use by the device itself, which ends when the device is closed
	shared.usePools()
	d.dev, d.shared, d.cqs.dev = dev, shared, dev
	return nil
}

// ref adds a reference. The caller has one already.
func (d *device) ref() {
	devices.mu.Lock()
	defer devices.mu.Unlock()
	d.refs++
}

// unref removes a reference, and reports whether it was the last one.
func (d *device) unref() bool {
	devices.mu.Lock()
	defer devices.mu.Unlock()
	d.refs--
	return d.refs == 0
}

// release removes a reference. The device is closed idleGrace after the last one was removed, or
// later if the program still has memory registered with a PD. A device that is being removed is
// closed at once, because the kernel waits for that.
func (d *device) release() {
	if d.unref() && (d.known() || !d.closeIdle()) {
		d.closeSoon()
	}
}

// closeSoon sets a timer that closes the device if it has no references then.
func (d *device) closeSoon() {
	devices.mu.Lock()
	defer devices.mu.Unlock()
	if d.closing {
		return
	}
	d.closing = true
	time.AfterFunc(idleGrace, func() {
		devices.mu.Lock()
		d.closing = false
		devices.mu.Unlock()
		if !d.closeIdle() {
			d.closeSoon()
		}
	})
}

// closeIdle closes the device unless it is in use. It returns false if that must be tried again,
// because the program has memory registered.
func (d *device) closeIdle() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	devices.mu.Lock()
	used := d.refs > 0
	devices.mu.Unlock()
	if used || d.closed {
		return true
	}
	if d.cqs.close() != nil || d.shared.close() != nil {
		return false
	}
	d.dev.Close()
	d.closed = true
	d.forget()
	return true
}

// removed returns err, preceded by errRemoved if err comes from a device that is being removed.
func removed(err error, device string) error {
	if errors.Is(err, uverbs.ErrDeviceRemoved) {
		return fmt.Errorf("%w: %w", errRemoved(device), err)
	}
	return err
}

// isRemoved reports whether the device was removed during the operation that returned err.
func isRemoved(err error) bool {
	var e *rdmacm.EventError
	return errors.As(err, &e) && e.Type == rdmacm.EventDeviceRemoval
}

// forgetIfRemoved forgets the device if err says that it is being removed.
func (d *device) forgetIfRemoved(err error) {
	if d != nil && isRemoved(err) {
		d.forget()
	}
}

// forget makes later connections open the device again, because another device may get its index.
func (d *device) forget() {
	devices.mu.Lock()
	defer devices.mu.Unlock()
	if devices.open[d.index] == d {
		delete(devices.open, d.index)
	}
}

// known reports whether new connections use this entry: it was not forgotten.
func (d *device) known() bool {
	devices.mu.Lock()
	defer devices.mu.Unlock()
	return devices.open[d.index] == d
}

// domain is a PD with the registered memory of its connections. A peer that has a key can access
// memory that is registered with the PD of its own connection, and no other memory.
type domain struct {
	dev     *device
	keepFor time.Duration // how long the PD is kept without a connection

	pool  pool // for messages
	first pool // for the small receives and the control messages

	mu       sync.Mutex
	pd       *uverbs.PD     // guarded by mu: nil if no connection uses it
	refs     int            // guarded by mu: number of connections
	timed    bool           // guarded by mu: a timer that closes the PD is set
	probeMR  *uverbs.MR     // guarded by mu: on iWARP, memory that peers may read, see Conn.probe
	probeBuf *uverbs.Buffer // guarded by mu: the memory of probeMR
}

// usePools makes the pools register memory with the PD.
func (m *domain) usePools() {
	m.pool.pd, m.first.pd = m.pd, m.pd
	if m.keepFor > 0 { // other connections can use the rest of a region
		m.first.least = firstRegion
	}
}

// use adds a connection and returns the PD, which is allocated for the first one.
func (m *domain) use() (*uverbs.PD, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pd == nil {
		pd, err := m.dev.dev.AllocPD()
		if err != nil {
			return nil, err
		}
		m.pd = pd
		m.usePools()
		m.dev.ref()
	}
	m.refs++
	return m.pd, nil
}

// release removes a connection. The PD is closed after the last one, and later if the program still
// has memory registered with it.
func (m *domain) release() {
	m.mu.Lock()
	m.refs--
	last := m.refs == 0
	m.mu.Unlock()
	switch {
	case !last:
	case m.keepFor == 0 || !m.dev.known():
		m.closeIdle()
	default:
		m.closeAfter(m.keepFor)
	}
}

// closeAfter sets a timer that closes the PD if no connection uses it then.
func (m *domain) closeAfter(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.timed {
		return
	}
	m.timed = true
	time.AfterFunc(d, func() {
		m.mu.Lock()
		m.timed = false
		m.mu.Unlock()
		m.closeIdle()
	})
}

// closeIdle closes the PD unless a connection uses it. If closing fails, it tries again later.
func (m *domain) closeIdle() {
	m.mu.Lock()
	idle := m.refs == 0 && m.pd != nil
	failed := idle && m.closeNow() != nil
	m.mu.Unlock()
	switch {
	case failed:
		m.closeAfter(idleGrace)
	case idle:
		m.dev.release()
	}
}

// close closes the PD of a device that is about to be closed.
func (m *domain) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closeNow()
}

// closeNow closes the memory and the PD. The caller holds m.mu.
func (m *domain) closeNow() error {
	if m.probeMR != nil {
		if err := m.probeMR.Close(); err != nil {
			return err
		}
		m.probeMR = nil
		if err := m.probeBuf.Close(); err != nil {
			return err
		}
	}
	for _, p := range []*pool{&m.pool, &m.first} {
		if err := p.close(); err != nil {
			return err
		}
	}
	if err := m.pd.Close(); err != nil {
		return err
	}
	m.pd = nil
	return nil
}

// probeMemory returns the memory for probes on iWARP, and nil elsewhere: peers may read it, and the
// answers to probes of this side are stored in it. It holds no data.
func (m *domain) probeMemory() (*uverbs.MR, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.probeMR != nil || !onIWARP(m.dev.dev) {
		return m.probeMR, nil
	}
	const size = 2 // one byte to be read, and one to read into
	buf, err := uverbs.AllocBuffer(size, uverbs.BufferOptions{})
	if err != nil {
		return nil, err
	}
	m.probeMR, err = m.pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteRead})
	if err != nil {
		return nil, errors.Join(err, buf.Close())
	}
	m.probeBuf = buf
	return m.probeMR, nil
}

// onIWARP reports whether d is an iWARP device. There the kernel moves a QP when it is connected,
// and no command does.
func onIWARP(d *uverbs.Device) bool { return d.Info().IWARP() }
