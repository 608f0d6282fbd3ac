package engine

import "testing"

// BenchmarkMessage is what the model takes for a message, whole: doorbell, packets,
// acknowledgement and both completions.
func BenchmarkMessage(b *testing.B) {
	for _, c := range []struct {
		name string
		n    int
	}{{"64", 64}, {"4096", 4096}, {"65536", 65536}} {
		b.Run(c.name, func(b *testing.B) {
			t := &testing.T{}
			f := NewFabric(FabricConfig{Manual: true})
			defer f.Close()
			h := newHost(t, f, InfiniBand)
			h.d.cfg.Trace = nil
			p := &pair{a: h.newQP(qpOptions{typ: RC}), b: h.newQP(qpOptions{typ: RC}), ma: h.newMR(64<<10, allAccess), mb: h.newMR(64<<10, allAccess)}
			at := p.a.attr(p.b)
			at.MTU = 5
			bt := p.b.attr(p.a)
			bt.MTU = 5
			p.a.connect(at)
			p.b.connect(bt)
			b.SetBytes(int64(c.n))
			b.ReportAllocs()
			for b.Loop() {
				p.b.recv(p.mb.sge(0, c.n))
				p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, c.n)))
				h.f.Run(1 << 30)
				if len(p.a.scq.poll()) != 1 || len(p.b.rcq.poll()) != 1 {
					b.Fatal("the message did not arrive")
				}
			}
		})
	}
}

// BenchmarkRegister is a registration among many: its cost does not depend on how many.
func BenchmarkRegister(b *testing.B) {
	for _, n := range []int{10, 10000} {
		b.Run(map[int]string{10: "10", 10000: "10000"}[n], func(b *testing.B) {
			t := &testing.T{}
			f := NewFabric(FabricConfig{Manual: true})
			defer f.Close()
			h := newHost(t, f, InfiniBand)
			s := MKeySpec{PD: h.pd, QPN: NoUserIndex, Mode: ModePA, Access: allAccess, Length64: true}
			register := func() uint32 {
				i, err := h.d.CreateMKey(s)
				if err != nil {
					b.Fatal(err)
				}
				return i
			}
			for range n {
				register()
			}
			for b.Loop() {
				if err := h.d.DestroyMKey(register()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
