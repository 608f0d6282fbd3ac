package conformance

import (
	"errors"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// subnetManager sets the port at the other end of the first device's link.
type subnetManager struct {
	t     *testing.T
	agent *umad.Agent
}

func newSubnetManager(t *testing.T) *subnetManager {
	t.Helper()
	port, err := umad.Open(rig.Devices[0], 1)
	must(t, err)
	agent, err := port.Register(umad.AgentOptions{Class: mad.ClassSubnDirected})
	must(t, err)
	t.Cleanup(func() { must(t, agent.Close(), port.Close()) })
	return &subnetManager{t, agent}
}

// query sends a request to the other port. The attribute is what it sets, or where its answer goes.
func (m *subnetManager) query(method mad.Method, id mad.AttrID, modifier uint32, a mad.Attribute) {
	m.t.Helper()
	req, err := mad.NewDirectedSMP(method, id, modifier, 1)
	must(m.t, err)
	if method == mad.MethodSet {
		must(m.t, req.Put(a))
	}
	must(m.t, m.agent.Query(m.t.Context(), umad.Addr{}, req, a))
}

// set changes fields of the port.
func (m *subnetManager) set(change func(p *mad.PortInfo)) {
	m.t.Helper()
	var p mad.PortInfo
	m.query(mad.MethodGet, mad.AttrPortInfo, 1, &p)
	p.PortState, p.PortPhysicalState = 0, 0 // as they are
	change(&p)
	m.query(mad.MethodSet, mad.AttrPortInfo, 1, &p)
}

// TestSubnetEvents: what a program is told when a subnet manager changes a port, and what becomes of a
// connection.
func TestSubnetEvents(t *testing.T) {
	testenv.Boot(t, "GOVERBS_SUBNET", "fabric/events")
	testenv.NeedsInfiniBand(t, "subnet management")
	sm := newSubnetManager(t)
	near, far := openDevice(t, rig.Devices[0]), openDevice(t, rig.Devices[1])
	a, b := newSide(t, near, uverbs.QPOptions{}), newSide(t, far, uverbs.QPOptions{})
	connect(t, a, b)
	deliver := func(id uint64) {
		t.Helper()
		must(t, b.qp.PostRecv(id, b.mr.SGE(0, 8)), a.qp.PostSend(send(id, a.mr.SGE(0, 8))))
		a.want(t, id, uverbs.WCSend)
		b.want(t, id, uverbs.WCRecv)
	}
	told := func(want uverbs.EventType) {
		t.Helper()
		if ev := event(t, far, want); ev != (uverbs.Event{Type: want, Port: 1}) {
			t.Errorf("event is %+v, want %s of port 1", ev, want)
		}
	}
	port := func() uverbs.PortAttr {
		t.Helper()
		p, err := far.Port(1)
		must(t, err)
		return p
	}
	deliver(1)

	// No event reports another subnet manager; ClientReregister has that purpose.
	before := port()
	sm.set(func(p *mad.PortInfo) { p.MasterSMLID, p.MasterSMSL = before.SMLID+5, 3 })
	if p := port(); p.SMLID != before.SMLID+5 || p.SMSL != 3 {
		t.Errorf("the subnet manager is at LID %d with SL %d, want %d and 3", p.SMLID, p.SMSL, before.SMLID+5)
	}
	sm.set(func(p *mad.PortInfo) { p.ClientReregister = true })
	told(uverbs.EventClientReregister)

	var keys mad.PKeyTable
	sm.query(mad.MethodGet, mad.AttrPKeyTable, 1, &keys)
	keys.PKey[2] = 0x8123
	sm.query(mad.MethodSet, mad.AttrPKeyTable, 1, &keys)
	told(uverbs.EventPKeyChange)
	if got, err := far.PKey(1, 34); err != nil || got != 0x8123 {
		t.Errorf("P_Key 34 is %#x, %v, want 0x8123", got, err)
	}

	// While the link is not active, packets are sent again.
	sm.set(func(p *mad.PortInfo) { p.PortState = ib.PortDown })
	told(uverbs.EventPortErr) // it goes down
	told(uverbs.EventPortErr) // and comes up, but is not active
	if p := port(); p.State != ib.PortInit {
		t.Errorf("the port is in state %s, want %s", p.State, ib.PortInit)
	}
	sm.set(func(p *mad.PortInfo) { p.PortState = ib.PortArmed })
	sm.set(func(p *mad.PortInfo) { p.PortState = ib.PortActive })
	told(uverbs.EventPortActive)
	deliver(2)

	// The peer of a port with another LID no longer reaches it.
	sm.set(func(p *mad.PortInfo) { p.LID = 0x77 })
	told(uverbs.EventLIDChange)
	if p := port(); p.LID != 0x77 {
		t.Errorf("the LID is %#x, want 0x77", p.LID)
	}
	must(t, a.qp.PostSend(send(3, a.mr.SGE(0, 8))))
	if wc := a.next(t); wc.ID != 3 || !errors.Is(wc.Err(), uverbs.WCRetryExcErr) {
		t.Errorf("completion of a message to the old LID: %v", wc)
	}
	b.reaches(t, ib.QPRTS)
	a, b = newSide(t, near, uverbs.QPOptions{}), newSide(t, far, uverbs.QPOptions{})
	connect(t, a, b)
	deliver(4)
	sm.set(func(p *mad.PortInfo) { p.LID, p.MasterSMLID, p.MasterSMSL = before.LID, before.SMLID, before.SMSL })
	told(uverbs.EventLIDChange)
}
