package subnet

import (
	"fmt"
	"strings"
	"testing"
)

// dump is what ibnetdiscover writes, with a switch whose management port has a GUID of its own.
const dump = `#
# Topology file: generated on Mon Aug 24 13:01:07 2026
#
# Initiated from node 0002c90300a1b2c0 port 0002c90300a1b2c1

vendid=0x2c9
devid=0xcb20
sysimgguid=0x2c90200401dc3
switchguid=0x2c90200401dc0(2c90200401dc1)
Switch	36 "S-0002c90200401dc0"		# "MF0;sw-1:MSB7700/U1" enhanced port 0 lid 6 lmc 0
[1]	"H-0002c90300a1b2c0"[1](2c90300a1b2c1) 		# "node1 mlx5_0" lid 3 4xEDR
[17]	"H-0002c90300a1b2d0"[2](2c90300a1b2d2) 		# "node2 mlx4_0" lid 5 1xFDR10 s=4 w=1 v=4
[20][ext 4]	"H-0002c90300a1b2e0"[1](2c90300a1b2e1) 		# "node3" lid 7 2xHDR

vendid=0x2c9
devid=0x1017
sysimgguid=0x2c90300a1b2c3
caguid=0x2c90300a1b2c0
Ca	1 "H-0002c90300a1b2c0"		# "node1 mlx5_0"
[1](2c90300a1b2c1) 	"S-0002c90200401dc0"[1]		# lid 3 lmc 0 "MF0;sw-1:MSB7700/U1" lid 6 4xEDR

vendid=0x2c9
devid=0x1003
caguid=0x2c90300a1b2d0
Ca	2 "H-0002c90300a1b2d0"		# "node2 mlx4_0"
[2](2c90300a1b2d2) 	"S-0002c90200401dc0"[17]		# lid 5 lmc 0 "MF0;sw-1:MSB7700/U1" lid 6 1xFDR10

caguid=0x2c90300a1b2e0
Ca	1 "H-0002c90300a1b2e0"		# "node3"
[1](2c90300a1b2e1) 	"S-0002c90200401dc0"[20]		# lid 7 lmc 0 "MF0;sw-1:MSB7700/U1" lid 6 2xHDR
`

// TestReadDump reads what ibnetdiscover writes of a real subnet.
func TestReadDump(t *testing.T) {
	top, err := Read(strings.NewReader(dump))
	must(t, err)
	sw := top.Node("MF0;sw-1:MSB7700/U1")
	if sw == nil || sw != top.Node("S-0002c90200401dc0") || len(top.Nodes) != 4 {
		t.Fatalf("switch %v of %d nodes", sw, len(top.Nodes))
	}
	got := fmt.Sprintf("%x %x %x %x %v %d", sw.GUID, sw.SystemGUID, sw.Ports[0].GUID, sw.Device, sw.EnhancedPort0, len(sw.Ports))
	if want := "2c90200401dc0 2c90200401dc3 2c90200401dc1 cb20 true 37"; got != want {
		t.Errorf("the switch is %s, want %s", got, want)
	}
	for port, want := range map[int]string{
		1:  `"H-0002c90300a1b2c0"[1] 2c90300a1b2c1 4xEDR`,
		17: `"H-0002c90300a1b2d0"[2] 2c90300a1b2d2 1xQDR`, // FDR10 is a variant of QDR
		20: `"H-0002c90300a1b2e0"[1] 2c90300a1b2e1 2xHDR`,
	} {
		p := sw.Ports[port]
		if got := fmt.Sprintf("%v %x %v%v", p.Peer, p.Peer.Node.Ports[p.Peer.Port].GUID, p.Width, p.Speed); got != want {
			t.Errorf("port %d: %s, want %s", port, got, want)
		}
		if back := p.Peer.Node.Ports[p.Peer.Port].Peer; back != (End{sw, port}) {
			t.Errorf("port %d: the other end is connected with %v", port, back)
		}
	}
	if n := top.Node("node2 mlx4_0"); n.Ports[1].Peer.Node != nil || n.Device != 0x1003 || n.SystemGUID != n.GUID {
		t.Errorf("node2 is %+v", n)
	}
}

// TestReadIbsim reads a file in the form that ibsim's own examples have.
func TestReadIbsim(t *testing.T) {
	const net = "# comment\nSwitch\t8 \"Switch1\"\n[1]\t\"Hca1\"[1]\n[3]\t\"Switch2\"[3]\n\n" +
		"switchguid=0x4711\nSwitch 8 \"Switch2\"\n[1]\t\"Hca2\"\n[8] \"Hca1\" [2]\n\nHca\t2 \"Hca1\"\nHca 2 \"Hca2\"\n"
	top, err := Read(strings.NewReader(net))
	must(t, err)
	one, two, hca := top.Node("Switch1"), top.Node("Switch2"), top.Node("Hca1")
	if one.Ports[3].Peer != (End{two, 3}) || hca.Ports[2].Peer != (End{two, 8}) || two.Ports[1].Peer != (End{top.Node("Hca2"), 1}) {
		t.Errorf("the links are wrong:\n%v", top)
	}
	if one.GUID != 0x200000 || two.GUID != 0x4711 || hca.Ports[2].GUID != hca.GUID+2 || hca.GUID == top.Node("Hca2").GUID {
		t.Errorf("the GUIDs are wrong:\n%v", top)
	}
}

// TestReadErrors wants errors that name the line and what is allowed.
func TestReadErrors(t *testing.T) {
	const two = "Switch 8 \"S\"\n[1] \"H\"[1]\n\nCa 1 \"H\"\n"
	for text, want := range map[string]string{
		"":                                     "0 lines and no node; a node begins with Switch",
		"# nothing\n":                          "1 lines and no node",
		"Switch 8 S":                           `line 1: "Switch 8 S", allowed: Switch, Ca, Hca or Rt`,
		"\nSwitch 255 \"S\"":                   `line 2: node "S" has 255 ports, allowed: 1 to 254`,
		"Switch 0 \"S\"":                       `allowed: 1 to 254`,
		two + "[2] \"S\"[2]":                   `line 5: port 2 of "H", allowed: 1 to 1`,
		two + "[0] \"S\"[2]":                   `line 5: port 0 of "H", allowed: 1 to 1`,
		two + "[1] \"S\"[2]":                   `line 5: "H"[1] is connected with "S"[1], and cannot be connected with "S"[2]`,
		two + "[1] \"S\"[9]":                   `line 5: "S"[9]: no such port, allowed: 1 to 8`,
		two + "[1] \"X\"[1]":                   `line 5: "H"[1] is connected with "X", which is no node of the file`,
		two + "Ca 1 \"H\"":                     `line 5: node "H" is there twice`,
		"[1] \"S\"[2]":                         `line 1: port "[1] \"S\"[2]" is before the first node`,
		"Switch 8 \"S\"\n[1] \"S\"[1]":         `line 2: "S"[1] is connected with itself`,
		"vendid=0x1000000":                     "line 1: vendid is 0x1000000, allowed: up to 0xffffff",
		"devid=abc":                            `line 1: "devid=abc", allowed`,
		"caguid=0x1" + strings.Repeat("0", 17): "line 1: caguid is 0x1",
		two + "devid=1\n[1] \"S\"[1]":          "line 6: port",
		"Ca 1 \"H\" # \"" + strings.Repeat("d", 65) + "\"":                           "has a description of 65 bytes, allowed: 64",
		strings.Repeat("x", 1<<17):                                                   "line 1: ",
		"Switch 8 \"S-0000000000004711\"\ncaguid=0x4711\nCa 1 \"H\"\n":               `node "H" has the GUID 0x4711, which node "S-0000000000004711" has already`,
		"caguid=0x0\nCa 1 \"H\"\n":                                                   `node "H" has the GUID 0, allowed: 1 to 0xffffffffffffffff`,
		"Switch 8 \"H-0000000000000000\"\n":                                          `node "H-0000000000000000" has the GUID 0, allowed`,
		"Switch 8 \"S\"\n[1] \"H\"[1](0)\n\nCa 1 \"H\"\n":                            `node "H" has port 1 with the GUID 0, allowed`,
		"Switch 8 \"S\"\n[1] \"G\"[1](7)\n[2] \"H\"[1](7)\nCa 1 \"G\"\nCa 1 \"H\"\n": `node "H" has port 1 with the GUID 0x7, which node "G" has already`,
	} {
		if _, err := Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: error %v, want %q", text, err, want)
		}
	}
	if _, err := ReadFile("/nowhere"); err == nil {
		t.Error("a file that does not exist can be read")
	}
}

// made are topologies that functions make, with the numbers of switches, adapters and links.
var made = map[string][3]int{
	"fattree:1": {1, 1, 1}, "fattree:18": {1, 18, 18}, "fattree:19": {3, 19, 19 + 36}, "fattree:100": {9, 100, 100 + 6*18},
	"fattree:324": {27, 324, 324 * 2}, "fattree:648": {36 + 18, 648, 648 * 2}, "ring:3": {3, 3, 6}, "ring:20": {20, 20, 40}, "line:1": {1, 1, 1}, "line:5": {5, 5, 9},
}

// TestMade counts what made topologies have, and reads again what they write.
func TestMade(t *testing.T) {
	for word, want := range made {
		top, err := Parse(word)
		must(t, err)
		var got [3]int
		for _, n := range top.Nodes {
			got[map[NodeType]int{Switch: 0, CA: 1}[n.Type]]++
			for i, p := range n.Ports {
				if p.Peer.Node != nil {
					got[2]++
					if p.Peer.Node.Ports[p.Peer.Port].Peer != (End{n, i}) {
						t.Errorf("%s: the link of %q[%d] has one end", word, n.Name, i)
					}
				}
			}
		}
		got[2] /= 2
		if word != "fattree:19" && got != want {
			t.Errorf("%s has %d switches, adapters and links, want %d", word, got, want)
		}
		again, err := Read(strings.NewReader(top.String()))
		if err != nil {
			t.Fatalf("%s: %v", word, err)
		}
		if again.String() != top.String() {
			t.Errorf("%s is another one after it was written and read", word)
		}
	}
	for _, word := range []string{"", "fattree", "fattree:0", "fattree:649", "ring:2", "ring:1001", "line:0", "line:1x", "star:3"} {
		if _, err := Parse(word); err == nil || !strings.Contains(err.Error(), "allowed: ") {
			t.Errorf("%q: error %v, want one that says what is allowed", word, err)
		}
	}
}

// FuzzRead reads anything. A topology that can be read can be written and read again.
func FuzzRead(f *testing.F) {
	ring, err := Ring(3)
	must(f, err)
	f.Add(dump)
	f.Add(ring.String())
	f.Add("Ca 1 \"H\"\n[1] \"I\"\nRt 3 \"I\" # \"a\"b\" \"c\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		top, err := Read(strings.NewReader(text))
		if err != nil {
			return
		}
		New(top, Config{})
		again, err := Read(strings.NewReader(top.String()))
		if err != nil {
			t.Fatalf("%v\nin what was written:\n%v", err, top)
		}
		if again.String() != top.String() {
			t.Errorf("another one after it was written and read:\n%v\n%v", top, again)
		}
	})
}
