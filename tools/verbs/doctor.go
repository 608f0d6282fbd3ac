package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/tools/health"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/uverbs"
)

func newDoctor() *command.Command {
	var asJSON, verbose, serve bool
	var expect, peer, listen string
	var port int
	var watch bool
	var watching health.WatchOptions
	cmd := &command.Command{
		Use:   "doctor [flags] [DEV...]",
		Short: "Find out why RDMA does or does not work on this machine",
		Long: `It checks everything that RDMA needs, from the kernel's modules to the GIDs. On each device, or on
the named ones, it plays ping-pong within this process, and connects by the connection manager from
each address to itself, with messages of 64 bytes, the path MTU and 64 KiB. With --peer it connects
to another host, too, where "verbs doctor --serve" runs. No step of a connection takes more than
4 s, and one that takes a second is named on standard error. The doctor changes nothing, except that
the kernel may load modules in answer to the checks. For a software device (GOVERBS_SOFT) it looks
at the address, the UDP port and the receive buffer instead of the kernel's modules. An EFA device
of AWS has no connection manager, so it makes no connections there.

Every problem is reported with its evidence and a fix.

With --expect it also compares the machine with a file in JSON. Every field may be left out. An
entry of ports is about the devices whose name and driver match: they must have so many ports, and
each port must be active; rate_gbps, mtu and netdev_mtu are the least that it must have.

  {"netns": "exclusive",
   "ports": [{"device": "mlx5_*", "driver": "mlx5", "count": 2, "firmware": "28.*",
     "link_layer": "Ethernet", "rate_gbps": 400, "mtu": 4096, "netdev_mtu": 9000,
     "gid_type": "RoCE v2"}]}
` + trust + `The server of --serve sends messages of up to 64 KiB back, to 64 clients at once, for a minute each.
Let it listen only on an address of a network that you trust (--listen).

With --watch it looks at the devices each --interval instead, without ping-pong and connections, and
prints what begins and what ends: a port that is down or changes its state, a rate below the best
that the port had, counters of errors and congestion that grow, changes of the GID table, QPs that
stay in state ERR, a process near its limit of pinned memory, a device that disappears or does not
answer. What happened counts for a --window. With --state, what was seen before a restart counts,
too. DEV must be there, or be in --state; without DEV, devices are watched as they come. --expect
may have ports with device, driver and rate_gbps then, and nothing else.`,
		Example: `  verbs doctor
  verbs doctor -v rxe0
  verbs doctor --serve --listen 10.1.0.2   # on one host
  verbs doctor --peer 10.1.0.2             # on another
  verbs doctor --expect /etc/rdma/expected.json
  verbs doctor --watch --state /var/lib/rdma/watch.json
  GOVERBS_SOFT=auto verbs doctor
  verbs doctor --json | jq -r '.findings[] | select(.level == "error") | .fix[]'`,
		Exit: `  0  ping-pong and connections succeeded on every named device, or without DEV on at least one
  1  RDMA does not work, or the machine is not as --expect says
  --serve and --watch end with 0 when they are interrupted, and with 1 if they fail`,
		Run: func(cmd *command.Command, names []string) error {
			if err := checkDoctor(cmd, names, serve, watch, peer); err != nil {
				return err
			}
			if serve {
				at := net.JoinHostPort(listen, strconv.Itoa(port))
				return health.Serve(cmd.Context(), at, func(at net.Addr) { fmt.Fprintf(cmd.Err(), "serving on %s\n", at) })
			}
			var expected *health.Expectation
			if expect != "" {
				text, err := cmd.ReadFile(expect)
				if err != nil {
					return command.Usagef("--expect: %w", err)
				}
				if expected, err = health.ParseExpectation(text); err != nil {
					return command.Usagef("--expect %s: %w", expect, err)
				}
			}
			if watch {
				watching.Devices, watching.Expect = names, expected
				return watchHealth(cmd, watching, asJSON)
			}
			progress, done := showSlow(cmd.Err())
			d := health.Options{Devices: names, Peer: peer, Progress: progress}.Examine(cmd.Context())
			done()
			if err := context.Cause(cmd.Context()); err != nil {
				return fmt.Errorf("doctor: %w", err)
			}
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
	cmd.Flags().StringVar(&peer, "peer", "", "also connect to this `HOST`, or HOST:PORT, which runs \"verbs doctor --serve\"")
	cmd.Flags().BoolVar(&serve, "serve", false, "answer the connections of --peer of other hosts, until interrupted")
	cmd.Flags().StringVar(&listen, "listen", "", "listen on this `ADDRESS`, with --serve (default all)")
	command.NumberVar(cmd.Flags(), &port, "port", "p", health.DefaultPort, 1, maxPort, "`PORT` of the connection manager, with --serve")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "print the evidence of every check")
	cmd.Flags().BoolVar(&watch, "watch", false, "look again and again, and print what begins and ends, until interrupted")
	cmd.Flags().DurationVar(&watching.Interval, "interval", 10*time.Second, "with --watch, look once each `TIME`, 1s to 720h")
	cmd.Flags().DurationVar(&watching.Window, "window", time.Hour, "with --watch, what happened counts for this `TIME`, 1m to 720h")
	cmd.Flags().StringVar(&watching.State, "state", "", "with --watch, keep what was seen in this `FILE`, over restarts")
	return cmd
}

// checkDoctor checks which flags and names are given together, and the port of the peer.
func checkDoctor(cmd *command.Command, names []string, serve, watch bool, peer string) error {
	if err := checkTime(cmd, "interval", time.Second); err != nil {
		return err
	}
	if err := checkTime(cmd, "window", time.Minute); err != nil {
		return err
	}
	for _, mode := range []struct {
		flag        string
		set         bool
		only, never []string // flags that need it, and that it does not take
	}{
		{"serve", serve, []string{"listen", "port"}, []string{"expect", "json", "peer", "verbose", "watch"}},
		{"watch", watch, []string{"interval", "window", "state"}, []string{"peer", "verbose"}},
	} {
		flags, only := mode.only, "with"
		if mode.set {
			flags, only = mode.never, "without"
		}
		for _, name := range flags {
			if f := cmd.Flag(name); f.Changed {
				return command.Usagef("--%s is %s, allowed: only %s --%s", name, peertext.Quote(f.Value.String()), only, mode.flag)
			}
		}
	}
	if serve && len(names) > 0 {
		return command.Usagef("the device is %s, allowed: none with --serve; --listen chooses an address", peertext.Quote(names[0]))
	}
	if _, service, err := net.SplitHostPort(peer); err == nil {
		if port, err := net.DefaultResolver.LookupPort(cmd.Context(), "tcp", service); err != nil || port == 0 {
			return command.Usagef("the port of --peer %s is %s, allowed: 1 to %d", peertext.Quote(peer), peertext.Quote(service), maxPort)
		}
	}
	return nil
}

// checkTime checks a time of a [health.Watch].
func checkTime(cmd *command.Command, name string, least time.Duration) error {
	const most = 720 * time.Hour
	if v, err := cmd.Flags().GetDuration(name); err != nil || v < least || v > most {
		return command.Usagef("--%s is %v, allowed: %v to %v", name, v, least, most)
	}
	return nil
}

// watchHealth prints what changes, until the context ends.
func watchHealth(cmd *command.Command, o health.WatchOptions, asJSON bool) error {
	w, err := health.NewWatch(o)
	if err != nil {
		return command.Usagef("%w", err)
	}
	infos, err := uverbs.Devices()
	for _, name := range o.Devices { // without a list, the watch says what is wrong
		here := slices.ContainsFunc(infos, func(d uverbs.DeviceInfo) bool { return d.Name == name })
		if err == nil && !here && !w.Seen(name) {
			return command.Usagef("the device is %s, allowed with --watch: %s, or one in --state; without DEV, devices are watched as they come", peertext.Quote(name), cmp.Or(deviceNames(infos), "none, as there is no device"))
		}
	}
	fmt.Fprintf(cmd.Err(), "watching each %v; devices now: %s\n", o.Interval, cmp.Or(deviceNames(infos), "none"))
	ctx, cancel := context.WithCancelCause(cmd.Context())
	defer cancel(nil)
	lines := json.NewEncoder(cmd.Out())
	err = w.Run(ctx, func(c health.Change) {
		var err error
		if asJSON {
			err = lines.Encode(c)
		} else {
			err = printChange(cmd.Out(), c)
		}
		if err != nil {
			cancel(err)
		}
	})
	if cmd.Context().Err() == nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	return err
}

// printChange writes a change in plain text; only one that is a problem now has its evidence.
func printChange(w io.Writer, c health.Change) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %-5s  %-*s  %s: %s%s\n", c.Time.Local().Format(time.DateTime), c.State, len(health.LevelWarning), c.Level, c.Code, c.Subject(), c.Title)
	if c.State != health.StateEnded {
		printDetails(&b, strings.Repeat(" ", len(time.DateTime)+2), c.Finding)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// printDetails writes the evidence and the fixes of a finding.
func printDetails(b *strings.Builder, indent string, f health.Finding) {
	for _, e := range f.Evidence {
		fmt.Fprintf(b, "%s- %s\n", indent, e)
	}
	for _, x := range f.Fix {
		fmt.Fprintf(b, "%sfix: %s\n", indent, x)
	}
}

// showSlow returns a function that is called before each step, and that prints a step if it takes longer than a
// second, and one to be called after the last step.
func showSlow(w io.Writer) (progress func(step string), done func()) {
	slow := time.NewTimer(0)
	slow.Stop()
	progress = func(step string) {
		slow.Stop()
		slow = time.AfterFunc(time.Second, func() { fmt.Fprintf(w, "%s ...\n", step) })
	}
	return progress, func() { slow.Stop() }
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
			printDetails(&b, indent, f)
		}
	}
	fmt.Fprintf(&b, "\n%s\n", d.Verdict)
	_, err := io.WriteString(w, b.String())
	return err
}
