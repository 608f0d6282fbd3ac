package trace

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/netlinkrdma"
)

// Event is a call with its meaning.
type Event struct {
	Call *Call // Call is what was decoded.

	Verb   string // what it does, in words: "create QP"
	Method string // C name of the method or command
	Kind   string // kind of the object that it is about: "QP"
	Object string // the object, with its number: "QP 17"
	Parent string // what a new object belongs to: "PD 2"
	handle uint32 // of the object

	Payloads []Payload // Payloads are the attributes and structs, in their order.
	Notes    []Value   // what the decoder knows from earlier calls, such as the number of doorbells

	// Doorbell is set for a command that tells the device of work requests, or arms a CQ. There are as
	// many as there are messages.
	Doorbell bool

	// Unknown counts attributes, commands and bytes that the kernel's headers do not name.
	Unknown int
}

// Payload is an attribute, or a struct of a command.
type Payload struct {
	Name    string  // C name of the attribute or struct, or its number
	ID      int     // of the attribute; -1 for a struct
	Output  bool    // it comes from the kernel
	Driver  bool    // it is the driver's
	Unknown bool    // no header names it
	Values  []Value // Values are the fields of a struct, or one value.
}

// Decoder turns calls into events. It remembers which objects there are.
type Decoder struct {
	files    map[int]*openFile
	channels map[channel]*openFile
}

// channel is a descriptor that a command returned.
type channel struct{ pid, fd int }

// openFile is an open character device.
type openFile struct {
	name    string
	driver  uint32
	objects map[object]*objectInfo
	offsets map[uint64]mapping
}

// mapping is memory that can be mapped, by the answer to a command.
type mapping struct {
	kind, object string
}

// object identifies an object of an open file.
type object struct {
	kind   string
	handle uint32
}

// objectInfo is what is known of an object.
type objectInfo struct {
	number     uint32 // as the program knows it
	userHandle uint64
	qpType     uint64 // of an ID
	doorbells  map[string]int
}

// NewDecoder returns a decoder for the calls of a trace from its beginning.
func NewDecoder() *Decoder {
	return &Decoder{files: map[int]*openFile{}, channels: map[channel]*openFile{}}
}

// file returns the state of the file of a call.
func (d *Decoder) file(c *Call) *openFile {
	f := d.files[c.Open]
	if f == nil {
		f = &openFile{name: c.File, objects: map[object]*objectInfo{}, offsets: map[uint64]mapping{}}
		d.files[c.Open] = f
	}
	if c.Driver != 0 {
		f.driver = c.Driver
	}
	return f
}

// label returns an object as a person knows it.
func (f *openFile) label(kind string, handle uint32) string {
	if o := f.objects[object{kind, handle}]; o != nil {
		return fmt.Sprintf("%s %d", kind, o.number)
	}
	if kind == "QP" {
		return fmt.Sprintf("QP with handle %d", handle)
	}
	return fmt.Sprintf("%s %d", kind, handle)
}

// Decode returns the meaning of a call. Calls must come in their order.
func (d *Decoder) Decode(c *Call) *Event {
	e := &Event{Call: c}
	f := d.file(c)
	switch {
	case c.Call == CallIoctl && c.Command != 0:
		f.otherIoctl(e)
	case c.Call == CallIoctl:
		f.ioctl(e)
		d.keep(e)
	case c.Call == CallWrite && c.File == CMFile:
		f.cmWrite(e)
	case c.Call == CallWrite && strings.HasPrefix(c.File, "uverbs"):
		f.verbsWrite(e)
		d.keep(e)
	case c.Call == CallRead && c.File == eventFile:
		d.event(e)
	case c.Call == CallMmap:
		f.mmap(e)
	case c.Call == CallExec:
		e.Verb = "run"
		e.note("program", c.Text)
	case c.Call == CallExit:
		e.Verb = "exit"
		e.note("status", fmt.Sprint(c.Result))
	default:
		e.Verb = c.Call
		f.plain(e)
	}
	for _, p := range e.Payloads {
		if p.Unknown {
			e.Unknown++
		}
	}
	if e.Verb == "" {
		e.Verb = c.Call
	}
	return e
}

// add adds an attribute or a struct.
func (e *Event) add(p Payload) { e.Payloads = append(e.Payloads, p) }

// note adds something to say in words.
func (e *Event) note(name, text string) {
	e.Notes = append(e.Notes, inWords(name, text))
}

// plain describes an open, a close, a dup, and reads and writes of files that have no commands.
func (f *openFile) plain(e *Event) {
	c := e.Call
	if c.Device != "" {
		e.note("device", c.Device)
	}
	if c.Call == CallOpen && c.Driver != 0 {
		e.note("driver", netlinkrdma.DriverID(c.Driver).String())
	}
	if c.Call == CallClose {
		f.doorbells(e)
	}
	for _, b := range []struct {
		name  string
		bytes Octets
	}{{"written", c.Request}, {"read", c.Response}} {
		if len(b.bytes) > 0 {
			e.add(Payload{Name: b.name, ID: -1, Output: b.name == "read", Values: []Value{octets("bytes", b.bytes)}})
		}
	}
}

// doorbells adds the doorbells of all objects to an event, and forgets them.
func (f *openFile) doorbells(e *Event) {
	var all []string
	for o, info := range f.objects {
		for verb, n := range info.doorbells {
			all = append(all, fmt.Sprintf("%s %s, %d times", f.label(o.kind, o.handle), verb, n))
		}
		info.doorbells = nil
	}
	slices.Sort(all)
	for _, text := range all {
		e.note("", text)
	}
}

// Finish returns what remains to be said at the end of a trace: doorbells of objects that were not
// destroyed.
func (d *Decoder) Finish() []*Event {
	var all []*Event
	var open []int
	for n := range d.files {
		open = append(open, n)
	}
	slices.Sort(open)
	for _, n := range open {
		e := &Event{Call: &Call{Call: "doorbells", Open: n, File: d.files[n].name}, Verb: "doorbells"}
		if d.files[n].doorbells(e); len(e.Notes) > 0 {
			all = append(all, e)
		}
	}
	return all
}

// mmap describes the memory of the device that was mapped.
func (f *openFile) mmap(e *Event) {
	e.Verb = "map memory"
	c := e.Call
	values := []Value{{Name: "length", Text: fmt.Sprint(c.Length), JSON: c.Length}}
	offset := Value{Name: "offset", number: c.Offset, Zero: c.Offset == 0}
	offset.hex()
	values = append(values, offset)
	if m, ok := f.offsets[c.Offset]; ok {
		e.Kind, e.Object = m.kind, m.object
	} else if f.driver == uint32(netlinkrdma.DriverMLX5) {
		cmd := Value{Name: "mlx5_ib_mmap_cmd", number: c.Offset >> 12 >> 8 & 0xff}
		cmd.typed("mlx5_ib_mmap_cmd")
		values = append(values, cmd)
	}
	prot := map[uint64]string{1: "read", 2: "write", 3: "read and write"}[c.Prot&3]
	values = append(values, Value{Name: "prot", Text: prot, JSON: prot, Zero: prot == ""})
	e.add(Payload{Name: "mmap", ID: -1, Values: values})
	if c.Errno == "" {
		at := Value{Name: "addr", number: c.Result}
		at.hex()
		out := Payload{Name: "mmap", ID: -1, Output: true, Values: []Value{at}}
		if len(c.Memory) > 0 {
			out.Values = append(out.Values, octets("memory", c.Memory))
		}
		e.add(out)
	}
}

// keep remembers and forgets the objects of a command that succeeded.
func (d *Decoder) keep(e *Event) {
	if e.Call.Errno != "" || e.Call.Unfinished {
		return
	}
	for _, p := range e.Payloads {
		for _, v := range p.Values {
			if p.Output && isFD(v.Name) {
				d.channels[channel{e.Call.PID, int(int32(v.number))}] = d.files[e.Call.Open]
			}
		}
	}
}

// isFD reports whether a field of an answer is a new descriptor.
func isFD(name string) bool {
	return name == "fd" || name == "async_fd" || name == "fd_handle"
}

// Names of files.
const (
	CMFile    = "rdma_cm"
	eventFile = "event"
)

// event describes what was read from an event channel.
func (d *Decoder) event(e *Event) {
	c := e.Call
	e.Verb = "wait for event"
	f := d.channels[channel{c.PID, c.FD}]
	if f == nil {
		f = d.file(c)
	}
	name := "ib_uverbs_comp_event_desc"
	if abi := abi().structs["ib_uverbs_async_event_desc"].size; len(c.Response) > 0 && len(c.Response)%abi == 0 {
		name = "ib_uverbs_async_event_desc"
	}
	if len(c.Response) == 0 {
		return
	}
	values, rest := f.decodeStruct(name, c.Response, nil)
	e.add(Payload{Name: name, ID: -1, Output: true, Values: values})
	e.rest(rest, true, false)
	if len(values) == 0 {
		return
	}
	kinds := []string{"CQ"}
	e.Verb = "get CQ event"
	if name == "ib_uverbs_async_event_desc" {
		e.Verb = "get asynchronous event"
		kinds = eventKinds(integer(c.Response[8:12], false))
	}
	for o, info := range f.objects {
		if slices.Contains(kinds, o.kind) && info.userHandle == values[0].number {
			e.Kind, e.Object = o.kind, f.label(o.kind, o.handle)
		}
	}
	if kinds == nil && values[0].number != 0 {
		e.note("port", fmt.Sprint(values[0].number))
	}
}

// eventKinds returns the kinds of object that an asynchronous event (enum ib_event_type) is about, nil for a
// port or the device.
func eventKinds(event uint64) []string {
	switch event {
	case 0:
		return []string{"CQ"}
	case 1, 2, 3, 4, 5, 6, 7, 16:
		return []string{"QP"}
	case 14, 15:
		return []string{"SRQ"}
	case 19:
		return []string{"WQ"}
	}
	return nil
}

// rest adds bytes behind a struct.
func (e *Event) rest(b []byte, output, driver bool) {
	if len(b) > 0 {
		e.add(Payload{Name: fmt.Sprintf("%d more bytes", len(b)), ID: -1, Output: output, Driver: driver, Unknown: !zero(b), Values: []Value{octets("bytes", b)}})
	}
}

// otherIoctl describes an ioctl that is not RDMA_VERBS_IOCTL, which management datagrams have.
func (f *openFile) otherIoctl(e *Event) {
	c := e.Call
	name, ok := abi().enums["IB_USER_MAD_REGISTER_AGENT"].name(uint64(c.Command))
	if !ok {
		e.Verb, e.Unknown = fmt.Sprintf("ioctl %#x", c.Command), 1
	} else {
		e.Method, e.Verb = name, strings.Replace(verbOf(name), "agent2", "agent", 1)
	}
	st := map[string]string{"IB_USER_MAD_REGISTER_AGENT": "ib_user_mad_reg_req", "IB_USER_MAD_REGISTER_AGENT2": "ib_user_mad_reg_req2"}[name]
	for _, b := range []Octets{c.Request, c.Response} {
		if len(b) == 0 {
			continue
		}
		p := Payload{Name: "argument", ID: -1, Output: &b[0] == &c.Response.first()[0], Values: []Value{octets("bytes", b)}}
		if st != "" {
			p.Name = st
			p.Values, _ = f.decodeStruct(st, b, nil)
		}
		e.add(p)
	}
}

// first returns the bytes, or one byte if there are none.
func (o Octets) first() Octets {
	if len(o) == 0 {
		return Octets{0}
	}
	return o
}

// find returns the last value with a name.
func (e *Event) find(output bool, names ...string) (Value, bool) {
	for _, p := range slices.Backward(e.Payloads) {
		for _, v := range p.Values {
			if p.Output == output && !p.Driver && slices.ContainsFunc(names, func(n string) bool {
				return v.Name == n || strings.HasSuffix(v.Name, "."+n)
			}) {
				return v, true
			}
		}
	}
	return Value{}, false
}

// Beginnings of verbs that make an object, and that end one.
var (
	creates  = []string{"create ", "allocate ", "register ", "open "}
	destroys = []string{"destroy ", "deallocate ", "deregister ", "close ", "free "}
)

func begins(verb string, with []string) bool {
	return slices.ContainsFunc(with, func(p string) bool { return strings.HasPrefix(verb, p) })
}

// doorbellCommands are those that a program gives for each message.
var doorbellCommands = []string{
	"IB_USER_VERBS_CMD_POST_SEND", "IB_USER_VERBS_CMD_POST_RECV", "IB_USER_VERBS_CMD_POST_SRQ_RECV", "IB_USER_VERBS_CMD_REQ_NOTIFY_CQ",
}

// kinds of the objects of commands whose name does not end with it.
var kinds = map[string]string{
	"create XRC SRQ": "SRQ", "request CQ notification": "CQ", "post send": "QP", "post recv": "QP", "post SRQ recv": "SRQ",
	"attach multicast": "QP", "detach multicast": "QP", "modify CQ": "CQ", "register MR of DM": "MR", "register MR of DMABUF": "MR",
	"create RWQ indirection table": "RWQ indirection table", "create ESP flow action": "flow action", "modify ESP flow action": "flow action",
}

// Kinds returns what [Event].Kind may be, in alphabetical order.
func Kinds() []string {
	all := map[string]bool{"ID": true} // of the connection manager
	for id := range specified().objects {
		all[kindOf(objectName(id, uint32(netlinkrdma.DriverMLX5)))] = true
	}
	for _, e := range abi().enums["ib_uverbs_write_cmds"].enumerators {
		all[commandKind(verbOf(e.name))] = true
	}
	delete(all, "")
	return sortedKeys(all)
}

// commandKind returns the kind of object that a command of the write interface is about.
func commandKind(verb string) string {
	if kind, ok := kinds[verb]; ok {
		return kind
	}
	_, rest, _ := strings.Cut(verb, " ")
	return rest
}

// subject finds the object that a command is about, and remembers or forgets it.
func (f *openFile) subject(e *Event) {
	if e.Kind == "" {
		e.Kind = commandKind(e.Verb)
	}
	create := begins(e.Verb, creates)
	var handle Value
	found := false
	for _, p := range e.Payloads {
		for _, v := range p.Values {
			if v.handle == e.Kind && p.Output == create && !p.Driver && !found {
				handle, found = v, true
			}
		}
	}
	if !found {
		return
	}
	key := object{e.Kind, uint32(handle.number)}
	if create && e.Call.Errno == "" {
		info := &objectInfo{number: uint32(handle.number)}
		if n, ok := e.find(true, "qpn", "resp_qp_num"); ok && e.Kind == "QP" {
			info.number = uint32(n.number)
		}
		if n, ok := e.find(false, "user_handle"); ok {
			info.userHandle = n.number
		}
		f.objects[key] = info
		if pd, ok := e.find(false, "pd_handle"); ok {
			e.Parent = pd.Text
		}
	}
	e.Object, e.handle = f.label(key.kind, key.handle), key.handle
	f.mappings(e)
	info := f.objects[key]
	if slices.Contains(doorbellCommands, e.Method) {
		e.Doorbell = true
		if info == nil { // it is older than the trace
			info = &objectInfo{number: key.handle}
			f.objects[key] = info
		}
		if info.doorbells == nil {
			info.doorbells = map[string]int{}
		}
		if e.Call.Errno == "" {
			info.doorbells[e.Verb] += max(1, e.Call.Count)
		}
		return
	}
	if info != nil && begins(e.Verb, destroys) && e.Call.Errno == "" {
		for _, verb := range sortedKeys(info.doorbells) {
			e.note("", fmt.Sprintf("%s %d times", verb, info.doorbells[verb]))
		}
		delete(f.objects, key)
	}
}

// mappings remembers the memory that the answer to a command offers: fields named mi.offset (rxe), mmap_offset
// (mlx5) and cq_key, sq_key and so on (siw).
func (f *openFile) mappings(e *Event) {
	for _, p := range e.Payloads {
		for _, v := range p.Values {
			name, offset := strings.CutSuffix(v.Name, ".offset")
			key, isKey := strings.CutSuffix(v.Name, "_key")
			switch {
			case !p.Output || !p.Driver:
			case offset:
				f.offsets[v.number] = mapping{e.Kind, strings.TrimSuffix(e.Object+" "+strings.TrimSuffix(strings.TrimSuffix(name, "mi"), "_"), " ")}
			case isKey:
				f.offsets[v.number] = mapping{e.Kind, e.Object + " " + key}
			case strings.HasSuffix(v.Name, "mmap_offset"):
				f.offsets[v.number] = mapping{e.Kind, e.Object}
			}
		}
	}
}

func sortedKeys[V any](m map[string]V) []string {
	var all []string
	for k := range m {
		all = append(all, k)
	}
	slices.Sort(all)
	return all
}
