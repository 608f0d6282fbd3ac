package fault

import "sync/atomic"

// Counters count the faults of one direction. Of each packet, Lost or Partitioned is counted, or else
// the others for each copy. A copy that is dropped because too many are held is also counted as
// delayed or held back.
type Counters struct {
	Selected    uint64 // packets that a rule selected
	Lost        uint64 // dropped by chance
	Partitioned uint64 // stopped by a partition
	Duplicated  uint64
	Corrupted   uint64 // received packets that are corrupted are dropped
	HeldBack    uint64 // to be overtaken by later packets
	Delayed     uint64 // by Rule.Delay; packets that wait for a rate limit are not counted
	Overflowed  uint64 // dropped because too many packets were delayed or held back
}

// counters is Counters while it counts.
type counters struct {
	selected, lost, partitioned, duplicated, corrupted, heldBack, delayed, overflowed atomic.Uint64
}

// add counts a verdict.
func (c *counters) add(v *verdict) {
	if v.rule >= 0 {
		c.selected.Add(1)
	}
	switch {
	case v.parted:
		c.partitioned.Add(1)
		return
	case v.lost:
		c.lost.Add(1)
		return
	case v.copies == 2:
		c.duplicated.Add(1)
	}
	for _, a := range v.fates[:v.copies] {
		if a.corrupt {
			c.corrupted.Add(1)
		}
		switch {
		case a.behind > 0:
			c.heldBack.Add(1)
		case a.delay > 0:
			c.delayed.Add(1)
		}
	}
}

func (c *counters) read() Counters {
	return Counters{
		Selected:    c.selected.Load(),
		Lost:        c.lost.Load(),
		Partitioned: c.partitioned.Load(),
		Duplicated:  c.duplicated.Load(),
		Corrupted:   c.corrupted.Load(),
		HeldBack:    c.heldBack.Load(),
		Delayed:     c.delayed.Load(),
		Overflowed:  c.overflowed.Load(),
	}
}

// Counters returns the faults so far in the packets that the device sent and received.
func (f *Injector) Counters() (sent, received Counters) {
	return f.counts[0].read(), f.counts[1].read()
}
