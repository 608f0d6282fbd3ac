package uverbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// mlx5DEVX is what a device needs for commands to the firmware.
type mlx5DEVX struct {
	has bool // the context was opened for them, or may have been

	mu    sync.Mutex
	known bool      // guarded by mu
	caps  mlx5.Caps // guarded by mu
}

// Reasons why a device has no commands of DEVX.
var (
	errNoContext  = errors.New("the adapter does not have the capability log_max_uctx, or has no user context left")
	errNoIoctl    = errors.New("it needs the ioctl interface, which the kernel does not have or " + abiPathEnv + "=write rules out")
	errNotByOwner = errors.New("the process that opened the device did not open it for that")
	errNotOpened  = errors.New("the device was not opened for it; open it by OpenWith with OpenOptions.DEVX, or set " + devxEnv + "=1; if that is set, the adapter does not have the capability log_max_uctx")
)

// noDEVX is the error of a device without commands of DEVX.
func noDEVX(cause error) error { return &FeatureError{Feature: "DEVX", Driver: "mlx5", Err: cause} }

// lacks is the error of an adapter without a capability.
func (*mlx5Context) lacks(feature, capability string) error {
	return &FeatureError{Feature: feature, Driver: "mlx5", Err: errors.New("the adapter does not have the capability " + capability)}
}

func (x *mlx5Context) passDEVX(q *QP, m devxMethod, in, out []byte) error {
	d := x.dev
	if !x.devx.has {
		return noDEVX(errNotOpened)
	}
	object, method, verb := mlx5.ObjectDEVXObj, mlx5.MethodDEVXModify, "DEVX_OBJ_MODIFY"
	handle, attrIn, attrOut := mlx5.AttrDEVXModifyHandle, mlx5.AttrDEVXModifyIn, mlx5.AttrDEVXModifyOut
	switch m {
	case devxOther:
		object, method, verb = mlx5.ObjectDEVX, mlx5.MethodDEVXOther, "DEVX_OTHER"
		attrIn, attrOut = mlx5.AttrDEVXOtherIn, mlx5.AttrDEVXOtherOut
	case devxModify:
		if mlx5.ChangesState(in) {
			return argErr("DEVXModify", "command", mlx5.CommandName(in), "one that does not change the QP's state; Modify does that")
		}
	case devxQuery:
		method, verb = mlx5.MethodDEVXQuery, "DEVX_OBJ_QUERY"
		handle, attrIn, attrOut = mlx5.AttrDEVXQueryHandle, mlx5.AttrDEVXQueryIn, mlx5.AttrDEVXQueryOut
	}
	cmd := newIoctl(object, method)
	defer cmd.done()
	if q != nil {
		cmd.obj(handle, q.handle)
	}
	cmd.in(attrIn, in)
	cmd.out(attrOut, out)
	errno := d.cmd.ioctl(cmd)
	if errno == 0 {
		return nil
	}
	a, name := mlx5.DecodeAnswer(out), mlx5.CommandName(in)
	hint, refused := "", false
	switch {
	case errno == kernel.EREMOTEIO && a.Status != 0:
		hint = fmt.Sprintf("the device's firmware refused %s: %s", name, a)
	case errno == syscall.EINVAL:
		hint = "the kernel does not permit " + name + " here, it has the number of another object, or, before Linux 5.18, the firmware has refused it"
		if d.imported {
			hint += "; or " + errNotByOwner.Error()
		}
	case errno == syscall.EIO && !d.cmd.Removed():
		// Before Linux 5.18, for example of the length. Later kernels answer EREMOTEIO.
		hint, refused = "the firmware refused "+name, true
	}
	err := d.cmd.fail(verb, errno, hint)
	if e, ok := errors.AsType[*Error](err); ok {
		e.refused = refused
	}
	if q != nil {
		err = about(err, q.label(), "")
	}
	if errno == kernel.EREMOTEIO && a.Status != 0 {
		return &FirmwareError{Opcode: binary.BigEndian.Uint16(in), Status: a.Status, Syndrome: a.Syndrome, Err: err}
	}
	return err
}

// known is passDEVX for a command of the library itself, which the kernel permits and which has the number of the object. A
// device may have been opened by another process, without DEVX.
func (x *mlx5Context) known(q *QP, m devxMethod, in, out []byte) error {
	err := x.passDEVX(q, m, in, out)
	if x.dev.imported && errors.Is(err, syscall.EINVAL) {
		return noDEVX(errors.Join(errNotByOwner, err))
	}
	return err
}

// devxCaps returns capabilities of the adapter, which it is asked for once.
func (m *mlx5Context) devxCaps() (mlx5.Caps, error) {
	x := &m.devx
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.known {
		in, n := mlx5.QueryCaps()
		out := make([]byte, n)
		if err := m.known(nil, devxOther, in, out); err != nil {
			return mlx5.Caps{}, err
		}
		x.caps, x.known = mlx5.DecodeCaps(out), true
	}
	return x.caps, nil
}

func (m *mlx5Context) setUDPSourcePort(q *QP, port uint16) error {
	caps, err := m.devxCaps()
	switch {
	case err != nil:
		return err
	case !caps.SourcePort:
		return m.lacks("UDP source port of a QP", "rts2rts_qp_udp_sport")
	}
	in, n := mlx5.SetSourcePort(q.qpn, port)
	return m.known(q, devxModify, in, make([]byte, n))
}

func (m *mlx5Context) resetStream(q *QP, stream uint16) error {
	if !q.mlx5.streams {
		return fmt.Errorf("uverbs: ResetStream of %s: %w: set DCIOptions.Streams", q.label(), ErrNoStreams)
	}
	caps, err := m.devxCaps()
	switch {
	case err != nil:
		return err
	case !caps.Extended:
		return m.lacks("reset of a stream", "qpc_extension")
	}
	in, n := mlx5.ResetStream(q.qpn, stream)
	return m.known(q, devxModify, in, make([]byte, n))
}

func (m *mlx5Context) lag() (LAG, error) {
	caps, err := m.devxCaps()
	switch {
	case err != nil:
		return LAG{}, err
	case caps.LAGPorts <= 1:
		return LAG{}, m.lacks("LAG", "num_lag_ports")
	}
	in, n := mlx5.QueryLAG()
	out := make([]byte, n)
	if err := m.known(nil, devxOther, in, out); err != nil {
		return LAG{}, err
	}
	state, by := mlx5.DecodeLAG(out)
	return LAG{Ports: caps.LAGPorts, Active: state != 0, SendsBy: by}, nil
}

// lagOf returns the LAG for a QP that can send by a port of it.
func (m *mlx5Context) lagOf(q *QP) (LAG, mlx5.Caps, error) {
	l, err := m.lag()
	if err != nil {
		return l, mlx5.Caps{}, err
	}
	caps, err := m.devxCaps()
	if err == nil && !l.Active && !caps.LAGPort {
		// The firmware may ignore the port of a QP then (_mlx5dv_query_qp_lag_port of libmlx5).
		err = m.lacks("LAG", "lag_tx_port_affinity")
	}
	return l, caps, err
}

func (m *mlx5Context) lagPort(q *QP) (LAGPort, error) {
	l, _, err := m.lagOf(q)
	if err != nil {
		return LAGPort{}, err
	}
	var p LAGPort
	switch {
	case q.typ == RawPacket && !q.mlx5.hasTIS:
		return p, noSendQueue("QueryLAGPort")
	case q.typ == RawPacket:
		in, n := mlx5.QueryTIS(q.mlx5.tis)
		out := make([]byte, n)
		err = m.known(q, devxQuery, in, out)
		p.Port = mlx5.DecodeTISLAGPort(out)
	case q.typ == RC, q.typ == UC, q.typ == UD, q.typ == XRCSend, q.typ == DCI:
		in, n := mlx5.QueryQP(q.qpn)
		out := make([]byte, n)
		err = m.known(q, devxQuery, in, out)
		p.Port, _ = mlx5.DecodeQPPorts(out)
	default:
		return p, argErr("QueryLAGPort", "QP type", q.typ, "RC, UC, UD, XRCSend, DCI or RawPacket")
	}
	if n := int(p.Port); err == nil && n >= 1 && n <= len(l.SendsBy) {
		p.Active = l.SendsBy[n-1]
	}
	return p, err
}

// noSendQueue is the error for a QP for raw packets without a send queue, or whose TIS the kernel has not told.
func noSendQueue(op string) error { return argErr(op, "send queue", "none", "a QP that sends") }

func (m *mlx5Context) setLAGPort(q *QP, port uint8) error {
	const op = "SetLAGPort"
	l, caps, err := m.lagOf(q)
	if err != nil {
		return err
	}
	if port < 1 || int(port) > l.Ports {
		return argErr(op, "port", port, "1 to %d", l.Ports)
	}
	switch q.typ {
	case RawPacket:
		if !q.mlx5.hasTIS {
			return noSendQueue(op)
		}
		in, n := mlx5.SetTISLAGPort(q.mlx5.tis, port)
		return m.known(q, devxModify, in, make([]byte, n))
	case RC, UC, UD, DCI:
	default:
		return argErr(op, "QP type", q.typ, "RC, UC, UD, DCI or RawPacket")
	}
	if q.State() != QPRTS {
		return argErr(op, "state", q.State(), "%s", QPRTS)
	}
	if !caps.SetLAGPort {
		return m.lacks("LAG port of a QP", "rts2rts_lag_tx_port_affinity")
	}
	in, n := mlx5.SetLAGPort(q.qpn, port)
	return m.known(q, devxModify, in, make([]byte, n))
}
