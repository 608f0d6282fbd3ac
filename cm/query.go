package cm

import (
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs"
)

// Addrs are the addresses of an ID, and the device that it is on.
type Addrs struct {
	Local  Addr   // Local is the address of this side.
	Remote Addr   // Remote is that of the peer; its IP is the zero value if there is none.
	Device string // Device is the name of the RDMA device; empty if none is chosen yet.
	Port   uint8  // Port is the device's port; 0 if none is chosen yet.
	PKey   uint16 // PKey is the partition.
}

// Addrs asks for the addresses and the device (rdma_get_local_addr, rdma_get_peer_addr).
func (id *ID) Addrs() (Addrs, error) {
	a, index, err := id.addrs()
	if err != nil || a.Port == 0 { // no device yet
		return a, err
	}
	if a.Device, err = deviceName(index); err == nil {
		id.device.Store(&a.Device)
	}
	return a, err
}

// checkReachable returns an error if nobody can connect to a local address, as the kernel has found no
// device for it. It lets loopback addresses be bound to.
func (a *Addrs) checkReachable() error {
	if a.Port != 0 || a.Local.IP.IsUnspecified() {
		return nil
	}
	return &Error{Op: opBind, Addr: a.Local.String(), Errno: syscall.ENODEV, Hint: noDevice}
}

// addrs is Addrs without the device's name, but with its index, if it has a port.
func (id *ID) addrs() (a Addrs, index uint32, err error) {
	resp, err := id.queryAddr("query addresses", abi.RDMA_USER_CM_QUERY_ADDR)
	if err != nil {
		return Addrs{}, 0, err
	}
	a = Addrs{Local: address(&resp.SrcAddr, id.space), Remote: address(&resp.DstAddr, id.space), Port: resp.PortNum,
		PKey: getPort(&resp.PKey)} // in network byte order, though the header does not say so
	return a, resp.IbdevIndex, nil
}

// queryAddr asks for addresses, of either kind.
func (id *ID) queryAddr(op string, option uint32) (*abi.QueryAddrResp, error) {
	if id.closed.Load() {
		return nil, id.errClosed()
	}
	resp := &abi.QueryAddrResp{}
	errno := query(id.channel.Load().file, abi.RDMA_USER_CM_CMD_QUERY,
		&abi.Query{Response: abi.PtrTo(resp), ID: id.handle, Option: option}, resp)
	return resp, opError(op, "", errno)
}

// deviceName returns the name of a device, empty if it is gone.
func deviceName(index uint32) (string, error) {
	devices, err := netlinkrdma.Devices()
	if err != nil {
		return "", err
	}
	for _, d := range devices {
		if d.Index == index {
			return d.Name, nil
		}
	}
	return "", nil
}

// SetTOS sets the type of service of what the connection sends (RDMA_OPTION_ID_TOS).
func (id *ID) SetTOS(tos uint8) error {
	return setOption(id, "set type of service", abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_TOS, &tos)
}

// SetReuseAddr allows a listener on an address whose connections are not all gone
// (RDMA_OPTION_ID_REUSEADDR).
func (id *ID) SetReuseAddr(on bool) error {
	return setOption(id, "set reuse of address", abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_REUSEADDR, boolOption(on))
}

// SetAFOnly has a listener on an IPv6 address not listen for IPv4 (RDMA_OPTION_ID_AFONLY).
func (id *ID) SetAFOnly(on bool) error {
	return setOption(id, "set address family only", abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_AFONLY, boolOption(on))
}

// SetAckTimeout sets the QP's wait for an acknowledgement, at least this long
// (RDMA_OPTION_ID_ACK_TIMEOUT).
func (id *ID) SetAckTimeout(d time.Duration) error {
	timeout := uint8(uverbs.AckTimeoutFor(d))
	return setOption(id, "set ack timeout", abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_ACK_TIMEOUT, &timeout)
}

// boolOption is a bool as the kernel has it.
func boolOption(on bool) *int32 {
	if on {
		return new(int32(1))
	}
	return new(int32(0))
}

// withZone returns the zone of a link-local address.
func withZone(ip netip.Addr, scope uint32) netip.Addr {
	if scope == 0 {
		return ip
	}
	return ip.WithZone(strconv.Itoa(int(scope)))
}
