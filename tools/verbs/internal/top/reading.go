// Package top is "verbs top": readings of the kernel's objects and counters ([Reader]), what changes between two of
// them ([State]), what a user chooses to see of it ([Model]), its lines ([Model.Render]), and the loop around them ([Run]).
package top

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/internal/jsontext"
)

// Reading is what was read at one time. It is a line of a record.
type Reading struct {
	Time    time.Time `json:"time"`
	Elapsed int64     `json:"elapsed_us"` // since the first reading, by a clock that is never set
	Ports   []Port    `json:"ports"`
	Objects *Objects  `json:"objects,omitempty"` // nil: as before
	QP      *QPDetail `json:"qp,omitempty"`      // the one that is followed
	Missing []string  `json:"missing,omitempty"` // what could not be read, and why
}

// Port is a port of a device.
type Port struct {
	Device    string    `json:"device"`
	Index     uint32    `json:"device_index"`
	Port      uint32    `json:"port"`
	InProcess bool      `json:"in_process,omitempty"`
	Stale     bool      `json:"stale,omitempty"` // Stale says that it could not be read, and is as before.
	State     string    `json:"state,omitempty"`
	Rate      float64   `json:"rate_gbps"`
	Netdev    string    `json:"netdev,omitempty"`
	Counters  []Counter `json:"counters"`
}

// Counter is a counter of a port.
type Counter struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
}

// Objects are the objects of all devices.
type Objects struct {
	Owners []Owner `json:"owners"`
	QPs    []QP    `json:"qps"`
}

// Owner is a process, or a module of the kernel, that has objects.
type Owner struct {
	PID        uint32 `json:"pid,omitempty"`
	Process    string `json:"process,omitempty"`
	Kernel     string `json:"kernel,omitempty"`
	Container  string `json:"container_id,omitempty"`
	QPs        int    `json:"qp_count"`
	MRs        int    `json:"mr_count"`
	Registered uint64 `json:"registered"` // bytes
}

// QP is a QP of an owner.
type QP struct {
	Device string `json:"device"`
	Port   uint32 `json:"port,omitempty"`
	Num    uint32 `json:"qpn"`
	PID    uint32 `json:"pid,omitempty"`
	Kernel string `json:"kernel,omitempty"`
	Type   string `json:"type"`
	State  string `json:"state"`
	Remote uint32 `json:"remote_qpn"`
	RQPSN  uint32 `json:"rq_psn"`
	SQPSN  uint32 `json:"sq_psn"`
}

// QPDetail is a QP that is followed.
type QPDetail struct {
	QP
	Gone     bool      `json:"gone,omitempty"`
	Counters []Counter `json:"counters,omitempty"`       // of the counter that is bound to it
	Others   int       `json:"other_qp_count,omitempty"` // QPs that the counter counts, too
}

// Keys identify owners and QPs.
func (o *Owner) key() string { return fmt.Sprint(o.PID, " ", o.Kernel) }
func (q *QP) key() string    { return fmt.Sprint(q.Device, " ", q.Num) }

// Limits of a record, which may come from anywhere.
const (
	maxLine     = 64 << 20 // bytes of a reading
	maxPorts    = 4096
	maxCounters = 4096 // of a port
	maxTime     = math.MaxInt64 / int64(time.Microsecond) / 2
)

// Record reads the lines of a record.
type Record struct {
	name  string
	lines *bufio.Scanner
	line  int
	last  int64
	bare  bool // no line feed ended the current line
	cut   bool // the last line was cut off, and is left out
}

// NewRecord returns a reader of the record in a file of that name.
func NewRecord(name string, r io.Reader) *Record {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	record := &Record{name: name, lines: lines, last: -1}
	lines.Split(func(data []byte, atEOF bool) (int, []byte, error) {
		n, line, err := bufio.ScanLines(data, atEOF)
		record.bare = n > 0 && data[n-1] != '\n'
		return n, line, err
	})
	return record
}

// Next returns the next reading, and [io.EOF] after the last one. It leaves out a last line that was cut off, as when
// the disk was full.
func (r *Record) Next() (*Reading, error) {
	r.line++
	ok := r.lines.Scan() // also with what precedes an error
	switch {
	case r.lines.Err() == bufio.ErrTooLong:
		return nil, r.errorf("it is longer than %d bytes", maxLine)
	case r.lines.Err() != nil:
		return nil, r.errorf("%w", r.lines.Err())
	case ok:
		return r.decode(r.lines.Bytes())
	case r.line == 1:
		return nil, fmt.Errorf("%s is empty; verbs top --record writes a record", r.name)
	}
	return nil, io.EOF
}

// Cut returns an error if the last line was cut off, after Next has returned [io.EOF].
func (r *Record) Cut() error {
	if !r.cut {
		return nil
	}
	return r.errorf("it was cut off, and is left out")
}

// errorf returns an error about the current line.
func (r *Record) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: line %d: "+format, append([]any{r.name, r.line}, args...)...)
}

// decode decodes and checks a line.
func (r *Record) decode(line []byte) (*Reading, error) {
	v := new(Reading)
	if err := json.Unmarshal(line, v); err != nil {
		if r.bare && r.line > 1 && errors.As(err, new(*json.SyntaxError)) {
			r.cut = true
			return nil, io.EOF
		}
		return nil, r.errorf("%w", jsontext.Explain(line, err))
	}
	switch {
	case v.Time.IsZero():
		return nil, r.errorf("it is no reading: time is missing")
	case v.Ports == nil:
		return nil, r.errorf("it is no reading: ports is missing")
	}
	if v.Elapsed <= r.last || v.Elapsed > maxTime {
		return nil, r.errorf("elapsed_us is %d, allowed: %d to %d", v.Elapsed, r.last+1, maxTime)
	}
	r.last = v.Elapsed
	if n := len(v.Ports); n > maxPorts {
		return nil, r.errorf("ports has %d entries, allowed: up to %d", n, maxPorts)
	}
	seen := map[string]bool{}
	for i := range v.Ports {
		p := &v.Ports[i]
		field := fmt.Sprintf("ports[%d]", i)
		switch key := p.key(); {
		case p.Device == "" || p.Port == 0:
			return nil, r.errorf("%s is %q/%d, allowed: a name and a port of 1 or more", field, p.Device, p.Port)
		case seen[key]:
			return nil, r.errorf("%s is %q/%d, which is there already", field, p.Device, p.Port)
		case !(p.Rate >= 0 && p.Rate < 1e9):
			return nil, r.errorf("%s.rate_gbps is %g, allowed: 0 to 1e9", field, p.Rate)
		case len(p.Counters) > maxCounters:
			return nil, r.errorf("%s.counters has %d entries, allowed: up to %d", field, len(p.Counters), maxCounters)
		default:
			seen[key] = true
		}
	}
	owners := map[string]bool{}
	for i := 0; v.Objects != nil && i < len(v.Objects.Owners); i++ {
		o := &v.Objects.Owners[i]
		if owners[o.key()] { // each would have all the QPs
			return nil, r.errorf("objects.owners[%d] is process %d or module %q, which is there already", i, o.PID, o.Kernel)
		}
		owners[o.key()] = true
	}
	return v, nil
}

// counters converts counters.
func counters(all ...[]netlinkrdma.Counter) []Counter {
	out := []Counter{}
	seen := map[string]bool{}
	for _, some := range all {
		for _, c := range some {
			if !seen[c.Name] {
				seen[c.Name] = true
				out = append(out, Counter(c))
			}
		}
	}
	return out
}
