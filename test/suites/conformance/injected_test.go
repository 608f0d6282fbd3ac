package conformance

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Faults that are injected into the card of a device.

// inject opens the test bench of a device's card, which only a model has.
func inject(t *testing.T, device string) func(format string, args ...any) string {
	t.Helper()
	testenv.NeedsModel(t)
	b, err := testenv.OpenCard(device)
	must(t, err)
	closeLater(t, b)
	return func(format string, args ...any) string {
		t.Helper()
		answer, err := b.Do(format, args...)
		must(t, err)
		return answer
	}
}

// syndromes are the syndromes of a completion, with the status of the verbs for each and the text
// of its error. The last one is unknown.
var syndromes = []struct {
	syndrome uint8
	status   uverbs.WCStatus
	says     string
}{
	{0x01, uverbs.WCLocLenErr, "local length error"},
	{0x02, uverbs.WCLocQPOpErr, "local QP operation error"},
	{0x04, uverbs.WCLocProtErr, "local protection error"},
	{0x05, uverbs.WCWRFlushErr, "work request flushed"},
	{0x06, uverbs.WCMWBindErr, "memory window bind error"},
	{0x10, uverbs.WCBadRespErr, "bad response"},
	{0x11, uverbs.WCLocAccessErr, "local access error"},
	{0x12, uverbs.WCRemInvReqErr, "remote invalid request error"},
	{0x13, uverbs.WCRemAccessErr, "remote access error"},
	{0x14, uverbs.WCRemOpErr, "remote operation error"},
	{0x15, uverbs.WCRetryExcErr, "transport retry counter exceeded"},
	{0x16, uverbs.WCRNRRetryExcErr, "RNR retry counter exceeded"},
	{0x22, uverbs.WCRemAbortErr, "operation aborted by the remote side"},
	{0x77, uverbs.WCGeneralErr, "general error"},
}

// vendors are syndromes of the vendor's, and what an error says of them.
var vendors = []struct {
	vendor uint8
	says   string
}{
	{0x51, "vendor syndrome 0x51, memory whose key"}, {0x81, "vendor syndrome 0x81, no acknowledgement"},
	{0x52, "vendor syndrome 0x52, memory whose key"}, {0x53, "vendor syndrome 0x53, memory whose key"}, {0x61, "vendor syndrome 0x61, an operation"},
	{0x68, "vendor syndrome 0x68, an operation"}, {0x89, "vendor syndrome 0x89, the peer failed"},
	{0x87, "vendor syndrome 0x87, the peer had no receive"}, {0x88, "vendor syndrome 0x88, the peer refused the key"},
	{0x8a, "vendor syndrome 0x8a, the peer found the request invalid"}, {0xf9, "vendor syndrome 0xf9, flushed"},
	{0x9c, "vendor syndrome 0x9c"},
}

// TestInjectedSends has sends fail with each syndrome: the completions before are well, that of
// the failed one says all that the card told, and those after it are flushed for its sake.
func TestInjectedSends(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.Guest(t)
	do := inject(t, deviceName)
	for _, typ := range []ib.QPType{ib.RC, ib.UC} {
		a, b := pair(t, uverbs.QPOptions{Type: typ})
		for i, s := range syndromes {
			v := vendors[i%len(vendors)]
			t.Run(fmt.Sprintf("%s/%#02x", typ, s.syndrome), func(t *testing.T) {
				reconnect(t, a, b)
				wr := func(id uint64) uverbs.SendWR {
					wr := send(id, a.mr.SGE(0, 8))
					wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMAWrite, b.mr.Addr(), b.mr.RKey()
					return wr
				}
				do("fail-wqe %d send 1 %d %d", a.qp.QPN(), s.syndrome, v.vendor)
				must(t, a.qp.PostSend(wr(1), wr(2), wr(3)))
				a.want(t, 1, uverbs.WCRDMAWrite)
				wc := a.next(t)
				failure := a.qp.Err(&wc)
				if wc.ID != 2 || wc.Status != s.status || wc.VendorErr != uint32(v.vendor) || !errors.Is(failure, s.status) {
					t.Fatalf("completion %+v: %v; want 2 with %v", wc, failure, s.status)
				}
				says(t, failure, s.says, v.says, deviceName, "RDMA_WRITE of 8 bytes", fmt.Sprintf("QP %d", a.qp.QPN()))
				flushed := a.next(t)
				err := a.qp.Err(&flushed)
				if flushed.ID != 3 || flushed.Status != uverbs.WCWRFlushErr {
					t.Fatalf("completion %+v: %v; want 3, flushed", flushed, err)
				}
				var e *uverbs.WCError
				if s.status != uverbs.WCWRFlushErr && (!errors.As(err, &e) || e.First == nil || e.First.WC.ID != 2) {
					t.Errorf("%v: want the failure of 2 as the cause", err)
				}
				if attr, err := a.qp.Query(); err != nil || attr.State != ib.QPErr && typ == ib.RC || attr.State == ib.QPRTS {
					t.Errorf("state %s, %v", attr.State, err)
				}
			})
		}
	}
	noViolation(t, do)
}

// TestInjectedReceives has receives fail with each syndrome, those of a QP and those of an SRQ.
func TestInjectedReceives(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.Guest(t)
	do := inject(t, deviceName)
	for _, shared := range []bool{false, true} {
		dev := openDevice(t, deviceName)
		a := newSide(t, dev, uverbs.QPOptions{})
		var o uverbs.QPOptions
		var srq *uverbs.SRQ
		if shared {
			pd := newPD(t, dev)
			var err error
			srq, err = pd.CreateSRQ(uverbs.SRQOptions{})
			must(t, err)
			closeLater(t, srq)
			o.SRQ = srq
		}
		b := newSide(t, dev, o)
		connect(t, a, b)
		for i, s := range syndromes {
			v := vendors[i%len(vendors)]
			t.Run(fmt.Sprintf("shared %v/%#02x", shared, s.syndrome), func(t *testing.T) {
				reconnect(t, a, b)
				recv := func(id uint64) error {
					if shared {
						return srq.PostRecv(id)
					}
					return b.qp.PostRecv(id)
				}
				must(t, recv(11), recv(12))
				do("fail-wqe %d recv 1 %d %d", b.qp.QPN(), s.syndrome, v.vendor)
				must(t, a.qp.PostSend(send(1), send(2)))
				b.want(t, 11, uverbs.WCRecv)
				wc := b.next(t)
				failure := b.qp.Err(&wc)
				if wc.ID != 12 || wc.Status != s.status || wc.VendorErr != uint32(v.vendor) || !errors.Is(failure, s.status) {
					t.Fatalf("completion %+v: %v; want 12 with %v", wc, failure, s.status)
				}
				says(t, failure, s.says, v.says, deviceName)
				a.want(t, 1, uverbs.WCSend)
				if wc := a.next(t); wc.ID != 2 || wc.Status != uverbs.WCRemOpErr {
					t.Errorf("the peer's completion %+v: %v", wc, a.qp.Err(&wc))
				}
			})
		}
	}
	noViolation(t, do)
}

// noViolation checks that the card has nothing to complain of.
func noViolation(t *testing.T, do func(string, ...any) string) {
	t.Helper()
	if n := do("violations"); n != "0" {
		t.Errorf("%s violations", n)
	}
}

// TestInjectedQueues has a CQ, an SRQ and a QP fail: an event names each, the QPs that used it
// do not work any more, what they post is an error at the latest when the state is known, and
// all can be closed.
func TestInjectedQueues(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.Guest(t)
	do := inject(t, deviceName)
	broken := func(t *testing.T, a *side, b *side) {
		t.Helper()
		attr, err := a.qp.Query()
		if err != nil || attr.State != ib.QPErr {
			t.Errorf("state %s, %v; want ERR", attr.State, err)
		}
		// The ring takes it, and the card answers nothing, or that it is flushed.
		must(t, a.qp.PostSend(send(9, a.mr.SGE(0, 8))))
		wcs := make([]uverbs.WC, 4)
		if n, err := a.cq.Poll(wcs); err != nil || n > 0 && wcs[0].Status != uverbs.WCWRFlushErr {
			t.Errorf("Poll: %d, %+v, %v", n, wcs[0], err)
		}
		reset := a.qp.Modify(uverbs.QPAttr{State: ib.QPReset}, uverbs.AttrState)
		must(t, reset, b.qp.Modify(uverbs.QPAttr{State: ib.QPReset}, uverbs.AttrState))
	}
	t.Run("CQ", func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{})
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, 8)), a.qp.PostSend(send(1, a.mr.SGE(0, 8))))
		a.want(t, 1, uverbs.WCSend)
		b.want(t, 1, uverbs.WCRecv)
		do("fail-cq-of %d", a.qp.QPN())
		if ev := event(t, a.dev, uverbs.EventCQErr); ev != (uverbs.Event{Type: uverbs.EventCQErr, CQ: a.cq}) {
			t.Errorf("event %s", ev)
		}
		if ev := event(t, a.dev, uverbs.EventQPFatal); ev != (uverbs.Event{Type: uverbs.EventQPFatal, QP: a.qp.QP}) {
			t.Errorf("event %s", ev)
		}
		broken(t, a, b)
	})
	t.Run("QP", func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{})
		must(t, a.qp.PostRecv(5, a.mr.SGE(0, 8)))
		do("fail-qp %d", a.qp.QPN())
		if ev := event(t, a.dev, uverbs.EventQPFatal); ev != (uverbs.Event{Type: uverbs.EventQPFatal, QP: a.qp.QP}) {
			t.Errorf("event %s", ev)
		}
		wc := a.next(t)
		if wc.ID != 5 || wc.Status != uverbs.WCWRFlushErr {
			t.Errorf("completion %+v", wc)
		}
		broken(t, a, b)
		connect(t, a, b) // a new life
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, 8)), a.qp.PostSend(send(1, a.mr.SGE(0, 8))))
		a.want(t, 1, uverbs.WCSend)
		b.want(t, 1, uverbs.WCRecv)
	})
	t.Run("SRQ", func(t *testing.T) {
		dev := openDevice(t, deviceName)
		a := newSide(t, dev, uverbs.QPOptions{})
		srq, err := newPD(t, dev).CreateSRQ(uverbs.SRQOptions{})
		must(t, err)
		closeLater(t, srq)
		b := newSide(t, dev, uverbs.QPOptions{SRQ: srq})
		connect(t, a, b)
		must(t, srq.PostRecv(1))
		do("fail-srq %d", srq.SRQN())
		if ev := event(t, dev, uverbs.EventSRQErr); ev != (uverbs.Event{Type: uverbs.EventSRQErr, SRQ: srq}) {
			t.Errorf("event %s", ev)
		}
		must(t, a.qp.PostSend(send(1)))
		wc := a.next(t)
		if wc.ID != 1 || wc.Status != uverbs.WCRemOpErr {
			t.Errorf("completion %+v: %v", wc, a.qp.Err(&wc))
		}
	})
	noViolation(t, do)
}

// TestInjectedCommand: a command that the firmware refuses is an error of the verb, with what the
// firmware said, and nothing is left of the object; the next one is well.
func TestInjectedCommand(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	eachPath(t, func(t *testing.T) {
		do := inject(t, deviceName)
		dev := openDevice(t, deviceName)
		s := newSide(t, dev, uverbs.QPOptions{})
		for i, v := range []struct {
			command string
			make    func() (closer, error)
		}{
			{"CREATE_QP", func() (closer, error) { return s.pd.CreateQP(uverbs.QPOptions{SendCQ: s.cq, RecvCQ: s.cq}) }},
			{"CREATE_CQ", func() (closer, error) { return dev.CreateCQ(uverbs.CQOptions{Size: 8}) }},
			{"CREATE_MKEY", func() (closer, error) { return s.pd.AllocMW(uverbs.MWType1) }},
			{"ALLOC_PD", func() (closer, error) { return dev.AllocPD() }},
		} {
			do("fail-command %s 8 0x4711 0 1", v.command) // status LIM_ERR, limits exceeded
			c, err := v.make()
			var e *uverbs.Error
			if !errors.As(err, &e) || e.Errno == 0 {
				t.Errorf("%s: %v, want an Error with an errno", v.command, err)
			} else if i == 0 { // in 5 s the kernel logs ten at most
				says(t, err, deviceName, "the device's firmware refused "+v.command+": limits exceeded (0x8), syndrome 0x4711")
			}
			if err == nil {
				must(t, c.Close())
				continue
			}
			c, err = v.make()
			must(t, err, c.Close())
		}
		noViolation(t, do)
	})
}

// TestInjectedFatal lets a card die under load: the programs on it learn it by
// EventDeviceFatal, every call comes back, all can be closed, and when the card is well again so
// is the device.
func TestInjectedFatal(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.Guest(t)
	device := rig.Devices[1]
	do := inject(t, device)
	dev, err := uverbs.Open(device, uverbs.OpenOptions{})
	must(t, err)
	restore := addresses(t, rig.Netdevs[1])
	t.Run("fatal error in use", func(t *testing.T) {
		var stop atomic.Bool
		var busy sync.WaitGroup
		defer busy.Wait()
		defer stop.Store(true)
		first := make(chan struct{}, 2)
		var sides []*side
		for range 2 {
			a, b := newSide(t, dev, uverbs.QPOptions{}), newSide(t, dev, uverbs.QPOptions{})
			connect(t, a, b)
			sides = append(sides, a, b)
		}
		for i := 0; i < len(sides); i += 2 {
			busy.Go(func() { load(t, sides[i], sides[i+1], &stop, first) })
		}
		<-first
		<-first
		waits := make(chan error, 1)
		idle := newSide(t, dev, uverbs.QPOptions{})
		must(t, idle.cq.Notify())
		go func() {
			_, err := idle.ch.Next(withDeadline(t))
			waits <- err
		}()
		do("fatal")
		if ev := event(t, dev, uverbs.EventDeviceFatal); ev.QP != nil || ev.CQ != nil {
			t.Errorf("%s has an object", ev)
		}
		do("well")
		// The driver takes the device away, and makes it anew.
		errorIs(t, <-waits, uverbs.ErrDeviceRemoved, "Wait of a CQ")
		errorIs(t, errorOf(dev.NextEvent(withDeadline(t))), uverbs.ErrDeviceRemoved, "NextEvent")
		errorIs(t, errorOf(dev.AllocPD()), uverbs.ErrDeviceRemoved, "AllocPD")
	})
	must(t, dev.Close())
	comesBack(t, device, restore)
	t.Run("recovered", func(t *testing.T) {
		dev := openDevice(t, device)
		a, b := newSide(t, dev, uverbs.QPOptions{}), newSide(t, dev, uverbs.QPOptions{})
		connect(t, a, b)
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, 8)), a.qp.PostSend(send(1, a.mr.SGE(0, 8))))
		a.want(t, 1, uverbs.WCSend)
		b.want(t, 1, uverbs.WCRecv)
	})
	noViolation(t, do)
}

// load sends from one side to the other until it is told to stop. It says when the first message
// has arrived. The card may die at any time.
func load(t *testing.T, a, b *side, stop *atomic.Bool, first chan<- struct{}) {
	wcs := make([]uverbs.WC, 8)
	receives, sends, arrived := 0, 0, 0
	for !stop.Load() {
		for ; receives < 8; receives++ {
			if err := b.qp.PostRecv(1, b.mr.SGE(0, 512)); err != nil {
				t.Errorf("PostRecv: %v", err)
				return
			}
		}
		for ; sends < min(receives, 4); sends++ {
			if err := a.qp.PostSend(send(2, a.mr.SGE(0, 512))); err != nil {
				t.Errorf("PostSend: %v", err)
				return
			}
		}
		for _, s := range []*side{a, b} {
			n, err := s.cq.Poll(wcs)
			if err != nil {
				t.Errorf("Poll: %v", err)
				return
			}
			for _, wc := range wcs[:n] {
				if wc.Status != uverbs.WCSuccess {
					return // so the card died in between
				}
				if s == a {
					sends--
					continue
				}
				if receives--; arrived == 0 {
					first <- struct{}{}
				}
				arrived++
			}
		}
		time.Sleep(100 * time.Microsecond) // the machine has other things to do
	}
}
