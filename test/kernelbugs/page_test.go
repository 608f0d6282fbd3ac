package main

import (
	"os"
	"strings"
	"testing"
)

// TestPage: BUGS.md says of every attack on which kernels it succeeds, and of nothing else.
func TestPage(t *testing.T) {
	b, err := os.ReadFile("../suites/conformance/BUGS.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	all, err := parsePage(text)
	if err != nil {
		t.Fatal(err)
	}
	for i := range attacks {
		a := &attacks[i]
		for _, kernel := range tested {
			_, known, err := all.expected(a.name, kernel)
			if has := a.since == ([2]int{}) || kernel == "7.2"; err != nil || known != has {
				t.Errorf("%s on %s: listed: %t, %v, want %t", a.name, kernel, known, err, has)
			}
		}
	}
	for _, c := range []struct {
		name, kernel string
		bug          bool
	}{{"send-cur-sge", "5.10", true}, {"send-cur-sge", "6.1", false}, {"send-opcode", "latest", true}, {"split-header", "6.12", false}} {
		if bug, known, err := all.expected(c.name, c.kernel); bug != c.bug || !known || err != nil {
			t.Errorf("%s on %s: %t, %t, %v, want %t", c.name, c.kernel, bug, known, err, c.bug)
		}
	}
	if _, _, err := all.expected("send-opcode", "6.6"); err == nil {
		t.Error("a kernel that the page is not about: no error")
	}
	for name, wrong := range map[string]string{
		"no such attack": strings.Replace(text, "| send-opcode |", "| send-nothing |", 1),
		"no line":        strings.Replace(text, "| read-response-elsewhere |", "| read-response-elsewhere", 1),
		"is none of":     strings.Replace(text, "| send-resid | rxe | 5.10,", "| send-resid | rxe | 5.9,", 1),
		"in both tables": strings.Replace(text, "| send-cur-sge | rxe | 6.1,", "| send-cur-sge | rxe | 5.10,", 1),
		"no heading":     strings.Replace(text, "## Looked", "## looked", 1),
	} {
		if _, err := parsePage(wrong); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestJudge: what a guest prints says what happened in it.
func TestJudge(t *testing.T) {
	for output, want := range map[string]string{
		"kernelbugs: outcome: clean\n":                                                     clean,
		"x\nkernelbugs: outcome: wrong: the driver is wrong: it is\n":                      wrong,
		"kernelbugs: outcome: unclear: no completion\n":                                    unclear,
		"kernelbugs: outcome: unclear: x\n    BUG: unable to handle page fault\n":          oops,
		"    Oops: general protection fault, probably for non-canonical address\n":         oops,
		"    general protection fault, probably for non-canonical address\n":               oops,
		"kernelbugs: outcome: clean\n    WARNING: CPU: 0 PID: 1 at lib/refcount.c:28 x+\n": warning,
		"[    9.1] Kernel panic - not syncing: Fatal exception in interrupt\n":             oops,
		"vmrun: the guest hangs\n":                                                         unclear,
		"":                                                                                 unclear,
	} {
		if got := judge(output); got != want {
			t.Errorf("%q: %s, want %s", output, got, want)
		}
	}
}
