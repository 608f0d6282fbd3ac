package hca

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// TestPersonalityNames: every fixed personality is found by its name and differs from the others,
// and the first is the card as it is without one.
func TestPersonalityNames(t *testing.T) {
	seen := map[string]string{}
	for _, name := range Personalities() {
		p, err := ParsePersonality(name)
		if err != nil || p.Name != name {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
		words := strings.TrimPrefix(p.String(), name)
		if other, twice := seen[words]; twice {
			t.Errorf("%s and %s are the same", name, other)
		}
		seen[words] = name
	}
	if got, want := (Personality{}).String(), "plain"; got != want || seen[""] != want {
		t.Errorf("the zero personality is %q, and %q differs in nothing; want %q", got, seen[""], want)
	}
	if p, _ := ParsePersonality("vf"); p.String() != "vf bar=2MiB small-blueflame grh-required shared-lid default-pkey=3 noise slow-resize devx out-of-order-rc few-dc-reads" {
		t.Errorf("%s", p)
	}
	for _, bad := range []string{"", "0", "-1", "Plain", "1.5", "18446744073709551616"} {
		if p, err := ParsePersonality(bad); err == nil {
			t.Errorf("%q is %s", bad, p)
		}
	}
}

// TestDrawnPersonality: a seed gives the same personality every time, on every machine, and over
// many seeds each choice is made both ways.
func TestDrawnPersonality(t *testing.T) {
	for seed, want := range map[uint64]string{
		7:    "7 bar=2MiB no-atomics no-cq-resize small-limits grh-required shared-lid reorder-writes no-dc no-qp-counters out-of-order-rc",
		1234: "1234 bar=32MiB grh-required shared-lid slow-resize srq-faults devx out-of-order-rc few-dc-reads",
	} {
		if got := DrawPersonality(seed).String(); got != want {
			t.Errorf("seed %d: %q, want %q", seed, got, want)
		}
	}
	made := map[string]int{}
	const seeds = 300
	for seed := range uint64(seeds) {
		p := DrawPersonality(seed + 1)
		if err := p.check(); err != nil {
			t.Error(err)
		}
		if p.SharedLID && !p.GRHRequired {
			t.Errorf("%s: a GRH must tell ports of one LID apart", p)
		}
		for word := range strings.FieldsSeq(p.String()) {
			name, _, _ := strings.Cut(word, "=")
			made[name]++
		}
	}
	for _, c := range choices {
		n := made[c.word]
		if c.kept {
			if n > 0 {
				t.Errorf("%s was drawn %d times", c.word, n)
			}
		} else if n < seeds/5 || n > seeds-seeds/10 {
			t.Errorf("%s in %d of %d personalities", c.word, n, seeds)
		}
	}
	p, err := ParsePersonality("random")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := ParsePersonality(p.Name); err != nil || again != p {
		t.Errorf("%s is %s, %v", p, again, err)
	}
}

// TestBadPersonality: what no card can have is refused.
func TestBadPersonality(t *testing.T) {
	for _, p := range []Personality{{BAR: 3 << 20}, {BAR: 1 << 19}, {BAR: 2 * BARSize}, {PKeyIndex: -1}, {PKeyIndex: pkeyCount}} {
		_, err := New(Config{Mode: IB, Personality: p, Memory: &driver{}, Fabric: engine.NewFabric(engine.FabricConfig{Manual: true})})
		if err == nil || !strings.Contains(err.Error(), "want") {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

// caps reads capabilities of a kind that are in force.
func (v *driver) caps(kind int) []byte {
	v.t.Helper()
	return v.must(prm.QueryHCACap, uint16(kind<<1|1), v.in(small), prm.CapsData+prm.CapsSize)[prm.CapsData:]
}

// TestPersonalityCaps: the card says what its personality has.
func TestPersonalityCaps(t *testing.T) {
	for _, c := range []struct {
		p             Personality
		f             prm.Field
		without, with uint64
	}{
		{Personality{SmallBlueFlame: true}, prm.CapLogBFRegSize, 9, 8},
		{Personality{CQEVersion0: true}, prm.CapCQEVersion, 1, 0},
		{Personality{ShortWQEs: true}, prm.CapMaxWQESizeSQ, 1024, 512},
		{Personality{NoAtomics: true}, prm.CapAtomicBit, 1, 0},
		{Personality{NoCQResize: true}, prm.CapCQResize, 1, 0},
		{Personality{NoScatterCQE: true}, prm.CapScatterCQE, 1, 0},
		{Personality{ECE: true}, prm.CapECE, 0, 1},
		{Personality{NoDC: true}, prm.CapDCT, 1, 0},
		{Personality{DEVX: true}, prm.CapLogMaxUCtx, 0, logMaxUCtx},
		{Personality{NoQPCounters: true}, prm.CapRTS2RTSCounters, 1, 0},
		{Personality{NoDC: true}, prm.CapLogMaxDCIStreams, 3, 0},
		{Personality{OutOfOrderRC: true}, prm.CapUnorderedRC, 1, 1},
		{Personality{OutOfOrderRC: true}, prm.CapUnorderedUC, 1, 0},
		{Personality{OutOfOrderRC: true}, prm.CapUnorderedUD, 1, 0},
		{Personality{OutOfOrderRC: true}, prm.CapUnorderedXRC, 1, 0},
		{Personality{OutOfOrderRC: true}, prm.CapUnorderedDC, 1, 0},
		{Personality{SmallLimits: true}, prm.CapLogMaxQP, 12, 10},
		{Personality{SmallLimits: true}, prm.CapLogMaxQPSize, 15, 10},
		{Personality{SmallLimits: true}, prm.CapLogMaxSRQSize, 15, 11},
		{Personality{SmallLimits: true}, prm.CapLogMaxCQSize, 22, 13},
	} {
		for _, mode := range []Mode{IB, RoCE} {
			if got := c.f.Get(newRunning(t, mode).caps(prm.CapGeneral)); got != c.without {
				t.Errorf("plain: bit %#x is %d, want %d", c.f.Off, got, c.without)
			}
			if c.p.ShortWQEs && mode == RoCE {
				c.with = c.without
			}
			if got := c.f.Get(newRunningOf(t, mode, c.p).caps(prm.CapGeneral)); got != c.with {
				t.Errorf("%s: bit %#x is %d, want %d", c.p, c.f.Off, got, c.with)
			}
		}
	}
	v := newRunningOf(t, IB, Personality{NoAtomics: true})
	v.refused(prm.BadParam, prm.QueryHCACap, prm.CapAtomic<<1|1, v.in(small), prm.CapsData+prm.CapsSize)
	v.violations(0)
}

// TestLargePages: a host with larger pages gets all UAR pages that are in one of its own.
func TestLargePages(t *testing.T) {
	v := newRunningOf(t, IB, Personality{BAR: 1 << 20})
	prm.CapUARsPerPage.Put(v.d.caps[prm.CapGeneral].cur, 4) // as SET_HCA_CAP does
	all := []uint32{v.uar()}
	for {
		out, status := v.call(prm.AllocUAR, 0, v.in(small), small)
		if status == prm.NoResource {
			break
		}
		all = append(all, prm.ObjectNumber.U32(out))
	}
	for i, n := range all {
		if n%4 != 0 || n/4 == benchPage/4 || i > 0 && n < all[i-1]+4 {
			t.Errorf("UAR pages from %#x after %#x", n, all[max(i-1, 0)])
		}
	}
	if len(all) < 40 || uint64(all[len(all)-1]+4)*uarPage > 1<<20-dmSize {
		t.Errorf("%d groups, the last at %#x", len(all), all[len(all)-1])
	}
	v.refused(prm.BadResource, prm.DeallocUAR, 0, v.object(2), small)
	v.must(prm.DeallocUAR, 0, v.object(all[3]), small)
	v.refused(prm.BadResource, prm.DeallocUAR, 0, v.object(all[3]+3), small)
	if n := v.uar(); n != all[3] {
		t.Errorf("UAR page %#x, want %#x again", n, all[3])
	}
	v.violations(0)
}

// TestSmallBAR: there are as many UAR pages as fit, and the test bench and the card's own memory
// are elsewhere.
func TestSmallBAR(t *testing.T) {
	for _, c := range []struct {
		size uint64
		uars int
	}{{1 << 20, 175}, {2 << 20, 192}, {32 << 20, 7872}} {
		v := newRunningOf(t, IB, Personality{BAR: c.size})
		var all []uint32
		for {
			out, status := v.call(prm.AllocUAR, 0, v.in(small), small)
			if status != prm.OK {
				if status != prm.NoResource {
					t.Errorf("after %d UARs: %s", len(all), status)
				}
				break
			}
			all = append(all, prm.ObjectNumber.U32(out))
		}
		if len(all) != c.uars {
			t.Errorf("a BAR of %d bytes has %d UARs, want %d", c.size, len(all), c.uars)
		}
		last := slices.Max(all)
		if slices.Contains(all, benchOffset/uarPage) || uint64(last+1)*uarPage > c.size-dmSize {
			t.Errorf("UARs up to %#x overlap the test bench or the card's memory", last)
		}
		if got := prm.CapMEMICStart.Get(v.caps(prm.CapDevMem)); got != c.size-dmSize {
			t.Errorf("the card's memory begins at %#x of %#x bytes", got, c.size)
		}
		v.must(prm.DeallocUAR, 0, v.object(all[3]), small)
		if n := v.uar(); n != all[3] {
			t.Errorf("UAR %#x, where %#x is free", n, all[3])
		}
		for _, n := range []uint32{all[0], last} { // a load is a violation, so the page is one of registers
			before := v.d.Report().Violations
			v.load(uint64(n)*uarPage + 0x800)
			v.violations(before + 1)
		}
		v.d.WriteBAR(0, benchOffset+benchText, []byte("violations"))
		v.d.WriteBAR(0, benchOffset+1, []byte{10, 0})
		v.d.WriteBAR(0, benchOffset, []byte{1})
		answer := make([]byte, 1)
		if v.d.ReadBAR(0, benchOffset+benchText, answer); string(answer) != "2" {
			t.Errorf("the test bench says %q, want 2", answer)
		}
	}
}

// TestPersonalityPort: what an InfiniBand port's personality is, as the driver reads it.
func TestPersonalityPort(t *testing.T) {
	read := func(p Personality) (grh bool, lid uint16, keys []uint16) {
		v := newRunningOf(t, IB, p)
		x := v.must(prm.QueryHCAVPortCtx, 0, v.in(small), prm.HCAVPort+prm.HCAVPortSize)[prm.HCAVPort:]
		in := v.in(small)
		prm.QueryIndex.Put(in, 0xffff)
		out := v.must(prm.QueryHCAVPortPKey, 0, in, prm.PKeyTable+4*pkeyCount)
		for i := range pkeyCount {
			keys = append(keys, uint16(be.Uint32(out[prm.PKeyTable+4*i:])))
		}
		return prm.HVPGRHRequired.Bool(x), uint16(prm.HVPLID.Get(x)), keys
	}
	grh, lid, keys := read(Personality{})
	if grh || lid != 8 || keys[0] != 0xffff || slices.Max(keys[1:]) != 0 {
		t.Errorf("plain: GRH %t, LID %d, P_Keys %#x", grh, lid, keys)
	}
	grh, lid, keys = read(Personality{GRHRequired: true, SharedLID: true, PKeyIndex: 7})
	if !grh || lid != sharedLID || keys[0] != partition || keys[7] != 0xffff || slices.Max(keys[1:7]) != 0 || slices.Max(keys[8:]) != 0 {
		t.Errorf("GRH %t, LID %d, P_Keys %#x", grh, lid, keys)
	}
}

// TestEthernetPKeys: on Ethernet the default P_Key is the first, as the kernel takes no other.
func TestEthernetPKeys(t *testing.T) {
	v := newRunningOf(t, RoCE, Personality{PKeyIndex: 7})
	in := v.in(small)
	if key := be.Uint32(v.must(prm.QueryHCAVPortPKey, 0, in, prm.PKeyTable+4)[prm.PKeyTable:]); key != 0xffff {
		t.Errorf("the first P_Key is %#x", key)
	}
}

// TestManyGIDs: an Ethernet port takes as many GIDs as it says.
func TestManyGIDs(t *testing.T) {
	v := newRunningOf(t, RoCE, Personality{ManyGIDs: true})
	n := prm.CapRoCETableSize.Get(v.caps(prm.CapRoCE))
	if n != 256 {
		t.Errorf("%d GIDs", n)
	}
	set := func(index uint64) []byte {
		in := v.in(0x180 / 8)
		prm.RoCEIndex.Put(in, index)
		x := prm.Record(in, prm.RoCEAddr, prm.RoCESize)
		copy(x, "0123456789abcdef")
		prm.RoCEVersion.Put(x, roceVersion2)
		return in
	}
	v.must(prm.SetRoCEAddress, 0, set(n-1), small)
	if g := v.d.eng.Port().GIDs[n-1]; string(g.Addr[:]) != "0123456789abcdef" {
		t.Errorf("%+v", g)
	}
	v.refused(prm.BadIndex, prm.SetRoCEAddress, 0, set(n), small)
}

// TestPersonalityTraits: what the data path is told.
func TestPersonalityTraits(t *testing.T) {
	if got := (&Personality{}).traits(IB); got != (engine.Traits{}) {
		t.Errorf("plain: %+v", got)
	}
	p := Personality{
		Seed: 9, NoBlueFlame: true, SmallBlueFlame: true, ShortWQEs: true, NoAtomics: true, SmallLimits: true, GRHRequired: true,
		SharedLID: true, Noise: true, SRQFaults: true, ReorderRecvs: true, ReorderWrites: true,
	}
	want := engine.Traits{
		NoBlueFlame: true, LogBF: 8, MaxSendWQE: 512, NoAtomics: true, LogMaxQPSize: 10, LogMaxSRQSize: 11, LogMaxCQSize: 13, MaxCQs: 1024,
		MaxSRQs: 512, MaxMKeys: 4096, GRHRequired: true, SharedLID: true, Noise: 9, SRQFaults: true, ReorderRecvs: true, ReorderWrites: true,
	}
	if got := p.traits(IB); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	want.MaxSendWQE = 0
	if got := p.traits(RoCE); got != want {
		t.Errorf("RoCE: %+v, want %+v", got, want)
	}
}

// TestECE: of the options that a driver asks for the card takes those that it has, and without ECE
// none may be asked for.
func TestECE(t *testing.T) {
	for _, has := range []bool{false, true} {
		v := newVerbsOf(t, IB, Personality{ECE: has})
		cqn, _, _ := v.newCQ(v.u, v.eqn)
		ask := func(op prm.Op, in []byte, want uint64, answer uint64) uint32 {
			t.Helper()
			prm.QPECEIn.Put(in, want)
			if !has && want != 0 {
				v.refused(prm.BadParam, op, 0, in, small)
				prm.QPECEIn.Put(in, 0)
				answer = 0
			}
			out := v.must(op, 0, in, small)
			if got := prm.QPECEOut.Get(out); got != answer {
				t.Errorf("ECE %t, %s with %#x: %#x, want %#x", has, op, want, got, answer)
			}
			return prm.ObjectNumber.U32(out)
		}
		qpn := ask(prm.CreateQP, v.qpIn(prm.STRC, cqn, v.page(), v.page()), 0x10000000, 0x1000000f)
		ask(prm.CreateQP, v.qpIn(prm.STRC, cqn, v.page(), v.page()), 0, 0)
		in := v.modifyIn(qpn)
		prm.QPCPMState.Put(in[prm.QPCtx:], 3)
		prm.ADSPort.Put(in[prm.QPCtx+prm.QPCPrimary:], 1)
		ask(prm.RST2INITQP, in, 0x10000035, 0x10000005)
		v.violations(0)
	}
}

// TestSlowResize: a resize of a CQ takes some time, in which other commands are executed.
func TestSlowResize(t *testing.T) {
	v := newRunningOf(t, IB, Personality{SlowResize: true})
	u := v.uar()
	cqn, cq, _ := v.newCQ(u, v.eq(u, 1, 0, v.page()))
	in := v.with(v.page())
	prm.ObjectNumber.Put(in, uint64(cqn))
	prm.CQCLogSize.Put(prm.Record(in, prm.CQCtx, prm.CQCSize), 5)
	prm.InOpcode.Put(in, uint64(prm.ModifyCQ))
	prm.InOpMod.Put(in, uint64(prm.ModifyCQOpResize))
	desc := bytes.Clone(v.desc(in, small))
	slot := v.mem[slots-ramBase+3*descSize:][:descSize] // while others take slot 0
	copy(slot, desc)
	v.store(segCmdDoorbell, 1<<3)
	status := func() byte {
		v.d.mu.Lock() // as the driver would see it after an event
		defer v.d.mu.Unlock()
		return slot[descStatus]
	}
	if status()&1 != 1 {
		t.Error("the resize is done at once")
	}
	n := v.pd()
	v.must(prm.DeallocPD, 0, v.object(n), small)
	for end := time.Now().Add(20 * time.Second); status()&1 == 1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the resize does not end")
		}
	}
	if status()>>1 != prm.DeliveryOK || slot[descOut] != 0 {
		t.Errorf("delivery status %#x, status %#x", status()>>1, slot[descOut])
	}
	if op := v.mem[cq-ramBase+63] >> 4; op != 5 {
		t.Errorf("the first entry of the old ring is of kind %d, want the mark of a resize", op)
	}
	v.violations(0)

	// A reset ends it.
	v = newRunningOf(t, IB, Personality{SlowResize: true})
	copy(v.mem[slots-ramBase:], desc)
	v.store(segCmdDoorbell, 1)
	v.d.Reset()
	time.Sleep(2 * resizeTime)
	if v.mem[slots-ramBase+descStatus]&1 == 0 {
		t.Error("a command completes after a reset")
	}
	if got := v.d.Report().Commands[prm.ModifyCQ.String()]; got != 0 {
		t.Errorf("%d commands were executed after a reset", got)
	}
}
