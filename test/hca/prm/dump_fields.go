package prm

// CapResourceDump is the register RESOURCE_DUMP: debug_cap_bits, which CapDebugBit announces.
var CapResourceDump = Field{0x09, 1}

// resource_dump_bits, the register RESOURCE_DUMP.
var (
	DumpMore      = Field{0x00, 1}
	DumpInline    = Field{0x01, 1}
	DumpSeq       = Field{0x0c, 4}
	DumpSegment   = Field{0x10, 16}
	DumpVHCA      = Field{0x30, 16}
	DumpIndex1    = Field{0x40, 32}
	DumpIndex2    = Field{0x60, 32}
	DumpNumOfObj1 = Field{0x80, 16}
	DumpNumOfObj2 = Field{0x90, 16}
	DumpMKey      = Field{0x100, 32}
	DumpSize      = Field{0x120, 32}
	DumpAddress   = Field{0x140, 64}
)

// The segments that it writes: resource_dump_segment_header_bits, and the parts that follow a header.
var (
	SegmentLength   = Field{0x00, 16} // in units of 4 bytes, with the header
	SegmentType     = Field{0x10, 16}
	CommandCalled   = Field{0x20, 16}
	CommandIndex1   = Field{0x40, 32}
	CommandNumObj1  = Field{0x80, 16}
	InfoVersion     = Field{0x38, 8}
	MenuRecords     = Field{0x30, 16}
	RecordNumObj1   = Field{0x0b, 1} // support_num_of_obj1
	RecordMustIndex = Field{0x0e, 1} // must_have_index1
	RecordIndex     = Field{0x0f, 1} // support_index1
	RecordType      = Field{0x10, 16}
	ResourceIndex1  = Field{0x40, 32}
)

// Lengths in bytes, and the types of segments that are the same on every card.
const (
	DumpRegSize      = 256
	InfoSize         = 16
	CommandSize      = 20
	MenuSize         = 8 // and the records
	RecordSize       = 52
	RecordName       = 4 // byte where the name is
	RecordIndexName  = 20
	RecordNameSize   = 16
	ResourceSize     = 16 // and the payload
	TerminateSize    = 4
	SegmentCommand   = 0xfffa
	SegmentTerminate = 0xfffb
	SegmentInfo      = 0xfffe
	SegmentMenu      = 0xffff
)
