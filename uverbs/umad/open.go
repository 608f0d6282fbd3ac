package umad

import (
	"errors"
	"sync"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Open opens a port of an RDMA device for MADs, through the kernel. Ports are numbered from 1. A card with several
// planes has QP0 on a device of type [netlinkrdma.DeviceTypeSMI], and QP1 on its parent: whichever is named, Open opens
// both, and each agent uses the one that has the QP of its class.
func Open(device string, port int) (*Port, error) {
	devs, err := netlinkrdma.Devices()
	if err != nil { // openOne says what is wrong
		return openOne(device, port)
	}
	gsi, smi := pairOf(devs, place{device, port}, firstActive)
	p, err := openOne(gsi.device, gsi.port)
	if err != nil || smi == (place{}) {
		return p, err
	}
	if p.smi, err = openOne(smi.device, smi.port); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// place is a port of a device.
type place struct {
	device string
	port   int
}

// pairOf returns the ports that have QP1 and QP0 for a port that is named; the second one is zero if one port has both.
// A device of type SMI has a port for each plane of the one port of its parent.
func pairOf(devs []netlinkrdma.Device, at place, active func(netlinkrdma.Device) int) (gsi, smi place) {
	for _, d := range devs {
		switch {
		case d.Type != netlinkrdma.DeviceTypeSMI || d.Parent == "":
		case d.Name == at.device:
			return place{d.Parent, 1}, at
		case d.Parent == at.device:
			return at, place{d.Name, active(d)}
		}
	}
	return at, place{}
}

// firstActive returns the first port of a device that is active, or the first one.
func firstActive(d netlinkrdma.Device) int {
	ports, _ := netlinkrdma.Ports(d) // opening one says what is wrong
	for _, p := range ports {
		if p.State == ib.PortActive {
			return int(p.Num)
		}
	}
	return 1
}

// openOne opens a port of one device.
func openOne(device string, port int) (*Port, error) {
	find := &Port{device: device, number: port} // for errors
	dev, err := findDevice(device, port, netlinkrdma.UMADDev)
	if err != nil {
		return nil, find.err("open", err)
	}
	f, err := openFile(dev)
	if err != nil {
		return nil, find.err("open", err)
	}
	return NewPort(device, port, f), nil
}

// findDevice finds a character device of a port.
func findDevice(device string, port int, find func(netlinkrdma.Device, uint32) (netlinkrdma.CharDev, error)) (netlinkrdma.CharDev, error) {
	dev, err := netlinkrdma.DeviceByName(device)
	if err != nil {
		return netlinkrdma.CharDev{}, err
	}
	return find(dev, uint32(max(port, 0)))
}

// IsSM says that the program is the subnet manager of a port: the port's CapabilityMask has IsSM until
// Close. It can be used concurrently.
type IsSM struct {
	port *Port
	f    interface{ Close() error }
	once sync.Once
}

// OpenIsSM sets IsSM in the CapabilityMask of a port. It fails with EAGAIN while another program has set
// it, and with the driver's errno if the device does not allow it.
func OpenIsSM(device string, port int) (*IsSM, error) {
	devs, _ := netlinkrdma.Devices() // findDevice says what is wrong
	if _, smi := pairOf(devs, place{device, port}, firstActive); smi != (place{}) {
		device, port = smi.device, smi.port
	}
	s := &IsSM{port: &Port{device: device, number: port}}
	dev, err := findDevice(device, port, netlinkrdma.ISSMDev)
	if err != nil {
		return nil, s.port.err("set IsSM", err)
	}
	f, err := openNode(dev, dev.Path())
	if err != nil {
		return nil, s.port.err("set IsSM", err)
	}
	s.f = f
	return s, nil
}

// Close clears IsSM. Further calls have no effect.
func (s *IsSM) Close() (err error) {
	s.once.Do(func() {
		if e := s.f.Close(); e != nil {
			err = s.port.err("clear IsSM", e)
		}
	})
	return err
}
