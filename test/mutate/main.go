// Mutate measures what the tests notice. It changes the source in one small place, such as a
// comparison or a lock, runs the tests of the package, and reports the changes that no test
// noticed.
//
// Gremlins (github.com/go-gremlins/gremlins 0.6) and go-mutesting do similar work. Gremlins copies
// the module for each worker and swaps operators only: it drops no statement, lock or error return,
// and it tests every mutant rather than a sample. Go-mutesting replaces the file in the tree while
// the tests run. This program needs neither: go test -overlay shows the compiler another file, a
// seed chooses a sample that can be repeated, and a mutant whose lock or atomic operation is gone
// is tested under the race detector too.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
)

const usage = `Mutate changes the source in one small place at a time and reports the changes that no test notices.

  go run ./test/mutate -n 40                      40 random mutants of the library
  go run ./test/mutate -seed 7 -n 40 -list        the mutants of a seed, without running a test
  go run ./test/mutate -seed 7 -n 40 -run 12      mutant 12 of that seed, with the tests' output
  go run ./test/mutate -packages ./mmio/...       other packages, separated by commas
  go run ./test/mutate -also test/hca             survivors are tried on these packages' tests, and no others
  go run ./test/mutate -then 'go run ./test/run -suite rxe'  survivors are tried by a command too
  go run ./test/mutate -at uverbs/builder.go:70   every mutant of a line
  go run ./test/mutate -at uverbs/builder.go      every mutant of a file
  go run ./test/mutate -json out.json             what was printed, as JSON; "-" is standard output

The tests of the mutant's own package come first. What they do not notice is tried on the tests of
-also that are built from the package. Tests that need RDMA devices run on software devices in the
process, which need neither a kernel with RDMA nor root; -devices "" runs the others alone.

The command of -then runs in the shell, at the root of the module, with a GOFLAGS that has go build
the mutant. A mutant is killed if it fails; it must succeed without one. This is how the tests in a
virtual machine have their say.

Kinds of mutants:
  compare      == and !=, < and <=, > and >= are exchanged
  operator     + and -, * and /, << and >>, & and |, && and || are exchanged, &^ becomes &
  number       an integer is one more or one less, as is the bound of a slice
  constant     the same in a constant's declaration; true and false are exchanged
  statement    a statement is dropped
  condition    a condition is negated, or never true
  error        an error is not returned
  lock         a function does not take a lock, nor release it
  barrier      a memory barrier or an atomic store is dropped

A line is chosen at random among those that can be changed, then a kind, then a place; so a file
has as many mutants as it has code. Generated files (z*.go) and tests are left out.

Results:
  killed       a test failed
  timed out    the tests did not end within the limit; counts as killed
  survived     every test passed
  equivalent   the mutant is in the list of mutants that behave like the original (-known)
  not built    the compiler refused it

No file in the tree is changed. The tests run as if by go test, one mutant at a time, so a program
that is to run beside others is started with nice.

Exit status: 0; 1 if a mutant survived or something failed; 2 if the command line is wrong.

Flags:
`

// options is the command line.
type options struct {
	seed     uint64
	n        int
	packages string
	also     string
	devices  string
	then     string
	at       string
	run      int
	list     bool
	race     bool
	json     string
	known    string
	limit    time.Duration
}

// usageError is an error in the command line.
type usageError struct{ error }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	os.Exit(mutate(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// parse reads the command line.
func parse(args []string, stdout io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("mutate", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	f.Uint64Var(&o.seed, "seed", 0, "chooses the mutants; 0 takes one from the clock, and prints it")
	f.IntVar(&o.n, "n", 40, "number of mutants")
	f.StringVar(&o.packages, "packages", "./mmio/...,./netlinkrdma/...,./uverbs/...,./cm/...,./test/hca/engine/...", "packages to change, separated by commas")
	f.StringVar(&o.also, "also", "./uverbs/soft,./test/conformance,./cm", "packages whose tests try the survivors too, separated by commas")
	f.StringVar(&o.devices, "devices", "soft0,soft1", "RDMA devices that the tests use, as "+testenv.DevicesEnv+" names them")
	f.StringVar(&o.then, "then", "", "shell command that tries the survivors of all tests")
	f.StringVar(&o.at, "at", "", "FILE or FILE:LINE whose mutants are all tried, instead of random ones")
	f.IntVar(&o.run, "run", 0, "run the mutant with this number only")
	f.BoolVar(&o.list, "list", false, "print the mutants and run nothing")
	f.BoolVar(&o.race, "race", true, "try survivors without a lock, barrier or atomic store under the race detector (needs a C compiler)")
	f.StringVar(&o.json, "json", "", "file for the result as JSON, - for standard output instead of text")
	f.StringVar(&o.known, "known", "test/mutate/equivalent.txt", "list of equivalent mutants")
	f.DurationVar(&o.limit, "limit", 0, "time for the tests of a package; 0 is 30 s and four times what they take unchanged")
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		f.SetOutput(stdout)
		f.PrintDefaults()
		return o, err
	case err != nil:
		return o, usageError{err}
	case f.NArg() > 0:
		return o, usageError{fmt.Errorf("argument %q is not a flag", f.Arg(0))}
	case o.n < 1:
		return o, usageError{fmt.Errorf("-n %d: allowed are 1 and more", o.n)}
	case o.run < 0:
		return o, usageError{fmt.Errorf("-run %d: allowed are 1 and more", o.run)}
	case o.limit < 0:
		return o, usageError{fmt.Errorf("-limit %s: allowed are 0 and more", o.limit)}
	}
	return o, nil
}

// mutate does what the command line says, and returns the exit status.
func mutate(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	survived := false
	o, err := parse(args, stdout)
	if err == nil {
		survived, err = o.do(ctx, stdout)
	}
	var u usageError
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &u):
		fmt.Fprintf(stderr, "mutate: %s (mutate -help tells more)\n", err)
		return 2
	case err != nil:
		fmt.Fprintf(stderr, "mutate: %s\n", err)
		return 1
	case survived:
		return 1
	}
	return 0
}

// do finds, chooses and tries the mutants, and reports whether one survived.
func (o *options) do(ctx context.Context, stdout io.Writer) (survived bool, err error) {
	root, err := moduleRoot()
	if err != nil {
		return false, err
	}
	r, err := o.mutants(root)
	if err != nil {
		return false, err
	}
	text := stdout
	if o.json == "-" {
		text = io.Discard
	}
	if o.at == "" {
		fmt.Fprintf(text, "seed %d, %d mutants of %s\n", r.Seed, o.n, o.packages)
	}
	if o.list {
		for _, m := range r.Mutants {
			fmt.Fprintln(text, m)
		}
		return false, o.write(r, stdout)
	}
	t, err := newTester(root, o)
	if err != nil {
		return false, err
	}
	defer t.close()
	for _, m := range r.Mutants {
		if m.Result == "" {
			if err = t.try(ctx, m); err != nil {
				break
			}
		}
		fmt.Fprintln(text, m)
		if o.run > 0 {
			fmt.Fprint(text, m.output)
		}
	}
	r.summarize()
	r.print(text)
	if ctx.Err() != nil {
		err = errors.New("interrupted: the mutants after this were not tried")
	}
	if e := o.write(r, stdout); err == nil {
		err = e
	}
	return r.Total.Survived > 0, err
}

// mutants finds and chooses the mutants, and marks the equivalent ones.
func (o *options) mutants(root string) (*report, error) {
	known, err := readKnown(inRoot(root, o.known))
	if err != nil {
		return nil, err
	}
	r := &report{Seed: o.seed, Packages: o.packages}
	if o.at != "" {
		r.Packages = packageOf(o.at)
	}
	pkgs, err := listPackages(root, r.Packages)
	if err != nil {
		return nil, err
	}
	all, err := findAll(root, pkgs)
	if err != nil {
		return nil, err
	}
	if o.at != "" {
		if r.Mutants, err = at(all, o.at); err != nil {
			return nil, err
		}
	} else {
		if r.Seed == 0 {
			r.Seed = uint64(time.Now().UnixNano())
		}
		r.Mutants = choose(all, o.n, rand.New(rand.NewPCG(r.Seed, 0)))
	}
	for i, m := range r.Mutants {
		m.N = i + 1
		if reason, ok := known.reason(m); ok {
			m.Result, m.Reason = equivalent, reason
		}
	}
	if o.run > len(r.Mutants) {
		return nil, usageError{fmt.Errorf("-run %d: there are %d mutants", o.run, len(r.Mutants))}
	}
	if o.run > 0 {
		r.Mutants = r.Mutants[o.run-1 : o.run]
	}
	return r, nil
}

// write writes the JSON that was asked for.
func (o *options) write(r *report, stdout io.Writer) error {
	if o.json == "" {
		return nil
	}
	b, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	b = append(b, '\n')
	if o.json == "-" {
		_, err = stdout.Write(b)
		return err
	}
	return os.WriteFile(o.json, b, 0o666)
}

// moduleRoot returns the folder of the main module.
func moduleRoot() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("go list -m: %w", withStderr(err))
	}
	return strings.TrimSpace(string(out)), nil
}
