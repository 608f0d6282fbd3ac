package netlinkrdma

import (
	"fmt"

	"github.com/vishvananda/netlink/nl"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
)

// ResourceCounts tells how many objects of each kind a device has now, those of
// the kernel among them. It is a plain value.
type ResourceCounts struct {
	QPs      uint64 // QPs counts queue pairs.
	CQs      uint64 // CQs counts completion queues.
	MRs      uint64 // MRs counts memory regions.
	PDs      uint64 // PDs counts protection domains.
	CMIDs    uint64 // CMIDs counts identifiers of the connection manager that are bound to the device.
	Contexts uint64 // Contexts counts how often the device has been opened.
	SRQs     uint64 // SRQs counts shared receive queues; always 0 before Linux 5.13.
}

// Resources returns how many objects a device has, as "rdma resource show DEV"
// does. dev must come from [Devices] or [DeviceByName]; if the device has gone
// or has another name by now, the error matches [fs.ErrNotExist].
func Resources(dev Device) (ResourceCounts, error) { return system.resources(dev) }

// QPs returns the queue pairs of a device, as "rdma resource show qp" does. Like
// the other lists it takes any user, who sees the objects of everybody, but
// secrets (keys of memory regions) only with CAP_NET_ADMIN. A list is no
// snapshot: the kernel puts it together piece by piece, and what is made or
// destroyed meanwhile may be missing.
func QPs(dev Device) ([]QP, error) { return list(system, dev, qps) }

// QPByNum returns one queue pair. Its port must be known: a QP has none until it
// leaves the state reset, and cannot be asked for before. If there is no such QP,
// the error matches [fs.ErrNotExist].
func QPByNum(dev Device, port, qpn uint32) (QP, error) { return one(system, dev, qps, port, qpn) }

// CQs returns the completion queues of a device, as "rdma resource show cq" does.
func CQs(dev Device) ([]CQ, error) { return list(system, dev, cqs) }

// CQByID returns one completion queue. If there is no such CQ, the error matches
// [fs.ErrNotExist].
func CQByID(dev Device, id uint32) (CQ, error) { return one(system, dev, cqs, 0, id) }

// MRs returns the memory regions of a device, as "rdma resource show mr" does.
func MRs(dev Device) ([]MR, error) { return list(system, dev, mrs) }

// MRByID returns one memory region. If there is no such MR, the error matches
// [fs.ErrNotExist].
func MRByID(dev Device, id uint32) (MR, error) { return one(system, dev, mrs, 0, id) }

// PDs returns the protection domains of a device, as "rdma resource show pd" does.
func PDs(dev Device) ([]PD, error) { return list(system, dev, pds) }

// PDByID returns one protection domain. If there is no such PD, the error matches
// [fs.ErrNotExist].
func PDByID(dev Device, id uint32) (PD, error) { return one(system, dev, pds, 0, id) }

// CMIDs returns the identifiers of the connection manager that are bound to a
// device, as "rdma resource show cm_id" does.
func CMIDs(dev Device) ([]CMID, error) { return list(system, dev, cmIDs) }

// CMIDByID returns one identifier of the connection manager, on that port. If
// there is none, the error matches [fs.ErrNotExist].
func CMIDByID(dev Device, port, id uint32) (CMID, error) { return one(system, dev, cmIDs, port, id) }

// Contexts returns the contexts of a device, one for each time that it has been
// opened, as "rdma resource show ctx" does. Linux 5.13.
func Contexts(dev Device) ([]Context, error) { return list(system, dev, contexts) }

// ContextByID returns one context. If there is none, the error matches
// [fs.ErrNotExist]. Linux 5.13.
func ContextByID(dev Device, id uint32) (Context, error) { return one(system, dev, contexts, 0, id) }

// SRQs returns the shared receive queues of a device, as "rdma resource show srq"
// does. Linux 5.13.
func SRQs(dev Device) ([]SRQ, error) { return list(system, dev, srqs) }

// SRQByID returns one shared receive queue. If there is none, the error matches
// [fs.ErrNotExist]. Linux 5.13.
func SRQByID(dev Device, id uint32) (SRQ, error) { return one(system, dev, srqs, 0, id) }

func (c *client) resources(dev Device) (ResourceCounts, error) {
	var counts ResourceCounts
	err := c.run(command{op: "count resources of", dev: dev}, func(s *session, index uint32) error {
		b, err := s.get(abi.RDMA_NLDEV_CMD_RES_GET, u32Attr(abi.RDMA_NLDEV_ATTR_DEV_INDEX, index))
		if err != nil {
			return err
		}
		counts, err = decodeCounts(b)
		return err
	})
	return counts, err
}

// decodeCounts decodes a reply to RDMA_NLDEV_CMD_RES_GET (fill_res_info in the
// kernel's nldev.c).
func decodeCounts(b []byte) (ResourceCounts, error) {
	var counts ResourceCounts
	names := map[string]*uint64{
		"qp": &counts.QPs, "cq": &counts.CQs, "mr": &counts.MRs, "pd": &counts.PDs,
		"cm_id": &counts.CMIDs, "ctx": &counts.Contexts, "srq": &counts.SRQs,
	}
	m := parse(b)
	m.need(abi.RDMA_NLDEV_ATTR_RES_SUMMARY)
	for e := range m.entries(abi.RDMA_NLDEV_ATTR_RES_SUMMARY, abi.RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY) {
		e.need(abi.RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME, abi.RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR)
		n := e.u64(abi.RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR)
		if p := names[cString(e.attrs[abi.RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME])]; p != nil {
			*p = n
		}
	}
	if m.err != nil {
		return ResourceCounts{}, m.err
	}
	return counts, nil
}

// resource is a kind of objects that the kernel keeps track of (fill_entries in
// its nldev.c): the command that lists them, the attributes of the answer, and
// the attribute that has an object's number.
type resource[T any] struct {
	name             string // plural, for errors
	cmd              int
	table, entry, id int
	need             feature
	decode           func(*message) T
}

var (
	qps = resource[QP]{"QPs", abi.RDMA_NLDEV_CMD_RES_QP_GET, abi.RDMA_NLDEV_ATTR_RES_QP,
		abi.RDMA_NLDEV_ATTR_RES_QP_ENTRY, abi.RDMA_NLDEV_ATTR_RES_LQPN, feature{}, decodeQP}
	cqs = resource[CQ]{"CQs", abi.RDMA_NLDEV_CMD_RES_CQ_GET, abi.RDMA_NLDEV_ATTR_RES_CQ,
		abi.RDMA_NLDEV_ATTR_RES_CQ_ENTRY, abi.RDMA_NLDEV_ATTR_RES_CQN, feature{}, decodeCQ}
	mrs = resource[MR]{"MRs", abi.RDMA_NLDEV_CMD_RES_MR_GET, abi.RDMA_NLDEV_ATTR_RES_MR,
		abi.RDMA_NLDEV_ATTR_RES_MR_ENTRY, abi.RDMA_NLDEV_ATTR_RES_MRN, feature{}, decodeMR}
	pds = resource[PD]{"PDs", abi.RDMA_NLDEV_CMD_RES_PD_GET, abi.RDMA_NLDEV_ATTR_RES_PD,
		abi.RDMA_NLDEV_ATTR_RES_PD_ENTRY, abi.RDMA_NLDEV_ATTR_RES_PDN, feature{}, decodePD}
	cmIDs = resource[CMID]{"CM IDs", abi.RDMA_NLDEV_CMD_RES_CM_ID_GET, abi.RDMA_NLDEV_ATTR_RES_CM_ID,
		abi.RDMA_NLDEV_ATTR_RES_CM_ID_ENTRY, abi.RDMA_NLDEV_ATTR_RES_CM_IDN, feature{}, decodeCMID}
	contexts = resource[Context]{"contexts", abi.RDMA_NLDEV_CMD_RES_CTX_GET, abi.RDMA_NLDEV_ATTR_RES_CTX,
		abi.RDMA_NLDEV_ATTR_RES_CTX_ENTRY, abi.RDMA_NLDEV_ATTR_RES_CTXN, feature{name: "list of contexts", since: Version{5, 13}}, decodeContext}
	srqs = resource[SRQ]{"SRQs", abi.RDMA_NLDEV_CMD_RES_SRQ_GET, abi.RDMA_NLDEV_ATTR_RES_SRQ,
		abi.RDMA_NLDEV_ATTR_RES_SRQ_ENTRY, abi.RDMA_NLDEV_ATTR_RES_SRQN, feature{name: "list of SRQs", since: Version{5, 13}}, decodeSRQ}
)

// list asks for all objects of a kind.
func list[T any](c *client, dev Device, r resource[T], attrs ...*nl.RtAttr) ([]T, error) {
	var all []T
	cmd := command{op: "list " + r.name + " of", dev: dev, need: r.need}
	err := c.run(cmd, func(s *session, index uint32) error {
		replies, err := s.dump(r.cmd, append(attrs, u32Attr(abi.RDMA_NLDEV_ATTR_DEV_INDEX, index))...)
		if err != nil {
			return err
		}
		for _, b := range replies {
			some, err := r.decodeTable(b)
			if err != nil {
				return err
			}
			all = append(all, some...)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// one asks for the object with that number. Kinds of objects that belong to a
// port are asked for with it, others with port 0 (res_get_common_doit in the
// kernel's nldev.c).
func one[T any](c *client, dev Device, r resource[T], port, id uint32) (T, error) {
	var v T
	cmd := command{op: fmt.Sprintf("look for number %d among %s of", id, r.name), dev: dev, need: r.need}
	var attrs []*nl.RtAttr
	if r.perPort() {
		cmd.port = &port
		attrs = append(attrs, u32Attr(abi.RDMA_NLDEV_ATTR_PORT_INDEX, port))
	}
	err := c.run(cmd, func(s *session, index uint32) error {
		attrs = append(attrs, u32Attr(abi.RDMA_NLDEV_ATTR_DEV_INDEX, index), u32Attr(r.id, id))
		b, err := s.get(r.cmd, attrs...)
		if err != nil {
			return err
		}
		v, err = r.decodeOne(b)
		return err
	})
	return v, err
}

// perPort says whether objects of this kind belong to a port (the absence of
// NLDEV_PER_DEV in the kernel's nldev.c).
func (r resource[T]) perPort() bool {
	return r.id == abi.RDMA_NLDEV_ATTR_RES_LQPN || r.id == abi.RDMA_NLDEV_ATTR_RES_CM_IDN
}

// decodeTable decodes a message of a dump.
func (r resource[T]) decodeTable(b []byte) ([]T, error) {
	m := parse(b)
	m.need(r.table)
	var all []T
	for e := range m.entries(r.table, r.entry) {
		all = append(all, r.decode(e))
	}
	if m.err != nil {
		return nil, m.err
	}
	return all, nil
}

// decodeOne decodes the answer about one object: what is an entry in a dump are
// the attributes of the message here.
func (r resource[T]) decodeOne(b []byte) (T, error) {
	m := parse(b)
	v := r.decode(m)
	if m.err != nil {
		var zero T
		return zero, m.err
	}
	return v, nil
}
