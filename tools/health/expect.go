package health

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/internal/jsontext"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Expectation describes what a machine must have. [ParseExpectation] reads it from JSON:
//
//	{
//	  "netns": "exclusive",
//	  "ports": [
//	    {"device": "mlx5_*", "count": 2, "link_layer": "Ethernet", "rate_gbps": 400,
//	     "mtu": 4096, "netdev_mtu": 9000, "gid_type": "RoCE v2"}
//	  ]
//	}
type Expectation struct {
	NetNS string            `json:"netns,omitempty"` // NetNS is how network namespaces see devices, "shared" or "exclusive"; empty for any.
	Ports []PortExpectation `json:"ports,omitempty"` // Ports are the ports that there must be.
}

// PortExpectation describes the ports of the devices that Device and Driver choose. Each of them must be active,
// and as the other fields say; a field that is empty or 0 is not compared.
type PortExpectation struct {
	Device    string  `json:"device,omitempty"`     // Device is a pattern of names, as path.Match has it, such as "mlx5_*".
	Driver    string  `json:"driver,omitempty"`     // Driver is the driver's name, such as "mlx5".
	Count     int     `json:"count,omitempty"`      // Count is how many ports there must be; 0 for one or more.
	Firmware  string  `json:"firmware,omitempty"`   // Firmware is a pattern of its version.
	LinkLayer string  `json:"link_layer,omitempty"` // LinkLayer is "InfiniBand" or "Ethernet".
	Rate      float64 `json:"rate_gbps,omitempty"`  // Rate is the least rate of all lanes together, in 10^9 bits per second.
	MTU       int     `json:"mtu,omitempty"`        // MTU is the least path MTU, in bytes.
	NetdevMTU int     `json:"netdev_mtu,omitempty"` // NetdevMTU is the least MTU of the network interface, in bytes.
	GIDType   string  `json:"gid_type,omitempty"`   // GIDType is "RoCE v1", "RoCE v2" or "IB": a GID of that type, which on RoCE is not link-local.
}

// expectationFields are the fields of an expectation and of its ports.
var expectationFields = strings.Fields("netns ports device driver count firmware link_layer rate_gbps mtu netdev_mtu gid_type")

// ParseExpectation reads an expectation. Its errors name the field, the value and what is allowed.
func ParseExpectation(text []byte) (*Expectation, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	e := new(Expectation)
	if err := d.Decode(e); err != nil {
		return nil, fmt.Errorf("health: expectation: %w", jsontext.Explain(text, err, expectationFields...))
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("health: expectation: there is something behind the JSON object")
	}
	wrong := func(field string, value any, allowed string) error {
		return fmt.Errorf("health: expectation: %s is %#v, allowed: %s", field, value, allowed)
	}
	if e.NetNS != "" && e.NetNS != "shared" && e.NetNS != "exclusive" {
		return nil, wrong("netns", e.NetNS, "shared, exclusive")
	}
	if e.NetNS == "" && len(e.Ports) == 0 {
		return nil, errors.New("health: expectation: it has neither netns nor ports, so there is nothing to compare")
	}
	for i, p := range e.Ports {
		in := fmt.Sprintf("ports[%d].", i)
		for _, f := range []struct {
			field   string
			value   any
			ok      bool
			allowed string
		}{
			{"device", p.Device, isPattern(p.Device), "a pattern such as mlx5_*"},
			{"firmware", p.Firmware, isPattern(p.Firmware), "a pattern such as 28.*"},
			{"count", p.Count, p.Count >= 0 && p.Count <= 1<<16, "0 to 65536"},
			{"link_layer", p.LinkLayer, oneOf(p.LinkLayer, "InfiniBand", "Ethernet"), "InfiniBand, Ethernet"},
			{"rate_gbps", p.Rate, p.Rate >= 0 && p.Rate <= 1e6, "0 to 1000000"},
			{"mtu", p.MTU, p.MTU == 0 || slices.Contains([]int{256, 512, 1024, 2048, 4096}, p.MTU), "256, 512, 1024, 2048, 4096"},
			{"netdev_mtu", p.NetdevMTU, p.NetdevMTU >= 0 && p.NetdevMTU <= 1<<16, "0 to 65536"},
			{"gid_type", p.GIDType, oneOf(p.GIDType, gidTypes()...), strings.Join(gidTypes(), ", ")},
		} {
			if !f.ok {
				return nil, wrong(in+f.field, f.value, f.allowed)
			}
		}
	}
	return e, nil
}

// gidTypes are the names of types of GIDs.
func gidTypes() []string {
	return []string{ib.GIDTypeIB.String(), ib.GIDTypeRoCEv1.String(), ib.GIDTypeRoCEv2.String()}
}

// isPattern reports whether path.Match takes a pattern.
func isPattern(s string) bool {
	_, err := path.Match(s, "")
	return err == nil
}

// oneOf reports whether a name is empty or one of those that are allowed.
func oneOf(s string, allowed ...string) bool { return s == "" || slices.Contains(allowed, s) }

// Compare adds a finding with [CodeExpected] to the report for each difference between this machine and an
// expectation, and sets AsExpected and the end of Verdict. It opens and looks at all devices, also if the report
// is about some.
func (d *Report) Compare(e *Expectation) { d.compare(liveMachine(), e) }

// compare is Compare for a machine.
func (d *Report) compare(m *machine, e *Expectation) {
	all := m.compareNetNS(e.NetNS)
	if len(e.Ports) > 0 {
		devices, err := m.askAll()
		if err != nil {
			f := Finding{Code: CodeExpected}
			f.see("%s", err)
			all = append(all, f.conclude(LevelError, "the devices cannot be listed, and ports are expected"))
		}
		for i := 0; err == nil && i < len(e.Ports); i++ {
			all = append(all, m.comparePorts(devices, &e.Ports[i], fmt.Sprintf("ports[%d]", i))...)
		}
	}
	d.add(all...)
	differ := 0
	for _, f := range all {
		if f.Level == LevelError {
			differ++
		}
	}
	as := differ == 0
	d.AsExpected = &as
	d.Verdict += choose(as, "; all is as expected", "; not as expected: "+plural(differ, "difference"))
}

// answer is what a device has said of itself.
type answer struct {
	info  uverbs.DeviceInfo
	ports []portFacts
	err   error
}

// askAll asks all devices, each once.
func (m *machine) askAll() (all []answer, err error) {
	infos, err := m.infos()
	if err != nil {
		return nil, err
	}
	devs, err := m.devices()
	if err != nil && slices.ContainsFunc(infos, ofKernel) {
		return nil, err
	}
	for _, info := range infos {
		a := answer{info: info}
		var p probe
		if p, a.err = m.probe(info.Name); a.err == nil {
			a.ports = p.ports
		}
		i := slices.IndexFunc(devs, func(d netlinkrdma.Device) bool { return d.Name == info.Name })
		if i >= 0 {
			if ports, err := m.ports(devs[i]); err == nil {
				a.ports = withNetdevs(a.ports, ports)
			}
		}
		all = append(all, a)
	}
	return all, nil
}

// difference is the finding of one.
func difference(where, device string, port uint32, what, have, want string) Finding {
	f := Finding{Code: CodeExpected, Device: device, Port: int(port)}
	f.see("%s of the expectation: %s, %s", where, what, want)
	return f.conclude(LevelError, "%s is %s, expected %s", what, have, want)
}

// compareNetNS compares how network namespaces see devices.
func (m *machine) compareNetNS(want string) []Finding {
	if want == "" {
		return nil
	}
	const what = "the mode of network namespaces"
	mode, err := m.netnsMode()
	switch {
	case err != nil:
		f := Finding{Code: CodeExpected}
		f.see("%s", err)
		return []Finding{f.conclude(LevelError, "%s is not known", what)}
	case mode != want:
		f := difference("netns", "", 0, what, mode, want)
		f.fix("verbs system set netns %s", want)
		return []Finding{f}
	}
	f := Finding{Code: CodeExpected}
	f.see("netns of the expectation: %s", want)
	return []Finding{f.conclude(LevelOK, "%s is %s", what, mode)}
}

// comparePorts compares the ports that an expectation is about. where is its position in the file.
func (m *machine) comparePorts(devices []answer, p *PortExpectation, where string) (all []Finding) {
	found := 0
	for _, d := range devices {
		name := d.info.Name
		if match, _ := path.Match(p.Device, name); p.Device != "" && !match || p.Driver != "" && p.Driver != d.info.Driver {
			continue
		}
		if match, _ := path.Match(p.Firmware, d.info.Firmware); p.Firmware != "" && !match {
			all = append(all, difference(where, name, 0, "firmware", choose(d.info.Firmware != "", d.info.Firmware, "not known"), p.Firmware))
		}
		if d.err != nil {
			found += d.info.Ports
			f := Finding{Code: CodeExpected, Device: name}
			f.see("%s", d.err)
			all = append(all, f.conclude(LevelError, "the device cannot be opened, so its ports cannot be compared (%s)", where))
			continue
		}
		found += len(d.ports)
		for _, port := range d.ports {
			all = append(all, m.comparePort(p, port, where, name)...)
		}
	}
	f := Finding{Code: CodeExpected}
	name := choose(p.Device != "", "devices "+p.Device, "all devices")
	name += choose(p.Driver != "", " with driver "+p.Driver, "")
	f.see("%s of the expectation: %s", where, name)
	switch {
	case p.Count > 0 && found != p.Count:
		return append(all, f.conclude(LevelError, "%s: found %s, expected %d", name, plural(found, "port"), p.Count))
	case found == 0:
		return append(all, f.conclude(LevelError, "%s: found no port, expected one or more", name))
	case len(all) == 0:
		return append(all, f.conclude(LevelOK, "%s: %s, as expected", name, plural(found, "port")))
	}
	return all
}

// comparePort compares one port.
func (m *machine) comparePort(p *PortExpectation, port portFacts, where, device string) (all []Finding) {
	differs := func(what, have, want string) {
		all = append(all, difference(where, device, port.Num, what, have, want))
	}
	atLeast := func(what string, have, want int) {
		if have < want {
			differs(what, fmt.Sprint(have), fmt.Sprintf("%d or more", want))
		}
	}
	if port.state != ib.PortActive {
		differs("the state", port.state.String(), ib.PortActive.String())
	}
	if have := port.LinkLayer.String(); p.LinkLayer != "" && have != p.LinkLayer {
		differs("the link layer", have, p.LinkLayer)
	}
	if have := float64(port.attr.ActiveWidth.Lanes()) * port.attr.ActiveSpeed.Gbps(); have < p.Rate {
		differs("the rate", fmt.Sprintf("%g Gb/s", have), fmt.Sprintf("%g Gb/s or more", p.Rate))
	}
	atLeast("the path MTU", port.attr.ActiveMTU.Bytes(), p.MTU)
	if p.NetdevMTU > 0 {
		index := port.NetdevIndex
		for _, g := range port.gids { // of a software device
			if index == 0 {
				index = g.Netdev
			}
		}
		n, err := m.netdev(index)
		if index == 0 || err != nil {
			differs("the MTU of its network interface", "not known", fmt.Sprintf("%d or more", p.NetdevMTU))
		} else if atLeast("the MTU of "+n.Name, n.MTU, p.NetdevMTU); n.MTU < p.NetdevMTU {
			all[len(all)-1].fix("ip link set dev %s mtu %d", n.Name, p.NetdevMTU)
		}
	}
	ib := p.GIDType == ib.GIDTypeIB.String() // its default prefix is link-local
	has := func(g uverbs.GIDEntry) bool { return g.Type.String() == p.GIDType && (ib || !g.GID.LinkLocal()) }
	if p.GIDType != "" && !slices.ContainsFunc(port.gids, has) {
		differs("the number of GIDs of type "+p.GIDType+choose(ib, "", " that are not link-local"), "0", "1 or more")
	}
	return all
}
