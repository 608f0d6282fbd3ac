package mad

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// must fails a test on an error.
var must = testenv.Must

// attributes are all attributes, with the size of their fields in bytes.
func attributes() map[Attribute]int {
	return map[Attribute]int{
		&NodeInfo{}: 40, &NodeDescription{}: 64, &SwitchInfo{}: 20, &GUIDInfo{}: 64, &PortInfo{}: 64, &PKeyTable{}: 64,
		&SLtoVLTable{}: 8, &VLArbitrationTable{}: 64, &LinearForwardingTable{}: 64, &MulticastForwardingTable{}: 64, &SMInfo{}: 21,
		&ClassPortInfo{}: 72, &PortCounters{}: 44, &PortCountersExtended{}: 184,
		&NodeRecord{}: 108, &PortInfoRecord{}: 68, &PathRecord{}: 58, &MCMemberRecord{}: 50, &ServiceRecord{}: 176,
		&LinkRecord{}: 6, &SwitchInfoRecord{}: 24, &LinearForwardingTableRecord{}: 72, &MulticastForwardingTableRecord{}: 72, &SMInfoRecord{}: 25,
		&GUIDInfoRecord{}: 72, &PKeyTableRecord{}: 72, &InformInfo{}: 36, &InformInfoRecord{}: 60, &Notice{}: 64, &NoticeReport{}: 80,
		&SLtoVLTableRecord{}: 16, &VLArbitrationTableRecord{}: 72,
	}
}

// overlaps returns the fields of a layout that share bits.
func overlaps(l *layout) (all []string) {
	used := map[int]string{}
	for _, f := range l.fields {
		for bit := f.offset; bit < f.offset+f.width*max(f.n, 1); bit++ {
			if used[bit] != "" {
				all = append(all, used[bit]+" and "+f.name)
				break
			}
			used[bit] = f.name
		}
	}
	return all
}

// TestLayouts: the attributes have their sizes, no two fields share a bit, and what is decoded is
// encoded as it was.
func TestLayouts(t *testing.T) {
	for a, size := range attributes() {
		typ := reflect.TypeOf(a).Elem()
		l := layoutOf(typ)
		if l.size != size || overlaps(l) != nil {
			t.Errorf("%s has %d bytes, want %d; in the same place: %v", typ.Name(), l.size, size, overlaps(l))
		}
		ones := bytes.Repeat([]byte{0xff}, size)
		must(t, Unmarshal(ones, a))
		again := reflect.New(typ).Interface().(Attribute)
		b, err := Marshal(a)
		if err == nil {
			err = Unmarshal(b, again)
		}
		if diff := cmp.Diff(a, again); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", typ.Name(), err, diff)
		}
		if err := Unmarshal(ones[1:], a); !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), typ.Name()) {
			t.Errorf("%s of %d bytes: %v", typ.Name(), size-1, err)
		}
	}
	for _, h := range []any{Header{}, SMPHeader{}, RMPPHeader{}, SAHeader{}, vendorHeader{}} {
		if o := overlaps(layoutOf(reflect.TypeOf(h))); o != nil {
			t.Errorf("%T: %v", h, o)
		}
	}
}

// TestHeaderTags: what is encoded and decoded without the tags has the format that they say.
func TestHeaderTags(t *testing.T) {
	raw := make([]byte, Size)
	for i := range raw {
		raw[i] = byte(i + 1)
	}
	raw[1] = byte(ClassPing)
	p, err := Parse(raw)
	must(t, err)
	var want Packet
	var vendor vendorHeader
	decodeHeader(raw, &want.Header)
	decodeHeader(raw, &want.RMPP)
	decodeHeader(raw, &vendor)
	if p.Header != want.Header || p.RMPP != want.RMPP || p.OUI != vendor.OUI {
		t.Errorf("decoded %+v %+v %#x, the tags say %+v %+v %#x", p.Header, p.RMPP, p.OUI, want.Header, want.RMPP, vendor.OUI)
	}
	b, tagged := make([]byte, HeaderSize), make([]byte, HeaderSize)
	p.Header.put(b)
	if err := encodeHeader(tagged, &p.Header); err != nil || !bytes.Equal(b, tagged) {
		t.Errorf("encoded %x, the tags say %x, %v", b, tagged, err)
	}
}

// unhex decodes hexadecimal digits with spaces between.
func unhex(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	must(t, err)
	return b
}

// TestPortInfo decodes bytes whose fields were taken apart by hand from the specification's table.
func TestPortInfo(t *testing.T) {
	b := unhex(t, `0000000000000000 fe80000000000000 0002 0001 0651e84a 0000 0000 01 03 03 02
		14 52 03 24 51 80 04 08 08 05 7c 4f 0001 0002 0003 08 92 11 56 0000 2d 000010 0c10 26 0f`)
	var p PortInfo
	must(t, Unmarshal(b, &p))
	want := PortInfo{
		GIDPrefix: 0xfe80 << 48, LID: 2, MasterSMLID: 1, CapabilityMask: 0x0651e84a, LocalPortNum: 1,
		LinkWidthEnabled: Width1X | Width4X, LinkWidthSupported: Width1X | Width4X, LinkWidthActive: Width4X,
		LinkSpeedSupported: 1, PortState: ib.PortActive, PortPhysicalState: ib.PhysLinkUp, LinkDownDefaultState: 2, LMC: 3,
		LinkSpeedActive: 2, LinkSpeedEnabled: 4, NeighborMTU: 5, MasterSMSL: 1, VLCap: 8, VLHighLimit: 4,
		VLArbitrationHighCap: 8, VLArbitrationLowCap: 8, MTUCap: 5, VLStallCount: 3, HOQLife: 28, OperationalVLs: 4,
		PartitionEnforcementInbound: true, PartitionEnforcementOutbound: true, FilterRawInbound: true, FilterRawOutbound: true,
		MKeyViolations: 1, PKeyViolations: 2, QKeyViolations: 3, GUIDCap: 8, ClientReregister: true, SubnetTimeOut: 18,
		RespTimeValue: 17, LocalPhyErrors: 5, OverrunErrors: 6, LinkRoundTripLatency: 16, CapabilityMask2: 0x0c10,
		LinkSpeedExtActive: 2, LinkSpeedExtSupported: 6, LinkSpeedExtEnabled: 15,
		LinkSpeedExtActive2: 1, LinkSpeedExtSupported2: 1, LinkSpeedExtEnabled2: 5,
	}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Error(diff)
	}
	again, err := Marshal(&p)
	if err != nil || !bytes.Equal(b, again) {
		t.Errorf("encoded as %x, %v, want %x", again, err, b)
	}
}

// TestPlaces: fields of the same width are where the specification has them, in bytes.
func TestPlaces(t *testing.T) {
	for a, want := range map[Attribute]string{
		&PortCounters{}: "PortSelect 1, CounterSelect 2, SymbolErrorCounter 4, LinkErrorRecoveryCounter 6, LinkDownedCounter 7, PortRcvErrors 8, PortRcvRemotePhysicalErrors 10, " +
			"PortRcvSwitchRelayErrors 12, PortXmitDiscards 14, PortXmitConstraintErrors 16, PortRcvConstraintErrors 17, VL15Dropped 22, PortXmitData 24, PortRcvData 28, " +
			"PortXmitPkts 32, PortRcvPkts 36, PortXmitWait 40",
		&PortCountersExtended{}: "PortXmitData 8, PortRcvData 16, PortXmitPkts 24, PortRcvPkts 32, PortUnicastXmitPkts 40, PortUnicastRcvPkts 48, PortMulticastXmitPkts 56, PortMulticastRcvPkts 64",
		&SwitchInfo{}:           "LinearFDBCap 0, RandomFDBCap 2, MulticastFDBCap 4, LinearFDBTop 6, DefaultPort 8, DefaultMulticastPrimaryPort 9, DefaultMulticastNotPrimaryPort 10, MulticastFDBTop 18",
		&PathRecord{}:           "DGID 8, SGID 24, DLID 40, SLID 42, HopLimit 47, TClass 48, PKey 50, Preference 57",
		&MCMemberRecord{}:       "MGID 0, PortGID 16, QKey 32, MLID 36, TClass 39, PKey 40, HopLimit 47",
		&ServiceRecord{}:        "ServiceID 0, ServiceGID 8, ServicePKey 24, ServiceLease 28, ServiceKey 32, ServiceName 48, ServiceData8 112, ServiceData16 128, ServiceData32 144, ServiceData64 160",
	} {
		l := layoutOf(reflect.TypeOf(a).Elem())
		for place := range strings.SplitSeq(want, ", ") {
			name, at, _ := strings.Cut(place, " ")
			if !slices.ContainsFunc(l.fields, func(f field) bool { return f.name == name && fmt.Sprint(f.offset/8) == at && f.offset%8 == 0 }) {
				t.Errorf("%T: %s is not at byte %s", a, name, at)
			}
		}
	}
}

// TestOtherFields: arrays of parts of bytes, texts and structs in structs.
func TestOtherFields(t *testing.T) {
	sl := SLtoVLTable{VL: [16]uint8{0, 1, 2, 15: 15}}
	if b, err := Marshal(&sl); err != nil || hex.EncodeToString(b) != "012000000000000f" {
		t.Errorf("%x, %v", b, err)
	}
	arb := VLArbitrationTable{Entry: [32]VLWeight{1: {VL: 3, Weight: 64}}}
	if b, err := Marshal(&arb); err != nil || hex.EncodeToString(b[:6]) != "000003400000" {
		t.Errorf("%x, %v", b, err)
	}
	rec := NodeRecord{LID: 7, NodeInfo: NodeInfo{VendorID: OUIOpenIB}, NodeDescription: NodeDescription{"switch 1"}}
	b, err := Marshal(&rec)
	if err != nil || b[1] != 7 || !bytes.Equal(b[41:44], []byte{0, 0x14, 5}) || string(b[44:53]) != "switch 1\x00" {
		t.Errorf("%x, %v", b, err)
	}
	for _, a := range []Attribute{
		nil, (*PortInfo)(nil), &PathRecord{SL: 16}, &NodeInfo{VendorID: 1 << 24}, &NodeDescription{strings.Repeat("x", 65)},
		&NodeRecord{NodeInfo: NodeInfo{VendorID: 1 << 24}}, &SLtoVLTable{VL: [16]uint8{15: 16}},
	} {
		if b, err := Marshal(a); !errors.Is(err, ErrRange) {
			t.Errorf("%T: %x, %v", a, b, err)
		}
		p := NewPerf(MethodGet, AttrPortCounters)
		if err := p.Put(a); !errors.Is(err, ErrRange) || p.Attribute != AttrPortCounters || p.Data != nil {
			t.Errorf("%T is put: %v, %+v", a, err, p)
		}
	}
	for _, a := range []Attribute{nil, (*PortCounters)(nil)} {
		if err := NewPerf(MethodGetResp, AttrPortCounters).Decode(a); !errors.Is(err, ErrRange) {
			t.Errorf("decoded into %T: %v", a, err)
		}
	}
}

func TestPackets(t *testing.T) {
	p, err := NewDirectedSMP(MethodGet, AttrNodeInfo, 0, 1, 17)
	must(t, err)
	p.TID = 0x1122334455667788
	b, err := p.Marshal()
	if err != nil || len(b) != Size {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	want := unhex(t, "01 81 01 01 0000 00 02 1122334455667788 0011 0000 00000000  0000000000000000 ffff ffff")
	if !bytes.Equal(b[:36], want) || !bytes.Equal(b[128:131], []byte{0, 1, 17}) {
		t.Errorf("%x", b)
	}
	if p.String() != "directed SubnGet(NodeInfo) by route [1 17]" {
		t.Error(p)
	}
	if _, err := NewDirectedSMP(MethodGet, AttrNodeInfo, 0, make([]uint8, 64)...); !errors.Is(err, ErrRange) {
		t.Errorf("route of 64 ports: %v", err)
	}
	ping := NewVendor(ClassPing, OUIOpenIB, MethodGet, 0)
	ping.Data = []byte("host")
	b, err = ping.Marshal()
	if err != nil || !bytes.Equal(b[36:44], unhex(t, "00 001405 686f7374")) {
		t.Errorf("%x, %v", b, err)
	}
	for _, p := range []*Packet{{Header: Header{Class: ClassPerf}, Data: make([]byte, 193)}, {Header: Header{Class: ClassSubnLID}, Data: make([]byte, 65)},
		{Header: Header{Class: ClassPing}, OUI: 1 << 24}} {
		if _, err := p.Marshal(); !errors.Is(err, ErrRange) {
			t.Errorf("%v: %v", p, err)
		}
	}
	sa, err := NewSA(MethodGet, &PathRecord{DLID: 9}, PathDLID)
	if err != nil || sa.SA.ComponentMask != 1<<4 || sa.ClassVersion != 2 || sa.String() != "SubnAdmGet(PathRecord)" {
		t.Errorf("%+v, %v", sa, err)
	}
	if r := sa.Reply(); r.Method != 0x81 || r.Data != nil || sa.Data == nil {
		t.Errorf("%+v", r)
	}
	for m, want := range map[Method]Method{MethodSet: MethodGetResp, MethodGet: MethodGetResp, MethodTrap: MethodTrapRepress, MethodGetTable: 0x92} {
		if got := m.Response(); got != want {
			t.Errorf("%v is answered with %v, want %v", m, got, want)
		}
	}
	r := p.Reply() // which takes the route backwards
	if r.Status != statusDirected || r.Err() != nil {
		t.Errorf("the reply to a directed MAD is %+v", r.Header)
	}
}

func TestErrors(t *testing.T) {
	smp := NewSMP(MethodGet, AttrPortInfo, 7).Reply()
	directed, _ := NewDirectedSMP(MethodGet, AttrNodeInfo, 0)
	directed.Status = statusDirected
	if err := directed.Err(); err != nil {
		t.Error(err)
	}
	for status, want := range map[Status]string{
		0x4: "version", 0x8: "method not supported", 0xc: "attribute not supported with this method", 0x1c: "invalid value in the attribute or its modifier",
		0x1: "busy", 0x2: "redirection", 0x4000: "unknown",
	} {
		smp.Status = status
		var e *StatusError
		if err := smp.Err(); !errors.As(err, &e) || !strings.Contains(err.Error(), "SubnGetResp(PortInfo 0x7)") || !strings.Contains(err.Error(), want) {
			t.Errorf("%#x: %v, want %s", status, err, want)
		}
		if err := smp.Decode(&PortInfo{}); !errors.As(err, &e) {
			t.Errorf("decoded: %v", err)
		}
	}
	sa, _ := NewSA(MethodGetTable, &NodeRecord{}, 0)
	sa = sa.Reply()
	sa.Status = 0x300
	if err := sa.Err(); err == nil || !strings.HasSuffix(err.Error(), "no records") {
		t.Error(err)
	}
	sa.RMPP = RMPPHeader{Version: 1, Type: RMPPAbort, Flags: RMPPActive, Status: 126}
	var e *RMPPError
	if err := sa.Err(); !errors.As(err, &e) || !strings.Contains(err.Error(), "aborted") || !strings.Contains(err.Error(), "too many retries") {
		t.Error(err)
	}
	if err := NewPerf(MethodGet, AttrPortCounters).Decode(&PortCountersExtended{}); err == nil || !strings.Contains(err.Error(), "0x001d") {
		t.Error(err)
	}
}

// table makes an answer with records that are a number of units of 8 bytes apart.
func table(t *testing.T, offset uint16, records ...[]byte) *Packet {
	t.Helper()
	p := &Packet{Header: Header{BaseVersion: 1, Class: ClassSA, Method: MethodGetTable.Response(), Attribute: AttrNodeRecord}}
	p.RMPP = RMPPHeader{Version: 1, Type: RMPPData, Flags: RMPPActive | RMPPFirst}
	p.SA.AttributeOffset = offset
	p.Data = bytes.Join(records, nil)
	b, err := p.Marshal()
	must(t, err)
	p, err = Parse(b[:56+len(p.Data)])
	must(t, err)
	return p
}

func TestTable(t *testing.T) {
	record := func(lid uint16, size int) []byte {
		return append(binary.BigEndian.AppendUint16(nil, lid), make([]byte, size-2)...)
	}
	for name, tt := range map[string]struct {
		answer *Packet
		lids   []uint16
		bad    bool
	}{
		"three, and the last is not padded": {table(t, 14, record(1, 112), record(2, 112), record(3, 108)), []uint16{1, 2, 3}, false},
		"wider than known":                  {table(t, 16, record(1, 128), record(2, 128)), []uint16{1, 2}, false},
		"none":                              {table(t, 0), nil, false},
		"cut":                               {table(t, 14, record(1, 112), record(2, 107)), []uint16{1}, true},
		"too near":                          {table(t, 13, record(1, 104), record(2, 104)), nil, true},
		"distance 0":                        {table(t, 0, record(1, 112)), nil, true},
	} {
		records, err := Table[NodeRecord](tt.answer)
		any, anyErr := Records(tt.answer, &NodeRecord{LID: 4711})
		for i, r := range any {
			if *r.(*NodeRecord) != records[i] {
				t.Errorf("%s: Records has %+v, and Table %+v", name, r, records[i])
			}
		}
		if len(any) != len(records) || fmt.Sprint(anyErr) != fmt.Sprint(err) {
			t.Errorf("%s: Records has %d, %v, and Table %d, %v", name, len(any), anyErr, len(records), err)
		}
		var lids []uint16
		for _, r := range records {
			lids = append(lids, r.LID)
		}
		if diff := cmp.Diff(tt.lids, lids); diff != "" || errors.Is(err, io.ErrUnexpectedEOF) != tt.bad || (err != nil) != tt.bad {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}
	one := table(t, 14, record(5, 112))
	one.RMPP.Flags = 0
	if r, err := Table[NodeRecord](one); err != nil || len(r) != 1 || r[0].LID != 5 {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := Table[NodeRecord](NewPerf(MethodGet, 0)); err == nil {
		t.Error("a table of performance management")
	}
	one.Data = one.Data[:107]
	if r, err := Table[NodeRecord](one); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := Records(one, nil); !errors.Is(err, ErrRange) {
		t.Error(err)
	}
	if _, err := Table[PathRecord](one); err == nil {
		t.Error("a table of other records")
	}
}

// TestTruncated: a MAD that is too short is an error.
func TestTruncated(t *testing.T) {
	whole := make([]byte, Size)
	for class, least := range map[Class]int{ClassSubnLID: 256, ClassSubnDirected: 256, ClassSA: 56, ClassPerf: 64, ClassPing: 40, 0x09: 24} {
		whole[1] = byte(class)
		for n := range len(whole) + 1 {
			p, err := Parse(whole[:n])
			if (err == nil) != (n >= least) || err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("class %#x, %d bytes: %v, %v", uint8(class), n, p, err)
			}
		}
	}
}

// FuzzParse decodes anything, as a MAD and as each attribute, and encodes it again.
func FuzzParse(f *testing.F) {
	smp, _ := NewDirectedSMP(MethodGet, AttrNodeInfo, 0, 1)
	sa, _ := NewSA(MethodGetTable, &NodeRecord{LID: 1}, NodeLID)
	sa.RMPP.Flags, sa.SA.AttributeOffset = RMPPActive, 14
	for _, p := range []*Packet{smp, sa, NewPerf(MethodGet, AttrPortCounters), NewVendor(ClassPing, OUIOpenIB, MethodGet, 0), NewSMP(MethodSet, AttrPortInfo, 1)} {
		b, err := p.Marshal()
		must(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Parse(b)
		if err != nil {
			return
		}
		_, _ = p.String(), p.Err()
		_, _ = Table[NodeRecord](p)
		for a := range attributes() {
			p.Attribute = a.ID()
			_, _ = Records(p, a)
			if n, ok := a.(*Notice); ok {
				_ = n.String()
			}
		}
		for a := range attributes() {
			p.Attribute = a.ID()
			if p.Decode(a) != nil {
				continue
			}
			if _, err := Marshal(a); err != nil {
				t.Errorf("%T: %v", a, err)
			}
		}
		first, err := p.Marshal()
		must(t, err)
		q, err := Parse(first)
		must(t, err)
		second, err := q.Marshal()
		if err != nil || !bytes.Equal(first, second) {
			t.Errorf("%v, then %v: %x and %x", p, err, first, second)
		}
	})
}
