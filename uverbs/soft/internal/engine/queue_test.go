package engine

import (
	"slices"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

func TestCreateErrors(t *testing.T) {
	d := newDevice(t, Config{})
	cq, errno := d.CreateCQ(1, nil, nil)
	check(t, errno)
	for _, n := range []int{-1, MaxCQE + 1} {
		if _, errno := d.CreateCQ(n, nil, nil); errno != syscall.EINVAL {
			t.Errorf("CQ of %d: %v", n, errno)
		}
	}
	for _, i := range []SRQInit{{}, {MaxWR: -1}, {MaxWR: MaxSRQWR + 1}, {MaxWR: 1, MaxSGE: 28}} {
		if _, errno := d.CreateSRQ(i); errno != syscall.EINVAL {
			t.Errorf("SRQ of %+v: %v", i, errno)
		}
	}
	good := QPInit{Type: RC, SendCQ: cq, RecvCQ: cq}
	for name, c := range map[string]struct {
		change func(i *QPInit)
		want   syscall.Errno
	}{
		"type":         {func(i *QPInit) { i.Type = 8 }, syscall.EOPNOTSUPP},
		"GSI":          {func(i *QPInit) { i.Type = GSI }, syscall.EOPNOTSUPP},
		"no CQ":        {func(i *QPInit) { i.RecvCQ = nil }, syscall.EINVAL},
		"sends":        {func(i *QPInit) { i.Caps.MaxSendWR = MaxQPWR + 1 }, syscall.EINVAL},
		"SGEs":         {func(i *QPInit) { i.Caps.MaxSendSGE = 33 }, syscall.EINVAL},
		"receive SGEs": {func(i *QPInit) { i.Caps.MaxRecvSGE = 33 }, syscall.EINVAL},
		"inline":       {func(i *QPInit) { i.Caps.MaxInline = 513 }, syscall.EINVAL},
	} {
		i := good
		c.change(&i)
		if _, errno := d.CreateQP(i); errno != c.want {
			t.Errorf("%s: %v, want %v", name, errno, c.want)
		}
	}
}

// TestQPNs: a QPN tells nothing of the next one.
func TestQPNs(t *testing.T) {
	d := newDevice(t, Config{})
	cq, errno := d.CreateCQ(1, nil, nil)
	check(t, errno)
	last, near := uint32(0), 0
	for range 1000 {
		q, errno := d.CreateQP(QPInit{Type: UD, SendCQ: cq, RecvCQ: cq})
		check(t, errno)
		if n := q.Num(); n < minQPN || n >= wire.MulticastQP {
			t.Errorf("QPN %d", n)
		} else if n-last < 1000 || last-n < 1000 {
			near++
		}
		last = q.Num()
		check(t, q.Close(), q.Close())
	}
	if near > 5 {
		t.Errorf("%d of 1000 QPNs are near the one before", near)
	}
}

func TestArm(t *testing.T) {
	a, b := pair(t, sideOptions{}, connOptions{})
	for i, c := range []struct {
		arm       []bool // solicitedOnly
		solicited bool
		want      int
	}{
		{nil, true, 0},
		{[]bool{false}, false, 1},
		{[]bool{true}, false, 0},
		{nil, true, 1}, // armed by the one before
		{[]bool{true, false}, false, 1},
		{[]bool{false, true}, false, 1},
		{[]bool{true}, true, 1},
	} {
		for _, solicited := range c.arm {
			b.cq.Arm(solicited)
		}
		b.raised = 0
		for range 2 { // the second one raises nothing
			b.recv(1, b.sge(0, 8))
			wr := signaled(1, ring.OpSend, a.sge(0, 8))
			if c.solicited {
				wr.flags |= ring.SendSolicited
			}
			a.post(wr)
		}
		if b.raised != c.want {
			t.Errorf("case %d: %d events, want %d", i, b.raised, c.want)
		}
	}
}

func TestResizeCQ(t *testing.T) {
	d := newDevice(t, Config{})
	a, b := newSide(t, d, sideOptions{cqSize: 15}), newSide(t, d, sideOptions{})
	connect(a, b, connOptions{})
	id := uint64(0)
	post := func(n int) {
		for range n {
			a.post(signaled(id, ring.OpWrite, a.sge(0, 1)).to(b, 0))
			id++
		}
	}
	post(10)
	for i := range uint64(5) {
		a.want(i, ring.WCWrite)
	}
	post(8)
	if _, errno := a.cq.Resize(12); errno != syscall.EINVAL {
		t.Errorf("resize below what is in use: %v", errno)
	}
	if _, errno := a.cq.Resize(MaxCQE + 1); errno != syscall.EINVAL {
		t.Errorf("resize beyond the limit: %v", errno)
	}
	r, errno := a.cq.Resize(100)
	check(t, errno)
	if r != a.cq.Ring() || r.Cap() != 127 {
		t.Errorf("the ring holds %d", r.Cap())
	}
	post(20)
	for i := range uint64(33) {
		a.want(5+i, ring.WCWrite)
	}
	a.none()
}

func TestSRQ(t *testing.T) {
	d := newDevice(t, Config{})
	from, to := newSide(t, d, sideOptions{}), newSide(t, d, sideOptions{srq: 7})
	connect(from, to, connOptions{})
	if to.qp.RecvRing() != nil || to.qp.Caps().MaxRecvWR != 0 {
		t.Errorf("the QP has a receive queue: %+v", to.qp.Caps())
	}
	for i := range uint64(6) {
		to.recv(i, to.sge(int(i)*100, 100))
	}
	limit, tooMany := 4, 8
	_, errno := to.srq.Modify(nil, &limit)
	check(t, errno)
	if _, errno := to.srq.Modify(nil, &tooMany); errno != syscall.EINVAL {
		t.Errorf("limit of %d: %v", tooMany, errno)
	}
	for i := range uint64(3) {
		if want := (SRQAttr{7, 4, limit}); to.srq.Query() != want {
			t.Errorf("attributes %+v, want %+v", to.srq.Query(), want)
		}
		want := from.fill(0, 50, byte(i))
		from.post(signaled(1, ring.OpSend, from.sge(0, 50)))
		from.want(1, ring.WCSend)
		to.want(i, ring.WCRecv)
		to.holds(int(i)*100, want)
	}
	if !slices.Equal(to.events, []uint32{EventSRQLimit}) || to.srq.Query().Limit != 0 {
		t.Errorf("events %v, limit %d", to.events, to.srq.Query().Limit)
	}
	for size, want := range map[int]syscall.Errno{0: syscall.EINVAL, 1: syscall.EINVAL, MaxSRQWR + 1: syscall.EINVAL} {
		if _, errno := to.srq.Modify(&size, nil); errno != want {
			t.Errorf("resize to %d: %v", size, errno)
		}
	}
	size := 100
	_, errno = to.srq.Modify(&size, nil)
	check(t, errno)
	if to.srq.Query().MaxWR != 127 {
		t.Errorf("%+v after a resize to 100", to.srq.Query())
	}
	for i := range uint64(3) {
		from.post(signaled(1, ring.OpSend, from.sge(0, 50)))
		from.want(1, ring.WCSend)
		to.want(3+i, ring.WCRecv)
	}
}

// TestManyQPs: a QP that does nothing costs its rings and little more.
func TestManyQPs(t *testing.T) {
	d := newDevice(t, Config{})
	cq, errno := d.CreateCQ(1, nil, nil)
	check(t, errno)
	for range 10000 {
		q, errno := d.CreateQP(QPInit{Type: RC, SendCQ: cq, RecvCQ: cq, Caps: Caps{MaxSendWR: 1, MaxRecvWR: 1}})
		check(t, errno)
		if d.qps.Find(q.num) != q {
			t.Fatalf("QP %d is not found", q.num)
		}
	}
}
