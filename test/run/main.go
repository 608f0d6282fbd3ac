// Run runs the tests of the project that need more than go test: it builds test binaries, boots them in
// VMs with a kernel and a driver's devices, shows how far it is, and says at the end what failed. Its
// suites are in the tables of this package.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/test/internal/matrix"
	"github.com/goverbs/goverbs/test/internal/pages"
)

const usage = `Run runs suites of tests, most of which boot VMs.

usage:
  run [flags] [-- ARG...]     run suites; every program of theirs gets the arguments
  run matrix [COLUMN...]      run the kernel tests on all kernels, or on those of the columns
                              ARCH/KERNEL[/DRIVER], and make a table of what works where;
                              the columns soft and soft-sockets have software devices, and need no VM
  run quick                   go vet and tests, in about a minute, of what has changed since the
                              branch main, and of what imports it
  run readme                  put the last table into the README and test/matrix/MATRIX.md, and write uverbs/RDMA-CORE.md

examples:
  go run ./test/run -list                            what there is
  go run ./test/run -suite siw -kernel latest        one suite on the newest kernel
  go run ./test/run -suite rxe/cm -v -- -test.run '^TestDial'
                                                     one step, some tests, all output
  go run ./test/run -suite rxe -arch arm64 -kernel 6.12
  go run ./test/run -suite mlx5/roce -arch arm64 -kernel latest-16k
                                                     on a kernel with pages of 16 KiB
  go run ./test/run -suite mlx5/ib -n                print the commands, run nothing
  go run ./test/run -suite personalities/4711-ib -personality 4711
  go run ./test/run -suite walk -kernel latest -env GOVERBS_WALK=10m -env GOVERBS_SEED=7
  go run ./test/run -suite bench -- -rows ^send-lat -rounds 15
  go run ./test/run matrix amd64/6.1 amd64/6.1/siw

The output of each step is in .build/log. Exit status: 0; 1 if a test or step failed; 2 if the
command line is wrong.

flags:
`

// config is what the command line says.
type config struct {
	root    string // of the checkout
	version string // of the checkout, by git

	kernel, arch  string
	short         bool
	env           []string // for the programs of VMs
	personalities []string
	randomCard    string // the seed of the personality "random"
	fuzztime      string
	args          []string // for every program

	jobs    int
	verbose bool
	times   bool
}

// emulated reports whether the guests' architecture is not this machine's, which is slow.
func (c *config) emulated() bool { return c.arch != runtime.GOARCH }

// pick returns a if the condition is true, and else b.
func pick[T any](condition bool, a, b T) T {
	if condition {
		return a
	}
	return b
}

// listFlag is a flag that may be repeated.
type listFlag []string

// String implements flag.Value.
func (l *listFlag) String() string { return strings.Join(*l, ",") }

// Set implements flag.Value.
func (l *listFlag) Set(s string) error {
	*l = append(*l, s)
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code, err := execute(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "run: %v\n", err)
	}
	os.Exit(code)
}

// execute runs the command line and returns the exit status.
func execute(ctx context.Context, args []string, out io.Writer) (code int, err error) {
	c := &config{arch: runtime.GOARCH}
	f := flag.NewFlagSet("run", flag.ContinueOnError)
	f.SetOutput(out)
	f.Usage = func() { fmt.Fprint(out, usage); f.PrintDefaults() }
	var names, personalities string
	var list, dry bool
	f.StringVar(&names, "suite", "", "run `NAME,...`: suites, steps such as siw/interop, or the groups test, testall and testlong")
	f.StringVar(&c.kernel, "kernel", "6.1", "the guests' `KERNEL`: 5.10, 6.1, 6.12, latest, next, latest-16k on arm64, or the path of an image")
	f.StringVar(&c.arch, "arch", c.arch, "the guests' architecture")
	f.BoolVar(&c.short, "short", false, "leave out what another suite has, as the groups do")
	f.Var((*listFlag)(&c.env), "env", "`NAME=VALUE` for the programs in VMs; may be repeated")
	f.StringVar(&personalities, "personality", "small,vf,late,unordered,random", "`NAME,...`: cards of the suite personalities; a number is a seed")
	f.StringVar(&c.fuzztime, "fuzztime", "20000x", "`TIME` for each fuzz test, as go test has it")
	f.IntVar(&c.jobs, "j", 2, "run as many steps at once as `N`")
	f.BoolVar(&c.verbose, "v", false, "print all output as it comes")
	f.BoolVar(&c.times, "times", false, "print the steps with the most processor time and the longest tests at the end")
	f.BoolVar(&dry, "n", false, "print the commands and run nothing")
	f.BoolVar(&list, "list", false, "list the suites and their steps")
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0, nil
	} else if err != nil {
		return 2, nil // which Parse has printed
	}
	if c.jobs < 1 {
		return 2, fmt.Errorf("-j %d: want 1 or more", c.jobs)
	}
	if strings.Contains(c.kernel, "/") { // steps run in other directories
		if c.kernel, err = filepath.Abs(c.kernel); err != nil {
			return 2, err
		}
	}
	c.personalities = strings.Split(personalities, ",")
	c.randomCard = strconv.Itoa(1 + rand.IntN(1e9))
	if c.root, err = findRoot(); err != nil {
		return 2, err
	}
	c.version = gitVersion(c.root)
	switch first := f.Arg(0); {
	case list:
		err := c.list(out, strings.FieldsFunc(names, func(r rune) bool { return r == ',' }))
		return pick(err == nil, 0, 2), err
	case names == "" && first == "matrix":
		return c.matrix(ctx, out, f.Args()[1:], dry)
	case names == "" && first == "quick":
		return c.quick(ctx, out, dry)
	case names == "" && first == "readme":
		err := c.readme()
		return pick(err == nil, 0, 1), err
	case names == "":
		f.Usage()
		return 2, nil
	}
	c.args = f.Args()
	p, err := c.plan(strings.Split(names, ","))
	if err != nil {
		return 2, err
	}
	if dry {
		p.print(out)
		return 0, nil
	}
	return pick(c.run(ctx, out, p), 0, 1), nil
}

// findRoot returns the root of the checkout that has the working directory.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "test", "run", "main.go")); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("the working directory is not in a checkout of goverbs")
}

// columns are the columns of the matrix.
var columns = []string{
	"amd64/5.10", "amd64/6.1", "amd64/6.12", "amd64/latest", "arm64/6.12",
	"amd64/6.1/mlx5-roce", "amd64/6.1/mlx5-ib", "amd64/6.1/mlx5-ipoib", "amd64/6.1/siw",
	"amd64/6.12/mlx5-roce", "amd64/6.12/mlx5-ib", "amd64/6.12/siw", "amd64/6.12/efa",
	"amd64/latest/mlx5-roce", "amd64/latest/mlx5-ib", "amd64/latest/mlx5-ipoib", "amd64/latest/siw", "amd64/latest/efa",
	"soft", "soft-sockets",
}

// columnSuites are what runs for each driver's columns.
var columnSuites = map[string][]string{
	"rxe":       {"rxe", "perf"},
	"mlx5-roce": {"mlx5/roce", "mlx5cm/cm"},
	"mlx5-ib":   {"mlx5/ib"},
	"siw":       {"siw"},
	"efa":       {"efa/conformance"},

	"mlx5-ipoib": {"mlx5ip"},
	"soft":       {"soft/auto", "soft/ioctl", "soft/write", "soft/cm", "soft/cmioctl", "soft/cmwrite", "soft/loss"},

	"soft-sockets": {"soft/sockets", "soft/cmsockets", "soft/lossioctl", "soft/losswrite", "soft/cmlossioctl", "soft/cmlosswrite"},
}

// columnForm is what columns of the matrix are called.
const columnForm = "soft, soft-sockets, or ARCH/KERNEL[/DRIVER]; ARCH is amd64 or arm64, DRIVER is rxe, siw, efa, mlx5-roce, mlx5-ib or mlx5-ipoib"

// matrix runs the suites of some columns, or all, and makes a table of their results.
func (c *config) matrix(ctx context.Context, out io.Writer, cols []string, dry bool) (code int, err error) {
	if len(cols) == 0 {
		cols = columns
	}
	failed := false
	for _, name := range cols {
		col := matrix.ParseColumn(name)
		if col.Arch != "amd64" && col.Arch != "arm64" || col.Kernel == "" {
			return 2, fmt.Errorf("matrix column %q: want %s", name, columnForm)
		}
		if strings.Contains(col.Kernel, "/") { // the path of an image, or what is no driver behind a kernel
			if _, err := os.Stat(col.Kernel); err != nil {
				return 2, fmt.Errorf("matrix column %q: there is no kernel %q: want %s", name, col.Kernel, columnForm)
			}
		}
		if !dry {
			if err := matrix.Clear(c.results(), col); err != nil {
				return 1, err
			}
		}
		of := *c
		of.kernel, of.arch = col.Kernel, col.Arch
		p, err := of.plan(columnSuites[col.Driver])
		if err != nil {
			return 2, err
		}
		fmt.Fprintf(out, "== %s\n", name)
		if dry {
			p.print(out)
			continue
		}
		if !of.run(ctx, out, p) {
			failed = true
		}
		if ctx.Err() != nil {
			return 1, nil
		}
	}
	if dry {
		return 0, nil
	}
	good, err := matrix.Render(c.results(), c.root, cols)
	fmt.Fprintf(out, "The same as a page: %s/matrix.html\n", c.results())
	return pick(good && !failed, 0, 1), err
}

// results is where the results of boots are kept for the matrix.
func (c *config) results() string { return filepath.Join(c.root, ".build", "matrix") }

// readme checks the columns of the last table in, if there is one, and renders all into the README, and writes the tables of
// uverbs/RDMA-CORE.md.
func (c *config) readme() error {
	if err := matrix.CheckIn(c.results(), c.root); err != nil {
		return err
	}
	return errors.Join(matrix.WriteReadme(c.root), pages.Write(c.root))
}
