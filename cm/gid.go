package cm

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/uverbs"
)

// defaultPKey is the partition that every port belongs to.
const defaultPKey = 0xffff

// GIDAddr returns the address of an InfiniBand port with the given GID, in the default partition
// (AF_IB). It is for [ID.BindTo] and [ID.ResolveTo], and needs no IP over InfiniBand.
func GIDAddr(space PortSpace, gid uverbs.GID, port uint16) Addr {
	return Addr{IP: netip.AddrFrom16(gid), Port: port, Space: space, PKey: defaultPKey}
}

// isGID reports whether the address is a GID.
func (a Addr) isGID() bool { return a.PKey != 0 }

// sockaddrIBSize is the size of struct sockaddr_ib in bytes.
const sockaddrIBSize = 48

// gidStorage returns the address as a struct sockaddr_ib.
func (a Addr) gidStorage() (s abi.KernelSockaddrStorage, size uint16) {
	*s.SsFamily() = afIB
	_, err := binary.Encode(s.Data()[:], binary.BigEndian, sockaddrIB{PKey: a.PKey, Addr: a.IP.As16(), ServiceID: uint64(a.Space)<<16 | uint64(a.Port), Mask: 1<<64 - 1})
	if err != nil {
		panic(err) // the sizes are constants
	}
	return s, sockaddrIBSize
}

// gidAddress decodes a struct sockaddr_ib.
func gidAddress(s *abi.KernelSockaddrStorage, space PortSpace) Addr {
	ib := decodeIB(s)
	return Addr{IP: netip.AddrFrom16(ib.Addr), Port: uint16(ib.ServiceID), Space: space, PKey: ib.PKey}
}

// BindTo is [ID.Bind] for any [Addr] in the port space of the ID, such as one of [GIDAddr].
func (id *ID) BindTo(local Addr) error {
	if err := id.checkAddr("BindTo", "local", local); err != nil {
		return err
	}
	s, size := local.storage()
	return do(id, opBind, &local, abi.RDMA_USER_CM_CMD_BIND, &abi.Bind{ID: id.handle, AddrSize: size, Addr: s})
}

// ResolveTo is [ID.ResolveAddr] for any [Addr] in the port space of the ID, such as one of
// [GIDAddr]. The local address may be the zero value, which is any. On an InfiniBand network
// without a subnet administrator the route must be set with [ID.SetPath].
func (id *ID) ResolveTo(local, remote Addr, timeout time.Duration) error {
	ms, err := milliseconds("ResolveTo", timeout)
	if err != nil {
		return err
	}
	if err := id.checkAddr("ResolveTo", "remote", remote); err != nil {
		return err
	}
	req := abi.ResolveAddr{ID: id.handle, TimeoutMs: ms}
	req.DstAddr, req.DstSize = remote.storage()
	if local.IP.IsValid() {
		if err := id.checkAddr("ResolveTo", "local", local); err != nil {
			return err
		}
		req.SrcAddr, req.SrcSize = local.storage()
	}
	id.remote.Store(&remote)
	return do(id, opResolve, &remote, abi.RDMA_USER_CM_CMD_RESOLVE_ADDR, &req)
}

// checkAddr returns an error unless the address is in the port space of the ID.
func (id *ID) checkAddr(op, field string, a Addr) error {
	if !a.IP.IsValid() {
		return argErr(op, field, "the zero value", "an address")
	}
	if a.Space != id.space {
		return argErr(op, field, a.Network()+" "+a.String(), "an address of port space %s", id.space)
	}
	return nil
}
