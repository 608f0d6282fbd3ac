// Package progress shows how far a download is: a line that rewrites itself on a
// terminal, and one line per download elsewhere.
package progress

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Printer writes progress to one place. It is safe for concurrent use.
type Printer struct {
	mu   sync.Mutex
	w    io.Writer
	live bool
}

// New returns a printer to w, which is live if w is a terminal.
func New(w io.Writer) *Printer {
	p := &Printer{w: w}
	if f, ok := w.(*os.File); ok {
		_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
		p.live = err == nil
	}
	return p
}

// Start shows that a download has begun. The size is in bytes, 0 if unknown.
// The function have gives how many bytes are there; it is called until the
// function that Start returns is called, with the error that ended it or nil.
func (p *Printer) Start(what string, size int64, have func() int64) (end func(error)) {
	if !p.live {
		p.printf("vmrun: downloading %s%s\n", what, of(size))
	}
	begin, stop, done := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for p.live {
			select {
			case <-stop:
				return
			case <-tick.C:
				p.printf("\r\x1b[Kvmrun: downloading %s: %s%s", what, Bytes(have()), of(size))
			}
		}
	}()
	return func(err error) {
		close(stop)
		<-done
		n, took := have(), time.Since(begin)
		if p.live {
			p.printf("\r\x1b[K")
		}
		if err == nil {
			p.printf("vmrun: downloaded %s: %s in %.1f s\n", what, Bytes(max(n, size)), took.Seconds())
		}
	}
}

// Work shows that something begins that takes a while, "vmrun: DOING WHAT", and with the
// function that it gives, that it is done; an error is for the caller to tell.
func (p *Printer) Work(what, doing, done string) (end func(error)) {
	p.printf("vmrun: %s %s\n", doing, what)
	begin := time.Now()
	return func(err error) {
		if err == nil {
			p.printf("vmrun: %s %s in %.1f s\n", done, what, time.Since(begin).Seconds())
		}
	}
}

func (p *Printer) printf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, format, args...)
}

func of(size int64) string {
	if size <= 0 {
		return ""
	}
	return " (" + Bytes(size) + ")"
}

// Bytes writes n with a unit.
func Bytes(n int64) string {
	switch {
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%d B", n)
}
