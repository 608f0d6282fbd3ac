// Package health finds out why RDMA does or does not work on this machine. The command "verbs doctor" prints
// what it finds.
//
// [Examine] checks everything that RDMA needs, from the kernel's modules to the GIDs. On each device
// it plays ping-pong within this process, and connects by the connection manager from each address of
// a port to itself. It changes nothing, except that the kernel may load modules in answer to the
// checks. Each [Finding] has a code that stays the same, a level, the device or port that it is about,
// its evidence, and commands that fix it:
//
//	for _, f := range health.Examine(ctx).Findings {
//		if f.Level == health.LevelError {
//			log.Printf("%s%s: %s", f.Subject(), f.Title, strings.Join(f.Fix, "; "))
//		}
//	}
//
// [Options] name another host to connect to, which runs [Serve], or leave out connections. [Report.Compare] compares the
// machine with an [Expectation], such as two ports at 400 Gb/s. A [Watch] looks again and again, and tells what changes: links
// that flap, rates that fall, counters of errors that grow, devices that disappear.
package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs"
)

// Level says how much a finding matters.
type Level string

// The levels.
const (
	LevelOK      Level = "ok"
	LevelInfo    Level = "info"    // nothing to do
	LevelWarning Level = "warning" // RDMA works, but something else does not
	LevelError   Level = "error"   // RDMA does not work, or the machine differs from an Expectation
)

// Finding is the outcome of a check.
type Finding struct {
	Code     Code     `json:"id"`               // Code says which check it is.
	Device   string   `json:"device,omitempty"` // Device is the RDMA device; empty for a finding about the machine.
	Port     int      `json:"port,omitempty"`   // Port is the port of the device; 0 for a finding about the device.
	Level    Level    `json:"level"`            // Level says how much it matters.
	Title    string   `json:"title"`            // Title is one line.
	Evidence []string `json:"evidence"`         // Evidence are the observed facts.
	Fix      []string `json:"fix"`              // Fix are commands and settings.
}

// see adds a line of evidence.
func (f *Finding) see(format string, args ...any) {
	f.Evidence = append(f.Evidence, fmt.Sprintf(format, args...))
}

// fix adds a command or setting that fixes the problem.
func (f *Finding) fix(format string, args ...any) {
	f.Fix = append(f.Fix, fmt.Sprintf(format, args...))
}

// conclude sets the outcome and returns the finding.
func (f *Finding) conclude(l Level, format string, args ...any) Finding {
	f.Level, f.Title = l, fmt.Sprintf(format, args...)
	return *f
}

// Report is the result of all checks. "verbs doctor --json" prints it as JSON.
type Report struct {
	Schema   int       `json:"schema"`   // Schema is [Schema]; it is raised when a field changes its meaning.
	Version  string    `json:"version"`  // Version is the version of the program, which sets it.
	Works    bool      `json:"works"`    // Works says that a ping-pong and connections, if any were made, succeeded on a device, or on each one that is named.
	Verdict  string    `json:"verdict"`  // Verdict is one line.
	Findings []Finding `json:"findings"` // Findings are in the order in which things depend on each other.

	AsExpected *bool `json:"as_expected,omitempty"` // AsExpected says that Compare has found no difference; nil without a call of Compare.
}

// Schema is the version of [Report].
const Schema = 1

// softHint says how to get a device without RDMA.
const softHint = "use a software device inside each program: GOVERBS_SOFT=auto in the environment"

// loopbackTime bounds a ping-pong.
const loopbackTime = 10 * time.Second

// plural is a number with its noun.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Examine makes all checks, on the named devices, or on all without a name. A check whose command or
// wait hangs ends after a time of its own. If the context ends meanwhile, the verdict says so, and there are only the
// findings of before.
func Examine(ctx context.Context, devices ...string) Report {
	return Options{Devices: devices}.Examine(ctx)
}

// Options says what is examined.
type Options struct {
	Devices   []string          // Devices are the names of the devices; without one, all are examined.
	Peer      string            // Peer is another host, with a port or without, which runs [Serve]: each port connects to it, too. It may be empty.
	NoConnect bool              // NoConnect leaves out the connections, also those to the peer: nothing listens on an address.
	Progress  func(step string) // Progress, if set, is called before each step that may take seconds.
}

// Examine is [Examine] with options.
func (o Options) Examine(ctx context.Context) Report {
	m := liveMachine()
	if m.noConnect = o.NoConnect; !m.noConnect {
		m.peer = o.Peer
	}
	if o.Progress != nil {
		m.progress = o.Progress
	}
	return examine(ctx, m, o.Devices)
}

// examine makes all checks of a machine.
func examine(ctx context.Context, m *machine, names []string) Report {
	d := Report{Schema: Schema}
	// This comes first, because the kernel loads modules when a program lists devices.
	devs, devErr := m.devices()
	infos, infoErr := m.infos()
	devErr = cmp.Or(devErr, infoErr)
	d.add(m.checkKernel())
	if m.peer != "" {
		f := m.findPeer(ctx)
		if ctx.Err() != nil {
			return d.interrupt(ctx)
		}
		d.add(f)
	}
	if needsKernel(devs, infos, names) {
		m.examineKernel(&d, devs, infos, devErr, names)
	} else {
		d.add(m.checkDevices(devs, infos, infoErr, names), m.checkVM())
	}
	var passed, failed []string
	chosen := names
	if len(chosen) == 0 {
		for _, i := range infos {
			chosen = append(chosen, i.Name)
		}
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(chosen))) {
		i := slices.IndexFunc(infos, func(i uverbs.DeviceInfo) bool { return i.Name == name })
		if i < 0 {
			failed = append(failed, name) // checkDevices reports it
			continue
		}
		j := slices.IndexFunc(devs, func(d netlinkrdma.Device) bool { return d.Name == name })
		dev := netlinkrdma.Device{Name: name}
		if j >= 0 {
			dev = devs[j]
		}
		examine := func() (bool, []Finding) { return m.examineDevice(ctx, dev, infos[i]) }
		if infos[i].InProcess {
			examine = func() (bool, []Finding) { return m.examineSoft(ctx, infos[i]) }
		}
		ok, findings := examine()
		if ctx.Err() != nil {
			return d.interrupt(ctx)
		}
		d.add(findings...)
		if ok {
			passed = append(passed, name)
		} else {
			failed = append(failed, name)
		}
	}
	if needsKernel(devs, infos, names) {
		if slices.ContainsFunc(infos, otherThanEFA) {
			d.add(m.checkFirewall(infos))
		}
		if slices.ContainsFunc(infos, onEFA) {
			d.add(checkEFANetwork())
		}
	}
	d.judge(passed, failed, len(names) > 0)
	if d.Works && m.reached {
		d.Verdict += "; it connects to " + m.peer
	}
	return d
}

// interrupt ends the report. It has no findings of what was being examined then.
func (d *Report) interrupt(ctx context.Context) Report {
	d.Verdict = fmt.Sprintf("not known: the examination was interrupted: %s", context.Cause(ctx))
	return *d
}

// examineKernel makes the checks of the machine that only the devices of the kernel need.
func (m *machine) examineKernel(d *Report, devs []netlinkrdma.Device, infos []uverbs.DeviceInfo, devErr error, names []string) {
	cm, cmErr := m.cmDev()
	anyEFA := slices.ContainsFunc(infos, onEFA)
	m.allEFA = anyEFA && !slices.ContainsFunc(infos, otherThanEFA)
	proof := map[string]bool{
		"ib_core":   devErr == nil,
		"ib_uverbs": slices.ContainsFunc(infos, func(i uverbs.DeviceInfo) bool { return i.CharDev != "" }),
		"rdma_ucm":  cmErr == nil,
		"rdma_rxe": slices.ContainsFunc(infos, func(i uverbs.DeviceInfo) bool {
			return ofKernel(i) && i.Driver == netlinkrdma.DriverRXE.String()
		}),
	}
	if m.sandbox == "" { // a sandbox has no modules, and its command line names its devices
		d.add(m.checkContainer())
		d.add(m.checkModules(proof)...)
		d.add(m.checkNamespace())
	}
	d.add(m.checkDevices(devs, infos, devErr, names))
	f := m.checkCM(cm, cmErr)
	m.noCM = f.Level != LevelOK
	d.add(f, m.checkMemlock(), m.checkVM())
	if anyEFA {
		d.add(m.checkGPU())
	}
}

// ofKernel reports whether a device is one of the kernel.
func ofKernel(i uverbs.DeviceInfo) bool { return !i.InProcess }

// add appends findings. It ignores findings without a code, which are empty.
func (d *Report) add(all ...Finding) {
	for _, f := range all {
		if f.Code == "" {
			continue
		}
		// An empty list is not null in JSON.
		f.Evidence = append([]string{}, f.Evidence...)
		f.Fix = append([]string{}, f.Fix...)
		d.Findings = append(d.Findings, f)
	}
}

// Count returns the number of findings of a level.
func (d *Report) Count(l Level) int {
	n := 0
	for _, f := range d.Findings {
		if f.Level == l {
			n++
		}
	}
	return n
}

// judge writes the verdict.
func (d *Report) judge(passed, failed []string, named bool) {
	d.Works = len(passed) > 0 && (!named || len(failed) == 0)
	if d.Works {
		// Errors of other devices do not prevent RDMA.
		for i := range d.Findings {
			if d.Findings[i].Level == LevelError {
				d.Findings[i].Level = LevelWarning
			}
		}
		d.Verdict = "RDMA works: a ping-pong went through on " + strings.Join(passed, ", ")
		if n := d.Count(LevelWarning); n > 0 {
			d.Verdict += "; " + plural(n, "warning")
		}
		return
	}
	d.Verdict = "RDMA does not work here"
	i := slices.IndexFunc(d.Findings, func(f Finding) bool { return f.Level == LevelError })
	if named && i >= 0 && d.Findings[i].Device != "" {
		d.Verdict = "RDMA does not work" // the finding names the device
	} else if named {
		d.Verdict = "RDMA does not work on " + strings.Join(failed, ", ")
	}
	if i >= 0 {
		d.Verdict += ": " + d.Findings[i].Subject() + d.Findings[i].Title
	}
}

// Subject names the device and port in front of a title.
func (f *Finding) Subject() string {
	switch {
	case f.Port != 0:
		return fmt.Sprintf("%s port %d: ", f.Device, f.Port)
	case f.Device != "":
		return f.Device + ": "
	}
	return ""
}

// unsupported reports whether the library cannot use a device, and no setting changes that.
func unsupported(i uverbs.DeviceInfo) bool {
	return i.Err != nil && i.CharDev != "" && errors.Is(i.Err, errors.ErrUnsupported)
}
