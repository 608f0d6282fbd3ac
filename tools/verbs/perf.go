package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/goverbs/goverbs/tools/internal/objects"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
	"github.com/goverbs/goverbs/tools/verbs/internal/perf/plot"
	"github.com/goverbs/goverbs/tools/verbs/internal/perftest"
	"github.com/goverbs/goverbs/tools/verbs/internal/terminal"
	"github.com/goverbs/goverbs/uverbs"
)

// perfOptions are the flags of a client.
type perfOptions struct {
	config perf.Config
	local  perf.Local
	sizes  []int
	all    bool
	rate   string
	limits string // who keeps to rate
	port   int
	json   bool
	plot   string
	over   []string // files of reports

	every     time.Duration // between lines of a test without an end
	timeline  time.Duration // between samples; 0 is none
	hints     *hintFlags
	mcg       bool
	mgid      string
	perftest  bool
	dataAddr  string
	pkeyIndex int
}

// perfTests are the subcommands, with what each does.
var perfTests = []struct{ op, metric, does string }{
	{perf.Send, perf.Lat, "Measure the latency of SEND"},
	{perf.Send, perf.BW, "Measure the bandwidth of SEND"},
	{perf.Write, perf.Lat, "Measure the latency of RDMA WRITE"},
	{perf.Write, perf.BW, "Measure the bandwidth of RDMA WRITE"},
	{perf.Read, perf.Lat, "Measure the latency of RDMA READ"},
	{perf.Read, perf.BW, "Measure the bandwidth of RDMA READ"},
	{perf.Atomic, perf.Lat, "Measure the latency of atomics"},
	{perf.Atomic, perf.BW, "Measure the bandwidth of atomics"},
}

func newPerf() *command.Command {
	cmd := command.Group(&command.Command{
		Use:   "perf [flags] COMMAND",
		Short: "Measure latency and bandwidth with a peer",
		Long: `One side runs "verbs perf serve", the other a test. They may be two hosts, or two devices of one. A
server takes any number of clients, at once and one after another, and each client chooses its test.

A test sends what the program of perftest with the same name sends (send-lat is ib_send_lat), with
its defaults: 2 bytes for latency and 65536 for bandwidth or what a datagram may have, 1000 messages
(write-bw 5000), 128 in flight, one completion for 100 of them (for each above 8 KiB). --warmup
messages precede those that count. The latency is half of a round trip, and for READs and atomics
all of it. The bandwidth of --both is the sum of both directions. Types xrc and dc need mlx5 on both
sides, and srd needs efa, where each message has a completion. With xrc the queue pairs of a side
share a receive queue. --imm, --use-srq, --use-ooo, --atomic-type,
--log-dci-streams and --mcg are for both sides. --odp, --relaxed-ordering, --use-dm and --ph are for
this side, and "verbs perf serve" has them, too.

With --perftest the peer is the program of perftest itself. This side is its client or, without
HOST, its server, for one test. perftest does not exchange its options, so give both sides the same
sizes (--size -s, --all -a), iterations (-n), type (--type -c), number of queue pairs (--qps -q) and
direction (--both -b), and give --cm here where perftest has -R. Depths, lists, moderation, inline
data and events may differ. --imm, --atomic-type and --use-ooo must be the same, --use-srq and the
options of memory may differ. All messages count, and the default port is 18515. As perftest has no
way to show that a client receives what the server sends first, in write-lat, send-lat and with
--both, the client's GID must be its address on the control connection, or that of --data-addr.

On iWARP only the connection manager connects queue pairs, so --cm is necessary, and rc is the only
type. A message without a receive would end the connection, so the receiver reports by RDMA WRITE
how many messages it has received, as the programs of perftest do.`,
		Example: `  verbs perf serve
  verbs perf send-lat 10.1.0.1
  verbs perf write-bw 10.1.0.1 --all --json >before.json
  verbs perf write-bw 10.1.0.1 --all --plot bw.svg --overlay before.json
  verbs perf plot -o bw.svg before.json after.json   # with the difference in percent
  verbs perf send-bw 10.1.0.1 --mcg --mgid 239.1.2.3    # to a multicast group (serve --allow-mcg)
  verbs perf write-bw 10.1.0.1 --run-infinitely -D 1s   # until interrupted
  verbs perf send-lat --perftest 10.1.0.1 -n 10000   # where ib_send_lat -n 10000 runs
  verbs perf read-bw --perftest --cm                 # for ib_read_bw -R HOST`,
	})
	cmd.Add(newPerfServe(), newPerfPlot())
	for _, t := range perfTests {
		cmd.Add(newPerfTest(t.op, t.metric, t.does))
	}
	return cmd
}

// newPerfTest makes the command of a test.
func newPerfTest(op, metric, does string) *command.Command {
	o := perfOptions{config: perf.Default(op, metric), local: perf.Local{GID: perf.Auto, CPU: perf.Auto}, limits: "sw"}
	c := &o.config
	program := perftest.Test{Op: op, Latency: metric == perf.Lat}.Program()
	cmd := &command.Command{
		Use:   c.Name() + " [flags] [HOST]",
		Short: does,
		Long: "HOST runs \"verbs perf serve\", or with --perftest " + program + ".\n" +
			"\"verbs help perf\" describes what is measured.",
		Example: fmt.Sprintf(`  verbs perf %[1]s 10.1.0.1
  verbs perf %[1]s 10.1.0.1 -n 10000 --json | jq '.results[0].%[2]s'
  verbs perf %[1]s --perftest                  # for %[3]s HOST`,
			c.Name(), map[string]string{perf.Lat: "latency.median_us", perf.BW: "bandwidth.gbit_per_s"}[metric], program),
		Args: func(cmd *command.Command, args []string) error {
			if len(args) == 0 && !o.perftest {
				return command.Usagef("HOST is missing: the host where \"verbs perf serve\" runs; only with --perftest can this side be the server")
			}
			return command.Arguments(1)(cmd, args)
		},
		Run: func(cmd *command.Command, args []string) error {
			host := ""
			if len(args) == 1 {
				host = args[0]
			}
			return o.run(cmd, host)
		},
	}
	o.flags(cmd.Flags(), program)
	o.hints = perfLocalFlags(cmd, &o.local)
	command.JSONFlag(cmd, &o.json)
	return cmd
}

// flags defines the flags of a test.
func (o *perfOptions) flags(f *pflag.FlagSet, program string) {
	c := &o.config
	f.StringVarP(&c.Type, "type", "t", c.Type, "`TYPE` of the queue pairs: "+strings.Join(c.Types(), ", "))
	if c.Op != perf.Atomic {
		f.IntSliceVarP(&o.sizes, "size", "s", c.Sizes, "message size in `BYTES`, or several sizes separated by commas")
		f.BoolVarP(&o.all, "all", "a", false, "all powers of two from 2 bytes to 8 MiB, or to what the devices support")
	}
	f.IntVarP(&c.Iterations, "iterations", "n", c.Iterations, "count `N` messages of each queue pair and size")
	f.DurationVarP(&c.Duration, "duration", "D", 0, "measure each size for this `TIME` instead"+map[string]string{perf.BW: "; with --run-infinitely the time between two lines, at least 100ms, by default 5s"}[c.Metric])
	f.IntVar(&c.Warmup, "warmup", c.Warmup, "send `N` messages of each queue pair and size first, which do not count")
	if c.Metric == perf.BW {
		f.IntVarP(&c.QPs, "qps", "q", c.QPs, "use `N` queue pairs")
		f.BoolVarP(&c.Both, "both", "b", false, "send in both directions at once")
		f.IntVarP(&c.List, "list", "l", c.List, "post `N` messages at a time, with one doorbell")
		f.IntVarP(&c.Moderate, "moderate", "Q", c.Moderate, "request one completion for `N` messages")
		command.DefaultIs(f, "list", "as many as there is room for, up to 64, on iWARP up to 1 MiB; with --rate 1")
		command.DefaultIs(f, "moderate", "100, 1 above 8 KiB, or --list")
		f.StringVar(&o.rate, "rate", "", "limit each side to this `RATE`: messages per second, or with a suffix Gb, Mb or MiB per second")
		f.StringVar(&o.limits, "rate-type", o.limits, "`WHO` keeps to --rate, this program or on InfiniBand the device, for each queue pair: sw, hw")
		f.BoolVar(&c.Endless, "run-infinitely", false, "measure until interrupted, with a line on standard error each --duration; a server may end it earlier (--max-time)")
		if c.Op == perf.Send {
			f.BoolVarP(&o.mcg, "mcg", "g", false, "send datagrams to a multicast group of RoCE, which the server joins (serve --allow-mcg); implies --type ud")
			f.StringVarP(&o.mgid, "mgid", "M", "", "the group's IP `ADDRESS` for --mcg")
			command.DefaultIs(f, "mgid", perf.DefaultGroup.String())
		}
		f.IntVar(&c.Depth, "depth", c.Depth, "keep `N` messages of each queue pair in flight")
	}
	if c.Op == perf.Send || c.Op == perf.Write {
		f.IntVarP(&c.Inline, "inline", "I", c.Inline, "send messages of up to this many `BYTES` in the work request itself")
		command.DefaultIs(f, "inline", "for latency about 220, or what the device supports; else 0")
	}
	if c.Op == perf.Send || c.Op == perf.Write {
		f.IntVarP(&c.RecvDepth, "recv-depth", "r", c.RecvDepth, "post `N` receives of each queue pair")
		command.DefaultIs(f, "recv-depth", "512; for uc and ud one for each message, up to 16000")
		f.BoolVar(&c.Imm, "imm", false, "send with immediate data, for which a WRITE takes a receive (--"+c.Op+"_with_imm of perftest)")
		f.BoolVar(&c.SRQ, "use-srq", false, "have the queue pairs of a side take receives from one shared receive queue")
	}
	if c.Op == perf.Atomic {
		f.StringVarP(&c.AtomicType, "atomic-type", "A", c.AtomicType, "`TYPE` of the atomics, FETCH_AND_ADD of 1 or CMP_AND_SWAP of 0 for 1: add, swap")
	}
	if c.Op == perf.Read || c.Op == perf.Atomic {
		f.IntVarP(&c.RdAtomic, "outs", "o", 0, "keep `N` READs and atomics of a queue pair in flight (default what both devices support)")
	}
	f.BoolVarP(&c.Events, "events", "e", false, "sleep until a completion event instead of polling, on both sides")
	if c.Op == perf.Write || c.Op == perf.Read {
		f.BoolVar(&o.local.NullMR, "use-null-mr", false, "send zeros and discard what is read, by the null memory region of mlx5")
	}
	f.BoolVar(&c.OutOfOrder, "use-ooo", false, "let both devices place data as packets arrive, also out of order (mlx5)")
	command.NumberVar(f, &c.Streams, "log-dci-streams", "", 0, 0, 15, "with --type dc divide each initiator into 2 to the power of `N` streams")
	f.BoolVarP(&c.Verify, "verify", "V", false, "compare the received data with what was sent, which takes time")
	f.BoolVarP(&c.CM, "cm", "R", false, "connect the queue pairs by the RDMA connection manager")
	f.IntVarP(&c.MTU, "mtu", "m", 0, "path MTU in `BYTES` (default the smaller one of both ports)")
	command.NumberVar(f, &c.SL, "sl", "S", 0, 0, 15, "service `LEVEL`")
	command.PKeyFlag(f, &c.PKey, "`KEY` of the partition for both sides, such as 0x8001; perftest needs its own --pkey_index", command.MyPartition)
	command.NumberVar(f, &o.pkeyIndex, "pkey-index", "", -1, 0, math.MaxInt, "`INDEX` of the partition in the P_Key table of this side, instead of --pkey")
	command.DefaultIs(f, "pkey-index", "none")
	command.NumberVar(f, &c.TOS, "tos", "", 0, 0, math.MaxUint8, "traffic `CLASS`")
	command.NumberVar(f, &c.FlowLabel, "flow-label", "", 0, 0, 1<<20-1, "flow `LABEL`, from which some devices derive the UDP source port of RoCE v2")
	f.IntVar(&c.AckTimeout, "ack-timeout", c.AckTimeout, "wait 4.096 µs times 2 to the power of `N` for an acknowledgement")
	f.IntVar(&c.Retry, "retry", c.Retry, "send up to `N` times again without an acknowledgement; on rxe, 7 is no limit")
	f.DurationVar(&c.Timeout, "timeout", c.Timeout, "give up when nothing completes for this `TIME`")
	command.NumberVar(f, &o.port, "port", "p", perf.DefaultPort, 1, maxPort, "TCP `PORT` of the server")
	command.DefaultIs(f, "port", fmt.Sprintf("%d, with --perftest %d", perf.DefaultPort, perftest.DefaultPort))
	f.BoolVar(&o.perftest, "perftest", false, "the peer is perftest's "+program+", as the server or, without HOST, as the client")
	f.StringVar(&o.dataAddr, "data-addr", "", "the client with --perftest may have this `ADDRESS` for its messages (server; default the one that it connects from)")
	command.ListVar(f, &o.local.Counters, "report-counters", "W", "show how much counters of this side's port grow during each size, warm-up included: `NAMES` of verbs stat, separated by commas")
	f.StringVar(&o.plot, "plot", "", "draw the result into `FILE` (.svg), which only its owner can read: bandwidth or latency over the size, or for one size the distribution of the latency")
	f.DurationVar(&o.timeline, "timeline", 0, "keep how many messages each `TIME` had, and whether this side's port was active, for --json and --plot")
	f.StringArrayVar(&o.over, "overlay", nil, "draw the result of an earlier --json in `FILE` into the same picture; may be repeated")
}

// perfLocalFlags defines the flags of either side. Those of hints are returned.
func perfLocalFlags(cmd *command.Command, l *perf.Local) *hintFlags {
	f := cmd.Flags()
	f.StringVarP(&l.Device, "dev", "d", "", "RDMA device `DEV` (default the one with the address of the route to the peer)")
	command.NumberVar(f, &l.Port, "ib-port", "i", 0, 1, math.MaxUint8, "`PORT` of the device")
	command.DefaultIs(f, "ib-port", "the first active one")
	command.NumberVar(f, &l.GID, "gid", "x", l.GID, 0, math.MaxInt, "`INDEX` of the local GID")
	command.DefaultIs(f, "gid", "chosen to match the peer")
	command.NumberVar(f, &l.Vector, "vector", "X", 0, 0, math.MaxInt, "completion vector `N` for the events of --events")
	f.BoolVar(&l.ODP, "odp", false, "have the device page memory in on demand instead of pinning it")
	f.BoolVar(&l.Relaxed, "relaxed-ordering", false, "let the device reorder writes to memory; devices that cannot do that ignore it")
	f.BoolVar(&l.HugePages, "huge-pages", false, "take memory from huge pages")
	command.NumberVar(f, &l.CPU, "cpu", "", l.CPU, 0, 1023, "run on processor `N`")
	command.DefaultIs(f, "cpu", "any")
	f.StringVar(&l.DMABuf, "dmabuf", "", "use the memory of the dma-buf `FILE`: an open descriptor such as /proc/self/fd/3, or memory of a heap such as /dev/dma_heap/system")
	f.BoolVar(&l.Direct, "use-data-direct", false, "let the device access the memory of --dmabuf by its second PCI function, beside a GPU (mlx5)")
	f.BoolVar(&l.DM, "use-dm", false, "use memory of the device itself (mlx5)")
	h := &hintFlags{}
	command.NumberVar(f, &h.ph, "ph", "", perf.Auto, 0, 3, "have PCI processing hint `N` go with the device's accesses to memory (mlx5)")
	command.DefaultIs(f, "ph", "none")
	f.StringVar(&h.mem, "tph-mem", "", "with --ph and --cpu-id, `TYPE` of the memory: vm (volatile), pm (persistent)")
	command.NumberVar(f, &h.cpu, "cpu-id", "", perf.Auto, 0, 1023, "with --ph, have the data go to the cache of processor `N`")
	command.DefaultIs(f, "cpu-id", "none")
	return h
}

// hintFlags are the flags for the hints that go with accesses to memory, which perftest has, too.
type hintFlags struct {
	ph, cpu int
	mem     string
}

// options returns the hints, or nil if there are none.
func (h *hintFlags) options() (*uverbs.DMAHOptions, error) {
	types := map[string]uverbs.TPHMemType{"": 0, "vm": uverbs.TPHMemVolatile, "pm": uverbs.TPHMemPersistent}
	kind, ok := types[h.mem]
	switch {
	case !ok:
		return nil, fmt.Errorf("--tph-mem is %s, allowed: vm, pm", peertext.Quote(h.mem))
	case (h.mem == "") != (h.cpu == perf.Auto):
		return nil, errors.New("--tph-mem and --cpu-id go together: give both or none")
	case h.ph == perf.Auto && h.mem != "":
		return nil, fmt.Errorf("--tph-mem is %s, but without --ph there are no hints", h.mem)
	case h.ph == perf.Auto:
		return nil, nil
	}
	o := &uverbs.DMAHOptions{ProcessingHint: new(uint8(h.ph)), MemType: kind}
	if h.cpu != perf.Auto {
		o.CPU = &h.cpu
	}
	return o, nil
}

// run measures.
func (o *perfOptions) run(cmd *command.Command, host string) error {
	ctx, out, log := cmd.Context(), cmd.Out(), cmd.Err()
	old, err := o.check(cmd, host)
	if err != nil {
		return command.UsageError{Err: err}
	}
	var table *perfTable
	var measured func(perf.Size)
	if !o.json {
		table = &perfTable{out: out, lat: o.config.Metric == perf.Lat}
		measured = table.row
	}
	var running func(size int, count func() int64) (stop func())
	switch {
	case o.config.Endless:
		running = o.showLines(log)
	case log.IsTerminal():
		running = func(size int, count func() int64) func() { return showProgress(log, size, count) }
	}
	var report *perf.Report
	if o.perftest {
		e := &perftestEnd{o: o, server: host == "", measured: measured, running: running}
		report, err = o.untilStopped(ctx, e.finish, func(ctx context.Context) (*perf.Report, error) { return e.run(ctx, log, host) })
	} else {
		client := &perf.Client{Config: o.config, Local: o.local, Host: host, Port: o.port, Measured: measured, Running: running, Timeline: o.timeline}
		report, err = o.untilStopped(ctx, client.Finish, client.Run)
		if limit := client.Limit(); err == nil && limit != 0 {
			fmt.Fprintf(log, "the server has ended the test after %s (--max-time)\n", limit)
		}
	}
	if err != nil {
		value := errors.As(err, new(perf.ValueError)) // the device does not allow it
		if err = fmt.Errorf("%s: %w", o.config.Name(), err); value {
			err = command.UsageError{Err: err}
		}
	}
	if report == nil { // not even one size is finished
		return err
	}
	if o.json {
		err = errors.Join(err, command.PrintJSON(out, report))
	} else {
		err = errors.Join(err, table.err)
	}
	if o.plot != "" { // the result is printed even if drawing fails
		err = errors.Join(err, draw("plot", o.plot, plot.Options{}, append(old, plot.Named{Name: map[bool]string{true: "this run"}[len(old) > 0], Report: report})))
	}
	return err
}

// untilStopped runs a test. If it has no end of its own, it ends with its result when the context does.
func (o *perfOptions) untilStopped(ctx context.Context, finish func() bool, run func(context.Context) (*perf.Report, error)) (*perf.Report, error) {
	if !o.config.Endless {
		return run(ctx)
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		if !finish() { // nothing is measured yet
			cancel()
		}
	})()
	return run(running)
}

// check refuses impossible options before anything is opened. It returns the earlier
// results to draw into the picture.
func (o *perfOptions) check(cmd *command.Command, host string) ([]plot.Named, error) {
	changed := cmd.Flags().Changed
	if changed("duration") && o.config.Duration == 0 {
		return nil, errors.New("--duration is 0s, allowed: more than 0")
	}
	if err := o.settleGroup(changed); err != nil {
		return nil, err
	}
	o.config.Shorten = !changed("size") && !o.all
	if err := o.settle(); err != nil {
		return nil, err
	}
	if o.config.Endless && changed("iterations") {
		return nil, errors.New("--run-infinitely and --iterations exclude each other")
	}
	if changed("report-counters") && len(o.local.Counters) == 0 {
		return nil, errors.New("--report-counters is empty, allowed: names of counters, which verbs stat lists")
	}
	if changed("vector") && !o.config.Events {
		return nil, fmt.Errorf("--vector is %d, but without --events there are none", o.local.Vector)
	}
	if changed("recv-depth") && o.config.Op == perf.Write && !o.config.Imm {
		return nil, fmt.Errorf("--recv-depth without --imm: %s takes no receives", o.config.Name())
	}
	var err error
	if o.local.DMAH, err = o.hints.options(); err != nil {
		return nil, err
	}
	if err := o.local.Validate(&o.config); err != nil {
		return nil, err
	}
	if changed("timeline") && (o.timeline < perf.LeastTimeline || o.timeline > time.Hour) {
		return nil, fmt.Errorf("--timeline is %s, allowed: %s to %s", o.timeline, perf.LeastTimeline, time.Hour)
	}
	if o.timeline > 0 && o.perftest {
		return nil, errors.New("--timeline and --perftest exclude each other")
	}
	if o.perftest {
		if !changed("port") {
			o.port = perftest.DefaultPort
		}
		if err := o.checkPerftest(changed, host); err != nil {
			return nil, err
		}
	}
	if o.dataAddr != "" && (!o.perftest || host != "") {
		return nil, fmt.Errorf("--data-addr is %s, allowed: only for the server of --perftest, which has no HOST", o.dataAddr)
	}
	return o.picture(cmd)
}

// picture checks the files of --plot and --overlay.
func (o *perfOptions) picture(cmd *command.Command) ([]plot.Named, error) {
	if o.plot == "" {
		if len(o.over) > 0 {
			return nil, errors.New("--overlay needs --plot, the file to draw into")
		}
		return nil, nil
	}
	var old []plot.Named
	if err := checkPicture("plot", o.plot); err != nil {
		return nil, err
	}
	for _, name := range o.over {
		r, err := readReport(cmd, name)
		if err != nil {
			return nil, fmt.Errorf("--overlay: %w", err)
		}
		old = append(old, plot.Named{Name: filepath.Base(name), Report: r})
		if r.Config.Metric != o.config.Metric {
			return nil, fmt.Errorf("--overlay %s: it is of %s, which has no axis in common with %s", name, r.Test, o.config.Name())
		}
	}
	if len(old) > 0 {
		if err := plot.Check(old...); err != nil {
			return nil, fmt.Errorf("--overlay %w", err)
		}
	}
	return old, nil
}

// leastEvery is the least time between two lines of a test without an end.
const leastEvery = 100 * time.Millisecond

// settle copies the other flags into the config, and checks it.
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
	if o.config.Rate.Hardware = o.limits == "hw"; !slices.Contains([]string{"sw", "hw"}, o.limits) || o.rate == "" && o.config.Rate.Hardware {
		return fmt.Errorf("--rate-type is %s, allowed: sw, and hw with --rate", peertext.Quote(o.limits))
	}
	switch o.config.AtomicType { // perftest's words
	case "FETCH_AND_ADD":
		o.config.AtomicType = perf.Add
	case "CMP_AND_SWAP":
		o.config.AtomicType = perf.Swap
	}
	if o.config.Endless {
		const every = 5 * time.Second // perftest's
		o.every, o.config.Duration = cmp.Or(o.config.Duration, every), 0
		if o.every < leastEvery {
			return fmt.Errorf("--duration is %s, allowed with --run-infinitely: %s and more", o.every, leastEvery)
		}
	}
	if o.pkeyIndex >= 0 {
		o.local.PKeyIndex = &o.pkeyIndex
	}
	if o.config.CM && o.config.MTU != 0 {
		return fmt.Errorf("--mtu is %d, but with --cm the connection manager takes the MTU from the path", o.config.MTU)
	}
	return o.config.Validate()
}

// settleGroup sets the multicast group.
func (o *perfOptions) settleGroup(changed func(flag string) bool) error {
	group := perf.DefaultGroup
	if changed("mgid") {
		if !o.mcg {
			return fmt.Errorf("--mgid is %s, but without --mcg there is no group", peertext.Quote(o.mgid))
		}
		var err error
		if group, err = netip.ParseAddr(o.mgid); err != nil || !group.IsMulticast() || group.Zone() != "" {
			return fmt.Errorf("--mgid is %s, allowed: a multicast address, such as %s", peertext.Quote(o.mgid), perf.DefaultGroup)
		}
	}
	if o.mcg {
		o.config.MGID = group.As16()
		if !changed("type") {
			o.config.Type = perf.UD
		}
	}
	return nil
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
	for _, c := range s.Counters {
		t.printf("%9s %s %d\n", "", c.Name, c.Value)
	}
}

// printf prints, and keeps the first error.
func (t *perfTable) printf(format string, args ...any) {
	if _, err := fmt.Fprintf(t.out, format, args...); t.err == nil {
		t.err = err
	}
}

// showProgress shows the progress of a size in a line of a terminal until stop is called.
func showProgress(w *terminal.Writer, size int, count func() int64) (stop func()) {
	over := watchCount(500*time.Millisecond, count, func(took time.Duration, n int64, rate float64) {
		w.Rewrite("%d bytes: %.1f s, %d completions, %.0f per second", size, took.Seconds(), n, rate)
	})
	return func() {
		over()
		w.Rewrite("")
	}
}

// showLines shows the progress of a test without an end in lines.
func (o *perfOptions) showLines(w io.Writer) func(size int, count func() int64) (stop func()) {
	return func(size int, count func() int64) (stop func()) {
		return watchCount(o.every, count, func(took time.Duration, n int64, rate float64) {
			fmt.Fprintf(w, "%d bytes: %.1f s, %d messages, %.0f per second, %.3f Gb/s\n", size, took.Seconds(), n, rate, rate*float64(size)*8/1e9)
		})
	}
}

// watchCount calls a function at regular times, with the time since the start, a count and its growth per second, until
// stop is called.
func watchCount(every time.Duration, count func() int64, show func(took time.Duration, n int64, rate float64)) (stop func()) {
	tick := time.NewTicker(every)
	over, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		start, before, last := time.Now(), time.Duration(0), int64(0)
		for {
			select {
			case <-over:
				return
			case <-tick.C:
				n, took := count(), time.Since(start)
				show(took, n, float64(n-last)/(took-before).Seconds())
				last, before = n, took
			}
		}
	}()
	return func() {
		tick.Stop()
		close(over)
		<-gone
	}
}

// maxPort is the largest TCP or UDP port.
const maxPort = 65535

// maxClients is the largest value of the option for the number of clients at once.
const maxClients = 1 << 16

// newPerfServe makes the server's command.
func newPerfServe() *command.Command {
	local := perf.Local{GID: perf.Auto, CPU: perf.Auto}
	var s serveOptions
	var hints *hintFlags
	var maxTime time.Duration
	var allowMCG bool
	cmd := &command.Command{
		Use:   "serve [flags]",
		Short: "Serve the tests of other hosts until interrupted",
		Long: `Clients run "verbs perf" tests on other hosts or on this one, and choose what is measured. If
--dmabuf is an open descriptor, all clients share its memory; from a heap each client gets its own.
` + trust + `All clients together take up to --max-memory. The memory of a test is reserved before the device is
opened for it. At most --max-clients are served at once, including those that have not chosen a test
yet, and half of them from one address; another client gets an error. A client has 10 s for each
step of its handshake, and --max-time to measure, all sizes together: one that goes silent holds
memory and queue pairs no longer. The server sends messages of a test only to an address that has
shown that it receives them: the client reads a random number there first, by RDMA READ. Let the
server listen only on an address of a network that you trust (--listen).`,
		Example: `  verbs perf serve
  verbs perf serve --listen 10.1.0.1 --dev rxe0
  verbs perf serve --max-clients 1 --quiet`,
		Exit: "  0  interrupted\n  1  failure; standard error has the reason",
		Args: command.Arguments(0),
		Run: func(cmd *command.Command, _ []string) error {
			var err error
			if local.DMAH, err = hints.options(); err != nil {
				return command.UsageError{Err: err}
			}
			if err := local.Validate(&perf.Config{}); err != nil {
				return command.UsageError{Err: err}
			}
			if maxTime <= 0 || maxTime > perf.MaxMaxTime {
				return command.Usagef("--max-time is %s, allowed: more than 0, up to %s", maxTime, perf.MaxMaxTime)
			}
			return s.serve(cmd, &perf.Server{Local: local, MaxTime: maxTime, AllowMCG: allowMCG})
		},
	}
	s.flags(cmd.Flags(), perf.DefaultPort)
	cmd.Flags().DurationVar(&maxTime, "max-time", perf.DefaultMaxTime, "end a client that measures longer than this `TIME`, and refuse one whose --duration is longer")
	cmd.Flags().BoolVar(&allowMCG, "allow-mcg", false, "let clients have this host join multicast groups (--mcg)")
	hints = perfLocalFlags(cmd, &local)
	return cmd
}

// serveOptions are the flags of servers.
type serveOptions struct {
	listen                string
	port, memory, clients int
	quiet                 bool
}

// flags defines the flags.
func (s *serveOptions) flags(f *pflag.FlagSet, port int) {
	f.StringVar(&s.listen, "listen", "", "listen on this `ADDRESS` (default all)")
	command.NumberVar(f, &s.port, "port", "p", port, 1, maxPort, "listen on this TCP `PORT`")
	command.NumberVar(f, &s.memory, "max-memory", "", 0, 1, 1<<24, "limit the memory of all clients to `N` MiB")
	command.DefaultIs(f, "max-memory", "half of the machine's, at most 4096")
	command.NumberVar(f, &s.clients, "max-clients", "", perf.DefaultMaxClients, 1, maxClients, "serve up to `N` clients at once, half of them from one address")
	f.BoolVar(&s.quiet, "quiet", false, "do not log clients on standard error")
}

// serve serves tests until the command is interrupted.
func (s *serveOptions) serve(cmd *command.Command, server *perf.Server) error {
	l, err := new(net.ListenConfig).Listen(cmd.Context(), "tcp", net.JoinHostPort(s.listen, strconv.Itoa(s.port)))
	if err != nil {
		return err
	}
	if d, err := objects.OpenDevice(server.Local.Device); err != nil {
		fmt.Fprintf(cmd.Err(), "verbs: no test can run now: %v\n", err)
	} else {
		if infos, _ := uverbs.Devices(); server.Local.Device != "" || len(infos) == 1 { // or each client may get another one
			err = server.Local.CheckVector(d)
		}
		if errors.As(err, new(perf.ValueError)) {
			err = command.UsageError{Err: err}
		}
		if err := cmp.Or(err, d.Close()); err != nil {
			return errors.Join(err, l.Close())
		}
	}
	server.MaxMemory, server.MaxClients = cmp.Or(s.memory<<20, perf.DefaultMaxMemory()), s.clients
	if !s.quiet {
		log := cmd.Err()
		fmt.Fprintf(log, "serving on %s\n", l.Addr())
		server.Log = func(format string, args ...any) { fmt.Fprintf(log, format+"\n", args...) }
	}
	if err = server.Serve(cmd.Context(), l); errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
