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

// TestIproute2 compares what we and "rdma" tell of a device that is in use.
func TestIproute2(t *testing.T) {
	testenv.Boot(t, iproute2Env, "rxe/interop")
	pair(t, uverbs.QPOptions{})
	srqWithQPs(t)
	listening(t)
	dev := tracked(t)
	hex := func(v uint32) string { return strconv.FormatUint(uint64(v), 16) }
	owner := func(row map[string]any, o netlinkrdma.Owner) map[string]any {
		if o.PID != 0 {
			row["pid"] = o.PID
		}
		return row
	}
	compareRows(t, "qp", func() (rows []map[string]any, err error) {
		qps, err := netlinkrdma.QPs(dev)
		for _, q := range qps {
			row := map[string]any{"lqpn": q.Num, "type": q.Type.String(), "state": q.State.String(), "sq-psn": q.SQPSN}
			if q.Port != 0 {
				row["port"] = q.Port
			}
			if q.Kernel == "" {
				row["pdn"] = q.PD
			}
			if q.Type == netlinkrdma.QPTypeRC {
				row["rqpn"], row["rq-psn"], row["path-mig-state"] = q.RemoteNum, q.RQPSN, q.PathMigState.String()
			}
			rows = append(rows, owner(row, q.Owner))
		}
		return rows, err
	})
	compareRows(t, "cq", func() (rows []map[string]any, err error) {
		cqs, err := netlinkrdma.CQs(dev)
		for _, c := range cqs {
			row := map[string]any{"cqn": c.ID, "cqe": c.CQE, "users": c.Users, "adaptive-moderation": c.AdaptiveModeration}
			if c.Kernel != "" {
				row["poll-ctx"] = c.PollContext.String()
			} else {
				row["ctxn"] = c.Context
			}
			rows = append(rows, owner(row, c.Owner))
		}
		return rows, err
	})
	compareRows(t, "mr", func() (rows []map[string]any, err error) {
		mrs, err := netlinkrdma.MRs(dev)
		for _, m := range mrs {
			rows = append(rows, owner(map[string]any{"mrn": m.ID, "rkey": hex(m.RKey), "lkey": hex(m.LKey), "mrlen": m.Length, "pdn": m.PD}, m.Owner))
		}
		return rows, err
	})
	compareRows(t, "pd", func() (rows []map[string]any, err error) {
		pds, err := netlinkrdma.PDs(dev)
		for _, p := range pds {
			row := map[string]any{"pdn": p.ID, "local_dma_lkey": hex(p.LocalDMALKey), "users": p.Users}
			if p.Kernel == "" {
				row["ctxn"] = p.Context
			}
			rows = append(rows, owner(row, p.Owner))
		}
		return rows, err
	})
	if k := testenv.Kernel(t); slices.Compare(k[:], []int{5, 13}) >= 0 {
		compareRows(t, "srq", func() (rows []map[string]any, err error) {
			srqs, err := netlinkrdma.SRQs(dev)
			for _, s := range srqs {
				row := map[string]any{"srqn": s.ID, "type": s.Type.String(), "pdn": s.PD}
				if len(s.QPs) > 0 {
					var text []string
					for _, r := range s.QPs {
						if text = append(text, fmt.Sprint(r.First)); r.Last != r.First {
							text[len(text)-1] += fmt.Sprintf("-%d", r.Last)
						}
					}
					row["lqpn"] = text
				}
				rows = append(rows, owner(row, s.Owner))
			}
			return rows, err
		})
		compareRows(t, "ctx", func() (rows []map[string]any, err error) {
			contexts, err := netlinkrdma.Contexts(dev)
			for _, c := range contexts {
				rows = append(rows, owner(map[string]any{"ctxn": c.ID}, c.Owner))
			}
			return rows, err
		})
	}
	compareRows(t, "cm_id", func() (rows []map[string]any, err error) {
		ids, err := netlinkrdma.CMIDs(dev)
		for _, c := range ids {
			row := map[string]any{"cm-idn": c.ID, "port": c.Port, "state": c.State.String(), "ps": c.PortSpace.String(),
				"src-addr": c.Src.String(), "dst-addr": c.Dst.String()}
			rows = append(rows, owner(row, c.Owner))
		}
		return rows, err
	})
	compare(t, "the links", rdma(t, "link"), func() (rows []map[string]any, err error) {
		ports, err := netlinkrdma.Ports(dev)
		for _, p := range ports {
			rows = append(rows, map[string]any{"port": p.Num, "state": p.State.String(), "physical_state": strings.ReplaceAll(p.PhysState.String(), "LinkUp", "LINK_UP"),
				"netdev": p.Netdev, "netdev_index": p.NetdevIndex})
		}
		return rows, err
	})
	compareSystem(t)
	compare(t, "the counts", rdma(t, "resource", "show")[:1], func() (rows []map[string]any, err error) {
		c, err := netlinkrdma.Resources(dev)
		row := map[string]any{"qp": c.QPs, "cq": c.CQs, "mr": c.MRs, "pd": c.PDs, "cm_id": c.CMIDs, "ctx": c.Contexts}
		if k := testenv.Kernel(t); slices.Compare(k[:], []int{5, 13}) >= 0 {
			row["srq"] = c.SRQs
		}
		return []map[string]any{row}, err
	})
	compare(t, "the counters", rdma(t, "statistic", "show")[:1], func() (rows []map[string]any, err error) {
		counters, err := netlinkrdma.PortCounters(dev, 1)
		row := map[string]any{"port": 1}
		for _, c := range counters {
			row[c.Name] = c.Value
		}
		return []map[string]any{row}, err
	})
	compare(t, "the device", rdma(t, "dev")[:1], func() (rows []map[string]any, err error) {
		row := map[string]any{"node_type": "ca", "node_guid": dev.NodeGUID.String(), "sys_image_guid": dev.SysImageGUID.String(),
			"adaptive-moderation": dev.AdaptiveModeration}
		return []map[string]any{row}, nil
	})
}

// rdma runs iproute2's command and returns the JSON objects that it prints, without
// what names the device and without the name of a process, which is not the kernel's
// word.
func rdma(t *testing.T, args ...string) []map[string]any {
	t.Helper()
	out, err := exec.Command("rdma", append([]string{"-d", "-j"}, args...)...).Output()
	if err != nil {
		t.Fatalf("rdma %q: %v", args, err)
	}
	var rows []map[string]any
	if err := json.Unmarshal(out, &rows); err != nil {
		t.Fatalf("rdma %q: %v in %s", args, err, out)
	}
	rows = slices.DeleteFunc(rows, func(r map[string]any) bool { return r["ifname"] != deviceName })
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

func compareRows(t *testing.T, kind string, ours func() ([]map[string]any, error)) {
	t.Helper()
	compare(t, kind, rdma(t, "resource", "show", kind), ours)
}

// compare compares rows, whose numbers may differ in type.
func compare(t *testing.T, what string, theirs []map[string]any, ours func() ([]map[string]any, error)) {
	t.Helper()
	rows, err := ours()
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	text := func(rows []map[string]any) (all []string) {
		for _, r := range rows {
			b, err := json.Marshal(r) // sorts the keys
			all = append(all, fmt.Sprintf("%s %v", b, err))
		}
		return all
	}
	if diff := cmp.Diff(text(theirs), text(rows)); diff != "" {
		t.Errorf("%s (-rdma +ours):\n%s", what, diff)
	}
}
