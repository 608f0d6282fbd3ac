package ib

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/test/ibsim"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// TestPort: what is known of a port, as a table and as JSON, by route, by LID and of the own port.
func TestPort(t *testing.T) {
	m := (&line{length: 2, narrow: "host2"}).system()
	want := `field value
node switch2
port 1
LID 3
LMC 0
SM LID 0
state ACTIVE
physical LINK_UP
rate 1X QDR
could be 4X EDR
widths supported 1X,4X
widths enabled 1X,4X
speeds supported SDR,DDR,QDR,FDR,EDR
speeds enabled SDR,DDR,QDR,FDR,EDR
peer host2 port 1, LID 4`
	if diff := cmp.Diff(columns(must(t, m, "port", "0,1,2", "1")), want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	var row PortRow
	if err := json.Unmarshal([]byte(must(t, m, "port", "--json")), &row); err != nil || row.Node != "host1" || row.Port != 1 || row.LID != 2 || row.Speed != "EDR" || len(row.SpeedsEnabled) != 5 || row.Peer != nil {
		t.Errorf("%+v, %v", row, err)
	}
	if err := json.Unmarshal([]byte(must(t, m, "port", "--json", "4", "1")), &row); err != nil || row.Node != "host2" || row.Speed != "QDR" || row.CouldWidth != 0 {
		t.Errorf("%+v, %v", row, err)
	}
}

// TestPortNeighbor: a neighbor that does not answer hides nothing of the port.
func TestPortNeighbor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := (&line{length: 2, silent: func(node string, _ *mad.Packet) bool { return node == "host2" }}).system()
		out, errs, err := execute(t, m, "port", "0,1,2", "1", "--timeout", "20ms", "--tries", "1")
		if err != nil || !strings.Contains(columns(out), "rate 4X EDR\n") || !strings.Contains(columns(out), "peer -") ||
			!strings.Contains(errs, `verbs: the neighbor of switch "switch2" port 1: `) {
			t.Errorf("%v\n%s%s", err, out, errs)
		}
	})
}

// TestPortSet: what each action writes into PortInfo, in bytes.
func TestPortSet(t *testing.T) {
	type set struct {
		state, phys, width, speed, ext, ext2 uint64
		modifier                             uint32
	}
	xdr := func(port uint8, i *mad.PortInfo) {
		i.CapabilityMask, i.CapabilityMask2 = mad.CapExtSpeeds|mad.CapMask2, mad.Cap2ExtSpeeds2
		i.LinkSpeedExtSupported, i.LinkSpeedExtSupported2, i.LinkSpeedExtActive2 = 15, 1, 1
	}
	old := func(port uint8, i *mad.PortInfo) { i.CapabilityMask, i.LinkSpeedExtSupported = 0, 0 }
	const ext = 1 << 31
	for _, c := range []struct {
		edit   func(port uint8, i *mad.PortInfo)
		action string
		want   set
	}{
		{nil, "disable", set{phys: 3, modifier: ext | 1}},
		{nil, "enable", set{phys: 2, modifier: ext | 1}},
		{nil, "reset", set{phys: 2, modifier: ext | 1}},
		{nil, "down", set{state: 1, modifier: ext | 1}},
		{nil, "arm", set{state: 3, modifier: ext | 1}},
		{nil, "active", set{state: 4, modifier: ext | 1}},
		{nil, "speed all", set{speed: 15, ext: 31, modifier: ext | 1}},
		{nil, "speed sdr,qdr", set{speed: 5, ext: 30, modifier: ext | 1}},
		{nil, "speed FDR,EDR reset", set{phys: 2, ext: 3, modifier: ext | 1}},
		{nil, "width 4X,1X", set{width: 3, modifier: ext | 1}},
		{nil, "width all speed DDR,EDR", set{width: 255, speed: 2, ext: 2, modifier: ext | 1}},
		{old, "speed all", set{speed: 15, modifier: 1}},
		{old, "speed DDR", set{speed: 2, modifier: 1}},
		{xdr, "speed all", set{speed: 15, ext: 31, ext2: 1, modifier: ext | 1}},
		{xdr, "speed HDR,XDR", set{ext: 4, ext2: 1, modifier: ext | 1}},
		{xdr, "speed SDR,XDR", set{speed: 1, ext: 30, ext2: 1, modifier: ext | 1}},
	} {
		l := &line{length: 2, edit: c.edit}
		must(t, l.system(), append([]string{"port", "3", "1", "--yes", "--mkey", "0x77"}, strings.Fields(c.action)...)...)
		if len(l.sets) != 1 || l.sets[0].SMP.MKey != 0x77 || l.sets[0].Class != mad.ClassSubnLID {
			t.Errorf("%s: %v", c.action, l.sets)
			continue
		}
		b := l.sets[0].Data
		got := set{bitsOf(b, 32*8+4, 4), bitsOf(b, 33*8, 4), bitsOf(b, 29*8, 8), bitsOf(b, 35*8+4, 4), bitsOf(b, 63*8+3, 5), bitsOf(b, 56*8+5, 3), l.sets[0].Modifier}
		if got != c.want || bitsOf(b, 16*8, 16) != 0x1234 || bitsOf(b, 30*8, 8) != 3 {
			t.Errorf("%s writes %+v, want %+v: %x", c.action, got, c.want, b)
		}
	}
	for action, want := range map[string]string{
		"speed HDR": `speed has HDR, allowed for switch "switch2" port 1: SDR|DDR|QDR|FDR|EDR`, "width 12X": `width has [12X], allowed for switch "switch2" port 1: [1X 4X]`,
	} {
		l := &line{length: 2}
		_, _, err := execute(t, l.system(), append([]string{"port", "3", "1"}, strings.Fields(action)...)...)
		if !errors.As(err, new(command.UsageError)) || err.Error() != want || len(l.sets) != 0 {
			t.Errorf("%s: %v, want %s", action, err, want)
		}
	}
	l := &line{length: 2, edit: xdr}
	if _, _, err := execute(t, l.system(), "port", "3", "1", "speed", "NDR"); err == nil || !strings.Contains(err.Error(), "no value is known that disables it") || len(l.sets) != 0 {
		t.Errorf("speed NDR of a port with XDR: %v", err)
	}
}

// TestPortConfirm: the command asks before it takes down a link of this host, and only then.
func TestPortConfirm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			args  string
			asked string // a part of the question
		}{
			{"0 1 disable", "it is a port of this host"},
			{"0,1 1 reset", "its link leads to this host"},
			{"0,1 1 enable", "its link leads to this host"},
			{"0,1 1 down", "its link leads to this host"},
			{"0,1 1 disable --yes", ""},
			{"0,1 1 speed EDR", ""},
			{"0,1 1 arm", ""},
			{"0,1 2 disable", ""},                                  // to switch2
			{"0,1 5 disable", ""},                                  // no link
			{"0,1,2 1 disable", "its neighbor may be this host: "}, // silent
		} {
			for _, answer := range []bool{true, false} {
				l := &line{length: 2, silent: func(node string, _ *mad.Packet) bool { return node == "host2" }}
				m := l.system()
				var questions []string
				m.Confirm = func(question string) (bool, error) { questions = append(questions, question); return answer, nil }
				_, _, err := execute(t, m, strings.Fields("port --timeout 20ms --tries 1 "+c.args)...)
				asked := fmt.Sprint(questions)
				if (len(questions) == 1) != (c.asked != "") || !strings.Contains(asked, c.asked) || c.asked != "" && !strings.Contains(asked, " takes down the link of ") {
					t.Errorf("%s: asked %q, want %q", c.args, questions, c.asked)
				}
				if done := answer || c.asked == ""; done != (len(l.sets) == 1) || done != (err == nil) || !done && err.Error() != "not confirmed, nothing was changed" {
					t.Errorf("%s, answered with %v: %d changes, %v", c.args, answer, len(l.sets), err)
				}
			}
		}
	})
	m := (&line{length: 1}).system()
	m.Own = func() ([]ib.GUID, error) { return nil, errors.New("netlink failed") }
	if _, _, err := execute(t, m, "port", "0", "1", "disable"); err == nil || err.Error() != "netlink failed" {
		t.Errorf("without the own devices: %v", err)
	}
}

// TestDestUsage: what is wrong about DEST, PORT and the rest is named, with what is allowed.
func TestDestUsage(t *testing.T) {
	m := (&line{length: 2}).system()
	for args, want := range map[string]string{
		"port 0,0 1":                        `the route is "0,0", allowed: 0, then up to 63 ports of 1 to 254`,
		"port 0,255":                        `the route is "0,255", allowed`,
		"port 0,":                           `the route is "0,", allowed`,
		"port 0" + strings.Repeat(",1", 64): "allowed: 0, then up to 63 ports",
		"port nosuch 1":                     `the destination is "nosuch", allowed: a LID of 1 to 49151, or a GUID`,
		"port 3 9":                          `PORT is "9", allowed: 0 to 8`,
		"port 3 -- -1":                      `PORT is "-1", allowed: 0 to 254`,
		"port 3 1 explode":                  `ACTION is "explode", allowed: query, enable, disable, reset, down, arm, active, speed S, width W`,
		"port 3 1 disable enable":           "ACTION is enable after disable, allowed: one action, besides speed and width",
		"port 3 1 speed":                    "the value of speed is missing",
		"port 3 1 speed FDR10":              `"FDR10" is not allowed: all, or some of SDR, DDR, QDR, FDR, EDR, HDR, NDR, XDR`,
		"port 3 1 width 3X":                 `"3X" is not allowed: all, or some of 1X, 4X, 8X, 12X, 2X`,
		"query":                             "WHAT is missing, allowed: node, desc, port, switch",
		"query nosuch":                      `WHAT is "nosuch", allowed: node, desc`,
		"query node 3 1":                    `PORT is "1", allowed: none with node`,
		"query pkey 3 1 2":                  "allowed: at most 3",
		"routes 3 0xc000":                   `FIRST is "0xc000", allowed: 1 to 0xbfff, or 0xc000`,
		"routes 3 0 9":                      `FIRST is "0", allowed: 1 to 0xbfff`,
		"routes 3 1 x":                      `LAST is "x", allowed: 1 to 0xbfff`,
		"routes 3 1 0":                      `LAST is "0", allowed: 1 to 0xbfff`,
		"routes 3 100 1":                    `LAST is "1", allowed: 100 and more, which is FIRST`,
		"routes -M 3 0xc001 0xc000":         `LAST is "0xc000", allowed: 0xc001 and more`,
		"routes 3 10":                       "FIRST is 10, allowed: up to 4, the highest LID in the table of switch2",
		"routes -M 3 0xffff":                "FIRST is 0xffff, allowed: up to 0xc",
		"routes -M 3 5":                     `FIRST is "5", allowed: 1 to 0xbfff, or 0xc000 to 0xffff with --multicast`,
	} {
		if _, _, err := execute(t, m, strings.Fields(args)...); !errors.As(err, new(command.UsageError)) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
	none := machine(errors.New("a device was looked for"))
	for _, args := range []string{"port x", "port 3 255", "port 0,1 x reset", "query node x", "query port 3 255", "routes x", "ping x", "counters x"} {
		if _, _, err := execute(t, none, strings.Fields(args)...); !errors.As(err, new(command.UsageError)) {
			t.Errorf("%s: %v, want an error about an argument before a device is looked for", args, err)
		}
	}
	for args, want := range map[string]string{
		"query switch 4": "Lid 4 is no switch, but of type CA", "routes 0": "DR path slid 65535; dlid 65535; 0 is no switch, but of type CA",
		"query fec 4": "Lid 4 has no PortInfoExtended: its CapabilityMask is 0x4000, CapabilityMask2 0x0",
	} {
		if _, _, err := execute(t, m, strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
}

// TestRoutes: the routes of one switch and of all, as a table and as JSON.
func TestRoutes(t *testing.T) {
	m := (&line{length: 2}).system()
	want := `switch LID ports to
switch1 1 0 switch1
switch1 2 1 host1
switch1 3 2 switch2
switch1 4 2 host2`
	if diff := cmp.Diff(columns(must(t, m, "routes", "0,1")), want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	var rows []RoutesRow
	if err := json.Unmarshal([]byte(must(t, m, "routes", "--json", "--all", "--numeric", "3", "3", "9")), &rows); err != nil || len(rows) != 1 || len(rows[0].Routes) != 2 ||
		rows[0].Node != "switch2" || rows[0].LID != 3 || fmt.Sprint(rows[0].Routes[1].Ports) != "[1]" || rows[0].Routes[1].Node != "" {
		t.Errorf("%+v, %v", rows, err)
	}
	if err := json.Unmarshal([]byte(must(t, m, "routes", "--json")), &rows); err != nil || len(rows) != 2 || rows[0].Node != "switch2" || rows[1].Routes[3].Node != "host2" {
		t.Errorf("%+v, %v", rows, err)
	}
}

// TestQueryModifiers: each table is the one of the ports and the block that its record names, and the record has its place.
func TestQueryModifiers(t *testing.T) {
	s := newSubnet(func(req *mad.Packet, to umad.Addr) *mad.Packet {
		mod := req.Modifier
		switch req.Attribute {
		case mad.AttrNodeInfo:
			return ibsim.Records(req, &mad.NodeInfo{NodeType: ib.NodeSwitch, NumPorts: 3})
		case mad.AttrSwitchInfo:
			return ibsim.Records(req, &mad.SwitchInfo{PartitionEnforcementCap: 40})
		case mad.AttrPortInfo:
			return ibsim.Records(req, &mad.PortInfo{GUIDCap: 9, VLArbitrationLowCap: 33, VLArbitrationHighCap: 64})
		case mad.AttrSLtoVLTable:
			return ibsim.Records(req, &mad.SLtoVLTable{VL: [16]uint8{uint8(mod >> 8), uint8(mod)}})
		case mad.AttrPKeyTable:
			return ibsim.Records(req, &mad.PKeyTable{PKey: [32]uint16{uint16(mod >> 16), uint16(mod)}})
		case mad.AttrGUIDInfo:
			return ibsim.Records(req, &mad.GUIDInfo{GUID: [8]ib.GUID{ib.GUID(mod)}})
		case mad.AttrVLArbitrationTable:
			return ibsim.Records(req, &mad.VLArbitrationTable{Entry: [32]mad.VLWeight{{VL: uint8(mod >> 16), Weight: uint8(mod)}}})
		}
		return refuse(req)
	})
	for args, want := range map[string]string{
		"sl2vl 5 2": "[5 0 2 [0 2] 5 1 2 [1 2] 5 2 2 [2 2] 5 3 2 [3 2]]",
		"pkey 5 2":  "[5 0 2 [0x0002 0x0000] 5 1 2 [0x0002 0x0001]]",
		"guid 5":    "[5 0 [0000:0000:0000:0000 0000:0000:0000:0000] 5 1 [0000:0000:0000:0001 0000:0000:0000:0000]]",
		"vlarb 5 2": "[5 2 1 [map[vl:1 weight:2] map[vl:0 weight:0]] 5 2 2 [map[vl:2 weight:2] map[vl:0 weight:0]] 5 2 3 [map[vl:3 weight:2] map[vl:0 weight:0]] 5 2 4 [map[vl:4 weight:2] map[vl:0 weight:0]]]",
	} {
		out, err := run(t.Context(), s.system(), append([]string{"query", "--json"}, strings.Fields(args)...)...)
		var rows []map[string]any
		if err := errors.Join(err, json.Unmarshal([]byte(out), &rows)); err != nil {
			t.Errorf("%s: %v", args, err)
			continue
		}
		var got []any
		for _, row := range rows {
			for _, key := range []string{"lid", "input_port_num", "output_port_num", "block_num", "port_num", "vls", "p_keys", "guids", "entries"} {
				v, ok := row[key]
				if list, isList := v.([]any); isList {
					v = list[:2]
				}
				if ok {
					got = append(got, v)
				}
			}
		}
		if text := fmt.Sprint(got); text != want {
			t.Errorf("%s: %s, want %s", args, text, want)
		}
	}
	out, err := run(t.Context(), s.system(), "query", "vlarb", "5", "--compat")
	has(t, out, err, "# No VLArbitration tables (BSP0): Lid 5 port 0")
}
