package uverbs

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// TestCloseOrder closes everything in the wrong order: nothing happens but an error that
// counts who is in the way, and all objects go on working.
func TestCloseOrder(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd := value(d.AllocPD())(t)
	ch := value(d.CreateCompChannel())(t)
	send, recv := value(d.CreateCQ(CQOptions{Size: 1, Channel: ch}))(t), value(d.CreateCQ(CQOptions{Size: 1, Channel: ch}))(t)
	mr := value(pd.RegSlice(make([]byte, 1), 0))(t)
	qp := value(pd.CreateQP(QPOptions{SendCQ: send, RecvCQ: recv}))(t)
	same := value(pd.CreateQP(QPOptions{SendCQ: send, RecvCQ: send}))(t)
	k.took()
	for _, c := range []struct {
		close func() error
		want  string
	}{
		{d.Close, "uverbs: rxe0: CLOSE_DEVICE: device or resource busy: still used by 1 CompChannel, 1 PD, 2 CQ; close them first, or everything with Device.CloseAll"},
		{pd.Close, "uverbs: rxe0: DEALLOC_PD: device or resource busy: still used by 1 MR, 2 QP; close them first, or everything with Device.CloseAll"},
		{ch.Close, "uverbs: rxe0: DESTROY_COMP_CHANNEL: device or resource busy: still used by 2 CQ; close them first, or everything with Device.CloseAll"},
		{send.Close, "uverbs: rxe0: DESTROY_CQ: device or resource busy: still used by 2 QP; close them first, or everything with Device.CloseAll"},
		{recv.Close, "uverbs: rxe0: DESTROY_CQ: device or resource busy: still used by 1 QP; close them first, or everything with Device.CloseAll"},
	} {
		for range 2 {
			if err := c.close(); !errors.Is(err, syscall.EBUSY) || err.Error() != c.want {
				t.Errorf("error is %v, want %s", err, c.want)
			}
		}
	}
	k.sent()
	value(d.Port(1))(t)
	must(t, send.Notify(), recv.Notify(), qp.Modify(QPAttr{State: ib.QPInit, Port: 1}, AttrState|AttrPKeyIndex|AttrPort|AttrAccess), qp.PostRecv(1))
	value(send.Poll(make([]WC, 1)))(t)
	value(pd.CreateQP(QPOptions{SendCQ: send, RecvCQ: recv}))(t).Close()
	must(t, qp.Close())
	if err := recv.Close(); err != nil {
		t.Errorf("the receive CQ has no user left: %v", err)
	}
	if err := send.Close(); err == nil || !strings.Contains(err.Error(), "by 1 QP;") {
		t.Errorf("the send CQ has one user left: %v", err)
	}
	must(t, same.Close(), send.Close(), mr.Close(), pd.Close(), ch.Close(), d.Close())
	if n := k.ringsMapped(); n != 0 {
		t.Errorf("%d bytes of rings stay mapped", n)
	}
}

// TestCloseRefused: if the kernel refuses, the object stays open, as do those it uses.
func TestCloseRefused(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd := value(d.AllocPD())(t)
	ch := value(d.CreateCompChannel())(t)
	cq := value(d.CreateCQ(CQOptions{Size: 1, Channel: ch}))(t)
	mr := value(pd.RegSlice(make([]byte, 1), 0))(t)
	qp := value(pd.CreateQP(QPOptions{SendCQ: cq, RecvCQ: cq}))(t)
	for _, c := range []struct {
		verb   string
		close  func() error
		parent func() error
		alive  func() error
	}{
		{"DESTROY_QP", qp.Close, cq.Close, qp.Init},
		{"DESTROY_CQ", cq.Close, ch.Close, cq.Notify},
		{"DEREG_MR", mr.Close, pd.Close, func() error { return nil }},
		{"DEALLOC_PD", pd.Close, d.Close, func() error {
			mr, err := pd.RegSlice(make([]byte, 1), 0)
			return errors.Join(err, mr.Close())
		}},
	} {
		k.refuse[c.verb] = syscall.EAGAIN
		var e *Error
		if err := c.close(); !errors.As(err, &e) || e.Op != c.verb || e.Errno != syscall.EAGAIN {
			t.Errorf("%s: %v", c.verb, err)
		}
		errorIs(t, c.parent(), syscall.EBUSY, "after a refused %s what it uses can be closed", c.verb)
		if err := c.alive(); err != nil {
			t.Errorf("after a refused %s the object does not work: %v", c.verb, err)
		}
		delete(k.refuse, c.verb)
		if err := c.close(); err != nil {
			t.Errorf("%s the second time: %v", c.verb, err)
		}
	}
	must(t, ch.Close(), d.Close())
}

// TestCloseConcurrently: of many Closes one destroys, and all say that it is done.
func TestCloseConcurrently(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd := value(d.AllocPD())(t)
	cq := value(d.CreateCQ(CQOptions{Size: 1}))(t)
	mr := value(pd.RegSlice(make([]byte, 1), 0))(t)
	qp := value(pd.CreateQP(QPOptions{SendCQ: cq, RecvCQ: cq}))(t)
	for _, c := range []struct {
		verb  string
		close func() error
	}{{"DESTROY_QP", qp.Close}, {"DESTROY_CQ", cq.Close}, {"DEREG_MR", mr.Close}, {"DEALLOC_PD", pd.Close}} {
		k.took()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := c.close(); err != nil {
					t.Errorf("%s: %v", c.verb, err)
				}
			})
		}
		wg.Wait()
		k.sent("ioctl " + c.verb)
	}
	must(t, d.Close())
}

// TestCloseWhileCreating: either the new object is there and its parent is busy, or the
// parent is closed and there is no new object.
func TestCloseWhileCreating(t *testing.T) {
	d, _ := fakeDevice(t, pathAuto)
	for range 50 {
		pd := value(d.AllocPD())(t)
		var mr *MR
		var regErr error
		var wg sync.WaitGroup
		wg.Go(func() { mr, regErr = pd.RegSlice(make([]byte, 1), 0) })
		closeErr := pd.Close()
		wg.Wait()
		switch {
		case regErr == nil && errors.Is(closeErr, syscall.EBUSY):
			must(t, mr.Close(), pd.Close())
		case closeErr == nil && errors.Is(regErr, os.ErrClosed):
		default:
			t.Fatalf("RegSlice: %v, Close: %v", regErr, closeErr)
		}
	}
	must(t, d.Close())
}

// TestCommandsWhileClosing: commands about an object fail as soon as Close begins. They wait neither for the command that
// Close waits for, nor for the one that destroys the object.
func TestCommandsWhileClosing(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd, ch := value(d.AllocPD())(t), value(d.CreateCompChannel())(t)
	cq := value(d.CreateCQ(CQOptions{Size: 31, Channel: ch}))(t)
	srq := value(pd.CreateSRQ(SRQOptions{MaxWR: 7, MaxSGE: 1}))(t)
	mr := value(pd.RegSlice(make([]byte, 8), AccessLocalWrite))(t)
	qp := value(pd.CreateQP(QPOptions{Type: ib.UD, SendCQ: cq, RecvCQ: cq}))(t)
	group, access := ib.GID{10: 0xff, 11: 0xff, 12: 224, 15: 1}, Access(0)
	for _, c := range []struct {
		o        *object
		close    func() error
		commands map[string]func() error
	}{
		{&qp.object, qp.Close, map[string]func() error{
			"Modify":          func() error { return qp.Modify(QPAttr{State: ib.QPErr}, AttrState) },
			"Query":           func() error { _, err := qp.Query(); return err },
			"AttachMulticast": func() error { return qp.AttachMulticast(group, 0) },
			"PostSend": func() error {
				if qp.sending.TryLock() { // as another post that runs
					defer qp.sending.Unlock()
				}
				return qp.PostSend(SendWR{})
			},
		}},
		{&srq.object, srq.Close, map[string]func() error{
			"SetLimit": func() error { return srq.SetLimit(1) },
			"Resize":   func() error { return srq.Resize(31) },
			"Query":    func() error { _, err := srq.Query(); return err },
		}},
		{&cq.object, cq.Close, map[string]func() error{
			"Notify": cq.Notify,
			"Resize": func() error { return cq.Resize(63) },
			"Modify": func() error { return cq.Modify(1, 0) },
			"CreateQP": func() error {
				_, err := pd.CreateQP(QPOptions{SendCQ: cq, RecvCQ: cq})
				return err
			},
		}},
		{&mr.object, mr.Close, map[string]func() error{
			"Query": func() error { _, err := mr.Query(); return err },
			"Rereg": func() error { return mr.Rereg(ReregOptions{Access: &access}) },
		}},
		{&pd.object, pd.Close, map[string]func() error{
			"RegSlice": func() error { _, err := pd.RegSlice(make([]byte, 1), 0); return err },
		}},
		{&d.object, d.Close, map[string]func() error{
			"RateLimits": func() error { _, err := d.RateLimits(); return err },
			"AllocPD":    func() error { _, err := d.AllocPD(); return err },
		}},
	} {
		fail := func(when string) {
			for name, command := range c.commands {
				errorIs(t, command(), os.ErrClosed, "%s of a %s while %s", name, c.o.kind, when)
			}
		}
		must(t, c.o.acquire()) // as a command that takes long
		k.seen = func(*kernel.Command, bool) {
			k.seen = nil
			fail("the kernel destroys it")
		}
		closed := make(chan error, 1)
		go func() { closed <- c.close() }()
		for c.o.closeMu.TryRLock() { // until Close waits
			c.o.release()
			runtime.Gosched()
		}
		fail("Close waits")
		c.o.release()
		must(t, <-closed)
		if c.o != &d.object && k.seen != nil {
			t.Errorf("the kernel did not destroy the %s", c.o.kind)
		}
		if c.o == &pd.object {
			must(t, ch.Close())
		}
	}
}

// TestCloseBusyDoesNotWait: a Close that fails since the object is used does not wait for commands, and disturbs none.
func TestCloseBusyDoesNotWait(t *testing.T) {
	d, _ := fakeDevice(t, pathAuto)
	pd := value(d.AllocPD())(t)
	must(t, d.acquire())
	defer d.release()
	errorIs(t, d.Close(), syscall.EBUSY, "Close beside a command")
	must(t, d.acquire(), pd.Close())
	d.release()
}

// TestCloseAfterFailure: while one Close waits for another, which fails, there are no new users.
func TestCloseAfterFailure(t *testing.T) {
	d := bareDevice("rxe0")
	pd := newObject(t, d, "PD", &d.object)
	first, second := make(chan error), make(chan error, 1)
	use := func() error { return new(object).addParents(d, "MR", "DEREG_MR", pd) }
	err := pd.close(func() error {
		go func() { second <- pd.close(func() error { return errors.Join(<-first, use()) }, nil) }()
		for closers := 1; closers < 2; runtime.Gosched() {
			d.tree.Lock()
			closers = pd.closers
			d.tree.Unlock()
		}
		return syscall.EAGAIN
	}, nil)
	errorIs(t, err, syscall.EAGAIN, "the first Close")
	errorIs(t, use(), os.ErrClosed, "a user before the second Close")
	close(first)
	errorIs(t, <-second, os.ErrClosed, "a user during the second Close")
	must(t, use())
}

// TestClosedParent: nothing can be made of what is closed, and the kernel is not asked.
func TestClosedParent(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd, cq := value(d.AllocPD())(t), value(d.CreateCQ(CQOptions{Size: 1}))(t)
	other := value(d.AllocPD())(t)
	must(t, pd.Close(), cq.Close())
	k.took()
	_, regErr := pd.RegSlice(make([]byte, 1), 0)
	_, pdErr := pd.CreateQP(QPOptions{SendCQ: cq, RecvCQ: cq})
	_, cqErr := other.CreateQP(QPOptions{SendCQ: cq, RecvCQ: cq})
	must(t, other.Close(), d.Close())
	_, allocErr := d.AllocPD()
	_, chErr := d.CreateCompChannel()
	for what, c := range map[string]struct {
		err  error
		kind string
	}{
		"RegSlice": {regErr, "PD"}, "CreateQP of a PD": {pdErr, "PD"}, "CreateQP with a CQ": {cqErr, "CQ"},
		"AllocPD": {allocErr, "Device"}, "CreateCompChannel": {chErr, "Device"},
	} {
		if !errors.Is(c.err, os.ErrClosed) || !strings.Contains(c.err.Error(), "uverbs: "+c.kind+": ") {
			t.Errorf("%s: %v, want that the %s is closed", what, c.err, c.kind)
		}
	}
	k.sent("ioctl DEALLOC_PD")
}

// TestForeignObject: the objects of one device do not go together with another's, even
// while the other is busy closing them, and neither do objects that nobody made.
func TestForeignObject(t *testing.T) {
	d1, k1 := fakeDevice(t, pathAuto)
	d2, k2 := fakeDevice(t, pathAuto)
	d2.info.Name = "rxe1"
	pd := value(d1.AllocPD())(t)
	own, foreign := value(d1.CreateCQ(CQOptions{Size: 1}))(t), value(d2.CreateCQ(CQOptions{Size: 1}))(t)
	ch := value(d2.CreateCompChannel())(t)
	k2.refuse["DESTROY_CQ"] = syscall.EAGAIN
	k1.took()
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 20 {
			foreign.Close()
		}
	})
	var arg *ArgError
	for range 20 {
		if _, err := pd.CreateQP(QPOptions{SendCQ: own, RecvCQ: foreign}); !errors.As(err, &arg) || arg.Field != "CQ" ||
			arg.Given != "an object of rxe1" || arg.Allowed != "objects of rxe0" {
			t.Errorf("a CQ of another device: %v", err)
		}
	}
	wg.Wait()
	again, _ := fakeDevice(t, pathAuto)
	if _, err := again.CreateCQ(CQOptions{Size: 1, Channel: value(d1.CreateCompChannel())(t)}); !errors.As(err, &arg) ||
		arg.Given != "an object of another Open of rxe0" {
		t.Errorf("a channel of another Open: %v", err)
	}
	k1.took()
	if _, err := d1.CreateCQ(CQOptions{Size: 1, Channel: ch}); !errors.As(err, &arg) || arg.Field != "CompChannel" {
		t.Errorf("a channel of another device: %v", err)
	}
	if _, err := pd.CreateQP(QPOptions{SendCQ: own, RecvCQ: &CQ{}}); !errors.As(err, &arg) {
		t.Errorf("a CQ that nobody made: %v", err)
	}
	if _, err := d1.CreateCQ(CQOptions{Size: 1, Channel: &CompChannel{}}); !errors.As(err, &arg) {
		t.Errorf("a channel that nobody made: %v", err)
	}
	k1.sent()
	must(t, own.Close()) // no refused QP uses it
}
