package source

import (
	"bufio"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// read returns the text of a file of the checkout.
func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	must(t, err)
	return string(b)
}

// TestCommands checks that the commands in the README exist.
func TestCommands(t *testing.T) {
	readme := read(t, "README.md")
	targets := map[string]bool{}
	for s := bufio.NewScanner(strings.NewReader(read(t, "Makefile"))); s.Scan(); {
		if name, _, ok := strings.Cut(s.Text(), ":"); ok && !strings.HasPrefix(name, "\t") {
			for n := range strings.FieldsSeq(name) {
				targets[n] = true
			}
		}
	}
	for _, want := range []string{"demo", "demo-vm", "test", "matrix"} {
		if !targets[want] || !strings.Contains(readme, "make "+want) {
			t.Errorf("make %s is not in both the Makefile and the README", want)
		}
	}
}

// TestReadmeLength keeps the README short enough to be read in five minutes.
func TestReadmeLength(t *testing.T) {
	const most = 1500
	if n := len(strings.Fields(read(t, "README.md"))); n > most {
		t.Errorf("README.md has %d words, more than %d", n, most)
	}
}

// TestPrograms checks that the programs to copy are short, and linked from the README.
func TestPrograms(t *testing.T) {
	const most, store = 60, 150
	if n := strings.Count(read(t, "test/kv/main.go"), "\n"); n > store {
		t.Errorf("test/kv/main.go has %d lines, more than %d", n, store)
	}
	readme := read(t, "README.md")
	for _, program := range []string{"test/http/main.go", "test/grpc/example/main.go", "test/valkey/example/main.go"} {
		if n := strings.Count(read(t, program), "\n"); n >= most {
			t.Errorf("%s has %d lines, want fewer than %d", program, n, most)
		}
		if !strings.Contains(readme, "("+program+")") {
			t.Errorf("README.md does not link %s", program)
		}
	}
}

// TestReadme checks that the Go programs in the README are examples, which tests compile and run, or
// the whole program test/hello, which has a test.
func TestReadme(t *testing.T) {
	examples := read(t, "uverbs/example_test.go") + read(t, "cm/example_test.go")
	hello, whole := read(t, "test/hello/main.go"), false
	blocks := strings.Split(read(t, "README.md"), "```go\n")[1:]
	if len(blocks) == 0 {
		t.Fatal("the README has no Go program")
	}
	for _, b := range blocks {
		code, _, ok := strings.Cut(b, "```")
		if code == hello {
			whole = true
			continue
		}
		if !ok || !strings.Contains(examples, code) {
			t.Errorf("this program in the README is in no example_test.go of uverbs or cm, and is not test/hello/main.go:\n%s", code)
		}
	}
	if !whole {
		t.Error("the README does not have the program test/hello/main.go")
	}
}

// link matches a link in Markdown, with its target.
var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// TestLinks checks that every link from a page to a file of the repository, or to a heading in a page,
// has a target.
func TestLinks(t *testing.T) {
	pages, links := 0, 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		pages++
		for _, m := range link.FindAllSubmatch(text, -1) {
			target, heading, _ := strings.Cut(string(m[1]), "#")
			if strings.Contains(target, ":") {
				continue // another site
			}
			links++
			file := path
			if target != "" {
				file = filepath.Join(filepath.Dir(path), target)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: link to %s: %v", path, m[1], err)
			} else if heading != "" && !hasHeading(t, file, heading) {
				t.Errorf("%s: link to %s: no such heading", path, m[1])
			}
		}
		return nil
	})
	must(t, err)
	if pages < 5 || links < 10 {
		t.Errorf("found only %d links in %d pages", links, pages)
	}
}

// notInAnchor matches what the anchor of a heading leaves out.
var notInAnchor = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)

// hasHeading reports whether a Markdown page has a heading with an anchor.
func hasHeading(t *testing.T, page, anchor string) bool {
	t.Helper()
	text, err := os.ReadFile(page)
	must(t, err)
	for line := range bytes.Lines(text) {
		if !bytes.HasPrefix(line, []byte("#")) {
			continue
		}
		heading := strings.ToLower(strings.TrimSpace(strings.TrimLeft(string(line), "#")))
		if strings.ReplaceAll(notInAnchor.ReplaceAllString(heading, ""), " ", "-") == anchor {
			return true
		}
	}
	return false
}
