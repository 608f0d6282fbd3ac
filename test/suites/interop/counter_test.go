package interop

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// newQP creates a QP of this process and returns its number.
func newQP(t *testing.T) string {
	t.Helper()
	dev, err := uverbs.Open(dev0, uverbs.OpenOptions{})
	must(t, err)
	pd, err := dev.AllocPD()
	must(t, err)
	cq, err := dev.CreateCQ(uverbs.CQOptions{Size: 1})
	must(t, err)
	qp, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq})
	if err == nil {
		err = qp.Init()
	}
	must(t, err)
	t.Cleanup(func() {
		if err := errors.Join(qp.Close(), cq.Close(), pd.Close(), dev.Close()); err != nil {
			t.Error(err)
		}
	})
	return strconv.Itoa(int(qp.QPN()))
}

// boundQPs are the counters of QPs with their QPs, as "cntn: lqpn,...", by a program.
type boundQPs map[string][]string

// verbsBound asks our command.
func verbsBound(t *testing.T) boundQPs {
	t.Helper()
	all := boundQPs{}
	for _, port := range verbsJSON(t, "stat", dev0, "--json").([]any) {
		counters, _ := port.(map[string]any)["qp_counters"].([]any)
		for _, c := range counters {
			c := c.(map[string]any)
			for _, n := range c["qpns"].([]any) {
				all[fmt.Sprint(c["cntn"])] = append(all[fmt.Sprint(c["cntn"])], fmt.Sprint(n))
			}
		}
	}
	return all
}

// rdmaBound asks iproute2's command.
func rdmaBound(t *testing.T) boundQPs {
	t.Helper()
	var rows []struct {
		Device  string `json:"ifname"`
		Counter int    `json:"cntn"`
		QPNs    []any  `json:"lqpn"`
	}
	out := rdma(t, "-j", "statistic", "qp", "show", "link", dev0+"/1")
	if out = strings.TrimSpace(out); out != "" {
		if err := json.Unmarshal([]byte(out), &rows); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
	}
	all := boundQPs{}
	for _, r := range rows {
		if r.Device == dev0 {
			for _, n := range r.QPNs {
				all[strconv.Itoa(r.Counter)] = append(all[strconv.Itoa(r.Counter)], fmt.Sprint(n))
			}
		}
	}
	return all
}

// rdma runs iproute2's command and returns what it prints.
func rdma(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(timed(t), "rdma", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("rdma %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// countersOfMRs returns what JSON of "verbs stat mr", or of iproute2's "rdma statistic show mr", has of the MRs of a
// device, by their numbers.
func countersOfMRs(t *testing.T, all any) map[string]map[string]any {
	t.Helper()
	mrs := map[string]map[string]any{}
	for _, row := range all.([]any) {
		row := row.(map[string]any)
		list, ours := row["mrs"].([]any)
		if row["ifname"] == dev0 {
			list = []any{row}
		} else if !ours && row["ifname"] == nil {
			t.Errorf("not a row of MRs: %v", row)
		}
		for _, mr := range list {
			mr, of := mr.(map[string]any), map[string]any{}
			counters, _ := mr["counters"].([]any)
			for _, c := range counters {
				c := c.(map[string]any)
				of[c["name"].(string)] = c["value"]
			}
			for name, value := range mr {
				if strings.HasPrefix(name, "page_") { // rdma's
					of[name] = value
				}
			}
			mrs[fmt.Sprint(mr["mrn"])] = of
		}
	}
	return mrs
}

// TestStatMR: "verbs stat mr" shows what iproute2's "rdma statistic show mr" does, and has the pages that a program
// has fetched ahead.
func TestStatMR(t *testing.T) {
	testenv.Boot(t, "GOVERBS_IPROUTE2", "mlx5cm/cm")
	testenv.Needs(t, "counters of MRs", "mlx5")
	const pages = 8
	dev, err := uverbs.Open(dev0, uverbs.OpenOptions{})
	must(t, err)
	defer dev.Close()
	pd, err := dev.AllocPD()
	must(t, err)
	defer pd.Close()
	buf, err := uverbs.AllocBuffer(pages*4096, uverbs.BufferOptions{})
	must(t, err)
	defer buf.Close()
	mr, err := pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessOnDemand})
	must(t, err)
	defer mr.Close()
	must(t, pd.AdviseMR(uverbs.AdvicePrefetchWrite, []uverbs.SGE{mr.SGE(0, buf.Len())}, uverbs.AdviseOptions{Flush: true}))

	ours := countersOfMRs(t, verbsJSON(t, "stat", "mr", dev0, "--json"))
	theirs := countersOfMRs(t, parseJSON(t, []byte(rdma(t, "-j", "statistic", "show", "mr"))))
	if diff := cmp.Diff(theirs, ours); diff != "" {
		t.Errorf("rdma's (-) and ours (+) differ:\n%s", diff)
	}
	var counted []string
	for id, counters := range ours {
		if fmt.Sprint(counters["page_prefetch"]) == strconv.Itoa(pages) {
			counted = append(counted, id)
		}
	}
	if len(counted) != 1 {
		t.Fatalf("MRs %q have %d pages fetched ahead, want one MR: %v", counted, pages, ours)
	}
	if one := countersOfMRs(t, verbsJSON(t, "stat", "show", "mr", dev0, "mrn", counted[0], "--json")); len(one) != 1 || one[counted[0]] == nil {
		t.Errorf("MR %s alone: %v", counted[0], one)
	}
	text := strings.Join(strings.Fields(verbs(t, "stat", "mr", dev0)), " ")
	if want := fmt.Sprintf("%s mrn %s page_faults 0 ", dev0, counted[0]); !strings.Contains(text, want) || !strings.Contains(text, " page_prefetch 8") {
		t.Errorf("the text has no %q: %s", want, text)
	}
	if out, err := verbsText(t, "stat", "mr", dev0, "mrn", "4000000000"); err == nil || !strings.Contains(out, "there is no MR 4000000000") {
		t.Errorf("an MR that does not exist: %v, %s", err, out)
	}
}

// TestStatBind: "verbs stat bind" and "unbind" do the same as those of iproute2's "rdma statistic qp", and each
// command sees what the other has done. On rxe the kernel refuses both.
func TestStatBind(t *testing.T) {
	testenv.Boot(t, "GOVERBS_IPROUTE2", "mlx5cm/cm")
	qpn, other := newQP(t), newQP(t)
	port := dev0 + "/1"
	if rig.Driver != "mlx5" {
		out, err := verbsText(t, "stat", "bind", port, "lqpn", qpn)
		if err == nil || !strings.Contains(out, "counters of QPs not supported by driver "+rig.Driver) {
			t.Errorf("verbs stat bind: %v\n%s", err, out)
		}
		if out, err := exec.CommandContext(timed(t), "rdma", "statistic", "qp", "bind", "link", port, "lqpn", qpn).CombinedOutput(); err == nil {
			t.Errorf("rdma statistic qp bind succeeds:\n%s", out)
		}
		return
	}
	verbs := func(args ...string) string {
		t.Helper()
		out, err := verbsText(t, append([]string{"stat"}, args...)...)
		if err != nil {
			t.Fatalf("verbs stat %q: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(out)
	}
	check := func(what string, want boundQPs) {
		t.Helper()
		for name, got := range map[string]boundQPs{"verbs": verbsBound(t), "rdma": rdmaBound(t)} {
			for _, qpns := range got {
				slices.Sort(qpns)
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: %s shows %v, want %v", what, name, got, want)
			}
		}
	}
	check("at first", boundQPs{})
	id := verbs("bind", port, "lqpn", qpn)
	check("bound by verbs", boundQPs{id: {qpn}})
	rdma(t, "statistic", "qp", "bind", "link", port, "lqpn", other, "cntn", id)
	both := []string{qpn, other}
	slices.Sort(both)
	check("one more by rdma", boundQPs{id: both})
	rdma(t, "statistic", "qp", "unbind", "link", port, "cntn", id, "lqpn", qpn)
	check("unbound by rdma", boundQPs{id: {other}})
	if again := verbs("bind", port, "lqpn", qpn, "cntn", id); again != id {
		t.Errorf("verbs stat bind prints counter %s, want %s", again, id)
	}
	check("bound by verbs to that counter", boundQPs{id: both})
	verbs("unbind", port, "cntn", id, "lqpn", qpn)
	verbs("unbind", port, "cntn", id, "lqpn", other)
	check("unbound by verbs", boundQPs{})
	rdma(t, "statistic", "qp", "bind", "link", port, "lqpn", other)
	bound := verbsBound(t)
	for id, qpns := range bound {
		if !slices.Equal(qpns, []string{other}) {
			t.Errorf("bound by rdma: %v", bound)
		}
		verbs("unbind", port, "cntn", id, "lqpn", other)
	}
	if len(bound) != 1 {
		t.Errorf("bound by rdma: %v, want one counter", bound)
	}
	check("at last", boundQPs{})
	if out, err := verbsText(t, "stat", "unbind", port, "cntn", id, "lqpn", other); err == nil {
		t.Errorf("a QP without a counter loses one:\n%s", out)
	}
}

// TestStatOptional: "verbs stat enable" switches an optional counter of a card on and off, which iproute2's
// "rdma statistic" confirms, and it counts: packets with the mark of congestion, which are those whose traffic
// class has ECN CE. rxe does not have such counters.
func TestStatOptional(t *testing.T) {
	testenv.Boot(t, "GOVERBS_IPROUTE2", "mlx5cm/cm")
	const name, messages = "cc_rx_ce_pkts", 100
	port := dev1 + "/1"
	if rig.Driver != "mlx5" {
		if out, err := verbsText(t, "stat", "enable", port, name); err == nil || !strings.Contains(out, "this driver has no optional counters") {
			t.Errorf("verbs stat enable: %v\n%s", err, out)
		}
		return
	}
	value := func(by string) string { // "" if the counter is off
		t.Helper()
		var all any
		if by == "verbs" {
			all = verbsJSON(t, "stat", dev1, "--json").([]any)[0].(map[string]any)["counters"]
		} else if err := json.Unmarshal([]byte(rdma(t, "-j", "statistic", "show", "link", port)), &all); err != nil {
			t.Fatal(err)
		}
		for _, c := range all.([]any) {
			c := c.(map[string]any)
			if v, ok := c[name]; ok { // of rdma, which has all counters in one object
				return fmt.Sprint(v)
			}
			if c["name"] == name {
				return fmt.Sprint(c["value"])
			}
		}
		return ""
	}
	check := func(what string, ok func(string) bool) {
		t.Helper()
		for _, by := range []string{"verbs", "rdma"} {
			if n := value(by); !ok(n) {
				t.Errorf("%s: %s shows %q", what, by, n)
			}
		}
	}
	off, zero := func(n string) bool { return n == "" }, func(n string) bool { return n == "0" }
	set := func(value string) {
		t.Helper()
		if out, err := verbsText(t, "stat", "enable", port, value); err != nil {
			t.Fatalf("verbs stat enable %s: %v\n%s", value, err, out)
		}
	}
	check("at first", off)
	set(name)
	check("enabled", zero)
	_, at := perfServe(t, "-d", dev1)
	options := []string{"-d", dev0, "-n", strconv.Itoa(messages), "-s", "1000"}
	perfJSON(t, at, "send-bw", options...)
	check("without the mark", zero)
	perfJSON(t, at, "send-bw", append(options, "--tos", "3")...)
	check("with the mark", func(s string) bool { n, err := strconv.Atoi(s); return err == nil && n >= messages })
	set("none")
	check("disabled", off)
}

// TestStatHelp: "verbs stat --help" explains each counter of the driver, the optional ones included.
func TestStatHelp(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.Guest(t)
	help := strings.FieldsFunc(verbs(t, "stat", "--help"), func(r rune) bool { return r == ' ' || r == ',' || r == '\n' })
	explained := 0
	for _, port := range verbsJSON(t, "stat", dev0, "--json").([]any) {
		port := port.(map[string]any)
		names, _ := port["disabled"].([]any)
		counters, _ := port["counters"].([]any)
		for _, c := range counters {
			names = append(names, c.(map[string]any)["name"])
		}
		for _, name := range names {
			if !slices.Contains(help, name.(string)) {
				t.Errorf("%s is not explained", name)
			}
			explained++
		}
	}
	if none := explained == 0; none != rig.IWARP() {
		t.Errorf("%s has %d counters", dev0, explained)
	}
}
