package uverbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// wqNext are the states that [WQ.Modify] may change to, by state.
var wqNext = [WQErr + 1][]WQState{
	WQReset: {WQReset, WQReady},
	WQReady: {WQReset, WQReady, WQErr},
	WQErr:   {WQReset, WQErr},
}

// Attributes of MODIFY_WQ (enum ibv_wq_attr_mask).
const (
	wqAttrState    = 1 << 0
	wqAttrCurState = 1 << 1
	wqAttrFlags    = 1 << 2
)

// maxIndTableSize is the largest indirection table.
const maxIndTableSize = 1 << abi.IB_USER_VERBS_MAX_LOG_IND_TBL_SIZE

// WQOptions are the options of [PD.CreateWQ]. CQ is required.
type WQOptions struct {
	CQ     *CQ     // CQ receives the completions.
	MaxWR  int     // MaxWR is the minimum size of the queue, in work requests; by default 64.
	MaxSGE int     // MaxSGE is the maximum number of SGEs of a work request; by default 1.
	Flags  WQFlags // Flags are properties of the queue.

	strides mlx5.Strides // of package uverbs/mlx5
}

// WQ is a receive queue without a QP (struct ibv_wq). An [RWQIndTable] distributes packets over
// several. It is safe for concurrent use.
type WQ struct {
	object
	handle uint32
	cookie uint64 // user_handle that events carry
	num    uint32
	maxWR  int
	maxSGE int

	mu    sync.Mutex
	state WQState // guarded by mu
	mlx5  *mlx5WQ // queues are guarded by mu
}

// CreateWQ creates a receive queue in state [WQReset] (ibv_create_wq). [WQ.MaxWR] and [WQ.MaxSGE]
// return its size, which is at least the requested one.
func (p *PD) CreateWQ(o WQOptions) (*WQ, error) {
	if err := p.usable(); err != nil {
		return nil, err
	}
	o.MaxWR, o.MaxSGE = orDefault(o.MaxWR, defaultQueueSize), orDefault(o.MaxSGE, 1)
	if o.CQ == nil {
		return nil, argErr("CreateWQ", "CQ", "nil", "a CQ")
	}
	if limit := p.dev.attr.MaxQPWR; o.MaxWR < 1 || o.MaxWR > int(limit) {
		return nil, argErr("CreateWQ", "MaxWR", o.MaxWR, "1 to %d (max_qp_wr of %s)", limit, p.dev.Name())
	}
	if limit := p.dev.attr.MaxSGE; o.MaxSGE < 1 || o.MaxSGE > int(limit) {
		return nil, argErr("CreateWQ", "MaxSGE", o.MaxSGE, "1 to %d (max_sge of %s)", limit, p.dev.Name())
	}
	if o.Flags&^wqFlagsAll != 0 {
		return nil, argErr("CreateWQ", "Flags", fmt.Sprintf("%#x", uint32(o.Flags)), "the WQ flags, together %#x", uint32(wqFlagsAll))
	}
	w := &WQ{}
	if err := w.addParents(p.dev, "WQ", "DESTROY_WQ", &p.object, &o.CQ.object); err != nil {
		return nil, err
	}
	if err := w.create(p, o); err != nil {
		w.removeParents()
		return nil, err
	}
	p.dev.targets.created(w.cookie, w)
	return w, w.markCreated(w)
}

// create creates the kernel's object and the ring.
func (w *WQ) create(p *PD, o WQOptions) (err error) {
	w.cookie = p.dev.targets.reserve()
	defer func() {
		if err != nil {
			p.dev.targets.drop(w.cookie)
		}
	}()
	var u udata
	if p.dev.mlx5 != nil {
		if u, err = w.prepareRing(&o); err != nil {
			return err
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.freeRing())
		}
	}()
	errno := w.createIoctl(p, o, u)
	if p.dev.cmd.older(errno) {
		errno = w.createLegacy(p, o, u)
	}
	if errno != 0 {
		return p.dev.cmd.fail("CREATE_WQ", errno, p.dev.ringHint(errno, "", w.ring()))
	}
	if err = w.mapRing(); err != nil {
		return errors.Join(err, w.destroyKernel())
	}
	return nil
}

// ring returns the memory of the ring, or nil.
func (w *WQ) ring() *mmio.Region {
	if w.mlx5 == nil {
		return nil
	}
	return w.mlx5.region
}

// PostRecv posts a receive to the queue (ibv_post_wq_recv). It fails with [ErrQueueFull], with
// [ErrState] in state WQReset, or with a [PostError].
func (w *WQ) PostRecv(id uint64, sgl ...SGE) error {
	wr := [1]RecvWR{{id, sgl}}
	return w.PostRecvs(wr[:]...)
}

// PostRecvs posts receives in order, all of them or none.
func (w *WQ) PostRecvs(wrs ...RecvWR) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.usable(); err != nil {
		return err
	}
	if w.state == WQReset {
		return &reason{textState + ": the WQ is in state RESET, receives need RDY: Modify moves it there", ErrState}
	}
	var err error = errKind
	if w.mlx5 != nil {
		err = postRecvsMlx5(w.mlx5.rq, wrs)
	}
	return givenRecv(err, wrs, w.maxSGE, w.dev)
}

// createIoctl uses UVERBS_METHOD_WQ_CREATE.
func (w *WQ) createIoctl(p *PD, o WQOptions, u udata) syscall.Errno {
	cmd := newIoctl(abi.UVERBS_OBJECT_WQ, abi.UVERBS_METHOD_WQ_CREATE)
	defer cmd.done()
	handle := cmd.newObj(abi.UVERBS_ATTR_CREATE_WQ_HANDLE)
	cmd.obj(abi.UVERBS_ATTR_CREATE_WQ_PD_HANDLE, p.handle)
	cmd.obj(abi.UVERBS_ATTR_CREATE_WQ_CQ_HANDLE, o.CQ.handle)
	cmd.u64(abi.UVERBS_ATTR_CREATE_WQ_USER_HANDLE, w.cookie)
	cmd.u64(abi.UVERBS_ATTR_CREATE_WQ_TYPE, abi.IB_UVERBS_WQT_RQ)
	cmd.u32(abi.UVERBS_ATTR_CREATE_WQ_MAX_WR, uint32(o.MaxWR))
	cmd.u32(abi.UVERBS_ATTR_CREATE_WQ_MAX_SGE, uint32(o.MaxSGE))
	cmd.u32(abi.UVERBS_ATTR_CREATE_WQ_FLAGS, uint32(o.Flags))
	wr, sge, num := make([]byte, 4), make([]byte, 4), make([]byte, 4)
	cmd.out(abi.UVERBS_ATTR_CREATE_WQ_RESP_MAX_WR, wr)
	cmd.out(abi.UVERBS_ATTR_CREATE_WQ_RESP_MAX_SGE, sge)
	cmd.out(abi.UVERBS_ATTR_CREATE_WQ_RESP_WQ_NUM, num)
	w.dev.eventFDAttr(cmd, abi.UVERBS_ATTR_CREATE_WQ_EVENT_FD)
	cmd.udata(u)
	errno := w.dev.cmd.ioctl(cmd)
	if errno == 0 {
		w.handle, w.num, w.maxWR, w.maxSGE = uint32(handle.Data), le32(num), int(le32(wr)), int(le32(sge))
	}
	return errno
}

// createLegacy uses IB_USER_VERBS_EX_CMD_CREATE_WQ.
func (w *WQ) createLegacy(p *PD, o WQOptions, u udata) syscall.Errno {
	req := &abi.ExCreateWQ{
		WQType:      abi.IB_UVERBS_WQT_RQ,
		UserHandle:  w.cookie,
		PDHandle:    p.handle,
		CQHandle:    o.CQ.handle,
		MaxWR:       uint32(o.MaxWR),
		MaxSGE:      uint32(o.MaxSGE),
		CreateFlags: uint32(o.Flags),
	}
	resp := &abi.ExCreateWQResp{}
	errno := w.dev.cmd.legacy(exCommand|abi.IB_USER_VERBS_EX_CMD_CREATE_WQ, bytesOf(req), bytesOf(resp), u)
	if errno == 0 {
		w.handle, w.num, w.maxWR, w.maxSGE = resp.WQHandle, resp.WQN, int(resp.MaxWR), int(resp.MaxSGE)
	}
	return errno
}

// WQN returns the queue's number.
func (w *WQ) WQN() uint32 { return w.num }

// MaxWR returns the number of work requests that the queue holds.
func (w *WQ) MaxWR() int { return w.maxWR }

// MaxSGE returns the maximum number of SGEs of a work request.
func (w *WQ) MaxSGE() int { return w.maxSGE }

// State returns the state that the library last set, or WQErr after [EventWQFatal] was read.
func (w *WQ) State() WQState {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}

// Modify changes the state of the queue (ibv_modify_wq). A queue in WQErr must go to WQReset before
// WQReady, and a queue in WQReset cannot go to WQErr.
func (w *WQ) Modify(to WQState) error {
	if err := w.acquire(); err != nil {
		return err
	}
	defer w.release()
	w.mu.Lock()
	defer w.mu.Unlock()
	next := wqNext[w.state]
	if !slices.Contains(next, to) {
		return argErr("Modify", "to", to, "%v, as the WQ is in %s", next, w.state)
	}
	req := &abi.ExModifyWQ{AttrMask: wqAttrState | wqAttrCurState, WQState: uint32(to), CurrWQState: uint32(w.state)}
	if err := w.modify(req, w.state.String()+" to "+to.String()); err != nil {
		return err
	}
	w.state = to
	if to == WQReset && w.mlx5 != nil {
		w.mlx5.cq.cleanMlx5(&w.mlx5.owner)
		w.mlx5.rq.Reset()
	}
	return nil
}

// ModifyFlags sets the flags in mask (ibv_modify_wq with IBV_WQ_ATTR_FLAGS).
func (w *WQ) ModifyFlags(flags, mask WQFlags) error {
	if mask == 0 || mask&^wqFlagsAll != 0 {
		return argErr("ModifyFlags", "mask", fmt.Sprintf("%#x", uint32(mask)), "the WQ flags, together %#x", uint32(wqFlagsAll))
	}
	if flags&^mask != 0 {
		return argErr("ModifyFlags", "flags", fmt.Sprintf("%#x", uint32(flags)), "what mask names, %#x", uint32(mask))
	}
	if err := w.acquire(); err != nil {
		return err
	}
	defer w.release()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.modify(&abi.ExModifyWQ{AttrMask: wqAttrFlags, Flags: uint32(flags), FlagsMask: uint32(mask)}, "flags")
}

// failed notes that the device moved the queue to WQErr. The kernel does not know of it, and the device
// refuses changes from another state.
func (w *WQ) failed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state == WQReady { // else the event is older than the last Modify
		w.state = WQErr
	}
}

// modify sends MODIFY_WQ. The caller has acquired the WQ, and then locked mu, in the order of
// Close.
func (w *WQ) modify(req *abi.ExModifyWQ, what string) error {
	req.WQHandle = w.handle
	u := udata{}
	if w.mlx5 != nil {
		u.in = mlx5.EncodeModifyWQ()
	}
	errno := w.dev.cmd.legacy(exCommand|abi.IB_USER_VERBS_EX_CMD_MODIFY_WQ, bytesOf(req), nil, u)
	return w.dev.cmd.fail("MODIFY_WQ "+what, errno, "")
}

// Close destroys the queue (ibv_destroy_wq). It fails with EBUSY while an [RWQIndTable]
// uses it.
func (w *WQ) Close() error {
	return w.close(func() error {
		if err := w.destroyKernel(); err != nil {
			return err
		}
		w.dev.targets.drop(w.cookie)
		return nil
	}, func() error {
		w.mu.Lock() // waits for a PostRecv in progress
		defer w.mu.Unlock()
		return w.freeRing()
	})
}

// destroyKernel destroys the kernel's object.
func (w *WQ) destroyKernel() error {
	cmd := newIoctl(abi.UVERBS_OBJECT_WQ, abi.UVERBS_METHOD_WQ_DESTROY)
	defer cmd.done()
	cmd.obj(abi.UVERBS_ATTR_DESTROY_WQ_HANDLE, w.handle)
	cmd.out(abi.UVERBS_ATTR_DESTROY_WQ_RESP, make([]byte, 4))
	errno := w.dev.cmd.ioctl(cmd)
	if absent(errno) {
		req := &abi.ExDestroyWQ{WQHandle: w.handle}
		resp := &abi.ExDestroyWQResp{}
		errno = w.dev.cmd.legacy(exCommand|abi.IB_USER_VERBS_EX_CMD_DESTROY_WQ, bytesOf(req), bytesOf(resp), udata{})
	}
	return w.dev.cmd.fail(w.destroy, errno, "")
}

// RWQIndTable is a receive work queue indirection table, which selects a WQ by the hash of a packet
// (struct ibv_rwq_ind_table). It is safe for concurrent use.
type RWQIndTable struct {
	object
	handle uint32
	num    uint32
}

// CreateRWQIndTable creates an indirection table (ibv_create_rwq_ind_table). The length of wqs must
// be a power of two. A WQ may be in it several times.
func (d *Device) CreateRWQIndTable(wqs []*WQ) (*RWQIndTable, error) {
	n := len(wqs)
	if n == 0 || n&(n-1) != 0 || n > maxIndTableSize {
		return nil, argErr("CreateRWQIndTable", "number of WQs", n, "a power of two, 1 to %d", maxIndTableSize)
	}
	parents := []*object{&d.object}
	for i, w := range wqs {
		if w == nil {
			return nil, argErr("CreateRWQIndTable", fmt.Sprintf("wqs[%d]", i), "nil", "a WQ")
		}
		parents = append(parents, &w.object)
	}
	t := &RWQIndTable{}
	if err := t.addParents(d, "RWQIndTable", "DESTROY_RWQ_IND_TBL", parents...); err != nil {
		return nil, err
	}
	req := bytesOf(&abi.ExCreateRWQIndTable{LogIndTblSize: uint32(bits.Len(uint(n)) - 1)})
	for _, w := range wqs {
		req = binary.LittleEndian.AppendUint32(req, w.handle)
	}
	if n == 1 {
		req = append(req, 0, 0, 0, 0) // extended commands consist of words of 8 bytes
	}
	resp := &abi.ExCreateRWQIndTableResp{}
	if errno := d.cmd.legacy(exCommand|abi.IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL, req, bytesOf(resp), udata{}); errno != 0 {
		t.removeParents()
		return nil, d.cmd.fail("CREATE_RWQ_IND_TBL", errno, "")
	}
	t.handle, t.num = resp.IndTblHandle, resp.IndTblNum
	return t, t.markCreated(t)
}

// Close destroys the table (ibv_destroy_rwq_ind_table). It fails with EBUSY while a QP
// uses it.
func (t *RWQIndTable) Close() error {
	return t.close(func() error {
		errno := t.dev.cmd.destroy(abi.UVERBS_OBJECT_RWQ_IND_TBL, abi.UVERBS_METHOD_RWQ_IND_TBL_DESTROY, abi.UVERBS_ATTR_DESTROY_RWQ_IND_TBL_HANDLE, t.handle)
		if absent(errno) {
			req := &abi.ExDestroyRWQIndTable{IndTblHandle: t.handle}
			errno = t.dev.cmd.legacy(exCommand|abi.IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL, bytesOf(req), nil, udata{})
		}
		return t.dev.cmd.fail(t.destroy, errno, "")
	}, nil)
}

// mlx5WQ is the mlx5 part of a WQ.
type mlx5WQ struct {
	mlx5TableEntry
	cq     *CQ
	size   mlx5.RecvSize
	rec    mlx5.Record
	region *mmio.Region
	rq     *mlx5.RecvQueue
}

// prepareRing allocates the ring and returns the driver's part of CREATE_WQ.
func (w *WQ) prepareRing(o *WQOptions) (u udata, err error) {
	m := w.dev.mlx5
	x := &mlx5WQ{mlx5TableEntry: mlx5TableEntry{owner: mlx5Owner{wq: w}, index: mlx5.NoUserIndex}, cq: o.CQ}
	w.mlx5 = x
	if x.size, err = m.SizeWQ(o.MaxWR, o.MaxSGE, o.strides); err != nil {
		return udata{}, mlx5Size("CreateWQ", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.freeRing())
		}
	}()
	if x.region, err = mapRingMemory(x.size.Bytes()); err != nil {
		return udata{}, err
	}
	if x.rec, err = m.records.Take(); err != nil {
		return udata{}, err
	}
	if err = x.register(m); err != nil {
		return udata{}, err
	}
	o.MaxWR, o.MaxSGE = x.size.Entries, x.size.MaxSGE
	return udata{in: mlx5.EncodeWQ(addrOf(x.region.Bytes()), x.rec, x.size, x.index), out: make([]byte, mlx5.WQRespSize)}, nil
}

// mapRing completes a new WQ. It does nothing with a WQ of another driver.
func (w *WQ) mapRing() (err error) {
	m, x := w.dev.mlx5, w.mlx5
	if x == nil {
		return nil
	}
	w.maxWR, w.maxSGE = x.size.Entries, x.size.MaxSGE
	if x.rq, err = mlx5.NewRecvQueue(x.region.Bytes(), x.size, x.rec); err != nil {
		return err
	}
	x.registerNumber(m, w.num)
	return nil
}

// freeRing frees the memory of a WQ that the kernel has destroyed or did not create.
func (w *WQ) freeRing() error {
	m, x := w.dev.mlx5, w.mlx5
	if x == nil {
		return nil
	}
	if x.registered {
		x.cq.cleanMlx5(&x.owner)
	}
	x.unregister(m)
	m.records.Give(x.rec)
	x.rec = mlx5.Record{}
	return mmio.RetireAll(x.region)
}
