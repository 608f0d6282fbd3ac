package ib

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/uverbs/umad/fabric"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// A question is what "verbs ib query" asks a node, and what the node answers.
type question struct {
	*target
	ctx  context.Context
	info mad.NodeInfo
	base uint16 // the LID of the node
	num  uint8  // PORT

	records []mad.Attribute // the answers as the records of "verbs ib sa" of the kind
	text    strings.Builder // the answers in the text of smpquery
}

// questions are what a node can be asked, in the order of the help. They have the names of the kinds of records.
var questions = []struct {
	name, about    string
	hasPort, table bool
	ask            func(q *question) error
}{
	{"node", "the node, and the port by which the request comes", false, false, (*question).node},
	{"desc", "its description", false, false, (*question).desc},
	{"port", "a port, with its PortInfo", true, false, (*question).portInfo},
	{"switch", "a switch", false, false, (*question).switchInfo},
	{"pkey", "the P_Keys of a port", true, true, (*question).pkeys},
	{"sl2vl", "the virtual lanes of service levels, to PORT", true, true, (*question).slToVL},
	{"vlarb", "the arbitration of virtual lanes of a port", true, true, (*question).vlArbitration},
	{"guid", "the GUIDs of a port", false, true, (*question).guids},
	{"fec", "the error correction of a port (PortInfoExtended)", true, false, (*question).fec},
	{"ext", "the speeds of a port that only NVIDIA's devices have (ExtendedPortInfo)", true, false, (*question).ext},
}

func newQuery(s *System) *command.Command {
	var asJSON, compat bool
	cmd := &command.Command{
		Use:   "query [flags] WHAT [DEST [PORT]]",
		Short: "Ask a node of the subnet for its attributes and tables",
		Example: `  verbs ib query node
  verbs ib query port 7 3               # port 3 of the switch with LID 7
  verbs ib query port 0,1,3 --json      # the node behind ports 1 and 3, without a subnet manager
  verbs ib query pkey 0x0002c90300010001
  verbs ib query sl2vl 7 3 --compat     # as smpquery sl2vl`,
	}
	var b strings.Builder
	b.WriteString("The node itself answers, so what it says is not what the subnet manager believes. WHAT is one of:\n\n")
	for _, q := range questions {
		fmt.Fprintf(&b, "  %-8s %s\n", q.name, q.about)
	}
	cmd.Long = b.String() + "\n" + destHelp
	o := newOptions(s, cmd)
	o.mkeyFlag(cmd)
	command.JSONFlag(cmd, &asJSON)
	compatFlag(cmd, &compat, "smpquery WHAT")
	cmd.Args = func(cmd *command.Command, args []string) error {
		_, err := parseQuestion(cmd, args)
		return err
	}
	cmd.Complete = func(args []string, _ string) (all []command.Completion) {
		for _, q := range questions {
			if len(args) == 0 {
				all = append(all, command.Completion{Text: q.name, About: q.about})
			}
		}
		return all
	}
	cmd.Run = func(cmd *command.Command, args []string) error {
		i, err := parseQuestion(cmd, args)
		if err != nil {
			return err
		}
		if _, err := portArg(args[min(2, len(args)):], maxPort); err != nil {
			return err
		}
		q := &question{ctx: cmd.Context()}
		if q.target, err = o.target(q.ctx, args[1:]); err != nil {
			return err
		}
		defer q.close()
		if err := q.prepare(args[min(2, len(args)):]); err != nil {
			return err
		}
		if err := questions[i].ask(q); err != nil {
			return err
		}
		switch {
		case asJSON:
			all := []object{}
			for _, r := range q.records {
				all = append(all, objectOf(r))
			}
			return command.PrintJSON(cmd.Out(), all)
		case compat:
			_, err := io.WriteString(cmd.Out(), q.text.String())
			return err
		}
		for _, k := range kinds {
			if k.name == questions[i].name && questions[i].table {
				return printRecords(cmd.Out(), k, q.records)
			}
		}
		return printFields(cmd.Out(), objectOf(q.records[0]))
	}
	return cmd
}

// mkeyFlag defines the flag for the key of the subnet.
func (o *options) mkeyFlag(cmd *command.Command) {
	cmd.Flags().Uint64Var(&o.mkey, "mkey", 0, "`M_KEY` of the subnet, if it demands one")
}

// parseQuestion returns the number of the question that the arguments name.
func parseQuestion(cmd *command.Command, args []string) (int, error) {
	var names []string
	for i, q := range questions {
		names = append(names, q.name)
		if len(args) > 0 && args[0] == q.name {
			if len(args) == 3 && !q.hasPort {
				return 0, command.Usagef("PORT is %s, allowed: none with %s", peertext.Quote(args[2]), q.name)
			}
			return i, command.Arguments(3)(cmd, args)
		}
	}
	given := "missing"
	if len(args) > 0 {
		given = peertext.Quote(args[0])
	}
	return 0, command.Usagef("WHAT is %s, allowed: %s", given, strings.Join(names, ", "))
}

// prepare asks for what every answer needs: the node, and its LID.
func (q *question) prepare(args []string) error {
	_, err := q.get(q.ctx, &q.info, 0)
	if err != nil {
		return err
	}
	if q.num, err = portArg(args, q.info.NumPorts); err != nil {
		return err
	}
	if q.base = q.lid; q.base == 0 {
		var i mad.PortInfo
		_, err = q.get(q.ctx, &i, 0)
		q.base = i.LID
	}
	return err
}

// printFields prints a record as a line for each field.
func printFields(w io.Writer, o object) error {
	t := command.Table(w, "field\tvalue")
	for _, m := range o {
		fmt.Fprintf(t, "%s\t%s\n", m.key, printable(o.text(m.key)))
	}
	return t.Flush()
}

const nodeInfoLines = `BaseVers 0:8 u
ClassVers 1:8 u
NodeType 2:8 node
NumPorts 3:8 u
SystemGuid 4:64 x16
Guid 12:64 x16
PortGuid 20:64 x16
PartCap 28:16 u
DevId 30:16 x4
Revision 32:32 x8
LocalPort 36:8 u
VendorId 37:24 x6
`

const switchInfoLines = `LinearFdbCap 0:16 u
RandomFdbCap 2:16 u
McastFdbCap 4:16 u
LinearFdbTop 6:16 u
DefPort 8:8 u
DefMcastPrimPort 9:8 u
DefMcastNotPrimPort 10:8 u
LifeTime 11:5 u
StateChange 11.5:1 u
OptSLtoVLMapping 11.6:2 u
LidsPerPort 12:16 u
PartEnforceCap 14:16 u
InboundPartEnf 16:1 u
OutboundPartEnf 16.1:1 u
FilterRawInbound 16.2:1 u
FilterRawOutbound 16.3:1 u
EnhancedPort0 16.4:1 u
MulticastFDBTop 18:16 x4
`

const fecLines = `CapMask 0:32 x8
FECModeActive 4:16 u
FDRFECModeSupported 6:16 x4
FDRFECModeEnabled 8:16 x4
EDRFECModeSupported 10:16 x4
EDRFECModeEnabled 12:16 x4
HDRFECModeSupported 14:16 x4
HDRFECModeEnabled 16:16 x4
NDRFECModeSupported 18:16 x4
NDRFECModeEnabled 20:16 x4
`

const extLines = `StateChangeEnable 3:8 x2
LinkSpeedSupported 7:8 x2
LinkSpeedEnabled 11:8 x2
LinkSpeedActive 15:8 x2
`

// portInfoExtended is the attribute PortInfoExtended, as far as infiniband-diags prints it.
type portInfoExtended struct {
	CapMask             uint32 `mad:"0"`
	FECModeActive       uint16 `mad:"4"`
	FDRFecModeSupported uint16 `mad:"6"`
	FDRFecModeEnabled   uint16 `mad:"8"`
	EDRFecModeSupported uint16 `mad:"10"`
	EDRFecModeEnabled   uint16 `mad:"12"`
	HDRFecModeSupported uint16 `mad:"14"`
	HDRFecModeEnabled   uint16 `mad:"16"`
	NDRFecModeSupported uint16 `mad:"18"`
	NDRFecModeEnabled   uint16 `mad:"20"`
}

// ID implements mad.Attribute.
func (*portInfoExtended) ID() mad.AttrID { return mad.AttrPortInfoExtended }

// vendorPortInfo is NVIDIA's attribute ExtendedPortInfo. Bit 0 of the speeds is FDR10.
type vendorPortInfo struct {
	StateChangeEnable  uint8 `mad:"3"`
	LinkSpeedSupported uint8 `mad:"7"`
	LinkSpeedEnabled   uint8 `mad:"11"`
	LinkSpeedActive    uint8 `mad:"15"`
}

// ID implements mad.Attribute.
func (*vendorPortInfo) ID() mad.AttrID { return 0xff90 }

// one enters the only answer: a record whose bytes are data, and which a program prints with a head.
func (q *question) one(r mad.Attribute, data []byte, lines, head string, args ...any) {
	q.records = append(q.records, r)
	fmt.Fprintf(&q.text, head+"\n%s", append(args, dotted("", 0, lines).expand(data))...)
}

func (q *question) node() error {
	r := &mad.NodeRecord{LID: q.base}
	data, err := q.get(q.ctx, &r.NodeInfo, 0)
	if err == nil {
		_, err = q.get(q.ctx, &r.NodeDescription, 0)
	}
	q.one(r, data, nodeInfoLines, "# Node info: %v", q.target)
	return err
}

func (q *question) desc() error {
	r := &mad.NodeRecord{LID: q.base, NodeInfo: q.info}
	_, err := q.get(q.ctx, &r.NodeDescription, 0)
	name := fabric.Printable(r.NodeDescription.NodeString)
	fmt.Fprintf(&q.text, "Node Description:%s%s\n", strings.Repeat(".", max(32-len(name), 1)), name)
	q.records = append(q.records, r)
	return err
}

func (q *question) portInfo() error {
	r := &mad.PortInfoRecord{EndportLID: q.base, PortNum: q.num}
	data, err := q.get(q.ctx, &r.PortInfo, uint32(q.num))
	q.one(r, data, portInfoLines, "# Port info: %v port %d", q.target, q.num)
	return err
}

func (q *question) switchInfo() error {
	if !isSwitch(&q.info) {
		return fmt.Errorf("%v is no switch, but of type %v", q.target, q.info.NodeType)
	}
	r := &mad.SwitchInfoRecord{LID: q.base}
	data, err := q.get(q.ctx, &r.SwitchInfo, 0)
	q.one(r, data, switchInfoLines, "# Switch info: %v", q.target)
	return err
}

func (q *question) fec() error {
	num := q.num
	if isSwitch(&q.info) {
		num = 0
	}
	var i mad.PortInfo
	if _, err := q.get(q.ctx, &i, uint32(num)); err != nil {
		return err
	}
	if i.CapabilityMask&mad.CapMask2 == 0 || i.CapabilityMask2&2 == 0 {
		return fmt.Errorf("%v has no PortInfoExtended: its CapabilityMask is %#x, CapabilityMask2 %#x", q.target, i.CapabilityMask, i.CapabilityMask2)
	}
	r := &portInfoExtended{}
	data, err := q.get(q.ctx, r, uint32(q.num))
	q.one(r, data, fecLines, "# Port info Extended: %v port %d", q.target, q.num)
	return err
}

func (q *question) ext() error {
	r := &vendorPortInfo{}
	data, err := q.get(q.ctx, r, uint32(q.num))
	q.one(r, data, extLines, "# MLNX ext Port info: %v port %d", q.target, q.num)
	return err
}

func (q *question) pkeys() error {
	n := int(q.info.PartitionCap)
	if isSwitch(&q.info) && q.num != 0 {
		var sw mad.SwitchInfo
		if _, err := q.get(q.ctx, &sw, 0); err != nil {
			return err
		}
		n = int(sw.PartitionEnforcementCap)
	}
	for block := range (n + 31) / 32 {
		r := &mad.PKeyTableRecord{LID: q.base, BlockNum: uint16(block), PortNum: q.num}
		if _, err := q.get(q.ctx, &r.PKeyTable, uint32(q.num)<<16|uint32(block)); err != nil {
			return err
		}
		q.records = append(q.records, r)
		for i := 0; i < 32 && block*32+i < n; i += 8 {
			fmt.Fprintf(&q.text, "%4d: ", block*32+i)
			for _, key := range r.PKeyTable.PKey[i : i+7] {
				fmt.Fprintf(&q.text, "0x%04x ", key)
			}
			fmt.Fprintf(&q.text, "0x%04x\n", r.PKeyTable.PKey[i+7])
		}
	}
	fmt.Fprintf(&q.text, "%d pkeys capacity for this port\n", n)
	return nil
}

func (q *question) guids() error {
	var info mad.PortInfo
	if _, err := q.get(q.ctx, &info, 0); err != nil {
		return err
	}
	n := int(info.GUIDCap)
	for block := range (n + 7) / 8 {
		r := &mad.GUIDInfoRecord{LID: q.base, BlockNum: uint8(block)}
		if _, err := q.get(q.ctx, &r.GUIDInfo, uint32(block)); err != nil {
			return err
		}
		q.records = append(q.records, r)
		for i := 0; i < 8 && block*8+i < n; i += 2 {
			g := r.GUIDInfo.GUID[i:]
			fmt.Fprintf(&q.text, "%4d: 0x%016x 0x%016x\n", block*8+i, uint64(g[0]), uint64(g[1]))
		}
	}
	fmt.Fprintf(&q.text, "%d guids capacity for this port\n", n)
	return nil
}

func (q *question) slToVL() error {
	fmt.Fprintf(&q.text, "# SL2VL table: %v\n#                 SL: |", q.target)
	for sl := range 16 {
		fmt.Fprintf(&q.text, "%2d|", sl)
	}
	q.text.WriteByte('\n')
	inputs, out := 1, uint8(0)
	if isSwitch(&q.info) {
		inputs, out = int(q.info.NumPorts)+1, q.num
	}
	for in := range inputs {
		r := &mad.SLtoVLTableRecord{LID: q.base, InputPortNum: uint8(in), OutputPortNum: out}
		if _, err := q.get(q.ctx, &r.SLtoVLTable, uint32(in)<<8|uint32(out)); err != nil {
			return err
		}
		q.records = append(q.records, r)
		fmt.Fprintf(&q.text, "ports: in %2d, out %2d: |", in, out)
		for _, vl := range r.SLtoVLTable.VL {
			fmt.Fprintf(&q.text, "%2d|", vl)
		}
		q.text.WriteByte('\n')
	}
	return nil
}

func (q *question) vlArbitration() error {
	if q.num == 0 && isSwitch(&q.info) {
		var sw mad.SwitchInfo
		if _, err := q.get(q.ctx, &sw, 0); err != nil {
			return err
		}
		if !sw.EnhancedPort0 {
			fmt.Fprintf(&q.text, "# No VLArbitration tables (BSP0): %v port 0\n", q.target)
			return nil
		}
	}
	var info mad.PortInfo
	if _, err := q.get(q.ctx, &info, uint32(q.num)); err != nil {
		return err
	}
	low, high := int(info.VLArbitrationLowCap), int(info.VLArbitrationHighCap)
	fmt.Fprintf(&q.text, "# VLArbitration tables: %v port %d LowCap %d HighCap %d\n", q.target, q.num, low, high)
	for _, half := range []struct {
		name  string
		block uint8
		n     int // entries of it and of the next half
	}{{"Low", 1, low}, {"", 2, low - 32}, {"High", 3, high}, {"", 4, high - 32}} {
		if half.n <= 0 {
			continue
		}
		r := &mad.VLArbitrationTableRecord{LID: q.base, OutputPortNum: q.num, BlockNum: half.block}
		if _, err := q.get(q.ctx, &r.VLArbitrationTable, uint32(half.block)<<16|uint32(q.num)); err != nil {
			return err
		}
		q.records = append(q.records, r)
		if half.name != "" {
			fmt.Fprintf(&q.text, "# %s priority VL Arbitration Table:", half.name)
		}
		entries := r.VLArbitrationTable.Entry[:min(half.n, 32)]
		line := func(head string, of func(mad.VLWeight) uint8) {
			q.text.WriteString("\n" + head + "|")
			for _, e := range entries {
				fmt.Fprintf(&q.text, "0x%-2X|", of(e))
			}
		}
		line("VL    : ", func(e mad.VLWeight) uint8 { return e.VL })
		line("WEIGHT: ", func(e mad.VLWeight) uint8 { return e.Weight })
		q.text.WriteByte('\n')
	}
	return nil
}
