package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/uverbs"
)

// statReport is what "verbs stat" prints about a port.
type statReport struct {
	Device     string            `json:"device"`
	Port       uint32            `json:"port"`
	Mode       string            `json:"mode"` // how QPs are bound to counters of their own
	Counters   []counterRow      `json:"counters"`
	Disabled   []string          `json:"disabled,omitempty"` // optional counters that are off
	QPCounters []qpCounterReport `json:"qp_counters,omitempty"`
	Missing    []string          `json:"missing,omitempty"` // why there are no counters
}

// counterRow is a counter. A list keeps the driver's order, which a map would not.
type counterRow struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
}

// qpCounterReport is a counter of some QPs.
type qpCounterReport struct {
	ID       uint32       `json:"cntn"`
	Mode     string       `json:"mode"`
	QPNs     []uint32     `json:"qpns"`
	Counters []counterRow `json:"counters"`
}

func newStat() *command.Command {
	var asJSON bool
	cmd := &command.Command{
		Use:   "stat [flags] [DEV] | COMMAND",
		Short: "Show the hardware counters of a device's ports, and choose what is counted",
		Long: `Without DEV it shows those of every device. QPs that have counters of their own follow those of
their port. "rdma statistic" shows the same counters. The commands choose which QPs have
counters of their own, and which optional counters count.

A device in software belongs to this process, which has just made it: its counters are listed, and
have counted next to nothing. A program reads those of its own with uverbs.Device.PortCounters.
"go doc uverbs/soft" describes them.

Each driver has counters and names of its own. Often looked at:
  duplicate_request                    a request came again: its answer was lost or late
  out_of_seq_request, out_of_sequence  a request was missing before this one
  rcvd_seq_err, packet_seq_err         the peer missed a request
  local_ack_timeout_err                no answer came in time, so requests were sent again
  completer_retry_err                  as local_ack_timeout_err, on rxe
  send_rnr_err, out_of_buffer          a message came and no receive was posted
  rcvd_rnr_err, rnr_nak_retry_err      the peer had no receive posted
  retry_exceeded_err, retry_rnr_exceeded_err, req_cqe_error
                                       requests failed for good
  np_cnp_sent, rp_cnp_handled          notifications of congestion that were sent, and that came`,
		Example: `  verbs stat
  verbs stat rxe0
  verbs stat rxe0 --json | jq '.[].counters[] | select(.value > 0)'`,
		Args: arguments(1),
		Run: func(cmd *command.Command, args []string) error {
			reports, err := collectSoftStat(args)
			if err != nil {
				return err
			}
			devs, err := netlinkDevices(args)
			if err != nil && len(reports) == 0 {
				return err
			}
			for _, dev := range devs {
				some, err := collectStat(dev)
				if err != nil {
					return err
				}
				reports = append(reports, some...)
			}
			if asJSON {
				return printJSON(cmd.Out(), reports)
			}
			for _, r := range reports {
				r.print(cmd.Out())
			}
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	cmd.Add(newStatSetters()...)
	return cmd
}

// collectSoftStat reads the counters of the named device, or of all without a name, that are in
// software.
func collectSoftStat(names []string) ([]statReport, error) {
	infos, _ := uverbs.Devices() // netlinkDevices finds out why there is none
	reports := []statReport{}
	for _, i := range infos {
		if !i.InProcess || i.Err != nil || len(names) > 0 && i.Name != names[0] {
			continue
		}
		dev, err := uverbs.Open(i.Name)
		if err != nil {
			return nil, err
		}
		for port := 1; port <= i.Ports; port++ {
			counters, err := dev.PortCounters(uint8(port))
			if err != nil {
				return nil, err
			}
			reports = append(reports, statReport{Device: i.Name, Port: uint32(port), Mode: netlinkrdma.CounterModeNone.String(), Counters: counterRows(counters)})
		}
		if err := dev.Close(); err != nil {
			return nil, err
		}
	}
	return reports, nil
}

// collectStat reads the counters of each port of a device.
func collectStat(dev netlinkrdma.Device) ([]statReport, error) {
	ofQPs, err := netlinkrdma.QPCounters(dev)
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return nil, err
	}
	var reports []statReport
	for port := uint32(1); port <= dev.Ports; port++ {
		r := statReport{Device: dev.Name, Port: port}
		counters, err := netlinkrdma.PortCounters(dev, port)
		switch {
		case errors.Is(err, errors.ErrUnsupported):
			r.Missing = append(r.Missing, err.Error())
		case err != nil:
			return nil, err
		}
		r.Counters = counterRows(counters)
		set, err := netlinkrdma.QPCounterSetting(dev, port)
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return nil, err
		}
		r.Mode = set.Mode.String()
		status, err := netlinkrdma.PortCounterStatus(dev, port)
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return nil, err
		}
		for _, s := range status {
			if !s.Enabled {
				r.Disabled = append(r.Disabled, s.Name)
			}
		}
		for _, c := range ofQPs {
			if c.Port == port {
				r.QPCounters = append(r.QPCounters, qpCounterReport{c.ID, c.Mode.String(), c.QPs, counterRows(c.Counters)})
			}
		}
		reports = append(reports, r)
	}
	return reports, nil
}

func counterRows(counters []netlinkrdma.Counter) []counterRow {
	all := make([]counterRow, len(counters))
	for i, c := range counters {
		all[i] = counterRow(c)
	}
	return all
}

// print writes a line for each counter.
func (r statReport) print(w io.Writer) {
	fmt.Fprintf(w, "%s/%d\n", r.Device, r.Port)
	for _, m := range r.Missing {
		fmt.Fprintf(w, "\t%s\n", m)
	}
	for _, c := range r.Counters {
		fmt.Fprintf(w, "\t%-32s%d\n", c.Name, c.Value)
	}
	for _, name := range r.Disabled {
		fmt.Fprintf(w, "\t%-32sdisabled\n", name)
	}
	for _, q := range r.QPCounters {
		fmt.Fprintf(w, "\tcounter %d (%s) of QPs %d\n", q.ID, q.Mode, q.QPNs)
		for _, c := range q.Counters {
			fmt.Fprintf(w, "\t\t%-32s%d\n", c.Name, c.Value)
		}
	}
}
