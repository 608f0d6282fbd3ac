package uverbs

import (
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/netlinkrdma"
)

// noteCounters remembers, once for each port, what it has counted by now: before the first
// QP is brought to [Init]. A device that does not count has nothing to remember.
func (d *Device) noteCounters(port uint8) {
	if _, known := d.counted.Load(port); known {
		return
	}
	now, _ := d.portCounters(port)
	d.counted.LoadOrStore(port, now)
}

// portCounters asks for the hardware counters of a port.
func (d *Device) portCounters(port uint8) ([]netlinkrdma.Counter, error) {
	dev := netlinkrdma.Device{Name: d.info.Name, Index: d.info.Index, Ports: uint32(d.info.Ports)}
	return netlinkrdma.PortCounters(dev, uint32(port))
}

// countedSince says what a port has counted since it was noted, and "" if that is not known.
func (d *Device) countedSince(port uint8) string {
	then, known := d.counted.Load(port)
	if !known {
		return ""
	}
	now, err := d.portCounters(port)
	if err != nil {
		return ""
	}
	return countedText(then.([]netlinkrdma.Counter), now)
}

// countedText tells by how much counters have grown, and which did. What was not counted then
// cannot have grown.
func countedText(then, now []netlinkrdma.Counter) string {
	if len(then) == 0 {
		return ""
	}
	before := map[string]uint64{}
	for _, c := range then {
		before[c.Name] = c.Value
	}
	var grown []string
	for _, c := range now {
		if old, ok := before[c.Name]; ok && c.Value > old {
			grown = append(grown, fmt.Sprintf("%s %d", c.Name, c.Value-old))
		}
	}
	if grown == nil {
		return "nothing"
	}
	return strings.Join(grown, ", ")
}
