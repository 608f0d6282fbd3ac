package trace

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/netlinkrdma"
)

// objectName and methodName return the C names of an object and its method, "" if they are not in
// the headers.
func objectName(id uint16, driver uint32) string {
	in := "uverbs_default_objects"
	if id >= driverSpace {
		if driver != uint32(netlinkrdma.DriverMLX5) {
			return ""
		}
		in = "mlx5_ib_objects"
	}
	name, _ := abi().enums[in].name(uint64(id))
	return name
}

// driverSpace is UVERBS_ID_DRIVER_NS: numbers from here on belong to the driver.
const driverSpace = 0x1000

// ofDriver reports whether the numbers of an enum belong to a driver, where this is possible.
func ofDriver(enum string, driver uint32) bool {
	return !strings.HasPrefix(enum, "mlx5_") || driver == uint32(netlinkrdma.DriverMLX5)
}

func methodName(object, method uint16, driver uint32) string {
	for _, in := range specified().objects[object] {
		if n, ok := abi().enums[in].name(uint64(method)); ok && ofDriver(in, driver) {
			return n
		}
	}
	return ""
}

// attrName returns the C name of an attribute, and a short one.
func attrName(method string, id uint16, driver uint32) (name, short string) {
	for _, in := range specified().methods[method] {
		if n, ok := abi().enums[in].name(uint64(id)); ok && ofDriver(in, driver) {
			return n, strings.ToLower(attrShort(abi().enums[in], n))
		}
	}
	if n, ok := abi().enums["UVERBS_ID_DRIVER_NS"].name(uint64(id)); ok && id >= driverSpace {
		if id == driverSpace {
			n = "UVERBS_ATTR_UHW_IN" // the enum has UVERBS_ID_DRIVER_NS first
		}
		return n, strings.ToLower(strings.TrimPrefix(n, "UVERBS_ATTR_"))
	}
	return "", ""
}

// attrShort returns the part of an attribute's name that differs from those of the others.
func attrShort(e enum, name string) string {
	if len(e.enumerators) > 1 {
		if s := e.shortName(name); s != "" && len(e.prefix) > len("UVERBS_ATTR_") {
			return s
		}
	}
	_, rest, _ := strings.Cut(name, "_ATTR_")
	return rest
}

// ioctl describes a method of RDMA_VERBS_IOCTL.
func (f *openFile) ioctl(e *Event) {
	c := e.Call
	object := objectName(c.Object, c.Driver)
	method := methodName(c.Object, c.Method, c.Driver)
	if object == "" || method == "" {
		e.Verb, e.Unknown = fmt.Sprintf("method %#x of object %#x", c.Method, c.Object), 1
	} else {
		e.Method, e.Verb = method, verbOf(method)
	}
	if method == "UVERBS_METHOD_INVOKE_WRITE" {
		f.invokeWrite(e)
		return
	}
	if c.Object != 0 && object != "" {
		e.Kind = kindOf(object)
	}
	for _, a := range c.Attrs {
		f.attr(e, a)
	}
	f.subject(e)
}

// invokeWrite describes a command of the write interface that travels in an ioctl.
func (f *openFile) invokeWrite(e *Event) {
	var number uint32
	var parts [4][]byte // core in, core out, driver in, driver out
	for _, a := range e.Call.Attrs {
		name, _ := attrName(e.Method, a.ID, e.Call.Driver)
		switch name {
		case "UVERBS_ATTR_WRITE_CMD":
			number = uint32(a.Data.value())
		case "UVERBS_ATTR_CORE_IN":
			parts[0] = a.input()
		case "UVERBS_ATTR_CORE_OUT":
			parts[1] = a.Output()
		case "UVERBS_ATTR_UHW_IN":
			parts[2] = a.input()
		case "UVERBS_ATTR_UHW_OUT":
			parts[3] = a.Output()
		default:
			e.add(Payload{Name: fmt.Sprintf("attribute %#x", a.ID), ID: int(a.ID), Unknown: true, Values: []Value{octets("bytes", a.input())}})
		}
	}
	name, _ := commandName(number)
	f.command(e, name, number, parts[0], parts[1], parts[2], parts[3])
}

// input returns the bytes that an attribute carries to the kernel.
func (a *Attr) input() []byte {
	if a.Len > inlineMax {
		return a.In
	}
	return a.Data[:a.Len]
}

// Output returns the bytes that the kernel has written. It does not write those that have not changed.
func (a *Attr) Output() []byte {
	if a.Out != nil {
		return a.Out
	}
	return a.In
}

// changed returns the data that the kernel has put in place of Data, nil for none.
func (a *Attr) changed() []byte {
	if a.New == nil {
		return nil
	}
	return a.New[:]
}

// isOutput reports whether the kernel writes an attribute.
func isOutput(name string) bool {
	return specified().outputs[name] || strings.Contains(name, "_RESP") || strings.HasSuffix(name, "_OUT") || strings.Contains(name, "_OUT_ID")
}

// attr adds an attribute.
func (f *openFile) attr(e *Event, a *Attr) {
	name, short := attrName(e.Method, a.ID, e.Call.Driver)
	p := Payload{Name: name, ID: int(a.ID), Driver: a.ID >= driverSpace}
	failed := e.Call.Errno != "" || e.Call.Unfinished
	if name == "" {
		p.Name, p.Unknown = fmt.Sprintf("attribute %#x", a.ID), true
		p.Values = []Value{octets("bytes", a.input())}
		e.add(p)
		p.Output = true
		for _, b := range [][]byte{a.changed(), a.Out} {
			if b != nil {
				p.Values = []Value{octets("bytes", b)}
				e.add(p)
			}
		}
		return
	}
	if strings.HasPrefix(name, "UVERBS_ATTR_UHW_") {
		f.uhw(e, a, name == "UVERBS_ATTR_UHW_OUT")
		return
	}
	if isOutput(name) || a.Flags&validOutput != 0 {
		p.Output = true
		if failed {
			return
		}
		f.attrValue(&p, name, short, a, a.Output())
		e.add(p)
		return
	}
	if strings.HasSuffix(name, "_HANDLE") && !strings.HasSuffix(name, "USER_HANDLE") {
		f.handle(e, &p, short, a, failed)
		e.add(p)
		return
	}
	f.attrValue(&p, name, short, a, a.input())
	e.add(p)
}

// handle adds an attribute with the handle of an object, or a descriptor.
func (f *openFile) handle(e *Event, p *Payload, short string, a *Attr, failed bool) {
	data := a.Data
	if a.New != nil {
		data = *a.New
	}
	kind := handleKind(short, e.Kind)
	if strings.Contains(p.Name, "_FD_") { // of an object that is a descriptor
		p.Output = !failed && !strings.Contains(p.Name, "SUBSCRIBE")
		p.Values = []Value{signed("fd_handle", data.value())}
		return
	}
	p.Output = !failed && kind == e.Kind && begins(e.Verb, creates)
	n := data.value() & 0xffffffff
	p.Values = []Value{{Name: short, Text: f.label(kind, uint32(n)), JSON: n, number: n, handle: kind}}
}

// handleKind returns the kind of object that a handle is of, by the short name of the attribute in a
// method of the kind own.
func handleKind(short, own string) string {
	switch kind := kindOfField(short); kind {
	case "PD", "XRCD", "CQ", "SRQ", "DM", "DMAH", "RWQ indirection table", "QP", "WQ", "completion counter":
		if own == "DMAH" {
			return own
		}
		return kind
	}
	if strings.HasSuffix(short, "query_pd_handle") {
		return "PD"
	}
	return own
}

// attrValue sets the value of an attribute that is a struct, an array of structs, a number or bytes.
func (f *openFile) attrValue(p *Payload, name, short string, a *Attr, b []byte) {
	typ := specified().attrs[name]
	if st := abi().structs[typ]; st != nil {
		for i := 0; len(b) > 0 && i < maxElements; i++ {
			n := min(st.size, len(b))
			values, _ := f.decodeStruct(typ, b[:n], nil)
			if len(b) > st.size || i > 0 {
				for j := range values {
					values[j].Name = fmt.Sprintf("[%d].%s", i, values[j].Name)
				}
			}
			p.Values = append(p.Values, values...)
			b = b[n:]
		}
		if typ == "ib_uverbs_query_port_resp_ex" && len(b) > 0 {
			p.Values = append(p.Values, octets("bytes", b))
		}
		return
	}
	if a.Len == 0 {
		n := a.Data.value()
		if a.Enum != 0 {
			n = uint64(a.Enum)
		}
		b = binary.LittleEndian.AppendUint64(nil, n)
	}
	if len(b) > 8 {
		p.Values = []Value{octets(short, b)}
		return
	}
	v := f.number("", short, short, integer(b, false), 8)
	if typ != "" {
		v.typed(typ)
	}
	if strings.HasSuffix(name, "_FD") || strings.HasSuffix(name, "COMP_CHANNEL") {
		v = signed(short, v.number)
	}
	p.Values = []Value{v}
}

// uhw adds the driver's part of a method that has one.
func (f *openFile) uhw(e *Event, a *Attr, output bool) {
	name := plain(e.Method)
	if s, ok := strings.CutSuffix(name, "_CREATE"); ok {
		name = "CREATE_" + s
	}
	st := specified().drivers[driverCommand{e.Call.Driver, name}]
	switch {
	case !output:
		f.driverStruct(e, st[0], a.input(), false)
	case e.Call.Errno == "" && !e.Call.Unfinished:
		f.driverStruct(e, st[1], a.Output(), true)
	}
}
