package matrix

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// casesFile maps the cases of other test suites to our tests.
const casesFile = "test/suites/conformance/CASES.md"

// packages are where the tests are that casesFile names, by their last name.
var packages = []string{"test/suites/conformance", "test/suites/interop", "netlinkrdma", "uverbs", "cm", "cm/rdmacm", "test/srd", "test/suites/control"}

// testName is a test's name, with that of its package unless that is conformance.
var testName = regexp.MustCompile(`\b(?:[a-z]+\.)?Test[A-Z]\w*`)

// ourTests returns the names of our tests as casesFile has them.
func ourTests(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, pkg := range packages {
		files, err := filepath.Glob(filepath.Join(root, pkg, "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no tests: %v", pkg, err)
		}
		for _, file := range files {
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			must(t, err)
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && isTest(fn) {
					names[strings.TrimPrefix(filepath.Base(pkg)+".", "conformance.")+fn.Name.Name] = true
				}
			}
		}
	}
	return names
}

// checkCases returns what is wrong with a file of cases. A line has a case and our tests; or a file, how many of its
// cases the line is about, their names, "all" or "the rest", and our tests.
func checkCases(text string, ours map[string]bool) (problems []string) {
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	seen := map[string]bool{}
	cases, missing, wantMissing, wantCases := 0, 0, -1, -1
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		fmt.Sscanf(line, "Missing: %d of %d", &wantMissing, &wantCases)
		if !strings.HasPrefix(line, "|") || strings.HasSuffix(line, "| here |") || strings.HasPrefix(line, "|---|") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if len(cells) != 2 && len(cells) != 4 {
			wrong("%q has neither two cells nor four", line)
			continue
		}
		name, here := cells[0], cells[len(cells)-1]
		names, n := []string{name}, 1
		if len(cells) == 4 {
			names = strings.Split(cells[2], ", ")
			var err error
			if n, err = strconv.Atoi(cells[1]); err != nil || n < 1 || n != len(names) && cells[2] != "all" && cells[2] != "the rest" {
				wrong("%s: %s cases, and the names are %s", name, cells[1], cells[2])
			}
			for i := range names {
				names[i] = name + "." + names[i]
			}
		}
		cases += n
		for _, name := range names {
			if seen[name] {
				wrong("%s is there twice", name)
			}
			seen[name] = true
		}
		tests := testName.FindAllString(here, -1)
		for _, test := range tests {
			if !ours[test] {
				wrong("%s: there is no test %s", name, test)
			}
		}
		switch {
		case here == "missing":
			missing += n
		case strings.HasPrefix(here, "— "): // a reason, which may name tests
		case strings.Join(tests, ", ") != here || here == "":
			wrong("%s: %q is neither tests, nor a reason, nor missing", name, here)
		}
	}
	if missing != wantMissing || cases != wantCases {
		wrong("missing are %d of %d, and the file says %d of %d", missing, cases, wantMissing, wantCases)
	}
	return problems
}

func TestCases(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, casesFile))
	must(t, err)
	for _, p := range checkCases(string(text), ourTests(t)) {
		t.Errorf("%s: %s", casesFile, p)
	}
}

func TestCheckCases(t *testing.T) {
	ours := map[string]bool{"TestA": true, "uverbs.TestB": true}
	const head = "Missing: %d of %d\n\n| case | here |\n|---|---|\n"
	for _, c := range []struct {
		missing, cases int
		rows           string
		want           string // part of the only problem
	}{
		{1, 4, "| a | TestA |\n| b | TestA, uverbs.TestB |\n| c | — no such thing (TestA) |\n| d | missing |\n", ""},
		{0, 1, "| a | TestC |\n", "no test TestC"},
		{0, 1, "| a | TestB |\n", "no test TestB"},
		{0, 1, "| a | — no such thing (TestC) |\n", "no test TestC"},
		{0, 1, "| a | later |\n", "neither"},
		{0, 1, "| a | TestA soon |\n", "neither"},
		{0, 1, "| a | missing |\n", "missing are 1 of 1"},
		{0, 2, "| a | TestA |\n", "missing are 0 of 1"},
		{0, 2, "| a | TestA |\n| a | TestA |\n", "twice"},
		{2, 9, "| f | 2 | a, b | missing |\n| f | 3 | the rest | TestA |\n| g | 4 | all | — no such thing |\n", ""},
		{0, 3, "| f | 3 | a, b | TestA |\n", "3 cases"},
		{0, 3, "| f | 2 | a, b | TestA |\n| f | 1 | a | TestA |\n", "f.a is there twice"},
		{0, 3, "| f | 3 | all | TestC |\n", "no test TestC"},
	} {
		got := checkCases(fmt.Sprintf(head, c.missing, c.cases)+c.rows, ours)
		if c.want == "" && got != nil || c.want != "" && (len(got) != 1 || !slices.ContainsFunc(got, func(p string) bool { return strings.Contains(p, c.want) })) {
			t.Errorf("%s: problems %q, want %q", c.rows, got, c.want)
		}
	}
}
