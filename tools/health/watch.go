package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/internal/jsontext"
	"github.com/goverbs/goverbs/tools/internal/privatefile"
	"github.com/goverbs/goverbs/uverbs"
)

// Watch looks at the devices of the machine once each interval, and compares them with what it saw before, also
// before a restart of the program. It plays no ping-pong and connects nowhere. Its methods may be called
// concurrently.
type Watch struct {
	o        WatchOptions
	m        *machine
	now      func() time.Time
	patience time.Duration // for a device that does not answer

	look sync.Mutex // held by Look

	mu       sync.Mutex
	findings []Finding // of the last look; guarded by mu

	// Guarded by look.
	past    past
	saved   time.Time // when past was written
	list    call[listing]
	devices map[string]*device
}

// device is what a Watch keeps of a device while it runs.
type device struct {
	call[glimpse]
	objects tracked   // the last ones that were listed
	next    time.Time // when they are listed again
}

// WatchOptions are the options of a [Watch].
type WatchOptions struct {
	Devices  []string      // Devices are the names of the devices; without one, all are watched, also those that come later.
	Interval time.Duration // Interval is the time between two looks of Run, at least a second; zero is 10 s.
	Window   time.Duration // Window is how long a change is a finding, at least a minute; zero is an hour.
	State    string        // State is a file that keeps what was seen over restarts; empty for none. It is made if it does not exist.
	Expect   *Expectation  // Expect, if set, has the least rate of ports by device and driver, and nothing else. Report.Compare compares the rest.

	NoProcesses bool // NoProcesses leaves out QPs in state ERR and pinned memory, for which all QPs and MRs are listed.
}

// Limits of WatchOptions.
const (
	leastInterval   = time.Second
	defaultInterval = 10 * time.Second
	leastWindow     = time.Minute
	defaultWindow   = time.Hour
	mostTime        = 30 * 24 * time.Hour
)

// NewWatch returns a watch. It reads the file of the state, and fails if the file is not a state.
func NewWatch(o WatchOptions) (*Watch, error) { return newWatch(o, liveMachine()) }

// newWatch is NewWatch for a machine.
func newWatch(o WatchOptions, m *machine) (*Watch, error) {
	for _, f := range []struct {
		field       string
		v           *time.Duration
		least, zero time.Duration
	}{{"Interval", &o.Interval, leastInterval, defaultInterval}, {"Window", &o.Window, leastWindow, defaultWindow}} {
		if *f.v == 0 {
			*f.v = f.zero
		}
		if *f.v < f.least || *f.v > mostTime {
			return nil, fmt.Errorf("health: watch: %s is %v, allowed: %v to %v", f.field, *f.v, f.least, mostTime)
		}
	}
	if o.Expect != nil {
		if err := o.Expect.onlyRates(); err != nil {
			return nil, err
		}
	}
	o.Devices = slices.Clone(o.Devices)
	w := &Watch{o: o, m: m, now: time.Now, patience: 5 * time.Second, devices: map[string]*device{}, past: past{Schema: pastSchema, Devices: map[string]*pastDevice{}}}
	if o.State == "" {
		return w, nil
	}
	if err := w.past.load(o.State); err != nil {
		return nil, fmt.Errorf("health: watch: State is %q: %w", o.State, err)
	}
	return w, w.save(time.Time{}) // says now if it cannot
}

// Seen reports whether a device of that name was seen, or is in the file of the state.
func (w *Watch) Seen(device string) bool {
	w.look.Lock()
	defer w.look.Unlock()
	return w.past.Devices[device] != nil
}

// onlyRates returns an error if an expectation has a field that a Watch does not compare.
func (e *Expectation) onlyRates() error {
	wrong := func(field string, value any) error {
		return fmt.Errorf("health: watch: Expect: %s is %#v, allowed: ports with device, driver and rate_gbps; nothing else is watched", field, value)
	}
	if e.NetNS != "" {
		return wrong("netns", e.NetNS)
	}
	for i, p := range e.Ports {
		text, err := json.Marshal(p)
		var fields map[string]any
		if err = errors.Join(err, json.Unmarshal(text, &fields)); err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			if !slices.Contains([]string{"device", "driver", "rate_gbps"}, name) {
				return wrong(fmt.Sprintf("ports[%d].%s", i, name), fields[name])
			}
		}
	}
	return nil
}

// Change is a finding of a [Watch] that has begun, has another level than before, or has ended.
type Change struct {
	Time  time.Time `json:"time"`  // Time is when it was seen.
	State State     `json:"state"` // State says what has happened.
	Finding
}

// State is what has happened to a finding.
type State string

// The states.
const (
	StateBegan State = "began"
	StateOther State = "level" // its level is another
	StateEnded State = "ended"
)

// Run looks once each Interval, and calls a function for each change, one at a time, until the context ends. All
// findings of the first look begin. It returns an error if the state cannot be written at the end.
func (w *Watch) Run(ctx context.Context, changed func(Change)) error {
	tick := time.NewTicker(w.o.Interval)
	defer tick.Stop()
	for before := []Finding(nil); ; {
		now := w.Look(ctx)
		if ctx.Err() != nil {
			w.look.Lock()
			defer w.look.Unlock()
			return w.save(w.now())
		}
		for _, c := range changes(before, now, w.now()) {
			changed(c)
		}
		before = now
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// changes compares the findings of two looks.
func changes(before, now []Finding, at time.Time) (all []Change) {
	find := func(all []Finding, f Finding) int {
		return slices.IndexFunc(all, func(g Finding) bool { return g.Code == f.Code && g.Device == f.Device && g.Port == f.Port })
	}
	for _, f := range before {
		if find(now, f) < 0 {
			all = append(all, Change{at, StateEnded, f})
		}
	}
	for _, f := range now {
		switch i := find(before, f); {
		case i < 0:
			all = append(all, Change{at, StateBegan, f})
		case before[i].Level != f.Level:
			all = append(all, Change{at, StateOther, f})
		}
	}
	return all
}

// Findings returns those of the last look.
func (w *Watch) Findings() []Finding {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.findings)
}

// saveInterval is how often the state is written, at most.
const saveInterval = time.Minute

// Look looks once, and returns the findings that hold now; none has LevelOK. Findings about a device that has not answered
// yet are the ones of before. If the context ends meanwhile, it returns the same as Findings.
func (w *Watch) Look(ctx context.Context) []Finding {
	w.look.Lock()
	defer w.look.Unlock()
	before := w.Findings()
	var all []Finding
	keep := func(which func(Finding) bool) { // findings of before
		for _, f := range before {
			if which(f) {
				all = append(all, f)
			}
		}
	}
	list := w.list.wait(ctx, w, w.listDevices)
	if list == nil && ctx.Err() == nil {
		list = &listing{err: fmt.Errorf("no answer since %s", when(w.list.since))}
	}
	if ctx.Err() != nil {
		return before
	}
	var seen map[string]*glimpse
	if list.err == nil {
		seen = w.glimpses(ctx, list.devices)
	}
	if ctx.Err() != nil {
		return before
	}
	now := w.now()
	if list.err != nil {
		keep(func(f Finding) bool { return f.Code != CodeDevices && f.Code != CodeState })
		f := Finding{Code: CodeDevices}
		f.see("%s", list.err)
		f.fix("verbs doctor")
		all = append(all, f.conclude(LevelError, "the devices cannot be listed"))
	} else {
		all = w.missing(list.devices, now)
	}
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		if seen[name] != nil {
			all = append(all, w.compare(name, list.devices[name].info, seen[name], now)...)
			continue
		}
		if d := w.past.Devices[name]; d != nil {
			d.Last = now
		}
		since := w.devices[name].since
		late := now.Sub(since) >= silence*w.patience
		keep(func(f Finding) bool { return f.Device == name && (f.Code != CodeOpen || !late) })
		if late {
			f := Finding{Code: CodeOpen, Device: name}
			f.see("no answer since %s", when(since))
			f.fix("dmesg; a device whose firmware hangs has to be reset")
			all = append(all, f.conclude(LevelError, "the device does not answer"))
		}
	}
	if seen != nil {
		all = append(all, w.m.checkPinned(seen))
	}
	var d Report
	d.add(all...)
	if now.Sub(w.saved) >= saveInterval || len(changes(before, d.Findings, now)) > 0 {
		if err := w.save(now); err != nil {
			f := Finding{Code: CodeState}
			f.see("%s", err)
			d.add(f.conclude(LevelWarning, "the file of the state cannot be written"))
		}
	}
	w.mu.Lock()
	w.findings = d.Findings
	w.mu.Unlock()
	return slices.Clone(d.Findings)
}

// glimpses looks at devices. One that has not answered has no glimpse.
func (w *Watch) glimpses(ctx context.Context, devices map[string]watched) map[string]*glimpse {
	late, cancel := context.WithTimeout(ctx, w.patience)
	defer cancel()
	seen := map[string]*glimpse{}
	for name, d := range devices { // all begin before the first wait
		if w.devices[name] == nil {
			w.devices[name] = new(device)
		}
		d.objects = !w.o.NoProcesses && !w.now().Before(w.devices[name].next)
		w.devices[name].start(w, func() glimpse { return w.m.glimpse(d) })
	}
	for name := range devices {
		d := w.devices[name]
		g := d.finish(late)
		if seen[name] = g; g == nil {
			continue
		}
		if g.objects != nil {
			d.objects, d.next = *g.objects, w.now().Add(objectsShare*g.objects.took)
		}
		g.objects = &d.objects
	}
	maps.DeleteFunc(w.devices, func(name string, d *device) bool { return d.answer == nil && devices[name].info.Name == "" })
	return seen
}

const (
	silence      = 3   // times patience, after which a device is said not to answer
	objectsShare = 200 // lists of objects take at most this part of the time, as some drivers ask the firmware for each
)

// call is a call of a function that may hang. There is one at a time, and a late answer is not lost.
type call[T any] struct {
	answer chan T    // nil if there is none
	since  time.Time // when it began
}

// start begins a call in a goroutine of its own, unless one has not ended.
func (c *call[T]) start(w *Watch, do func() T) {
	if c.answer != nil {
		return
	}
	answer := make(chan T, 1)
	c.answer, c.since = answer, w.now()
	go func() { answer <- do() }()
}

// finish returns the answer, or nil if it is late.
func (c *call[T]) finish(late context.Context) *T {
	select {
	case v := <-c.answer:
		c.answer = nil
		return &v
	case <-late.Done():
	}
	select { // one that has ended while another one hung
	case v := <-c.answer:
		c.answer = nil
		return &v
	default:
		return nil
	}
}

// wait starts a call and waits for its answer.
func (c *call[T]) wait(ctx context.Context, w *Watch, do func() T) *T {
	late, cancel := context.WithTimeout(ctx, w.patience)
	defer cancel()
	c.start(w, do)
	return c.finish(late)
}

// watched is a device to look at.
type watched struct {
	dev     netlinkrdma.Device
	info    uverbs.DeviceInfo
	objects bool // also at its QPs and MRs
}

// listing is a list of devices, or why they cannot be listed.
type listing struct {
	devices map[string]watched
	err     error
}

// listDevices lists the devices.
func (w *Watch) listDevices() listing {
	infos, err := w.m.infos()
	devs, derr := w.m.devices()
	if err == nil && slices.ContainsFunc(infos, ofKernel) {
		err = derr
	}
	all := map[string]watched{}
	for _, i := range infos {
		if len(w.o.Devices) > 0 && !slices.Contains(w.o.Devices, i.Name) {
			continue
		}
		d := watched{dev: netlinkrdma.Device{Name: i.Name, Ports: uint32(i.Ports)}, info: i}
		if at := slices.IndexFunc(devs, func(d netlinkrdma.Device) bool { return d.Name == i.Name }); at >= 0 && !i.InProcess {
			d.dev = devs[at]
		}
		all[i.Name] = d
	}
	return listing{all, err}
}

// past is what was seen before. It is kept as JSON.
type past struct {
	Schema  int                    `json:"schema"`
	Devices map[string]*pastDevice `json:"devices"`
}

// pastSchema is the version of past.
const pastSchema = 1

// pastDevice is what is known of a device.
type pastDevice struct {
	NodeGUID string               `json:"node_guid"`
	Last     time.Time            `json:"last"` // when it was listed
	Ports    map[uint32]*pastPort `json:"ports"`
	Broken   map[uint32]time.Time `json:"broken_qps"` // QPs in state ERR, and since when
}

// pastPort is what is known of a port.
type pastPort struct {
	State    string            `json:"state"`
	Since    time.Time         `json:"since"`
	Best     float64           `json:"best_gbps"` // its highest rate
	BestAt   time.Time         `json:"best_at"`   // when it had that
	GIDs     map[int]string    `json:"gids"`
	Counters map[string]uint64 `json:"counters"`
	Moves    []move            `json:"moves"` // of the last Window
}

// move is a change of a port.
type move struct {
	At   time.Time `json:"at"`
	Kind string    `json:"kind"` // one of the kinds
	Text string    `json:"text"` // what has changed; of a counter its name
	N    uint64    `json:"n"`    // by how much a counter has grown
}

// Kinds of a move.
const (
	moveLink    = "link"
	moveGID     = "gid"
	moveCounter = "counter"
)

// mostState is the longest file that is read.
const mostState = 64 << 20

// load reads a file. One that does not exist is like an empty past.
func (p *past) load(name string) error {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, mostState))
	if err != nil {
		return err
	}
	var read past
	if err := json.Unmarshal(text, &read); err != nil {
		return fmt.Errorf("%s is not one of a watch: %w", name, jsontext.Explain(text, err))
	}
	if read.Schema != pastSchema {
		return fmt.Errorf("%s has schema %d, this program reads %d", name, read.Schema, pastSchema)
	}
	for device, d := range read.Devices {
		if d == nil {
			return fmt.Errorf("%s: devices.%s is null", name, device)
		}
		for port, q := range d.Ports {
			if q == nil {
				return fmt.Errorf("%s: devices.%s.ports.%d is null", name, device, port)
			}
		}
		p.Devices[device] = d
	}
	return nil
}

// save writes the past to its file, if it has one. A reader of the file sees the old one or the new one.
func (w *Watch) save(now time.Time) error {
	if w.o.State == "" {
		return nil
	}
	text, err := json.Marshal(&w.past)
	if err != nil {
		return err
	}
	next := w.o.State + ".new"
	err = write(next, append(text, '\n'))
	if err == nil {
		err = os.Rename(next, w.o.State)
	}
	if err != nil {
		return fmt.Errorf("health: watch: State is %q: %w", w.o.State, err)
	}
	w.saved = now
	return nil
}

// write writes a file that only its owner can read.
func write(name string, text []byte) error {
	f, err := privatefile.Create(name)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Sync(), f.Close()) // before the new name, so that it is complete after a loss of power
}
