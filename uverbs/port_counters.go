package uverbs

import (
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs/internal/diag"
)

// recordCounters records the counters of a port, once, before the first QP enters [QPInit]. The
// record is empty if the device has no counters.
func (d *Device) recordCounters(port uint8) {
	if _, known := d.firstCounters.Load(port); known {
		return
	}
	now, _ := d.portCounters(port)
	d.firstCounters.LoadOrStore(port, now)
}

// portCounters reads the hardware counters of a port.
func (d *Device) portCounters(port uint8) ([]netlinkrdma.Counter, error) {
	if d.info.InProcess {
		return d.inProcessCounters(port)
	}
	dev := netlinkrdma.Device{Name: d.info.Name, Index: d.info.Index, Ports: uint32(d.info.Ports)}
	return netlinkrdma.PortCounters(dev, uint32(port))
}

// counterGrowth lists the counters of a port that have grown since recordCounters, or returns "" if
// they are unknown.
func (d *Device) counterGrowth(port uint8) string {
	before, known := d.firstCounters.Load(port)
	if !known {
		return ""
	}
	now, err := d.portCounters(port)
	if err != nil {
		return ""
	}
	return diag.CounterGrowth(before.([]netlinkrdma.Counter), now)
}
