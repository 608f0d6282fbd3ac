package ib

import (
	"fmt"
	"testing"
)

// TestValues compares constants that the kernel, a device or a peer gets as numbers with those of
// the kernel's rdma/ib_verbs.h.
func TestValues(t *testing.T) {
	check := func(header string, first int, got ...int) {
		t.Helper()
		for i, v := range got {
			if v != first+i {
				t.Errorf("%s: value %d of the list is %d, want %d", header, i, v, first+i)
			}
		}
	}
	check("enum rdma_node_type", 1, int(NodeCA), int(NodeSwitch), int(NodeRouter), int(NodeRNIC), int(NodeUSNIC), int(NodeUSNICUDP), int(NodeUnspecified))
	check("enum ib_qp_type", 0, int(SMI), int(GSI), int(RC), int(UC), int(UD), int(RawIPv6), int(RawEtherType))
	check("IB_QPT_RAW_PACKET", 8, int(RawPacket), int(XRCSend), int(XRCRecv))
	check("IB_QPT_DRIVER", 0xff, int(DriverQP))
	check("enum ib_qp_state", 0, int(QPReset), int(QPInit), int(QPRTR), int(QPRTS), int(QPSQD), int(QPSQE), int(QPErr))
	check("enum ib_mig_state", 0, int(PathMigrated), int(PathRearm), int(PathArmed))
	check("enum ib_port_state", 0, int(PortNop), int(PortDown), int(PortInit), int(PortArmed), int(PortActive), int(PortActiveDefer))
	check("enum ib_port_phys_state", 1, int(PhysSleep), int(PhysPolling), int(PhysDisabled), int(PhysTraining), int(PhysLinkUp), int(PhysErrorRecovery), int(PhysTest))
	check("enum ib_mtu", 1, int(MTU256), int(MTU512), int(MTU1024), int(MTU2048), int(MTU4096))
	check("enum ib_atomic_cap", 0, int(AtomicNone), int(AtomicHCA), int(AtomicGlobal))
	check("enum ib_rate", 2, int(Rate2500M), int(Rate10G), int(Rate30G), int(Rate5G), int(Rate20G), int(Rate40G), int(Rate60G), int(Rate80G),
		int(Rate120G), int(Rate14G), int(Rate56G), int(Rate112G), int(Rate168G), int(Rate25G), int(Rate100G), int(Rate200G), int(Rate300G),
		int(Rate28G), int(Rate50G), int(Rate400G), int(Rate600G), int(Rate800G), int(Rate1200G))
	check("IB_RATE_PORT_CURRENT", 0, int(RateMax))
	check("enum rdma_link_layer", 0, int(LinkLayerUnspecified), int(LinkLayerInfiniBand), int(LinkLayerEthernet))
}

// TestNames: values out of range have a text, too.
func TestNames(t *testing.T) {
	for _, c := range []struct {
		v    fmt.Stringer
		want string
	}{
		{NodeCA, "CA"}, {NodeUnspecified, "unspecified"}, {NodeType(0), "NodeType(0)"}, {NodeType(8), "NodeType(8)"},
		{PortDown, "DOWN"}, {PortActive, "ACTIVE"}, {PortActiveDefer, "ACTIVE_DEFER"}, {PortState(6), "PortState(6)"},
		{PhysLinkUp, "LinkUp"}, {PhysTest, "Phy Test"}, {PhysState(0), "PhysState(0)"},
		{LinkLayerInfiniBand, "InfiniBand"}, {LinkLayerEthernet, "Ethernet"}, {LinkLayer(3), "LinkLayer(3)"},
		{RC, "RC"}, {QPType(7), "QPType(7)"}, {DriverQP, "DRIVER"}, {XRCRecv, "XRC_TGT"}, {DCT, "DCT"}, {SRD, "SRD"}, {QPType(99), "QPType(99)"},
		{QPRTR, "RTR"}, {QPErr, "ERR"}, {QPState(7), "QPState(7)"}, {PathArmed, "ARMED"}, {PathMigState(3), "PathMigState(3)"},
	} {
		if got := c.v.String(); got != c.want {
			t.Errorf("%T: %q, want %q", c.v, got, c.want)
		}
	}
}

// TestWidthAndSpeed follows ibv_devinfo (libibverbs/examples/devinfo.c).
func TestWidthAndSpeed(t *testing.T) {
	for code, want := range map[uint8]int{1: 1, 2: 4, 4: 8, 8: 12, 16: 2, 3: 0} {
		if got := LinkWidth(code).Lanes(); got != want {
			t.Errorf("width code %d is %d lanes, want %d", code, got, want)
		}
	}
	for code, want := range map[uint32]float64{1: 2.5, 2: 5, 4: 10, 8: 10, 16: 14, 32: 25, 64: 50, 128: 100, 256: 200, 3: 0} {
		if got := LinkSpeed(code).Gbps(); got != want {
			t.Errorf("speed code %d is %v Gbit/s, want %v", code, got, want)
		}
	}
	for code, want := range map[VLNum]int{1: 1, 2: 2, 3: 4, 4: 8, 5: 15, 0: 0, 6: 0} {
		if got := code.Count(); got != want {
			t.Errorf("VL code %d is %d lanes, want %d", code, got, want)
		}
	}
	for code, want := range map[PhysState]string{0: "invalid physical state", 1: "SLEEP", PhysLinkUp: "LINK_UP", 7: "PHY TEST", 8: "invalid physical state"} {
		if got := code.Words(); got != want {
			t.Errorf("physical state %d is %q, want %q", code, got, want)
		}
	}
}
