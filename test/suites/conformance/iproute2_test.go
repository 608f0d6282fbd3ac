package conformance

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// iproute2Env is set to 1 in the VM that has iproute2's rdma.
const iproute2Env = "GOVERBS_IPROUTE2"

// compareSystem compares the settings of the system.
func compareSystem(t *testing.T) {
	t.Helper()
	out, err := exec.Command("rdma", "system").Output()
	must(t, err)
	s, err := netlinkrdma.SystemSettings()
	must(t, err)
	want := fmt.Sprintf("netns %s copy-on-fork %s", s.NetNSMode, map[bool]string{false: "off", true: "on"}[s.CopyOnFork])
	if got := strings.TrimSpace(string(out)); got != want {
		t.Errorf("rdma system says %q, we say %q", got, want)
	}
}

// TestIproute2 compares what netlinkrdma and iproute2's rdma report of a device that is in use.
func TestIproute2(t *testing.T) {
	testenv.Boot(t, iproute2Env, "rxe/interop")
	pair(t, uverbs.QPOptions{})
	srqWithQPs(t)
	listening(t)
	dev := tracked(t)
	qps := func(d netlinkrdma.Device) ([]netlinkrdma.QP, error) {
		return netlinkrdma.QPs(d, netlinkrdma.ListOptions{})
	}
	compareRows(t, "qp", qps, dev, qpRow)
	compareRows(t, "cq", netlinkrdma.CQs, dev, cqRow)
	compareRows(t, "mr", netlinkrdma.MRs, dev, mrRow)
	compareRows(t, "pd", netlinkrdma.PDs, dev, pdRow)
	if since(t, 5, 13) {
		compareRows(t, "srq", netlinkrdma.SRQs, dev, srqRow)
		compareRows(t, "ctx", netlinkrdma.Contexts, dev, func(c netlinkrdma.Context) row { return row{"ctxn": c.ID}.owner(c.Owner) })
	}
	compareRows(t, "cm_id", netlinkrdma.CMIDs, dev, cmIDRow)
	ports, err := netlinkrdma.Ports(dev)
	compare(t, "the links", rdma(t, "link"), rowsOf(ports, portRow), err)
	compareSystem(t)
	compareCounts(t, dev)
	compare(t, "the device", rdma(t, "dev")[:1], []row{{"node_type": "ca", "node_guid": dev.NodeGUID.String(),
		"sys_image_guid": dev.SysImageGUID.String(), "adaptive-moderation": dev.AdaptiveModeration}}, nil)
}

// row is an object as rdma prints it in JSON.
type row map[string]any

// owner adds the process that owns the object.
func (r row) owner(o netlinkrdma.Owner) row {
	if o.PID != 0 {
		r["pid"] = o.PID
	}
	return r
}

// hex formats a key as rdma does.
func hex(v uint32) string { return strconv.FormatUint(uint64(v), 16) }

func qpRow(q netlinkrdma.QP) row {
	r := row{"lqpn": q.Num, "type": q.Type.String(), "state": q.State.String(), "sq-psn": q.SQPSN}
	if q.Port != 0 {
		r["port"] = q.Port
	}
	if q.Kernel == "" {
		r["pdn"] = q.PD
	}
	if q.Type == ib.RC {
		r["rqpn"], r["rq-psn"], r["path-mig-state"] = q.RemoteNum, q.RQPSN, q.PathMigState.String()
	}
	return r.owner(q.Owner)
}

func cqRow(c netlinkrdma.CQ) row {
	r := row{"cqn": c.ID, "cqe": c.CQE, "users": c.Users, "adaptive-moderation": c.AdaptiveModeration}
	if c.Kernel != "" {
		r["poll-ctx"] = c.PollContext.String()
	} else {
		r["ctxn"] = c.Context
	}
	return r.owner(c.Owner)
}

func mrRow(m netlinkrdma.MR) row {
	return row{"mrn": m.ID, "rkey": hex(m.RKey), "lkey": hex(m.LKey), "mrlen": m.Length, "pdn": m.PD}.owner(m.Owner)
}

func pdRow(p netlinkrdma.PD) row {
	r := row{"pdn": p.ID, "local_dma_lkey": hex(p.LocalDMALKey), "users": p.Users}
	if p.Kernel == "" {
		r["ctxn"] = p.Context
	}
	return r.owner(p.Owner)
}

func srqRow(s netlinkrdma.SRQ) row {
	r := row{"srqn": s.ID, "type": s.Type.String(), "pdn": s.PD}
	if len(s.QPs) > 0 {
		var text []string
		for _, q := range s.QPs {
			if text = append(text, fmt.Sprint(q.First)); q.Last != q.First {
				text[len(text)-1] += fmt.Sprintf("-%d", q.Last)
			}
		}
		r["lqpn"] = text
	}
	return r.owner(s.Owner)
}

func cmIDRow(c netlinkrdma.CMID) row {
	return row{"cm-idn": c.ID, "port": c.Port, "state": c.State.String(), "ps": c.PortSpace.String(),
		"src-addr": c.Src.String(), "dst-addr": c.Dst.String()}.owner(c.Owner)
}

func portRow(p netlinkrdma.Port) row {
	return row{"port": p.Num, "state": p.State.String(), "physical_state": strings.ReplaceAll(p.PhysState.String(), "LinkUp", "LINK_UP"),
		"netdev": p.Netdev, "netdev_index": p.NetdevIndex}
}

// compareCounts compares the numbers of objects and the counters of the port.
func compareCounts(t *testing.T, dev netlinkrdma.Device) {
	t.Helper()
	c, err := netlinkrdma.Resources(dev, netlinkrdma.ListOptions{})
	counts := row{"qp": c.QPs, "cq": c.CQs, "mr": c.MRs, "pd": c.PDs, "cm_id": c.CMIDs, "ctx": c.Contexts}
	if since(t, 5, 13) {
		counts["srq"] = c.SRQs
	}
	compare(t, "the counts", rdma(t, "resource", "show")[:1], []row{counts}, err)
	counters, err := netlinkrdma.PortCounters(dev, 1)
	values := row{"port": 1}
	for _, c := range counters {
		values[c.Name] = c.Value
	}
	compare(t, "the counters", rdma(t, "statistic", "show")[:1], []row{values}, err)
}

// rdma runs iproute2's command and returns the JSON objects that it prints, without
// what names the device and without the name of a process, which is not the kernel's
// word.
func rdma(t *testing.T, args ...string) []row {
	t.Helper()
	out, err := exec.Command("rdma", append([]string{"-d", "-j"}, args...)...).Output()
	if err != nil {
		t.Fatalf("rdma %q: %v", args, err)
	}
	var rows []row
	if err := json.Unmarshal(out, &rows); err != nil {
		t.Fatalf("rdma %q: %v in %s", args, err, out)
	}
	rows = slices.DeleteFunc(rows, func(r row) bool { return r["ifname"] != deviceName })
	for _, r := range rows {
		for _, key := range []string{"ifname", "ifindex", "comm", "caps"} {
			delete(r, key)
		}
	}
	if len(rows) == 0 {
		t.Fatalf("rdma %q tells nothing of %s: %s", args, deviceName, out)
	}
	return rows
}

// rowsOf returns the rows of objects.
func rowsOf[T any](list []T, rowOf func(T) row) (rows []row) {
	for _, o := range list {
		rows = append(rows, rowOf(o))
	}
	return rows
}

// compareRows compares the objects of a kind.
func compareRows[T any](t *testing.T, kind string, list func(netlinkrdma.Device) ([]T, error), dev netlinkrdma.Device, rowOf func(T) row) {
	t.Helper()
	theirs := rdma(t, "resource", "show", kind)
	all, err := list(dev)
	compare(t, kind, theirs, rowsOf(all, rowOf), err)
}

// compare compares rows of rdma with ours. Their numbers may differ in type.
func compare(t *testing.T, what string, theirs, ours []row, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	text := func(rows []row) (all []string) {
		for _, r := range rows {
			b, err := json.Marshal(r) // sorts the keys
			all = append(all, fmt.Sprintf("%s %v", b, err))
		}
		return all
	}
	if diff := cmp.Diff(text(theirs), text(ours)); diff != "" {
		t.Errorf("%s (-rdma +ours):\n%s", what, diff)
	}
}
