package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// recordVersion is the version of the records that this program writes and reads.
const recordVersion = 1

// Header is the first line of a record.
type Header struct {
	Record  string   `json:"record"`            // recordName
	Version int      `json:"version"`           // recordVersion
	Kernel  string   `json:"kernel"`            // release of the kernel
	Arch    string   `json:"arch"`              // architecture, as Go calls it
	Program []string `json:"program,omitempty"` // Program is the command line of the program.
	PID     int      `json:"pid,omitempty"`     // of a process that was attached to
}

// recordName is what a record says that it is.
const recordName = "verbs trace"

// trailer is the last line of a record. A record without it was cut.
type trailer struct {
	End    bool `json:"end"`
	Calls  int  `json:"calls"`
	Status int  `json:"status"`
}

// Recorder writes calls to a record. It is safe for concurrent use.
type Recorder struct {
	mu    sync.Mutex
	w     *bufio.Writer
	enc   *json.Encoder
	calls int
	err   error
}

// NewRecorder begins a record.
func NewRecorder(w io.Writer, h Header) *Recorder {
	h.Record, h.Version = recordName, recordVersion
	r := &Recorder{w: bufio.NewWriter(w)}
	r.enc = json.NewEncoder(r.w)
	r.enc.SetEscapeHTML(false)
	r.err = r.enc.Encode(h)
	return r
}

// Add adds a call.
func (r *Recorder) Add(c *Call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.calls++
		r.err = r.enc.Encode(c)
	}
}

// End ends the record with the exit status of the program, and returns the first error.
func (r *Recorder) End(status int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = r.enc.Encode(trailer{true, r.calls, status})
	}
	if r.err == nil {
		r.err = r.w.Flush()
	}
	err := r.err
	r.err = os.ErrClosed
	return err
}

// ErrCut is the error for a record that has no end.
var ErrCut = errors.New("the record is cut: its last line is missing")

// Reader reads a record.
type Reader struct {
	Header Header // Header is the first line of the record.
	Status int    // Status is the exit status of the program, at the end.

	s     *bufio.Scanner
	line  int
	calls int
}

// maxLine limits the length of a line of a record.
const maxLine = 16 << 20

// NewReader begins to read a record.
func NewReader(r io.Reader) (*Reader, error) {
	rd := &Reader{s: bufio.NewScanner(r)}
	rd.s.Buffer(nil, maxLine)
	line, err := rd.next()
	if err != nil {
		if errors.Is(err, ErrCut) {
			err = errors.New("the record is empty")
		}
		return nil, err
	}
	if err := json.Unmarshal(line, &rd.Header); err != nil || rd.Header.Record != recordName {
		return nil, errors.New(`the input is not a record of "verbs trace -o"`)
	}
	if rd.Header.Version != recordVersion {
		return nil, fmt.Errorf("the version of the record is %d, allowed: %d", rd.Header.Version, recordVersion)
	}
	return rd, nil
}

func (r *Reader) next() ([]byte, error) {
	ok := r.s.Scan() // also with what precedes an error
	if err := r.s.Err(); err == bufio.ErrTooLong {
		return nil, fmt.Errorf("line %d: it is longer than %d bytes", r.line+1, maxLine)
	} else if err != nil {
		return nil, fmt.Errorf("line %d: %w", r.line+1, err)
	}
	if !ok {
		return nil, ErrCut
	}
	r.line++
	return r.s.Bytes(), nil
}

// Next returns the next call, and [io.EOF] at the end. If the record has no end, the error is [ErrCut].
func (r *Reader) Next() (*Call, error) {
	line, err := r.next()
	if err != nil {
		return nil, err
	}
	if bytes.HasPrefix(line, []byte(`{"end":`)) {
		var t trailer
		if err := r.parse(line, &t); err != nil {
			return nil, err
		}
		if !t.End || t.Calls != r.calls {
			return nil, fmt.Errorf("line %d: it is the end of a record of other calls", r.line)
		}
		r.Status = t.Status
		return nil, io.EOF
	}
	c := &Call{}
	if err := r.parse(line, c); err != nil {
		return nil, err
	}
	if c.Call == "" {
		return nil, fmt.Errorf("line %d: it is no call", r.line)
	}
	for _, a := range c.Attrs {
		if a == nil || int(a.Len) < len(a.In) || a.Len > inlineMax && len(a.In) != 0 && len(a.In) != int(a.Len) {
			return nil, fmt.Errorf("line %d: the length of an attribute is not that of its bytes", r.line)
		}
	}
	r.calls++
	return c, nil
}

// parse reads a line. A last line that is not whole shows that the record was cut.
func (r *Reader) parse(line []byte, v any) error {
	err := json.Unmarshal(line, v)
	if err == nil {
		return nil
	}
	if !r.s.Scan() {
		return ErrCut
	}
	return fmt.Errorf("line %d: %w", r.line, err)
}
