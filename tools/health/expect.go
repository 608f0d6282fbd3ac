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
	"github.com/goverbs/goverbs/uverbs"
)

// Expectation says what a machine shall have. [ParseExpectation] reads it from JSON:
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
	Ports []PortExpectation `json:"ports,omitempty"`
}

// PortExpectation says which ports there shall be. It is about the ports of the devices that Device and Driver
// choose. All of them shall be active, and as the other fields say; an empty field says nothing.
type PortExpectation struct {
	Device    string  `json:"device,omitempty"`     // Device is a pattern of names, as path.Match has it, such as "mlx5_*".
	Driver    string  `json:"driver,omitempty"`     // Driver is the driver's name, such as "mlx5".
	Count     int     `json:"count,omitempty"`      // Count is how many ports there shall be; 0 for one or more.
	Firmware  string  `json:"firmware,omitempty"`   // Firmware is a pattern of its version.
	LinkLayer string  `json:"link_layer,omitempty"` // LinkLayer is "InfiniBand" or "Ethernet".
	Rate      float64 `json:"rate_gbps,omitempty"`  // Rate is the least rate of all lanes together, in 10^9 bits per second.
	MTU       int     `json:"mtu,omitempty"`        // MTU is the least path MTU, in bytes.
	NetdevMTU int     `json:"netdev_mtu,omitempty"` // NetdevMTU is the least MTU of the network interface, in bytes.
	GIDType   string  `json:"gid_type,omitempty"`   // GIDType is "RoCE v1", "RoCE v2" or "IB": a GID of that type that is not link-local.
}

// ParseExpectation reads an expectation. Its errors name the field, the value and what is allowed.
func ParseExpectation(text []byte) (*Expectation, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	e := new(Expectation)
	if err := d.Decode(e); err != nil {
		return nil, fmt.Errorf("health: expectation: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("health: expectation: there is more behind it, allowed: one JSON object")
	}
	wrong := func(field string, value any, allowed string) error {
		return fmt.Errorf("health: expectation: %s is %#v, allowed: %s", field, value, allowed)
	}
	if e.NetNS != "" && e.NetNS != "shared" && e.NetNS != "exclusive" {
		return nil, wrong("netns", e.NetNS, "shared, exclusive")
	}
	if e.NetNS == "" && len(e.Ports) == 0 {
		return nil, errors.New("health: expectation: it expects nothing; it needs netns or ports")
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
	return []string{uverbs.GIDTypeIB.String(), uverbs.GIDTypeRoCEv1.String(), uverbs.GIDTypeRoCEv2.String()}
}

// isPattern reports whether path.Match takes a pattern.
func isPattern(s string) bool {
	_, err := path.Match(s, "")
	return err == nil
}

// oneOf reports whether a name is empty or one of those that are allowed.
func oneOf(s string, allowed ...string) bool { return s == "" || slices.Contains(allowed, s) }

// Compare adds to the report how this machine differs from an expectation, as findings with [CodeExpected]. It
// looks at all devices, also if the report is about some.
func (d *Report) Compare(e *Expectation) { d.compare(liveMachine(), e) }

// compare is Compare for a machine.
func (d *Report) compare(m *machine, e *Expectation) {
	all := m.checkNetNS(e.NetNS)
	infos, err := m.infos()
	if err != nil && len(e.Ports) > 0 {
		f := Finding{Code: CodeExpected}
		f.see("%s", err)
		all = append(all, f.conclude(LevelError, "the devices cannot be listed, and ports are expected"))
	} else {
		for i := range e.Ports {
			all = append(all, m.checkPorts(infos, &e.Ports[i], fmt.Sprintf("ports[%d]", i))...)
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
	if as {
		d.Verdict += "; all is as expected"
	} else {
		d.Verdict += fmt.Sprintf("; not as expected in %s", plural(differ, "point"))
	}
}

// checkNetNS compares how network namespaces see devices.
func (m *machine) checkNetNS(want string) []Finding {
	if want == "" {
		return nil
	}
	f := Finding{Code: CodeExpected}
	f.see("netns of the expectation: %s", want)
	mode, err := m.netnsMode()
	switch {
	case err != nil:
		f.see("%s", err)
		return []Finding{f.conclude(LevelError, "it is not known whether network namespaces share devices")}
	case mode != want:
		f.fix("verbs system set netns %s", want)
		return []Finding{f.conclude(LevelError, "the mode of network namespaces is %s, expected %s", mode, want)}
	}
	return []Finding{f.conclude(LevelOK, "the mode of network namespaces is %s", mode)}
}

// checkPorts compares the ports that an expectation is about. where is its place.
func (m *machine) checkPorts(infos []uverbs.DeviceInfo, p *PortExpectation, where string) (all []Finding) {
	found := 0
	for _, info := range infos {
		if match, _ := path.Match(p.Device, info.Name); p.Device != "" && !match || p.Driver != "" && p.Driver != info.Driver {
			continue
		}
		differs := func(port uint32, fix, what, have, want string) {
			f := Finding{Code: CodeExpected, Device: info.Name, Port: int(port)}
			f.see("%s of the expectation: %s %s", where, what, want)
			if fix != "" {
				f.fix("%s", fix)
			}
			all = append(all, f.conclude(LevelError, "%s is %s, expected %s", what, have, want))
		}
		if match, _ := path.Match(p.Firmware, info.Firmware); p.Firmware != "" && !match {
			differs(0, "", "firmware", choose(info.Firmware != "", info.Firmware, "not known"), p.Firmware)
		}
		facts, err := m.probe(info.Name)
		if err != nil {
			found += info.Ports
			f := Finding{Code: CodeExpected, Device: info.Name}
			f.see("%s", err)
			all = append(all, f.conclude(LevelError, "its ports are expected (%s), and it cannot be asked", where))
			continue
		}
		found += len(facts.ports)
		for _, port := range facts.ports {
			m.comparePort(p, port, func(fix, what, have, want string) { differs(port.Num, fix, what, have, want) })
		}
	}
	f := Finding{Code: CodeExpected}
	name := choose(p.Device != "", "devices "+p.Device, "all devices")
	name += choose(p.Driver != "", " with driver "+p.Driver, "")
	f.see("%s of the expectation is about %s", where, name)
	switch {
	case p.Count > 0 && found != p.Count:
		return append(all, f.conclude(LevelError, "there are %s of %s, expected %d", plural(found, "port"), name, p.Count))
	case found == 0:
		return append(all, f.conclude(LevelError, "there is no port of %s, expected one or more", name))
	case len(all) == 0:
		return append(all, f.conclude(LevelOK, "%s of %s: as expected", plural(found, "port"), name))
	}
	return all
}

// comparePort tells in what a port differs.
func (m *machine) comparePort(p *PortExpectation, port portFacts, differs func(fix, what, have, want string)) {
	if port.state != netlinkrdma.PortActive {
		differs("", "the state", port.state.String(), netlinkrdma.PortActive.String())
	}
	if have := port.LinkLayer.String(); p.LinkLayer != "" && have != p.LinkLayer {
		differs("", "the link layer", have, p.LinkLayer)
	}
	if have := float64(port.attr.Width()) * port.attr.Speed(); have < p.Rate {
		differs("", "the rate", fmt.Sprintf("%g Gb/s", have), fmt.Sprintf("%g Gb/s or more", p.Rate))
	}
	if have := port.attr.ActiveMTU.Bytes(); have < p.MTU {
		differs("", "the path MTU", fmt.Sprint(have), fmt.Sprintf("%d or more", p.MTU))
	}
	if p.NetdevMTU > 0 {
		index := port.NetdevIndex
		for _, g := range port.gids {
			if index == 0 {
				index = g.Netdev
			}
		}
		n, err := m.netdev(index)
		switch want := fmt.Sprintf("%d or more", p.NetdevMTU); {
		case index == 0 || err != nil:
			differs("", "the MTU of its network interface", "not known", want)
		case n.MTU < p.NetdevMTU:
			differs(fmt.Sprintf("ip link set dev %s mtu %d", n.Name, p.NetdevMTU), "the MTU of "+n.Name, fmt.Sprint(n.MTU), want)
		}
	}
	has := func(g uverbs.GIDEntry) bool { return g.Type.String() == p.GIDType && !g.GID.LinkLocal() }
	if p.GIDType != "" && !slices.ContainsFunc(port.gids, has) {
		differs("", "the GID table", "without", "a GID of type "+p.GIDType+" that is not link-local")
	}
}
