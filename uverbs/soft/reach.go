package soft

import (
	"net/netip"

	"github.com/goverbs/goverbs/uverbs/internal/inproc"
)

// ByName returns the device of this process with a name, such as one of the environment variable
// GOVERBS_SOFT, or nil.
func ByName(name string) *Device {
	l, ok := inproc.ByName(name).(listed)
	if !ok {
		return nil
	}
	return l.d
}

// NetworkInfo says how other processes reach a device. It is the zero value if they do not.
type NetworkInfo struct {
	// Local is the UDP address of the device.
	Local netip.AddrPort

	// ReceiveBuffer is the size in bytes of the receive buffer that the system gave to the device. It
	// counts the system's overhead, too: on Linux a packet of 1 KiB takes about 2.3 KB and one of
	// 4 KiB 8.4 KB.
	ReceiveBuffer int

	// WantedBuffer is the size that the device asked for.
	WantedBuffer int

	// Received counts the datagrams that have arrived, those included that were dropped as damaged.
	Received uint64

	// Forbidden counts packets that a firewall or the system's policy has not let the device send.
	Forbidden uint64

	// Overflows counts packets that the system has dropped since the receive buffer was full.
	Overflows uint64
}

// Network returns how other processes reach the device.
func (d *Device) Network() NetworkInfo {
	if d.network == nil {
		return NetworkInfo{}
	}
	s := d.network.socket
	c := s.Counters()
	return NetworkInfo{
		Local: s.LocalAddr(), ReceiveBuffer: s.ReceiveBuffer(), WantedBuffer: wantedBuffer,
		Received:  c.Received + c.Short + c.BadICRC + c.Truncated,
		Forbidden: c.Forbidden, Overflows: c.Overflows,
	}
}
