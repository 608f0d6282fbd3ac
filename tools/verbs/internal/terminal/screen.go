package terminal

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Screen is a terminal of which a program draws all lines, and reads each key. It is for one goroutine.
type Screen struct {
	in, out *os.File
	saved   unix.Termios
	lines   []Escaped // that are on the terminal; nil if that is not known
}

// Sequences of the terminal: the other screen without cursor and line breaks, and back.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
	leaveScreen = plain + "\x1b[?7h\x1b[?25h\x1b[?1049l"
)

// Screen takes over a terminal until Leave, with standard input for its keys. Ctrl-C and Ctrl-Z still send signals.
func (t *Writer) Screen() (*Screen, error) {
	in, out := os.Stdin, t.w.(*os.File)
	saved, err := unix.IoctlGetTermios(int(in.Fd()), unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("standard input is no terminal, which the keys come from: %w", err)
	}
	s := &Screen{in: in, out: out, saved: *saved}
	if err := s.Enter(); err != nil {
		s.Leave() // Enter may have set the modes
		return nil, err
	}
	return s, nil
}

// Enter takes the terminal over again after Leave, or after another program has used it.
func (s *Screen) Enter() error {
	raw := s.saved
	raw.Iflag &^= unix.ICRNL | unix.IXON
	raw.Lflag &^= unix.ECHO | unix.ICANON | unix.IEXTEN
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	raw.Cc[unix.VQUIT] = 0 // would end the program without Leave
	if err := unix.IoctlSetTermios(int(s.in.Fd()), unix.TCSETS, &raw); err != nil {
		return fmt.Errorf("set the terminal: %w", err)
	}
	s.lines = nil
	_, err := s.out.WriteString(enterScreen)
	return err
}

// Leave restores the terminal.
func (s *Screen) Leave() {
	s.out.WriteString(leaveScreen) // on the way out: an error is not worth a word
	unix.IoctlSetTermios(int(s.in.Fd()), unix.TCSETS, &s.saved)
}

// Size returns the number of columns and lines of the terminal; 80 and 24 if it does not say.
func (t *Writer) Size() (width, height int) {
	if f, ok := t.w.(*os.File); ok {
		size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
		if err == nil && size.Col > 0 && size.Row > 0 {
			return int(size.Col), int(size.Row)
		}
	}
	return 80, 24
}

// Redraw has the next Draw draw all lines.
func (s *Screen) Redraw() { s.lines = nil }

var oneLine = strings.NewReplacer("\n", `\u000a`, "\t", `\u0009`)

// Draw shows lines, and sends those that have changed. It escapes newlines and tabs, which would move
// the rest of a line.
func (s *Screen) Draw(lines []Escaped) error {
	var b []byte
	if len(s.lines) != len(lines) {
		s.lines = nil
		b = append(b, "\x1b[2J"...)
	}
	for i, l := range lines {
		if s.lines == nil || s.lines[i] != l {
			b = fmt.Appendf(b, "\x1b[%d;1H%s%s\x1b[K", i+1, oneLine.Replace(string(l)), plain)
		}
	}
	s.lines = lines
	if len(b) == 0 {
		return nil
	}
	_, err := s.out.Write(b)
	return err
}

// keys are pairs of what a key sends and its name.
var keys = [...]string{
	"\x1b[A", "up", "\x1b[B", "down", "\x1b[C", "right", "\x1b[D", "left", "\x1bOA", "up", "\x1bOB", "down", "\x1bOC", "right", "\x1bOD", "left",
	"\x1b[5~", "pgup", "\x1b[6~", "pgdn", "\x1b[H", "home", "\x1b[F", "end", "\x1bOH", "home", "\x1bOF", "end", "\x1b[1~", "home", "\x1b[4~", "end",
	"\x1b[Z", "backtab", "\t", "tab", "\r", "enter", "\n", "enter", "\x7f", "backspace", "\b", "backspace", "\f", "redraw", "\x1b\x1b", "esc",
}

// Keys returns the keys that a terminal has sent: printable characters, and the names of others. A sequence whose end
// has not come is returned as rest. Unknown ones are left out.
func Keys(sent []byte) (pressed []string, rest []byte) {
	for len(sent) > 0 {
		n := 1
		switch {
		case sent[0] == 0x1b:
			if n = sequence(sent); n == 0 {
				return pressed, sent
			}
		case !utf8.FullRune(sent):
			return pressed, sent
		default:
			_, n = utf8.DecodeRune(sent)
		}
		key := string(sent[:n])
		if r, _ := utf8.DecodeRuneInString(key); strconv.IsGraphic(r) && r != utf8.RuneError {
			pressed = append(pressed, key)
		}
		for i := 0; i < len(keys); i += 2 {
			if keys[i] == key {
				pressed = append(pressed, keys[i+1])
			}
		}
		sent = sent[n:]
	}
	return pressed, nil
}

// IsEsc reports whether a rest may be the key esc, which sends the beginning of other keys and no end.
func IsEsc(rest []byte) bool { return len(rest) > 0 && rest[0] == 0x1b }

// sequence returns the length of the sequence that begins with ESC, or 0 if its end has not come.
func sequence(sent []byte) int {
	switch {
	case len(sent) == 1:
		return 0
	case sent[1] == 'O' && len(sent) == 2:
		return 0
	case sent[1] == 'O':
		return 3
	case sent[1] != '[':
		return 2
	}
	for i, c := range sent[2:] {
		if c >= '@' && c <= '~' {
			return i + 3
		}
	}
	if len(sent) > 16 {
		return len(sent) // none that a key sends
	}
	return 0
}
