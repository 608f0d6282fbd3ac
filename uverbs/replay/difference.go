//go:build unix

package replay

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/uverbs/internal/kernel"
	"github.com/goverbs/goverbs/uverbs/trace"
)

// runs are the fields that differ from run to run: addresses in the program, descriptors, the numbers by which a
// program knows its objects in events, and the part of siw's keys that the program draws.
var runs = []string{
	"response", "user_handle", "start", "hca_va", "buf_addr", "db_addr", "sq_buf_addr", "comp_channel", "event_fd", "fd",
	"stag_key",
}

// difference says how a command differs from a recorded call, by the names of fields, or returns "".
func difference(cmd *kernel.Command, recorded *trace.Call, mayDiffer []string) string {
	ours, theirs := inputs(callOf(cmd, recorded)), inputs(recorded)
	for _, v := range ours {
		i := slices.IndexFunc(theirs, func(r input) bool { return r.name == v.name })
		if i < 0 {
			return fmt.Sprintf("%s is %s, which is not in the record", v.name, v.text)
		}
		r := theirs[i]
		theirs = slices.Delete(theirs, i, i+1)
		if !varies(v.name, mayDiffer) && !reflect.DeepEqual(r.value, v.value) {
			return fmt.Sprintf("%s is %s, the record has %s", v.name, v.text, r.text)
		}
	}
	if len(theirs) > 0 {
		return fmt.Sprintf("%s is missing, the record has %s", theirs[0].name, theirs[0].text)
	}
	return ""
}

// varies reports whether a field is not compared.
func varies(name string, mayDiffer []string) bool {
	name = name[strings.LastIndexByte(name, '.')+1:]
	return slices.Contains(runs, name) || slices.Contains(mayDiffer, name)
}

// input is a field that a command passes to the kernel.
type input struct {
	name  string // that of the attribute or struct, and that of the field
	value any
	text  string
}

// inputs returns what a call passes to the kernel, and which attributes it has for answers.
func inputs(c *trace.Call) (all []input) {
	for _, p := range trace.NewDecoder().Decode(c).Payloads {
		switch {
		case p.Output && p.ID >= 0:
			all = append(all, input{name: p.Name, value: "", text: "room for an answer"})
		case p.Output:
		default:
			for _, v := range p.Values {
				all = append(all, input{p.Name + strings.TrimSuffix("."+v.Name, "."), v.JSON, v.Text})
			}
		}
	}
	return all
}

// callOf returns a command as a call that got the recorded answer, so that both have the same meaning.
func callOf(cmd *kernel.Command, recorded *trace.Call) *trace.Call {
	c := &trace.Call{
		File: recorded.File, Open: recorded.Open, Call: trace.CallIoctl, Object: cmd.Object, Method: cmd.Method, Driver: recorded.Driver,
		Errno: recorded.Errno,
	}
	for i := range cmd.Attrs() {
		a := &cmd.Attrs()[i]
		t := &trace.Attr{ID: a.ID, Len: a.Len, Flags: a.Flags, Enum: uint16(a.Enum), In: a.In}
		binary.LittleEndian.PutUint64(t.Data[:], a.Data)
		if len(a.In) <= 8 {
			t.In = nil
		}
		if r := attr(recorded, a.ID); r != nil && recorded.Call == trace.CallIoctl {
			t.New, t.Out, t.Flags = r.New, r.Out, r.Flags
		}
		c.Attrs = append(c.Attrs, t)
	}
	return c
}

// verbOf returns what a command does, in words.
func verbOf(cmd *kernel.Command, r *record) string {
	c := callOf(cmd, &trace.Call{Open: 1, Driver: r.driver, Errno: "EPROTONOSUPPORT"})
	return trace.NewDecoder().Decode(c).Verb
}
