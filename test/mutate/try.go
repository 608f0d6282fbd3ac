package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
)

// tester builds and runs the tests of mutants.
type tester struct {
	root  string
	tmp   string
	limit time.Duration
	race  bool
	also  []goPackage
	env   []string // of the tests
	then  string

	took map[string]time.Duration // by suite or command, how long it takes unchanged
	uses map[string][]string      // by package of also, what its tests depend on
}

// suite is the tests of a package, with or without the race detector.
type suite struct {
	path, dir string
	race      bool
}

func newTester(root string, o *options) (*tester, error) {
	t := &tester{root: root, limit: o.limit, race: o.race, then: o.then, took: map[string]time.Duration{}, uses: map[string][]string{}}
	t.env = append(os.Environ(), testenv.DevicesEnv+"="+o.devices)
	if o.also != "" {
		also, err := listPackages(root, o.also)
		if err != nil {
			return nil, err
		}
		t.also = also
	}
	tmp, err := os.MkdirTemp("", "mutate")
	t.tmp = tmp
	return t, err
}

// close removes the files of the tester.
func (t *tester) close() { os.RemoveAll(t.tmp) }

// try sets the result of a mutant. An error is none of the mutant's: the tests fail without it.
func (t *tester) try(ctx context.Context, m *mutant) error {
	start := time.Now()
	defer func() { m.Seconds = time.Since(start).Round(time.Millisecond).Seconds() }()
	overlay, err := t.overlay(m)
	if err != nil {
		return err
	}
	own := suite{path: m.Package, dir: filepath.Dir(m.path)}
	suites := []suite{own}
	if t.race && (m.Kind == lockKind || m.Kind == barrierKind) {
		suites = append(suites, suite{own.path, own.dir, true})
	}
	for _, p := range t.also {
		uses, err := t.dependencies(p.ImportPath)
		if err != nil {
			return err
		}
		if p.ImportPath != m.Package && slices.Contains(uses, m.Package) {
			suites = append(suites, suite{path: p.ImportPath, dir: p.Dir})
		}
	}
	m.Result = survived
	for _, s := range suites {
		if err := t.baseline(ctx, s); err != nil {
			return err
		}
		exe, out, err := t.build(ctx, s, overlay)
		if ctx.Err() != nil {
			m.Result = ""
			return ctx.Err()
		}
		if err != nil {
			m.Result, m.output = notBuilt, out
			return nil
		}
		if exe == "" {
			continue // no tests
		}
		m.Result, m.output, err = t.run(ctx, s, exe, t.limitOf(s))
		if err != nil {
			m.Result = ""
			return err
		}
		if m.Result != survived {
			m.By = failedTest(m.output)
			if m.other = s.path != m.Package; m.other {
				m.By = s.path + ": " + m.By
			} else if s.race {
				m.By += ", under the race detector"
			}
			return nil
		}
	}
	if t.then == "" {
		return nil
	}
	return t.tryThen(ctx, m, overlay)
}

// tryThen has the command of -then try a mutant that the tests did not notice.
func (t *tester) tryThen(ctx context.Context, m *mutant, overlay string) error {
	if _, ok := t.took[t.then]; !ok {
		start := time.Now()
		res, out, err := t.start(ctx, t.command(""), time.Hour)
		if err != nil {
			return err
		}
		if res != survived {
			return fmt.Errorf("%s fails without a mutant\n%s", t.then, out)
		}
		t.took[t.then] = time.Since(start)
	}
	limit := t.limit
	if limit == 0 {
		limit = 30*time.Second + 4*t.took[t.then]
	}
	res, out, err := t.start(ctx, t.command(overlay), limit)
	if err != nil {
		m.Result = ""
		return err
	}
	m.Result, m.output = res, out
	if res != survived {
		m.By, m.other = "the command: "+failedTest(out), true
	}
	return nil
}

// command returns the command of -then, for a mutant if there is an overlay.
func (t *tester) command(overlay string) *exec.Cmd {
	cmd := exec.Command("sh", "-c", t.then)
	cmd.Dir = t.root
	if overlay != "" {
		cmd.Env = append(os.Environ(), strings.TrimSpace("GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+overlay))
	}
	return cmd
}

// overlay writes the changed file, and the JSON that shows it to the compiler.
func (t *tester) overlay(m *mutant) (string, error) {
	changed := filepath.Join(t.tmp, "changed.go")
	if err := os.WriteFile(changed, apply(m.src, m.edits), 0o666); err != nil {
		return "", err
	}
	b, err := json.Marshal(map[string]map[string]string{"Replace": {m.path: changed}})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(t.tmp, "overlay.json")
	return overlay, os.WriteFile(overlay, b, 0o666)
}

// baseline runs a suite without a mutant, once: it must pass, and how long it takes sets the limit.
func (t *tester) baseline(ctx context.Context, s suite) error {
	key := fmt.Sprint(s)
	if _, ok := t.took[key]; ok {
		return nil
	}
	exe, out, err := t.build(ctx, s, "")
	if err != nil {
		return fmt.Errorf("go test -c %s: %w\n%s", s.path, err, out)
	}
	start := time.Now()
	if exe != "" {
		res, out, err := t.run(ctx, s, exe, 20*time.Minute)
		if err != nil {
			return err
		}
		if res != survived {
			return fmt.Errorf("the tests of %s fail without a mutant\n%s", s.path, out)
		}
	}
	t.took[key] = time.Since(start)
	return nil
}

// limitOf returns how long a suite may take.
func (t *tester) limitOf(s suite) time.Duration {
	if t.limit > 0 {
		return t.limit
	}
	return 30*time.Second + 4*t.took[fmt.Sprint(s)]
}

// build builds the tests of a package and returns the file, or "" if there are no tests.
func (t *tester) build(ctx context.Context, s suite, overlay string) (exe, out string, err error) {
	exe = filepath.Join(t.tmp, "test")
	os.Remove(exe)
	args := []string{"test", "-c", "-vet=off", "-o", exe}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	if s.race {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, s.path)...)
	cmd.Dir = t.root
	if s.race {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	}
	b, err := cmd.CombinedOutput()
	if err == nil {
		if _, missing := os.Stat(exe); missing != nil {
			exe = ""
		}
	}
	return exe, string(b), err
}

// memory is the address space that tests may have, in KiB: a mutant may allocate without end.
const memory = "8388608"

// run runs a built suite in its folder.
func (t *tester) run(ctx context.Context, s suite, exe string, limit time.Duration) (result, string, error) {
	args := []string{"-c", "ulimit -v " + memory + `; exec "$@"`, "sh"}
	if s.race { // reserves more than that
		args = []string{"-c", `exec "$@"`, "sh"}
	}
	cmd := exec.Command("sh", append(args, exe, "-test.failfast", "-test.timeout="+limit.String())...)
	cmd.Dir, cmd.Env = s.dir, t.env
	return t.start(ctx, cmd, limit)
}

// start runs the tests that a command stands for, and says how they ended.
func (t *tester) start(ctx context.Context, cmd *exec.Cmd, limit time.Duration) (result, string, error) {
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		return "", "", err
	}
	// The program's own limit prints where it hangs; it needs a scheduler that works.
	late := time.AfterFunc(limit+10*time.Second, func() { unix.Kill(-cmd.Process.Pid, unix.SIGKILL) })
	stop := context.AfterFunc(ctx, func() { unix.Kill(-cmd.Process.Pid, unix.SIGKILL) })
	err := cmd.Wait()
	stop()
	fired := !late.Stop()
	unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // what the tests have left behind
	text := out.String()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return "", "", ctx.Err()
	case err == nil:
		return survived, text, nil
	case fired, strings.Contains(text, "panic: test timed out after"):
		return timedOut, text, nil
	case errors.As(err, &exit), errors.Is(err, exec.ErrWaitDelay):
		return killed, text, nil
	}
	return "", "", err
}

var failLine = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// failedTest returns the name of the first test that failed, or the first line that tells why.
func failedTest(out string) string {
	if all := failLine.FindAllStringSubmatch(out, -1); all != nil {
		return all[0][1]
	}
	for l := range strings.Lines(out) {
		if strings.HasPrefix(l, "panic: ") || strings.HasPrefix(l, "fatal error: ") {
			return shorten(l)
		}
	}
	return "the exit status"
}

// dependencies returns the packages that a package's tests are built from.
func (t *tester) dependencies(path string) ([]string, error) {
	if t.uses[path] == nil {
		cmd := exec.Command("go", "list", "-deps", "-test", path)
		cmd.Dir = t.root
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("go list -deps %s: %w", path, withStderr(err))
		}
		t.uses[path] = strings.Fields(string(out))
	}
	return t.uses[path], nil
}
