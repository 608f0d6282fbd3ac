//go:build amd64 || arm64

package uverbs

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/goverbs/goverbs/test/pairs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestPairs runs pairs and triples on software devices and on rings whose other side the test plays. Afterwards the
// library and the device must agree.
func TestPairs(t *testing.T) {
	pairs.Run(t, concurrency, map[string]func(*testing.T) pairs.World{
		"soft": newSoftWorld, "rxe": newRxeWorld, "siw": newSiwWorld,
		"mlx5":    func(t *testing.T) pairs.World { return newMlx5World(t, false) },
		"mlx5SRQ": func(t *testing.T) pairs.World { return newMlx5World(t, true) },
	})
}

// anyArgument returns a random completion, or options of a queue, which need a CQ.
func anyArgument(r *rand.Rand, typ reflect.Type, cq *CQ) (v reflect.Value, ok bool) {
	if typ == reflect.TypeFor[*WC]() {
		statuses := []WCStatus{WCSuccess, WCWRFlushErr, WCRNRRetryExcErr, WCRemAccessErr, WCLocProtErr, WCRetryExcErr}
		return reflect.ValueOf(&WC{ID: uint64(r.IntN(4)), Status: statuses[r.IntN(len(statuses))]}), true
	}
	if typ.Kind() != reflect.Struct {
		return v, false
	}
	v = reflect.New(typ).Elem()
	for i := range typ.NumField() {
		if f := v.Field(i); f.Type() == reflect.TypeFor[*CQ]() {
			f.Set(reflect.ValueOf(cq))
		}
	}
	return v, true
}

func (w *softWorld) Argument(r *rand.Rand, typ reflect.Type) (reflect.Value, bool) {
	return anyArgument(r, typ, w.cq)
}

func (w *ringWorld) Argument(r *rand.Rand, typ reflect.Type) (reflect.Value, bool) {
	return anyArgument(r, typ, w.cq)
}

// qpTurns are the changes of state of a Modify that a test makes, each with its attributes.
var qpTurns = []struct {
	to   ib.QPState
	mask QPAttrMask
}{
	{ib.QPReset, 0}, {ib.QPInit, AttrPKeyIndex | AttrPort | AttrAccess},
	{ib.QPRTR, AttrAH | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMaxDestRdAtomic | AttrMinRNRTimer},
	{ib.QPRTS, AttrTimeout | AttrRetryCount | AttrRNRRetry | AttrSQPSN | AttrMaxRdAtomic}, {ib.QPSQD, 0}, {ib.QPErr, 0},
}

// modifyRandomly moves a QP to a random state, most often the next one or RESET.
func modifyRandomly(r *rand.Rand, q *QP, attr QPAttr) error {
	turn := qpTurns[r.IntN(len(qpTurns))]
	if next := int(q.State()) + 1; r.IntN(3) != 0 && next < int(ib.QPSQD) {
		turn = qpTurns[next]
	}
	attr.State = turn.to
	return q.Modify(attr, AttrState|turn.mask)
}

// postRandomly posts one to three sends.
func postRandomly(r *rand.Rand, q *QP, sge SGE) {
	var wrs []SendWR
	for range 1 + r.IntN(3) {
		wrs = append(wrs, SendWR{ID: staleID, Opcode: WRSend, Flags: SendSignaled, SGL: []SGE{sge}})
	}
	_ = q.PostSend(wrs...) // not in every state
}

// buildRandomly is postRandomly with the builder. Some batches are abandoned.
func buildRandomly(r *rand.Rand, q *QP, sge SGE) {
	b := q.BeginSend()
	for range 1 + r.IntN(3) {
		b.Send(staleID, SendSignaled)
		b.SGE(sge)
	}
	if r.IntN(4) == 0 {
		b.Abandon()
		return
	}
	_ = b.Post()
}

// IDs of work requests: of those that are posted at random, and of the exchange afterwards.
const (
	staleID = 1
	sendID  = 100
	recvID  = 101
)

// isExchange returns an error unless completions belong to one send and one receive of the
// exchange.
func isExchange(got []WC) error {
	ids := map[uint64]int{}
	for _, wc := range got {
		if wc.Status != WCSuccess {
			return fmt.Errorf("request %d of the exchange completed with %s", wc.ID, wc.Status)
		}
		ids[wc.ID]++
	}
	if len(got) != 2 || ids[sendID] != 1 || ids[recvID] != 1 {
		return fmt.Errorf("the exchange has completions %v, want one of request %d and one of %d", ids, sendID, recvID)
	}
	return nil
}
