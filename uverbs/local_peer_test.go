package uverbs

import (
	"runtime"
	"testing"
)

// TestQPsHere: QPs are found by their number while their device is open, and looking for them
// keeps no device alive.
func TestQPsHere(t *testing.T) {
	const qpn = 0xabcdef
	open := func() *Device {
		d := &Device{}
		q := &QP{qpn: qpn}
		q.dev = d
		d.targets.add(q)
		d.targets.add(&QP{qpn: qpn + 1})
		d.addOpened()
		return d
	}
	a, b := open(), open()
	if got := qpsHere(qpn); len(got) != 2 || got[0].dev == got[1].dev {
		t.Fatalf("%d QPs of two devices", len(got))
	}
	a.removeOpened()
	if got := qpsHere(qpn); len(got) != 1 || got[0].dev != b {
		t.Errorf("%d QPs where one of two devices is closed", len(got))
	}
	runtime.KeepAlive(b)
	b = nil
	runtime.GC()
	if got := qpsHere(qpn); len(got) != 0 {
		t.Errorf("%d QPs of a device that nobody has any more", len(got))
	}
	c := &Device{}
	c.addOpened()
	if len(opened.devs) != 1 {
		t.Errorf("%d devices are remembered, of which one is left", len(opened.devs))
	}
	c.removeOpened()
}

// TestFindPeer: the peer is the QP of its number that is connected to this one, at its address.
func TestFindPeer(t *testing.T) {
	d := &Device{}
	a, b, other := &QP{qpn: 0x101}, &QP{qpn: 0x102}, &QP{qpn: 0x103}
	for _, q := range []*QP{a, b, other} {
		q.dev = d
		d.targets.add(q)
	}
	d.addOpened()
	t.Cleanup(d.removeOpened)
	if got := a.findPeer(); got != nil {
		t.Errorf("the peer of a QP that was never connected is QP %#x", got.qpn)
	}
	a.peer.Store(&peerInfo{Endpoint: Endpoint{QPN: b.qpn}})
	b.peer.Store(&peerInfo{Endpoint: Endpoint{QPN: other.qpn}})
	if got := a.findPeer(); got != nil {
		t.Errorf("the peer is QP %#x, which is connected to another", got.qpn)
	}
}

// TestQPsHereWhileCreating: the QPs of the program are looked up while others are created. A QP is found
// only once it is complete.
func TestQPsHereWhileCreating(t *testing.T) {
	d, _ := fakeDevice(t, pathAuto)
	d.addOpened()
	defer d.removeOpened()
	pd, cq := value(d.AllocPD())(t), value(d.CreateCQ(CQOptions{Size: 7}))(t)
	done := make(chan struct{})
	together(
		func() {
			defer close(done)
			for range 50 {
				qp := value(pd.CreateQP(QPOptions{SendCQ: cq, RecvCQ: cq}))(t)
				if all := qpsHere(qp.QPN()); len(all) != 1 || all[0] != qp {
					t.Errorf("QP %#x is not found: %v", qp.QPN(), all)
				}
				must(t, qp.Close())
			}
		},
		func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if all := qpsHere(0); len(all) != 0 {
					t.Errorf("an incomplete QP is found")
				}
			}
		})
	must(t, cq.Close(), pd.Close())
}
