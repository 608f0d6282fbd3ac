//go:build amd64 || arm64

package uverbs

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// Opcodes of firmware commands, in the order of the test's answers.
const (
	queryCapsOp, rts2rtsOp, queryQPOp, queryLAGOp = 0x100, 0x505, 0x50b, 0x842
)

// fakeFirmware answers commands of DEVX.
type fakeFirmware struct {
	kernel.Device
	t       *testing.T
	caps    map[int]byte // bytes of the capabilities
	lag     byte         // state
	qpc     [272]byte    // what QUERY_QP answers
	ops     []uint16     // the commands that it got
	in      []byte       // the last one
	errno   syscall.Errno
	refused uint16 // the command that has errno and, with EREMOTEIO, a syndrome
}

// Do implements [kernel.Device].
func (f *fakeFirmware) Do(cmd *kernel.Command, _ bool) syscall.Errno {
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
	f.in = slices.Clone(cmd.Attr(in).In)
	op, b := binary.BigEndian.Uint16(f.in), cmd.Attr(out).Out
	f.ops = append(f.ops, op)
	if f.errno != 0 && op == f.refused {
		if f.errno == syscall.EREMOTEIO {
			b[0], b[6], b[7] = 3, 0x12, 0x34
		}
		return f.errno
	}
	switch op {
	case queryCapsOp:
		for at, v := range f.caps {
			b[16+at] = v
		}
	case queryLAGOp:
		b[11], b[14], b[15] = f.lag, 1, 2 // each port in place of the other
	case queryQPOp:
		copy(b, f.qpc[:])
	}
	return 0
}

// newFirmware makes a QP in RTS whose adapter has all capabilities.
func newFirmware(t *testing.T, typ ib.QPType) (*fakeFirmware, *QP) {
	t.Helper()
	c := newMlx5Card(t, true, false, 64)
	f := &fakeFirmware{t: t, lag: 1, caps: map[int]byte{0x151 / 8: 0x60, 0x278 / 8: 0x82, 0x122 / 8: 0x20}}
	c.dev.cmd = newCommands(f, pathAuto, "mlx5_0", c.dev.driver)
	c.dev.mlx5.devx.has = true
	c.qp.typ = typ
	return f, c.qp
}

// lacksCap checks that an error names a capability.
func lacksCap(t *testing.T, err error, capability string) {
	t.Helper()
	var f *FeatureError
	if !errors.As(err, &f) || f.Driver != "mlx5" || !strings.Contains(err.Error(), capability) {
		t.Errorf("%v, want a FeatureError about %s", err, capability)
	}
}

// isArg checks that an error is about an argument.
func isArg(t *testing.T, err error, field string) {
	t.Helper()
	var a *ArgError
	if !errors.As(err, &a) || a.Field != field {
		t.Errorf("%v, want an ArgError about %s", err, field)
	}
}

// TestMlx5SourcePort: the firmware gets the port, and one query for its capabilities.
func TestMlx5SourcePort(t *testing.T) {
	f, q := newFirmware(t, ib.RC)
	must(t, q.SetUDPSourcePort(0xd903), q.SetUDPSourcePort(0xffff))
	if want := []uint16{queryCapsOp, rts2rtsOp, rts2rtsOp}; !slices.Equal(f.ops, want) {
		t.Errorf("the firmware got %#x, want %#x", f.ops, want)
	}
	if f.in[82] != 0xff || f.in[83] != 0xff || f.in[271] != 4 || binary.BigEndian.Uint32(f.in[8:]) != cardQPN {
		t.Errorf("RTS2RTS_QP: %x", f.in)
	}
	isArg(t, q.SetUDPSourcePort(0xbfff), "port")
	q.state.Store(uint32(ib.QPRTR))
	isArg(t, q.SetUDPSourcePort(0xc000), "state")
	q.typ = ib.UD
	isArg(t, q.SetUDPSourcePort(0xc000), "QP type")
	f, q = newFirmware(t, ib.UC)
	f.caps[0x151/8] = 0x20
	lacksCap(t, q.SetUDPSourcePort(0xc000), "rts2rts_qp_udp_sport")
	_, q = newFirmware(t, ib.UC)
	q.dev.mlx5.devx.has = false
	lacksCap(t, q.SetUDPSourcePort(0xc000), "OpenOptions.DEVX")
}

// TestMlx5ResetStream: the firmware gets the stream in an extended context.
func TestMlx5ResetStream(t *testing.T) {
	f, q := newFirmware(t, ib.DCI)
	q.mlx5.streams = true
	must(t, q.ResetStream(0x0708))
	if len(f.in) != 464 || binary.BigEndian.Uint32(f.in[8:]) != 1<<31|cardQPN || f.in[271] != 1 || f.in[274] != 7 || f.in[275] != 8 {
		t.Errorf("RTS2RTS_QP: %x", f.in)
	}
	f.errno, f.refused = syscall.EREMOTEIO, rts2rtsOp
	var firm *FirmwareError
	if err := q.ResetStream(1); !errors.As(err, &firm) || firm.Status != 3 {
		t.Errorf("%v, want a FirmwareError", err)
	}
	q.mlx5.streams = false
	if err := q.ResetStream(0); !errors.As(err, new(*ArgError)) || !strings.Contains(err.Error(), "QP 1193046: the DCI was created without DCIOptions.Streams") {
		t.Errorf("a DCI without streams: %v", err)
	}
	q.state.Store(uint32(ib.QPErr))
	isArg(t, q.ResetStream(1), "state")
	q.typ = ib.DCT
	isArg(t, q.ResetStream(1), "QP type")
	f, q = newFirmware(t, ib.DCI)
	q.mlx5.streams, f.caps[0x122/8] = true, 0xdf
	lacksCap(t, q.ResetStream(1), "qpc_extension")
	_, q = newFirmware(t, ib.DCI)
	q.mlx5.streams, q.dev.mlx5.devx.has = true, false
	lacksCap(t, q.ResetStream(1), "OpenOptions.DEVX")
}

// TestMlx5LAG: ports of a LAG, and the capability that is missing if there are none.
func TestMlx5LAG(t *testing.T) {
	f, q := newFirmware(t, ib.RC)
	if l, err := q.dev.LAG(); err != nil || l != (LAG{Ports: 2, Active: true, SendsBy: [2]uint8{2, 1}}) {
		t.Errorf("%+v, %v", l, err)
	}
	for port, want := range []LAGPort{{}, {Port: 1, Active: 2}, {Port: 2, Active: 1}, {Port: 3}} {
		f.qpc[24] = 0x30 | byte(port)
		if p, err := q.LAGPort(); err != nil || p != want {
			t.Errorf("port %d: %+v, %v, want %+v", port, p, err, want)
		}
	}
	must(t, q.SetLAGPort(2))
	if f.in[24] != 2 || f.in[18] != 0x80 {
		t.Errorf("RTS2RTS_QP: %x", f.in)
	}
	for field, set := range map[string]func() error{
		"port":    func() error { return q.SetLAGPort(3) },
		"state":   func() error { q.state.Store(uint32(ib.QPRTR)); return q.SetLAGPort(1) },
		"QP type": func() error { q.typ = ib.DCT; return q.SetLAGPort(1) },
	} {
		var a *ArgError
		_, q = newFirmware(t, ib.RC)
		if err := set(); !errors.As(err, &a) || a.Field != field {
			t.Errorf("%v, want an ArgError about %s", err, field)
		}
	}
	f, q = newFirmware(t, ib.RC)
	f.caps[0x151/8] = 0x40
	lacksCap(t, q.SetLAGPort(1), "rts2rts_lag_tx_port_affinity")
	f, q = newFirmware(t, ib.RC)
	f.caps[0x278/8], f.lag = 2, 0
	lacksCap(t, q.SetLAGPort(1), "lag_tx_port_affinity")
	f, q = newFirmware(t, ib.RC)
	f.caps[0x278/8] = 0x81
	lacksCap(t, q.SetLAGPort(1), "num_lag_ports")
	if len(f.ops) != 1 {
		t.Errorf("the firmware got %#x, and has no LAG", f.ops)
	}
}

// TestMlx5FirmwareError: a refusal has its syndrome, and is not kept.
func TestMlx5FirmwareError(t *testing.T) {
	f, q := newFirmware(t, ib.RC)
	f.errno, f.refused = syscall.EREMOTEIO, rts2rtsOp
	err := q.SetUDPSourcePort(0xc000)
	var firm *FirmwareError
	if !errors.As(err, &firm) || firm.Opcode != rts2rtsOp || firm.Status != 3 || firm.Syndrome != 0x1234 || !errors.Is(err, syscall.EREMOTEIO) {
		t.Errorf("%v (%+v)", err, firm)
	}
	if want := "refused RTS2RTS_QP: bad parameter (0x3), syndrome 0x1234"; err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "QP 1193046") {
		t.Errorf("%v, want %q", err, want)
	}
	f.errno, f.refused = syscall.EREMOTEIO, queryCapsOp
	d := q.dev
	d.mlx5.devx.known = false
	if _, err := d.LAG(); !errors.As(err, &firm) || firm.Opcode != queryCapsOp {
		t.Errorf("%v", err)
	}
	f.errno = syscall.EINVAL
	if err := d.DEVXCommand([]byte{1, 15: 0}, make([]byte, 16)); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "does not permit QUERY_HCA_CAP") {
		t.Errorf("%v", err)
	}
	f.errno = syscall.EIO // Linux 5.10 about a wrong length; the device is there, and what is in the answer is old
	if err := d.DEVXCommand([]byte{1, 15: 0}, []byte{3, 15: 0}); errors.Is(err, ErrDeviceRemoved) || !errors.Is(err, syscall.EIO) || errors.As(err, &firm) || !strings.Contains(err.Error(), "refused QUERY_HCA_CAP") {
		t.Errorf("%v", err)
	}
	f.errno = 0
	if _, err := d.LAG(); err != nil {
		t.Errorf("after a refusal: %v", err)
	}
	var a *ArgError
	for _, n := range []int{0, 15, 1<<16 - 7} {
		if err := q.DEVXModify(make([]byte, n), make([]byte, 16)); !errors.As(err, &a) || a.Field != "length of in" {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	for op := range 256 { // of the commands with 0x5 in front: those from RST2INIT_QP to 2RST_QP but RTS2RTS_QP
		err := q.DEVXModify([]byte{5, byte(op), 15: 0}, make([]byte, 16))
		changes := op >= 2 && op <= 10 && op != 5
		if refused := errors.As(err, &a) && a.Field == "command"; refused != changes {
			t.Errorf("command 0x5%02x: %v", op, err)
		}
		a = nil
	}
}

// TestMlx5ImportedDEVX: a device that another process has opened without DEVX does not support it,
// and the error says so.
func TestMlx5ImportedDEVX(t *testing.T) {
	f, q := newFirmware(t, ib.RC)
	q.dev.imported = true
	f.errno, f.refused = syscall.EINVAL, rts2rtsOp
	lacksCap(t, q.SetUDPSourcePort(0xc000), "did not open it for that")
	f.refused = queryLAGOp
	_, err := q.dev.LAG()
	lacksCap(t, err, "did not open it for that")
	if err := q.dev.DEVXCommand([]byte{8, 0x42, 15: 0}, make([]byte, 16)); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "did not open it for that") {
		t.Errorf("%v", err)
	}
}

// TestMlx5OpenDEVX: which contexts are requested, with and without the option and the environment
// variable, if the kernel refuses those for DEVX or not.
func TestMlx5OpenDEVX(t *testing.T) {
	for _, c := range []struct {
		mode   devxMode
		refuse syscall.Errno // of a context for DEVX
		flags  []byte        // of each GET_CONTEXT
		err    string
	}{
		{devxOff, syscall.EINVAL, []byte{0}, ""},
		{devxPossible, 0, []byte{1}, ""},
		{devxPossible, syscall.EINVAL, []byte{1, 0}, ""},
		{devxRequired, 0, []byte{1}, ""},
		{devxRequired, syscall.EINVAL, []byte{1, 0}, "log_max_uctx"},
		{devxPossible, syscall.ENOMEM, []byte{1, 0}, ""},
	} {
		var flags []byte
		d, _ := newFakeDevice(t, pathAuto, func(k *fakeKernel) {
			k.driver, k.context = mlx5Driver{}, mlx5Answer(func([]byte) {})
			k.seen = func(cmd *kernel.Command, _ bool) {
				if cmd.Object != abi.UVERBS_OBJECT_DEVICE || cmd.Method != abi.UVERBS_METHOD_GET_CONTEXT {
					return
				}
				flags = append(flags, cmd.Attr(abi.UVERBS_ATTR_UHW_IN).In[8])
				delete(k.refuse, "GET_CONTEXT")
				if c.refuse != 0 && flags[len(flags)-1] == 1 {
					k.refuse["GET_CONTEXT"] = c.refuse
				}
			}
		})
		err := d.getContext(c.mode)
		if !slices.Equal(flags, c.flags) {
			t.Errorf("%+v: the contexts had the flags %v", c, flags)
		}
		if c.err != "" {
			lacksCap(t, err, c.err)
			continue
		}
		must(t, err)
		if has := d.mlx5.devx.has; has != (c.flags[len(c.flags)-1] == 1) {
			t.Errorf("%+v: DEVX is %v", c, has)
		} else if !has {
			lacksCap(t, d.DEVXCommand(make([]byte, 16), make([]byte, 16)), "OpenOptions.DEVX")
		}
		must(t, d.Close())
	}
	d, _ := newFakeDevice(t, pathAuto, func(k *fakeKernel) {
		k.driver, k.context = mlx5Driver{}, mlx5Answer(func([]byte) {})
		k.refuse["GET_CONTEXT"] = syscall.ENOMEM // which says nothing about the adapter
	})
	if err := d.getContext(devxRequired); !errors.Is(err, syscall.ENOMEM) || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a context is refused for want of memory: %v", err)
	}
	d, _ = newFakeDevice(t, pathWrite, func(k *fakeKernel) { k.driver = mlx5Driver{} })
	lacksCap(t, d.getContext(devxRequired), "RDMAABI=write")
	d, _ = newFakeDevice(t, pathAuto, func(*fakeKernel) {})
	var f *FeatureError
	if err := d.getContext(devxRequired); !errors.As(err, &f) || f.Feature != "DEVX" || f.Driver != "rxe" {
		t.Errorf("rxe: %v", err)
	}
	for v, want := range map[string]devxMode{"": devxOff, "0": devxOff, "1": devxPossible} {
		t.Setenv(devxEnv, v)
		if got, err := devxFromEnv(); got != want || err != nil {
			t.Errorf("RDMADEVX=%s: %v, %v", v, got, err)
		}
	}
	t.Setenv(devxEnv, "yes")
	if _, err := devxFromEnv(); err == nil || !strings.Contains(err.Error(), `RDMADEVX is "yes", allowed: "1"`) {
		t.Errorf("RDMADEVX=yes: %v", err)
	}
}
