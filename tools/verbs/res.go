package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"text/tabwriter"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/internal/proc"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/uverbs"
)

// resReport is what "verbs res" prints about a device. A list that the kernel does not
// have is null in JSON.
type resReport struct {
	Device   string       `json:"device"`
	Counts   resCounts    `json:"counts"`
	Contexts []contextRow `json:"contexts"`
	PDs      []pdRow      `json:"pds"`
	MRs      []mrRow      `json:"mrs"`
	CQs      []cqRow      `json:"cqs"`
	SRQs     []srqRow     `json:"srqs"`
	QPs      []qpRow      `json:"qps"`
	CMIDs    []cmIDRow    `json:"cm_ids"`
	Missing  []string     `json:"missing,omitempty"`
}

// resCounts has the number of objects by kind.
type resCounts struct {
	Contexts uint64 `json:"contexts"`
	PDs      uint64 `json:"pds"`
	MRs      uint64 `json:"mrs"`
	CQs      uint64 `json:"cqs"`
	SRQs     uint64 `json:"srqs"`
	QPs      uint64 `json:"qps"`
	CMIDs    uint64 `json:"cm_ids"`
}

// ownerRow is the owner of an object: a process, or a module of the kernel.
type ownerRow struct {
	PID    uint32 `json:"pid,omitempty"`
	Comm   string `json:"comm,omitempty"`
	Kernel string `json:"kernel,omitempty"`
}

type contextRow struct {
	ID uint32 `json:"ctxn"`
	ownerRow
}

type pdRow struct {
	ID      uint32 `json:"pdn"`
	Users   uint64 `json:"users"`
	Context uint32 `json:"ctxn"`
	ownerRow
}

type mrRow struct {
	ID     uint32  `json:"mrn"`
	Length uint64  `json:"length"`
	LKey   *uint32 `json:"lkey,omitempty"`
	RKey   *uint32 `json:"rkey,omitempty"`
	PD     uint32  `json:"pdn"`
	ownerRow
	driverRow
}

type cqRow struct {
	ID                 uint32 `json:"cqn"`
	CQE                uint32 `json:"cqe"`
	Users              uint64 `json:"users"`
	AdaptiveModeration bool   `json:"adaptive_moderation"`
	PollContext        string `json:"poll_context,omitempty"`
	Context            uint32 `json:"ctxn"`
	ownerRow
	driverRow
}

type srqRow struct {
	ID   uint32   `json:"srqn"`
	Type string   `json:"type"`
	PD   uint32   `json:"pdn"`
	CQ   uint32   `json:"cqn"`
	QPs  qpRanges `json:"qpn_ranges"`
	ownerRow
	driverRow
}

// qpRange is a range of QP numbers.
type qpRange struct {
	First uint32 `json:"first"`
	Last  uint32 `json:"last"`
}

// qpRanges are the numbers of the QPs of an SRQ.
type qpRanges []qpRange

func (all qpRanges) String() string {
	text := make([]string, len(all))
	for i, r := range all {
		text[i] = fmt.Sprint(r.First)
		if r.Last != r.First {
			text[i] = fmt.Sprintf("%d-%d", r.First, r.Last)
		}
	}
	return strings.Join(text, ",")
}

type qpRow struct {
	Num       uint32 `json:"qpn"`
	Port      uint32 `json:"port,omitempty"`
	Type      string `json:"type"`
	Subtype   string `json:"subtype,omitempty"`
	State     string `json:"state"`
	RemoteNum uint32 `json:"remote_qpn"`
	RQPSN     uint32 `json:"rq_psn"`
	SQPSN     uint32 `json:"sq_psn"`
	PathMig   string `json:"path_migration"`
	PD        uint32 `json:"pdn"`
	ownerRow
	driverRow
}

type cmIDRow struct {
	ID        uint32 `json:"cm_idn"`
	Port      uint32 `json:"port,omitempty"`
	PortSpace string `json:"port_space"`
	State     string `json:"state"`
	Local     string `json:"local_address,omitempty"`
	Remote    string `json:"remote_address,omitempty"`
	QPNum     uint32 `json:"qpn,omitempty"`
	ownerRow
	driverRow
}

// driverRow has what only the driver reports.
type driverRow struct {
	Driver map[string]any `json:"driver_attributes,omitempty"`
}

func newRes() *command.Command {
	var asJSON bool
	cmd := &command.Command{
		Use:   "res [flags] [DEV]",
		Short: "Show the objects of a device and the processes that own them",
		Long: `It lists contexts, PDs, MRs, CQs, SRQs, QPs and identifiers of the connection manager, as
"rdma resource show" does. Without DEV it shows those of every device.

The keys of memory regions need CAP_NET_ADMIN. The owner is the process whose thread created the
object; it is "-" if that thread has ended or is in another PID namespace, and a kernel module is in
brackets.`,
		Example: `  verbs res
  verbs res rxe0
  verbs res rxe0 --json | jq '.[0].qps[] | select(.state == "ERR")'`,
		Args: arguments(1),
		Run: func(cmd *command.Command, args []string) error {
			devs, err := netlinkDevices(args)
			if err != nil {
				return err
			}
			reports := make([]resReport, len(devs))
			for i, dev := range devs {
				if reports[i], err = collectRes(dev); err != nil {
					return err
				}
			}
			if asJSON {
				return printJSON(cmd.Out(), reports)
			}
			for i, r := range reports {
				if i > 0 {
					fmt.Fprintln(cmd.Out())
				}
				if err := r.print(cmd.Out()); err != nil {
					return err
				}
			}
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// netlinkDevices returns the named device, or all devices without a name. An error says so if there
// are devices in software, which are in this process and not in the kernel.
func netlinkDevices(names []string) ([]netlinkrdma.Device, error) {
	var devs []netlinkrdma.Device
	var err error
	if len(names) == 0 {
		devs, err = netlinkrdma.Devices()
	} else {
		var dev netlinkrdma.Device
		dev, err = netlinkrdma.DeviceByName(names[0])
		devs = []netlinkrdma.Device{dev}
	}
	if err == nil {
		return devs, nil
	}
	infos, _ := uverbs.Devices() // the error says enough without them
	for _, i := range infos {
		if i.InProcess && (len(names) == 0 || i.Name == names[0]) {
			return nil, fmt.Errorf("%s is a device in software inside this process, which has just made it: it has no objects; each program that GOVERBS_SOFT gives a device has one of its own", i.Name)
		}
	}
	return nil, err
}

// collectRes lists all objects of a device. A list that the kernel does not have is left out
// and described in Missing.
func collectRes(dev netlinkrdma.Device) (resReport, error) {
	r := resReport{Device: dev.Name}
	counts, err := netlinkrdma.Resources(dev)
	if err != nil {
		return r, err
	}
	r.Counts = resCounts{counts.Contexts, counts.PDs, counts.MRs, counts.CQs, counts.SRQs, counts.QPs, counts.CMIDs}
	r.Contexts = rows(&err, &r, dev, netlinkrdma.Contexts, func(c netlinkrdma.Context) contextRow {
		return contextRow{c.ID, ownerOf(c.Owner)}
	})
	r.PDs = rows(&err, &r, dev, netlinkrdma.PDs, func(p netlinkrdma.PD) pdRow {
		return pdRow{p.ID, p.Users, p.Context, ownerOf(p.Owner)}
	})
	r.MRs = rows(&err, &r, dev, netlinkrdma.MRs, func(m netlinkrdma.MR) mrRow {
		row := mrRow{ID: m.ID, Length: m.Length, PD: m.PD, ownerRow: ownerOf(m.Owner), driverRow: driverOf(m.Driver)}
		if m.Keys {
			row.LKey, row.RKey = &m.LKey, &m.RKey
		}
		return row
	})
	r.CQs = rows(&err, &r, dev, netlinkrdma.CQs, func(c netlinkrdma.CQ) cqRow {
		row := cqRow{ID: c.ID, CQE: c.CQE, Users: c.Users, AdaptiveModeration: c.AdaptiveModeration, Context: c.Context,
			ownerRow: ownerOf(c.Owner), driverRow: driverOf(c.Driver)}
		if c.Kernel != "" {
			row.PollContext = c.PollContext.String()
		}
		return row
	})
	r.SRQs = rows(&err, &r, dev, netlinkrdma.SRQs, func(s netlinkrdma.SRQ) srqRow {
		row := srqRow{s.ID, s.Type.String(), s.PD, s.CQ, qpRanges{}, ownerOf(s.Owner), driverOf(s.Driver)}
		for _, q := range s.QPs {
			row.QPs = append(row.QPs, qpRange(q))
		}
		return row
	})
	r.QPs = rows(&err, &r, dev, netlinkrdma.QPs, func(q netlinkrdma.QP) qpRow {
		return qpRow{q.Num, q.Port, q.Type.String(), q.Subtype, q.State.String(), q.RemoteNum, q.RQPSN, q.SQPSN,
			q.PathMigState.String(), q.PD, ownerOf(q.Owner), driverOf(q.Driver)}
	})
	r.CMIDs = rows(&err, &r, dev, netlinkrdma.CMIDs, func(c netlinkrdma.CMID) cmIDRow {
		return cmIDRow{c.ID, c.Port, c.PortSpace.String(), c.State.String(), addrText(c.Src), addrText(c.Dst), c.QPNum,
			ownerOf(c.Owner), driverOf(c.Driver)}
	})
	return r, err
}

// rows turns a list of objects into rows, unless there was an error before.
func rows[T, R any](err *error, r *resReport, dev netlinkrdma.Device, list func(netlinkrdma.Device) ([]T, error), row func(T) R) []R {
	if *err != nil {
		return nil
	}
	all, lerr := list(dev)
	if errors.Is(lerr, errors.ErrUnsupported) {
		r.Missing = append(r.Missing, lerr.Error())
		return nil
	}
	if lerr != nil {
		*err = lerr
		return nil
	}
	out := make([]R, len(all))
	for i, v := range all {
		out[i] = row(v)
	}
	return out
}

// ownerOf adds the name of the process.
func ownerOf(o netlinkrdma.Owner) ownerRow {
	row := ownerRow{PID: o.PID, Kernel: o.Kernel}
	if o.PID == 0 {
		return row
	}
	// The kernel reports a thread. Without /proc the number of the thread is shown.
	row.PID, row.Comm, _ = proc.System.Thread(o.PID)
	return row
}

func (o ownerRow) String() string {
	switch {
	case o.Kernel != "":
		return "[" + o.Kernel + "]"
	case o.PID == 0:
		return "-"
	}
	return fmt.Sprintf("%s (%d)", o.Comm, o.PID)
}

func driverOf(attrs []netlinkrdma.DriverAttr) driverRow {
	if len(attrs) == 0 {
		return driverRow{}
	}
	row := driverRow{map[string]any{}}
	for _, a := range attrs {
		row.Driver[a.Name] = a.Value
	}
	return row
}

func addrText(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// print writes a table for each kind of object.
func (r resReport) print(w io.Writer) error {
	c := r.Counts
	fmt.Fprintf(w, "device: %s\n", r.Device)
	fmt.Fprintf(w, "  %d contexts, %d PDs, %d MRs, %d CQs, %d SRQs, %d QPs, %d CM IDs\n", c.Contexts, c.PDs, c.MRs, c.CQs, c.SRQs, c.QPs, c.CMIDs)
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	table := func(n int, head string, line func(i int) []any) {
		if n == 0 {
			return
		}
		fmt.Fprintf(t, "\n  %s\towner\n", head)
		for i := range n {
			var cells []string
			for _, v := range line(i) {
				cells = append(cells, fmt.Sprint(v))
			}
			fmt.Fprintf(t, "  %s\n", strings.Join(cells, "\t"))
		}
		// The columns of different tables are not aligned.
		t.Flush()
	}
	key := func(k *uint32) string {
		if k == nil {
			return "-"
		}
		return fmt.Sprintf("0x%x", *k)
	}
	table(len(r.Contexts), "context", func(i int) []any { v := r.Contexts[i]; return []any{v.ID, v.ownerRow} })
	table(len(r.PDs), "PD\tusers", func(i int) []any { v := r.PDs[i]; return []any{v.ID, v.Users, v.ownerRow} })
	table(len(r.MRs), "MR\tbytes\tlkey\trkey\tPD", func(i int) []any {
		v := r.MRs[i]
		return []any{v.ID, v.Length, key(v.LKey), key(v.RKey), v.PD, v.ownerRow}
	})
	table(len(r.CQs), "CQ\tcapacity\tusers", func(i int) []any { v := r.CQs[i]; return []any{v.ID, v.CQE, v.Users, v.ownerRow} })
	table(len(r.SRQs), "SRQ\ttype\tPD\tQPs", func(i int) []any { v := r.SRQs[i]; return []any{v.ID, v.Type, v.PD, v.QPs, v.ownerRow} })
	table(len(r.QPs), "QP\ttype\tstate\tport\tpeer\trq PSN\tsq PSN\tPD", func(i int) []any {
		v := r.QPs[i]
		return []any{v.Num, v.Type, v.State, v.Port, v.RemoteNum, v.RQPSN, v.SQPSN, v.PD, v.ownerRow}
	})
	table(len(r.CMIDs), "CM ID\tstate\tspace\tport\tfrom\tto\tQP", func(i int) []any {
		v := r.CMIDs[i]
		return []any{v.ID, v.State, v.PortSpace, v.Port, v.Local, v.Remote, v.QPNum, v.ownerRow}
	})
	for _, m := range r.Missing {
		fmt.Fprintf(t, "\n  not shown: %s\n", m)
	}
	return t.Flush()
}
