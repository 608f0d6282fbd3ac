package conformance

import (
	"slices"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// place is where a fault is found.
type place uint8

const (
	nowhere  place = iota // it is none
	localKey              // the poster's MR is another's, or none
	local                 // the poster's MR does not allow it
	remote                // the peer's MR does not allow it
	remoteQP              // the peer's QP does not allow it
)

// fault is something that is wrong with a work request, or only looks so.
type fault struct {
	name  string
	place func(op uverbs.WROpcode) place
	apply func(t *testing.T, wr *uverbs.SendWR, a, b *side)
}

// always is a fault of every operation.
func always(p place) func(uverbs.WROpcode) place { return func(uverbs.WROpcode) place { return p } }

// gathers reports whether an operation reads local memory; the others write there.
func gathers(op uverbs.WROpcode) bool {
	return slices.Contains([]uverbs.WROpcode{uverbs.WRSend, uverbs.WRRDMAWrite, uverbs.WRRDMAWriteWithImm}, op)
}

// needsRemote reports whether an operation names the peer's memory.
func needsRemote(op uverbs.WROpcode) bool { return op != uverbs.WRSend }

// needs are the rights that an operation needs of the peer's MR.
var needs = map[uverbs.WROpcode]uverbs.Access{
	uverbs.WRRDMAWrite: uverbs.AccessRemoteWrite, uverbs.WRRDMAWriteWithImm: uverbs.AccessRemoteWrite, uverbs.WRRDMARead: uverbs.AccessRemoteRead,
	uverbs.WRFetchAdd: uverbs.AccessRemoteAtomic, uverbs.WRCompareSwap: uverbs.AccessRemoteAtomic,
}

// ifRemote is a fault of the operations that name the peer's memory.
func ifRemote(op uverbs.WROpcode) place {
	if needsRemote(op) {
		return remote
	}
	return nowhere
}

// other registers a side's buffer once more, with other rights.
func other(t *testing.T, s *side, access uverbs.Access) *uverbs.MR {
	t.Helper()
	mr, err := s.pd.RegMR(s.buf, uverbs.MROptions{Access: rightsOnDevice(s.dev, access)})
	must(t, err)
	closeLater(t, mr)
	return mr
}

func wrongLKey(_ *testing.T, wr *uverbs.SendWR, _, _ *side) { wr.SGL[0].LKey ^= 0x5500 }
func wrongRKey(_ *testing.T, wr *uverbs.SendWR, _, _ *side) { wr.RKey ^= 0x5500 }

// noData is a fault in the place of data that there are not. The model of EFA looks at it all the same.
func noData(uverbs.WROpcode) place {
	if rig.EFA() {
		return localKey
	}
	return nowhere
}

// faults are about a request for 8 bytes at the start of both buffers.
var faults = []fault{
	{"wrong lkey", always(localKey), wrongLKey},
	{"wrong lkey, unsignaled", always(localKey), func(t *testing.T, wr *uverbs.SendWR, a, b *side) {
		wrongLKey(t, wr, a, b)
		wr.Flags = 0
	}},
	{"local MR of another PD", always(localKey), func(_ *testing.T, wr *uverbs.SendWR, _, b *side) { wr.SGL[0] = b.mr.SGE(0, 8) }},
	{"before the local MR", always(local), func(_ *testing.T, wr *uverbs.SendWR, _, _ *side) { wr.SGL[0].Addr -= 4 }},
	{"past the local MR", always(local), func(_ *testing.T, wr *uverbs.SendWR, _, _ *side) { wr.SGL[0].Addr += bufferSize - 4 }},
	{"local MR without LOCAL_WRITE", func(op uverbs.WROpcode) place {
		if gathers(op) {
			return nowhere
		}
		return local
	}, func(t *testing.T, wr *uverbs.SendWR, a, _ *side) { wr.SGL[0] = other(t, a, 0).SGE(0, 8) }},

	{"wrong rkey", ifRemote, wrongRKey},
	{"wrong rkey, unsignaled", ifRemote, func(t *testing.T, wr *uverbs.SendWR, a, b *side) {
		if needsRemote(wr.Opcode) {
			wr.Flags = 0
		}
		wrongRKey(t, wr, a, b)
	}},
	{"remote MR of another PD", ifRemote, func(_ *testing.T, wr *uverbs.SendWR, a, _ *side) {
		if needsRemote(wr.Opcode) {
			wr.RemoteAddr, wr.RKey = a.mr.Addr(), a.mr.RKey()
		}
	}},
	{"before the remote MR", ifRemote, func(_ *testing.T, wr *uverbs.SendWR, _, _ *side) { wr.RemoteAddr -= 8 }},
	{"past the remote MR", ifRemote, func(_ *testing.T, wr *uverbs.SendWR, _, _ *side) { wr.RemoteAddr += bufferSize }},
	{"remote MR without the right", ifRemote, func(t *testing.T, wr *uverbs.SendWR, _, b *side) {
		wr.RKey = other(t, b, (remoteRights|uverbs.AccessRemoteAtomic)&^needs[wr.Opcode]).RKey()
	}},
	{"remote QP without the right", func(op uverbs.WROpcode) place {
		if needsRemote(op) {
			return remoteQP
		}
		return nowhere
	}, func(t *testing.T, _ *uverbs.SendWR, _, b *side) {
		testenv.NotOnEFA(t, "rights of QPs")
		must(t, b.qp.Modify(uverbs.QPAttr{}, uverbs.AttrAccess))
	}},

	// Local memory is looked at first where it is read, and last where it is written.
	{"both keys wrong", func(op uverbs.WROpcode) place {
		if gathers(op) || rig.Driver == "mlx5" || rig.EFA() { // of a READ, that is the model's choice
			return localKey
		}
		return remote
	}, func(t *testing.T, wr *uverbs.SendWR, a, b *side) {
		wrongLKey(t, wr, a, b)
		wrongRKey(t, wr, a, b)
	}},

	{"only the access right it needs", always(nowhere), func(t *testing.T, wr *uverbs.SendWR, _, b *side) {
		wr.RKey = other(t, b, uverbs.AccessLocalWrite|needs[wr.Opcode]).RKey()
	}},
	{"two SGEs", always(nowhere), func(t *testing.T, wr *uverbs.SendWR, a, _ *side) {
		if needsRemote(wr.Opcode) {
			testenv.NotOnEFA(t, "RDMA with two SGEs")
		}
		wr.SGL = []uverbs.SGE{a.mr.SGE(0, 4), a.mr.SGE(100, 4)}
	}},
	// Where there is no data nobody asks for keys and addresses (C9-88 of the specification).
	{"no data", always(nowhere), func(_ *testing.T, wr *uverbs.SendWR, _, _ *side) { wr.SGL = nil }},
	{"no data, wrong lkey", noData, func(t *testing.T, wr *uverbs.SendWR, a, b *side) {
		wrongLKey(t, wr, a, b)
		wr.SGL[0].Length = 0
	}},
	{"no data, past the local MR", noData, func(_ *testing.T, wr *uverbs.SendWR, a, _ *side) {
		wr.SGL[0] = uverbs.SGE{Addr: a.mr.Addr() + bufferSize + 100, LKey: a.mr.LKey()}
	}},
	{"no data, wrong rkey", always(nowhere), func(t *testing.T, wr *uverbs.SendWR, a, b *side) {
		wrongRKey(t, wr, a, b)
		wr.SGL = nil
	}},
	{"no data, past the remote MR", always(nowhere), func(_ *testing.T, wr *uverbs.SendWR, _, _ *side) {
		wr.RemoteAddr += bufferSize + 100
		wr.SGL = nil
	}},
}

// outcome is what both sides get for a request.
type outcome struct {
	mine    uverbs.WCStatus
	receive bool            // a receive of the peer completes
	theirs  uverbs.WCStatus // with this status
	state   ib.QPState      // of the peer
}

// outcomeOf returns what rxe does.
func outcomeOf(t *testing.T, op uverbs.WROpcode, p place) outcome {
	withImm := op == uverbs.WRRDMAWriteWithImm
	if rig.Driver == "mlx5" {
		return outcomeMLX5(op, p)
	}
	if rig.EFA() { // where it is the request alone that fails
		status := map[place]uverbs.WCStatus{localKey: uverbs.WCLocProtErr, local: uverbs.WCLocProtErr, remote: uverbs.WCRemAccessErr}[p]
		return outcome{mine: status, receive: p == nowhere && (op == uverbs.WRSend || withImm), state: ib.QPRTS}
	}
	old := kernelBefore(t, 6, 0) // does not answer what it refuses
	switch p {
	case localKey, local:
		o := outcome{mine: uverbs.WCLocProtErr, state: ib.QPRTS}
		switch {
		case !gathers(op) || old:
		case !kernelBefore(t, 6, 12):
			o.mine = ownFault(t, o.mine)
		case p == localKey && testenv.KnownBug(t, "lkey-status"):
			o.mine = uverbs.WCLocQPOpErr
		}
		return o
	case remote:
		o := outcome{mine: uverbs.WCRemAccessErr, receive: true, theirs: uverbs.WCWRFlushErr, state: ib.QPErr}
		if withImm { // the receive is taken before the rkey is looked at
			o.theirs = uverbs.WCRemAccessErr
		} else if old && testenv.KnownBug(t, "no-nak") {
			o.mine = uverbs.WCRetryExcErr
		}
		return o
	case remoteQP:
		o := outcome{mine: uverbs.WCRemInvReqErr, receive: true, theirs: uverbs.WCWRFlushErr, state: ib.QPErr}
		if old && testenv.KnownBug(t, "no-nak") {
			o.mine = uverbs.WCRetryExcErr
		}
		return o
	}
	return outcome{receive: op == uverbs.WRSend || withImm, state: ib.QPRTS}
}

// outcomeMLX5 returns what a ConnectX adapter does: as the specification says, with a receive
// of the peer that is not touched before the request is found to be in order.
func outcomeMLX5(op uverbs.WROpcode, p place) outcome {
	switch p {
	case localKey, local:
		return outcome{mine: uverbs.WCLocProtErr, state: ib.QPRTS}
	case remote:
		return outcome{mine: uverbs.WCRemAccessErr, receive: true, theirs: uverbs.WCWRFlushErr, state: ib.QPErr}
	case remoteQP:
		return outcome{mine: uverbs.WCRemInvReqErr, receive: true, theirs: uverbs.WCWRFlushErr, state: ib.QPErr}
	}
	return outcome{receive: op == uverbs.WRSend || op == uverbs.WRRDMAWriteWithImm, state: ib.QPRTS}
}

// TestFailedRequests posts each invalid request with each operation and checks how it fails.
func TestFailedRequests(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "acknowledgements")
	testenv.Guest(t)
	o := refusing
	o.MaxSendSGE = 2
	for op := range needs {
		t.Run(op.String(), func(t *testing.T) { tryFaults(t, op, o) })
	}
	t.Run(uverbs.WRSend.String(), func(t *testing.T) { tryFaults(t, uverbs.WRSend, o) })
}

func tryFaults(t *testing.T, op uverbs.WROpcode, o uverbs.QPOptions) {
	a, b := pair(t, o)
	needsAtomics(t, a.dev, op)
	for i, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			if i > 0 {
				reconnect(t, a, b)
			}
			mine, theirs := a.fill(0, bufferSize, 1), b.fill(0, bufferSize, 101)
			mine, theirs = slices.Clone(mine), slices.Clone(theirs)
			wr := send(1, a.mr.SGE(0, 8))
			wr.Opcode = op
			if needsRemote(op) {
				wr.RemoteAddr, wr.RKey = b.mr.Addr(), b.mr.RKey()
			}
			must(t, b.qp.PostRecv(9, b.mr.SGE(128, 64)))
			f.apply(t, &wr, a, b)
			err := a.qp.PostSend(wr)
			if isAtomic(op) && (len(wr.SGL) == 0 || wr.SGL[0].Length == 0) {
				if !wrongField(err, "SGL", "8 bytes") {
					t.Errorf("an atomic without data: %v, want an error about 8 bytes", err)
				}
				a.none(t)
				return
			}
			must(t, err)
			want := outcomeOf(t, op, f.place(op))
			wc := a.next(t)
			if wc.ID != 1 || wc.Status != want.mine {
				t.Errorf("completion of %d: %v, want 1 with %v", wc.ID, a.qp.Err(&wc), want.mine)
			}
			if want.receive {
				if wc := b.next(t); wc.ID != 9 || wc.Status != want.theirs {
					t.Errorf("the peer's completion of %d: %v, want 9 with %v", wc.ID, b.qp.Err(&wc), want.theirs)
				}
			}
			b.reaches(t, want.state)
			if want.mine != uverbs.WCSuccess {
				a.holds(t, 0, mine)
				b.holds(t, 0, theirs)
			}
		})
	}
}

// reconnect resets a pair and connects it anew.
func reconnect(t *testing.T, a, b *side) {
	t.Helper()
	for _, s := range []*side{a, b} {
		must(t, s.qp.Modify(uverbs.QPAttr{State: ib.QPReset}, uverbs.AttrState))
		for n := 1; n > 0; { // what is left of the test before
			var err error
			n, err = s.cq.Poll(make([]uverbs.WC, 8))
			must(t, err)
		}
		if rig.EFA() { // the others are connected again
			must(t, initQP(s.qp.QP))
		}
	}
	connect(t, a, b)
}

// TestFailedReceives: a receive whose memory is at fault, or too short, fails the message, on
// both sides. rxe tells neither from the other: a LOC_LEN_ERR does not occur.
func TestFailedReceives(t *testing.T) {
	testenv.NotOnEFA(t, "states that a failed request leads to")
	testenv.NeedsIB(t, "acknowledgements")
	testenv.Guest(t)
	a, b := pair(t, refusing)
	var gone *uverbs.MR
	for name, sge := range map[string]func(t *testing.T) uverbs.SGE{
		"wrong lkey": func(*testing.T) uverbs.SGE {
			sge := b.mr.SGE(0, 64)
			sge.LKey ^= 0x5500
			return sge
		},
		"past the MR": func(*testing.T) uverbs.SGE {
			return uverbs.SGE{Addr: b.mr.Addr() + bufferSize - 4, Length: 64, LKey: b.mr.LKey()}
		},
		"too short":              func(*testing.T) uverbs.SGE { return b.mr.SGE(0, 4) },
		"MR of another PD":       func(*testing.T) uverbs.SGE { return a.mr.SGE(0, 64) },
		"MR without LOCAL_WRITE": func(t *testing.T) uverbs.SGE { return other(t, b, 0).SGE(0, 64) },
		"MR closed": func(t *testing.T) uverbs.SGE { // after the receive is posted
			gone = other(t, b, uverbs.AccessLocalWrite)
			return gone.SGE(0, 64)
		},
	} {
		t.Run(name, func(t *testing.T) {
			reconnect(t, a, b)
			must(t, b.qp.PostRecv(9, sge(t)))
			if gone != nil {
				must(t, gone.Close())
			}
			must(t, a.qp.PostSend(send(1, a.mr.SGE(0, 8))))
			mine, theirs := uverbs.WCRemOpErr, uverbs.WCLocQPOpErr
			switch {
			case onRxe:
			case name == "too short":
				mine, theirs = uverbs.WCRemInvReqErr, uverbs.WCLocLenErr
			default:
				theirs = uverbs.WCLocProtErr
			}
			if wc := a.next(t); wc.ID != 1 || wc.Status != mine {
				t.Errorf("completion of %d: %v, want 1 with %v", wc.ID, a.qp.Err(&wc), mine)
			}
			if wc := b.next(t); wc.ID != 9 || wc.Status != theirs {
				t.Errorf("the peer's completion of %d: %v, want 9 with %v", wc.ID, b.qp.Err(&wc), theirs)
			}
			for _, s := range []*side{a, b} {
				s.reaches(t, ib.QPErr)
			}
		})
	}
}
