package netlinkrdma

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
)

// RawKind is a kind of objects that a driver can dump in a form of its own.
type RawKind uint8

// The kinds. Which of them a driver dumps depends on the driver: mlx5 has no dump of SRQs.
const (
	RawQP  RawKind = 1
	RawCQ  RawKind = 2
	RawMR  RawKind = 3
	RawSRQ RawKind = 4 // Linux 6.7
)

// String returns the usual abbreviation.
func (k RawKind) String() string {
	names := [...]string{RawQP: "QP", RawCQ: "CQ", RawMR: "MR", RawSRQ: "SRQ"}
	return nameOf("RawKind", names[:], int(k))
}

// RawOptions says which object [Raw] dumps. It is a plain value.
type RawOptions struct {
	Kind RawKind // Kind is the kind of the object.
	ID   uint32  // ID is the number of the object: Num of a [QP], ID of a [CQ], [MR] or [SRQ].
	Port uint32  // Port is the port of a QP, from 1; for other kinds it must be 0.
}

// Raw returns what the driver knows about one object, as "rdma resource show qp lqpn NUM -r" does. Only
// the driver knows the form of the bytes: mlx5 returns segments that the firmware wrote (resource dump),
// bnxt_re and hns the context that the device keeps. It needs CAP_NET_ADMIN.
//
// The error matches [fs.ErrNotExist] if there is no such object, EAGAIN if a QP is not on that port, as a
// QP in state RESET, and it is a [FeatureError] if the driver or the firmware has no dump.
func Raw(dev Device, o RawOptions) ([]byte, error) { return system.raw(dev, o) }

// RawList returns what the driver knows about every object of a kind, as "rdma resource show qp -r" does.
// The kernel does not say which dump belongs to which object; use [Raw] for that. It returns the
// errors of Raw.
func RawList(dev Device, kind RawKind) ([][]byte, error) { return system.rawList(dev, kind) }

// rawKind returns the command of a kind. An old kernel and a driver without a dump both answer with
// EINVAL; the commands are older than the kernels that this package supports, except that of SRQs.
func rawKind(k RawKind) (kind, error) {
	var r kind
	name := "raw dump of " + k.String() + "s"
	switch k {
	case RawQP:
		r = qps.kind
		r.cmd = abi.RDMA_NLDEV_CMD_RES_QP_GET_RAW
	case RawCQ:
		r = cqs.kind
		r.cmd = abi.RDMA_NLDEV_CMD_RES_CQ_GET_RAW
	case RawMR:
		r = mrs.kind
		r.cmd = abi.RDMA_NLDEV_CMD_RES_MR_GET_RAW
	case RawSRQ:
		r = srqs.kind
		r.cmd = abi.RDMA_NLDEV_CMD_RES_SRQ_GET_RAW
		name += " (Linux 6.7 or later)"
	default:
		return r, &Error{Op: "dump", Err: fmt.Errorf("kind %d: %w", k, fs.ErrInvalid), Hint: "allowed are RawQP, RawCQ, RawMR and RawSRQ"}
	}
	r.need = feature{name: name, einval: true}
	return r, nil
}

func (c *client) raw(dev Device, o RawOptions) ([]byte, error) {
	k, err := rawKind(o.Kind)
	if err != nil {
		return nil, err
	}
	op := fmt.Sprintf("dump %s %d of", o.Kind, o.ID)
	if !k.perPort() && o.Port != 0 {
		return nil, &Error{Op: op, Device: dev.Name, Err: fmt.Errorf("port %d: %w", o.Port, fs.ErrInvalid), Hint: "only a QP belongs to a port; allowed is 0"}
	}
	if o.Kind == RawQP {
		k.need.name += ", at least of this one," // mlx5 has QP 1 under another number
	}
	var raw []byte
	err = c.object(op, dev, k, o.Port, o.ID, func(m *message) { raw = decodeRaw(m) })
	if e, ok := errors.AsType[*Error](err); ok && errors.Is(err, syscall.EAGAIN) {
		e.Hint = fmt.Sprintf("the QP is not on port %d; one in state RESET has no port", o.Port)
	}
	if err != nil {
		return nil, err
	}
	return raw, nil
}

func (c *client) rawList(dev Device, of RawKind) ([][]byte, error) {
	k, err := rawKind(of)
	if err != nil {
		return nil, err
	}
	k.name = "raw " + k.name
	return list(c, dev, resource[[]byte]{k, decodeRaw})
}

// decodeRaw returns a dump, which is not nil.
func decodeRaw(m *message) []byte {
	m.need(abi.RDMA_NLDEV_ATTR_RES_RAW)
	return m.attrs[abi.RDMA_NLDEV_ATTR_RES_RAW]
}
