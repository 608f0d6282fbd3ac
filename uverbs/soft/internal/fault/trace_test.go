package fault

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/uverbs/soft/internal/udp"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// TestTraceLines: one line for each packet and each kind of decision.
func TestTraceLines(t *testing.T) {
	var trace bytes.Buffer
	r := newRig(t, strings.Join([]string{
		"qpn=1,loss=100%", "qpn=2,duplicate=100%", "qpn=3,reorder=100%,behind=3", "qpn=4,delay=1.5ms", "qpn=5,corrupt=100%",
		"qpn=6,rate=160kbit", "qpn=7,duplicate=100%,delay=1ms", "qpn=9",
	}, ";"), func(o *Options) { o.Trace, o.MaxHeld = &trace, 5 })
	for qpn := uint32(1); qpn <= 9; qpn++ {
		if err := r.p.Send(batchOf(hostB, qpn, 20)); err != nil {
			t.Error(err)
		}
	}
	for range 2 { // the second one waits for the rate
		if err := r.p.Send(batchOf(hostB, 6, 21)); err != nil {
			t.Error(err)
		}
	}
	r.f.Partition(hostA.Addr(), hostC.Addr())
	if err := r.p.Send(batchOf(hostC, 9, 22)); err != nil {
		t.Error(err)
	}
	r.clock.advance(12345678 * time.Microsecond)
	for _, qpn := range []uint32{5, 8} {
		r.in(hostB, packetOf(wire.RC|wire.SendOnly, qpn, 7, 0), udp.Meta{})
	}
	r.in(hostB, []byte("short"), udp.Meta{})
	const sent = "0.000000 sent 10.0.0.1:4791 > 10.0.0.2:4791: RC SEND Only QP "
	const received = "12.345678 received 10.0.0.2:4791 > 10.0.0.1:4791: "
	want := []string{
		sent + "1 PSN 20, 4 bytes: lost (rule 0, packet 0)",
		sent + "2 PSN 20, 4 bytes: duplicated: passed; passed (rule 1, packet 0)",
		sent + "3 PSN 20, 4 bytes: held back behind 3 of its stream (rule 2, packet 0)",
		sent + "4 PSN 20, 4 bytes: delayed by 1.5ms (rule 3, packet 0)",
		sent + "5 PSN 20, 4 bytes: corrupted in bit 106, passed (rule 4, packet 0)",
		sent + "6 PSN 20, 4 bytes: passed (rule 5, packet 0)",
		sent + "7 PSN 20, 4 bytes: duplicated: delayed by 1ms; delayed by 1ms (rule 6, packet 0)",
		sent + "8 PSN 20, 4 bytes: passed",
		sent + "9 PSN 20, 4 bytes: passed (rule 7, packet 0)",
		sent + "6 PSN 21, 4 bytes: delayed by 1ms (rule 5, packet 1)",
		sent + "6 PSN 21, 4 bytes: dropped as too many packets are held (rule 5, packet 2)",
		"0.000000 sent 10.0.0.1:4791 > 10.0.0.3:4791: RC SEND Only QP 9 PSN 22, 4 bytes: partitioned (rule 7, packet 0)",
		received + "RC SEND Only QP 5 PSN 7, 0 bytes: corrupted in bit 85, dropped (rule 4, packet 0)",
		received + "RC SEND Only QP 8 PSN 7, 0 bytes: passed",
		received + "5 bytes: roce: the packet is shorter than its headers, padding and ICRC: passed",
	}
	if diff := cmp.Diff(want, strings.Split(strings.TrimSpace(trace.String()), "\n")); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	r.f.Close()
	trace.Reset()
	r.send(1)
	if trace.Len() != 0 {
		t.Errorf("a closed injector traces %q", trace.String())
	}
}

// block is a block of a pcapng file.
type block struct {
	typ     uint32
	data    []byte // of a packet: what was captured
	options []byte
}

// blocks reads a pcapng file.
func blocks(t *testing.T, file []byte) (all []block) {
	t.Helper()
	le := binary.LittleEndian
	for len(file) > 0 {
		if len(file) < 12 || len(file) < int(le.Uint32(file[4:])) {
			t.Fatalf("%d bytes behind the last block", len(file))
		}
		b := block{typ: le.Uint32(file)}
		body := file[8 : le.Uint32(file[4:])-4]
		if b.typ == 6 {
			n := int(le.Uint32(body[12:]))
			b.data, b.options = body[20:20+n], body[20+(n+3)&^3:]
		}
		file = file[12+len(body):]
		all = append(all, b)
	}
	return all
}

// TestCapture: a packet is in the capture with its ICRC and the words of the trace, and damaged if it is
// corrupt.
func TestCapture(t *testing.T) {
	const headers = 28 // IPv4 and UDP
	var capture bytes.Buffer
	r := newRig(t, "qpn=1,loss=100%;qpn=2,corrupt=100%;qpn=3,duplicate=100%", func(o *Options) { o.Capture, o.Device = &capture, "soft7" })
	for qpn := uint32(1); qpn <= 4; qpn++ {
		if err := r.p.Send(batchOf(hostB, qpn, 20)); err != nil {
			t.Error(err)
		}
	}
	in := packetOf(wire.RC|wire.SendOnly, 2, 5, 8)
	wire.SealICRC(hostB, hostA, 77, in)
	r.in(hostB, in, udp.Meta{ID: 77})
	r.in(hostB, in[:5], udp.Meta{})                                                                        // too short for a capture
	r.in(netip.MustParseAddrPort("[fd00::1]:4791"), in, udp.Meta{})                                        // of another family
	r.in(netip.MustParseAddrPort("[::ffff:10.0.0.2]:4791"), in, udp.Meta{ID: 77, IP: udp.IP{HopLimit: 9}}) // of the same
	unsealed := packetOf(wire.RC|wire.SendOnly, 4, 5, 8)                                                   // of a peer that leaves the ICRC out
	r.in(hostB, unsealed, udp.Meta{})
	all := blocks(t, capture.Bytes())
	if !bytes.Contains(capture.Bytes(), []byte("soft7")) {
		t.Error("the name of the device is not in the capture")
	}
	want := []struct {
		qpn     uint32
		good    bool
		comment string
	}{
		{1, true, "lost (rule 0, packet 0)"}, {2, false, "corrupted in bit"}, {3, true, "duplicated: passed; passed"},
		{4, true, "passed"}, {2, false, "corrupted in bit"}, {2, false, "dropped"},
		{4, true, "passed"},
	}
	if len(all) != 2+len(want) {
		t.Fatalf("%d blocks, want %d", len(all), 2+len(want))
	}
	for i, w := range want {
		b := all[2+i]
		src, dst := hostA, hostB
		if i >= 4 {
			src, dst = dst, src
		}
		_, good := wire.CheckICRC(src, dst, b.data[headers:])
		if good != w.good || !bytes.Contains(b.options, []byte(w.comment)) {
			t.Errorf("packet %d: ICRC right: %v, want %v; options %q, want %q", i, good, w.good, b.options, w.comment)
		}
		var h wire.Header
		if _, err := wire.Parse(b.data[headers:], &h); good && (err != nil || h.DestQP != w.qpn) {
			t.Errorf("packet %d is %v, %v; want one to QP %d", i, h, err, w.qpn)
		}
	}
	if ttl := all[7].data[8]; ttl != 9 {
		t.Errorf("TTL is %d, want 9", ttl)
	}
	if _, ok := wire.CheckICRC(hostB, hostA, in); !ok {
		t.Error("the received packet was changed")
	}
}

// failing is a writer that fails after some writes.
type failing struct {
	left  int
	err   error
	calls int
}

func (f *failing) Write(b []byte) (int, error) {
	f.calls++
	if f.left == 0 {
		return 0, f.err
	}
	f.left--
	return len(b), nil
}

// TestTraceErrors: errors of writers do not disturb packets, and are reported.
func TestTraceErrors(t *testing.T) {
	e1, e2 := errors.New("disk is full"), errors.New("pipe is closed")
	lines, capture := &failing{left: 1, err: e1}, &failing{left: 4, err: e2} // the capture begins with a block of its own
	r := newRig(t, "", func(o *Options) { o.Trace, o.Capture = lines, capture })
	r.send(1)
	if err := r.f.TraceErr(); err != nil {
		t.Errorf("error %v after the first packet", err)
	}
	r.send(2)
	if err := r.f.TraceErr(); !errors.Is(err, e1) || errors.Is(err, e2) {
		t.Errorf("error %v, want %v", err, e1)
	}
	r.send(3)
	r.receive(4, 5)
	if err := r.f.TraceErr(); !errors.Is(err, e1) || !errors.Is(err, e2) {
		t.Errorf("error %v, want %v and %v", err, e1, e2)
	}
	r.want("1 2 3 4 5")
	if lines.calls != 2 || capture.calls != 5 {
		t.Errorf("%d and %d writes, want 2 and 5", lines.calls, capture.calls)
	}
	if _, err := New(Options{Capture: &failing{err: e1}}); !errors.Is(err, e1) {
		t.Errorf("New: %v, want %v", err, e1)
	}
	f, err := New(Options{})
	if err != nil || f.TraceErr() != nil {
		t.Errorf("without a trace: %v, %v", err, f.TraceErr())
	}
}

// TestTraceKeepsPackets: the trace changes nothing.
func TestTraceKeepsPackets(t *testing.T) {
	run := func(w io.Writer) []string {
		r := newRig(t, "seed=1,loss=20%,duplicate=20%,reorder=20%,corrupt=20%,delay=1ms,delayed=20%", func(o *Options) { o.Trace, o.Capture = w, w })
		for n := range uint32(100) {
			r.send(n)
			r.receive(n)
			r.clock.advance(100 * time.Microsecond)
		}
		return r.out
	}
	if diff := cmp.Diff(run(nil), run(io.Discard)); diff != "" {
		t.Errorf("without and with a trace:\n%s", diff)
	}
}
