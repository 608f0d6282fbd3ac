package rdmacm

import (
	"bytes"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Service is a service of an InfiniBand port, as the subnet administrator has it on record (struct
// ib_user_service_rec).
type Service struct {
	ID     uint64        // ID is the service ID.
	GID    ib.GID        // GID is the GID of the port.
	PKey   uint16        // PKey is the partition key.
	Lease  time.Duration // Lease is how long the record is still valid; [LeaseForever] is no limit.
	Key    [16]byte      // Key protects the record from changes.
	Name   string        // Name is the name of the service.
	Data8  [16]uint8     // Data8 is data of the service.
	Data16 [8]uint16     // Data16 is data of the service, in host byte order.
	Data32 [4]uint32     // Data32 is data of the service, in host byte order.
	Data64 [2]uint64     // Data64 is data of the service, in host byte order.
}

// LeaseForever is the lease of a record that does not expire.
const LeaseForever = time.Duration(1<<63 - 1)

// ResolveService asks InfiniBand's subnet administrator for the ports that offer a service with the
// given name and service ID (rdma_resolve_addrinfo). An empty name or a service ID of 0 matches
// any, but not both. The ID must be bound to an address of a device. The result is
// [EventAddrInfoResolved], after which [ID.Services] returns the records, or [EventAddrInfoError],
// after two seconds at the latest.
//
// RoCE and iWARP have no subnet administrator. On them, and before Linux 6.18, the error matches
// [errors.ErrUnsupported].
func (id *ID) ResolveService(name string, service uint64) error {
	req := abi.ResolveIbService{ID: id.handle, Ibs: abi.IbService{ServiceID: service}}
	switch limit := len(req.Ibs.ServiceName) - 1; {
	case name == "" && service == 0:
		return argErr("ResolveService", "name", `""`, "a name, or a service ID other than 0")
	case len(name) > limit || strings.ContainsRune(name, 0):
		return argErr("ResolveService", "name", fmt.Sprintf("%q", name), "up to %d bytes, none of them 0", limit)
	}
	if service != 0 {
		req.Ibs.Flags |= abi.RDMA_USER_CM_IB_SERVICE_FLAG_ID
	}
	if name != "" {
		req.Ibs.Flags |= abi.RDMA_USER_CM_IB_SERVICE_FLAG_NAME
		copy(req.Ibs.ServiceName[:], name)
	}
	errno := id.issue(newMessage(abi.RDMA_USER_CM_CMD_RESOLVE_IB_SERVICE, &req, 0).raw(nil))
	switch {
	case errno == syscall.EOPNOTSUPP:
		err := &Error{Op: opService, Errno: errno, Hint: "only an InfiniBand subnet administrator can look up services, and the port of the device has no such administrator"}
		return &uverbs.FeatureError{Feature: featureService, Driver: id.driver(), Err: err}
	case errno == syscall.EINVAL && !knowsServices(id.channel.Load().file):
		return unsupported(featureService, &Error{Op: opService, Errno: errno})
	}
	return opError(opService, "", errno)
}

// featureService is the name of the feature in a [uverbs.FeatureError].
const featureService = "RESOLVE_IB_SERVICE"

// knowsServices reports whether the kernel knows the command. If it does, it looks for the ID
// before it checks anything else.
func knowsServices(f *file) bool {
	const nobody = 1<<31 - 1
	return command(f, abi.RDMA_USER_CM_CMD_RESOLVE_IB_SERVICE, &abi.ResolveIbService{ID: nobody}) != syscall.EINVAL
}

// driver returns the name of the driver of the ID's device, for errors.
func (id *ID) driver() string {
	_, index, err := id.AddrsByIndex()
	if err != nil {
		return ""
	}
	infos, _ := uverbs.Devices() // without the list there is no name
	for _, d := range infos {
		if d.Index == index {
			return d.Driver
		}
	}
	return ""
}

// maxServices is how many records an answer has room for, because its length has 16 bits.
const maxServices = 372

// Services returns the records that ResolveService found, at most 372 (rdma_query_addrinfo). Before
// [EventAddrInfoResolved] the error matches ENODATA. Linux 6.18.
func (id *ID) Services() ([]Service, error) {
	const op = "query services"
	resp, err := queryList[abi.QueryIbServiceResp, abi.IbUserServiceRec](id, op, abi.RDMA_USER_CM_QUERY_IB_SERVICE, maxServices)
	if e, ok := err.(*Error); ok && e.Errno == syscall.ENOSYS {
		return nil, unsupported("QUERY_IB_SERVICE", err)
	}
	if err != nil {
		return nil, err
	}
	var list []Service
	for _, rec := range resp.TailRecs(int(min(resp.NumServiceRecs, maxServices))) {
		list = append(list, decodeService(&rec))
	}
	return list, nil
}

// decodeService decodes a service record.
func decodeService(r *abi.IbUserServiceRec) Service {
	const forever = 1<<32 - 1
	name, _, _ := bytes.Cut(r.Name[:], []byte{0})
	s := Service{
		ID:    r.ID.Get(),
		GID:   r.GID,
		PKey:  r.PKey.Get(),
		Lease: time.Duration(r.Lease.Get()) * time.Second,
		Key:   r.Key,
		Name:  string(name),
		Data8: r.Data8,
	}
	if r.Lease.Get() == forever {
		s.Lease = LeaseForever
	}
	for i := range s.Data16 {
		s.Data16[i] = r.Data16[i].Get()
	}
	for i := range s.Data32 {
		s.Data32[i] = r.Data32[i].Get()
	}
	for i := range s.Data64 {
		s.Data64[i] = r.Data64[i].Get()
	}
	return s
}
