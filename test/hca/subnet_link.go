package hca

import (
	"fmt"
	"slices"
	"sync"

	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/subnet"
)

// subnetLink connects the card with a port of a subnet of switches. All that happens there happens with the lock of
// the cards' fabric.
type subnetLink struct {
	d  *Device
	at *subnet.Attachment

	mu     sync.Mutex
	states []bool // of the link, which the card does not know yet
	wake   chan struct{}
}

// NewSubnet makes a subnet that cards can be connected with. It has the fabric's clock. Call its methods other than
// Topology, and those of its attachments, only in functions that are given to [engine.Fabric.Do].
func NewSubnet(t *subnet.Topology, f *engine.Fabric, seed uint64) *subnet.Subnet {
	return subnet.New(t, subnet.Config{Seed: seed, After: f.After})
}

// Places returns the names of the nodes of a topology whose places a number of cards take: those that are called
// "card0", "card1" and so on by name or description, and otherwise the first adapters with one port.
func Places(t *subnet.Topology, cards int) ([]string, error) {
	var places, others []string
	for _, n := range t.Nodes {
		if n.Type == subnet.CA && len(n.Ports) == 2 {
			others = append(others, n.Name)
		}
	}
	for i := range cards {
		name := fmt.Sprintf("card%d", i)
		if n := t.Node(name); n != nil && slices.Contains(others, n.Name) {
			places = append(places, n.Name)
		}
	}
	switch {
	case len(places) == cards:
		return places, nil
	case len(places) > 0:
		return nil, fmt.Errorf("the topology has adapters with one port for %d cards by name (card0 and so on), want %d or none", len(places), cards)
	case len(others) < cards:
		return nil, fmt.Errorf("the topology has %d adapters with one port for %d cards", len(others), cards)
	}
	return others[:cards], nil
}

// plug connects the card with its port.
func (d *Device) plug() error {
	l := d.link
	if l == nil {
		return nil
	}
	var err error
	var up bool
	d.cfg.Fabric.Do(func() {
		if l.at, err = d.cfg.Subnet.Attach(d.cfg.Node, 1, l, subnet.AttachOptions{OwnAgents: true}); err == nil {
			l.at.Enable(d.subnet.enabled())
			w, v := l.at.Rate()
			if up = l.at.LinkUp(); up && !d.subnet.supports(w, v) {
				up = l.at.Train(true)
				l.at.ClearCounters() // the card has just been plugged in, so no link of it went down
			}
		}
	})
	if err != nil {
		return fmt.Errorf("card %s: %w", d.cfg.Name, err)
	}
	if !up {
		d.cable(false)
		d.eng.SetPortCounts(engine.PortCounts{}) // the link was not up before
	}
	d.train()
	go l.follow()
	return nil
}

// unplug ends that.
func (d *Device) unplug() {
	if d.link == nil {
		return
	}
	d.cfg.Fabric.Do(d.link.at.Detach)
	close(d.link.wake)
	d.link = nil
}

// Transmit implements engine.Link.
func (l *subnetLink) Transmit(p engine.LinkPacket) {
	l.at.Send(&subnet.Packet{
		SLID: p.SLID, DLID: p.DLID, SL: p.SL, VL15: p.Dest == 0 && p.MAD != nil, DestQP: p.Dest, SrcQP: p.Src, QKey: p.QKey, PKey: p.PKey,
		MAD: p.MAD, Size: p.Octets, Payload: p,
	})
}

// Receive implements subnet.Endpoint.
func (l *subnetLink) Receive(p *subnet.Packet) bool {
	sent, _ := p.Payload.(engine.LinkPacket)
	if p.MAD != nil {
		sent.SLID, sent.DLID, sent.SL, sent.PKey, sent.Dest, sent.Src, sent.QKey, sent.MAD = p.SLID, p.DLID, p.SL, p.PKey, p.DestQP, p.SrcQP, p.QKey, p.MAD
	}
	l.d.eng.Deliver(sent)
	return true
}

// LinkChanged implements subnet.Endpoint. The card has a lock of its own, which is taken before the fabric's.
func (l *subnetLink) LinkChanged(up bool) {
	l.mu.Lock()
	l.states = append(l.states, up)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// follow tells the card in what state its link is.
func (l *subnetLink) follow() {
	for range l.wake {
		l.mu.Lock()
		states := l.states
		l.states = nil
		l.mu.Unlock()
		for _, up := range states {
			l.d.setCable(up)
		}
	}
}

// trainPeer has the link trained again at the request of a subnet manager, or turned off. It notes whether the other
// end is on.
func (d *Device) trainPeer(on bool) {
	if d.link != nil {
		d.cfg.Fabric.Do(func() { d.subnet.unplugged = !d.link.at.Train(on) })
	}
}

// enable tells the subnet which widths and speeds the port may use, from the next training of the link on.
func (d *Device) enable() {
	if l := d.link; l != nil && l.at != nil {
		d.cfg.Fabric.Do(func() { l.at.Enable(d.subnet.enabled()) })
	}
}

// train chooses the width and speed of the link as it comes up: those that the ends agree on, or the
// best ones if nothing is known of the other end.
func (d *Device) train() {
	w, v := d.subnet.enabled()
	if l := d.link; l != nil && l.at != nil {
		d.cfg.Fabric.Do(func() {
			if agreed, speed := l.at.Rate(); agreed != 0 {
				w, v = agreed, speed
			}
		})
	}
	d.subnet.use(w, v)
}

// node is the card's place in the subnet, nil without one.
func (d *Device) node() *subnet.Node {
	if d.cfg.Subnet == nil {
		return nil
	}
	return d.cfg.Subnet.Topology().Node(d.cfg.Node)
}

// guids gives the GUIDs of the system, the node and the port: those that the topology has.
func (d *Device) guids() (system, node, port uint64) {
	if n := d.node(); n != nil {
		return n.SystemGUID, n.GUID, n.Ports[1].GUID
	}
	return d.guid(), d.guid(), d.guid()
}

// describe sets the description of the node that the topology has. The driver may change it.
func (d *Device) describe() {
	if n := d.node(); n != nil {
		d.regs[regNodeDesc] = make([]byte, registers[regNodeDesc].size)
		copy(d.regs[regNodeDesc], n.Description)
	}
}
