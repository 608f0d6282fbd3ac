package uverbs

import (
	"errors"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// goodAttr returns attributes with values that the kernel takes for a QP that is connected
// to itself.
func goodAttr(t *testing.T, q *QP) QPAttr {
	t.Helper()
	local := value(q.EndpointFor(Endpoint{GID: netGID(t)}))(t)
	entry := value(q.localGID(1, PortAttr{LinkLayer: ib.LinkLayerEthernet}, local.GID, nil))(t)
	ah := AHAttr{Global: true, Port: 1, GRH: GRH{DGID: local.GID, SGIDIndex: uint8(entry.Index), HopLimit: 64}}
	return QPAttr{
		Port: 1, PathMTU: ib.MTU1024, DestQPN: q.QPN(), QKey: 7, MinRNRTimer: 12, Timeout: 14, RetryCount: 6, RNRRetry: 7,
		MaxRdAtomic: 1, MaxDestRdAtomic: 1, AH: ah, AltAH: ah, AltPort: 1, AltTimeout: 14,
	}
}

// netGID is the GID of the guest's first interface.
func netGID(t *testing.T) ib.GID { return value(ib.ParseGID("10.1.0.1"))(t) }

// rawModify gives the command whatever our own table says.
func rawModify(q *QP, attr QPAttr, mask QPAttrMask) syscall.Errno {
	req := &abi.ModifyQP{
		Dest: attr.AH.dest(), AltDest: attr.AltAH.dest(), QPHandle: q.handle, AttrMask: uint32(mask), QKey: attr.QKey,
		DestQPNum: attr.DestQPN, PathMTU: uint8(attr.PathMTU), PathMigState: uint8(attr.PathMigState), QPState: uint8(attr.State),
		CurQPState: uint8(attr.CurState), MaxRDAtomic: attr.MaxRdAtomic, MaxDestRDAtomic: attr.MaxDestRdAtomic,
		MinRNRTimer: uint8(attr.MinRNRTimer), PortNum: attr.Port, Timeout: uint8(attr.Timeout), RetryCnt: attr.RetryCount,
		RNRRetry: attr.RNRRetry, AltPortNum: attr.AltPort, AltTimeout: uint8(attr.AltTimeout),
	}
	return q.dev.cmd.legacy(abi.IB_USER_VERBS_CMD_MODIFY_QP, bytesOf(req), nil, udata{})
}

// TestTransitionsOfKernel compares the tables of changes of state with the kernel's: what
// ours refuses the kernel refuses as well, and with what ours requires, and nothing else,
// the kernel makes the change.
func TestTransitionsOfKernel(t *testing.T) {
	testenv.Guest(t)
	d := value(Open("rxe0", OpenOptions{}))(t)
	defer d.Close()
	pd := value(d.AllocPD())(t)
	defer pd.Close()
	cq := value(d.CreateCQ(CQOptions{Size: 8}))(t)
	defer cq.Close()
	ways := map[ib.QPState][]ib.QPState{ib.QPReset: nil, ib.QPInit: {ib.QPInit}, ib.QPRTR: {ib.QPInit, ib.QPRTR}, ib.QPRTS: {ib.QPInit, ib.QPRTR, ib.QPRTS}, ib.QPErr: {ib.QPInit, ib.QPErr}}
	for i := range transitions {
		typ := ib.QPType(i)
		if _, ok := d.driver.operations(typ); !ok {
			continue // nobody can ask
		}
		if q, err := pd.CreateQP(QPOptions{Type: typ, SendCQ: cq, RecvCQ: cq}); err == nil {
			must(t, q.Close())
		} else if errors.Is(err, errors.ErrUnsupported) {
			continue // raw packets, by most kernels
		} else {
			t.Fatal(err)
		}
		// in returns a QP in a state.
		in := func(state ib.QPState) (*QP, QPAttr) {
			q := value(pd.CreateQP(QPOptions{Type: typ, SendCQ: cq, RecvCQ: cq}))(t)
			attr := goodAttr(t, q)
			for _, next := range ways[state] {
				attr.State = next
				row, _ := lookUp(typ, q.State(), next)
				must(t, q.Modify(attr, AttrState|row.required))
			}
			return q, attr
		}
		for from := range ways {
			for to := ib.QPReset; to <= ib.QPSQD; to++ {
				row, ok := lookUp(typ, from, to)
				masks := []QPAttrMask{AttrState | row.required}
				for bit := range attrNames {
					if QPAttrMask(1)<<bit != AttrState && QPAttrMask(1)<<bit != AttrCap {
						masks = append(masks, masks[0]^1<<bit)
					}
				}
				q, attr := in(from)
				for i, mask := range masks {
					attr.State, attr.CurState = to, from
					wrong := checkModify(typ, from, to, mask)
					errno := rawModify(q, attr, mask)
					switch {
					case wrong != nil && errno == 0:
						t.Errorf("%s: the kernel allows what the library refuses: %v", typ, wrong)
					case i == 0 && ok && errno != 0 && !errors.Is(errno, syscall.ENETUNREACH):
						t.Errorf("%s from %s to %s with %s: %v", typ, from, to, mask, errno)
					}
					if errno == 0 {
						must(t, q.Close())
						q, attr = in(from)
					}
				}
				must(t, q.Close())
			}
		}
	}
}
