package fabric

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// TestSpeedPort0: what a switch's ports run at is known only with its port 0, and so is whether the vendor's attribute
// must be asked for.
func TestSpeedPort0(t *testing.T) {
	for name, c := range map[string]struct {
		caps   uint32
		silent int // how many requests for port 0 get no answer
		speed  Speed
		asked  int32 // for the vendor's attribute
	}{
		"late":       {mad.CapExtSpeeds, 2, EDR, 0},
		"late FDR10": {0, 2, FDR10, 2},
		"FDR10":      {0, 0, FDR10, 2},
		"silent":     {mad.CapExtSpeeds, 3, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			var asked, zero atomic.Int32
			p := newHostile(func(b []byte) []byte {
				q, err := mad.Parse(b)
				if err != nil || len(q.Route()) > 0 {
					return nil
				}
				switch q.Attribute {
				case mad.AttrNodeInfo:
					put(b, &mad.NodeInfo{NodeType: ib.NodeSwitch, NumPorts: 2, NodeGUID: 7, PortGUID: 7, LocalPortNum: 1, DeviceID: 0xcb20})
				case attrMellanoxPortInfo:
					asked.Add(1)
					put(b, &mellanoxPortInfo{1, 1, 1})
				case mad.AttrPortInfo:
					if q.Modifier == 0 && int(zero.Add(1)) <= c.silent {
						return nil
					}
					i := &mad.PortInfo{LocalPortNum: 1, PortPhysicalState: ib.PhysLinkUp, PortState: ib.PortActive, LinkSpeedActive: uint8(QDR), LinkSpeedSupported: 7}
					if i.CapabilityMask = c.caps; c.caps != 0 {
						i.LinkSpeedExtActive, i.LinkSpeedExtSupported = 2, 2
					}
					if q.Modifier == 0 {
						i.LinkSpeedActive = 0
					}
					put(b, i)
				}
				return b
			})
			defer p.Close()
			f := discover(t, p, Options{})
			port := f.From.Node.Port(2)
			if port.Speed() != c.speed || asked.Load() != c.asked || (port.SpeedsSupported() == 0) != (c.speed == 0) || (port.SpeedsEnabled() == 0) != (c.speed == 0) && c.speed != EDR {
				t.Errorf("%s: %v, %d requests of the vendor, supported %v", name, port.Speed(), asked.Load(), port.SpeedsSupported())
			}
			port.Remote, port.Info.LinkWidthActive = &Port{Node: &Node{}, Info: port.Info}, mad.Width4X
			if _, speed := port.Could(); speed != 0 {
				t.Errorf("%s: could be %v", name, speed)
			}
		})
	}
}

// TestXDR: the fields of XDR count before the others, of a switch by the capabilities of port 0, and not at all without
// the capabilities.
func TestXDR(t *testing.T) {
	xdr := mad.PortInfo{LinkSpeedActive: 4, LinkSpeedSupported: 7, LinkSpeedEnabled: 7, LinkSpeedExtActive: 8, LinkSpeedExtSupported: 15, LinkSpeedExtEnabled: 30,
		LinkSpeedExtActive2: 1, LinkSpeedExtSupported2: 1, LinkSpeedExtEnabled2: 1, LinkWidthActive: mad.Width4X}
	const slow = SDR | DDR | QDR
	const fast = slow | FDR | EDR | HDR | NDR
	for name, c := range map[string]struct {
		caps                       uint32
		caps2                      uint16
		active, supported, enabled Speed
	}{
		"XDR":                {mad.CapExtSpeeds | mad.CapMask2, mad.Cap2ExtSpeeds2, XDR, fast | XDR, slow | XDR},
		"other capabilities": {mad.CapExtSpeeds | mad.CapMask2, ^uint16(mad.Cap2ExtSpeeds2), NDR, fast, slow},
		"no CapabilityMask2": {mad.CapExtSpeeds, mad.Cap2ExtSpeeds2, NDR, fast, slow},
		"no extended speeds": {mad.CapMask2, mad.Cap2ExtSpeeds2, QDR, slow, slow},
	} {
		zero, info := xdr, xdr
		zero.CapabilityMask, zero.CapabilityMask2 = c.caps, c.caps2
		n := &Node{Info: mad.NodeInfo{NodeType: ib.NodeSwitch}}
		n.Ports = []*Port{{Node: n, Info: &zero}, {Node: n, Number: 1, Info: &info}}
		p := n.Ports[1]
		if p.Speed() != c.active || p.SpeedsSupported() != c.supported || p.SpeedsEnabled() != c.enabled {
			t.Errorf("%s: %v of %v, enabled %v, want %v of %v, enabled %v", name, p.Speed(), p.SpeedsSupported(), p.SpeedsEnabled(), c.active, c.supported, c.enabled)
		}
		if p.Gbps() != 4*c.active.Gbps() {
			t.Errorf("%s: %v Gbit/s", name, p.Gbps())
		}
	}
	if XDR.Gbps() != 212.5 || XDR.String() != "XDR" || (NDR|XDR).Max() != XDR || (NDR|XDR).String() != "NDR|XDR" {
		t.Errorf("%v has %v Gbit/s, and %v is the fastest of %v", XDR, XDR.Gbps(), (NDR | XDR).Max(), NDR|XDR)
	}
}

// TestTraceArguments: LIDs that no port can have, and options out of range, are errors.
func TestTraceArguments(t *testing.T) {
	p := newHostile(func([]byte) []byte { return nil })
	defer p.Close()
	for want, ask := range map[string]func() error{
		"the LID of the target is 0x0, allowed: 0x1 to 0xbfff":    func() error { _, err := Trace(t.Context(), p, 1, 0, Options{}); return err },
		"the LID of the target is 0xc000, allowed: 0x1 to 0xbfff": func() error { _, err := Trace(t.Context(), p, 0, 0xc000, Options{}); return err },
		"the LID of the source is 0xffff, allowed: 0x0 to 0xbfff": func() error { _, err := Trace(t.Context(), p, 0xffff, 1, Options{}); return err },
		"the LID of the target is 0xc001, allowed: 0x1 to 0xbfff": func() error {
			_, err := TraceMulticast(t.Context(), p, 0, 0xc001, 0xc001, Options{})
			return err
		},
		"MaxHops is 64, allowed: 1 to 63":      func() error { _, err := Trace(t.Context(), p, 0, 1, Options{MaxHops: 64}); return err },
		"Interval is -1ns, allowed: 0 or more": func() error { _, err := Check(t.Context(), p, &Fabric{}, CheckOptions{Interval: -1}); return err },
		"Parallel is 2000, allowed: 1 to 1024": func() error { _, err := Trace(t.Context(), p, 0, 1, Options{Parallel: 2000}); return err },
		"MaxNodes is -1, allowed: 1 to 1048576": func() error {
			_, err := TraceMulticast(t.Context(), p, 0, 1, 0xc000, Options{MaxNodes: -1})
			return err
		},
	} {
		if err := ask(); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestTraceMulticastEndless: switches without an end, which forward a group to all ports, are an error.
func TestTraceMulticastEndless(t *testing.T) {
	var requests atomic.Int32
	p := newHostile(func(b []byte) []byte {
		requests.Add(1)
		b = endless(b)
		switch q, _ := mad.Parse(b); q.Attribute {
		case mad.AttrSwitchInfo:
			put(b, &mad.SwitchInfo{MulticastFDBCap: 1024})
		case mad.AttrMulticastForwardingTable:
			for i := range b[64:128] {
				b[64+i] = 0xff
			}
		}
		return b
	})
	defer p.Close()
	_, err := TraceMulticast(t.Context(), p, 0, 9, 0xc000, Options{MaxNodes: 300})
	if err == nil || !strings.Contains(err.Error(), "MaxNodes is 300, and packets to 0xc000 come to more nodes") || requests.Load() > 300*6 {
		t.Errorf("%d requests, %v", requests.Load(), err)
	}
}

// TestCheckSilentSwitch: a switch that does not answer requests for its table gets no more than there can be at
// once, and is one finding.
func TestCheckSilentSwitch(t *testing.T) {
	for _, parallel := range []int{1, 40} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			requests := 0
			p := newHostile(func(b []byte) []byte {
				mu.Lock()
				defer mu.Unlock()
				requests++
				return nil
			})
			defer p.Close()
			n := &Node{Info: mad.NodeInfo{NodeType: ib.NodeSwitch, NumPorts: 1}, Switch: &mad.SwitchInfo{LinearFDBTop: 0xbfff}}
			n.addPort(0).Info = &mad.PortInfo{LID: 1}
			start := time.Now()
			found, err := Check(t.Context(), p, &Fabric{Nodes: []*Node{n}}, CheckOptions{Options: Options{Parallel: parallel, Tries: 1}})
			must(t, err)
			if len(found) != 1 || found[0].Kind != KindAnswer || found[0].Port != n.Ports[0] || requests != parallel || time.Since(start) > 3*time.Second {
				t.Errorf("Parallel is %d: %d requests in %v, %v", parallel, requests, time.Since(start), found)
			}
		})
	}
}
