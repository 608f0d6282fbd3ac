package ib

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/uverbs/umad/fabric"
)

// FindingRow is an element of the JSON of "verbs ib check".
type FindingRow struct {
	Kind    string  `json:"kind"`
	End     *endRow `json:"end,omitempty"`
	Text    string  `json:"text"`
	Counter string  `json:"counter,omitempty"`
	Value   uint64  `json:"value,omitempty"`
	Count   int     `json:"count,omitempty"`
}

// errFindings is the failure of a check with findings.
var errFindings = errors.New("the check has findings")

func newCheck(s *System) *command.Command {
	var asJSON bool
	var thresholds []string
	var c fabric.CheckOptions
	cmd := &command.Command{
		Use:   "check [flags]",
		Short: "Check links, counters of errors, LIDs, GUIDs and routes of a subnet",
		Long: `Findings are links that are not active, or slower or narrower than both ends support; counters of
errors from a threshold on; LIDs and GUIDs that are not unique; ports that others cannot reach by
the switches' forwarding tables; and agents that do not answer. Ports without a link are fine.

Thresholds by default:
` + thresholdsHelp(),
		Example: `  verbs ib check
  verbs ib check --threshold SymbolErrorCounter=1 --threshold VL15Dropped=0   # 0: never
  verbs ib check --interval 10s --no-routes   # counters that rise, too
  verbs ib check --json | jq -r '.[] | select(.kind == "speed") | .text'`,
		Exit: "  0  no findings\n  1  findings, or a failure; standard error has the reason",
		Args: command.Arguments(0),
	}
	o := walkOptions(s, cmd)
	f := cmd.Flags()
	f.StringArrayVar(&thresholds, "threshold", nil, "report a counter from this value on: `NAME=N`; 0 leaves it out")
	f.DurationVar(&c.Interval, "interval", 0, "read the counters again after this `TIME`, and report those that rise")
	f.BoolVar(&c.NoCounters, "no-counters", false, "leave out the counters")
	f.BoolVar(&c.NoRoutes, "no-routes", false, "leave out the forwarding tables")
	command.JSONFlag(cmd, &asJSON)
	cmd.Run = func(cmd *command.Command, _ []string) error {
		var err error
		if c.Thresholds, err = parseThresholds(thresholds); err != nil {
			return err
		}
		if c.Interval < 0 || c.Interval > 24*time.Hour {
			return command.Usagef("--interval is %v, allowed: 0s to 24h", c.Interval)
		}
		c.Options = o.fabric()
		rows, err := o.check(cmd, c)
		if err != nil {
			return err
		}
		if asJSON {
			err = command.PrintJSON(cmd.Out(), rows)
		} else {
			err = printFindings(cmd.Out(), rows)
		}
		if err == nil && len(rows) > 0 {
			err = errFindings
		}
		return err
	}
	return cmd
}

// thresholdsHelp lists the thresholds for the help.
func thresholdsHelp() string {
	var b strings.Builder
	all := fabric.Thresholds()
	for i, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "  %-27s %3d", name, all[name])
		if i%2 == 1 {
			b.WriteByte('\n')
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

// parseThresholds reads the values of --threshold.
func parseThresholds(texts []string) (map[string]uint64, error) {
	all, known := map[string]uint64{}, fabric.Thresholds()
	for _, text := range texts {
		name, number, _ := strings.Cut(text, "=")
		if _, ok := known[name]; !ok {
			return nil, command.Usagef("the counter of --threshold is %s, allowed: %s", peertext.Quote(name), strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			return nil, command.Usagef("the value of --threshold %s is %s, allowed: a whole number", name, peertext.Quote(number))
		}
		all[name] = n
	}
	return all, nil
}

// check walks through the subnet and checks it.
func (o *options) check(cmd *command.Command, c fabric.CheckOptions) ([]FindingRow, error) {
	p, err := o.open()
	if err != nil {
		return nil, err
	}
	defer p.Close()
	f, err := fabric.Discover(cmd.Context(), p, c.Options)
	if err != nil {
		return nil, err
	}
	found, err := fabric.Check(cmd.Context(), p, f, c)
	if err != nil {
		return nil, err
	}
	rows := []FindingRow{}
	for i := range found {
		x := &found[i]
		r := FindingRow{Kind: string(x.Kind), Text: x.Text, Counter: x.Counter, Value: x.Value, Count: x.Count}
		if x.Port != nil {
			end := endOf(x.Port)
			r.End = &end
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// printFindings writes the table.
func printFindings(w io.Writer, rows []FindingRow) error {
	if len(rows) == 0 {
		_, err := fmt.Fprintln(w, "no findings")
		return err
	}
	t := command.Table(w, "kind\tnode\tport\tfinding")
	for i := range rows {
		r := &rows[i]
		node, port := "-", "-"
		if r.End != nil {
			node, port = r.End.Node, strconv.Itoa(r.End.Port)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", r.Kind, node, port, r.Text)
	}
	return t.Flush()
}
