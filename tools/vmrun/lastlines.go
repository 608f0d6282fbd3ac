package main

import (
	"bytes"
	"fmt"
	"os"
	"sync"
)

// lastLines keeps the last lines that were written to it. With echo set it shows
// all of them on stderr, too. It is safe for concurrent use.
type lastLines struct {
	echo string

	mu    sync.Mutex
	part  []byte
	lines []string
}

const keptLines = 1000

func (l *lastLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.part = append(l.part, p...)
	for {
		line, rest, ok := bytes.Cut(l.part, []byte("\n"))
		if !ok {
			break
		}
		l.add(string(bytes.TrimRight(line, "\r")))
		l.part = rest
	}
	// A console without line ends must not fill the memory.
	if len(l.part) > 1<<16 {
		l.add(string(l.part))
		l.part = nil
	}
	return len(p), nil
}

func (l *lastLines) add(line string) {
	if len(l.lines) >= 2*keptLines {
		l.lines = append([]string(nil), l.lines[keptLines:]...)
	}
	l.lines = append(l.lines, line)
	if l.echo != "" {
		fmt.Fprintf(os.Stderr, "vmrun: %s: %s\n", l.echo, line)
	}
}

// flush takes what came after the last line end for a line.
func (l *lastLines) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.part) > 0 {
		l.add(string(l.part))
		l.part = nil
	}
}

// last gives the last n lines.
func (l *lastLines) last(n int) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.lines[max(0, len(l.lines)-n):]...)
}
