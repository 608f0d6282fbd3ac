package ib

import (
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// A kind is a kind of records that "verbs ib sa" shows.
type kind struct {
	name, about string
	zero        mad.Attribute
	filters     string // "KEY:BIT" for each field that a request can give, BIT being its component of the mask
	columns     string // the keys of the table
	compat      func(record []byte) string
}

// kinds are all kinds, in the order of the help.
var kinds = []*kind{
	{"node", "nodes: adapters by port, and switches", &mad.NodeRecord{},
		"lid:0 base_version:2 class_version:3 node_type:4 num_ports:5 system_image_guid:6 node_guid:7 port_guid:8 partition_cap:9 device_id:10 revision:11 local_port_num:12 vendor_id:13 node_string:14",
		"lid node_type num_ports node_guid port_guid local_port_num node_string", nodeText.expand},
	{"port", "ports, with their PortInfo", &mad.PortInfoRecord{},
		"endport_lid:0 port_num:1 options:2 m_key:3 gid_prefix:4 lid:5 master_sm_lid:6 capability_mask:7 port_state:15 port_physical_state:16",
		"endport_lid port_num port_state port_physical_state lid lmc master_sm_lid neighbor_mtu link_width_active link_speed_active link_speed_ext_active link_speed_ext_active2", portText.expand},
	{"path", "paths between two ports", &mad.PathRecord{},
		"dgid:2 sgid:3 dlid:4 slid:5 raw_traffic:6 flow_label:8 hop_limit:9 tclass:10 reversible:11 numb_path:12 p_key:13 qos_class:14 sl:15",
		"slid dlid sgid dgid p_key sl mtu rate_gbps packet_life_time", pathText.expand},
	{"group", "multicast groups and their members; members only with --sm-key", &mad.MCMemberRecord{},
		"mgid:0 port_gid:1 q_key:2 mlid:3 tclass:6 p_key:7 sl:12 flow_label:13 hop_limit:14 scope:15 join_state:16 proxy_join:17",
		"mgid mlid p_key q_key mtu rate_gbps sl port_gid join_state", groupText.expand},
	{"service", "services that ports have announced", &mad.ServiceRecord{},
		"service_id:0 service_gid:1 service_p_key:2 service_lease:4 service_key:5 service_name:6",
		"service_id service_gid service_p_key service_lease service_name", serviceText().expand},
	{"link", "links, each from both ends", &mad.LinkRecord{}, "from_lid:0 from_port:1 to_port:2 to_lid:3", "from_lid from_port to_lid to_port", linkText.expand},
	{"switch", "switches", &mad.SwitchInfoRecord{}, "lid:0",
		"lid linear_fdb_cap linear_fdb_top multicast_fdb_cap multicast_fdb_top port_state_change life_time_value enhanced_port0", switchText.expand},
	{"lft", "unicast forwarding tables of switches", &mad.LinearForwardingTableRecord{}, "lid:0 block_num:1", "lid block_num ports", lftText},
	{"mft", "multicast forwarding tables of switches", &mad.MulticastForwardingTableRecord{}, "lid:0 position:1 block_num:3", "lid position block_num port_masks", mftText},
	{"sm", "subnet managers", &mad.SMInfoRecord{}, "lid:0", "lid guid priority sm_state act_count", smText.expand},
	{"guid", "tables of the GUIDs of ports", &mad.GUIDInfoRecord{}, "lid:0 block_num:1", "lid block_num guids", guidText},
	{"pkey", "tables of the P_Keys of ports", &mad.PKeyTableRecord{}, "lid:0 block_num:1 port_num:2", "lid port_num block_num p_keys", pkeyText},
	{"sl2vl", "virtual lanes of service levels; vls: SL:VL", &mad.SLtoVLTableRecord{}, "lid:0 input_port_num:1 output_port_num:2", "lid input_port_num output_port_num vls", sl2vlText},
	{"vlarb", "arbitration of virtual lanes; entries: VL:WEIGHT, without weight 0", &mad.VLArbitrationTableRecord{}, "lid:0 output_port_num:1 block_num:2", "lid output_port_num block_num entries", vlarbText},
	{"inform", "subscriptions to traps", &mad.InformInfoRecord{}, "subscriber_gid:0", "subscriber_gid lid_range_begin lid_range_end type trap_number qpn", informText},
	{"class", "what the subnet administrator supports", &mad.ClassPortInfo{}, "", "class_version capability_mask capability_mask2 resp_time_value redirect_lid", classText.expand},
}

const nodeText template = `NodeRecord dump:
		lid.....................{0:16 u}
		reserved................{2:16 X}
		base_version............{4:8 X}
		class_version...........{5:8 X}
		node_type...............{6:8 node}
		num_ports...............{7:8 u}
		sys_guid................{8:64 x16}
		node_guid...............{16:64 x16}
		port_guid...............{24:64 x16}
		partition_cap...........{32:16 X}
		device_id...............{34:16 X}
		revision................{36:32 X}
		port_num................{40:8 u}
		vendor_id...............{41:24 X}
		NodeDescription.........{44:512 s}
`

const pathText template = `PathRecord dump:
		service_id..............{0:64 x16}
		dgid....................{8:128 g}
		sgid....................{24:128 g}
		dlid....................{40:16 u}
		slid....................{42:16 u}
		hop_flow_raw............{44:32 X}
		tclass..................{48:8 X}
		num_path_revers.........{49:8 X}
		pkey....................{50:16 X}
		qos_class...............{52:12 X}
		sl......................{53.4:4 X}
		mtu.....................{54:8 X}
		rate....................{55:8 X}
		pkt_life................{56:8 X}
		preference..............{57:8 X}
		resv2...................{58:48 X12}
`

// groupText has ProxyJoin from the bit where saquery looks for it, which is reserved.
const groupText template = `MCMember Record dump:
		MGID....................{0:128 g}
		PortGid.................{16:128 g}
		qkey....................{32:32 x}
		mlid....................{36:16 x}
		mtu.....................{38:8 x}
		TClass..................{39:8 x}
		pkey....................{40:16 x}
		rate....................{42:8 x}
		pkt_life................{43:8 x}
		SL......................{44:4 x}
		FlowLabel...............{44.4:20 x}
		HopLimit................{47:8 x}
		Scope...................{48:4 x}
		JoinState...............{48.4:4 x}
		ProxyJoin...............{49.7:1 x}
`

const linkText template = `LinkRecord dump:
		FromLID....................{0:16 u}
		FromPort...................{2:8 u}
		ToPort.....................{3:8 u}
		ToLID......................{4:16 u}
`

// switchText has the last line only of an SA that has MulticastFDBTop, as opensm does.
const switchText template = `SwitchInfoRecord dump:
		RID
		LID.....................................{0:16 u}
		SwitchInfo dump:
		LinearFDBCap............................{4:16 X}
		RandomFDBCap............................{6:16 X}
		MulticastFDBCap.........................{8:16 X}
		LinearFDBTop............................{10:16 X}
		DefaultPort.............................{12:8 u}
		DefaultMulticastPrimaryPort.............{13:8 u}
		DefaultMulticastNotPrimaryPort..........{14:8 u}
		LifeTimeValue/PortStateChange/OpSL2VL...{15:8 X}
		LIDsPerPort.............................{16:16 X}
		PartitionEnforcementCap.................{18:16 X}
		flags...................................{20:8 X}
		MulticastFDBTop.........................{22:16 X}
`

const smText template = `SMInfoRecord dump:
		RID
		LID...................{0:16 u}
		SMInfo dump:
		GUID..................{4:64 x16}
		SM_Key................{12:64 x16}
		ActCount..............{20:32 u}
		Priority..............{24:4 u}
		SMState...............{24.4:4 u}
`

const classText template = `SA ClassPortInfo:
		Base version.............{0:8 u}
		Class version............{1:8 u}
		Capability mask..........{2:16 X4}
		Capability mask 2........{4:27 X8}
		Response time value......{7.3:5 X2}
		Redirect GID.............{8:128 g}
		Redirect TC/SL/FL........{24:32 X8}
		Redirect LID.............{28:16 u}
		Redirect PKey............{30:16 X4}
		Redirect QP..............{32:32 X8}
		Redirect QKey............{36:32 X8}
		Trap GID.................{40:128 g}
		Trap TC/SL/FL............{56:32 X8}
		Trap LID.................{60:16 u}
		Trap PKey................{62:16 X4}
		Trap HL/QP...............{64:32 X8}
		Trap QKey................{68:32 X8}
`

// portText ends in a PortInfo.
var portText = `PortInfoRecord dump:
	RID
		EndPortLid..............{0:16 u}
		PortNum.................{2:8 u}
		Options.................{3:8 x}
	PortInfo dump:
` + dotted("\t\t", 4, portInfoLines)

const portInfoLines = `Mkey <not displayed>
GidPrefix 8:64 x16
Lid 16:16 u
SMLid 18:16 u
CapMask 20:32 capmask
DiagCode 24:16 x4
MkeyLeasePeriod 26:16 u
LocalPort 28:8 u
LinkWidthEnabled 29:8 widths
LinkWidthSupported 30:8 widthsup
LinkWidthActive 31:8 width
LinkSpeedSupported 32:4 speeds
LinkState 32.4:4 state
PhysLinkState 33:4 phys
LinkDownDefState 33.4:4 down
ProtectBits 34:2 u
LMC 34.5:3 u
LinkSpeedActive 35:4 speed
LinkSpeedEnabled 35.4:4 speeds
NeighborMTU 36:4 mtu
SMSL 36.4:4 u
VLCap 37:4 vlcap
InitType 37.4:4 x2
VLHighLimit 38:8 u
VLArbHighCap 39:8 u
VLArbLowCap 40:8 u
InitReply 41:4 x2
MtuCap 41.4:4 mtu
VLStallCount 42:3 u
HoqLife 42.3:5 u
OperVLs 43:4 opervls
PartEnforceInb 43.4:1 u
PartEnforceOutb 43.5:1 u
FilterRawInb 43.6:1 u
FilterRawOutb 43.7:1 u
MkeyViolations 44:16 u
PkeyViolations 46:16 u
QkeyViolations 48:16 u
GuidCap 50:8 u
ClientReregister 51:1 u
McastPkeyTrapSuppressionEnabled 51.1:2 u
SubnetTimeout 51.3:5 u
RespTimeVal 52.3:5 u
LocalPhysErr 53:4 u
OverrunErr 53.4:4 u
MaxCreditHint 54:16 u
RoundTrip 57:24 u
CapabilityMask2 60:16 capmask2
LinkSpeedExtActive 62:4 extspeed
LinkSpeedExtSupported 62.4:4 extspeeds
LinkSpeedExtEnabled 63.3:5 extspeedsen
LinkSpeedExtActive2 56.1:2 ext2
LinkSpeedExtSupported2 56.3:2 ext2s
LinkSpeedExtEnabled2 56.5:3 ext2s
`

// serviceText makes the template of a service, of which most lines are numbers.
func serviceText() template {
	var b strings.Builder
	b.WriteString(`ServiceRecord dump:
		ServiceID...............{0:64 x16}
		ServiceGID..............{8:128 g}
		ServiceP_Key............{24:16 X}
		ServiceLease............{28:32 X}
		ServiceKey..............<not displayed>
		ServiceName.............{48:512 s}
`)
	at := 112
	for _, c := range []struct {
		bits, n int
		form    string
	}{{8, 16, "X"}, {16, 8, "X"}, {32, 4, "X"}, {64, 2, "x16"}} {
		for i := range c.n {
			label := fmt.Sprintf("ServiceData%d.%d", c.bits, i+1)
			fmt.Fprintf(&b, "\t\t%s%s{%d:%d %s}\n", label, strings.Repeat(".", 24-len(label)), at, c.bits, c.form)
			at += c.bits / 8
		}
	}
	return template(b.String())
}

// lftText writes a block of a forwarding table.
func lftText(r []byte) string {
	text := template("LFT Record dump:\n\t\tLID........................{0:16 u}\n\t\tBlock......................{2:16 u}\n\t\tLFT:\n\t\tLID\tPort Number\n").expand(r)
	for i := range 64 {
		text += fmt.Sprintf("\t\t%d\t%d\n", int(bitsOf(r, 16, 16))*64+i, bitsOf(r, 64+8*i, 8))
	}
	return text + "\n"
}

// mftText writes a block of a multicast forwarding table.
func mftText(r []byte) string {
	text := template("MFT Record dump:\n\t\tLID........................{0:16 u}\n\t\tPosition...................{2:4 u}\n\t\tBlock......................{2.7:9 u}\n\t\tMFT:\n\t\tMLID\tPort Mask\n").expand(r)
	for i := range 32 {
		text += fmt.Sprintf("\t\t0x%04x\t0x%04x\n", 0xc000+int(bitsOf(r, 23, 9))*32+i, bitsOf(r, 64+16*i, 16))
	}
	return text + "\n"
}

// guidText writes a block of a table of GUIDs.
func guidText(r []byte) string {
	text := template("GUIDInfo Record dump:\n\t\tLID........................{0:16 u}\n\t\tBlock......................{2:8 u}\n").expand(r)
	for i := range 8 {
		text += fmt.Sprintf("\t\tGUID %d.....................0x%016x\n", i, bitsOf(r, 64+64*i, 64))
	}
	return text
}

// pkeyText writes a block of a table of P_Keys.
func pkeyText(r []byte) string {
	text := template("PKeyTableRecord dump:\n\t\tLID........................{0:16 u}\n\t\tPort.......................{4:8 u}\n\t\tBlock......................{2:16 u}\n\t\tPKey Table:\n").expand(r)
	for i := range 32 {
		text += map[bool]string{true: "\t\t", false: " "}[i%8 == 0] + fmt.Sprintf("0x%04x", bitsOf(r, 64+16*i, 16))
		if i%8 == 7 {
			text += "\n"
		}
	}
	return text + "\n"
}

// sixteen writes 16 numbers in columns. Each has `bits` bits; the first begins at bit `at`, and the others
// follow every `step` bits.
func sixteen(r []byte, at, bits, step int) string {
	var b strings.Builder
	for i := range 16 {
		fmt.Fprintf(&b, "%2d|", bitsOf(r, at+i*step, bits))
	}
	return b.String() + "\n"
}

// sl2vlText writes the virtual lanes of service levels.
func sl2vlText(r []byte) string {
	text := template("SL2VLTableRecord dump:\n\t\tLID........................{0:16 u}\n\t\tInPort.....................{2:8 u}\n\t\tOutPort....................{3:8 u}\n").expand(r)
	return text + "\t\tSL: 0| 1| 2| 3| 4| 5| 6| 7| 8| 9|10|11|12|13|14|15|\n\t\tVL:" + sixteen(r, 64, 4, 4)
}

// vlarbText writes a block of a table of VL arbitration.
func vlarbText(r []byte) string {
	text := template("VLArbTableRecord dump:\n\t\tLID........................{0:16 u}\n\t\tPort.......................{2:8 u}\n\t\tBlock......................{3:8 u}\n").expand(r)
	for at := 64; at < 64+32*16; at += 16 * 16 {
		text += "\t\tVL    :" + sixteen(r, at, 8, 16) + "\t\tWeight:" + sixteen(r, at+8, 8, 16)
	}
	return text
}

// informText writes a subscription, the last lines of which depend on its kind.
func informText(r []byte) string {
	text := template(`InformInfoRecord dump:
		RID
		SubscriberGID...........{0:128 g}
		SubscriberEnum..........{16:16 X}
		InformInfo dump:
		gid.....................{24:128 g}
		lid_range_begin.........{40:16 u}
		lid_range_end...........{42:16 u}
		is_generic..............{46:8 X}
		subscribe...............{47:8 X}
		trap_type...............{48:16 X}
`)
	if bitsOf(r, 46*8, 8) != 0 {
		text += "\t\ttrap_num................{50:16 u}\n"
	} else {
		text += "\t\tdev_id..................{50:16 X}\n"
	}
	text += "\t\tqpn.....................<not displayed>\n\t\tresp_time_val...........{55.3:5 X}\n"
	if bitsOf(r, 46*8, 8) != 0 {
		text += "\t\tnode_type...............{57:24 X6}\n"
	} else {
		text += "\t\tvendor_id...............{57:24 X6}\n"
	}
	return text.expand(r)
}
