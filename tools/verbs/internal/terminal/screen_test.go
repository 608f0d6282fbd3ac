package terminal

import (
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
)

// TestKeys: keys have their names, also when their bytes come one by one; unknown sequences are left out.
func TestKeys(t *testing.T) {
	for _, c := range []struct {
		sent string
		want []string
		rest string
	}{
		{"qä/", []string{"q", "ä", "/"}, ""},
		{"\x1b[A\x1bOB\x1b[5~\x1b[Z\r\x7f\t", []string{"up", "down", "pgup", "backtab", "enter", "backspace", "tab"}, ""},
		{"\x1b", nil, "\x1b"}, {"\x1b[", nil, "\x1b["}, {"\x1b[1", nil, "\x1b[1"}, {"a\xc3", []string{"a"}, "\xc3"},
		{"\x1b[1;5Cx", []string{"x"}, ""}, {"\x1bx", nil, ""}, {"\x01\xff", nil, ""}, {"\x1b[" + strings.Repeat("1;", 20), nil, ""},
	} {
		got, rest := Keys([]byte(c.sent))
		if !slices.Equal(got, c.want) || string(rest) != c.rest {
			t.Errorf("%q is %q and %q, want %q and %q", c.sent, got, rest, c.want, c.rest)
		}
		if want := strings.HasPrefix(c.rest, "\x1b"); IsEsc(rest) != want {
			t.Errorf("the rest %q may be the key esc: %v, want %v", rest, !want, want)
		}
	}
	var all []string
	var rest []byte
	for _, b := range []byte("\x1b[6~k\x1b[B") {
		var some []string
		some, rest = Keys(append(rest, b))
		all = append(all, some...)
	}
	if want := []string{"pgdn", "k", "down"}; !slices.Equal(all, want) {
		t.Errorf("byte by byte the keys are %q, want %q", all, want)
	}
}

// TestDraw: lines that have not changed are not sent again.
func TestDraw(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	s := &Screen{out: w}
	sent := func(lines ...Escaped) string {
		t.Helper()
		if err := s.Draw(lines); err != nil {
			t.Fatal(err)
		}
		w.WriteString("$")
		b := make([]byte, 1000)
		n, err := r.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSuffix(string(b[:n]), "$")
	}
	if got, want := sent("a", "b"), "\x1b[2J\x1b[1;1Ha\x1b[0m\x1b[K\x1b[2;1Hb\x1b[0m\x1b[K"; got != want {
		t.Errorf("the first screen is %q, want %q", got, want)
	}
	if got, want := sent("a", "c"), "\x1b[2;1Hc\x1b[0m\x1b[K"; got != want {
		t.Errorf("the second screen is %q, want %q", got, want)
	}
	if got := sent("a", "c"); got != "" {
		t.Errorf("the same screen is %q, want nothing", got)
	}
	if got, want := sent("a", "b\tc\nd"), "\x1b[2;1H"+`b\u0009c\u000ad`+"\x1b[0m\x1b[K"; got != want {
		t.Errorf("a line with a tab and a newline is %q, want %q", got, want)
	}
}

// TestEnterFails: a terminal that cannot be drawn on keeps its modes.
func TestEnterFails(t *testing.T) {
	_, in := testenv.PTY(t, os.O_RDONLY) // nothing can be written
	defer func(old *os.File) { os.Stdin = old }(os.Stdin)
	os.Stdin = in
	before, err := unix.IoctlGetTermios(int(in.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := New(in).Screen(); err == nil {
		t.Fatalf("a terminal that is only read has the screen %v", s)
	}
	after, err := unix.IoctlGetTermios(int(in.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the modes are %+v (%v), want %+v", after, err, before)
	}
}
