package main

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
)

// statMRReport is what "verbs stat mr" prints about a device.
type statMRReport struct {
	Device  string      `json:"device"`
	MRs     []statMRRow `json:"mrs"`
	Missing []string    `json:"missing,omitempty"`
}

// statMRRow has the counters of a memory region.
type statMRRow struct {
	ID       uint32       `json:"mrn"`
	Counters []counterRow `json:"counters"`
}

// newStatMR makes the command; asJSON is also set by the flag of "verbs stat", for "verbs stat show mr".
func newStatMR(asJSON *bool) *command.Command {
	cmd := &command.Command{
		Use:   "mr [flags] [DEV] [mrn MRN]",
		Short: "Show the counters of memory regions",
		Long: `Without DEV it shows those of every device. "rdma statistic show mr" shows the same. Only mlx5
counts, and only for memory that is registered for on-demand paging:

  page_faults         pages that were not there when a message needed them
  page_invalidations  pages that the kernel took away
  page_prefetch       pages that were fetched ahead, as uverbs.PD.AdviseMR asks for
  page_faults_handled, page_invalidations_handled
                      how often that happened; Linux 6.16

The text leaves out memory regions without counters. "verbs res --kinds mr" shows whose they are.`,
		Example: `  verbs stat mr
  verbs stat mr mlx5_0 mrn 4
  verbs stat mr --json | jq '.[].mrs[].counters[] | select(.name == "page_faults")'`,
		Run: func(cmd *command.Command, args []string) error {
			var names []string
			if args = afterShow(args); len(args) > 0 && args[0] != "mrn" {
				names, args = args[:1], args[1:]
			}
			w := readWords(cmd, args, "mrn?")
			only, id := w.has("mrn"), w.number("mrn")
			var devs []netlinkrdma.Device
			w.try(func() (err error) {
				devs, err = netlinkDevices(names)
				return err
			})
			if w.err != nil {
				return w.err
			}
			reports, err := statMRs(devs, func(m netlinkrdma.MRCounters) bool { return !only || m.ID == id }, netlinkrdma.CountersOfMRs)
			found := slices.ContainsFunc(reports, func(r statMRReport) bool { return len(r.MRs) > 0 })
			switch {
			case err != nil:
				return err
			case only && !found:
				return fmt.Errorf("there is no MR %d; \"verbs res --kinds mr\" lists MRs", id)
			case *asJSON:
				return command.PrintJSON(cmd.Out(), reports)
			}
			for _, r := range reports {
				r.print(cmd.Out())
			}
			return nil
		},
	}
	command.JSONFlag(cmd, asJSON)
	return cmd
}

// statMRs makes a report for each device of what its MRs count, as far as they are wanted. The report of a device that
// fails says so. If all fail that is an error.
func statMRs(devs []netlinkrdma.Device, want func(netlinkrdma.MRCounters) bool, count func(netlinkrdma.Device) ([]netlinkrdma.MRCounters, error)) ([]statMRReport, error) {
	reports := make([]statMRReport, len(devs))
	var failed []error
	for i, dev := range devs {
		r := statMRReport{Device: dev.Name, MRs: []statMRRow{}}
		all, err := count(dev)
		if err != nil {
			r.Missing = []string{err.Error()}
			if !errors.Is(err, errors.ErrUnsupported) {
				failed = append(failed, err)
			}
		}
		for _, m := range all {
			if want(m) {
				r.MRs = append(r.MRs, statMRRow{m.ID, counterRows(m.Counters)})
			}
		}
		reports[i] = r
	}
	if len(failed) < len(devs) {
		failed = nil
	}
	return reports, errors.Join(failed...)
}

// print writes a line for each counter.
func (r statMRReport) print(w io.Writer) {
	count := 0
	for _, m := range r.MRs {
		if len(m.Counters) == 0 {
			continue
		}
		count++
		fmt.Fprintf(w, "%s mrn %d\n", r.Device, m.ID)
		for _, c := range m.Counters {
			fmt.Fprintf(w, "\t%-32s%d\n", c.Name, c.Value)
		}
	}
	for _, m := range r.Missing {
		fmt.Fprintf(w, "%s\tnot shown: %s\n", r.Device, m)
	}
	if count == 0 && r.Missing == nil {
		fmt.Fprintf(w, "%s: none of %d MRs has counters\n", r.Device, len(r.MRs))
	}
}
