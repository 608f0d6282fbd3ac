package hca

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

func TestSegment(t *testing.T) {
	v := newDriver(t, IB)
	if rev := v.load(segCmdIfRev) >> 16; rev != 5 {
		t.Errorf("command interface %d", rev)
	}
	if lo := v.load(segCmdQLow); lo&0x7ff != logCmdSlots<<4|logCmdStride {
		t.Errorf("command queue's low word %#x", lo)
	}
	if v.load(segInitializing)>>31 != 0 {
		t.Error("the card says that it is initializing")
	}
	var b [1]byte
	if v.d.ReadBAR(0, segFWRev+3, b[:]); b[0] != fwMajor {
		t.Errorf("a byte of the firmware's revision is %d", b[0])
	}
	a := uint64(v.load(segTimerHigh))<<32 | uint64(v.load(segTimerLow))
	v.fabric.RunFor(time.Microsecond)
	z := uint64(v.load(segTimerHigh))<<32 | uint64(v.load(segTimerLow))
	if z <= a {
		t.Errorf("the timer goes from %d to %d", a, z)
	}
	v.violations(0)
	v.d.WriteBAR(0, segCmdQHigh, []byte{1, 2})
	v.store(0x40, 1)
	v.store(segCmdQLow, slots|1<<8)
	v.violations(3)
}

// A card is brought up in order, and gives back what it was given.
func TestBringUp(t *testing.T) {
	for _, mode := range []Mode{IB, RoCE} {
		v := newDriver(t, mode)
		v.refused(prm.BadSysState, prm.QueryISSI, 0, v.in(small), 0x380/8)
		v.must(prm.EnableHCA, 0, v.in(small), small)
		v.refused(prm.BadSysState, prm.EnableHCA, 0, v.in(small), small)
		v.refused(prm.BadSysState, prm.InitHCA, 0, v.in(small), small)
		out := v.must(prm.QueryISSI, 0, v.in(small), 0x380/8)
		if prm.ISSISupported.Get(out)>>issiOne&1 != 1 {
			t.Error("ISSI 1 is not supported")
		}
		issi := v.in(small)
		prm.ISSICurrent.Put(issi, 2)
		v.refused(prm.BadParam, prm.SetISSI, 0, issi, small)
		prm.ISSICurrent.Put(issi, 1)
		v.must(prm.SetISSI, 0, issi, small)
		v.refused(prm.BadSysState, prm.InitHCA, 0, v.in(small), small)
		for _, kind := range []uint16{pagesBoot, pagesInit} {
			out := v.must(prm.QueryPages, kind, v.in(small), small)
			v.give(prm.PagesNum.Int(out))
		}
		v.refused(prm.BadSysState, prm.AllocPD, 0, v.in(small), small)
		v.must(prm.InitHCA, 0, v.in(small), small)
		v.refused(prm.BadSysState, prm.InitHCA, 0, v.in(small), small)
		v.refused(prm.BadSysState, prm.DisableHCA, 0, v.in(small), small)
		pd := v.pd()
		take := v.in(small)
		prm.PagesNum.Put(take, 100)
		if out := v.must(prm.ManagePages, pagesTake, take, prm.PagesList+800); prm.PagesOut.Get(out) != 0 {
			t.Error("a card that runs gives pages back")
		}
		v.must(prm.TeardownHCA, 0, v.in(small), small)
		v.refused(prm.BadSysState, prm.DeallocPD, 0, v.object(pd), small)
		seen := map[uint64]bool{}
		out = v.must(prm.ManagePages, pagesTake, take, prm.PagesList+800)
		for i := range prm.PagesOut.Int(out) {
			seen[be.Uint64(out[prm.PagesList+8*i:])] = true
		}
		if len(seen) != bootPages+initPages {
			t.Errorf("%d pages came back", len(seen))
		}
		v.must(prm.DisableHCA, 0, v.in(small), small)
		v.violations(0)
		v.bringUp()
		v.must(prm.TeardownHCA, 0, v.in(small), small)
		v.must(prm.DisableHCA, 0, v.in(small), small)
		v.violations(1) // it keeps the pages of a driver that is gone
	}
}

func TestPages(t *testing.T) {
	v := newDriver(t, IB)
	v.must(prm.EnableHCA, 0, v.in(small), small)
	give := func(want prm.Status, n int, pages ...uint64) {
		t.Helper()
		in := v.in(prm.PagesList + 8*len(pages))
		prm.PagesNum.Put(in, uint64(n))
		for i, p := range pages {
			be.PutUint64(in[prm.PagesList+8*i:], p)
		}
		v.refused(want, prm.ManagePages, pagesGive, in, small)
	}
	p := v.page()
	give(prm.BadInLen, 2, p)
	give(prm.BadParam, 1, p+8)
	give(prm.BadParam, 2, p, p)
	give(prm.BadParam, 1, 0x1000)
	give(prm.OK, 1, p)
	give(prm.BadParam, 1, p)
	v.refused(prm.BadParam, prm.ManagePages, 7, v.in(small), small)
	v.refused(prm.BadParam, prm.QueryPages, 9, v.in(small), small)
	v.violations(0)
}

func TestDelivery(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil func(v *driver, d []byte)
		want  int
	}{
		"type":         {func(v *driver, d []byte) { d[descType] = 1 }, prm.DeliveryDescrErr},
		"no input":     {func(v *driver, d []byte) { be.PutUint32(d[descInLen:], 4) }, prm.DeliveryInLenErr},
		"huge input":   {func(v *driver, d []byte) { be.PutUint32(d[descInLen:], 1<<30) }, prm.DeliveryInLenErr},
		"no output":    {func(v *driver, d []byte) { be.PutUint32(d[descOutLen:], 0) }, prm.DeliveryOutLenErr},
		"huge output":  {func(v *driver, d []byte) { be.PutUint32(d[descOutLen:], ^uint32(0)) }, prm.DeliveryOutLenErr},
		"no mailbox":   {func(v *driver, d []byte) { be.PutUint64(d[descInPtr:], 0) }, prm.DeliveryInPtrErr},
		"unaligned":    {func(v *driver, d []byte) { be.PutUint64(d[descInPtr:], ramBase+8) }, prm.DeliveryInPtrErr},
		"unmapped":     {func(v *driver, d []byte) { be.PutUint64(d[descInPtr:], 1<<40) }, prm.DeliveryInPtrErr},
		"no out box":   {func(v *driver, d []byte) { be.PutUint64(d[descOutPtr:], 0) }, prm.DeliveryOutPtrErr},
		"token":        {func(v *driver, d []byte) { d[descToken]++ }, prm.DeliveryTokenErr},
		"block number": {func(v *driver, d []byte) { v.mem[be.Uint64(d[descInPtr:])-ramBase+blockNum+3] = 9 }, prm.DeliveryBlockErr},
		"chain's end":  {func(v *driver, d []byte) { be.PutUint64(v.mem[be.Uint64(d[descInPtr:])-ramBase+blockNext:], 0) }, prm.DeliveryInPtrErr},
		"nothing":      {func(v *driver, d []byte) {}, prm.DeliveryOK},
	} {
		v := newRunning(t, IB)
		in := v.in(prm.CapsData + prm.CapsSize)
		prm.InOpcode.Put(in, uint64(prm.QueryHCACap))
		d := v.desc(in, prm.CapsData+prm.CapsSize)
		tt.spoil(v, d)
		if got := v.ring(); got != tt.want {
			t.Errorf("%s: delivery status %#x, want %#x", name, got, tt.want)
		}
		want := uint64(1)
		if tt.want == prm.DeliveryOK {
			want = 0
		}
		v.violations(want)
	}
	v := newRunning(t, IB)
	v.desc(v.in(small), small)[descStatus] = 0
	v.store(segCmdDoorbell, 1)
	v.violations(1) // the driver owns the descriptor
	v.store(segCmdQHigh, 0xff)
	v.store(segCmdDoorbell, 2)
	v.violations(2) // no memory
}

// Every command refuses to be too short, and takes any bytes without harm.
func TestTable(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for op, c := range commands {
		if strings.HasPrefix(op.String(), "opcode") {
			t.Errorf("%s has no name", op)
		}
		mode := c.mode
		if mode == "" {
			mode = IB
		}
		v := newRunning(t, mode)
		if c.in > inlineLen {
			v.refused(prm.BadInLen, op, 0, v.in(c.in-1), max(c.out, small))
		}
		if c.out > inlineLen {
			v.refused(prm.BadOutLen, op, 0, v.in(c.in), c.out-1)
		}
		if c.mode != "" {
			other := map[Mode]Mode{IB: RoCE, RoCE: IB}[c.mode]
			w := newRunning(t, other)
			w.refused(prm.BadOp, op, 0, w.in(c.in), c.out)
		}
		for range 200 {
			in := v.in(c.in + 8*rng.IntN(4))
			for range rng.IntN(40) {
				in[4+rng.IntN(len(in)-4)] = byte(rng.Uint32())
			}
			prm.InUID.Put(in, 0)
			v.call(op, uint16(rng.IntN(4)), in, c.out+8*rng.IntN(4))
			v.fabric.Run(10)
			if v.d.phase != phaseRunning {
				v = newRunning(t, mode)
			}
		}
	}
}

func TestUnknownOpcode(t *testing.T) {
	v := newRunning(t, IB)
	v.refused(prm.BadOp, 0xb00, 0, v.in(small), small)
	v.refused(prm.BadOp, 0xb00, 0, v.in(small), small)
	r := v.d.Report()
	if r.Unknown["opcode 0xb00"] != 2 || r.Refusals != 2 || len(r.Refused) != 2 {
		t.Errorf("%+v", r)
	}
	in := v.in(small)
	prm.InUID.Put(in, 1)
	v.refused(prm.BadParam, prm.AllocPD, 0, in, small)
}

// The EQ that asks for command completions gets one for each, but not for its own making.
func TestCommandCompletion(t *testing.T) {
	v := newRunning(t, IB)
	uar, page := v.uar(), v.page()
	for i := range 64 {
		v.mem[page-ramBase+uint64(64*i)+63] = 1
	}
	eqn := v.eq(uar, 3, 1<<engine.EventCmd, page)
	entry := func(i int) []byte { return v.mem[page-ramBase+uint64(64*i):][:64] }
	if entry(0)[63] != 1 {
		t.Fatal("CREATE_EQ's own completion is in the EQ")
	}
	v.pd()
	if e := entry(0); e[63] != 0 || e[1] != byte(engine.EventCmd) || be.Uint32(e[32:]) != 1 {
		t.Errorf("entry %x", e)
	}
	if len(v.vectors) != 0 {
		t.Error("an interrupt of an EQ that is not armed")
	}
	var arm [4]byte
	be.PutUint32(arm[:], eqn<<24|1)
	v.d.WriteBAR(0, uint64(uar)*uarPage+0x40, arm[:])
	v.pd()
	if entry(1)[63] != 0 || len(v.vectors) != 1 || v.vectors[0] != 3 {
		t.Errorf("entry %x, interrupts %v", entry(1), v.vectors)
	}
	destroy := v.in(small)
	prm.EQNumber.Put(destroy, uint64(eqn))
	v.must(prm.DestroyEQ, 0, destroy, small)
	v.pd()
	if entry(2)[63] != 1 || entry(3)[63] != 1 {
		t.Error("a completion in an EQ that is gone")
	}
	v.violations(0)
}

func TestFaults(t *testing.T) {
	v := newRunning(t, IB)
	v.d.FailCommand(prm.AllocPD, prm.LimitErr, 0xabc, 1, 2)
	v.pd()
	for range 2 {
		out, status := v.call(prm.AllocPD, 0, v.in(small), small)
		if status != prm.LimitErr || prm.OutSyndrome.Get(out) != 0xabc {
			t.Errorf("%s, syndrome %#x", status, prm.OutSyndrome.Get(out))
		}
	}
	v.pd()

	clock := time.Hour
	v.d.cfg.Now = func() time.Duration { return clock }
	alive := v.load(segHealthCount)
	clock += time.Minute
	if now := v.load(segHealthCount); now <= alive {
		t.Errorf("the health counter goes from %d to %d", alive, now)
	}

	if v.load(segCmdQLow)>>8&7 != 0 {
		t.Error("a card that is well has no full interface")
	}
	uar := v.uar()
	// A dead card keeps the command, its counter stands still, and it says so.
	if v.load(segHealth+healthSyndrome) != 0 {
		t.Error("a syndrome in the health buffer of a card that is well")
	}
	v.d.Fail()
	v.desc(v.in(small), small)
	v.store(segCmdDoorbell, 1)
	if v.mem[slots-ramBase+descStatus] != 1 {
		t.Error("a dead card executes commands")
	}
	if v.load(segHealth+healthSeverity)>>31 != 1 || v.load(segHealth+healthSyndrome)>>16&0xff != healthFatal {
		t.Error("the health buffer does not tell")
	}
	if v.load(segCmdQLow)>>8&7 != interfaceOff {
		t.Error("a dead card has an interface")
	}
	v.d.WriteBAR(0, uint64(uar)*uarPage+0x20, make([]byte, 8)) // nobody listens
	v.violations(0)
	count := v.load(segHealthCount)
	clock += time.Minute
	if now := v.load(segHealthCount); now != count {
		t.Errorf("a dead card's counter goes from %d to %d", count, now)
	}
	v.d.Reset()
	v.store(segCmdQHigh, slots>>32)
	v.store(segCmdQLow, slots)
	v.bringUp()
	v.pd()
	v.violations(0)
}

// TestClock: the free running timer is the clock that CQEs have, and a load sees one time of it,
// also while it carries from byte to byte.
func TestClock(t *testing.T) {
	v := newRunning(t, IB)
	v.fabric.RunFor(5*time.Second + 7)
	now := uint64(v.fabric.Now())
	if got := uint64(v.load(segTimerHigh))<<32 | uint64(v.load(segTimerLow)); got != now || now>>32 == 0 {
		t.Errorf("the timer is at %#x, the fabric at %#x", got, now)
	}
	var clock time.Duration
	v.d.cfg.Now = func() time.Duration { clock += 0x01010101; return clock }
	for range 250 {
		if got := v.load(segTimerLow); got%0x01010101 != 0 {
			t.Fatalf("the timer is at %#x, which is no time", got)
		}
	}
	var both [8]byte
	v.d.ReadBAR(0, segTimerHigh, both[:])
	if got := be.Uint64(both[:]); got != uint64(clock) {
		t.Errorf("both words at once are %#x, want %#x", got, clock)
	}
}

func FuzzCommand(f *testing.F) {
	f.Add(uint16(prm.CreateCQ), uint16(0), make([]byte, list+8), uint16(small), true)
	f.Add(uint16(prm.MADIFC), uint16(0), make([]byte, 0x110), uint16(0x110), false)
	f.Add(uint16(prm.SetFlowTableEntry), uint16(0), make([]byte, 0x1a00/8), uint16(small), true)
	f.Fuzz(func(t *testing.T, op, mod uint16, in []byte, outLen uint16, eth bool) {
		mode := IB
		if eth {
			mode = RoCE
		}
		v := newRunning(t, mode)
		if len(in) < small {
			in = append(in, make([]byte, small-len(in))...)
		}
		if len(in) > 1<<16 {
			in = in[:1<<16]
		}
		v.call(prm.Op(op), mod, in, max(int(outLen), small))
	})
}
