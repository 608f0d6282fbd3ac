package ib

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/tools/verbs/internal/terminal"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/fabric"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// PortRow is the JSON of "verbs ib port".
type PortRow struct {
	LinkRow
	SMLID           uint16   `json:"sm_lid"`
	LMC             uint8    `json:"lmc"`
	WidthsSupported []string `json:"supported_widths"`
	WidthsEnabled   []string `json:"enabled_widths"`
	SpeedsSupported []string `json:"supported_speeds"`
	SpeedsEnabled   []string `json:"enabled_speeds"`
}

// portChange is what "verbs ib port" does to a port.
type portChange struct {
	action string // "" to ask only
	width  mad.Width
	speed  fabric.Speed
}

// everything stands for all widths or speeds that a port supports.
const everything = 0xff

// portAction is an action, with the physical or the logical state that it asks for.
type portAction struct {
	name, about string
	phys        ib.PhysState
	state       ib.PortState
	cuts        bool // it takes down a link that is up
}

// portActions are all actions; the first one changes nothing.
var portActions = []portAction{
	{"query", "ask the port", 0, 0, false},
	{"enable", "let the link train", ib.PhysPolling, 0, true},
	{"disable", "take the link down until it is enabled", ib.PhysDisabled, 0, true},
	{"reset", "let the link train again", ib.PhysPolling, 0, true},
	{"down", "set the state to DOWN", 0, ib.PortDown, true},
	{"arm", "set the state to ARMED", 0, ib.PortArmed, false},
	{"active", "set the state to ACTIVE", 0, ib.PortActive, false},
}

// portFlags are the flags of "verbs ib port".
type portFlags struct {
	*options
	yes    bool
	change portChange
	text   strings.Builder // what ibportstate prints
}

func newPort(s *System) *command.Command {
	var asJSON, compat bool
	cmd := &command.Command{
		Use:   "port [flags] [DEST [PORT [ACTION...]]]",
		Short: "Ask, disable, enable or reset a port of the subnet, or set its speeds and widths",
		Example: `  verbs ib port 7 3                  # port 3 of the switch with LID 7
  verbs ib port 7 3 disable
  verbs ib port 0,1 3 reset
  verbs ib port 7 3 speed HDR,NDR reset
  verbs ib port 7 3 width all reset --yes
  verbs ib port 7 3 --compat         # as ibportstate 7 3`,
	}
	var b strings.Builder
	b.WriteString("ACTION is one of:\n\n")
	for _, a := range portActions {
		fmt.Fprintf(&b, "  %-9s %s\n", a.name, a.about)
	}
	b.WriteString(`  speed S   allow these speeds only, such as SDR,HDR, or all that the port supports
  width W   allow these widths only, such as 1X,4X, or all that the port supports

If S has only speeds above QDR, those up to QDR stay as they are. The link obeys when it trains the
next time: add reset. A subnet manager may allow all speeds again, as opensm does by default.

A port that cannot be reached any more cannot be enabled either, so before it takes down a link of
this host the command asks for confirmation; without a terminal it needs --yes.

`)
	cmd.Long = b.String() + destHelp
	p := &portFlags{options: newOptions(s, cmd)}
	p.mkeyFlag(cmd)
	cmd.Flags().BoolVarP(&p.yes, "yes", "y", false, "do not ask before a link of this host is taken down")
	command.JSONFlag(cmd, &asJSON)
	compatFlag(cmd, &compat, "ibportstate")
	cmd.Args = func(_ *command.Command, args []string) (err error) {
		p.change, err = parseChange(args[min(2, len(args)):])
		return err
	}
	cmd.Complete = completePort
	cmd.Run = func(cmd *command.Command, args []string) error {
		row, err := p.run(cmd, args[:min(2, len(args))])
		switch {
		case err != nil:
			return err
		case asJSON:
			return command.PrintJSON(cmd.Out(), row)
		case compat:
			_, err := io.WriteString(cmd.Out(), p.text.String())
			return err
		}
		return row.print(cmd.Out())
	}
	return cmd
}

// parseChange reads ACTION...
func parseChange(args []string) (c portChange, err error) {
	var names []string
	for _, a := range portActions {
		names = append(names, a.name)
	}
	for i := 0; i < len(args); i++ {
		isSpeed := args[i] == "speed"
		switch {
		case (isSpeed || args[i] == "width") && i+1 == len(args):
			return c, command.Usagef("the value of %s is missing", args[i])
		case isSpeed:
			i++
			c.speed, err = parseSet(args[i], speedNames)
		case args[i] == "width":
			i++
			var w fabric.Speed
			w, err = parseSet(args[i], widthNames)
			c.width = mad.Width(w)
		case !slices.Contains(names, args[i]):
			return c, command.Usagef("ACTION is %s, allowed: %s, speed S, width W", peertext.Quote(args[i]), strings.Join(names, ", "))
		case c.action != "":
			return c, command.Usagef("ACTION is %s after %s, allowed: one action, besides speed and width", args[i], c.action)
		default:
			c.action = args[i]
		}
		if err != nil {
			return c, err
		}
	}
	return c, nil
}

// speedNames and widthNames are the names of the bits of a set. Only a vendor's attribute can set FDR10.
var (
	speedNames = []string{"SDR", "DDR", "QDR", "", "FDR", "EDR", "HDR", "NDR", "XDR"}
	widthNames = []string{"1X", "4X", "8X", "12X", "2X"}
)

// namesOf lists the names of the bits of a set.
func namesOf(set uint16, names []string) []string {
	all := []string{}
	for i, name := range names {
		if set>>i&1 != 0 && name != "" {
			all = append(all, name)
		}
	}
	return all
}

// parseSet reads a list of names, or "all".
func parseSet(text string, names []string) (set fabric.Speed, err error) {
	if text == "all" {
		return everything, nil
	}
	for _, word := range strings.Split(text, ",") {
		i := slices.IndexFunc(names, func(name string) bool { return name != "" && strings.EqualFold(name, word) })
		if i < 0 {
			return 0, command.Usagef("%s is not allowed: all, or some of %s, separated by commas", peertext.Quote(word), strings.Join(namesOf(1<<len(names)-1, names), ", "))
		}
		set |= 1 << i
	}
	return set, nil
}

// completePort completes actions and their values.
func completePort(args []string, text string) (all []command.Completion) {
	if len(args) < 2 {
		return nil
	}
	values := map[string][]string{"speed": speedNames, "width": widthNames}[args[len(args)-1]]
	if values != nil {
		for _, name := range append([]string{"all"}, namesOf(1<<len(values)-1, values)...) {
			all = append(all, command.Completion{Text: name})
		}
		return command.ListCompletions(all, text)
	}
	for _, a := range portActions {
		all = append(all, command.Completion{Text: a.name, About: a.about})
	}
	return append(all, command.Completion{Text: "speed"}, command.Completion{Text: "width"})
}

// run asks a port, changes it, and returns what it says then.
func (p *portFlags) run(cmd *command.Command, args []string) (*PortRow, error) {
	ctx := cmd.Context()
	if _, err := portArg(args[min(1, len(args)):], maxPort); err != nil {
		return nil, err
	}
	t, err := p.target(ctx, args)
	if err != nil {
		return nil, err
	}
	defer t.close()
	at, err := t.portOf(ctx, args[min(1, len(args)):])
	if err != nil {
		return nil, err
	}
	i := max(slices.IndexFunc(portActions, func(a portAction) bool { return a.name == p.change.action }), 0)
	changes := i > 0 || p.change.speed != 0 || p.change.width != 0
	if changes {
		p.text.WriteString("Initial ")
	}
	fmt.Fprintf(&p.text, "%s PortInfo:\n", map[bool]string{true: "Switch", false: "CA/RT"}[at.Node.IsSwitch()])
	if err := p.show(ctx, t, at); err != nil {
		return nil, err
	}
	if changes {
		return p.set(ctx, t, at, &portActions[i])
	}
	if at.Node.IsSwitch() && at.Number > 0 && at.Info.PortState != ib.PortDown {
		if err := p.neighbor(ctx, t, at); err != nil { // the port itself has answered
			fmt.Fprintf(cmd.Err(), "verbs: the neighbor of %v: %v\n", at, err)
		}
	}
	return portRow(at), nil
}

// neighbor asks for the port at the other end of a link.
func (p *portFlags) neighbor(ctx context.Context, t *target, at *fabric.Port) error {
	next, err := t.behind(ctx, at.Number)
	if err != nil {
		return err
	}
	r, err := next.portOf(ctx, nil)
	if err != nil {
		return err
	}
	at.Remote, r.Remote = r, at
	if !at.Active() {
		return nil
	}
	p.text.WriteString("Peer PortInfo:\n")
	return p.show(ctx, next, r)
}

// portOf asks for a port, and for what says which speeds it has. Without an argument it is the port by which the request
// comes.
func (t *target) portOf(ctx context.Context, args []string) (*fabric.Port, error) {
	n := &fabric.Node{Path: t.route}
	var desc mad.NodeDescription
	for _, a := range []mad.Attribute{&n.Info, &desc} {
		if _, err := t.get(ctx, a, 0); err != nil {
			return nil, err
		}
	}
	n.Description = desc.NodeString
	number, err := portArg(args, n.Info.NumPorts)
	if err != nil {
		return nil, err
	}
	if len(args) == 0 {
		number = n.Info.LocalPortNum
	}
	numbers := []uint8{number}
	if n.IsSwitch() && number != 0 {
		numbers = []uint8{0, number}
	}
	for _, number := range numbers {
		p := &fabric.Port{Node: n, Number: number, GUID: n.Info.PortGUID, Info: &mad.PortInfo{}}
		if _, err := t.get(ctx, p.Info, uint32(number)); err != nil {
			return nil, err
		}
		n.Ports = append(n.Ports, p)
	}
	return n.Ports[len(n.Ports)-1], nil
}

// pick returns the lines of some fields.
func pick(lines string, names ...string) string {
	var b strings.Builder
	for _, name := range names {
		_, line, _ := strings.Cut("\n"+lines, "\n"+name+" ")
		line, _, _ = strings.Cut(line, "\n")
		b.WriteString(name + " " + line + "\n")
	}
	return b.String()
}

// show adds a port to what ibportstate prints.
func (p *portFlags) show(ctx context.Context, t *target, at *fabric.Port) error {
	names := "LinkState PhysLinkState Lid SMLid LMC LinkWidthSupported LinkWidthEnabled LinkWidthActive LinkSpeedSupported LinkSpeedEnabled LinkSpeedActive"
	if at.HasExtSpeeds() {
		names += " LinkSpeedExtSupported LinkSpeedExtEnabled LinkSpeedExtActive"
	}
	if at.HasExtSpeeds2() {
		names += " LinkSpeedExtSupported2 LinkSpeedExtEnabled2 LinkSpeedExtActive2"
	}
	if !at.Node.IsSwitch() || at.Number == 0 {
		names += " Mkey MkeyLeasePeriod ProtectBits"
	}
	data, err := mad.Marshal(at.Info)
	if err != nil {
		return err
	}
	fmt.Fprintf(&p.text, "# Port info: %v port %d\n%s", t, at.Number, dotted("", 0, pick(portInfoLines, strings.Fields(names)...)).expand(data))
	if fabric.HasExtendedPortInfo(&at.Node.Info) {
		var ext vendorPortInfo
		if data, err := t.get(ctx, &ext, uint32(at.Number)); err == nil { // not every firmware has it
			fmt.Fprintf(&p.text, "# MLNX ext Port info: %v port %d\n%s", t, at.Number, dotted("", 0, extLines).expand(data))
		}
	}
	return nil
}

// set changes a port.
func (p *portFlags) set(ctx context.Context, t *target, at *fabric.Port, a *portAction) (*PortRow, error) {
	i := *at.Info
	i.PortState, i.PortPhysicalState = a.state, a.phys
	i.LinkSpeedEnabled, i.LinkSpeedExtEnabled, i.LinkSpeedExtEnabled2, i.LinkWidthEnabled = 0, 0, 0, 0 // no change
	for _, lid := range []*uint16{&i.LID, &i.MasterSMLID} {                                            // a port without a subnet manager refuses what it has itself
		if *lid == 0 || *lid == umad.LIDPermissive {
			*lid = 0x1234
		}
	}
	if err := p.change.enable(&i, at); err != nil {
		return nil, err
	}
	if a.cuts && at.Up() {
		if err := p.confirm(ctx, t, at); err != nil {
			return nil, err
		}
	}
	if a.phys == ib.PhysDisabled {
		p.text.WriteString("Disable may be irreversible\n")
	}
	data, err := mad.Marshal(&i)
	if err != nil {
		return nil, err
	}
	modifier := uint32(at.Number)
	if at.HasExtSpeeds() || at.HasExtSpeeds2() {
		modifier |= 1 << 31 // the sender knows extended speeds
	}
	if data, err = t.do(ctx, mad.MethodSet, mad.AttrPortInfo, modifier, data); err != nil {
		return nil, err
	}
	if err := mad.Unmarshal(data, at.Info); err != nil {
		return nil, err
	}
	p.text.WriteString("\nAfter PortInfo set:\n")
	return portRow(at), p.showSet(ctx, t, at)
}

// showSet adds a port after a change, without the vendor's attribute, as ibportstate does.
func (p *portFlags) showSet(ctx context.Context, t *target, at *fabric.Port) error {
	n := *at.Node
	n.Info.DeviceID = 0
	after := *at
	after.Node = &n
	return p.show(ctx, t, &after)
}

// enable enters the widths and speeds that a port may use from now on.
func (c *portChange) enable(i *mad.PortInfo, at *fabric.Port) error {
	switch supported := i.LinkWidthSupported; {
	case c.width == 0:
	case c.width == everything:
		i.LinkWidthEnabled = everything
	case c.width&^supported != 0:
		return command.Usagef("width has %v, allowed for %v: %v", namesOf(uint16(c.width), widthNames), at, namesOf(uint16(supported), widthNames))
	default:
		i.LinkWidthEnabled = c.width
	}
	const all, disabled, allExt = 15, 30, 31
	supported := at.SpeedsSupported() &^ fabric.FDR10
	switch {
	case c.speed == 0:
		return nil
	case c.speed == everything:
		i.LinkSpeedEnabled, i.LinkSpeedExtEnabled, i.LinkSpeedExtEnabled2 = all, allExt, i.LinkSpeedExtSupported2
	case c.speed&^supported != 0:
		return command.Usagef("speed has %v, allowed for %v: %v", c.speed, at, supported)
	case supported&fabric.XDR != 0 && c.speed&fabric.XDR == 0:
		return fmt.Errorf("speed is %v without XDR: %v supports XDR, which PortInfo can enable, but no value is known that disables it", c.speed, at)
	default:
		i.LinkSpeedEnabled, i.LinkSpeedExtEnabled, i.LinkSpeedExtEnabled2 = uint8(c.speed&7), cmp.Or(uint8(c.speed>>4&15), disabled), uint8(c.speed>>8)
	}
	if !at.HasExtSpeeds() {
		i.LinkSpeedExtEnabled = 0
	}
	if !at.HasExtSpeeds2() {
		i.LinkSpeedExtEnabled2 = 0
	}
	return nil
}

// confirm asks before a link of this host is taken down.
func (p *portFlags) confirm(ctx context.Context, t *target, at *fabric.Port) error {
	if p.yes {
		return nil
	}
	own, err := p.system.Own()
	if err != nil {
		return err
	}
	why := ""
	if slices.Contains(own, at.Node.GUID()) {
		why = "it is a port of this host"
	} else if next, err := t.behind(ctx, at.Number); err != nil {
		why = fmt.Sprintf("its neighbor may be this host: %v", err)
	} else {
		var info mad.NodeInfo
		if _, err := next.get(ctx, &info, 0); err != nil {
			why = fmt.Sprintf("its neighbor may be this host: %v", err)
		} else if slices.Contains(own, info.NodeGUID) {
			why = "its link leads to this host"
		}
	}
	if why == "" {
		return nil
	}
	ok, err := p.system.Confirm(fmt.Sprintf("%s takes down the link of %v, and %s.", p.change.action, at, why))
	if err == nil && !ok {
		err = errors.New("not confirmed, nothing was changed")
	}
	return err
}

// confirm asks a question on the terminal.
func confirm(question string) (bool, error) {
	if !terminal.New(os.Stdin).IsTerminal() {
		return false, fmt.Errorf("%s There is no terminal to ask; --yes does it", question)
	}
	fmt.Fprintf(terminal.Stderr, "%s Continue? [y/N] ", question)
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	return slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(line))), nil
}

// kernelOwn returns the node GUIDs of the devices of this machine.
func kernelOwn() (own []ib.GUID, err error) {
	devices, err := netlinkrdma.Devices()
	for _, d := range devices {
		own = append(own, d.NodeGUID)
	}
	return own, err
}

// portRow returns the row of a port.
func portRow(p *fabric.Port) *PortRow {
	widths := func(w mad.Width) []string { return namesOf(uint16(w), widthNames) }
	speeds := func(s fabric.Speed) []string { return namesOf(uint16(s), speedNames) }
	smLID := p.Info.MasterSMLID
	if p.Node.IsSwitch() {
		smLID = p.Node.Ports[0].Info.MasterSMLID
	}
	return &PortRow{linkOf(p), smLID, p.LMC(), widths(p.Info.LinkWidthSupported), widths(p.Info.LinkWidthEnabled), speeds(p.SpeedsSupported()), speeds(p.SpeedsEnabled())}
}

// print prints a port as a line for each field.
func (r *PortRow) print(w io.Writer) error {
	t := command.Table(w, "field\tvalue")
	list := func(names []string) string { return cmp.Or(strings.Join(names, ","), "-") }
	peer := "-"
	if r.Peer != nil {
		peer = fmt.Sprintf("%s port %d, LID %d", r.Peer.Node, r.Peer.Port, r.Peer.LID)
	}
	for _, f := range [][2]string{
		{"node", r.Node}, {"port", fmt.Sprint(r.Port)}, {"LID", fmt.Sprint(r.LID)}, {"LMC", fmt.Sprint(r.LMC)}, {"SM LID", fmt.Sprint(r.SMLID)},
		{"state", r.State}, {"physical", r.PhysState}, {"rate", r.rate()}, {"could be", r.could()},
		{"widths supported", list(r.WidthsSupported)}, {"widths enabled", list(r.WidthsEnabled)},
		{"speeds supported", list(r.SpeedsSupported)}, {"speeds enabled", list(r.SpeedsEnabled)}, {"peer", peer},
	} {
		fmt.Fprintf(t, "%s\t%s\n", f[0], f[1])
	}
	return t.Flush()
}
