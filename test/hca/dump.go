package hca

import (
	"slices"

	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// dumps are the segments that the register RESOURCE_DUMP can write, besides the menu: the answer of a
// query. A driver finds them by their names in the menu, so the numbers are the card's own.
var dumps = []struct {
	typ   uint16
	name  string
	index string
	query func(d *Device, c *call) error
}{
	{0x1001, "PRM_QUERY_QP", "QPN", (*Device).queryQP},
	{0x1002, "PRM_QUERY_CQ", "CQN", (*Device).queryCQ},
	{0x1003, "PRM_QUERY_MKEY", "MKEY", (*Device).queryMKey},
}

// resourceDump is ACCESS_REG of the register RESOURCE_DUMP: it writes segments into memory of the host,
// through a key for physical addresses.
func (d *Device) resourceDump(c *call) error {
	if len(c.in) < prm.RegisterData+prm.DumpRegSize || len(c.out) < prm.RegisterData+prm.DumpRegSize {
		return refuse(prm.BadInLen, "register RESOURCE_DUMP", "%d bytes in and %d out instead of %d", len(c.in), len(c.out), prm.RegisterData+prm.DumpRegSize)
	}
	if c.opmod != accessWrite {
		return refuse(prm.BadParam, "modifier", "%d of RESOURCE_DUMP, which only a write starts", c.opmod)
	}
	if d.phase != phaseRunning {
		return refuse(prm.BadSysState, "state", "RESOURCE_DUMP before the card is initialized")
	}
	in, out := c.in[prm.RegisterData:], c.out[prm.RegisterData:][:prm.DumpRegSize]
	if prm.DumpInline.Bool(in) || prm.DumpVHCA.Get(in) != 0 || prm.DumpIndex2.Get(in) != 0 || prm.DumpNumOfObj2.Get(in) != 0 {
		return refuse(prm.BadParam, "register RESOURCE_DUMP", "inline data, other functions and second indexes are not modelled")
	}
	segments, err := d.segments(in)
	if err != nil {
		return err
	}
	// All of it fits; more_dump stays 0.
	room := int(prm.DumpSize.U32(in))
	if len(segments) > room {
		return refuse(prm.BadParam, "dump size", "%d bytes, and the dump has %d; a dump in parts is not modelled", room, len(segments))
	}
	if err := d.dumpMKey(prm.DumpMKey.U32(in)); err != nil {
		return err
	}
	b, err := d.memory(prm.DumpAddress.Get(in), len(segments))
	if err != nil {
		return refuse(prm.BadParam, "dump address", "%v", err)
	}
	copy(b, segments)
	copy(out, in[:prm.DumpRegSize])
	prm.DumpSeq.Put(out, (prm.DumpSeq.Get(in)+1)&0xf)
	prm.DumpSize.Put(out, uint64(len(segments)))
	return nil
}

// dumpMKey checks the key through which a dump is written.
func (d *Device) dumpMKey(key uint32) error {
	s, err := d.eng.QueryMKey(key >> 8)
	switch {
	case err != nil:
		return err
	case uint32(s.Variant) != key&0xff, s.Free, s.Mode != engine.ModePA, !s.Length64, s.Access&engine.LocalWrite == 0:
		return refuse(prm.BadParam, "dump mkey", "%#x is not a key with which this card may write all of memory", key)
	}
	return nil
}

// segments returns what a dump writes.
func (d *Device) segments(in []byte) ([]byte, error) {
	command := segment(prm.SegmentCommand, prm.CommandSize)
	typ := uint16(prm.DumpSegment.Get(in))
	prm.CommandCalled.Put(command, uint64(typ))
	prm.CommandIndex1.Put(command, prm.DumpIndex1.Get(in))
	prm.CommandNumObj1.Put(command, prm.DumpNumOfObj1.Get(in))
	end := segment(prm.SegmentTerminate, prm.TerminateSize)
	if typ == prm.SegmentMenu {
		info := segment(prm.SegmentInfo, prm.InfoSize)
		prm.InfoVersion.Put(info, 1)
		return slices.Concat(info, command, menu(), end), nil
	}
	for _, s := range dumps {
		if s.typ != typ {
			continue
		}
		if n := prm.DumpNumOfObj1.Get(in); n != 1 {
			return nil, refuse(prm.BadParam, "num_of_obj1", "%d of %s; only one object at a time is modelled", n, s.name)
		}
		q := &call{in: make([]byte, small), out: make([]byte, list)}
		prm.ObjectNumber.Put(q.in, prm.DumpIndex1.Get(in))
		if err := s.query(d, q); err != nil {
			return nil, err // firmware may write an error segment instead
		}
		b := segment(typ, prm.ResourceSize+len(q.out))
		prm.ResourceIndex1.Put(b, prm.DumpIndex1.Get(in))
		copy(b[prm.ResourceSize:], q.out)
		return slices.Concat(command, b, end), nil
	}
	return nil, refuse(prm.BadParam, "segment_type", "%#x is not in the menu", typ)
}

// menu returns the segment that describes the others.
func menu() []byte {
	b := segment(prm.SegmentMenu, prm.MenuSize+prm.RecordSize*len(dumps))
	prm.MenuRecords.Put(b, uint64(len(dumps)))
	for i, s := range dumps {
		r := prm.Record(b, prm.MenuSize+i*prm.RecordSize, prm.RecordSize)
		prm.RecordNumObj1.Put(r, 1)
		prm.RecordMustIndex.Put(r, 1)
		prm.RecordIndex.Put(r, 1)
		prm.RecordType.Put(r, uint64(s.typ))
		copy(r[prm.RecordName:][:prm.RecordNameSize-1], s.name)
		copy(r[prm.RecordIndexName:][:prm.RecordNameSize-1], s.index)
	}
	return b
}

// segment returns an empty segment of n bytes.
func segment(typ uint16, n int) []byte {
	b := make([]byte, n)
	prm.SegmentLength.Put(b, uint64(n/4))
	prm.SegmentType.Put(b, uint64(typ))
	return b
}
