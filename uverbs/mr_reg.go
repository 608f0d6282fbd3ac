package uverbs

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/diag"
)

// MROptions are the options of [PD.RegMR]. The zero value registers the whole buffer for local
// reading, at its own address.
type MROptions struct {
	Access Access // Access are the access rights.
	Offset int    // Offset is the start of the region in the buffer, in bytes.
	Length int    // Length is the length of the region in bytes; by default up to the end of the buffer.
	DMAH   *DMAH  // DMAH selects the cache that the device's accesses go to (ibv_reg_mr_ex); Linux 6.17.

	// IOVA is the address of the first byte in work requests and for the peer. The default is the memory's
	// own address, or 0 with [AccessZeroBased]. The offset within a page must be that of the memory. With
	// mlx5 of Linux 5.10 the address must also have the alignment of the memory's page: otherwise data may
	// end up elsewhere in the region.
	IOVA *uint64

	// DataDirect has the adapter access a dma-buf through a PCI function of its own, which is close to a GPU
	// (mlx5dv_reg_dmabuf_mr with MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT). [PD.RegDMABuf] says more.
	DataDirect bool
}

// part returns the selected part of size bytes.
func (o *MROptions) part(op string, size int) (offset, length int, err error) {
	if o.Offset < 0 || o.Offset >= size {
		return 0, 0, argErr(op, "Offset", o.Offset, "0 to %d (the memory has %d bytes)", size-1, size)
	}
	rest := size - o.Offset
	if o.Length < 0 || o.Length > rest {
		return 0, 0, argErr(op, "Length", o.Length, "0 to %d (the memory has %d bytes, the region starts at %d)", rest, size, o.Offset)
	}
	if o.Length == 0 {
		return o.Offset, rest, nil
	}
	return o.Offset, o.Length, nil
}

// iova returns the address of a region whose memory begins at start.
func (o *MROptions) iova(op string, start, length uint64) (uint64, error) {
	iova := start
	zero := o.Access&AccessZeroBased != 0
	if zero {
		iova = 0
	}
	if o.IOVA != nil {
		if iova = *o.IOVA; zero && iova != 0 {
			return 0, argErr(op, "IOVA", fmt.Sprintf("%#x", iova), "0 with access ZERO_BASED")
		}
	}
	if page := uint64(os.Getpagesize()); iova%page != start%page {
		return 0, argErr(op, "IOVA", fmt.Sprintf("%#x", iova), "addresses at offset %#x of a page of %#x bytes, like the memory", start%page, page)
	}
	if length > math.MaxUint64-iova {
		return 0, argErr(op, "IOVA", fmt.Sprintf("%#x", iova), "up to %#x, for %d bytes", math.MaxUint64-length, length)
	}
	return iova, nil
}

// RegMR registers a buffer or a part of it (ibv_reg_mr, ibv_reg_mr_iova, ibv_reg_mr_iova2,
// ibv_reg_buf_mr). The buffer cannot be closed before the MR. It fails with ENOMEM if the memory would
// exceed RLIMIT_MEMLOCK; the error has the limit, its current use and how to raise it.
func (p *PD) RegMR(buf *Buffer, o MROptions) (*MR, error) {
	const op = "RegMR"
	if err := p.usable(); err != nil {
		return nil, err
	}
	allowed := accessMR
	if buf != nil && buf.heap != nil {
		allowed = accessDMABuf
	}
	if err := p.dev.checkAccess(op, o.Access, allowed); err != nil {
		return nil, err
	}
	mr := &MR{}
	if err := o.region(op, buf, &mr.mem); err != nil {
		return nil, err
	}
	if err := mr.register(p, &mr.mem, o.DMAH); err != nil {
		buf.release()
		return nil, err
	}
	return mr, mr.markCreated(mr)
}

// region fills in the region of a buffer. It acquires the buffer; the caller releases it.
func (o *MROptions) region(op string, buf *Buffer, s *region) error {
	if buf == nil {
		return argErr(op, "buffer", "nil", "a Buffer")
	}
	mem, err := buf.acquire()
	if err != nil {
		return err
	}
	if o.DataDirect {
		buf.release()
		return argErr(op, "DataDirect", true, "false; only RegDMABuf has it")
	}
	*s = region{access: o.Access, buf: buf}
	var length int
	if s.offset, length, err = o.part(op, len(mem)); err == nil {
		s.start, s.length = addrOf(mem)+uint64(s.offset), uint64(length)
		s.iova, err = o.iova(op, s.start, s.length)
	}
	if buf.heap != nil {
		s.start, s.file = uint64(s.offset), true
	}
	if err != nil {
		buf.release()
	}
	return err
}

// RegSlice registers memory of the Go heap, or other memory that does not move. The slice is pinned
// until the MR is closed. A [Buffer] is usually better: it is page aligned and shares no page with
// other data.
func (p *PD) RegSlice(b []byte, access Access) (*MR, error) {
	const op = "RegSlice"
	if len(b) == 0 {
		return nil, argErr(op, "slice", "empty", "at least 1 byte")
	}
	if err := p.dev.checkAccess(op, access, accessMR); err != nil {
		return nil, err
	}
	mr := &MR{}
	mr.pin.Pin(&b[0])
	s := &region{access: access, start: addrOf(b), length: uint64(len(b)), slice: b}
	var err error
	o := MROptions{Access: access}
	if s.iova, err = o.iova(op, s.start, s.length); err == nil {
		err = mr.register(p, s, nil)
	}
	if err != nil {
		mr.pin.Unpin()
		return nil, err
	}
	pinnedMRs.Store(mr, nil)
	return mr, mr.markCreated(mr)
}

// use makes the MR a user of its PD and of its DMA handle, which may be nil.
func (m *MR) use(p *PD, h *DMAH) error {
	m.pd = p
	if h != nil {
		return m.addParents(p.dev, "MR", "DEREG_MR", &p.object, &h.object)
	}
	return m.addParents(p.dev, "MR", "DEREG_MR", &p.object)
}

// register registers memory of this process. It uses the legacy command unless there is a DMA
// handle, which only the ioctl method takes: in Linux 7.2 that method leaves an MR of rxe with
// address and length 0, which no request can use.
func (m *MR) register(p *PD, s *region, h *DMAH) error {
	if s.file {
		return m.registerFile(p, s, h, s.buf.heap)
	}
	if err := p.dev.supportsMR("REG_MR", s); err != nil {
		return err
	}
	if err := m.use(p, h); err != nil {
		return err
	}
	if h != nil {
		if errno := m.registerEx(p, s, h, -1); errno != 0 {
			m.removeParents()
			return p.dev.regError("REG_MR_EX", errno, s)
		}
		return nil
	}
	req := abi.RegMR{
		Start:       s.start,
		Length:      s.length,
		HCAVA:       s.iova,
		PDHandle:    p.handle,
		AccessFlags: uint32(s.access),
	}
	var errno syscall.Errno
	if u := p.dev.driver.mrUdata(); len(u.in)+len(u.out) > 0 {
		errno = p.dev.cmd.legacy(abi.IB_USER_VERBS_CMD_REG_MR, bytesOf(new(req)), bytesOf(&m.answer), u)
	} else {
		errno = p.dev.cmd.LegacyBrief(abi.IB_USER_VERBS_CMD_REG_MR, bytesOf(&req), bytesOf(&m.answer), false)
	}
	if errno != 0 {
		m.removeParents()
		return p.dev.regError("REG_MR", errno, s)
	}
	m.handle = m.answer.MRHandle
	m.setRegion(s, m.answer.LKey, m.answer.RKey)
	return nil
}

// supportsMR returns an error if the driver does not support a region. The kernel may not say what it refuses.
func (d *Device) supportsMR(verb string, s *region) error {
	if lacking := d.driver.unsupportedMR(d, s); lacking != "" {
		return &FeatureError{Feature: verb + " with " + lacking, Driver: d.driver.name()}
	}
	return nil
}

// registerEx uses UVERBS_METHOD_REG_MR, for memory of this process or, if fd is not negative, for a
// dma-buf.
func (m *MR) registerEx(p *PD, s *region, h *DMAH, fd int) syscall.Errno {
	var lkey, rkey [4]byte
	cmd := newIoctl(abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_REG_MR)
	defer cmd.done()
	handle := cmd.newObj(abi.UVERBS_ATTR_REG_MR_HANDLE)
	cmd.obj(abi.UVERBS_ATTR_REG_MR_PD_HANDLE, p.handle)
	if h != nil {
		cmd.obj(abi.UVERBS_ATTR_REG_MR_DMA_HANDLE, h.handle)
	}
	cmd.u64(abi.UVERBS_ATTR_REG_MR_IOVA, s.iova)
	if fd < 0 {
		cmd.u64(abi.UVERBS_ATTR_REG_MR_ADDR, s.start)
	} else {
		cmd.u32(abi.UVERBS_ATTR_REG_MR_FD, uint32(fd))
		cmd.u64(abi.UVERBS_ATTR_REG_MR_FD_OFFSET, s.start)
	}
	cmd.u64(abi.UVERBS_ATTR_REG_MR_LENGTH, s.length)
	cmd.u32(abi.UVERBS_ATTR_REG_MR_ACCESS_FLAGS, uint32(s.access))
	cmd.out(abi.UVERBS_ATTR_REG_MR_RESP_LKEY, lkey[:])
	cmd.out(abi.UVERBS_ATTR_REG_MR_RESP_RKEY, rkey[:])
	errno := p.dev.cmd.ioctl(cmd)
	if errno == 0 {
		m.handle = uint32(handle.Data)
		m.setRegion(s, le32(lkey[:]), le32(rkey[:]))
	}
	return errno
}

// readOnlyHint explains EACCES.
const readOnlyHint = "the region was registered for reading only, so its memory cannot be made writable; register it anew"

// regError returns the error for a refused registration.
func (d *Device) regError(verb string, errno syscall.Errno, s *region) error {
	r := diag.Registration{Errno: errno, Device: d.Name(), Start: s.start, Length: s.length, Write: s.access&accessWriting != 0,
		MaxSize: d.attr.MaxMRSize, MaxMR: uint64(d.attr.MaxMR), Kernel: runningKernel(), MemlockForAll: d.driver.capabilities().memlockForAll}
	hint := ""
	if !d.info.InProcess || errno != syscall.ENOMEM { // the kernel's limits of memory do not apply
		hint = r.Hint()
	}
	switch {
	case errno == syscall.EACCES:
		hint = readOnlyHint
	case errno == errWriteDenied && verb == "REREG_MR":
		hint = readOnlyHint + "; or the process has changed its user since it opened the device"
	case errno == syscall.EINVAL && hint == "" && s.access&AccessFlushPersistent != 0:
		hint = "access FLUSH_PERSISTENT is for persistent memory only"
	}
	err := about(d.cmd.fail(verb, errno, hint), "", fmt.Sprintf("%d bytes at %#x, access %s", s.length, s.start, s.access))
	var f *FeatureError
	if special := s.access &^ accessPeer; special != 0 && errors.As(err, &f) {
		f.Feature = verb + " with access " + special.String()
	}
	return err
}

// checkAccess returns an error if rights exclude each other or the device does not support one.
func (d *Device) checkAccess(op string, access, allowed Access) error {
	if access&^allowed != 0 {
		return argErr(op, "access", access, "%s", allowed)
	}
	if access&(AccessRemoteWrite|AccessRemoteAtomic) != 0 && access&AccessLocalWrite == 0 {
		return argErr(op, "access", access, "LOCAL_WRITE, too, if REMOTE_WRITE or REMOTE_ATOMIC is set")
	}
	if access&AccessOnDemand != 0 && access&AccessHugeTLB != 0 {
		return argErr(op, "access", access, "ON_DEMAND without HUGETLB: the kernel may give the device wrong addresses with both")
	}
	attr := &d.attr
	for _, f := range []struct {
		bit   Access
		has   bool
		name  string
		since Version
	}{
		{AccessOnDemand, attr.ODPGeneralCaps&abi.IB_UVERBS_ODP_SUPPORT != 0, "on-demand paging", Version{}},
		{AccessFlushGlobal, attr.CapFlags&abi.IB_UVERBS_DEVICE_FLUSH_GLOBAL != 0, "access FLUSH_GLOBAL", Version{6, 2}},
		{AccessFlushPersistent, attr.CapFlags&abi.IB_UVERBS_DEVICE_FLUSH_PERSISTENT != 0, "access FLUSH_PERSISTENT", Version{6, 2}},
	} {
		if access&f.bit != 0 && !f.has {
			return &FeatureError{Feature: f.name, Since: f.since, Driver: d.driver.name()}
		}
	}
	return nil
}

// RegImplicit registers the whole address space of the process, including memory that is mapped
// later (ibv_reg_mr of address NULL and length SIZE_MAX with IBV_ACCESS_ON_DEMAND). The device
// pages memory in on demand, so nothing is pinned. The offset in [MR.SGE] is an address, and
// [MR.Bytes] returns nil.
//
// The error is a [FeatureError] if the device does not support it, as
// IB_UVERBS_ODP_SUPPORT_IMPLICIT in [DeviceAttr].ODPGeneralCaps tells. rxe does not.
//
// Memory of the Go heap must be pinned with a [runtime.Pinner] while the device uses it. Buffers of
// [AllocBuffer] do not move.
func (p *PD) RegImplicit(access Access) (*MR, error) {
	const op = "RegImplicit"
	if err := p.usable(); err != nil {
		return nil, err
	}
	access |= AccessOnDemand
	if err := p.dev.checkAccess(op, access, accessPeer|AccessOnDemand|accessWishes); err != nil {
		return nil, err
	}
	if p.dev.attr.ODPGeneralCaps&abi.IB_UVERBS_ODP_SUPPORT_IMPLICIT == 0 {
		return nil, &FeatureError{Feature: "implicit on-demand paging", Driver: p.dev.driver.name()}
	}
	if err := p.dev.cmd.untranslated("implicit on-demand paging"); err != nil { // all memory of this process
		return nil, err
	}
	mr := &MR{}
	if err := mr.register(p, &region{access: access, length: math.MaxUint64}, nil); err != nil {
		return nil, err
	}
	return mr, mr.markCreated(mr)
}

// Flags that say what a reregistration changes (enum ib_mr_rereg_flags). They are part of the
// command, but not in the kernel's uapi headers.
const (
	reregTranslation = 1 << 0
	reregPD          = 1 << 1
	reregAccess      = 1 << 2
)

// ReregOptions say what [MR.Rereg] changes. Zero fields leave it as it is. Offset, Length and IOVA
// require Buffer.
type ReregOptions struct {
	PD     *PD     // PD is the new protection domain.
	Access *Access // Access are the new access rights, for example new(uverbs.AccessLocalWrite).
	Buffer *Buffer // Buffer is the new memory.

	Offset int     // Offset is the start of the region in Buffer, in bytes.
	Length int     // Length is the length of the region in bytes; by default up to the end of Buffer.
	IOVA   *uint64 // IOVA is the address of the first byte, as in [MROptions].
}

// Rereg changes the memory, the PD or the access rights of a region (ibv_rereg_mr). The keys may
// change, so send them to the peer again. Work requests that use the region must have completed. No
// other method of the region may be called meanwhile.
//
// After a [FeatureError], for a change that the driver does not support, or an [ArgError] the
// region is unchanged. After any other error it can only be closed.
func (m *MR) Rereg(o ReregOptions) error {
	if err := m.acquire(); err != nil {
		return err
	}
	defer m.release()
	s, req, err := o.request(m)
	if err != nil {
		return err
	}
	was := m.pd
	pd := was
	if o.PD != nil {
		pd = o.PD
	}
	if err = m.addParent(&pd.object); err == nil {
		resp := &abi.ReregMRResp{}
		errno := m.dev.cmd.legacy(abi.IB_USER_VERBS_CMD_REREG_MR, bytesOf(req), bytesOf(resp), udata{})
		if errno == 0 {
			m.removeParent(&was.object)
			if o.Buffer != nil {
				m.releaseMemory(&m.mem)
			}
			m.dev.tree.Lock() // mrOf may read them
			defer m.dev.tree.Unlock()
			m.pd = pd
			m.setRegion(s, resp.LKey, resp.RKey)
			return nil
		}
		m.removeParent(&pd.object)
		err = m.dev.regError("REREG_MR", errno, s)
	}
	if o.Buffer != nil {
		o.Buffer.release()
	}
	return err
}

// request returns the new region and the command for it. The caller releases the new buffer.
func (o *ReregOptions) request(m *MR) (*region, *abi.ReregMR, error) {
	const op = "Rereg"
	if m.imported {
		return nil, nil, argErr(op, "MR", "imported", "an MR that this process registered")
	}
	s := m.mem
	if o.Buffer != nil && o.Buffer.heap != nil || s.buf != nil && s.buf.heap != nil {
		return nil, nil, argErr(op, "Buffer", "of a heap", "a buffer without BufferOptions.Heap, new and old")
	}
	req := &abi.ReregMR{MRHandle: m.handle}
	if o.Access != nil {
		s.access = *o.Access
		req.Flags |= reregAccess
	}
	if o.PD != nil {
		req.PDHandle = o.PD.handle
		req.Flags |= reregPD
		if o.PD.dev != m.dev {
			return nil, nil, argErr(op, "PD", "of "+m.dev.other(o.PD.dev), "a PD of %s", m.dev.Name())
		}
	}
	if o.Buffer == nil && (o.Offset != 0 || o.Length != 0 || o.IOVA != nil) {
		return nil, nil, argErr(op, "Buffer", "nil", "a buffer, since Offset, Length or IOVA are given")
	}
	if o.Buffer == nil && req.Flags == 0 {
		return nil, nil, argErr(op, "options", "empty", "at least one of PD, Access and Buffer")
	}
	if err := m.dev.checkAccess(op, s.access, accessMR); err != nil {
		return nil, nil, err
	}
	req.AccessFlags = uint32(s.access)
	if o.Buffer == nil {
		return &s, req, nil
	}
	if err := m.dev.cmd.untranslated("REREG_MR with new memory"); err != nil {
		return nil, nil, err
	}
	part := MROptions{Access: s.access, Offset: o.Offset, Length: o.Length, IOVA: o.IOVA}
	next := new(region)
	if err := part.region(op, o.Buffer, next); err != nil {
		return nil, nil, err
	}
	if err := m.dev.checkReregIOVA(next); err != nil {
		o.Buffer.release()
		return nil, nil, err
	}
	req.Start, req.Length, req.HCAVA = next.start, next.length, next.iova
	req.Flags |= reregTranslation
	return next, req, nil
}

// other names another device, which may be the same one opened twice.
func (d *Device) other(of *Device) string {
	switch {
	case of == nil:
		return "no device"
	case of.Name() == d.Name():
		return "another Open of " + d.Name()
	}
	return of.Name()
}

// checkReregIOVA refuses an IOVA that an older kernel would use as the address of the memory.
func (d *Device) checkReregIOVA(s *region) error {
	since := d.driver.capabilities().reregIOVASince
	if v := d.cmd.kernelVersion(); s.iova != s.start && v != (Version{}) && slices.Compare(v[:], since[:]) < 0 {
		return &FeatureError{Feature: "REREG_MR with an IOVA", Since: since, Driver: d.driver.name()}
	}
	return nil
}
