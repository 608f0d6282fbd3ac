package uverbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// FirmwareError reports a command that the firmware of an adapter has refused. It unwraps to an
// [*Error], which has the kernel's errno.
type FirmwareError struct {
	Opcode   uint16 // Opcode is the command's operation code.
	Status   uint8  // Status is the class of the error, such as 3 for a bad parameter (MLX5_CMD_STAT_*).
	Syndrome uint32 // Syndrome is the vendor's number for the reason.
	Err      error  // Err is the error of the kernel's command, with the status in words.
}

// Error implements error, and Unwrap returns Err.
func (e *FirmwareError) Error() string { return e.Err.Error() }
func (e *FirmwareError) Unwrap() error { return e.Err }

// devxMethod is one of the kernel's methods that pass a command to the firmware.
type devxMethod uint8

const (
	devxOther  devxMethod = iota // of the device
	devxModify                   // of a QP
	devxQuery                    // of a QP
)

// DEVXCommand passes a command about the device itself to the adapter's firmware and writes its answer
// to out (mlx5dv_devx_general_cmd). The kernel permits queries that are not about an object, such as
// QUERY_HCA_CAP, QUERY_LAG and QUERY_ADAPTER, and puts the number of the program's context into the
// command.
//
// The bytes have the layout of the adapter's programming manual, as in struct mlx5_ifc_*_in_bits
// and *_out_bits in the kernel's mlx5_ifc.h, in big-endian order. Both have at least 16 and at most
// 65,528 bytes. The library checks nothing else.
//
// Only mlx5 has such commands, if the adapter has user contexts (the capability log_max_uctx) and the
// device was opened for them: by [Open], or by any function with the environment variable
// RDMADEVX=1, if the adapter can. Otherwise DEVXCommand fails with a [FeatureError]. libmlx5 opens all
// devices so. The library does not: the kernel does not log why the firmware refused a command of such a
// context, so that errors of other methods cannot say it.
//
// If the firmware refuses the command, the error is a [FirmwareError] with its syndrome; before Linux
// 5.18 it is an [*Error] without it. A device of [ImportDevice] must have been opened for such commands,
// too. A command that the kernel does not permit fails with EINVAL.
func (d *Device) DEVXCommand(in, out []byte) error {
	if err := d.acquire(); err != nil {
		return err
	}
	defer d.release()
	if err := checkDEVX("DEVXCommand", in, out); err != nil {
		return err
	}
	return d.passDEVX(nil, devxOther, in, out)
}

// DEVXQuery is like [Device.DEVXCommand] for a query of the QP, such as QUERY_QP (mlx5dv_devx_qp_query).
// For a QP for raw packets it is a query of its RQ, SQ, TIR or TIS. The command must have the number of
// the object.
func (q *QP) DEVXQuery(in, out []byte) error { return q.devx("DEVXQuery", devxQuery, in, out) }

// DEVXModify is like [QP.DEVXQuery] for a command that modifies the QP, such as RTS2RTS_QP
// (mlx5dv_devx_qp_modify). The library and the kernel do not know what it changes. A command that leads
// to another state is an [ArgError], since the library's queues would not follow: use [QP.Modify].
func (q *QP) DEVXModify(in, out []byte) error { return q.devx("DEVXModify", devxModify, in, out) }

func (q *QP) devx(op string, m devxMethod, in, out []byte) error {
	if err := q.acquire(); err != nil {
		return err
	}
	defer q.release()
	if err := checkDEVX(op, in, out); err != nil {
		return err
	}
	return q.dev.passDEVX(q, m, in, out)
}

// passDEVX passes a command to the firmware, about the device or a QP that is not nil.
func (d *Device) passDEVX(q *QP, m devxMethod, in, out []byte) error {
	if d.mlx5 == nil {
		return noFeature(d, "DEVX")
	}
	return d.mlx5.passDEVX(q, m, in, out)
}

// Sizes of commands and answers in bytes. An attribute of an ioctl has a length of 16 bits.
const minDEVX, maxDEVX = 16, 1<<16 - 8

func checkDEVX(op string, in, out []byte) error {
	for _, b := range []struct {
		name string
		n    int
	}{{"in", len(in)}, {"out", len(out)}} {
		if b.n < minDEVX || b.n > maxDEVX {
			return argErr(op, "length of "+b.name, b.n, "%d to %d bytes", minDEVX, maxDEVX)
		}
	}
	return nil
}

// LAG is the state of link aggregation of an adapter (mlx5_bond), whose ports act as one device.
type LAG struct {
	Ports  int  // Ports is the number of ports that are aggregated.
	Active bool // Active says that aggregation is in force.

	// SendsBy has, for ports 1 and 2, the port that sends in its place: the port itself, or the other
	// one while it is down.
	SendsBy [2]uint8
}

// LAGPort is the port of a LAG by which a QP sends.
type LAGPort struct {
	Port   uint8 // Port is the port that the QP was given, from 1 on; 0 leaves the choice to the adapter.
	Active uint8 // Active is the port that sends in its place; 0 is unknown.
}

// LAG returns the state of link aggregation. It fails with a [FeatureError] if the device is not
// part of an adapter with link aggregation, or was not opened with [OpenOptions].DEVX.
func (d *Device) LAG() (LAG, error) {
	if err := d.acquire(); err != nil {
		return LAG{}, err
	}
	defer d.release()
	if d.mlx5 == nil {
		return LAG{}, noFeature(d, "LAG")
	}
	return d.mlx5.lag()
}

// LAGPort returns the port of a LAG by which the QP sends (mlx5dv_query_qp_lag_port). It fails
// with a [FeatureError] like [Device.LAG], and with an [ArgError] for a QP that does not send.
func (q *QP) LAGPort() (LAGPort, error) {
	if err := q.acquire(); err != nil {
		return LAGPort{}, err
	}
	defer q.release()
	if q.dev.mlx5 == nil {
		return LAGPort{}, noFeature(q.dev, "LAG")
	}
	return q.dev.mlx5.lagPort(q)
}

// SetLAGPort has the QP send by a port of a LAG, 1 to [LAG].Ports (mlx5dv_modify_qp_lag_port). The kernel
// gives QPs the ports in turn. The QP is of type RC, UC, UD or DCI and in state [ib.QPRTS], or of type
// RawPacket and in any state. Modify may change the port again. SetLAGPort fails with a [FeatureError]
// like [Device.LAG].
func (q *QP) SetLAGPort(port uint8) error {
	if err := q.acquireState(); err != nil {
		return err
	}
	defer q.releaseState()
	if q.dev.mlx5 == nil {
		return noFeature(q.dev, "LAG")
	}
	return q.dev.mlx5.setLAGPort(q, port)
}

// SetUDPSourcePort sets the UDP source port of the packets that the QP sends by RoCE v2
// (mlx5dv_modify_qp_udp_sport), from 0xc000 (49,152) on. Switches choose one of several paths by it. The QP
// is of type RC or UC and in state [ib.QPRTS]. Until then the port depends on the path's flow label,
// see [ib.FlowLabelPort], or, if the label is 0, on both QP numbers; a new connection has such a port
// again. SetUDPSourcePort fails with a [FeatureError] if the adapter does not have the capability
// rts2rts_qp_udp_sport, or the device was not opened with [OpenOptions].DEVX.
func (q *QP) SetUDPSourcePort(port uint16) error {
	const op = "SetUDPSourcePort"
	if err := q.acquireState(); err != nil {
		return err
	}
	defer q.releaseState()
	switch {
	case port < minUDPSourcePort:
		return argErr(op, "port", fmt.Sprintf("%#x", port), "%#x to 0xffff", minUDPSourcePort)
	case q.typ != ib.RC && q.typ != ib.UC:
		return argErr(op, "QP type", q.typ, "RC or UC")
	case q.State() != ib.QPRTS:
		return argErr(op, "state", q.State(), "%s", ib.QPRTS)
	}
	if q.dev.mlx5 == nil {
		return noFeature(q.dev, "UDP source port of a QP")
	}
	return q.dev.mlx5.setUDPSourcePort(q, port)
}

// lacks is the error for a capability that the adapter does not have.
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

// devxCaps returns capabilities of the adapter. It queries them once.
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
		return argErr("ResetStream", "stream", stream, "none for %s: the DCI was created without DCIOptions.Streams", q.label())
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
	case q.typ == ib.RawPacket && !q.mlx5.hasTIS:
		return p, noSendQueue("LAGPort")
	case q.typ == ib.RawPacket:
		in, n := mlx5.QueryTIS(q.mlx5.tis)
		out := make([]byte, n)
		err = m.known(q, devxQuery, in, out)
		p.Port = mlx5.DecodeTISLAGPort(out)
	case q.typ == ib.RC, q.typ == ib.UC, q.typ == ib.UD, q.typ == ib.XRCSend, q.typ == ib.DCI:
		in, n := mlx5.QueryQP(q.qpn)
		out := make([]byte, n)
		err = m.known(q, devxQuery, in, out)
		p.Port, _ = mlx5.DecodeQPPorts(out)
	default:
		return p, argErr("LAGPort", "QP type", q.typ, "RC, UC, UD, XRCSend, DCI or RawPacket")
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
	case ib.RawPacket:
		if !q.mlx5.hasTIS {
			return noSendQueue(op)
		}
		in, n := mlx5.SetTISLAGPort(q.mlx5.tis, port)
		return m.known(q, devxModify, in, make([]byte, n))
	case ib.RC, ib.UC, ib.UD, ib.DCI:
	default:
		return argErr(op, "QP type", q.typ, "RC, UC, UD, DCI or RawPacket")
	}
	if q.State() != ib.QPRTS {
		return argErr(op, "state", q.State(), "%s", ib.QPRTS)
	}
	if !caps.SetLAGPort {
		return m.lacks("LAG port of a QP", "rts2rts_lag_tx_port_affinity")
	}
	in, n := mlx5.SetLAGPort(q.qpn, port)
	return m.known(q, devxModify, in, make([]byte, n))
}

// minUDPSourcePort is the first dynamic port (IB_ROCE_UDP_ENCAP_VALID_PORT_MIN).
const minUDPSourcePort = 0xc000
