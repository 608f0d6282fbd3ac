package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/internal/objects"
	"github.com/goverbs/goverbs/tools/internal/proc"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
)

// resReport is what "verbs res" prints about a device. A list that the kernel does not
// have is null in JSON.
type resReport struct {
	Device   string       `json:"device"`
	Counts   resCounts    `json:"counts"`
	Limits   *resCounts   `json:"limits,omitempty"`
	Contexts []contextRow `json:"contexts" res:"ctx"`
	PDs      []pdRow      `json:"pds" res:"pd"`
	MRs      []mrRow      `json:"mrs" res:"mr"`
	CQs      []cqRow      `json:"cqs" res:"cq"`
	SRQs     []srqRow     `json:"srqs" res:"srq"`
	QPs      []qpRow      `json:"qps" res:"qp"`
	CMIDs    []cmIDRow    `json:"cm_ids" res:"cm_id"`
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

// countsOf returns the numbers in the order of the report.
func countsOf(n netlinkrdma.ResourceCounts) resCounts {
	return resCounts{n.Contexts, n.PDs, n.MRs, n.CQs, n.SRQs, n.QPs, n.CMIDs}
}

// ownerRow is the owner of an object: a process, or a module of the kernel.
type ownerRow struct {
	PID    uint32 `json:"pid,omitempty" res:"pid"`
	Comm   string `json:"comm,omitempty" res:"comm"`
	Kernel string `json:"kernel,omitempty" res:"comm"`
}

type contextRow struct {
	ID uint32 `json:"ctxn" res:"ctxn"`
	ownerRow
}

type pdRow struct {
	ID      uint32  `json:"pdn" res:"pdn"`
	Users   uint64  `json:"users" res:"users"`
	Context uint32  `json:"ctxn" res:"ctxn,more"`
	LKey    *uint32 `json:"local_dma_lkey,omitempty" res:"local_dma_lkey,more"`
	RKey    *uint32 `json:"unsafe_global_rkey,omitempty" res:"unsafe_global_rkey,more"`
	ownerRow
}

type mrRow struct {
	ID     uint32  `json:"mrn" res:"mrn"`
	Length uint64  `json:"length" res:"mrlen"`
	LKey   *uint32 `json:"lkey,omitempty" res:"lkey"`
	RKey   *uint32 `json:"rkey,omitempty" res:"rkey"`
	PD     uint32  `json:"pdn" res:"pdn"`
	ownerRow
	driverRow
	rawRow
}

type cqRow struct {
	ID                 uint32 `json:"cqn" res:"cqn"`
	CQE                uint32 `json:"cqe"`
	Users              uint64 `json:"users" res:"users"`
	AdaptiveModeration bool   `json:"adaptive_moderation" res:"adaptive-moderation,more"`
	PollContext        string `json:"poll_context,omitempty" res:"poll-ctx,more"`
	Context            uint32 `json:"ctxn" res:"ctxn,more"`
	ownerRow
	driverRow
	rawRow
}

type srqRow struct {
	ID   uint32   `json:"srqn" res:"srqn"`
	Type string   `json:"type" res:"type"`
	PD   uint32   `json:"pdn" res:"pdn"`
	CQ   uint32   `json:"cqn" res:"cqn,more"`
	QPs  qpRanges `json:"qpn_ranges" res:"lqpn"`
	ownerRow
	driverRow
	rawRow
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
	Num       uint32 `json:"qpn" res:"lqpn"`
	Port      uint32 `json:"port,omitempty" res:"port"`
	Type      string `json:"type" res:"type"`
	Subtype   string `json:"subtype,omitempty" res:"subtype,more"`
	State     string `json:"state" res:"state"`
	RemoteNum uint32 `json:"remote_qpn" res:"rqpn"`
	RQPSN     uint32 `json:"rq_psn" res:"rq-psn"`
	SQPSN     uint32 `json:"sq_psn" res:"sq-psn"`
	PathMig   string `json:"path_migration" res:"path-mig-state,more"`
	PD        uint32 `json:"pdn" res:"pdn"`
	ownerRow
	driverRow
	rawRow
}

type cmIDRow struct {
	ID        uint32 `json:"cm_idn" res:"cm-idn"`
	Port      uint32 `json:"port,omitempty" res:"port"`
	PortSpace string `json:"port_space" res:"ps"`
	State     string `json:"state" res:"state"`
	Local     string `json:"local_address,omitempty"`
	Remote    string `json:"remote_address,omitempty"`
	QPNum     uint32 `json:"qpn,omitempty" res:"lqpn"`
	QPType    string `json:"qp_type,omitempty" res:"qp-type,more"`
	ownerRow
	driverRow

	srcAddr string `res:"src-addr"`
	srcPort uint16 `res:"src-port"`
	dstAddr string `res:"dst-addr"`
	dstPort uint16 `res:"dst-port"`
}

// driverRow has what only the driver reports.
type driverRow struct {
	Driver map[string]any `json:"driver_attributes,omitempty"`

	text string // the same for --details, in the driver's order
}

// rawRow has the dump of the driver.
type rawRow struct {
	Raw string `json:"raw,omitempty"` // in hexadecimal
}

func newRes() *command.Command {
	var asJSON, details, raw bool
	var kinds string
	var filters []string
	cmd := &command.Command{
		Use:     "res [flags] [DEV] | COMMAND",
		Aliases: []string{"resource"},
		Short:   "Show the objects of a device and the processes that own them",
		Long: `It lists contexts, PDs, MRs, CQs, SRQs, QPs and identifiers of the connection manager, as
"rdma resource show" does. Without DEV it shows those of every device. The arguments may also be
those of that command: show, a kind, link DEV/PORT or dev DEV, and pairs of a key and its value.

The keys of memory regions need CAP_NET_ADMIN. The owner is the process whose thread created the
object; it is "-" if that thread has ended or is in another PID namespace, and a kernel module is in
brackets.

A filter is KEY=VALUE[,VALUE...]: an object is shown if it has one of the values, for each filter. A
number is decimal or has 0x, and may be a range, such as 5-9. The kinds of objects that have the key
are shown. These are the kinds and their keys; most have the names that "rdma resource show" has:
` + resKeysHelp() + `
The comm is the name of the process or of the kernel module.

With --raw only MRs, CQs, SRQs and QPs are shown, each with a dump that the driver makes in a form
of its own; mlx5 asks the firmware. It needs CAP_NET_ADMIN.`,
		Example: `  verbs res
  verbs res rxe0
  verbs res show qp link rxe0/1 state RTS
  verbs res --filter pid=4711
  verbs res rxe0 --kinds qp --filter state=ERR,SQE
  verbs res rxe0 --filter lqpn=17-20,33 --details
  verbs res mlx5_0 --filter dst-addr=10.1.0.2 --filter state=CONNECT
  verbs res mlx5_0 --filter lqpn=178 --kinds qp --raw
  verbs res rxe0 --json | jq '.[0].qps[] | select(.state == "ERR")'`,
		Args: func(cmd *command.Command, args []string) error {
			_, _, _, _, err := resWords(cmd, args)
			return err
		},
		Run: func(cmd *command.Command, args []string) error {
			args, port, kind, more, err := resWords(cmd, args)
			if err != nil {
				return err
			}
			if kind != "" && kinds != "" {
				return command.Usagef("--kinds is %s, allowed: without the kind %s", peertext.Quote(kinds), kind)
			}
			q, err := newResQuery(cmp.Or(kind, kinds), append(filters, more...), details, raw)
			if err != nil {
				return err
			}
			devs, err := netlinkDevices(args)
			if err != nil {
				return err
			}
			if port != 0 && port > devs[0].Ports {
				return command.Usagef("the port is %d, allowed: 1 to %d", port, devs[0].Ports)
			}
			reports := make([]resReport, len(devs))
			for i, dev := range devs {
				if reports[i], err = collectRes(dev, q); err != nil {
					return err
				}
			}
			if asJSON {
				return command.PrintJSON(cmd.Out(), reports)
			}
			for i, r := range reports {
				if i > 0 {
					fmt.Fprintln(cmd.Out())
				}
				if err := r.print(cmd.Out(), details); err != nil {
					return err
				}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&kinds, "kinds", "", "show these `KINDS` of objects only: "+strings.Join(kindsWith(""), ", "))
	f.StringArrayVar(&filters, "filter", nil, "show the objects that match this `FILTER` only; may be repeated")
	f.BoolVar(&details, "details", false, "show also what the tables leave out, and QPs of the driver")
	f.BoolVar(&raw, "raw", false, "show only CQs, MRs, QPs and SRQs, with what the driver dumps of each")
	command.JSONFlag(cmd, &asJSON)
	cmd.Add(newFRMR())
	return cmd
}

// resWords reads the arguments: a device, or those of "rdma resource show", which begin with show. It returns the
// device, if there is one, its port or 0, the kind, and filters.
func resWords(cmd *command.Command, args []string) (dev []string, port uint32, kind string, filters []string, err error) {
	rest := afterShow(args)
	if len(rest) == len(args) {
		return args, 0, "", nil, command.Arguments(1)(cmd, args)
	}
	if len(rest) > 0 && slices.Contains(kindsWith(""), rest[0]) {
		kind, rest = rest[0], afterShow(rest[1:])
	}
	if len(rest)%2 == 1 {
		var name string
		if name, port, err = splitPort(rest[0]); err != nil {
			return nil, 0, "", nil, err
		}
		if port != 0 && kind != "" && !slices.Contains(kindsWith("port"), kind) {
			return nil, 0, "", nil, command.Usagef("the port of %s is %d, allowed: none, as objects of the kind %s have no port; those of %s have one",
				peertext.Quote(rest[0]), port, kind, strings.Join(kindsWith("port"), ", "))
		}
		if dev, rest = []string{name}, rest[1:]; port != 0 {
			filters = append(filters, fmt.Sprintf("port=%d", port))
		}
	}
	if kind == "" && len(rest) > 0 {
		return nil, 0, "", nil, command.Usagef("the kind of objects is %s, allowed: %s", peertext.Quote(rest[0]), strings.Join(kindsWith(""), ", "))
	}
	for i := 0; i < len(rest); i += 2 {
		filters = append(filters, rest[i]+"="+rest[i+1])
	}
	return dev, port, kind, filters, nil
}

// resKeysHelp lists the keys of each kind.
func resKeysHelp() string {
	var b strings.Builder
	for _, k := range kindsWith("") {
		fmt.Fprintf(&b, "  %-5s  %s\n", k, strings.Join(keysOfKind(k), ", "))
	}
	return b.String()
}

// netlinkDevices returns the named device, or all devices without a name. An error says so if there
// are software devices, which are in this process and not in the kernel.
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
	if err != nil {
		return nil, objects.OfKernel(strings.Join(names, ""), "the kernel knows none of its objects; \"verbs stat\" shows its counters and \"verbs info\" its ports", err)
	}
	return devs, nil
}

// resCollector collects a report. After an error it does nothing.
type resCollector struct {
	resReport
	dev netlinkrdma.Device
	q   *resQuery
	err error
}

// collectRes lists the objects of a device. A list that the kernel does not have is left out
// and described in Missing.
func collectRes(dev netlinkrdma.Device, q *resQuery) (resReport, error) {
	c := &resCollector{resReport: resReport{Device: dev.Name}, dev: dev, q: q}
	o := netlinkrdma.ListOptions{Driver: q.details}
	counts, err := netlinkrdma.Resources(dev, o)
	if err != nil {
		return c.resReport, err
	}
	c.Counts = countsOf(counts)
	limits, err := netlinkrdma.ResourceLimits(dev)
	if err != nil {
		return c.resReport, err
	}
	if limits != (netlinkrdma.ResourceCounts{}) {
		c.Limits = new(countsOf(limits))
	}
	c.Contexts = rows(c, "ctx", netlinkrdma.Contexts, func(c netlinkrdma.Context) contextRow {
		return contextRow{c.ID, ownerOf(c.Owner)}
	})
	c.PDs = rows(c, "pd", netlinkrdma.PDs, func(p netlinkrdma.PD) pdRow {
		row := pdRow{ID: p.ID, Users: p.Users, Context: p.Context, ownerRow: ownerOf(p.Owner)}
		if p.Keys && p.Kernel != "" {
			row.LKey = &p.LocalDMALKey
			if p.UnsafeGlobalRKey != 0 {
				row.RKey = &p.UnsafeGlobalRKey
			}
		}
		return row
	})
	c.MRs = rows(c, "mr", netlinkrdma.MRs, func(m netlinkrdma.MR) mrRow {
		row := mrRow{ID: m.ID, Length: m.Length, PD: m.PD, ownerRow: ownerOf(m.Owner), driverRow: driverOf(m.Driver)}
		if m.Keys {
			row.LKey, row.RKey = &m.LKey, &m.RKey
		}
		return row
	})
	c.CQs = rows(c, "cq", netlinkrdma.CQs, func(c netlinkrdma.CQ) cqRow {
		row := cqRow{ID: c.ID, CQE: c.CQE, Users: c.Users, AdaptiveModeration: c.AdaptiveModeration, Context: c.Context,
			ownerRow: ownerOf(c.Owner), driverRow: driverOf(c.Driver)}
		if c.Kernel != "" {
			row.PollContext = c.PollContext.String()
		}
		return row
	})
	c.SRQs = rows(c, "srq", netlinkrdma.SRQs, func(s netlinkrdma.SRQ) srqRow {
		row := srqRow{ID: s.ID, Type: s.Type.String(), PD: s.PD, CQ: s.CQ, QPs: qpRanges{}, ownerRow: ownerOf(s.Owner), driverRow: driverOf(s.Driver)}
		for _, q := range s.QPs {
			row.QPs = append(row.QPs, qpRange(q))
		}
		return row
	})
	qps := func(dev netlinkrdma.Device) ([]netlinkrdma.QP, error) { return netlinkrdma.QPs(dev, o) }
	c.QPs = rows(c, "qp", qps, func(q netlinkrdma.QP) qpRow {
		return qpRow{q.Num, q.Port, q.Type.String(), q.Subtype, q.State.String(), q.RemoteNum, q.RQPSN, q.SQPSN,
			q.PathMigState.String(), q.PD, ownerOf(q.Owner), driverOf(q.Driver), rawRow{}}
	})
	c.CMIDs = rows(c, "cm_id", netlinkrdma.CMIDs, func(c netlinkrdma.CMID) cmIDRow {
		row := cmIDRow{ID: c.ID, Port: c.Port, PortSpace: c.PortSpace.String(), State: c.State.String(), Local: addrText(c.Src),
			Remote: addrText(c.Dst), QPNum: c.QPNum, ownerRow: ownerOf(c.Owner), driverRow: driverOf(c.Driver),
			srcAddr: c.Src.Addr().WithZone("").String(), srcPort: c.Src.Port(), dstAddr: c.Dst.Addr().WithZone("").String(), dstPort: c.Dst.Port()}
		if c.QPNum != 0 {
			row.QPType = c.QPType.String()
		}
		return row
	})
	if q.raw && c.err == nil {
		c.dump(netlinkrdma.Raw)
	}
	return c.resReport, c.err
}

// rows turns the selected objects of a kind into rows.
func rows[T, R any](c *resCollector, kind string, list func(netlinkrdma.Device) ([]T, error), row func(T) R) []R {
	if c.err != nil || !slices.Contains(c.q.kinds, kind) {
		return nil
	}
	all, err := list(c.dev)
	if c.failed(err) {
		return nil
	}
	out := make([]R, 0, len(all))
	hidden := false
	for _, v := range all {
		r := row(v)
		if c.q.keep(r) {
			out = append(out, r)
		}
		hidden = hidden || c.q.hidden(r)
	}
	if hidden {
		c.Missing = append(c.Missing, strings.ToUpper(kind)+"s that a filter chooses by a key: these keys need CAP_NET_ADMIN")
	}
	return out
}

// failed reports whether there is no list, and notes why.
func (c *resCollector) failed(err error) bool {
	if errors.Is(err, errors.ErrUnsupported) {
		c.Missing = append(c.Missing, err.Error())
	} else {
		c.err = err
	}
	return err != nil
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
	row := driverRow{map[string]any{}, ""}
	for _, a := range attrs {
		row.Driver[a.Name] = a.Value
		row.text += ", " + a.String()
	}
	return row
}

func addrText(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}
