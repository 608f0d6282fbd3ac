package hca

import (
	"sync/atomic"

	"github.com/goverbs/goverbs/test/hca/prm"
)

// flowCounter counts what the entries of flow tables take that name it. Frames and commands reach it at
// the same time.
type flowCounter struct{ packets, octets atomic.Uint64 }

const firstFlowCounter, lastFlowCounter = 0x6000, 0x6fff

func (d *Device) allocFlowCounter(c *call) error {
	if bulk := prm.FlowCounterBulk.Get(c.in); bulk != 0 {
		return refuse(prm.BadParam, "flow counter bulk", "%#x: they are given out one by one", bulk)
	}
	n, err := take(d.eth.counters, &flowCounter{}, firstFlowCounter, lastFlowCounter, "flow counter")
	prm.FlowCounterID.Put(c.out, uint64(n))
	return err
}

func (d *Device) deallocFlowCounter(c *call) error {
	n := prm.FlowCounterID.U32(c.in)
	counter := d.eth.counters[n]
	for tn, t := range d.eth.tables {
		for i, e := range t.entries {
			if counter != nil && e.counter == counter {
				return refuse(prm.ResBusy, "flow counter", "%#x is in use by entry %d of table %#x", n, i, tn)
			}
		}
	}
	return drop(d.eth.counters, n, "flow counter")
}

func (d *Device) queryFlowCounter(c *call) error {
	n := prm.FlowQueryID.U32(c.in)
	counter := d.eth.counters[n]
	if counter == nil {
		return refuse(prm.BadResource, "flow counter", "%#x does not exist", n)
	}
	if prm.FlowQueryClear.Bool(c.in) {
		return refuse(prm.BadParam, "flow counter clear", "is not modelled")
	}
	if many := prm.FlowQueryCount.Get(c.in); many > 1 {
		return refuse(prm.BadParam, "flow counter num_of_counters", "%d: they are queried one by one", many)
	}
	x := c.out[prm.FlowStatistics:]
	be.PutUint64(x, counter.packets.Load())
	be.PutUint64(x[8:], counter.octets.Load())
	return nil
}

// flowCounterOf reads the list of counters of an entry, which is behind that of its destinations: one.
func (d *Device) flowCounterOf(x []byte) (*flowCounter, error) {
	if n := prm.FTECntCount.Int(x); n != 1 {
		return nil, refuse(prm.BadParam, "flow entry counters", "%d of them, one is modelled", n)
	}
	list := prm.Record(x, prm.FTEDest+8*prm.FTEDestCount.Int(x), 8)
	if len(list) < 8 {
		return nil, refuse(prm.BadInLen, "flow entry counters", "the list is not there")
	}
	n := be.Uint32(list)
	if d.eth.counters[n] == nil {
		return nil, refuse(prm.BadResource, "flow entry counter", "%#x does not exist", n)
	}
	return d.eth.counters[n], nil
}
