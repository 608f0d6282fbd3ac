package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
)

// splitPort splits DEV/PORT. Without a slash the port is 0.
func splitPort(arg string) (dev string, port uint32, err error) {
	dev, text, found := strings.Cut(arg, "/")
	if !found {
		return dev, 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n == 0 {
		return "", 0, command.Usagef("the port of %s is %s, allowed: a number from 1", peertext.Quote(arg), peertext.Quote(text))
	}
	return dev, uint32(n), nil
}

// newStatSetters makes the commands that change which counters there are.
func newStatSetters() []*command.Command {
	const rights = "It needs CAP_NET_ADMIN, and a driver that can count single QPs, such as mlx5."
	bind := &command.Command{
		Use:   "bind [flags] DEV/PORT lqpn QPN [cntn COUNTER]",
		Short: "Give a QP a counter of its own, or one that another QP has",
		Long:  rights + "\nIt prints the counter's number. \"verbs res\" lists QPs.",
		Example: `  verbs stat bind mlx5_0/1 lqpn 178
  verbs stat bind mlx5_0/1 lqpn 179 cntn 4`,
		Args: atLeast(1),
		Run: func(cmd *command.Command, args []string) error {
			w := readWords(cmd, args[1:], "lqpn", "cntn?")
			qpn, id := w.number("lqpn"), w.number("cntn")
			dev, port := w.port(args[0])
			w.try(func() (err error) {
				if w.has("cntn") {
					return netlinkrdma.BindQPCounter(dev, port, qpn, id)
				}
				id, err = netlinkrdma.NewQPCounter(dev, port, qpn)
				return err
			})
			w.try(func() error {
				_, err := fmt.Fprintln(cmd.Out(), id)
				return err
			})
			return w.err
		},
	}
	unbind := &command.Command{
		Use:     "unbind [flags] DEV/PORT cntn COUNTER lqpn QPN",
		Short:   "Take a counter from a QP; one without QPs is deleted",
		Long:    rights,
		Example: `  verbs stat unbind mlx5_0/1 cntn 4 lqpn 178`,
		Args:    atLeast(1),
		Run: func(cmd *command.Command, args []string) error {
			w := readWords(cmd, args[1:], "cntn", "lqpn")
			id, qpn := w.number("cntn"), w.number("lqpn")
			dev, port := w.port(args[0])
			w.try(func() error { return netlinkrdma.UnbindQPCounter(dev, port, qpn, id) })
			return w.err
		},
	}
	var optional bool
	auto := &command.Command{
		Use:   "auto [flags] DEV/PORT type|pid|type,pid|off",
		Short: "Give new QPs a counter by their type or process",
		Long: rights + `
QPs for which the named properties are equal share a counter. For pid the kernel
compares the threads that created the QPs. "off" ends it for new QPs. It is refused
while counters are bound to single QPs.`,
		Example: `  verbs stat auto mlx5_0/1 type,pid
  verbs stat auto mlx5_0/1 off`,
		Args: exactly(2),
		Run: func(_ *command.Command, args []string) error {
			by := netlinkrdma.GroupByQPType
			groups, err := choice("the grouping", args[1], map[string]netlinkrdma.CounterGroups{
				"type": by, "pid": netlinkrdma.GroupByPID, "type,pid": by | netlinkrdma.GroupByPID, "pid,type": by | netlinkrdma.GroupByPID, "off": 0})
			w := words{err: err}
			dev, port := w.port(args[0])
			set := netlinkrdma.SetAutoQPCounters
			if optional {
				set = netlinkrdma.SetAutoQPCountersOptional
			}
			w.try(func() error { return set(dev, port, groups) })
			return w.err
		},
	}
	auto.Flags().BoolVar(&optional, "optional", false, "the counters of QPs include the optional ones; Linux 6.15")
	enable := &command.Command{
		Use:   "enable [flags] DEV/PORT NAME[,NAME...]|none",
		Short: "Enable these optional counters of a port and disable the others",
		Long:  `It needs CAP_NET_ADMIN and Linux 5.16. "verbs stat" shows which optional counters are disabled.`,
		Example: `  verbs stat enable mlx5_0/1 cc_rx_ce_pkts,cc_rx_cnp_pkts
  verbs stat enable mlx5_0/1 none`,
		Args: exactly(2),
		Run: func(_ *command.Command, args []string) error {
			var names []string
			if args[1] != "none" {
				names = strings.Split(args[1], ",")
			}
			var w words
			dev, port := w.port(args[0])
			w.try(func() error { return netlinkrdma.SetOptionalCounters(dev, port, names...) })
			return w.err
		},
	}
	return []*command.Command{bind, unbind, auto, enable}
}
