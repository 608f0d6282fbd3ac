package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
)

// query returns the query of "verbs res" with these filters.
func query(t *testing.T, kinds string, filters ...string) *resQuery {
	t.Helper()
	q, err := newResQuery(kinds, filters, false, false)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// TestResRows: a list that the kernel does not have is missing, the first error ends all, and what was not
// asked for is not listed.
func TestResRows(t *testing.T) {
	list := func(all []uint32, err error) func(netlinkrdma.Device) ([]uint32, error) {
		return func(netlinkrdma.Device) ([]uint32, error) { return all, err }
	}
	row := func(n uint32) contextRow { return contextRow{ID: 2 * n} }
	c := &resCollector{q: query(t, "")}
	if got := rows(c, "ctx", list([]uint32{1, 2}, nil), row); len(got) != 2 || got[1].ID != 4 || c.err != nil {
		t.Errorf("%v, %v", got, c.err)
	}
	c.q = query(t, "", "ctxn=4")
	if got := rows(c, "ctx", list([]uint32{1, 2, 3}, nil), row); len(got) != 1 || got[0].ID != 4 {
		t.Errorf("of 2, 4 and 6 the filter leaves %v", got)
	}
	if got := rows(c, "ctx", list([]uint32{1}, nil), row); got == nil || len(got) != 0 {
		t.Errorf("where none matches: %v, want an empty list", got)
	}
	c.q = query(t, "pd")
	if got := rows(c, "ctx", list([]uint32{1}, errors.New("listed")), row); got != nil || c.err != nil {
		t.Errorf("a kind that was not asked for: %v, %v", got, c.err)
	}
	c.q = query(t, "")
	old := &netlinkrdma.FeatureError{Feature: "list of SRQs", Since: netlinkrdma.Version{5, 13}}
	if got := rows(c, "ctx", list(nil, old), row); got != nil || c.err != nil || len(c.Missing) != 1 {
		t.Errorf("a list that is not there: %v, %v, %q", got, c.err, c.Missing)
	}
	if rows(c, "ctx", list(nil, fs.ErrNotExist), row); !errors.Is(c.err, fs.ErrNotExist) {
		t.Errorf("error became %v", c.err)
	}
	if got := rows(c, "ctx", list([]uint32{1}, nil), row); got != nil || !errors.Is(c.err, fs.ErrNotExist) {
		t.Errorf("after an error: %v, %v", got, c.err)
	}
}

// TestResFilter: each key of each kind chooses the object with its value, and no other.
func TestResFilter(t *testing.T) {
	key := uint32(0x308)
	process := ownerRow{PID: 94, Comm: "prog"}
	for kind, c := range map[string]struct {
		row     any
		filters string
	}{
		"ctx": {contextRow{3, process}, "ctxn=3 pid=94 comm=prog"},
		"pd": {pdRow{4, 1 << 40, 3, &key, &key, process},
			"pdn=4 users=0x10000000000 ctxn=3 comm=prog pid=94 local_dma_lkey=0x308 unsafe_global_rkey=776"},
		"mr": {mrRow{ID: 5, Length: 4096, LKey: &key, RKey: &key, PD: 4, ownerRow: process}, "mrn=5 mrlen=4096 lkey=0x308 rkey=776 pdn=4 pid=94 comm=prog"},
		"cq": {cqRow{ID: 6, Users: 2, AdaptiveModeration: true, PollContext: "SOFTIRQ", Context: 3, ownerRow: process},
			"cqn=6 users=2 adaptive-moderation=true poll-ctx=softirq ctxn=3 pid=94 comm=prog"},
		"srq": {srqRow{ID: 7, Type: "XRC", PD: 4, CQ: 6, QPs: qpRanges{{17, 17}, {20, 23}}, ownerRow: ownerRow{PID: 5, Kernel: "ib_core"}},
			"srqn=7 type=xrc pdn=4 cqn=6 lqpn=17 lqpn=22 lqpn=18-20 lqpn=5,23 pid=5 comm=ib_core"},
		"qp": {qpRow{18, 1, "RC", "DCI", "RTS", 35, 7, 8, "ARMED", 4, process, driverRow{}, rawRow{}}, "lqpn=18 lqpn=5,18 lqpn=10-20 rqpn=35 port=1 " +
			"type=RC type=UD,RC subtype=DCI state=rts state=INIT,RTS sq-psn=8 rq-psn=7 path-mig-state=armed pdn=4 pid=94 comm=prog"},
		"cm_id": {cmIDRow{ID: 8, QPNum: 18, Port: 1, QPType: "RC", State: "CONNECT", PortSpace: "TCP", Local: "[fe80::1]:7174", srcAddr: "fe80::1", srcPort: 7174,
			Remote: "10.1.0.2:9999", dstAddr: "10.1.0.2", dstPort: 9999, ownerRow: process}, "cm-idn=8 lqpn=18 port=1 qp-type=rc state=CONNECT ps=tcp src-addr=fe80::1 src-addr=fe80:0::1%3 src-port=7174 " +
			"dst-addr=10.1.0.1,10.1.0.2 dst-port=9999 pid=94 comm=prog"},
	} {
		tried := map[string]bool{}
		zero := reflect.Zero(reflect.TypeOf(c.row)).Interface()
		for text := range strings.FieldsSeq(c.filters) {
			q := query(t, kind, text)
			tried[q.filters[0].key] = true
			if !q.keep(c.row) {
				t.Errorf("%s with %s is left out", kind, text)
			}
			if q.keep(zero) {
				t.Errorf("an empty %s matches %s", kind, text)
			}
		}
		for _, k := range keysOfKind(kind) {
			if !tried[k] {
				t.Errorf("%s: the key %s was not tried", kind, k)
			}
		}
	}
	both := query(t, "", "lqpn=18", "state=RTS")
	if want := []string{"cm_id", "qp"}; !slices.Equal(both.kinds, want) {
		t.Errorf("kinds with a number and a state are %q, want %q", both.kinds, want)
	}
	for text, want := range map[string][2]uint64{"lqpn=010": {10, 10}, "lqpn=0x010": {16, 16}, "lqpn=9-0xb": {9, 11}, "mrlen=0xffffffffffffffff": {1<<64 - 1, 1<<64 - 1}} {
		if got := query(t, "", text).filters[0].ranges[0]; got != want {
			t.Errorf("%s is the range %d, want %d", text, got, want)
		}
	}
	for _, other := range []string{"lqpn=19-20", "lqpn=5-17", "lqpn=17,19"} {
		if query(t, "", other).keep(qpRow{Num: 18}) {
			t.Errorf("QP 18 matches %s", other)
		}
	}
	if both.keep(qpRow{Num: 18, State: "INIT"}) || both.keep(qpRow{Num: 17, State: "RTS"}) || !both.keep(qpRow{Num: 18, State: "RTS"}) {
		t.Error("an object must match all filters")
	}
}

// TestResFilterZero: 0 chooses the objects whose number is 0, and none for which the kernel sends no number.
func TestResFilterZero(t *testing.T) {
	process, kernel := ownerRow{PID: 94, Comm: "prog"}, ownerRow{Kernel: "ib_core"}
	ended := ownerRow{}
	key := uint32(0)
	for _, tt := range []struct {
		row      any
		yes, not string
	}{
		{contextRow{0, process}, "ctxn=0", "pid=0"},
		{contextRow{0, ended}, "ctxn=0", "pid=0"},
		{pdRow{ownerRow: process}, "pdn=0 ctxn=0 users=0", "pid=0 local_dma_lkey=0 unsafe_global_rkey=0"},
		{pdRow{ownerRow: kernel}, "pdn=0 users=0", "ctxn=0 pid=0"},
		{mrRow{ownerRow: process, LKey: &key, RKey: &key}, "mrn=0 pdn=0 mrlen=0 lkey=0 rkey=0", "pid=0"},
		{mrRow{ownerRow: kernel}, "mrn=0 mrlen=0", "pdn=0 pid=0 lkey=0 rkey=0"},
		{cqRow{ownerRow: process}, "cqn=0 ctxn=0 adaptive-moderation=false", "pid=0"},
		{cqRow{ownerRow: kernel}, "cqn=0", "ctxn=0 pid=0"},
		{srqRow{Type: "BASIC", ownerRow: process}, "srqn=0 pdn=0", "cqn=0 lqpn=0 pid=0"},
		{srqRow{Type: "XRC", ownerRow: kernel}, "srqn=0 pdn=0 cqn=0", "pid=0"},
		{qpRow{Type: "RC", PathMig: "MIGRATED", ownerRow: process}, "lqpn=0 rqpn=0 rq-psn=0 sq-psn=0 pdn=0 path-mig-state=MIGRATED", "port=0 pid=0"},
		{qpRow{Type: "UC", PathMig: "MIGRATED", ownerRow: ended}, "rqpn=0 rq-psn=0 pdn=0 path-mig-state=MIGRATED", "port=0 pid=0"},
		{qpRow{Type: "XRC_TGT", PathMig: "MIGRATED", ownerRow: process}, "path-mig-state=MIGRATED", "rqpn=0 rq-psn=0"},
		{qpRow{Type: "UD", PathMig: "MIGRATED", ownerRow: process}, "sq-psn=0 pdn=0", "rqpn=0 rq-psn=0 path-mig-state=MIGRATED"},
		{qpRow{Type: "SMI", PathMig: "MIGRATED", ownerRow: kernel}, "lqpn=0 sq-psn=0", "pdn=0 pid=0 port=0 rqpn=0 rq-psn=0 path-mig-state=MIGRATED"},
		{cmIDRow{ownerRow: kernel}, "cm-idn=0", "lqpn=0 lqpn=0-16 port=0 src-port=0 dst-port=0 pid=0"},
		{cmIDRow{Remote: "0.0.0.0:0", Local: "0.0.0.0:0", ownerRow: process}, "src-port=0 dst-port=0", "lqpn=0-16"},
	} {
		for text := range strings.FieldsSeq(tt.yes) {
			if !query(t, "", text).keep(tt.row) {
				t.Errorf("%#v does not match %s", tt.row, text)
			}
		}
		for text := range strings.FieldsSeq(tt.not) {
			if query(t, "", text).keep(tt.row) {
				t.Errorf("%#v matches %s, which it does not have", tt.row, text)
			}
		}
	}
}

// TestResHidden: a filter for a key of memory says that the process may not see it.
func TestResHidden(t *testing.T) {
	key := uint32(5)
	mrs := func(all ...mrRow) func(netlinkrdma.Device) ([]mrRow, error) {
		return func(netlinkrdma.Device) ([]mrRow, error) { return all, nil }
	}
	pds := func(netlinkrdma.Device) ([]pdRow, error) {
		return []pdRow{{ownerRow: ownerRow{PID: 5}}, {ownerRow: ownerRow{Kernel: "ib_core"}}}, nil
	}
	same := func(r mrRow) mrRow { return r }
	for _, tt := range []struct {
		filter string
		want   []string
	}{
		{"lkey=5", []string{"MRs that a filter chooses by a key: these keys need CAP_NET_ADMIN"}},
		{"rkey=5", []string{"MRs that a filter chooses by a key: these keys need CAP_NET_ADMIN"}},
		{"local_dma_lkey=5", []string{"PDs that a filter chooses by a key: these keys need CAP_NET_ADMIN"}},
		{"pdn=0", nil},
	} {
		c := &resCollector{q: query(t, "", tt.filter)}
		rows(c, "mr", mrs(mrRow{}, mrRow{}), same)
		rows(c, "pd", pds, func(r pdRow) pdRow { return r })
		if !slices.Equal(c.Missing, tt.want) || c.err != nil {
			t.Errorf("%s without keys: missing %q, %v, want %q", tt.filter, c.Missing, c.err, tt.want)
		}
	}
	c := &resCollector{q: query(t, "", "lkey=6")}
	if got := rows(c, "mr", mrs(mrRow{LKey: &key, RKey: &key}), same); len(got) != 0 || c.Missing != nil {
		t.Errorf("an MR with another key: %v, missing %q", got, c.Missing)
	}
}

// TestResRefused: a wrong kind, key or value is named, with those that are right.
func TestResRefused(t *testing.T) {
	for args, want := range map[string]string{
		"res --kinds qps":                         `--kinds is "qps", allowed: cm_id, cq, ctx, mr, pd, qp, srq`,
		"res --filter lqpn":                       `--filter is "lqpn", allowed: KEY=VALUE[,VALUE...]`,
		"res --filter lqn=5":                      `the key of --filter is "lqn", allowed: adaptive-moderation, cm-idn, comm, cqn, ctxn, dst-addr, dst-port, lkey, local_dma_lkey, lqpn, `,
		"res --filter lqpn=x":                     `lqpn of --filter is "x", allowed: numbers from 0 to 16777215, also in hexadecimal with 0x, and ranges such as 5-9`,
		"res --filter lqpn=9-5":                   `lqpn of --filter is "9-5", allowed: numbers`,
		"res --filter lqpn=":                      `lqpn of --filter is "", allowed: numbers`,
		"res --filter state=RTX":                  `state of --filter is "RTX", allowed for cm_id, qp: RESET, INIT, RTR, RTS, SQD, SQE, ERR, IDLE, `,
		"res --filter type=":                      `type of --filter is "", allowed for qp, srq: SMI, GSI, RC, UC, UD, `,
		"res --filter lqpn=0x1000000":             `lqpn of --filter is "0x1000000", allowed: numbers from 0 to 16777215,`,
		"res --filter rq-psn=16777216":            `rq-psn of --filter is "16777216", allowed: numbers from 0 to 16777215,`,
		"res --filter src-port=1-65536":           `src-port of --filter is "1-65536", allowed: numbers from 0 to 65535,`,
		"res --filter pid=4294967296":             `pid of --filter is "4294967296", allowed: numbers from 0 to 4294967295,`,
		"res --filter lkey=0x100000000":           `lkey of --filter is "0x100000000", allowed: numbers from 0 to 4294967295,`,
		"res --filter mrlen=0x10000000000000000":  `mrlen of --filter is "0x10000000000000000", allowed: numbers from 0 to 18446744073709551615,`,
		"res --filter pid=0b11":                   `pid of --filter is "0b11", allowed: numbers`,
		"res --filter pid=1_0":                    `pid of --filter is "1_0", allowed: numbers`,
		"res --kinds qp --filter state=LISTEN":    `state of --filter is "LISTEN", allowed for qp: RESET, INIT, RTR, RTS, SQD, SQE, ERR` + "\n",
		"res --filter state=listen --raw":         `state of --filter is "listen", allowed for qp: RESET, INIT, RTR, RTS, SQD, SQE, ERR` + "\n",
		"res --kinds cm_id --filter state=RTS":    `state of --filter is "RTS", allowed for cm_id: IDLE, ADDR_QUERY, `,
		"res --kinds srq --filter type=RC":        `type of --filter is "RC", allowed for srq: BASIC, XRC, TM` + "\n",
		"res --filter type=XRC --filter port=1":   `type of --filter is "XRC", allowed for qp: SMI, GSI, RC, `,
		"res --filter qp-type=BASIC":              `qp-type of --filter is "BASIC", allowed for cm_id: SMI, GSI, RC, `,
		"res --filter comm=":                      `comm of --filter is "", allowed: a name`,
		"res --filter src-addr=10.1.0":            `src-addr of --filter is "10.1.0", allowed: an IP address`,
		"res --kinds pd --filter state=RTS":       `the key of --filter is "state", allowed for pd: comm, ctxn, local_dma_lkey, pdn, pid, unsafe_global_rkey, users`,
		"res --filter state=RTS --filter users=1": `no kind of objects has all keys of --filter; "verbs res --help" lists`,
		"res --kinds pd --raw":                    `--kinds is "pd", allowed with --raw: cq, mr, qp, srq`,
		"res --raw --filter cm-idn=3":             "no kind of objects has all keys",
		"res frmr a b":                            `the arguments of verbs res frmr are "a b", allowed: at most 1`,
		"res frmr set x aging":                    "arguments are missing",
		"res frmr set x aging 0":                  `aging is "0", allowed: 1 to 4294967295 seconds`,
		"res frmr set x age 5":                    `a word of verbs res frmr set is "age", allowed: aging, key, pinned`,
		"res frmr set x pinned 5":                 "key and pinned belong together; usage: verbs res frmr set",
		"res frmr set x key 1:1:0:0":              "key and pinned belong together",
		"res frmr set x key 1:1 pinned 5":         `key is "1:1", allowed are four hexadecimal numbers`,
		"res frmr set x key 1:1:0:0 pinned y":     `pinned is "y", allowed: 0 to 4294967295`,
		"dev add":                                 "arguments are missing; usage: verbs dev add [flags] NAME type smi parent DEV",
		"dev add x type SMI":                      "parent is missing",
		"dev add x type rxe parent y":             `type is "rxe", allowed: smi`,
		"dev delete":                              "arguments are missing",
	} {
		_, err := run(t, strings.Fields(args)...)
		if exitStatus(err) != 2 || !strings.Contains(err.Error()+"\n", want) {
			t.Errorf("verbs %s: status %d, %v, want %q", args, exitStatus(err), err, want)
		}
	}
	if out, err := run(t, "res", "--help"); err != nil || !strings.Contains(out, "\n  srq    comm, cqn, lqpn, pdn, pid, srqn, type\n") {
		t.Errorf("the help does not list the keys of an SRQ: %v\n%s", err, out)
	}
}

// TestResDump: what cannot be dumped is in Missing, and the other objects are dumped.
func TestResDump(t *testing.T) {
	refused := func(op string, err error) error { return &netlinkrdma.Error{Op: op, Device: "x0", Err: err} }
	unsupported := &netlinkrdma.FeatureError{Feature: "raw dump of QPs", Driver: "x", Err: refused("dump", syscall.EINVAL)}
	gone := fmt.Errorf("no such RDMA device: %w", fs.ErrNotExist)
	const noPort = "raw dumps of 2 QPs that have no port, such as QPs in state RESET"
	for name, tt := range map[string]struct {
		errs          map[uint32]error // by number, of which QPs have 1 to 6 and MRs 11 and 12
		dumped, asked []uint32
		missing       []string
	}{
		"all":         {nil, []uint32{11, 12, 1, 2, 3, 4, 5, 6}, []uint32{11, 12, 1, 2, 3, 4, 5, 6}, nil},
		"EIO":         {map[uint32]error{11: refused("dump MR 11 of", syscall.EIO)}, []uint32{12, 1, 2, 3, 4, 5, 6}, []uint32{11, 12, 1, 2, 3, 4, 5, 6}, []string{"netlinkrdma: dump MR 11 of x0: input/output error"}},
		"object gone": {map[uint32]error{1: refused("dump", syscall.ENOENT)}, []uint32{11, 12, 2, 3, 4, 5, 6}, []uint32{11, 12, 1, 2, 3, 4, 5, 6}, nil},
		"device gone": {map[uint32]error{12: gone}, []uint32{11}, []uint32{11, 12}, []string{gone.Error()}},
		"EPERM":       {map[uint32]error{11: refused("dump MR 11 of", syscall.EPERM)}, nil, []uint32{11}, []string{"netlinkrdma: dump MR 11 of x0: operation not permitted"}},
		"some not supported, some without a port": {map[uint32]error{1: unsupported, 2: unsupported, 3: syscall.EAGAIN, 4: syscall.EAGAIN},
			[]uint32{11, 12, 5, 6}, []uint32{11, 12, 1, 2, 3, 4, 5, 6}, []string{unsupported.Error(), noPort}},
	} {
		c := &resCollector{resReport: resReport{MRs: []mrRow{{ID: 11}, {ID: 12}}}}
		for qpn := range uint32(6) {
			c.QPs = append(c.QPs, qpRow{Num: qpn + 1, Port: qpn % 3})
		}
		var asked, dumped []uint32
		c.dump(func(_ netlinkrdma.Device, o netlinkrdma.RawOptions) ([]byte, error) {
			asked = append(asked, o.ID)
			if o.Kind == netlinkrdma.RawQP && o.Port != max((o.ID-1)%3, 1) || o.Kind == netlinkrdma.RawMR && o.Port != 0 {
				t.Errorf("%s %d is on port %d", o.Kind, o.ID, o.Port)
			}
			return []byte{byte(o.ID)}, tt.errs[o.ID]
		})
		for _, r := range c.MRs {
			if r.Raw == fmt.Sprintf("%02x", r.ID) {
				dumped = append(dumped, r.ID)
			}
		}
		for _, r := range c.QPs {
			if r.Raw == fmt.Sprintf("%02x", r.Num) {
				dumped = append(dumped, r.Num)
			}
		}
		if c.err != nil || !slices.Equal(asked, tt.asked) || !slices.Equal(dumped, tt.dumped) || !slices.Equal(c.Missing, tt.missing) {
			t.Errorf("%s: %v, asked for %d, has %d, missing %q; want %d, %d, %q", name, c.err, asked, dumped, c.Missing, tt.asked, tt.dumped, tt.missing)
		}
	}
}

// TestResDetails: with --details each row has what the tables leave out, and the dumps are written in
// lines.
func TestResDetails(t *testing.T) {
	attrs := driverOf([]netlinkrdma.DriverAttr{{Name: "sqid", Value: uint64(7)}, {Name: "flags", Value: uint64(0x10), Hex: true}, {Name: "odp", Value: "implicit"}})
	kernel := ownerRow{Kernel: "ib_core"}
	lkey, rkey := uint32(0x17f), uint32(0x99)
	r := resReport{
		Device:   "x0",
		Contexts: []contextRow{{ID: 1}},
		PDs:      []pdRow{{ID: 2, LKey: &lkey, RKey: &rkey, ownerRow: kernel}, {ID: 3, Context: 1}, {ID: 33}},
		MRs:      []mrRow{{ID: 4, driverRow: attrs}},
		CQs:      []cqRow{{ID: 5, PollContext: "WORKQUEUE", ownerRow: kernel}, {ID: 6, Context: 1, AdaptiveModeration: true}},
		SRQs:     []srqRow{{ID: 7, Type: "XRC", CQ: 6}, {ID: 8, Type: "BASIC"}},
		QPs:      []qpRow{{Num: 9, Type: "DRIVER", Subtype: "DCI", PathMig: "MIGRATED", rawRow: rawRow{strings.Repeat("0f", 33)}}},
		CMIDs:    []cmIDRow{{ID: 10, QPType: "RC"}, {ID: 11}},
	}
	var out bytes.Buffer
	if err := r.print(&out, true); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"context owner details 1 - -",
		"2 0 [ib_core] local_dma_lkey 0x17f, unsafe_global_rkey 0x99 3 0 - ctxn 1 33 0 - ctxn 0",
		"sqid 7, flags 0x10, odp implicit",
		"[ib_core] poll-ctx WORKQUEUE 6",
		"adaptive-moderation true, ctxn 1",
		"7 XRC 0 - cqn 6 8 BASIC 0 - -",
		"subtype DCI, path-mig-state MIGRATED",
		"qp-type RC 11",
		"raw QP 9, 33 bytes 0000 " + strings.Repeat("0f", 32) + " 0020 0f",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report has no %q:\n%s", want, out.String())
		}
	}
	out.Reset()
	if err := r.print(&out, false); err != nil || strings.Contains(out.String(), "details") || strings.Contains(out.String(), "sqid") {
		t.Errorf("without --details: %v\n%s", err, out.String())
	}
	out.Reset()
	if err := command.PrintJSON(&out, r); err != nil {
		t.Fatal(err)
	}
	var back map[string][]map[string]any
	json.Unmarshal(out.Bytes(), &back) // the other keys are no lists
	if back["mrs"][0]["driver_attributes"].(map[string]any)["flags"] != 16.0 || back["qps"][0]["raw"] != strings.Repeat("0f", 33) ||
		back["cm_ids"][0]["qp_type"] != "RC" || back["pds"][0]["local_dma_lkey"] != 383.0 {
		t.Errorf("JSON has %v", back)
	}
}

// TestFRMRReport: the pools of all devices are in one table, and what a kernel does not have is said.
func TestFRMRReport(t *testing.T) {
	key := netlinkrdma.FRMRKey{VendorKey: 0x20, DMABlocks: 512, AccessFlags: 1, ATS: true}
	got, err := newFRMRReport("x0", []netlinkrdma.FRMRPool{{Key: key, KernelKey: 0xff, Free: 1, InUse: 2, MaxInUse: 3, Pinned: 4}}, nil)
	want := frmrReport{Device: "x0", Pools: []frmrRow{{"20:200:1:1", "0x20", 512, "0x1", true, "0xff", 1, 2, 3, 4}}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	none, err := newFRMRReport("y0", nil, &netlinkrdma.FeatureError{Feature: "FRMR pools", Since: netlinkrdma.Version{7, 1}})
	if err != nil || none.Pools != nil || len(none.Missing) != 1 {
		t.Errorf("a kernel without pools: %+v, %v", none, err)
	}
	if empty, err := newFRMRReport("z0", nil, nil); err != nil || empty.Pools == nil {
		t.Errorf("a driver without pools: %+v, %v", empty, err)
	}
	if _, err := newFRMRReport("z0", nil, fs.ErrPermission); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("an error became %v", err)
	}
	var out bytes.Buffer
	if err := printFRMR(&out, []frmrReport{got, none}); err != nil {
		t.Fatal(err)
	}
	const table = "device key free in use at most pinned x0 20:200:1:1 (kernel 0xff) 1 2 3 4 y0 not shown: uverbs: FRMR pools not supported"
	if text := strings.Join(strings.Fields(out.String()), " "); !strings.HasPrefix(text, table) {
		t.Errorf("the table is\n%s", out.String())
	}
}
