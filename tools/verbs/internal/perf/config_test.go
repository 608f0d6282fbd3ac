package perf

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// with returns a config that was changed.
func with(op, metric string, change func(*Config)) Config {
	c := Default(op, metric)
	change(&c)
	return c
}

func TestDefaults(t *testing.T) {
	for _, m := range []string{Lat, BW} {
		for _, op := range []string{Send, Write, Read, Atomic} {
			c := Default(op, m)
			if err := c.Validate(); err != nil {
				t.Errorf("%s: %v", c.Name(), err)
			}
		}
	}
	if c := Default(Write, BW); c.Iterations != 5000 || c.Sizes[0] != 65536 || c.Depth != 128 || c.moderation(65536) != 1 || c.moderation(8192) != 100 {
		t.Errorf("write-bw is %+v", c)
	}
	if c := Default(Send, Lat); c.Iterations != 1000 || c.Sizes[0] != 2 || c.Depth != 1 || c.moderation(2) != 1 {
		t.Errorf("send-lat is %+v", c)
	}
	for _, l := range []struct {
		list, depth int
		rate        float64
		want        int
	}{{Auto, 128, 0, 64}, {Auto, 5, 0, 5}, {Auto, 128, 10, 1}, {7, 128, 0, 7}, {7, 128, 10, 7}} {
		c := Default(Read, BW)
		c.List, c.Depth, c.Rate.Value = l.list, l.depth, l.rate
		if got := c.list(); got != l.want {
			t.Errorf("%+v: %d messages by a doorbell", l, got)
		}
	}
	if c := Default(Read, BW); c.List != Auto || c.moderation(64) != 100 {
		t.Errorf("read-bw is %+v", c)
	}
	if got := Sweep(100); !slices.Equal(got, []int{2, 4, 8, 16, 32, 64}) {
		t.Errorf("the sweep up to 100 is %v", got)
	}
	if got := Sweep(1 << 30); len(got) != 23 || got[22] != 8<<20 {
		t.Errorf("the longest sweep is %v", got)
	}
}

// TestListOf: on iWARP one doorbell posts up to 1 MiB, or one message, or the given number.
func TestListOf(t *testing.T) {
	for _, c := range []struct {
		list, size  int
		iwarp, each int
	}{{Auto, 2, 64, 64}, {Auto, 64 << 10, 16, 64}, {Auto, 1 << 20, 1, 64}, {Auto, 8 << 20, 1, 64}, {16, 1 << 20, 16, 16}} {
		config := Default(Send, BW)
		config.List = c.list
		if iwarp, other := config.listOf(c.size, true), config.listOf(c.size, false); iwarp != c.iwarp || other != c.each {
			t.Errorf("list %d of %d bytes: %d on iWARP and %d elsewhere, want %d and %d", c.list, c.size, iwarp, other, c.iwarp, c.each)
		}
	}
}

// TestTogether: a doorbell posts what there is room for, or a list whole.
func TestTogether(t *testing.T) {
	for _, c := range []struct {
		name                          string
		list, goal, posted, completed int
		next, want                    int
	}{
		{"the first", Auto, 0, 0, 0, 0, 64},
		{"up to the end of the ring", Auto, 0, 60, 0, 60, 4},
		{"up to the depth", Auto, 0, 120, 0, 56, 8},
		{"what was completed", Auto, 0, 128, 100, 0, 64},
		{"no room", Auto, 0, 128, 0, 0, 0},
		{"the last", Auto, 130, 128, 100, 0, 2},
		{"a list", 16, 0, 0, 0, 0, 16},
		{"a list without room", 16, 0, 120, 104, 48, 0},
		{"the last of a list", 16, 18, 16, 16, 16, 2},
		{"a list that was cut has no completion", 16, 0, 125, 112, 0, 3},
	} {
		f := flow{wrs: make([]uverbs.SendWR, 64), goal: c.goal, posted: c.posted, completed: c.completed, next: c.next}
		config := Default(Send, BW)
		if config.List = c.list; c.list != Auto {
			config.Depth = 16
		}
		if got := f.together(&config, config.list(), config.moderation(64)); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		config Config
		want   string
	}{
		{with("sned", BW, func(*Config) {}), `--operation is "sned", allowed: send, write, read, atomic`},
		{with(Send, "jitter", func(*Config) {}), `--metric is "jitter"`},
		{with(Write, BW, func(c *Config) { c.Type = UD }), "allowed: rc, uc, xrc, dc, srd"},
		{with(Atomic, Lat, func(c *Config) { c.Type = UC }), "--type is uc, allowed: rc, xrc, dc, as atomic-lat needs a reliable connection"},
		{with(Read, BW, func(c *Config) { c.Type, c.CM = DC, true }), "--type is dc, allowed: rc, ud, as the connection manager"},
		{with(Send, Lat, func(c *Config) { c.Type, c.CM = UC, true }), "--type is uc, allowed: rc, ud, as the connection manager (--cm) has no connections of type uc"},
		{with(Send, Lat, func(c *Config) { c.Type, c.CM = SRD, true }), "--type is srd, allowed: rc, ud, as the connection manager (--cm) connects nothing for type srd"},
		{with(Atomic, Lat, func(c *Config) { c.Type = SRD }), "--type is srd, allowed: rc, xrc, dc, as SRD has no atomics"},
		{with(Send, BW, func(c *Config) { c.Type, c.Moderate = SRD, 2 }), "--moderate is 2, allowed: 1, as each message of type srd"},
		{with(Send, Lat, func(c *Config) { c.Sizes = []int{1<<31 + 1} }), "--size is 2147483649"},
		{with(Send, Lat, func(c *Config) { c.Sizes = nil }), "--size has 0 sizes, allowed: 1 to 64"},
		{with(Atomic, BW, func(c *Config) { c.Sizes = []int{16} }), "--size is 16, allowed: 8"},
		{with(Send, Lat, func(c *Config) { c.QPs = 2 }), "--qps is 2, allowed: 1, as send-lat"},
		{with(Send, Lat, func(c *Config) { c.Both = true }), "--both is for bandwidth"},
		{with(Send, BW, func(c *Config) { c.List = 0 }), "--list is 0, allowed: 1 to --depth, which is 128"},
		{with(Send, Lat, func(c *Config) { c.Depth, c.List = 4, 2 }), "--list is 2, allowed: 1"},
		{with(Send, BW, func(c *Config) { c.Moderate = 200 }), "--moderate is 200, allowed: up to --depth, which is 128"},
		{with(Send, BW, func(c *Config) { c.RecvDepth = 0 }), "--recv-depth is 0"},
		{with(Send, BW, func(c *Config) { c.Iterations = 0 }), "--iterations is 0"},
		{with(Send, BW, func(c *Config) { c.Warmup = -1 }), "--warmup is -1"},
		{with(Send, BW, func(c *Config) { c.Inline = -2 }), "--inline is -2"},
		{with(Read, BW, func(c *Config) { c.Inline = 8 }), "--inline is 8, but read-bw sends no data"},
		{with(Send, BW, func(c *Config) { c.MTU = 1500 }), "--mtu is 1500, allowed: 256, 512, 1024, 2048, 4096"},
		{with(Send, BW, func(c *Config) { c.SL = 16 }), "--sl is 16"},
		{with(Send, BW, func(c *Config) { c.PKey = 0x8000 }), "--pkey is 0x8000, allowed: 0x1 to 0x7fff"},
		{with(Send, BW, func(c *Config) { c.SL, c.CM = 1, true }), "--sl is 1, but with --cm"},
		{with(Send, BW, func(c *Config) { c.Retry = 8 }), "--retry is 8"},
		{with(Send, Lat, func(c *Config) { c.Rate = Rate{1, Messages, false} }), "--rate is for bandwidth"},
	} {
		if err := c.config.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error is %v, want %q", err, c.want)
		}
	}
}

// device are the limits of a device with little.
var device = Limits{Device: "rxe9", MaxMsg: 1 << 20, MTU: 1024, MaxWR: 1000, MaxSRQWR: 900, MaxCQE: 2000, MaxQPs: 50, RdAtomic: 16, Driver: "rxe"}

func TestFit(t *testing.T) {
	for _, c := range []struct {
		config Config
		want   string
	}{
		{with(Send, BW, func(c *Config) { c.Sizes = []int{2, 1<<20 + 1} }), "--size is 1048577, allowed: 1 to 1048576, max_msg_sz of rxe9"},
		{with(Send, BW, func(c *Config) { c.Type = UD }), "--size is 65536, allowed: 1 to 1024, the MTU of rxe9"},
		{with(Send, Lat, func(c *Config) { c.Type, c.MTU, c.Sizes = UD, 512, []int{513} }), "--size is 513, allowed: 1 to 512"},
		{with(Send, BW, func(c *Config) { c.MTU = 4096 }), "--mtu is 4096, allowed: up to 1024, the active MTU of rxe9"},
		{with(Send, BW, func(c *Config) { c.QPs = 51 }), "--qps is 51, allowed: up to 50"},
		{with(Send, BW, func(c *Config) { c.Depth = 1001 }), "--depth is 1001, allowed: up to 1000, max_qp_wr"},
		{with(Send, BW, func(c *Config) { c.RecvDepth = 1001 }), "--recv-depth is 1001"},
		{with(Send, BW, func(c *Config) { c.Type, c.RecvDepth = DC, 901 }), "--recv-depth is 901, allowed: up to 900, max_srq_wr of rxe9"},
		{with(Send, BW, func(c *Config) { c.QPs = 20 }), "--qps times --depth is 2560, allowed: up to 2000, max_cqe"},
		{with(Send, BW, func(c *Config) { c.QPs, c.RecvDepth = 20, 500 }), "--qps times --recv-depth is 10000, allowed: up to 2000, max_cqe"},
		{with(Read, BW, func(c *Config) { c.RdAtomic = 17 }), "--outs is 17, allowed: up to 16"},
		{with(Atomic, BW, func(*Config) {}), "atomics"},
	} {
		if err := c.config.fit(device); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error is %v, want %q", err, c.want)
		}
	}
	iwarp := device
	iwarp.Device, iwarp.Driver, iwarp.IWARP = "siw9", "siw", true
	for _, c := range []struct {
		config  Config
		feature bool
		want    string
	}{
		{Default(Send, Lat), false, "--cm is missing: siw9 is of iWARP"},
		{with(Send, Lat, func(c *Config) { c.Type, c.CM = UD, true }), true, "QP type UD"},
		{with(Write, BW, func(c *Config) { c.Type = UC }), true, "QP type UC"},
		{with(Atomic, BW, func(c *Config) { c.CM = true }), true, "atomics"},
	} {
		if err := c.config.fit(iwarp); err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, errors.ErrUnsupported) != c.feature {
			t.Errorf("on iWARP error is %v, want %q", err, c.want)
		}
	}
	efa := device
	efa.Device, efa.Driver, efa.MaxSRQWR, efa.RdAtomic, efa.MaxMsg, efa.MaxRDMA = "efa_9", "efa", 0, 0, 8928, 1<<30
	for _, c := range []struct {
		config  Config
		limits  Limits
		feature bool
		want    string
	}{
		{Default(Send, Lat), efa, true, "--type: efa_9: uverbs: QP type RC not supported by driver efa"},
		{with(Send, Lat, func(c *Config) { c.Type = SRD }), device, true, "--type: rxe9: uverbs: QP type SRD"},
		{with(Send, BW, func(c *Config) { c.Type = SRD }), efa, false, "--size is 65536, allowed: 1 to 8928, max_msg_sz of efa_9"},
		{with(Send, BW, func(c *Config) { c.Type, c.Sizes, c.Moderate = UD, []int{64}, 2 }), efa, false, "--moderate is 2, allowed: 1, as each message of efa_9"},
		{with(Read, BW, func(c *Config) { c.Type, c.Sizes = SRD, []int{1<<30 + 1} }), efa, false, "--size is 1073741825, allowed: 1 to 1073741824, efa_max_rdma_size of efa_9"},
		{with(Send, Lat, func(c *Config) { c.Type, c.SRQ = SRD, true }), efa, true, "--use-srq: efa_9: uverbs: SRQ"},
	} {
		if err := c.config.fit(c.limits); err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, errors.ErrUnsupported) != c.feature {
			t.Errorf("error is %v, want %q", err, c.want)
		}
	}
	srd := with(Read, BW, func(c *Config) { c.Type, c.All, c.Sizes, c.List = SRD, true, Sweep(1<<23), 4 })
	if err := srd.fit(efa); err != nil || len(srd.Sizes) != 23 || srd.moderation(2) != 1 {
		t.Errorf("a sweep of READs of SRD: %v, %v, one completion for %d messages", err, srd.Sizes, srd.moderation(2))
	}
	for _, c := range []struct {
		op, qp string
		limits Limits
		want   int
	}{{Send, UD, device, 1024}, {Send, SRD, efa, 8928}, {Read, SRD, efa, DefaultSizeBW}} {
		config := with(c.op, BW, func(x *Config) { x.Type, x.Shorten = c.qp, true })
		if err := config.fit(c.limits); err != nil || !slices.Equal(config.Sizes, []int{c.want}) {
			t.Errorf("the default of %s of type %s is %v, want %d; %v", config.Name(), c.qp, config.Sizes, c.want, err)
		}
	}
	if c := with(Send, BW, func(c *Config) { c.CM = true }); c.fit(iwarp) != nil {
		t.Errorf("on iWARP error is %v", c.fit(iwarp))
	}
	if c := Default(Atomic, Lat); !errors.Is(c.fit(device), errors.ErrUnsupported) {
		t.Error("atomics that are not there are no missing feature")
	}
	c := with(Send, BW, func(c *Config) { c.Type, c.All, c.Sizes = UD, true, Sweep(1<<23) })
	if err := c.fit(device); err != nil || !slices.Equal(c.Sizes, Sweep(1024)) {
		t.Errorf("the sweep is %v, %v", c.Sizes, err)
	}
	c.settle(device)
	if c.RecvDepth != 1000 {
		t.Errorf("%d receives for 1010 datagrams on a device with 1000", c.RecvDepth)
	}
	c = with(Send, BW, func(c *Config) { c.QPs = 10 })
	if c.settle(device); c.RecvDepth != 200 {
		t.Errorf("%d receives of 10 queue pairs in 2000 completions", c.RecvDepth)
	}
}

// TestLayout: nothing that is sent or received overlaps, or is outside.
func TestLayout(t *testing.T) {
	for _, c := range []Config{
		Default(Send, Lat),
		with(Send, BW, func(c *Config) { c.QPs, c.RecvDepth = 3, 512 }),
		with(Send, BW, func(c *Config) { c.Type, c.Sizes, c.RecvDepth, c.Verify = UD, []int{1, 1000}, 20, true }),
		with(Send, BW, func(c *Config) { c.Sizes, c.RecvDepth, c.Verify = []int{2, 8 << 20}, 512, true }),
		with(Read, BW, func(c *Config) { c.Sizes, c.QPs = []int{2048}, 2 }),
	} {
		c.settle(Limits{MaxWR: 1 << 20, MaxCQE: 1 << 20})
		e := &End{Config: c, memory: newLayout(&c)}
		l := e.memory
		for _, size := range c.Sizes {
			for qp := range c.QPs {
				for n := range 200 {
					at, remote := e.sendAt(qp, n, size)
					if at < l.send*qp || at+size > l.send*(qp+1) || remote+size > l.recv {
						t.Fatalf("%s of %d: message %d is sent from %d to %d", c.Name(), size, n, at, remote)
					}
				}
				end := l.base + l.recv*(qp+1)
				seen := map[int]bool{}
				for slot := range l.slots {
					at := e.recvAt(qp, slot, size)
					if c.Type == UD {
						at -= uverbs.GRHSize
					}
					if at < l.base+l.recv*qp || at+l.recvSize > end || end > l.size {
						t.Fatalf("%s of %d: receive %d is at %d of %d", c.Name(), size, slot, at, l.size)
					}
					if c.Verify && seen[at] {
						t.Fatalf("%s: two receives at %d", c.Name(), at)
					}
					seen[at] = true
				}
			}
		}
	}
	big := with(Send, BW, func(c *Config) { c.Sizes, c.RecvDepth, c.Verify = []int{8 << 20}, 512, true })
	if l := newLayout(&big); l.slots != 8 {
		t.Errorf("%d receives of 8 MiB to be compared, want 8", l.slots)
	}
}

// TestReport: what a client prints comes back.
func TestReport(t *testing.T) {
	want := &Report{
		Schema: ReportSchema, Test: "send-lat", Config: Default(Send, Lat), Client: Side{Device: "rxe0", Inline: 64}, Server: Side{Address: "10.1.0.1:18516"},
		Results: []Size{{Size: 2, Iterations: 3, Seconds: 0.5, Latency: NewLatency([]int64{1000, 2000, 4000}), Verified: true}, {Size: 4, Bandwidth: &Bandwidth{1, 2, 3}}},
	}
	want.Config.Rate = Rate{3, Gigabits, true}
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ReadReport(b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	for text, want := range map[string]string{
		"": "not a report of verbs perf: it is empty", "[]": "it is an array, allowed: an object", `{"schema":"1"}`: "schema is a string, allowed: a whole number",
		`{"schema":1,"results":[{}]} {}`: "it is no JSON from column 29 on",
		`{"schema":9}`:                   "a report of schema 9, expected 1", `{"schema":1}`: "without results",
	} {
		if _, err := ReadReport([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error is %v, want %q", text, err, want)
		}
	}
}

// TestRoutes: a local GID without a route to the peer's is refused, and the error lists the GIDs
// that have one.
func TestRoutes(t *testing.T) {
	gid := func(s string) ib.GID { return netip.MustParseAddr(s).As16() }
	table := []uverbs.GIDEntry{
		{Index: 0, GID: gid("fe80::1")}, {Index: 1, GID: gid("10.1.0.1")}, {Index: 2, GID: gid("fd00:1::1")}, {Index: 5, GID: gid("10.2.0.1")},
	}
	for _, c := range []struct {
		table []uverbs.GIDEntry
		index int
		peer  string
		want  string
	}{
		{table, 1, "10.1.0.2", ""},
		{table, 2, "fd00:1::2", ""},
		{table, 3, "10.1.0.2", ""}, // not in use, which is for the library to say
		{table, 2, "10.1.0.2", "--gid is 2 (fd00:1::1), allowed: one with an address of the family of the peer's GID, 10.1.0.2: 1 (10.1.0.1), 5 (10.2.0.1)"},
		{table, 1, "fd00:1::2", "--gid is 1 (10.1.0.1), allowed: one with an address of the family of the peer's GID, fd00:1::2: 0 (fe80::1), 2 (fd00:1::1)"},
		{table[1:2], 1, "fd00:1::2", "--gid is 1 (10.1.0.1), allowed: one with an address of the family of the peer's GID, fd00:1::2: none here"},
	} {
		got := ""
		if err := routes(c.table, c.index, gid(c.peer)); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("index %d to %s: %q, want %q", c.index, c.peer, got, c.want)
		}
	}
}

// TestNoSource: the error says which kind of address an iWARP device must have for a peer.
func TestNoSource(t *testing.T) {
	for remote, want := range map[string]string{
		"10.1.0.2":    "IPv4 address, which peer 10.1.0.2 needs",
		"169.254.1.2": "IPv4 link-local address, which peer 169.254.1.2 needs",
		"fd00::2":     "IPv6 address, which peer fd00::2 needs",
		"fe80::1":     "IPv6 link-local address, which peer fe80::1 needs",
	} {
		err := noSource("siw0", netip.MustParseAddr(remote))
		if want = "the network interface of siw0 has no " + want; err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
