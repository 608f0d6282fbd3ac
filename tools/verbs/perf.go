package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
	"github.com/goverbs/goverbs/tools/verbs/internal/perf/plot"
	"github.com/goverbs/goverbs/tools/verbs/internal/perftest"
)

// perfOptions are the command line's of a client.
type perfOptions struct {
	config perf.Config
	local  perf.Local
	sizes  []int
	all    bool
	rate   string
	port   int
	json   bool
	plot   string
	over   []string // files of reports

	perftest bool
}

// perfTests are the subcommands, with what each does.
var perfTests = []struct{ op, metric, does string }{
	{perf.Send, perf.Lat, "Time messages that go there and come back"},
	{perf.Send, perf.BW, "Send messages as fast as possible"},
	{perf.Write, perf.Lat, "Time RDMA WRITEs that go there and come back"},
	{perf.Write, perf.BW, "RDMA WRITE as fast as possible"},
	{perf.Read, perf.Lat, "Time RDMA READs"},
	{perf.Read, perf.BW, "RDMA READ as fast as possible"},
	{perf.Atomic, perf.Lat, "Time atomic additions"},
	{perf.Atomic, perf.BW, "Do atomic additions as fast as possible"},
}

func newPerf() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "perf",
		Short: "Measure latency and bandwidth with a peer",
		Long: `Measure latency and bandwidth between two hosts, or two devices of one. One side runs
"verbs perf serve", the other a test; the server takes any number of clients, at once and one
after another, and does what each of them says.

What goes over the wire in each test is what perftest's program of that name does (send-lat is
ib_send_lat), with its defaults: 2 bytes for latency and 65536 for bandwidth, 1000 messages
(write-bw 5000), 128 under way, one completion for 100 (for each above 8 KiB). Before those that
count there are --warmup messages. Latency is half of the way there and back of a message, and
all of it for READs and atomics. Bandwidth in both directions is the sum of both.

With --perftest the other side is that program itself, Debian's for instance, and this one its
client or, without HOST, its server, for one test. perftest tells nobody what it was told to do:
give both sides the same sizes (--size -s, --all -a), iterations (-n), type (--type -c), number
of queue pairs (--qps -q), direction (--both -b), and --cm here where it is -R there. Depths,
lists, moderation, inline data and events are each side's own. All messages count, and it has
its own port, 18515.

On iWARP the connection manager alone connects queue pairs, so that --cm is needed, and there is
rc alone. A message without a receive would end the connection: the receiver tells the sender by
RDMA WRITE how many it has taken, as perftest's programs do there.

With --json a client prints one document:
  version     1, the version of this form
  test        such as send-lat
  config      what was asked for: operation, metric, type, sizes, all, iterations, duration_ns, warmup,
              qps, both, list, inline, moderate, depth, recv_depth, events, rate (value and unit),
              verify, cm, mtu, sl, tos, timeout, retry, patience_ns, reads (--outs); -1 is for the
              test to choose, times that end in _ns are nanoseconds, and what is off may be missing
  client, server
              device, driver, address (of the control connection), gid, inline (bytes);
              of a peer that is perftest address, gid and perftest, its version
  results     one for each size:
    size      of a message, in bytes
    iterations   messages that count, of all queue pairs and directions; in tests of latency without
              warm-up, as with --perftest, one fewer than asked for
    seconds   that they took
    latency   samples; min_us, median_us, average_us, p99_us, p99_9_us, max_us, stdev_us in
              microseconds; histogram: bins with from_us, to_us (not included) and count
    bandwidth mib_per_s (2^20 bytes), gbit_per_s (10^9 bits), messages_per_s
    lost      messages that did not arrive (uc and ud)
    client_cpu, server_cpu
              processor time of the process, its own and the kernel's for it, by time elapsed:
              1 is a processor in use all the time; 0 for a server that does nothing in the test,
              and of a server with several clients at once it is for all of them
    verified  data was compared, and was right`,
		Example: `  verbs perf serve
  verbs perf send-lat 10.1.0.1
  verbs perf write-bw 10.1.0.1 --all --json >before.json
  verbs perf write-bw 10.1.0.1 --all --plot bw.svg --overlay before.json
  verbs perf send-lat --perftest 10.1.0.1 -n 10000     where ib_send_lat -n 10000 runs
  verbs perf read-bw --perftest --cm                   for ib_read_bw -R HOST`,
	}
	cmd.Args = arguments(0)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(newPerfServe())
	for _, t := range perfTests {
		cmd.AddCommand(newPerfTest(t.op, t.metric, t.does))
	}
	return cmd
}

// newPerfTest makes the command of a test.
func newPerfTest(op, metric, does string) *cobra.Command {
	o := perfOptions{config: perf.Default(op, metric), local: perf.Local{GID: perf.Auto, CPU: perf.Auto}}
	c := &o.config
	program := perftest.Test{Op: op, Latency: metric == perf.Lat}.Program()
	cmd := &cobra.Command{
		Use:   c.Name() + " [HOST]",
		Short: does,
		Long:  does + ".\nHOST runs \"verbs perf serve\", or with --perftest " + program + ". \"verbs perf --help\" tells what is measured, and of --json.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && !o.perftest {
				return fmt.Errorf("HOST is missing, where \"verbs perf serve\" runs; only with --perftest can this side be the server: %s", cmd.UseLine())
			}
			return arguments(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			host := ""
			if len(args) == 1 {
				host = args[0]
			}
			return o.run(cmd, host)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&c.Type, "type", "t", c.Type, "type of the queue pairs: "+strings.Join(c.Types(), ", "))
	if op != perf.Atomic {
		f.IntSliceVarP(&o.sizes, "size", "s", c.Sizes, "size of a message in bytes; or several, with commas")
		f.BoolVarP(&o.all, "all", "a", false, "all sizes from 2 bytes to 8 MiB, or what the devices take, each twice the one before")
	}
	f.IntVarP(&c.Iterations, "iterations", "n", c.Iterations, "messages of each queue pair and size that count")
	f.DurationVarP(&c.Duration, "duration", "D", 0, "measure each size for so long instead")
	f.IntVar(&c.Warmup, "warmup", c.Warmup, "messages of each queue pair and size before those that count")
	if metric == perf.BW {
		f.IntVarP(&c.QPs, "qps", "q", c.QPs, "number of queue pairs")
		f.BoolVarP(&c.Both, "both", "b", false, "both directions at once")
		f.IntVarP(&c.List, "list", "l", c.List, "messages that are posted together, by one doorbell")
		f.IntVarP(&c.Moderate, "moderate", "Q", c.Moderate, "one completion for so many messages")
		defaultIs(f, "list", "as many as there is room for, up to 64, on iWARP up to 1 MiB; with --rate 1")
		defaultIs(f, "moderate", "100, 1 above 8 KiB, or --list")
		f.StringVar(&o.rate, "rate", "", "the most that a side sends per second: messages, or with Gb, Mb or MiB behind it")
		f.IntVar(&c.Depth, "depth", c.Depth, "messages of each queue pair under way")
	}
	if op == perf.Send || op == perf.Write {
		f.IntVarP(&c.Inline, "inline", "I", c.Inline, "largest message that goes into the work request itself, in bytes")
	}
	if f.Lookup("inline") != nil {
		defaultIs(f, "inline", "in latency tests about 220, or what the device takes; else 0")
	}
	if op == perf.Send {
		f.IntVarP(&c.RecvDepth, "recv-depth", "r", c.RecvDepth, "receives of each queue pair")
	}
	if f.Lookup("recv-depth") != nil {
		defaultIs(f, "recv-depth", "512; of uc and ud one for each message, up to 16000")
	}
	if op == perf.Read || op == perf.Atomic {
		f.IntVarP(&c.RdAtomic, "outs", "o", 0, "READs and atomics of a queue pair that the devices have under way (default: what both can)")
	}
	if op != perf.Write || metric != perf.Lat {
		f.BoolVarP(&c.Events, "events", "e", false, "sleep on completion events instead of polling, both sides")
	}
	f.BoolVarP(&c.Verify, "verify", "V", false, "compare the data that arrives with what was sent, which takes time")
	f.BoolVarP(&c.CM, "cm", "R", false, "connect the queue pairs by the RDMA connection manager")
	f.IntVarP(&c.MTU, "mtu", "m", 0, "path MTU in bytes (default: what both ports have)")
	f.Uint8VarP(&c.SL, "sl", "S", 0, "service level")
	f.Uint8Var(&c.TOS, "tos", 0, "traffic class")
	f.IntVar(&c.Timeout, "timeout", c.Timeout, "wait for an acknowledgement: 4.096 µs times 2 to this power")
	f.IntVar(&c.Retry, "retry", c.Retry, "how often to send without an acknowledgement; 7 is without end on rxe")
	f.DurationVar(&c.Patience, "patience", c.Patience, "give up when nothing is completed for this long")
	f.IntVarP(&o.port, "port", "p", perf.DefaultPort, "TCP port of the server")
	defaultIs(f, "port", fmt.Sprintf("%d, with --perftest %d", perf.DefaultPort, perftest.DefaultPort))
	perfLocalFlags(cmd, &o.local)
	f.BoolVar(&o.perftest, "perftest", false, "speak with perftest's "+program+", or without HOST be its server")
	f.BoolVar(&o.json, "json", false, "print the result as JSON")
	f.StringVar(&o.plot, "plot", "", "draw the result into this file, which ends in .svg or .png: bandwidth or latency over the size, or of one size the distribution of its latency")
	f.StringArrayVar(&o.over, "overlay", nil, "draw an earlier result, which --json has printed, into the same picture; may be given several times")
	return cmd
}

// perfLocalFlags adds what each side has for itself.
func perfLocalFlags(cmd *cobra.Command, l *perf.Local) {
	f := cmd.Flags()
	f.StringVarP(&l.Device, "dev", "d", "", "RDMA device (default: the one with the address that the peer is reached by)")
	f.Uint8VarP(&l.Port, "ib-port", "i", 0, "port of the device (default: the first active one)")
	f.IntVarP(&l.GID, "gid", "x", l.GID, "local GID index")
	defaultIs(f, "gid", "chosen to suit the peer")
	f.BoolVar(&l.HugePages, "huge-pages", false, "take memory from huge pages")
	f.IntVar(&l.CPU, "cpu", l.CPU, "keep to this processor")
	defaultIs(f, "cpu", "any")
	f.StringVar(&l.DMABuf, "dmabuf", "", "use the memory of this dma-buf: a descriptor that is passed on, such as /proc/self/fd/3, or one of a heap, such as /dev/dma_heap/system")
}

// run measures.
func (o *perfOptions) run(cmd *cobra.Command, host string) error {
	ctx, out, log := cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	if o.port < 1 || o.port > 65535 {
		return fmt.Errorf("--port is %d, allowed: 1 to 65535", o.port)
	}
	if err := o.settle(); err != nil {
		return err
	}
	format, old, err := o.picture()
	if err != nil {
		return err
	}
	if o.perftest {
		if !cmd.Flags().Changed("port") {
			o.port = perftest.DefaultPort
		}
		if err := o.checkPerftest(cmd.Flags().Changed, host); err != nil {
			return err
		}
	}
	var table *perfTable
	var measured func(perf.Size)
	if !o.json {
		table = &perfTable{out: out, lat: o.config.Metric == perf.Lat}
		measured = table.row
	}
	var running func(size int, count func() int64) (stop func())
	if p := newProgress(log); p != nil {
		running = p.run
	}
	var report *perf.Report
	if o.perftest {
		e := &perftestEnd{o: o, server: host == "", measured: measured, running: running}
		report, err = e.run(ctx, log, host)
	} else {
		client := &perf.Client{Config: o.config, Local: o.local, Host: host, Port: o.port, Measured: measured, Running: running}
		report, err = client.Run(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", o.config.Name(), err)
	}
	if o.json {
		err = printJSON(out, report)
	} else {
		err = table.err
	}
	if o.plot != "" { // what was measured is not lost if that fails
		err = errors.Join(err, o.draw(format, append([]plot.Named{{Report: report}}, old...)))
	}
	return err
}

// picture looks at what is to be drawn, before anything is measured for it.
func (o *perfOptions) picture() (format string, old []plot.Named, err error) {
	if o.plot == "" {
		if len(o.over) > 0 {
			return "", nil, errors.New("--overlay needs --plot, the file to draw into")
		}
		return "", nil, nil
	}
	if format, err = plot.Format(o.plot); err != nil {
		return "", nil, err
	}
	if dir, err := os.Stat(filepath.Dir(o.plot)); err != nil {
		return "", nil, fmt.Errorf("--plot is %q, allowed: a file in a directory that is there: %w", o.plot, err)
	} else if !dir.IsDir() {
		return "", nil, fmt.Errorf("--plot is %q, allowed: a file in a directory, and %s is none", o.plot, dir.Name())
	}
	for _, name := range o.over {
		f, err := os.Open(name)
		if err != nil {
			return "", nil, fmt.Errorf("--overlay: %w", err)
		}
		r, err := perf.ReadReport(f)
		f.Close()
		if err != nil {
			return "", nil, fmt.Errorf("--overlay %s: %w", name, err)
		}
		old = append(old, plot.Named{Name: filepath.Base(name), Report: r})
		if r.Config.Metric != o.config.Metric {
			return "", nil, fmt.Errorf("--overlay %s: it is of %s, which has no axis in common with %s", name, r.Test, o.config.Name())
		}
	}
	if len(old) > 0 {
		if err := plot.Check(old...); err != nil {
			return "", nil, fmt.Errorf("--overlay %w", err)
		}
	}
	return format, old, nil
}

// draw writes the picture.
func (o *perfOptions) draw(format string, reports []plot.Named) error {
	f, err := os.Create(o.plot)
	if err != nil {
		return fmt.Errorf("--plot: %w", err)
	}
	if err := errors.Join(plot.Write(f, format, reports...), f.Close()); err != nil {
		return fmt.Errorf("--plot %s: %w", o.plot, err)
	}
	return nil
}

// settle puts the flags that are not the config's into it.
func (o *perfOptions) settle() error {
	if len(o.sizes) > 0 {
		o.config.Sizes = slices.Clone(o.sizes)
	}
	if o.all {
		const most = 1 << 23
		o.config.All, o.config.Sizes = true, perf.Sweep(most)
	}
	if o.rate != "" {
		var err error
		if o.config.Rate, err = perf.ParseRate(o.rate); err != nil {
			return err
		}
	}
	if o.config.CM && o.config.MTU != 0 {
		return fmt.Errorf("--mtu is %d, but with --cm the connection manager takes the MTU from the path", o.config.MTU)
	}
	return o.config.Validate()
}

// perfTable prints results as they come.
type perfTable struct {
	out   io.Writer
	lat   bool
	begun bool
	err   error
}

// row prints a size.
func (t *perfTable) row(s perf.Size) {
	if !t.begun {
		t.begun = true
		if t.lat {
			t.printf("%9s %10s %10s %10s %10s %10s %10s %10s %9s %9s %9s\n", "bytes", "messages", "min µs", "median", "average", "p99", "p99.9", "max", "stdev", "CPU here", "there")
		} else {
			t.printf("%9s %10s %12s %10s %14s %6s %9s %9s\n", "bytes", "messages", "MiB/s", "Gb/s", "messages/s", "lost", "CPU here", "there")
		}
	}
	switch {
	case t.lat && s.Latency != nil:
		l := s.Latency
		t.printf("%9d %10d %10.2f %10.2f %10.2f %10.2f %10.2f %10.2f %9.2f %8.0f%% %8.0f%%\n", s.Size, l.Samples, l.Min, l.Median, l.Average, l.P99, l.P999, l.Max, l.Stdev,
			100*s.ClientCPU, 100*s.ServerCPU)
	case s.Bandwidth != nil:
		b := s.Bandwidth
		t.printf("%9d %10d %12.2f %10.3f %14.0f %6d %8.0f%% %8.0f%%\n", s.Size, s.Iterations, b.MiBPerSecond, b.GbitPerSecond, b.MessagesPerSecond, s.Lost, 100*s.ClientCPU, 100*s.ServerCPU)
	}
}

// printf prints, and keeps the first error.
func (t *perfTable) printf(format string, args ...any) {
	if _, err := fmt.Fprintf(t.out, format, args...); t.err == nil {
		t.err = err
	}
}

// progress is a line on a terminal that tells how far a test is.
type progress struct{ w io.Writer }

// newProgress returns nil if w is no terminal.
func newProgress(w io.Writer) *progress {
	f, ok := w.(*os.File)
	if !ok || !isTerminal(f) {
		return nil
	}
	return &progress{w}
}

// run shows a size.
func (p *progress) run(size int, count func() int64) (stop func()) {
	const every = 500 * time.Millisecond
	tick := time.NewTicker(every)
	over, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		for start, last := time.Now(), int64(0); ; {
			select {
			case <-over:
				fmt.Fprint(p.w, "\r\x1b[K")
				return
			case <-tick.C:
				n := count()
				fmt.Fprintf(p.w, "\r\x1b[K%d bytes: %.1f s, %d completions, %.0f per second", size, time.Since(start).Seconds(), n, float64(n-last)/every.Seconds())
				last = n
			}
		}
	}()
	return func() {
		tick.Stop()
		close(over)
		<-gone
	}
}

// mostClients is the most that a server can be told to serve at once.
const mostClients = 1 << 16

// newPerfServe makes the server's command.
func newPerfServe() *cobra.Command {
	local := perf.Local{GID: perf.Auto, CPU: perf.Auto}
	listen, port, memory, clients, quiet := "", perf.DefaultPort, 0, perf.DefaultMaxClients, false
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the tests of others until interrupted",
		Long: `Serve the tests of "verbs perf" on other hosts, or this one, until interrupted. Clients say what
is done. A --dmabuf that is passed on is the memory of all clients; of a heap each has its own.
` + trust + `All clients together take up to --max-memory, of which a test's part is reserved before the device
is opened for it. At most --max-clients are served at once, those included that have not said
what they want; another one is told that there are too many. A client has 10 s for each step of
its handshake. Let the server listen only on an address of a network that you trust (--listen).`,
		Args: arguments(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case port < 1 || port > 65535:
				return fmt.Errorf("--port is %d, allowed: 1 to 65535", port)
			case cmd.Flags().Changed("max-memory") && memory < 1:
				return fmt.Errorf("--max-memory is %d, allowed: 1 MiB and more", memory)
			case clients < 1 || clients > mostClients:
				return fmt.Errorf("--max-clients is %d, allowed: 1 to %d", clients, mostClients)
			}
			if err := local.Validate(&perf.Config{}); err != nil {
				return err
			}
			var lc net.ListenConfig
			l, err := lc.Listen(cmd.Context(), "tcp", net.JoinHostPort(listen, strconv.Itoa(port)))
			if err != nil {
				return err
			}
			log := &lines{w: cmd.ErrOrStderr()}
			server := &perf.Server{Local: local, MaxMemory: memory << 20, MaxClients: clients}
			if memory == 0 {
				server.MaxMemory = perf.DefaultMaxMemory()
			}
			if !quiet {
				fmt.Fprintf(log, "serving on %s\n", l.Addr())
				server.Log = func(format string, args ...any) { fmt.Fprintf(log, format+"\n", args...) }
			}
			err = server.Serve(cmd.Context(), l)
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&listen, "listen", "", "address to listen on (default: all)")
	f.IntVarP(&port, "port", "p", port, "TCP port to listen on")
	f.IntVar(&memory, "max-memory", memory, "the most memory for all clients at once, in MiB (default: half of the machine's, and at most 4096)")
	f.IntVar(&clients, "max-clients", clients, "the most clients at once")
	f.BoolVar(&quiet, "quiet", false, "do not tell of clients on standard error")
	perfLocalFlags(cmd, &local)
	return cmd
}
