package umad

import (
	"testing"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/ib"
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

// libPort is a port as libibumad sees it.
type libPort struct {
	guid  ib.GUID
	noSMI bool // IsSMDisabled in its CapabilityMask
}

// libPair is how libibumad pairs devices (umad_get_smi_gsi_pairs): by the GUID of their first port. A device whose port has
// no SMI has QP1, and the other device with the same GUID has QP0. A GUID that one port has stands for
// a device with both, or with QP1 alone.
func libPair(names []string, ports map[string][]libPort, named string) (gsi, smi string) {
	count := map[ib.GUID]int{}
	for _, all := range ports {
		for _, p := range all {
			count[p.guid]++
		}
	}
	type pair struct{ gsi, smi string }
	pairs := map[ib.GUID]*pair{}
	for _, name := range names {
		first := ports[name][0]
		p := pairs[first.guid]
		if p == nil {
			p = &pair{}
			pairs[first.guid] = p
		}
		if count[first.guid] == 1 || first.noSMI {
			p.gsi = name
		}
		if !first.noSMI {
			p.smi = name
		}
	}
	for _, p := range pairs {
		if p.gsi == named || p.smi == named {
			return p.gsi, p.smi
		}
	}
	return "", ""
}

// TestPairLikeLibibumad: of cards with one plane and with several, ports without an SMI and devices of several ports, Open
// takes the devices that infiniband-diags would take. Libibumad expects that the ports of a device of type SMI have the GUID
// of the parent's port, and that this one has no SMI; this package goes by the type and the parent that netlink names.
//
// The ports differ on purpose: libibumad looks for the active port of the second device on the first one, so that a card
// whose first plane is down has no SMI there.
func TestPairLikeLibibumad(t *testing.T) {
	const planar, smi, single, dual, vf = "planar", "smi of planar", "single", "dual", "vf"
	devs := map[string]netlinkrdma.Device{
		planar: {Name: planar, Ports: 1}, smi: {Name: smi, Ports: 4, Type: netlinkrdma.DeviceTypeSMI, Parent: planar},
		single: {Name: single, Ports: 1}, dual: {Name: dual, Ports: 2}, vf: {Name: vf, Ports: 1},
	}
	ports := map[string][]libPort{
		planar: {{1, true}}, smi: {{1, false}, {1, false}, {1, false}, {1, false}},
		single: {{2, false}}, dual: {{3, false}, {4, false}}, vf: {{5, true}},
	}
	for _, names := range [][]string{{single, planar, smi, dual, vf}, {vf, smi, planar, single}, {planar, smi}, {planar}, {single, dual, vf}} {
		var all []netlinkrdma.Device
		known := map[string][]libPort{}
		for _, name := range names {
			all, known[name] = append(all, devs[name]), ports[name]
		}
		for _, name := range names {
			for port := 1; port <= len(ports[name]); port++ {
				gsi, second := pairOf(all, place{name, port}, func(netlinkrdma.Device) int { return 3 })
				if second == (place{}) && !ports[name][port-1].noSMI { // one device has both
					second = gsi
				}
				wantGSI, wantSMI := libPair(names, known, name)
				if gsi.device != wantGSI || second.device != wantSMI {
					t.Errorf("of %q, %s port %d: QP1 on %q and QP0 on %q, with libibumad on %q and %q", names, name, port, gsi.device, second.device, wantGSI, wantSMI)
				}
				if name == smi && (second.port != port || gsi.port != 1) || name == planar && second.device == smi && second.port != 3 {
					t.Errorf("%s port %d: QP1 on port %d and QP0 on port %d", name, port, gsi.port, second.port)
				}
			}
		}
	}
}
