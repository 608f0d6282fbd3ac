package terminal

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"unicode/utf8"
)

// raw finds what a terminal might obey.
func raw(text string) string {
	for i, r := range text {
		if r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || r == utf8.RuneError && text[i] != 0xef {
			return text[i:min(len(text), i+8)]
		}
	}
	return ""
}

// TestEscape: what a terminal obeys is escaped, and all else is as it was.
func TestEscape(t *testing.T) {
	for text, want := range map[string]string{
		"µs → 1\t2\n":             "µs → 1\t2\n",
		"\x1b]0;pwn\x07":          `\u001b]0;pwn\u0007`,
		"a\rb\bc\x00\x7f":         `a\u000db\u0008c\u0000\u007f`,
		"\u009b31m\x9b":           `\u009b31m\x9b`,
		"\u202eright\u2066":       `\u202eright\u2066`,
		"\U000e0041\u2028 \ufffd": `\udb40\udc41\u2028 ` + "\ufffd",
		"cut \xe2\x86":            `cut \xe2\x86`,
	} {
		var out bytes.Buffer
		w := New(&out)
		io.WriteString(w, text)
		w.Flush()
		if got := out.String(); got != want {
			t.Errorf("%q is written as %q, want %q", text, got, want)
		}
	}
}

// TestSplit: a character may come in parts, as from a buffer that is full.
func TestSplit(t *testing.T) {
	var out bytes.Buffer
	w := New(&out)
	for _, c := range []byte("a → µs \x1b") {
		if n, err := w.Write([]byte{c}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if got, want := out.String(), `a → µs \u001b`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestJSON: a document has the same content after it was written, whatever its strings hold.
func TestJSON(t *testing.T) {
	want := "\x1b\u009b\u202e\x7f\U000e0041\u2028\r→"
	var out bytes.Buffer
	if err := json.NewEncoder(New(&out)).Encode(want); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || got != want || raw(out.String()) != "" {
		t.Errorf("%q is read as %q, want %q: %v", out.String(), got, want, err)
	}
}

// TestColours: colours are the program's own, and text in them is escaped.
func TestColours(t *testing.T) {
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "xterm")
	for _, tty := range []bool{false, true} {
		var out bytes.Buffer
		w := New(&out)
		w.tty = tty
		x := w.Text()
		x.Paint(Red, "bad\x1b[5m")
		io.WriteString(x, " \x9b")
		if err := x.Print(); err != nil {
			t.Fatal(err)
		}
		want := `bad\u001b[5m \x9b`
		if tty {
			want = string(Red) + `bad\u001b[5m` + plain + ` \x9b`
		}
		if got := out.String(); got != want {
			t.Errorf("terminal %t: got %q, want %q", tty, got, want)
		}
	}
}

// TestRewrite: a line that is written again holds no other control character.
func TestRewrite(t *testing.T) {
	var out bytes.Buffer
	New(&out).Rewrite("%s\xe2", "1\r2")
	if got, want := out.String(), "\r\x1b[K"+`1\u000d2\xe2`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// FuzzWrite: no text has a way through, however it is cut.
func FuzzWrite(f *testing.F) {
	f.Add("\x1b]0;x\x07\u009b\x9b", 3)
	f.Add(strings.Repeat("→", 3)+"\xe2\x86", 4)
	f.Fuzz(func(t *testing.T, text string, at int) {
		at = max(0, min(at, len(text)))
		var out bytes.Buffer
		w := New(&out)
		io.WriteString(w, text[:at])
		io.WriteString(w, text[at:])
		w.Flush()
		if bad := raw(out.String()); bad != "" {
			t.Errorf("%q is written as %q: %q", text, out.String(), bad)
		}
	})
}
