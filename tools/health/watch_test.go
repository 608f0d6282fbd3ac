package health

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// scene is a fake machine with one device, and what its port says. Time is what the test says.
type scene struct {
	*Watch
	m       *machine
	at      time.Time
	infos   []uverbs.DeviceInfo
	g       glimpse
	objects tracked
	port    portGlimpse // port 1
}

// newScene returns a scene in which nothing is wrong.
func newScene(t *testing.T, o WatchOptions) *scene {
	t.Helper()
	s := &scene{at: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), m: healthy(t).machine}
	info := fakeInfo
	info.NodeGUID = 0x1234
	s.infos = []uverbs.DeviceInfo{info}
	s.m.infos = func() ([]uverbs.DeviceInfo, error) { return s.infos, nil }
	s.m.glimpse = func(watched) glimpse {
		g := s.g
		g.objects = &s.objects
		g.ports = map[uint32]portGlimpse{1: s.port}
		return g
	}
	s.port = portGlimpse{state: ib.PortActive, rate: 400, lanes: 4, gids: map[int]string{0: "fe80::1, RoCE v2"},
		counters: map[string]uint64{"out_of_sequence": 7, "rp_cnp_handled": 1}}
	s.restart(t, o)
	return s
}

// restart begins with a new watch.
func (s *scene) restart(t *testing.T, o WatchOptions) {
	t.Helper()
	w, err := newWatch(o, s.m)
	must(t, err)
	w.now = func() time.Time { return s.at }
	s.Watch = w
}

// after looks so much later, and returns the findings as text.
func (s *scene) after(t *testing.T, d time.Duration) []string {
	t.Helper()
	s.at = s.at.Add(d)
	all := s.Look(t.Context())
	var text []string
	for _, f := range all {
		if f.Level == LevelOK || len(f.Evidence)+len(f.Fix) == 0 {
			t.Errorf("%s is %s, with evidence %q and fix %q", f.Code, f.Level, f.Evidence, f.Fix)
		}
		text = append(text, fmt.Sprintf("%s %s: %s%s", f.Level, f.Code, f.Subject(), f.Title))
	}
	return text
}

// want compares findings.
func want(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: findings\n%q, want\n%q", what, got, want)
	}
}

// TestWatchRules: each rule says what has changed, for as long as the window is, and not again.
func TestWatchRules(t *testing.T) {
	const minute = time.Minute
	broken := []netlinkrdma.QP{{Num: 17, Type: ib.RC, State: ib.QPErr, Owner: netlinkrdma.Owner{Kernel: "nvme_rdma"}}}
	for _, c := range []struct {
		name   string
		change func(s *scene) // what happens after a good look
		at     []string       // a minute later
		later  []string       // and two hours later
	}{
		{"nothing", func(*scene) {}, nil, nil},
		{"down", func(s *scene) { s.port.state = ib.PortDown },
			[]string{"error link: rxe0 port 1: the port is DOWN"}, []string{"error link: rxe0 port 1: the port is DOWN"}},
		{"down at a higher rate before", func(s *scene) {
			s.port.state, s.port.rate = ib.PortDown, 900
			s.Look(context.Background())
			s.port.state, s.port.rate = ib.PortActive, 400
		},
			[]string{"warning link: rxe0 port 1: the port is ACTIVE, and has changed its state 2 times in the last 1h0m0s"}, nil},
		{"flap", func(s *scene) { s.port.state = ib.PortDown; s.Look(context.Background()); s.port.state = ib.PortActive },
			[]string{"warning link: rxe0 port 1: the port is ACTIVE, and has changed its state 2 times in the last 1h0m0s"}, nil},
		{"slower", func(s *scene) { s.port.rate, s.port.lanes = 100, 1 },
			[]string{"warning speed: rxe0 port 1: the rate is 100 Gb/s, less than 400 Gb/s"}, []string{"warning speed: rxe0 port 1: the rate is 100 Gb/s, less than 400 Gb/s"}},
		{"GIDs", func(s *scene) { s.port.gids = map[int]string{1: "10.1.0.1, RoCE v2"} },
			[]string{"info gid_change: rxe0 port 1: the GID table has changed 2 times in the last 1h0m0s"}, nil},
		{"no GIDs known", func(s *scene) { s.port.gids = nil }, nil, nil},
		{"loss", func(s *scene) { s.port.counters = map[string]uint64{"out_of_sequence": 10, "rp_cnp_handled": 1} },
			[]string{"warning counters: rxe0 port 1: out_of_sequence +3 in the last 1h0m0s"}, nil},
		{"congestion", func(s *scene) { s.port.counters = map[string]uint64{"out_of_sequence": 7, "rp_cnp_handled": 5} },
			[]string{"info counters: rxe0 port 1: rp_cnp_handled +4 in the last 1h0m0s"}, nil},
		{"the driver was loaded again", func(s *scene) { s.port.counters = map[string]uint64{"out_of_sequence": 2} },
			[]string{"warning counters: rxe0 port 1: out_of_sequence +2 in the last 1h0m0s"}, nil},
		{"QP in ERR", func(s *scene) { s.objects.broken = broken; s.Look(context.Background()) },
			[]string{"warning qp_error: rxe0: 1 QP in state ERR for more than 1m0s"}, []string{"warning qp_error: rxe0: 1 QP in state ERR for more than 1m0s"}},
		{"new QP in ERR", func(s *scene) { s.objects.broken = broken },
			nil, []string{"warning qp_error: rxe0: 1 QP in state ERR for more than 1m0s"}},
		{"gone", func(s *scene) { s.infos = nil },
			[]string{"error device_gone: rxe0: the device has disappeared"}, []string{"error device_gone: rxe0: the device has disappeared"}},
		{"renamed", func(s *scene) { s.infos[0].Name = "roce0" }, nil, nil},
		{"another of the name", func(s *scene) { s.infos[0].NodeGUID = 9; s.port.rate = 100 }, nil, nil},
		{"not opened", func(s *scene) { s.g.opened = os.ErrPermission; s.port.rate, s.port.gids = 0, nil },
			[]string{"info open: rxe0: the device cannot be opened and asked, so its rate and GIDs are not watched"}, []string{"info open: rxe0: the device cannot be opened and asked, so its rate and GIDs are not watched"}},
		{"no ports", func(s *scene) { s.g.err = os.ErrPermission },
			[]string{"error open: rxe0: its ports cannot be listed"}, []string{"error open: rxe0: its ports cannot be listed"}},
		{"no list", func(s *scene) { s.m.devices = func() ([]netlinkrdma.Device, error) { return nil, os.ErrPermission } },
			[]string{"error devices: the devices cannot be listed"}, []string{"error devices: the devices cannot be listed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t, WatchOptions{})
			want(t, "at first", s.after(t, 0))
			c.change(s)
			want(t, "a minute later", s.after(t, minute), c.at...)
			want(t, "two hours later", s.after(t, 120*minute), c.later...)
		})
	}
}

// TestWatchForgets: what is gone, or slower than at its best, is normal after a week.
func TestWatchForgets(t *testing.T) {
	s := newScene(t, WatchOptions{})
	s.after(t, 0)
	s.port.rate = 100
	if len(s.after(t, 0)) != 1 {
		t.Error("a lower rate is no finding")
	}
	want(t, "a week later", s.after(t, remember+time.Second))
	s.infos = nil
	if len(s.after(t, 0)) != 1 {
		t.Error("a device that is gone is no finding")
	}
	want(t, "a week later", s.after(t, remember+time.Second))
	if len(s.past.Devices) != 0 {
		t.Errorf("it still knows %v", s.past.Devices)
	}
}

// TestWatchExpect: the rate of an expectation counts although the port never had it; devices that are named must be there.
func TestWatchExpect(t *testing.T) {
	o := WatchOptions{Devices: []string{"rxe0", "rxe9"}, Expect: &Expectation{Ports: []PortExpectation{{Device: "mlx5_*", Rate: 900}, {Device: "rxe*", Driver: "rxe", Rate: 800}}}}
	s := newScene(t, o)
	all := s.Look(t.Context())
	if len(all) != 2 || all[0].Code != CodeDeviceGone || all[0].Device != "rxe9" || all[1].Code != CodeSpeed || !slices.Contains(all[1].Evidence, "800 Gb/s: ports[1] of the expectation") {
		t.Errorf("findings: %+v", all)
	}
}

// TestWatchBounds: a port that never rests takes a bounded amount of memory.
func TestWatchBounds(t *testing.T) {
	s := newScene(t, WatchOptions{Window: mostTime})
	for i := range 3 * mostMoves {
		s.port.state = []ib.PortState{ib.PortActive, ib.PortDown}[i%2]
		s.port.gids = map[int]string{0: fmt.Sprint(i)}
		s.port.counters = map[string]uint64{"out_of_sequence": uint64(i)}
		s.after(t, time.Second)
	}
	if n := len(s.past.Devices["rxe0"].Ports[1].Moves); n > 2*mostMoves+1 || n < 2*mostMoves {
		t.Errorf("it keeps %d moves", n)
	}
}

// TestWatchState: what was seen counts after a restart; the file is complete and for its owner only.
func TestWatchState(t *testing.T) {
	o := WatchOptions{State: filepath.Join(t.TempDir(), "state")}
	s := newScene(t, o)
	want(t, "at first", s.after(t, 0))
	if info, err := os.Stat(o.State); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file of the state: %v, %v", info, err)
	}
	s.port.rate = 100
	s.port.counters = map[string]uint64{"out_of_sequence": 9}
	s.restart(t, o)
	want(t, "after a restart", s.after(t, time.Minute),
		"warning speed: rxe0 port 1: the rate is 100 Gb/s, less than 400 Gb/s", "warning counters: rxe0 port 1: out_of_sequence +2 in the last 1h0m0s")
	s.infos = nil
	s.restart(t, o)
	want(t, "after another", s.after(t, time.Minute), "error device_gone: rxe0: the device has disappeared")

	for text, what := range map[string]string{
		"":                                     "is not one of a watch",
		"{}":                                   "has schema 0, this program reads 1",
		`{"schema":2}`:                         "has schema 2, this program reads 1",
		`{"schema":1,"devices":[]}`:            "is not one of a watch",
		`{"schema":1,"devices":{"rxe0":null}}`: "devices.rxe0 is null",
		`{"schema":1,"devices":{"rxe0":{"ports":{"1":null}}}}`: "devices.rxe0.ports.1 is null",
	} {
		must(t, os.WriteFile(o.State, []byte(text), 0o600))
		if _, err := NewWatch(o); err == nil || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), o.State) {
			t.Errorf("the state %q: %v", text, err)
		}
	}
	must(t, os.WriteFile(o.State, []byte(`{"schema":1,"devices":{"rxe0":{"node_guid":"0000:0000:0000:1234","ports":{"1":{"moves":[{"at":"2026-11-30T11:59:59Z","kind":"what","text":"x"},{"at":"2026-11-30T11:59:59Z","kind":"counter","text":"nothing"}]}}}}}`), 0o600))
	s = newScene(t, o)
	want(t, "with unknown moves", s.after(t, 0))

	o.State = filepath.Join(t.TempDir(), "none", "state")
	if _, err := NewWatch(o); err == nil || !strings.Contains(err.Error(), "State is \""+o.State) {
		t.Errorf("a state that cannot be written: %v", err)
	}
	must(t, os.Mkdir(filepath.Dir(o.State), 0o700))
	s = newScene(t, o)
	must(t, os.RemoveAll(filepath.Dir(o.State)))
	want(t, "a state that cannot be written", s.after(t, 0), "warning state: the file of the state cannot be written")
	must(t, os.Mkdir(filepath.Dir(o.State), 0o700))
	want(t, "one that can be written again", s.after(t, 2*saveInterval))
}

// TestWatchOptions: bad options are refused with the field, the value and what is allowed.
func TestWatchOptions(t *testing.T) {
	for text, o := range map[string]WatchOptions{
		"Interval is 1ms, allowed: 1s to 720h0m0s":                                      {Interval: time.Millisecond},
		"Interval is -1s, allowed: 1s to 720h0m0s":                                      {Interval: -time.Second},
		"Window is 10s, allowed: 1m0s to 720h0m0s":                                      {Window: 10 * time.Second},
		"Expect: ports[1].count is 2, allowed: ports with device, driver and rate_gbps": {Expect: &Expectation{Ports: []PortExpectation{{Device: "a", Driver: "b", Rate: 1}, {Count: 2}}}},
		`Expect: netns is "shared", allowed: ports`:                                     {Expect: &Expectation{NetNS: "shared"}},
		"Window is 9000h0m0s, allowed: 1m0s to 720h0m":                                  {Window: 9000 * time.Hour},
	} {
		if _, err := NewWatch(o); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestWatchHang: a device that does not answer, or a list, is a finding after a while. There is one attempt until it does, a
// late answer counts, and what was found before holds meanwhile.
func TestWatchHang(t *testing.T) {
	s := newScene(t, WatchOptions{})
	s.patience = time.Millisecond
	s.port.state = ib.PortDown
	const down, mute = "error link: rxe0 port 1: the port is DOWN", "error open: rxe0: the device does not answer"
	want(t, "at first", s.after(t, 0), down)
	release, asked, look := make(chan struct{}), make(chan struct{}, 9), s.m.glimpse
	s.m.glimpse = func(d watched) glimpse { g := look(d); asked <- struct{}{}; <-release; return g }
	want(t, "it is slow", s.after(t, 0), down)
	<-asked
	want(t, "it hangs", s.after(t, silence*time.Millisecond), down, mute)
	want(t, "it hangs", s.after(t, time.Minute), down, mute)
	if len(asked) != 0 {
		t.Errorf("there were %d attempts more", len(asked))
	}
	s.patience = time.Minute
	s.m.glimpse = look
	close(release)
	want(t, "a late answer", s.after(t, 0), down)
	list, release := s.m.infos, make(chan struct{})
	s.m.infos = func() ([]uverbs.DeviceInfo, error) { <-release; return list() }
	s.patience = time.Millisecond
	want(t, "the list hangs", s.after(t, 0), down, "error devices: the devices cannot be listed")
	s.patience = time.Minute
	s.port.state = ib.PortActive
	close(release)
	want(t, "a late list", s.after(t, 0), "warning link: rxe0 port 1: the port is ACTIVE, and has changed its state 1 time in the last 1h0m0s")
}

// TestWatchObjects: lists of objects that take long are made rarely, and not at all without processes.
func TestWatchObjects(t *testing.T) {
	for name, c := range map[string]struct {
		o    WatchOptions
		took time.Duration
		want int
	}{"fast": {WatchOptions{}, 0, 4}, "slow": {WatchOptions{}, time.Second, 2}, "none": {WatchOptions{NoProcesses: true}, 0, 0}} {
		s := newScene(t, c.o)
		s.objects.took = c.took
		n, look := 0, s.m.glimpse
		s.m.glimpse = func(d watched) glimpse {
			g := look(d)
			if !d.objects {
				g.objects = nil
			} else {
				n++
			}
			return g
		}
		for range 4 {
			s.after(t, objectsShare*time.Second/2)
		}
		if n != c.want {
			t.Errorf("%s: the objects are listed %d times of 4, want %d", name, n, c.want)
		}
	}
}

// TestWatchRun: Run reports what begins, changes its level and ends, and writes the state at the end.
func TestWatchRun(t *testing.T) {
	o := WatchOptions{State: filepath.Join(t.TempDir(), "state")}
	s := newScene(t, o)
	s.o.Interval = time.Millisecond
	s.port.state = ib.PortDown
	ctx, cancel := context.WithCancel(t.Context())
	var got []string
	err := s.Run(ctx, func(c Change) {
		got = append(got, fmt.Sprintf("%s %s %s", c.State, c.Level, c.Code))
		switch len(got) {
		case 1:
			s.port.state = ib.PortActive // a warning about the changes remains
		case 2:
			s.at = s.at.Add(2 * time.Hour)
		case 3:
			must(t, os.Remove(o.State))
			cancel()
		}
	})
	must(t, err)
	want(t, "changes", got, "began error link", "level warning link", "ended warning link")
	text, err := os.ReadFile(o.State)
	if err != nil || !json.Valid(text) {
		t.Errorf("the state at the end: %q, %v", text, err)
	}
	if len(s.Findings()) != 0 {
		t.Errorf("findings at the end: %v", s.Findings())
	}
}

// TestWatchPinned: a process near its limit of pinned memory is named; one with the right to pin more is not.
func TestWatchPinned(t *testing.T) {
	status := func(caps, pinned string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte("Name:\tfio\nTgid:\t42\nCapEff:\t" + caps + "\nVmPin:\t   " + pinned + " kB\n")}
	}
	limits := &fstest.MapFile{Data: []byte("Limit                     Soft Limit           Hard Limit           Units\nMax locked memory         8388608              8388608              bytes\n")}
	for _, c := range []struct {
		name  string
		files fstest.MapFS
		want  []string
	}{
		{"near", fstest.MapFS{"proc/43/status": status("0", "8000"), "proc/42/status": status("0", "8000"), "proc/42/limits": limits, "proc/42/comm": {Data: []byte("fio\n")}},
			[]string{"warning pinned: 1 process with more than 90 % of the memory pinned that the limit permits"}},
		{"far", fstest.MapFS{"proc/43/status": status("0", "7000"), "proc/42/status": status("0", "7000"), "proc/42/limits": limits}, nil},
		{"with CAP_IPC_LOCK", fstest.MapFS{"proc/43/status": status("4000", "8000"), "proc/42/status": status("4000", "8000"), "proc/42/limits": limits}, nil},
		{"unlimited", fstest.MapFS{"proc/43/status": status("0", "8000"), "proc/42/status": status("0", "8000"), "proc/42/limits": {Data: []byte("Max locked memory         unlimited            unlimited            bytes\n")}}, nil},
		{"ended", fstest.MapFS{}, nil},
	} {
		s := newScene(t, WatchOptions{})
		s.m.root = c.files
		s.objects.owners = []uint32{43}
		want(t, c.name, s.after(t, 0), c.want...)
	}
}

// TestCounterRules: counters of drivers and of InfiniBand have the rule that they belong to, and counters of traffic none.
func TestCounterRules(t *testing.T) {
	for name, means := range map[string]string{
		"symbol_error": "packets arrive damaged", "port_rcv_errors": "packets arrive damaged", "rx_icrc_encapsulated": "packets arrive damaged",
		"link_downed": "the link went down or had to recover", "out_of_buffer": "a program had no receive posted when a message came",
		"rnr_nak_retry_err": "a program had no receive posted when a message came", "out_of_sequence": "packets were lost, and sent again",
		"packet_seq_err": "packets were lost, and sent again", "local_ack_timeout_err": "packets were lost, and sent again", "duplicate_request": "packets were lost, and sent again",
		"req_remote_access_errors": "a request was refused", "resp_cqe_error": "a request was refused", "port_xmit_discards": "packets were dropped here",
		"np_cnp_sent": "the network is congested, and senders slow down", "np_ecn_marked_roce_packets": "the network is congested, and senders slow down",
		"VL15_dropped": "packets were dropped here", "unicast_rcv_packets": "", "port_xmit_data": "", "sent_pkts": "", "rx_write_requests": "", "lifespan": "", "ack_deferred": "",
	} {
		got := ""
		if r := ruleOf(name); r != nil {
			got = r.means
		}
		if got != means {
			t.Errorf("%s: %q, want %q", name, got, means)
		}
	}
}
