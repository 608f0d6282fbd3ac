package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/tools/vmrun/internal/frame"
	"github.com/goverbs/goverbs/tools/vmrun/internal/guest"
)

func TestSplitHosts(t *testing.T) {
	a, b, c := [][]string{{"a", "1"}}, [][]string{{"b"}, {"c"}}, [][]string{{"c"}}
	for _, tt := range []struct {
		args  string
		hosts int
		want  [][][]string
		says  string
	}{
		{"a 1", 1, [][][]string{a}, ""},
		{"b --- c", 1, [][][]string{b}, ""},
		{"a 1", 2, [][][]string{a, a}, ""},
		{"b --- c", 2, [][][]string{b, b}, ""},
		{"a 1 +++ b --- c", 2, [][][]string{a, b}, ""},
		{"b --- c +++ c", 2, [][][]string{b, c}, ""},
		{"a 1 +++ c", 1, nil, `"+++" separates the programs of several hosts, and there is one: see -hosts`},
		{"a 1 +++ c +++ b --- c", 3, [][][]string{a, c, b}, ""},
		{"a 1", 4, [][][]string{a, a, a, a}, ""},
		{"a +++ b +++ c", 2, nil, `programs for 3 hosts, and there are 2`},
		{"", 2, nil, "no program named"},
		{"+++ a", 2, nil, "no program named"},
		{"a +++", 2, nil, "no program named"},
		{"a +++ b ---", 2, nil, "no program named"},
	} {
		got, err := splitHosts(strings.Fields(tt.args), tt.hosts)
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%q for %d: %v, want %q in it", tt.args, tt.hosts, err, tt.says)
		}
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%q for %d: %s", tt.args, tt.hosts, d)
		}
	}
}

func TestHostEnv(t *testing.T) {
	env := []string{"A=b", "VMRUN_HOST=7", "VMRUN_PEERS=x"}
	for host, want := range map[int][]string{
		1: {"A=b", "VMRUN_PEERS=x", "VMRUN_HOST=1", "VMRUN_HOSTS=3", "VMRUN_PEER=10.2.0.2"},
		2: {"A=b", "VMRUN_PEERS=x", "VMRUN_HOST=2", "VMRUN_HOSTS=3", "VMRUN_PEER=10.2.0.1"},
		3: {"A=b", "VMRUN_PEERS=x", "VMRUN_HOST=3", "VMRUN_HOSTS=3", "VMRUN_PEER=10.2.0.1"},
	} {
		if d := cmp.Diff(want, hostEnv(env, host, 3)); d != "" {
			t.Errorf("host %d: %s", host, d)
		}
	}
	if env[1] != "VMRUN_HOST=7" {
		t.Error("the other host's environment was changed")
	}
}

func TestTellApart(t *testing.T) {
	hosts := []imageHost{
		{fetch: map[string]string{"/tmp/out": "out", "/a": "a"}},
		{fetch: map[string]string{"/tmp/out": "out", "/b": "b"}},
		{fetch: map[string]string{"/tmp/out": "out", "/b": "b", "/c": "b"}},
	}
	tellApart(hosts)
	want := []map[string]string{{"/tmp/out": "out", "/a": "a"}, {"/tmp/out": "out.2", "/b": "b"}, {"/tmp/out": "out.3", "/b": "b.3", "/c": "b.3"}}
	if d := cmp.Diff(want, []map[string]string{hosts[0].fetch, hosts[1].fetch, hosts[2].fetch}); d != "" {
		t.Error(d)
	}
	tellApart(hosts[:1])
}

// told gives a group of two whose messages to the hosts are counted.
func told() (*group, *[2]int) {
	p, told := newGroup(2, time.Second/10), &[2]int{}
	for i, s := range p.members {
		s.send = func(k frame.Kind, _ []byte) {
			if k == frame.Go {
				told[i]++
			}
		}
	}
	return p, told
}

func stopped(s *member) bool {
	select {
	case <-s.stop():
		return true
	default:
		return false
	}
}

func arrive(t *testing.T, s *member, failed bool) {
	t.Helper()
	must(t, s.arrive(failed))
}

func TestGroup(t *testing.T) {
	p, told := told()
	a, b := p.members[0], p.members[1]
	arrive(t, a, false)
	if !a.waiting() || *told != [2]int{} {
		t.Errorf("one is ready: told %v", *told)
	}
	if err := a.arrive(false); !errors.Is(err, frame.ErrFormat) {
		t.Errorf("ready twice: %v", err)
	}
	arrive(t, b, false)
	if a.waiting() || *told != [2]int{1, 1} {
		t.Errorf("both are ready: told %v", *told)
	}
	arrive(t, b, false)
	arrive(t, a, false)
	if *told != [2]int{2, 2} {
		t.Errorf("both have ended: told %v", *told)
	}
	a.leave(false)
	b.leave(false)
	if stopped(a) || stopped(b) {
		t.Error("one was stopped")
	}
	if err := a.arrive(false); !errors.Is(err, frame.ErrFormat) {
		t.Errorf("a third time: %v", err)
	}
}

// A host whose other one never came up has nothing to do.
func TestGroupAlone(t *testing.T) {
	for _, ready := range []bool{true, false} {
		p, told := told()
		a, b := p.members[0], p.members[1]
		if ready {
			arrive(t, a, false)
		}
		b.leave(true)
		if !stopped(a) || *told != [2]int{} {
			t.Errorf("ready %v: stopped %v, told %v", ready, stopped(a), *told)
		}
	}
}

// A host whose other one fails is stopped after a while, and the one that failed
// comes to an end.
func TestGroupFailed(t *testing.T) {
	for _, crash := range []bool{true, false} {
		p, told := told()
		a, b := p.members[0], p.members[1]
		arrive(t, a, false)
		arrive(t, b, false)
		if crash {
			b.leave(true)
		} else {
			arrive(t, b, true)
		}
		if *told != [2]int{1, 1} {
			t.Errorf("crash %v: stopped %v, told %v", crash, stopped(a), *told)
		}
		<-a.stop() // after the grace
		a.leave(true)
		if want := map[bool]int{true: 1, false: 2}[crash]; told[1] != want {
			t.Errorf("crash %v: told %v", crash, *told)
		}
	}
}

// One whose programs end within the grace is not stopped while it brings back its
// files.
func TestGroupWithinGrace(t *testing.T) {
	p, told := told()
	p.grace = time.Hour
	a, b := p.members[0], p.members[1]
	for _, s := range []*member{a, b, a} {
		arrive(t, s, s.passed > 0)
	}
	arrive(t, b, false)
	p.expire(b)
	if stopped(b) || *told != [2]int{2, 2} {
		t.Errorf("stopped %v, told %v", stopped(b), *told)
	}
}

func TestNoGroup(t *testing.T) {
	var s *member
	s.leave(true)
	if err := s.arrive(false); !errors.Is(err, frame.ErrFormat) || s.waiting() || s.stop() != nil {
		t.Errorf("a machine alone: %v", err)
	}
}

func TestJudge(t *testing.T) {
	hello := guest.HelloMsg{Release: "6.1.0-50-amd64"}
	ok, three, killed := guest.ExitedMsg{}, guest.ExitedMsg{Status: 3}, guest.ExitedMsg{Signal: 9}
	for _, tt := range []struct {
		name   string
		ends   [2]ending
		first  []any
		second []any
		status int
		says   []string
	}{
		{"both well", [2]ending{ended, ended}, []any{hello, ok}, []any{hello, ok}, 0, []string{"vmrun: host 1: status 0, host 2: status 0\n"}},
		{"the first fails", [2]ending{ended, ended}, []any{hello, three}, []any{hello, killed}, 3, []string{"host 1: status 3, host 2: status 137"}},
		{"the second fails", [2]ending{ended, ended}, []any{hello, ok}, []any{hello, three}, 3, []string{"host 1: status 0, host 2: status 3"}},
		{"the first is stopped", [2]ending{peerFailed, ended}, []any{hello, guest.StartedMsg{}, killed, guest.StartedMsg{}}, []any{hello, three}, 3,
			[]string{"vmrun: host 1: stopped because another host failed, while program 2 of 2 ran", "host 1: stopped, host 2: status 3"}},
		{"a warning in the second", [2]ending{ended, ended}, []any{hello, ok}, []any{hello, ok, warning}, 126,
			[]string{"vmrun: host 2: the kernel complained", "host 1: status 0, host 2: status 126"}},
		{"a warning in one that is stopped", [2]ending{ended, peerFailed}, []any{hello, three}, []any{hello, warning}, 3, []string{"host 2: the kernel complained"}},
		{"init gives up", [2]ending{peerFailed, initFailed}, []any{hello}, []any{hello}, 125, []string{"vmrun: host 2: guest: add rxe device", "host 1: stopped, host 2: status 125"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stderr bytes.Buffer
			a := &app{options: defaults(), stderr: &stderr}
			all := []*session{played(t, tt.first...), played(t, tt.second...)}
			for i, s := range all {
				s.host, s.end, s.fatal = i+1, tt.ends[i], "add rxe device rxe0"
			}
			status, err := a.judge(t.Context(), all)
			if status != tt.status || err != nil {
				t.Errorf("status %d, error %v; want %d", status, err, tt.status)
			}
			for _, want := range tt.says {
				if !strings.Contains(stderr.String(), want) {
					t.Errorf("no %q in\n%s", want, stderr.String())
				}
			}
		})
	}
}

func TestPrefixed(t *testing.T) {
	var out bytes.Buffer
	p := &prefixed{w: &out, prefix: "1: "}
	want := ""
	for _, step := range []struct{ in, out string }{
		{"one\ntw", "1: one\n"}, {"o", ""}, {"\n\nthree", "1: two\n1: \n"},
		{strings.Repeat("x", longestLine), "1: three" + strings.Repeat("x", longestLine) + "\n"}, {"rest", ""},
	} {
		if n, err := p.Write([]byte(step.in)); n != len(step.in) || err != nil {
			t.Errorf("%.10q: %d, %v", step.in, n, err)
		}
		want += step.out
		if out.String() != want {
			t.Fatalf("after %.10q: %.100q", step.in, out.String())
		}
	}
	p.flush()
	p.flush()
	if got, want := out.String(), want+"1: rest\n"; got != want {
		t.Errorf("at the end: %.100q", got)
	}
	p.w = failing{}
	if _, err := fmt.Fprintln(p, "x"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("an error of the destination: %v", err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.ErrUnsupported }
