//go:build unix

package replay_test

import (
	"slices"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// must fails a test on an error.
var must = testenv.Must

// value returns a value, or ends the test.
func value[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		must(t, err)
		return v
	}
}

// exercise gives commands of most kinds to a device. Its records are made from what it does on a device of the
// kernel, and replayed to it.
func exercise(t *testing.T, d *uverbs.Device) {
	t.Helper()
	pd := value(d.AllocPD())(t)
	buf := value(uverbs.AllocBuffer(8192, uverbs.BufferOptions{}))(t)
	mr := value(pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteRead}))(t)
	channel := value(d.CreateCompChannel())(t)
	cq := value(d.CreateCQ(uverbs.CQOptions{Size: 100, Channel: channel}))(t)
	srq := value(pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 20, MaxSGE: 2}))(t)
	port := value(d.Port(1))(t)
	rc := value(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, SRQ: srq, MaxSendWR: 10, MaxSendSGE: 2, MaxInline: 32}))(t)
	must(t, cq.Notify())
	if d.Info().Driver != "siw" {
		table := value(d.GIDTable(1))(t)
		i := slices.IndexFunc(table, func(e uverbs.GIDEntry) bool { return e.Type != ib.GIDTypeRoCEv1 })
		if i < 0 {
			t.Fatalf("no entry of the GID table can be used: %+v", table)
		}
		connectedAndDatagrams(t, pd, cq, rc, uverbs.AHAttr{Port: 1, Global: true, DLID: port.LID, GRH: uverbs.GRH{DGID: table[i].GID, SGIDIndex: uint8(table[i].Index), HopLimit: 3}})
	}
	if d.Info().Driver == "rxe" { // siw does not support it, and a ConnectX marks the place in the old queue itself
		must(t, cq.Resize(300))
	}
	value(rc.Query())(t)
	must(t, rc.Close(), srq.Close(), cq.Close(), channel.Close(), mr.Close(), buf.Close(), pd.Close())
}

// connectedAndDatagrams connects a QP with itself and makes one for datagrams, with an AH.
func connectedAndDatagrams(t *testing.T, pd *uverbs.PD, cq *uverbs.CQ, rc *uverbs.QP, path uverbs.AHAttr) {
	t.Helper()
	must(t,
		rc.Modify(uverbs.QPAttr{State: ib.QPInit, Port: 1, Access: uverbs.AccessRemoteRead},
			uverbs.AttrState|uverbs.AttrPKeyIndex|uverbs.AttrPort|uverbs.AttrAccess),
		rc.Modify(uverbs.QPAttr{State: ib.QPRTR, PathMTU: ib.MTU1024, DestQPN: rc.QPN(), RQPSN: 7, MaxDestRdAtomic: 1, MinRNRTimer: 12, AH: path},
			uverbs.AttrState|uverbs.AttrAH|uverbs.AttrPathMTU|uverbs.AttrDestQPN|uverbs.AttrRQPSN|uverbs.AttrMaxDestRdAtomic|uverbs.AttrMinRNRTimer),
		rc.Modify(uverbs.QPAttr{State: ib.QPRTS, SQPSN: 7, Timeout: 14, RetryCount: 6, RNRRetry: 5, MaxRdAtomic: 1},
			uverbs.AttrState|uverbs.AttrTimeout|uverbs.AttrRetryCount|uverbs.AttrRNRRetry|uverbs.AttrSQPSN|uverbs.AttrMaxRdAtomic))
	ud := value(pd.CreateQP(uverbs.QPOptions{Type: ib.UD, SendCQ: cq, RecvCQ: cq, MaxSendWR: 5, MaxRecvWR: 6}))(t)
	must(t,
		ud.Modify(uverbs.QPAttr{State: ib.QPInit, Port: 1, QKey: 0x1234}, uverbs.AttrState|uverbs.AttrPKeyIndex|uverbs.AttrPort|uverbs.AttrQKey),
		ud.Modify(uverbs.QPAttr{State: ib.QPRTR}, uverbs.AttrState),
		ud.Modify(uverbs.QPAttr{State: ib.QPRTS, SQPSN: 9}, uverbs.AttrState|uverbs.AttrSQPSN))
	ah := value(pd.CreateAH(path))(t)
	must(t, ah.Close(), ud.Close())
}

// TestExercise is recorded by "verbs trace": see "make golden".
func TestExercise(t *testing.T) {
	testenv.Guest(t)
	d := value(uverbs.Open(testenv.TheRig().Devices[0], uverbs.OpenOptions{}))(t)
	exercise(t, d)
	must(t, d.Close())
}
