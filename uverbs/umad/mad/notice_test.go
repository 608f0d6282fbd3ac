package mad

import (
	"encoding/hex"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestNotice decodes traps, of which the bytes were taken apart by hand from the specification's tables.
func TestNotice(t *testing.T) {
	for _, c := range []struct {
		name, bytes string // of which the rest is 0
		want        Notice // without the details
		details     any
		text        string
	}{
		{"link state", "81 000002 0080 0007 8003 0007", Notice{IsGeneric: true, Type: 1, ProducerType: 2, TrapNumber: TrapLinkStateChange, IssuerLID: 7, NoticeToggle: true, NoticeCount: 3},
			&NoticeSwitch{LID: 7}, "trap 128 from LID 7: link state change &{LID:7}"},
		{"in service", "83 000004 0040 0001 0000 000000000000 fe80000000000000 0002c90300000001",
			Notice{IsGeneric: true, Type: 3, ProducerType: 4, TrapNumber: TrapGIDInService, IssuerLID: 1},
			&NoticeGID{GID: ib.GID{0: 0xfe, 1: 0x80, 9: 2, 10: 0xc9, 11: 3, 15: 1}}, "trap 64 from LID 1: GID in service &{GID:fe80:0000:0000:0000:0002:c903:0000:0001}"},
		{"integrity", "81 000002 0081 0007 0000 0000 0009 11", Notice{IsGeneric: true, Type: 1, ProducerType: 2, TrapNumber: TrapLinkIntegrity, IssuerLID: 7},
			&NoticePort{LID: 9, PortNum: 17}, "link integrity"},
		{"change", "84 000001 0090 0005 0000 0000 0005 00 01 02514868 002b 0410", Notice{IsGeneric: true, Type: 4, ProducerType: 1, TrapNumber: TrapCapabilityChange, IssuerLID: 5},
			&NoticeChange{LID: 5, OtherLocalChanges: true, CapabilityMask: 0x02514868, ChangeFlags: ChangedNodeDescription | ChangedLinkWidthEnabled | ChangedSMPriority | ChangedCapabilityMask2, CapabilityMask2: 0x410}, "capability change"},
		{"M_Key", "82 000001 0100 0005 0000 0000 0005 ffff 02 00 0015 00000001 1122334455667788", Notice{IsGeneric: true, Type: 2, ProducerType: 1, TrapNumber: TrapBadMKey, IssuerLID: 5},
			&NoticeMKey{LID: 5, DrSLID: 0xffff, Method: MethodSet, Attribute: AttrPortInfo, Modifier: 1, MKey: 0x1122334455667788}, "bad M_Key"},
		{"Q_Key", "82 000001 0102 0005 0000 0000 0005 0006 80010000 30 000001 00 000123", Notice{IsGeneric: true, Type: 2, ProducerType: 1, TrapNumber: TrapBadQKey, IssuerLID: 5},
			&NoticeKey{LID1: 5, LID2: 6, Key: 0x80010000, SL: 3, QP1: 1, QP2: 0x123}, "bad Q_Key"},
		{"unknown", "84 000001 0400 0005", Notice{IsGeneric: true, Type: 4, ProducerType: 1, TrapNumber: 0x400, IssuerLID: 5}, nil, "trap 1024 from LID 5"},
		{"vendor", "04 0002c9 0080 0005", Notice{Type: 4, ProducerType: 0x2c9, TrapNumber: 128, IssuerLID: 5}, nil, "trap 128 of vendor 0x0002c9 from LID 5"},
	} {
		b := append(unhex(t, c.bytes), make([]byte, 64)...)[:64]
		var n Notice
		must(t, Unmarshal(b, &n))
		copy(c.want.DataDetails[:], b[10:])
		if diff := cmp.Diff(c.want, n); diff != "" {
			t.Errorf("%s:\n%s", c.name, diff)
		}
		if diff := cmp.Diff(c.details, n.Details()); diff != "" {
			t.Errorf("%s: details:\n%s", c.name, diff)
		}
		if text := n.String(); !strings.Contains(text, c.text) {
			t.Errorf("%s: %q, want %q", c.name, text, c.text)
		}
	}
}

// TestNoticeDetails: the details of all traps fit into a notice, and no two of their fields share a bit.
func TestNoticeDetails(t *testing.T) {
	kinds := map[reflect.Type]bool{}
	for trap := range 1 << 16 {
		n := Notice{IsGeneric: true, TrapNumber: uint16(trap)}
		d := n.Details()
		if d == nil {
			continue
		}
		typ := reflect.TypeOf(d).Elem()
		kinds[typ] = true
		if l := layoutOf(typ); l.size > len(n.DataDetails) || overlaps(l) != nil {
			t.Errorf("trap %d: %v has %d bytes; in the same place: %v", trap, typ, l.size, overlaps(l))
		}
	}
	if len(kinds) != 6 {
		t.Errorf("%d kinds of details", len(kinds))
	}
}

// TestRecords: the fields of records are where the specification has them.
func TestRecords(t *testing.T) {
	for text, want := range map[string]Attribute{
		"0007 01 24 0003": &LinkRecord{FromLID: 7, FromPort: 1, ToPort: 36, ToLID: 3},
		"0007 0000 c000 0000 0100 00ff 00 ff ff 92 0000 0020 e8 00 002f": &SwitchInfoRecord{LID: 7, SwitchInfo: SwitchInfo{
			LinearFDBCap: 0xc000, MulticastFDBCap: 0x100, LinearFDBTop: 0xff, DefaultMulticastPrimaryPort: 255, DefaultMulticastNotPrimaryPort: 255,
			LifeTimeValue: 18, OptimizedSLtoVLProgramming: 2, PartitionEnforcementCap: 32, InboundEnforcementCap: true, OutboundEnforcementCap: true,
			FilterRawInboundCap: true, EnhancedPort0: true, MulticastFDBTop: 0x2f}},
		"0007 0002 00000000 ff01" + strings.Repeat("00", 62):              &LinearForwardingTableRecord{LID: 7, BlockNum: 2, LinearForwardingTable: LinearForwardingTable{Port: [64]uint8{255, 1}}},
		"0007 2101 00000000 8001" + strings.Repeat("00", 62):              &MulticastForwardingTableRecord{LID: 7, Position: 2, BlockNum: 0x101, MulticastForwardingTable: MulticastForwardingTable{PortMask: [32]uint16{0x8001}}},
		"0001 0000 0002c90300000001 0000000000000009 00000021 e3":         &SMInfoRecord{LID: 1, SMInfo: SMInfo{GUID: 0x2c90300000001, SMKey: 9, ActCount: 33, Priority: 14, SMState: 3}},
		"0001 03 00 00000000 0002c90300000001" + strings.Repeat("00", 56): &GUIDInfoRecord{LID: 1, BlockNum: 3, GUIDInfo: GUIDInfo{GUID: [8]ib.GUID{0x2c90300000001}}},
		"0001 0203 05 000000 ffff7fff" + strings.Repeat("00", 60):         &PKeyTableRecord{LID: 1, BlockNum: 0x203, PortNum: 5, PKeyTable: PKeyTable{PKey: [32]uint16{0xffff, 0x7fff}}},
		"0007 05 02 00000000 0123456776543210":                            &SLtoVLTableRecord{LID: 7, InputPortNum: 5, OutputPortNum: 2, SLtoVLTable: SLtoVLTable{VL: [16]uint8{0, 1, 2, 3, 4, 5, 6, 7, 7, 6, 5, 4, 3, 2, 1, 0}}},
		"0007 05 03 00000000 0001 0740" + strings.Repeat("00", 60):        &VLArbitrationTableRecord{LID: 7, OutputPortNum: 5, BlockNum: 3, VLArbitrationTable: VLArbitrationTable{Entry: [32]VLWeight{{0, 1}, {7, 64}}}},
		"fe80000000000000 0002c90300000001 0004 000000000000 " + strings.Repeat("00", 16) + "ffff 0000 0000 01 01 ffff 0080 000001 12 00 000002": &InformInfoRecord{
			SubscriberGID: ib.GID{0: 0xfe, 1: 0x80, 9: 2, 10: 0xc9, 11: 3, 15: 1}, Enum: 4, InformInfo: InformInfo{
				LIDRangeBegin: 0xffff, IsGeneric: 1, Subscribe: 1, Type: 0xffff, TrapNumber: 128, QPN: 1, RespTimeValue: 18, ProducerType: 2}},
	} {
		b := unhex(t, text)
		got := reflect.New(reflect.TypeOf(want).Elem()).Interface().(Attribute)
		if err := Unmarshal(b, got); err != nil {
			t.Errorf("%T: %v", want, err)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%T:\n%s", want, diff)
		}
		if again, err := Marshal(want); err != nil || hex.EncodeToString(again) != hex.EncodeToString(b) {
			t.Errorf("%T is encoded as %x, %v, want %x", want, again, err, b)
		}
	}
}
