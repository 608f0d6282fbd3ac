//go:build unix

package replay

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/uverbs/internal/inproc"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
	"github.com/goverbs/goverbs/uverbs/trace"
)

// Options say what of a record is replayed, and how closely. The zero value has a default for all.
type Options struct {
	// Name is the name that the device gets in this process. The default is "replay_" and the name of the
	// recorded device.
	Name string

	// Device is the name of the recorded device. The default is the one that got most commands.
	Device string

	// Also has records for kinds of commands that are not in the first record.
	Also []io.Reader

	// MayDiffer has names of fields that are not compared, such as "user_index", as the differences name them.
	MayDiffer []string
}

// Device is a device whose kernel is a record. Its methods are safe for concurrent use.
type Device struct {
	info inproc.Info
	gids map[uint8][]inproc.GIDEntry // by port
	o    Options

	mu   sync.Mutex
	main *record
	also []*record
	err  error
}

// New returns a device whose kernel is a record, and makes it known to package uverbs, which lists and
// opens it by its name. The caller closes it.
func New(r io.Reader, o Options) (*Device, error) {
	d := &Device{o: o}
	var err error
	if d.main, err = readRecord(r, o.Device); err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	for i, r := range o.Also {
		also, err := readRecord(r, o.Device)
		if err == nil && also.driver != d.main.driver {
			err = fmt.Errorf("the driver of %s is %s, that of %s is %s", also.device, also.driverName(), d.main.device, d.main.driverName())
		}
		if err != nil {
			return nil, fmt.Errorf("replay: record %d of Also: %w", i, err)
		}
		d.also = append(d.also, also)
	}
	d.info, d.gids = describe(append([]*record{d.main}, d.also...))
	d.info.Index = inproc.NewIndex()
	if o.Name != "" {
		d.info.Name = o.Name
	}
	if err := inproc.Add(listed{d}); err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	return d, nil
}

// Name returns the name of the device in this process.
func (d *Device) Name() string { return d.info.Name }

// Err returns the first difference between the commands so far and the record, nil for none. It names the command,
// the field, and the values of both.
func (d *Device) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// Unused returns the recorded commands that were not given, in words, without those that had failed. Of commands that
// may come any number of times, one is enough. Commands of the records in [Options].Also do not count.
func (d *Device) Unused() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	seen := map[kind]bool{}
	for _, c := range d.main.commands {
		seen[c.kind] = seen[c.kind] || c.used && c.kind.repeated()
	}
	var all []string
	for _, c := range d.main.commands {
		if !c.used && !seen[c.kind] && c.call.Errno == "" {
			all = append(all, c.String())
		}
	}
	return all
}

// Close makes the device unknown. Contexts that are open can be used until they are closed.
func (d *Device) Close() error {
	if !inproc.Remove(listed{d}) {
		return os.ErrClosed
	}
	return nil
}

// differ keeps the first difference. The caller holds the lock.
func (d *Device) differ(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("replay: "+format, args...)
	}
}

// answer finds the answer to a command and records the first difference.
func (d *Device) answer(cmd *kernel.Command) syscall.Errno {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range append([]*record{d.main}, d.also...) {
		c, diff := r.find(cmd, d.o.MayDiffer)
		if c == nil {
			c, diff = r.find(writtenForm(cmd), d.o.MayDiffer)
		}
		if c != nil {
			if c.used = true; diff != "" {
				d.differ("%s: %s", c, diff)
			}
			return c.answer(cmd)
		}
	}
	if _, legacy := cmd.Legacy(); !legacy && !d.main.ioctls {
		return syscall.ENOTTY // as from the kernel or the sandbox of the record
	}
	d.differ("the record has no (or no further) command %q", verbOf(cmd, d.main))
	return syscall.EPROTONOSUPPORT
}

// mapMemory returns memory in place of what was mapped.
func (d *Device) mapMemory(offset uint64, size int) (*mmio.Region, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.IndexFunc(d.main.maps, func(c *command) bool { return c.call.Offset == offset })
	if i < 0 {
		d.differ("%d bytes at offset %#x are mapped, the record has no such mmap", size, offset)
		return nil, os.NewSyscallError("mmap", syscall.EINVAL)
	}
	c := d.main.maps[i]
	if c.call.Length != uint64(size) {
		d.differ("%s: length is %d, the record has %d", c, size, c.call.Length)
	}
	if c.call.Errno != "" {
		return nil, os.NewSyscallError("mmap", errnoOf(c.call.Errno))
	}
	region, err := mmio.MapAnonymous(size, false)
	if err == nil {
		copy(region.Bytes(), c.call.Memory)
	}
	return region, err
}

// context is an open device.
type context struct {
	d *Device

	mu     sync.Mutex
	events map[uint32]*os.File // the write ends of event channels, by the number in the answer
}

// Do implements [kernel.Device].
func (c *context) Do(cmd *kernel.Command, _ bool) syscall.Errno { return c.d.answer(cmd) }

// Map implements [kernel.Device].
func (c *context) Map(offset uint64, size int, _ bool) (*mmio.Region, error) {
	return c.d.mapMemory(offset, size)
}

// Events implements [kernel.Device]. The file of an event channel has no events.
func (c *context) Events(number uint32, name string) (kernel.EventFile, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	c.EventsClosed(number) // an earlier channel may have had the number
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events[number] = w
	return r, nil
}

// EventsClosed implements [kernel.EventsCloser].
func (c *context) EventsClosed(number uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.events[number]; w != nil {
		w.Close()
		delete(c.events, number)
	}
}

// Close implements [kernel.Device].
func (c *context) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, w := range c.events {
		errs = append(errs, w.Close())
	}
	clear(c.events)
	return errors.Join(errs...)
}

// errnoOf returns an error by its name.
func errnoOf(name string) syscall.Errno {
	if errno, ok := trace.Errno(name); ok {
		return errno
	}
	return syscall.EIO
}
