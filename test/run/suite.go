package main

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/test/internal/matrix"
	"github.com/goverbs/goverbs/test/testenv"
)

// A suite is a set of tests, or a task, that is run by name.
type suite struct {
	name  string
	doc   string // a line for -list
	steps []step
}

// A step is one command of a suite: a program on this machine if host is set, and otherwise a VM
// that boots and runs programs.
type step struct {
	name   string // the name in the suite; empty if it is the only step
	alone  bool   // nothing else runs at the same time; it runs before those that are not
	waits  bool   // it waits most of the time, so that it takes no place of another; never with alone
	ifTime bool   // it does not start if quickTime is over
	named  bool   // runs only if it is named, as in -suite flat/clock
	shown  bool   // its output is what the user wants, and is printed as it comes

	host  []string // the program and its arguments; see command for what "go test" gets
	dir   string   // where it runs, from the root
	needs []string // builds (see build.go) besides those that a boot needs anyway

	kernel   string        // the guest's kernel, if it is not that of -kernel
	device   string        // of vmrun's -device; empty for rxe
	flags    []string      // more flags of vmrun
	with     []string      // Debian packages that the guest has
	bin      []string      // programs of ours that the guest has in /bin
	env      []string      // for the programs
	skip     []testenv.Tag // tests with one of these tags are left out
	programs []program     // run one after the other
	race     bool          // the test binaries are built with the race detector

	driver string // the driver of the column of the matrix that gets the results; empty for none
	path   string // how tests that do not choose give commands to the kernel: auto, ioctl or write
}

// A program runs in a VM.
type program struct {
	name string   // NAME.test is the test binary of a package in testPackages
	run  string   // of -test.run
	args []string // more arguments
}

// test returns test binaries that run all of their tests.
func test(names ...string) []program {
	var all []program
	for _, n := range names {
		all = append(all, program{name: n + ".test"})
	}
	return all
}

// marked returns a test binary that runs the tests with a mark: a tag, or a function of testenv that they
// call.
func (c *config) marked(name, mark string) program {
	folder := filepath.Join(c.root, testPackages[name])
	if markedTests[folder] == nil {
		tests, err := matrix.Marked(folder)
		if err != nil {
			panic(err) // the source does not compile
		}
		markedTests[folder] = tests
	}
	if len(markedTests[folder][mark]) == 0 {
		panic(fmt.Sprintf("no test of %s has the mark %s", testPackages[name], mark))
	}
	return only(name, markedTests[folder][mark]...)
}

// markedTests has the tests of each folder by their marks, once they were read.
var markedTests = map[string]map[string][]string{}

// only returns a test binary that runs the tests with the given names.
func only(name string, tests ...string) program {
	run := "^" + tests[0] + "$"
	if len(tests) > 1 {
		run = "^(" + strings.Join(tests, "|") + ")$"
	}
	return program{name: name + ".test", run: run}
}

// isTest reports whether a program is a test binary.
func (p *program) isTest() bool { return strings.HasSuffix(p.name, ".test") }

// words returns the program's part of vmrun's command line. extra are arguments of the user.
func (p *program) words(extra []string) []string {
	w := []string{p.name}
	if !p.isTest() {
		w[0] = "./" + p.name
	} else if !slices.Contains(p.args, "-test.bench") { // benchmarks start, but do not end
		w = append(w, "-test.v=test2json")
	}
	if p.run != "" {
		w = append(w, "-test.run", p.run)
	}
	return append(append(w, p.args...), extra...)
}

// hosts is the number of VMs that the step boots.
func (s *step) hosts() int {
	if i := slices.Index(s.flags, "-hosts"); i >= 0 {
		if n, err := strconv.Atoi(s.flags[i+1]); err == nil {
			return n
		}
	}
	return 1
}

// A command is what the runner executes for a step or a build.
type command struct {
	dir  string   // from the root
	env  []string // besides CGO_ENABLED=0
	args []string
}

// vm is the directory of the guests' programs, from the root.
func (c *config) vm(s *step) string {
	if s.race {
		return ".build/race"
	}
	return ".build/" + c.arch
}

// deviceOfOurs returns the step's device. Where the programs are ours, modelled cards are strict, and
// have user contexts (DEVX) if the step names no personality. Other programs may set reserved bits, and take
// for granted that user contexts come with CREATE_UMEM, which the model does not have.
func (s *step) deviceOfOurs() string {
	if !strings.HasPrefix(s.device, "mlx5") || !slices.Contains(s.env, modelled) {
		return s.device
	}
	if strings.Contains(s.device, "personality=") {
		return s.device + ",strict"
	}
	return s.device + ",personality=devx,strict"
}

// command returns the command of a step. A go test without -bench or -fuzz gets -json; with results for the
// matrix it has the output format of test binaries in VMs. The suite check has go vet.
func (c *config) command(s *step) command {
	if s.host != nil {
		args := slices.Clone(s.host)
		if isGoTest(args) {
			args = slices.Insert(args, testWord(args)+1, pick(s.driver == "", "-json", "-v=test2json"), "-vet=off")
		}
		return command{dir: s.dir, env: s.env, args: append(args, c.args...)}
	}
	args := []string{"../vmrun", "-kernel", s.kernelOr(c.kernel), "-arch", c.arch}
	if s.device != "" {
		args = append(args, "-device", s.deviceOfOurs())
	}
	args = append(args, s.flags...)
	env := s.env
	if len(s.skip) > 0 {
		env = append(slices.Clip(env), testenv.SkipTagsEnv+"="+tagList(s.skip))
	}
	for _, e := range slices.Concat(env, c.env) {
		args = append(args, "-env", e)
	}
	if len(s.with) > 0 {
		args = append(args, "-with", strings.Join(s.with, ","))
	}
	for _, b := range s.bin {
		file := b
		if s.race { // only the test binaries are in its directory
			file = "../" + c.arch + "/" + b
		}
		args = append(args, "-file", file+":/bin/"+b)
	}
	for i, p := range s.programs {
		if i > 0 {
			args = append(args, "---")
		}
		args = append(args, p.words(c.args)...)
	}
	return command{dir: c.vm(s), args: args}
}

// tagList writes tags as testenv reads them.
func tagList(tags []testenv.Tag) string {
	var all []string
	for _, t := range tags {
		all = append(all, string(t))
	}
	return strings.Join(all, ",")
}

// kernelOr returns the step's own kernel, or else the given one.
func (s *step) kernelOr(k string) string {
	if s.kernel != "" {
		return s.kernel
	}
	return k
}

// testWord returns where the word test is in a command line of the go command, or -1.
func testWord(args []string) int {
	if args[0] != "go" {
		return -1
	}
	return slices.Index(args, "test")
}

// isGoTest reports whether a command line is a go test whose results can be counted.
func isGoTest(args []string) bool {
	return testWord(args) > 0 && !slices.Contains(args, "-bench") && !slices.Contains(args, "-fuzz")
}

// String returns a command line that a shell understands.
func (c *command) String() string {
	var words []string
	if c.dir != "" {
		words = append(words, "cd", c.dir, "&&")
	}
	words = append(words, c.env...)
	for _, a := range c.args {
		words = append(words, quote(a))
	}
	return strings.Join(words, " ")
}

// quote quotes a word for the shell if that is necessary.
func quote(word string) string {
	if word != "" && !strings.ContainsAny(word, " \t\n'\"\\$&|;<>()*?[]{}~#`^") {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// full is the name of a step with its suite, such as siw/interop.
func (s *step) full(suite string) string {
	if s.name == "" {
		return suite
	}
	return suite + "/" + s.name
}

// matches reports whether -suite names a step: by its suite, or by SUITE/STEP, in which * stands for
// anything.
func (s *step) matches(suite, pattern string) bool {
	if pattern == suite {
		return !s.named
	}
	ok, _ := path.Match(pattern, s.full(suite))
	return ok
}
