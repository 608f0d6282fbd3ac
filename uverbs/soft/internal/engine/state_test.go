package engine

import (
	"slices"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/internal/kernel"
	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
)

// TestTransitions checks each change of state with the attributes that it needs, with one less, and
// with one more.
func TestTransitions(t *testing.T) {
	const (
		rtr = AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN
		rts = AttrTimeout | AttrRetryCount | AttrRNRRetry | AttrSQPSN | AttrMaxRdAtomic
	)
	required := map[[2]State]map[QPType]AttrMask{
		{Reset, Init}: {RC: AttrPKeyIndex | AttrPort | AttrAccess, UC: AttrPKeyIndex | AttrPort | AttrAccess, UD: AttrPKeyIndex | AttrPort | AttrQKey, GSI: AttrPKeyIndex | AttrQKey},
		{Init, RTR}:   {RC: rtr | AttrMaxDestRdAtomic | AttrMinRNRTimer, UC: rtr},
		{RTR, RTS}:    {RC: rts, UC: AttrSQPSN, UD: AttrSQPSN, GSI: AttrSQPSN},
	}
	valid := map[[2]State]bool{
		{Reset, Reset}: true, {Reset, Init}: true, {Init, Init}: true, {Init, RTR}: true, {RTR, RTS}: true, {RTS, RTS}: true,
		{RTS, SQD}: true, {SQD, RTS}: true, {SQD, SQD}: true, {SQE, RTS}: true,
	}
	for _, from := range []State{Init, RTR, RTS, SQD, SQE, Err} {
		valid[[2]State{from, Reset}], valid[[2]State{from, Err}] = true, true
	}
	for _, typ := range []QPType{RC, UC, UD, GSI} {
		for from := Reset; from <= Err; from++ {
			for to := Reset; to <= Err; to++ {
				move := [2]State{from, to}
				need := required[move][typ] | AttrState
				if got := permitted(typ, from, to, need); got != valid[move] {
					t.Errorf("type %d, %d to %d: %t", typ, from, to, got)
				}
				for bit := AttrCurState; bit <= attrStandard; bit <<= 1 {
					if need&bit != 0 && permitted(typ, from, to, need&^bit) {
						t.Errorf("type %d, %d to %d without %#x is permitted", typ, from, to, bit)
					}
				}
				if permitted(typ, from, to, need|AttrCaps) {
					t.Errorf("type %d, %d to %d with sizes is permitted", typ, from, to)
				}
			}
		}
	}
	for _, c := range []struct {
		typ      QPType
		from, to State
		optional AttrMask
		want     bool
	}{
		{RC, Init, RTR, AttrAltPath, true},
		{UD, Init, RTR, AttrPort, false},
		{RC, RTS, RTS, AttrMinRNRTimer | AttrPathMigState, true},
		{UC, RTS, RTS, AttrMinRNRTimer, false},
		{UD, RTS, RTS, AttrQKey | AttrCurState, true},
		{RC, SQD, SQD, AttrAV | AttrTimeout | AttrPort | AttrMaxDestRdAtomic, true},
		{UC, SQD, SQD, AttrAV, true},
		{UC, SQD, SQD, AttrTimeout, false},
		{UD, SQE, RTS, AttrQKey, true},
		{RC, SQE, RTS, AttrAccess, false},
		{RC, RTS, SQD, AttrSQDNotify, true},
		{RC, Init, Init, AttrCurState, false},
	} {
		mask := c.optional | AttrState | required[[2]State{c.from, c.to}][c.typ]
		if got := permitted(c.typ, c.from, c.to, mask); got != c.want {
			t.Errorf("type %d, %d to %d with %#x: %t", c.typ, c.from, c.to, c.optional, got)
		}
	}
}

func TestModifyErrors(t *testing.T) {
	d := newDevice(t, Config{})
	s := newSide(t, d, sideOptions{})
	ud := newSide(t, d, sideOptions{typ: UD})
	good := AV{GRH: true, Port: 1, DGID: (*d.gids.Load())[0].GID}
	av := func(change func(*AV)) QPAttr {
		a := QPAttr{AV: good}
		change(&a.AV)
		return a
	}
	for name, c := range map[string]struct {
		qp   *QP
		a    QPAttr
		mask AttrMask
		want syscall.Errno
	}{
		"port 2":            {s.qp, QPAttr{Port: 2}, AttrPort, syscall.EINVAL},
		"rate limit":        {s.qp, QPAttr{}, AttrRateLimit, syscall.EOPNOTSUPP},
		"access":            {s.qp, QPAttr{AccessFlags: 1 << 5}, AttrAccess, syscall.EINVAL},
		"access of UD":      {ud.qp, QPAttr{}, AttrAccess, syscall.EINVAL},
		"MTU 6":             {s.qp, QPAttr{PathMTU: 6}, AttrPathMTU, syscall.EINVAL},
		"MTU 0":             {s.qp, QPAttr{}, AttrPathMTU, syscall.EINVAL},
		"READs":             {s.qp, QPAttr{MaxRdAtomic: 129}, AttrMaxRdAtomic, syscall.EINVAL},
		"timeout 32":        {s.qp, QPAttr{Timeout: 32}, AttrTimeout, syscall.EINVAL},
		"state 7":           {s.qp, QPAttr{State: 7}, AttrState, syscall.EINVAL},
		"from state 7":      {s.qp, QPAttr{State: Err, CurState: 7}, AttrState | AttrCurState, syscall.EINVAL},
		"sizes":             {s.qp, QPAttr{Caps: Caps{MaxSendSGE: 33}}, AttrCaps, syscall.EINVAL},
		"RESET to RTR":      {s.qp, QPAttr{State: RTR, AV: good, PathMTU: 1}, rtrMask, syscall.EINVAL},
		"no GRH":            {s.qp, av(func(a *AV) { a.GRH = false }), AttrAV, syscall.EINVAL},
		"port of the AV":    {s.qp, av(func(a *AV) { a.Port = 0 }), AttrAV, syscall.EINVAL},
		"GID not in use":    {s.qp, av(func(a *AV) { a.SGIDIndex = 200 }), AttrAV, kernel.ENODATA},
		"other family":      {s.qp, av(func(a *AV) { a.SGIDIndex = 1 }), AttrAV, syscall.EINVAL},
		"no route":          {s.qp, av(func(a *AV) { a.DGID[15]++ }), AttrAV, syscall.ENETUNREACH},
		"alternate path":    {s.qp, QPAttr{AltAV: good}, AttrAltPath, syscall.EINVAL},
		"fine":              {s.qp, QPAttr{Timeout: 31, MaxRdAtomic: 128, PathMTU: 5}, AttrTimeout | AttrMaxRdAtomic | AttrPathMTU, 0},
		"sizes are ignored": {s.qp, QPAttr{Caps: Caps{MaxSendSGE: 1}}, AttrCaps, 0},
	} {
		if got := c.qp.Modify(&c.a, c.mask); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	s.inState(Reset)
}

// TestCurState: the program's idea of the state decides what may follow it, as in rxe.
func TestCurState(t *testing.T) {
	a, _ := pair(t, sideOptions{}, connOptions{})
	if got := a.qp.Modify(&QPAttr{State: RTS, CurState: Init}, AttrState|AttrCurState); got != syscall.EINVAL {
		t.Errorf("INIT to RTS: %v", got)
	}
	check(t, a.qp.Modify(&QPAttr{State: RTS, CurState: SQD}, AttrState|AttrCurState))
}

func TestQuery(t *testing.T) {
	d := newDevice(t, Config{})
	a, b := newSide(t, d, sideOptions{sendWR: 10, recvWR: 20, sge: 3, inline: 100}), newSide(t, d, sideOptions{})
	connect(a, b, connOptions{rdAtomic: 5, mtu: 4, timeout: 12, retry: 3, rnrRetry: 6, rnr: 9, psn: 100})
	b.recv(1, b.sge(0, 10))
	a.post(signaled(2, ring.OpSend, a.sge(0, 10)))
	want := QPAttr{
		State: RTS, CurState: RTS, PathMTU: 4, DestQPN: b.qp.num, AccessFlags: allAccess, Port: 1,
		RQPSN: 100 + b.qp.num, SQPSN: 101 + a.qp.num, MaxRdAtomic: 5, MaxDestRdAtomic: 5, MinRNRTimer: 9,
		Timeout: 12, RetryCount: 3, RNRRetry: 6,
		AV:   AV{GRH: true, Port: 1, DGID: (*d.gids.Load())[0].GID},
		Caps: Caps{MaxSendWR: 15, MaxRecvWR: 31, MaxSendSGE: 6, MaxRecvSGE: 3, MaxInline: 100},
	}
	if got := a.qp.Query(); got != want {
		t.Errorf("attributes\n%+v, want\n%+v", got, want)
	}
	if got := b.qp.Query().RQPSN; got != 101+a.qp.num {
		t.Errorf("the receiver expects PSN %d, want %d", got, 101+a.qp.num)
	}
}

func TestDoorbellState(t *testing.T) {
	d := newDevice(t, Config{})
	a, b := newSide(t, d, sideOptions{}), newSide(t, d, sideOptions{})
	for _, to := range []State{Reset, Init} {
		check(t, a.qp.Modify(&QPAttr{State: to, Port: 1}, map[State]AttrMask{Reset: AttrState, Init: initMask | AttrAccess}[to]))
		if got := a.qp.Doorbell(); got != syscall.EINVAL {
			t.Errorf("doorbell in state %d: %v, want EINVAL", to, got)
		}
	}
	check(t, a.qp.Modify(&QPAttr{State: Reset}, AttrState))
	a.connectTo(b.qp, "10.0.0.1", connOptions{noRTS: true})
	if got := a.qp.Doorbell(); got != syscall.EINVAL {
		t.Errorf("doorbell in RTR: %v, want EINVAL", got)
	}
}

// TestFlush: work requests that are posted when a QP moves to ERR are flushed, as are sends that are
// posted in ERR.
func TestFlush(t *testing.T) {
	a, _ := pair(t, sideOptions{}, connOptions{})
	a.recv(1, a.sge(0, 8))
	a.recv(2)
	a.put(signaled(3, ring.OpSend), sendWR{id: 4, opcode: ring.OpSend})
	check(t, a.qp.Modify(&QPAttr{State: Err}, AttrState))
	for _, id := range []uint64{3, 4, 1, 2} {
		a.fails(id, StatusFlushErr)
	}
	a.post(sendWR{id: 5, opcode: ring.OpSend})
	a.fails(5, StatusFlushErr)
	a.none()
	if len(a.events) != 0 {
		t.Errorf("events %v", a.events)
	}
}

// TestReset: a QP in RESET has no requests, and no completions of them. It can be connected again.
func TestReset(t *testing.T) {
	clock := newFakeClock()
	net := &fakeNetwork{clock: clock}
	a, b := networkPair(t, net, sideOptions{}, connOptions{})
	a.recv(1)
	a.post(signaled(2, ring.OpSend, a.sge(0, 8)), signaled(3, ring.OpRead, a.sge(0, 8)).to(b, 0))
	for _, s := range []*side{a, b} {
		check(t, s.qp.Modify(&QPAttr{State: Reset}, AttrState))
	}
	net.settle()
	a.none()
	if p := a.qp.sq.Producer(); p != a.qp.sq.Consumer() {
		t.Errorf("%d sends are left", p-a.qp.sq.Consumer())
	}
	connect(a, b, connOptions{psn: 5000})
	b.recv(4, b.sge(0, 8))
	a.post(signaled(5, ring.OpSend, a.sge(0, 8)), signaled(6, ring.OpRead, a.sge(0, 8)).to(b, 0))
	net.settle()
	a.want(5, ring.WCSend)
	a.want(6, ring.WCRead)
	b.want(4, ring.WCRecv)
}

// TestDrain: a QP in SQD finishes what it has begun, tells so, and begins nothing.
func TestDrain(t *testing.T) {
	clock := newFakeClock()
	net := &fakeNetwork{clock: clock}
	a, b := networkPair(t, net, sideOptions{}, connOptions{})
	a.post(signaled(1, ring.OpWrite, a.sge(0, 5000)).to(b, 0))
	check(t, a.qp.Modify(&QPAttr{State: SQD, SQDNotify: true}, AttrState|AttrSQDNotify))
	a.post(signaled(2, ring.OpWrite, a.sge(0, 5000)).to(b, 0))
	if !a.qp.Query().SQDraining {
		t.Error("the QP does not drain")
	}
	if got := a.qp.Modify(&QPAttr{State: RTS}, AttrState); got != syscall.EINVAL {
		t.Errorf("RTS while it drains: %v, want EINVAL", got)
	}
	if got := a.qp.Modify(&QPAttr{State: Reset}, AttrState); got != syscall.EINVAL {
		t.Errorf("RESET while it drains: %v, want EINVAL", got)
	}
	net.deliver()
	a.want(1, ring.WCWrite)
	a.none()
	if a.qp.Query().SQDraining || !slices.Equal(a.events, []uint32{EventSQDrained}) {
		t.Errorf("events %v, want one", a.events)
	}
	check(t, a.qp.Modify(&QPAttr{State: RTS}, AttrState))
	net.deliver()
	a.want(2, ring.WCWrite)

	check(t, a.qp.Modify(&QPAttr{State: SQD, SQDNotify: true}, AttrState|AttrSQDNotify)) // with nothing under way
	if len(a.events) != 2 {
		t.Errorf("events %v, want two", a.events)
	}
	check(t, a.qp.Modify(&QPAttr{State: RTS}, AttrState))
	check(t, a.qp.Modify(&QPAttr{State: SQD}, AttrState)) // nobody asks to be told
	if len(a.events) != 2 || a.qp.Query().SQDraining {
		t.Errorf("events %v, want two", a.events)
	}
	check(t, a.qp.Modify(&QPAttr{State: Err}, AttrState))
}

// TestDrainAfterLoss: what was lost is sent again in SQD.
func TestDrainAfterLoss(t *testing.T) {
	clock := newFakeClock()
	net := &fakeNetwork{clock: clock}
	a, b := networkPair(t, net, sideOptions{}, connOptions{})
	want := a.fill(0, 5000, 3)
	a.post(signaled(1, ring.OpWrite, a.sge(0, 5000)).to(b, 0), signaled(2, ring.OpRead, a.sge(6000, 5000)).to(b, 0))
	net.packets = nil
	check(t, a.qp.Modify(&QPAttr{State: SQD, SQDNotify: true}, AttrState|AttrSQDNotify))
	net.settle()
	a.want(1, ring.WCWrite)
	a.want(2, ring.WCRead)
	a.holds(6000, want)
	if !slices.Equal(a.events, []uint32{EventSQDrained}) {
		t.Errorf("events %v, want one", a.events)
	}
}

func TestLastWQEEvent(t *testing.T) {
	d := newDevice(t, Config{})
	for _, typ := range []QPType{RC, UD} {
		s := newSide(t, d, sideOptions{typ: typ, srq: 4})
		mask := map[QPType]AttrMask{RC: initMask | AttrAccess, UD: initMask | AttrQKey}[typ]
		check(t, s.qp.Modify(&QPAttr{State: Init, Port: 1}, mask), s.qp.Modify(&QPAttr{State: Err}, AttrState),
			s.qp.Modify(&QPAttr{State: Err}, AttrState))
		if !slices.Equal(s.events, []uint32{EventLastWQE}) {
			t.Errorf("events %v, want one", s.events)
		}
	}
}
