//go:build amd64 || arm64

package uverbs

import (
	"errors"
	"runtime"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// newModifyCard returns a card that accepts every MODIFY_QP, after it has called during.
func newModifyCard(t *testing.T, during func(state ib.QPState) syscall.Errno) *card {
	t.Helper()
	c := newMlx5Card(t, true, false, 64)
	c.dev.attr.PhysPortCount = 1
	c.answer = func() syscall.Errno { return syscall.ENOTTY }
	c.legacy = func(l *kernel.Legacy) syscall.Errno {
		if l.Number != abi.IB_USER_VERBS_CMD_MODIFY_QP {
			return 0
		}
		var req abi.ModifyQP
		copy(bytesOf(&req), l.In)
		return during(ib.QPState(req.QPState))
	}
	return c
}

// send is a SEND of 8 bytes.
func (c *card) send(id uint64) SendWR {
	return SendWR{ID: id, Opcode: WRSend, Flags: SendSignaled, SGL: []SGE{c.sge(0, 8)}}
}

// reset moves the card's QP to RESET.
func (c *card) reset() error { return c.qp.Modify(QPAttr{State: ib.QPReset}, AttrState) }

// TestResetWhilePosting: what is posted during a Modify to RESET is either in the queue before, and gone
// afterwards, or refused. The device would execute it on the next connection otherwise.
func TestResetWhilePosting(t *testing.T) {
	c := newModifyCard(t, func(ib.QPState) syscall.Errno { return 0 })
	stop := make(chan struct{})
	until := func(post func() error) func() {
		return func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := post(); err != nil && !errors.Is(err, ErrState) && !errors.Is(err, ErrQueueFull) {
					t.Error(err)
					return
				}
			}
		}
	}
	turn := 0
	together(
		until(func() error {
			if turn++; turn%2 == 0 {
				return c.qp.PostSend(c.send(1))
			}
			b := c.qp.BeginSend()
			for id := range uint64(2) {
				b.Send(id, SendSignaled)
				b.SGE(c.sge(0, 8))
			}
			return b.Post()
		}),
		until(func() error { return c.qp.PostRecv(2, c.sge(0, 8)) }),
		func() {
			defer close(stop)
			for range 3000 {
				c.qp.setState(ib.QPRTS)
				must(t, c.reset())
				c.qp.sending.Lock()
				c.qp.receiving.Lock()
				if s, r := c.qp.mlx5.rec.Load(1), c.qp.mlx5.rec.Load(0); s != 0 || r != 0 {
					t.Errorf("after RESET %d blocks and %d receives are posted", s, r)
				}
				c.qp.receiving.Unlock()
				c.qp.sending.Unlock()
			}
		})
}

// TestResetRefuses: nothing can be posted once MODIFY_QP to RESET is on its way. If the kernel refuses it,
// the state is the former one, with what was posted before.
func TestResetRefuses(t *testing.T) {
	var refuse syscall.Errno
	var c *card
	c = newModifyCard(t, func(ib.QPState) syscall.Errno {
		if s := c.qp.State(); s != ib.QPReset {
			t.Errorf("during MODIFY_QP to RESET the state is %s", s)
		}
		errorIs(t, c.qp.PostSend(c.send(1)), ErrState, "PostSend during MODIFY_QP to RESET")
		errorIs(t, c.qp.PostRecv(1, c.sge(0, 8)), ErrState, "PostRecv during MODIFY_QP to RESET")
		return refuse
	})
	must(t, c.qp.PostSend(c.send(1)), c.qp.PostRecv(2, c.sge(0, 8)))
	refuse = syscall.EINVAL
	if err := c.reset(); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("refused: %v", err)
	}
	if s := c.qp.State(); s != ib.QPRTS {
		t.Errorf("after a refusal the state is %s, want RTS", s)
	}
	if s, r := c.qp.mlx5.rec.Load(1), c.qp.mlx5.rec.Load(0); s != 1 || r != 1 {
		t.Errorf("after a refusal %d blocks and %d receives are posted, want 1 and 1", s, r)
	}
	must(t, c.qp.PostSend(c.send(3)))
	refuse = 0
	must(t, c.reset())
}

// TestResetDropsBatch: a batch that was begun before a reset is not posted to the next connection, also if
// it is complete and only Post is missing.
func TestResetDropsBatch(t *testing.T) {
	for begun := range 3 {
		c := newModifyCard(t, func(ib.QPState) syscall.Errno { return 0 })
		mw := &MW{typ: MWType2}
		mw.dev, mw.object.kind = c.dev, "MW"
		mw.setRKey(0x100)
		mw.number = c.dev.targets.add(mw)
		mr := &MR{lkey: cardKey, mem: region{access: AccessMWBind}}
		mr.dev = c.dev
		c.qp.ops[WRBindMW] = true
		must(t, c.qp.PostSend(c.send(1)))
		b := c.qp.BeginSend()
		for id := range begun {
			b.Send(uint64(id), SendSignaled)
			b.SGE(c.sge(0, 8))
		}
		must(t, c.reset())
		c.qp.setState(ib.QPRTS)
		b.BindMW(9, SendSignaled, mw, 0x101, mr, 0, 8, 0)
		errorIs(t, b.Post(), ErrState, "Post of a batch that was begun before the reset, with %d requests", begun)
		if n := c.qp.mlx5.rec.Load(1); n != 0 {
			t.Errorf("%d blocks are posted", n)
		}
		if key := mw.RKey(); key != 0x100 {
			t.Errorf("the key of the window is %#x, although no bind was posted", key)
		}
		must(t, c.qp.PostSend(c.send(5))) // a new batch
		if n := c.qp.mlx5.rec.Load(1); n != 1 {
			t.Errorf("then %d blocks are posted, want 1", n)
		}
	}
}

// TestQueryBesideModify: a Query that the kernel answered before a Modify does not undo the state that the
// Modify has recorded.
func TestQueryBesideModify(t *testing.T) {
	asked, goOn := make(chan bool), make(chan bool)
	c := newModifyCard(t, func(ib.QPState) syscall.Errno { return 0 })
	modify := c.legacy
	c.legacy = func(l *kernel.Legacy) syscall.Errno {
		if l.Number == abi.IB_USER_VERBS_CMD_QUERY_QP {
			copy(l.Out, kernel.Bytes(&abi.QueryQPResp{QPState: uint8(ib.QPRTS)})) // the state as it was
			close(asked)
			<-goOn
		}
		return modify(l)
	}
	together(
		func() { value(c.qp.Query())(t) },
		func() {
			<-asked
			done := make(chan error)
			go func() { done <- c.reset() }()
			select {
			case err := <-done:
				must(t, err)
				close(goOn)
			case goOn <- true: // Modify waits for Query
				must(t, <-done)
			}
		})
	if s := c.qp.State(); s != ib.QPReset {
		t.Errorf("state %s after Modify to RESET", s)
	}
	if err := c.qp.PostSend(c.send(1)); !errors.Is(err, ErrState) {
		t.Errorf("a post in RESET: %v", err)
	}
	must(t, c.qp.Modify(QPAttr{State: ib.QPInit, Port: 1}, AttrState|AttrPKeyIndex|AttrPort|AttrAccess))
}

// TestModifyBesideModify: of two Modify calls, the library takes the state of the command that the
// kernel got last.
func TestModifyBesideModify(t *testing.T) {
	var last ib.QPState // of the kernel, which changes it one command at a time
	c := newModifyCard(t, func(s ib.QPState) syscall.Errno {
		last = s
		runtime.Gosched() // before the command returns, so that the other one can overtake it
		return 0
	})
	for range 200 {
		c.qp.setState(ib.QPRTS)
		together(
			func() { must(t, c.reset()) },
			func() {
				// From RESET, this is an ArgError.
				if err := c.qp.Modify(QPAttr{State: ib.QPErr}, AttrState); err != nil && !errors.Is(err, syscall.EINVAL) {
					t.Error(err)
				}
			})
		if s := c.qp.State(); s != last {
			t.Fatalf("the library's state is %s, the kernel's %s", s, last)
		}
	}
}
