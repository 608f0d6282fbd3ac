package uverbs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// defaultRetryCount is one less than the maximum, 7, which rxe takes as forever: it would never
// notice that the peer is gone.
const defaultRetryCount = 6

// activePort returns the path's port and the attributes that query returns for it. The port comes
// from the options, or is the one that Init used, or the first active one. activePort fails with
// ENETDOWN if the port is not active.
func (q *QP) activePort(query func(port uint8) (PortAttr, error)) (uint8, PortAttr, error) {
	first := q.path.Port
	if first == 0 && q.State() != ib.QPReset {
		first = uint8(q.port.Load())
	}
	last := first
	if first == 0 {
		first, last = 1, q.dev.attr.PhysPortCount
	}
	var down PortAttr
	for port := first; port <= last; port++ {
		attr, err := query(port)
		if err != nil {
			return 0, PortAttr{}, err
		}
		if attr.State == ib.PortActive {
			return port, attr, nil
		}
		if port == first {
			down = attr
		}
	}
	return 0, PortAttr{}, &Error{
		Op:     "connect",
		Device: q.dev.Name(),
		Object: q.label(),
		Given:  fmt.Sprintf("port %d", first),
		Errno:  syscall.ENETDOWN,
		Hint:   fmt.Sprintf("port %d is %s (%s)%s", first, down.State, down.PhysState.Words(), q.netdevHint(first)),
	}
}

// netdevHint names the network interface of a RoCE port, whose state the port follows.
func (q *QP) netdevHint(port uint8) string {
	netdev := q.dev.netdev(port)
	if netdev == "" {
		return ""
	}
	return fmt.Sprintf("; it follows network interface %s: ip link set %s up", netdev, netdev)
}

// netdev returns the name of a port's network interface, or "" if it has none or that is unknown.
func (d *Device) netdev(port uint8) string {
	if d.info.InProcess {
		return d.info.inproc.Info().Netdev
	}
	dev, err := netlinkrdma.DeviceByName(d.Name())
	if err != nil {
		return ""
	}
	ports, err := netlinkrdma.Ports(dev)
	if err != nil {
		return ""
	}
	for _, p := range ports {
		if p.Num == uint32(port) {
			return p.Netdev
		}
	}
	return ""
}

// localGID returns the GID table entry that the path uses to reach peer. It is one with the GID that
// this side has told, which may be nil, unless another one suits the peer's family better.
func (q *QP) localGID(port uint8, attr PortAttr, peer ib.GID, told *ib.GID) (GIDEntry, error) {
	index := q.path.GIDIndex
	if index != nil {
		if e, err := q.dev.gidOf(port, *index, attr.GIDTableLen, attr.LinkLayer); err == nil {
			return e, nil
		}
	}
	unknown := peer.IsZero() && told == nil
	if c := q.dev.ports.own[port].Load(); unknown && index == nil && c.current(q.dev) && time.Since(started)-c.made < maxChoiceAge {
		return c.value, nil
	}
	chosen := newCached[GIDEntry](q.dev)
	table, err := q.dev.currentGIDs(port)
	if err != nil {
		return GIDEntry{}, err
	}
	if index != nil {
		return GIDEntry{}, argErr("Connect", "GID index", *index, "0 to %d, if it is in use; in use are %s", attr.GIDTableLen-1, gidList(table))
	}
	usable := table
	if told != nil && len(table) > 0 {
		if usable = keepTold(table, peer, *told); len(usable) == 0 {
			return GIDEntry{}, argErr("Connect", "local GID", told.Addr(), "the GID that Endpoint returned, if port %d of %s still has it; it has only %s now", port, q.dev.Name(), gidList(table))
		}
	}
	e, ok := ChooseGID(usable, peer)
	if !ok {
		return GIDEntry{}, argErr("Connect", "GID", "chosen by the library", "a used entry, but the GID table of port %d of %s is empty", port, q.dev.Name())
	}
	if unknown { // the host's addresses, which ChooseGID reads, cost more than the creation of a QP
		chosen.value = e
		q.dev.ports.own[port].Store(chosen)
	}
	if attr.LinkLayer == ib.LinkLayerEthernet && !peer.IsZero() && peer.Addr().Is4() != e.GID.Addr().Is4() {
		return GIDEntry{}, argErr("Connect", "remote GID", peer.Addr(), "an address of the family of a local GID; they are %s", gidList(table))
	}
	return e, nil
}

// keepTold returns the entries of a GID table that may be used to reach peer: those with the GID that
// the peer has been told, or all if others suit the peer better. It returns none if the GID is not in
// the table any more, or all if the peer is not known yet.
func keepTold(table []GIDEntry, peer, told ib.GID) []GIDEntry {
	var kept []GIDEntry
	best, bestKept := 0, 0
	for i := range table {
		suits := gidSuits(&table[i], peer)
		best = max(best, suits)
		if table[i].GID == told {
			kept, bestKept = append(kept, table[i]), max(bestKept, suits)
		}
	}
	if unknown := peer.IsZero(); unknown && kept == nil || !unknown && kept != nil && bestKept < best {
		return table
	}
	return kept
}

// Endpoint returns the endpoint of this queue pair, for its peer. It contains a GID, chosen by
// [PathOptions] or [ChooseGID],
//
//   - on RoCE,
//   - on a port of InfiniBand, or of a vendor's own protocol, that needs a GRH in every packet (see
//     [PortAttr.GRHRequired]),
//   - if PathOptions names a GID.
//
// [QP.Connect] sends from this GID, unless another one of the port suits the peer's address family or
// InfiniBand subnet better, or the peer's address is link-local and this one is not, or the reverse.
// After Connect, Endpoint returns the GID that Connect has chosen. A change to [ib.QPReset] ends this.
//
// Its P_Key is the one in use or, before [QP.Init], the one that Init chooses unless the table changes.
// Its MTU comes from PathOptions or, if there it is 0, is the port's active MTU. Endpoint fails with
// ENETDOWN if the port is not active, and with a [FeatureError] on iWARP, where Connect fails as well.
func (q *QP) Endpoint() (Endpoint, error) {
	return q.EndpointFor(Endpoint{})
}

// EndpointFor is like Endpoint, but chooses the GID for a peer that is already known, unless Connect
// has chosen one. If the peer has a GID, so does the endpoint: the peer's port may need a GRH even if
// this one does not.
func (q *QP) EndpointFor(remote Endpoint) (Endpoint, error) {
	if err := q.usable(); err != nil {
		return Endpoint{}, err
	}
	if err := q.dev.driver.unsupportedModify(q.dev, ib.QPRTR, AttrState); err != nil { // Connect would fail
		return Endpoint{}, err
	}
	port, attr, err := q.activePort(q.dev.currentPort)
	if err != nil {
		return Endpoint{}, err
	}
	e := Endpoint{QPN: q.QPN(), PSN: q.firstPSN(), LID: attr.LID}
	if _, e.PKey, err = q.partition("Endpoint", port); err != nil {
		return Endpoint{}, err
	}
	if e.PKey == defaultPKey {
		e.PKey = 0
	}
	if q.connected() {
		if e.MTU, err = q.pathMTU("Endpoint", port, attr); err != nil {
			return Endpoint{}, err
		}
	}
	if q.path.GIDIndex != nil || attr.gidNeeded() || !remote.GID.IsZero() {
		peer, told := remote.GID, q.told.Load()
		switch s := q.State(); {
		case told != nil && s != ib.QPReset && s != ib.QPInit: // it is in use
			peer = ib.GID{}
		case !peer.IsZero():
			told = nil
		}
		entry, err := q.localGID(port, attr, peer, told)
		if err != nil {
			return Endpoint{}, err
		}
		q.tell(entry.GID)
		e.GID = entry.GID
	}
	return e, nil
}

// tell records the GID by which the peer reaches this QP, if it is not zero. QPs with many peers choose
// one for each peer.
func (q *QP) tell(gid ib.GID) {
	if q.connected() && !gid.IsZero() {
		q.told.Store(&gid)
	}
}

// Init moves a queue pair from [ib.QPReset] to [ib.QPInit], in which receives can be posted. For UD, SRD and
// raw packet QPs use [QP.ReadyUD].
//
// The QP joins the partition of [PathOptions].PKey. If the port's P_Key table has both keys of the partition, the
// QP gets the one of a full member. By default the P_Key is the first one of a full member in the table, and
// otherwise the first one. Where sysfs has no P_Keys, or does not show them, it is entry 0.
func (q *QP) Init() error {
	if err := q.usable(); err != nil {
		return err
	}
	if !q.connected() {
		return argErr("Init", "QP type", q.typ, "a connected type; %s", useReady)
	}
	port := q.path.Port
	if port == 0 {
		var err error
		if port, _, err = q.activePort(q.dev.currentPort); err != nil {
			return err
		}
	}
	return q.initAt("Init", port)
}

// initAt moves a connected type of QP from [ib.QPReset] to [ib.QPInit].
func (q *QP) initAt(op string, port uint8) error {
	init, err := q.initAttr(op, port)
	if err != nil {
		return err
	}
	return q.Modify(init, AttrState|AttrPKeyIndex|AttrPort|AttrAccess)
}

// initAttr returns the attributes of the change to QPInit. A mask selects those of the type of QP.
func (q *QP) initAttr(op string, port uint8) (QPAttr, error) {
	pkey, _, err := q.partition(op, port)
	return QPAttr{State: ib.QPInit, Port: port, PKeyIndex: pkey, Access: q.access()}, err
}

// partition returns the P_Key of the QP and its index in the table of a port: those that the path asks for,
// until the QP leaves QPReset. The key is 0 if it is not known: RoCE, where all QPs have the same, is not
// asked for it, and neither is a device without sysfs, whose first key serves as the default.
func (q *QP) partition(op string, port uint8) (index, key uint16, err error) {
	d, want := q.dev, q.path.PKey
	facts, err := d.facts(port)
	if err != nil || want == 0 && facts.LinkLayer != ib.LinkLayerInfiniBand {
		return 0, 0, err
	}
	read := func(i int) (uint16, error) { return d.pkey(port, i) }
	chosen := d.ports.pkeys[port].Load() // mlx5 asks the firmware for each key, so the choice is kept
	known := chosen.current(d)
	if q.State() != ib.QPReset {
		index = uint16(q.pkey.Load())
		if known && chosen.value.index == index {
			return index, chosen.value.key, nil
		}
		key, _ = read(int(index))
		return index, key, nil
	}
	if !known || chosen.value.want != want {
		chosen = newCached[chosenPKey](d)
		i, key, err := choosePKey(read, facts.PKeyTableLen, want)
		switch {
		case want == 0 && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)):
			return 0, 0, nil
		case err != nil:
			return 0, 0, err
		case want != 0 && key == 0:
			return 0, 0, argErr(op, "Path.PKey", pkeyText(want), "the P_Keys of port %d of %s: %s", port, d.Name(), pkeyList(read, facts.PKeyTableLen))
		}
		chosen.value = chosenPKey{want: want, index: uint16(i), key: key}
		chosen.asked.Store(int64(time.Since(started))) // it has taken as long as there are keys
		d.ports.pkeys[port].Store(chosen)
	}
	return chosen.value.index, chosen.value.key, nil
}

// access returns what the QP permits its peer.
func (q *QP) access() Access {
	access := q.path.Access
	if access == 0 {
		access = AccessRemoteRead | AccessRemoteWrite
		if q.dev.attr.AtomicCap != ib.AtomicNone {
			access |= AccessRemoteAtomic
		}
	}
	return access
}

// useReady names the methods for types of QP that are not connected.
const useReady = "use ReadyUD for UD, SRD and raw packet, and mlx5.ReadyDC for DCI and DCT"

// ReadyUD moves a UD or SRD queue pair from [ib.QPReset] to [ib.QPRTS], in which it can send and receive. It
// receives datagrams that carry qkey; others are lost without an error, see [PortAttr.QKeyViolCount]. Only
// a privileged process may use a Q_Key with the highest bit set. A raw packet QP has no Q_Key; qkey must be 0.
// The P_Key is the one of [QP.Init].
func (q *QP) ReadyUD(qkey uint32) error {
	if err := q.usable(); err != nil {
		return err
	}
	if !isDatagram(q.typ) && q.typ != ib.RawPacket {
		return argErr("ReadyUD", "QP type", q.typ, "UD, SRD or RawPacket; use mlx5.ReadyDC for DCI and DCT, and Connect for other types")
	}
	if q.typ == ib.RawPacket && qkey != 0 {
		return argErr("ReadyUD", "qkey", qkey, "0, as raw packets have no Q_Key")
	}
	port, _, err := q.activePort(q.dev.currentPort)
	if err != nil {
		return err
	}
	pkey, _, err := q.partition("ReadyUD", port)
	if err != nil {
		return err
	}
	from := ib.QPReset
	for _, attr := range []QPAttr{
		{State: ib.QPInit, Port: port, PKeyIndex: pkey, QKey: qkey},
		{State: ib.QPRTR},
		{State: ib.QPRTS, SQPSN: q.firstPSN()},
	} {
		t, _ := lookUp(q.typ, from, attr.State)
		mask := AttrState | t.required
		if q.path.RNRRetry != 0 {
			attr.RNRRetry, mask = q.path.RNRRetry, mask|t.optional&AttrRNRRetry
		}
		if err := q.Modify(attr, mask); err != nil {
			return err
		}
		from = attr.State
	}
	return nil
}

// Connect connects a queue pair to its peer and leaves it ready to send. The QP must be in state
// [ib.QPReset] or [ib.QPInit], and of any type but UD, SRD and raw packet. Both sides must call Connect,
// each with the [Endpoint] of the other. The path MTU is the smaller one of the two endpoints; if the
// peer's is 0, it is the MTU of this side, and the peer must have the same. Connect fails if the P_Keys of
// both sides are known and are not of one partition, or both are of limited members. It sends from the GID
// that Endpoint has returned, see there. Connect checks the context between its steps. If a step fails,
// the QP stays in the state that it has reached.
func (q *QP) Connect(ctx context.Context, remote Endpoint) error {
	if err := q.usable(); err != nil {
		return err
	}
	if err := q.dev.driver.unsupportedModify(q.dev, ib.QPRTR, AttrState); err != nil {
		return err
	}
	if err := remote.check(); err != nil {
		return err
	}
	if !q.connected() {
		return argErr("Connect", "QP type", q.typ, "a connected type; %s", useReady)
	}
	port, attr, err := q.activePort(q.dev.recentPort) // with the current MTU
	if err != nil {
		return err
	}
	ah, from, err := q.address("Connect", port, attr, remote, q.told.Load())
	if err != nil {
		return err
	}
	mtu, err := q.pathMTU("Connect", port, attr)
	if err != nil {
		return err
	}
	if remote.MTU != 0 {
		mtu = min(mtu, remote.MTU)
	}
	rts := q.rtsAttr()
	// The masks select the attributes for the type of QP.
	rtr := QPAttr{
		State: ib.QPRTR, AH: ah, PathMTU: mtu, DestQPN: remote.QPN, RQPSN: remote.PSN,
		MaxDestRdAtomic: rts.MaxRdAtomic, MinRNRTimer: orDefault(q.path.MinRNRTimer, 12),
	}
	toRTR, _ := lookUp(q.typ, ib.QPInit, ib.QPRTR)
	toRTS, _ := lookUp(q.typ, ib.QPRTR, ib.QPRTS)
	steps := []func() error{
		func() error {
			if q.State() != ib.QPReset {
				return nil
			}
			return q.initAt("Connect", port)
		},
		func() error {
			if err := q.Modify(rtr, AttrState|toRTR.required); err != nil {
				return err
			}
			q.tell(from)
			return nil
		},
		func() error { return q.Modify(rts, AttrState|toRTS.required) },
	}
	for _, step := range steps {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("uverbs: connect to %s: %w", remote, err)
		}
		if err := step(); err != nil {
			return within("connect to "+remote.String(), err)
		}
	}
	return nil
}

// pathMTU returns the path MTU, or an error of op if the port does not have it.
func (q *QP) pathMTU(op string, port uint8, attr PortAttr) (ib.MTU, error) {
	mtu := orDefault(q.path.MTU, attr.ActiveMTU)
	if mtu > attr.ActiveMTU {
		return 0, argErr(op, "Path.MTU", fmt.Sprint(mtu.Bytes()), "up to %d, the active MTU of port %d", attr.ActiveMTU.Bytes(), port)
	}
	return mtu, nil
}

// rtsAttr returns the attributes of the change to QPRTS. A mask selects those of the type of QP.
func (q *QP) rtsAttr() QPAttr {
	return QPAttr{
		State: ib.QPRTS, SQPSN: q.firstPSN(), Timeout: orDefault(q.path.Timeout, 14), RetryCount: orDefault(q.path.RetryCount, defaultRetryCount),
		RNRRetry: orDefault(q.path.RNRRetry, 7), MaxRdAtomic: orDefault(q.path.MaxRdAtomic, uint8(min(16, q.dev.attr.MaxQPRdAtom, q.dev.attr.MaxQPInitRdAtom))),
	}
}

// address returns the path to the peer and its local GID, which is zero if the packets have no GRH.
// See localGID for told. Op is for errors.
func (q *QP) address(op string, port uint8, attr PortAttr, remote Endpoint, told *ib.GID) (ah AHAttr, from ib.GID, err error) {
	ah = AHAttr{DLID: remote.LID, SL: q.path.SL, StaticRate: q.path.StaticRate, Port: port}
	if remote.PKey != 0 {
		_, key, err := q.partition(op, port)
		if err == nil && key != 0 && !pkeysTalk(key, remote.PKey) {
			err = argErr(op, "remote PKey", pkeyText(remote.PKey), "%s", pkeyPeers(key))
		}
		if err != nil {
			return AHAttr{}, from, err
		}
	}
	if remote.GID.IsZero() {
		if attr.LinkLayer == ib.LinkLayerEthernet {
			return AHAttr{}, from, argErr(op, "remote GID", "zero", "the peer's GID, which RoCE needs")
		}
		if attr.gidNeeded() {
			return AHAttr{}, from, argErr(op, "remote GID", "zero", "the peer's GID, as port %d of %s needs a GRH in every packet", port, q.dev.Name())
		}
		return ah, from, nil
	}
	entry, err := q.localGID(port, attr, remote.GID, told)
	if err != nil {
		return AHAttr{}, from, err
	}
	if entry.Index > 255 {
		return AHAttr{}, from, argErr("Connect", "GID index", entry.Index, "0 to 255")
	}
	ah.Global = true
	ah.GRH = GRH{
		DGID:         remote.GID,
		FlowLabel:    q.path.FlowLabel,
		SGIDIndex:    uint8(entry.Index),
		HopLimit:     orDefault(q.path.HopLimit, 64),
		TrafficClass: q.path.TrafficClass,
	}
	return ah, entry.GID, nil
}

// MarshalText implements [encoding.TextMarshaler]. Its result is also the form in JSON and suits
// [flag.TextVar], for example "qpn=17,psn=4711,gid=0000:0000:0000:0000:0000:ffff:0a01:0001,mtu=1024" or,
// on InfiniBand, "qpn=17,psn=4711,lid=3,mtu=4096". Other P_Keys than 0xffff follow: ",pkey=0x8001".
func (e Endpoint) MarshalText() ([]byte, error) {
	text := fmt.Appendf(nil, "qpn=%d,psn=%d", e.QPN, e.PSN)
	if e.LID != 0 {
		text = fmt.Appendf(text, ",lid=%d", e.LID)
	}
	if !e.GID.IsZero() {
		text = fmt.Appendf(text, ",gid=%s", e.GID)
	}
	if e.MTU != 0 {
		text = fmt.Appendf(text, ",mtu=%d", e.MTU.Bytes())
	}
	if e.PKey != 0 {
		text = fmt.Appendf(text, ",pkey=%s", pkeyText(e.PKey))
	}
	return text, nil
}

// UnmarshalText implements [encoding.TextUnmarshaler] for the text that MarshalText returns. The
// fields may be in any order, lid, gid, mtu and pkey may be missing, and the GID may be an IP address. The
// error names the invalid field.
func (e *Endpoint) UnmarshalText(text []byte) error {
	var parsed Endpoint
	seen := map[string]bool{}
	for field := range strings.SplitSeq(string(text), ",") {
		name, value, _ := strings.Cut(field, "=")
		err := parsed.set(name, value)
		if seen[name] {
			err = fmt.Errorf("%s is given twice", name)
		}
		if err != nil {
			return fmt.Errorf("uverbs: Endpoint %q: %w", text, err)
		}
		seen[name] = true
	}
	for _, name := range []string{"qpn", "psn"} {
		if !seen[name] {
			return fmt.Errorf("uverbs: Endpoint %q: %s is missing", text, name)
		}
	}
	*e = parsed
	return nil
}

// set sets a field of the text form.
func (e *Endpoint) set(name, value string) (err error) {
	number := func(bits int) uint32 {
		n, parseErr := strconv.ParseUint(value, 10, bits)
		if parseErr != nil {
			err = fmt.Errorf("%s is %q, allowed: 0 to %d", name, value, 1<<bits-1)
		}
		return uint32(n)
	}
	switch name {
	case "qpn":
		e.QPN = number(24)
	case "psn":
		e.PSN = number(24)
	case "lid":
		e.LID = uint16(number(16))
	case "gid":
		e.GID, err = ib.ParseGID(value)
	case "mtu":
		n, _ := strconv.Atoi(value)
		if e.MTU, err = MTUFromBytes(n); err != nil {
			err = fmt.Errorf("mtu is %q, allowed: 256, 512, 1024, 2048, 4096", value)
		}
	case "pkey":
		n, parseErr := strconv.ParseUint(value, 0, 16)
		if e.PKey = uint16(n); parseErr != nil || n&partitionBits == 0 {
			err = fmt.Errorf("pkey is %q, allowed: %s", value, allowedPKeys)
		}
	default:
		err = fmt.Errorf("there is no field %q, allowed: qpn, psn, lid, gid, mtu, pkey", name)
	}
	return err
}

// ConnectPair connects two queue pairs of this program to each other, for tests and examples. It fails with
// the errors of [QP.Endpoint] and [QP.Connect].
func ConnectPair(ctx context.Context, a, b *QP) error {
	if a == nil || b == nil {
		return argErr("ConnectPair", "QP", "nil", "two QPs")
	}
	first, err := a.Endpoint()
	if err != nil {
		return err
	}
	second, err := b.Endpoint()
	if err != nil {
		return err
	}
	if err := a.Connect(ctx, second); err != nil {
		return err
	}
	return b.Connect(ctx, first)
}

// maxNote is the longest note that [QP.ConnectOver] takes, in bytes, and maxEndpointText that of the text of an
// Endpoint.
const maxNote, maxEndpointText = 4096, 256

// ConnectOver connects a queue pair to that of the program at the other end of a stream, such as a TCP
// connection, which calls ConnectOver, too. It exchanges the endpoints and a note of up to 4096 bytes, for
// example the address and the rkey of memory, calls [QP.Connect], and returns the peer's note once both sides
// can send. Post the receives that the peer's first messages need before, after [QP.Init].
//
// The end of the context ends ConnectOver if the stream has deadlines, as a [net.Conn] has. After an error close the
// stream: the peer waits until then, does not learn why, and a write to it may still be under way. Otherwise the stream
// is left where the exchange ends. Whoever can write to it decides who the peer is: neither side is authenticated.
//
// The format is the same in all versions: the length in 2 bytes, the highest first, and the text of the
// Endpoint, see [Endpoint.MarshalText]; the same with the note; and, when the queue pair is connected, a byte 1.
//
// [net.Conn]: https://pkg.go.dev/net#Conn
func (q *QP) ConnectOver(ctx context.Context, stream io.ReadWriter, note []byte) (peers []byte, err error) {
	if len(note) > maxNote {
		return nil, argErr("ConnectOver", "len(note)", len(note), "0 to %d", maxNote)
	}
	own, err := q.Endpoint()
	if err != nil {
		return nil, err
	}
	if stream == nil {
		return nil, argErr("ConnectOver", "stream", "nil", "a connection to the peer's program")
	}
	if d, ok := stream.(interface{ SetDeadline(time.Time) error }); ok {
		stop := context.AfterFunc(ctx, func() { d.SetDeadline(longAgo) })
		defer func() {
			if !stop() { // the deadline is over, even if the exchange was
				cause := context.Cause(ctx)
				if err != nil {
					cause = fmt.Errorf("%w: %w", cause, err)
				}
				peers, err = nil, cause
			}
		}()
	}
	text, err := own.MarshalText()
	if err != nil {
		return nil, err
	}
	hello := append(binary.BigEndian.AppendUint16(nil, uint16(len(text))), text...)
	hello = append(binary.BigEndian.AppendUint16(hello, uint16(len(note))), note...)
	var remote Endpoint
	err = swap(stream, hello, func() error {
		text, err := readPart(stream, "Endpoint", maxEndpointText)
		if err == nil {
			err = remote.UnmarshalText(text)
		}
		if err == nil {
			peers, err = readPart(stream, "note", maxNote)
		}
		return err
	})
	if err == nil {
		err = q.Connect(ctx, remote)
	}
	if err == nil {
		err = swap(stream, []byte{1}, func() error { return readReady(stream) })
	}
	if err != nil {
		return nil, fmt.Errorf("uverbs: %s: exchange with the peer: %w", q.label(), err)
	}
	return peers, nil
}

// swap writes to a stream while it reads from it, since the peer may read only after it has written.
func swap(stream io.Writer, b []byte, read func() error) error {
	written := make(chan error, 1)
	go func() {
		_, err := stream.Write(b)
		written <- err
	}()
	if err := read(); err != nil {
		return err
	}
	return <-written
}

// readPart reads a part of the peer's message.
func readPart(r io.Reader, what string, most int) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, early(err)
	}
	n := int(binary.BigEndian.Uint16(length[:]))
	if n > most {
		return nil, fmt.Errorf("the peer's %s has %d bytes, must be 0 to %d; it may not call ConnectOver", what, n, most)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return b, early(err)
}

// readReady reads that the peer is connected.
func readReady(r io.Reader) error {
	var b [1]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return early(err)
	}
	if b[0] != 1 {
		return fmt.Errorf("the peer says %d, must be 1 for connected", b[0])
	}
	return nil
}

// early returns the error of a read, which must not look like the regular end of the stream.
func early(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the peer has closed the stream: %w", io.ErrUnexpectedEOF)
	}
	return err
}
