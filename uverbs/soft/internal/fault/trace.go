package fault

import (
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// tracer writes what happens to packets. A nil tracer writes nothing.
type tracer struct {
	mu     sync.Mutex
	lines  io.Writer // nil: none, or it failed
	start  time.Time
	buf    []byte
	failed error
}

// newTracer returns a tracer.
func newTracer(lines, capture io.Writer, start time.Time) (*tracer, error) {
	return &tracer{lines: lines, start: start}, nil
}

// close ends the trace: the writers are not used any more.
func (t *tracer) close() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = nil
}

// err returns the first error of a writer.
func (t *tracer) err() error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

// packet writes a packet with its verdict.
func (t *tracer) packet(now time.Time, p *Path, pk *packet, data []byte, v *verdict) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lines != nil {
		t.buf = appendLine(t.buf[:0], now.Sub(t.start), p, pk, data, v)
		if _, err := t.lines.Write(t.buf); err != nil {
			t.failed, t.lines = err, nil
		}
	}
}

// appendLine appends a line of the trace.
func appendLine(b []byte, at time.Duration, p *Path, pk *packet, data []byte, v *verdict) []byte {
	b = strconv.AppendFloat(b, at.Seconds(), 'f', 6, 64)
	b = append(b, ' ')
	b = append(b, pk.dir.String()...)
	b = append(b, ' ')
	from, to := p.local, pk.peer
	if pk.dir == Received {
		from, to = to, from
	}
	b = from.AppendTo(b)
	b = append(b, " > "...)
	b = to.AppendTo(b)
	b = append(b, ' ')
	b = append(b, describe(data)...)
	b = append(b, ": "...)
	b = v.appendText(b, pk.dir, len(data))
	return append(b, '\n')
}

// describe returns the headers of a packet in words.
func describe(data []byte) string {
	var h wire.Header
	if _, err := wire.Parse(data, &h); err != nil {
		return err.Error()
	}
	return strconv.Itoa(int(h.Opcode))
}

// appendText appends a verdict in words, as "lost (rule 0, packet 17)".
func (v *verdict) appendText(b []byte, dir Direction, size int) []byte {
	switch {
	case v.parted:
		b = append(b, "partitioned"...)
	case v.lost:
		b = append(b, "lost"...)
	case v.copies == 2:
		b = append(b, "duplicated: "...)
		b = v.appendCopy(b, 0, dir, size)
		b = append(b, "; "...)
		b = v.appendCopy(b, 1, dir, size)
	default:
		b = v.appendCopy(b, 0, dir, size)
	}
	if v.rule < 0 {
		return b
	}
	b = append(b, " (rule "...)
	b = strconv.AppendInt(b, int64(v.rule), 10)
	b = append(b, ", packet "...)
	b = strconv.AppendUint(b, v.n, 10)
	return append(b, ')')
}

// appendCopy appends what happens to a copy of a packet.
func (v *verdict) appendCopy(b []byte, copy int, dir Direction, size int) []byte {
	a := &v.fates[copy]
	if a.corrupt {
		b = append(b, "corrupted, "...)
		if dir == Received {
			return append(b, "dropped"...)
		}
	}
	switch {
	case v.full[copy]:
		return append(b, "dropped as too many are held"...)
	case v.held[copy] == nil:
		return append(b, "passed"...)
	case a.behind > 0:
		b = append(b, "held back behind "...)
		b = strconv.AppendInt(b, int64(a.behind), 10)
		return append(b, " packets"...)
	}
	b = append(b, "delayed "...)
	return append(b, v.waits[copy].String()...)
}
