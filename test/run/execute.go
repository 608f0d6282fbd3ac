package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/test/internal/matrix"
)

// An outcome is how a build or a step ended.
type outcome struct {
	planned
	begin, end time.Time
	busy       time.Duration // processor time, of its children too
	tests      []testTime    // for -times
	counts     counts
	failed     []string // names of tests
	report     string   // what failed tests and the program printed
	problem    string   // an error other than failed tests
	log        string   // file with all output, from the root
}

// ok reports whether nothing failed.
func (o *outcome) ok() bool { return len(o.failed) == 0 && o.problem == "" }

// took is how long it took.
func (o *outcome) took() time.Duration { return o.end.Sub(o.begin).Round(time.Second) }

// spent is how long it took and the processor time of that, as 1m05s (2m01s busy).
func (o *outcome) spent() string { return clock(o.took()) + " (" + clock(o.busy) + " busy)" }

// runner runs a plan.
type runner struct {
	*config
	out   io.Writer
	begin time.Time
	total int // steps

	mu      sync.Mutex // guards out and what follows
	running map[string]time.Time
	done    []*outcome
	leftOut []string // for lack of time
}

// heartbeat is how often a run says what is running.
const heartbeat = time.Minute

// run runs a plan, shows its progress and its summary, and reports whether all of it passed.
func (c *config) run(ctx context.Context, out io.Writer, p *plan) bool {
	r := &runner{config: c, out: out, begin: time.Now(), total: len(p.steps), running: map[string]time.Time{}}
	for i := range p.builds {
		r.say("building %s", strings.TrimPrefix(p.builds[i].name, "build "))
		if o := r.execute(ctx, &p.builds[i]); !o.ok() {
			r.done = append(r.done, o)
			r.summary()
			return false
		}
	}
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			select {
			case <-beat.C:
				r.beat()
			case <-stop:
				return
			}
		}
	}()
	r.steps(ctx, p.steps)
	return r.summary()
}

// steps runs the steps: first those that are alone, one after the other, then the others in their order, as many at
// once as jobs says. Those that wait most of their time run beside them, one after the other, unless jobs is 1. A step
// that fails does not keep the others from running.
func (r *runner) steps(ctx context.Context, steps []planned) {
	var alone, busy, waiting []int
	for i := range steps {
		switch s := steps[i].step; {
		case s.alone:
			alone = append(alone, i)
		case s.waits && r.jobs > 1:
			waiting = append(waiting, i)
		default:
			busy = append(busy, i)
		}
	}
	lane := func(numbers []int, jobs int) {
		slots := make(chan struct{}, jobs)
		var wg sync.WaitGroup
		for _, i := range numbers {
			slots <- struct{}{}
			s := &steps[i]
			if s.step.ifTime && time.Since(r.begin) > quickTime {
				r.mu.Lock()
				r.leftOut = append(r.leftOut, s.name)
				r.mu.Unlock()
				<-slots
				continue
			}
			if ctx.Err() != nil {
				break
			}
			r.say("%d of %d: %s", i+1, r.total, s.name)
			wg.Go(func() {
				r.step(ctx, i+1, s)
				<-slots
			})
		}
		wg.Wait()
	}
	lane(alone, 1)
	var both sync.WaitGroup
	both.Go(func() { lane(waiting, 1) })
	lane(busy, r.jobs)
	both.Wait()
}

// step runs a step and says how it ends.
func (r *runner) step(ctx context.Context, number int, s *planned) {
	r.mu.Lock()
	r.running[s.name] = time.Now()
	r.mu.Unlock()
	o := r.execute(ctx, s)
	r.mu.Lock()
	delete(r.running, s.name)
	r.done = append(r.done, o)
	r.mu.Unlock()
	verdict := "ok"
	if !o.ok() {
		verdict = "FAILED"
	}
	r.say("%d of %d: %s %s after %s: %s", number, r.total, s.name, verdict, o.spent(), o.counts)
}

// say prints a line of progress, after the time since the start.
func (r *runner) say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, "%6s  %s\n", clock(time.Since(r.begin)), fmt.Sprintf(format, args...))
}

// beat says what is running.
func (r *runner) beat() {
	r.mu.Lock()
	var parts []string
	for name, begin := range r.running {
		parts = append(parts, name+" for "+clock(time.Since(begin)))
	}
	finished := len(r.done)
	r.mu.Unlock()
	if len(parts) > 0 {
		r.say("%d of %d are done; running: %s", finished, r.total, strings.Join(parts, ", "))
	}
}

// clock writes a time as 4m05s.
func clock(d time.Duration) string {
	s := int(d.Round(time.Second).Seconds())
	return fmt.Sprintf("%dm%02ds", s/60, s%60)
}

// killDelay is how long a step has to end after an interrupt.
const killDelay = 20 * time.Second

// execute executes a command, keeps its output in a log and reads the results of its tests.
func (r *runner) execute(ctx context.Context, p *planned) *outcome {
	o := &outcome{planned: *p, begin: time.Now(), log: ".build/log/" + strings.NewReplacer("/", "-", " ", "-").Replace(p.name) + ".log"}
	defer func() { o.end = time.Now() }()
	path := filepath.Join(r.root, o.log)
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		o.problem = err.Error()
		return o
	}
	log, err := os.Create(path)
	if err != nil {
		o.problem = err.Error()
		return o
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, p.command.args[0], p.command.args[1:]...)
	cmd.Dir = filepath.Join(r.root, filepath.FromSlash(p.command.dir))
	cmd.Env = append(append(os.Environ(), "CGO_ENABLED=0"), p.command.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt from the terminal comes through us alone
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = killDelay
	res := newResults(p.step, p.command.args)
	var mu sync.Mutex // stdout and stderr are copied by two goroutines
	tee := func(take func(string)) *lines {
		return &lines{take: func(line string) {
			mu.Lock()
			defer mu.Unlock()
			plain := res.plain(line)
			io.WriteString(log, plain)
			if m := testEnd.FindStringSubmatch(plain); m != nil && r.times {
				took, _ := time.ParseDuration(m[2])
				o.tests = append(o.tests, testTime{p.name + " " + m[1], took})
			}
			if r.verbose || p.step != nil && p.step.shown {
				r.mu.Lock()
				io.WriteString(r.out, plain)
				r.mu.Unlock()
			}
			take(line)
		}}
	}
	stdout, stderr := tee(res.stdout), tee(res.stderr)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	fmt.Fprintf(log, "%s\n", p.command.String())
	if err = r.forget(p.step); err == nil {
		err = cmd.Run()
	}
	stdout.flush()
	stderr.flush()
	o.end = time.Now()
	if state := cmd.ProcessState; state != nil {
		o.busy = state.UserTime() + state.SystemTime()
	}
	res.finish(o, err, ctx.Err())
	if err := r.keep(o, res); err != nil {
		o.problem = err.Error()
	}
	return o
}

// column is the column of the matrix that a step's results go to.
func (r *runner) column(s *step) matrix.Column {
	if s.host != nil {
		return matrix.ParseColumn(s.driver)
	}
	return matrix.Column{Kernel: s.kernelOr(r.kernel), Arch: r.arch, Driver: s.driver}
}

// forget removes what the matrix knows of an earlier run of a step.
func (r *runner) forget(s *step) error {
	if s == nil || s.driver == "" {
		return nil
	}
	return matrix.Remove(r.results(), r.column(s), s.name)
}

// keep keeps the results of a step for the matrix.
func (r *runner) keep(o *outcome, res *results) error {
	if o.step == nil || o.step.driver == "" {
		return nil
	}
	b := matrix.Boot{Name: o.step.name, Path: o.step.path, Begin: o.begin, End: o.end, Problem: o.problem}
	b.Release, b.Results = res.boot()
	return matrix.Save(r.results(), r.column(o.step), b)
}

// lines is a writer that passes on whole lines.
type lines struct {
	take func(line string)
	part []byte
}

// Write implements io.Writer.
func (l *lines) Write(b []byte) (int, error) {
	l.part = append(l.part, b...)
	for {
		i := bytes.IndexByte(l.part, '\n')
		if i < 0 {
			return len(b), nil
		}
		l.take(string(l.part[:i+1]))
		l.part = l.part[i+1:]
	}
}

// flush passes on what has no newline.
func (l *lines) flush() {
	if len(l.part) > 0 {
		l.take(string(l.part) + "\n")
		l.part = nil
	}
}
