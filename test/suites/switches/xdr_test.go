package switches

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// text runs a program and returns what it prints, without its warnings.
func text(t *testing.T, line string) string {
	t.Helper()
	words := strings.Fields(line)
	if words[0] == "verbs" {
		words[0] = os.Getenv("VERBS")
	}
	out, err := exec.Command(words[0], words[1:]...).Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

// same compares what "verbs ib" prints with what a program of infiniband-diags prints, which has a part n times.
func same(t *testing.T, ours, theirs, part string, n int) {
	t.Helper()
	want, got := text(t, theirs), text(t, "verbs ib "+ours)
	if count := strings.Count(want, part); got != want || count != n {
		t.Errorf("verbs ib %s prints\n%s\n%s prints\n%s\nwith %d times %q, want %d", ours, got, theirs, want, count, part, n)
	}
}

// linked waits until opensm has activated a port of a switch, or the port is in another state.
func linked(t *testing.T, lid, port, state string) {
	t.Helper()
	var row struct{ State string }
	for end := time.Now().Add(program.Patience); ; time.Sleep(100 * time.Millisecond) {
		if verbs(t, &row, "ib", "port", "-d", "mlx5_0", lid, port); row.State == state {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("port %s of LID %s is %s, want %s", port, lid, row.State, state)
		}
	}
}

// TestXDR: on switches whose links run at XDR "verbs ib" prints what infiniband-diags prints, and finds the link that has
// fallen back to NDR.
func TestXDR(t *testing.T) {
	testenv.Boot(t, "GOVERBS_XDR", "fabric/xdr")
	at := lids(t)
	links := func(fast, could int) {
		t.Helper()
		same(t, "links --compat -d mlx5_0", "iblinkinfo -C mlx5_0", " 212.5 Gbps Active", fast)
		same(t, "links --compat -d mlx5_0", "iblinkinfo -C mlx5_0", "Could be 212.5 Gbps", could)
		same(t, "discover --compat --ports -d mlx5_0", "ibnetdiscover --ports -C mlx5_0", "4x XDR - ", fast)
	}
	links(6, 0)
	same(t, "sa --compat port endport_lid="+at["sw1"], "saquery PIR "+at["sw1"], "LinkSpeedExtActive2:.............212.5 Gbps\n", 2)
	same(t, "port --compat -d mlx5_0 "+at["sw1"]+" 2", "ibportstate -C mlx5_0 "+at["sw1"]+" 2", "LinkSpeedExtActive2:.............212.5 Gbps\n", 2)
	type finding struct{ Kind, Text string }
	check := func() (slow []finding) {
		var all []finding
		out, _ := exec.Command(os.Getenv("VERBS"), "ib", "check", "-d", "mlx5_0", "--json").Output() // fails with findings
		decode(t, out, &all)
		for _, f := range all {
			if f.Kind == "speed" {
				slow = append(slow, f)
			}
		}
		return slow
	}
	if slow := check(); len(slow) != 0 {
		t.Errorf("without a slow link, check finds %+v", slow)
	}
	defer do(t, "subnet-rate sw2 3 any any")
	do(t, "subnet-rate sw2 3 4x NDR")
	linked(t, at["sw1"], "2", "ACTIVE")
	links(4, 2)
	if slow := check(); len(slow) != 1 || !strings.HasPrefix(slow[0].Text, "NDR to switch ") || !strings.HasSuffix(slow[0].Text, "both ends support XDR") {
		t.Errorf("with a link that has fallen back to NDR, check finds %+v", slow)
	}
}

// TestQuery: "verbs ib query" and "verbs ib routes" print what smpquery, ibroute and dump_fts print, by LID, GUID and route.
func TestQuery(t *testing.T) {
	testenv.Boot(t, "GOVERBS_XDR", "fabric/xdr")
	at := lids(t)
	sw, card := at["sw1"], at["card1"]
	for ours, c := range map[string]struct {
		theirs, part string
		n            int
	}{
		"node " + sw: {"nodeinfo " + sw, "Switch", 1}, "node 0,1": {"-D nodeinfo 0,1", "DR path slid 65535; dlid 65535; 0,1\n", 1},
		"node " + port(t, "mlx5_1"): {"-G nodeinfo " + port(t, "mlx5_1"), "Channel Adapter", 1}, "desc " + card: {"nodedesc " + card, "card1\n", 1},
		"port " + sw + " 2": {"portinfo " + sw + " 2", "LinkSpeedExtActive2:.............212.5 Gbps\n", 1}, "port " + card: {"portinfo " + card, "LinkSpeedExtActive:..............25.78125 Gbps\n", 1},
		"switch " + sw: {"switchinfo " + sw, "LinearFdbTop:", 1}, "pkey " + card: {"pkeys " + card, "pkeys capacity", 1}, "pkey " + sw + " 2": {"pkeys " + sw + " 2", "0xffff", 1},
		"sl2vl " + sw + " 2": {"sl2vl " + sw + " 2", "out  2: ", 9}, "sl2vl " + card: {"sl2vl " + card, "out  0: ", 1},
		"vlarb " + sw + " 2": {"vlarb " + sw + " 2", "WEIGHT: |", 2}, "vlarb " + card: {"vlarb " + card, "WEIGHT: |", 2}, "guid " + card: {"GUIDInfo " + card, "guids capacity", 1},
	} {
		same(t, "query --compat -d mlx5_0 "+ours, "smpquery -C mlx5_0 "+c.theirs, c.part, c.n)
	}
	same(t, "routes --compat -d mlx5_0 "+sw, "ibroute -C mlx5_0 "+sw, ": (Switch portguid", 3)
	same(t, "routes --compat -d mlx5_0 -M "+sw, "ibroute -C mlx5_0 -M "+sw, "0xc000      ", 1)
	same(t, "routes --compat -d mlx5_0", "dump_fts -C mlx5_0", "6 valid lids dumped", 3)
}

// TestPort: "verbs ib port" takes links of switches down and up, and asks before it cuts one of this host.
func TestPort(t *testing.T) {
	testenv.Boot(t, "GOVERBS_XDR", "fabric/xdr")
	at := lids(t)
	state := func() string {
		return find(t, run(t, "ibportstate", "-C", "mlx5_0", at["sw2"], "2"), `PhysLinkState:\.+(\S+)`)
	}
	set := func(args string) string {
		out, err := exec.Command(os.Getenv("VERBS"), append([]string{"ib", "port", "-d", "mlx5_0"}, strings.Fields(args)...)...).CombinedOutput()
		if err != nil {
			return err.Error() + ": " + string(out)
		}
		return ""
	}
	must := func(args string) {
		t.Helper()
		if what := set(args); what != "" {
			t.Fatalf("verbs ib port %s: %s", args, what)
		}
	}
	must(at["sw2"] + " 2 disable") // to sw3
	if got := state(); got != "Disabled" {
		t.Errorf("after disable, the physical state is %s", got)
	}
	var row struct {
		Speeds []string `json:"enabled_speeds"`
		Widths []string `json:"enabled_widths"`
	}
	verbs(t, &row, append([]string{"ib", "port", "-d", "mlx5_0", at["sw2"]}, strings.Fields("2 speed EDR,XDR width 1X enable")...)...)
	if got := fmt.Sprint(row); got != "{[SDR DDR QDR EDR XDR] [1X]}" {
		t.Errorf("after width 1X and speed EDR,XDR the port may use %s", got)
	}
	linked(t, at["sw2"], "2", "ACTIVE") // opensm allows all speeds again, but not all widths
	if out := run(t, "ibportstate", "-C", "mlx5_0", at["sw2"], "2"); !strings.Contains(out, "LinkWidthActive:.................1X\n") {
		t.Errorf("after width 1X ibportstate prints\n%s", out)
	}
	must(at["sw2"] + " 2 speed all width all reset")
	linked(t, at["sw2"], "2", "ACTIVE")
	if out := run(t, "ibportstate", "-C", "mlx5_0", at["sw2"], "2"); !strings.Contains(out, "LinkWidthActive:.................4X\n") || !strings.Contains(out, "LinkSpeedExtActive2:.............212.5 Gbps\n") {
		t.Errorf("after width all and speed all ibportstate prints\n%s", out)
	}
	for args, why := range map[string]string{at["sw3"] + " 1 disable": "its link leads to this host", "0 1 reset": "it is a port of this host", at["sw1"] + " 1 down": "its link leads to this host"} {
		if what := set(args); !strings.Contains(what, why) || !strings.Contains(what, "There is no terminal to ask; --yes does it") {
			t.Errorf("verbs ib port %s: %q, want %s", args, what, why)
		}
	}
	must(at["sw3"] + " 1 disable --yes")
	becomes(t, "state", "1: DOWN")
	must(at["sw3"] + " 1 enable")
	becomes(t, "state", "2: INIT")
	must(at["sw2"] + " 2 reset") // sw3 tells opensm, which no other event does
	becomes(t, "state", "4: ACTIVE")
}
