package subnet

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestTrap takes a link down: both switches report it, again and again until the manager represses it.
func TestTrap(t *testing.T) {
	r := newRig(t, "ring:3", 1).assign()
	traps := func() (lids []uint16, last *Packet) {
		for _, p := range r.hosts[0].take() {
			d := p.MAD[smpData:]
			if p.MAD[madMethod] != methodTrap || be.Uint16(d[noticeNumber:]) != 128 || be.Uint16(d[10:]) != p.SLID || d[0] != 0x81 || d[3] != 2 {
				t.Errorf("a packet from LID %d: % x", p.SLID, p.MAD[:90])
			}
			lids, last = append(lids, p.SLID), p
		}
		slices.Sort(lids)
		return lids, last
	}
	must(t, r.SetLink("switch2", 2, false))
	both := fmt.Sprint([]uint16{r.lid("switch2"), r.lid("switch3")})
	// The tables still lead the trap of switch3 to switch1 by its own link.
	if lids, _ := traps(); fmt.Sprint(lids) != both {
		t.Fatalf("traps from LIDs %d, want %s", lids, both)
	}
	r.clock.pass(time.Second)
	lids, last := traps()
	if fmt.Sprint(lids) != both {
		t.Errorf("a second later from LIDs %d, want %s", lids, both)
	}
	repress := append([]byte(nil), last.MAD...)
	repress[madMethod] = methodTrapRepress
	other := r.lid("switch2") + r.lid("switch3") - last.SLID
	// The M_Key of the switch is not that of the datagram.
	info := &r.nodes[int(last.SLID)-1].ports[0].info
	be.PutUint64(info[piMKey:], 99)
	r.hosts[0].Send(&Packet{SLID: r.lid("host1"), DLID: last.SLID, VL15: true, MAD: append([]byte(nil), repress...)})
	r.clock.pass(time.Second)
	if lids, _ := traps(); fmt.Sprint(lids) != both || be.Uint16(info[piMKeyViolations:]) != 1 {
		t.Errorf("after a TrapRepress without the M_Key, traps came from LIDs %d, want %s; %d violations", lids, both, be.Uint16(info[piMKeyViolations:]))
	}
	be.PutUint64(repress[smpMKey:], 99)
	r.hosts[0].Send(&Packet{SLID: r.lid("host1"), DLID: last.SLID, VL15: true, MAD: repress})
	r.clock.pass(time.Second)
	if lids, _ := traps(); len(lids) != 1 || lids[0] != other {
		t.Errorf("after that of LID %d was repressed, traps came from %d, want %d", last.SLID, lids, other)
	}
	// The route to switch2 by switch1.
	changed := func() bool { return r.get(attrSwitchInfo, 0, 1, 2)[siStateChange]&siChanged != 0 }
	if !changed() {
		t.Error("StateChange is not set")
	}
	if got := r.set(attrSwitchInfo, 0, func(b []byte) { b[siStateChange] &^= siChanged }, 1, 2); got != 0 || !changed() {
		t.Errorf("Set of StateChange 0 clears it, or is refused (%#x)", got)
	}
	if got := r.set(attrSwitchInfo, 0, func(b []byte) {}, 1, 2); got != 0 || changed() {
		t.Errorf("Set of StateChange 1 does not clear it, or is refused (%#x)", got)
	}
	if b := r.get(attrPortInfo, 2, 1, 2); b[piState]&15 != stateDown || b[piPhysState]>>4 != physPolling {
		t.Errorf("the port is in state %#x, %#x", b[piState], b[piPhysState])
	}
	r.SetLink("switch2", 2, true)
	r.hosts[0].take()
	if b := r.get(attrPortInfo, 2, 1, 2); b[piState]&15 != stateInit || b[piPhysState]>>4 != physLinkUp || !changed() {
		t.Errorf("after the link came back, the port is in state %#x, %#x", b[piState], b[piPhysState])
	}
}

// TestQuiet: a switch that is told to take its link down does not report that, and the other end does.
func TestQuiet(t *testing.T) {
	r := newRig(t, "line:2", 1)
	for _, n := range r.nodes {
		if n.sw != nil {
			n.sw.info[siStateChange] = 0
		}
	}
	down := func(b []byte) { b[piState], b[piPhysState] = b[piState]&0xf0|stateDown, b[piPhysState]&15 }
	if got := r.set(attrPortInfo, 2, down, 1); got != 0 {
		t.Fatalf("status %#x", got)
	}
	near, far := r.get(attrSwitchInfo, 0, 1)[siStateChange]&siChanged, r.get(attrSwitchInfo, 0, 1, 2)[siStateChange]&siChanged
	if near != 0 || far == 0 {
		t.Errorf("StateChange is %d at this end and %d at the other", near, far)
	}
}

// TestLongRoutes sends SMPs as an endpoint with its own agents may: their routes are not checked before they
// reach a switch, which drops those that are too long.
func TestLongRoutes(t *testing.T) {
	r := newRig(t, "line:2", 0)
	h := &host{}
	var err error
	if h.Attachment, err = r.Attach("host1", 1, h, AttachOptions{OwnAgents: true}); err != nil {
		t.Fatal(err)
	}
	for count := range 256 {
		for _, back := range []byte{0, 0x80} {
			for _, pointer := range []byte{1, byte(count), byte(count + 1)} {
				m := smp(methodGet, attrNodeInfo, 0, nil)
				m[smpHopCount], m[smpHopPointer], m[smpDirection] = byte(count), pointer, back
				h.Send(&Packet{SLID: LIDPermissive, DLID: LIDPermissive, VL15: true, MAD: m})
				if n := len(h.take()); count > maxRoute && n > 0 {
					t.Errorf("%d hops: %d answers", count, n)
				}
			}
		}
	}
	m := smp(methodGet, attrNodeInfo, 0, nil, 1)
	m[smpHopPointer] = 1
	if h.Send(&Packet{SLID: LIDPermissive, DLID: LIDPermissive, VL15: true, MAD: m}); len(h.take()) != 1 {
		t.Error("a route of one hop is not answered")
	}
}

// TestDetach: without an endpoint with its own agents, a port enables all that it supports again.
func TestDetach(t *testing.T) {
	r := newRig(t, "line:2", 0)
	h := &host{}
	var err error
	if h.Attachment, err = r.Attach("host1", 1, h, AttachOptions{OwnAgents: true}); err != nil {
		t.Fatal(err)
	}
	rate := func(wantWidth Width, wantSpeed Speed) {
		t.Helper()
		h.Train(true)
		if w, s := h.Rate(); w != wantWidth || s != wantSpeed {
			t.Errorf("the link is %v %v, want %v %v", w, s, wantWidth, wantSpeed)
		}
	}
	rate(Width4X, EDR)
	h.Enable(Width1X, SDR)
	rate(Width1X, SDR)
	h.Detach()
	rate(Width4X, EDR)
}

// TestDisable disables a port by Set(PortInfo), and enables it.
func TestDisable(t *testing.T) {
	r := newRig(t, "line:2", 2)
	phys := func(v byte) func([]byte) {
		return func(b []byte) { b[piState] = b[piState]&0xf0 | stateDown; b[piPhysState] = v<<4 | b[piPhysState]&15 }
	}
	if got := r.set(attrPortInfo, 1, phys(physDisabled), 1, 2); got != 0 {
		t.Fatalf("status %#x", got)
	}
	if b := r.get(attrPortInfo, 1, 1, 2); b[piPhysState]>>4 != physDisabled || b[piState]&15 != stateDown {
		t.Errorf("state %#x, %#x", b[piState], b[piPhysState])
	}
	if r.hosts[1].LinkUp() {
		t.Error("the link of host2 is up")
	}
	r.SetLink("switch2", 1, true)
	if r.hosts[1].LinkUp() {
		t.Error("the cable brings a disabled port up")
	}
	if got := r.set(attrPortInfo, 1, phys(physPolling), 1, 2); got != 0 || !r.hosts[1].LinkUp() {
		t.Errorf("status %#x, link up: %v", got, r.hosts[1].LinkUp())
	}
	// A port without a link, and one whose other end is disabled, are disabled and enabled, too.
	state := func(port uint32) string {
		b := r.get(attrPortInfo, port, 1)
		return fmt.Sprint(b[piState]&15, b[piPhysState]>>4)
	}
	for _, v := range []byte{physDisabled, physPolling, physDisabled, physSleep} {
		if got := r.set(attrPortInfo, 8, phys(v), 1); got != 0 || state(8) != fmt.Sprint(stateDown, v) {
			t.Errorf("a port without a link: status %#x, state %s, want state %d", got, state(8), v)
		}
	}
	if got := r.set(attrPortInfo, 3, phys(physDisabled), 1, 2); got != -1 {
		t.Fatalf("an answer comes back over a link that is disabled: status %#x", got)
	}
	for _, v := range []byte{physDisabled, physPolling} {
		if got := r.set(attrPortInfo, 2, phys(v), 1); got != 0 || state(2) != fmt.Sprint(stateDown, v) {
			t.Errorf("a port whose other end is disabled: status %#x, state %s, want state %d", got, state(2), v)
		}
	}
	if want := []bool{false, true}; !slices.Equal(r.hosts[1].links, want) {
		t.Errorf("host2 saw its link %v, want %v", r.hosts[1].links, want)
	}
}

// data sends a packet that is no MAD from a host to a LID.
func (r *rig) data(from int, dlid uint16) {
	lid, _ := r.hosts[from].LID()
	r.hosts[from].Send(&Packet{SLID: lid, DLID: dlid, DestQP: 18, Payload: "data", Size: 1000})
}

// TestForward sends packets between hosts by LID, and counts them where they pass and where they are lost.
func TestForward(t *testing.T) {
	r := newRig(t, "line:3", 3).assign()
	r.data(0, r.lid("host3"))
	got := r.hosts[2].take()
	if len(got) != 1 || got[0].Payload != "data" || got[0].SLID != r.lid("host1") {
		t.Fatalf("host3 got %d packets", len(got))
	}
	for c, want := range map[Counter]uint64{XmitPkts: 1, XmitData: 250, RcvPkts: 0, XmitDiscards: 0} {
		if n, err := r.Counter("switch2", 2, c); err != nil || n != want {
			t.Errorf("counter %d of switch2[2] is %d (%v), want %d", c, n, err, want)
		}
	}
	r.data(0, 4711)
	if n, _ := r.Counter("switch1", 1, RcvSwitchRelayErrors); n != 1 {
		t.Errorf("a LID without a route: %d relay errors, want 1", n)
	}
	r.SetLink("switch2", 2, false)
	r.data(0, r.lid("host3"))
	if n, _ := r.Counter("switch2", 2, XmitDiscards); n != 1 || len(r.hosts[2].take()) > 0 {
		t.Errorf("a link that is down: %d discards, want 1", n)
	}
	r.hosts[0].take()
	r.nodes[0].sw.linear[r.lid("host2")] = 1
	r.data(0, r.lid("host2"))
	if n, _ := r.Counter("switch1", 1, RcvSwitchRelayErrors); n != 2 || len(r.hosts[0].take()) > 0 {
		t.Errorf("a route back to where the packet came from: %d relay errors, want 2", n)
	}
	// The switches of a ring send a LID round.
	r = newRig(t, "ring:3", 1).assign()
	for _, n := range r.nodes {
		if n.sw != nil {
			be.PutUint16(n.sw.info[siLinearTop:], 99)
			n.sw.linear[99] = 2
		}
	}
	r.data(0, 99)
	discards := uint64(0)
	for i := range 3 {
		n, _ := r.Counter(fmt.Sprintf("switch%d", i+1), 2, XmitDiscards)
		discards += n
	}
	if discards != 1 {
		t.Errorf("a packet that goes in a circle: %d discards, want 1", discards)
	}
}

// TestLanes drops a packet whose service level has no virtual lane.
func TestLanes(t *testing.T) {
	r := newRig(t, "line:2", 2).assign()
	b := make([]byte, 64)
	b[1] = 0xf0 // SL 2 has VL 15
	if got := r.status(smp(methodSet, attrSLtoVL, 1<<8|2, b, 1)); got != 0 {
		t.Fatalf("status %#x", got)
	}
	for sl, want := range map[uint8]int{0: 1, 2: 0, 3: 1} {
		r.hosts[0].Send(&Packet{SLID: r.lid("host1"), DLID: r.lid("host2"), SL: sl, DestQP: 18})
		if got := len(r.hosts[1].take()); got != want {
			t.Errorf("SL %d: %d packets arrive, want %d", sl, got, want)
		}
	}
}

// TestMulticast sends to a group: every member gets the packet once, and nobody else.
func TestMulticast(t *testing.T) {
	r := newRig(t, "fattree:60", 60).assign()
	const group = 0xc003
	members := []string{"host1", "host2", "host25", "host60"}
	must(t, r.AssignGroup(group, members...))
	for _, from := range []int{0, 24, 59} {
		r.data(from, group)
		for i, h := range r.hosts {
			want := 0
			if i != from && slices.Contains(members, fmt.Sprintf("host%d", i+1)) {
				want = 1
			}
			if got := len(h.take()); got != want {
				t.Errorf("from host%d: host%d gets %d packets, want %d", from+1, i+1, got, want)
			}
		}
	}
	r.data(0, group+1)
	if n, _ := r.Counter("leaf1", 1, RcvSwitchRelayErrors); n != 1 {
		t.Errorf("a group that does not exist: %d relay errors, want 1", n)
	}
	// Tables that lead everywhere multiply a packet, but not without end.
	for _, n := range r.nodes {
		if n.sw != nil {
			n.sw.groups[group] = &[16]uint16{0xffff, 0xffff, 0xffff}
		}
	}
	r.data(0, group)
}

// TestLoss loses packets on one link, the same ones with the same seed.
func TestLoss(t *testing.T) {
	arrived := func() (n int) {
		r := newRig(t, "line:2", 2).assign()
		must(t, r.SetLoss("switch1", 2, 0.25))
		for range 1000 {
			r.data(0, r.lid("host2"))
			r.data(0, r.lid("switch1"))
		}
		n = len(r.hosts[1].take())
		if lost, _ := r.Counter("switch2", 3, RcvErrors); int(lost) != 1000-n {
			t.Errorf("%d packets arrived, and %d were counted as lost", n, lost)
		}
		return n
	}
	n := arrived()
	if n < 700 || n > 800 || arrived() != n {
		t.Errorf("%d packets of 1000 arrived with a loss of 25 %%, and others with the same seed", n)
	}
}

// perf makes a request of performance management.
func perf(method byte, attr uint16, port byte, selected uint16) []byte {
	m := make([]byte, madSize)
	m[madBase], m[madClass], m[madClassVersion], m[madMethod] = 1, classPerf, 1, method
	be.PutUint16(m[madAttribute:], attr)
	m[smpData+1] = port
	be.PutUint16(m[smpData+2:], selected)
	return m
}

// TestPortCounters reads counters of a switch, which stop at their maximum, and resets some.
func TestPortCounters(t *testing.T) {
	r := newRig(t, "line:2", 2).assign()
	sw := r.lid("switch1")
	for c, n := range map[Counter]uint64{SymbolErrors: 1 << 40, LinkErrorRecoveries: 7, ExcessiveBufferOverrunErrors: 99, LocalLinkIntegrityErrors: 3, XmitWait: 1 << 31} {
		must(t, r.AddCounter("switch1", 5, c, n))
	}
	data := func(m []byte) []byte {
		a := r.call(m, sw)
		if a == nil || be.Uint16(a[madStatus:]) != 0 {
			t.Fatalf("answer %x", a)
		}
		return a[smpData:]
	}
	b := data(perf(methodGet, attrPortCounters, 5, 0))
	if be.Uint16(b[4:]) != 0xffff || b[6] != 7 || b[19] != 0x3f || be.Uint32(b[40:]) != 1<<31 || b[1] != 5 {
		t.Errorf("the counters are % x", b[:44])
	}
	b = data(perf(methodSet, attrPortCounters, 5, 1<<SymbolErrors|1<<LocalLinkIntegrityErrors))
	if be.Uint16(b[4:]) != 0 || b[6] != 7 || b[19] != 0x0f {
		t.Errorf("after a reset of two of them, the counters are % x", b[:44])
	}
	r.data(0, r.lid("host2"))
	all := data(perf(methodGet, attrPortCounters, 255, 0))
	if all[6] != 7 || be.Uint32(all[32:]) < 2 {
		t.Errorf("the counters of all ports are % x", all[:44])
	}
	data(perf(methodSet, attrPortCountExt, 255, 0xff))
	before := append([]byte(nil), data(perf(methodGet, attrPortCountExt, 2, 0))...)
	r.data(0, r.lid("host2"))
	r.AssignGroup(0xc000, "host1", "host2")
	r.data(0, 0xc000)
	after := data(perf(methodGet, attrPortCountExt, 2, 0))
	var got [8]uint64
	for i := range got {
		got[i] = be.Uint64(after[8+8*i:]) - be.Uint64(before[8+8*i:])
	}
	if want := [8]uint64{500, 0, 2, 0, 1, 0, 1, 0}; got != want {
		t.Errorf("extended counters changed by %d, want %d", got, want)
	}
	for name, m := range map[string][]byte{"port 9": perf(methodGet, attrPortCounters, 9, 0), "attribute 0x36": perf(methodGet, 0x36, 1, 0)} {
		if a := r.call(m, sw); a == nil || be.Uint16(a[madStatus:]) == 0 {
			t.Errorf("%s is answered by %x", name, a)
		}
	}
	if a := r.call(perf(methodGet, attrPortCounters, 255, 0), r.lid("host2")); be.Uint16(a[madStatus:]) != statusBadValue {
		t.Errorf("an adapter answers for all ports: status %#x", a[4:6])
	}
	if a := r.call(perf(methodGet, attrClassPortInfo, 0, 0), sw); be.Uint16(a[smpData+2:]) != 0x1300 {
		t.Errorf("ClassPortInfo has the capabilities %#x", be.Uint16(a[smpData+2:]))
	}
}

// TestFaultArguments wants errors.
func TestFaultArguments(t *testing.T) {
	r := newRig(t, "line:2", 1)
	for name, err := range map[string]error{
		"no such node":     r.SetLink("switch9", 1, false),
		"no such port":     r.SetLink("switch1", 9, false),
		"no link":          r.SetLink("switch1", 8, false),
		"port 0 of a CA":   r.SetLink("host1", 0, false),
		"loss 1.5":         r.SetLoss("switch1", 2, 1.5),
		"counter 17":       r.AddCounter("switch1", 1, 17, 1),
		"group 0xbfff":     r.AssignGroup(0xbfff, "host1"),
		"group of nobody":  r.AssignGroup(0xc000, "host7"),
		"manager nowhere":  r.Assign("host7", 1),
		"intercept nobody": r.Intercept("host7", nil),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// FuzzPackets sends anything from two hosts and a switch. Nothing panics. A node that was out of reach still answers.
func FuzzPackets(f *testing.F) {
	f.Add(smp(methodGet, attrNodeInfo, 0, nil, 1, 2, 1), uint16(LIDPermissive), true, uint32(0))
	f.Add(smp(methodSet, attrPortInfo, 2, nil, 1), uint16(LIDPermissive), true, uint32(0))
	f.Add(smp(methodSet, attrMulticast, 2, nil, 1), uint16(2), true, uint32(0))
	f.Add(perf(methodSet, attrPortCounters, 255, 0xffff), uint16(1), false, uint32(1))
	f.Add(perf(methodGet, attrPortCounters, 1, 0xffff), uint16(0xc001), false, uint32(1))
	f.Fuzz(func(t *testing.T, m []byte, lid uint16, vl15 bool, qp uint32) {
		top, err := Ring(3)
		must(t, err)
		b := build{top}
		b.link(b.node(Switch, 8, "switch4"), 1, b.node(CA, 1, "host4"), 1)
		r := newRigOf(t, top, 2).assign()
		for _, h := range r.hosts {
			own, _ := h.LID()
			h.Send(&Packet{SLID: own, DLID: lid, VL15: vl15, DestQP: qp, SrcQP: qp, QKey: qkeyQP1, MAD: append([]byte(nil), m...)})
		}
		sw := &host{}
		a, err := r.Attach("switch1", 0, sw, AttachOptions{})
		must(t, err)
		a.Send(&Packet{SLID: 1, DLID: lid, VL15: vl15, DestQP: qp, MAD: append([]byte(nil), m...)})
		own, err := r.Attach("host3", 1, &host{}, AttachOptions{OwnAgents: true})
		must(t, err)
		own.Send(&Packet{SLID: 1, DLID: lid, VL15: vl15, DestQP: qp, MAD: append([]byte(nil), m...)})
		r.clock.pass(3 * time.Second)
		// switch4 and host4 have no link to the others.
		h := &host{}
		if h.Attachment, err = r.Attach("host4", 1, h, AttachOptions{}); err != nil {
			t.Fatal(err)
		}
		h.Send(&Packet{SLID: LIDPermissive, DLID: LIDPermissive, VL15: true, MAD: smp(methodGet, attrNodeInfo, 0, nil, 1)})
		if got := h.take(); len(got) != 1 || be.Uint16(got[0].MAD[madStatus:]) != 0x8000 {
			t.Errorf("a switch that the packets did not reach has %d answers", len(got))
		}
	})
}

// must fails a test on an error.
func must(tb testing.TB, errs ...error) {
	tb.Helper()
	for _, err := range errs {
		if err != nil {
			tb.Fatal(err)
		}
	}
}
