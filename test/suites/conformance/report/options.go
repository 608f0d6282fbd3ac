package report

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
)

const usage = `Conformance tests RDMA devices and their kernel drivers by the verbs, one by one.

usage:
  conformance [flags] [DEVICE [DEVICE]]

With one DEVICE the tests loop back on its port 1. With two, their ports must reach each other.
Without DEVICE it takes the only device of the machine, or both if there are two with software
drivers. The name soft0 is a software device in the process, which needs no RDMA and no root.

The tests use objects of their own on these devices only, and nothing of them is left. With -vm they
also add and remove network interfaces, addresses and devices, and change settings of the kernel:
use it in a virtual machine that nobody else needs.

examples:
  conformance rxe0                              all tests
  conformance -quick mlx5_0                     in about a minute
  conformance -json new.json -html new.html mlx5_0 mlx5_1
  conformance -run '^TestAtomic' mlx5_0         some tests, as with go test
  conformance -compare old.json mlx5_0          what differs from an earlier run
  conformance -from new.json -compare old.json  the same for two reports, without a run
  vmrun -kernel bzImage -modules DIR conformance -vm -ktap

Exit status: 0 if no test failed; 1 if one failed or the run was interrupted; 2 if it could not
start.

flags:
`

// options is what the command line says.
type options struct {
	devices  []string
	ktap     bool
	json     string
	html     string
	card     bool
	quick    bool
	vm       bool
	strict   bool
	verbose  bool
	run      string
	compare  string
	from     string
	timeout  time.Duration
	noTraces bool
}

// parse reads the command line.
func parse(args []string, out io.Writer) (*options, error) {
	o := new(options)
	f := flag.NewFlagSet("conformance", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	f.BoolVar(&o.ktap, "ktap", false, "print KTAP, the format of the kernel's own tests, instead of text")
	f.StringVar(&o.json, "json", "", "write the report as JSON to `FILE`")
	f.StringVar(&o.html, "html", "", "write the report as a page to `FILE`, with the table of the published matrix")
	f.BoolVar(&o.card, "card", false, "print a block about the device at the end, for a report to the project")
	f.BoolVar(&o.quick, "quick", false, "leave out long tests, and give commands in one way instead of three")
	f.BoolVar(&o.vm, "vm", false, "also run the tests that change the machine")
	f.BoolVar(&o.strict, "strict", false, "let tests fail because of known bugs of the kernel, which they tolerate otherwise")
	f.BoolVar(&o.verbose, "v", false, "print a line for every test")
	f.StringVar(&o.run, "run", "", "run the tests that match `REGEXP`")
	f.StringVar(&o.compare, "compare", "", "compare with the report in `FILE` instead of the published matrix")
	f.StringVar(&o.from, "from", "", "show the report in `FILE` instead of running tests")
	f.DurationVar(&o.timeout, "timeout", 3*time.Minute, "end a test that has done nothing for this `TIME`")
	f.BoolVar(&o.noTraces, "no-traces", false, "do not repeat failed tests for traces of their commands")
	var flags, names []string
	for _, a := range args { // flags may follow devices
		if strings.HasPrefix(a, "-") || len(flags) > 0 && takesValue(f, flags[len(flags)-1]) {
			flags = append(flags, a)
		} else {
			names = append(names, a)
		}
	}
	if err := f.Parse(flags); errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(out, usage)
		f.SetOutput(out)
		f.PrintDefaults()
		return nil, err
	} else if err != nil {
		return nil, fmt.Errorf("%w; \"conformance -help\" lists the flags", err)
	}
	o.devices = names
	if _, err := regexp.Compile(o.run); err != nil {
		return nil, fmt.Errorf("-run: %w", err)
	}
	switch {
	case len(names) > 2:
		return nil, fmt.Errorf("there are %d devices, allowed: 1 or 2", len(names))
	case len(names) == 2 && names[0] == names[1]:
		return nil, fmt.Errorf("both devices are %s; one alone loops back", names[0])
	case o.card && o.ktap:
		return nil, errors.New("-card has no meaning with -ktap, which prints nothing else")
	case o.card && o.partial():
		return nil, errPartial
	case o.timeout <= 0:
		return nil, fmt.Errorf("-timeout is %s, want more than 0", o.timeout)
	case o.from != "" && (len(names) > 0 || o.run != "" || o.quick || o.vm):
		return nil, errors.New("with -from there is no run, so devices, -run, -quick and -vm have no meaning")
	}
	return o, nil
}

// errPartial is the error of a -card that would show less than it seems to.
var errPartial = errors.New("-card needs a whole run on one device, without -run and -quick")

// partial reports whether the program runs a part of the tests, or those of two devices.
func (o *options) partial() bool { return o.quick || o.run != "" || len(o.devices) > 1 }

// takesValue reports whether an argument is a flag whose value is the next argument.
func takesValue(f *flag.FlagSet, arg string) bool {
	name := strings.TrimLeft(arg, "-")
	if !strings.HasPrefix(arg, "-") || strings.Contains(name, "=") {
		return false
	}
	known := f.Lookup(name)
	if known == nil {
		return false
	}
	isBool, ok := known.Value.(interface{ IsBoolFlag() bool })
	return !ok || !isBool.IsBoolFlag()
}

// Wanted reports whether a command line is one of the program, and not one of a test binary: the program's
// name does not end in ".test", and no argument is a flag of package testing.
func Wanted(args []string) bool {
	return len(args) > 0 && !strings.HasSuffix(args[0], ".test") && !slices.ContainsFunc(args, func(a string) bool {
		return strings.HasPrefix(strings.TrimLeft(a, "-"), "test.") && strings.HasPrefix(a, "-")
	})
}
