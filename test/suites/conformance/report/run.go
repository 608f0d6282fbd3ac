package report

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/test/internal/matrix"
	"github.com/goverbs/goverbs/test/testenv"
)

// sink shows the results of a run while they come.
type sink interface {
	begin(r *Report, total int) // before the first of total tests
	test(all []Result)          // a test has ended: its subtests, and the test as the last
	end(r *Report)              // the report is complete
}

// runner runs the tests in processes of their own, so that a test that crashes its process, or hangs, ends
// itself only.
type runner struct {
	*options
	report  *Report
	out     sink
	program []string // the test binary, and arguments for every process
	env     []string // for the processes

	done  map[string]bool // tests that have ended
	group []Result        // subtests of the test that is running
}

// endDelay is how long a process has to end after a signal.
const endDelay = 5 * time.Second

// environment returns the variables by which package testenv knows the devices and what to leave out.
func (o *options) environment(rig testenv.Rig) ([]string, error) {
	env := []string{testenv.GuestEnv + "=1"}
	if rig.Soft {
		env = append(env, testenv.DevicesEnv+"="+strings.Join(slices.Compact(rig.Devices[:]), ","))
	} else {
		b, err := json.Marshal(rig)
		if err != nil {
			return nil, err
		}
		env = append(env, testenv.RigEnv+"="+string(b))
	}
	var skip []string
	if tags := os.Getenv(testenv.SkipTagsEnv); tags != "" {
		skip = append(skip, tags)
	}
	if !o.vm {
		skip = append(skip, string(testenv.Machine))
	}
	if o.quick {
		skip = append(skip, string(testenv.Long))
		env = append(env, testenv.WaysEnv+"=auto")
		if os.Getenv(testenv.WalkEnv) == "" {
			env = append(env, testenv.WalkEnv+"=3s")
		}
	}
	if o.strict {
		env = append(env, testenv.StrictEnv+"=1")
	}
	if (rig.Driver == "mlx5" || rig.EFA()) && !testenv.Modelled() {
		env = append(env, testenv.OpenListEnv+"=1")
	}
	return append(env, testenv.SkipTagsEnv+"="+strings.Join(skip, ",")), nil
}

// process is a process that runs tests.
type process struct {
	cmd    *exec.Cmd
	lines  chan line
	ended  chan error
	stderr tail
}

// line is a line of output, with its newline if it has one.
type line struct {
	text  string
	isErr bool
}

// tail keeps the end of what is written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	const most = 64 << 10
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.b = append(t.b, b...); len(t.b) > most {
		t.b = append(t.b[:0:0], t.b[len(t.b)-most:]...)
	}
	return len(b), nil
}

// String returns what is kept.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}

// start starts a process.
func (r *runner) start(args, env []string) (*process, error) {
	p := &process{lines: make(chan line, 64), ended: make(chan error, 1)}
	p.cmd = exec.Command(r.program[0], slices.Concat(r.program[1:], args)...)
	p.cmd.Args[0] = suite + ".test"
	p.cmd.Env = slices.Concat(os.Environ(), r.env, env)
	// An interrupt from the terminal comes through this process, and if it is killed, so are the tests.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	var readers sync.WaitGroup
	for _, from := range []io.Reader{stdout, stderr} {
		readers.Go(func() {
			for b := bufio.NewReader(from); ; {
				text, err := b.ReadString('\n')
				if text != "" {
					p.lines <- line{text, from == stderr}
				}
				if err != nil {
					return
				}
			}
		})
	}
	go func() {
		readers.Wait()
		close(p.lines)
		p.ended <- p.cmd.Wait()
	}()
	return p, nil
}

// errStuck says that a process did not end although it was killed.
var errStuck = errors.New("a test hangs in the kernel, and its process cannot be killed")

// follow passes on the lines of a process until it ends, is interrupted, or does nothing for too long. It
// returns why the process was stopped or "", and how it ended.
func (r *runner) follow(ctx context.Context, p *process, take func(line)) (stopped string, err error) {
	idle := time.NewTimer(r.timeout)
	defer idle.Stop()
	interrupt, kill := ctx.Done(), (<-chan time.Time)(nil)
	signal := func(s syscall.Signal) { syscall.Kill(-p.cmd.Process.Pid, s) }
	killed := false
	for {
		select {
		case l, ok := <-p.lines:
			if !ok {
				return stopped, <-p.ended
			}
			idle.Reset(r.timeout)
			take(l)
		case <-interrupt:
			stopped, interrupt, kill = "interrupted", nil, time.After(endDelay)
			signal(syscall.SIGTERM)
		case <-idle.C:
			if stopped == "" {
				stopped, kill = fmt.Sprintf("it did nothing for %s", r.timeout), time.After(endDelay)
				p.cmd.Process.Signal(syscall.SIGQUIT) // which prints the goroutines
			}
		case <-kill:
			if killed {
				take(line{kernelStacks(p.cmd.Process.Pid), true})
				return stopped, errStuck
			}
			killed, kill = true, time.After(endDelay)
			signal(syscall.SIGKILL)
		}
	}
}

// kernelStacks says where the threads of a process are in the kernel.
func kernelStacks(pid int) string {
	var b strings.Builder
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, task := range tasks {
		stack, _ := os.ReadFile(task + "/stack")
		fmt.Fprintf(&b, "thread %s in the kernel:\n%s", filepath.Base(task), stack)
	}
	return b.String()
}

// names returns the tests of the binary that match the flag -run.
func (r *runner) names(ctx context.Context) (all, matching []string, err error) {
	p, err := r.start([]string{"-test.list", "."}, nil)
	if err != nil {
		return nil, nil, err
	}
	pattern, _, _ := strings.Cut(r.run, "/")
	match, err := regexp.Compile(pattern)
	if err != nil {
		return nil, nil, fmt.Errorf("-run: %w", err)
	}
	stopped, err := r.follow(ctx, p, func(l line) {
		name := strings.TrimSpace(l.text)
		switch {
		case l.isErr:
			p.stderr.Write([]byte(l.text))
		case strings.HasPrefix(name, "Test") && !strings.Contains(name, " "):
			all = append(all, name)
			if match.MatchString(name) {
				matching = append(matching, name)
			}
		}
	})
	if err != nil || stopped != "" {
		return nil, nil, fmt.Errorf("listing the tests: %w\n%s", errors.Join(err, textError(stopped)), p.stderr.String())
	}
	if len(matching) == 0 {
		return nil, nil, fmt.Errorf("no test matches -run %s", r.run)
	}
	return all, matching, nil
}

// textError returns an error with a text, or nil if there is none.
func textError(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}

// all runs the tests with the given names, in as many processes as are needed, and then the failed ones
// again for their traces.
func (r *runner) all(ctx context.Context, names []string) {
	runtime.LockOSThread() // the processes die with the thread that started them
	defer runtime.UnlockOSThread()
	r.done = map[string]bool{}
	r.out.begin(r.report, len(names))
	r.report.Begin = time.Now()
	for more := true; more && len(r.done) < len(names); {
		more = r.some(ctx)
	}
	r.report.Seconds = time.Since(r.report.Begin).Seconds()
}

// some runs the tests that have not ended in one process. It reports whether another process can run the
// rest.
func (r *runner) some(ctx context.Context) (more bool) {
	args := []string{"-test.v=test2json", "-test.timeout=0"}
	if r.run != "" {
		args = append(args, "-test.run", r.run)
	}
	if len(r.done) > 0 {
		args = append(args, "-test.skip", "^("+strings.Join(slices.Sorted(mapKeys(r.done)), "|")+")$")
	}
	p, err := r.start(args, nil)
	if err != nil {
		r.report.Problems = append(r.report.Problems, err.Error())
		return false
	}
	var lost tail // what tests print that do not end
	c := matrix.NewCollector(&lost)
	running := ""
	c.Started = func(test string) {
		running = top(test)
		r.flush()
	}
	c.Ended = func(res matrix.Result, output string) {
		r.ended(res, output)
		if res.Test == running {
			running = ""
		}
	}
	before, stale := len(r.done), false
	stopped, err := r.follow(ctx, p, func(l line) {
		text, isStale := strings.CutPrefix(l.text, testenv.StaleMark)
		switch {
		case isStale:
			stale = true
			r.report.Notes = append(r.report.Notes, "supported here, though the list of the tests says otherwise: "+strings.TrimSpace(text))
		case l.isErr:
			p.stderr.Write([]byte(l.text))
		default:
			c.Line(l.text)
		}
	})
	switch {
	case ctx.Err() != nil:
		r.flush()
		r.report.Interrupted, r.group = true, nil
		return false
	case running != "":
		lost.b = nil
		c.Results() // prints what the test has printed
		r.group = append(r.group, Result{Test: running, Output: lost.String()})
		r.crashed(stopped, err, p.stderr.String())
		return !errors.Is(err, errStuck)
	case err != nil && len(r.group) > 0 && p.cmd.ProcessState.ExitCode() != 1: // package testing has said FAIL before
		r.crashed(stopped, err, p.stderr.String())
		return true
	}
	r.flush()
	switch {
	case err != nil && len(r.done) == before || err != nil && !r.failed() && !stale:
		r.report.Problems = append(r.report.Problems, fmt.Sprintf("the test process: %v: %s", err, strings.TrimSpace(p.stderr.String())))
		return len(r.done) > before
	}
	return err != nil && len(r.done) > before
}

// failed reports whether a test has failed.
func (r *runner) failed() bool {
	return slices.ContainsFunc(r.report.Results, func(res Result) bool { return res.Outcome == matrix.Failed })
}

// mapKeys iterates over the keys of a set.
func mapKeys(set map[string]bool) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range set {
			if !yield(k) {
				return
			}
		}
	}
}

// ended takes the result of a test or subtest.
func (r *runner) ended(res matrix.Result, output string) {
	result := Result{Test: res.Test, Outcome: res.Outcome, Seconds: res.Took, Reason: reason(res, output)}
	if res.Outcome == matrix.Failed {
		result.Output = output
	}
	r.report.met(res.Test, output)
	r.group = append(r.group, result)
	if res.Test == top(res.Test) {
		r.done[res.Test] = true
	}
}

// flush passes on the results of a test that has ended with its subtests. It waits for the next test or the
// end of the process, which may say more about a test that has failed.
func (r *runner) flush() {
	if n := len(r.group); n == 0 || r.group[n-1].Test != top(r.group[n-1].Test) {
		return
	}
	r.report.Results = append(r.report.Results, r.group...)
	r.out.test(r.group)
	r.group = nil
}

// crashed takes a test that ended with its process, as the last one of its group.
func (r *runner) crashed(stopped string, err error, output string) {
	res := &r.group[len(r.group)-1]
	why := stopped
	if why == "" {
		why = fmt.Sprintf("its process ended: %v", err)
	} else if errors.Is(err, errStuck) {
		why += "; " + errStuck.Error()
	}
	res.Outcome, res.Reason, res.Output = matrix.Failed, why, res.Output+output
	r.done[res.Test] = true
	r.flush()
}

// notSupported begins the reason of a test that a kernel or device does not support.
const notSupported = "not supported: "

// place is the position in a source file that package testing prints before a message.
var source = regexp.MustCompile(`^\s*[\w.-]+\.go:\d+: `)

// reason says why a test was skipped, from what it printed last.
func reason(res matrix.Result, output string) string {
	switch {
	case res.Outcome == matrix.Passed || res.Outcome == matrix.Failed:
		return ""
	case res.Note != "":
		return notSupported + res.Note
	}
	lines := strings.Split(strings.TrimSpace(output), "\n")
	last := strings.TrimSpace(source.ReplaceAllString(lines[len(lines)-1], ""))
	for _, mark := range []string{testenv.ElsewhereMark, testenv.NotSoftMark} {
		last = strings.TrimPrefix(last, mark)
	}
	switch last {
	case testenv.SkipTagsEnv + " has " + string(testenv.Machine):
		return "it changes the machine (-vm runs it)"
	case testenv.SkipTagsEnv + " has " + string(testenv.Long):
		return "it takes long (runs without -quick)"
	}
	return last
}

// mostTraced is how many failed tests run again for their traces.
const mostTraced = 10

// traces runs the failed tests again, each by itself, and keeps the commands that they give the kernel. A
// test that hung or crashed does not run again.
func (r *runner) traces(ctx context.Context) {
	failed := r.report.failures()
	for _, res := range failed[:min(len(failed), mostTraced)] {
		if res.Reason != "" || ctx.Err() != nil {
			continue
		}
		r.trace(ctx, res)
	}
}

// trace runs one failed test again.
func (r *runner) trace(ctx context.Context, res *Result) {
	const most = 500 // commands
	parts := strings.Split(res.Test, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	p, err := r.start([]string{"-test.v=test2json", "-test.timeout=0", "-test.run", strings.Join(parts, "/")}, []string{"RDMADEBUG=level=1"})
	if err != nil {
		res.Alone = err.Error()
		return
	}
	c := matrix.NewCollector(io.Discard)
	c.Ended = func(again matrix.Result, _ string) {
		if again.Test == res.Test {
			res.Alone = string(again.Outcome)
		}
	}
	res.Alone = "did not end"
	stopped, err := r.follow(ctx, p, func(l line) {
		command, ok := strings.CutPrefix(l.text, "uverbs: ") // package testing sends standard error to the output
		if !ok {
			c.Line(l.text)
		} else if res.Trace = append(res.Trace, strings.TrimSpace(command)); len(res.Trace) > most {
			res.Trace = slices.Delete(res.Trace, 0, 1)
		}
	})
	if stopped != "" {
		res.Alone = stopped
	}
	if errors.Is(err, errStuck) {
		r.report.Problems = append(r.report.Problems, err.Error())
	}
}

// trimOutput returns the lines of what a test printed, without indentation that they share.
func trimOutput(output string) []string {
	var lines []string
	for l := range strings.Lines(output) {
		if l = strings.TrimRight(l, "\r\n "); l != "" {
			lines = append(lines, string(bytes.ReplaceAll([]byte(l), []byte("\t"), []byte("    "))))
		}
	}
	for len(lines) > 0 && !slices.ContainsFunc(lines, func(l string) bool { return !strings.HasPrefix(l, " ") }) {
		for i := range lines {
			lines[i] = lines[i][1:]
		}
	}
	return lines
}
