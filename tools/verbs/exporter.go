package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/tools/health"
	"github.com/goverbs/goverbs/tools/metrics"
	"github.com/goverbs/goverbs/tools/probe"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/web"
	"github.com/goverbs/goverbs/uverbs"
)

// exporterOptions are the flags of "verbs exporter".
type exporterOptions struct {
	listen            string
	once              bool
	doctor            time.Duration
	hosts             []string
	events, processes bool
	watch             health.WatchOptions
	probe             probe.Options
	allow             []string
}

// exporterAddress is where "verbs exporter" listens.
const exporterAddress = "127.0.0.1:9879"

func newExporter() *command.Command {
	var o exporterOptions
	cmd := &command.Command{
		Use:   "exporter [flags] [DEV...]",
		Short: "Serve metrics to Prometheus: ports, counters, processes, events and findings",
		Long: `It serves the metrics of all devices, or of the named ones, at /metrics, and those of events since
it started. "verbs help metrics" describes them, with examples for Prometheus and systemd.

The checks of "verbs doctor", with their ping-pong but without connections, are made in the
background when a scrape comes and the last ones are old enough. For events it holds the devices
open; a device of rxe or siw that is deleted meanwhile is gone up to a second later.

With --probe it probes other hosts all the time, over several paths, and answers their probes: the
exporters find each other by the connection manager, at port 9879 of RDMA. Names are looked up again
each 10 s, and files are read again; a name may have many addresses, and those of this host are left
out. "verbs help metrics" says which rate shows which loss.

Security:
There is no authentication and no encryption. Anyone who can reach the port sees the names of
processes and the IDs of containers, so it listens on this host only unless --listen says otherwise.
A client that sends or reads slowly is cut after 10 s, and there are at most 64 connections, half of
them from one address. A request must name this host by an IP address, localhost, the host's name or
one of --allow-host, so that no web page can read the metrics by a name of its own.
Probes need no HTTP. Any host that reaches the port of RDMA is answered, or those of --probe-allow,
on up to 1024 paths, 64 of an address. It may read 8 bytes, which are zero.`,
		Example: `  verbs exporter
  verbs exporter --listen :9879 --doctor-interval 10m
  verbs exporter mlx5_0 mlx5_1 --processes=false
  verbs exporter --listen :9879 --probe node1,node2,node3
  verbs exporter --listen :9879 --probe @/etc/verbs/peers --probe-rate 250 --probe-paths 2
  verbs exporter --probe-listen 10.1.0.1:9879 --probe-allow 10.1.0.0/16
  verbs exporter --once >rdma.prom.new && mv rdma.prom.new rdma.prom
  verbs exporter --once | promtool check metrics`,
		Exit: "  0  interrupted, or with --once success\n  1  failure; standard error has the reason",
		Run: func(cmd *command.Command, names []string) error {
			err := o.check(cmd, names)
			if err != nil {
				return err
			}
			options := metrics.Options{Devices: names, NoProcesses: !o.processes, Version: version}
			if o.watch.Interval > 0 && (!o.once || o.watch.State != "") { // one look has nothing to compare with
				o.watch.Devices, o.watch.NoProcesses = names, !o.processes
				w, err := health.NewWatch(o.watch)
				if err != nil {
					return command.Usagef("%w", err)
				}
				options.Watch = w
			}
			if o.once {
				c := metrics.New(options)
				if o.doctor > 0 {
					c.Examine(cmd.Context())
				}
				if options.Watch != nil {
					options.Watch.Look(cmd.Context())
				}
				if err := context.Cause(cmd.Context()); err != nil {
					return fmt.Errorf("exporter: %w", err)
				}
				_, err := c.WriteTo(cmd.Out())
				return err
			}
			if options.Probe, err = o.prober(cmd); err != nil {
				return err
			}
			events := &eventCounter{names: names, warn: cmd.Err()}
			options.DoctorInterval = o.doctor
			if o.events {
				options.Events = events.missing
			}
			return o.serve(cmd.Context(), metrics.New(options), options, events, cmd.Out())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.listen, "listen", exporterAddress, "listen on this `ADDRESS`, HOST:PORT, or :PORT for all of this host")
	command.ListVar(f, &o.hosts, "allow-host", "", "answer requests that name this host by these `NAMES`, too, separated by commas")
	f.BoolVar(&o.once, "once", false, "print the metrics, without events, and end")
	f.DurationVar(&o.doctor, "doctor-interval", time.Minute, "make the checks of verbs doctor each `TIME` at most; 0 for none")
	f.DurationVar(&o.watch.Interval, "watch-interval", 30*time.Second, "look for changes, as verbs doctor --watch does, each `TIME`; 0 for none")
	f.StringVar(&o.watch.State, "watch-state", "", "keep what the watch has seen in this `FILE`, over restarts")
	command.ListVar(f, &o.probe.Peers, "probe", "", "probe these `HOSTS` all the time, separated by commas: names, addresses, or @FILE for the lines of a file")
	f.StringVar(&o.probe.Listen, "probe-listen", "", "answer the probes of other hosts on this `ADDRESS`, IP:PORT or :PORT; by default :9879 with --probe; none for no answers")
	f.IntVar(&o.probe.Rate, "probe-rate", 50, "probe each host with this `NUMBER` of datagrams per second on each path: 1 to 1000")
	f.IntVar(&o.probe.Paths, "probe-paths", 4, "probe each host on this `NUMBER` of paths, by flow label: 1 to 16")
	command.ListVar(f, &o.allow, "probe-allow", "", "answer only probes from these `NETWORKS`, such as 10.0.0.0/8, separated by commas")
	f.BoolVar(&o.events, "events", true, "count events, for which the devices are held open")
	f.BoolVar(&o.processes, "processes", true, "count the objects of each process, and the QPs by state")
	return cmd
}

// check checks the flags and the names of devices.
func (o *exporterOptions) check(cmd *command.Command, names []string) error {
	host, port, err := net.SplitHostPort(o.listen)
	n, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || perr != nil || strings.ContainsAny(host, " /") {
		return command.Usagef("--listen is %q, allowed: HOST:PORT or :PORT with a port from 0 to 65535, such as %s or :9879", o.listen, exporterAddress)
	}
	o.listen = net.JoinHostPort(host, strconv.FormatUint(n, 10))
	if o.watch.Interval != 0 {
		if err := checkTime(cmd, "watch-interval", time.Second); err != nil {
			return err
		}
	}
	for _, name := range []string{"probe", "probe-listen"} {
		if o.once && cmd.Flag(name).Changed {
			return command.Usagef("--%s is %s, allowed: only without --once", name, cmd.Flag(name).Value)
		}
	}
	switch {
	case o.once && cmd.Flag("listen").Changed:
		return command.Usagef("--once prints the metrics and listens nowhere, so --listen is not allowed with it")
	case o.once && cmd.Flag("watch-interval").Changed && o.watch.State == "":
		return command.Usagef("--watch-interval is %v, allowed with --once: only with a --watch-state", o.watch.Interval)
	case o.watch.Interval == 0 && o.watch.State != "":
		return command.Usagef("--watch-state is %q, allowed: only with a --watch-interval that is not 0", o.watch.State)
	case o.doctor < 0 || o.doctor > 0 && o.doctor < time.Second:
		return command.Usagef("--doctor-interval is %v, allowed: 0 (no checks), 1s and more", o.doctor)
	case len(names) == 0:
		return nil
	}
	infos, err := uverbs.Devices()
	if err != nil {
		return err
	}
	for _, name := range names {
		switch {
		case slices.ContainsFunc(infos, func(d uverbs.DeviceInfo) bool { return d.Name == name }):
		case len(infos) == 0:
			return command.Usagef("the device is %q, but there is no RDMA device; without DEV those that come later are served", name)
		default:
			return command.Usagef("the device is %q, allowed: %s", name, deviceNames(infos))
		}
	}
	return nil
}

// prober returns what probes other hosts and answers their probes, or nil.
func (o *exporterOptions) prober(cmd *command.Command) (*probe.Prober, error) {
	p := &o.probe
	refuse := func(name, allowed string) (*probe.Prober, error) {
		return nil, command.Usagef("--%s is %s, allowed: %s", name, cmd.Flag(name).Value, allowed)
	}
	switch changed := func(name string) bool { return cmd.Flag(name).Changed }; {
	case len(p.Peers) == 0 && changed("probe-rate"):
		return refuse("probe-rate", "only with --probe")
	case len(p.Peers) == 0 && changed("probe-paths"):
		return refuse("probe-paths", "only with --probe")
	case p.Rate < 1 || p.Rate > 1000:
		return refuse("probe-rate", "1 to 1000")
	case p.Paths < 1 || p.Paths > 16:
		return refuse("probe-paths", "1 to 16")
	case len(p.Peers) > 0 && p.Listen == "":
		p.Listen = fmt.Sprintf(":%d", probe.Port)
	case len(p.Peers) > 0 && p.Listen == "none":
		p.Listen = ""
	}
	if p.Listen == "" && len(o.allow) > 0 {
		return refuse("probe-allow", "only with --probe or --probe-listen, and not with none")
	}
	for _, text := range o.allow {
		n, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, command.Usagef("--probe-allow is %q, allowed: networks such as 10.0.0.0/8", text)
		}
		p.Allow = append(p.Allow, n.Masked())
	}
	if len(p.Peers) == 0 && p.Listen == "" {
		return nil, nil
	}
	p.Warn = func(err error) { fmt.Fprintf(cmd.Err(), "verbs: %v\n", err) }
	prober, err := probe.New(*p)
	if arg, ok := errors.AsType[*uverbs.ArgError](err); ok {
		name := map[string]string{"Peers": "probe", "Listen": "probe-listen"}[arg.Field]
		return nil, command.Usagef("--%s is %s, allowed: %s", name, arg.Given, arg.Allowed)
	} else if err != nil {
		return nil, command.Usagef("%w", err)
	}
	return prober, nil
}

// exporterIndex is the page that leads to the metrics.
const exporterIndex = `<!DOCTYPE html>
<html lang="en"><head><title>verbs exporter</title></head>
<body><h1>verbs exporter</h1><p><a href="/metrics">Metrics of RDMA on this host</a></p></body></html>
`

// serve serves the metrics until the context ends, which is no error.
func (o *exporterOptions) serve(ctx context.Context, c *metrics.Collector, options metrics.Options, counter *eventCounter, out io.Writer) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", o.listen)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("exporter: another program listens on %s, choose another address with --listen: %w", o.listen, err)
	case err != nil:
		return fmt.Errorf("exporter: --listen %s: %w", o.listen, err)
	}
	if _, err := fmt.Fprintf(out, "metrics are at http://%s/metrics\n", l.Addr()); err != nil {
		return errors.Join(err, l.Close())
	}
	ctx, fail := context.WithCancelCause(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer fail(nil)
	if o.events {
		all.Go(func() { counter.run(ctx, c) })
	}
	if options.Probe != nil {
		all.Go(func() {
			if err := options.Probe.Run(ctx); err != nil {
				fail(err)
			}
		})
	}
	if options.Watch != nil {
		all.Go(func() {
			if err := options.Watch.Run(ctx, func(health.Change) {}); err != nil {
				fmt.Fprintf(counter.warn, "verbs: %v\n", err)
			}
		})
	}
	const patience = 10 * time.Second // as long as Prometheus waits
	names := o.hosts
	if name, err := os.Hostname(); err == nil {
		short, _, _ := strings.Cut(name, ".")
		names = append(names, name, short)
	}
	s := web.Server{Hosts: names, HeadTime: patience, WriteTime: patience, Most: 64, Pages: map[string]web.Page{
		"/":        {Type: "text/html; charset=utf-8", Body: func() []byte { return []byte(exporterIndex) }},
		"/metrics": {Type: metrics.ContentType, Body: c.Collect},
	}}
	err = s.Serve(ctx, l)
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return fmt.Errorf("exporter: %w", cause)
	}
	return err
}

// eventCounter counts events.
type eventCounter struct {
	names []string  // of devices; none means all
	warn  io.Writer // for warnings

	mu    sync.Mutex
	watch *watch // the one that runs; nil if none does
	err   error  // why none runs
}

// run counts the events until the context ends. Where there is no RDMA yet it tries again.
func (e *eventCounter) run(ctx context.Context, c *metrics.Collector) {
	count := func(r eventRow) error {
		if len(e.names) == 0 || slices.Contains(e.names, r.Device) {
			c.CountEvent(r.Device, r.Port, r.Event)
		}
		return nil
	}
	warning := func(err error) { fmt.Fprintf(e.warn, "verbs: %v\n", err) }
	for said := ""; ctx.Err() == nil; {
		w := newWatch()
		e.set(w, nil)
		err := w.run(ctx, count, warning)
		e.set(nil, err)
		if err != nil && err.Error() != said {
			said = err.Error()
			warning(fmt.Errorf("events are not counted: %w", err))
		}
		select {
		case <-time.After(10 * time.Second):
		case <-ctx.Done():
		}
	}
}

func (e *eventCounter) set(w *watch, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.watch, e.err = w, err
}

// missing is [metrics.Options].Events.
func (e *eventCounter) missing(device string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.watch == nil {
		return e.err
	}
	return e.watch.missing(device)
}
