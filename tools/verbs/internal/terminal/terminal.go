// Package terminal writes all output of verbs to standard output and standard error. Text comes
// from peers, devices, files and the kernel, and a terminal obeys control characters in it:
// whatever is not printable is escaped here, at the bottom, so that no command can forget it.
// Colours and cursor movements of verbs itself have methods.
package terminal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Stdout and Stderr are the standard output and the standard error of the process.
var (
	Stdout = New(os.Stdout)
	Stderr = New(os.Stderr)
)

// Writer writes printable text, newlines and tabs. Any other character is written as in a JSON string, such as
// \u001b, so that JSON stays valid, and a byte that is not UTF-8 as \x9b. It is safe for concurrent use.
type Writer struct {
	w   io.Writer
	tty bool

	mu   sync.Mutex
	rest []byte // guarded by mu; the beginning of a character whose end is in the next Write
}

// Raw returns the standard output for the bytes of a protocol, which a terminal must not get.
func Raw() (*os.File, error) {
	if Stdout.IsTerminal() {
		return nil, errors.New("standard output is a terminal, allowed: a pipe or socket")
	}
	return os.Stdout, nil
}

// New returns a Writer that writes to w.
func New(w io.Writer) *Writer {
	t := &Writer{w: w}
	if f, ok := w.(*os.File); ok {
		_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
		t.tty = err == nil
	}
	return t
}

// IsTerminal reports whether the text goes to a terminal.
func (t *Writer) IsTerminal() bool { return t.tty }

// Write implements io.Writer.
func (t *Writer) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var text []byte
	text, t.rest = escape(nil, append(t.rest, b...))
	if _, err := t.w.Write(text); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Flush writes what the last Write has left: the beginning of a character without its end.
func (t *Writer) Flush() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := invalid(nil, t.rest)
	t.rest = nil
	_, err := t.w.Write(text)
	return err
}

// Rewrite replaces the line that the cursor is in, on a terminal.
func (t *Writer) Rewrite(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text, rest := escape([]byte("\r\x1b[K"), fmt.Appendf(nil, format, args...))
	t.w.Write(invalid(text, rest)) // progress: an error is not worth a word
}

// Colour is a colour of text.
type Colour string

// The colours, as a terminal knows them, and what is used like one.
const (
	Red     Colour = "\x1b[31m"
	Green   Colour = "\x1b[32m"
	Yellow  Colour = "\x1b[33m"
	Bold    Colour = "\x1b[1m"
	Reverse Colour = "\x1b[7m"
	plain          = "\x1b[0m"
)

// Text is text for a Writer that may have colours. It implements io.Writer.
type Text struct {
	Colours bool // Colours says that the text may have colours.

	to *Writer
	b  []byte
}

// Text begins a text. It has colours if the Writer is a terminal that shows them.
func (t *Writer) Text() *Text {
	return &Text{to: t, Colours: t.tty && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

// Write implements io.Writer. A character must be whole.
func (x *Text) Write(b []byte) (int, error) {
	var rest []byte
	x.b, rest = escape(x.b, b)
	x.b = invalid(x.b, rest)
	return len(b), nil
}

// Paint adds text in a colour.
func (x *Text) Paint(c Colour, text string) {
	if !x.Colours {
		io.WriteString(x, text)
		return
	}
	x.b = append(x.b, c...)
	io.WriteString(x, text)
	x.b = append(x.b, plain...)
}

// Escaped is text in which nothing controls a terminal but colours, newlines and tabs.
type Escaped string

// Take returns the text, and begins the next one.
func (x *Text) Take() Escaped {
	text := Escaped(x.b)
	x.b = x.b[:0]
	return text
}

// Print writes the text.
func (x *Text) Print() error {
	x.to.mu.Lock()
	defer x.to.mu.Unlock()
	_, err := x.to.w.Write(x.b)
	return err
}

// escape appends text to dst, in which everything that is not printable is escaped. It returns the beginning of a
// character at the end of text as rest.
func escape(dst, text []byte) (escaped, rest []byte) {
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		case r == '\n' || r == '\t':
			dst = append(dst, byte(r))
		case r == utf8.RuneError && n == 1 && !utf8.FullRune(text):
			return dst, append([]byte(nil), text...)
		case r == utf8.RuneError && n == 1:
			dst = invalid(dst, text[:1])
		case strconv.IsGraphic(r):
			dst = append(dst, text[:n]...)
		case r < 1<<16:
			dst = fmt.Appendf(dst, `\u%04x`, r)
		default:
			high, low := utf16.EncodeRune(r)
			dst = fmt.Appendf(dst, `\u%04x\u%04x`, high, low)
		}
		text = text[n:]
	}
	return dst, nil
}

// invalid appends bytes that are not UTF-8.
func invalid(dst, b []byte) []byte {
	for _, c := range b {
		dst = fmt.Appendf(dst, `\x%02x`, c)
	}
	return dst
}
