// Package switches has tests of the modelled InfiniBand subnet in a VM: opensm rules its switches, and rdma-core's programs
// judge it.
package switches

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/hca/subnet"
	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// must fails a test on an error.
var must = testenv.Must

func TestMain(m *testing.M) { os.Exit(testenv.Main(m, "")) }

// triangle is the topology of the guest of the step fabric/switches.
//
//go:embed testdata/triangle.txt
var triangle string

// run runs a program, which must succeed, and returns what it prints.
func run(t *testing.T, line ...string) string {
	t.Helper()
	return program.Launch(t, line...).Wait(t)
}

// find returns what a regular expression finds in a text: the group, or all of it. It ends the test if there is nothing.
func find(t *testing.T, text, pattern string) string {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("%q is not in\n%s", pattern, text)
	}
	return m[len(m)-1]
}

// links returns the links of a topology by the descriptions of the nodes, sorted.
func links(top *subnet.Topology) (all []string) {
	for _, n := range top.Nodes {
		for i, p := range n.Ports {
			if p.Peer.Node != nil {
				all = append(all, fmt.Sprintf("%v %s[%d] %s[%d]", n.Type, n.Description, i, p.Peer.Node.Description, p.Peer.Port))
			}
		}
	}
	slices.Sort(all)
	return all
}

// discovered runs ibnetdiscover, and compares what it finds with a topology.
func discovered(t *testing.T, want *subnet.Topology) {
	t.Helper()
	start := time.Now()
	out := run(t, "ibnetdiscover")
	t.Logf("ibnetdiscover took %v", time.Since(start).Round(time.Millisecond))
	got, err := subnet.Read(strings.NewReader(out))
	if err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	if len(got.Nodes) != len(want.Nodes) || !slices.Equal(links(got), links(want)) {
		t.Errorf("ibnetdiscover finds %d nodes and the links\n%s\nwant %d nodes and\n%s",
			len(got.Nodes), strings.Join(links(got), "\n"), len(want.Nodes), strings.Join(links(want), "\n"))
	}
	for _, n := range want.Nodes {
		if g := got.Node(n.Description); g == nil || g.GUID != n.GUID {
			t.Errorf("node %q is %+v, want the GUID %#x", n.Description, g, n.GUID)
		}
	}
}

// subnetOf reads the topology of the guest.
func subnetOf(t *testing.T) *subnet.Topology {
	t.Helper()
	testenv.Boot(t, "GOVERBS_SWITCHES", "fabric/switches")
	top, err := subnet.Read(strings.NewReader(triangle))
	must(t, err)
	return top
}

// lids returns the LIDs of the nodes by their descriptions, as the subnet manager knows them.
func lids(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, m := range regexp.MustCompile(`lid\.+(\d+)[^$]*?NodeDescription\.+(\S+)`).FindAllStringSubmatch(run(t, "saquery", "NR"), -1) {
		all[m[2]] = m[1]
	}
	return all
}

// TestRuled: opensm has configured the subnet, and rdma-core's programs see it as it is.
func TestRuled(t *testing.T) {
	top := subnetOf(t)
	discovered(t, top)
	out := run(t, "iblinkinfo")
	if n := strings.Count(out, "4X      25.78125 Gbps Active/  LinkUp"); n != 12 || strings.Contains(out, "Could be") {
		t.Errorf("iblinkinfo prints %d ends of active links, want 12:\n%s", n, out)
	}
	if out := run(t, "sminfo"); !strings.Contains(out, "SMINFO_MASTER") {
		t.Errorf("sminfo: %s", out)
	}
	at := lids(t)
	if len(at) != len(top.Nodes) {
		t.Fatalf("the subnet manager knows %v", at)
	}
	path := run(t, "saquery", "PR", "--src-to-dst", at["card0"]+":"+at["card1"])
	if find(t, path, `dlid\.+(\d+)`) != at["card1"] || find(t, path, `slid\.+(\d+)`) != at["card0"] {
		t.Errorf("the path is\n%s", path)
	}
	// The request to the other end takes a route that begins with a LID.
	out = run(t, "ibportstate", "-C", "mlx5_0", at["sw1"], "2", "query")
	if want := fmt.Sprintf("Peer PortInfo:\n# Port info: Lid %s DR path slid %s; dlid 65535; 0,2 port 3\n", at["sw1"], at["card0"]); !strings.Contains(out, want) {
		t.Errorf("ibportstate prints\n%s\nwant %s", out, want)
	}
	for _, host := range []string{"quiet", "card1"} {
		if host == "card1" {
			server := program.Launch(t, "ibping", "-S", "-C", "mlx5_1")
			server.KeepRunning()
			server.Until(t, "answered", func() bool { // it does not say when it serves
				out, _ := exec.Command("ibping", "-c", "1", "-C", "mlx5_0", at[host]).CombinedOutput()
				return strings.Contains(string(out), " 1 received")
			})
		}
		out := run(t, "ibping", "-f", "-c", "100", "-C", "mlx5_0", at[host])
		if !strings.Contains(out, "100 packets transmitted, 100 received, 0% packet loss") {
			t.Errorf("ibping of %s: %s", host, out)
		}
	}
}

// TestText: with --compat "verbs ib" prints what rdma-core's programs print of the switches.
func TestText(t *testing.T) {
	subnetOf(t)
	sw := lids(t)["sw1"]
	for ours, c := range map[string]struct {
		theirs string
		part   string // of the text
		n      int    // how often it is there
	}{
		"sa --compat switch":                            {"saquery SWIR", "SwitchInfoRecord dump:", 3},
		"sa --compat switch lid=" + sw:                  {"saquery SWIR " + sw, "LID....................................." + sw + "\n", 1},
		"sa --compat lft":                               {"saquery LFTR", "\t\t" + sw + "\t0\n", 1}, // its own port 0
		"sa --compat lft block_num=0 lid=" + sw:         {"saquery LFTR " + sw + "/0", "LFT Record dump:", 1},
		"sa --compat mft":                               {"saquery MFTR", "\t\t0xc000\t0x000a\n", 1}, // card0 and sw3
		"sa --compat mft position=0 lid=" + sw:          {"saquery MFTR " + sw + "/0", "MFT Record dump:", 1},
		"sa --compat sl2vl output_port_num=2 lid=" + sw: {"saquery SL2VL " + sw + "//2", "VL: 0| 1| 2| 3| 4| 5| 6| 7|", 9},
		"sa --compat sl2vl input_port_num=3 lid=" + sw:  {"saquery SL2VL " + sw + "/3", "InPort.....................3\n", 9},
		"sa --compat vlarb output_port_num=2 lid=" + sw: {"saquery VLAR " + sw + "/2", "Weight: 0| 4| 4| 4| 4| 4| 4| 4| 0|", 1},
		"sa --compat vlarb block_num=3 lid=" + sw:       {"saquery VLAR " + sw + "//3", "Block......................3\n", 9},
		"links --compat -d mlx5_0":                      {"iblinkinfo -C mlx5_0", "Active/  LinkUp", 12},
		"discover --compat --ports -d mlx5_0":           {"ibnetdiscover --ports -C mlx5_0", "4x EDR - ", 12},
	} {
		want, got := run(t, strings.Fields(c.theirs)...), run(t, append([]string{os.Getenv("VERBS"), "ib"}, strings.Fields(ours)...)...)
		if n := strings.Count(want, c.part); got != want || n != c.n {
			t.Errorf("verbs ib %s prints\n%s\n%s prints\n%s\nwith %d times %q, want %d", ours, got, c.theirs, want, n, c.part, c.n)
		}
	}
}

// route returns the switches that ibtracert finds between the cards.
func route(t *testing.T, more ...string) (way []string, err error) {
	t.Helper()
	out, err := exec.Command("ibtracert", append(more, "-G", port(t, "mlx5_0"), port(t, "mlx5_1"))...).CombinedOutput()
	for _, m := range regexp.MustCompile(`-> (?:switch|ca) .*"(\S+)"`).FindAllStringSubmatch(string(out), -1) {
		way = append(way, m[1])
	}
	if err != nil {
		return way, fmt.Errorf("ibtracert: %w: %s", err, out)
	}
	if len(way) == 0 {
		return nil, fmt.Errorf("ibtracert finds nothing: %s", out)
	}
	return way, nil
}

// port returns the GUID of a device's port.
func port(t *testing.T, device string) string {
	t.Helper()
	b, err := os.ReadFile("/sys/class/infiniband/" + device + "/ports/1/gids/0")
	must(t, err)
	f := strings.Split(strings.TrimSpace(string(b)), ":")
	return "0x" + strings.Join(f[4:], "")
}

// packets returns how many packets a port of a switch has sent.
func packets(t *testing.T, lid string, port int) int {
	t.Helper()
	n, err := strconv.Atoi(find(t, run(t, "perfquery", "-x", lid, strconv.Itoa(port)), `PortUnicastXmitPkts:\.+(\d+)`))
	must(t, err)
	return n
}

// rping plays ping-pong between the cards by their IP addresses, over IPoIB.
func rping(t *testing.T, rounds int) {
	t.Helper()
	s := program.Launch(t, "rping", "-s", "-a", "10.1.0.2", "-C", strconv.Itoa(rounds))
	s.Serving(t, netlinkrdma.PortSpaceTCP, 7174)
	run(t, "rping", "-c", "-I", "10.1.0.1", "-a", "10.1.0.2", "-C", strconv.Itoa(rounds))
	s.Wait(t)
}

// TestAcross: packets between the cards pass the switches that the tables name, and are counted there.
func TestAcross(t *testing.T) {
	subnetOf(t)
	at := lids(t)
	way, err := route(t)
	if want := []string{"sw1", "sw3", "card1"}; err != nil || !slices.Equal(way, want) {
		t.Fatalf("the route is %q (%v), want %q", way, err, want)
	}
	// The groups of IPoIB have both cards as members.
	if way, err = route(t, "-m", find(t, run(t, "saquery", "-g"), `MGID\.+ff12:401b:ffff::ffff:ffff[^$]*?Mlid\.+(0x\w+)`)); err != nil || len(way) < 3 || way[len(way)-1] != "card1" {
		t.Errorf("the route of the broadcast group is %q (%v)", way, err)
	}
	const rounds = 20
	before := packets(t, at["sw3"], 1)
	rping(t, rounds)
	if n := packets(t, at["sw3"], 1) - before; n < 4*rounds {
		t.Errorf("rping with %d rounds sent %d packets through the switch, want at least %d", rounds, n, 4*rounds)
	}
	run(t, "perfquery", "-R", at["sw3"], "1")
	if n := find(t, run(t, "perfquery", at["sw3"], "1"), `PortXmitPkts:\.+(\d+)`); len(n) > 2 {
		t.Errorf("after a reset, PortXmitPkts is %s", n)
	}
}

// TestReroute cuts the link that the cards use. The switches tell opensm by a trap, which finds another route.
func TestReroute(t *testing.T) {
	subnetOf(t)
	b, err := testenv.OpenCard("mlx5_0")
	must(t, err)
	defer b.Close()
	bring := func(state string, want ...string) {
		t.Helper()
		if _, err := b.Do("subnet-link sw1 3 %s", state); err != nil {
			t.Fatal(err)
		}
		var way []string
		for end := time.Now().Add(program.Patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if way, err = route(t); err == nil && slices.Equal(way, want) {
				return
			}
		}
		t.Fatalf("after the link went %s, the route is %q (%v), want %q", state, way, err, want)
	}
	defer b.Do("subnet-link sw1 3 up")
	bring("down", "sw1", "sw2", "sw3", "card1")
	rping(t, 5)
	log, err := os.ReadFile("/tmp/opensm.log")
	must(t, err)
	for _, sw := range []string{"sw1", "sw3"} {
		find(t, string(log), `Received Generic Notice type:1 num:128 \(Link state change\) Producer:2 \(Switch\) from LID:`+lids(t)[sw]+` `)
	}
	bring("up", "sw1", "sw3", "card1")
	rping(t, 5)
}

// TestMany has ibnetdiscover find 324 adapters without guests behind 27 switches.
func TestMany(t *testing.T) {
	testenv.Boot(t, "GOVERBS_MANY", "fabriclong")
	top, err := subnet.FatTree(324)
	must(t, err)
	// The cards have the places of the first two hosts.
	discovered(t, top)
	if n := strings.Count(run(t, "saquery", "NR"), "NodeDescription"); n != 324+27 {
		t.Errorf("the subnet manager knows %d nodes, want %d", n, 324+27)
	}
}
