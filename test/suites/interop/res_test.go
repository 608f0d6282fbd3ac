package interop

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// newMR registers memory of this process, and returns the key of it.
func newMR(t *testing.T) string {
	t.Helper()
	dev, err := uverbs.Open(dev0, uverbs.OpenOptions{})
	must(t, err)
	t.Cleanup(func() { dev.Close() })
	pd, err := dev.AllocPD()
	must(t, err)
	t.Cleanup(func() { pd.Close() })
	mr, err := pd.RegSlice(make([]byte, 8192), uverbs.AccessLocalWrite)
	must(t, err)
	t.Cleanup(func() { mr.Close() })
	return fmt.Sprintf("%#x", mr.LKey())
}

// resOf returns what "verbs res" prints about the first device as JSON, whose keys must be documented.
func resOf(t *testing.T, args ...string) map[string]any {
	t.Helper()
	v := verbsJSON(t, append([]string{"res", dev0, "--json"}, args...)...)
	readDocumented(t)["res"].check(t, v, "")
	return v.([]any)[0].(map[string]any)
}

// numbers returns the values of a key in the rows of a list, sorted.
func numbers(list any, key string) (all []string) {
	rows, _ := list.([]any)
	for _, row := range rows {
		all = append(all, fmt.Sprint(row.(map[string]any)[key]))
	}
	slices.Sort(all)
	return all
}

// rdmaRows asks iproute2's command for a list.
func rdmaRows(t *testing.T, args ...string) any {
	t.Helper()
	var rows any
	if out := strings.TrimSpace(rdma(t, append([]string{"-j", "resource", "show"}, args...)...)); out != "" {
		if err := json.Unmarshal([]byte(out), &rows); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
	}
	return rows
}

// TestResFilter: "verbs res" shows the objects that its filters choose and no others, as iproute2's
// "rdma resource show" does where that is there.
func TestResFilter(t *testing.T) {
	testenv.Guest(t)
	runtime.LockOSThread() // the kernel names the thread as the owner as long as it lives
	defer runtime.UnlockOSThread()
	lkey := newMR(t)
	got := resOf(t, "--filter", "lkey="+lkey)
	if mrs := got["mrs"].([]any); len(mrs) != 1 || fmt.Sprint(mrs[0].(map[string]any)["length"]) != "8192" || got["qps"] != nil || got["pds"] != nil {
		t.Errorf("with the key %s there are %v, want one MR and no other kind", lkey, got)
	}
	pid := fmt.Sprint(os.Getpid())
	mine := resOf(t, "--filter", "pid="+pid, "--kinds", "mr,pd")
	if pids := numbers(mine["mrs"], "pid"); len(pids) != 1 || pids[0] != pid || len(mine["pds"].([]any)) != 1 {
		t.Errorf("of process %s there are %v, want an MR and a PD", pid, mine)
	}
	if none := resOf(t, "--filter", "pid="+pid, "--filter", "mrlen=4096")["mrs"]; len(none.([]any)) != 0 {
		t.Errorf("with another length there are %v", none)
	}
	if !rig.IWARP() { // which has no QPs without a connection
		filterQPs(t)
	}
}

// number reads a QP number.
func number(t *testing.T, text string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(text, 10, 32)
	must(t, err)
	return n
}

// filterQPs is TestResFilter for QPs.
func filterQPs(t *testing.T) {
	a, b := newQP(t), newQP(t)
	if number(t, a) > number(t, b) {
		a, b = b, a
	}
	other := func(qpn string) bool { return number(t, qpn) < number(t, a) || number(t, qpn) > number(t, b) }
	between := "lqpn=" + a + "-" + b
	for _, args := range [][]string{{"--filter", "lqpn=" + a + "," + b}, {"--filter", between, "--kinds", "qp"}, {"--filter", "state=init", "--filter", "type=RC", "--filter", between}} {
		if qpns := numbers(resOf(t, args...)["qps"], "qpn"); !slices.Contains(qpns, a) || !slices.Contains(qpns, b) || slices.ContainsFunc(qpns, other) {
			t.Errorf("verbs res %q shows the QPs %q, want %s, %s and none outside of them", args, qpns, a, b)
		}
	}
	text, err := verbsText(t, "res", dev0, "--details", "--filter", "lqpn="+a)
	if err != nil || !strings.Contains(text, "path-mig-state MIGRATED") || strings.Contains(text, "\n  "+b+" ") {
		t.Errorf("with details: %v\n%s", err, text)
	}
	if out, err := verbsText(t, "res", "show", "qp", "link", dev0+"/7"); err == nil || !strings.Contains(out, "the port is 7, allowed: 1 to 1") {
		t.Errorf("a port that there is not: %v\n%s", err, out)
	}
	compare := map[string]string{}
	if os.Getenv("GOVERBS_IPROUTE2") != "" {
		compare = map[string]string{between: "lqpn " + a + "-" + b, "state=INIT": "state INIT", "type=GSI": "type GSI", "lqpn=" + b: "lqpn " + b}
	}
	for ours, theirs := range compare {
		mine := numbers(resOf(t, "--kinds", "qp", "--filter", ours, "--filter", "port=1")["qps"], "qpn")
		other := numbers(rdmaRows(t, append([]string{"qp", "link", dev0 + "/1"}, strings.Fields(theirs)...)...), "lqpn")
		if !slices.Equal(mine, other) || len(mine) == 0 {
			t.Errorf("verbs shows with %s the QPs %q, rdma %q", ours, mine, other)
		}
	}
}

// TestResRaw: "verbs res --raw" shows what the driver dumps, which iproute2's command shows, too, or that
// the driver has no dumps.
func TestResRaw(t *testing.T) {
	testenv.Guest(t)
	lkey := newMR(t)
	got := resOf(t, "--raw", "--kinds", "mr", "--filter", "lkey="+lkey)
	mrs := got["mrs"].([]any)
	if len(mrs) != 1 {
		t.Fatalf("with the key %s there are the MRs %v", lkey, mrs)
	}
	mr := mrs[0].(map[string]any)
	text, err := verbsText(t, "res", dev0, "--raw", "--filter", "lkey="+lkey)
	if rig.Driver != "mlx5" {
		want := "raw dump of MRs not supported by driver " + rig.Driver
		if mr["raw"] != nil || !strings.Contains(fmt.Sprint(got["missing"]), want) || err != nil || !strings.Contains(text, "not shown: ") || !strings.Contains(text, want) {
			t.Errorf("%v, %v\n%s, want %q", got, err, text, want)
		}
	} else {
		raw, herr := hex.DecodeString(fmt.Sprint(mr["raw"]))
		if herr != nil || len(raw) < 64 || got["missing"] != nil || err != nil || !strings.Contains(text, fmt.Sprintf("raw MR %v, %d bytes\n    0000  %x\n", mr["mrn"], len(raw), raw[:32])) {
			t.Errorf("%v: %v\n%s", mr, herr, text)
		}
		if os.Getenv("GOVERBS_IPROUTE2") != "" {
			compareRaw(t, fmt.Sprint(mr["mrn"]), raw)
		}
	}
}

// compareRaw compares the dump of an MR with that of iproute2's command.
func compareRaw(t *testing.T, mrn string, raw []byte) {
	t.Helper()
	rows, _ := rdmaRows(t, "mr", "dev", dev0, "mrn", mrn, "-r").([]any)
	if len(rows) != 1 {
		t.Fatalf("rdma shows %v", rows)
	}
	var theirs []byte
	for _, n := range rows[0].(map[string]any)["data"].([]any) {
		theirs = append(theirs, byte(n.(float64)))
	}
	if !slices.Equal(raw, theirs) {
		t.Errorf("verbs shows %x, rdma %x", raw, theirs)
	}
}

// TestResFRMR: "verbs res frmr" fills a pool and shows it, or says that there is none.
func TestResFRMR(t *testing.T) {
	testenv.Guest(t)
	k := testenv.Kernel(t)
	old := slices.Compare(k[:], []int{7, 1}) < 0
	if old || rig.Driver != "mlx5" {
		refusePools(t, old)
	} else {
		fillPool(t)
	}
}

// showPools returns what "verbs res frmr" prints about the first device as JSON.
func showPools(t *testing.T) map[string]any {
	t.Helper()
	v := verbsJSON(t, "res", "frmr", dev0, "--details", "--json")
	readDocumented(t)["res frmr"].check(t, v, "")
	return v.([]any)[0].(map[string]any)
}

// setPools runs "verbs res frmr set" on the first device.
func setPools(t *testing.T, line string) (string, error) {
	t.Helper()
	return verbsText(t, append([]string{"res", "frmr", "set", dev0}, strings.Fields(line)...)...)
}

// refusePools checks what is said where there are no pools, because of the kernel or of the driver.
func refusePools(t *testing.T, kernel bool) {
	t.Helper()
	want := "FRMR pools not supported by driver " + rig.Driver
	if kernel {
		want = "FRMR pools not supported by this kernel (needs Linux 7.1)"
	}
	if out, err := setPools(t, "aging 60"); err == nil || !strings.Contains(out, want) {
		t.Errorf("aging: %v\n%s, want %q", err, out, want)
	}
	if got := showPools(t); kernel && !strings.Contains(fmt.Sprint(got["missing"]), want) || !kernel && len(got["pools"].([]any)) != 0 {
		t.Errorf("there are %v, want none", got)
	}
}

// fillPool fills a pool and empties it again. Its memory regions are larger than those of all other tests, since
// the kernel takes a pool of larger ones, if there is one.
func fillPool(t *testing.T) {
	t.Helper()
	pinned := func() (all []string) {
		for _, p := range showPools(t)["pools"].([]any) {
			if p := p.(map[string]any); p["key"] == "0:3001:0:0" {
				all = append(all, fmt.Sprint(p["dma_blocks"], " ", p["free"], " ", p["in_use"], " ", p["pinned"]))
			}
		}
		return all
	}
	for _, step := range []struct{ line, want string }{{"key 0:3001:0:0 pinned 2 aging 3600", "[12289 2 0 2]"}, {"key 0:3001:0:0 pinned 5", "[12289 5 0 5]"}} {
		if out, err := setPools(t, step.line); err != nil {
			t.Fatalf("verbs res frmr set %s: %v\n%s", step.line, err, out)
		}
		if got := fmt.Sprint(pinned()); got != step.want {
			t.Errorf("after %q the pool has %s, want %s", step.line, got, step.want)
		}
	}
	if out, err := verbsText(t, "res", "frmr"); err != nil || !strings.Contains(out, "0:3001:0:0") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := setPools(t, "aging 60 key 0:3001:0:0 pinned 0"); err != nil || !strings.HasSuffix(fmt.Sprint(pinned()), " 0 0]") {
		t.Errorf("with none pinned: %v\n%s%v", err, out, pinned())
	}
	if out, err := setPools(t, "key 2:3001:0:0 pinned 1"); err == nil || !strings.Contains(out, "FRMR pool with this key not supported by driver mlx5") {
		t.Errorf("a key that mlx5 does not know: %v\n%s", err, out)
	}
}

// TestSubDevice: a device without planes has no sub-device, which the error says.
func TestSubDevice(t *testing.T) {
	testenv.Guest(t)
	k := testenv.Kernel(t)
	add, remove := "sub-device of type SMI not supported by driver "+rig.Driver, "only a device that is part of another"
	if slices.Compare(k[:], []int{6, 11}) < 0 {
		add, remove = "(needs Linux 6.11)", "(needs Linux 6.11)"
	}
	for line, want := range map[string]string{
		"dev add ressmi type SMI parent " + dev0: add, "dev delete " + dev0: remove, "dev add ressmi type smi parent nosuch": dev0, "dev delete nosuch": dev0,
		"dev add a-name-that-is-too-long type smi parent " + dev0: "allowed are 1 to 15 bytes",
	} {
		if out, err := verbsText(t, strings.Fields(line)...); err == nil || !strings.Contains(out, want) {
			t.Errorf("verbs %s: %v\n%s, want %q", line, err, out, want)
		}
	}
}
