package health

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// asHealthy is what the machine of healthy has.
const asHealthy = `{"netns": "shared", "ports": [{"device": "rxe*", "driver": "rxe", "count": 1, "firmware": "1.*",
	"link_layer": "Ethernet", "rate_gbps": 10, "mtu": 4096, "netdev_mtu": 4200, "gid_type": "RoCE v2"}]}`

// parse parses an expectation.
func parse(t *testing.T, text string) *Expectation {
	t.Helper()
	e, err := ParseExpectation([]byte(text))
	must(t, err)
	return e
}

// TestCompare: each thing in which a machine can differ is one finding of its own, with what it is and what was
// expected.
func TestCompare(t *testing.T) {
	for _, c := range []struct {
		name string
		text string
		sick func(p patient)
		want []string // titles with subjects; none if all is as expected
		fix  string
	}{
		{name: "all", text: asHealthy},
		{name: "at least", text: strings.NewReplacer("4096", "1024", "4200", "1500", `"count": 1, `, "").Replace(asHealthy)},
		{name: "any", text: `{"ports": [{}]}`},
		{name: "netns", text: `{"netns": "exclusive"}`, want: []string{"the mode of network namespaces is shared, expected exclusive"}, fix: "verbs system set netns exclusive"},
		{name: "netns unknown", text: asHealthy, sick: func(p patient) { p.netnsMode = func() (string, error) { return "", errors.New("no netlink") } },
			want: []string{"the mode of network namespaces is not known"}},
		{name: "count", text: `{"ports": [{"device": "rxe*", "count": 2}]}`, want: []string{"devices rxe*: found 1 port, expected 2"}},
		{name: "other name", text: `{"ports": [{"device": "mlx5_*"}]}`, want: []string{"devices mlx5_*: found no port, expected one or more"}},
		{name: "other driver", text: `{"ports": [{"driver": "mlx5"}]}`, want: []string{"all devices with driver mlx5: found no port, expected one or more"}},
		{name: "firmware", text: `{"ports": [{"firmware": "28.*"}]}`, want: []string{"rxe0: firmware is 1.2.3, expected 28.*"}},
		{name: "state", text: asHealthy, sick: func(p patient) { p.facts.state = ib.PortDown }, want: []string{"rxe0 port 1: the state is DOWN, expected ACTIVE"}},
		{name: "link layer", text: `{"ports": [{"link_layer": "InfiniBand"}]}`, want: []string{"rxe0 port 1: the link layer is Ethernet, expected InfiniBand"}},
		{name: "rate", text: `{"ports": [{"rate_gbps": 400}]}`, want: []string{"rxe0 port 1: the rate is 10 Gb/s, expected 400 Gb/s or more"}},
		{name: "mtu", text: asHealthy, sick: func(p patient) { p.facts.attr.ActiveMTU = ib.MTU1024 }, want: []string{"rxe0 port 1: the path MTU is 1024, expected 4096 or more"}},
		{name: "netdev mtu", text: `{"ports": [{"netdev_mtu": 9000}]}`, want: []string{"rxe0 port 1: the MTU of eth0 is 4200, expected 9000 or more"}, fix: "ip link set dev eth0 mtu 9000"},
		{name: "no netdev", text: `{"ports": [{"netdev_mtu": 9000}]}`, sick: func(p patient) {
			p.facts.gids = nil
			p.machine.ports = func(netlinkrdma.Device) ([]netlinkrdma.Port, error) { return nil, errors.New("no netlink") }
			p.facts.NetdevIndex = 0
		},
			want: []string{"rxe0 port 1: the MTU of its network interface is not known, expected 9000 or more"}},
		{name: "gid", text: `{"ports": [{"gid_type": "RoCE v1"}]}`, want: []string{"rxe0 port 1: the number of GIDs of type RoCE v1 that are not link-local is 0, expected 1 or more"}},
		{name: "link-local only", text: asHealthy, sick: func(p patient) { p.facts.gids = p.facts.gids[:1] },
			want: []string{"rxe0 port 1: the number of GIDs of type RoCE v2 that are not link-local is 0, expected 1 or more"}},
		{name: "InfiniBand", text: `{"ports": [{"gid_type": "IB"}]}`, sick: func(p patient) { p.facts.gids = []uverbs.GIDEntry{gid(t, 0, "fe80::2", ib.GIDTypeIB)} }},
		{name: "no InfiniBand", text: `{"ports": [{"gid_type": "IB"}]}`, want: []string{"rxe0 port 1: the number of GIDs of type IB is 0, expected 1 or more"}},
		{name: "several", text: `{"ports": [{"rate_gbps": 400, "mtu": 4096}, {"count": 3}]}`, sick: func(p patient) { p.facts.attr.ActiveMTU = ib.MTU512 },
			want: []string{"rxe0 port 1: the rate is 10 Gb/s, expected 400 Gb/s or more", "rxe0 port 1: the path MTU is 512, expected 4096 or more", "all devices: found 1 port, expected 3"}},
		{name: "cannot be asked", text: asHealthy, sick: func(p patient) { p.machine.probe = func(string) (probe, error) { return probe{}, errors.New("hangs") } },
			want: []string{"rxe0: the device cannot be opened, so its ports cannot be compared (ports[0])"}},
		{name: "no list", text: asHealthy, sick: func(p patient) {
			p.infos = func() ([]uverbs.DeviceInfo, error) { return nil, errors.New("no netlink") }
		}, want: []string{"the devices cannot be listed, and ports are expected"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := healthy(t)
			p.facts.attr.ActiveWidth, p.facts.attr.ActiveSpeed = 1, 4 // 10 Gb/s
			p.info.Ports, p.info.Firmware = 1, "1.2.3"
			if c.sick != nil {
				c.sick(p)
			}
			d := Report{Verdict: "RDMA works"}
			d.compare(p.machine, parse(t, c.text))
			var got []string
			for _, f := range d.Findings {
				if f.Code != CodeExpected || len(f.Evidence) == 0 {
					t.Errorf("%+v", f)
				}
				if f.Level == LevelError {
					got = append(got, f.Subject()+f.Title)
				}
			}
			if !slices.Equal(got, c.want) || *d.AsExpected != (len(c.want) == 0) {
				t.Errorf("findings are %q, as expected: %v; want %q", got, *d.AsExpected, c.want)
			}
			if ok := strings.HasSuffix(d.Verdict, "all is as expected"); ok != *d.AsExpected {
				t.Errorf("the verdict is %q", d.Verdict)
			}
			if c.fix != "" && !slices.ContainsFunc(d.Findings, func(f Finding) bool { return slices.Contains(f.Fix, c.fix) }) {
				t.Errorf("no finding has the fix %q: %+v", c.fix, d.Findings)
			}
		})
	}
}

// TestExpectationFields: an error about a field that is not known lists all that are.
func TestExpectationFields(t *testing.T) {
	var all []string
	for _, typ := range []reflect.Type{reflect.TypeFor[Expectation](), reflect.TypeFor[PortExpectation]()} {
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			all = append(all, name)
		}
	}
	if !slices.Equal(all, expectationFields) {
		t.Errorf("the fields are %q, and expectationFields %q", all, expectationFields)
	}
}

// TestParseExpectation: what is wrong is named with what is allowed.
func TestParseExpectation(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "it is empty",
		"{}":                                 "nothing to compare",
		`{"ports": []}`:                      "nothing to compare",
		`{"netns": "shared"} {}`:             "something behind the JSON object",
		`{"netns": "private"}`:               `netns is "private", allowed: shared, exclusive`,
		`{"port": []}`:                       `there is no field "port", allowed: netns, ports, device, driver, count, firmware, link_layer, rate_gbps, mtu, netdev_mtu, gid_type`,
		`{"ports": [{"speed": 3}]}`:          `there is no field "speed"`,
		`{"ports": [{"device": "[a"}]}`:      `ports[0].device is "[a", allowed: a pattern`,
		`{"ports": [{}, {"firmware": "["}]}`: `ports[1].firmware is "["`,
		`{"ports": [{"count": -1}]}`:         `ports[0].count is -1, allowed: 0 to 65536`,
		`{"ports": [{"link_layer": "ethernet"}]}`: `ports[0].link_layer is "ethernet", allowed: InfiniBand, Ethernet`,
		`{"ports": [{"rate_gbps": -4}]}`:          `ports[0].rate_gbps is -4, allowed: 0 to 1000000`,
		`{"ports": [{"mtu": 9000}]}`:              `ports[0].mtu is 9000, allowed: 256, 512, 1024, 2048, 4096`,
		`{"ports": [{"netdev_mtu": 70000}]}`:      `ports[0].netdev_mtu is 70000, allowed: 0 to 65536`,
		`{"ports": [{"gid_type": "v2"}]}`:         `ports[0].gid_type is "v2", allowed: IB, RoCE v1, RoCE v2`,
		`{"ports": [{"mtu": "4096"}]}`:            "ports.mtu is a string, allowed: a whole number",
		`{"ports": [}`:                            "it is no JSON from column 12 on: \"}\"",
	} {
		if _, err := ParseExpectation([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
