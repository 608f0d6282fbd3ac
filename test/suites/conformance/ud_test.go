package conformance

import (
	"errors"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// udPair returns two UD sides on one device and the way from the first to the second.
func udPair(t *testing.T, o uverbs.QPOptions) (a, b *side, ah *uverbs.AH) {
	t.Helper()
	testenv.Guest(t)
	dev := openDevice(t, deviceName)
	o.Type = ib.UD
	a, b = newSide(t, dev, o), newSide(t, dev, o)
	return a, b, wayTo(t, a, b)
}

// broken checks that a request has failed with a status, and that it has broken its QP, and
// returns its error.
func broken(t *testing.T, s *side, id uint64, status uverbs.WCStatus) error {
	t.Helper()
	wc := s.next(t)
	var e *uverbs.WCError
	err := s.qp.Err(&wc)
	if wc.ID != id || wc.Status != status || !errors.As(err, &e) || e.WC != wc {
		t.Fatalf("completion of %d: %v, want of %d with %v", wc.ID, err, id, status)
	}
	s.reaches(t, ib.QPErr)
	return err
}

// TestDatagramLost: a datagram that cannot be delivered is lost, and its sender never learns. It takes no receive
// with it, and the next one arrives; but on ConnectX and software devices, one that is longer than its receive breaks
// the QP.
func TestDatagramLost(t *testing.T) {
	for name, c := range map[string]struct {
		recv   int // bytes of the receive that is posted; 0 for none
		length int
		change func(wr *uverbs.SendWR)
	}{
		// The specification has it that nothing is sent, and that this is no error. ConnectX and software devices
		// fail the request.
		"longer than the MTU": {recv: 10000, length: 5000},
		"receive too short":   {recv: uverbs.GRHSize + 900, length: 1000},
		"no receive":          {length: 1000},
		"no such QP":          {recv: 2000, length: 1000, change: func(wr *uverbs.SendWR) { wr.RemoteQPN = 0xbeef }},
		"other Q_Key":         {recv: 2000, length: 1000, change: func(wr *uverbs.SendWR) { wr.RemoteQKey = 0xadbeef }},
	} {
		t.Run(name, func(t *testing.T) {
			a, b, ah := udPair(t, uverbs.QPOptions{})
			if c.recv > 0 {
				must(t, b.qp.PostRecv(1, b.mr.SGE(0, c.recv)))
			}
			before := append([]byte{}, b.fill(0, 20000, 7)...)
			wr := datagram(2, ah, b, a.mr.SGE(0, c.length))
			if c.change != nil {
				c.change(&wr)
			}
			a.fill(0, c.length, 50)
			if rig.EFA() && name == "longer than the MTU" {
				wr.SGL[0].Length = efaMTU + 1
				if err := a.qp.PostSend(wr); !wrongField(err, "SGL", "allowed: up to 8928, the MTU of the port") {
					t.Errorf("a datagram above the MTU: %v", err)
				}
				return
			}
			counted, err := b.dev.Port(1)
			must(t, err, a.qp.PostSend(wr))
			if name == "longer than the MTU" && !onRxe {
				if wc := a.next(t); wc.ID != 2 || wc.Status != uverbs.WCLocLenErr {
					t.Errorf("completion of %d: %v, want of 2 with %v", wc.ID, a.qp.Err(&wc), uverbs.WCLocLenErr)
				}
				if a.reaches(t, a.stopped()); rig.Soft {
					b.none(t)
					b.holds(t, 0, before)
				}
				return
			}
			a.want(t, 2, uverbs.WCSend)
			status, alone := uverbs.WCLocLenErr, onRxe || rig.EFA()
			if onRxe { // of Linux 6.1 and older takes it for a fault of the receive
				status = uverbs.WCLocQPOpErr
			}
			if name == "receive too short" && (!alone || onRxe && !since(t, 6, 12) && testenv.KnownBug(t, "long-datagram")) {
				broken(t, b, 1, status)
				testenv.NotSupported(t, "datagrams that are too long for a receive and leave it alone")
				return
			}
			b.none(t)
			b.holds(t, 0, before)
			if attr, err := b.dev.Port(1); onRxe && name == "other Q_Key" && (err != nil || attr.QKeyViolCount != counted.QKeyViolCount+1) {
				t.Errorf("port has counted %d wrong Q_Keys, %v, want one more than %d", attr.QKeyViolCount, err, counted.QKeyViolCount)
			}

			if c.recv == 0 {
				must(t, b.qp.PostRecv(1, b.mr.SGE(0, 1000)))
			}
			want := a.fill(0, 10, 99)
			must(t, a.qp.PostSend(datagram(3, ah, b, a.mr.SGE(0, 10))))
			a.want(t, 3, uverbs.WCSend)
			if wc := b.want(t, 1, uverbs.WCRecv); wc.ByteLen != uverbs.GRHSize+10 {
				t.Errorf("received %d bytes, want %d", wc.ByteLen, uverbs.GRHSize+10)
			}
			b.holds(t, uverbs.GRHSize, want)
			for _, s := range []*side{a, b} {
				if attr, err := s.qp.Query(); err != nil || attr.State != ib.QPRTS {
					t.Errorf("state %s, %v, want RTS", attr.State, err)
				}
			}
		})
	}
}

// TestSendQueueError: a send that fails on this side stops the send queue of a UC or UD QP. The QP still receives,
// flushes what is posted to send, and sends again once it is moved to RTS.
func TestSendQueueError(t *testing.T) {
	testenv.NotOnEFA(t, "states that a failed request leads to")
	testenv.Guest(t)
	for _, typ := range []ib.QPType{ib.UC, ib.UD} {
		t.Run(typ.String(), func(t *testing.T) {
			var a, b *side
			message := func(id uint64, from, to *side) uverbs.SendWR { return send(id, from.mr.SGE(0, 8)) }
			if typ == ib.UC {
				a, b = pair(t, uverbs.QPOptions{Type: typ})
			} else {
				a, b, _ = udPair(t, uverbs.QPOptions{})
				ways := map[*side]*uverbs.AH{a: wayTo(t, a, b), b: wayTo(t, b, a)}
				message = func(id uint64, from, to *side) uverbs.SendWR { return datagram(id, ways[from], to, from.mr.SGE(0, 8)) }
			}
			must(t, a.qp.PostRecv(1, a.mr.SGE(100, 100)), b.qp.PostRecv(2, b.mr.SGE(100, 100)))
			bad := message(3, a, b)
			bad.SGL = []uverbs.SGE{foreignMR(t, a).SGE(0, 8)}
			must(t, a.qp.PostSend(bad, message(4, a, b)))
			a.endsWith(t, 3, noSource(t), "SEND")
			a.reaches(t, a.stopped())
			if a.stopped() != ib.QPSQE {
				testenv.NotSupported(t, "QPs that receive after a failed send")
				return
			}
			a.endsWith(t, 4, uverbs.WCWRFlushErr, "")
			must(t, b.qp.PostSend(message(5, b, a)))
			b.want(t, 5, uverbs.WCSend)
			a.want(t, 1, uverbs.WCRecv)
			must(t, a.qp.PostSend(message(6, a, b)))
			a.endsWith(t, 6, uverbs.WCWRFlushErr, "")

			must(t, a.qp.Modify(uverbs.QPAttr{State: ib.QPRTS}, uverbs.AttrState))
			a.none(t)
			must(t, a.qp.PostSend(message(7, a, b)))
			a.want(t, 7, uverbs.WCSend)
			b.want(t, 2, uverbs.WCRecv)
		})
	}
}

// TestDatagramBatches: of batches that nobody receives each has one completion, of the
// request that asked for it; those of many that are received come in one poll.
func TestDatagramBatches(t *testing.T) {
	testenv.NotOnEFA(t, "solicited events")
	const n = 50
	a, b, ah := udPair(t, uverbs.QPOptions{})
	var batch []uverbs.SendWR
	for i := range n {
		wr := datagram(uint64(i), ah, b, a.mr.SGE(0, 1000))
		if i < n-1 {
			wr.Flags = 0
		}
		batch = append(batch, wr)
	}
	for range 10 {
		must(t, a.qp.PostSend(batch...))
		a.want(t, n-1, uverbs.WCSend)
	}
	a.none(t)
	b.none(t)

	for i := range n {
		must(t, b.qp.PostRecv(uint64(i), b.mr.SGE(0, 1040)))
	}
	batch[n-1].Flags |= uverbs.SendSolicited // its event says that all have arrived
	must(t, b.cq.NotifySolicited(), a.qp.PostSend(batch...))
	a.want(t, n-1, uverbs.WCSend)
	_, err := b.ch.Next(withDeadline(t))
	must(t, err)
	var wcs [n + 1]uverbs.WC
	got, err := b.cq.Poll(wcs[:])
	must(t, err)
	if got != n {
		t.Fatalf("%d completions in one poll, want %d", got, n)
	}
	for i, wc := range wcs[:n] {
		if wc.ID != uint64(i) || wc.Status != uverbs.WCSuccess || wc.Opcode != uverbs.WCRecv || wc.QPN != b.qp.QPN() {
			t.Errorf("completion %d is %+v", i, wc)
		}
	}
	b.none(t)
}

// TestDatagramOperations: a datagram is sent, and nothing else can be done by one.
func TestDatagramOperations(t *testing.T) {
	a, b, ah := udPair(t, uverbs.QPOptions{})
	for op := range uverbs.WRAtomicWrite + 1 {
		wr := datagram(1, ah, b, a.mr.SGE(0, 8))
		wr.Opcode, wr.RemoteAddr, wr.RKey = op, b.mr.Addr(), b.mr.RKey()
		err := a.qp.PostSend(wr)
		if op == uverbs.WRSend || op == uverbs.WRSendWithImm {
			must(t, err)
			a.want(t, 1, uverbs.WCSend)
		} else if !errors.Is(err, uverbs.ErrOpcode) {
			t.Errorf("%s: %v, want ErrOpcode", op, err)
		}
	}
	a.none(t)
}

// TestDatagramEvents waits for each datagram.
func TestDatagramEvents(t *testing.T) {
	a, b, ah := udPair(t, uverbs.QPOptions{})
	for i := range uint64(50) {
		must(t, a.cq.Notify(), b.cq.Notify(), b.qp.PostRecv(i, b.mr.SGE(0, 100)))
		must(t, a.qp.PostSend(datagram(i, ah, b, a.mr.SGE(0, 10))))
		for _, s := range []*side{a, b} {
			if cq, err := s.ch.Next(withDeadline(t)); cq != s.cq || err != nil {
				t.Fatalf("Wait is %p, %v, want %p", cq, err, s.cq)
			}
		}
		a.want(t, i, uverbs.WCSend)
		b.want(t, i, uverbs.WCRecv)
	}
}

// TestDatagramQuery: a UD QP says what it was created and activated with.
func TestDatagramQuery(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		s := newSide(t, openDevice(t, deviceName), uverbs.QPOptions{Type: ib.UD, MaxSendWR: 10, MaxRecvWR: 20, MaxSendSGE: 2, MaxRecvSGE: 3})
		attr, err := s.qp.Query()
		must(t, err)
		if c := attr.Caps; c.MaxSendWR < 10 || c.MaxRecvWR < 20 || c.MaxSendSGE < 2 || c.MaxRecvSGE < 3 {
			t.Errorf("the queues are %+v, less than requested", c)
		}
		if attr.State != ib.QPRTS || attr.QKey != testQKey || attr.Port != 1 || attr.DestQPN != 0 {
			t.Errorf("attributes %+v, want RTS, port 1, Q_Key %#x and no peer", attr, testQKey)
		}
	})
}

// TestAHWithoutGID: there is no way to a peer on Ethernet but by its GID.
func TestAHWithoutGID(t *testing.T) {
	testenv.NeedsIB(t, "GIDs")
	testenv.NeedsRoCE(t, "Ethernet")
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		gid := gidOf(t, dev)
		for name, attr := range map[string]uverbs.AHAttr{
			"none":     {Port: 1, DLID: 1},
			"not used": {Port: 1, GRH: uverbs.GRH{DGID: gid.GID, SGIDIndex: uint8(gid.Index)}}, // Global is not set
		} {
			ah, err := newPD(t, dev).CreateAH(attr)
			if err == nil {
				must(t, ah.Close())
			}
			errorIs(t, err, syscall.EINVAL, "GID %s", name)
		}
	})
}

// TestServiceLevel: on InfiniBand the completion of a datagram tells the service level that it was
// sent with, and the LID that it comes from.
func TestServiceLevel(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsInfiniBand(t, "service levels")
	a := newSide(t, openDevice(t, rig.Devices[0]), uverbs.QPOptions{Type: ib.UD})
	b := newSide(t, openDevice(t, rig.Devices[1]), uverbs.QPOptions{Type: ib.UD})
	from, err := a.dev.Port(1)
	must(t, err)
	to, err := b.dev.Port(1)
	must(t, err)
	if from.LID == to.LID && !from.GRHRequired() {
		t.Fatalf("both ports have LID %d", to.LID) // and it would not show whose is in the completion
	}
	for sl := range uint8(16) {
		attr := uverbs.AHAttr{Port: 1, DLID: to.LID, SL: sl}
		if from.GRHRequired() {
			attr.GRH.DGID = gidOf(t, b.dev).GID
		}
		ah, err := a.pd.CreateAH(attr)
		must(t, err)
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, 1000)), a.qp.PostSend(datagram(2, ah, b, a.mr.SGE(0, 100))))
		a.want(t, 2, uverbs.WCSend)
		wc := b.want(t, 1, uverbs.WCRecv)
		grh := wc.Flags&uverbs.WCWithGRH != 0
		if wc.SL != sl || wc.SLID != from.LID || from.LID == 0 || grh != from.GRHRequired() || wc.PathBits != 0 {
			t.Errorf("completion %+v, want SL %d from LID %d, with a GRH: %t", wc, sl, from.LID, from.GRHRequired())
		}
		must(t, ah.Close())
	}
	// A connection is set up with one, too.
	o := uverbs.QPOptions{Path: uverbs.PathOptions{SL: 5}}
	c, d := newSide(t, a.dev, o), newSide(t, b.dev, o)
	connect(t, c, d)
	if attr, err := c.qp.Query(); err != nil || attr.AH.SL != 5 {
		t.Errorf("the SL of the QP is %d, %v, want 5", attr.AH.SL, err)
	}
	must(t, d.qp.PostRecv(1, d.mr.SGE(0, 100)), c.qp.PostSend(send(2, c.mr.SGE(0, 100))))
	c.want(t, 2, uverbs.WCSend)
	d.want(t, 1, uverbs.WCRecv)
}
