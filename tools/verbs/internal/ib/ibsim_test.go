package ib

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/test/ibsim"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/terminal"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/fabric"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// execute runs a command on a node of a simulated subnet, and returns what it prints.
func execute(t *testing.T, s *System, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	root := &command.Root{Stdout: terminal.New(&out), Stderr: terminal.New(&errs), PrintHelp: func(*command.Command) {}, FlagError: func(_ *command.Command, err error) error { return err }}
	root.Command = command.Command{Use: "verbs"}
	root.Init()
	root.Add(New(s))
	err = root.Execute(t.Context(), append([]string{"ib"}, args...))
	return out.String(), errs.String(), err
}

// must is execute for a command that must succeed and complain about nothing.
func must(t *testing.T, s *System, args ...string) string {
	t.Helper()
	out, errs, err := execute(t, s, args...)
	if err != nil || errs != "" {
		t.Fatalf("verbs ib %s: %v\n%s", strings.Join(args, " "), err, errs)
	}
	return out
}

// simulated is the System with the port of a node.
func simulated(s *ibsim.Sim, node string) *System {
	m := machine(nil, node+"/1 ib active")
	m.Open = func(string, int) (*umad.Port, error) { return s.Port(node), nil }
	return m
}

// generated is the line of a topology that has the time.
var generated = regexp.MustCompile(`(?m)^# Topology file: generated on .*$`)

// TestCompatSim: with --compat the commands print what infiniband-diags prints, byte for byte but for
// the time, on fabrics of three sizes under opensm.
func TestCompatSim(t *testing.T) {
	for _, hosts := range []int{10, 100, 324} {
		t.Run(fmt.Sprint(hosts), func(t *testing.T) {
			s := ibsim.Start(t, ibsim.FatTree(hosts))
			s.OpenSM("h1", false)
			m := simulated(s, "h2")
			for _, c := range []struct{ ours, theirs string }{
				{"discover --compat", "ibnetdiscover"}, {"discover --compat --ports", "ibnetdiscover --ports"}, {"links --compat", "iblinkinfo"},
			} {
				words := strings.Fields(c.theirs)
				theirs := generated.ReplaceAllString(s.Output("h2", words[0], words[1:]...), "#")
				ours := generated.ReplaceAllString(must(t, m, strings.Fields(c.ours)...), "#")
				if len(theirs) < 1000 || ours != theirs {
					t.Errorf("%s (-ours +%s):\n%s", c.ours, c.theirs, cmp.Diff(ours, theirs))
				}
			}
		})
	}
}

// TestTraceSim: verbs ib trace finds the same routes as ibtracert, from every kind of node to every
// other, also if they begin at another port than the own.
func TestTraceSim(t *testing.T) {
	for _, hosts := range []int{10, 100, 324} {
		t.Run(fmt.Sprint(hosts), func(t *testing.T) {
			s := ibsim.Start(t, ibsim.FatTree(hosts))
			s.OpenSM("h1", false)
			m := simulated(s, "h2")
			lids := map[string]string{}
			for line := range strings.Lines(must(t, m, "discover")) {
				if f := strings.Fields(line); len(f) > 5 {
					lids[f[5]] = f[2]
				}
			}
			names := []string{"h1", "h2", fmt.Sprintf("h%d", hosts), fmt.Sprintf("h%d", hosts/2), "leaf1"}
			if hosts > 18 {
				names = append(names, "spine3", "leaf2")
			}
			for _, from := range names {
				for _, to := range names {
					theirs, errs, err := s.Run("h2", "ibtracert", lids[from], lids[to])
					if err != nil {
						t.Fatal(from, to, err, errs)
					}
					if ours := must(t, m, "trace", "--compat", lids[from], lids[to]); ours != theirs || !strings.Contains(ours, "\nTo ") {
						t.Errorf("from %s to %s (-ours +ibtracert):\n%s", from, to, cmp.Diff(ours, theirs))
					}
				}
			}
		})
	}
}

// TestTraceMulticastSim: verbs ib trace finds the same routes of a group's packets as ibtracert -m.
func TestTraceMulticastSim(t *testing.T) {
	s := ibsim.Start(t, ibsim.FatTree(40))
	s.OpenSM("h1", false)
	const mlid = "0xc000"
	p := s.Port("h1")
	writeGroup(t, p, 0xc000)
	p.Close()
	m := simulated(s, "h2")
	lids := map[string]string{}
	for line := range strings.Lines(must(t, m, "discover")) {
		if f := strings.Fields(line); len(f) > 5 {
			lids[f[5]] = f[2]
		}
	}
	for _, pair := range [][2]string{{"h2", "h40"}, {"h2", "h3"}, {"h30", "h2"}, {"leaf2", "h40"}} {
		theirs, errs, err := s.Run("h2", "ibtracert", "-m", mlid, lids[pair[0]], lids[pair[1]])
		if err != nil {
			t.Fatal(pair, err, errs)
		}
		if ours := must(t, m, "trace", "--compat", "--mlid", mlid, lids[pair[0]], lids[pair[1]]); ours != theirs || !strings.Contains(ours, "\nTo ca ") {
			t.Errorf("%v (-ours +ibtracert):\n%s", pair, cmp.Diff(ours, theirs))
		}
	}
}

// writeGroup gives every switch a multicast forwarding table in which a group has a tree: all hosts, and the
// first link to the first spine.
func writeGroup(t *testing.T, p *umad.Port, mlid uint16) {
	t.Helper()
	f, err := fabric.Discover(t.Context(), p, fabric.Options{})
	if err != nil {
		t.Fatal(err)
	}
	agent, err := p.Register(umad.AgentOptions{Class: mad.ClassSubnDirected})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range f.Nodes {
		if !n.IsSwitch() {
			continue
		}
		var masks [3]mad.MulticastForwardingTable
		linked := map[*fabric.Node]bool{}
		for _, port := range n.Ports {
			r := port.Remote
			if r == nil || linked[r.Node] || r.Node.IsSwitch() && r.Node.Description != "spine1" && n.Description != "spine1" {
				continue
			}
			linked[r.Node] = true
			masks[port.Number/16].PortMask[mlid-0xc000] |= 1 << (port.Number % 16)
		}
		for position := range masks {
			req, err := mad.NewDirectedSMP(mad.MethodSet, mad.AttrMulticastForwardingTable, uint32(position)<<28, n.Path...)
			if err != nil {
				t.Fatal(err)
			}
			if err := req.Put(&masks[position]); err != nil {
				t.Fatal(err)
			}
			if _, err := agent.Do(t.Context(), umad.Addr{}, req); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// newer removes the lines of PortInfo that this version of infiniband-diags does not print yet from a text: those of XDR.
func newer(theirs, ours string) string {
	if strings.Contains(theirs, "LinkSpeedExtActive2") {
		return ours
	}
	return xdrLine.ReplaceAllString(ours, "")
}

// xdrLine is a line of PortInfo about XDR.
var xdrLine = regexp.MustCompile(`(?m)^\s*LinkSpeedExt[A-Z][a-z]+2:.*\n`)

// TestQuerySim: verbs ib query prints what smpquery prints, of a switch and an adapter, by LID and by route.
func TestQuerySim(t *testing.T) {
	s := ibsim.Start(t, ibsim.FatTree(40))
	s.OpenSM("h1", false)
	m := simulated(s, "h2")
	lids := map[string]string{}
	for line := range strings.Lines(must(t, m, "discover")) {
		if f := strings.Fields(line); len(f) > 5 {
			lids[f[5]] = f[2]
		}
	}
	for ours, theirs := range map[string]string{
		"node": "nodeinfo", "desc": "nodedesc", "port": "portinfo", "switch": "switchinfo", "pkey": "pkeys", "sl2vl": "sl2vl", "vlarb": "vlarb", "guid": "GUIDInfo",
	} {
		for _, dest := range []string{lids["leaf1"], lids["leaf1"] + " 3", lids["h40"], "0", "0,1", "0,1 2"} {
			words := strings.Fields(dest)
			onSwitch := words[0] == "0,1" || words[0] == lids["leaf1"]
			hasPort := ours == "port" || ours == "pkey" || ours == "sl2vl" || ours == "vlarb"
			if len(words) > 1 && !hasPort || !onSwitch && ours == "switch" {
				continue
			}
			args := append([]string{theirs}, words...)
			if words[0][0] == '0' {
				args = append([]string{"-D"}, args...)
			}
			want, errs, err := s.Run("h2", "smpquery", args...)
			if err != nil {
				t.Errorf("smpquery %q: %v\n%s", args, err, errs)
				continue
			}
			got := newer(want, must(t, m, append([]string{"query", "--compat", ours}, words...)...))
			if got != want || len(want) < 20 {
				t.Errorf("%s %s (-ours +smpquery):\n%s", ours, dest, cmp.Diff(got, want))
			}
		}
	}
}

// TestRoutesSim: verbs ib routes prints what ibroute prints of one switch, and dump_fts of all.
func TestRoutesSim(t *testing.T) {
	s := ibsim.Start(t, ibsim.FatTree(100))
	s.OpenSM("h1", false)
	p := s.Port("h1")
	writeGroup(t, p, 0xc001)
	p.Close()
	m := simulated(s, "h2")
	var lid string
	for line := range strings.Lines(must(t, m, "discover")) {
		if f := strings.Fields(line); len(f) > 5 && f[5] == "leaf2" {
			lid = f[2]
		}
	}
	for ours, theirs := range map[string]string{
		"": "dump_fts", "-n": "dump_fts -n", "-M": "dump_fts -M", "-M -n": "dump_fts -M -n",
		lid: "ibroute " + lid, "-n " + lid: "ibroute -n " + lid, "-a " + lid + " 5 70": "ibroute -a " + lid + " 5 70", "-a " + lid + " 100 127": "ibroute -a " + lid + " 100 127",
		"-M " + lid: "ibroute -M " + lid, "-M -n " + lid: "ibroute -M -n " + lid, "-M -a " + lid + " 0xc000 0xc021": "ibroute -M -a " + lid + " 0xc000 0xc021",
		"0,1": "ibroute -D 0,1",
	} {
		words := strings.Fields(theirs)
		want, errs, err := s.Run("h2", words[0], words[1:]...)
		if err != nil {
			t.Errorf("%s: %v\n%s", theirs, err, errs)
			continue
		}
		if got := must(t, m, append([]string{"routes", "--compat"}, strings.Fields(ours)...)...); got != want || strings.Count(want, "\n") < 4 {
			t.Errorf("routes %s (-ours +%s):\n%s", ours, theirs, cmp.Diff(got, want))
		}
	}
}

// TestPortSim: verbs ib port prints what ibportstate prints, of ports of a switch and of adapters, and does what it does.
func TestPortSim(t *testing.T) {
	s := ibsim.Start(t, ibsim.FatTree(40))
	s.OpenSM("h1", false)
	m := simulated(s, "h2")
	m.Own = func() ([]ib.GUID, error) { return nil, nil }
	// The first run of ibportstate may change the port, so a second one is compared, too.
	for _, c := range []string{
		"0,1 3", "0,1 19", "0 1", "0,1 0", "0,1,3 1", "0,1 5 disable", "0,1 5 enable", "0,1 6 down", "0,1 6 speed 1", "0,1 6 speed 15", "0,1 6 width 1", "0,1 6 width 255",
	} {
		theirs := strings.Fields(c)
		ours := append([]string{"port", "--compat"}, strings.Fields(strings.NewReplacer("speed 15", "speed all", "speed 1", "speed SDR", "width 255", "width all", "width 1", "width 1X").Replace(c))...)
		run := func() string {
			out, errs, err := s.Run("h2", "ibportstate", append([]string{"-D"}, theirs...)...)
			if err != nil {
				t.Fatalf("ibportstate -D %s: %v\n%s", c, err, errs)
			}
			return out
		}
		first := run()
		got := must(t, m, ours...)
		if want := run(); got != want && got != first || len(want) < 100 {
			t.Errorf("port %s (-ours +ibportstate):\n%s", c, cmp.Diff(got, want))
		}
	}
}
