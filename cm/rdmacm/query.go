package rdmacm

import (
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/cm/internal/inprocess"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Addrs has the addresses and the device of an ID.
type Addrs struct {
	Local  Addr   // Local is the address of this side.
	Remote Addr   // Remote is the address of the peer; its IP is the zero value if there is none.
	Device string // Device is the name of the RDMA device; empty if none is chosen yet.
	Port   uint8  // Port is the port number of the device; 0 if no device is chosen yet.
	PKey   uint16 // PKey is the partition key.
}

// Addrs returns the addresses and the device of the ID (rdma_get_local_addr, rdma_get_peer_addr,
// rdma_get_src_port, rdma_get_dst_port).
func (id *ID) Addrs() (Addrs, error) {
	a, index, err := id.AddrsByIndex()
	if err != nil || a.Port == 0 { // no device yet
		return a, err
	}
	if a.Device, err = inprocess.DeviceName(index); err == nil {
		id.device.Store(&a.Device)
	}
	return a, err
}

// CheckReachable returns an error if no peer can connect to the local address, because the kernel
// has found no device for it. The kernel lets an ID bind to a loopback address, and to all addresses if no device
// has one.
func (a Addrs) CheckReachable() error {
	if a.Port != 0 || a.Local.IP.IsUnspecified() && onlyEFA() == "" {
		return nil
	}
	return &Error{Op: opBind, Addr: a.Local.String(), Errno: syscall.ENODEV, Hint: noDevice(a.Local.String())}
}

// AddrsByIndex is Addrs with the index of the device instead of its name, which saves the lookup of the
// name. The index is valid if the port is not 0.
func (id *ID) AddrsByIndex() (a Addrs, index uint32, err error) {
	resp, err := id.queryAddr("query addresses", abi.RDMA_USER_CM_QUERY_ADDR)
	if err != nil {
		return Addrs{}, 0, err
	}
	a = Addrs{Local: address(&resp.SrcAddr, id.space), Remote: address(&resp.DstAddr, id.space), Port: resp.PortNum,
		PKey: getPort(&resp.PKey)} // in network byte order, though the header does not say so
	if a.Port != 0 {
		id.queues.bound.Store(&boundDevice{resp.IbdevIndex, a.Port})
	}
	return a, resp.IbdevIndex, nil
}

// queryAddr queries addresses of either kind.
func (id *ID) queryAddr(op string, option uint32) (*abi.QueryAddrResp, error) {
	resp := &abi.QueryAddrResp{}
	errno := ask(id, abi.RDMA_USER_CM_CMD_QUERY, &abi.Query{Response: abi.PtrTo(resp), ID: id.handle, Option: option}, resp)
	return resp, opError(op, "", errno)
}

// SetTOS sets the type of service of the packets of the connection (rdma_set_option, RDMA_OPTION_ID_TOS).
func (id *ID) SetTOS(tos uint8) error {
	return setOption(id, "set type of service", abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_TOS, &tos)
}

// SetReuseAddr lets a listener use an address that old connections still use
// (rdma_set_option, RDMA_OPTION_ID_REUSEADDR). Call it before [ID.Bind].
func (id *ID) SetReuseAddr(on bool) error {
	return setOption(id, "set reuse of address", abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_REUSEADDR, boolOption(on))
}

// SetAFOnly makes a listener on an IPv6 address ignore IPv4 (rdma_set_option, RDMA_OPTION_ID_AFONLY). Call it before
// [ID.Bind].
func (id *ID) SetAFOnly(on bool) error {
	return setOption(id, "set address family only", abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_AFONLY, boolOption(on))
}

// SetAckTimeout sets how long the QP waits for an acknowledgement, rounded up to a power of two
// times 4.096 µs (rdma_set_option, RDMA_OPTION_ID_ACK_TIMEOUT).
func (id *ID) SetAckTimeout(d time.Duration) error {
	timeout := uint8(ib.AckTimeoutFor(d))
	return setOption(id, "set ack timeout", abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_ACK_TIMEOUT, &timeout)
}

// SetQPAckTimeout sets how long the QP of [ID.CreateQP] waits for an acknowledgement, rounded up as for
// SetAckTimeout. It does not affect the QP of the peer, and it needs no command. Call it before
// [ID.Connect] or [ID.Accept].
func (id *ID) SetQPAckTimeout(d time.Duration) { id.ackTimeout.Store(uint32(ib.AckTimeoutFor(d))) }

// SetRNRRetryCount sets how often the QP of [ID.CreateQP] sends a message again while the peer has no
// receive posted, up to 6; 7 is no limit. Without it the QP does what the peer's [ConnParam] asks for.
// Call it before [ID.Connect] or [ID.Accept].
func (id *ID) SetRNRRetryCount(n uint8) error {
	p := ConnParam{RNRRetryCount: n}
	if err := p.check("SetRNRRetryCount"); err != nil {
		return err
	}
	id.rnrRetry.Store(&n)
	return nil
}

// SetRetryCount sets how often the QP of [ID.CreateQP] sends a packet again that the peer's device does not
// acknowledge, up to 7. Some devices, such as rxe, never give up if it is 7. Without it the QP of both sides does
// what the [ConnParam] of the side that connects asks for. Call it before [ID.Connect] or [ID.Accept].
func (id *ID) SetRetryCount(n uint8) error {
	p := ConnParam{RetryCount: n}
	if err := p.check("SetRetryCount"); err != nil {
		return err
	}
	id.retry.Store(&n)
	return nil
}

// boolOption returns a bool in the kernel's layout.
func boolOption(on bool) *int32 {
	if on {
		return new(int32(1))
	}
	return new(int32(0))
}

// withZone adds the zone to a link-local address.
func withZone(ip netip.Addr, scope uint32) netip.Addr {
	if scope == 0 {
		return ip
	}
	return ip.WithZone(strconv.Itoa(int(scope)))
}
