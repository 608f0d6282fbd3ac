package mlx5

import (
	"fmt"

	layout "github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/hook"
)

// LAG is the state of link aggregation of an adapter (mlx5_bond), whose ports act as one device.
type LAG struct {
	Ports  int  // Ports is the number of ports that are aggregated.
	Active bool // Active says that aggregation is in force.

	// SendsBy has, for ports 1 and 2, the port that sends in its place: the port itself, or the
	// other one while it is down.
	SendsBy [2]uint8
}

// LAGPort is the port of a LAG by which a QP sends.
type LAGPort struct {
	Port   uint8 // Port is the port that the QP was given, from 1 on; 0 leaves the choice to the adapter.
	Active uint8 // Active is the port that sends in its place; 0 is unknown.
}

// QueryLAG returns the state of link aggregation. It fails with a [uverbs.FeatureError] if the
// device is not part of an adapter with link aggregation, or was not opened with
// [uverbs.OpenOptions].DEVX.
func QueryLAG(d *uverbs.Device) (LAG, error) {
	o, err := core.Device(d)
	if err != nil {
		return LAG{}, err
	}
	defer o.Release()
	return lag(o)
}

// QueryLAGPort returns the port of a LAG by which the QP sends (mlx5dv_query_qp_lag_port). It fails
// with a [uverbs.FeatureError] like [QueryLAG], and with a [uverbs.ArgError] for a QP that does not
// send.
func QueryLAGPort(q *uverbs.QP) (LAGPort, error) {
	const op = "QueryLAGPort"
	o, err := core.QP(q, false)
	if err != nil {
		return LAGPort{}, err
	}
	defer o.Release()
	l, _, err := lagOf(o)
	if err != nil {
		return LAGPort{}, err
	}
	var p LAGPort
	switch typ := o.QP.Type; {
	case typ == ib.RawPacket && !o.QP.HasTIS:
		return p, noSendQueue(op)
	case typ == ib.RawPacket:
		in, n := layout.QueryTIS(o.QP.TIS)
		out := make([]byte, n)
		err = known(o, &query, in, out)
		p.Port = layout.DecodeTISLAGPort(out)
	case typ == ib.RC, typ == ib.UC, typ == ib.UD, typ == ib.XRCSend, typ == ib.DCI:
		in, n := layout.QueryQP(q.QPN())
		out := make([]byte, n)
		err = known(o, &query, in, out)
		p.Port, _ = layout.DecodeQPPorts(out)
	default:
		return p, argErr(op, "QP type", typ, "RC, UC, UD, XRCSend, DCI or RawPacket")
	}
	if n := int(p.Port); err == nil && n >= 1 && n <= len(l.SendsBy) {
		p.Active = l.SendsBy[n-1]
	}
	return p, err
}

// SetLAGPort has the QP send by a port of a LAG, 1 to [LAG].Ports (mlx5dv_modify_qp_lag_port). The
// kernel gives QPs the ports in turn. The QP is of type RC, UC, UD or DCI and in state [ib.QPRTS],
// or of type RawPacket and in any state. [uverbs.QP.Modify] may change the port again. SetLAGPort
// fails with a [uverbs.FeatureError] like [QueryLAG].
func SetLAGPort(q *uverbs.QP, port uint8) error {
	const op = "SetLAGPort"
	o, err := core.QP(q, true)
	if err != nil {
		return err
	}
	defer o.Release()
	l, caps, err := lagOf(o)
	if err != nil {
		return err
	}
	if port < 1 || int(port) > l.Ports {
		return argErr(op, "port", port, "1 to %d", l.Ports)
	}
	switch o.QP.Type {
	case ib.RawPacket:
		if !o.QP.HasTIS {
			return noSendQueue(op)
		}
		in, n := layout.SetTISLAGPort(o.QP.TIS, port)
		return known(o, &modify, in, make([]byte, n))
	case ib.RC, ib.UC, ib.UD, ib.DCI:
	default:
		return argErr(op, "QP type", o.QP.Type, "RC, UC, UD, DCI or RawPacket")
	}
	if q.State() != ib.QPRTS {
		return argErr(op, "state", q.State(), "%s", ib.QPRTS)
	}
	if !caps.SetLAGPort {
		return lacks("LAG port of a QP", "rts2rts_lag_tx_port_affinity")
	}
	in, n := layout.SetLAGPort(q.QPN(), port)
	return known(o, &modify, in, make([]byte, n))
}

// lag returns the state of the device's LAG.
func lag(o *hook.Object) (LAG, error) {
	if o.Part == nil {
		return LAG{}, noFeature(o, "LAG")
	}
	caps, err := capsOf(o)
	switch {
	case err != nil:
		return LAG{}, err
	case caps.LAGPorts <= 1:
		return LAG{}, lacks("LAG", "num_lag_ports")
	}
	in, n := layout.QueryLAG()
	out := make([]byte, n)
	if err := known(o, &general, in, out); err != nil {
		return LAG{}, err
	}
	state, by := layout.DecodeLAG(out)
	return LAG{Ports: caps.LAGPorts, Active: state != 0, SendsBy: by}, nil
}

// lagOf returns the LAG for a QP that can send by a port of it.
func lagOf(o *hook.Object) (LAG, layout.Caps, error) {
	l, err := lag(o)
	if err != nil {
		return l, layout.Caps{}, err
	}
	caps, err := capsOf(o)
	if err == nil && !l.Active && !caps.LAGPort {
		// The firmware may ignore the port of a QP then (_mlx5dv_query_qp_lag_port of libmlx5).
		err = lacks("LAG", "lag_tx_port_affinity")
	}
	return l, caps, err
}

// noSendQueue is the error for a QP for raw packets without a send queue, or whose TIS the kernel
// has not told.
func noSendQueue(op string) error { return argErr(op, "send queue", "none", "a QP that sends") }

// minUDPSourcePort is the first dynamic port (IB_ROCE_UDP_ENCAP_VALID_PORT_MIN).
const minUDPSourcePort = 0xc000

// SetUDPSourcePort sets the UDP source port of the packets that the QP sends by RoCE v2
// (mlx5dv_modify_qp_udp_sport), from 0xc000 (49,152) on. Switches choose one of several paths by
// it. The QP is of type RC or UC and in state [ib.QPRTS]. Until then the port depends on the path's
// flow label, see [ib.FlowLabelPort], or, if the label is 0, on both QP numbers; a new connection
// has such a port again. SetUDPSourcePort fails with a [uverbs.FeatureError] if the adapter does
// not have the capability rts2rts_qp_udp_sport, or the device was not opened with
// [uverbs.OpenOptions].DEVX.
func SetUDPSourcePort(q *uverbs.QP, port uint16) error {
	const op, feature = "SetUDPSourcePort", "UDP source port of a QP"
	o, err := core.QP(q, true)
	if err != nil {
		return err
	}
	defer o.Release()
	switch typ := o.QP.Type; {
	case port < minUDPSourcePort:
		return argErr(op, "port", fmt.Sprintf("%#x", port), "%#x to 0xffff", minUDPSourcePort)
	case typ != ib.RC && typ != ib.UC:
		return argErr(op, "QP type", typ, "RC or UC")
	case q.State() != ib.QPRTS:
		return argErr(op, "state", q.State(), "%s", ib.QPRTS)
	case o.Part == nil:
		return noFeature(o, feature)
	}
	caps, err := capsOf(o)
	switch {
	case err != nil:
		return err
	case !caps.SourcePort:
		return lacks(feature, "rts2rts_qp_udp_sport")
	}
	in, n := layout.SetSourcePort(q.QPN(), port)
	return known(o, &modify, in, make([]byte, n))
}
