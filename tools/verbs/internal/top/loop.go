package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/tools/verbs/internal/terminal"
)

// Options are what a user asks for.
type Options struct {
	Interval time.Duration
	Once     bool      // Once prints one screen as text.
	JSON     bool      // JSON prints a [Report] for each reading.
	NoColour bool      // NoColour leaves out colours.
	Record   io.Writer // Record gets each reading; nil for none.
	Replay   *Record   // Replay has the readings; nil reads them of the kernel.
	Reader   *Reader
}

// source makes readings.
type source struct {
	Options
	ahead *Reading // read of the record, and not shown yet
	step  bool     // the user wants the next reading, and no more
}

// next returns a reading.
func (s *source) next(w Wants) (*Reading, error) {
	if s.Replay != nil {
		v := s.ahead
		s.ahead = nil
		var err error
		if v == nil {
			v, err = s.Replay.Next()
		}
		if err == nil {
			s.ahead, err = s.Replay.Next()
		}
		if err == io.EOF && v != nil {
			err = nil
		}
		return v, err
	}
	v, err := s.Reader.Read(w)
	if err != nil || s.Record == nil {
		return v, err
	}
	line, err := json.Marshal(v)
	if err == nil {
		_, err = s.Record.Write(append(line, '\n'))
	}
	return v, err
}

// answer is what a reading has come to.
type answer struct {
	*Reading
	err error
}

// read makes a reading in another goroutine, since the kernel may wait for the firmware of a device. The one before it
// must have been received.
func (s *source) read(w Wants) <-chan answer {
	c := make(chan answer, 1)
	go func() {
		v, err := s.next(w)
		c <- answer{v, err}
	}()
	return c
}

// wait returns the time from a reading to the next one, and false if there is none.
func (s *source) wait(last *Reading) (time.Duration, bool) {
	if s.Replay == nil {
		return s.Interval, true
	}
	if s.ahead == nil {
		return 0, false
	}
	return time.Duration(s.ahead.Elapsed-last.Elapsed) * time.Microsecond, true
}

// Run shows readings until the context ends, the user quits, or, without a terminal, the record ends.
func Run(ctx context.Context, o Options, out *terminal.Writer) error {
	s := &source{Options: o}
	m := &Model{Interval: o.Interval, Replay: o.Replay != nil, ASCII: !utf8Locale(os.Getenv)}
	if !o.Once && !o.JSON && out.IsTerminal() && os.Getenv("TERM") != "dumb" {
		return s.live(ctx, m, out)
	}
	return s.print(ctx, m, out)
}

// utf8Locale reports whether text is in UTF-8, which is so if the environment does not say.
func utf8Locale(env func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := strings.ToLower(env(name)); v != "" {
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return true
}

// print prints readings as text or JSON.
func (s *source) print(ctx context.Context, m *Model, out *terminal.Writer) error {
	stopped := func() error {
		if s.Once {
			return fmt.Errorf("top: %w", context.Cause(ctx))
		}
		return nil
	}
	for {
		var a answer
		select {
		case <-ctx.Done():
			return stopped()
		case a = <-s.read(Wants{Objects: !s.Once || m.Count > 0, Now: s.Once}):
		}
		v, err := a.Reading, a.err
		if err != nil {
			return err
		}
		m.Next(v)
		delay, more := s.wait(v)
		last := m.Count > 1 && s.Replay == nil || !more
		switch { // there is no rate after the first reading, unless that is all
		case s.Once && !last, m.Count == 1 && more:
		case s.JSON:
			err = json.NewEncoder(out).Encode(m.Report())
		default:
			x := out.Text()
			x.Colours = x.Colours && !s.NoColour
			width, _ := out.Size()
			for _, l := range m.Render(width, 0) {
				l.Paint(x)
				fmt.Fprintln(x)
			}
			if !s.Once {
				fmt.Fprintln(x)
			}
			err = x.Print()
		}
		if err != nil || !more || s.Once && last {
			return err
		}
		if s.Replay != nil { // the pace is for a terminal
			delay = 0
		}
		select {
		case <-ctx.Done():
			return stopped()
		case <-time.After(delay):
		}
	}
}

// live draws readings on a terminal, and obeys its keys.
func (s *source) live(ctx context.Context, m *Model, out *terminal.Writer) (err error) {
	screen, err := out.Screen()
	if err != nil {
		return err
	}
	defer screen.Leave() // also before a panic is printed
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGCONT, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	sent := make(chan []byte)
	in := os.Stdin
	go func() { // ends with the process: a read of a terminal cannot be stopped
		for {
			b := make([]byte, 256)
			n, err := in.Read(b)
			if err != nil {
				close(sent)
				return
			}
			sent <- b[:n]
		}
	}()
	x := out.Text()
	x.Colours = x.Colours && !s.NoColour
	timer := time.NewTimer(0)
	var rest []byte // of a key
	var late <-chan time.Time
	due := time.Now()
	var answers <-chan answer // of the reading that is under way; nil if there is none
	var begun time.Time       // when it began
	var slow <-chan time.Time
	again := false // a reading is due after it
	for away := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case b, ok := <-sent:
			if !ok {
				return nil // the terminal has gone
			}
			var pressed []string
			pressed, rest = terminal.Keys(append(rest, b...))
			late = nil
			if terminal.IsEsc(rest) {
				late = time.After(50 * time.Millisecond)
			}
			for _, key := range pressed {
				s.press(m, screen, timer, &due, key)
			}
		case <-late:
			rest, late = nil, nil
			m.Key("esc")
		case sig := <-signals:
			switch sig {
			case syscall.SIGHUP:
				return nil
			case syscall.SIGQUIT: // it prints where all goroutines are
				screen.Leave()
				away = true
				signal.Reset(syscall.SIGQUIT)
				if err := unix.Kill(os.Getpid(), unix.SIGQUIT); err != nil {
					return err
				}
			case syscall.SIGTSTP:
				screen.Leave()
				away = true
				if err := unix.Kill(os.Getpid(), unix.SIGSTOP); err != nil {
					return err
				}
			case syscall.SIGCONT:
				away = false
				if err := screen.Enter(); err != nil {
					return err
				}
			default:
				screen.Redraw()
			}
		case <-timer.C:
			switch {
			case answers != nil:
				again = true
			case !m.Paused || s.step:
				answers, begun, again = s.read(s.wants(m)), time.Now(), false
				slow = time.After(time.Second)
			}
			continue
		case <-slow:
			m.Waits = begun
		case a := <-answers:
			answers, slow, m.Waits, s.step = nil, nil, time.Time{}, false
			if err := s.advance(m, a, timer, &due); err != nil {
				return err
			}
			if again && !m.Ended && !m.Paused {
				timer.Reset(0)
			}
		}
		if m.Quit {
			return nil
		}
		if away { // until SIGCONT
			continue
		}
		width, height := out.Size()
		var lines []terminal.Escaped
		for _, l := range m.Render(width, height) {
			l.Paint(x)
			lines = append(lines, x.Take())
		}
		if err := screen.Draw(lines[:min(len(lines), height)]); err != nil {
			return err
		}
	}
}

// press does what a key is for.
func (s *source) press(m *Model, screen *terminal.Screen, timer *time.Timer, due *time.Time, key string) {
	paused, page := m.Paused, m.page
	switch {
	case key == "redraw":
		screen.Redraw()
	case key == "n" && !m.typing && m.Replay && !m.Ended:
		m.Paused, s.step = true, true
		timer.Reset(0)
	default:
		m.Key(key)
	}
	if paused && !m.Paused || m.page == pageQP && page != pageQP { // a QP is shown at once
		*due = time.Now()
		timer.Reset(0)
	}
}

// advance shows a reading, and sets the time of the next one.
func (s *source) advance(m *Model, a answer, timer *time.Timer, due *time.Time) error {
	switch {
	case errors.Is(a.err, io.EOF):
		m.Ended = true
		return nil
	case a.err != nil:
		return a.err
	}
	m.Next(a.Reading)
	delay, more := s.wait(a.Reading)
	m.Ended, m.cut = !more, s.Replay != nil && s.Replay.cut
	*due = due.Add(delay)
	if behind := time.Until(*due); behind < 0 || m.Paused {
		*due = time.Now().Add(delay)
	}
	timer.Reset(time.Until(*due))
	if m.Ended || m.Paused {
		timer.Stop()
	}
	return nil
}

// wants adds what a record has to have.
func (s *source) wants(m *Model) Wants {
	w := m.Wants()
	w.Objects = w.Objects || s.Record != nil
	return w
}
