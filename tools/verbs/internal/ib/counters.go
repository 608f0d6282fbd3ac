package ib

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
	"github.com/goverbs/goverbs/uverbs/umad/sa"
)

// CountersRow has the counters of a port, and is an element of the JSON of "verbs ib counters".
type CountersRow struct {
	LID      uint16    `json:"lid"`
	Port     int       `json:"port"`
	Counters []Counter `json:"counters"`

	data []byte
}

// Counter is a counter of a port.
type Counter struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
}

// countersOf lists the counters of PortCounters, as libibmad orders them.
const countersOf = `PortSelect 1:8 u
CounterSelect 2:16 x4
SymbolErrorCounter 4:16 u
LinkErrorRecoveryCounter 6:8 u
LinkDownedCounter 7:8 u
PortRcvErrors 8:16 u
PortRcvRemotePhysicalErrors 10:16 u
PortRcvSwitchRelayErrors 12:16 u
PortXmitDiscards 14:16 u
PortXmitConstraintErrors 16:8 u
PortRcvConstraintErrors 17:8 u
CounterSelect2 18:8 x2
LocalLinkIntegrityErrors 19:4 u
ExcessiveBufferOverrunErrors 19.4:4 u
QP1Dropped 20:16 u
VL15Dropped 22:16 u
PortXmitData 24:32 u
PortRcvData 28:32 u
PortXmitPkts 32:32 u
PortRcvPkts 36:32 u
PortXmitWait 40:32 u
`

// The counters of PortCountersExtended: those that all agents have, and those that depend on PerfExtended
// and PerfAdditional.
const (
	extended = `PortSelect 1:8 u
CounterSelect 2:16 x4
PortXmitData 8:64 u
PortRcvData 16:64 u
PortXmitPkts 24:64 u
PortRcvPkts 32:64 u
`
	extendedIETF = `PortUnicastXmitPkts 40:64 u
PortUnicastRcvPkts 48:64 u
PortMulticastXmitPkts 56:64 u
PortMulticastRcvPkts 64:64 u
`
	extendedMore = `CounterSelect2 4:32 x8
SymbolErrorCounter 72:64 u
LinkErrorRecoveryCounter 80:64 u
LinkDownedCounter 88:64 u
PortRcvErrors 96:64 u
PortRcvRemotePhysicalErrors 104:64 u
PortRcvSwitchRelayErrors 112:64 u
PortXmitDiscards 120:64 u
PortXmitConstraintErrors 128:64 u
PortRcvConstraintErrors 136:64 u
LocalLinkIntegrityErrors 144:64 u
ExcessiveBufferOverrunErrors 152:64 u
VL15Dropped 160:64 u
PortXmitWait 168:64 u
QP1Dropped 176:64 u
`
)

// perfRSFEC is a bit of ClassPortInfo.CapabilityMask: the counters are others while a port uses a Reed-Solomon code.
const perfRSFEC = 1 << 14

// fecCounters lists the counters of PortExtendedSpeedsCounters.
func fecCounters(rs bool) string {
	lines := "PortSelect 1:8 u\nCounterSelect 8:64 x16\nSyncHeaderErrorCounter 16:16 u\nUnknownBlockCounter 18:16 u\n"
	lanes := func(name string, at, bytes int) {
		for lane := range 12 {
			lines += fmt.Sprintf("%sLane%d %d:%d u\n", name, lane, at+lane*bytes, bytes*8)
		}
	}
	if rs {
		lanes("FECCorrectableSymbolCtr", 44, 4)
		return lines + "PortFECCorrectableBlockCtr 140:32 u\nPortFECUncorrectableBlockCtr 144:32 u\nPortFECCorrectedSymbolCtr 148:32 u\n"
	}
	lanes("ErrorDetectionCounter", 20, 2)
	lanes("FECCorrectableBlockCtr", 44, 4)
	lanes("FECUncorrectableBlockCtr", 92, 4)
	return lines
}

// rsFEC reports whether a port uses a Reed-Solomon code, of which a node has counters of their own.
func (n *node) rsFEC(ctx context.Context, port *umad.Port, number uint8) (bool, error) {
	if n.info.CapabilityMask&perfRSFEC == 0 {
		return false, nil
	}
	var info portInfoExtended
	if err := n.flags.ask(ctx, port, n.to, mad.NewSMP(mad.MethodGet, info.ID(), uint32(number)), &info); err != nil {
		return false, err
	}
	return info.CapMask&1 != 0 && (info.FECModeActive == 2 || info.FECModeActive == 4), nil
}

// allPorts stands for all ports of a node.
const allPorts = 255

// maxPort is the largest number of a port.
const maxPort = allPorts - 1

// counterFlags are the flags of "verbs ib counters".
type counterFlags struct {
	*options
	extended, fec, sum, reset, resetOnly bool
}

// newCounters makes the command that shows the counters of ports.
func newCounters(s *System) *command.Command {
	var asJSON, compat bool
	cmd := &command.Command{
		Use:   "counters [flags] [LID | GUID [PORTS]]",
		Short: "Show or reset the counters of a port",
		Long: `Without arguments the port is the own one. PORTS is "all", which is the default, or a list of
numbers and ranges such as 1-8,12. Data is counted in units of 4 bytes. Counters of 32 bits and less
stop at their maximum; --extended asks for those of 64 bits. A table shows what is not 0. With --fec
the ports must use the same error correction to be shown together.`,
		Example: `  verbs ib counters
  verbs ib counters -x 7 1-36 --json
  verbs ib counters 7 --sum
  verbs ib counters 7 3 --reset   # shows them, then sets them to 0
  verbs ib counters 7 3 --compat  # as perfquery -l`,
		Args: command.Arguments(2),
	}
	c := &counterFlags{options: newOptions(s, cmd)}
	f := cmd.Flags()
	f.BoolVarP(&c.extended, "extended", "x", false, "show the counters of 64 bits")
	f.BoolVar(&c.fec, "fec", false, "show the errors that forward error correction (FEC) has found, as perfquery -T")
	f.BoolVar(&c.sum, "sum", false, "show the sum of the ports")
	f.BoolVarP(&c.reset, "reset", "r", false, "set the counters to 0 after they were read")
	f.BoolVarP(&c.resetOnly, "reset-only", "R", false, "set the counters to 0, and show nothing")
	command.JSONFlag(cmd, &asJSON)
	compatFlag(cmd, &compat, "perfquery")
	cmd.Run = func(cmd *command.Command, args []string) error {
		return c.collect(cmd.Context(), args, func(n *node) error {
			switch {
			case asJSON:
				return command.PrintJSON(cmd.Out(), n.rows)
			case compat:
				return n.printCompat(cmd.Out())
			}
			return n.print(cmd.Out())
		})
	}
	return cmd
}

// A node is an agent of performance management, and what it says.
type node struct {
	flags *counterFlags
	agent *umad.Agent
	to    umad.Addr
	info  mad.ClassPortInfo
	lines string // of the counters
	rs    bool   // with --fec: the ports use a Reed-Solomon code
	rows  []CountersRow
}

// collect asks a node for the counters of its ports, shows them, and resets them.
func (c *counterFlags) collect(ctx context.Context, args []string, show func(*node) error) error {
	if c.fec && c.extended {
		return command.Usagef("--fec is given with --extended, allowed: one of them")
	}
	ports, err := parsePorts(args)
	if err != nil {
		return err
	}
	var to destination
	if len(args) > 0 {
		if to, err = parseDest(args[0]); err != nil {
			return err
		}
	}
	port, err := c.open()
	if err != nil {
		return err
	}
	defer port.Close()
	n := &node{flags: c, rows: []CountersRow{}}
	if len(args) > 0 {
		n.to, err = c.resolve(ctx, port, to)
	} else {
		var own *mad.PortInfo
		if own, err = sa.LocalPort(ctx, port); err == nil {
			n.to, ports = umad.Addr{LID: own.LID}, []uint8{own.LocalPortNum}
			if own.LID == 0 {
				err = noSM(port)
			}
		}
	}
	if err != nil {
		return err
	}
	if n.agent, err = port.Register(c.agent(mad.ClassPerf)); err != nil {
		return err
	}
	defer n.agent.Close()
	if err := n.agent.Query(ctx, n.to, mad.NewPerf(mad.MethodGet, mad.AttrClassPortInfo), &n.info); err != nil {
		return err
	}
	if err := n.chooseCounters(); err != nil {
		return err
	}
	if ports[0] == allPorts && (c.fec || !c.sum || n.info.CapabilityMask&mad.PerfAllPorts == 0) {
		if ports, err = c.portsOf(ctx, port, n.to); err != nil {
			return err
		}
	}
	if c.fec {
		for i, number := range ports {
			rs, err := n.rsFEC(ctx, port, number)
			if err == nil && i > 0 && rs != n.rs {
				err = fmt.Errorf("port %d of %v uses another error correction than port %d, whose counters are others", number, n.to, ports[0])
			}
			if err != nil {
				return err
			}
			n.rs = rs
		}
		n.lines = fecCounters(n.rs)
	}
	return n.each(ctx, ports, show)
}

// chooseCounters decides which counters to show.
func (n *node) chooseCounters() error {
	if n.lines = countersOf; !n.flags.extended {
		return nil
	}
	if n.info.CapabilityMask&(mad.PerfExtended|mad.PerfExtendedNoIETF) == 0 {
		return fmt.Errorf("%v has no counters of 64 bits: the CapabilityMask of its performance management is %#x", n.to, n.info.CapabilityMask)
	}
	n.lines = extended
	if n.info.CapabilityMask&mad.PerfExtended != 0 {
		n.lines += extendedIETF
	}
	if n.info.CapabilityMask2&mad.PerfAdditional != 0 {
		n.lines += extendedMore
	}
	return nil
}

// each reads and shows the counters of ports, resets them, or both.
func (n *node) each(ctx context.Context, ports []uint8, show func(*node) error) error {
	for _, p := range ports {
		if n.flags.resetOnly {
			break
		}
		answer, err := n.agent.Do(ctx, n.to, n.request(mad.MethodGet, p))
		if err != nil {
			return err
		}
		data := make([]byte, mad.Size)
		copy(data, answer.Data)
		if n.info.CapabilityMask&mad.PerfXmitWait == 0 && !n.flags.extended && !n.flags.fec {
			clear(data[40:44])
		}
		n.add(CountersRow{LID: n.to.LID, Port: int(p), data: data})
	}
	if !n.flags.resetOnly {
		if err := show(n); err != nil || !n.flags.reset {
			return err
		}
	}
	for _, p := range ports {
		if _, err := n.agent.Do(ctx, n.to, n.request(mad.MethodSet, p)); err != nil {
			return err
		}
	}
	return nil
}

// request returns a request for a port. Set resets all counters that the agent has.
func (n *node) request(m mad.Method, port uint8) *mad.Packet {
	var wait, more, all uint32
	if m == mad.MethodSet {
		all = 0xffff
		if n.info.CapabilityMask&mad.PerfXmitWait != 0 {
			wait = 1
		}
		if n.info.CapabilityMask&mad.PerfQP1Dropped != 0 {
			wait |= 2
		}
		if n.info.CapabilityMask2&mad.PerfAdditional != 0 {
			more = 0xfff | wait<<12
		}
	}
	if n.flags.fec {
		p := mad.NewPerf(m, mad.AttrPortExtendedSpeedsCounters)
		p.Data = make([]byte, 16)
		p.Data[1] = port
		putBitsOf(p.Data, 64, 64, -uint64(all&1)) // all counters, or none
		return p
	}
	var a mad.Attribute = &mad.PortCounters{PortSelect: port, CounterSelect: uint16(all), CounterSelect2: uint8(wait)}
	if n.flags.extended {
		a = &mad.PortCountersExtended{PortSelect: port, CounterSelect: uint16(all), CounterSelect2: more}
	}
	p := mad.NewPerf(m, a.ID())
	if err := p.Put(a); err != nil {
		panic(err) // all values fit
	}
	return p
}

// add adds a row, or adds its counters to those of the first.
func (n *node) add(r CountersRow) {
	if n.flags.sum && len(n.rows) > 0 {
		first := n.rows[0]
		n.counters(func(_ string, at, bits int) {
			a, b := bitsOf(first.data, at, bits), bitsOf(r.data, at, bits)
			putBitsOf(first.data, at, bits, a+min(b, ^uint64(0)>>(64-bits)-a))
		})
		n.rows, r = nil, first
	}
	if n.flags.sum {
		r.Port, r.data[1] = allPorts, allPorts
	}
	r.Counters = nil
	n.counters(func(name string, at, bits int) {
		r.Counters = append(r.Counters, Counter{name, bitsOf(r.data, at, bits)})
	})
	n.rows = append(n.rows, r)
}

// counters calls each for every counter, with its name and its place in bits.
func (n *node) counters(each func(name string, at, bits int)) {
	for line := range strings.Lines(n.lines) {
		name, field, _ := strings.Cut(line, " ")
		if at, bits, _ := placeOf(field); !strings.HasSuffix(name, "Select") && name != "CounterSelect2" {
			each(name, at, bits)
		}
	}
}

// putBitsOf stores a number in the bits [at, at+n).
func putBitsOf(b []byte, at, n int, v uint64) {
	for i := at + n - 1; i >= at; i-- {
		b[i/8] = b[i/8]&^(0x80>>(i%8)) | byte(v&1)<<(7-i%8)
		v >>= 1
	}
}

// parsePorts reads PORTS. The result is sorted and has each port once.
func parsePorts(args []string) (ports []uint8, err error) {
	if len(args) < 2 || args[1] == "all" {
		return []uint8{allPorts}, nil
	}
	var named [allPorts]bool
	for _, part := range strings.Split(args[1], ",") {
		from, to, isRange := strings.Cut(part, "-")
		first, err1 := strconv.ParseUint(from, 10, 8)
		last, err2 := strconv.ParseUint(cmp.Or(to, from), 10, 8)
		if err1 != nil || err2 != nil || isRange && to == "" || last < first || last >= allPorts {
			return nil, command.Usagef("PORTS is %s, allowed: numbers from 0 to %d and ranges such as 1-8, separated by commas, or all", peertext.Quote(args[1]), allPorts-1)
		}
		for p := first; p <= last; p++ {
			named[p] = true
		}
	}
	for p, ok := range named {
		if ok {
			ports = append(ports, uint8(p))
		}
	}
	return ports, nil
}

// portsOf returns the ports of the node at an address. On a port without QP0 the subnet administrator
// knows them.
func (c *counterFlags) portsOf(ctx context.Context, port *umad.Port, to umad.Addr) ([]uint8, error) {
	var info mad.NodeInfo
	var sw mad.SwitchInfo
	err := c.ask(ctx, port, to, mad.NewSMP(mad.MethodGet, mad.AttrNodeInfo, 0), &info)
	if err == nil && info.NodeType == ib.NodeSwitch {
		err = c.ask(ctx, port, to, mad.NewSMP(mad.MethodGet, mad.AttrSwitchInfo, 0), &sw)
	}
	if errors.Is(err, umad.ErrNoQP0) {
		info, err = c.nodeOf(ctx, port, to)
	}
	if err != nil {
		return nil, err
	}
	first := uint8(1)
	if sw.EnhancedPort0 {
		first = 0
	}
	var ports []uint8
	for p := int(first); p <= min(int(info.NumPorts), allPorts-1); p++ {
		ports = append(ports, uint8(p))
	}
	if len(ports) == 0 {
		return nil, fmt.Errorf("%v is a node without ports", to)
	}
	return ports, nil
}

// nodeOf asks the subnet administrator for a node.
func (c *counterFlags) nodeOf(ctx context.Context, port *umad.Port, to umad.Addr) (mad.NodeInfo, error) {
	client, err := c.client(port, 0)
	if err != nil {
		return mad.NodeInfo{}, err
	}
	defer client.Close()
	record := mad.NodeRecord{LID: to.LID}
	err = client.Get(ctx, &record, mad.NodeLID)
	return record.NodeInfo, err
}

// printCompat prints the counters as perfquery does.
func (n *node) printCompat(w io.Writer) error {
	text := dotted("", 0, n.lines)
	for _, r := range n.rows {
		head := fmt.Sprintf("# Port counters: Lid %d port %d (CapMask: 0x%02X)\n", r.LID, r.Port, n.info.CapabilityMask)
		switch {
		case n.flags.fec && n.rs:
			head = fmt.Sprintf("# PortExtendedSpeedsCounters with RS-FEC Active counters: Lid %d port %d\n", r.LID, r.Port)
		case n.flags.fec:
			head = fmt.Sprintf("# PortExtendedSpeedsCounters counters: Lid %d port %d\n", r.LID, r.Port)
		case n.flags.extended:
			head = fmt.Sprintf("# Port extended counters: Lid %d port %d (CapMask: 0x%02X CapMask2: 0x%07X)\n", r.LID, r.Port, n.info.CapabilityMask, n.info.CapabilityMask2)
		}
		if _, err := io.WriteString(w, head+text.expand(r.data)); err != nil {
			return err
		}
	}
	return nil
}

// print prints the counters that are not 0 as a table.
func (n *node) print(w io.Writer) error {
	t := command.Table(w, "LID\tport\tcounter\tvalue")
	for _, r := range n.rows {
		port, none := strconv.Itoa(r.Port), true
		if r.Port == allPorts {
			port = "all"
		}
		for _, c := range r.Counters {
			if c.Value != 0 {
				fmt.Fprintf(t, "%d\t%s\t%s\t%d\n", r.LID, port, c.Name, c.Value)
				none = false
			}
		}
		if none {
			fmt.Fprintf(t, "%d\t%s\tall\t0\n", r.LID, port)
		}
	}
	return t.Flush()
}
