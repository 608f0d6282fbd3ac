package trace

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Text returns an event as one line for a person: who, what, on which object, with which values, and
// what came of it. Values of 0 are left out.
func (e *Event) Text() string {
	c := e.Call
	var b strings.Builder
	if c.TID != 0 {
		fmt.Fprintf(&b, "%d ", c.TID)
	}
	if c.File != "" {
		b.WriteString(c.File)
		if c.Open > 0 && c.Call == CallOpen || c.File == eventFile && c.FD > 0 {
			fmt.Fprintf(&b, " fd %d", c.FD)
		}
		b.WriteString(" ")
	}
	b.WriteString(e.Verb)
	sep := ": "
	add := func(text string) {
		b.WriteString(sep + text)
		sep = ", "
	}
	if e.Object != "" {
		text := e.Object
		if e.Parent != "" {
			text += " on " + e.Parent
		}
		add(text)
	}
	for _, output := range []bool{false, true} {
		first := true
		for _, p := range e.Payloads {
			if p.Output != output {
				continue
			}
			text := p.text(e)
			if text == "" {
				continue
			}
			if output && first {
				sep = " -> "
				if b.Len() > 0 && e.Object == "" && !strings.Contains(b.String(), ": ") {
					sep = ": "
				}
				first = false
			}
			add(text)
		}
	}
	for _, n := range e.Notes {
		add(strings.TrimPrefix(n.Name+" "+n.Text, " "))
	}
	switch {
	case c.Unfinished:
		b.WriteString(" = unfinished, the program ended")
	case c.Errno != "":
		fmt.Fprintf(&b, " = %s (%s)", c.Errno, errnoWords(c.Errno))
	}
	if c.Lost != "" {
		fmt.Fprintf(&b, " [not readable: %s]", c.Lost)
	}
	if c.Count > 1 {
		fmt.Fprintf(&b, " (%d times)", c.Count)
	}
	if c.Duration > 0 {
		fmt.Fprintf(&b, " <%s>", duration(c.Duration))
	}
	return printable(b.String())
}

// printable returns a line without characters that a terminal obeys. Names of files are the program's, and
// a record may be anybody's.
func printable(line string) string {
	if utf8.ValidString(line) && !strings.ContainsFunc(line, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return line
	}
	q := strconv.Quote(line)
	return q[1 : len(q)-1]
}

// duration returns a time with three digits or so.
func duration(ns int64) string {
	d := time.Duration(ns)
	switch {
	case d >= time.Second:
		return d.Round(time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(100 * time.Nanosecond).String()
}

// text returns the values of a payload that a person wants to see in the line of an event.
func (p *Payload) text(e *Event) string {
	var all []string
	for _, v := range p.Values {
		switch last := v.Name[strings.LastIndex(v.Name, ".")+1:]; {
		case v.Zero && !p.Unknown, last == "response", last == "response_length", last == "driver_data":
			continue
		case e.Object != "" && v.handle == e.Kind && uint32(v.number) == e.handle, v.handle == "PD" && v.Text == e.Parent && !p.Output:
			continue
		case v.handle != "" && p.hides(v):
			continue
		case last == "id" && e.Kind == "ID", last == "event" && e.Notes != nil:
			continue
		case (last == "qpn" || last == "resp_qp_num") && strings.HasSuffix(e.Object, " "+v.Text):
			continue
		}
		text := v.Text
		switch {
		case v.Name != "" && v.handle != "" && strings.HasPrefix(v.Name, "send_"):
			text = "send " + text
		case v.Name != "" && v.handle != "" && strings.HasPrefix(v.Name, "recv_"):
			text = "recv " + text
		case v.handle != "":
		case v.Name == "fd" || v.Name == "fd_handle":
			text = "fd " + fmt.Sprint(v.JSON)
		case v.Name != "":
			text = strings.TrimPrefix(strings.TrimPrefix(v.Name, "base."), "legacy_resp.") + " " + text
		}
		all = append(all, text)
	}
	if all == nil {
		return ""
	}
	text := strings.Join(all, ", ")
	switch {
	case p.Unknown || p.Name == "written" || p.Name == "read":
		return p.Name + " {" + text + "}"
	case p.ID >= 0 && len(p.Values) > 1:
		_, short, _ := strings.Cut(p.Name, "_ATTR_")
		return strings.ToLower(short) + " {" + text + "}"
	case p.Driver && p.ID < 0:
		return p.Name + " {" + text + "}"
	}
	return text
}

// hides reports whether a handle means nothing, since another field says so.
func (p *Payload) hides(v Value) bool {
	flag := func(name string, bit uint64) bool {
		for _, o := range p.Values {
			if o.Name == name {
				return o.number&bit != 0
			}
		}
		return false
	}
	switch {
	case p.Name != "ib_uverbs_create_qp" && p.Name != "ib_uverbs_ex_create_qp":
		return false
	case v.handle == "SRQ":
		return !flag("is_srq", 1)
	case v.handle == "RWQ indirection table":
		return !flag("comp_mask", 1)
	}
	return false
}

// EventJSON is an event as a line of JSON, which JSON.md of the command describes.
type EventJSON struct {
	Time     int64         `json:"time_ns"`               // Time is the time since the trace began, in nanoseconds.
	Duration int64         `json:"duration_ns,omitempty"` // Duration is the time that the call took, in nanoseconds.
	PID      int           `json:"pid,omitempty"`         // PID is the process.
	TID      int           `json:"tid,omitempty"`         // TID is the thread.
	File     string        `json:"file,omitempty"`        // File is the file in /dev/infiniband, or "event".
	Open     int           `json:"open_file,omitempty"`   // Open numbers the open files.
	FD       *int          `json:"fd,omitempty"`          // FD is the descriptor.
	Call     string        `json:"call"`                  // Call is the system call.
	Verb     string        `json:"verb"`                  // Verb says what the call does.
	Method   string        `json:"method,omitempty"`      // Method is the C name of the command.
	Kind     string        `json:"kind,omitempty"`        // Kind is the kind of the object.
	Object   string        `json:"object,omitempty"`      // Object is the object, with its number.
	Parent   string        `json:"parent,omitempty"`      // Parent is what a new object belongs to.
	Payloads []PayloadJSON `json:"payloads,omitempty"`    // Payloads are the attributes and structs.
	Notes    []string      `json:"notes,omitempty"`       // Notes are remarks in words.
	Count    int           `json:"count,omitempty"`       // Count is the number of equal calls, if there are more than one.
	Doorbell bool          `json:"doorbell,omitempty"`    // Doorbell is set for a command that comes with each message.
	Errno    string        `json:"errno,omitempty"`       // Errno is the name of the error.
	Error    string        `json:"error,omitempty"`       // Error is the error in words.
	Lost     string        `json:"lost,omitempty"`        // Lost says what memory could not be read.
	Dead     bool          `json:"unfinished,omitempty"`  // Dead is set if the program ended during the call.
	Unknown  int           `json:"unknown,omitempty"`     // Unknown counts what the headers do not name.
}

// PayloadJSON is an attribute or a struct of an event.
type PayloadJSON struct {
	Name    string         `json:"name"`              // Name is the C name.
	ID      *int           `json:"id,omitempty"`      // ID is the number of an attribute.
	Output  bool           `json:"output"`            // Output is set for what the kernel answers.
	Driver  bool           `json:"driver,omitempty"`  // Driver is set for the driver's part.
	Unknown bool           `json:"unknown,omitempty"` // Unknown is set if no header names it.
	Fields  map[string]any `json:"fields,omitempty"`  // Fields are the fields of a struct.
	Value   any            `json:"value,omitempty"`   // Value is the value of an attribute.
	Text    string         `json:"text,omitempty"`    // Text is the value in words.
}

// JSON returns an event as one line for a program.
func (e *Event) JSON() ([]byte, error) {
	c := e.Call
	j := EventJSON{
		Time: c.Time, Duration: c.Duration, PID: c.PID, TID: c.TID, File: c.File, Open: c.Open, Call: c.Call, Verb: e.Verb, Method: e.Method,
		Kind: e.Kind, Object: e.Object, Parent: e.Parent, Count: c.Count, Doorbell: e.Doorbell, Errno: c.Errno, Lost: c.Lost, Dead: c.Unfinished,
		Unknown: e.Unknown,
	}
	if c.File != "" && c.Call != "doorbells" {
		j.FD = &c.FD
	}
	if c.Errno != "" {
		j.Error = errnoWords(c.Errno)
	}
	for _, p := range e.Payloads {
		out := PayloadJSON{Name: p.Name, Output: p.Output, Driver: p.Driver, Unknown: p.Unknown}
		if p.ID >= 0 {
			out.ID = &p.ID
		}
		if p.ID >= 0 && len(p.Values) == 1 && !strings.Contains(p.Values[0].Name, ".") {
			out.Value, out.Text = p.Values[0].JSON, p.Values[0].Text
		} else {
			out.Fields = map[string]any{}
			for _, v := range p.Values {
				out.Fields[v.Name] = v.JSON
			}
		}
		j.Payloads = append(j.Payloads, out)
	}
	for _, n := range e.Notes {
		j.Notes = append(j.Notes, strings.TrimPrefix(n.Name+" "+n.Text, " "))
	}
	return json.Marshal(j)
}
