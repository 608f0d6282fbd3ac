package perf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/tools/internal/objects"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/mlx5"
)

// Local has the settings of one side that the peer need not know.
type Local struct {
	Device    string   // Device is the RDMA device's name; empty for one that suits.
	Port      uint8    // Port is the device's port; 0 for the first active one.
	GID       int      // GID is the index of the local GID; Auto has it chosen to suit the peer.
	HugePages bool     // HugePages has the memory come from huge pages.
	CPU       int      // CPU is the processor that runs the traffic; Auto is any.
	PKeyIndex *int     // PKeyIndex is the index of the P_Key, of a client; nil for that of the config.
	Counters  []string // Counters are names of counters of the port whose growth is in the results.
	Vector    int      // Vector is the completion vector of events.
	ODP       bool     // ODP has the device page the memory in on demand.
	Relaxed   bool     // Relaxed permits the device to reorder writes to the memory.
	NullMR    bool     // NullMR has what is sent be zeros, and what is read be discarded.
	DMABuf    string   // DMABuf is a dma-buf to use as memory, by its file or descriptor, or the file of a heap to take memory from; empty for ordinary memory.
	Direct    bool     // Direct has the device access the dma-buf by its second PCI function.
	DM        bool     // DM has the memory be the device's own.

	DMAH *uverbs.DMAHOptions // DMAH are hints that go with the device's accesses to memory; nil for none.
}

// Peer is what one side must know of a queue pair of the other.
type Peer struct {
	QPN  uint32 `json:"qpn"`
	PSN  uint32 `json:"psn"`
	LID  uint16 `json:"lid"`
	GID  ib.GID `json:"gid"`
	PKey uint16 `json:"pkey,omitempty"` // of InfiniBand, unless it is 0xffff
	Addr uint64 `json:"addr"`           // of the memory that the queue pair is to read and write
	RKey uint32 `json:"rkey"`

	// Of XRC.
	SRQN    uint32 `json:"srqn,omitempty"`     // SRQ that messages go to
	SendQPN uint32 `json:"send_qpn,omitempty"` // the queue pair that sends, if QPN is another one
	SendPSN uint32 `json:"send_psn,omitempty"`

	// Of iWARP; see credit.go.
	Own   uint64 `json:"own,omitempty"`   // address of the memory that the queue pair itself needs
	Recvs int    `json:"recvs,omitempty"` // receives that it begins with
}

// endpoint returns the queue pair's part of it.
func (p *Peer) endpoint() uverbs.Endpoint {
	return uverbs.Endpoint{QPN: p.QPN, PSN: p.PSN, LID: p.LID, GID: p.GID, PKey: p.PKey}
}

// Q_Keys of datagrams.
const (
	qkey   = 0x11111111 // perftest's
	qkeyCM = 0x01234567 // of the connection manager (RDMA_UDP_QKEY)
)

// End is one side of a test. Except for Stop, Finish and Count it is for one goroutine.
type End struct {
	Config Config
	Local  Local
	Server bool // Server says that it is the server's side.

	Dev    *uverbs.Device
	Port   uint8 // Port is the number of the device's port.
	Limits Limits
	PD     *uverbs.PD
	MR     *uverbs.MR // MR is all of the memory; see memory.go.
	SendCQ *uverbs.CQ
	RecvCQ *uverbs.CQ
	QPs    []*uverbs.QP
	Inline int // Inline is the largest message that is sent inline.

	// Channel has the events of RecvCQ and SendChannel those of SendCQ. They are nil unless the config
	// says Events, and one where both CQs are waited for together.
	Channel, SendChannel *uverbs.CompChannel

	// NoBarrier says that the peer may begin with a size before this side has prepared for it, as
	// perftest does in a sweep of write-lat.
	NoBarrier bool

	// tamper spoils what is sent, so that tests see Verify find it.
	tamper func([]byte)

	path    *path // nil if the address of the peer needs no proof
	memory  layout
	nullKey uint32 // LKey of Local.NullMR
	counted bool   // messages are sent as the peer has receives for them
	flows   []flow
	targets []target        // of DC and XRC
	xrcd    *uverbs.XRCD    // of the targets of XRC
	srq     *uverbs.SRQ     // has the receives of all queue pairs, or nil
	takes   uverbs.WCOpcode // opcode of each completion of a receive
	flags   uverbs.WCFlags  // flags that each completion of a receive has, perhaps among others
	wcs     [pollBatch]uverbs.WC
	hold    []byte        // bytes to compare with
	opened  objects.Stack // closed by Close
	empty   int           // fruitless polls
	pace    pace
	exact   bool          // count messages, not completions
	armed   [2]*uverbs.CQ // the queues that the next wait for an event is for
	timer   *time.Timer
	expired *atomic.Bool  // the test's time is over
	limit   time.Duration // how long a test without an end takes at most; 0 for no limit
	limited *atomic.Bool  // that has ended it
	running atomic.Bool   // Prepare has made ready for traffic, and it is not over

	ctx     context.Context // of a Run
	waiting context.Context // ends with it, and when the peer has ended
	wake    atomic.Pointer[context.CancelFunc]
	peerHas atomic.Int64 // what the peer has sent at the end, plus 1; 0 as long as it sends
	done    int64        // messages of the present size that were done
	count   atomic.Int64 // what done was a moment ago, for others to see
}

// pollBatch is the number of completions that are polled at a time.
const pollBatch = 16

// OpenDevice opens the device that a side uses: the one that is named, or else the one that
// has the address with which the peers have reached each other, or any.
func OpenDevice(l Local, addr netip.Addr) (dev *uverbs.Device, port uint8, err error) {
	if dev, err = objects.OpenDeviceAt(l.Device, addr); err != nil {
		return nil, 0, err
	}
	if port, err = activePort(dev, l.Port); err != nil {
		return nil, 0, errors.Join(err, dev.Close())
	}
	return dev, port, nil
}

// activePort returns the port that is named, or the first that is active.
func activePort(dev *uverbs.Device, port uint8) (uint8, error) {
	n := dev.Attr().PhysPortCount
	if port > n {
		return 0, field("ib-port", port, "1 to %d, the ports of %s", n, dev.Name())
	}
	if port != 0 {
		return port, nil
	}
	for p := uint8(1); p <= n; p++ {
		if attr, err := dev.Port(p); err == nil && attr.State == ib.PortActive {
			return p, nil
		}
	}
	return 0, fmt.Errorf("no port of %s is active", dev.Name())
}

// Close closes everything but the device.
func (e *End) Close() error { return e.opened.Close() }

// NewEnd makes a side of a test: memory, completion queues and, unless the connection manager makes
// them, queue pairs. The config must be valid; what the device cannot do is an error.
func NewEnd(dev *uverbs.Device, port uint8, c Config, l Local, server bool) (_ *End, err error) {
	e := &End{Config: c, Local: l, Server: server, Dev: dev, Port: port}
	attr, err := dev.Port(port)
	if err != nil {
		return nil, err
	}
	e.Limits = limits(dev, attr)
	if err := e.Config.fit(e.Limits); err != nil {
		return nil, refuse(err)
	}
	if server {
		if err := c.CheckType(dev); err != nil {
			return nil, refuse(err)
		}
	}
	if e.Limits.IWARP && l.GID != Auto {
		return nil, field("gid", l.GID, "none, as %s is of iWARP, which has no GIDs", dev.Name())
	}
	if err := l.fit(dev, port, &e.Config); err != nil {
		if errors.As(err, new(ValueError)) || errors.Is(err, errors.ErrUnsupported) { // no error of the kernel
			err = refuse(err)
		}
		return nil, err
	}
	e.Config.settle(e.Limits)
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	if l.NullMR {
		if e.nullKey, err = dev.NullLKey(); err != nil {
			return nil, err
		}
	}
	e.PD = e.opened.PD(dev)
	if err := e.register(); err != nil {
		return nil, err
	}
	if e.Config.Events {
		e.Channel = e.channel()
		if e.SendChannel = e.Channel; e.Config.Metric == Lat { // one CQ is waited for at a time
			e.SendChannel = e.channel()
		}
	}
	e.SendCQ = e.opened.CQ(dev, uverbs.CQOptions{Size: e.Config.QPs * e.sendDepth(), Channel: e.SendChannel, Vector: l.Vector})
	e.RecvCQ = e.opened.CQ(dev, uverbs.CQOptions{Size: e.Config.QPs * e.memory.slots, Channel: e.Channel, Vector: l.Vector})
	e.takes = uverbs.WCRecv
	if e.Config.Imm {
		e.flags = uverbs.WCWithImm
	}
	if e.Config.Op == Write {
		e.takes = uverbs.WCRecvRDMAWrite
	}
	if e.Config.SRQ && e.Config.receives(server) {
		e.srq = e.opened.SRQ(e.PD, uverbs.SRQOptions{MaxWR: e.Config.QPs * e.memory.slots})
	}
	if err := e.opened.Err(); err != nil {
		return nil, err
	}
	if e.Config.CM || e.Config.split() { // for DC the peer's GID must be known: see Peers
		return e, nil
	}
	for range e.Config.QPs {
		if _, err := e.CreateQP(e.PD.CreateQP); err != nil {
			return nil, err
		}
	}
	if server && !e.Config.MGID.IsZero() {
		if err := e.joinGroup(); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// channel makes a completion channel.
func (e *End) channel() *uverbs.CompChannel {
	c := e.opened.Channel(e.Dev)
	e.opened.Do(func() error { return c.SetBusyWait(busyWait) })
	return c
}

// busyWait is the default of programs that have two processors or more. With one it is more than the
// default; the section Performance of package uverbs has the gain.
const busyWait = 10 * time.Millisecond

// CreateQP makes the next queue pair by a function such as that of a PD or of an ID of the
// connection manager, which must close what it has made.
func (e *End) CreateQP(create func(uverbs.QPOptions) (*uverbs.QP, error)) (*uverbs.QP, error) {
	o := e.qpOptions()
	want, orLess := e.Config.inlineWanted()
	o.MaxInline = want
	if len(e.QPs) > 0 {
		o.MaxInline = e.Inline
	}
	qp, err := create(o)
	var arg *uverbs.ArgError
	if errors.As(err, &arg) && arg.Field == "MaxInline" {
		if !orLess {
			return nil, refusef("--inline is %d, allowed on %s: %s", want, e.Dev.Name(), arg.Allowed)
		}
		for ; o.MaxInline > 0 && errors.As(err, &arg) && arg.Field == "MaxInline"; o.MaxInline /= 2 {
			qp, err = create(o)
		}
	}
	if err != nil {
		return nil, err
	}
	e.Inline = o.MaxInline
	e.QPs = append(e.QPs, qp)
	if !e.Config.CM {
		e.opened.Keep(qp)
		switch e.Config.Type {
		case UD, SRD:
			return qp, qp.ReadyUD(qkey)
		case DC:
			return qp, mlx5.ReadyDC(qp)
		}
		return qp, qp.Init()
	}
	return qp, nil
}

// leastDepth is how long a send queue is at least: one that was full with each message would have to be
// looked at for room before the next.
const leastDepth = 16

// qpOptions returns the options of a queue pair.
func (e *End) qpOptions() uverbs.QPOptions {
	c := &e.Config
	o := uverbs.QPOptions{
		SendCQ: e.SendCQ, RecvCQ: e.RecvCQ, MaxSendWR: max(e.sendDepth(), leastDepth), MaxRecvWR: e.memory.slots,
		Path: uverbs.PathOptions{
			Port: e.Port, PKey: c.PKey, SL: c.SL, TrafficClass: c.TOS, FlowLabel: uint32(c.FlowLabel), Timeout: ib.AckTimeout(c.AckTimeout), RetryCount: uint8(c.Retry),
			RNRRetry: DefaultRNRRetry, StaticRate: c.Rate.static(), MaxRdAtomic: uint8(cmp.Or(c.RdAtomic, e.Limits.RdAtomic)),
		},
	}
	if e.srq != nil {
		o.SRQ, o.MaxRecvWR = e.srq, 0
	}
	o.OutOfOrder = c.OutOfOrder
	o.Type = c.qpType()
	if c.MTU != 0 {
		o.Path.MTU, _ = uverbs.MTUFromBytes(c.MTU) // checked before
	}
	if e.Local.GID != Auto {
		o.Path.GIDIndex = new(e.Local.GID)
	}
	return o
}

// Peers returns what the peer must know of this side's queue pairs. remote is the peer's GID, or
// the zero GID if it is not known yet.
func (e *End) Peers(remote ib.GID) ([]Peer, error) {
	if e.Config.split() && e.QPs == nil {
		if err := e.createSplit(remote); err != nil {
			return nil, err
		}
	}
	var all []Peer
	for i := range e.QPs {
		qp := e.receiver(i)
		if e.Limits.IWARP { // it has nothing else
			all = append(all, Peer{QPN: qp.QPN(), Addr: e.target(i), RKey: e.MR.RKey(), Own: e.MR.Addr() + uint64(e.own(i)), Recvs: e.memory.slots})
			continue
		}
		l, err := qp.EndpointFor(uverbs.Endpoint{GID: remote})
		if err != nil {
			return nil, err
		}
		p := Peer{QPN: l.QPN, PSN: l.PSN, LID: l.LID, GID: l.GID, PKey: l.PKey, Addr: e.target(i), RKey: e.MR.RKey(), SRQN: e.srqn(i)}
		if e.Config.Paired() {
			if l, err = e.QPs[i].EndpointFor(uverbs.Endpoint{GID: remote}); err != nil {
				return nil, err
			}
			p.SendQPN, p.SendPSN = l.QPN, l.PSN
		}
		all = append(all, p)
	}
	return all, nil
}

// Connect connects each queue pair to its peer. Those of the connection manager have been
// connected by it.
func (e *End) Connect(ctx context.Context, peers []Peer) error {
	if len(peers) != len(e.QPs) {
		return fmt.Errorf("the peer has %d queue pairs, and this side %d", len(peers), len(e.QPs))
	}
	for i, qp := range e.QPs {
		peer := peers[i]
		if !e.Server {
			peer = e.Config.InGroup(peer)
		}
		if !e.Config.CM {
			if err := e.Routes(peer.GID); err != nil {
				return err
			}
		} else if e.Server && e.path != nil && e.Config.Type != UD {
			if err := e.connectedTo(qp, &peers[i]); err != nil {
				return err
			}
		}
		f := flow{qp: qp, remote: peer, end: e, srq: e.srq}
		if i < len(e.targets) {
			f.srq = e.targets[i].srq
		}
		e.counted = e.Limits.IWARP && e.Config.Op == Send && e.Config.Metric == BW && peers[i].Own != 0
		switch {
		case e.Config.datagrams(), e.Config.Type == DC && (!e.Server || e.Config.Paired()):
			ah, err := e.ahFor(peer)
			if err != nil {
				return err
			}
			f.ah = ah
		case !e.Config.CM && e.Config.Type != DC:
			if err := qp.Connect(ctx, peers[i].endpoint()); err != nil {
				return err
			}
			if err := e.checkRate(qp); err != nil {
				return err
			}
			if e.Config.Paired() {
				peer.QPN, peer.PSN = peer.SendQPN, peer.SendPSN
				if err := e.targets[i].qp.Connect(ctx, peer.endpoint()); err != nil {
					return err
				}
			}
		}
		e.flows = append(e.flows, f)
	}
	return nil
}

// checkRate returns an error if the device has another rate than the one that it is to keep to: mlx5 takes the next
// lower one that it has, or none.
func (e *End) checkRate(qp *uverbs.QP) error {
	want := e.Config.Rate.static()
	if want == ib.RateMax {
		return nil
	}
	attr, err := qp.Query()
	if err == nil && attr.AH.StaticRate != want {
		err = refuse(field("rate", want, "a rate that %s has; it has set %s", e.Dev.Name(), attr.AH.StaticRate))
	}
	return err
}

// localGID returns the GID that the user chose, or the one that suits the peer.
func (e *End) localGID(peer ib.GID) (uverbs.GIDEntry, error) {
	return localGID(e.Dev, e.Port, e.Local.GID, peer)
}

// localGID returns the GID of a port with an index or, for Auto, the one that suits the peer.
func localGID(dev *uverbs.Device, port uint8, index int, peer ib.GID) (entry uverbs.GIDEntry, err error) {
	if index != Auto {
		return dev.GID(port, index)
	}
	table, err := dev.GIDTable(port)
	if err != nil {
		return entry, err
	}
	entry, ok := uverbs.ChooseGID(table, peer)
	if !ok {
		err = fmt.Errorf("the GID table of port %d of %s is empty", port, dev.Name())
	}
	return entry, err
}

// AHAttr describes the address handle for a peer. The local GID has an index or, for Auto, suits the peer.
func AHAttr(dev *uverbs.Device, port uint8, index int, lid uint16, gid ib.GID) (uverbs.AHAttr, error) {
	attr := uverbs.AHAttr{DLID: lid, Port: port}
	if gid.IsZero() {
		return attr, nil
	}
	entry, err := localGID(dev, port, index, gid)
	const hops = 64
	attr.Global, attr.GRH = true, uverbs.GRH{DGID: gid, SGIDIndex: uint8(entry.Index), HopLimit: hops}
	return attr, err
}

// Routes refuses a local GID that the user chose if its address family is not that of the peer's
// GID. On InfiniBand, and for the zero GID, any will do.
func (e *End) Routes(peer ib.GID) error {
	if e.Local.GID == Auto || peer.IsZero() {
		return nil
	}
	attr, err := e.Dev.Port(e.Port)
	if err != nil || attr.LinkLayer != ib.LinkLayerEthernet {
		return err
	}
	table, err := e.Dev.GIDTable(e.Port)
	if err != nil {
		return err
	}
	return routes(table, e.Local.GID, peer)
}

// routes refuses an entry of a GID table on Ethernet if its address family is not the peer's.
func routes(table []uverbs.GIDEntry, index int, peer ib.GID) error {
	var mine ib.GID
	var suit []string
	for _, entry := range table {
		if entry.Index == index {
			mine = entry.GID
		}
		if entry.GID.Addr().Is4() == peer.Addr().Is4() {
			suit = append(suit, fmt.Sprintf("%d (%s)", entry.Index, entry.GID.Addr()))
		}
	}
	if mine.IsZero() || mine.Addr().Is4() == peer.Addr().Is4() {
		return nil // an index that is not in use the library refuses
	}
	if suit == nil {
		suit = []string{"none here"}
	}
	return refuse(field("gid", fmt.Sprintf("%d (%s)", index, mine.Addr()), "one with an address of the family of the peer's GID, %s: %s", peer.Addr(), strings.Join(suit, ", ")))
}

// datagrams reports whether each message names the queue pair that it goes to. For READs and WRITEs of SRD the
// side with the memory has an address handle of the other one, too.
func (c *Config) datagrams() bool { return c.Type == UD || c.Type == SRD }

// ahFor returns the address handle for datagrams to a peer, or for the requests of a DC initiator.
func (e *End) ahFor(p Peer) (*uverbs.AH, error) {
	attr, err := AHAttr(e.Dev, e.Port, e.Local.GID, p.LID, p.GID)
	if err != nil {
		return nil, err
	}
	attr.SL, attr.GRH.TrafficClass, attr.GRH.FlowLabel = e.Config.SL, e.Config.TOS, uint32(e.Config.FlowLabel)
	ah, err := e.PD.CreateAH(attr)
	if err == nil {
		e.opened.Keep(ah)
	}
	return ah, err
}

// register allocates and registers the memory.
func (e *End) register() error {
	e.memory = newLayout(&e.Config)
	access := uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite | uverbs.AccessRemoteRead
	if e.Limits.srd() { // some cards have SENDs alone, and READ but no WRITE
		access = uverbs.AccessLocalWrite | map[string]uverbs.Access{Read: uverbs.AccessRemoteRead, Write: uverbs.AccessRemoteWrite}[e.Config.Op]
	}
	if e.Limits.Atomics {
		access |= uverbs.AccessRemoteAtomic
	}
	if e.Local.Relaxed {
		access |= uverbs.AccessRelaxedOrdering
	}
	if e.Local.ODP {
		access |= uverbs.AccessOnDemand
	}
	dmah, err := e.handle()
	if err != nil {
		return err
	}
	heap := e.Local.heap()
	if e.Local.DMABuf != "" && heap == "" {
		f, err := openDMABuf(e.Local.DMABuf)
		if err != nil {
			return fmt.Errorf("--dmabuf: %w", err)
		}
		defer f.Close()
		e.MR = objects.Open(&e.opened, func() (*uverbs.MR, error) {
			mr, err := e.PD.RegDMABuf(f, uverbs.MROptions{Access: access, Length: e.memory.size, DMAH: dmah, DataDirect: e.Local.Direct})
			if err != nil {
				err = fmt.Errorf("--%s: %w", map[bool]string{false: "dmabuf", true: "use-data-direct"}[e.Local.Direct], err)
			}
			return mr, err
		})
		return e.opened.Err()
	}
	if e.Local.DM {
		return e.registerDM(access)
	}
	if has := machineMemory(); e.memory.size > has {
		return fmt.Errorf("the test needs %d bytes of memory, allowed: %d, which this machine has: a smaller --size, or fewer --qps", e.memory.size, has)
	}
	buf := objects.Open(&e.opened, func() (*uverbs.Buffer, error) {
		return uverbs.AllocBuffer(e.memory.size, uverbs.BufferOptions{HugePages: e.Local.HugePages, Heap: heap})
	})
	e.MR = objects.Open(&e.opened, func() (*uverbs.MR, error) { return e.PD.RegMR(buf, uverbs.MROptions{Access: access, DMAH: dmah}) })
	if err := e.opened.Err(); err != nil && heap != "" {
		return fmt.Errorf("--dmabuf: %w", err)
	}
	return e.opened.Err()
}

// Stop ends receiving when as many messages have come as the peer has sent, or when no more come. It must not be
// called during Prepare.
func (e *End) Stop(sent int64) {
	e.peerHas.Store(sent + 1)
	if e.Config.Endless {
		e.Finish()
	}
	if wake := e.wake.Load(); wake != nil {
		(*wake)()
	}
}

// Finish has a test without an end send no more. It reports whether there is traffic; it is safe for concurrent use.
func (e *End) Finish() bool {
	ok := e.running.Load()
	if ok {
		e.expired.Store(true)
	}
	return ok
}

// Count returns how many messages of the present size were done a moment ago, or of most tests how many had
// completions; it is safe for concurrent use.
func (e *End) Count() int64 { return e.count.Load() }
