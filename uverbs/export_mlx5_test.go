//go:build amd64 || arm64

package uverbs

import (
	"encoding/binary"
	"slices"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/hook"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// Opcodes of firmware commands, in the order of the test's answers.
const (
	QueryCapsOp, RTS2RTSOp, QueryQPOp, QueryLAGOp = 0x100, 0x505, 0x50b, 0x842
)

// Firmware answers commands of DEVX.
type Firmware struct {
	kernel.Device
	t       *testing.T
	Caps    map[int]byte // bytes of the capabilities
	LAG     byte         // state
	QPC     [272]byte    // what QUERY_QP answers
	Ops     []uint16     // the commands that it got
	In      []byte       // the last one
	Errno   syscall.Errno
	Refused uint16 // the command that has errno and, with EREMOTEIO, a syndrome
}

// Do implements [kernel.Device].
func (f *Firmware) Do(cmd *kernel.Command, _ bool) syscall.Errno {
	if _, legacy := cmd.Legacy(); legacy { // after an EINVAL, to see whether the device is still there
		return 0
	}
	in, out := mlx5.AttrDEVXOtherIn, mlx5.AttrDEVXOtherOut
	switch [2]uint16{cmd.Object, cmd.Method} {
	case [2]uint16{mlx5.ObjectDEVX, mlx5.MethodDEVXOther}:
	case [2]uint16{mlx5.ObjectDEVXObj, mlx5.MethodDEVXModify}:
		in, out = mlx5.AttrDEVXModifyIn, mlx5.AttrDEVXModifyOut
	case [2]uint16{mlx5.ObjectDEVXObj, mlx5.MethodDEVXQuery}:
		in, out = mlx5.AttrDEVXQueryIn, mlx5.AttrDEVXQueryOut
	default:
		f.t.Errorf("object %#x, method %#x", cmd.Object, cmd.Method)
		return syscall.EINVAL
	}
	f.In = slices.Clone(cmd.Attr(in).In)
	op, b := binary.BigEndian.Uint16(f.In), cmd.Attr(out).Out
	f.Ops = append(f.Ops, op)
	if f.Errno != 0 && op == f.Refused {
		if f.Errno == syscall.EREMOTEIO {
			b[0], b[6], b[7] = 3, 0x12, 0x34
		}
		return f.Errno
	}
	switch op {
	case QueryCapsOp:
		for at, v := range f.Caps {
			b[16+at] = v
		}
	case QueryLAGOp:
		b[11], b[14], b[15] = f.LAG, 1, 2 // each port in place of the other
	case QueryQPOp:
		copy(b, f.QPC[:])
	}
	return 0
}

// NewFirmware makes a QP in RTS whose adapter has all capabilities.
func NewFirmware(t *testing.T, typ ib.QPType) (*Firmware, *QP) {
	t.Helper()
	c := newMlx5Card(t, true, false, 64)
	f := &Firmware{t: t, LAG: 1, Caps: map[int]byte{0x151 / 8: 0x60, 0x278 / 8: 0x82, 0x122 / 8: 0x20}}
	c.dev.cmd = newCommands(f, pathAuto, "mlx5_0", c.dev.driver)
	c.dev.mlx5.uars.cmd = c.dev.cmd
	c.dev.mlx5.part.DEVX = true
	c.qp.typ = typ
	return f, c.qp
}

// CardQPN is the number of the QP.
const CardQPN = cardQPN

// Functions by which the tests of package mlx5 change a QP and its device.

func SetType(q *QP, t ib.QPType)     { q.typ = t }
func SetState(q *QP, s ib.QPState)   { q.state.Store(uint32(s)) }
func SetStreams(q *QP, streams bool) { q.mlx5.streams = streams }
func SetPath(q *QP, o PathOptions)   { q.path = o }
func SetImported(q *QP)              { q.dev.imported = true }
func SetDEVX(q *QP, devx bool)       { q.dev.mlx5.part.DEVX = devx }
func ForgetCaps(q *QP)               { q.dev.mlx5.part.Known = false }

// FrameCard is the adapter of a frame queue, whose side the test plays.
type FrameCard struct {
	PD    *PD
	CQ    *CQ
	limit [5]uint32 // of strides, as QUERY_DEVICE has them; 0 is no strides
	Errno syscall.Errno
	Ask   func() // Ask is called when the kernel is, if it is not nil.
	next  uint32
}

// NewFrameCard makes one with strides, or without.
func NewFrameCard(t *testing.T, strides bool) *FrameCard {
	t.Helper()
	c := newMlx5Card(t, true, false, 64)
	f := &FrameCard{}
	if strides {
		f.limit = [5]uint32{6, 13, 3, 16, 1 << ib.RawPacket}
	}
	c.answer = func() syscall.Errno {
		if f.Ask != nil {
			f.Ask()
		}
		return f.Errno
	}
	c.legacy = func(l *kernel.Legacy) syscall.Errno {
		if len(l.DrvOut) == mlx5.QueryDeviceRespSize {
			for i, v := range f.limit {
				binary.LittleEndian.PutUint32(l.DrvOut[72+4*i:], v)
			}
			l.DrvOut[36] = byte(f.limit[0]) // formats of compression
		}
		return f.Errno
	}
	c.dev.attr.MaxCQE, c.dev.attr.MaxQPWR, c.dev.attr.MaxSGE = 1<<22, 1<<15, 30
	c.dev.vectors = 1
	before := lent.CreateStrided
	t.Cleanup(func() { lent.CreateStrided = before })
	lent.CreateStrided = func(p *PD, o WQOptions, s mlx5.Strides, z mlx5.Compression) (*WQ, *hook.Strided, error) {
		f.CQ = o.CQ
		return before(p, o, s, z)
	}
	f.PD = &PD{}
	must(t, f.PD.addParents(c.dev, "PD", "DEALLOC_PD", &c.dev.object), f.PD.markCreated(f.PD))
	return f
}

// Put writes a completion: opcode and inline bits, the number of strides and bytes, and the index of the first stride.
func (f *FrameCard) Put(t *testing.T, own byte, count uint32, first uint16, fields map[int]byte) {
	t.Helper()
	ring := f.CQ.region.Bytes()
	n := uint32(len(ring) / 64)
	e := ring[f.next%n*64:][:64]
	clear(e)
	binary.BigEndian.PutUint32(e[44:], count)
	binary.BigEndian.PutUint16(e[60:], first)
	for at, v := range fields {
		e[at] = v
	}
	e[63] = own | byte(f.next/n&1)
	f.next++
}
