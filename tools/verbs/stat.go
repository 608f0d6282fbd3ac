package main

import (
	"errors"
	"fmt"
	"io"
	"slices"

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
	mrs := newStatMR(&asJSON)
	cmd := &command.Command{
		Use:     "stat [flags] [DEV[/PORT]] | COMMAND",
		Aliases: []string{"statistic"},
		Short:   "Show the hardware counters of a device's ports, and choose what is counted",
		Long: `Without DEV it shows those of every device. QPs that have counters of their own follow those of
their port. "rdma statistic show" shows the same counters, and its words "show" and "link" may stand
before DEV. The commands choose which QPs have counters of their own, and which optional counters
count.

A software device is created by this command, so its counters are near 0. A program reads the
counters of its own software device with uverbs.Device.PortCounters. They are described at
https://pkg.go.dev/github.com/goverbs/goverbs/uverbs/soft.

Each driver has counters and names of its own. Those of rxe (soft RoCE):
  sent_pkts, rcvd_pkts                 packets
  rdma_sends, rdma_recvs               SENDs, and receives
  duplicate_request                    a request came again: its answer was lost or late
  out_of_seq_request, rcvd_seq_err     a packet was missing: here, and at the peer
  completer_retry_err                  no answer came in time, so requests were sent again
  send_rnr_err, rcvd_rnr_err           no receive was posted: here, and at the peer
  retry_exceeded_err, retry_rnr_exceeded_err
                                       requests that failed for good: no answer, no receive
  ack_deferred                         answers that waited for others
  send_err                             packets that the network interface did not take
  link_downed                          the port went down

Those of mlx5 (ConnectX):
  rx_write_requests, rx_read_requests, rx_atomic_requests
                                       requests that came
  rx_dct_connect                       connections that came to targets of DC
  out_of_buffer, rnr_nak_retry_err     no receive was posted: here, and at the peer
  out_of_sequence, packet_seq_err      a packet was missing: here, and at the peer
  implied_nak_seq_err                  an answer came whose PSN was later than the next
  duplicate_request                    a request came again: its answer was lost or late
  local_ack_timeout_err                no answer came in time, so requests were sent again
  roce_adp_retrans, roce_adp_retrans_to
                                       the same, with adaptive retransmission
  roce_slow_restart, roce_slow_restart_cnps, roce_slow_restart_trans
                                       slow restarts after a pause, notifications of congestion
                                       that they sent, and changes to that state
  req_cqe_error, resp_cqe_error        requests and receives that failed,
  req_cqe_flush_error, resp_cqe_flush_error
                                       of them those of a QP that had failed before
  req_remote_invalid_request           requests that the peer found invalid
  req_remote_access_errors, resp_remote_access_errors
                                       memory that was not allowed: at the peer, and here
  resp_local_length_error              messages that were longer than the receive
  req_transport_retries_exceeded, req_rnr_retries_exceeded
                                       requests that failed for good: no answer, no receive
  np_ecn_marked_roce_packets, np_cnp_sent
                                       packets with the mark of congestion that came, and
                                       notifications of congestion that were sent for them
  rp_cnp_handled, rp_cnp_ignored       notifications of congestion that came
  rx_icrc_encapsulated                 packets with a wrong checksum (ICRC)
Optional, see verbs stat enable:
  cc_rx_ce_pkts, cc_rx_cnp_pkts, cc_tx_cnp_pkts
                                       packets with the mark of congestion, and notifications
                                       that came and were sent
  rdma_tx_packets, rdma_tx_bytes, rdma_rx_packets, rdma_rx_bytes
                                       what went out and came in

siw (soft iWARP) has no counters.`,
		Example: `  verbs stat
  verbs stat rxe0
  verbs stat rxe0 --json | jq '.[].counters[] | select(.value > 0)'`,
		Args: func(cmd *command.Command, args []string) error {
			args = afterShow(args)
			if len(args) > 0 && args[0] == mrs.Name() {
				return nil
			}
			return command.Arguments(1)(cmd, args)
		},
		Run: func(cmd *command.Command, args []string) error {
			if args = afterShow(args); len(args) > 0 && args[0] == mrs.Name() { // rdma statistic show mr
				return mrs.Run(mrs, args[1:])
			}
			var only uint32 // the port
			if len(args) > 0 {
				var err error
				if args[0], only, err = splitPort(args[0]); err != nil {
					return err
				}
			}
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
			if most := uint32(len(reports)); only > most {
				return command.Usagef("the port is %d, allowed: 1 to %d", only, most)
			}
			reports = slices.DeleteFunc(reports, func(r statReport) bool { return only != 0 && r.Port != only })
			if asJSON {
				return command.PrintJSON(cmd.Out(), reports)
			}
			for _, r := range reports {
				r.print(cmd.Out())
			}
			return nil
		},
	}
	command.JSONFlag(cmd, &asJSON)
	cmd.Add(append(newStatSetters(), mrs)...)
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
		dev, err := uverbs.Open(i.Name, uverbs.OpenOptions{})
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
