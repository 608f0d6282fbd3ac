package ib

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/goverbs/test/ibsim"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// TestSM asks the subnet manager by QP0, and the subnet administrator where QP0 reaches no other port, or for all.
func TestSM(t *testing.T) {
	info := mad.SMInfo{GUID: 0x2c9, Priority: 14, SMState: 3, ActCount: 33}
	s := newSubnet(func(req *mad.Packet, to umad.Addr) *mad.Packet {
		switch {
		case req.Class == mad.ClassSA:
			return ibsim.Records(req, &mad.SMInfoRecord{LID: 1, SMInfo: info}, &mad.SMInfoRecord{LID: 9, SMInfo: mad.SMInfo{SMState: 2}})
		case to.LID == 1:
			return ibsim.Records(req, &info)
		}
		return refuse(req)
	})
	out, err := run(t.Context(), s.system(), "sm")
	has(t, out, err, "LID GUID priority state activity", "1 0000:0000:0000:02c9 14 MASTER 33")
	out, err = run(t.Context(), s.system(), "sm", "--compat", "0x1")
	has(t, out, err, "sminfo: sm lid 1 sm guid 0x2c9, activity count 33 priority 14 state 3 SMINFO_MASTER")
	out, err = run(t.Context(), s.system(), "sm", "--all")
	has(t, out, err, "1 0000:0000:0000:02c9 14 MASTER 33", "9 0000:0000:0000:0000 0 STANDBY 0")
	_, err = run(t.Context(), s.system(), "sm", "7")
	wantErr(t, err, "no subnet manager runs at LID 7", false)
	out, err = run(t.Context(), s.system(), "sm", "--json")
	has(t, out, err, `"sm_state": "MASTER"`)
	s.noSMI = true
	out, err = run(t.Context(), s.system(), "sm")
	has(t, out, err, "1 0000:0000:0000:02c9 14 MASTER 33")
	if sent := s.requests(); sent[len(sent)-1].Class != mad.ClassSA || sent[len(sent)-1].SA.ComponentMask != mad.SMLID {
		t.Errorf("%+v", sent[len(sent)-1])
	}
	s.noSMI = false
	info.SMState = 7
	out, err = run(t.Context(), s.system(), "sm", "--compat")
	has(t, out, err, "state 7 ???")
	out, err = run(t.Context(), s.system(), "sm")
	has(t, out, err, "SMState(7)")
}

// pma answers requests for counters: port P has P errors and 2^31 words sent, and its counters can be reset.
type pma struct {
	capabilities uint16
	more         uint32
	ports        uint8
	reset        []*mad.Packet
	readOnly     bool
}

func (a *pma) answer(req *mad.Packet, to umad.Addr) *mad.Packet {
	port := req.Data[1]
	switch {
	case to.LID != 5:
		return nil
	case req.Class == mad.ClassSubnLID && req.Attribute == mad.AttrNodeInfo:
		return ibsim.Records(req, &mad.NodeInfo{NodeType: ib.NodeSwitch, NumPorts: a.ports})
	case req.Class == mad.ClassSubnLID:
		return ibsim.Records(req, &mad.SwitchInfo{EnhancedPort0: true})
	case req.Attribute == mad.AttrClassPortInfo:
		return ibsim.Records(req, &mad.ClassPortInfo{CapabilityMask: a.capabilities, CapabilityMask2: a.more})
	case req.Method == mad.MethodSet:
		if a.reset = append(a.reset, req); a.readOnly {
			return refuse(req)
		}
		fallthrough
	default:
		req.Method = mad.MethodGet
		if req.Attribute == mad.AttrPortCountersExtended {
			return ibsim.Records(req, &mad.PortCountersExtended{PortSelect: port, PortXmitData: 1 << 40, SymbolErrorCounter: 7})
		}
		return ibsim.Records(req, &mad.PortCounters{PortSelect: port, SymbolErrorCounter: uint16(port), LocalLinkIntegrityErrors: 9, PortXmitData: 1 << 31, PortXmitWait: 3})
	}
}

// TestCounters shows the counters of ports in all forms, adds them, and resets them.
func TestCounters(t *testing.T) {
	a := &pma{capabilities: mad.PerfXmitWait | mad.PerfExtended, ports: 3}
	s := newSubnet(a.answer)
	out, err := run(t.Context(), s.system(), "counters")
	has(t, out, err, "LID port counter value", "5 1 SymbolErrorCounter 1 5 1 LocalLinkIntegrityErrors 9 5 1 PortXmitData 2147483648 5 1 PortXmitWait 3")
	out, err = run(t.Context(), s.system(), "counters", "5", "--compat")
	has(t, out, err, "# Port counters: Lid 5 port 0 (CapMask: 0x1200)", "# Port counters: Lid 5 port 3 (CapMask: 0x1200) PortSelect:......................3 CounterSelect:...................0x0000 SymbolErrorCounter:..............3",
		"CounterSelect2:..................0x00", "PortXmitWait:....................3")
	if n := strings.Count(out, "# Port"); n != 4 {
		t.Errorf("%d ports", n)
	}
	out, err = run(t.Context(), s.system(), "counters", "5", "1-2,3", "--sum", "--json")
	var rows []CountersRow
	if err := errors.Join(err, json.Unmarshal([]byte(out), &rows)); err != nil || len(rows) != 1 || rows[0].Port != 255 {
		t.Fatalf("%v\n%s", err, out)
	}
	sum := map[string]uint64{}
	for _, c := range rows[0].Counters {
		sum[c.Name] = c.Value
	}
	if sum["SymbolErrorCounter"] != 6 || sum["LocalLinkIntegrityErrors"] != 15 || sum["PortXmitData"] != 1<<32-1 || sum["PortXmitWait"] != 9 || len(sum) != 18 {
		t.Errorf("the sum: %v", sum)
	}
	out, err = run(t.Context(), s.system(), "counters", "5", "2", "-x", "--compat")
	has(t, out, err, "# Port extended counters: Lid 5 port 2 (CapMask: 0x1200 CapMask2: 0x0000000)", "PortXmitData:....................1099511627776", "PortMulticastRcvPkts:............0")
	if strings.Contains(out, "SymbolErrorCounter") {
		t.Errorf("a counter that the agent does not have:\n%s", out)
	}
	a.more = mad.PerfAdditional
	out, err = run(t.Context(), s.system(), "counters", "5", "2", "-x", "--reset")
	has(t, out, err, "5 2 PortXmitData 1099511627776 5 2 SymbolErrorCounter 7")
	if len(a.reset) != 1 || a.reset[0].Data[1] != 2 || string(a.reset[0].Data[2:8]) != "\xff\xff\x00\x00\x1f\xff" {
		t.Errorf("reset %x", a.reset[0].Data)
	}
	out, err = run(t.Context(), s.system(), "counters", "5", "2", "-R")
	if err != nil || out != "" || len(a.reset) != 2 || string(a.reset[1].Data[1:4]) != "\x02\xff\xff" || a.reset[1].Data[18] != 1 {
		t.Errorf("%v\n%s%x", err, out, a.reset[1].Data)
	}
	a.readOnly = true
	out, err = run(t.Context(), s.system(), "counters", "5", "2", "-r")
	has(t, out, nil, "5 2 SymbolErrorCounter 2")
	wantErr(t, err, "PerfGetResp(PortCounters) has status 0xc", false)
	a.readOnly = false
	out, err = run(t.Context(), s.system(), "counters", "5", "3,2,1-3,2", "--sum")
	has(t, out, err, "5 all SymbolErrorCounter 6")
	a.capabilities = mad.PerfAllPorts
	out, err = run(t.Context(), s.system(), "counters", "5", "--sum", "--compat")
	has(t, out, err, "# Port counters: Lid 5 port 255 (CapMask: 0x100) PortSelect:......................255", "SymbolErrorCounter:..............255", "PortXmitWait:....................0")
	_, err = run(t.Context(), s.system(), "counters", "5", "-x")
	wantErr(t, err, "LID 5 has no counters of 64 bits", false)
	a.ports = 255
	out, err = run(t.Context(), s.system(), "counters", "5", "--json")
	if err := errors.Join(err, json.Unmarshal([]byte(out), &rows)); err != nil || len(rows) != 255 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
	_, err = run(t.Context(), s.system(), "counters", "6", "--timeout", "10ms")
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
}

// TestCountersFEC: the counters of error correction belong to the code that the port uses.
func TestCountersFEC(t *testing.T) {
	data := make([]byte, 152)
	for i := range data[16:] {
		data[16+i] = byte(16 + i)
	}
	mode, caps := uint16(2), uint16(perfRSFEC)
	var sets [][]byte
	s := newSubnet(func(req *mad.Packet, to umad.Addr) *mad.Packet {
		p := req.Reply()
		switch {
		case req.Attribute == mad.AttrClassPortInfo:
			if err := p.Put(&mad.ClassPortInfo{CapabilityMask: caps | mad.PerfAllPorts}); err != nil {
				t.Error(err)
			}
		case req.Attribute == mad.AttrPortInfoExtended:
			if err := p.Put(&portInfoExtended{CapMask: 1, FECModeActive: mode + uint16(req.Modifier/2)*2}); err != nil { // port 2 has another one than port 1
				t.Error(err)
			}
		case req.Attribute == mad.AttrNodeInfo:
			return ibsim.Records(req, &mad.NodeInfo{NodeType: ib.NodeCA, NumPorts: 2})
		case req.Attribute == mad.AttrPortExtendedSpeedsCounters:
			if req.Method == mad.MethodSet {
				sets = append(sets, req.Data)
			}
			p.Data = append([]byte{0, req.Data[1]}, data[2:]...)
		default:
			return refuse(req)
		}
		return p
	})
	out, err := run(t.Context(), s.system(), "counters", "5", "1", "--fec")
	has(t, out, err, "5 1 SyncHeaderErrorCounter 4113", "5 1 UnknownBlockCounter 4627", "5 1 FECCorrectableSymbolCtrLane0 741158447", "5 1 PortFECCorrectableBlockCtr 2358087311",
		"5 1 PortFECUncorrectableBlockCtr 2425459347", "5 1 PortFECCorrectedSymbolCtr 2492831383")
	if strings.Contains(out, "ErrorDetection") || strings.Count(out, "\n") != 1+2+12+3 {
		t.Errorf("with RS-FEC:\n%s", out)
	}
	out, err = run(t.Context(), s.system(), "counters", "5", "1,2", "--fec", "--sum") // modes 2 and 4
	has(t, out, err, "5 all SyncHeaderErrorCounter 8226")
	for _, c := range [][2]uint16{{perfRSFEC, 1}, {0, 2}} {
		caps, mode = c[0], c[1]
		out, err = run(t.Context(), s.system(), "counters", "5", "1", "--fec", "--compat", "--reset")
		has(t, out, err, "# PortExtendedSpeedsCounters counters: Lid 5 port 1 PortSelect:......................1 CounterSelect:...................0x0000000000000000 SyncHeaderErrorCounter:..........4113",
			"ErrorDetectionCounterLane0:......5141", "ErrorDetectionCounterLane11:.....10795", "FECCorrectableBlockCtrLane0:.....741158447", "FECUncorrectableBlockCtrLane11:..2290715275")
		if len(sets) != 1 || sets[0][1] != 1 || string(sets[0][8:16]) != strings.Repeat("\xff", 8) {
			t.Errorf("reset by %x", sets)
		}
		sets = nil
	}
	caps, mode = perfRSFEC, 0
	_, err = run(t.Context(), s.system(), "counters", "5", "--fec", "--sum")
	wantErr(t, err, "port 2 of LID 5 uses another error correction than port 1", false)
	_, err = run(t.Context(), s.system(), "counters", "5", "--fec", "-x")
	wantErr(t, err, "--fec is given with --extended, allowed: one of them", true)
}

// full is a writer without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// TestCountersShownFirst: the counters of all ports are printed before the first one is reset, since what a reset
// erases is known nowhere else. If they cannot be printed, none is reset.
func TestCountersShownFirst(t *testing.T) {
	for form, want := range map[string]string{"--dev=mem0": "5 3 PortXmitData 2147483648", "--json": `"lid": 5, "port": 3`, "--compat": "port 3 (CapMask", "--sum": "5 all PortXmitData 4294967295"} {
		a := &pma{ports: 3}
		var out bytes.Buffer
		s := newSubnet(func(req *mad.Packet, to umad.Addr) *mad.Packet {
			if req.Method == mad.MethodSet {
				has(t, out.String(), nil, want)
			}
			return a.answer(req, to)
		})
		if err := runTo(t.Context(), s.system(), &out, "counters", "5", "--reset", form); err != nil || len(a.reset) != 4 { // with port 0
			t.Errorf("%s: %v, %d resets", form, err, len(a.reset))
		}
		a.reset = nil
		if err := runTo(t.Context(), s.system(), full{}, "counters", "5", "--reset", form); !errors.Is(err, syscall.ENOSPC) || len(a.reset) != 0 {
			t.Errorf("%s without room for the text: %v, %d resets", form, err, len(a.reset))
		}
	}
}

// TestCountersByGUID finds the port by its GUID, and its number of ports without QP0, which can tell it.
func TestCountersByGUID(t *testing.T) {
	a := &pma{}
	s := newSubnet(func(req *mad.Packet, to umad.Addr) *mad.Packet {
		if req.Class == mad.ClassSA && req.Attribute == mad.AttrNodeRecord {
			return ibsim.Records(req, &mad.NodeRecord{LID: 5, NodeInfo: mad.NodeInfo{NumPorts: 2}})
		}
		if req.Class == mad.ClassSA {
			return ibsim.Records(req, &mad.PathRecord{SL: 6})
		}
		if to.SL != 6 {
			return nil
		}
		return a.answer(req, to)
	})
	out, err := run(t.Context(), s.system(), "counters", "0002:c903:1:1", "1")
	has(t, out, err, "5 1 SymbolErrorCounter 1")
	s.noSMI = true
	out, err = run(t.Context(), s.system(), "counters", "0x2c90300010001")
	has(t, out, err, "5 1 SymbolErrorCounter 1", "5 2 SymbolErrorCounter 2")
	if strings.Contains(out, "5 0 ") || strings.Contains(out, "5 3 ") {
		t.Errorf("ports that the node does not have:\n%s", out)
	}
}

// TestCounterPlaces: each counter is where the format of package mad has it.
func TestCounterPlaces(t *testing.T) {
	for _, c := range []struct {
		lines string
		a     mad.Attribute
	}{{countersOf, &mad.PortCounters{}}, {extended + extendedIETF + extendedMore, &mad.PortCountersExtended{}}} {
		v := reflect.ValueOf(c.a).Elem()
		want := map[string]uint64{}
		for i := range v.NumField() {
			n := uint64(i) // fits in 4 bits where a field has so few
			if v.Type().Field(i).Type.Size() > 1 {
				n |= 0x100
			}
			switch name := v.Type().Field(i).Name; {
			case name == "LocalLinkIntegrityErrors", name == "ExcessiveBufferOverrunErrors":
				n &= 15
			case name == "CounterSelect2", name == "CounterSelect", name == "PortSelect":
				v.Field(i).SetUint(n)
				continue
			default:
			}
			v.Field(i).SetUint(n)
			want[v.Type().Field(i).Name] = n
		}
		b, err := mad.Marshal(c.a)
		if err != nil {
			t.Fatal(err)
		}
		n := &node{flags: &counterFlags{}, lines: c.lines}
		n.add(CountersRow{data: append(b, make([]byte, mad.Size-len(b))...)})
		got := map[string]uint64{}
		for _, counter := range n.rows[0].Counters {
			got[counter.Name] = counter.Value
		}
		if !maps.Equal(got, want) || len(want) < 18 {
			t.Errorf("%T: %v, want %v", c.a, got, want)
		}
	}
}

// TestPing pings a port that answers, one that does not, one that serves none, and one where it fails.
func TestPing(t *testing.T) {
	s := newSubnet(func(req *mad.Packet, to umad.Addr) *mad.Packet {
		switch to.LID {
		case 7:
			if req.Class != mad.ClassPing || req.OUI != mad.OUIOpenIB || req.Method != mad.MethodGet || req.Attribute != 0 {
				t.Errorf("%+v", req)
			}
			p := req.Reply()
			p.Data = []byte("host 7\x00rest")
			return p
		case 8:
			return refuse(req)
		}
		return nil
	})
	out, err := run(t.Context(), s.system(), "ping", "7", "-c", "3", "--interval", "1ms")
	has(t, out, err, "Pong from host 7 (LID 7): time ", "host 7 (LID 7): 3 sent, 3 received, 0% lost, ", "round trip min/avg/max = ")
	out, err = run(t.Context(), s.system(), "ping", "7", "-c", "100", "-f", "--json")
	var r PingResult
	if err := errors.Join(err, json.Unmarshal([]byte(out), &r)); err != nil || r.Sent != 100 || r.Received != 100 || r.Host != "host 7" || r.Device != "mem0" || r.Port != 1 ||
		r.MinUS <= 0 || r.AvgUS < r.MinUS || r.MaxUS < r.AvgUS || r.Seconds*1e6 < 100*r.AvgUS {
		t.Errorf("%+v, %v", r, err)
	}
	out, err = run(t.Context(), s.system(), "ping", "8", "-c", "2", "-f", "--json")
	wantErr(t, err, "LID 8 answers, but serves no pings", false)
	if json.Unmarshal([]byte(out), &r) != nil || r.Received != 0 || r.Sent != 2 || r.Reason == "" {
		t.Errorf("%+v\n%s", r, out)
	}
	out, err = run(t.Context(), s.system(), "ping", "9", "-c", "2", "--timeout", "5ms", "-q", "-f")
	wantErr(t, err, "no answer from LID 9", false)
	has(t, out, nil, "2 sent, 0 received, 100% lost")
	if n := len(s.requests()); n != 3+100+2+2 {
		t.Errorf("%d requests", n) // each ping is sent once
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	out, err = run(ctx, s.system(), "ping", "7", "--interval", "10ms")
	has(t, out, err, "0% lost")
}

// TestPingTimes: after an outage pings keep their interval, and the time of a run ends with its last answer.
func TestPingTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var at []time.Duration
		s := newSubnet(func(req *mad.Packet, to umad.Addr) *mad.Packet {
			if at = append(at, time.Since(start)); len(at) == 1 || to.LID == 9 {
				return nil
			}
			return req.Reply()
		})
		out, err := run(t.Context(), s.system(), "ping", "7", "-c", "5", "--timeout", "4500ms")
		has(t, out, err, "no answer from LID 7", "Pong from LID 7: time ", fmt.Sprintf("LID 7: 5 sent, 4 received, 20%% lost, %.3f s", at[4].Seconds()))
		if at[1] < 4500*time.Millisecond || at[2]-at[1] != time.Second || at[3]-at[2] != time.Second || at[4]-at[3] != time.Second {
			t.Errorf("pings at %v, want 4.5 s or more, and then one each second", at)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		out, err = run(ctx, s.system(), "ping", "7", "--interval", "1m")
		has(t, out, err, "2 sent, 2 received, 0% lost, 60.000 s")
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		out, err = run(ctx, s.system(), "ping", "9", "--timeout", "5s")
		wantErr(t, err, "no ping was answered: interrupted before an answer", false)
		if want := "\nLID 9: 0 sent, 0 received, 0% lost, 0.000 s\n"; out != want {
			t.Errorf("%q, want %q", out, want)
		}
	})
}

// TestPingServer checks that the server answers with the name of the host and prints a line for each new client.
func TestPingServer(t *testing.T) {
	s := newSubnet(nil)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out string
	ended := make(chan error)
	sys := s.system()
	go func() {
		var err error
		out, err = run(ctx, sys, "ping", "--serve")
		ended <- err
	}()
	for s.serving() == 0 {
		time.Sleep(time.Millisecond)
	}
	for i := range 5 {
		req := mad.NewVendor(mad.ClassPing, mad.OUIOpenIB, mad.MethodGet, 0)
		req.TID = uint64(i)
		b, err := req.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		s.ask(umad.Addr{LID: uint16(7 + i%2)}, b)
		p := <-s.replies
		if !strings.HasPrefix(string(p.Data), host+"\x00") || p.TID != uint64(i) || p.Method != 0x81 || p.OUI != mad.OUIOpenIB {
			t.Errorf("%+v", p)
		}
	}
	cancel()
	has(t, out, <-ended)
	has(t, out, nil, "mem0/1 serves pings as "+host, "LID 7 pings LID 8 pings", "served 5 pings of 2 ports")
}

// TestStatus prints devices in all forms: that of ibstat is compared with its text on the same ports.
func TestStatus(t *testing.T) {
	port := &StatusPort{Port: 1, State: "ACTIVE", PhysState: "LINK_UP", Rate: 100, Width: 4, Speed: "EDR", LID: 1, SMLID: 1, GID: "fe80:0000:0000:0000:506b:4b03:00c0:ff00",
		LinkLayer: "InfiniBand", UMAD: "umad0", state: ib.PortActive, phys: ib.PhysLinkUp, capMask: 0x10820, portGUID: 0x506b4b0300c0ff00, active: true}
	good := &StatusDevice{Device: "mlx5_0", NodeType: "CA", HCAType: "MT4120", FWVer: "16.35.2000", HWVer: "0", Ports: []*StatusPort{port},
		nodeGUID: 0x506b4b0300c0ff00, sysImageGUID: 0x506b4b0300c0ff00}
	bad := &StatusDevice{Device: "mlx5_1", NodeType: "CA", Ports: []*StatusPort{{Port: 1, State: "DOWN", Reason: "not permitted"}}, Reason: "gone"}
	silent := &StatusDevice{Device: "mlx5_3", Reason: "netlink failed"}
	failed := errors.New("a device failed")
	s := &System{Status: func() ([]*StatusDevice, error) { return []*StatusDevice{good, bad, silent}, failed }}
	out, err := run(t.Context(), s, "status")
	wantErr(t, err, "a device failed", false)
	has(t, out, nil, "mlx5_0/1 MT4120 ACTIVE LINK_UP 100 Gb/s (4X EDR) 1 0 1 InfiniBand umad0 - fe80:", "mlx5_1/1 - DOWN", "not known: not permitted", "mlx5_1 not known: gone")
	failed = nil
	out, err = run(t.Context(), s, "status", "mlx5_0", "--compat")
	want := "CA 'mlx5_0'\n\tCA type: MT4120\n\tNumber of ports: 1\n\tFirmware version: 16.35.2000\n\tHardware version: 0\n\tNode GUID: 0x506b4b0300c0ff00\n\tSystem image GUID: 0x506b4b0300c0ff00\n" +
		"\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 100\n\t\tBase lid: 1\n\t\tLMC: 0\n\t\tSM lid: 1\n\t\tCapability mask: 0x00010820\n\t\tPort GUID: 0x506b4b0300c0ff00\n\t\tLink layer: InfiniBand\n"
	if err != nil || out != want {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = run(t.Context(), s, "status", "mlx5_0/1", "--compat")
	has(t, out, err, "CA: 'mlx5_0' Port 1: State: Active Physical state: LinkUp Rate: 100 Base lid: 1")
	out, err = run(t.Context(), s, "status", "mlx5_0", "--compat-ibstatus")
	has(t, out, err, "Infiniband device 'mlx5_0' port 1 status: default gid: fe80:", "state: 4: ACTIVE phys state: 5: LinkUp rate: 100 Gb/sec (4X EDR) link_layer: InfiniBand")
	_, err = run(t.Context(), s, "status", "mlx5_1")
	wantErr(t, err, "no port is active", false)
	_, err = run(t.Context(), s, "status", "mlx5_2")
	wantErr(t, err, `the device is "mlx5_2", allowed: mlx5_0, mlx5_1, mlx5_3`, true)
	_, err = run(t.Context(), s, "status", "mlx5_0/2")
	wantErr(t, err, `the port of mlx5_0 is "2", allowed: 1`, true)
	_, err = run(t.Context(), s, "status", "mlx5_3/1")
	wantErr(t, err, "the ports of mlx5_3 are not known: netlink failed", false)
	none := &System{Status: func() ([]*StatusDevice, error) { return nil, errors.New("no RDMA") }}
	_, err = run(t.Context(), none, "status")
	wantErr(t, err, "no RDMA", false)
}
