package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/goverbs/goverbs/tools/health"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
)

func newDoctor() *command.Command {
	var asJSON, verbose bool
	var expect string
	cmd := &command.Command{
		Use:   "doctor [flags] [DEV...]",
		Short: "Find out why RDMA does or does not work on this machine",
		Long: `It checks everything that RDMA needs, from the kernel's modules to the GIDs, and plays ping-pong
within this process on each device, or on the named ones. It changes nothing, except that the kernel
may load modules in answer to the checks. For a software device (GOVERBS_SOFT) it looks at the
address, the UDP port and the receive buffer instead of the kernel's modules, and connects by the
connection manager.

Every problem is reported with its evidence and a fix.

With --expect it also compares the machine with a file in JSON. Every field may be left out. An
entry of ports is about the devices whose name and driver match: they must have so many ports, and
each port must be active; rate_gbps, mtu and netdev_mtu are the least that it must have.

  {"netns": "exclusive",
   "ports": [{"device": "mlx5_*", "driver": "mlx5", "count": 2, "firmware": "28.*",
     "link_layer": "Ethernet", "rate_gbps": 400, "mtu": 4096, "netdev_mtu": 9000,
     "gid_type": "RoCE v2"}]}`,
		Example: `  verbs doctor
  verbs doctor -v rxe0
  verbs doctor --expect /etc/rdma/expected.json
  GOVERBS_SOFT=auto verbs doctor
  verbs doctor --json | jq -r '.findings[] | select(.level == "error") | .fix[]'`,
		Exit: `  0  a ping-pong succeeded on every named device, or without DEV on at least one
  1  RDMA does not work, or the machine is not as --expect says`,
		Run: func(cmd *command.Command, names []string) error {
			var expected *health.Expectation
			if expect != "" {
				text, err := os.ReadFile(expect)
				if err != nil {
					return command.Usagef("--expect: %w", err)
				}
				if expected, err = health.ParseExpectation(text); err != nil {
					return command.Usagef("--expect %s: %w", expect, err)
				}
			}
			d := health.Examine(cmd.Context(), names...)
			d.Version = version
			if expected != nil {
				d.Compare(expected)
			}
			var err error
			if asJSON {
				err = command.PrintJSON(cmd.Out(), d)
			} else {
				err = printHealth(cmd.Out(), d, verbose)
			}
			if err == nil && !d.Works {
				err = fmt.Errorf("doctor: %s, %s", plural(d.Count(health.LevelError), "error"), plural(d.Count(health.LevelWarning), "warning"))
			}
			if expected != nil && !*d.AsExpected {
				err = errors.Join(err, errors.New("doctor: the machine is not as expected"))
			}
			return err
		},
	}
	command.JSONFlag(cmd, &asJSON)
	cmd.Flags().StringVar(&expect, "expect", "", "compare the machine with this `FILE` in JSON")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "print the evidence of every check")
	return cmd
}

// plural is a number with its noun.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// printHealth writes the findings in plain text; one without a problem takes one line.
func printHealth(w io.Writer, d health.Report, verbose bool) error {
	var b strings.Builder
	wide := 0
	for _, f := range d.Findings {
		wide = max(wide, len(f.Code))
	}
	indent := strings.Repeat(" ", len(health.LevelWarning)+2+wide+2)
	for _, f := range d.Findings {
		fmt.Fprintf(&b, "%-*s  %-*s  %s%s\n", len(health.LevelWarning), f.Level, wide, f.Code, f.Subject(), f.Title)
		bad := f.Level == health.LevelWarning || f.Level == health.LevelError
		if verbose || bad {
			for _, e := range f.Evidence {
				fmt.Fprintf(&b, "%s- %s\n", indent, e)
			}
			for _, x := range f.Fix {
				fmt.Fprintf(&b, "%sfix: %s\n", indent, x)
			}
		}
	}
	fmt.Fprintf(&b, "\n%s\n", d.Verdict)
	_, err := io.WriteString(w, b.String())
	return err
}
