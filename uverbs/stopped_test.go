//go:build amd64 || arm64

package uverbs

import (
	"errors"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestRecoveredFailure: a send that has failed and stopped the send queue is not the cause of what fails after the QP
// has been moved to RTS again, and a receive with its ID is not taken for it.
func TestRecoveredFailure(t *testing.T) {
	u := newSoftUser(t)
	a, b := u.qp(ib.UD, nil), u.qp(ib.UD, nil)
	must(t, a.ReadyUD(7), b.ReadyUD(7))
	gid := value(u.dev.GID(1, 0))(t).GID
	ah := value(u.pd.CreateAH(AHAttr{Port: 1, Global: true, GRH: GRH{DGID: gid, HopLimit: 1}}))(t)
	big := value(u.pd.RegSlice(make([]byte, 8192), AccessLocalWrite))(t)
	send := func(id uint64, to *QP, n int) SendWR {
		return SendWR{ID: id, Opcode: WRSend, Flags: SendSignaled, SGL: []SGE{big.SGE(0, n)}, AH: ah, RemoteQPN: to.QPN(), RemoteQKey: 7}
	}
	must(t, a.PostSend(send(1, b, 5000))) // longer than the MTU
	wc := u.next()
	if err := a.Err(&wc); !errors.Is(err, WCLocLenErr) || !strings.Contains(err.Error(), "5000 bytes") {
		t.Fatalf("a datagram of 5000 bytes: %v", err)
	}
	must(t, a.Modify(QPAttr{State: ib.QPRTS}, AttrState))
	for range 2 {
		must(t, a.PostSend(send(2, b, 8)))
		if wc := u.next(); wc.Status != WCSuccess {
			t.Fatalf("after Modify: %+v", wc)
		}
	}
	must(t, a.PostRecv(1, u.mr.SGE(100, 48)), a.PostRecv(3, u.mr.SGE(200, 48)), b.PostSend(send(4, a, 200)))
	for range 3 {
		wc := u.next()
		if wc.QPN != a.QPN() {
			continue
		}
		err := a.Err(&wc)
		if strings.Contains(err.Error(), "5000 bytes") || strings.Contains(err.Error(), "SEND") {
			t.Errorf("receive %d: %v", wc.ID, err)
		}
	}
	must(t, big.Close(), ah.Close())
}
