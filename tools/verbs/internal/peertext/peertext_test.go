package peertext

import (
	"strconv"
	"strings"
	"testing"
	"unicode"
)

func TestQuote(t *testing.T) {
	long := strings.Repeat("a", Max)
	for text, want := range map[string]string{
		"":                   `""`,
		"out of memory":      `"out of memory"`,
		`--gid is "x"`:       `"--gid is \"x\""`,
		"a\nb":               `"a\nb"`,
		"\x1b[2J\x1b]0;x\a":  `"\x1b[2J\x1b]0;x\a"`,
		"\u009b2J":           `"\u009b2J"`, // the same control sequence in one character
		"\u202egnp.exe":      `"\u202egnp.exe"`,
		"\xff\xfe":           `"\xff\xfe"`,
		"10 µs":              `"10 µs"`,
		long:                 `"` + long + `"`,
		long + "b":           `"` + long + `"... (257 bytes)`,
		long[1:] + "µ":       `"` + long[1:] + `\xc2"... (257 bytes)`,
		long + long + "\x1b": `"` + long + `"... (513 bytes)`,
	} {
		if got := Quote(text); got != want {
			t.Errorf("%q becomes %s, want %s", text, got, want)
		}
		if got := Quote([]byte(text)); got != want {
			t.Errorf("the bytes of %q become %s, want %s", text, got, want)
		}
	}
}

// FuzzQuote: whatever comes, what is shown is printable, bounded in length, and says what came.
func FuzzQuote(f *testing.F) {
	f.Add("\x1b[31m")
	f.Add(strings.Repeat("\x00", 1000))
	f.Fuzz(func(t *testing.T, text string) {
		got := Quote(text)
		if i := strings.IndexFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
			t.Errorf("%q has something at byte %d that is not printable", got, i)
		}
		if most := 2 + 10*Max + len("... (9223372036854775807 bytes)"); len(got) > most {
			t.Errorf("%d bytes become %d, want %d at most", len(text), len(got), most)
		}
		quoted, err := strconv.QuotedPrefix(got)
		if err != nil {
			t.Fatalf("%s does not begin with a string: %v", got, err)
		}
		if back, err := strconv.Unquote(quoted); err != nil || !strings.HasPrefix(text, back) || len(back) != min(len(text), Max) {
			t.Errorf("%q becomes %s, which says %q (%v)", text, got, back, err)
		}
	})
}
