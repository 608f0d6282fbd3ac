//go:build amd64 || arm64

package uverbs_test

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/mlx5"
)

// The tests of package mlx5 are here, where a device exists whose firmware the test plays.

// lacksCap checks that an error names a capability.
func lacksCap(t *testing.T, err error, capability string) {
	t.Helper()
	var f *uverbs.FeatureError
	if !errors.As(err, &f) || f.Driver != "mlx5" || !strings.Contains(err.Error(), capability) {
		t.Errorf("%v, want a FeatureError about %s", err, capability)
	}
}

// isArg checks that an error is about an argument.
func isArg(t *testing.T, err error, field string) {
	t.Helper()
	var a *uverbs.ArgError
	if !errors.As(err, &a) || a.Field != field {
		t.Errorf("%v, want an ArgError about %s", err, field)
	}
}

// TestMlx5SourcePort: the firmware gets the port, and one query for its capabilities.
func TestMlx5SourcePort(t *testing.T) {
	f, q := uverbs.NewFirmware(t, ib.RC)
	testenv.Must(t, mlx5.SetUDPSourcePort(q, 0xd903), mlx5.SetUDPSourcePort(q, 0xffff))
	if want := []uint16{uverbs.QueryCapsOp, uverbs.RTS2RTSOp, uverbs.RTS2RTSOp}; !slices.Equal(f.Ops, want) {
		t.Errorf("the firmware got %#x, want %#x", f.Ops, want)
	}
	if f.In[82] != 0xff || f.In[83] != 0xff || f.In[271] != 4 || binary.BigEndian.Uint32(f.In[8:]) != uverbs.CardQPN {
		t.Errorf("RTS2RTS_QP: %x", f.In)
	}
	isArg(t, mlx5.SetUDPSourcePort(q, 0xbfff), "port")
	uverbs.SetState(q, ib.QPRTR)
	isArg(t, mlx5.SetUDPSourcePort(q, 0xc000), "state")
	uverbs.SetType(q, ib.UD)
	isArg(t, mlx5.SetUDPSourcePort(q, 0xc000), "QP type")
	f, q = uverbs.NewFirmware(t, ib.UC)
	f.Caps[0x151/8] = 0x20
	lacksCap(t, mlx5.SetUDPSourcePort(q, 0xc000), "rts2rts_qp_udp_sport")
	_, q = uverbs.NewFirmware(t, ib.UC)
	uverbs.SetDEVX(q, false)
	lacksCap(t, mlx5.SetUDPSourcePort(q, 0xc000), "OpenOptions.DEVX")
}

// TestMlx5ResetStream: the firmware gets the stream in an extended context.
func TestMlx5ResetStream(t *testing.T) {
	f, q := uverbs.NewFirmware(t, ib.DCI)
	uverbs.SetStreams(q, true)
	testenv.Must(t, mlx5.ResetStream(q, 0x0708))
	if len(f.In) != 464 || binary.BigEndian.Uint32(f.In[8:]) != 1<<31|uverbs.CardQPN || f.In[271] != 1 || f.In[274] != 7 || f.In[275] != 8 {
		t.Errorf("RTS2RTS_QP: %x", f.In)
	}
	f.Errno, f.Refused = syscall.EREMOTEIO, uverbs.RTS2RTSOp
	var firm *mlx5.FirmwareError
	if err := mlx5.ResetStream(q, 1); !errors.As(err, &firm) || firm.Status != 3 {
		t.Errorf("%v, want a FirmwareError", err)
	}
	uverbs.SetStreams(q, false)
	if err := mlx5.ResetStream(q, 0); !errors.As(err, new(*uverbs.ArgError)) || !strings.Contains(err.Error(), "QP 1193046: the DCI was created without DCIOptions.Streams") {
		t.Errorf("a DCI without streams: %v", err)
	}
	uverbs.SetState(q, ib.QPErr)
	isArg(t, mlx5.ResetStream(q, 1), "state")
	uverbs.SetType(q, ib.DCT)
	isArg(t, mlx5.ResetStream(q, 1), "QP type")
	f, q = uverbs.NewFirmware(t, ib.DCI)
	uverbs.SetStreams(q, true)
	f.Caps[0x122/8] = 0xdf
	lacksCap(t, mlx5.ResetStream(q, 1), "qpc_extension")
	_, q = uverbs.NewFirmware(t, ib.DCI)
	uverbs.SetStreams(q, true)
	uverbs.SetDEVX(q, false)
	lacksCap(t, mlx5.ResetStream(q, 1), "OpenOptions.DEVX")
}

// TestMlx5LAG: ports of a LAG, and the capability that is missing if there are none.
func TestMlx5LAG(t *testing.T) {
	f, q := uverbs.NewFirmware(t, ib.RC)
	if l, err := mlx5.QueryLAG(q.Device()); err != nil || l != (mlx5.LAG{Ports: 2, Active: true, SendsBy: [2]uint8{2, 1}}) {
		t.Errorf("%+v, %v", l, err)
	}
	for port, want := range []mlx5.LAGPort{{}, {Port: 1, Active: 2}, {Port: 2, Active: 1}, {Port: 3}} {
		f.QPC[24] = 0x30 | byte(port)
		if p, err := mlx5.QueryLAGPort(q); err != nil || p != want {
			t.Errorf("port %d: %+v, %v, want %+v", port, p, err, want)
		}
	}
	testenv.Must(t, mlx5.SetLAGPort(q, 2))
	if f.In[24] != 2 || f.In[18] != 0x80 {
		t.Errorf("RTS2RTS_QP: %x", f.In)
	}
	for field, set := range map[string]func() error{
		"port":    func() error { return mlx5.SetLAGPort(q, 3) },
		"state":   func() error { uverbs.SetState(q, ib.QPRTR); return mlx5.SetLAGPort(q, 1) },
		"QP type": func() error { uverbs.SetType(q, ib.DCT); return mlx5.SetLAGPort(q, 1) },
	} {
		var a *uverbs.ArgError
		_, q = uverbs.NewFirmware(t, ib.RC)
		if err := set(); !errors.As(err, &a) || a.Field != field {
			t.Errorf("%v, want an ArgError about %s", err, field)
		}
	}
	f, q = uverbs.NewFirmware(t, ib.RC)
	f.Caps[0x151/8] = 0x40
	lacksCap(t, mlx5.SetLAGPort(q, 1), "rts2rts_lag_tx_port_affinity")
	f, q = uverbs.NewFirmware(t, ib.RC)
	f.Caps[0x278/8], f.LAG = 2, 0
	lacksCap(t, mlx5.SetLAGPort(q, 1), "lag_tx_port_affinity")
	f, q = uverbs.NewFirmware(t, ib.RC)
	f.Caps[0x278/8] = 0x81
	lacksCap(t, mlx5.SetLAGPort(q, 1), "num_lag_ports")
	if len(f.Ops) != 1 {
		t.Errorf("the firmware got %#x, and has no LAG", f.Ops)
	}
}

// TestMlx5FirmwareError: a refusal has its syndrome, and is not kept.
func TestMlx5FirmwareError(t *testing.T) {
	f, q := uverbs.NewFirmware(t, ib.RC)
	f.Errno, f.Refused = syscall.EREMOTEIO, uverbs.RTS2RTSOp
	err := mlx5.SetUDPSourcePort(q, 0xc000)
	var firm *mlx5.FirmwareError
	if !errors.As(err, &firm) || firm.Opcode != uverbs.RTS2RTSOp || firm.Status != 3 || firm.Syndrome != 0x1234 || !errors.Is(err, syscall.EREMOTEIO) {
		t.Errorf("%v (%+v)", err, firm)
	}
	if want := "refused RTS2RTS_QP: bad parameter (0x3), syndrome 0x1234"; err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "QP 1193046") {
		t.Errorf("%v, want %q", err, want)
	}
	f.Errno, f.Refused = syscall.EREMOTEIO, uverbs.QueryCapsOp
	d := q.Device()
	uverbs.ForgetCaps(q)
	if _, err := mlx5.QueryLAG(d); !errors.As(err, &firm) || firm.Opcode != uverbs.QueryCapsOp {
		t.Errorf("%v", err)
	}
	f.Errno = syscall.EINVAL
	if err := mlx5.DEVXCommand(d, []byte{1, 15: 0}, make([]byte, 16)); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "does not permit QUERY_HCA_CAP") {
		t.Errorf("%v", err)
	}
	f.Errno = syscall.EIO // Linux 5.10 about a wrong length; the device is there, and what is in the answer is old
	if err := mlx5.DEVXCommand(d, []byte{1, 15: 0}, []byte{3, 15: 0}); errors.Is(err, uverbs.ErrDeviceRemoved) || !errors.Is(err, syscall.EIO) || errors.As(err, &firm) || !strings.Contains(err.Error(), "refused QUERY_HCA_CAP") {
		t.Errorf("%v", err)
	}
	f.Errno = 0
	if _, err := mlx5.QueryLAG(d); err != nil {
		t.Errorf("after a refusal: %v", err)
	}
	var a *uverbs.ArgError
	for _, n := range []int{0, 15, 1<<16 - 7} {
		if err := mlx5.DEVXModify(q, make([]byte, n), make([]byte, 16)); !errors.As(err, &a) || a.Field != "length of in" {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	for op := range 256 { // of the commands with 0x5 in front: those from RST2INIT_QP to 2RST_QP but RTS2RTS_QP
		err := mlx5.DEVXModify(q, []byte{5, byte(op), 15: 0}, make([]byte, 16))
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
	f, q := uverbs.NewFirmware(t, ib.RC)
	uverbs.SetImported(q)
	f.Errno, f.Refused = syscall.EINVAL, uverbs.RTS2RTSOp
	lacksCap(t, mlx5.SetUDPSourcePort(q, 0xc000), "did not open it for that")
	f.Refused = uverbs.QueryLAGOp
	_, err := mlx5.QueryLAG(q.Device())
	lacksCap(t, err, "did not open it for that")
	if err := mlx5.DEVXCommand(q.Device(), []byte{8, 0x42, 15: 0}, make([]byte, 16)); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "did not open it for that") {
		t.Errorf("%v", err)
	}
}

// TestMlx5DCILimit: ReadyDC knows from the firmware how many READs and atomics a DCI has in flight.
func TestMlx5DCILimit(t *testing.T) {
	f, q := uverbs.NewFirmware(t, ib.DCI)
	uverbs.SetState(q, ib.QPReset)
	uverbs.SetPath(q, uverbs.PathOptions{MaxRdAtomic: 9})
	f.Caps[0x12a/8] |= 3
	err := mlx5.ReadyDC(q)
	isArg(t, err, "Path.MaxRdAtomic")
	if err == nil || !strings.Contains(err.Error(), "1 to 8") {
		t.Errorf("%v", err)
	}
}
