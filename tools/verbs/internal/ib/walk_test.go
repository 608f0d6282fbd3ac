package ib

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/test/ibsim"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// columns makes one space of several, so that the width of columns does not matter.
func columns(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

// TestTables: what the commands print by default.
func TestTables(t *testing.T) {
	m := (&line{length: 2, narrow: "host2"}).system()
	for args, want := range map[string]string{
		"links": `node port LID state physical rate could be peer port LID
host1 1 2 ACTIVE LINK_UP 4X EDR - switch1 1 1
switch1 2 1 ACTIVE LINK_UP 4X EDR - switch2 3 3
switch2 1 3 ACTIVE LINK_UP 1X QDR 4X EDR host2 1 4`,
		"discover": `type node GUID LID ports links name route
CA 0x0000000000100000 2 1 1 host1 []
switch 0x0000000000200000 1 8 2 switch1 [1]
switch 0x0000000000200009 3 8 2 switch2 [1 2]
CA 0x0000000000100002 4 1 1 host2 [1 2 1]`,
		"trace host2": `hop out in type LID name
0 - 1 CA 2 host1
1 1 1 switch 1 switch1
2 2 3 switch 3 switch2
3 1 1 CA 4 host2`,
		"trace 4 0x0000000000200000": `hop out in type LID name
0 - 1 CA 4 host2
1 1 1 switch 3 switch2
2 3 2 switch 1 switch1`,
		"trace 0000:0000:0010:0003 2": `hop out in type LID name
0 - 1 CA 4 host2
1 1 1 switch 3 switch2
2 3 2 switch 1 switch1
3 1 1 CA 2 host1`,
		"trace 003": `hop out in type LID name
0 - 1 CA 2 host1
1 1 1 switch 1 switch1
2 2 3 switch 3 switch2`,
	} {
		if diff := cmp.Diff(columns(must(t, m, strings.Fields(args)...)), want); diff != "" {
			t.Errorf("%s (-got +want):\n%s", args, diff)
		}
	}
	out, _, err := execute(t, m, "check")
	want := `kind node port finding
width switch2 1 1X to CA "host2" port 1, both ends support 4X
speed switch2 1 QDR to CA "host2" port 1, both ends support EDR`
	// The end with the smaller GUID has the finding.
	want = strings.NewReplacer("switch2 1", "host2 1", `CA "host2" port 1`, `switch "switch2" port 1`).Replace(want)
	if diff := cmp.Diff(columns(out), want); diff != "" || !errors.Is(err, errFindings) {
		t.Errorf("check: %v (-got +want):\n%s", err, diff)
	}
	if out, _, err := execute(t, m, "links", "--down"); err != nil || strings.Count(out, "POLLING") != 2*8-4 || strings.Count(out, "\n") != 1+3+2*8-4 {
		t.Errorf("links --down: %v\n%s", err, out)
	}
}

// TestJSON: what the commands print as JSON can be read back, and has what the tables have.
func TestJSON(t *testing.T) { synctest.Test(t, testJSON) }

func testJSON(t *testing.T) {
	m := (&line{length: 3, errors: map[string]uint16{"host2": 77}, silent: func(node string, _ *mad.Packet) bool { return node == "host3" }}).system()
	var links []LinkRow
	var f FabricReport
	var found []FindingRow
	var route TraceReport
	for args, v := range map[string]any{
		"links --json": &links, "discover --json": &f, "check --json --threshold SymbolErrorCounter=77": &found, "trace --json host2": &route,
	} {
		out, errs, err := execute(t, m, append(strings.Fields(args), "--timeout", "20ms", "--tries", "1")...)
		if e := json.Unmarshal([]byte(out), v); e != nil {
			t.Errorf("%s: %v, %v\n%s", args, err, e, out)
		}
		if (args[:5] == "links" || args[:5] == "disco") && !strings.Contains(errs, "verbs: route [1 2 2 1]: ") {
			t.Errorf("%s: the silent node is not reported: %q", args, errs)
		}
		if wantErr := strings.HasPrefix(args, "check"); errors.Is(err, errFindings) != wantErr || !wantErr && err != nil {
			t.Errorf("%s: %v", args, err)
		}
	}
	if len(links) != 3+2-1 || links[0].Peer == nil || links[0].Speed != "EDR" || links[0].RateGbps != 103.125 {
		t.Errorf("%d links, %+v", len(links), links[0])
	}
	if len(f.Nodes) != 3+3-1 || len(f.Problems) != 1 || fmt.Sprint(f.Problems[0].Hops) != "[1 2 2 1]" || f.Nodes[0].Node != "host1" {
		t.Errorf("%d nodes, %+v", len(f.Nodes), f.Problems)
	}
	kinds := map[string]string{}
	for _, x := range found {
		kinds[x.Kind] = x.Counter
	}
	if len(kinds) != 2 || kinds["counter"] != "SymbolErrorCounter" || kinds["walk"] != "" {
		t.Errorf("%+v", found)
	}
	if len(route.Hops) != 3 || route.Hops[2].Node != "host2" || route.From.Node != "host1" || route.Reason != "" {
		t.Errorf("%+v", route)
	}
}

// TestXDR: links at XDR have its name in every form, and one that runs at NDR could be faster.
func TestXDR(t *testing.T) {
	active := uint8(1)
	m := (&line{length: 2, edit: func(_ uint8, i *mad.PortInfo) {
		i.CapabilityMask, i.CapabilityMask2 = mad.CapExtSpeeds|mad.CapMask2, mad.Cap2ExtSpeeds2
		i.LinkSpeedExtSupported, i.LinkSpeedExtSupported2, i.LinkSpeedExtActive, i.LinkSpeedExtActive2 = 15, 1, 8*(1-active), active
	}}).system()
	for active = range uint8(2) {
		name, gbps, could, finding := "XDR", 850.0, "", "no findings\n"
		if active == 0 {
			name, gbps, could, finding = "NDR", 425, "XDR", "both ends support XDR\n"
		}
		var links []LinkRow
		if err := json.Unmarshal([]byte(must(t, m, "links", "--json")), &links); err != nil || len(links) != 3 || links[1].Speed != name || links[1].RateGbps != gbps || links[1].CouldSpeed != could {
			t.Errorf("%v, %+v", err, links)
		}
		if out, _, _ := execute(t, m, "check"); !strings.Contains(out, finding) {
			t.Errorf("check of links at %s:\n%s", name, out)
		}
		for args, want := range map[string]string{
			"discover --compat": "lid 4 4x" + name + "\n", "discover --compat --ports": " 4x " + name + " - CA ",
			"links --compat": map[bool]string{true: "==( 4X         212.5 Gbps Active/  LinkUp)==>       3    3[  ] \"switch2\" ( )\n", false: "==( 4X        106.25 Gbps Active/  LinkUp)==>       3    3[  ] \"switch2\" ( Could be 212.5 Gbps)\n"}[active == 1],
			"links":          map[bool]string{true: "4X XDR", false: "4X NDR"}[active == 1],
		} {
			if out := must(t, m, strings.Fields(args)...); !strings.Contains(out, want) {
				t.Errorf("%s of links at %s has no %q:\n%s", args, name, want, out)
			}
		}
	}
}

// TestUnknownSpeed: the speed of a switch's ports is not known without its port 0.
func TestUnknownSpeed(t *testing.T) { synctest.Test(t, testUnknownSpeed) }

func testUnknownSpeed(t *testing.T) {
	m := (&line{length: 1, silent: func(node string, req *mad.Packet) bool {
		return node == "switch1" && req.Attribute == mad.AttrPortInfo && req.Modifier == 0
	}}).system()
	run := func(args ...string) string {
		out, errs, err := execute(t, m, append(args, "--timeout", "20ms", "--tries", "1")...)
		if err != nil || strings.Count(errs, "no answer to directed SubnGet(PortInfo)") != 1 {
			t.Errorf("%q: %v\n%s", args, err, errs)
		}
		return out
	}
	if out := columns(run("links")); !strings.Contains(out, "host1 1 2 ACTIVE LINK_UP 4X EDR - switch1 1 0") {
		t.Errorf("links:\n%s", out)
	}
	var f FabricReport
	if err := json.Unmarshal([]byte(run("discover", "--json")), &f); err != nil || len(f.Nodes) < 2 {
		t.Fatal(err, f)
	}
	for _, p := range f.Nodes[1].Ports {
		if p.Port == 1 && (p.Width != 4 || p.Speed != "" || p.RateGbps != 0) {
			t.Errorf("%+v", p)
		}
	}
	if out := run("discover", "--compat"); !strings.Contains(out, "# \"host1\" lid 2 4x???\n") {
		t.Errorf("discover --compat:\n%s", out)
	}
	if r := (&LinkRow{Width: 4}); r.rate() != "4X -" {
		t.Errorf("the rate is %q", r.rate())
	}
}

// TestLIDNumber: a LID is decimal or has 0x; a number with as many digits as a GUID is none.
func TestLIDNumber(t *testing.T) {
	for text, want := range map[string]int{"4": 4, "010": 10, "0xc001": 0xc001, "0X00007": 7, "65535": 65535, "65536": -1, "0x10000": -1, "": -1, "0x": -1, "-1": -1,
		"1_0": -1, "0b1": -1, "0x0000000000001234": -1, "host1": -1} {
		if n, ok := lidNumber(text); ok != (want >= 0) || ok && int(n) != want {
			t.Errorf("%q: %d, %v, want %d", text, n, ok, want)
		}
	}
}

// TestUsage: what is wrong on the command line is named, with what is allowed.
func TestUsage(t *testing.T) {
	m := (&line{length: 2}).system()
	for args, want := range map[string]string{
		"discover --ports":                  "--ports is true, allowed: with --compat only",
		"trace":                             "verbs ib trace needs TO",
		"trace 1 2 3":                       `the arguments of verbs ib trace are "1 2 3", allowed: at most 2`,
		"links --json --compat":             "--json is given with --compat, allowed: one of them",
		"discover --json --compat":          "--json is given with --compat, allowed: one of them",
		"trace --json --compat 1":           "--json is given with --compat, allowed: one of them",
		"links --compat --down":             "--down is true, allowed: without --compat",
		"trace 0":                           `an end of the route is "0", allowed: a LID, 1 to 49151`,
		"trace 0xc000":                      `an end of the route is "0xc000", allowed: a LID`,
		"trace 0x0000000000000004":          `an end of the route is "0x0000000000000004", allowed: a LID`,
		"trace 100000":                      `an end of the route is "100000", allowed: a LID`,
		"trace nosuch":                      `an end of the route is "nosuch", allowed: a LID, 1 to 49151, or the GUID or description of one of the 4 nodes`,
		"trace --mlid 5 1":                  `--mlid is "5", allowed: 0xc000 to 0xfffe`,
		"trace --mlid 0xffff 1":             `--mlid is "0xffff", allowed: 0xc000 to 0xfffe`,
		"check --threshold Bogus=1":         `the counter of --threshold is "Bogus", allowed: ExcessiveBufferOverrunErrors, `,
		"check --threshold VL15Dropped=few": `the value of --threshold VL15Dropped is "few", allowed: a whole number`,
		"check --interval -1s":              "--interval is -1s, allowed: 0s to 24h",
		"links extra":                       `the arguments of verbs ib links are "extra", allowed: none`,
		"nosuch":                            `the command of verbs ib is "nosuch", allowed: `,
	} {
		if _, _, err := execute(t, m, strings.Fields(args)...); !errors.As(err, new(command.UsageError)) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
}

// TestNoQP0: every command that walks says that a port of RoCE has no QP0.
func TestNoQP0(t *testing.T) {
	m := machine(nil, "rxe0/1 eth active")
	m.Open = func(device string, _ int) (*umad.Port, error) { return ibsim.NoQP0(device), nil }
	for _, args := range []string{"links", "discover", "check", "trace 1", "trace name"} {
		_, _, err := execute(t, m, append(strings.Fields(args), "--dev", "rxe0")...)
		if !errors.Is(err, umad.ErrNoQP0) || !strings.Contains(err.Error(), "it is a port of RoCE") {
			t.Errorf("%s: %v", args, err)
		}
	}
}
