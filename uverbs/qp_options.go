package uverbs

import (
	"fmt"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/hook"
)

// QPFlags are properties of a QP (enum ib_uverbs_qp_create_flags).
type QPFlags uint32

// Flags of a QP.
const (
	QPBlockMulticastLoopback QPFlags = abi.IB_UVERBS_QP_CREATE_BLOCK_MULTICAST_LOOPBACK // do not receive the QP's own multicast packets (IBV_QP_CREATE_BLOCK_SELF_MCAST_LB)
	QPScatterFCS             QPFlags = abi.IB_UVERBS_QP_CREATE_SCATTER_FCS              // also store the checksum (FCS) of a frame (IBV_QP_CREATE_SCATTER_FCS)
	QPStripVLAN              QPFlags = abi.IB_UVERBS_QP_CREATE_CVLAN_STRIPPING          // move the VLAN tag of a frame to [WC] (IBV_QP_CREATE_CVLAN_STRIPPING)
	QPPadWriteEnd            QPFlags = abi.IB_UVERBS_QP_CREATE_PCI_WRITE_END_PADDING    // pad writes to whole cache lines (IBV_QP_CREATE_PCI_WRITE_END_PADDING)
)

// qpFlagsAll are all QP flags.
const qpFlagsAll = QPBlockMulticastLoopback | QPScatterFCS | QPStripVLAN | QPPadWriteEnd

// QPOptions are the options of [PD.CreateQP]. SendCQ and RecvCQ are required, unless the QP does
// not have that queue. They may be the same CQ.
type QPOptions struct {
	Type       ib.QPType   // Type is the transport service; by default RC.
	SendCQ     *CQ         // SendCQ receives the completions of sends.
	RecvCQ     *CQ         // RecvCQ receives the completions of receives.
	SRQ        *SRQ        // SRQ provides the receives; the QP then has no receive queue of its own.
	MaxSendWR  int         // MaxSendWR is the minimum size of the send queue, in work requests; by default 64.
	MaxRecvWR  int         // MaxRecvWR is the minimum size of the receive queue, in work requests; by default 64.
	MaxSendSGE int         // MaxSendSGE is the maximum number of SGEs of a send; by default 1.
	MaxRecvSGE int         // MaxRecvSGE is the maximum number of SGEs of a receive; by default 1.
	MaxInline  int         // MaxInline is the maximum inline data of a send, in bytes.
	SignalAll  bool        // SignalAll sets SendSignaled in every send.
	Path       PathOptions // Path says how the QP reaches its peer.
	Flags      QPFlags     // Flags are properties of the QP.

	// InlineRecv lets the device put short data into completions: messages that the QP receives and,
	// with SignalAll, what RDMA READ and atomics return, up to 32 bytes, or 64 with a CQESize of 128.
	// Poll copies the data to the SGEs of the work request. Only mlx5 supports it, for RC and UC.
	//
	// It is off by default, although libmlx5 has it on (MLX5_SCATTER_TO_CQE): a short message then fails
	// with WCLocProtErr in memory that the program cannot write, such as a region of [PD.RegDMABuf],
	// [PD.RegDM] or [PD.ImportMR] without Memory. The MR must stay open until its completion was polled.
	InlineRecv bool

	// OutOfOrder lets the device place data in the order in which packets arrive, for networks that reorder
	// them, such as those with adaptive routing (MLX5DV_QP_CREATE_OOO_DP). Completions stay in the order of
	// the messages, but a message may use any of the posted receives: the ID of its completion says which.
	// So all receives should have the same size. The data of an incoming message or of an RDMA READ is
	// complete only when its completion has been polled. READs and atomics are executed after all earlier
	// messages, and the kernel turns off atomics of more than 8 bytes.
	//
	// Both sides must set it. The receive queue takes twice the memory, and an entry is used again only when all
	// earlier receives have completed. So a receive that stays unused can fill the queue early: a post fails with
	// [ErrQueueFull], although fewer than MaxRecvWR receives are posted. An SRQ needs neither.
	//
	// Only mlx5 supports it, for all types but RawPacket, since Linux 6.13. Otherwise creating the QP fails
	// with a [FeatureError]. If the adapter has it for other types of QP only, the error comes from the first
	// [QP.Modify], or from [QP.Init], [QP.ReadyUD], [QP.Connect] or mlx5.ReadyDC: the kernel checks the type
	// there.
	OutOfOrder bool

	// UnsolicitedWrite lets a peer's WRITE with immediate complete without a receive, with the ID 0
	// (EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV). Both sides must set it. Only SRD supports it, where
	// EFAAttr.UnsolicitedWrite is true.
	UnsolicitedWrite bool

	// RXHash selects the WQ of IndTable for a packet. mlx5 requires it together with IndTable.
	RXHash RXHash

	// IndTable distributes received packets over WQs. The QP then has no receive queue and no RecvCQ,
	// and without SendCQ no send queue either.
	IndTable *RWQIndTable
}

// RXHash is a Toeplitz hash over header fields of a packet.
type RXHash struct {
	Fields RXHashFields // Fields are the fields to hash; if 0, all packets go to the first WQ.
	Key    [40]byte     // Key is the key of the hash. It must not be zero. The two sides may use different keys.
}

// RXHashFields are header fields to hash (enum ibv_rx_hash_fields). Fields of IPv4 exclude those of
// IPv6, and fields of TCP those of UDP.
type RXHashFields uint64

// Header fields.
const (
	RXHashSrcIPv4 RXHashFields = 1 << iota // IBV_RX_HASH_SRC_IPV4
	RXHashDstIPv4                          // IBV_RX_HASH_DST_IPV4
	RXHashSrcIPv6                          // IBV_RX_HASH_SRC_IPV6
	RXHashDstIPv6                          // IBV_RX_HASH_DST_IPV6
	RXHashSrcTCP                           // IBV_RX_HASH_SRC_PORT_TCP
	RXHashDstTCP                           // IBV_RX_HASH_DST_PORT_TCP
	RXHashSrcUDP                           // IBV_RX_HASH_SRC_PORT_UDP
	RXHashDstUDP                           // IBV_RX_HASH_DST_PORT_UDP
)

// PathOptions say how a QP reaches its peer. A zero field means the default. To set a value that is
// itself zero use [QP.Modify].
type PathOptions struct {
	Port         uint8         // Port is the local port; by default the first active one.
	GIDIndex     *int          // GIDIndex is the index of the local GID; by default that of [ChooseGID]. new(1) is index 1.
	MTU          ib.MTU        // MTU is the longest path MTU of this side, by default the port's active MTU. [QP.Connect] uses the smaller one of both sides.
	PKey         uint16        // PKey is a key of the partition, the bit of full members aside; by default the partition is the first one of which the port is a full member. See [QP.Init].
	SL           uint8         // SL is the service level, 0 to 15.
	TrafficClass uint8         // TrafficClass is the traffic class in the IP header on RoCE.
	FlowLabel    uint32        // FlowLabel is the flow label, 20 bits.
	StaticRate   ib.StaticRate // StaticRate limits how fast a connected QP sends, on InfiniBand.
	HopLimit     uint8         // HopLimit is the number of routers that a packet may cross, by default 64. On RoCE the kernel uses the TTL of the route instead.
	Timeout      ib.AckTimeout // Timeout is the wait for an acknowledgement; by default 14 (67 ms).
	RetryCount   uint8         // RetryCount is the number of retries, up to 7; by default 6. On rxe 7 means forever.
	RNRRetry     uint8         // RNRRetry is the number of retries while the peer has no receive posted; by default 7, which means forever.
	MinRNRTimer  ib.RNRTimer   // MinRNRTimer is how long the peer must wait before such a retry; by default 12 (0.64 ms).
	MaxRdAtomic  uint8         // MaxRdAtomic is the number of READs and atomics in flight, in each direction; by default 16 or the device's limit, if that is lower. The peer needs the same.
	Access       Access        // Access is what the QP permits its peer; by default RDMA READ, WRITE and, if the device supports them, atomics.
}

// hasSendQueue reports whether the QP has a send queue.
func (o *QPOptions) hasSendQueue() bool {
	return o.Type != ib.XRCRecv && o.Type != ib.DCT && (o.IndTable == nil || o.SendCQ != nil)
}

// hasRecvQueue reports whether the QP has a receive queue of its own.
func (o *QPOptions) hasRecvQueue() bool {
	return o.SRQ == nil && o.IndTable == nil && o.Type != ib.XRCSend && o.Type != ib.XRCRecv && !isDC(o.Type)
}

// check returns an error if an option is invalid or not supported.
func (o *QPOptions) check(d *Device) error {
	_, known := d.driver.operations(o.Type)
	lacking := d.driver.unsupportedQP(o)
	if o.UnsolicitedWrite && o.Type != ib.SRD {
		lacking = "UnsolicitedWrite for " + o.Type.String()
	}
	switch t := o.Type; {
	case t < ib.RC || t > ib.UD && t < ib.RawPacket || t > ib.SRD:
		return argErr("CreateQP", "Type", t, "the QPType constants")
	case t == ib.XRCRecv:
		return argErr("CreateQP", "Type", t, "the other types; use XRCD.CreateQP for this one")
	case !known:
		return &FeatureError{Feature: "QP type " + t.String(), Driver: d.driver.name()}
	case o.Flags&^qpFlagsAll != 0:
		return argErr("CreateQP", "Flags", fmt.Sprintf("%#x", uint32(o.Flags)), "the QP flags, together %#x", uint32(qpFlagsAll))
	case lacking != "":
		return &FeatureError{Feature: "CREATE_QP with " + lacking, Driver: d.driver.name()}
	}
	if err := o.checkQueues(d); err != nil {
		return err
	}
	switch {
	case o.MaxInline < 0:
		return argErr("CreateQP", "MaxInline", o.MaxInline, "at least 0 bytes")
	case o.MaxInline > maxInline && !o.hasSendQueue():
		return argErr("CreateQP", "MaxInline", o.MaxInline, "0, as there is no send queue")
	}
	return o.Path.check(d)
}

// checkQueues checks the CQs and the sizes of the queues.
func (o *QPOptions) checkQueues(d *Device) error {
	noRecv := ""
	switch {
	case o.IndTable != nil:
		noRecv = "with an IndTable, whose WQs receive"
	case o.Type == ib.XRCSend, o.Type == ib.DCI:
		noRecv = "for " + o.Type.String() + ", which does not receive"
	}
	switch {
	case o.SendCQ == nil && o.hasSendQueue():
		return argErr("CreateQP", "SendCQ", "nil", "a CQ")
	case o.RecvCQ == nil && noRecv == "":
		return argErr("CreateQP", "RecvCQ", "nil", "a CQ")
	case o.RecvCQ != nil && noRecv != "":
		return argErr("CreateQP", "RecvCQ", "a CQ", "nil %s", noRecv)
	case o.SRQ != nil && noRecv != "":
		return argErr("CreateQP", "SRQ", "an SRQ", "nil %s", noRecv)
	case o.SRQ != nil:
		noRecv = "with an SRQ, which has the receives"
	}
	noSend := ""
	if !o.hasSendQueue() {
		noSend = "without a SendCQ"
	}
	most := d.queueLimits()
	for _, f := range []struct {
		name         string
		given, limit int
		what, none   string // none says why there is no such queue
	}{
		{"MaxSendWR", o.MaxSendWR, most.MaxSendWR, "max_qp_wr", noSend},
		{"MaxRecvWR", o.MaxRecvWR, most.MaxRecvWR, "max_qp_wr", noRecv},
		{"MaxSendSGE", o.MaxSendSGE, most.MaxSendSGE, "max_sge", noSend},
		{"MaxRecvSGE", o.MaxRecvSGE, most.MaxRecvSGE, "max_sge", noRecv},
	} {
		switch {
		case f.none != "" && f.given != 0:
			return argErr("CreateQP", f.name, f.given, "0 %s", f.none)
		case f.none == "" && (f.given < 1 || f.given > f.limit):
			return argErr("CreateQP", f.name, f.given, "1 to %d (%s of %s)", f.limit, f.what, d.Name())
		}
	}
	return nil
}

// check returns an ArgError if a value is out of range.
func (o *PathOptions) check(d *Device) error {
	if *o == (PathOptions{}) {
		return nil
	}
	for _, f := range []struct {
		name         string
		given, limit uint32
	}{
		{"Path.Port", uint32(o.Port), uint32(d.attr.PhysPortCount)},
		{"Path.SL", uint32(o.SL), 15},
		{"Path.FlowLabel", o.FlowLabel, 1<<20 - 1},
		{"Path.StaticRate", uint32(o.StaticRate), uint32(ib.Rate1200G)},
		{"Path.Timeout", uint32(o.Timeout), 31},
		{"Path.RetryCount", uint32(o.RetryCount), 7},
		{"Path.RNRRetry", uint32(o.RNRRetry), 7},
		{"Path.MinRNRTimer", uint32(o.MinRNRTimer), 31},
		{"Path.MaxRdAtomic", uint32(o.MaxRdAtomic), min(d.attr.MaxQPInitRdAtom, d.attr.MaxQPRdAtom)},
		{"Path.MTU", uint32(o.MTU), uint32(ib.MTU4096)},
	} {
		if f.given > f.limit && f.limit == 0 {
			return argErr("CreateQP", f.name, f.given, "0 on %s", d.Name())
		}
		if f.given > f.limit {
			return argErr("CreateQP", f.name, f.given, "1 to %d, or 0 for the default", f.limit)
		}
	}
	if o.PKey != 0 && o.PKey&partitionBits == 0 {
		return argErr("CreateQP", "Path.PKey", pkeyText(o.PKey), allowedPKeys+"; 0 for the default")
	}
	if o.Access&^accessQP != 0 {
		return argErr("CreateQP", "Path.Access", o.Access, "%s", accessQP)
	}
	return nil
}

// XRCRecvOptions are the options of [XRCD.CreateQP].
type XRCRecvOptions struct {
	Path       PathOptions // Path says how the QP reaches its peer.
	OutOfOrder bool        // OutOfOrder has the meaning of QPOptions.OutOfOrder. The sender must set it too.
}

// qpSpec describes a QP to create: options, and its PD or XRC domain.
type qpSpec struct {
	QPOptions
	pd   *PD
	xrcd *XRCD
	open uint32 // number of an existing QP of xrcd to open, or 0
	dc   *hook.DC
	// prepare replaces driver.prepareQP if it is not nil.
	prepare func(*QP, *qpSpec) (udata, error)
}

// uses appends the objects that the QP uses to all.
func (s *qpSpec) uses(all []*object) []*object {
	if s.pd != nil {
		all = append(all, &s.pd.object)
	}
	if s.xrcd != nil {
		all = append(all, &s.xrcd.object)
	}
	if s.SendCQ != nil {
		all = append(all, &s.SendCQ.object)
	}
	if s.RecvCQ != nil && s.RecvCQ != s.SendCQ {
		all = append(all, &s.RecvCQ.object)
	}
	if s.SRQ != nil {
		all = append(all, &s.SRQ.object)
	}
	if s.IndTable != nil {
		all = append(all, &s.IndTable.object)
	}
	return all
}
