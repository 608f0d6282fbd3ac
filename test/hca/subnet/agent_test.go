package subnet

import (
	"bytes"
	"fmt"
	"testing"
	"time"
)

// clock is a clock for tests: nothing happens until it is moved.
type clock struct {
	now    time.Duration
	timers []timer
}

type timer struct {
	at time.Duration
	fn func()
}

func (c *clock) after(d time.Duration, fn func()) {
	c.timers = append(c.timers, timer{c.now + d, fn})
}

// pass lets time pass, in steps that are shorter than any timer.
func (c *clock) pass(d time.Duration) {
	for end := c.now + d; c.now < end; {
		c.now += 100 * time.Millisecond
		due := c.timers
		c.timers = nil
		for _, t := range due {
			if t.at <= c.now {
				t.fn()
			} else {
				c.timers = append(c.timers, t)
			}
		}
	}
}

// host is an endpoint that takes answers, traps and packets without a MAD.
type host struct {
	*Attachment
	got   []*Packet
	links []bool
}

func (h *host) Receive(p *Packet) bool {
	if len(p.MAD) < madHeader || p.MAD[madMethod]&methodResponse != 0 || p.MAD[madMethod] == methodTrap {
		h.got = append(h.got, p)
		return true
	}
	return false
}

func (h *host) LinkChanged(up bool) { h.links = append(h.links, up) }

// take returns what has arrived.
func (h *host) take() []*Packet {
	got := h.got
	h.got = nil
	return got
}

// rig is a subnet with hosts at host1, host2 and so on.
type rig struct {
	*Subnet
	t     *testing.T
	clock *clock
	hosts []*host
}

func newRig(t *testing.T, word string, hosts int) *rig {
	t.Helper()
	top, err := Parse(word)
	must(t, err)
	return newRigOf(t, top, hosts)
}

func newRigOf(t *testing.T, top *Topology, hosts int) *rig {
	t.Helper()
	var err error
	r := &rig{t: t, clock: &clock{}}
	r.Subnet = New(top, Config{After: r.clock.after, Seed: 1})
	for i := range hosts {
		h := &host{}
		if h.Attachment, err = r.Attach(fmt.Sprintf("host%d", i+1), 1, h, AttachOptions{}); err != nil {
			t.Fatal(err)
		}
		r.hosts = append(r.hosts, h)
	}
	return r
}

// assign gives LIDs, with host1 as the place of the subnet manager.
func (r *rig) assign() *rig {
	r.t.Helper()
	if err := r.Assign("host1", 1); err != nil {
		r.t.Fatal(err)
	}
	return r
}

// lid returns the LID that Assign gave.
func (r *rig) lid(name string) uint16 {
	for i, n := range r.top.Nodes {
		if n.Description == name {
			return uint16(i + 1)
		}
	}
	r.t.Fatalf("no node %q", name)
	return 0
}

// smp makes an SMP with a directed route.
func smp(method byte, attr uint16, mod uint32, data []byte, route ...byte) []byte {
	m := make([]byte, madSize)
	m[madBase], m[madClass], m[madClassVersion], m[madMethod] = 1, classDirected, 1, method
	be.PutUint16(m[madAttribute:], attr)
	be.PutUint32(m[madModifier:], mod)
	m[smpHopCount] = byte(len(route))
	be.PutUint16(m[smpDrSLID:], LIDPermissive)
	be.PutUint16(m[smpDrDLID:], LIDPermissive)
	copy(m[smpData:], data)
	copy(m[smpInitial+1:], route)
	return m
}

// call sends a MAD from host1 and returns the answer, nil if there is none.
func (r *rig) call(m []byte, lid uint16) []byte {
	r.t.Helper()
	p := &Packet{SLID: LIDPermissive, DLID: lid, VL15: true, MAD: append([]byte(nil), m...)}
	switch own, _ := r.hosts[0].LID(); {
	case m[madClass] == classPerf || m[madClass] == classPing:
		p.VL15, p.DestQP, p.SrcQP, p.QKey = false, 1, 1, qkeyQP1
		fallthrough
	case lid != LIDPermissive:
		p.SLID = own
	}
	r.hosts[0].Send(p)
	switch got := r.hosts[0].take(); len(got) {
	case 0:
		return nil
	case 1:
		return got[0].MAD
	default:
		r.t.Fatalf("%d answers", len(got))
		return nil
	}
}

// status calls by directed route, and returns the status without the D bit; -1 if there is no answer.
func (r *rig) status(m []byte) int {
	r.t.Helper()
	a := r.call(m, LIDPermissive)
	if a == nil {
		return -1
	}
	return int(be.Uint16(a[madStatus:]) &^ 0x8000)
}

// get returns the data of an attribute.
func (r *rig) get(attr uint16, mod uint32, route ...byte) []byte {
	r.t.Helper()
	a := r.call(smp(methodGet, attr, mod, nil, route...), LIDPermissive)
	if a == nil || be.Uint16(a[madStatus:]) != 0x8000 {
		r.t.Fatalf("attribute %#x of route %d: no answer, or status %#x", attr, route, a)
	}
	return a[smpData : smpData+64]
}

// set changes an attribute, and returns the status. PortInfo gets LIDs if there are none.
func (r *rig) set(attr uint16, mod uint32, change func(b []byte), route ...byte) int {
	r.t.Helper()
	b := append([]byte(nil), r.get(attr, mod, route...)...)
	if attr == attrPortInfo && be.Uint16(b[piLID:]) == 0 {
		be.PutUint16(b[piLID:], 16)
		be.PutUint16(b[piSMLID:], 1)
	}
	change(b)
	return r.status(smp(methodSet, attr, mod, b, route...))
}

// TestPortStates takes ports from INIT to ACTIVE as a subnet manager does, and tries what is not allowed.
func TestPortStates(t *testing.T) {
	r := newRig(t, "line:2", 1)
	to := func(state byte) func([]byte) {
		return func(b []byte) { b[piState] = b[piState]&0xf0 | state; b[piPhysState] &= 15 }
	}
	state := func(port uint32) byte { return r.get(attrPortInfo, port, 1)[piState] & 15 }
	for _, c := range []struct {
		set    byte
		status int
		state  byte
	}{{stateActive, statusBadValue, stateInit}, {stateInit, statusBadValue, stateInit}, {5, statusBadValue, stateInit},
		{stateArmed, 0, stateArmed}, {stateArmed, 0, stateArmed}, {stateActive, 0, stateActive}, {stateActive, 0, stateActive},
		{stateArmed, statusBadValue, stateActive}, {0, 0, stateActive}, {stateDown, 0, stateInit}} {
		if got := r.set(attrPortInfo, 2, to(c.set), 1); got != c.status || state(2) != c.state {
			t.Fatalf("Set of state %d: status %#x and state %d, want %#x and %d", c.set, got, state(2), c.status, c.state)
		}
	}
	if got := r.set(attrPortInfo, 8, to(stateArmed), 1); got != statusBadValue {
		t.Errorf("a port without a link is armed: status %#x", got)
	}
	if n, _ := r.Counter("switch2", 3, LinkDowned); n != 1 {
		t.Errorf("the other end went down %d times, want once", n)
	}
}

// TestArmed lets a packet make a port active that is armed, and drops one at a port that is not.
func TestArmed(t *testing.T) {
	r := newRig(t, "line:1", 2-1).assign()
	sw := r.nodes[0].ports[1]
	for state, want := range map[byte]byte{stateInit: stateInit, stateArmed: stateActive} {
		sw.setState(state)
		r.hosts[0].Send(&Packet{SLID: r.lid("host1"), DLID: r.lid("switch1"), DestQP: 7})
		if sw.state() != want {
			t.Errorf("a packet at a port in state %d: state %d, want %d", state, sw.state(), want)
		}
	}
}

// portInfoCases are changes of PortInfo of a switch's port with the status.
var portInfoCases = []struct {
	name   string
	change func(b []byte)
	status int
}{
	{"MTU 0", func(b []byte) { b[piMTU] &= 15 }, statusBadValue},
	{"MTU 6", func(b []byte) { b[piMTU] = 0x60 }, statusBadValue},
	{"MTU 5", func(b []byte) { b[piMTU] = 0x50 }, 0},
	{"VLs 5", func(b []byte) { b[piOperVLs] = 0x50 }, statusBadValue},
	{"VLs 2", func(b []byte) { b[piOperVLs] = 0x20 }, 0},
	{"width 8X", func(b []byte) { b[piWidthEnabled] = byte(Width8X) }, statusBadValue},
	{"all widths", func(b []byte) { b[piWidthEnabled] = 0xff }, 0},
	{"speed 8", func(b []byte) { b[piSpeed] = 8 }, statusBadValue},
	{"speed QDR", func(b []byte) { b[piSpeed] = 4 }, 0},
	{"speed HDR", func(b []byte) { b[piExtEnabled] = 4 }, statusBadValue},
	{"no extended speeds", func(b []byte) { b[piExtEnabled] = 30 }, 0},
	{"phys state 4", func(b []byte) { b[piPhysState] = 0x42 }, statusBadValue},
	{"down default 3", func(b []byte) { b[piPhysState] = 3 }, statusBadValue},
	{"ARMED", func(b []byte) { b[piState] |= stateArmed }, 0},
	{"ARMED, polling", func(b []byte) { b[piState], b[piPhysState] = b[piState]|stateArmed, 0x22 }, statusBadValue},
}

// lidCases are LIDs of a port with the status.
var lidCases = []struct {
	lid, sm uint16
	lmc     byte
	status  int
}{
	{0, 4, 0, statusBadValue}, {17, 0, 0, statusBadValue}, {0xc000, 4, 0, statusBadValue}, {17, 0xffff, 0, statusBadValue},
	{17, 4, 1, statusBadValue}, {0x44, 4, 3, statusBadValue}, {17, 4, 0, 0}, {18, 4, 1, 0}, {0x80, 0xbfff, 7, 0},
}

// TestPortInfo sets fields of PortInfo.
func TestPortInfo(t *testing.T) {
	for _, c := range portInfoCases {
		r := newRig(t, "line:2", 1)
		prepared := func(b []byte) {
			b[piState] &= 0xf0
			b[piPhysState] &= 15
			c.change(b)
		}
		if got := r.set(attrPortInfo, 2, prepared, 1); got != c.status {
			t.Errorf("%s: status %#x, want %#x", c.name, got, c.status)
		}
	}
	r := newRig(t, "line:2", 1)
	for _, c := range lidCases {
		change := func(b []byte) {
			be.PutUint16(b[piLID:], c.lid)
			be.PutUint16(b[piSMLID:], c.sm)
			b[piLMC] = c.lmc
			b[piState] &= 0xf0
			b[piPhysState] &= 15
		}
		for name, route := range map[string][]byte{"a switch": {1}, "an adapter": {1, 2, 1}} {
			if got := r.set(attrPortInfo, 0, change, route...); got != c.status {
				t.Errorf("%s gets %+v: status %#x", name, c, got)
			}
		}
	}
	lid := func(b []byte) {
		be.PutUint16(b[piLID:], 16)
		be.PutUint16(b[piSMLID:], 4)
		b[piLMC], b[piTimeout] = 2, 0x92
		b[piState] &= 0xf0
		b[piPhysState] &= 15
	}
	if got := r.set(attrPortInfo, 1, lid, 1, 2, 1); got != 0 {
		t.Fatalf("LID of host2: status %#x", got)
	}
	b := r.get(attrPortInfo, 0, 1, 2, 1)
	if be.Uint16(b[piLID:]) != 16 || be.Uint16(b[piSMLID:]) != 4 || b[piLMC] != 2 || b[piTimeout] != 0x12 || b[piLocalPort] != 1 {
		t.Errorf("host2 has % x", b)
	}
	p, _ := r.find("host2", 1)
	for lid, want := range map[uint16]bool{15: false, 16: true, 19: true, 20: false} {
		if p.hasLID(lid) != want {
			t.Errorf("with LID 16 and LMC 2, LID %d is the port's: %v", lid, !want)
		}
	}
	if got := r.set(attrPortInfo, 1, lid, 1); got != 0 || be.Uint16(r.get(attrPortInfo, 1, 1)[piLID:]) != 0 {
		t.Errorf("an external port of a switch has a LID, or refuses one (status %#x)", got)
	}
}

// TestSpeeds changes what ports may use, and trains the link again.
func TestSpeeds(t *testing.T) {
	r := newRig(t, "line:2", 1)
	rate := func() string {
		b := r.get(attrPortInfo, 2, 1)
		return fmt.Sprint(Width(b[piWidthActive]), Speed(b[piSpeed]>>4), b[piExtActive]>>4)
	}
	if got := rate(); got != "4x QDR 2" {
		t.Errorf("the link is %s, want 4x QDR 2 (EDR)", got)
	}
	retrain := func(b []byte) {
		b[piExtEnabled], b[piSpeed], b[piWidthEnabled] = 30, 2, 1
		b[piState], b[piPhysState] = b[piState]&0xf0|stateDown, b[piPhysState]&15
	}
	if got := r.set(attrPortInfo, 2, retrain, 1); got != 0 || rate() != "1x DDR 0" {
		t.Errorf("status %#x, and the link is %s, want 1x DDR 0", got, rate())
	}
	if b := r.get(attrPortInfo, 2, 1); b[piExtEnabled] != 30 {
		t.Errorf("LinkSpeedExtEnabled is %d, was set to 30", b[piExtEnabled])
	}
	top, err := Parse("line:2")
	must(t, err)
	for _, n := range top.Nodes {
		for i := range n.Ports[1:] { // port 0 of a switch has no link, but the capabilities
			n.Ports[i+1].Speed = XDR
		}
	}
	r = newRigOf(t, top, 1)
	zero, b := r.get(attrPortInfo, 0, 1), r.get(attrPortInfo, 2, 1)
	if rate() != "4x QDR 0" || b[piExt2] != 1<<5|1<<3|1 || b[piExtActive] != 15 || be.Uint32(zero[piCapMask:])&capMask2 == 0 || be.Uint16(zero[piCapMask2:]) != 0x1800 {
		t.Errorf("the link that runs at XDR is %s, % x, port 0 % x", rate(), b, zero)
	}
	ext2 := func(v byte) func(b []byte) {
		return func(b []byte) {
			retrain(b)
			b[piExtEnabled], b[piExt2], b[piSpeed], b[piWidthEnabled] = 31, v, 15, 255
		}
	}
	if got := r.set(attrPortInfo, 2, ext2(2), 1); got != statusBadValue {
		t.Errorf("a speed that does not exist is enabled: status %#x", got)
	}
	if got := r.set(attrPortInfo, 2, ext2(1), 1); got != 0 || r.get(attrPortInfo, 2, 1)[piExt2] != 1<<5|1<<3|1 {
		t.Errorf("status %#x, and the link is %s, want XDR", got, rate())
	}
	if err := r.LimitLink("switch1", 2, Width4X, NDR); err != nil || rate() != "4x QDR 8" || r.get(attrPortInfo, 2, 1)[piExt2] != 1<<3|1 {
		t.Errorf("%v, and the link is %s, want 4x QDR 8 (NDR)", err, rate())
	}
	r = newRig(t, "line:2", 1)
	if err := r.LimitLink("switch1", 2, Width1X, FDR); err != nil || rate() != "1x QDR 1" {
		t.Errorf("%v, and the link is %s, want 1x QDR 1 (FDR)", err, rate())
	}
	if b := r.get(attrPortInfo, 2, 1); Width(b[piWidthEnabled])&Width4X == 0 || b[piExtActive]&15 != 3 {
		t.Errorf("a bad cable changes what the port supports: % x", b)
	}
	r.LimitLink("switch1", 2, 0, 0)
	if rate() != "4x QDR 2" {
		t.Errorf("without the limit the link is %s", rate())
	}
}

// tableCases are attributes with values that can be set, at a switch (route 1) and an adapter (none).
var tableCases = []struct {
	name  string
	attr  uint16
	mod   uint32
	n     int // bytes that can be set
	route []byte
}{
	{"LFT", attrLinear, 3, 64, []byte{1}},
	{"MFT", attrMulticast, 31, 64, []byte{1}},
	{"P_Keys of a switch port", attrPKeyTable, 2 << 16, 64, []byte{1}},
	{"P_Keys", attrPKeyTable, 3, 64, nil},
	{"SL to VL of a switch", attrSLtoVL, 2<<8 | 1, 8, []byte{1}},
	{"SL to VL", attrSLtoVL, 0, 8, nil},
	{"VL arbitration, low", attrVLArbitration, 1<<16 | 8, 16, []byte{1}},
	{"VL arbitration, high", attrVLArbitration, 3 << 16, 16, nil},
	{"GUIDs", attrGUIDInfo, 1, 64, nil},
}

// TestTables sets tables, and reads them again.
func TestTables(t *testing.T) {
	for _, c := range tableCases {
		r := newRig(t, "line:2", 1)
		want := make([]byte, 64)
		for i := range c.n {
			want[i] = byte(i + 1)
		}
		before := append([]byte(nil), r.get(c.attr, c.mod, c.route...)...)
		if got := r.status(smp(methodSet, c.attr, c.mod, want, c.route...)); got != 0 {
			t.Errorf("%s: status %#x", c.name, got)
		}
		if got := r.get(c.attr, c.mod, c.route...); !bytes.Equal(got, want) || bytes.Equal(before, want) {
			t.Errorf("%s: % x, want % x", c.name, got, want)
		}
	}
	r := newRig(t, "line:2", 1)
	own := r.get(attrGUIDInfo, 0)
	r.status(smp(methodSet, attrGUIDInfo, 0, make([]byte, 64)))
	if again := r.get(attrGUIDInfo, 0); !bytes.Equal(again[:8], own[:8]) || be.Uint64(own) == 0 {
		t.Errorf("the first GUID was %x and is %x", own[:8], again[:8])
	}
}

// TestStatuses sends what is wrong.
func TestStatuses(t *testing.T) {
	r := newRig(t, "line:2", 1)
	with := func(m []byte, at int, v byte) []byte { m[at] = v; return m }
	for name, c := range map[string]struct {
		m    []byte
		want int
	}{
		"base version 2":         {with(smp(methodGet, attrNodeInfo, 0, nil, 1), madBase, 2), statusBadVersion},
		"class version 2":        {with(smp(methodGet, attrNodeInfo, 0, nil, 1), madClassVersion, 2), statusBadVersion},
		"method 0x12":            {smp(0x12, attrNodeInfo, 0, nil, 1), statusBadMethod},
		"Set of NodeInfo":        {smp(methodSet, attrNodeInfo, 0, nil, 1), statusBadAttr},
		"attribute 0xff91":       {smp(methodGet, 0xff91, 0, nil, 1), statusBadAttr},
		"FDR10 of port 9":        {smp(methodGet, attrMellanoxPort, 9, nil, 1), statusBadValue},
		"SwitchInfo of a CA":     {smp(methodGet, attrSwitchInfo, 0, nil), statusBadAttr},
		"PortInfo of port 9":     {smp(methodGet, attrPortInfo, 9, nil, 1), statusBadValue},
		"PortInfo of a CA's 2":   {smp(methodGet, attrPortInfo, 2, nil), statusBadValue},
		"LFT block 768":          {smp(methodGet, attrLinear, 768, nil, 1), statusBadValue},
		"MFT block 32":           {smp(methodGet, attrMulticast, 32, nil, 1), statusBadValue},
		"MFT position 1":         {smp(methodGet, attrMulticast, 1<<28, nil, 1), statusBadValue},
		"P_Keys of port 9":       {smp(methodGet, attrPKeyTable, 9<<16, nil, 1), statusBadValue},
		"P_Key block 1":          {smp(methodGet, attrPKeyTable, 1<<16|1, nil, 1), statusBadValue},
		"SL to VL from port 9":   {smp(methodGet, attrSLtoVL, 9<<8|1, nil, 1), statusBadValue},
		"SL to VL to port 9":     {smp(methodGet, attrSLtoVL, 1<<8|9, nil, 1), statusBadValue},
		"VL arbitration block 2": {smp(methodGet, attrVLArbitration, 2<<16|1, nil, 1), statusBadValue},
		"GUID block 4":           {smp(methodGet, attrGUIDInfo, 4, nil), statusBadValue},
		"GUID block 1 of switch": {smp(methodGet, attrGUIDInfo, 1, nil, 1), statusBadValue},
		"port 9":                 {smp(methodGet, attrNodeInfo, 0, nil, 1, 9), -1},
		"port 0":                 {smp(methodGet, attrNodeInfo, 0, nil, 1, 0), -1},
		"port without link":      {smp(methodGet, attrNodeInfo, 0, nil, 1, 7), -1},
		"through an adapter":     {smp(methodGet, attrNodeInfo, 0, nil, 1, 2, 1, 1), -1},
		"own port 2":             {smp(methodGet, attrNodeInfo, 0, nil, 2), -1},
		"64 hops":                {with(smp(methodGet, attrNodeInfo, 0, nil, 1), smpHopCount, 64), -1},
		"hop pointer 3 of 1":     {with(smp(methodGet, attrNodeInfo, 0, nil, 1), smpHopPointer, 3), -1},
		"an answer":              {smp(methodGetResp, attrNodeInfo, 0, nil, 1), -1},
		"class 6":                {with(smp(methodGet, attrNodeInfo, 0, nil), madClass, 6), -1},
	} {
		if got := r.status(c.m); got != c.want {
			t.Errorf("%s: status %#x, want %#x", name, got, c.want)
		}
	}
	long := bytes.Repeat([]byte{2, 3}, 31)
	if got := r.status(smp(methodGet, attrNodeInfo, 0, nil, append([]byte{1}, long...)...)); got != 0 {
		t.Errorf("63 hops back and forth: status %d", got)
	}
}

// TestMKey guards a port with an M_Key, until its lease ends.
func TestMKey(t *testing.T) {
	const key = 0x123456789abcdef0
	for protect, wantGet := range map[byte]string{0: "seen", 1: "hidden", 2: "none", 3: "none"} {
		r := newRig(t, "line:2", 1)
		guard := func(b []byte) {
			be.PutUint64(b[piMKey:], key)
			be.PutUint16(b[piLease:], 5)
			b[piLMC] = protect << 6
			b[piMTU] = 0x40
		}
		if got := r.set(attrPortInfo, 0, guard, 1); got != 0 {
			t.Fatalf("status %#x", got)
		}
		get := func(key uint64) string {
			m := smp(methodGet, attrPortInfo, 0, nil, 1)
			be.PutUint64(m[smpMKey:], key)
			switch a := r.call(m, LIDPermissive); {
			case a == nil:
				return "none"
			case be.Uint64(a[smpData:]) == 0:
				return "hidden"
			}
			return "seen"
		}
		change := smp(methodSet, attrLinear, 0, make([]byte, 64), 1)
		if got := get(1); got != wantGet {
			t.Errorf("protection %d: the M_Key is %s, want %s", protect, got, wantGet)
		}
		unknown := map[byte]int{0: statusBadAttr, 1: statusBadAttr, 2: -1, 3: -1}[protect]
		if got := r.status(smp(methodGet, 0xff91, 0, nil, 1)); got != unknown {
			t.Errorf("protection %d: Get of an unknown attribute without the key has status %d, want %d", protect, got, unknown)
		}
		for name, m := range map[string][]byte{"Set": change, "Set of an unknown attribute": smp(methodSet, 0xff91, 0, nil, 1), "method 0x12": smp(0x12, attrNodeInfo, 0, nil, 1)} {
			if got := r.status(m); got != -1 {
				t.Errorf("protection %d: %s without the key has status %d", protect, name, got)
			}
		}
		if violations := r.nodes[0].ports[0].info[piMKeyViolations+1]; violations < 3 {
			t.Errorf("protection %d: %d violations", protect, violations)
		}
		version := smp(methodSet, attrLinear, 0, nil, 1)
		version[madClassVersion] = 2
		if got := r.status(version); got != statusBadVersion {
			t.Errorf("protection %d: another version has status %d", protect, got)
		}
		r.clock.pass(3 * time.Second)
		if got := get(key); got != "seen" { // ends the lease
			t.Errorf("protection %d: with the key it is %s", protect, got)
		}
		r.clock.pass(3 * time.Second)
		if got := get(1); got != wantGet {
			t.Errorf("protection %d: after a request with the key it is %s, want %s", protect, got, wantGet)
		}
		r.status(change)
		r.clock.pass(6 * time.Second)
		if got := get(1); got != "seen" {
			t.Errorf("protection %d: after the lease the M_Key is %s, want seen", protect, got)
		}
		if r.nodes[0].ports[0].info[piMKeyViolations+1] < 2 {
			t.Errorf("protection %d: violations are not counted", protect)
		}
	}
}
