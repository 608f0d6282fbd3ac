package uverbs

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// Access says what a memory region may be used for, and what a QP lets its peer do
// (enum ib_uverbs_access_flags, rdma/ib_user_ioctl_verbs.h).
type Access uint32

// Access rights. Local reading is always allowed.
const (
	AccessLocalWrite   Access = abi.IB_UVERBS_ACCESS_LOCAL_WRITE   // the device may write to it: receives, RDMA READ (IBV_ACCESS_LOCAL_WRITE)
	AccessRemoteWrite  Access = abi.IB_UVERBS_ACCESS_REMOTE_WRITE  // the peer may RDMA WRITE; needs AccessLocalWrite (IBV_ACCESS_REMOTE_WRITE)
	AccessRemoteRead   Access = abi.IB_UVERBS_ACCESS_REMOTE_READ   // the peer may RDMA READ (IBV_ACCESS_REMOTE_READ)
	AccessRemoteAtomic Access = abi.IB_UVERBS_ACCESS_REMOTE_ATOMIC // the peer may use atomics; needs AccessLocalWrite (IBV_ACCESS_REMOTE_ATOMIC)
)

// AccessOnDemand has the device take pages when it needs them instead of pinning all of
// them (IBV_ACCESS_ON_DEMAND). For MRs only; the device must have it.
const AccessOnDemand Access = abi.IB_UVERBS_ACCESS_ON_DEMAND

// accessPeer are the rights of a peer's QP, accessMR those that RegMR takes.
const (
	accessPeer = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic
	accessMR   = accessPeer | AccessOnDemand
)

// MR is a memory region: memory that a device may use, and the keys to it
// (struct ibv_mr). It is safe for concurrent use.
type MR struct {
	object
	handle uint32
	lkey   uint32
	rkey   uint32
	addr   uint64
	length uint64
	buf    *Buffer        // what RegMR was given
	slice  []byte         // what RegSlice was given
	pin    runtime.Pinner // keeps slice where it is
}

// pinnedMRs holds every MR that pins a slice, so that a program which forgets an MR
// keeps its memory: the device may still write to it.
var pinnedMRs sync.Map // of *MR

// RegMR registers a buffer (ibv_reg_mr). The buffer cannot be closed before the MR.
// It fails with ENOMEM if the memory would exceed RLIMIT_MEMLOCK; the error tells
// the limit, what is used of it and how to raise it.
func (p *PD) RegMR(buf *Buffer, access Access) (*MR, error) {
	if buf == nil {
		return nil, argErr("RegMR", "buffer", "nil", "a buffer of AllocBuffer")
	}
	mem, err := buf.hold()
	if err != nil {
		return nil, err
	}
	mr := &MR{buf: buf}
	if err := mr.register(p, mem, access); err != nil {
		buf.release()
		return nil, err
	}
	return mr, nil
}

// RegSlice registers memory of the Go heap, or any other that the program keeps in
// place. The slice is pinned until the MR is closed. A [Buffer] is the better
// choice: it is page aligned and nothing else lives on its pages.
func (p *PD) RegSlice(b []byte, access Access) (*MR, error) {
	if len(b) == 0 {
		return nil, argErr("RegSlice", "slice", "empty", "1 byte and more")
	}
	mr := &MR{slice: b}
	mr.pin.Pin(&b[0])
	if err := mr.register(p, b, access); err != nil {
		mr.pin.Unpin()
		return nil, err
	}
	pinnedMRs.Store(mr, nil)
	return mr, nil
}

// register asks the kernel.
func (m *MR) register(p *PD, mem []byte, access Access) error {
	if access&^accessMR != 0 {
		return argErr("RegMR", "access", fmt.Sprintf("%#x", uint32(access)), "the Access constants, together %#x", uint32(accessMR))
	}
	if access&(AccessRemoteWrite|AccessRemoteAtomic) != 0 && access&AccessLocalWrite == 0 {
		return argErr("RegMR", "access", fmt.Sprintf("%#x", uint32(access)), "remote write and remote atomic only together with AccessLocalWrite")
	}
	if access&AccessOnDemand != 0 && p.dev.attr.ODPGeneralCaps&abi.IB_UVERBS_ODP_SUPPORT == 0 {
		return &FeatureError{Feature: "on-demand paging", Driver: p.dev.driver.name()}
	}
	if err := m.join(p.dev, "MR", "DEREG_MR", &p.object); err != nil {
		return err
	}
	m.addr, m.length = addrOf(mem), uint64(len(mem))
	req := &abi.RegMR{
		Start:       m.addr,
		Length:      m.length,
		HCAVA:       m.addr,
		PDHandle:    p.handle,
		AccessFlags: uint32(access),
	}
	resp := &abi.RegMRResp{}
	if errno := p.dev.cmd.legacy(abi.IB_USER_VERBS_CMD_REG_MR, bytesOf(req), bytesOf(resp), udata{}); errno != 0 {
		m.leave()
		return p.dev.cmd.fail("REG_MR", errno, regHint(errno, m.length, p.dev.attr.MaxMRSize))
	}
	m.handle, m.lkey, m.rkey = resp.MRHandle, resp.LKey, resp.RKey
	return nil
}

// LKey returns the key that local work requests name the region by.
func (m *MR) LKey() uint32 { return m.lkey }

// RKey returns the key that the peer names the region by.
func (m *MR) RKey() uint32 { return m.rkey }

// Addr returns the address of the region's first byte, which the peer needs for
// RDMA.
func (m *MR) Addr() uint64 { return m.addr }

// Len returns the region's length in bytes.
func (m *MR) Len() int { return int(m.length) }

// Bytes returns the region's memory. The slice must not be used after the buffer
// is closed.
func (m *MR) Bytes() []byte {
	if m.buf != nil {
		return m.buf.Bytes()
	}
	return m.slice
}

// SGE returns the scatter/gather element for length bytes at offset. If these are
// not inside the region, posting a work request with the element fails.
func (m *MR) SGE(offset, length int) SGE {
	if offset < 0 || length < 0 || uint64(offset) > m.length || uint64(length) > m.length-uint64(offset) || uint64(length) > math.MaxUint32 {
		return SGE{outside: true}
	}
	return SGE{Addr: m.addr + uint64(offset), Length: uint32(length), LKey: m.lkey}
}

// Close deregisters the region (ibv_dereg_mr). Work requests that name it must have
// completed.
func (m *MR) Close() error {
	return m.close(func() error {
		cmd := newIoctl(abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_MR_DESTROY)
		cmd.obj(abi.UVERBS_ATTR_DESTROY_MR_HANDLE, m.handle)
		errno := m.dev.cmd.ioctl(cmd)
		if absent(errno) {
			req := &abi.DeregMR{MRHandle: m.handle}
			errno = m.dev.cmd.legacy(abi.IB_USER_VERBS_CMD_DEREG_MR, bytesOf(req), nil, udata{})
		}
		if errno != 0 {
			return m.dev.cmd.fail(m.destroy, errno, "")
		}
		if m.buf != nil {
			m.buf.release()
		} else {
			m.pin.Unpin()
			pinnedMRs.Delete(m)
		}
		return nil
	})
}

// regHint says what a failed registration may be due to.
func regHint(errno syscall.Errno, length, maxMR uint64) string {
	switch errno {
	case syscall.ENOMEM:
		return memlockHint(length)
	case syscall.EFAULT:
		return "part of the memory is not mapped, or not writable although the access asks for writing"
	case syscall.EINVAL:
		if maxMR > 0 && length > maxMR {
			return fmt.Sprintf("length is %d bytes, the device allows %d (max_mr_size)", length, maxMR)
		}
	}
	return ""
}

// memlockHint compares a registration with RLIMIT_MEMLOCK.
func memlockHint(length uint64) string {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim); err != nil {
		return ""
	}
	if lim.Cur == unix.RLIM_INFINITY {
		return "RLIMIT_MEMLOCK is unlimited, so the machine or the device is out of memory, or of map entries (vm.max_map_count)"
	}
	locked, pinned := lockedMemory()
	return fmt.Sprintf("registering %d bytes: RLIMIT_MEMLOCK is %d bytes, in use are %d pinned and %d locked; "+
		"raise it (ulimit -l unlimited, LimitMEMLOCK=infinity in a systemd unit, --ulimit memlock=-1 for a container) or give the process CAP_IPC_LOCK",
		length, lim.Cur, pinned, locked)
}

// lockedMemory returns VmLck and VmPin of this process, in bytes.
func lockedMemory() (locked, pinned uint64) {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0, 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		name, value, _ := strings.Cut(s.Text(), ":")
		var kb uint64
		if _, err := fmt.Sscanf(strings.TrimSpace(value), "%d kB", &kb); err != nil {
			continue
		}
		switch name {
		case "VmLck":
			locked = kb << 10
		case "VmPin":
			pinned = kb << 10
		}
	}
	return locked, pinned
}
