package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCosts records a run and compares others with it: a warning for more than 3 %, and an error for more than twice as
// many instructions and for what was not measured.
func TestCosts(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Dir(costsFile(dir, "amd64")), 0o777))
	do := func(rows map[string][]float64, flags ...string) (status int, out, log string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "run.json")
		must(t, save(file, testReport("abc", rows).writeJSON))
		var o, l bytes.Buffer
		status = run(append(append([]string{"costs", "-root", dir}, flags...), file), &o, &l)
		return status, o.String(), l.String()
	}
	rows := map[string][]float64{"mr/size=4096/reg": {12, 10, 11}, "qps/n=100/create": {80, 81, 82}}
	if status, out, log := do(rows); status != 0 || !strings.Contains(out, "no instructions are recorded for amd64") {
		t.Errorf("without a record: %d, %s%s", status, out, log)
	}
	if status, _, log := do(rows, "-record"); status != 0 {
		t.Fatalf("record: %d, %s", status, log)
	}
	b, err := os.ReadFile(costsFile(dir, "amd64"))
	if err != nil || !strings.Contains(string(b), `"mr/size=4096/reg": 10000,`) {
		t.Errorf("the record is %s, %v", b, err)
	}
	const warning = "warning: row mr/size=4096/reg executes 5 % more instructions than recorded\n"
	if status, out, log := do(map[string][]float64{"mr/size=4096/reg": {10.5, 12}, "qps/n=100/create": {82}, "new": {1}}); status != 0 || strings.Count(out, "warning") != 1 || !strings.Contains(out, warning) {
		t.Errorf("more: %d, %s%s", status, out, log)
	}
	recorded := &costs{Instructions: map[string]float64{"dial/n=50/first": 100}}
	for n, want := range map[float64]bool{119: true, 121: false} {
		if err := compareCosts(&bytes.Buffer{}, recorded, &costs{Instructions: map[string]float64{"dial/n=50/first": n}}, refused, ""); (err == nil) != want {
			t.Errorf("%g instructions instead of 100: %v", n, err)
		}
	}
	if status, _, log := do(map[string][]float64{"mr/size=4096/reg": {21}, "qps/n=100/create": {82}}); status != 1 || !strings.Contains(log, "row mr/size=4096/reg executes 110 % more instructions than recorded, allowed: 100 %") {
		t.Errorf("twice as many: %d, %s", status, log)
	}
	if status, out, log := do(map[string][]float64{"mr/size=4096/reg": {9}, "qps/n=100/create": {40}}); status != 0 || strings.Contains(out, "warning") {
		t.Errorf("less: %d, %s%s", status, out, log)
	}
	if status, _, log := do(map[string][]float64{"mr/size=4096/reg": {9}}); status != 1 || !strings.Contains(log, "qps/n=100/create was recorded, but not measured") {
		t.Errorf("a row is missing: %d, %s", status, log)
	}
	if status, _, log := do(map[string][]float64{"send-bw/size=2": {9}}); status != 1 || !strings.Contains(log, "unit msg/s") {
		t.Errorf("a rate: %d, %s", status, log)
	}
	must(t, os.WriteFile(costsFile(dir, "amd64"), []byte(`{"instructions": {"x": 0}}`), 0o666))
	if status, _, log := do(rows); status != 1 || !strings.Contains(log, "has 0 instructions for x") {
		t.Errorf("a record of 0: %d, %s", status, log)
	}
}

// TestCostsRecord: the record that is checked in can be read and has rows.
func TestCostsRecord(t *testing.T) {
	file := filepath.Join(t.TempDir(), "run.json")
	must(t, save(file, testReport("abc", map[string][]float64{"x": {1}}).writeJSON))
	var out, log bytes.Buffer
	if run([]string{"costs", "-root", root, file}, &out, &log) != 1 || !strings.Contains(log.String(), "qps/n=100/create was recorded, but not measured") {
		t.Errorf("%s%s", out.String(), log.String())
	}
}
