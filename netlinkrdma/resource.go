package netlinkrdma

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// ResourceCounts has the current number of objects of each kind on a device, including those of the
// kernel. It is a plain value.
type ResourceCounts struct {
	QPs      uint64 // QPs is the number of queue pairs.
	CQs      uint64 // CQs is the number of completion queues.
	MRs      uint64 // MRs is the number of memory regions.
	PDs      uint64 // PDs is the number of protection domains.
	CMIDs    uint64 // CMIDs is the number of connection manager identifiers bound to the device.
	Contexts uint64 // Contexts is how often the device is open.
	SRQs     uint64 // SRQs is the number of shared receive queues; always 0 before Linux 5.13.
}

// Resources returns how many objects a device has, as "rdma resource show DEV" does. dev must come
// from [Devices] or [DeviceByName]. The error matches [fs.ErrNotExist] if the device no longer
// exists or was renamed.
func Resources(dev Device, o ListOptions) (ResourceCounts, error) {
	return system.resources(dev, o, abi.RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR)
}

// ResourceLimits returns how many objects of each kind a device can have, and 0 where the kernel does not tell. It
// tells no limits before Linux 7.3. It fails as [Resources] does.
func ResourceLimits(dev Device) (ResourceCounts, error) {
	return system.resources(dev, ListOptions{}, abi.RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_MAX)
}

// ListOptions says which objects a list has. It is a plain value.
type ListOptions struct {
	// Driver includes what only the driver knows: QPs of type [ib.DriverQP], such as QPs of programs for DC
	// or SRD and the QP that mlx5 has for itself, and pools with a key that the kernel chose. "rdma resource
	// show" has them with -dd. It needs no privilege. Kernels before 6.10 ignore it: some always list the QPs
	// of programs, and none those of the driver. Of DCTs, some kernels before 7.2 list the first one.
	Driver bool
}

// attrs returns the attributes of a request.
func (o ListOptions) attrs() []*rtAttr {
	if !o.Driver {
		return nil
	}
	return []*rtAttr{u8Attr(abi.RDMA_NLDEV_ATTR_DRIVER_DETAILS, 1)}
}

// QPs returns the queue pairs of a device, as "rdma resource show qp" does. Like the other lists it
// needs no privilege and has the objects of all users, but the keys of memory regions need
// CAP_NET_ADMIN. A list is not a snapshot: the kernel produces it in parts, and objects that are
// created or destroyed meanwhile may be missing. It has no QPs of type [ib.DriverQP] while the kernel
// cannot describe one of them, as on some kernels before Linux 7.2 a DCT that is not ready.
func QPs(dev Device, o ListOptions) ([]QP, error) { return system.qps(dev, o) }

// QPByNum returns one queue pair, on the port that it uses. A QP in state RESET has no port and
// cannot be found. The error matches [fs.ErrNotExist] if the QP does not exist.
func QPByNum(dev Device, port, qpn uint32) (QP, error) {
	q, err := one(system, dev, qps, port, qpn)
	q.nameSubtype(dev)
	return q, err
}

// CQs returns the completion queues of a device, as "rdma resource show cq" does.
func CQs(dev Device) ([]CQ, error) { return list(system, dev, cqs) }

// CQByID returns one completion queue. The error matches [fs.ErrNotExist] if it does not exist.
func CQByID(dev Device, id uint32) (CQ, error) { return one(system, dev, cqs, 0, id) }

// MRs returns the memory regions of a device, as "rdma resource show mr" does.
func MRs(dev Device) ([]MR, error) { return list(system, dev, mrs) }

// MRByID returns one memory region. The error matches [fs.ErrNotExist] if it does not exist.
func MRByID(dev Device, id uint32) (MR, error) { return one(system, dev, mrs, 0, id) }

// PDs returns the protection domains of a device, as "rdma resource show pd" does.
func PDs(dev Device) ([]PD, error) { return list(system, dev, pds) }

// PDByID returns one protection domain. The error matches [fs.ErrNotExist] if it does not exist.
func PDByID(dev Device, id uint32) (PD, error) { return one(system, dev, pds, 0, id) }

// CMIDs returns the identifiers of the connection manager that are bound to a
// device, as "rdma resource show cm_id" does.
func CMIDs(dev Device) ([]CMID, error) { return list(system, dev, cmIDs) }

// CMIDByID returns one identifier of the connection manager on a port. The error matches
// [fs.ErrNotExist] if it does not exist.
func CMIDByID(dev Device, port, id uint32) (CMID, error) { return one(system, dev, cmIDs, port, id) }

// Contexts returns the contexts of a device, one for each time that a process opened it, as "rdma
// resource show ctx" does. Linux 5.13.
func Contexts(dev Device) ([]Context, error) { return list(system, dev, contexts) }

// ContextByID returns one context. The error matches [fs.ErrNotExist] if it does not exist. Linux
// 5.13.
func ContextByID(dev Device, id uint32) (Context, error) { return one(system, dev, contexts, 0, id) }

// SRQs returns the shared receive queues of a device, as "rdma resource show srq"
// does. Linux 5.13.
func SRQs(dev Device) ([]SRQ, error) { return list(system, dev, srqs) }

// SRQByID returns one shared receive queue. The error matches [fs.ErrNotExist] if it does not
// exist. Linux 5.13.
func SRQByID(dev Device, id uint32) (SRQ, error) { return one(system, dev, srqs, 0, id) }

func (c *client) qps(dev Device, o ListOptions) ([]QP, error) {
	all, err := list(c, dev, qps, o.attrs()...)
	if o.Driver && errors.Is(err, syscall.EINVAL) {
		all, err = list(c, dev, qps)
	}
	for i := range all {
		all[i].nameSubtype(dev)
	}
	return all, err
}

// nameSubtype names the only subtype that efa has, and does not report.
func (q *QP) nameSubtype(dev Device) {
	if q.Type == ib.DriverQP && q.Subtype == "" && dev.DriverID == DriverEFA {
		q.Subtype = ib.SRD.String()
	}
}

func (c *client) resources(dev Device, o ListOptions, attr int) (ResourceCounts, error) {
	var counts ResourceCounts
	err := c.run(command{op: "count resources of", dev: dev}, func(s *session, index uint32) error {
		b, err := s.get(abi.RDMA_NLDEV_CMD_RES_GET, append(o.attrs(), u32Attr(abi.RDMA_NLDEV_ATTR_DEV_INDEX, index))...)
		if err != nil {
			return err
		}
		counts, err = decodeCounts(b, attr)
		return err
	})
	return counts, err
}

// decodeCounts decodes a reply to RDMA_NLDEV_CMD_RES_GET (fill_res_info in the
// kernel's nldev.c): the attribute of each kind, which is CURR, that all have, or MAX.
func decodeCounts(b []byte, attr int) (ResourceCounts, error) {
	var counts ResourceCounts
	names := map[string]*uint64{
		"qp": &counts.QPs, "cq": &counts.CQs, "mr": &counts.MRs, "pd": &counts.PDs,
		"cm_id": &counts.CMIDs, "ctx": &counts.Contexts, "srq": &counts.SRQs,
	}
	m := parse(b)
	m.need(abi.RDMA_NLDEV_ATTR_RES_SUMMARY)
	for e := range m.entries(abi.RDMA_NLDEV_ATTR_RES_SUMMARY, abi.RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY) {
		e.need(abi.RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME, abi.RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR)
		n := e.u64(attr)
		if p := names[cString(e.attrs[abi.RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME])]; p != nil {
			*p = n
		}
	}
	if m.err != nil {
		return ResourceCounts{}, m.err
	}
	return counts, nil
}

// resource describes a kind of objects that the kernel keeps track of (fill_entries in nldev.c):
// the command that lists them, the attributes of the answer, and the attribute that has an object's
// number.
type resource[T any] struct {
	kind
	decode func(*message) T
}

// kind is the part of a resource that does not depend on its Go type.
type kind struct {
	name             string // plural, for errors
	cmd              int
	table, entry, id int
	need             feature
}

var (
	qps = resource[QP]{kind{"QPs", abi.RDMA_NLDEV_CMD_RES_QP_GET, abi.RDMA_NLDEV_ATTR_RES_QP,
		abi.RDMA_NLDEV_ATTR_RES_QP_ENTRY, abi.RDMA_NLDEV_ATTR_RES_LQPN, feature{}}, decodeQP}
	cqs = resource[CQ]{kind{"CQs", abi.RDMA_NLDEV_CMD_RES_CQ_GET, abi.RDMA_NLDEV_ATTR_RES_CQ,
		abi.RDMA_NLDEV_ATTR_RES_CQ_ENTRY, abi.RDMA_NLDEV_ATTR_RES_CQN, feature{}}, decodeCQ}
	mrs = resource[MR]{kind{"MRs", abi.RDMA_NLDEV_CMD_RES_MR_GET, abi.RDMA_NLDEV_ATTR_RES_MR,
		abi.RDMA_NLDEV_ATTR_RES_MR_ENTRY, abi.RDMA_NLDEV_ATTR_RES_MRN, feature{}}, decodeMR}
	pds = resource[PD]{kind{"PDs", abi.RDMA_NLDEV_CMD_RES_PD_GET, abi.RDMA_NLDEV_ATTR_RES_PD,
		abi.RDMA_NLDEV_ATTR_RES_PD_ENTRY, abi.RDMA_NLDEV_ATTR_RES_PDN, feature{}}, decodePD}
	cmIDs = resource[CMID]{kind{"CM IDs", abi.RDMA_NLDEV_CMD_RES_CM_ID_GET, abi.RDMA_NLDEV_ATTR_RES_CM_ID,
		abi.RDMA_NLDEV_ATTR_RES_CM_ID_ENTRY, abi.RDMA_NLDEV_ATTR_RES_CM_IDN, feature{}}, decodeCMID}
	contexts = resource[Context]{kind{"contexts", abi.RDMA_NLDEV_CMD_RES_CTX_GET, abi.RDMA_NLDEV_ATTR_RES_CTX,
		abi.RDMA_NLDEV_ATTR_RES_CTX_ENTRY, abi.RDMA_NLDEV_ATTR_RES_CTXN, feature{name: "list of contexts", since: Version{5, 13}}}, decodeContext}
	srqs = resource[SRQ]{kind{"SRQs", abi.RDMA_NLDEV_CMD_RES_SRQ_GET, abi.RDMA_NLDEV_ATTR_RES_SRQ,
		abi.RDMA_NLDEV_ATTR_RES_SRQ_ENTRY, abi.RDMA_NLDEV_ATTR_RES_SRQN, feature{name: "list of SRQs", since: Version{5, 13}}}, decodeSRQ}
)

// list returns all objects of a kind.
func list[T any](c *client, dev Device, r resource[T], attrs ...*rtAttr) ([]T, error) {
	var all []T
	err := c.each(dev, r.kind, attrs, func(m *message) { all = append(all, r.decode(m)) })
	if err != nil {
		return nil, err
	}
	return all, nil
}

// each calls a function for each object of a kind.
func (c *client) each(dev Device, k kind, attrs []*rtAttr, object func(*message)) error {
	cmd := command{op: "list " + k.name + " of", dev: dev, need: k.need}
	return c.run(cmd, func(s *session, index uint32) error {
		replies, err := s.dump(k.cmd, append(attrs, u32Attr(abi.RDMA_NLDEV_ATTR_DEV_INDEX, index))...)
		if err != nil {
			return err
		}
		for _, b := range replies {
			if err := k.each(b, object); err != nil {
				return err
			}
		}
		return nil
	})
}

// each calls a function for each object in a message of a dump.
func (k kind) each(b []byte, object func(*message)) error {
	m := parse(b)
	m.need(k.table)
	for e := range m.entries(k.table, k.entry) {
		object(e)
	}
	return m.err
}

// one returns the object with the given number. The port is 0 for kinds of objects that do not
// belong to a port (res_get_common_doit in nldev.c).
func one[T any](c *client, dev Device, r resource[T], port, id uint32) (T, error) {
	var v T
	err := c.one(dev, r.kind, port, id, func(m *message) { v = r.decode(m) })
	if err != nil {
		v = *new(T)
	}
	return v, err
}

// one calls a function for the object with the given number. The answer has the attributes that an
// entry of a dump has.
func (c *client) one(dev Device, k kind, port, id uint32, object func(*message)) error {
	return c.object(fmt.Sprintf("look for number %d among %s of", id, k.name), dev, k, port, id, object)
}

// object is one with the operation for errors.
func (c *client) object(op string, dev Device, k kind, port, id uint32, object func(*message)) error {
	cmd := command{op: op, dev: dev, need: k.need}
	var attrs []*rtAttr
	if k.perPort() {
		cmd.port = &port
		attrs = append(attrs, u32Attr(abi.RDMA_NLDEV_ATTR_PORT_INDEX, port))
	}
	return c.run(cmd, func(s *session, index uint32) error {
		attrs = append(attrs, u32Attr(abi.RDMA_NLDEV_ATTR_DEV_INDEX, index))
		b, err := s.get(k.cmd, append(attrs, u32Attr(k.id, id))...)
		// QP 0 and QP 1 exist once on each port; newer kernels tell them apart (rdma_restrack_add).
		if k.id == abi.RDMA_NLDEV_ATTR_RES_LQPN && id <= 1 && errors.Is(err, syscall.ENOENT) {
			b, err = s.get(k.cmd, append(attrs, u32Attr(k.id, id|port<<24))...)
		}
		if err != nil {
			return err
		}
		m := parse(b)
		object(m)
		return m.err
	})
}

// perPort reports whether objects of this kind belong to a port (NLDEV_PER_DEV is not set in
// nldev.c).
func (k kind) perPort() bool {
	return k.id == abi.RDMA_NLDEV_ATTR_RES_LQPN || k.id == abi.RDMA_NLDEV_ATTR_RES_CM_IDN
}
