package perf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// softPair are two software devices.
type softPair [2]*soft.Device

// newSoftPair makes them.
func newSoftPair(t *testing.T) (pair softPair) {
	t.Helper()
	for i := range pair {
		d, err := soft.New(soft.Options{}) // without a UDP port, which rxe may have
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		pair[i] = d
	}
	return pair
}

// run runs a test between them.
func (p softPair) run(t *testing.T, s *Server, cl *Client) (*Report, error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.Local.Device, s.Local.GID, s.Local.CPU = p[0].Name(), Auto, Auto
	cl.Local.Device, cl.Local.GID, cl.Local.CPU = p[1].Name(), Auto, Auto
	cl.Host, cl.Port = "127.0.0.1", l.Addr().(*net.TCPAddr).Port
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	r, err := cl.Run(ctx)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	return r, err
}

// spoil changes the last byte but one, which no test uses for itself.
func spoil(b []byte) { b[len(b)-2] ^= 0x40 }

// spoilCounter has a counter begin with 2.
func spoilCounter(b []byte) { b[0] ^= 2 }

// TestVerify: data and immediate data are right with each type and option of both sides, and a wrong bit is found by
// whoever looks, wherever it comes from.
func TestVerify(t *testing.T) {
	pair := newSoftPair(t)
	of := func(typ string) func(*Config) { return func(c *Config) { c.Type = typ } }
	both := func(typ string) func(*Config) { return func(c *Config) { c.Type, c.Both = typ, true } }
	imm := func(typ string) func(*Config) { return func(c *Config) { c.Type, c.Imm = typ, true } }
	srq := func(c *Config) { c.SRQ = true }
	many := func(c *Config) { c.SRQ, c.Imm, c.QPs = true, true, 3 }
	manyBoth := func(c *Config) { c.SRQ, c.Imm, c.QPs, c.Both = true, true, 3, true }
	swap := func(c *Config) { c.AtomicType = Swap }
	const wrong, said, byServer = "wrong data in a message", `says: "size 100: wrong data in a message`, true
	for _, c := range []struct {
		name   string
		config Config
		server bool // the server's data is spoiled, not the client's
		want   string
	}{
		{"rc", with(Send, Lat, of(RC)), false, said + " of queue pair 0: byte 98"},
		{"ud", with(Send, Lat, of(UD)), byServer, wrong},
		{"rc", with(Send, BW, of(RC)), false, said},
		{"ud", with(Send, BW, of(UD)), false, said},
		{"rc both", with(Send, BW, both(RC)), byServer, wrong},
		{"rc", with(Write, Lat, of(RC)), false, said},
		{"uc", with(Write, Lat, of(UC)), byServer, wrong},
		{"rc", with(Write, BW, of(RC)), false, `says: "size 100: wrong data in what was written`},
		{"uc both", with(Write, BW, both(UC)), byServer, "wrong data in what was written"},
		{"rc", with(Read, Lat, of(RC)), byServer, "wrong data in what was read"},
		{"rc", with(Read, BW, of(RC)), byServer, "wrong data in what was read"},
		{"add", with(Atomic, Lat, of(RC)), byServer, "wrong data: the counter was"},
		{"add", with(Atomic, BW, of(RC)), byServer, "wrong data: the counters of queue pair 0 are"},
		{"imm", with(Send, Lat, imm(RC)), false, wrong},
		{"imm", with(Send, BW, imm(RC)), false, wrong},
		{"imm", with(Write, Lat, imm(RC)), false, wrong},
		{"imm uc", with(Write, Lat, imm(UC)), false, wrong},
		{"imm", with(Write, BW, imm(RC)), false, "wrong data in what was written"},
		{"imm ud", with(Send, BW, imm(UD)), false, wrong},
		{"srq", with(Send, Lat, srq), false, wrong},
		{"srq imm qps", with(Send, BW, many), false, wrong},
		{"srq imm both", with(Send, BW, manyBoth), false, wrong},
		{"srq imm both", with(Write, BW, manyBoth), false, "wrong data in what was written"},
		{"swap", with(Atomic, Lat, swap), byServer, "wrong data: the counter"},
		{"swap", with(Atomic, BW, swap), byServer, "wrong data: the counter"},
		{"swap both", with(Atomic, BW, func(c *Config) { c.AtomicType, c.Both, c.QPs = Swap, true, 2 }), byServer, "wrong data: the counter"},
	} {
		t.Run(c.config.Name()+" "+c.name, func(t *testing.T) {
			config := c.config
			config.Verify, config.Iterations, config.Timeout = true, 200, 20*time.Second
			tamper := spoilCounter // which atomics add to
			if config.Op != Atomic {
				config.Sizes, tamper = []int{100}, spoil
			}
			r, err := pair.run(t, &Server{}, &Client{Config: config})
			if err != nil {
				t.Fatal(err)
			}
			if r := r.Results; len(r) != 1 || !r[0].Verified || r[0].Lost != 0 || r[0].Iterations == 0 {
				t.Errorf("results are %+v", r)
			}
			s, cl := &Server{}, &Client{Config: config}
			if c.server {
				s.tamper = tamper
			} else {
				cl.tamper = tamper
			}
			if _, err = pair.run(t, s, cl); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("a wrong bit: error is %v, want %q", err, c.want)
			}
		})
	}
}

// TestMessages: a receive tells what has taken it, and an SRQ for which queue pair.
func TestMessages(t *testing.T) {
	config := with(Send, BW, func(c *Config) { c.Imm, c.Verify, c.SRQ, c.QPs = true, true, true, 3 })
	dev, err := uverbs.Open(newSoftPair(t)[0].Name(), uverbs.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	e, err := NewEnd(dev, 1, config, Local{GID: Auto, CPU: Auto}, true)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	e.flows = make([]flow, len(e.QPs))
	const size = 100
	e.hold = make([]byte, size)
	good := uverbs.WC{ID: 2<<recvShift | 5, Opcode: uverbs.WCRecv, Flags: uverbs.WCWithImm, ByteLen: size, QPN: e.QPs[1].QPN(), Imm: immOf(1)}
	for _, c := range []struct {
		change func(wc *uverbs.WC)
		want   string
	}{
		{func(*uverbs.WC) {}, ""},
		{func(wc *uverbs.WC) { wc.Imm = immOf(2) }, "wrong immediate data in a message of queue pair 1: 3, expected 2"},
		{func(wc *uverbs.WC) { wc.QPN = e.QPs[0].QPN() }, "wrong immediate data in a message of queue pair 0: 2, expected 1"},
		{func(wc *uverbs.WC) { wc.Flags = 0 }, " has taken a receive, expected a SEND with immediate data"},
		{func(wc *uverbs.WC) { wc.Opcode = uverbs.WCRecvRDMAWrite }, " with immediate data has taken a receive, expected a SEND with immediate data"},
	} {
		pattern(e.MR.Bytes()[e.recvAt(2, 5, size):][:size], 1)
		wc := good
		c.change(&wc)
		if err := e.arrived(&wc, size); err == nil && c.want != "" || err != nil && (c.want == "" || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("error is %v, want %q", err, c.want)
		}
	}
}

// TestEndless: a test without an end ends when it is told to, with what it has measured, or when the server's time is
// over.
func TestEndless(t *testing.T) {
	pair := newSoftPair(t)
	for _, c := range []Config{
		with(Write, BW, func(c *Config) {}), with(Read, BW, func(c *Config) { c.Events = true }), with(Send, BW, func(c *Config) { c.QPs = 2 }),
		with(Send, BW, func(c *Config) { c.Both = true }), with(Atomic, BW, func(c *Config) {}),
	} {
		c.Endless, c.Verify = true, true
		for _, told := range []bool{true, false} {
			cl := &Client{Config: c}
			s := &Server{MaxTime: 200 * time.Millisecond}
			if told {
				s.MaxTime = time.Minute
				cl.Running = func(_ int, count func() int64) func() {
					go func() {
						for count() < 1000 {
							time.Sleep(time.Millisecond)
						}
						if !cl.Finish() {
							t.Error("nothing is under way")
						}
					}()
					return func() {}
				}
			}
			r, err := pair.run(t, s, cl)
			if err != nil || r.Results[0].Iterations == 0 || r.Results[0].Lost != 0 || told && r.Results[0].Iterations < 1000-int64(c.Warmup*c.QPs) {
				t.Errorf("%s, told %t: %+v, %v", c.Name(), told, r, err)
			}
			if cl.Finish() {
				t.Errorf("%s is still under way", c.Name())
			}
			if limit := cl.Limit(); told && limit != 0 || !told && limit != s.MaxTime {
				t.Errorf("%s, told %t: it was ended after %s", c.Name(), told, limit)
			}
		}
	}
}

// TestCounters: the result has how much the counters have grown that were asked for, and no others.
func TestCounters(t *testing.T) {
	pair := newSoftPair(t)
	config := with(Send, BW, func(c *Config) { c.Sizes, c.Iterations = []int{64, 100}, 500 })
	cl := &Client{Config: config, Local: Local{Counters: []string{"sent_pkts", "rdma_sends"}}}
	r, err := pair.run(t, &Server{}, cl)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range r.Results {
		if c := size.Counters; len(c) != 2 || c[0].Name != "sent_pkts" || c[0].Value < 510 || c[1] != (Counter{"rdma_sends", 510}) {
			t.Errorf("the counters have grown by %+v", c)
		}
	}
	cl.Local.Counters = []string{"nothing"}
	if _, err := pair.run(t, &Server{}, cl); err == nil || !strings.Contains(err.Error(), `--report-counters is "nothing", allowed: the counters of soft`) {
		t.Errorf("error is %v", err)
	}
	cl.Local = Local{Vector: 1000}
	if _, err := pair.run(t, &Server{}, cl); err == nil || !strings.Contains(err.Error(), "--vector is 1000, allowed: 0 to ") {
		t.Errorf("error is %v", err)
	}
}

// TestNullMRMemory: where the peer reads or writes this side's memory, its options are not refused with the null MR.
func TestNullMRMemory(t *testing.T) {
	for _, c := range []struct {
		config Config
		unused bool
	}{
		{with(Write, BW, func(c *Config) { c.Imm = true }), true},
		{with(Write, BW, func(c *Config) { c.Both = true }), false},
		{with(Write, Lat, func(c *Config) { c.Imm = true }), false},
		{with(Read, BW, func(c *Config) { c.Both = true }), false},
		{with(Read, Lat, func(*Config) {}), true},
	} {
		for name, l := range map[string]Local{"dmabuf": {DMABuf: "x"}, "odp": {ODP: true}, "huge-pages": {HugePages: true}, "relaxed-ordering": {Relaxed: true}} {
			l.NullMR = true
			err := l.Validate(&c.config)
			if c.unused && (err == nil || err.Error() != "--use-null-mr and --"+name+" exclude each other") || !c.unused && err != nil {
				t.Errorf("%s with --%s: error is %v", c.config.Name(), name, err)
			}
		}
	}
}

// TestChoose: a counter that the list has twice is chosen once, and hides no name that is missing.
func TestChoose(t *testing.T) {
	has := []netlinkrdma.Counter{{Name: "a", Value: 1}, {Name: "b", Value: 2}, {Name: "a", Value: 3}}
	if got, err := (Local{Counters: []string{"b", "a"}}).choose("rxe0", has); err != nil || !slices.Equal(got, []Counter{{"b", 2}, {"a", 1}}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := (Local{Counters: []string{"a", "c"}}).choose("rxe0", has); err == nil || err.Error() != `--report-counters is "c", allowed: the counters of rxe0: a b a` {
		t.Errorf("%v, %v", got, err)
	}
}

// TestRefused: what a device does not have is refused by name before anything is made.
func TestRefused(t *testing.T) {
	pair := newSoftPair(t)
	name := pair[1].Name()
	most := runtime.NumCPU() - 1 // completion vectors of software devices
	config := with(Read, BW, func(*Config) {})
	for i, c := range []struct {
		local, server Local
		pkey          uint16
		want          string
	}{
		{Local{Vector: most + 1}, Local{}, 0, fmt.Sprintf("--vector is %d, allowed: 0 to %d, the completion vectors of %s", most+1, most, name)},
		{Local{}, Local{Vector: most + 1}, 0, fmt.Sprintf("--vector is %d, allowed: 0 to %d, the completion vectors of %s", most+1, most, pair[0].Name())},
		{Local{}, Local{}, 0x8001, "--pkey is 0x8001, allowed: the P_Keys of port 1 of " + name + ": 0xffff"},
		{Local{PKeyIndex: new(99999)}, Local{}, 0, "of port 1 of " + name},
	} {
		config.PKey = c.pkey
		_, err := pair.run(t, &Server{Local: c.server}, &Client{Config: config, Local: c.local})
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.As(err, new(ValueError)) == (i == 1) { // the server's value is not wrong here
			t.Errorf("error is %v, want %q", err, c.want)
		}
	}
	for _, c := range []struct {
		config Config
		local  Local
		want   string
	}{
		{with(Read, BW, func(*Config) {}), Local{NullMR: true}, "--use-null-mr: " + name + ": "},
		{with(Read, BW, func(c *Config) { c.OutOfOrder = true }), Local{}, "--use-ooo: " + name + ": uverbs: CREATE_QP with OutOfOrder"},
		{with(Read, BW, func(c *Config) { c.Type, c.Streams = DC, 2 }), Local{}, "--type dc: " + name + ": uverbs: QP type DCI"},
	} {
		_, err := pair.run(t, &Server{}, &Client{Config: c.config, Local: c.local})
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("error is %v, want %q", err, c.want)
		}
	}
	config = with(Write, BW, func(c *Config) { c.Verify = true })
	if _, err := pair.run(t, &Server{Local: Local{Relaxed: true}}, &Client{Config: config, Local: Local{Relaxed: true}}); err != nil {
		t.Error(err)
	}
	c := Config{Op: Send, Type: RC, SRQ: true}
	attr := uverbs.DeviceAttr{ODPCapsRC: uverbs.ODPSend | uverbs.ODPRecv}
	if got := c.onDemand(&attr); got != "send over rc on demand" {
		t.Errorf("without receives of an SRQ on demand it is %q that the device does not have", got)
	}
	if attr.ODPCapsRC |= uverbs.ODPSRQRecv; c.onDemand(&attr) != "" {
		t.Errorf("%q is missing, with all that it needs", c.onDemand(&attr))
	}
}

// TestJoined: a queue pair joins a partition by the first key of a full member, or else by the first one.
func TestJoined(t *testing.T) {
	keys := []uint16{0x7fff, 0x0001, 0, 0x8001, 0x8002, 0x8001, 0x0003, 0x0003}
	for i, want := range []int{0, 3, 2, 3, 4, 3, 6, 6} {
		if got := joined(keys, keys[i]); got != want {
			t.Errorf("key %#04x: index %d, want %d", keys[i], got, want)
		}
	}
}

// TestFitOptions: the limits of a device refuse options by its name.
func TestFitOptions(t *testing.T) {
	for _, c := range []struct {
		config Config
		limits Limits
		want   string
	}{
		{with(Send, BW, func(c *Config) { c.Imm = true }), Limits{Device: "siw0", Driver: "siw", IWARP: true}, "--imm: siw0: uverbs: immediate data not supported by driver siw"},
		{with(Send, BW, func(c *Config) { c.Rate = Rate{10, Gigabits, true} }), Limits{Device: "rxe0"}, "--rate-type is hw, allowed: sw, as rxe0 is not of InfiniBand"},
		{with(Send, BW, func(c *Config) { c.SRQ = true }), Limits{Device: "siw0", IWARP: true}, "--use-srq: siw0 is of iWARP"},
		{with(Send, BW, func(c *Config) { c.SRQ = true }), Limits{Device: "x0", Driver: "x"}, "--use-srq: x0: uverbs: SRQ not supported by driver x"},
		{with(Send, BW, func(c *Config) { c.SRQ, c.QPs, c.RecvDepth = true, 3, 40 }), Limits{Device: "x0", MaxSRQWR: 100}, "--qps times --recv-depth is 120, allowed with one shared receive queue: up to 100, max_srq_wr of x0"},
		{with(Send, BW, func(c *Config) { c.SRQ, c.QPs, c.RecvDepth = true, 3, 33 }), Limits{Device: "x0", MaxSRQWR: 100}, ""},
	} {
		if err := c.config.fitOptions(c.limits); err == nil && c.want != "" || err != nil && err.Error() != c.want && (c.want == "" || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("error is %v, want %q", err, c.want)
		}
	}
	for _, c := range []Config{with(Send, BW, func(c *Config) { c.SRQ, c.QPs = true, 4 }), with(Send, BW, func(c *Config) { c.Type, c.QPs = XRC, 4 })} {
		if c.settle(Limits{MaxWR: 1000, MaxCQE: 10000, MaxSRQWR: 100}); c.RecvDepth != 25 {
			t.Errorf("each of 4 queue pairs of %s has %d receives of an SRQ with 100", c.Type, c.RecvDepth)
		}
	}
}
