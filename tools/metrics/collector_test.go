package metrics

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/health"
	"github.com/goverbs/goverbs/tools/internal/proc"
	"github.com/goverbs/goverbs/tools/probe"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// opened is a device that is open.
type opened struct{ err error }

func (o opened) Port(port uint8) (uverbs.PortAttr, error) {
	return uverbs.PortAttr{State: ib.PortActive, PhysState: 5, ActiveMTU: ib.MTU4096, ActiveWidth: 2, ActiveSpeed: 32, LinkLayer: ib.LinkLayerEthernet}, o.err
}
func (o opened) PortCounters(uint8) ([]netlinkrdma.Counter, error) {
	return []netlinkrdma.Counter{{Name: "rcvd_pkts", Value: 3}}, nil
}
func (o opened) GIDTable(uint8) ([]uverbs.GIDEntry, error) { return nil, nil }
func (o opened) Close() error                              { return nil }

// unsupported is the error for what a kernel or driver does not have.
var unsupported = &netlinkrdma.FeatureError{Feature: "counters", Driver: "siw"}

// fakeCollector returns a collector of a host with the devices a0 and b0.
func fakeCollector(o Options) *Collector {
	c := New(o)
	c.patience = time.Minute
	c.host = host{
		devices: func() ([]netlinkrdma.Device, error) {
			return []netlinkrdma.Device{{Name: "a0", Index: 1, Ports: 2, DriverID: netlinkrdma.DriverMLX5, Protocol: "roce"}, {Name: "b0", Index: 2, Ports: 1, DriverID: netlinkrdma.DriverSIW}}, nil
		},
		own: func() ([]uverbs.DeviceInfo, error) { return nil, nil },
		ports: func(d netlinkrdma.Device) (all []netlinkrdma.Port, err error) {
			for n := range d.Ports {
				all = append(all, netlinkrdma.Port{Num: n + 1, State: ib.PortActive, PhysState: ib.PhysLinkUp, LinkLayer: ib.LinkLayerEthernet, Netdev: "eth0"})
			}
			return all, nil
		},
		open: func(string) (openDevice, error) { return opened{}, nil },
		counters: func(d netlinkrdma.Device, port uint32) ([]netlinkrdma.Counter, error) {
			if d.Name == "b0" {
				return nil, unsupported
			}
			return []netlinkrdma.Counter{{Name: "out_of_buffer", Value: 7}, {Name: "shared", Value: 1}}, nil
		},
		standard: func(d netlinkrdma.Device, port uint32) ([]netlinkrdma.Counter, error) {
			if d.Name == "b0" {
				return nil, unsupported
			}
			return []netlinkrdma.Counter{{Name: "port_rcv_data", Value: 5}, {Name: "port_xmit_data", Value: 1<<64 - 1}, {Name: "shared", Value: 1}}, nil
		},
		counts: func(netlinkrdma.Device) (netlinkrdma.ResourceCounts, error) {
			return netlinkrdma.ResourceCounts{QPs: 9}, nil
		},
		objects: func(d netlinkrdma.Device, o *owners) error {
			o.objects[objectKey{o.of(netlinkrdma.Owner{Kernel: "ib_core"}), "pd"}]++
			return nil
		},
		sysfs:   fstest.MapFS{},
		proc:    proc.New(fstest.MapFS{}),
		examine: func(context.Context, ...string) health.Report { return health.Report{Works: true} },
	}
	return c
}

// has fails the test unless the metrics have each of the lines, and none of those that begin with "!".
func has(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, l := range lines {
		without, not := strings.CutPrefix(l, "!")
		if strings.Contains(text, "\n"+without) == not {
			t.Errorf("the line %s:\n%s", l, text)
		}
	}
}

// checkFormat fails the test unless a text has the text format, each series once.
func checkFormat(t *testing.T, text string) {
	t.Helper()
	comment := regexp.MustCompile(`^# (HELP|TYPE) (rdma_[a-z_]+) (.+)$`)
	line := regexp.MustCompile(`^(rdma_[a-z_]+)(\{([a-z_]+="([^"\\\n]|\\\\|\\"|\\n)*",?)+\})? (-?[0-9.]+(e[+-][0-9]+)?)$`)
	seen, family := map[string]bool{}, ""
	for l := range strings.Lines(text) {
		l = strings.TrimSuffix(l, "\n")
		if m := comment.FindStringSubmatch(l); m != nil {
			if m[1] == "HELP" {
				family = m[2]
			}
			continue
		}
		m := line.FindStringSubmatch(l)
		if m == nil || m[1] != family {
			t.Errorf("not a line of %s: %q", family, l)
			continue
		}
		series := m[1] + m[2]
		if seen[series] {
			t.Errorf("twice: %s", l)
		}
		seen[series] = true
	}
}

func TestCollect(t *testing.T) {
	c := fakeCollector(Options{Events: func(string) error { return nil }, Version: "v1"})
	c.CountEvent("a0", 2, "PORT_ERR")
	c.CountEvent("", 0, "NETDEV_RENAME")
	text := string(c.Collect())
	checkFormat(t, text)
	has(t, text,
		`rdma_exporter_build_info{version="v1",goversion="go`,
		`rdma_device_info{device="a0",driver="mlx5",protocol="roce",node_guid="0000:0000:0000:0000",firmware="",in_process="false"} 1`+"\n",
		`rdma_port_info{device="a0",port="2",netdev="eth0",link_layer="Ethernet"} 1`+"\n",
		`rdma_port_state{device="b0",port="1"} 4`+"\n", `rdma_port_physical_state{device="a0",port="1"} 5`+"\n",
		`rdma_port_rate_bytes_per_second{device="a0",port="1"} 1.25e+10`+"\n", `rdma_port_lanes{device="a0",port="1"} 4`+"\n", `rdma_port_mtu_bytes{device="b0",port="1"} 4096`+"\n",
		`rdma_port_counters_total{device="a0",port="2",counter="out_of_buffer"} 7`+"\n", `rdma_port_counters_total{device="a0",port="1",counter="port_xmit_data"} 18446744073709551615`+"\n",
		`rdma_port_received_bytes_total{device="a0",port="1"} 20`+"\n", `rdma_port_transmitted_bytes_total{device="a0",port="1"} 7.378697629483821e+19`+"\n",
		`rdma_device_objects{device="b0",type="qp"} 9`+"\n", `rdma_process_objects{device="a0",type="pd",process="[ib_core]",pid="",container="",netns=""} 1`+"\n",
		`rdma_events_total{device="a0",port="2",event="PORT_ERR"} 1`+"\n", `rdma_events_total{device="a0",port="1",event="PORT_ERR"} 0`+"\n", `rdma_events_total{device="",port="",event="NETDEV_RENAME"} 1`+"\n",
		`rdma_events_total{device="b0",port="",event="DEVICE_FATAL"} 0`+"\n",
		// A feature that a driver does not have is not counted as a failure.
		`rdma_exporter_collector_success{collector="counters",device="a0"} 1`+"\n", `!rdma_exporter_collector_success{collector="counters",device="b0"}`, `!rdma_exporter_errors_total`, `!rdma_port_counters_total{device="b0"`)
}

// TestFailures: each part may fail, and takes nothing else away.
func TestFailures(t *testing.T) {
	broken := errors.New("input/output error")
	parts := map[string]struct {
		fail    func(*host)
		missing string
	}{
		"ports": {func(h *host) {
			h.ports = func(netlinkrdma.Device) ([]netlinkrdma.Port, error) { return nil, broken }
		}, `rdma_port_state{`},
		"links":             {func(h *host) { h.open = func(string) (openDevice, error) { return nil, broken } }, `rdma_port_mtu_bytes{`},
		"counters":          {func(h *host) { h.counters = failing(broken) }, `rdma_port_counters_total{device="a0",port="1",counter="out_of_buffer"}`},
		"standard_counters": {func(h *host) { h.standard = failing(broken) }, `rdma_port_received_bytes_total{`},
		"objects": {func(h *host) {
			h.counts = func(netlinkrdma.Device) (netlinkrdma.ResourceCounts, error) {
				return netlinkrdma.ResourceCounts{}, broken
			}
		}, `rdma_device_objects{`},
		"processes": {func(h *host) { h.objects = func(netlinkrdma.Device, *owners) error { return broken } }, `rdma_process_objects{`},
	}
	for name, part := range parts {
		c := fakeCollector(Options{})
		part.fail(&c.host)
		c.Collect()
		text := string(c.Collect())
		checkFormat(t, text)
		has(t, text, "!"+part.missing, `rdma_exporter_collector_success{collector="`+name+`",device="a0"} 0`+"\n", `rdma_exporter_errors_total{collector="`+name+`"} 4`+"\n")
		for other, o := range parts {
			if other != name {
				has(t, text, o.missing, `rdma_exporter_collector_success{collector="`+other+`",device="a0"} 1`+"\n")
			}
		}
	}
	c := fakeCollector(Options{})
	c.host.devices = func() ([]netlinkrdma.Device, error) { return nil, broken }
	has(t, string(c.Collect()), `rdma_exporter_collector_success{collector="devices",device=""} 0`+"\n", `rdma_exporter_build_info`, "!rdma_port_state")
}

func failing(err error) func(netlinkrdma.Device, uint32) ([]netlinkrdma.Counter, error) {
	return func(netlinkrdma.Device, uint32) ([]netlinkrdma.Counter, error) { return nil, err }
}

// TestSomeFail: what can be read of a part is shown, although the rest fails.
func TestSomeFail(t *testing.T) {
	c := fakeCollector(Options{})
	c.host.standard = func(netlinkrdma.Device, uint32) ([]netlinkrdma.Counter, error) {
		return []netlinkrdma.Counter{{Name: "port_rcv_data", Value: 1}}, errors.New("input/output error")
	}
	c.host.counters = func(d netlinkrdma.Device, port uint32) ([]netlinkrdma.Counter, error) {
		if port == 2 {
			return nil, errors.New("no answer")
		}
		return []netlinkrdma.Counter{{Name: "x", Value: 1}}, nil
	}
	c.host.open = func(string) (openDevice, error) { return nil, fs.ErrPermission }
	c.host.sysfs = fstest.MapFS{"class/infiniband/a0/ports/2/rate": {Data: []byte("2.5 Gb/sec (1X SDR)\n")}, "class/infiniband/a0/ports/1/rate": {Data: []byte("a lot\n")}}
	has(t, string(c.Collect()), `rdma_port_received_bytes_total{device="a0",port="1"} 4`+"\n", `rdma_port_counters_total{device="a0",port="1",counter="x"} 1`+"\n",
		`rdma_exporter_collector_success{collector="counters",device="a0"} 0`, `rdma_exporter_collector_success{collector="standard_counters",device="a0"} 0`,
		`rdma_port_rate_bytes_per_second{device="a0",port="2"} 3.125e+08`+"\n", `rdma_port_lanes{device="a0",port="2"} 1`+"\n", `!rdma_port_rate_bytes_per_second{device="a0",port="1"}`)
}

// TestVanish: a device that is removed or renamed while it is read leaves nothing, and is no failure.
func TestVanish(t *testing.T) {
	c := fakeCollector(Options{})
	all, _ := c.host.devices()
	var left atomic.Bool
	c.host.devices = func() ([]netlinkrdma.Device, error) {
		if left.Load() {
			return []netlinkrdma.Device{all[1], {Name: "a0", Index: 7}}, nil // the name belongs to another now
		}
		return all, nil
	}
	c.host.counts = func(d netlinkrdma.Device) (netlinkrdma.ResourceCounts, error) {
		if d.Index == 1 {
			left.Store(true)
			return netlinkrdma.ResourceCounts{}, fs.ErrNotExist
		}
		return netlinkrdma.ResourceCounts{}, nil
	}
	has(t, string(c.Collect()), `!rdma_port_state{device="a0"`, `!rdma_exporter_collector_success{collector="ports",device="a0"}`, `!rdma_exporter_errors_total`, `rdma_port_state{device="b0",port="1"} 4`)
}

// TestHang: a device that does not answer is left out, and nobody waits for it again.
func TestHang(t *testing.T) {
	c := fakeCollector(Options{})
	c.patience = 50 * time.Millisecond
	hang, reads := make(chan struct{}), atomic.Int32{}
	ports := c.host.ports
	c.host.ports = func(d netlinkrdma.Device) ([]netlinkrdma.Port, error) {
		if d.Name == "a0" {
			reads.Add(1)
			<-hang
		}
		return ports(d)
	}
	for range 20 { // what the others say is there each time, however late it is
		has(t, string(c.Collect()), `rdma_exporter_collector_success{collector="device",device="a0"} 0`+"\n", `!rdma_port_state{device="a0"`, `rdma_port_state{device="b0",port="1"} 4`)
	}
	if n := reads.Load(); n != 1 {
		t.Errorf("it is read %d times at a time", n)
	}
	close(hang)
	for begun := time.Now(); !strings.Contains(string(c.Collect()), `rdma_port_state{device="a0",port="1"} 4`); {
		if time.Since(begun) > time.Minute {
			t.Fatal("it does not come back")
		}
	}
	c.host.devices = func() ([]netlinkrdma.Device, error) { <-t.Context().Done(); return nil, nil }
	has(t, string(c.Collect()), `rdma_exporter_collector_success{collector="devices",device=""} 0`+"\n", `rdma_exporter_build_info`)
}

// TestNames: two names for one device, two devices with one name, and names that are not there.
func TestNames(t *testing.T) {
	c := fakeCollector(Options{Devices: []string{"a0", "c0", "a0"}})
	c.host.own = func() ([]uverbs.DeviceInfo, error) {
		return []uverbs.DeviceInfo{{Name: "a0", Ports: 1, InProcess: true}, {Name: "d0", Ports: 1, InProcess: true}}, nil
	}
	text := string(c.Collect())
	checkFormat(t, text)
	has(t, text, `rdma_device_info{device="a0",driver="mlx5"`, `!rdma_device_info{device="b0"`, `!rdma_device_info{device="d0"`, `rdma_exporter_collector_success{collector="devices",device="c0"} 0`+"\n")
	if n := strings.Count(text, "\nrdma_device_info{"); n != 1 {
		t.Errorf("there are %d devices", n)
	}
	c = fakeCollector(Options{})
	c.host.devices = func() ([]netlinkrdma.Device, error) { return nil, syscall.EPROTONOSUPPORT } // no RDMA
	c.host.own = func() ([]uverbs.DeviceInfo, error) {
		return []uverbs.DeviceInfo{{Name: "d0", Driver: "rxe", Ports: 1, InProcess: true}}, nil
	}
	has(t, string(c.Collect()), `rdma_exporter_collector_success{collector="devices",device=""} 1`, `rdma_device_info{device="d0",driver="rxe",protocol="",node_guid="0000:0000:0000:0000",firmware="",in_process="true"} 1`,
		`rdma_port_counters_total{device="d0",port="1",counter="rcvd_pkts"} 3`, `rdma_port_state{device="d0",port="1"} 4`, `!rdma_device_objects`)
}

// TestShared: scrapes at the same time share one collection.
func TestShared(t *testing.T) {
	c := fakeCollector(Options{})
	devices, calls, wait := c.host.devices, atomic.Int32{}, make(chan struct{})
	c.host.devices = func() ([]netlinkrdma.Device, error) {
		calls.Add(1)
		<-wait
		return devices()
	}
	var all sync.WaitGroup
	texts := make(chan string, 8)
	collect := func() { texts <- string(c.Collect()) }
	all.Go(collect)
	for calls.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	for range 7 {
		all.Go(collect)
	}
	time.Sleep(10 * time.Millisecond) // for some of the others to come; one that is late makes a round of its own
	close(wait)
	all.Wait()
	close(texts)
	different := map[string]bool{}
	for text := range texts {
		has(t, text, `rdma_port_state{device="b0",port="1"} 4`)
		different[text] = true
	}
	if n := calls.Load(); n == 8 || int(n) < len(different) {
		t.Errorf("8 scrapes make %d rounds with %d results", n, len(different))
	}
}

// TestDoctor: findings come in the background, not more often than the interval says, and the worst counts.
func TestDoctor(t *testing.T) {
	c := fakeCollector(Options{DoctorInterval: time.Hour})
	wait, calls := make(chan struct{}), atomic.Int32{}
	c.host.examine = func(ctx context.Context, _ ...string) health.Report {
		calls.Add(1)
		<-wait
		return health.Report{Works: ctx.Err() != nil, Findings: []health.Finding{
			{Code: health.CodeMTU, Device: "a0", Port: 2, Level: health.LevelError}, {Code: health.CodeMTU, Device: "a0", Port: 2, Level: health.LevelOK},
			{Code: health.CodeVM, Level: health.LevelInfo},
		}}
	}
	for range 3 {
		has(t, string(c.Collect()), "!rdma_doctor", "rdma_port_state")
	}
	close(wait)
	var text string
	for begun := time.Now(); !strings.Contains(text, "rdma_doctor"); text = string(c.Collect()) {
		if time.Since(begun) > time.Minute {
			t.Fatal("there are no findings")
		}
	}
	has(t, text, "rdma_doctor_works 0\n", `rdma_doctor_finding_level{code="mtu",device="a0",port="2"} 3`+"\n", `rdma_doctor_finding_level{code="vm",device="",port=""} 1`+"\n", "rdma_doctor_last_run_timestamp_seconds 1", "rdma_doctor_duration_seconds ")
	if n := calls.Load(); n != 1 {
		t.Errorf("the doctor was called %d times", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.Examine(ctx)
	has(t, string(c.Collect()), "rdma_doctor_works 0\n") // an interrupted examination does not count
	c.options.DoctorInterval = time.Nanosecond
	for begun := time.Now(); calls.Load() < 4; c.Collect() {
		if time.Since(begun) > time.Minute {
			t.Fatal("the doctor does not come again")
		}
	}
}

// TestEvents: names that come and go do not fill the memory.
func TestEvents(t *testing.T) {
	c := fakeCollector(Options{})
	for i := range 2 * mostEvents {
		c.CountEvent(fmt.Sprint("rxe", i), 0, "REGISTER")
	}
	text := string(c.Collect())
	has(t, text, fmt.Sprintf(`rdma_exporter_errors_total{collector="events"} %d`+"\n", mostEvents))
	if n := strings.Count(text, "\nrdma_events_total{"); n != mostEvents {
		t.Errorf("there are %d events", n)
	}
}

// TestEventsMissing: events that are not counted show as a part that fails, and no longer when they are counted again.
func TestEventsMissing(t *testing.T) {
	missing := map[string]error{"": fs.ErrClosed, "b0": fs.ErrPermission}
	c := fakeCollector(Options{Events: func(device string) error { return missing[device] }})
	success := func(device, value string) string {
		return fmt.Sprintf("rdma_exporter_collector_success{collector=\"events\",device=%q} %s\n", device, value)
	}
	has(t, string(c.Collect()), success("", "0"), success("a0", "1"), success("b0", "0"), `rdma_exporter_errors_total{collector="events"} 2`+"\n")
	clear(missing)
	has(t, string(c.Collect()), success("", "1"), success("a0", "1"), success("b0", "1"), `rdma_exporter_errors_total{collector="events"} 2`+"\n")
}

// TestListFails: devices inside the process are served although the kernel's cannot be listed, which is a failure unless
// the kernel has no RDMA; and the kernel's are served while those inside the process hang.
func TestListFails(t *testing.T) {
	c := fakeCollector(Options{})
	c.patience = 50 * time.Millisecond
	devices, own := c.host.devices, []uverbs.DeviceInfo{{Name: "d0", Ports: 1, InProcess: true}}
	c.host.devices = func() ([]netlinkrdma.Device, error) { return nil, syscall.EMFILE }
	c.host.own = func() ([]uverbs.DeviceInfo, error) { return own, syscall.EMFILE }
	has(t, string(c.Collect()), `rdma_exporter_collector_success{collector="devices",device=""} 0`+"\n", `rdma_port_state{device="d0",port="1"} 4`)

	hang := make(chan struct{})
	defer close(hang)
	c.host.devices, c.host.own = devices, func() ([]uverbs.DeviceInfo, error) { <-hang; return nil, nil }
	for range 2 {
		has(t, string(c.Collect()), `rdma_exporter_collector_success{collector="devices",device=""} 0`+"\n", `rdma_port_state{device="a0",port="1"} 4`, `rdma_port_state{device="b0",port="1"} 4`)
	}
}

// TestManyPorts: a device may have more ports than the verbs can name. Others than the first 255 have no rate.
func TestManyPorts(t *testing.T) {
	c := fakeCollector(Options{})
	c.host.devices = func() ([]netlinkrdma.Device, error) {
		return []netlinkrdma.Device{{Name: "b0", Index: 2, Ports: 300, DriverID: netlinkrdma.DriverSIW}}, nil
	}
	has(t, string(c.Collect()), `rdma_port_rate_bytes_per_second{device="b0",port="255"}`, `!rdma_port_rate_bytes_per_second{device="b0",port="256"}`, `rdma_port_state{device="b0",port="300"} 4`)
}

// TestOwners: threads of one process are one owner, and the owner of an object whose thread has ended is unknown.
func TestOwners(t *testing.T) {
	const id = "4f1c0a5d7e8b92364f1c0a5d7e8b92364f1c0a5d7e8b92364f1c0a5d7e8b9236"
	o := newOwners(proc.New(fstest.MapFS{
		"94/status": {Data: []byte("Name:\tserver\nTgid:\t94\n")}, "97/status": {Data: []byte("Name:\tworker\nTgid:\t94\n")},
		"94/comm": {Data: []byte("server\n")}, "94/cgroup": {Data: []byte("0::/docker/" + id + "\n")}, "94/ns/net": {Data: []byte("net:[4026]"), Mode: fs.ModeSymlink},
	}))
	list := func(netlinkrdma.Device) (all []netlinkrdma.CQ, err error) {
		for _, pid := range []uint32{94, 97, 97, 0, 99} {
			all = append(all, netlinkrdma.CQ{Owner: netlinkrdma.Owner{PID: pid}})
		}
		return append(all, netlinkrdma.CQ{Owner: netlinkrdma.Owner{Kernel: "ib_core"}}), fs.ErrPermission
	}
	owner := func(v netlinkrdma.CQ) netlinkrdma.Owner { return v.Owner }
	if err := count(o, netlinkrdma.Device{}, "cq", list, owner); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("the error is %v", err)
	}
	none := func(netlinkrdma.Device) ([]netlinkrdma.CQ, error) { return nil, unsupported }
	if err := count(o, netlinkrdma.Device{}, "srq", none, owner); err != nil {
		t.Errorf("an old kernel is a failure: %v", err)
	}
	s := new(samples)
	o.add(s, "a0")
	slices.Sort(s[processObjects])
	want := []string{
		`{device="a0",type="cq",process="",pid="",container="",netns=""} 2`,
		`{device="a0",type="cq",process="[ib_core]",pid="",container="",netns=""} 1`,
		`{device="a0",type="cq",process="server",pid="94",container="` + id + `",netns="4026"} 3`,
	}
	if !slices.Equal(s[processObjects], want) {
		t.Errorf("owners are %q", s[processObjects])
	}
}

// TestFamilies: names follow the conventions of Prometheus, and callers get a copy.
func TestFamilies(t *testing.T) {
	name := regexp.MustCompile(`^rdma(_[a-z]+)+$`)
	for i, f := range Families() {
		if !name.MatchString(f.Name) || f.Help == "" || strings.HasSuffix(f.Name, "_total") != (f.Type == Counter) || f.Type != Counter && f.Type != Gauge && f.Type != Histogram {
			t.Errorf("%+v", f)
		}
		if len(f.Labels) > 0 {
			f.Labels[0] = "changed"
			if families[i].Labels[0] == "changed" {
				t.Errorf("%s shares its labels", f.Name)
			}
		}
	}
}

// TestHistogram: buckets are cumulative and in order, and the last one is the count.
func TestHistogram(t *testing.T) {
	h := probe.Histogram{Sum: 3 * time.Second}
	h.Counts[0], h.Counts[10], h.Counts[len(h.Counts)-1] = 2, 3, 1
	s := new(samples)
	s.addHistogram(probeLatency, &h, "a0", `the "peer"`, "10.0.0.2", "0", "RC")
	text := string(s.render())
	const labels = `{device="a0",peer="the \"peer\"",address="10.0.0.2",path="0",transport="RC"`
	last := -1
	for _, want := range []string{
		"# TYPE rdma_probe_latency_seconds histogram\n",
		"rdma_probe_latency_seconds_bucket" + labels + `,le="1e-06"} 2` + "\n",
		"_bucket" + labels + `,le="0.000512"} 2` + "\n", "_bucket" + labels + `,le="0.001024"} 5` + "\n",
		"_bucket" + labels + `,le="0.131072"} 5` + "\n", "_bucket" + labels + `,le="+Inf"} 6` + "\n",
		"_sum" + labels + "} 3\n", "_count" + labels + "} 6\n",
	} {
		i := strings.Index(text, want)
		if i <= last {
			t.Errorf("%q is at %d, behind %d:\n%s", want, i, last, text)
		}
		last = i
	}
}

// unescape reads the value of a label as Prometheus does.
var unescaper = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n")

// FuzzEscape: a label with any text is one of the format. Printable text comes back, and the rest is replaced.
func FuzzEscape(f *testing.F) {
	for _, s := range []string{"", "a", `\`, `"`, "\n", `\n`, "a\x00\xff\r", `"} 1` + "\nrdma_x 2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, v string) {
		s := new(samples)
		s.add(portCounters, "1", v, v, v)
		text := string(s.render())
		if n := strings.Count(text, "\n"); n != 3 {
			t.Errorf("%q makes %d lines: %q", v, n, text)
		}
		checkFormat(t, text)
		got, want := []rune(unescaper.Replace(escape(v))), []rune(v)
		if len(got) != len(want) {
			t.Fatalf("%q comes back as %q", v, string(got))
		}
		for i, r := range want {
			if r != '\n' && !strconv.IsGraphic(r) {
				r = '\ufffd'
			}
			if got[i] != r {
				t.Errorf("%q comes back as %q: character %d is %q, want %q", v, string(got), i, got[i], r)
			}
		}
	})
}
