package conformance

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestQueryQP checks that what Connect sets is what the device has.
func TestQueryQP(t *testing.T) {
	testenv.NeedsIB(t, "manual QP state changes")
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		o := uverbs.QPOptions{
			MaxSendWR: 10, MaxRecvWR: 20, MaxSendSGE: 2, MaxRecvSGE: 3,
			Path: uverbs.PathOptions{MTU: ib.MTU512, Timeout: 15, RetryCount: 5, RNRRetry: 4, MinRNRTimer: 8, TrafficClass: 16, MaxRdAtomic: 2},
		}
		a, b := newSide(t, dev, o), newSide(t, dev, o)
		connect(t, a, b)
		ea, err := a.qp.Endpoint()
		must(t, err)
		eb, err := b.qp.Endpoint()
		must(t, err)
		got, err := a.qp.Query()
		must(t, err)
		if got.State != ib.QPRTS || a.qp.State() != ib.QPRTS {
			t.Errorf("state is %s, want RTS", got.State)
		}
		want := map[string][2]any{
			"PathMTU":         {got.PathMTU, ib.MTU512},
			"DestQPN":         {got.DestQPN, eb.QPN},
			"RQPSN":           {got.RQPSN, eb.PSN},
			"SQPSN":           {got.SQPSN, ea.PSN},
			"Timeout":         {got.Timeout, ib.AckTimeout(15)},
			"RetryCount":      {got.RetryCount, uint8(5)},
			"RNRRetry":        {got.RNRRetry, uint8(4)},
			"MinRNRTimer":     {got.MinRNRTimer, ib.RNRTimer(8)},
			"MaxRdAtomic":     {got.MaxRdAtomic, uint8(2)},
			"MaxDestRdAtomic": {got.MaxDestRdAtomic, uint8(2)},
			"Port":            {got.Port, uint8(1)},
			"Access":          {got.Access, uverbs.AccessRemoteRead | uverbs.AccessRemoteWrite | uverbs.AccessRemoteAtomic},
		}
		if lacksAtomics(t, a.dev) {
			want["Access"] = [2]any{got.Access, uverbs.AccessRemoteRead | uverbs.AccessRemoteWrite}
		}
		if !rig.InfiniBand() { // where a LID is enough
			want["AH.Global"] = [2]any{got.AH.Global, true}
			want["DGID"] = [2]any{got.AH.GRH.DGID, eb.GID}
			want["TrafficClass"] = [2]any{got.AH.GRH.TrafficClass, uint8(16)}
		}
		for field, v := range want {
			if v[0] != v[1] {
				t.Errorf("%s is %v, want %v", field, v[0], v[1])
			}
		}
		caps := a.qp.Caps()
		if caps.MaxSendWR < 10 || caps.MaxRecvWR < 20 || caps.MaxSendSGE < 2 || caps.MaxRecvSGE < 3 {
			t.Errorf("Caps are %+v, less than requested", caps)
		}
		if c := got.Caps; c.MaxSendWR < 10 || c.MaxRecvWR < 20 || c.MaxSendSGE < 2 || c.MaxRecvSGE < 3 {
			t.Errorf("Query returns %+v, less than requested", c)
		}
	})
}

// TestReadDepth asks for several READs in flight, and reads more often. The QP has at least as many.
func TestReadDepth(t *testing.T) {
	testenv.NeedsIB(t, "manual QP state changes")
	eachPath(t, func(t *testing.T) {
		for _, depth := range []uint8{1, 3, 12} {
			a, b := pair(t, uverbs.QPOptions{Path: uverbs.PathOptions{MaxRdAtomic: depth}})
			for _, s := range []*side{a, b} {
				if got, err := s.qp.Query(); err != nil || got.MaxRdAtomic < depth || got.MaxDestRdAtomic < depth {
					t.Errorf("asked for %d, the QP has %d and %d: %v", depth, got.MaxRdAtomic, got.MaxDestRdAtomic, err)
				}
			}
			const size = 2000
			want, reads := b.fill(0, size, depth), uint64(2*depth)
			for id := range reads {
				wr := operation(uverbs.WRRDMARead, a, b)
				wr.ID, wr.SGL[0] = id, a.mr.SGE(int(id)*size, size)
				must(t, a.qp.PostSend(wr))
			}
			for id := range reads {
				a.want(t, id, uverbs.WCRDMARead)
				a.holds(t, int(id)*size, want)
			}
		}
	})
}

// TestModifyMask names what is missing or superfluous.
func TestModifyMask(t *testing.T) {
	testenv.NotOnEFA(t, "connections")
	eachPath(t, func(t *testing.T) {
		s := newSide(t, openDevice(t, deviceName), uverbs.QPOptions{})
		rtr := uverbs.QPAttr{State: ib.QPRTR, PathMTU: ib.MTU1024, AH: uverbs.AHAttr{Port: 1}}
		err := s.qp.Modify(rtr, uverbs.AttrState|uverbs.AttrAH|uverbs.AttrPathMTU|uverbs.AttrRQPSN|uverbs.AttrMinRNRTimer)
		arg := argError(t, err, "mask")
		if !strings.Contains(arg.Given, "missing MaxDestRdAtomic, DestQPN") || !strings.Contains(arg.Op, "INIT to RTR") {
			t.Errorf("%v does not name what is missing", err)
		}
		err = s.qp.Modify(uverbs.QPAttr{State: ib.QPInit, Port: 1}, uverbs.AttrState|uverbs.AttrPort|uverbs.AttrSQPSN|uverbs.AttrQKey)
		if arg := argError(t, err, "mask"); !strings.Contains(arg.Given, "superfluous QKey, SQPSN") {
			t.Errorf("%v does not name what is superfluous", err)
		}
		err = s.qp.Modify(uverbs.QPAttr{State: ib.QPRTS}, uverbs.AttrState)
		argError(t, err, "State")
		if s.qp.State() != ib.QPInit {
			t.Errorf("state is %s after refused changes, want INIT", s.qp.State())
		}
	})
}

// TestQPStates walks through all states and back to a QP that works.
func TestQPStates(t *testing.T) {
	testenv.NeedsIB(t, "manual QP state changes")
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{})
		check := func(want ib.QPState) {
			t.Helper()
			if got, err := a.qp.Query(); err != nil || got.State != want {
				t.Fatalf("state is %s, %v, want %s", got.State, err, want)
			}
		}
		state := func(s ib.QPState) {
			t.Helper()
			must(t, a.qp.Modify(uverbs.QPAttr{State: s}, uverbs.AttrState))
		}
		if onMLX5 { // mlx5_ib knows no way there, nor a table of what may follow what
			if err := a.qp.Modify(uverbs.QPAttr{State: ib.QPSQD}, uverbs.AttrState); !errors.Is(err, syscall.EINVAL) {
				t.Errorf("SQD: %v, want EINVAL", err)
			}
		} else {
			state(ib.QPSQD)
			check(ib.QPSQD)
		}
		for end := time.Now().Add(deadline); ; { // back to RTS it goes only when drained
			attr, err := a.qp.Query()
			must(t, err)
			if !attr.SQDraining {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("still draining after %s", deadline)
			}
		}
		if !onMLX5 {
			state(ib.QPRTS)
		}
		check(ib.QPRTS)
		// rxe has no doorbell for receives: one that is posted in ERR is not seen.
		must(t, a.qp.PostRecv(2))
		state(ib.QPErr)
		check(ib.QPErr)
		flushes := 1
		if !rxeBefore(t, 6, 0) { // rxe of Linux 5.10 leaves a send in ERR alone
			must(t, a.qp.PostSend(send(1)))
			flushes++
		}
		for range flushes {
			if wc := a.next(t); wc.Status != uverbs.WCWRFlushErr {
				t.Fatalf("status of %d in ERR is %s, want a flush", wc.ID, wc.Status)
			}
		}
		state(ib.QPReset)
		check(ib.QPReset)
		must(t, b.qp.Modify(uverbs.QPAttr{State: ib.QPReset}, uverbs.AttrState))
		connect(t, a, b)
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, 8)), a.qp.PostSend(send(2, a.mr.SGE(0, 8))))
		a.want(t, 2, uverbs.WCSend)
		b.want(t, 1, uverbs.WCRecv)
	})
}

// TestConnectInvalidEndpoint gives Connect endpoints that cannot be.
func TestConnectInvalidEndpoint(t *testing.T) {
	testenv.NotOnEFA(t, "connections")
	testenv.NeedsIB(t, "GIDs")
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		s := newSide(t, dev, uverbs.QPOptions{})
		good, err := s.qp.Endpoint()
		must(t, err)
		changes := map[string]func(*uverbs.Endpoint){
			"remote QPN": func(e *uverbs.Endpoint) { e.QPN = 1 << 24 },
			"remote PSN": func(e *uverbs.Endpoint) { e.PSN = 1 << 24 },
			"remote GID": func(e *uverbs.Endpoint) { e.GID = ib.GID{} },
		}
		if rig.InfiniBand() { // a LID is enough
			delete(changes, "remote GID")
		}
		for field, change := range changes {
			e := good
			change(&e)
			argError(t, s.qp.Connect(t.Context(), e), field)
		}
		if got := s.qp.State(); got != ib.QPInit {
			t.Errorf("state is %s after refused endpoints, want INIT", got)
		}
		mtu := newSide(t, dev, uverbs.QPOptions{Path: uverbs.PathOptions{MTU: ib.MTU4096}})
		if port, err := dev.Port(1); err != nil || port.ActiveMTU < ib.MTU4096 {
			argError(t, mtu.qp.Connect(t.Context(), good), "Path.MTU")
		}
		far := good
		far.GID, err = ib.ParseGID("203.0.113.1") // no route goes there
		must(t, err)
		err = s.qp.Connect(t.Context(), far)
		if rig.InfiniBand() { // the LID leads there, and the kernel looks at nothing else
			must(t, err)
		} else if !errors.As(err, new(*uverbs.Error)) || !strings.Contains(err.Error(), "203.0.113.1") {
			t.Errorf("connect to an unreachable peer: %v, want an Error with its address", err)
		}
	})
}

// TestMRErrors registers what cannot be registered.
func TestMRErrors(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		pd, err := dev.AllocPD()
		must(t, err)
		closeLater(t, pd)
		buf, err := uverbs.AllocBuffer(4096, uverbs.BufferOptions{})
		must(t, err)
		closeLater(t, buf)
		for _, access := range []uverbs.Access{uverbs.AccessRemoteWrite, uverbs.AccessRemoteAtomic} { // need LOCAL_WRITE
			_, err = pd.RegMR(buf, uverbs.MROptions{Access: access})
			argError(t, err, "access")
		}
		_, err = pd.RegMR(buf, uverbs.MROptions{Access: 1 << 30})
		argError(t, err, "access")
		_, err = pd.RegMR(nil, uverbs.MROptions{})
		argError(t, err, "buffer")
		_, err = pd.RegSlice(nil, 0)
		argError(t, err, "slice")
		must(t, syscall.Mprotect(buf.Bytes(), syscall.PROT_NONE))
		_, err = pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
		if !errors.Is(err, syscall.EFAULT) {
			t.Errorf("inaccessible memory: %v, want EFAULT", err)
		}
		must(t, syscall.Mprotect(buf.Bytes(), syscall.PROT_READ|syscall.PROT_WRITE))
		mr, err := pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
		must(t, err)
		must(t, mr.Close())
	})
}

// TestAltPath: there are alternate paths on InfiniBand alone, and elsewhere the error says so.
func TestAltPath(t *testing.T) {
	testenv.NeedsIB(t, "manual QP state changes")
	eachPath(t, func(t *testing.T) {
		if rig.InfiniBand() {
			migrate(t)
			return
		}
		testenv.NotSupported(t, "alternate paths")
		a, _ := pair(t, uverbs.QPOptions{})
		attr, err := a.qp.Query()
		must(t, err)
		attr.AltAH, attr.AltPort, attr.AltTimeout = attr.AH, 1, 14
		err = a.qp.Modify(attr, uverbs.AttrAltPath)
		if e, ok := errors.AsType[*uverbs.Error](err); !ok || e.Errno != syscall.EINVAL || !strings.Contains(e.Hint, "alternate paths on InfiniBand only") {
			t.Errorf("error is %v", err)
		}
		must(t, a.qp.Modify(uverbs.QPAttr{PathMigState: ib.PathRearm}, uverbs.AttrPathMigState))
		now, err := a.qp.Query()
		must(t, err)
		if !onMLX5 && now.PathMigState != ib.PathRearm {
			t.Errorf("PathMigState is %s, want %s", now.PathMigState, ib.PathRearm)
		}
	})
}

// migrate gives a QP an alternate path, arms it, and moves to it: the kernel has that on InfiniBand.
func migrate(t *testing.T) {
	t.Helper()
	a, b := pair(t, uverbs.QPOptions{})
	attr, err := a.qp.Query()
	must(t, err)
	alt := uverbs.QPAttr{AltAH: attr.AH, AltPort: 1, AltPKeyIndex: attr.PKeyIndex, AltTimeout: 14, PathMigState: ib.PathRearm}
	must(t, a.qp.Modify(alt, uverbs.AttrAltPath|uverbs.AttrPathMigState))
	now, err := a.qp.Query()
	must(t, err)
	if now.PathMigState != ib.PathArmed || now.AltAH.DLID != attr.AH.DLID || now.AltPort != 1 || now.AltTimeout != 14 {
		t.Errorf("the alternate path is %+v to port %d, timeout %d, %s; want LID %d, port 1, 14, %s", now.AltAH, now.AltPort, now.AltTimeout,
			now.PathMigState, attr.AH.DLID, ib.PathArmed)
	}
	must(t, a.qp.Modify(uverbs.QPAttr{PathMigState: ib.PathMigrated}, uverbs.AttrPathMigState))
	want := uverbs.Event{Type: uverbs.EventPathMig, QP: a.qp.QP}
	if ev := event(t, a.dev, uverbs.EventPathMig); ev != want {
		t.Errorf("event is %s, want %s", ev, want)
	}
	if now, err = a.qp.Query(); err != nil || now.PathMigState != ib.PathMigrated {
		t.Errorf("the state is %s, %v, want %s", now.PathMigState, err, ib.PathMigrated)
	}
	must(t, b.qp.PostRecv(1, b.mr.SGE(4096, 100)), a.qp.PostSend(send(2, a.mr.SGE(0, 100))))
	a.want(t, 2, uverbs.WCSend)
	b.want(t, 1, uverbs.WCRecv)
}
