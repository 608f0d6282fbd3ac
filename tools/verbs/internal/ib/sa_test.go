package ib

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/goverbs/goverbs/test/ibsim"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
	"github.com/goverbs/goverbs/uverbs/umad/sa"
)

// TestSA checks the request of "verbs ib sa", and its output as a table, as JSON and with --compat.
func TestSA(t *testing.T) {
	s := newSubnet(func(req *mad.Packet, to umad.Addr) *mad.Packet {
		switch req.Attribute {
		case mad.AttrNodeRecord:
			return ibsim.Records(req,
				&mad.NodeRecord{LID: 1, NodeInfo: mad.NodeInfo{NodeType: ib.NodeCA, PortGUID: 0x2c90300000001}, NodeDescription: mad.NodeDescription{NodeString: "host 1"}},
				&mad.NodeRecord{LID: 2, NodeInfo: mad.NodeInfo{NodeType: ib.NodeSwitch}, NodeDescription: mad.NodeDescription{NodeString: "bad\x1b[2J"}})
		case mad.AttrLinearForwardingTableRecord:
			r := &mad.LinearForwardingTableRecord{LID: 2, BlockNum: 1}
			for i := range r.LinearForwardingTable.Port {
				r.LinearForwardingTable.Port[i] = 255
			}
			r.LinearForwardingTable.Port[3] = 17
			return ibsim.Records(req, r)
		case mad.AttrClassPortInfo:
			return ibsim.Records(req, &mad.ClassPortInfo{ClassVersion: 2, CapabilityMask: 0x2602})
		case mad.AttrSLtoVLTableRecord:
			return ibsim.Records(req, &mad.SLtoVLTableRecord{LID: 2, InputPortNum: 36, OutputPortNum: 1, SLtoVLTable: mad.SLtoVLTable{VL: [16]uint8{1: 7, 15: 15}}})
		case mad.AttrVLArbitrationTableRecord:
			r := &mad.VLArbitrationTableRecord{LID: 2, OutputPortNum: 36, BlockNum: 3}
			r.VLArbitrationTable.Entry[0] = mad.VLWeight{VL: 3, Weight: 4}
			r.VLArbitrationTable.Entry[31] = mad.VLWeight{VL: 14, Weight: 255}
			return ibsim.Records(req, r)
		case mad.AttrPathRecord:
			return ibsim.Records(req, &mad.PathRecord{SLID: 5, DLID: 1, MTU: 4, Rate: 7, SGID: ib.GID{0: 0xfe, 1: 0x80, 15: 5}})
		}
		return ibsim.Records(req)
	})
	ctx := t.Context()
	out, err := run(ctx, s.system(), "sa", "node", "node_type=switch", "lid=2", "--sm-key", "0x11")
	has(t, out, err, "lid node_type num_ports", "1 CA 0 0000:0000:0000:0000 0002:c903:0000:0001 0 host 1", `2 switch 0`, `"bad\x1b[2J"`)
	if req := s.requests()[0]; req.SA.ComponentMask != mad.NodeLID|mad.NodeNodeType || req.Data[1] != 2 || req.Data[6] != 2 || req.SA.SMKey != 0x11 || req.Method != mad.MethodGetTable {
		t.Errorf("%+v", req)
	}
	out, err = run(ctx, s.system(), "sa", "node", "--compat")
	has(t, out, err, "NodeRecord dump: lid.....................1 reserved................0x0", "port_guid...............0x0002c90300000001", "NodeDescription.........bad [2J")
	out, err = run(ctx, s.system(), "sa", "lft")
	has(t, out, err, "lid block_num ports 2 1 67>17")
	out, err = run(ctx, s.system(), "sa", "lft", "--compat")
	has(t, out, err, "LFT Record dump:", "Block......................1 LFT: LID Port Number 64 255 65 255 66 255 67 17 68 255")
	out, err = run(ctx, s.system(), "sa", "sl2vl", "lid=2", "output_port_num=1")
	has(t, out, err, "lid input_port_num output_port_num vls 2 36 1 0:0 1:7 2:0 3:0 4:0 5:0 6:0 7:0 8:0 9:0 10:0 11:0 12:0 13:0 14:0 15:15")
	out, err = run(ctx, s.system(), "sa", "sl2vl", "--compat")
	has(t, out, err, "SL2VLTableRecord dump: LID........................2 InPort.....................36 OutPort....................1 SL: 0| 1|", "VL: 0| 7| 0| 0|", "| 0|15|")
	out, err = run(ctx, s.system(), "sa", "vlarb")
	has(t, out, err, "lid output_port_num block_num entries 2 36 3 3:4 14:255")
	out, err = run(ctx, s.system(), "sa", "vlarb", "--json")
	has(t, out, err, `"entries": [ { "vl": 3, "weight": 4 }, { "vl": 0, "weight": 0 },`)
	out, err = run(ctx, s.system(), "sa", "vlarb", "--compat")
	has(t, out, err, "VLArbTableRecord dump: LID........................2 Port.......................36 Block......................3 VL : 3| 0|", "Weight: 4| 0| 0|", "| 0|14| Weight: 0|", "| 0|255|")
	out, err = run(ctx, s.system(), "sa", "class")
	has(t, out, err, "2 0x2602 0x00000000")
	out, err = run(ctx, s.system(), "sa", "group")
	has(t, out, err, "mgid mlid")
	out, err = run(ctx, s.system(), "sa", "group", "--json")
	has(t, out, err, "[]")
	out, err = run(ctx, s.system(), "sa", "path", "--json")
	var paths []struct {
		SLID uint16  `json:"slid"`
		SGID string  `json:"sgid"`
		MTU  int     `json:"mtu"`
		Rate float64 `json:"rate_gbps"`
		PKey string  `json:"p_key"`
	}
	if err := errors.Join(err, json.Unmarshal([]byte(out), &paths)); err != nil || len(paths) != 1 || paths[0].SLID != 5 || paths[0].MTU != 2048 ||
		paths[0].Rate != 40 || paths[0].SGID != "fe80:0000:0000:0000:0000:0000:0000:0005" || paths[0].PKey != "0x0000" {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestSAErrors: mistakes on the command line, and failures.
func TestSAErrors(t *testing.T) {
	s := newSubnet(func(req *mad.Packet, _ umad.Addr) *mad.Packet {
		p := req.Reply()
		p.Status = 0x700
		return p
	})
	for args, want := range map[string]string{
		"sa":                         "RECORD is missing, allowed: node, port, path",
		"sa nodes":                   `RECORD is "nodes", allowed: node, port, path`,
		"sa node lid":                `the condition for node is "lid", allowed: KEY=VALUE with a KEY of lid, base_version`,
		"sa node ports=1":            `the condition for node is "ports=1"`,
		"sa node lid=x":              `lid is "x", allowed: 0 to 65535`,
		"sa node lid=65536":          `lid is "65536", allowed: 0 to 65535`,
		"sa node node_type=hub":      `node_type is "hub", allowed: CA, switch, router, 1 to 3`,
		"sa node port_guid=7":        `port_guid is "7", allowed: a GUID`,
		"sa path sgid=1":             `sgid is "1", allowed: a GID`,
		"sa path sgid=fe80::1%eth0":  `allowed: a GID`,
		"sa path reversible=perhaps": `reversible is "perhaps", allowed: true, false`,
		"sa service service_key=1":   `service_key is "1", allowed: 0x and 32 hexadecimal digits`,
		"sa node --sm-key x":         `--sm-key is "x", allowed: a number of 64 bits`,
		"sa path sl=16":              `sl is "16", allowed: 0 to 15`,
		"sa node vendor_id=16777216": `vendor_id is "16777216", allowed: 0 to 16777215`,
		"sa port port_state=UP":      `port_state is "UP", allowed: DOWN, INIT, ARMED, ACTIVE, 1 to 4`,
		"sa port m_key=-1":           `m_key is "-1", allowed: 0 to 18446744073709551615`,
		"sa class x=1":               `the condition for class is "x=1", allowed: none`,
		"sa node port_guid=:::":      `port_guid is ":::", allowed: a GUID`,
		"sa node --json --compat":    "--json is given with --compat, allowed: one of them",
		"ping --serve --json":        "--json is given with --serve, allowed: one of them",
		"status --compat --json":     "--json is given with --compat, allowed: one of them",
		"counters 0xc000":            `the destination is "0xc000", allowed: a LID of 1 to 49151, or a GUID`,
		"counters :::":               `the destination is ":::"`,
		"ping 1:2::3":                `the destination is "1:2::3"`,
		"sm 0":                       `the LID is "0", allowed: 1 to 49151`,
		"sm 0xc000":                  "allowed: 1 to 49151",
		"sm 1 --all":                 "--all is given with a LID",
		"counters 1 0-255":           `PORTS is "0-255", allowed`,
		"counters 1 3-1":             "allowed: numbers from 0 to 254",
		"counters 1 3-":              "allowed: numbers from 0 to 254",
		"counters 1 x":               "allowed: numbers from 0 to 254",
		"counters zebra":             `the destination is "zebra", allowed: a LID of 1 to 49151, or a GUID`,
		"ping":                       "the destination is missing",
		"ping --serve 3":             "a destination is given with --serve",
		"ping 1 --interval -1s":      "--interval is -1s, allowed: 0s and more",
		"ping 65535":                 `the destination is "65535"`,
		"ping 0x12345678901234567":   `the destination is`,
		"ping 1:2:3:4:5":             `the destination is`,
	} {
		_, err := run(t.Context(), s.system(), strings.Fields(args)...)
		wantErr(t, err, want, true)
	}
	_, err := run(t.Context(), s.system(), "sa", "node", "node_string="+strings.Repeat("x", 65))
	wantErr(t, err, `allowed: a text of up to 64 bytes`, true)
	_, err = run(t.Context(), s.system(), "sa", "node")
	wantErr(t, err, "request denied", false)
	s.own.MasterSMLID = 0
	for _, args := range []string{"sa node", "sm"} {
		var e *umad.Error
		if _, err := run(t.Context(), s.system(), strings.Fields(args)...); !errors.Is(err, sa.ErrNoSM) || !errors.As(err, &e) || e.Device != "mem0" || e.Port != 1 {
			t.Errorf("%s: %v", args, err)
		}
	}
	s.own.LID = 0
	var e *umad.Error
	if _, err := run(t.Context(), s.system(), "counters"); !errors.Is(err, sa.ErrNoSM) || !errors.As(err, &e) || e.Device != "mem0" || e.Port != 1 {
		t.Error(err)
	}
	s.noQP0 = true
	if _, err := run(t.Context(), s.system(), "sa", "node"); !errors.Is(err, umad.ErrNoQP0) {
		t.Error(err)
	}
}

// TestSAWords: conditions are words of the JSON, or their numbers.
func TestSAWords(t *testing.T) {
	s := newSubnet(func(req *mad.Packet, _ umad.Addr) *mad.Packet { return ibsim.Records(req) })
	for _, c := range []struct {
		args string
		at   int
		want string // bytes of the record
	}{
		{"sa port port_state=ACTIVE port_physical_state=link_up", 36, "\x04\x50"},
		{"sa port port_state=0x2", 36, ""},
		{"sa port port_state=2 port_physical_state=3", 36, "\x02\x30"},
		{"sa node node_type=Router", 6, "\x03"},
		{"sa service service_key=0x00112233445566778899aabbccddeeff", 32, "\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff"},
		{"sa path sl=15", 53, "\x0f"},
	} {
		_, err := run(t.Context(), s.system(), strings.Fields(c.args)...)
		sent := s.requests()
		if c.want == "" {
			wantErr(t, err, "allowed: DOWN", true)
		} else if err != nil || len(sent) != 1 || string(sent[0].Data[c.at:c.at+len(c.want)]) != c.want {
			t.Errorf("%s: %v, %+v", c.args, err, sent)
		}
	}
}

// TestKeys: keys and masks are hexadecimal; what counts or limits them are numbers.
func TestKeys(t *testing.T) {
	for _, o := range []object{objectOf(&mad.PortInfoRecord{}), objectOf(&mad.PKeyTableRecord{}), objectOf(&mad.ServiceRecord{}), objectOf(&mad.MulticastForwardingTableRecord{})} {
		for _, m := range o {
			value := m.value
			if list, ok := value.([]any); ok {
				value = list[0]
			}
			text, ok := value.(string)
			switch m.key {
			case "m_key", "p_keys", "service_p_key", "service_key", "service_id", "gid_prefix", "capability_mask", "capability_mask2", "port_masks":
				if !ok || !strings.HasPrefix(text, "0x") {
					t.Errorf("%s is %v", m.key, m.value)
				}
			case "service_gid", "service_name", "port_state", "port_physical_state":
			default:
				if ok {
					t.Errorf("%s is %q, want a number", m.key, text)
				}
			}
		}
	}
}

// TestRates: the last number of the specification has a rate, and a number without a rate returns
// 0.
func TestRates(t *testing.T) {
	for n, want := range map[uint8]any{24: 1200.0, 23: 800.0, 2: 2.5, 1: 0.0, 25: 0} {
		if got := objectOf(&mad.PathRecord{Rate: n}).text("rate_gbps"); got != fmt.Sprint(want) {
			t.Errorf("rate %d is %s, want %v", n, got, want)
		}
	}
}

// TestSAHostile: whatever the SA answers, the command ends with an error or prints something.
func TestSAHostile(t *testing.T) { synctest.Test(t, testSAHostile) }

func testSAHostile(t *testing.T) {
	var change func(p *mad.Packet) *mad.Packet
	s := newSubnet(func(req *mad.Packet, _ umad.Addr) *mad.Packet {
		return change(ibsim.Records(req, &mad.NodeRecord{LID: 1}))
	})
	for name, c := range map[string]struct {
		change func(p *mad.Packet) *mad.Packet
		want   error
	}{
		"offset 0": {func(p *mad.Packet) *mad.Packet { p.SA.AttributeOffset = 0; return p }, io.ErrUnexpectedEOF},
		"cut":      {func(p *mad.Packet) *mad.Packet { p.Data = p.Data[:30]; return p }, io.ErrUnexpectedEOF},
		"silent":   {func(*mad.Packet) *mad.Packet { return nil }, os.ErrDeadlineExceeded},
		"huge":     {func(p *mad.Packet) *mad.Packet { p.SA.AttributeOffset = 0xffff; return p }, nil},
	} {
		change = c.change
		for _, form := range []string{"--compat", "--json", "--tries=1"} {
			if out, err := run(t.Context(), s.system(), "sa", "node", "--timeout", "20ms", form); !errors.Is(err, c.want) || err == nil && !strings.Contains(out, "1") {
				t.Errorf("%s %s: %v\n%s", name, form, err, out)
			}
		}
	}
}

// TestWords: libibmad's names of values, as they are in its source.
func TestWords(t *testing.T) {
	for _, c := range []struct {
		form string
		n    uint64
		want string
	}{
		{"widths", 2, "4X"}, {"widths", 3, "1X or 4X"}, {"widths", 0, "undefined (0)"}, {"widths", 33, "1X or undefined (33)"},
		{"widthsup", 2, "4X (IBA extension)"}, {"widthsup", 3, "1X or 4X"}, {"widthsup", 31, "1X or 4X or 8X or 12X or 2X"}, {"widthsup", 0, "undefined (0) (IBA extension)"},
		{"width", 16, "2X"}, {"width", 3, "undefined (3)"},
		{"speeds", 4, "10.0 Gbps (IBA extension)"}, {"speeds", 7, "2.5 Gbps or 5.0 Gbps or 10.0 Gbps"}, {"speeds", 8, "undefined (8)"}, {"speeds", 0, "undefined (0) (IBA extension)"},
		{"speed", 0, "Extended speed"}, {"speed", 4, "10.0 Gbps"}, {"speed", 3, "undefined (3)"},
		{"extspeed", 0, "No Extended Speed"}, {"extspeed", 8, "106.25 Gbps"}, {"extspeeds", 0, "0"}, {"extspeeds", 6, "25.78125 Gbps or 53.125 Gbps"},
		{"extspeedsen", 30, "Extended link speeds disabled"}, {"extspeedsen", 1, "14.0625 Gbps"}, {"extspeeds", 17, "14.0625 Gbps or undefined (17)"},
		{"state", 4, "Active"}, {"state", 5, "?(5)"}, {"mtu", 0, "?(0)"}, {"mtu", 5, "4096"}, {"opervls", 0, "No change"}, {"vlcap", 0, "?(0)"}, {"node", 9, "?(9)?"},
		{"capmask", 0, "0x0"}, {"capmask", 1 << 13, "0x2000"}, {"capmask", 1<<31 | 2, "0x80000002\n\t\t\t\tIsSM\n\t\t\t\tIsHierarchyInfoSupported"},
		{"extspeed", 32, "212.5 Gbps"}, {"ext2", 0, "No Extended Speed 2"}, {"ext2", 1, "212.5 Gbps"}, {"ext2s", 1, "212.5 Gbps"}, {"ext2s", 3, " undefined (3)"},
		{"capmask2", 1 << 10, "0x400\n\t\t\t\tIsLinkSpeedNDRSupported"}, {"capmask2", 1 << 15, "0x8000"},
	} {
		if got := words[c.form](c.n); got != c.want {
			t.Errorf("%s of %d is %q, want %q", c.form, c.n, got, c.want)
		}
	}
}

// TestFilters: the fields of conditions exist, and so do those of tables.
func TestFilters(t *testing.T) {
	keys := RecordKeys()
	for _, k := range kinds {
		for key, bit := range k.filterBits() {
			if !slices.Contains(keys[k.name], key) || bit < 0 || bit > 17 {
				t.Errorf("%s: condition %s, component %d", k.name, key, bit)
			}
		}
		for _, key := range strings.Fields(k.columns) {
			if !slices.Contains(keys[k.name], key) {
				t.Errorf("%s: column %s", k.name, key)
			}
		}
		if got := slices.Compact(slices.Sorted(slices.Values(keys[k.name]))); len(got) != len(keys[k.name]) {
			t.Errorf("%s: two fields have the same key: %v", k.name, keys[k.name])
		}
	}
	for key, want := range map[string]mad.Mask{
		"node lid": mad.NodeLID, "node port_guid": mad.NodePortGUID, "node node_string": mad.NodeNodeDescription, "port port_num": mad.PortPortNum,
		"path numb_path": mad.PathNumbPath, "path sl": mad.PathSL, "group mlid": mad.MCMLID, "group proxy_join": mad.MCProxyJoin, "service service_name": mad.ServiceName,
		"link to_lid": mad.LinkToLID, "switch lid": mad.SwitchLID, "lft block_num": mad.LinearBlockNum, "mft block_num": mad.MulticastBlockNum,
		"mft position": mad.MulticastPosition, "guid block_num": mad.GUIDInfoBlockNum, "pkey port_num": mad.PKeyTablePortNum, "sm lid": mad.SMLID,
		"sl2vl input_port_num": mad.SLtoVLTableInputPortNum, "sl2vl output_port_num": mad.SLtoVLTableOutputPortNum,
		"vlarb output_port_num": mad.VLArbitrationOutputPortNum, "vlarb block_num": mad.VLArbitrationBlockNum, "inform subscriber_gid": mad.InformSubscriberGID,
	} {
		words := strings.Fields(key)
		i := slices.IndexFunc(kinds, func(k *kind) bool { return k.name == words[0] })
		if got := mad.Mask(1) << kinds[i].filterBits()[words[1]]; got != want {
			t.Errorf("%s is %#x, want %#x", key, got, want)
		}
	}
}

// FuzzCompat writes any bytes as each kind of record: nothing panics, and nothing unprintable is written.
func FuzzCompat(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte(strings.Repeat("\xff", 200)))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, k := range kinds {
			text := k.compat(b)
			if i := strings.IndexFunc(text, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r > '~' }); i >= 0 || text == "" {
				t.Errorf("%s: %q", k.name, text)
			}
			record := reflect.New(reflect.TypeOf(k.zero).Elem()).Interface().(mad.Attribute)
			if mad.Unmarshal(b, record) == nil {
				if out, err := json.Marshal(objectOf(record)); err != nil || !json.Valid(out) {
					t.Errorf("%s: %v: %s", k.name, err, out)
				}
				_ = printRecords(io.Discard, k, []mad.Attribute{record})
			}
		}
		_ = fmt.Sprint(dotted("", 0, countersOf).expand(b))
	})
}
