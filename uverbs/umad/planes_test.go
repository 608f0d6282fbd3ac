package umad

import (
	"testing"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// TestPairOf: of a card with several planes, QP0 is found on the device of type SMI and QP1 on its parent, whichever is
// named. Other devices have both.
func TestPairOf(t *testing.T) {
	devs := []netlinkrdma.Device{
		{Name: "mlx5_0", Ports: 1}, {Name: "smi0", Ports: 4, Type: netlinkrdma.DeviceTypeSMI, Parent: "mlx5_0"},
		{Name: "mlx5_1", Ports: 1}, {Name: "lost", Ports: 2, Type: netlinkrdma.DeviceTypeSMI},
	}
	active := func(d netlinkrdma.Device) int { return int(d.Ports) - 1 }
	for named, want := range map[place][2]place{
		{"mlx5_0", 1}: {{"mlx5_0", 1}, {"smi0", 3}},
		{"smi0", 2}:   {{"mlx5_0", 1}, {"smi0", 2}},
		{"mlx5_1", 1}: {{"mlx5_1", 1}, {}},
		{"lost", 2}:   {{"lost", 2}, {}}, // the kernel does not say whose it is
		{"none", 7}:   {{"none", 7}, {}},
	} {
		if gsi, smi := pairOf(devs, named, active); gsi != want[0] || smi != want[1] {
			t.Errorf("%v: QP1 on %v and QP0 on %v, want %v", named, gsi, smi, want)
		}
	}
}

// TestPlanes: datagrams of subnet management go to the device that has QP0, all others to the one that has QP1, and Close
// closes both.
func TestPlanes(t *testing.T) {
	echo := func(m *Message) []*Message {
		m.MAD[3] |= 0x80 // an answer
		return []*Message{m}
	}
	gsi, p := newFabric(echo)
	smi, q := newFabric(echo)
	p.smi = q
	for _, class := range []mad.Class{mad.ClassSubnDirected, mad.ClassSubnLID, mad.ClassPerf, mad.ClassSA} {
		a, err := p.Register(AgentOptions{Class: class})
		testenv.Must(t, err)
		req := mad.NewSMP(mad.MethodGet, mad.AttrNodeInfo, 0)
		req.Class = class
		if !class.SMP() {
			req = mad.NewPerf(mad.MethodGet, mad.AttrClassPortInfo)
			req.Class = class
		}
		if class == mad.ClassSA {
			continue // its registration is enough
		}
		if _, err := a.Do(t.Context(), Addr{LID: 1}, req); err != nil {
			t.Errorf("class %v: %v", class, err)
		}
	}
	for name, c := range map[string]struct {
		fabric       *fabric
		agents, sent int
		qpn          uint32
	}{"SMI": {smi, 2, 2, 0}, "GSI": {gsi, 2, 1, 1}} {
		if len(c.fabric.agents) != c.agents || len(c.fabric.sent) != c.sent {
			t.Errorf("%s has %d agents and %d datagrams, want %d and %d", name, len(c.fabric.agents), len(c.fabric.sent), c.agents, c.sent)
		}
		for _, r := range c.fabric.agents {
			if r.QPN != c.qpn {
				t.Errorf("%s has an agent of QP%d", name, r.QPN)
			}
		}
	}
	testenv.Must(t, p.Close(), p.Close())
	if !p.closed || !q.closed {
		t.Errorf("after Close the devices are closed: %v, %v", p.closed, q.closed)
	}
}
