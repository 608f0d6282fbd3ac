package testenv

import (
	"strings"
	"testing"
)

func TestMustHave(t *testing.T) {
	for _, c := range []struct {
		name   string
		since  [2]int
		kernel [2]int
		must   string
		want   string // part of the problem; empty if the test may skip
	}{
		{"older kernel", [2]int{6, 2}, [2]int{6, 1}, "", ""},
		{"major decides", [2]int{5, 12}, [2]int{6, 1}, "", "since 5.12"},
		{"same kernel", [2]int{6, 1}, [2]int{6, 1}, "", "since 6.1"},
		{"driver's choice", [2]int{}, [2]int{6, 1}, "", ""},
		{"promised", [2]int{}, [2]int{6, 1}, "x,flush", "promised"},
		{"something else promised", [2]int{}, [2]int{6, 1}, "flushing", ""},
	} {
		got := mustHave("flush", c.since, c.kernel, c.must)
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: problem %q, want %q", c.name, got, c.want)
		}
	}
}

func TestReport(t *testing.T) {
	var b strings.Builder
	if !report(&b, []string{"TestA: x"}, []string{"TestA: x", "TestB: y"}) {
		t.Error("an expected skip is a failure")
	}
	if report(&b, []string{"TestA: x", "TestC: x"}, []string{"TestA: x"}) {
		t.Error("an unexpected skip is no failure")
	}
	if !strings.Contains(b.String(), "without being on the list: TestC: x") {
		t.Errorf("report is %q", b.String())
	}
}
