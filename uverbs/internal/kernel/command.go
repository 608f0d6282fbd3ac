package kernel

import (
	"encoding/binary"
	"slices"
	"sync"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// maxAttrs is the largest number of attributes of a command.
const maxAttrs = 16

// Command is one call of a method: the object, the method and the attributes. The caller may read
// the answers until it calls [Command.Done].
type Command struct {
	Object, Method uint16

	// Brief says that a software device carries the command out at once, without sleeping:
	// see [CharOptions.Software].
	Brief bool

	n     int
	attrs []Attr     // the room for them
	wire  *ioctlForm // what encode has written, or nil. The attributes hold what the addresses in it point to.
}

// ioctlForm is the form of a command for the ioctl.
type ioctlForm struct {
	hdr   abi.IoctlHdr
	attrs [maxAttrs]abi.Attr
}

// largeCommand is a command with room for all attributes, in one piece of memory.
type largeCommand struct {
	Command
	attrs [maxAttrs]Attr
	wire  ioctlForm
}

// newLarge returns a command with room for all attributes.
func newLarge() *Command {
	l := new(largeCommand)
	l.Command.attrs, l.Command.wire = l.attrs[:], &l.wire
	return &l.Command
}

// Attr is an attribute of a command. It holds an integer, a handle or a file descriptor in Data, or
// input, or room for output.
type Attr struct {
	ID    uint16
	Flags uint16 // Flags is UVERBS_ATTR_F_MANDATORY unless the kernel may ignore the attribute.
	Enum  uint8  // Enum selects one of several kinds of input (UVERBS_ATTR_ENUM_IN).
	Len   uint16 // Len is the length of input, output or an integer in bytes, else 0.

	Data uint64 // Data is the value, or input of up to 8 bytes. The device sets it to a new handle.
	In   []byte // In is the input.
	Out  []byte // Out is the memory that the device writes output to.
}

// SetIn makes the attribute input.
func (a *Attr) SetIn(b []byte) {
	a.In, a.Len = b, uint16(len(b))
	if len(b) <= 8 { // such input travels in the attribute itself
		var word [8]byte
		copy(word[:], b)
		a.Data = binary.LittleEndian.Uint64(word[:])
	}
}

// SetOut makes the attribute output.
func (a *Attr) SetOut(b []byte) { a.Out, a.Len = b, uint16(len(b)) }

// SetUint makes the attribute an integer of n bytes, at most 8.
func (a *Attr) SetUint(v uint64, n uint16) { a.Data, a.Len = v, n }

// memory returns what the kernel gets the address of, or nil.
func (a *Attr) memory() []byte {
	if len(a.In) > 8 {
		return a.In
	}
	return a.Out
}

// spare are commands that are done.
var spare = sync.Pool{New: func() any { return newLarge() }}

// NewCommand returns a command without attributes.
func NewCommand(object, method uint16) *Command {
	c := spare.Get().(*Command)
	c.Object, c.Method, c.Brief, c.n = object, method, false, 0
	return c
}

// Done ends the use of a command and of its attributes, which later commands may use again. Calling
// it is optional.
func (c *Command) Done() {
	clear(c.attrs[:c.n]) // so that the memory can be collected
	spare.Put(c)
}

// Add adds a mandatory attribute. It is the handle of an object to be created unless the caller
// changes it.
func (c *Command) Add(id uint16) *Attr {
	a := &c.attrs[c.n]
	c.n++
	*a = Attr{ID: id, Flags: abi.UVERBS_ATTR_F_MANDATORY}
	return a
}

// Attrs returns the attributes. The slice must not be used after [Command.Done].
func (c *Command) Attrs() []Attr { return c.attrs[:c.n] }

// Attr returns the attribute with an ID, or an empty one that is not part of the command.
func (c *Command) Attr(id uint16) *Attr {
	for i := range c.attrs[:c.n] {
		if c.attrs[i].ID == id {
			return &c.attrs[i]
		}
	}
	return &Attr{}
}

// invokeWrite wraps a legacy command in the method that carries it.
func invokeWrite(number uint32, in, out, drvIn, drvOut []byte) *Command {
	c := NewCommand(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_INVOKE_WRITE)
	c.addWrite(number, in, out)
	c.AddDriver(drvIn, drvOut)
	return c
}

// addWrite adds the attributes of INVOKE_WRITE, up to writeAttrs, but not the driver's part.
func (c *Command) addWrite(number uint32, in, out []byte) {
	if len(in) > 0 {
		c.Add(abi.UVERBS_ATTR_CORE_IN).SetIn(in)
	}
	if len(out) > 0 {
		c.Add(abi.UVERBS_ATTR_CORE_OUT).SetOut(out)
	}
	c.Add(abi.UVERBS_ATTR_WRITE_CMD).SetUint(uint64(number), 8)
	c.Brief = number == abi.IB_USER_VERBS_CMD_MODIFY_QP
}

// writeAttrs is the largest number of attributes that addWrite adds.
const writeAttrs = 3

// AddDriver adds the driver's part of request and response, which may be empty.
func (c *Command) AddDriver(in, out []byte) {
	if len(in) > 0 {
		c.Add(abi.UVERBS_ATTR_UHW_IN).SetIn(in)
	}
	if len(out) > 0 {
		c.Add(abi.UVERBS_ATTR_UHW_OUT).SetOut(out)
	}
}

// hdrSize is the size of the header of a legacy command (struct ib_uverbs_cmd_hdr).
const hdrSize = 8

// Legacy is a command of the write() interface.
type Legacy struct {
	Number        uint32
	In, Out       []byte // In and Out are the core structs; Out is nil without a response.
	DrvIn, DrvOut []byte // DrvIn and DrvOut are the driver's part.
}

// Legacy returns the legacy command that the command carries; ok is false if its method is not
// INVOKE_WRITE.
func (c *Command) Legacy() (l Legacy, ok bool) {
	if c.Object != abi.UVERBS_OBJECT_DEVICE || c.Method != abi.UVERBS_METHOD_INVOKE_WRITE {
		return Legacy{}, false
	}
	return Legacy{
		Number: uint32(c.Attr(abi.UVERBS_ATTR_WRITE_CMD).Data),
		In:     c.Attr(abi.UVERBS_ATTR_CORE_IN).In, Out: c.Attr(abi.UVERBS_ATTR_CORE_OUT).Out,
		DrvIn: c.Attr(abi.UVERBS_ATTR_UHW_IN).In, DrvOut: c.Attr(abi.UVERBS_ATTR_UHW_OUT).Out,
	}, true
}

// Request returns the bytes for write(): the header, the core struct and the driver's part. The
// response, of core and driver parts one after the other, goes to address resp.
func (l *Legacy) Request(resp uint64) []byte {
	hdr := abi.CmdHdr{Command: l.Number}
	var b []byte
	if l.Number&abi.IB_USER_VERBS_CMD_FLAG_EXTENDED != 0 {
		hdr.InWords, hdr.OutWords = uint16(len(l.In)/8), uint16(len(l.Out)/8)
		ex := abi.ExCmdHdr{ProviderInWords: uint16(len(l.DrvIn) / 8), ProviderOutWords: uint16(len(l.DrvOut) / 8)}
		b = slices.Concat(Bytes(&hdr), Bytes(&ex), l.In, l.DrvIn)
	} else {
		hdr.InWords = uint16((hdrSize + len(l.In) + len(l.DrvIn)) / 4)
		hdr.OutWords = uint16((len(l.Out) + len(l.DrvOut)) / 4)
		b = slices.Concat(Bytes(&hdr), l.In, l.DrvIn)
	}
	if resp != 0 { // the first field behind the header in both forms
		binary.LittleEndian.PutUint64(b[hdrSize:], resp)
	}
	return b
}

// putRequest writes a legacy command that is not an extended one into b, and returns its size. The
// response has respSize bytes and goes to address resp.
func putRequest(b []byte, number uint32, in []byte, respSize int, resp uint64) int {
	binary.LittleEndian.PutUint32(b, number)
	binary.LittleEndian.PutUint16(b[4:], uint16((hdrSize+len(in))/4))
	binary.LittleEndian.PutUint16(b[6:], uint16(respSize/4))
	n := hdrSize + copy(b[hdrSize:], in)
	if respSize > 0 {
		binary.LittleEndian.PutUint64(b[hdrSize:], resp)
	}
	return n
}

// setResponse divides a response into its two parts.
func (l *Legacy) setResponse(resp []byte) { copy(l.DrvOut, resp[copy(l.Out, resp):]) }
