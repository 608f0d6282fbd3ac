package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

func TestPrintRes(t *testing.T) {
	key := uint32(0x308)
	process := ownerRow{PID: 94, Comm: "prog"}
	r := resReport{
		Device:   "rxe0",
		Counts:   resCounts{Contexts: 1, PDs: 2, MRs: 2, CQs: 1, SRQs: 1, QPs: 2, CMIDs: 1},
		Limits:   &resCounts{PDs: 32768, QPs: 65536},
		Contexts: []contextRow{{0, process}},
		PDs:      []pdRow{{ID: 0, Users: 1, ownerRow: ownerRow{Kernel: "ib_core"}}, {ID: 1, Users: 2, ownerRow: process}},
		MRs:      []mrRow{{ID: 0, Length: 4096, LKey: &key, RKey: &key, PD: 1, ownerRow: process}, {ID: 1, Length: 8192, PD: 1}},
		CQs:      []cqRow{{ID: 1, CQE: 511, Users: 2, ownerRow: process}},
		SRQs:     []srqRow{{ID: 0, Type: "BASIC", PD: 1, QPs: qpRanges{{17, 17}, {19, 33}}, ownerRow: process}},
		QPs:      []qpRow{{Num: 18, Port: 1, Type: "RC", State: "RTS", RemoteNum: 35, RQPSN: 7, SQPSN: 8, PD: 1, ownerRow: process}},
		CMIDs:    []cmIDRow{{ID: 3, Port: 1, PortSpace: "TCP", State: "LISTEN", Local: addrText(netip.MustParseAddrPort("10.1.0.1:9999")), Remote: addrText(netip.AddrPort{}), ownerRow: process}},
		Missing:  []string{"something"},
	}
	var out bytes.Buffer
	if err := r.print(&out, false); err != nil {
		t.Fatal(err)
	}
	text := "\n" + strings.Join(strings.FieldsFunc(out.String(), func(r rune) bool { return r == '\n' }), "\n")
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	for _, want := range []string{
		"device: rxe0",
		"1 contexts, 2 PDs, 2 MRs, 1 CQs, 1 SRQs, 2 QPs, 1 CM IDs",
		"at most 0 contexts, 32768 PDs, 0 MRs, 0 CQs, 0 SRQs, 65536 QPs, 0 CM IDs (0: not known)",
		"0 1 [ib_core]",
		"0 4096 0x308 0x308 1 prog (94)",
		"1 8192 - - 1 -",
		"1 511 2 prog (94)",
		"0 BASIC 1 17,19-33 prog (94)",
		"18 RC RTS 1 35 7 8 1 prog (94)",
		"3 LISTEN TCP 1 10.1.0.1:9999 0 prog (94)",
		"not shown: something",
	} {
		if !strings.Contains(strings.Join(lines, "\n")+"\n", "\n"+want+"\n") {
			t.Errorf("the report has no line %q:\n%s", want, out.String())
		}
	}
	out.Reset()
	if err := command.PrintJSON(&out, []resReport{r}); err != nil {
		t.Fatal(err)
	}
	var back []map[string]any
	if err := json.Unmarshal(out.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	qp := back[0]["qps"].([]any)[0].(map[string]any)
	if qp["pid"] != 94.0 || qp["qpn"] != 18.0 || qp["state"] != "RTS" {
		t.Errorf("JSON has QP %v", qp)
	}
	if mr := back[0]["mrs"].([]any)[1].(map[string]any); mr["lkey"] != nil || mr["pid"] != nil {
		t.Errorf("JSON has MR %v, want neither keys nor process", mr)
	}
}

func TestOwner(t *testing.T) {
	if o := ownerOf(netlinkrdma.Owner{PID: uint32(os.Getpid())}); o.PID != uint32(os.Getpid()) || o.Comm == "" {
		t.Errorf("this process: %+v", o)
	}
	if o := ownerOf(netlinkrdma.Owner{PID: 1<<22 + 1}); o.PID != 1<<22+1 || o.Comm != "" {
		t.Errorf("no such process: %+v", o)
	}
	if d := driverOf([]netlinkrdma.DriverAttr{{Name: "sqid", Value: uint64(7)}}); d.Driver["sqid"] != uint64(7) {
		t.Errorf("driver's: %+v", d)
	}
}

func TestPrintStat(t *testing.T) {
	var out bytes.Buffer
	statReport{
		Device: "rxe0", Port: 1, Mode: "manual",
		Counters:   counterRows([]netlinkrdma.Counter{{Name: "sent_pkts", Value: 12}}),
		Disabled:   []string{"cc_rx_ce_pkts"},
		QPCounters: []qpCounterReport{{4, "manual", []uint32{17, 18}, []counterRow{{"rx_bytes", 7}}}},
	}.print(&out)
	const want = "rxe0/1 sent_pkts 12 cc_rx_ce_pkts disabled counter 4 (manual) of QPs [17 18] rx_bytes 7"
	if got := strings.Join(strings.Fields(out.String()), " "); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	out.Reset()
	statReport{Device: "siw0", Port: 1, Missing: []string{"no counters"}}.print(&out)
	if got := out.String(); got != "siw0/1\n\tno counters\n" {
		t.Errorf("%q", got)
	}
}

// TestStatMR: the text has the MRs that have counters, and says of a device when none has or why it cannot be read. Only
// if that is so of all is there an error.
func TestStatMR(t *testing.T) {
	counted := []netlinkrdma.MRCounters{{ID: 4}, {ID: 5, Counters: []netlinkrdma.Counter{{Name: "page_faults", Value: 12}}}}
	gone := errors.New("no such device")
	all := func(netlinkrdma.MRCounters) bool { return true }
	count := func(dev netlinkrdma.Device) ([]netlinkrdma.MRCounters, error) {
		switch dev.Name {
		case "mlx5_0":
			return counted, nil
		case "mlx5_1":
			return counted[:1], nil
		case "rxe0":
			return nil, &netlinkrdma.FeatureError{Feature: "counters"}
		}
		return nil, gone
	}
	for _, c := range []struct {
		devs   string
		want   func(netlinkrdma.MRCounters) bool
		text   string
		failed bool
	}{
		{"mlx5_0", all, "mlx5_0 mrn 5 page_faults 12", false},
		{"mlx5_1", all, "mlx5_1: none of 1 MRs has counters", false},
		{"mlx5_0", func(m netlinkrdma.MRCounters) bool { return m.ID == 4 }, "mlx5_0: none of 1 MRs has counters", false},
		{"rxe0", all, "rxe0 not shown: uverbs: counters not supported", false},
		{"siw0", all, "siw0 not shown: no such device", true},
		{"siw0 siw1", all, "siw0 not shown: no such device siw1 not shown: no such device", true},
		{"siw0 mlx5_0", all, "siw0 not shown: no such device mlx5_0 mrn 5 page_faults 12", false},
	} {
		var devs []netlinkrdma.Device
		for _, name := range strings.Fields(c.devs) {
			devs = append(devs, netlinkrdma.Device{Name: name})
		}
		reports, err := statMRs(devs, c.want, count)
		var out bytes.Buffer
		for _, r := range reports {
			if r.print(&out); r.MRs == nil {
				t.Errorf("%s: no list of MRs", r.Device)
			}
		}
		if got := strings.Join(strings.Fields(out.String()), " "); !strings.HasPrefix(got, c.text) || errors.Is(err, gone) != c.failed {
			t.Errorf("%s: %s, %v, want %s", c.devs, got, err, c.text)
		}
	}
}

// script is a monitor that has seen it all before.
type script []any

func (s *script) Next(ctx context.Context) (netlinkrdma.Event, error) {
	first := (*s)[0]
	*s = (*s)[1:]
	switch v := first.(type) {
	case netlinkrdma.Event:
		return v, nil
	case context.CancelFunc:
		v()
		return netlinkrdma.Event{}, ctx.Err()
	}
	return netlinkrdma.Event{}, first.(error)
}

// TestEvents: what a monitor reports is printed, and that it has lost something; the end of the context is no error.
func TestEvents(t *testing.T) {
	register := netlinkrdma.Event{Type: netlinkrdma.EventRegister, Device: "rxe0", Index: 3}
	attach := netlinkrdma.Event{Type: netlinkrdma.EventNetdevAttach, Device: "rxe0", Index: 3, Port: 1, Netdev: "eth0", NetdevIndex: 2}
	for _, tt := range []struct {
		json bool
		want string
	}{
		{false, "T  REGISTER        dev rxe0\nT  NETDEV_ATTACH   dev rxe0 port 1 netdev eth0\n"},
		{true, `{"time":"T","event":"REGISTER","device":"rxe0","device_index":3}` + "\n" +
			`{"time":"T","event":"NETDEV_ATTACH","device":"rxe0","device_index":3,"port":1,"netdev":"eth0","netdev_index":2}` + "\n"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		w := newWatch()
		go w.monitor(ctx, &script{register, netlinkrdma.ErrEventsLost, attach, cancel})
		var out, warn bytes.Buffer
		row, warning := eventPrinters(&out, &warn, tt.json)
		err := w.pass(ctx, row, warning)
		got := regexp.MustCompile(`(\d{4}-\d\d-\d\dT)?\d\d:\d\d:\d\d\.\d+(Z|[+-]\d\d:\d\d)?`).ReplaceAllString(out.String(), "T")
		if err != nil || got != tt.want || !strings.Contains(warn.String(), "lost") {
			t.Errorf("%v, output %q, want %q, warning %q", err, got, tt.want, warn.String())
		}
	}
}

// TestEventsSoft: the asynchronous events of a software device are shown, with its name, and are missing as long as it
// cannot be opened.
func TestEventsSoft(t *testing.T) {
	dev, err := soft.New(soft.Options{Addr: netip.MustParseAddr("127.0.0.77"), Name: "events0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w := newWatch()
	counter := &eventCounter{watch: w}
	opens := w.open
	w.open = func(string) (*uverbs.Device, error) { return nil, errors.New("permission denied") }
	if err := w.devices(ctx); err != nil {
		t.Fatal(err)
	}
	<-w.warnings
	if err := counter.missing("events0"); err == nil || err.Error() != "permission denied" || counter.missing("events1") != nil || counter.missing("") != nil {
		t.Errorf("missing are %v, %v and %v", err, counter.missing("events1"), counter.missing(""))
	}
	w.open = opens
	if err := w.devices(ctx); err != nil {
		t.Fatal(err)
	}
	for counter.missing("events0") != nil {
		if ctx.Err() != nil {
			t.Fatal("the events of a device that is open are missing")
		}
		time.Sleep(time.Millisecond)
	}
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case row := <-w.rows:
		if row.Event != "DEVICE_FATAL" || row.Device != "events0" || row.DeviceIndex != nil {
			t.Errorf("event %+v", row)
		}
	case err := <-w.warnings:
		t.Error(err)
	case <-ctx.Done():
		t.Error("no event")
	}
	w.all.Wait()
}

// TestEventsAgain: a device that cannot be opened is tried again, and is reported once. One that hangs
// does not keep the others from being watched, nor the program from ending.
func TestEventsAgain(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	w := newWatch()
	refused := errors.New("permission denied")
	hang, tries := make(chan struct{}), map[string]int{}
	var mu sync.Mutex
	w.open = func(name string) (*uverbs.Device, error) {
		mu.Lock()
		tries[name]++
		n := tries[name]
		mu.Unlock()
		if name == "hangs" {
			<-hang
		}
		return nil, map[bool]error{true: refused, false: fmt.Errorf("try %d", n)}[n <= 2]
	}
	infos := []uverbs.DeviceInfo{{Name: "hangs", InProcess: true}, {Name: "fails", InProcess: true}}
	var warned []error
	for i := range 4 {
		opening := w.begin(ctx, infos)
		if want := 2 - min(i, 1); len(opening) != want { // the one that hangs is not tried twice
			t.Fatalf("round %d: %d devices are opened, want %d", i, len(opening), want)
		}
		<-opening[len(opening)-1]
		for failed := false; !failed; {
			select {
			case err := <-w.warnings:
				warned = append(warned, err)
			case <-time.After(time.Millisecond):
			}
			w.mu.Lock()
			failed = w.watched["fails"].stop == nil
			w.mu.Unlock()
		}
	}
	if w.missing("fails") == nil || w.missing("hangs") != nil {
		t.Errorf("missing are %v and %v", w.missing("fails"), w.missing("hangs"))
	}
	for len(warned) < 3 { // the first two tries have the same error
		warned = append(warned, <-w.warnings)
	}
	for i, want := range []string{"fails are missing: permission denied", "try 3", "try 4"} {
		if !strings.Contains(warned[i].Error(), want) {
			t.Errorf("warning %d is %q, want %q", i, warned[i], want)
		}
	}
	w.begin(ctx, infos[:1])
	if w.watched["fails"] != nil {
		t.Error("a device that is gone is still watched")
	}
	cancel()
	w.all.Wait() // though an open hangs
	close(hang)
}
