package rdmacm

import (
	"encoding/binary"
	"syscall"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/cm/internal/inprocess"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// Path is a path record: the properties of a route between two ports, as InfiniBand's subnet
// administrator records them (struct ibv_path_record). For RoCE the kernel makes up a record, in
// which LIDs have no meaning.
type Path struct {
	ServiceID    uint64 // ServiceID is the service that the path is for; 0 is any.
	DGID         ib.GID // DGID is the GID of the remote port.
	SGID         ib.GID // SGID is the GID of the local port.
	DLID         uint16 // DLID is the local identifier of the remote port.
	SLID         uint16 // SLID is the local identifier of the local port.
	RawTraffic   bool   // RawTraffic says that the path is for raw packets.
	FlowLabel    uint32 // FlowLabel is the flow label of the GRH, of 20 bits.
	HopLimit     uint8  // HopLimit is the number of routers that a packet may cross.
	TrafficClass uint8  // TrafficClass is the traffic class of the GRH, as in IP.
	Reversible   bool   // Reversible says that the path works in the other direction too.
	Count        uint8  // Count is how many records a query may return, up to 127.
	PKey         uint16 // PKey is the partition key.
	QoSClass     uint16 // QoSClass is the class of service, of 12 bits.
	SL           uint8  // SL is the service level, of 4 bits.
	Preference   uint8  // Preference orders the records of an answer; 0 is the best.

	MTU      ib.MTU        // MTU is the largest packet of the path.
	Rate     uint8         // Rate is the code of the static rate (enum ibv_rate).
	Lifetime ib.AckTimeout // Lifetime is the longest time that a packet needs.

	MTUSelector      Selector // MTUSelector says how to read MTU.
	RateSelector     Selector // RateSelector says how to read Rate.
	LifetimeSelector Selector // LifetimeSelector says how to read Lifetime.
}

// Selector says how to read a value of a path record.
type Selector uint8

// Selectors (IBTA 15.2.5.16).
const (
	SelectGreater Selector = iota // the value is greater
	SelectLess                    // the value is smaller
	SelectExactly                 // the value is equal
	SelectLargest                 // the value is the largest possible, or for times the smallest
)

// decodePath decodes a path record.
func decodePath(rec *abi.IbPathRecData) Path {
	var b [len(rec.PathRec) * 4]byte
	var r mad.PathRecord
	for i, word := range rec.PathRec { // without reflection: a listener does this for each request
		binary.NativeEndian.PutUint32(b[4*i:], word)
	}
	if err := mad.Unmarshal(b[:], &r); err != nil {
		panic(err)
	}
	return Path{
		ServiceID:    r.ServiceID,
		DGID:         r.DGID,
		SGID:         r.SGID,
		DLID:         r.DLID,
		SLID:         r.SLID,
		RawTraffic:   r.RawTraffic,
		FlowLabel:    r.FlowLabel,
		HopLimit:     r.HopLimit,
		TrafficClass: r.TClass,
		Reversible:   r.Reversible,
		Count:        r.NumbPath,
		PKey:         r.PKey,
		QoSClass:     r.QosClass,
		SL:           r.SL,
		Preference:   r.Preference,

		MTU:              r.MTU,
		Rate:             r.Rate,
		Lifetime:         ib.AckTimeout(r.PacketLifeTime),
		MTUSelector:      Selector(r.MTUSelector),
		RateSelector:     Selector(r.RateSelector),
		LifetimeSelector: Selector(r.PacketLifeTimeSelector),
	}
}

// primaryPath has the flags of the only kind of record that the kernel returns and accepts.
const primaryPath = abi.IB_PATH_GMP | abi.IB_PATH_PRIMARY | abi.IB_PATH_BIDIRECTIONAL

// encode encodes a path record that check accepts.
func (p *Path) encode() *abi.IbPathRecData {
	b, err := mad.Marshal(&mad.PathRecord{
		ServiceID:  p.ServiceID,
		DGID:       p.DGID,
		SGID:       p.SGID,
		DLID:       p.DLID,
		SLID:       p.SLID,
		RawTraffic: p.RawTraffic,
		FlowLabel:  p.FlowLabel,
		HopLimit:   p.HopLimit,
		TClass:     p.TrafficClass,
		Reversible: p.Reversible,
		NumbPath:   p.Count,
		PKey:       p.PKey,
		QosClass:   p.QoSClass,
		SL:         p.SL,
		Preference: p.Preference,

		MTU:                    p.MTU,
		Rate:                   p.Rate,
		PacketLifeTime:         uint8(p.Lifetime),
		MTUSelector:            uint8(p.MTUSelector),
		RateSelector:           uint8(p.RateSelector),
		PacketLifeTimeSelector: uint8(p.LifetimeSelector),
	})
	rec := &abi.IbPathRecData{Flags: primaryPath}
	if err != nil {
		panic(err)
	}
	b = append(b, make([]byte, len(rec.PathRec)*4-len(b))...) // reserved
	for i := range rec.PathRec {
		rec.PathRec[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return rec
}

// check returns an error if a field does not fit into the bits that a record has for it.
func (p *Path) check() error {
	for _, f := range []struct {
		name  string
		given uint32
		bits  int
	}{
		{"FlowLabel", p.FlowLabel, 20}, {"Count", uint32(p.Count), 7}, {"QoSClass", uint32(p.QoSClass), 12},
		{"SL", uint32(p.SL), 4}, {"Rate", uint32(p.Rate), 6}, {"Lifetime", uint32(p.Lifetime), 6},
	} {
		if most := uint32(1)<<f.bits - 1; f.given > most {
			return argErr("SetPath", f.name, f.given, "0 to %d", most)
		}
	}
	if p.MTU.Bytes() == 0 {
		return argErr("SetPath", "MTU", p.MTU, "%d to %d", ib.MTU256, ib.MTU4096)
	}
	if s := max(p.MTUSelector, p.RateSelector, p.LifetimeSelector); s > SelectLargest {
		return argErr("SetPath", "selector", s, "%d to %d", SelectGreater, SelectLargest)
	}
	return nil
}

// maxPaths is how many path records an answer has room for. The kernel keeps fewer, and returns one
// less than there is room for (ucma_query_path in ucma.c).
const maxPaths = 6

// Paths returns the path records of the route (struct rdma_route). There are none before
// [EventRouteResolved]. The first is the primary path; an alternate path may follow.
func (id *ID) Paths() ([]Path, error) {
	resp, err := queryList[abi.QueryPathResp, abi.IbPathRecData](id, "query paths", abi.RDMA_USER_CM_QUERY_PATH, maxPaths)
	if err != nil {
		return nil, err
	}
	var paths []Path
	for _, rec := range resp.TailPathData(int(min(resp.NumPaths, maxPaths-1))) {
		paths = append(paths, decodePath(&rec))
	}
	return paths, nil
}

// SetPath sets the route of a resolved address, instead of [ID.ResolveRoute] (rdma_set_option,
// RDMA_OPTION_IB_PATH). The result is [EventRouteResolved]. The kernel takes one record for both
// directions. On RoCE it fills in the fields for Ethernet.
//
// Packets have a GRH if HopLimit is not 0. On an InfiniBand port that requires a GRH in every
// packet (see [uverbs.PortAttr.GRHRequired]), SetPath replaces a HopLimit of 0 with 1, which is a
// path within the subnet.
func (id *ID) SetPath(p Path) error {
	if err := p.check(); err != nil {
		return err
	}
	if p.HopLimit == 0 && id.needsGRH() {
		p.HopLimit = 1
	}
	return setOption(id, opSetPath, abi.RDMA_OPTION_IB, abi.RDMA_OPTION_IB_PATH, p.encode())
}

// needsGRH reports whether the ID's port is an InfiniBand port that requires a GRH in every packet.
// It returns false if the port is not known or the device cannot be opened; then the kernel decides
// about the path.
func (id *ID) needsGRH() bool {
	a, index, err := id.AddrsByIndex()
	if err != nil || a.Port == 0 {
		return false
	}
	name, err := inprocess.DeviceName(index)
	if err != nil || name == "" {
		return false
	}
	dev, err := uverbs.Open(name, uverbs.OpenOptions{})
	if err != nil {
		return false
	}
	defer dev.Close()
	attr, err := dev.Port(a.Port)
	return err == nil && attr.LinkLayer == ib.LinkLayerInfiniBand && attr.GRHRequired()
}

// CheckRemote returns an error that matches EADDRNOTAVAIL if the remote address of a connection request is not that
// of the host to which the ID's packets go. A request says itself from which address it comes, and the kernel checks
// only that the route to this address leads through the device. On RoCE, CheckRemote compares the address with the GID
// of the path, which is an IP address there. The path is in the request, too: a host that forges both can ask for a
// connection in the name of another host, but all packets of the connection go to that host.
//
// CheckRemote returns nil on InfiniBand, where nothing tells the address, and on iWARP, where it is the address of a TCP
// connection. It also returns nil on software devices, which compare the request with the source address of its
// datagram themselves. dev is the ID's device. The Listener of package cm calls CheckRemote for each request.
func (id *ID) CheckRemote(dev *uverbs.Device) error {
	if dev == nil {
		return argErr("CheckRemote", "dev", "nil", "the device of the ID")
	}
	if info := dev.Info(); info.InProcess || info.IWARP() {
		return nil
	}
	a, _, err := id.AddrsByIndex()
	if err != nil {
		return err
	}
	paths, err := id.Paths()
	if err != nil {
		return err
	}
	differs := checkPeer(a.Remote, paths)
	if differs == nil {
		return nil
	}
	attr, err := dev.Port(a.Port)
	if err != nil || attr.LinkLayer != ib.LinkLayerEthernet {
		return err
	}
	return differs
}

// checkPeer compares the address that a peer on RoCE says to have with the path to it.
func checkPeer(remote Addr, paths []Path) error {
	const op = "check remote address"
	if len(paths) == 0 {
		return &Error{Op: op, Addr: remote.String(), Errno: syscall.EADDRNOTAVAIL, Hint: "the request has no path"}
	}
	if to := paths[0].DGID.Addr(); to != remote.ip() {
		return &Error{Op: op, Addr: remote.String(), Errno: syscall.EADDRNOTAVAIL, Hint: "that is what the request says, but packets to its sender go to " + to.String()}
	}
	return nil
}

// GIDs has the addresses of an ID as GIDs and service IDs.
type GIDs struct {
	Local           ib.GID  // Local is the GID of this side's port.
	Remote          ib.GID  // Remote is the GID of the peer's port.
	LocalServiceID  uint64  // LocalServiceID is the service ID of this side, made of the port space and the port.
	RemoteServiceID uint64  // RemoteServiceID is the service ID of the peer.
	PKey            uint16  // PKey is the partition key.
	NodeGUID        ib.GUID // NodeGUID is the GUID of the device; 0 if there is no device yet.
}

// afIB is the address family of GIDs (AF_IB).
const afIB = 27

// sockaddrIB is what follows the family in struct sockaddr_ib (rdma/ib.h), big-endian and without
// padding.
type sockaddrIB struct {
	PKey      uint16
	FlowInfo  uint32
	Addr      [16]uint8
	ServiceID uint64
	Mask      uint64
	Scope     uint64
}

// decodeIB decodes a struct sockaddr_ib. It returns the zero value for another family.
func decodeIB(s *abi.KernelSockaddrStorage) (a sockaddrIB) {
	if *s.SsFamily() != afIB {
		return a
	}
	be, b := binary.BigEndian, s.Data()[:]
	return sockaddrIB{be.Uint16(b), be.Uint32(b[2:]), [16]uint8(b[6:]), be.Uint64(b[22:]), be.Uint64(b[30:]), be.Uint64(b[38:])}
}

// GIDs returns the addresses of the ID as GIDs and service IDs (struct rdma_ib_addr). On RoCE the
// GIDs are made of the IP addresses. The GIDs are 0 before a device is chosen.
func (id *ID) GIDs() (GIDs, error) {
	resp, err := id.queryAddr("query GIDs", abi.RDMA_USER_CM_QUERY_GID)
	if err != nil {
		return GIDs{}, err
	}
	local, remote := decodeIB(&resp.SrcAddr), decodeIB(&resp.DstAddr)
	return GIDs{
		Local:           local.Addr,
		Remote:          remote.Addr,
		LocalServiceID:  local.ServiceID,
		RemoteServiceID: remote.ServiceID,
		PKey:            getPort(&resp.PKey),
		NodeGUID:        ib.GUID(binary.BigEndian.Uint64(binary.NativeEndian.AppendUint64(nil, resp.NodeGUID))),
	}, nil
}
