package soft

import (
	"encoding/binary"
	"math"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// attrKind says how an attribute of a method is passed.
type attrKind uint8

const (
	input     attrKind = iota // bytes
	output                    // room for bytes
	used                      // the handle of an object that the method uses
	created                   // the handle of the object that the method creates
	destroyed                 // the handle of the object that the method destroys
	channel                   // the file descriptor of an event channel
	newFile                   // the file descriptor that the method creates
	rawFD                     // any file descriptor
)

// attrSpec describes an attribute of a method.
type attrSpec struct {
	id        uint16
	kind      attrKind
	min, max  uint16 // of input and output in bytes
	extends   bool   // longer input is allowed if the rest is zero, and longer output
	mandatory bool
	object    uint16 // UVERBS_OBJECT_* of a handle or channel
}

// Specifications of attributes.
func in(id, size uint16) attrSpec {
	return attrSpec{id: id, kind: input, min: size, max: size, mandatory: true}
}
func out(id, size uint16) attrSpec {
	return attrSpec{id: id, kind: output, min: size, max: size, mandatory: true}
}
func inAtLeast(id, size uint16) attrSpec {
	return attrSpec{id: id, kind: input, min: size, max: math.MaxUint16, mandatory: true}
}
func outAtLeast(id, size uint16) attrSpec {
	return attrSpec{id: id, kind: output, min: size, max: math.MaxUint16, mandatory: true}
}
func inStruct(id, size uint16) attrSpec {
	return attrSpec{id: id, kind: input, min: size, max: size, extends: true, mandatory: true}
}
func outStruct(id, size uint16) attrSpec {
	return attrSpec{id: id, kind: output, min: size, max: size, extends: true, mandatory: true}
}

// constIn is an integer of 8 bytes, flagsIn one of 4 or 8 bytes.
func constIn(id uint16) attrSpec { return in(id, 8) }
func flagsIn(id uint16) attrSpec {
	return attrSpec{id: id, kind: input, min: 4, max: 8, mandatory: true}
}
func handle(id uint16, kind attrKind, object uint16) attrSpec {
	return attrSpec{id: id, kind: kind, object: object, mandatory: true}
}

// optional makes an attribute optional.
func optional(s attrSpec) attrSpec {
	s.mandatory = false
	return s
}

// udataSpecs are the attributes of methods with a driver's part.
var udataSpecs = []attrSpec{
	optional(inAtLeast(abi.UVERBS_ATTR_UHW_IN, 0)),
	optional(outAtLeast(abi.UVERBS_ATTR_UHW_OUT, 0)),
}

// spec returns the specification of an attribute, or nil.
func (m *method) spec(id uint16) *attrSpec {
	for i := range m.attrs {
		if m.attrs[i].id == id {
			return &m.attrs[i]
		}
	}
	if m.udata {
		for i := range udataSpecs {
			if udataSpecs[i].id == id {
				return &udataSpecs[i]
			}
		}
	}
	return nil
}

// takeAttrs checks the attributes of a command, and looks up and locks the objects.
func (k *call) takeAttrs(m *method) syscall.Errno {
	attrs := k.cmd.Attrs()
	for i := range attrs {
		a := &attrs[i]
		s := m.spec(a.ID)
		if s == nil {
			if a.Flags&abi.UVERBS_ATTR_F_MANDATORY != 0 {
				return syscall.EPROTONOSUPPORT
			}
			continue
		}
		if k.cmd.Attr(a.ID) != a { // it is there twice
			return syscall.EINVAL
		}
		if errno := k.takeAttr(s, a); errno != 0 {
			return errno
		}
	}
	for i := range m.attrs {
		if s := &m.attrs[i]; s.mandatory && k.attr(s.id) == nil {
			return syscall.EINVAL
		}
	}
	return 0
}

// takeAttr checks one attribute.
func (k *call) takeAttr(s *attrSpec, a *kernel.Attr) syscall.Errno {
	switch s.kind {
	case input:
		return checkInput(s, a)
	case output:
		return checkOutput(s, a)
	}
	if a.Len != 0 || a.Enum != 0 {
		return syscall.EINVAL
	}
	switch s.kind {
	case used:
		_, errno := k.lookup(s.object, a.Data)
		return errno
	case created:
		handle, errno := k.reserve(s.object)
		a.Data = uint64(handle)
		return errno
	case destroyed:
		o, errno := k.find(s.object, a.Data)
		k.victim = o
		return errno
	case channel:
		_, errno := k.channel(s.object, int64(a.Data))
		return errno
	case newFile:
		return k.ctx.usable()
	case rawFD:
		if v := int64(a.Data); v < math.MinInt32 || v > math.MaxInt32 {
			return syscall.EINVAL
		}
	}
	return 0
}

func checkInput(s *attrSpec, a *kernel.Attr) syscall.Errno {
	b, errno := inputOf(a)
	if errno != 0 {
		return errno
	}
	if s.extends && len(b) > int(s.max) && !isZero(b[s.max:]) {
		return syscall.EOPNOTSUPP
	}
	return checkLen(s, a)
}

func checkOutput(s *attrSpec, a *kernel.Attr) syscall.Errno {
	if errno := checkLen(s, a); errno != 0 {
		return errno
	}
	if len(a.Out) < int(a.Len) {
		return syscall.EFAULT
	}
	return 0
}

func checkLen(s *attrSpec, a *kernel.Attr) syscall.Errno {
	if a.Len < s.min || !s.extends && a.Len > s.max || a.Enum != 0 {
		return syscall.EINVAL
	}
	return 0
}

// inputOf returns the bytes of an input attribute. Up to 8 bytes are in the attribute itself.
func inputOf(a *kernel.Attr) ([]byte, syscall.Errno) {
	if a.Len <= 8 {
		return binary.LittleEndian.AppendUint64(nil, a.Data)[:a.Len], 0
	}
	if len(a.In) < int(a.Len) {
		return nil, syscall.EFAULT
	}
	return a.In[:a.Len], 0
}

func isZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// attr returns an attribute of the command, or nil.
func (k *call) attr(id uint16) *kernel.Attr {
	attrs := k.cmd.Attrs()
	for i := range attrs {
		if attrs[i].ID == id {
			return &attrs[i]
		}
	}
	return nil
}

// has reports whether the command has an attribute.
func (k *call) has(id uint16) bool { return k.attr(id) != nil }

// uint returns an integer, or 0 if the command does not have it.
func (k *call) uint(id uint16) uint64 {
	a := k.attr(id)
	if a == nil {
		return 0
	}
	v := a.Data
	if a.Len < 8 {
		v &= 1<<(8*a.Len) - 1
	}
	return v
}

// constant returns an integer that is at most max.
func (k *call) constant(id uint16, max uint64) (uint64, syscall.Errno) {
	v := k.uint(id)
	if v > max {
		return 0, syscall.EINVAL
	}
	return v, 0
}

// flags returns flags of which some are allowed, or 0 if the command does not have them.
func (k *call) flags(id uint16, allowed uint32) (uint32, syscall.Errno) {
	a := k.attr(id)
	if a == nil {
		return 0, 0
	}
	if a.Len != 4 && a.Len != 8 {
		return 0, syscall.EINVAL
	}
	v := k.uint(id)
	if v&^uint64(allowed) != 0 {
		return 0, syscall.EINVAL
	}
	return uint32(v), 0
}

// bytes returns the input of an attribute of the command, or nil.
func (k *call) bytes(id uint16) []byte {
	a := k.attr(id)
	if a == nil {
		return nil
	}
	b, _ := inputOf(a)
	return b
}

// put writes an output, as much of it as there is room for. A command without the attribute makes
// it fail with ENOENT, which is no error if the attribute is optional.
func (k *call) put(id uint16, b []byte) syscall.Errno {
	a := k.attr(id)
	if a == nil {
		return syscall.ENOENT
	}
	copy(a.Out[:a.Len], b)
	return 0
}

// putUint32 and putUint64 write integers.
func (k *call) putUint32(id uint16, v uint32) syscall.Errno {
	return k.put(id, binary.LittleEndian.AppendUint32(nil, v))
}
func (k *call) putUint64(id uint16, v uint64) syscall.Errno {
	return k.put(id, binary.LittleEndian.AppendUint64(nil, v))
}

// putStruct writes an output and zeroes what remains of the room.
func (k *call) putStruct(id uint16, b []byte) syscall.Errno {
	a := k.attr(id)
	if a == nil {
		return syscall.ENOENT
	}
	clear(a.Out[copy(a.Out[:a.Len], b):a.Len])
	return 0
}
