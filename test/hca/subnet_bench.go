package hca

import (
	"errors"

	"github.com/goverbs/goverbs/test/hca/subnet"
)

// subnetCommands are what a test can ask for in the subnet that the card is connected with. Nodes are given by their
// names in the topology, which have no spaces.
var subnetCommands = map[string]benchCommand{
	// subnet-link NODE PORT up|down: the cable
	"subnet-link": {3, func(d *Device, a *benchArgs) (string, error) {
		node, port, up := a.next(), int(a.number(8)), a.choice("up", "down") == 0
		return a.subnet(d, func(s *subnet.Subnet) error { return s.SetLink(node, port, up) })
	}},
	// subnet-loss NODE PORT LOSS: the probability that a packet is lost on the link
	"subnet-loss": {3, func(d *Device, a *benchArgs) (string, error) {
		node, port, loss := a.next(), int(a.number(8)), a.share()
		return a.subnet(d, func(s *subnet.Subnet) error { return s.SetLoss(node, port, loss) })
	}},
	// subnet-rate NODE PORT WIDTH SPEED: what the cable allows: 1x SDR, or any any
	"subnet-rate": {4, func(d *Device, a *benchArgs) (string, error) {
		widths := []subnet.Width{0, subnet.Width1X, subnet.Width2X, subnet.Width4X}
		speeds := []subnet.Speed{0, subnet.SDR, subnet.DDR, subnet.QDR, subnet.FDR, subnet.EDR, subnet.HDR, subnet.NDR, subnet.XDR}
		node, port := a.next(), int(a.number(8))
		w, v := widths[a.choice("any", "1x", "2x", "4x")], speeds[a.choice("any", "SDR", "DDR", "QDR", "FDR", "EDR", "HDR", "NDR", "XDR")]
		return a.subnet(d, func(s *subnet.Subnet) error { return s.LimitLink(node, port, w, v) })
	}},
	// subnet-agents NODE silent|well: whether the node answers
	"subnet-agents": {2, func(d *Device, a *benchArgs) (string, error) {
		node, silent := a.next(), a.choice("silent", "well") == 0
		return a.subnet(d, func(s *subnet.Subnet) error {
			if silent {
				return s.Intercept(node, subnet.Silent)
			}
			return s.Intercept(node, nil)
		})
	}},
}

// subnet changes the subnet that the card is connected with.
func (a *benchArgs) subnet(d *Device, change func(*subnet.Subnet) error) (answer string, err error) {
	if d.cfg.Subnet == nil {
		a.fail(errors.New("the card is not connected with a subnet of switches"))
	}
	if a.err != nil {
		return "", a.err
	}
	d.cfg.Fabric.Do(func() { err = change(d.cfg.Subnet) })
	return "ok", err
}
