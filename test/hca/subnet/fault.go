package subnet

import "fmt"

// link finds a port that has a link.
func (s *Subnet) link(node string, number int) (*port, error) {
	p, err := s.find(node, number)
	if err == nil && p.peer == nil {
		err = fmt.Errorf("subnet: port %d of node %q has no link", number, node)
	}
	return p, err
}

// SetLink takes the link of a port down or up, as if its cable were pulled and put in again. The node is
// given by name or description.
func (s *Subnet) SetLink(node string, number int, up bool) error {
	p, err := s.link(node, number)
	if err != nil {
		return err
	}
	s.do(func() {
		p.cut, p.peer.cut = !up, !up
		s.relink(p, nil)
	})
	return nil
}

// SetLoss has the link of a port lose packets with a probability, in both directions. The receiver counts them as
// errors.
func (s *Subnet) SetLoss(node string, number int, probability float64) error {
	p, err := s.link(node, number)
	if err != nil {
		return err
	}
	if !(probability >= 0 && probability <= 1) { // nor NaN
		return fmt.Errorf("subnet: loss %v, allowed: 0 to 1", probability)
	}
	s.do(func() { p.loss, p.peer.loss = probability, probability })
	return nil
}

// LimitLink makes the link of a port narrower or slower than its ports are, as a bad cable does. 0 is no
// limit. If nothing is left in common, the link stays down. The link is trained again.
func (s *Subnet) LimitLink(node string, number int, width Width, speed Speed) error {
	p, err := s.link(node, number)
	if err != nil {
		return err
	}
	s.do(func() {
		p.maxWidth, p.maxSpeed = width, speed
		p.peer.maxWidth, p.peer.maxSpeed = width, speed
		s.takeDown(p, nil)
		s.relink(p, nil)
	})
	return nil
}

// Intercept has a function see what comes for the agents of a node first. It returns the packets to send
// instead of an answer, or false to let the agents answer. Without packets the node is silent. A nil function
// ends it. The answer to an SMP with a directed route takes the route that its MAD has; [Reply] makes one. The
// function must not call methods of the subnet.
func (s *Subnet) Intercept(node string, fn func(p *Packet) (answers []*Packet, done bool)) error {
	spec := s.top.Node(node)
	if spec == nil {
		return fmt.Errorf("subnet: node %q does not exist", node)
	}
	s.do(func() { s.byName[spec].intercept = fn })
	return nil
}

// Silent is a function for [Subnet.Intercept] that answers nothing.
func Silent(*Packet) ([]*Packet, bool) { return nil, true }

// Reply returns an answer to a request, with its data and a status.
func Reply(p *Packet, status uint16) *Packet {
	a := p.clone()
	a.SLID, a.DLID, a.SrcQP, a.DestQP, a.Payload = p.DLID, p.SLID, p.DestQP, p.SrcQP, nil
	if len(a.MAD) >= madHeader {
		finish(a.MAD, status)
	}
	return a
}

// Counter returns a counter of a port.
func (s *Subnet) Counter(node string, number int, c Counter) (n uint64, err error) {
	p, err := s.counter(node, number, c)
	if err == nil {
		s.do(func() { n = uint64(p.counters.basic[c]) })
	}
	return n, err
}

// AddCounter adds to a counter of a port, which stops at its maximum.
func (s *Subnet) AddCounter(node string, number int, c Counter, n uint64) error {
	p, err := s.counter(node, number, c)
	if err == nil {
		s.do(func() { p.counters.add(c, n) })
	}
	return err
}

func (s *Subnet) counter(node string, number int, c Counter) (*port, error) {
	if c < 0 || c >= counterCount {
		return nil, fmt.Errorf("subnet: counter %d, allowed: 0 to %d", c, counterCount-1)
	}
	return s.find(node, number)
}
