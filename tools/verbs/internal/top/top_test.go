package top

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/tools/internal/proc"
	"github.com/goverbs/goverbs/tools/verbs/internal/terminal"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

var update = flag.Bool("update", false, "write testdata/*.screen anew")

// fleet is a record of three ports of ConnectX cards, one reading a second.
const fleet = "testdata/fleet.json"

// replay returns a model after n readings of the record.
func replay(t *testing.T, n int) (*Model, *Record) {
	t.Helper()
	text, err := os.ReadFile(fleet)
	if err != nil {
		t.Fatal(err)
	}
	r := NewRecord(fleet, bytes.NewReader(text))
	m := &Model{Replay: true, Interval: time.Second}
	step(t, m, r, n)
	return m, r
}

// step adds readings of a record.
func step(t *testing.T, m *Model, r *Record, n int) {
	t.Helper()
	for range n {
		v, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		m.Next(v)
	}
}

// press presses keys, separated by spaces.
func press(m *Model, keys string) {
	for _, key := range strings.Fields(keys) {
		m.Key(key)
	}
}

// first returns the first words of the rows of a table.
func first(m *Model, id tableID, column int) string {
	var all []string
	for _, r := range m.rows(id) {
		all = append(all, strings.Fields(r.cells[column].text + " -")[0])
	}
	return strings.Join(all, " ")
}

// TestScreens compares screens of several sizes, with and without colours, with those in testdata, whose escape
// characters are written as ^[.
func TestScreens(t *testing.T) {
	for _, c := range []struct {
		name, keys    string
		readings      int
		width, height int
		colours       bool
	}{
		{"80x24", "", 36, 80, 24, false},
		{"80x24-colours", "", 36, 80, 24, true},
		{"120x40", "tab tab down enter", 36, 120, 40, false},
		{"120x40-colours", "tab tab down enter", 36, 120, 40, true},
		{"port", "down enter", 36, 80, 24, false},
		{"qp", "tab tab enter down down down down down enter", 21, 80, 24, false},
		{"help", "?", 36, 80, 24, false},
		{"narrow", "tab tab", 36, 34, 12, false},
		{"first", "", 1, 80, 24, false},
		{"once", "", 36, 80, 0, false},
	} {
		m, r := replay(t, c.readings)
		press(m, c.keys)
		if c.name == "qp" {
			step(t, m, r, 10) // to its next reading
		}
		x := terminal.Text{Colours: c.colours}
		for _, l := range m.Render(c.width, c.height) {
			l.Paint(&x)
			fmt.Fprintln(&x)
		}
		got := strings.ReplaceAll(string(x.Take()), "\x1b", "^[")
		file := filepath.Join("testdata", c.name+".screen")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// TestSizes: on a screen of any size all lines have its width, and there are as many as it has; and nothing of a
// record reaches the terminal as a control character.
func TestSizes(t *testing.T) {
	for _, keys := range []string{"", "enter", "tab tab enter", "tab tab enter down enter", "?", "/ x", "/ l x 5 _ 1 enter"} {
		m, _ := replay(t, 25)
		press(m, keys)
		for width := MinWidth; width < 180; width += 3 {
			for height := MinHeight; height < 50; height++ {
				lines := m.Render(width, height)
				if len(lines) != height {
					t.Fatalf("%q: %d lines on %dx%d", keys, len(lines), width, height)
				}
				for _, l := range lines {
					var text string
					for _, c := range l {
						text += c.text
					}
					if n := utf8.RuneCountInString(text); n > width || strings.ContainsAny(text, "\x1b\n中") {
						t.Fatalf("%q: a line of %d columns on %dx%d: %q", keys, n, width, height, text)
					}
				}
			}
		}
	}
}

// TestState: rates are for the time between readings, data of the specification is in words, and changes have
// their kind, growth and total.
func TestState(t *testing.T) {
	reading := func(elapsed int64, state string, counters ...Counter) *Reading {
		return &Reading{Time: time.Unix(elapsed, 0), Elapsed: elapsed * 1e6, Ports: []Port{{Device: "a", Port: 1, State: state, Rate: 100, Counters: counters}}}
	}
	var s State
	s.Add(reading(0, "ACTIVE", Counter{"port_rcv_data", 100}, Counter{"sent_pkts", 10}, Counter{"rnr_nak_retry_err", 5}, Counter{"np_cnp_sent", 1}))
	if p := s.Ports[0]; p.RxBytes != nil || len(s.Changes) != 0 {
		t.Errorf("after one reading the rate is %v, and %d counters have changed", *p.RxBytes, len(s.Changes))
	}
	s.Add(reading(2, "DOWN", Counter{"port_rcv_data", 150}, Counter{"sent_pkts", 30}, Counter{"rnr_nak_retry_err", 12}, Counter{"np_cnp_sent", 4}))
	p := s.Ports[0]
	if p.RxBytes == nil || *p.RxBytes != 100 || p.TxPackets == nil || *p.TxPackets != 10 || p.TxBytes != nil || p.RxPackets != nil {
		t.Errorf("the rates are %v, %v, %v, %v; want 100 and unknown, unknown and 10", p.RxBytes, p.TxBytes, p.RxPackets, p.TxPackets)
	}
	s.Add(reading(3, "DOWN", Counter{"port_rcv_data", 20}, Counter{"sent_pkts", 30}, Counter{"rnr_nak_retry_err", 13}, Counter{"np_cnp_sent", 0}))
	if p.RxBytes != nil || *p.TxPackets != 0 {
		t.Errorf("after a counter was reset the rates are %v and %v, want unknown and 0", p.RxBytes, *p.TxPackets)
	}
	s.Add(&Reading{Time: time.Unix(4, 0), Elapsed: 4e6})
	got := map[string]Change{}
	for _, c := range s.Changes {
		got[c.Name] = *c
	}
	if diff := cmp.Diff(map[string]Change{
		"rnr_nak_retry_err": {"a", 1, KindError, "rnr_nak_retry_err", "", 0, 8, time.Unix(3, 0)},
		"np_cnp_sent":       {"a", 1, KindCongestion, "np_cnp_sent", "", 0, 3, time.Unix(2, 0)},
		"state":             {"a", 1, KindLink, "state", "ACTIVE -> DOWN", 0, 1, time.Unix(2, 0)},
		"device":            {"a", 1, KindLink, "device", "disappeared", 1, 1, time.Unix(4, 0)},
	}, got); diff != "" {
		t.Errorf("the changes (-want +got):\n%s", diff)
	}
	if s.Changes[0].Name != "device" || p.errors != 8 {
		t.Errorf("the first change is %s, and the port has %d errors; want device and 8", s.Changes[0].Name, p.errors)
	}
	s.Forget()
	if len(s.Changes) != 0 || !s.Since.Equal(time.Unix(4, 0)) {
		t.Errorf("after Forget there are %d changes since %v", len(s.Changes), s.Since)
	}
	s = State{}
	for elapsed := range int64(3) { // the latest changes are kept, and no others are made
		var counters []Counter
		for i := range 3 * maxChanges {
			v := uint64(0)
			if first := i/maxChanges == 0; elapsed == 2 && !first || elapsed == 1 && first {
				v = 1
			}
			counters = append(counters, Counter{fmt.Sprintf("error%d", i), v})
		}
		s.Add(reading(elapsed, "ACTIVE", counters...))
	}
	if n := len(s.Changes); n != maxChanges || s.Changes[0].Name != "error4096" || s.Changes[n-1].Name != "error8191" || len(s.known) != 2*maxChanges {
		t.Errorf("there are %d changes, %d in between; want %d, %d", n, len(s.known), maxChanges, 2*maxChanges)
	}
}

// TestModel: keys sort, reverse, filter, select, open and close; the selection stays on its row when the order changes.
func TestModel(t *testing.T) {
	m, _ := replay(t, 36)
	for _, c := range []struct {
		keys   string
		table  tableID
		column int
		want   string
	}{
		{"", tablePorts, 0, "mlx5_0/1 mlx5_1/1 mlx5_2/1"},
		{"r", tablePorts, 0, "mlx5_2/1 mlx5_1/1 mlx5_0/1"},
		{"r s s s s s", tablePorts, 0, "mlx5_1/1 mlx5_0/1 mlx5_2/1"}, // errors
		{"s", tablePorts, 0, "mlx5_0/1 mlx5_1/1 mlx5_2/1"},
		{"/ P 1 S enter", tablePorts, 0, "mlx5_1/1"},
		{"", tableOwners, 0, " "},
		{"esc", tableOwners, 0, "999 4711 - -"},
		{"/ a b a b enter", tableOwners, 0, "4711"},
		{"/ backspace backspace backspace backspace enter tab tab s", tableOwners, 0, "4711 999 - -"}, // by memory
		{"s", tableOwners, 0, "- - 999 4711"},
		{"s", tableOwners, 1, "(its [ib_core] ceph-osd trainer?[31m?"},
	} {
		press(m, c.keys)
		if got := first(m, c.table, c.column); got != strings.TrimSpace(c.want) {
			t.Errorf("after %q the table is %q, want %q", c.keys, got, c.want)
		}
	}
	m, _ = replay(t, 10)
	press(m, "enter") // the page of the first port
	before := m.tables
	if press(m, "? s r / tab x down"); !m.help || m.typing || m.focus != tablePorts || m.tables != before {
		t.Errorf("keys on the help change the page that it hides: %+v", m.tables)
	}
	if press(m, "esc"); m.help || m.page != pagePort {
		t.Errorf("after the help esc shows page %d, want that of the port", m.page)
	}
	m, r := replay(t, 10)
	press(m, "tab tab down enter down down") // a QP of the trainer
	if got := m.selected(); got.qp == nil || got.qp.Num != 101 {
		t.Fatalf("the selected row is %+v, want QP 101", got)
	}
	press(m, "r")
	if got := m.selected(); got.qp == nil || got.qp.Num != 101 {
		t.Errorf("in the reverse order the selected row is %+v, want QP 101", got)
	}
	press(m, "left")
	if got := m.selected(); got.qp != nil || got.owner != "4711 " {
		t.Errorf("after left the selected row is %+v, want process 4711", got)
	}
	press(m, "r enter down down down down down down enter") // its last QP, which is destroyed later
	if m.page != pageQP || m.followed().Num != 105 {
		t.Fatalf("enter opens page %d, want that of QP 105", m.page)
	}
	step(t, m, r, 11)
	if q := m.followed(); q.Gone || (q.SQPSN-m.qps[0].SQPSN)%(1<<24) != 500 {
		t.Errorf("the QP is %+v after %+v, want a PSN that is 500 later", q, m.qps[0])
	}
	step(t, m, r, 10)
	if !m.followed().Gone {
		t.Errorf("the QP is %+v, want none", m.followed())
	}
	press(m, "q")
	if !m.Quit {
		t.Error("q does not quit")
	}
}

// TestHeights: tables share the screen, the one with the focus gets what is left, and what does not fit is not read.
func TestHeights(t *testing.T) {
	m, _ := replay(t, 36)
	var rows [tableCounters][]row
	for id, n := range [tableCounters]int{20, 2, 30} {
		rows[id] = make([]row, n)
	}
	for _, c := range []struct {
		focus tableID
		room  int
		want  [tableCounters]int
	}{
		{tablePorts, 21, [...]int{11, 3, 7}}, {tableOwners, 21, [...]int{7, 3, 11}}, {tableChanges, 21, [...]int{11, 3, 7}},
		{tablePorts, 100, [...]int{21, 3, 31}}, {tablePorts, 5, [...]int{5, 0, 0}}, {tableOwners, 2, [...]int{0, 0, 2}},
	} {
		m.focus = c.focus
		if got := m.heights(&rows, c.room); got != c.want {
			t.Errorf("the heights in %d lines with focus %d are %v, want %v", c.room, c.focus, got, c.want)
		}
		if want := c.room == 5; m.Wants().Objects == want {
			t.Errorf("in %d lines with focus %d objects are read: %v", c.room, c.focus, !want)
		}
	}
}

// TestRecordErrors: what is wrong with a record has its line and field.
func TestRecordErrors(t *testing.T) {
	const start = `{"time":"2026-11-30T10:00:00Z",`
	good := start + `"elapsed_us":5,"ports":[]}` + "\n"
	for _, c := range []struct{ text, want string }{
		{"", "r.json is empty; verbs top --record writes a record"},
		{good + "{\n", "r.json: line 2: it ends before the JSON value does"},
		{"{", "r.json: line 1: it ends before the JSON value does"},
		{"{}\n", "r.json: line 1: it is no reading: time is missing"},
		{`{"time":"2026-11-30T10:00:00Z"}`, "r.json: line 1: it is no reading: ports is missing"},
		{good + good, "r.json: line 2: elapsed_us is 5, allowed: 6 to 4611686018427"},
		{`{"elapsed_us":"x"}`, "r.json: line 1: elapsed_us is a string, allowed: a whole number"},
		{start + `"elapsed_us":-1,"ports":[]}`, "r.json: line 1: elapsed_us is -1, allowed: 0 to 4611686018427"},
		{start + `"ports":[{"port":1}]}`, `r.json: line 1: ports[0] is ""/1, allowed: a name and a port of 1 or more`},
		{start + `"ports":[{"device":"a"}]}`, `r.json: line 1: ports[0] is "a"/0, allowed: a name and a port of 1 or more`},
		{start + `"ports":[{"device":"a","port":1},{"device":"a","port":1}]}`, `r.json: line 1: ports[1] is "a"/1, which is there already`},
		{start + `"ports":[{"device":"a","port":1,"rate_gbps":-4}]}`, "r.json: line 1: ports[0].rate_gbps is -4, allowed: 0 to 1e9"},
		{`{"ports":[{"device":"a","port":-1}]}`, "r.json: line 1: ports.port is -1, allowed: a whole number from 0 to 4294967295"},
		{start + `"ports":[{}` + strings.Repeat(",{}", maxPorts) + `]}`, "r.json: line 1: ports has 4097 entries, allowed: up to 4096"},
		{
			start + `"ports":[{"device":"a","port":1,"counters":[{}` + strings.Repeat(",{}", maxCounters) + `]}]}`,
			"r.json: line 1: ports[0].counters has 4097 entries, allowed: up to 4096",
		},
		{start + `"ports":[],"objects":{"owners":[{"pid":4},{"pid":4}]}}`, `objects.owners[1] is process 4 or module "", which is there already`},
		{`{"time":"yesterday"}`, `r.json: line 1: "yesterday" is no time`},
	} {
		r := NewRecord("r.json", strings.NewReader(c.text))
		var err error
		for err == nil {
			_, err = r.Next()
		}
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.text, err, c.want)
		}
	}
	broken := errors.New("broken") // is not the end of the file
	r := NewRecord("r.json", io.MultiReader(strings.NewReader(good+"{"), iotest.ErrReader(broken)))
	_, err := r.Next()
	testenv.Must(t, err)
	if _, err := r.Next(); !errors.Is(err, broken) {
		t.Errorf("error is %v, want %v", err, broken)
	}
}

// TestNarrowPorts: a name that is longer than its column keeps the number of the port, and numbers stay longer than
// what is drawn of them.
func TestNarrowPorts(t *testing.T) {
	text := `{"time":"2026-11-30T10:00:00Z","elapsed_us":5,"ports":[{"device":"bnxt_re_in_rack_seven","port":1},{"device":"bnxt_re_in_rack_seven","port":12}]}`
	v, err := NewRecord("r", strings.NewReader(text)).Next()
	testenv.Must(t, err)
	m := &Model{Replay: true}
	m.Next(v)
	lines := m.Render(80, 24)
	for i, want := range []string{">bnxt_re_in_ra~/1 ", " bnxt_re_in_r~/12 "} {
		var text string
		for _, c := range lines[2+i] {
			text += c.text
		}
		if !strings.HasPrefix(text, want) {
			t.Errorf("line %d is %q, want %q first", 2+i, text, want)
		}
	}
	if title := m.Render(76, 24)[1][0].text; !strings.Contains(title, " RATE ") || !strings.HasSuffix(strings.TrimSpace(title), "ERRORS") {
		t.Errorf("the columns are %q, want the rate and no drawing", title)
	}
}

// FuzzRecord: a record from anywhere is shown, or refused.
func FuzzRecord(f *testing.F) {
	text, err := os.ReadFile(fleet)
	if err != nil {
		f.Fatal(err)
	}
	lines := strings.SplitAfter(string(text), "\n")
	f.Add(lines[0]+lines[1], uint8(0))
	f.Add(`{"time":"2026-11-30T10:00:00Z","elapsed_us":0,"ports":[],"qp":{"device":"a"},"objects":{"owners":[{}],"qps":[{"qpn":4}]}}`, uint8(2))
	f.Fuzz(func(t *testing.T, text string, keys uint8) {
		r := NewRecord("r", strings.NewReader(text))
		m := &Model{Replay: true, Interval: time.Second}
		for {
			v, err := r.Next()
			if err != nil {
				break
			}
			m.Next(v)
			for range keys % 3 {
				m.Key("tab")
			}
			press(m, "enter down enter")
			m.Render(60, 20)
			m.Report()
			if keys&16 != 0 {
				press(m, "esc")
			}
		}
	})
}

// fakeHost is a host with two devices, of which the first has QPs of a process and one of the kernel.
func fakeHost(qps int) (*Reader, *[]string) {
	var asked []string
	now := time.Unix(1000, 0)
	r := &Reader{host: host{
		now: func() time.Time { return now },
		devices: func() ([]netlinkrdma.Device, error) {
			now = now.Add(time.Second)
			return []netlinkrdma.Device{{Name: "rxe0", Index: 3, Ports: 1}, {Name: "rxe1", Index: 4, Ports: 1}}, nil
		},
		ports: func(d netlinkrdma.Device) ([]netlinkrdma.Port, error) {
			if d.Name == "rxe1" {
				return nil, fs.ErrNotExist // removed meanwhile
			}
			return []netlinkrdma.Port{{Num: 1, State: ib.PortActive, Netdev: "eth0"}}, nil
		},
		counters: func(netlinkrdma.Device, uint32) ([]netlinkrdma.Counter, error) {
			return []netlinkrdma.Counter{{Name: "sent_pkts", Value: 7}}, nil
		},
		standard: func(netlinkrdma.Device, uint32) ([]netlinkrdma.Counter, error) {
			return nil, &netlinkrdma.FeatureError{Feature: "standard counters"}
		},
		qps: func(d netlinkrdma.Device) (all []netlinkrdma.QP, _ error) {
			asked = append(asked, "QPs of "+d.Name)
			now = now.Add(10 * time.Millisecond)
			if d.Name == "rxe0" {
				all = append(all, netlinkrdma.QP{Num: 1, Type: ib.DriverQP, Subtype: "REG_UMR", Owner: netlinkrdma.Owner{Kernel: "ib_core"}})
				for i := range uint32(qps) {
					all = append(all, netlinkrdma.QP{Num: 17 + i, Port: 1, Type: ib.RC, State: ib.QPRTS, RemoteNum: 99, Owner: netlinkrdma.Owner{PID: 42}})
				}
			}
			return all, nil
		},
		mrs: func(d netlinkrdma.Device) ([]netlinkrdma.MR, error) {
			return []netlinkrdma.MR{{Length: 4096, Owner: netlinkrdma.Owner{PID: 42}}}, errors.New("cut off")
		},
		qp: func(_ netlinkrdma.Device, port, qpn uint32) (netlinkrdma.QP, error) {
			asked = append(asked, fmt.Sprintf("QP %d of port %d", qpn, port))
			if qpn != 17 {
				return netlinkrdma.QP{}, fs.ErrNotExist
			}
			return netlinkrdma.QP{Num: 17, Port: 1, Type: ib.RC, State: ib.QPErr}, nil
		},
		bound: func(netlinkrdma.Device) ([]netlinkrdma.QPCounter, error) {
			return []netlinkrdma.QPCounter{{QPs: []uint32{17, 18}, Counters: []netlinkrdma.Counter{{Name: "c", Value: 5}}}}, nil
		},
		sysfs: fstest.MapFS{"class/infiniband/rxe0/ports/1/rate": {Data: []byte("2.5 Gb/sec (1X SDR)\n")}},
		proc: proc.New(fstest.MapFS{
			"42/status": {Data: []byte("Name:\tthread\nTgid:\t41\n")}, "41/comm": {Data: []byte("prog\n")},
			"41/cgroup": {Data: []byte("0::/docker-" + strings.Repeat("ab", 32) + ".scope\n")},
		}),
	}}
	return r, &asked
}

// TestReader: a reading has ports and objects with their owners. Objects are read if they are wanted, and not so often
// that it takes more than a part of the time.
func TestReader(t *testing.T) {
	r, asked := fakeHost(2)
	v, err := r.Read(Wants{Objects: true})
	if err != nil {
		t.Fatal(err)
	}
	container := strings.Repeat("ab", 32)
	qp := QP{"rxe0", 1, 17, 41, "", "RC", "RTS", 99, 0, 0}
	second := qp
	second.Num = 18
	want := &Reading{
		Time: time.Unix(1000, 0), Missing: []string{"MRs of rxe0: cut off", "MRs of rxe1: cut off"},
		Ports: []Port{{"rxe0", 3, 1, false, false, "ACTIVE", 2.5, "eth0", []Counter{{"sent_pkts", 7}}}},
		Objects: &Objects{
			Owners: []Owner{{0, "", "ib_core", "", 1, 0, 0}, {41, "prog", "", container, 2, 2, 8192}},
			QPs:    []QP{{"rxe0", 0, 1, 0, "ib_core", "REG_UMR", "RESET", 0, 0, 0}, qp, second},
		},
	}
	if diff := cmp.Diff(want, v); diff != "" {
		t.Errorf("the reading (-want +got):\n%s", diff)
	}
	*asked = nil
	for i := range 3 { // listing took 20 ms, so the next one comes after 4 s
		if v, err = r.Read(Wants{Objects: true}); err != nil || v.Objects != nil {
			t.Fatalf("after %d s the reading has objects %v, %v; want none", i+1, v.Objects, err)
		}
	}
	if v, err = r.Read(Wants{Objects: true}); err != nil || v.Objects == nil || len(*asked) != 2 {
		t.Errorf("after 4 s it has asked for %q (%v), want one list of each device", *asked, err)
	}
	*asked = nil
	if v, err = r.Read(Wants{QP: &qp}); err != nil || v.Objects != nil || !slices.Equal(*asked, []string{"QP 17 of port 1"}) {
		t.Errorf("to follow a QP it asks for %q (%v), want only that QP", *asked, err)
	}
	qp.State = "ERR"
	qp.Remote = 0
	if diff := cmp.Diff(&QPDetail{QP: qp, Counters: []Counter{{"c", 5}}, Others: 1}, v.QP); diff != "" {
		t.Errorf("the QP (-want +got):\n%s", diff)
	}
	second.Num = 300
	if v, err = r.Read(Wants{QP: &second}); err != nil || v.QP == nil || !v.QP.Gone {
		t.Errorf("a QP that was destroyed is %+v, %v", v.QP, err)
	}
	r.host.devices = func() ([]netlinkrdma.Device, error) { return nil, io.ErrUnexpectedEOF }
	if v, err = r.Read(Wants{}); err != nil || !slices.Equal(v.Missing, []string{"devices: unexpected EOF"}) {
		t.Errorf("when devices cannot be listed any more, the reading is %+v, %v", v, err)
	}
	r.begun = time.Time{}
	if _, err = r.Read(Wants{}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("when devices cannot be listed, the first reading fails with %v", err)
	}
}

// TestStale: ports that cannot be listed once are as before, without a change, and their rates go on.
func TestStale(t *testing.T) {
	r, _ := fakeHost(0)
	good := r.host
	var sent uint64
	r.host.counters = func(netlinkrdma.Device, uint32) ([]netlinkrdma.Counter, error) {
		sent += 100
		return []netlinkrdma.Counter{{Name: "sent_pkts", Value: sent}}, nil
	}
	var s State
	next := func(missing ...string) *PortState {
		t.Helper()
		v, err := r.Read(Wants{Objects: true, Now: true})
		if err != nil {
			t.Fatal(err)
		}
		s.Add(v)
		var got []string
		for _, text := range v.Missing {
			if !strings.HasPrefix(text, "MRs of ") {
				got = append(got, text)
			}
		}
		if !slices.Equal(got, missing) || len(s.Ports) != 1 || len(s.Changes) != 0 || len(s.Objects.Owners) != 2 {
			t.Fatalf("missing is %q, want %q, with %d ports, %d changes and %d owners", got, missing, len(s.Ports), len(s.Changes), len(s.Objects.Owners))
		}
		return s.Ports[0]
	}
	next()
	history := next().history
	r.host.devices = func() ([]netlinkrdma.Device, error) {
		_, err := good.devices()
		return nil, errors.Join(err, io.ErrUnexpectedEOF)
	}
	if p := next("devices: unexpected EOF"); p.TxPackets == nil || p.Stale {
		t.Errorf("without a list of devices the port is %+v", p.Port)
	}
	r.host.devices = good.devices
	rate := *s.Ports[0].TxPackets
	r.host.ports = func(d netlinkrdma.Device) ([]netlinkrdma.Port, error) {
		if d.Name == "rxe1" {
			return nil, fs.ErrNotExist
		}
		return nil, io.ErrUnexpectedEOF
	}
	if p := next("rxe0: unexpected EOF"); !p.Stale || p.TxPackets != nil || p.State != "ACTIVE" {
		t.Errorf("when ports cannot be listed, the port is %+v with the rate %v", p.Port, p.TxPackets)
	}
	r.host.ports = good.ports
	p := next()
	if p.Stale || p.TxPackets == nil || *p.TxPackets != rate/2 || p.history[historyLength-4] != history[historyLength-1] {
		t.Errorf("after that the port is %+v with the rate %v; want %v", p.Port, p.TxPackets, rate/2)
	}
}

// TestSoftDevice: a software device of this process is among the ports.
func TestSoftDevice(t *testing.T) {
	r, _ := fakeHost(0)
	r.soft = []softDevice{fakeSoft{}}
	v, err := r.Read(Wants{})
	if err != nil {
		t.Fatal(err)
	}
	want := Port{"soft0", 0, 1, true, false, "ACTIVE", 0, "", []Counter{{"rcvd_bytes", 9}}}
	if diff := cmp.Diff(want, v.Ports[len(v.Ports)-1]); diff != "" {
		t.Errorf("the last port (-want +got):\n%s", diff)
	}
}

type fakeSoft struct{}

func (fakeSoft) Info() uverbs.DeviceInfo { return uverbs.DeviceInfo{Name: "soft0", Ports: 1} }
func (fakeSoft) Port(uint8) (uverbs.PortAttr, error) {
	return uverbs.PortAttr{State: ib.PortActive}, nil
}
func (fakeSoft) PortCounters(uint8) ([]netlinkrdma.Counter, error) {
	return []netlinkrdma.Counter{{Name: "rcvd_bytes", Value: 9}}, nil
}

// TestBlocked: while the kernel does not answer, the screen says so, and the program ends with a key or its context; an
// answer that is late is shown.
func TestBlocked(t *testing.T) {
	t.Setenv("TERM", "xterm")
	master, slave := testenv.PTY(t, os.O_RDWR)
	defer func(old *os.File) { os.Stdin = old }(os.Stdin)
	os.Stdin = slave
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0) // no terminal
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	shown := make(chan string, 100)
	go func() {
		b := make([]byte, 1<<16)
		for {
			n, err := master.Read(b)
			if err != nil {
				return
			}
			shown <- string(b[:n])
		}
	}()
	for _, c := range []struct {
		out *os.File
		end func(cancel func())
	}{
		{slave, func(func()) { master.WriteString("q") }},
		{slave, func(cancel func()) { cancel() }},
		{null, func(cancel func()) { cancel() }},
	} {
		r, _ := fakeHost(0)
		devices, asked, goes := r.host.devices, make(chan bool), make(chan bool)
		r.host.devices = func() ([]netlinkrdma.Device, error) {
			asked <- true
			<-goes
			return devices()
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- Run(ctx, Options{Interval: time.Millisecond, Reader: r}, terminal.New(c.out)) }()
		<-asked
		if c.out == slave {
			for text := ""; !strings.Contains(text, "waiting for a reading since "); text += <-shown {
			}
			goes <- true
			for text := ""; !strings.Contains(text, "rxe0/1"); text += <-shown {
			}
			<-asked
		}
		c.end(cancel)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		goes <- true
	}
}

// TestNumbers: numbers fit into their columns.
func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 999.4: "999", 999.6: "1.00k", 9994: "9.99k", 9996: "10.0k", 99960: "100k", 999600: "1.00M", 1.8e19: "18.0E"} {
		if got := short(v); got != want {
			t.Errorf("%g is %q, want %q", v, got, want)
		}
	}
	for n, want := range map[uint64]string{0: "0 B", 999: "999 B", 4096: "4.00 KiB", 80 << 30: "80.0 GiB", 1<<64 - 1: "16.0 EiB", 1000 << 10: "0.98 MiB"} {
		if got := binary(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}

// BenchmarkRefresh measures a reading of 1,000 QPs without the kernel's part, what changed, and the screen of 80x24 with all
// QPs open.
func BenchmarkRefresh(b *testing.B) {
	r, _ := fakeHost(1000)
	m := &Model{Interval: time.Second}
	var x terminal.Text
	refresh := func() {
		v, err := r.Read(Wants{Objects: true, Now: true})
		if err != nil {
			b.Fatal(err)
		}
		m.Next(v)
		for _, l := range m.Render(80, 24) {
			l.Paint(&x)
			x.Take()
		}
	}
	refresh()
	press(m, "tab tab enter")
	if n := len(m.rows(tableOwners)); n != 1002 {
		b.Fatalf("%d rows, want 1002", n)
	}
	b.ReportAllocs()
	for b.Loop() {
		refresh()
	}
}

// TestReportLists: a list without entries is empty in JSON, not null.
func TestReportLists(t *testing.T) {
	text, err := json.Marshal((&State{Last: &Reading{}}).Report())
	if want := `"ports":[],"changes":[],"owners":[]`; err != nil || !strings.Contains(string(text), want) {
		t.Errorf("%s, %v, want %s", text, err, want)
	}
}
