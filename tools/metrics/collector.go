package metrics

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/health"
	"github.com/goverbs/goverbs/tools/internal/proc"
	"github.com/goverbs/goverbs/tools/probe"
	"github.com/goverbs/goverbs/uverbs"
)

// Options are the options of a [Collector].
type Options struct {
	Devices        []string      // Devices are the names of the devices to collect; none means all, also those that come later.
	DoctorInterval time.Duration // DoctorInterval is the shortest time between two examinations by package health; 0 means that only Examine makes one.
	NoProcesses    bool          // NoProcesses leaves out what is counted for each process.
	Version        string        // Version is the version of the program.
	Watch          *health.Watch // Watch has findings about what changes; the program has it look. It may be nil.
	Probe          *probe.Prober // Probe probes other hosts; the program runs it. It may be nil.

	// Events is set by a program that calls CountEvent. Counters of important events are there from the start then.
	// It returns nil, or why the events of a device are missing; or, if device is empty, events in general.
	Events func(device string) error
}

// Collector collects metrics. Its methods may be called concurrently.
type Collector struct {
	options  Options
	host     host
	patience time.Duration // for a device that does not answer

	mu        sync.Mutex
	current   *collection       // the one that runs; nil if none does
	busy      map[string]bool   // keys of devices that are being read
	errors    map[string]uint64 // by part
	events    map[eventKey]uint64
	report    *health.Report // the last one
	reported  time.Time      // when it came
	took      time.Duration  // how long that examination took
	examining bool
	asked     time.Time // when the last examination began
}

// eventKey is what an event is counted by.
type eventKey struct{ device, port, event string }

// collection is one round of collecting.
type collection struct {
	done chan struct{} // closed at its end
	text []byte
}

// host is what a Collector reads. Tests put other functions in place.
type host struct {
	devices  func() ([]netlinkrdma.Device, error)
	own      func() ([]uverbs.DeviceInfo, error) // software devices inside this process
	ports    func(netlinkrdma.Device) ([]netlinkrdma.Port, error)
	open     func(name string) (openDevice, error)
	counters func(netlinkrdma.Device, uint32) ([]netlinkrdma.Counter, error)
	standard func(netlinkrdma.Device, uint32) ([]netlinkrdma.Counter, error)
	counts   func(netlinkrdma.Device) (netlinkrdma.ResourceCounts, error)
	objects  func(netlinkrdma.Device, *owners) error
	sysfs    fs.FS
	proc     proc.FS
	examine  func(context.Context, ...string) health.Report
}

// openDevice is a device whose attributes can be queried.
type openDevice interface {
	Port(port uint8) (uverbs.PortAttr, error)
	PortCounters(port uint8) ([]netlinkrdma.Counter, error)
	GIDTable(port uint8) ([]uverbs.GIDEntry, error)
	Close() error
}

// patience is for a device that does not answer. Prometheus waits for 10 s by default.
const patience = 5 * time.Second

// New returns a collector.
func New(o Options) *Collector {
	o.Devices = slices.Compact(slices.Sorted(slices.Values(o.Devices)))
	return &Collector{
		options: o, patience: patience,
		busy: map[string]bool{}, errors: map[string]uint64{}, events: map[eventKey]uint64{},
		host: host{
			devices:  netlinkrdma.Devices,
			own:      ownDevices,
			ports:    netlinkrdma.Ports,
			open:     func(name string) (openDevice, error) { return uverbs.Open(name, uverbs.OpenOptions{}) },
			counters: netlinkrdma.PortCounters,
			standard: netlinkrdma.StandardCounters,
			counts: func(dev netlinkrdma.Device) (netlinkrdma.ResourceCounts, error) {
				return netlinkrdma.Resources(dev, withDrivers)
			},
			objects: listObjects,
			sysfs:   os.DirFS("/sys"),
			proc:    proc.System,
			examine: func(ctx context.Context, devices ...string) health.Report {
				return health.Options{Devices: devices, NoConnect: true}.Examine(ctx)
			},
		},
	}
}

// ownDevices lists the software devices inside this process. The error is about the kernel's
// devices; it is nil if there are devices here and the kernel has no RDMA.
func ownDevices() ([]uverbs.DeviceInfo, error) {
	infos, err := uverbs.Devices()
	return slices.DeleteFunc(infos, func(i uverbs.DeviceInfo) bool { return !i.InProcess }), err
}

// WriteTo collects and writes the metrics. Calls at the same time share one collection. The error is the writer's.
func (c *Collector) WriteTo(w io.Writer) (int64, error) {
	return bytes.NewReader(c.Collect()).WriteTo(w)
}

// Collect returns the metrics. Calls at the same time share one collection, and the same memory.
func (c *Collector) Collect() []byte {
	c.mu.Lock()
	if now := c.current; now != nil {
		c.mu.Unlock()
		<-now.done
		return now.text
	}
	now := &collection{done: make(chan struct{})}
	c.current = now
	c.mu.Unlock()
	now.text = c.collect().render()
	c.mu.Lock()
	c.current = nil
	c.mu.Unlock()
	close(now.done)
	return now.text
}

// CountEvent counts an event, such as PORT_ERR, of a device and a port; port is 0 for an event of the device, and
// device is empty for one that has none. It keeps the first few thousand different ones.
func (c *Collector) CountEvent(device string, port uint32, event string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.event(device, port, event, 1)
}

// mostEvents limits the memory for devices that come and go under ever new names.
const mostEvents = 4096

// event adds to the counter of an event.
func (c *Collector) event(device string, port uint32, event string, n uint64) {
	key := eventKey{device, "", event}
	if port != 0 {
		key.port = fmt.Sprint(port)
	}
	if _, known := c.events[key]; !known && len(c.events) >= mostEvents {
		c.errors["events"]++
		return
	}
	c.events[key] += n
}

// Examine makes an examination by package health, without connections, whose findings the next collection has. It takes seconds. If the
// context ends meanwhile, the findings of before stay.
func (c *Collector) Examine(ctx context.Context) {
	begun := time.Now()
	r := c.host.examine(ctx, c.options.Devices...)
	if ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report, c.reported, c.took = &r, time.Now(), time.Since(begun)
}

// examineSometimes starts an examination if the last one began long enough ago.
func (c *Collector) examineSometimes() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.options.DoctorInterval <= 0 || c.examining || !c.asked.IsZero() && time.Since(c.asked) < c.options.DoctorInterval {
		return
	}
	c.examining, c.asked = true, time.Now()
	go func() {
		c.Examine(context.Background())
		c.mu.Lock()
		c.examining = false
		c.mu.Unlock()
	}()
}

// result is what was read of a device, or a list of devices.
type result struct {
	samples *samples
	devices []device
	err     error // of the list
}

// collect makes a round.
func (c *Collector) collect() *samples {
	begun := time.Now()
	c.examineSometimes()
	late, cancel := context.WithTimeout(context.Background(), c.patience)
	defer cancel()
	all, names := new(samples), map[string]bool{}
	listing, listingOwn := c.start("", c.list), c.start("own", c.listOwn)
	kernel, ok := finish(late, listing)
	if !ok {
		kernel.err = errNoAnswer
	}
	readings := c.readEach(kernel.devices, names)
	own, ok := finish(late, listingOwn) // while the others are read, since this tries to open the kernel's devices
	switch {
	case !ok:
		kernel.err = errNoAnswer
	case len(own.devices) > 0: // then it may be no error that the kernel has no RDMA
		kernel.err = own.err
	}
	c.part(all, "devices", "", kernel.err)
	readings = append(readings, c.readEach(own.devices, names)...)
	for _, name := range c.options.Devices {
		if !names[name] {
			c.part(all, "devices", name, fs.ErrNotExist)
		}
	}
	for _, r := range readings {
		one, ok := finish(late, r.done)
		if !ok {
			c.part(all, "device", r.name, errNoAnswer)
		}
		all.join(one.samples)
	}
	if c.options.Events != nil {
		c.part(all, "events", "", c.options.Events(""))
	}
	c.own(all, begun)
	return all
}

// reading is a device that is being read.
type reading struct {
	name string
	done <-chan result // see start
}

// readEach begins to read the devices that are chosen, and whose names are not there yet.
func (c *Collector) readEach(devices []device, names map[string]bool) (all []reading) {
	for _, d := range devices {
		again := names[d.Name]
		names[d.Name] = true
		if again || len(c.options.Devices) > 0 && !slices.Contains(c.options.Devices, d.Name) {
			continue
		}
		all = append(all, reading{d.Name, c.start(d.key(), func() result { return result{samples: c.read(d)} })})
	}
	return all
}

// errNoAnswer is the failure of a device that does not answer in time.
var errNoAnswer = errors.New("no answer")

// start begins to read in a goroutine of its own. It returns nil if the last reading has not ended.
func (c *Collector) start(key string, read func() result) <-chan result {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy[key] {
		return nil
	}
	c.busy[key] = true
	done := make(chan result, 1)
	go func() {
		r := read()
		c.mu.Lock()
		delete(c.busy, key)
		c.mu.Unlock()
		done <- r
	}()
	return done
}

// finish waits for what was read until it is late.
func finish(late context.Context, done <-chan result) (result, bool) {
	if done == nil {
		return result{samples: new(samples)}, false
	}
	select {
	case r := <-done:
		return r, true
	case <-late.Done():
	}
	select { // a device that has answered while another one hung
	case r := <-done:
		return r, true
	default:
		return result{samples: new(samples)}, false
	}
}

// part adds whether a part could be read. One that the kernel or the driver does not have is left out.
func (c *Collector) part(s *samples, name, device string, err error) {
	if errors.Is(err, errors.ErrUnsupported) {
		return
	}
	if err != nil {
		c.mu.Lock()
		c.errors[name]++
		c.mu.Unlock()
	}
	s.add(collectorSuccess, truth(err == nil), name, device)
}

// own adds the metrics of the exporter, events and findings.
func (c *Collector) own(s *samples, begun time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, n := range c.errors {
		s.add(collectorErrors, integer(n), name)
	}
	for key, n := range c.events {
		s.add(events, integer(n), key.device, key.port, key.event)
	}
	if c.report != nil {
		s.add(doctorWorks, truth(c.report.Works))
		addFindings(s, doctorLevel, c.report.Findings)
		s.add(doctorDuration, number(c.took.Seconds()))
		s.add(doctorLast, number(float64(c.reported.UnixMilli())/1e3))
	}
	if c.options.Watch != nil {
		addFindings(s, watchLevel, c.options.Watch.Findings())
	}
	if c.options.Probe != nil {
		addProbes(s, c.options.Probe)
	}
	s.add(buildInfo, "1", c.options.Version, runtime.Version())
	s.add(scrapeDuration, number(time.Since(begun).Seconds()))
}

// addFindings adds findings: the worst one of each code, device and port.
func addFindings(s *samples, family int, findings []health.Finding) {
	levels := []health.Level{health.LevelOK, health.LevelInfo, health.LevelWarning, health.LevelError}
	worst := map[[3]string]int{}
	for _, f := range findings {
		key := [3]string{string(f.Code), f.Device}
		if f.Port != 0 {
			key[2] = fmt.Sprint(f.Port)
		}
		worst[key] = max(worst[key], slices.Index(levels, f.Level))
	}
	for key, level := range worst {
		s.add(family, integer(uint64(level)), key[0], key[1], key[2])
	}
}

// addProbes adds what probes of other hosts have shown.
func addProbes(s *samples, p *probe.Prober) {
	for _, r := range p.Results() {
		labels := []string{r.Device, r.Peer, r.Addr.String(), fmt.Sprint(r.Path), string(r.Transport)}
		s.add(probeUp, truth(r.Up), labels...)
		s.add(probeSent, integer(r.Sent), labels...)
		for _, l := range r.Lost {
			s.add(probeLost, integer(l.Count), append(labels[:len(labels):len(labels)], string(l.Cause))...)
		}
		s.addHistogram(probeLatency, &r.Latency, labels...)
	}
	a := p.Answers()
	s.add(probeSessions, integer(uint64(a.Sessions)))
	s.add(probeAnswers, integer(a.Echoes), "echoed")
	s.add(probeAnswers, integer(a.Dropped), "dropped")
	s.add(probeAnswers, integer(a.Refused), "refused")
}
