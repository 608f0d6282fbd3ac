package main

import (
	"bytes"
	"io"
)

// prefixed writes whole lines, each behind a prefix, so that what several hosts write
// can be told apart and does not mix within a line. It is for one goroutine.
type prefixed struct {
	w      io.Writer
	prefix string
	part   []byte // what came after the last line end
}

// longestLine is how much is kept of a line that does not end.
const longestLine = 1 << 16

func (p *prefixed) Write(b []byte) (int, error) {
	p.part = append(p.part, b...)
	end := bytes.LastIndexByte(p.part, '\n') + 1
	if end == 0 && len(p.part) > longestLine {
		p.part = append(p.part, '\n')
		end = len(p.part)
	}
	if end == 0 {
		return len(b), nil
	}
	var out []byte
	for line := range bytes.Lines(p.part[:end]) {
		out = append(append(out, p.prefix...), line...)
	}
	p.part = append([]byte(nil), p.part[end:]...)
	if _, err := p.w.Write(out); err != nil {
		return 0, err
	}
	return len(b), nil
}

// flush writes what has no line end, as a line.
func (p *prefixed) flush() {
	if len(p.part) > 0 {
		// Whoever took the output may be gone, as after every other write.
		_, _ = p.Write([]byte("\n"))
	}
}
