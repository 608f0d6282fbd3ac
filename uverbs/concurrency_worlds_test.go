//go:build amd64 || arm64

package uverbs

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/siw"
	"github.com/goverbs/goverbs/test/pairs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// softWorld is a software device with connected QPs.
type softWorld struct {
	t     *testing.T
	soft  *soft.Device
	dev   *Device
	cq    *CQ
	mr    *MR
	a, b  *QP
	ud    *QP
	other []any
}

func newSoftWorld(t *testing.T) pairs.World {
	w := &softWorld{t: t, soft: value(soft.New(soft.Options{}))(t)}
	w.dev = value(Open(w.soft.Name(), OpenOptions{}))(t)
	pd := value(w.dev.AllocPD())(t)
	w.cq = value(w.dev.CreateCQ(CQOptions{Size: 255, Events: true}))(t)
	buf := value(AllocBuffer(4096, BufferOptions{}))(t)
	w.mr = value(pd.RegMR(buf, MROptions{Access: AccessLocalWrite | AccessRemoteWrite | AccessMWBind}))(t)
	create := func(typ ib.QPType) *QP {
		return value(pd.CreateQP(QPOptions{Type: typ, SendCQ: w.cq, RecvCQ: w.cq, MaxSendWR: 7, MaxRecvWR: 7}))(t)
	}
	w.a, w.b, w.ud = create(ib.RC), create(ib.RC), create(ib.UD)
	must(t, w.ud.ReadyUD(1))
	ah := value(pd.CreateAH(value(w.ud.PathTo(value(w.ud.Endpoint())(t)))(t)))(t)
	pool := value(NewBufferPool(pd, PoolOptions{SlotSize: 64, Slots: 4, Access: AccessLocalWrite}))(t)
	w.other = []any{pd, w.cq.ch, value(pd.CreateSRQ(SRQOptions{}))(t), value(pd.AllocMW(MWType2))(t), buf, ah, pool}
	return w
}

func (w *softWorld) Objects() []any {
	return append([]any{w.dev, w.cq, w.mr, w.a, w.b, w.ud}, w.other...)
}

func (w *softWorld) Override(object any, name string) (call func(*rand.Rand), skip bool) {
	q, ok := object.(*QP)
	if !ok {
		if object == any(w.cq) && name == "Resize" { // to sizes that all requests fit into
			return func(r *rand.Rand) { _ = w.cq.Resize(64 + r.IntN(190)) }, false
		}
		return nil, false
	}
	peer := map[*QP]*QP{w.a: w.b, w.b: w.a, w.ud: w.ud}[q]
	switch name {
	case "PostSend":
		return func(r *rand.Rand) { postRandomly(r, q, w.mr.SGE(0, 8)) }, q == w.ud // which needs an AH
	case "BeginSend":
		return func(r *rand.Rand) { buildRandomly(r, q, w.mr.SGE(0, 8)) }, q == w.ud
	case "PostRecv", "PostRecvs":
		return func(*rand.Rand) { _ = q.PostRecv(staleID, w.mr.SGE(64, 64)) }, false
	case "Connect":
		return func(*rand.Rand) {
			if remote, err := peer.Endpoint(); err == nil {
				_ = q.Connect(w.t.Context(), remote)
			}
		}, false
	case "Modify":
		attr := QPAttr{Port: 1, PathMTU: ib.MTU1024, DestQPN: peer.QPN(), Timeout: 14, RetryCount: 1, RNRRetry: 1}
		if remote, err := peer.Endpoint(); err == nil {
			attr.AH, _ = q.PathTo(remote)
			attr.RQPSN = remote.PSN
		}
		return func(r *rand.Rand) { _ = modifyRandomly(r, q, attr) }, false
	}
	return nil, false
}

// agree compares the states with those of the device, which moves a QP to ERR by itself.
func (w *softWorld) Agree() error {
	for _, q := range []*QP{w.a, w.b, w.ud} {
		is := q.State()
		attr, err := q.Query()
		if q.closed.Load() {
			continue
		}
		if err != nil {
			return err
		}
		if attr.State != is && attr.State != ib.QPErr && attr.State != ib.QPSQE {
			return fmt.Errorf("the library's state of the QP is %s, the device's %s", is, attr.State)
		}
	}
	return nil
}

func (w *softWorld) Exchange() (done bool, err error) {
	for _, o := range []*object{&w.dev.object, &w.cq.object, &w.mr.object, &w.a.object, &w.b.object} {
		if o.closed.Load() {
			return true, nil
		}
	}
	for _, q := range []*QP{w.a, w.b} {
		if q.State() == ib.QPSQD { // which a QP that still drains leaves for ERR only
			must(w.t, q.Modify(QPAttr{State: ib.QPErr}, AttrState))
		}
		if err := q.Modify(QPAttr{State: ib.QPReset}, AttrState); err != nil {
			return false, err
		}
	}
	wcs := make([]WC, 16)
	for n := -1; n != 0; {
		n = value(w.cq.Poll(wcs))(w.t)
	}
	must(w.t, w.a.Connect(w.t.Context(), value(w.b.Endpoint())(w.t)), w.b.Connect(w.t.Context(), value(w.a.Endpoint())(w.t)))
	must(w.t, w.b.PostRecv(recvID, w.mr.SGE(64, 64)), w.a.PostSend(SendWR{ID: sendID, Opcode: WRSend, Flags: SendSignaled, SGL: []SGE{w.mr.SGE(0, 8)}}))
	got := 0
	for end := time.Now().Add(20 * time.Second); got < 2 && time.Now().Before(end); time.Sleep(20 * time.Microsecond) {
		got += value(w.cq.Poll(wcs[got:]))(w.t)
	}
	got += value(w.cq.Poll(wcs[got:]))(w.t)
	return false, isExchange(wcs[:got])
}

func (w *softWorld) End() { must(w.t, w.dev.CloseAll(), w.soft.Close()) }

// ringWorld is a QP on rings whose device and kernel the test plays.
type ringWorld struct {
	kernel.Device // nil
	t             *testing.T
	dev           *Device
	cq            *CQ
	qp            *QP
	srq           *SRQ // or nil
	sge           SGE
	side          ringSide

	posted, completed atomic.Int64

	mu     sync.Mutex // held by commands and by the device
	state  ib.QPState // of the kernel
	gone   bool       // the QP was destroyed
	moved  bool       // the device has moved the QP to ERR, which no command has seen since
	seldom int        // a command is refused once in so many times; 0 is never
	r      *rand.Rand
}

// ringSide is the device's side of the rings of one driver.
type ringSide interface {
	// reset does what the device does when the QP enters RESET.
	reset()
	// serve executes all sends and some receives and returns their numbers. flush says that the QP is in ERR.
	serve(recvs int, flush bool) (sent, received int)
}

// start completes the world.
func (w *ringWorld) start(t *testing.T) *ringWorld {
	w.t, w.state, w.seldom, w.r = t, ib.QPRTS, 16, rand.New(rand.NewPCG(1, 2))
	w.dev.attr.PhysPortCount, w.dev.attr.MaxQPRdAtom, w.dev.attr.MaxQPInitRdAtom = 1, 1, 1
	w.qp.sendCQ, w.qp.recvCQ, w.cq.dev = w.cq, w.cq, w.dev
	w.cq.qps.Store(w.qp.qpn, w.qp)
	return w
}

// Do implements [kernel.Device] with the commands of QPs.
func (w *ringWorld) Do(cmd *kernel.Command, _ bool) syscall.Errno {
	l, ok := cmd.Legacy()
	if !ok {
		return syscall.ENOTTY
	}
	return w.legacy(&l)
}

func (w *ringWorld) legacy(l *kernel.Legacy) syscall.Errno {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch l.Number {
	case abi.IB_USER_VERBS_CMD_MODIFY_QP:
		var req abi.ModifyQP
		copy(bytesOf(&req), l.In)
		to := ib.QPState(req.QPState)
		if w.seldom > 0 && w.r.IntN(w.seldom) == 0 {
			return syscall.ENOMEM
		}
		if _, possible := lookUp(w.qp.typ, w.state, to); !possible && to != ib.QPReset && to != ib.QPErr {
			return syscall.EINVAL
		}
		if to == ib.QPReset {
			w.side.reset()
		}
		if w.state, w.moved = to, false; to == ib.QPErr {
			w.side.serve(1<<30, true)
		}
	case abi.IB_USER_VERBS_CMD_QUERY_QP:
		w.moved = false
		copy(l.Out, bytesOf(&abi.QueryQPResp{QPState: uint8(w.state)}))
	case abi.IB_USER_VERBS_CMD_QUERY_PORT:
		copy(l.Out, bytesOf(&abi.QueryPortResp{State: uint8(ib.PortActive), MaxMTU: 5, ActiveMTU: 3, LID: 7, LinkLayer: uint8(ib.LinkLayerInfiniBand)}))
	case abi.IB_USER_VERBS_CMD_DESTROY_QP:
		w.gone = true
	case abi.IB_USER_VERBS_CMD_DESTROY_CQ, abi.IB_USER_VERBS_CMD_DESTROY_SRQ, abi.IB_USER_VERBS_CMD_MODIFY_SRQ, abi.IB_USER_VERBS_CMD_QUERY_SRQ:
	default:
		return syscall.EOPNOTSUPP
	}
	return 0
}

// serve is the device at work.
func (w *ringWorld) Serve(r *rand.Rand) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone || w.state < ib.QPRTS || w.state == ib.QPErr && w.qp.kind == kindSiw { // which flushes in the command
		return
	}
	if w.state == ib.QPRTS && r.IntN(32) == 0 && w.qp.kind != kindSiw {
		w.state, w.moved = ib.QPErr, true
	}
	w.side.serve(r.IntN(3), w.state == ib.QPErr)
}

func (w *ringWorld) Objects() []any {
	all := []any{w.dev, w.cq, w.qp}
	if w.srq != nil {
		all = append(all, w.srq)
	}
	return all
}

func (w *ringWorld) Override(object any, name string) (call func(*rand.Rand), skip bool) {
	switch o := object.(type) {
	case *Device:
		// It was not opened.
		return nil, name == "Close" || name == "CloseAll" || name == "File"
	case *SRQ:
		if name == "PostRecv" || name == "PostRecvs" {
			return func(*rand.Rand) { _ = o.PostRecv(staleID, w.sge) }, false
		}
	case *CQ:
		switch name {
		case "Close":
			return nil, true // the QP uses it, but is no user here
		case "Poll", "Wait", "Completions": // Wait would poll, and fail for want of a channel
			return func(*rand.Rand) { w.poll(make([]WC, 4)) }, false
		}
	case *QP:
		switch name {
		case "PostSend":
			if o.kind != kindSiw {
				return func(r *rand.Rand) { postRandomly(r, o, w.sge) }, false
			}
			return func(*rand.Rand) { // one, which is counted
				w.count(o.PostSend(SendWR{ID: staleID, Opcode: WRSend, Flags: SendSignaled, SGL: []SGE{w.sge}}))
			}, false
		case "BeginSend":
			if o.kind != kindSiw {
				return func(r *rand.Rand) { buildRandomly(r, o, w.sge) }, false
			}
			return func(*rand.Rand) {
				b := o.BeginSend()
				b.Send(staleID, SendSignaled)
				b.SGE(w.sge)
				w.count(b.Post())
			}, false
		case "PostRecv", "PostRecvs":
			return func(*rand.Rand) { w.count(o.PostRecv(staleID, w.sge)) }, false
		case "SetKernelState":
			return nil, true // there is no connection manager
		case "Modify":
			if o.kind == kindSiw { // on which the connection manager makes the other changes
				return func(r *rand.Rand) {
					if r.IntN(4) == 0 {
						_ = o.Modify(QPAttr{State: ib.QPErr}, AttrState)
					}
				}, false
			}
			attr := w.attr()
			return func(r *rand.Rand) { _ = modifyRandomly(r, o, attr) }, false
		case "Init", "Connect", "Close":
			return nil, o.kind == kindSiw
		}
	}
	return nil, false
}

// attr has the attributes of all changes of state.
func (w *ringWorld) attr() QPAttr {
	return QPAttr{Port: 1, PathMTU: ib.MTU1024, DestQPN: 5, AH: AHAttr{Port: 1, DLID: 5}}
}

// count counts a request if it was posted.
func (w *ringWorld) count(err error) {
	if err == nil {
		w.posted.Add(1)
	}
}

// poll polls, has failures explained, and returns the number of completions.
func (w *ringWorld) poll(wcs []WC) int {
	n, err := w.cq.Poll(wcs)
	if err != nil && !w.cq.closed.Load() {
		w.t.Error(err)
	}
	for i := range n {
		_ = w.qp.Err(&wcs[i])
	}
	w.completed.Add(int64(n))
	return n
}

func (w *ringWorld) Agree() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.qp.State(); !w.gone && !w.moved && s != w.state {
		return fmt.Errorf("the library's state of the QP is %s, the kernel's %s", s, w.state)
	}
	return nil
}

func (w *ringWorld) Exchange() (done bool, err error) {
	if w.gone || w.srq != nil && w.srq.closed.Load() {
		return true, nil
	}
	if w.qp.kind == kindSiw {
		return true, w.flush()
	}
	w.seldom = 0
	defer func() { w.seldom = 16 }()
	attr := w.attr()
	for _, turn := range qpTurns[:4] {
		attr.State = turn.to
		if err := w.qp.Modify(attr, AttrState|turn.mask); err != nil {
			return false, err
		}
	}
	wcs := make([]WC, 128)
	w.poll(wcs) // rxe leaves the completions of before
	run := func() (sent, received int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.side.serve(1<<30, false)
	}
	if s, r := run(); s+r != 0 {
		return false, fmt.Errorf("after a reset the device executes %d sends and has %d receives of before", s, r)
	}
	want := 1
	if w.srq == nil {
		must(w.t, w.qp.PostRecv(recvID, w.sge))
		want = 2
	}
	must(w.t, w.qp.PostSend(SendWR{ID: sendID, Opcode: WRSend, Flags: SendSignaled, SGL: []SGE{w.sge}}))
	if s, r := run(); s != 1 || s+r != want {
		return false, fmt.Errorf("the device executes %d sends and has %d receives, 1 and %d were posted", s, r, want-1)
	}
	got := wcs[:w.poll(wcs)]
	if w.srq != nil {
		if len(got) != 1 || got[0].ID != sendID || got[0].Status != WCSuccess {
			return false, fmt.Errorf("the exchange has completions %+v", got)
		}
		return false, nil
	}
	return false, isExchange(got)
}

// flush moves the QP to ERR, in which each request that was posted completes once.
func (w *ringWorld) flush() error {
	w.seldom = 0
	if err := w.qp.Modify(QPAttr{State: ib.QPErr}, AttrState); err != nil {
		return err
	}
	for wcs := make([]WC, 4); w.poll(wcs) > 0; {
	}
	if p, c := w.posted.Load(), w.completed.Load(); p != c {
		return fmt.Errorf("%d requests were posted and %d have completed", p, c)
	}
	return nil
}

func (w *ringWorld) End() {}

// mlx5Side is the device's side of a card.
type mlx5Side struct {
	*card
	sent, received uint32
}

func newMlx5World(t *testing.T, shared bool) pairs.World {
	c := newMlx5Card(t, true, shared, 64)
	w := &ringWorld{dev: c.dev, cq: c.cq, qp: c.qp, srq: c.srq, sge: c.sge(0, 8), side: &mlx5Side{card: c}}
	c.legacy, c.answer = w.legacy, func() syscall.Errno { return syscall.ENOTTY }
	return w.start(t)
}

func (s *mlx5Side) reset() { s.sent, s.received = 0, 0 }

func (s *mlx5Side) serve(recvs int, flush bool) (sent, received int) {
	q := s.qp
	ring := q.sqRegion.Bytes()[q.mlx5.recv.Bytes():]
	ok, failed, code := byte(0), byte(13), map[int][]byte{}
	if flush {
		ok, code[55] = failed, []byte{0x05} // WR_FLUSHED_ERR
	}
	for end := q.mlx5.rec.Load(1) & 0xffff; s.sent != end; sent++ {
		wqe := ring[int(s.sent)*64%(q.mlx5.send.Blocks*64):]
		code[60] = b16(uint16(s.sent))
		s.put(ok, code)
		s.sent = (s.sent + (binary.BigEndian.Uint32(wqe[4:])&0x3f+3)/4) & 0xffff
	}
	if q.srq != nil {
		return sent, 0
	}
	if ok = 2; flush {
		ok = 14
	}
	for end := q.mlx5.rec.Load(0) & 0xffff; s.received != end && received < recvs; received++ {
		code[60] = b16(uint16(s.received))
		s.put(ok, code)
		s.received = (s.received + 1) & 0xffff
	}
	return sent, received
}

// rxeSide is the kernel's side of the rings of rxe.
type rxeSide struct {
	qpn          uint32
	sq, rq, comp rxeIndexes
}

// rxeIndexes are a ring and its indices.
type rxeIndexes struct {
	*ringBytes
	producer, consumer *mmio.Index
}

func newRxeWorld(t *testing.T) pairs.World {
	p := newQuietRig(t, 3)
	cq, comp := newPollRig(t, 6)
	p.qp.qpn = 9
	indexes := func(r *ringBytes) rxeIndexes {
		return rxeIndexes{r, value(mmio.IndexAt(r.mem, ringProducer))(t), value(mmio.IndexAt(r.mem, ringConsumer))(t)}
	}
	w := &ringWorld{dev: p.qp.dev, cq: cq, qp: p.qp, sge: SGE{Addr: 0x1000, Length: 8, LKey: 1}, side: &rxeSide{p.qp.qpn, indexes(p.sq), indexes(p.rq), indexes(comp)}}
	w.dev.object.dev, w.dev.object.kind = w.dev, "Device"
	w.dev.cmd = newCommands(w, pathAuto, "rxe0", rxeDriver{})
	return w.start(t)
}

func (s *rxeSide) reset() {
	for _, r := range []rxeIndexes{s.sq, s.rq} {
		r.consumer.Release(r.producer.Acquire())
		clear(r.mem[ringData:])
	}
}

func (s *rxeSide) serve(recvs int, flush bool) (sent, received int) {
	return s.consume(s.sq, 0, 1<<30, flush), s.consume(s.rq, 128, recvs, flush)
}

// consume completes requests of a ring with an opcode while the CQ has room.
func (s *rxeSide) consume(r rxeIndexes, opcode uint32, most int, flush bool) (n int) {
	for ; n < most && r.consumer.Acquire() != r.producer.Acquire(); n++ {
		at := s.comp.producer.Acquire()
		if next := (at + 1) & s.comp.mask; next == s.comp.consumer.Acquire() {
			break
		}
		status := WCSuccess
		if flush {
			status = WCWRFlushErr
		}
		wc, from := s.comp.slot(at), r.consumer.Acquire()
		clear(wc)
		copy(wc, r.slot(from)[:8])
		binary.NativeEndian.PutUint32(wc[8:], uint32(status))
		binary.NativeEndian.PutUint32(wc[12:], opcode)
		binary.NativeEndian.PutUint32(wc[28:], s.qpn)
		r.consumer.Release((from + 1) & r.mask)
		s.comp.producer.Release((at + 1) & s.comp.mask)
	}
	return n
}

// siwSide is the kernel's side of the rings of siw.
type siwSide struct {
	*siwRig
	t    *testing.T
	rqAt int
}

// room reports whether the CQ has room for one more completion.
func (s *siwSide) room() bool {
	e := s.ring[s.cqAt%siwRigSize*siwCQESize:][:siwCQESize]
	return value(mmio.IndexAt(e, siwFlags))(s.t).Acquire()&siwValid == 0
}

func newSiwWorld(t *testing.T) pairs.World {
	r := newSiwRig(t)
	w := &ringWorld{dev: r.qp.dev, cq: r.cq, qp: r.qp, sge: SGE{Addr: 0x1000, Length: 64, LKey: 1}, side: &siwSide{siwRig: r, t: t}}
	w.dev.object.dev, w.dev.object.kind = w.dev, "Device"
	w.dev.cmd = newCommands(w, pathAuto, "siw0", siwDriver{})
	return w.start(t)
}

func (s *siwSide) reset() {}

// serve looks at the rings of a QP in ERR only in the command that moves it there.
func (s *siwSide) serve(recvs int, flush bool) (sent, received int) {
	if flush && s.qp.State() == ib.QPErr {
		return 0, 0
	}
	status := uint16(siw.StatusSuccess)
	if flush {
		status = siw.StatusWRFlushErr
	}
	for ; s.room(); sent++ {
		id, _, op, ok := s.take()
		if !ok {
			break
		}
		s.put(id, op, status, 8)
	}
	for ; s.room() && received < recvs; received++ {
		e := s.rq[s.rqAt%siwRigSize*siwRQESize:][:siwRQESize]
		word := value(mmio.IndexAt(e, siwFlags))(s.t)
		if word.Acquire()&siwValid == 0 {
			break
		}
		id := binary.LittleEndian.Uint64(e)
		word.Release(0)
		s.rqAt++
		s.put(id, siw.Recv, status, 8)
	}
	return sent, received
}
