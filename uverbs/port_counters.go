package uverbs

import (
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs/internal/diag"
)

// recordCounters records the counters of a port, once, before the first QP enters [ib.QPInit]. The
// record is empty if the device has no counters.
func (d *Device) recordCounters(port uint8) {
	if _, known := d.firstCounters.Load(port); known {
		return
	}
	now, _ := d.portCounters(port)
	d.firstCounters.LoadOrStore(port, now)
}

// PortCounters returns the hardware counters of a port, under the driver's names and in its order, as
// "rdma statistic" shows them. They count for all programs that use the device; only a software device
// belongs to this process alone. Package soft describes the counters of these. The error is a
// [FeatureError], or another one that wraps [errors.ErrUnsupported], if the port has no counters.
func (d *Device) PortCounters(port uint8) ([]netlinkrdma.Counter, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	if port < 1 || port > d.attr.PhysPortCount {
		return nil, argErr("PortCounters", "port", port, "1 to %d", d.attr.PhysPortCount)
	}
	return d.portCounters(port)
}

// portCounters is PortCounters for a device that may be closed.
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
