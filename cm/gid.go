package cm

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/uverbs"
)

// defaultPKey is the partition that every port is in.
const defaultPKey = 0xffff

// GIDAddr makes an address of the GID of an InfiniBand port, in the default partition, for
// [ID.BindTo] and [ID.ResolveTo]. IP over InfiniBand is not needed for it (AF_IB).
func GIDAddr(space PortSpace, gid uverbs.GID, port uint16) Addr {
	return Addr{IP: netip.AddrFrom16(gid), Port: port, Space: space, PKey: defaultPKey}
}

// isGID reports whether the address is a GID.
func (a Addr) isGID() bool { return a.PKey != 0 }

// sockaddrIBSize is the size of such an address with its family (struct sockaddr_ib).
const sockaddrIBSize = 48

// gidStorage returns the address as the kernel has it.
func (a Addr) gidStorage() (s abi.KernelSockaddrStorage, size uint16) {
	*s.SsFamily() = afIB
	_, err := binary.Encode(s.Data()[:], binary.BigEndian, sockaddrIB{PKey: a.PKey, Addr: a.IP.As16(), ServiceID: uint64(a.Space)<<16 | uint64(a.Port), Mask: 1<<64 - 1})
	if err != nil {
		panic(err) // the sizes are constants
	}
	return s, sockaddrIBSize
}

// gidAddress reads such an address.
func gidAddress(s *abi.KernelSockaddrStorage, space PortSpace) Addr {
	ib := decodeIB(s)
	return Addr{IP: netip.AddrFrom16(ib.Addr), Port: uint16(ib.ServiceID), Space: space, PKey: ib.PKey}
}

// BindTo is [ID.Bind] for an address of any kind, as that of [GIDAddr], in the ID's port space.
func (id *ID) BindTo(local Addr) error {
	if err := id.checkAddr("BindTo", "local", local); err != nil {
		return err
	}
	s, size := local.storage()
	return do(id, opBind, &local, abi.RDMA_USER_CM_CMD_BIND, &abi.Bind{ID: id.handle, AddrSize: size, Addr: s})
}

// ResolveTo is [ID.ResolveAddr] for addresses of any kind, as those of [GIDAddr], in the ID's port
// space. The zero value of the local one is any. On an InfiniBand without subnet administrator
// [ID.SetPath] has to say the way then.
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

// checkAddr compares an address with the ID's port space.
func (id *ID) checkAddr(op, field string, a Addr) error {
	if !a.IP.IsValid() {
		return argErr(op, field, "the zero value", "an address")
	}
	if a.Space != id.space {
		return argErr(op, field, a.Network()+" "+a.String(), "an address of port space %s", id.space)
	}
	return nil
}
