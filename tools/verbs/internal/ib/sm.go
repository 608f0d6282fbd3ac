package ib

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
	"github.com/goverbs/goverbs/uverbs/umad/sa"
)

// SMRow is a line of "verbs ib sm", and an element of its JSON.
type SMRow struct {
	LID      uint16 `json:"lid"`
	GUID     string `json:"guid"`
	Priority uint8  `json:"priority"`
	State    string `json:"sm_state"`
	ActCount uint32 `json:"act_count"`

	info mad.SMInfo
}

// newSM makes the command that shows subnet managers.
func newSM(s *System) *command.Command {
	var asJSON, compat, all bool
	cmd := &command.Command{
		Use:   "sm [flags] [LID]",
		Short: "Show the subnet manager",
		Long: `Without a LID it asks the subnet manager that the port knows, the master. --all shows those in
standby, too, as the subnet administrator lists them. The activity is a counter that grows while a
subnet manager lives. On a port without QP0 the subnet administrator answers instead.`,
		Example: `  verbs ib sm
  verbs ib sm --all --json
  verbs ib sm --compat 1   # as sminfo`,
		Args: command.Arguments(1),
	}
	o := newOptions(s, cmd)
	command.JSONFlag(cmd, &asJSON)
	compatFlag(cmd, &compat, "sminfo")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "show all subnet managers")
	cmd.Run = func(cmd *command.Command, args []string) error {
		rows, err := o.subnetManagers(cmd.Context(), args, all)
		if err != nil {
			return err
		}
		switch {
		case asJSON:
			return command.PrintJSON(cmd.Out(), rows)
		case compat:
			return printSMCompat(cmd.Out(), rows)
		}
		t := command.Table(cmd.Out(), "LID\tGUID\tpriority\tstate\tactivity")
		for _, r := range rows {
			fmt.Fprintf(t, "%d\t%s\t%d\t%s\t%d\n", r.LID, r.GUID, r.Priority, r.State, r.ActCount)
		}
		return t.Flush()
	}
	return cmd
}

// noSM is the error for a port that knows no subnet manager.
func noSM(port *umad.Port) error {
	device, number := port.Device()
	return &umad.Error{Op: "find the subnet manager", Device: device, Port: number, Err: sa.ErrNoSM}
}

// smRow returns the row of a subnet manager.
func smRow(lid uint16, info mad.SMInfo) SMRow {
	return SMRow{lid, info.GUID.String(), info.Priority, smState(info.SMState), info.ActCount, info}
}

// printSMCompat prints subnet managers as sminfo does.
func printSMCompat(w io.Writer, rows []SMRow) error {
	for _, r := range rows {
		state := oneOf("???", "SMINFO_NOTACT", "SMINFO_DISCOVER", "SMINFO_STANDBY", "SMINFO_MASTER")(uint64(r.info.SMState))
		_, err := fmt.Fprintf(w, "sminfo: sm lid %d sm guid 0x%x, activity count %d priority %d state %d %s\n",
			r.LID, uint64(r.info.GUID), r.ActCount, r.Priority, r.info.SMState, state)
		if err != nil {
			return err
		}
	}
	return nil
}

// subnetManagers asks one subnet manager, or for all.
func (o *options) subnetManagers(ctx context.Context, args []string, all bool) ([]SMRow, error) {
	var lid uint16
	if len(args) > 0 {
		var err error
		if lid, err = parseLID(args[0]); err != nil {
			return nil, err
		}
		if all {
			return nil, command.Usagef("--all is given with a LID, allowed: one of them")
		}
	}
	port, err := o.open()
	if err != nil {
		return nil, err
	}
	defer port.Close()
	own, err := sa.LocalPort(ctx, port)
	if err != nil {
		return nil, err
	}
	if lid == 0 {
		lid = own.MasterSMLID
	}
	if lid == 0 {
		return nil, noSM(port)
	}
	if !all {
		var info mad.SMInfo
		err := o.ask(ctx, port, umad.Addr{LID: lid}, mad.NewSMP(mad.MethodGet, mad.AttrSMInfo, 0), &info)
		if errors.As(err, new(*mad.StatusError)) {
			err = fmt.Errorf("no subnet manager runs at LID %d: %w", lid, err)
		}
		if !errors.Is(err, umad.ErrNoQP0) {
			return []SMRow{smRow(lid, info)}, err
		}
	}
	client, err := o.client(port, 0)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	like, mask := &mad.SMInfoRecord{LID: lid}, mad.SMLID
	if all {
		mask = 0
	}
	records, err := client.Records(ctx, like, mask)
	rows := []SMRow{}
	for _, r := range records {
		r := r.(*mad.SMInfoRecord)
		rows = append(rows, smRow(r.LID, r.SMInfo))
	}
	if err == nil && len(rows) == 0 {
		err = fmt.Errorf("the subnet administrator lists no subnet manager at LID %d", lid)
	}
	return rows, err
}

// ask sends one request with an agent of its own.
func (o *options) ask(ctx context.Context, port *umad.Port, to umad.Addr, req *mad.Packet, answer mad.Attribute) error {
	agent, err := port.Register(o.agent(req.Class))
	if err != nil {
		return err
	}
	defer agent.Close()
	return agent.Query(ctx, to, req, answer)
}

// maxLID is the largest LID of a port; those above are of multicast groups.
const maxLID = 0xbfff

// parseLID reads a LID, in decimal or with 0x.
func parseLID(text string) (uint16, error) {
	n, ok := lidNumber(text)
	if !ok || n == 0 || n > maxLID {
		return 0, command.Usagef("the LID is %s, allowed: 1 to %d", peertext.Quote(text), maxLID)
	}
	return n, nil
}

// destination is a port by its LID, or, if that is 0, by its GUID.
type destination struct {
	lid  uint16
	guid ib.GUID
}

// parseDest reads a LID or a GUID. A number of 16 bits is a LID, also with 0x and zeros in front.
func parseDest(text string) (d destination, err error) {
	d.guid, err = ib.ParseGUID(text)
	if _, short := lidNumber(text); err != nil || short {
		if d.lid, err = parseLID(text); err != nil {
			err = command.Usagef("the destination is %s, allowed: a LID of 1 to %d, or a GUID such as 0002:c903:0001:0001 or 0x2c90300010001", peertext.Quote(text), maxLID)
		}
	}
	return d, err
}

// resolve returns the address of a port, for a GUID by a query to the subnet administrator.
func (o *options) resolve(ctx context.Context, port *umad.Port, d destination) (umad.Addr, error) {
	if d.lid != 0 {
		return umad.Addr{LID: d.lid}, nil
	}
	client, err := o.client(port, 0)
	if err != nil {
		return umad.Addr{}, err
	}
	defer client.Close()
	return client.AddrOf(ctx, d.guid)
}
