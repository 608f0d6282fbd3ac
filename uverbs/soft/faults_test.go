package soft_test

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// messages sends n messages from one side to the other, one after the other.
func messages(t *testing.T, a, b *side, n int) {
	t.Helper()
	for i := range n {
		a.buf.Bytes()[0] = byte(i)
		if err := errors.Join(b.qp.PostRecv(1, b.mr.SGE(100, 100)), a.qp.PostSend(uverbs.SendWR{
			Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{a.mr.SGE(0, 1)},
		})); err != nil {
			t.Fatal(err)
		}
		for _, s := range []*side{a, b} {
			var wcs [1]uverbs.WC
			if _, err := s.cq.Wait(t.Context(), wcs[:]); err != nil {
				t.Fatal(err)
			}
			testenv.Must(t, s.qp.Err(&wcs[0]))
		}
		if got := b.buf.Bytes()[100]; got != byte(i) {
			t.Fatalf("message %d holds %d", i, got)
		}
	}
}

// TestLoss: messages arrive although packets are lost, doubled, damaged and reordered, in the process and
// by sockets.
func TestLoss(t *testing.T) {
	for way, newDevice := range ways {
		var devs []*soft.Device
		a, b := twoSides(t, func(o soft.Options) (*soft.Device, error) {
			// Each packet passes two devices: of 8 attempts, all fail for one message in ten million.
			o.Faults = soft.Faults{Seed: 3, Rules: []soft.Rule{{
				Loss: 2 * soft.Percent, Duplicate: 5 * soft.Percent, Corrupt: 2 * soft.Percent, Reorder: 5 * soft.Percent, Hold: time.Millisecond,
			}}}
			d, err := newDevice(o)
			devs = append(devs, d)
			return d, err
		}, uverbs.QPOptions{Path: uverbs.PathOptions{Timeout: 12, RetryCount: 7}})
		messages(t, a, b, 400)
		s0, r0 := devs[0].FaultCounters()
		s1, r1 := devs[1].FaultCounters()
		// Of 800 packets, 2 % are 0 packets once in ten million runs.
		for direction, c := range map[string][2]soft.FaultCounters{"sent": {s0, s1}, "received": {r0, r1}} {
			if c[0].Selected < 400 || c[1].Selected < 400 || c[0].Lost+c[1].Lost == 0 || c[0].Duplicated+c[1].Duplicated == 0 ||
				c[0].Corrupted+c[1].Corrupted == 0 || c[0].HeldBack+c[1].HeldBack == 0 {
				t.Errorf("%s: %s: %+v", way, direction, c)
			}
		}
	}
}

// sameTrace exchanges messages with loss on a clock that stands still, and returns the trace.
func sameTrace(t *testing.T, seed int) string {
	clock := new(soft.TestClock)
	var trace strings.Builder
	var devs [2]*soft.Device
	var sides [2]*side
	for i := range devs {
		o := soft.Options{Addr: netip.AddrFrom4([4]byte{127, 9, 9, byte(1 + i)}), Seed: uint64(11 + i)}
		o.Port = 47911
		if i == 0 {
			o.Trace, o.Faults = &trace, soft.Faults{Seed: uint64(seed), Rules: []soft.Rule{{
				Loss: 10 * soft.Percent, Duplicate: 10 * soft.Percent, Reorder: 10 * soft.Percent, Delay: soft.Delay{Max: time.Millisecond},
			}}}
		}
		var err error
		if devs[i], err = clock.New(o); err != nil {
			t.Fatal(err)
		}
		defer devs[i].Close()
		sides[i] = newSide(t, devs[i], uverbs.QPOptions{})
		defer sides[i].ctx.CloseAll()
	}
	for i, s := range sides {
		peer := sides[1-i].qp
		ah := uverbs.AHAttr{Port: 1, Global: true, GRH: uverbs.GRH{DGID: devs[1-i].Addr().As16(), SGIDIndex: 1}}
		if err := errors.Join(
			s.qp.Modify(uverbs.QPAttr{State: ib.QPRTR, AH: ah, PathMTU: ib.MTU1024, DestQPN: peer.QPN(), RQPSN: 7, MaxDestRdAtomic: 1, MinRNRTimer: 1},
				uverbs.AttrState|uverbs.AttrAH|uverbs.AttrPathMTU|uverbs.AttrDestQPN|uverbs.AttrRQPSN|uverbs.AttrMaxDestRdAtomic|uverbs.AttrMinRNRTimer),
			s.qp.Modify(uverbs.QPAttr{State: ib.QPRTS, SQPSN: 7, Timeout: 14, RetryCount: 7, RNRRetry: 7, MaxRdAtomic: 1},
				uverbs.AttrState|uverbs.AttrSQPSN|uverbs.AttrTimeout|uverbs.AttrRetryCount|uverbs.AttrRNRRetry|uverbs.AttrMaxRdAtomic),
		); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 50 {
		a, b := sides[i%2], sides[1-i%2]
		if err := errors.Join(b.qp.PostRecv(1, b.mr.SGE(8192, 8192)), a.qp.PostSend(uverbs.SendWR{
			Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{a.mr.SGE(0, 5000)},
		})); err != nil {
			t.Fatal(err)
		}
		for _, s := range []*side{a, b} {
			var wcs [1]uverbs.WC
			for n := 0; n == 0; {
				var err error
				if n, err = s.cq.Poll(wcs[:]); err != nil {
					t.Fatal(err)
				}
				if n == 0 && !clock.Step() {
					t.Fatal("nothing is left to happen, and there is no completion")
				}
			}
			testenv.Must(t, s.qp.Err(&wcs[0]))
		}
	}
	return trace.String()
}

// TestSameSeedSameTrace: with the same seeds, the same packets suffer the same faults at the same time.
func TestSameSeedSameTrace(t *testing.T) {
	first, second, other := sameTrace(t, 1), sameTrace(t, 1), sameTrace(t, 2)
	if first != second {
		a, b := strings.Split(first, "\n"), strings.Split(second, "\n")
		for i := range a {
			if i >= len(b) || a[i] != b[i] {
				t.Fatalf("the traces differ in line %d of %d and %d:\n%s", i, len(a), len(b), strings.Join([]string{a[i], b[min(i, len(b)-1)]}, "\n"))
			}
		}
	}
	if first == other || strings.Count(first, "\n") < 250 || !strings.Contains(first, ": lost (rule 0, packet ") {
		t.Errorf("another seed gives the same trace, or one of the traces has too little:\n%s", first)
	}
}

// TestPartition: no packet passes between two devices until the partition is healed.
func TestPartition(t *testing.T) {
	for way, newDevice := range ways {
		var devs []*soft.Device
		a, b := twoSides(t, func(o soft.Options) (*soft.Device, error) {
			d, err := newDevice(o)
			devs = append(devs, d)
			return d, err
		}, uverbs.QPOptions{Path: uverbs.PathOptions{Timeout: 15, RetryCount: 7}})
		messages(t, a, b, 1)
		for _, peer := range []netip.Addr{devs[1].Addr(), {}, devs[0].Addr()} {
			devs[0].Partition(peer)
			testenv.Must(t, a.qp.PostSend(uverbs.SendWR{ID: 2, Opcode: uverbs.WRRDMAWrite, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{a.mr.SGE(0, 1)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
			before, _ := devs[0].FaultCounters()
			for after := before; after.Partitioned < before.Partitioned+2; { // it is sent again
				after, _ = devs[0].FaultCounters()
			}
			devs[0].Heal(peer)
			var wcs [1]uverbs.WC
			if _, err := a.cq.Wait(t.Context(), wcs[:]); err != nil {
				t.Fatal(err)
			}
			if err := a.qp.Err(&wcs[0]); err != nil {
				t.Errorf("%s, %s: %v", way, peer, err)
			}
		}
	}
}

// TestSetFaults: faults begin and end at run time, those of queue pairs too.
func TestSetFaults(t *testing.T) {
	var dev *soft.Device
	a, b := twoSides(t, func(o soft.Options) (d *soft.Device, err error) {
		dev, err = soft.New(o)
		return dev, err
	}, uverbs.QPOptions{})
	messages(t, a, b, 1)
	var e *soft.OptionError
	for _, wrong := range []soft.Faults{
		{Rules: []soft.Rule{{}}}, {QPs: []soft.QPFault{{}}}, {Rules: []soft.Rule{{Loss: soft.Always + 1}}}, {Rules: []soft.Rule{{Reorder: 1, Behind: 65}}},
		{Rules: []soft.Rule{{Delay: soft.Delay{Max: 2, Mean: 1}}}}, {QPs: []soft.QPFault{{NotReady: 2, OutOf: 1}}}, {QPs: []soft.QPFault{{Fail: soft.Fail{Status: 22}}}},
		{QPs: []soft.QPFault{{Fail: soft.Fail{Number: 5}}}}, {Rules: []soft.Rule{{Hold: -1}}}, {Rules: []soft.Rule{{QPN: 1 << 24}}},
	} {
		if err := dev.SetFaults(wrong); !errors.As(err, &e) || strings.TrimSuffix(strings.TrimSuffix(e.Field, ".Rules[0]"), ".QPs[0]") != "Faults" {
			t.Errorf("SetFaults(%+v): %v, want an OptionError", wrong, err)
		}
	}
	if err := dev.SetFaults(soft.Faults{Rules: []soft.Rule{{Loss: 1}, {}}}); err == nil || err.Error() != "soft: Faults.Rules[1] is the zero value, must be a rule with a field that is set" {
		t.Errorf("an empty rule: %v", err)
	}
	notReady := soft.Faults{QPs: []soft.QPFault{{NotReady: 1, OutOf: 1}}}
	if err := dev.SetFaults(notReady); err != nil || dev.Faults().String() != "rnr=1/1" {
		t.Errorf("SetFaults: %v, faults %q", err, dev.Faults())
	}
	testenv.Must(t, errors.Join(b.qp.PostRecv(1, b.mr.SGE(0, 1)), a.qp.PostSend(uverbs.SendWR{Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{a.mr.SGE(0, 1)}})))
	var wcs [1]uverbs.WC
	if n, err := a.cq.Poll(wcs[:]); n != 0 || err != nil {
		t.Errorf("%d completions, %v", n, err)
	}
	if err := dev.SetFaults(soft.Faults{}); err != nil || !reflect.ValueOf(dev.Faults()).IsZero() {
		t.Errorf("SetFaults: %v, faults %q", err, dev.Faults())
	}
	if _, err := a.cq.Wait(t.Context(), wcs[:]); err != nil || wcs[0].Status != uverbs.WCSuccess {
		t.Errorf("%v, %v", wcs[0].Status, err)
	}
}

// TestRecordFiles: the files have all packets, and those of another device have other names.
func TestRecordFiles(t *testing.T) {
	dir := t.TempDir()
	trace, capture := filepath.Join(dir, "the trace"), filepath.Join(dir, "packets.pcapng")
	o, err := soft.ParseOptions("local,trace=(" + trace + "),capture=" + capture)
	testenv.Must(t, err)
	var again bytes.Buffer
	a, b := twoSides(t, func(soft.Options) (*soft.Device, error) {
		p := o
		o = soft.Options{Trace: &again}
		return soft.New(p)
	}, uverbs.QPOptions{})
	messages(t, a, b, 3)
	testenv.Must(t, a.ctx.CloseAll())
	lines, err := os.ReadFile(trace)
	testenv.Must(t, err)
	if n := bytes.Count(lines, []byte("SEND")); n != 3 || bytes.Count(lines, []byte("\n")) != 6 {
		t.Errorf("the trace has %d SENDs, want 3, and as many acknowledgements:\n%s", n, lines)
	}
	if n := strings.Count(again.String(), "\n"); n != 6 {
		t.Errorf("the trace of the peer has %d lines, want 6:\n%s", n, again.String())
	}
	if b, err := os.ReadFile(capture); err != nil || !bytes.HasPrefix(b, []byte{0x0a, 0x0d, 0x0d, 0x0a}) || bytes.Count(b, []byte("passed")) != 6 {
		t.Errorf("the capture has %d bytes, %v", len(b), err)
	}
}

// TestFileRefused: an error names the field.
func TestFileRefused(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing", "file")
	for _, c := range []struct {
		o     soft.Options
		field string
	}{
		{soft.Options{TraceFile: missing}, "TraceFile"},
		{soft.Options{CaptureFile: missing}, "CaptureFile"},
		{soft.Options{TraceFile: "x", Trace: new(bytes.Buffer)}, "TraceFile"},
		{soft.Options{CaptureFile: "x", Capture: new(bytes.Buffer)}, "CaptureFile"},
		{soft.Options{CaptureFile: "("}, "CaptureFile"},
		{soft.Options{Faults: soft.Faults{Rules: []soft.Rule{{Loss: soft.Always + 1}}}}, "Faults"},
	} {
		d, err := soft.New(c.o)
		var e *soft.OptionError
		if !errors.As(err, &e) || e.Field != c.field {
			t.Errorf("%+v: %v, %v; want an OptionError about %s", c.o, d, err, c.field)
		}
	}
}

// TestFailureNamed: the error of an injected failure names the fault, also that of a receive, and a partition of
// another device meanwhile does not make the numbers begin again.
func TestFailureNamed(t *testing.T) {
	var devs []*soft.Device
	a, b := twoSides(t, func(o soft.Options) (*soft.Device, error) {
		d, err := soft.New(o)
		devs = append(devs, d)
		return d, err
	}, uverbs.QPOptions{})
	messages(t, a, b, 2)
	fail := soft.Fail{Recv: true, Number: 3, Status: uint32(uverbs.WCLocProtErr)}
	ok(t, devs[1].SetFaults(soft.Faults{QPs: []soft.QPFault{{QPN: b.qp.QPN(), Fail: fail}}}))
	messages(t, a, b, 2)
	elsewhere := netip.MustParseAddr("127.1.2.3")
	devs[1].Partition(elsewhere)
	messages(t, a, b, 1)
	devs[1].Heal(elsewhere)
	ok(t, b.qp.PostRecv(1, b.mr.SGE(0, 64)), a.qp.PostSend(uverbs.SendWR{Opcode: uverbs.WRSend, SGL: []uverbs.SGE{a.mr.SGE(0, 8)}}))
	var wcs [1]uverbs.WC
	_, err := b.cq.Wait(t.Context(), wcs[:])
	ok(t, err)
	if err := b.qp.Err(&wcs[0]); wcs[0].Status != uverbs.WCLocProtErr || !strings.Contains(err.Error(), "injected by the fault fail=recv:3") {
		t.Errorf("the receive: %v, want LOC_PROT_ERR injected by the fault fail=recv:3", err)
	}
}

// TestInjectedFailure: a fault counts work requests from when it is set, also a second time, and the error says that
// it was injected. It does not look for a cause at the peer.
func TestInjectedFailure(t *testing.T) {
	o := uverbs.QPOptions{}
	a, b := twoSides(t, soft.New, o)
	d := soft.ByName(a.ctx.Name())
	messages(t, a, b, 5)
	for range 2 {
		ok(t, d.SetFaults(soft.Faults{QPs: []soft.QPFault{{Fail: soft.Fail{Number: 2, Status: uint32(uverbs.WCRemAccessErr)}}}}))
		for n := range 3 {
			ok(t, b.qp.PostRecv(1, b.mr.SGE(0, 64)), a.qp.PostSend(uverbs.SendWR{ID: 2, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{a.mr.SGE(0, 8)}}))
			var wcs [1]uverbs.WC
			_, err := a.cq.Wait(t.Context(), wcs[:])
			ok(t, err)
			if failed := wcs[0].Status == uverbs.WCRemAccessErr; failed != (n == 2) {
				t.Fatalf("request %d: %v", n, a.qp.Err(&wcs[0]))
			}
			if err := a.qp.Err(&wcs[0]); n == 2 && (!strings.Contains(err.Error(), "injected by the fault fail=send:2") || strings.Contains(err.Error(), "permits")) {
				t.Errorf("the error does not say that it was injected, or names another cause: %v", err)
			}
		}
		for _, s := range []*side{a, b} {
			ok(t, s.qp.Modify(uverbs.QPAttr{State: ib.QPReset}, uverbs.AttrState), s.qp.Init())
		}
		connect(t, a, b)
	}
}
