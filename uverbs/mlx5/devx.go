package mlx5

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	layout "github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/internal/hook"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// FirmwareError reports a command that the firmware of an adapter has refused. It unwraps to a
// [*uverbs.Error], which has the kernel's errno.
type FirmwareError struct {
	Opcode   uint16 // Opcode is the command's operation code.
	Status   uint8  // Status is the class of the error, such as 3 for a bad parameter (MLX5_CMD_STAT_*).
	Syndrome uint32 // Syndrome is the vendor's number for the reason.
	Err      error  // Err is the error of the kernel's command, with the status in words.
}

// Error implements error, and Unwrap returns Err.
func (e *FirmwareError) Error() string { return e.Err.Error() }
func (e *FirmwareError) Unwrap() error { return e.Err }

// method is one of the kernel's methods that pass a command to the firmware.
type method struct {
	verb            string
	object, id      uint16
	handle, in, out uint16 // attributes; the device has no handle
}

var (
	general = method{"DEVX_OTHER", layout.ObjectDEVX, layout.MethodDEVXOther, 0, layout.AttrDEVXOtherIn, layout.AttrDEVXOtherOut}
	modify  = method{"DEVX_OBJ_MODIFY", layout.ObjectDEVXObj, layout.MethodDEVXModify, layout.AttrDEVXModifyHandle, layout.AttrDEVXModifyIn, layout.AttrDEVXModifyOut}
	query   = method{"DEVX_OBJ_QUERY", layout.ObjectDEVXObj, layout.MethodDEVXQuery, layout.AttrDEVXQueryHandle, layout.AttrDEVXQueryIn, layout.AttrDEVXQueryOut}
)

// DEVXCommand passes a command about the device itself to the adapter's firmware and writes its
// answer to out (mlx5dv_devx_general_cmd). The kernel permits queries that are not about an object,
// such as QUERY_HCA_CAP, QUERY_LAG and QUERY_ADAPTER, and puts the number of the program's context
// into the command.
//
// The bytes have the layout of the adapter's programming manual, as in struct mlx5_ifc_*_in_bits
// and *_out_bits in the kernel's mlx5_ifc.h, in big-endian order. Both have at least 16 and at most
// 65,528 bytes. The library checks nothing else.
//
// There are such commands if the adapter has user contexts (the capability log_max_uctx) and the
// device was opened for them: by [uverbs.Open], or by any function with the environment variable
// RDMADEVX=1, if the adapter can. Otherwise DEVXCommand fails with a [uverbs.FeatureError]. libmlx5
// opens all devices so. The library does not: the kernel does not log why the firmware refused a
// command of such a context, so that errors of other methods cannot say it.
//
// If the firmware refuses the command, the error is a [FirmwareError] with its syndrome; before
// Linux 5.18 it is a [*uverbs.Error] without it. A device of [uverbs.ImportDevice] must have been
// opened for such commands, too. A command that the kernel does not permit fails with EINVAL.
func DEVXCommand(d *uverbs.Device, in, out []byte) error {
	o, err := core.Device(d)
	if err != nil {
		return err
	}
	defer o.Release()
	if err := check("DEVXCommand", in, out); err != nil {
		return err
	}
	return pass(o, &general, in, out)
}

// DEVXQuery is like [DEVXCommand] for a query of the QP, such as QUERY_QP (mlx5dv_devx_qp_query).
// For a QP for raw packets it is a query of its RQ, SQ, TIR or TIS. The command must have the
// number of the object.
func DEVXQuery(q *uverbs.QP, in, out []byte) error { return about(q, "DEVXQuery", &query, in, out) }

// DEVXModify is like [DEVXQuery] for a command that modifies the QP, such as RTS2RTS_QP
// (mlx5dv_devx_qp_modify). The library and the kernel do not know what it changes. A command that
// leads to another state is a [uverbs.ArgError], since the library's queues would not follow: use
// [uverbs.QP.Modify].
func DEVXModify(q *uverbs.QP, in, out []byte) error { return about(q, "DEVXModify", &modify, in, out) }

// about passes a command of the program about a QP.
func about(q *uverbs.QP, op string, m *method, in, out []byte) error {
	o, err := core.QP(q, false)
	if err != nil {
		return err
	}
	defer o.Release()
	if err := check(op, in, out); err != nil {
		return err
	}
	return pass(o, m, in, out)
}

// Sizes of commands and answers in bytes. An attribute of an ioctl has a length of 16 bits.
const minSize, maxSize = 16, 1<<16 - 8

func check(op string, in, out []byte) error {
	for _, b := range []struct {
		name string
		n    int
	}{{"in", len(in)}, {"out", len(out)}} {
		if b.n < minSize || b.n > maxSize {
			return argErr(op, "length of "+b.name, b.n, "%d to %d bytes", minSize, maxSize)
		}
	}
	return nil
}

// Reasons why a device has no commands of DEVX.
var (
	errNotByOwner = errors.New("the process that opened the device did not open it for that")
	errNotOpened  = errors.New("the device was not opened for it; open it by Open with OpenOptions.DEVX, or set RDMADEVX=1; if that is set, the adapter does not have the capability log_max_uctx")
)

// noDEVX is the error of a device without commands of DEVX.
func noDEVX(cause error) error {
	return &uverbs.FeatureError{Feature: "DEVX", Driver: "mlx5", Err: cause}
}

// pass passes a command to the firmware.
func pass(o *hook.Object, m *method, in, out []byte) error {
	switch {
	case o.Part == nil:
		return noFeature(o, "DEVX")
	case !o.Part.DEVX:
		return noDEVX(errNotOpened)
	case m == &modify && layout.ChangesState(in):
		return argErr("DEVXModify", "command", layout.CommandName(in), "one that does not change the QP's state; Modify does that")
	}
	cmd := kernel.NewCommand(m.object, m.id)
	defer cmd.Done()
	if m != &general {
		cmd.Add(m.handle).Data = uint64(o.QP.Handle)
	}
	cmd.Add(m.in).SetIn(in)
	cmd.Add(m.out).SetOut(out)
	errno := o.Conn.Do(cmd)
	if errno == 0 {
		return nil
	}
	a, name := layout.DecodeAnswer(out), layout.CommandName(in)
	hint, refused := "", false
	switch {
	case errno == kernel.EREMOTEIO && a.Status != 0:
		hint = fmt.Sprintf("the device's firmware refused %s: %s", name, a)
	case errno == syscall.EINVAL:
		hint = "the kernel does not permit " + name + " here, it has the number of another object, or, before Linux 5.18, the firmware has refused it"
		if o.Imported {
			hint += "; or " + errNotByOwner.Error()
		}
	case errno == syscall.EIO && !o.Conn.Removed():
		// Before Linux 5.18, for example of the length. Later kernels answer EREMOTEIO.
		hint, refused = "the firmware refused "+name, true
	}
	err := o.Fail(m.verb, errno, hint, refused)
	if errno == kernel.EREMOTEIO && a.Status != 0 {
		return &FirmwareError{Opcode: binary.BigEndian.Uint16(in), Status: a.Status, Syndrome: a.Syndrome, Err: err}
	}
	return err
}

// known is pass for a command of the library itself, which the kernel permits and which has the
// number of the object. A device may have been opened by another process, without DEVX.
func known(o *hook.Object, m *method, in, out []byte) error {
	err := pass(o, m, in, out)
	if o.Imported && errors.Is(err, syscall.EINVAL) {
		return noDEVX(errors.Join(errNotByOwner, err))
	}
	return err
}

// capsOf returns capabilities of the adapter. It queries them once.
func capsOf(o *hook.Object) (layout.Caps, error) {
	p := o.Part
	p.CapsMu.Lock()
	defer p.CapsMu.Unlock()
	if !p.Known {
		in, n := layout.QueryCaps()
		out := make([]byte, n)
		if err := known(o, &general, in, out); err != nil {
			return layout.Caps{}, err
		}
		p.Caps, p.Known = layout.DecodeCaps(out), true
	}
	return p.Caps, nil
}

// lacks is the error for a capability that the adapter does not have.
func lacks(feature, capability string) error {
	return &uverbs.FeatureError{Feature: feature, Driver: "mlx5", Err: errors.New("the adapter does not have the capability " + capability)}
}
