package main

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/steps"
)

// TestHotTable: every recorded hot path has a place in the table, in the row of its driver, and no place is left
// empty that is not to be.
func TestHotTable(t *testing.T) {
	recorded, err := readCosts(hotFile(root, "amd64"))
	must(t, err)
	var places []string
	for _, driver := range []string{"mlx5", "efa", "rxe", "siw"} {
		for _, c := range hotColumns {
			for _, name := range c.names {
				if driver == "mlx5" || !strings.HasPrefix(name, "dci/") { // which the others do not have
					places = append(places, driver+"/"+name)
				}
			}
		}
	}
	slices.Sort(places)
	if names := slices.Sorted(maps.Keys(recorded.Instructions)); !slices.Equal(names, places) {
		t.Errorf("recorded are %v, the table has %v", names, places)
	}
	table := (&costs{Go: "go1", Instructions: map[string]float64{"mlx5/post/inline/n=1": 463.6, "mlx5/post/inline/n=32": 242, "rxe/dci/inline/n=32": 7}}).hotTable()
	if got := table[0][:2]; !slices.Equal(got, []string{"amd64, go1", "`PostSend`, inline"}) {
		t.Errorf("the heading is %q", got)
	}
	for i, want := range []string{"mlx5 464 / 242 ", "libmlx5 357 / 163 188", "efa  ", "rxe  7", "siw  "} {
		if got := strings.Join([]string{table[i+1][0], table[i+1][1], table[i+1][7]}, " "); got != want {
			t.Errorf("row %d is %q, want %q", i, got, want)
		}
	}
}

// TestHotCompare: a warning from 3 % more on, an error from 25 % more on and for a row that is missing, and each time the
// command that records.
func TestHotCompare(t *testing.T) {
	recorded := &costs{Instructions: map[string]float64{"a": 100, "b": 100}}
	for name, tt := range map[string]struct {
		now     map[string]float64
		out     string
		refused string
	}{
		"the same":    {map[string]float64{"a": 102, "b": 98}, "", ""},
		"more":        {map[string]float64{"a": 104, "b": 100}, "warning: row a executes 4 % more instructions than recorded\n" + "if this is as it should be, record it: RECORD\n", ""},
		"less":        {map[string]float64{"a": 100, "b": 90}, "if this is as it should be, record it: RECORD\n", ""},
		"much more":   {map[string]float64{"a": 126, "b": 100}, "if this is as it should be, record it: RECORD\n", "row a executes 26 % more instructions than recorded, allowed: 25 %"},
		"missing":     {map[string]float64{"b": 100}, "if this is as it should be, record it: RECORD\n", "a was recorded, but not measured"},
		"another one": {map[string]float64{"a": 100, "b": 100, "c": 7}, "row c, with 7 instructions, is not recorded\nif this is as it should be, record it: RECORD\n", ""},
	} {
		var out bytes.Buffer
		err := compareCosts(&out, recorded, &costs{Instructions: tt.now}, hotRefused, "RECORD")
		if got := withoutTable(out.String()); got != tt.out || tt.refused == "" && err != nil || tt.refused != "" && (err == nil || err.Error() != tt.refused) {
			t.Errorf("%s: %q, %v, want %q, %q", name, got, err, tt.out, tt.refused)
		}
	}
}

// withoutTable returns the lines that are not indented.
func withoutTable(text string) string {
	return strings.Join(slices.DeleteFunc(strings.SplitAfter(text, "\n"), func(l string) bool { return strings.HasPrefix(l, " ") }), "")
}

// TestHotFunctions: what the test itself executes is in one line, and small functions are in another one.
func TestHotFunctions(t *testing.T) {
	var out bytes.Buffer
	writeHotFunctions(&out, &steps.Region{Name: "mlx5/x", Functions: map[string]float64{
		"github.com/goverbs/goverbs/uverbs.(*QP).PostSend": 70, "github.com/goverbs/goverbs/uverbs.TestHotPaths.func1": 2,
		"github.com/goverbs/goverbs/uverbs.(*hotRing).hotPaths.func2": 7.5, "runtime.memmove": 20, "runtime.small": 0.5,
	}})
	const want = `mlx5/x                          100.0
      70.0 uverbs.(*QP).PostSend
      20.0 runtime.memmove
       9.5 the loop that calls
       0.5 others
`
	if out.String() != want {
		t.Errorf("printed\n%swant\n%s", out.String(), want)
	}
}
