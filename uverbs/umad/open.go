package umad

import (
	"sync"

	"github.com/goverbs/goverbs/netlinkrdma"
)

// Open opens a port of an RDMA device for MADs, through the kernel. Ports are numbered from 1.
func Open(device string, port int) (*Port, error) {
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
