package mad

import (
	"fmt"
	"io"
	"reflect"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// Mask says which fields of a record a request gives (ComponentMask).
type Mask uint64

// Fields of a [NodeRecord].
const (
	NodeLID             Mask = 1 << 0
	NodeNodeType        Mask = 1 << 4
	NodeSystemImageGUID Mask = 1 << 6
	NodeNodeGUID        Mask = 1 << 7
	NodePortGUID        Mask = 1 << 8
	NodeNodeDescription Mask = 1 << 14
)

// Fields of a [PortInfoRecord].
const (
	PortEndportLID Mask = 1 << 0
	PortPortNum    Mask = 1 << 1
)

// Fields of a [PathRecord].
const (
	PathServiceID              Mask = 3 << 0
	PathDGID                   Mask = 1 << 2
	PathSGID                   Mask = 1 << 3
	PathDLID                   Mask = 1 << 4
	PathSLID                   Mask = 1 << 5
	PathReversible             Mask = 1 << 11
	PathNumbPath               Mask = 1 << 12
	PathPKey                   Mask = 1 << 13
	PathQosClass               Mask = 1 << 14
	PathSL                     Mask = 1 << 15
	PathMTUSelector            Mask = 1 << 16
	PathMTU                    Mask = 1 << 17
	PathRateSelector           Mask = 1 << 18
	PathRate                   Mask = 1 << 19
	PathPacketLifeTimeSelector Mask = 1 << 20
	PathPacketLifeTime         Mask = 1 << 21
)

// Fields of an [MCMemberRecord].
const (
	MCMGID         Mask = 1 << 0
	MCPortGID      Mask = 1 << 1
	MCQKey         Mask = 1 << 2
	MCMLID         Mask = 1 << 3
	MCMTUSelector  Mask = 1 << 4
	MCMTU          Mask = 1 << 5
	MCTClass       Mask = 1 << 6
	MCPKey         Mask = 1 << 7
	MCRateSelector Mask = 1 << 8
	MCRate         Mask = 1 << 9
	MCSL           Mask = 1 << 12
	MCFlowLabel    Mask = 1 << 13
	MCHopLimit     Mask = 1 << 14
	MCScope        Mask = 1 << 15
	MCJoinState    Mask = 1 << 16
	MCProxyJoin    Mask = 1 << 17
)

// Fields of a [ServiceRecord].
const (
	ServiceID    Mask = 1 << 0
	ServiceGID   Mask = 1 << 1
	ServicePKey  Mask = 1 << 2
	ServiceLease Mask = 1 << 4
	ServiceKey   Mask = 1 << 5
	ServiceName  Mask = 1 << 6
	ServiceData  Mask = 0x3fffffff << 7 // all data
)

// NodeRecord describes a node. There is one for each port of an adapter, and one for each switch.
type NodeRecord struct {
	LID             uint16          `mad:"0"`  // LID is the LID of the port.
	NodeInfo        NodeInfo        `mad:"4"`  // NodeInfo describes the node.
	NodeDescription NodeDescription `mad:"44"` // NodeDescription is the name of the node.
}

// ID implements Attribute.
func (*NodeRecord) ID() AttrID { return AttrNodeRecord }

// PortInfoRecord describes a port.
type PortInfoRecord struct {
	EndportLID uint16   `mad:"0"` // EndportLID is the LID of the port, or of the switch that it is part of.
	PortNum    uint8    `mad:"2"` // PortNum is the number of the port.
	Options    uint8    `mad:"3"` // Options are choices of the request.
	PortInfo   PortInfo `mad:"4"` // PortInfo describes the port.
}

// ID implements Attribute.
func (*PortInfoRecord) ID() AttrID { return AttrPortInfoRecord }

// PathRecord is a path between two ports. Selectors say how a request compares: 0 greater than, 1 less
// than, 2 equal, 3 the best.
type PathRecord struct {
	ServiceID              uint64 `mad:"0"`       // ServiceID is for the quality of service.
	DGID                   ib.GID `mad:"8"`       // DGID is the GID at the far end.
	SGID                   ib.GID `mad:"24"`      // SGID is the GID at the near end.
	DLID                   uint16 `mad:"40"`      // DLID is the LID at the far end, or of the router.
	SLID                   uint16 `mad:"42"`      // SLID is the LID at the near end.
	RawTraffic             bool   `mad:"44.0 1"`  // RawTraffic is for raw packets.
	FlowLabel              uint32 `mad:"44.4 20"` // FlowLabel is the flow label of the GRH.
	HopLimit               uint8  `mad:"47"`      // HopLimit is the number of routers that a packet may cross; 0 or 1 is none.
	TClass                 uint8  `mad:"48"`      // TClass is the traffic class of the GRH.
	Reversible             bool   `mad:"49.0 1"`  // Reversible says that the path can be used in both directions.
	NumbPath               uint8  `mad:"49.1 7"`  // NumbPath is how many paths a request wants at most.
	PKey                   uint16 `mad:"50"`      // PKey is the partition key.
	QosClass               uint16 `mad:"52.0 12"` // QosClass is the class of the quality of service.
	SL                     uint8  `mad:"53.4 4"`  // SL is the service level.
	MTUSelector            uint8  `mad:"54.0 2"`  // MTUSelector says how MTU is compared.
	MTU                    ib.MTU `mad:"54.2 6"`  // MTU is the MTU of the path, 1 for 256 bytes to 5 for 4096.
	RateSelector           uint8  `mad:"55.0 2"`  // RateSelector compares Rate.
	Rate                   uint8  `mad:"55.2 6"`  // Rate is an enumeration, 2 for 2.5 Gb/s.
	PacketLifeTimeSelector uint8  `mad:"56.0 2"`  // PacketLifeTimeSelector compares PacketLifeTime.
	PacketLifeTime         uint8  `mad:"56.2 6"`  // PacketLifeTime is the longest delay, 4.096 µs·2ⁿ.
	Preference             uint8  `mad:"57"`      // Preference orders paths; smaller is better.
}

// ID implements Attribute.
func (*PathRecord) ID() AttrID { return AttrPathRecord }

// MCMemberRecord is a multicast group, or a member of one. The selectors have the same meaning as
// in a [PathRecord].
type MCMemberRecord struct {
	MGID                   ib.GID `mad:"0"`       // MGID is the GID of the group.
	PortGID                ib.GID `mad:"16"`      // PortGID is the GID of the member; 0 if the request was not trusted.
	QKey                   uint32 `mad:"32"`      // QKey is the Q_Key of the group.
	MLID                   uint16 `mad:"36"`      // MLID is the LID of the group.
	MTUSelector            uint8  `mad:"38.0 2"`  // MTUSelector compares MTU.
	MTU                    ib.MTU `mad:"38.2 6"`  // MTU is 1 for 256 bytes to 5 for 4096.
	TClass                 uint8  `mad:"39"`      // TClass is the traffic class.
	PKey                   uint16 `mad:"40"`      // PKey is the partition key.
	RateSelector           uint8  `mad:"42.0 2"`  // RateSelector compares Rate.
	Rate                   uint8  `mad:"42.2 6"`  // Rate is an enumeration, 2 for 2.5 Gb/s.
	PacketLifeTimeSelector uint8  `mad:"43.0 2"`  // PacketLifeTimeSelector compares PacketLifeTime.
	PacketLifeTime         uint8  `mad:"43.2 6"`  // PacketLifeTime is the longest delay, 4.096 µs·2ⁿ.
	SL                     uint8  `mad:"44.0 4"`  // SL is the service level.
	FlowLabel              uint32 `mad:"44.4 20"` // FlowLabel is the flow label of the GRH.
	HopLimit               uint8  `mad:"47"`      // HopLimit is the number of routers that a packet may cross.
	Scope                  uint8  `mad:"48.0 4"`  // Scope is the scope of the MGID.
	JoinState              uint8  `mad:"48.4 4"`  // JoinState has bits: 1 full member, 2 non-member, 4 member that only sends.
	ProxyJoin              bool   `mad:"49.0 1"`  // ProxyJoin says that another port joined for the member.
}

// ID implements Attribute.
func (*MCMemberRecord) ID() AttrID { return AttrMCMemberRecord }

// ServiceRecord is a service that a port has announced.
type ServiceRecord struct {
	ServiceID     uint64    `mad:"0"`      // ServiceID identifies the service on the port.
	ServiceGID    ib.GID    `mad:"8"`      // ServiceGID is the GID of the port.
	ServicePKey   uint16    `mad:"24"`     // ServicePKey is the partition key of the service.
	ServiceLease  uint32    `mad:"28"`     // ServiceLease is how long the record lives, in seconds; all ones is for ever.
	ServiceKey    [16]uint8 `mad:"32"`     // ServiceKey guards the record.
	ServiceName   string    `mad:"48 512"` // ServiceName has at most 64 bytes.
	ServiceData8  [16]uint8 `mad:"112"`    // ServiceData8 is data of the service, like those that follow.
	ServiceData16 [8]uint16 `mad:"128"`    // ServiceData16 is data of the service.
	ServiceData32 [4]uint32 `mad:"144"`    // ServiceData32 is data of the service.
	ServiceData64 [2]uint64 `mad:"160"`    // ServiceData64 is data of the service.
}

// ID implements Attribute.
func (*ServiceRecord) ID() AttrID { return AttrServiceRecord }

// Table decodes the records of an answer of the subnet administrator, one if it answers Get. The error
// matches [io.ErrUnexpectedEOF] if the distance of the records is smaller than they are, or if the last
// one is cut off. An answer that reports "no records" is an error, see [StatusError].
//
//	nodes, err := mad.Table[mad.NodeRecord](answer)
func Table[T any, P interface {
	*T
	Attribute
}](p *Packet) ([]T, error) {
	var records []T
	err := p.eachRecord(P(new(T)), func(r Attribute) { records = append(records, *r.(P)) })
	return records, err
}

// Records is Table for records of the type of kind, which is not changed.
func Records(p *Packet, kind Attribute) ([]Attribute, error) {
	var records []Attribute
	v, err := structOf(kind)
	if err != nil {
		return nil, err
	}
	err = p.eachRecord(reflect.New(v.Type()).Interface().(Attribute), func(r Attribute) {
		one := reflect.New(v.Type())
		one.Elem().Set(reflect.ValueOf(r).Elem())
		records = append(records, one.Interface().(Attribute))
	})
	return records, err
}

// eachRecord decodes one record after the other into r, and calls a function for each.
func (p *Packet) eachRecord(r Attribute, do func(Attribute)) error {
	if p.Class != ClassSA {
		return fmt.Errorf("mad: %v is not of subnet administration", p)
	}
	if err := p.Err(); err != nil {
		return err
	}
	size, step := layoutOf(reflect.TypeOf(r).Elem()).size, int(p.SA.AttributeOffset)*8
	if !p.rmppActive() {
		step = len(p.Data)
	} else if step < size && len(p.Data) > 0 {
		return fmt.Errorf("mad: %v: records are %d bytes apart, and have %d: %w", p, step, size, io.ErrUnexpectedEOF)
	}
	for b, first := p.Data, true; len(b) > 0 || first && !p.rmppActive(); b = b[min(step, len(b)):] { // the last may be without its padding
		one := *p
		one.Data = b
		if err := one.Decode(r); err != nil {
			return err
		}
		do(r)
		first = false
	}
	return nil
}
