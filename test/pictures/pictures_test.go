package main

import (
	"encoding/xml"
	"errors"
	"html"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// read returns the text of a file.
func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// write writes a file.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// wellFormed checks that an SVG is XML.
func wellFormed(t *testing.T, name, svg string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

// TestCurrent checks that the diagrams are drawn from the texts beside them.
func TestCurrent(t *testing.T) {
	texts, err := filepath.Glob("*.txt")
	if err != nil || len(texts) < 4 {
		t.Fatalf("texts: %v, %v", texts, err)
	}
	to := t.TempDir()
	if err := drawAll(to); err == nil || !strings.Contains(err.Error(), "root of the repository") {
		t.Errorf("a folder without texts: error %v", err)
	}
	for _, path := range texts {
		write(t, filepath.Join(to, path), read(t, path))
	}
	if err := drawAll(to); err != nil {
		t.Fatal(err)
	}
	for _, path := range texts {
		svg := strings.TrimSuffix(path, ".txt") + ".svg"
		want := read(t, filepath.Join(to, svg))
		wellFormed(t, svg, want)
		if got := read(t, svg); got != want {
			t.Errorf("%s is not what %s says: make pictures", svg, path)
		}
	}
	write(t, filepath.Join(to, "a.txt"), "width 100\n\noval")
	if err := drawAll(to); err == nil || !strings.Contains(err.Error(), `a.txt:3: "oval"`) {
		t.Errorf("a wrong text: error %v", err)
	}
}

// TestArrows: an arrow is straight between the edges of two boxes, on either side, and may have a place across.
func TestArrows(t *testing.T) {
	const boxes = "width 500\nbox plain a 10 10 100 30: A\nbox plain b 10 100 50 30: B\nbox plain c 200 20 50 40: C <&>\n"
	for arrow, want := range map[string]string{
		"arrow a b":       `d="M35 40L35 100"`,
		"arrow b a":       `d="M35 100L35 40"`,
		"arrow a b 20":    `d="M20 40L20 100"`,
		"option a c":      `d="M110 30L200 30" stroke="#334155" stroke-width="1.5" marker-end="url(#head)" stroke-dasharray="6 4"`,
		"both c a 25: hm": `d="M200 25L110 25" stroke="#334155" stroke-width="1.5" marker-end="url(#head)" marker-start="url(#head)"`,
	} {
		svg, err := draw(boxes + arrow)
		if err != nil || !strings.Contains(svg, want) || !strings.Contains(svg, "C &lt;&amp;&gt;") {
			t.Errorf("%s: %v, want %s in\n%s", arrow, err, want, svg)
		}
	}
}

// TestErrors checks that a wrong text is refused with its line and what is wrong.
func TestErrors(t *testing.T) {
	const start = "width 300\nbox plain a 10 10 100 30: A\nbox plain b 150 100 50 30: B\nlane plain l 50: L\nlane plain m 100: M\n"
	for line, want := range map[string]string{
		"circle a":                         `6: "circle a": keyword "circle", must be one of`,
		"box plain c 1 2 3":                "5 fields after box, must be 6",
		"box pink c 1 2 30 40: x":          `colour "pink" is not known`,
		"box plain a 1 2 30 40: x":         `name "a" is taken`,
		"box plain c 1 -2 30 40: x":        `number "-2", must be 0 to 2000`,
		"box plain c 1 2 3O 40: x":         `number "3O"`,
		"box plain c 1 2 30 20: x|y":       "2 lines do not fit in a height of 20",
		"box plain c 1 2 30 40: too long":  "the words need a width of 59, there is room for 22",
		"arrow a c":                        `"c" is no box`,
		"arrow a l":                        `"l" is no box`,
		"send l a":                         `"a" is no lane`,
		"arrow a b":                        "one box must be above or beside the other",
		"send l m: longer than the way is": "there is room for 42",
		"note":                             "0 fields after note, must be 1",
	} {
		if _, err := draw(start + line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %s", line, err, want)
		}
	}
	if _, err := draw("note l"); err == nil || !strings.Contains(err.Error(), "the width must come first") {
		t.Errorf("without a width: error %v", err)
	}
	if _, err := draw("width 100\nbox plain a 1 1 50 30: A\nbox plain b 1 50 50 30: B\narrow a b 60"); err == nil || !strings.Contains(err.Error(), "place 60, must be 1 to 51") {
		t.Errorf("an arrow beside its boxes: error %v", err)
	}
}

// TestRecord records a session: commands of one shell, a process in the background, output of both kinds.
func TestRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.sh")
	script := "# a comment\nA=1\n\necho \"<$A>\" 'it''s' >&2\necho late &\nprintf '%120d\\n' 7\n"
	write(t, path, script)
	if err := recordFile(path); err != nil {
		t.Fatal(err)
	}
	svg := read(t, strings.TrimSuffix(path, ".sh")+".svg")
	wellFormed(t, path, svg)
	rest := svg
	for _, want := range []string{
		">$ A=1<", html.EscapeString(`$ echo "<$A>" 'it''s' >&2`) + "<", ">&lt;1&gt; its<", ">$ echo late &amp;<", ">late<", ">$ printf &#39;%120d\\n&#39; 7<", strings.Repeat(" ", columns) + "<", strings.Repeat(" ", 19) + "7<",
	} {
		_, after, ok := strings.Cut(rest, want)
		if !ok {
			t.Fatalf("no %q, or not in this order, in\n%s", want, svg)
		}
		rest = after
	}
	if strings.Contains(svg, "comment") {
		t.Errorf("a comment is shown in\n%s", svg)
	}
	if _, err := record("echo before\nfalse\necho after"); err == nil || !strings.Contains(err.Error(), "before") || strings.Contains(err.Error(), "after") {
		t.Errorf("a command that fails: error %v", err)
	}
}

// TestSession checks that the picture of the README shows the commands of its script, in order.
func TestSession(t *testing.T) {
	rest, commands := read(t, "session.svg"), 0
	wellFormed(t, "session.svg", rest)
	for line := range strings.Lines(read(t, "session.sh")) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		commands++
		_, after, ok := strings.Cut(rest, ">$ "+html.EscapeString(line)+"<")
		if !ok {
			t.Errorf("session.svg does not show %q, or not in this order: make session", line)
			continue
		}
		rest = after
	}
	if commands < 3 {
		t.Errorf("session.sh has %d commands", commands)
	}
}
