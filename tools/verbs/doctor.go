package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/uverbs"
)

// level says how much a finding matters.
type level string

// The levels.
const (
	levelOK      level = "ok"
	levelInfo    level = "info"    // nothing to do
	levelWarning level = "warning" // RDMA works, but something else does not
	levelError   level = "error"   // RDMA does not work
)

// finding is the outcome of a check.
type finding struct {
	ID       string   `json:"id"`
	Device   string   `json:"device,omitempty"` // RDMA device; empty for a finding about the machine
	Port     int      `json:"port,omitempty"`
	Level    level    `json:"level"`
	Title    string   `json:"title"`
	Evidence []string `json:"evidence"` // observed facts
	Fix      []string `json:"fix"`      // commands and settings
}

// see adds a line of evidence.
func (f *finding) see(format string, args ...any) {
	f.Evidence = append(f.Evidence, fmt.Sprintf(format, args...))
}

// fix adds a command or setting that fixes the problem.
func (f *finding) fix(format string, args ...any) {
	f.Fix = append(f.Fix, fmt.Sprintf(format, args...))
}

// conclude sets the outcome and returns the finding.
func (f *finding) conclude(l level, format string, args ...any) finding {
	f.Level, f.Title = l, fmt.Sprintf(format, args...)
	return *f
}

// diagnosis is the result of "verbs doctor", and its JSON.
type diagnosis struct {
	Schema   int       `json:"schema"` // 1; raised when a field changes its meaning
	Version  string    `json:"version"`
	Works    bool      `json:"works"`    // the exit status is 0
	Verdict  string    `json:"verdict"`  // one line
	Findings []finding `json:"findings"` // in the order in which things depend on each other
}

// doctorSchema is the version of diagnosis.
const doctorSchema = 1

// loopbackTime bounds a ping-pong.
const loopbackTime = 10 * time.Second

func newDoctor() *command.Command {
	var asJSON, verbose bool
	cmd := &command.Command{
		Use:   "doctor [flags] [DEV...]",
		Short: "Find out why RDMA does or does not work on this machine",
		Long: `It checks everything that RDMA needs, from the kernel's modules to the GIDs, and plays ping-pong
within this process on each device, or on the named ones. It changes nothing, except that the kernel
may load modules that it is asked about. For a device in software (GOVERBS_SOFT) it looks at its
address, its UDP port and its receive buffer instead of the kernel's modules, and connects by the
connection manager.

Every problem is reported with its evidence and a fix.`,
		Example: `  verbs doctor
  verbs doctor -v rxe0
  GOVERBS_SOFT=auto verbs doctor
  verbs doctor --json | jq -r '.findings[] | select(.level == "error") | .fix[]'`,
		Exit: `  0  a ping-pong succeeded on every named device, or without DEV on at least one
  1  RDMA does not work`,
		Run: func(cmd *command.Command, names []string) error {
			d := examine(cmd.Context(), liveMachine(), names)
			var err error
			if asJSON {
				err = printJSON(cmd.Out(), d)
			} else {
				err = d.print(cmd.Out(), verbose)
			}
			if err == nil && !d.Works {
				err = fmt.Errorf("doctor: %s, %s", plural(d.count(levelError), "error"), plural(d.count(levelWarning), "warning"))
			}
			return err
		},
	}
	jsonFlag(cmd, &asJSON)
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "print the evidence of every check")
	return cmd
}

// plural is a number with its noun.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// examine makes all checks.
func examine(ctx context.Context, m *machine, names []string) diagnosis {
	d := diagnosis{Schema: doctorSchema, Version: version}
	// This comes first, because the kernel loads modules when it is asked for devices.
	devs, devErr := m.devices()
	infos, infoErr := m.infos()
	devErr = cmp.Or(devErr, infoErr)
	d.add(m.checkKernel())
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
		examine := func() (bool, []finding) { return m.examineDevice(ctx, dev, infos[i]) }
		if infos[i].InProcess {
			examine = func() (bool, []finding) { return m.examineSoft(ctx, infos[i]) }
		}
		ok, findings := examine()
		d.add(findings...)
		if ok {
			passed = append(passed, name)
		} else {
			failed = append(failed, name)
		}
	}
	if slices.ContainsFunc(infos, ofKernel) && needsKernel(devs, infos, names) {
		d.add(checkFirewall(infos))
	}
	d.judge(passed, failed, len(names) > 0)
	return d
}

// examineKernel makes the checks of the machine that only the devices of the kernel need.
func (m *machine) examineKernel(d *diagnosis, devs []netlinkrdma.Device, infos []uverbs.DeviceInfo, devErr error, names []string) {
	cm, cmErr := m.cmDev()
	proof := map[string]bool{
		"ib_core":   devErr == nil,
		"ib_uverbs": slices.ContainsFunc(infos, func(i uverbs.DeviceInfo) bool { return i.CharDev != "" }),
		"rdma_ucm":  cmErr == nil,
		"rdma_rxe": slices.ContainsFunc(infos, func(i uverbs.DeviceInfo) bool {
			return ofKernel(i) && i.Driver == netlinkrdma.DriverRXE.String()
		}),
	}
	d.add(m.checkContainer())
	d.add(m.checkModules(proof)...)
	d.add(m.checkNamespace())
	d.add(m.checkDevices(devs, infos, devErr, names))
	d.add(m.checkCM(cm, cmErr), m.checkMemlock(), m.checkVM())
}

// ofKernel reports whether a device is one of the kernel.
func ofKernel(i uverbs.DeviceInfo) bool { return !i.InProcess }

// add appends findings. It ignores findings without an ID, which are empty.
func (d *diagnosis) add(all ...finding) {
	for _, f := range all {
		if f.ID == "" {
			continue
		}
		// An empty list is not null in JSON.
		f.Evidence = append([]string{}, f.Evidence...)
		f.Fix = append([]string{}, f.Fix...)
		d.Findings = append(d.Findings, f)
	}
}

// count returns the number of findings of a level.
func (d *diagnosis) count(l level) int {
	n := 0
	for _, f := range d.Findings {
		if f.Level == l {
			n++
		}
	}
	return n
}

// judge writes the verdict.
func (d *diagnosis) judge(passed, failed []string, named bool) {
	d.Works = len(passed) > 0 && (!named || len(failed) == 0)
	if d.Works {
		// Errors of other devices do not prevent RDMA.
		for i := range d.Findings {
			if d.Findings[i].Level == levelError {
				d.Findings[i].Level = levelWarning
			}
		}
		d.Verdict = "RDMA works: a ping-pong went through on " + strings.Join(passed, ", ")
		if n := d.count(levelWarning); n > 0 {
			d.Verdict += "; " + plural(n, "warning")
		}
		return
	}
	d.Verdict = "RDMA does not work here"
	i := slices.IndexFunc(d.Findings, func(f finding) bool { return f.Level == levelError })
	if named && i >= 0 && d.Findings[i].Device != "" {
		d.Verdict = "RDMA does not work" // the finding names the device
	} else if named {
		d.Verdict = "RDMA does not work on " + strings.Join(failed, ", ")
	}
	if i >= 0 {
		d.Verdict += ": " + d.Findings[i].subject() + d.Findings[i].Title
	}
}

// subject names the device and port in front of a title.
func (f *finding) subject() string {
	switch {
	case f.Port != 0:
		return fmt.Sprintf("%s port %d: ", f.Device, f.Port)
	case f.Device != "":
		return f.Device + ": "
	}
	return ""
}

// print writes the findings in plain text; one without a problem takes one line.
func (d *diagnosis) print(w io.Writer, verbose bool) error {
	var b strings.Builder
	wide := 0
	for _, f := range d.Findings {
		wide = max(wide, len(f.ID))
	}
	indent := strings.Repeat(" ", len(levelWarning)+2+wide+2)
	for _, f := range d.Findings {
		fmt.Fprintf(&b, "%-*s  %-*s  %s%s\n", len(levelWarning), f.Level, wide, f.ID, f.subject(), f.Title)
		bad := f.Level == levelWarning || f.Level == levelError
		if verbose || bad {
			for _, e := range f.Evidence {
				fmt.Fprintf(&b, "%s- %s\n", indent, e)
			}
			for _, x := range f.Fix {
				fmt.Fprintf(&b, "%sfix: %s\n", indent, x)
			}
		}
	}
	fmt.Fprintf(&b, "\n%s\n", d.Verdict)
	_, err := io.WriteString(w, b.String())
	return err
}

// unsupported reports whether the library cannot use a device, and no setting changes that.
func unsupported(i uverbs.DeviceInfo) bool {
	return i.Err != nil && i.CharDev != "" && errors.Is(i.Err, errors.ErrUnsupported)
}
