package pages

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../../.."

// read returns a file of the checkout.
func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestCurrent: the tables of the page are those that the documentation of the packages makes.
func TestCurrent(t *testing.T) {
	want, err := render(root)
	if err != nil {
		t.Fatal(err)
	}
	if read(t, page) != want {
		t.Errorf("%s is not current: go run ./test/run readme", page)
	}
}

// TestEveryFunction: every function of rdma-core has either a counterpart, or a reason why there is no counterpart.
func TestEveryFunction(t *testing.T) {
	of, err := counterparts(root)
	if err != nil {
		t.Fatal(err)
	}
	titles, names := lists()
	functions := 0
	for _, title := range titles {
		if !strings.HasSuffix(title, ": functions") {
			continue
		}
		reasons, without := absent(names[title])
		why := map[string]string{}
		for _, r := range reasons {
			for _, f := range without[r] {
				if why[f] != "" {
					t.Errorf("%s has two reasons: %s; %s", f, why[f], r)
				}
				why[f] = r
			}
		}
		for _, f := range names[title] {
			functions++
			switch {
			case len(of[f]) == 0 && why[f] == "":
				t.Errorf("%s is in no doc comment in parentheses, and absent.txt has no reason", f)
			case len(of[f]) > 0 && why[f] != "":
				t.Errorf("%s is %s, but absent.txt says: %s", f, of[f], why[f])
			}
		}
	}
	if functions < 400 {
		t.Errorf("names.txt has %d functions", functions)
	}
}

// TestAbsentPatterns: everything in absent.txt is a function of rdma-core, and the names in Go that it mentions exist.
func TestAbsentPatterns(t *testing.T) {
	exist := map[string]bool{}
	for _, pkg := range append(slices.Clone(packages), "cm") {
		all, err := places(root, pkg)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range all {
			exist[p.name] = true
		}
	}
	for line := range strings.Lines(absentText) {
		if pattern, ok := strings.CutPrefix(line, "\t"); ok {
			for p := range strings.FieldsSeq(pattern) {
				if prefix, _, _ := strings.Cut(p, "*"); !strings.Contains(namesText, "\n"+prefix) {
					t.Errorf("absent.txt: rdma-core has no %s", p)
				}
			}
			continue
		}
		for i, name := range strings.Split(line, "`") {
			if i%2 == 1 && !exist[name] && name != "net.Resolver" {
				t.Errorf("absent.txt: there is no %s: %s", name, line)
			}
		}
	}
}

// TestPrograms: the parts of the programs on the page are the files.
func TestPrograms(t *testing.T) {
	text := read(t, page)
	for language, file := range map[string]string{"c": "test/bench/rdmacore/pingpong.c", "go": "test/pingpong/main.go"} {
		var parts []string
		for _, rest := range strings.Split(text, "```"+language+"\n")[1:] {
			part, _, _ := strings.Cut(rest, "```")
			parts = append(parts, strings.TrimSuffix(part, "\n"))
		}
		want := read(t, file)
		for _, part := range parts {
			var ok bool
			if want, ok = strings.CutPrefix(strings.TrimLeft(want, "\n"), part); !ok {
				t.Fatalf("%s does not go on with this part of the page:\n%s\nbut with:\n%s", file, part, want)
			}
		}
		if want != "\n" || len(parts) != 4 {
			t.Errorf("%s has more than the %d parts on the page:\n%s", file, len(parts), want)
		}
	}
}

// TestErrors: every exported error is in the list of the documentation of its package.
func TestErrors(t *testing.T) {
	for _, pkg := range errorPackages {
		list, err := errorList(root, pkg)
		if err != nil {
			t.Fatal(err)
		}
		var listed strings.Builder
		for _, e := range list {
			listed.WriteString(e.errors + " ")
		}
		found, err := exportedErrors(pkg)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) < 3 {
			t.Errorf("%s has only the errors %s", pkg, found)
		}
		for _, name := range found {
			if !strings.Contains(listed.String(), "["+name+"]") {
				t.Errorf("the section Errors of %s/doc.go does not have %s", pkg, name)
			}
		}
	}
}

var (
	errorVar  = regexp.MustCompile(`(?m)^(?:\t|var )(Err[A-Z]\w*)(?: error)? += `)
	errorType = regexp.MustCompile(`(?m)^type ([A-Z]\w*Error)\b`)
	errorFunc = regexp.MustCompile(`(?m)^func \(\w+ \*?([A-Z]\w*)\) Error\(\) string`)
)

// exportedErrors returns the error variables and types of a package that programs can use.
func exportedErrors(pkg string) (found []string, err error) {
	files, err := filepath.Glob(filepath.Join(root, pkg, "*.go"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for _, re := range []*regexp.Regexp{errorVar, errorType, errorFunc} {
			for _, m := range re.FindAllSubmatch(text, -1) {
				found = append(found, string(m[1]))
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}
