package uverbs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/diag"
	"github.com/goverbs/goverbs/uverbs/internal/hook"
)

// mlx5DriverID is the kernel's ID of mlx5.
const mlx5DriverID = netlinkrdma.DriverID(mlx5.DriverID)

// mlx5Driver supports ConnectX adapters. Their queues are memory of the program, whose addresses it
// passes to the kernel, and their doorbells are registers of the device.
type mlx5Driver struct{ baseDriver }

func (mlx5Driver) kind() driverKind      { return kindMlx5 }
func (mlx5Driver) name() string          { return "mlx5" }
func (mlx5Driver) abi() (uint64, uint64) { return mlx5.MinABI, mlx5.MaxABI }
func (mlx5Driver) pdUdata() udata        { return udata{out: make([]byte, mlx5.PDRespSize)} }
func (mlx5Driver) ahUdata() udata        { return udata{out: make([]byte, mlx5.AHRespSize)} }

// capabilities: mlx5_ib of Linux 5.10 uses an IOVA in REREG_MR as the address of the memory
// (mlx5_ib_rereg_user_mr).
func (mlx5Driver) capabilities() capabilities {
	return capabilities{inlineLimit: true, devx: true, copiesMemory: true, pinsRings: true, reregIOVASince: Version{5, 11},
		noDMABuf: "; or the adapter may not support it: mlx5_ib needs one that changes regions by work requests (UMR)"}
}

// operations follows mlx5_ib_opcode and post_send of libmlx5.
func (mlx5Driver) operations(t ib.QPType) (opcodeSet, bool) {
	switch t {
	case ib.RC, ib.XRCSend, ib.DCI:
		return opcodes(WRRDMAWrite, WRRDMAWriteWithImm, WRSend, WRSendWithImm, WRSendWithInv, WRRDMARead, WRCompareSwap, WRFetchAdd,
			WRLocalInv, WRBindMW), true
	case ib.UC:
		return opcodes(WRRDMAWrite, WRRDMAWriteWithImm, WRSend, WRSendWithImm, WRSendWithInv, WRLocalInv, WRBindMW), true
	case ib.UD:
		return opcodes(WRSend, WRSendWithImm), true
	case ib.XRCRecv, ib.DCT:
		return opcodes(), true
	case ib.RawPacket:
		return opcodes(WRSend), true
	}
	return opcodeSet{}, false
}

func (mlx5Driver) unsupportedQP(o *QPOptions) string {
	switch {
	case o.IndTable != nil && (o.Type != ib.RawPacket || o.SendCQ != nil):
		return "IndTable and a send queue, or not for raw packets"
	case o.InlineRecv && o.Type != ib.RC && o.Type != ib.UC:
		return "InlineRecv for " + o.Type.String()
	case o.OutOfOrder && o.Type == ib.RawPacket:
		return "OutOfOrder for " + o.Type.String()
	}
	return ""
}

// hasOutOfOrder returns an error if the kernel does not have the option OutOfOrder, or the device has it for
// no type of QP. The kernel checks the type in the first MODIFY_QP (get_dp_ooo_cap in qp.c of mlx5_ib).
func (mlx5Driver) hasOutOfOrder(d *Device) error {
	b, err := d.queryMlx5()
	if err != nil {
		return err
	}
	if mlx5.DecodeOutOfOrder(b) {
		return nil
	}
	return lacksOutOfOrder(d.cmd.kernelVersion())
}

// queryMlx5 returns the driver's part of QUERY_DEVICE.
func (d *Device) queryMlx5() ([]byte, error) { return d.queryDriver(mlx5.QueryDeviceRespSize) }

// lacksOutOfOrder is the error of a kernel or a device without the option OutOfOrder.
func lacksOutOfOrder(running Version) *FeatureError {
	const flag = "QUERY_DEVICE does not report the flag MLX5_IB_QUERY_DEV_RESP_FLAGS_OOO_DP"
	const lacking = "the adapter does not have the capability dp_ordering_force, or no capability dp_ordering_ooo_all"
	f := &FeatureError{Feature: "CREATE_QP with OutOfOrder", Driver: "mlx5", Err: errors.New(lacking)}
	since := Version{6, 13}
	switch {
	case running == Version{}:
		f.Err = errors.New(flag + ", which Linux has since 6.13: " + lacking + "; or the kernel, whose version is unknown, does not have the flag")
	case slices.Compare(running[:], since[:]) < 0:
		f.Since, f.Driver, f.Err = since, "", errors.New(flag)
	}
	return f
}

// noOutOfOrder is the error of an adapter that has the option OutOfOrder for other types of QP only.
func noOutOfOrder(t ib.QPType) *FeatureError {
	transport := strings.ToLower(t.String())
	switch t {
	case ib.XRCSend, ib.XRCRecv:
		transport = "xrc"
	case ib.DCI, ib.DCT:
		transport = "dc"
	}
	return &FeatureError{
		Feature: "OutOfOrder of " + t.String(), Driver: "mlx5",
		Err: errors.New("the adapter does not have the capability dp_ordering_ooo_all_" + transport),
	}
}

// queriedQP restores the sizes, which the kernel does not know.
func (mlx5Driver) queriedQP(q *QP, a *QPAttr) { a.Caps = q.caps }

// mlx5AH is the mlx5 part of an AH.
type mlx5AH struct{ av mlx5.AV }

// mlx5Context is the mlx5 part of a device.
type mlx5Context struct {
	mlx5.Context
	dev     *Device
	uars    mlx5UARs
	records mlx5.Records
	owners  mlx5Table // by the user index in completions, or else by QP number
	srqs    mlx5Table // by number, if completions have no user index
	clock   mlx5Clock
	counts  mlx5Counts
	part    hook.Part // of package uverbs/mlx5
}

// mlx5Clock is the page with the device's clock. It is mapped when it is first used.
type mlx5Clock struct {
	mu    sync.Mutex
	clock *mlx5.Clock  // guarded by mu
	page  *mmio.Region // guarded by mu
}

// mlx5Counts is memory with the layout of a flow's counters, for the kernel. It is allocated for
// the first flow that counts.
type mlx5Counts struct {
	mu     sync.Mutex
	region *mmio.Region
}

func (m *mlx5Context) countUdata() (udata, error) {
	c := &m.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.region == nil {
		what := mlx5.FlowCounters()
		r, err := mapRingMemory(len(what))
		if err != nil {
			return udata{}, err
		}
		copy(r.Bytes(), what)
		c.region = r
	}
	return udata{in: mlx5.EncodeFlow(addrOf(c.region.Bytes()))}, nil
}

func (m *mlx5Context) rateLimits() (RateLimits, error) {
	b, err := m.dev.queryMlx5()
	if err != nil {
		return RateLimits{}, err
	}
	least, most, types := mlx5.DecodeRates(b)
	return RateLimits{Min: least, Max: most, QPTypes: QPTypes(types)}, nil
}

func (mlx5Driver) contextUdata(c contextCommand, devx bool) udata {
	u := udata{out: make([]byte, mlx5.ContextRespSize)}
	if c == queryContext {
		u.addAttrs = func(cmd *ioctlCommand) { cmd.out(mlx5.AttrContextResp, u.out) }
		return u
	}
	u.in = mlx5.EncodeContext(c == ioctlContext, devx)
	return u
}

func (mlx5Driver) openContext(d *Device, u udata) error {
	if !mmio.Supported {
		return &FeatureError{Feature: "mlx5 on this architecture", Driver: "mlx5", Err: errors.New("the library has no barriers for it")}
	}
	c, err := mlx5.DecodeContext(u.out, os.Getpagesize())
	if err != nil {
		return &FeatureError{Feature: "this adapter", Driver: "mlx5", Err: err}
	}
	if d.imported && c.Static.Pages > 0 {
		// Two processes cannot take turns in writing a register.
		return &FeatureError{Feature: "ImportDevice of a device that was opened with " + abiPathEnv + "=write", Driver: "mlx5"}
	}
	m := &mlx5Context{Context: c, dev: d}
	m.part.DEVX, m.part.ClockThere = d.imported || mlx5.AsksDEVX(u.in), c.ClockInfo
	m.uars.cmd = d.cmd
	if err := m.uars.open(&c); err != nil {
		return err
	}
	d.mlx5 = m
	return nil
}

// close frees what openContext has mapped. m may be nil.
func (m *mlx5Context) close() error {
	if m == nil {
		return nil
	}
	return errors.Join(m.clock.close(), m.closePart(), m.uars.close(), m.records.Close(), mmio.RetireAll(m.counts.region))
}

// closePart frees what package uverbs/mlx5 has mapped.
func (m *mlx5Context) closePart() error {
	m.part.ClockMu.Lock()
	defer m.part.ClockMu.Unlock()
	return mmio.RetireAll(m.part.Page)
}

func (c *mlx5Clock) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return mmio.RetireAll(c.page)
}

// mlx5Size converts a size error of package mlx5 to an ArgError.
func mlx5Size(op string, err error) error {
	var s *mlx5.SizeError
	if errors.As(err, &s) {
		switch {
		case s.What == "MaxInline":
			return argErr(op, s.What, s.Got, "0 to %d bytes", s.Most)
		case s.Most == 0:
			return argErr(op, s.What, s.Got, "0 (not supported by the device)")
		}
		return argErr(op, s.What, s.Got, "1 to %d", s.Most)
	}
	return err
}

// mapRingMemory allocates memory for a ring.
func mapRingMemory(size int) (*mmio.Region, error) {
	r, err := mmio.MapAnonymous(size, false)
	if err != nil {
		return nil, fmt.Errorf("uverbs: ring: %w", err)
	}
	return r, nil
}

// openAH builds the address vector, which every datagram contains.
func (mlx5Driver) openAH(a *AH, u udata) error {
	d := a.dev
	port, err := d.facts(a.attr.Port)
	if err != nil {
		return err
	}
	g := &a.attr.GRH
	v := mlx5.AVAttr{
		RoCE: port.LinkLayer == ib.LinkLayerEthernet,
		LID:  a.attr.DLID, PathBits: a.attr.SrcPathBits, SL: a.attr.SL, Rate: uint8(a.attr.StaticRate),
		Global: a.attr.Global, GID: g.DGID, GIDIndex: g.SGIDIndex, HopLimit: g.HopLimit, TrafficClass: g.TrafficClass, FlowLabel: g.FlowLabel,
	}
	if v.RoCE {
		mac, ok, err := mlx5.DecodeAH(u.out)
		if err != nil {
			return err
		}
		if !ok {
			return &FeatureError{Feature: "CREATE_AH with the peer's Ethernet address", Driver: "mlx5"}
		}
		v.MAC = mac
		e, err := d.currentGID(a.attr.Port, int(g.SGIDIndex), port)
		if err != nil {
			return err
		}
		if e.Type == ib.GIDTypeRoCEv2 {
			v.Sport = mlx5Sport(g.FlowLabel)
		}
	}
	a.mlx5.av = mlx5.NewAV(&v)
	return nil
}

// mlx5Sport returns the UDP source port for a flow label, or a random one for 0.
func mlx5Sport(flowLabel uint32) uint16 {
	if flowLabel != 0 {
		return mlx5.SourcePort(flowLabel)
	}
	return mlx5.MinSourcePort + uint16(rand.N(1<<16-mlx5.MinSourcePort))
}

// refusal returns why the firmware refused the command that has just failed.
func (mlx5Driver) refusal() string { return diag.FirmwareRefusal() }

func (mlx5Driver) vendorText(code uint32) (text string, injected bool) {
	if code == 0 {
		return "", false
	}
	return mlx5.VendorText(uint8(code)), false
}

func (mlx5Driver) findRequest(q *QP, id uint64) (sentWR, bool) {
	if q.mlx5.sq == nil {
		return sentWR{}, false
	}
	i, ok := q.mlx5.sq.Find(id)
	return sentMlx5(&i), ok
}

// sentMlx5 converts the contents of a WQE.
func sentMlx5(i *mlx5.SendInfo) sentWR {
	s := sentWR{op: WROpcode(i.Op), length: i.Length, qpn: i.RemoteQPN, raddr: i.RemoteAddr, rkey: i.RKey, mwRKey: i.OldKey}
	for _, e := range i.SGEs {
		s.sges = append(s.sges, SGE{Addr: e.Addr, Length: e.Length, LKey: e.LKey})
	}
	return s
}

func (mlx5Driver) findReceive(q *QP, id uint64) (sges []SGE, found bool) {
	if q.mlx5.rq == nil { // its receives are in an SRQ or WQs
		return nil, false
	}
	found = q.mlx5.rq.Find(id, func(addr uint64, length, lkey uint32) bool {
		sges = append(sges, SGE{Addr: addr, Length: length, LKey: lkey})
		return true
	})
	return sges, found
}

func (mlx5Driver) postedRecvs(q *QP) int {
	switch s := q.srq; {
	case s != nil:
		s.post.Lock() // so that Close waits
		defer s.post.Unlock()
		s.mlx5.list.Lock()
		defer s.mlx5.list.Unlock()
		if !s.closed.Load() {
			return s.mlx5.rq.Posted()
		}
	case q.mlx5.rq != nil:
		return q.mlx5.rq.Posted()
	}
	return 0
}
