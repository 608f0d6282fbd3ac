package report

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/internal/matrix"
	"github.com/goverbs/goverbs/uverbs"
)

// Main runs the program with its arguments and returns the exit status. The executable is the test binary,
// which it runs again for the tests.
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	context.AfterFunc(ctx, stop) // the next signal ends the program
	code := 2
	o, err := parse(args, os.Stdout)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err == nil {
		code, err = o.execute(ctx, args, os.Stdout, os.Stderr, []string{"/proc/self/exe"})
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "conformance: %v\n", err)
	}
	return code
}

// sink returns what prints the results.
func (o *options) sink(stdout, stderr io.Writer) sink {
	if o.ktap {
		return &ktap{w: stdout}
	}
	t := &text{w: stdout, progress: stderr, verbose: o.verbose}
	if f, ok := stderr.(*os.File); ok {
		t.terminal = isTerminal(f)
	}
	return t
}

// execute does what the command line says. program is the test binary.
func (o *options) execute(ctx context.Context, args []string, stdout, stderr io.Writer, program []string) (code int, err error) {
	var other *Report
	if o.compare != "" {
		if other, err = read(o.compare); err != nil {
			return 2, err
		}
	}
	out := o.sink(stdout, stderr)
	var r *Report
	if o.from != "" {
		if r, err = read(o.from); err != nil {
			return 2, err
		}
		r.replay(out, other, o.compare)
	} else if r, err = o.test(ctx, args, out, program, other); err != nil {
		return 2, err
	}
	if err := o.write(r); err != nil {
		return 1, err
	}
	if o.card {
		c, err := r.card()
		if err != nil {
			return 1, err
		}
		fmt.Fprintf(stdout, "\nThe block for the issue form \"Report of a card\":\n\n%s", c)
	}
	if !r.ok() {
		return 1, nil
	}
	return 0, nil
}

// card returns what a user reports: the device's model, but no addresses and no names.
func (r *Report) card() (*matrix.Card, error) {
	if o, err := parse(r.Command, io.Discard); err != nil || o.partial() || len(r.Devices) != 1 {
		return nil, errPartial
	}
	c, err := r.compare(nil, "")
	if err != nil {
		return nil, err
	}
	d := r.Devices[0]
	model := strings.Join([]string{d.Driver, d.Sysfs["hca_type"], d.Sysfs["board_id"], d.Sysfs["device_vendor"], d.Sysfs["device_device"]}, " ")
	return c.table.Card(0, model, d.FwVer), nil
}

// replay shows a report that was read.
func (r *Report) replay(out sink, other *Report, from string) {
	r.earlier, r.earlierFile = other, from
	total := 0
	for _, res := range r.Results {
		if res.Test == top(res.Test) {
			total++
		}
	}
	out.begin(r, total)
	var all []Result
	for _, res := range r.Results {
		if all = append(all, res); res.Test == top(res.Test) {
			out.test(all)
			all = nil
		}
	}
	out.end(r)
}

// write writes the files that the flags ask for.
func (o *options) write(r *Report) error {
	for _, f := range []struct {
		path   string
		render func() ([]byte, error)
	}{{o.json, r.encode}, {o.html, r.page}} {
		if f.path == "" {
			continue
		}
		b, err := f.render()
		if err != nil {
			return err
		}
		if err := os.WriteFile(f.path, b, 0o666); err != nil {
			return err
		}
	}
	return nil
}

// writable checks that the files of the flags can be written, before the tests take minutes.
func (o *options) writable() error {
	for _, path := range []string{o.json, o.html} {
		if path == "" {
			continue
		}
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o666)
		if err != nil {
			return err
		}
		f.Close()
	}
	return nil
}

// test runs the tests.
func (o *options) test(ctx context.Context, args []string, out sink, program []string, other *Report) (*Report, error) {
	var infos []uverbs.DeviceInfo
	var err error
	if len(o.devices) == 0 || !isSoft(o.devices[0]) {
		infos, err = uverbs.Devices()
	}
	names, err := choose(o.devices, infos, err)
	if err != nil {
		return nil, err
	}
	if err := rights(names); err != nil {
		return nil, err
	}
	rig, devices, err := prepare(names)
	if err != nil {
		return nil, err
	}
	if err := o.writable(); err != nil {
		return nil, err
	}
	r := &Report{Schema: schema, Version: version(), Command: args, Machine: machine(), Devices: devices, earlier: other, earlierFile: o.compare}
	run := &runner{options: o, report: r, out: out, program: program}
	if run.env, err = o.environment(rig); err != nil {
		return nil, err
	}
	var matching []string
	if r.Tests, matching, err = run.names(ctx); err != nil {
		return nil, err
	}
	before := objects(names)
	log, logErr := openKernelLog()
	if logErr == nil {
		defer log.close()
	} else if !rig.Soft {
		r.Notes = append(r.Notes, "the kernel's log was not read: "+logErr.Error())
	}
	run.all(ctx, matching)
	if !r.Interrupted && !rig.Soft && logErr == nil {
		r.readLog(log)
	}
	if !o.noTraces {
		run.traces(ctx)
	}
	r.left(before, names)
	out.end(r)
	return r, nil
}

// readLog adds what the kernel has logged, and a problem if one of the lines is about a fault of the kernel.
func (r *Report) readLog(log *kernelLog) {
	const most = 200
	r.KernelLog = log.read()
	for _, l := range r.KernelLog {
		if isComplaint(l) {
			r.Problems = append(r.Problems, "the kernel complained: "+l)
			break
		}
	}
	if n := len(r.KernelLog); n > most {
		r.KernelLog = append(r.KernelLog[:most], fmt.Sprintf("and %d more lines", n-most))
	}
}

// objects returns the objects of devices, as the kernel counts them.
func objects(names []string) map[string]netlinkrdma.ResourceCounts {
	all := map[string]netlinkrdma.ResourceCounts{}
	for _, name := range names {
		if dev, err := netlinkrdma.DeviceByName(name); err == nil && !isSoft(name) {
			if n, err := netlinkrdma.Resources(dev, netlinkrdma.ListOptions{}); err == nil {
				all[name] = n
			}
		}
	}
	return all
}

// left checks that the tests have left no objects. The kernel destroys some of them a little later. If other
// programs have a device open, they may have made the objects.
func (r *Report) left(before map[string]netlinkrdma.ResourceCounts, names []string) {
	var after map[string]netlinkrdma.ResourceCounts
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if after = objects(names); equal(before, after) {
			return
		}
	}
	for _, name := range names {
		if before[name] == after[name] {
			continue
		}
		s := fmt.Sprintf("objects of %s before the tests: %+v, after them: %+v", name, before[name], after[name])
		if before[name].Contexts == 0 && after[name].Contexts == 0 {
			r.Problems = append(r.Problems, s)
		} else {
			r.Notes = append(r.Notes, s+"; another program uses the device")
		}
	}
}

// equal compares objects of devices.
func equal(a, b map[string]netlinkrdma.ResourceCounts) bool {
	for name, n := range a {
		if b[name] != n {
			return false
		}
	}
	return true
}

// version returns the commit that the program was built from.
func version() string {
	if Version != "" {
		return Version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	commit, dirty := "", ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = s.Value[:min(len(s.Value), 7)]
		case "vcs.modified":
			dirty = strings.TrimPrefix(strings.Replace(s.Value, "true", "-dirty", 1), "false")
		}
	}
	if commit == "" {
		return "unknown"
	}
	return commit + dirty
}

// Version is the version of the program; the linker sets it (make conformance).
var Version string
