//go:build amd64 || arm64

package efa

import (
	"embed"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/test/testenv"
)

// golden are recordings of libefa on a modelled card. "make golden" makes them with
// test/bench/rdmacore/efa.c.
//
//go:embed testdata/golden/*.txt
var golden embed.FS

// recording is what libefa wrote: what it contains of the program, and the lines of each QP without the
// number.
type recording struct {
	buf                        uint64
	lkey, rkey                 uint32
	ah, peer, narrow, wide     uint16
	sends, descs, sendB, recvB map[uint16][]string
}

func readGolden(t *testing.T, name string) (r recording) {
	t.Helper()
	text, err := golden.ReadFile("testdata/golden/" + name)
	testenv.Must(t, err)
	r.sends, r.descs, r.sendB, r.recvB = map[uint16][]string{}, map[uint16][]string{}, map[uint16][]string{}, map[uint16][]string{}
	for l := range strings.Lines(string(text)) {
		if strings.HasPrefix(l, "#") {
			continue
		}
		if r.peer == 0 {
			_, err := fmt.Sscanf(l, "memory %v lkey %v rkey %v ah %v peer %v narrow %v wide %v", &r.buf, &r.lkey, &r.rkey, &r.ah, &r.peer, &r.narrow, &r.wide)
			testenv.Must(t, err)
			continue
		}
		var qpn uint16
		var kind, what string
		if _, err := fmt.Sscanf(l, "%v: %s %s", &qpn, &kind, &what); err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		lines := map[string]map[uint16][]string{"send": r.sends, "descriptor": r.descs, "receive": r.recvB}[kind]
		if what == "doorbell" {
			if kind == "send" {
				lines = r.sendB
			}
			what = strings.Fields(l)[3]
		}
		lines[qpn] = append(lines[qpn], strings.Trim(what, "[]"))
	}
	return r
}

// fill fills a slot with a request of the recorded program.
type fill func(s *SendSlot) error

// fillers make requests with the values of the recorded program.
func (r *recording) fillers() (sges func(op Op, imm uint32, lengths ...uint32) fill, inline func(op Op, imm uint32, n int) fill) {
	begin := func(s *SendSlot, op Op, imm uint32) {
		s.Start(7, op, NewPeer(0x1234567, r.peer, r.ah).WithImm(imm))
		if offset, ok := map[Op]uint64{Read: 40000, Write: 41000, WriteImm: 42000}[op]; ok {
			s.SetRDMA(r.buf+offset, r.rkey)
		}
	}
	sges = func(op Op, imm uint32, lengths ...uint32) fill {
		return func(s *SendSlot) (err error) {
			begin(s, op, imm)
			for i, n := range lengths {
				if err == nil {
					err = s.AddSGE(r.buf+1024*uint64(i), n, r.lkey)
				}
			}
			return err
		}
	}
	inline = func(op Op, imm uint32, n int) fill {
		return func(s *SendSlot) error {
			begin(s, op, imm)
			data := make([]byte, n)
			for i := range data {
				data[i] = byte(i*7 + 1)
			}
			return s.AddInline(data)
		}
	}
	return sges, inline
}

// play posts lists of requests to the queue of a rig and completes each list, and returns the requests as the
// device reads them, and the doorbells.
func play(t *testing.T, r *rig, lists ...[]fill) (sends, bells []string) {
	t.Helper()
	for _, fills := range lists {
		if !r.sq.Room(len(fills)) {
			t.Fatal("no room")
		}
		for i, f := range fills {
			s := r.sq.Slot(i)
			testenv.Must(t, f(&s))
			s.Finish()
		}
		r.sq.Publish(len(fills))
		bells = append(bells, fmt.Sprint(le.Uint32(r.sendBell)))
		for _, w := range r.requests() {
			sends = append(sends, hex.EncodeToString(w))
			if _, _, _, ok := r.sq.Complete(idOf(w)); !ok {
				t.Errorf("request %x does not complete", w)
			}
		}
	}
	return sends, bells
}

// maskIDs clears the index in the request IDs of all but the first requests: libefa uses the slot again that
// was returned last, and this package the one that was returned first.
func maskIDs(t *testing.T, lines []string, from int, mask uint16) []string {
	t.Helper()
	for i, l := range lines[from:] {
		w, err := hex.DecodeString(l)
		testenv.Must(t, err)
		le.PutUint16(w, le.Uint16(w)&^mask)
		lines[from+i] = hex.EncodeToString(w)
	}
	return lines
}

// TestGolden does what the recorded program did, and compares all bytes that libefa wrote: request IDs with
// their generation, phases, and doorbells.
func TestGolden(t *testing.T) {
	g := readGolden(t, "queues.txt")
	sges, inline := g.fillers()
	const imm1, imm2, imm3 = 0xabcd1234, 0x11223344, 0x55667788
	around := make([]fill, 10)
	for i := range around {
		around[i] = sges(Send, 0, uint32(100+i))
	}
	narrow := newRig(t, SendSize{Depth: 16, Width: 64, MaxSGE: 2, MaxInline: 32}, RecvSize{MaxWR: 10, MaxSGE: 3, Descriptors: 32}, 1, 32)
	sends, bells := play(t, narrow, []fill{
		sges(Send, 0, 64), sges(SendImm, imm1, 64, 1000), sges(Send, 0), inline(Send, 0, 32), inline(SendImm, imm2, 5),
		sges(Read, 0, 512), sges(Write, 0, 513), sges(WriteImm, imm3, 514),
	}, around)
	if diff := cmp.Diff(maskIDs(t, g.sends[g.narrow], 8, 15), maskIDs(t, sends, 8, 15)); diff != "" {
		t.Errorf("requests of 64 bytes (-libefa +this):\n%s", diff)
	}
	if diff := cmp.Diff(g.sendB[g.narrow], bells); diff != "" {
		t.Errorf("doorbells (-libefa +this):\n%s", diff)
	}

	wide := newRig(t, SendSize{Depth: 8, Width: 128, MaxSGE: 2, MaxInline: 80, InlineWrite: true}, RecvSize{MaxWR: 8, MaxSGE: 1, Descriptors: 8}, 1, 32)
	sends, bells = play(t, wide, []fill{
		sges(Send, 0, 64, 1000), inline(Send, 0, 80), inline(SendImm, imm1, 33), sges(Read, 0, 512), sges(Write, 0, 513),
		func(s *SendSlot) error { // the program writes this to the address of the one before
			err := inline(Write, 0, 80)(s)
			s.SetRDMA(g.buf+41000, g.rkey)
			return err
		}, inline(WriteImm, imm3, 5),
	})
	if diff := cmp.Diff(g.sends[g.wide], sends); diff != "" {
		t.Errorf("requests of 128 bytes (-libefa +this):\n%s", diff)
	}
	if diff := cmp.Diff(g.sendB[g.wide], bells); diff != "" {
		t.Errorf("doorbells (-libefa +this):\n%s", diff)
	}

	var descs []string
	bells = nil
	for i, lengths := range [][]uint32{{1000}, {1000, 2000, 70000}, {65536, 0}} {
		narrow.rq.Begin()
		s := narrow.rq.Slot(0, uint64(i))
		for j, n := range lengths {
			testenv.Must(t, s.AddSGE(g.buf+65536+4096*uint64(j), n, g.lkey))
		}
		testenv.Must(t, s.Finish())
		narrow.rq.Publish(1)
		bells = append(bells, fmt.Sprint(le.Uint32(narrow.recvBell)))
		for _, d := range narrow.descriptors() {
			descs = append(descs, hex.EncodeToString(d))
		}
	}
	if diff := cmp.Diff(g.descs[g.narrow], descs); diff != "" {
		t.Errorf("descriptors (-libefa +this):\n%s", diff)
	}
	if diff := cmp.Diff(g.recvB[g.narrow], bells); diff != "" {
		t.Errorf("doorbells of receives (-libefa +this):\n%s", diff)
	}
}

// TestGoldenBatch posts a list that needs several doorbells.
func TestGoldenBatch(t *testing.T) {
	g := readGolden(t, "batch.txt")
	sges, _ := g.fillers()
	list := make([]fill, 10)
	for i := range list {
		list[i] = func(s *SendSlot) error {
			testenv.Must(t, sges(Send, 0)(s))
			return s.AddSGE(g.buf+100*uint64(i), uint32(100+i), g.lkey)
		}
	}
	c, d := Context{Inline: 32, MaxLLQ: 65536, MaxBatch: 4, MinSends: 16}, Device{MaxSends: 1024, MaxSendSGE: 2}
	size := must[SendSize](t)(c.SendSize(&d, 10, 2, 32, false))
	r := newRig(t, size, RecvSize{MaxWR: 8, MaxSGE: 1, Descriptors: 8}, 1, 32)
	sends, _ := play(t, r, list)
	if diff := cmp.Diff(g.sends[g.narrow], sends); diff != "" {
		t.Errorf("requests (-libefa +this):\n%s", diff)
	}
	if first, last := fmt.Sprint(firstDoorbell(t, size, 10)), fmt.Sprint(le.Uint32(r.sendBell)); first != g.sendB[g.narrow][0] || last != g.sendB[g.narrow][2] {
		t.Errorf("doorbells begin with %s and end with %s, want %q", first, last, g.sendB[g.narrow])
	}
}
