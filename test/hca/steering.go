package hca

import (
	"cmp"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// steering decides which receive queues an Ethernet frame goes to: by flow tables, whose
// entries lead to further tables or to TIRs.
//
// Frames come while the engine's lock is held, and commands take that lock while they hold
// the card's. So frames look at a copy, which commands replace.
type steering struct {
	tis    map[uint32]tis
	tirs   map[uint32]tir
	rqts   map[uint32][]uint32
	sqTIS  map[uint32]uint32
	rates  [rates]uint32     // kbit/s by the index that SQs name; of 0 there is none
	sqRate map[uint32]uint16 // the index of an SQ with a rate
	tables map[uint32]*flowTable
	roots  map[uint32]uint32 // table by type
	groups uint32            // the last group's number

	counters map[uint32]*flowCounter

	seen atomic.Pointer[rxView]
}

// flowTable is a table: entries by index, in groups that say which fields they match.
type flowTable struct {
	kind    uint32
	size    uint32
	miss    uint32 // table to go on with, if hasMiss
	hasMiss bool
	groups  map[uint32]*flowGroup
	entries map[uint32]*flowEntry
}

type flowGroup struct {
	first, last uint32
	mask        []byte // of matchSize
}

type flowEntry struct {
	group uint32
	value []byte
	drop  bool
	tag   uint32
	dests []dest

	counter *flowCounter // or nil
}

// dest is where a frame goes on.
type dest struct {
	kind uint8
	id   uint32
}

// rxView is what a frame needs to know.
type rxView struct {
	root   uint32
	rdma   [2]uint32 // roots of the tables for packets of RDMA, by engine.Way
	counts bool      // an entry of a table counts
	tables map[uint32]*flowTable
	tirs   map[uint32]tir
	rqts   map[uint32][]uint32
}

// Types of tables, actions and destinations: fs.h, MLX5_FLOW_CONTEXT_ACTION_* and
// MLX5_IFC_FLOW_DESTINATION_TYPE_* (mlx5_ifc.h).
const (
	tableNICReceive   = 0x0
	tableNICTransmit  = 0x1
	tableRDMAReceive  = 0x7
	tableRDMATransmit = 0x8

	actionAllow   = 1 << 0
	actionDrop    = 1 << 1
	actionForward = 1 << 2
	actionCount   = 1 << 3

	destTable = 0x1
	destTIR   = 0x2

	missForward = 1

	firstTable, lastTable = 0x5000, 0x5fff

	enableOuter = 1 << 0
	matchSize   = 0x200 / 8 // fte_match_set_lyr_2_4_bits
	maxDepth    = 64
)

func (s *steering) clear() {
	s.tis, s.tirs, s.rqts, s.sqTIS = map[uint32]tis{}, map[uint32]tir{}, map[uint32][]uint32{}, map[uint32]uint32{}
	s.rates, s.sqRate = [rates]uint32{}, map[uint32]uint16{}
	s.tables, s.roots, s.counters = map[uint32]*flowTable{}, map[uint32]uint32{}, map[uint32]*flowCounter{}
	s.publish()
}

// publish lets frames see what commands have changed.
func (s *steering) publish() {
	v := &rxView{root: s.roots[tableNICReceive], tables: map[uint32]*flowTable{}, tirs: maps.Clone(s.tirs), rqts: maps.Clone(s.rqts)}
	v.rdma[engine.Received], v.rdma[engine.Sent] = s.roots[tableRDMAReceive], s.roots[tableRDMATransmit]
	for n, t := range s.tables {
		copied := *t
		copied.groups, copied.entries = maps.Clone(t.groups), maps.Clone(t.entries)
		v.tables[n] = &copied
		for _, e := range t.entries {
			v.counts = v.counts || e.counter != nil
		}
	}
	s.seen.Store(v)
}

// table finds the table that a command is about.
func (d *Device) table(c *call) (*flowTable, uint32, error) {
	n := prm.FTNumber.U32(c.in)
	t := d.eth.tables[n]
	if t == nil {
		return nil, n, refuse(prm.BadResource, "flow table", "%#x does not exist", n)
	}
	if kind := prm.FTType.U32(c.in); kind != t.kind {
		return nil, n, refuse(prm.BadParam, "flow table type", "%d, but table %#x has %d", kind, n, t.kind)
	}
	return t, n, nil
}

func (d *Device) createFlowTable(c *call) error {
	x := c.in[prm.FTCtx:]
	t := &flowTable{kind: prm.FTType.U32(c.in), groups: map[uint32]*flowGroup{}, entries: map[uint32]*flowEntry{}}
	switch t.kind {
	case tableNICReceive, tableNICTransmit, tableRDMAReceive, tableRDMATransmit:
	default:
		return refuse(prm.BadParam, "flow table type", "%#x is not modelled", t.kind)
	}
	if log := prm.FTCLogSize.Get(x); log > 16 {
		return refuse(prm.BadParam, "flow table log_size", "%d", log)
	}
	t.size = 1 << prm.FTCLogSize.Get(x)
	if err := d.setMiss(t, x); err != nil {
		return err
	}
	n, err := take(d.eth.tables, t, firstTable, lastTable, "flow table")
	c.answer(n)
	d.eth.publish()
	return err
}

func (d *Device) setMiss(t *flowTable, x []byte) error {
	t.hasMiss = prm.FTCMissAction.Get(x) == missForward
	t.miss = prm.FTCMissTable.U32(x)
	if t.hasMiss && d.eth.tables[t.miss] == nil {
		return refuse(prm.BadResource, "flow table table_miss_id", "%#x does not exist", t.miss)
	}
	return nil
}

// modifyFlowTable changes what happens on a miss: bit 0 of modify_field_select.
func (d *Device) modifyFlowTable(c *call) error {
	t, _, err := d.table(c)
	if err != nil {
		return err
	}
	if sel := prm.FTModifySelect.Get(c.in); sel != 1 {
		return refuse(prm.BadParam, "flow table modify_field_select", "%#x is not modelled", sel)
	}
	err = d.setMiss(t, c.in[prm.FTCtx:])
	d.eth.publish()
	return err
}

func (d *Device) destroyFlowTable(c *call) error {
	t, n, err := d.table(c)
	if err != nil {
		return err
	}
	if len(t.groups) > 0 {
		return refuse(prm.ResBusy, "flow table", "%#x has %d groups", n, len(t.groups))
	}
	if user := d.eth.userOf(destTable, n); user != "" {
		return refuse(prm.ResBusy, "flow table", "%#x is in use by %s", n, user)
	}
	delete(d.eth.tables, n)
	if d.eth.roots[t.kind] == n {
		delete(d.eth.roots, t.kind)
	}
	d.eth.publish()
	return nil
}

// setFlowTableRoot makes a table the first one. With modifier 1 there is none any more.
func (d *Device) setFlowTableRoot(c *call) error {
	if c.opmod == 1 {
		delete(d.eth.roots, prm.FTType.U32(c.in))
		d.eth.publish()
		return nil
	}
	t, n, err := d.table(c)
	if err != nil {
		return err
	}
	d.eth.roots[t.kind] = n
	d.eth.publish()
	return nil
}

func (d *Device) createFlowGroup(c *call) error {
	t, n, err := d.table(c)
	if err != nil {
		return err
	}
	g := &flowGroup{first: prm.FGStart.U32(c.in), last: prm.FGEnd.U32(c.in), mask: make([]byte, matchSize)}
	if g.first > g.last || g.last >= t.size {
		return refuse(prm.BadParam, "flow group range", "%d to %d in table %#x of %d", g.first, g.last, n, t.size)
	}
	for gn, other := range t.groups {
		if g.first <= other.last && other.first <= g.last {
			return refuse(prm.BadParam, "flow group range", "%d to %d overlaps group %#x", g.first, g.last, gn)
		}
	}
	if enable := prm.FGEnable.Get(c.in); enable&^enableOuter != 0 {
		return refuse(prm.BadParam, "flow group match_criteria_enable", "%#x: only outer headers are modelled", enable)
	} else if enable&enableOuter != 0 {
		copy(g.mask, prm.Record(c.in, prm.FGMatch, matchSize))
	}
	known := knownMatches()
	for i, b := range g.mask {
		if b&^known[i] != 0 {
			return refuse(prm.BadParam, "flow group match_criteria", "byte %#x has %#x, of which %#x is modelled", i, b, known[i])
		}
	}
	d.eth.groups++
	t.groups[d.eth.groups] = g
	c.answer(d.eth.groups)
	d.eth.publish()
	return nil
}

func (d *Device) destroyFlowGroup(c *call) error {
	t, _, err := d.table(c)
	if err != nil {
		return err
	}
	n := prm.FGNumber.U32(c.in)
	if t.groups[n] == nil {
		return refuse(prm.BadResource, "flow group", "%#x does not exist", n)
	}
	for i, e := range t.entries {
		if e.group == n {
			return refuse(prm.ResBusy, "flow group", "%#x has entry %d", n, i)
		}
	}
	delete(t.groups, n)
	d.eth.publish()
	return nil
}

func (d *Device) setFlowEntry(c *call) error {
	t, n, err := d.table(c)
	if err != nil {
		return err
	}
	x := c.in[prm.FTECtx:]
	index := prm.FTEIndex.U32(c.in)
	e := &flowEntry{group: prm.FTEGroup.U32(x), value: slices.Clone(prm.Record(x, prm.FTEMatch, matchSize))}
	g := t.groups[e.group]
	if g == nil || index < g.first || index > g.last {
		return refuse(prm.BadParam, "flow entry", "index %d of table %#x is not in group %#x", index, n, e.group)
	}
	if old := t.entries[index]; c.opmod == 1 && old == nil {
		return refuse(prm.BadResource, "flow entry", "index %d of table %#x is empty", index, n)
	} else if c.opmod == 1 {
		e.value = old.value // what is matched can't be changed
	}
	action := prm.FTEAction.Get(x)
	if action&^(actionAllow|actionDrop|actionForward|actionCount) != 0 {
		return refuse(prm.BadParam, "flow entry action", "%#x is not modelled", action)
	}
	e.drop, e.tag = action&actionDrop != 0, prm.FTETag.U32(x)
	if action&actionForward != 0 {
		if e.dests, err = d.destinations(x); err != nil {
			return err
		}
	}
	if action&actionCount != 0 {
		if e.counter, err = d.flowCounterOf(x); err != nil {
			return err
		}
	}
	t.entries[index] = e
	d.eth.publish()
	return nil
}

// destinations reads the list of an entry.
func (d *Device) destinations(x []byte) ([]dest, error) {
	n := prm.FTEDestCount.Int(x)
	list := prm.Record(x, prm.FTEDest, 8*n)
	if n > 1<<8 || len(list) < 8*n {
		return nil, refuse(prm.BadInLen, "flow entry destinations", "%d in %d bytes", n, len(list))
	}
	var all []dest
	for ; len(list) > 0; list = list[8:] {
		to := dest{kind: uint8(prm.DestType.Get(list)), id: prm.DestID.U32(list)}
		switch to.kind {
		case destTable:
			if d.eth.tables[to.id] == nil {
				return nil, refuse(prm.BadResource, "flow entry destination", "table %#x does not exist", to.id)
			}
		case destTIR:
			if _, ok := d.eth.tirs[to.id]; !ok {
				return nil, refuse(prm.BadResource, "flow entry destination", "TIR %#x does not exist", to.id)
			}
		default:
			return nil, refuse(prm.BadParam, "flow entry destination", "type %#x is not modelled", to.kind)
		}
		all = append(all, to)
	}
	return all, nil
}

func (d *Device) deleteFlowEntry(c *call) error {
	t, n, err := d.table(c)
	if err != nil {
		return err
	}
	index := prm.FTEIndex.U32(c.in)
	if t.entries[index] == nil {
		return refuse(prm.BadResource, "flow entry", "index %d of table %#x is empty", index, n)
	}
	delete(t.entries, index)
	d.eth.publish()
	return nil
}

// userOf says which entry or table leads to a table or TIR, or nothing.
func (s *steering) userOf(kind uint8, id uint32) string {
	for n, t := range s.tables {
		if kind == destTable && t.hasMiss && t.miss == id && n != id {
			return fmt.Sprintf("table %#x", n)
		}
		for i, e := range t.entries {
			if slices.Contains(e.dests, dest{kind, id}) {
				return fmt.Sprintf("entry %d of table %#x", i, n)
			}
		}
	}
	return ""
}

// receive says which receive queues a frame goes to, once to each.
func (s *steering) receive(frame []byte) []engine.Delivery {
	v := s.seen.Load()
	if v == nil {
		return nil
	}
	fields := matchFields(frame)
	if fields == nil {
		return nil
	}
	var rqs []engine.Delivery
	for _, to := range v.walk(v.root, fields, len(frame), 0) {
		t := v.tirs[to.tir]
		if !t.indirect {
			rqs = append(rqs, engine.Delivery{RQ: t.target, Tag: to.tag})
		} else if table := v.rqts[t.target]; len(table) > 0 {
			// A flow stays in its queue; the hash is not the one that the driver has set.
			rqs = append(rqs, engine.Delivery{RQ: table[int(crc32.ChecksumIEEE(fields)%uint32(len(table)))], Tag: to.tag})
		}
	}
	slices.SortFunc(rqs, func(a, b engine.Delivery) int { return cmp.Compare(a.RQ, b.RQ) })
	return slices.CompactFunc(rqs, func(a, b engine.Delivery) bool { return a.RQ == b.RQ })
}

// countRoCE has the tables for packets of RDMA count a packet. Where it goes does not depend on them.
func (s *steering) countRoCE(way engine.Way, frame func() []byte) {
	v := s.seen.Load()
	if v == nil || !v.counts {
		return
	}
	if b := frame(); b != nil {
		v.walk(v.rdma[way], matchFields(b), len(b), 0)
	}
}

// target is a TIR that a frame comes to, with the tag of the entry that leads there.
type target struct{ tir, tag uint32 }

// walk gives the TIRs that a frame of so many bytes comes to from a table on.
func (v *rxView) walk(table uint32, fields []byte, size, depth int) []target {
	t := v.tables[table]
	if t == nil || depth > maxDepth {
		return nil
	}
	for _, index := range slices.Sorted(maps.Keys(t.entries)) {
		e := t.entries[index]
		g := t.groups[e.group]
		if g == nil || !matches(fields, e.value, g.mask) {
			continue
		}
		if e.counter != nil {
			e.counter.packets.Add(1)
			e.counter.octets.Add(uint64(size))
		}
		if e.drop {
			return nil
		}
		var tirs []target
		for _, to := range e.dests {
			if to.kind == destTIR {
				tirs = append(tirs, target{to.id, e.tag})
			} else {
				tirs = append(tirs, v.walk(to.id, fields, size, depth+1)...)
			}
		}
		return tirs
	}
	if t.hasMiss {
		return v.walk(t.miss, fields, size, depth+1)
	}
	return nil
}

func matches(fields, value, mask []byte) bool {
	for i, m := range mask {
		if fields[i]&m != value[i]&m {
			return false
		}
	}
	return true
}
