package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const usage = `Bench measures goverbs beside rdma-core, on the same device, in turn.

  bench [flags]           measure, and print a table
  bench compare A B       how the JSON of two runs differs, such as of two commits
  bench keep [flags] JSON  put a run where those of its architecture, kernel and commit are:
                          DIR/ARCH-KERNEL/COMMIT.json, .html and .txt
  bench render [flags] JSON  print the table of a run, and write the page and the text
  bench readme [flags] [JSON]  check a run in, and render its figures into test/bench/README.md
  bench costs [flags] JSON  compare the instructions of a run with the recorded ones, or record them
  bench hotpaths [flags]  the instructions of posting and polling, by function, beside the recorded ones
  bench memory            the memory of objects, on the first device

Rows, each of which -rows can choose:
  plain   the example program in the directory plain, which tunes nothing, beside ibv_rc_pingpong, for
          sizes from 64 bytes to 64 KiB: the time of an exchange, polling and with events. On a machine
          with one processor the servers wait for events in any case. processor: the processor time
          of the client, its start included, per exchange
  send-lat, send-bw, write-lat, write-bw, read-lat, read-bw, atomic-lat, atomic-bw
          verbs perf beside ib_send_lat and so on, at each size; polling, and with events on both
          sides. Both get the same number of messages and no warm-up, and have perftest's
          defaults otherwise: RC, 128 messages under way and a completion for 100 (1 above 8 KiB)
          for bandwidth, one and inline data up to 236 bytes (220 of WRITE) for latency. Latency is
          the median of a run; -N keeps perftest from taking the time of each message of bandwidth.
          Below 2 KiB bandwidth is in messages per second. Each posts as it does unless told
          otherwise: verbs perf by one doorbell what there is room for, perftest message by message.
  .../list=16  messages that verbs perf posts 16 at a time, beside perftest as above
  .../list=1   the same one by one, for nothing but the difference that lists make
  open    from the start of a program, by one in C, until it has opened the device, and from its
          first line; nothing: of a program that opens none
  connect  connections that are made 50 at once by two processes, beside cmtime
  dial    the same with Dial and Listen: the first 50 of a program, and later ones, which use memory and
          CQs of those that were closed
  call    a call that posts a SEND of 64 bytes, and one that polls a completion. Both sides are
          compiled for speed, rdma-core's with -O2 as the distribution does it; both take the locks
          that a program with several threads needs. And a system call, fcntl(F_GETFD)
  dc      a call that posts 64 SENDs of 64 bytes with one doorbell, per message: by an initiator of DC (mlx5)
          to one target, or to two in turn, and by an RC queue pair, to compare with. rdma-core's programs
          use ibv_wr_start and so on
  srd     a call that posts SENDs or READs of 64 bytes by SRD (efa), one by one or 16 at a time, and one that polls
          their completions, by PostSend beside ibv_post_send, and by SendBuilder beside ibv_wr_start and so on, as
          libefa's ibv_post_send has no READ; and the polling alone. A device with SRD has these rows, open and mr
  mr      memory that is there already is registered, and deregistered
  qps     so many RC queue pairs are made and connected with themselves, messages of 64 bytes go over
          one after the other, and they are closed
  cqs     the same, where each queue pair has a CQ of its own
  mrs     the same with one queue pair and so many memory regions
  conns   messages of 64 bytes over one after the other of so many connections of package cm, from one end
          to the other in the same process, beside cqs. It is their growth that can be compared

Each figure of ours is divided by rdma-core's of the same round, and the ratios' median and
spread are told: below 1 is better for times, above 1 for msg/s and MiB/s. "!" marks what is not
as wanted. A notice at the end names the rows whose ratios are spread widely.

The JSON has version (1), commit, date, kernel, arch, cpus, cpu, device, perftest (its version),
rounds, perftest_hung (runs of perftest's that hung and were done again; may be missing), counted (the
title of the run that counted instructions; may be missing) and rows, each with
  name, unit          ns, µs, ms, msg/s or MiB/s
  better              less or more
  wanted              of the ratio, at most or at least; may be missing
  goverbs, rdma_core  a figure of each round, in the order of the rounds
  goverbs_median, rdma_core_median
  ratio               least, q1, median, q3 and most of the ratios of the rounds
  error               why the row could not be measured, instead of figures

The text for benchstat (golang.org/x/perf/cmd/benchstat) has both sides, "benchstat -col /by FILE";
and two commits are compared by "benchstat -filter /by:goverbs OLD NEW".

Exit status: 0; 1 if a row could not be measured; 2 if the command line is wrong.

Flags:
`

// usageError is an error in the command line.
type usageError struct{ error }

// options reads the command line.
func options(args []string, stdout io.Writer) (*bench, error) {
	b := &bench{port: 18600}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.StringVar(&b.device, "device", "", "the RDMA device (default: the first one)")
	f.IntVar(&b.rounds, "rounds", 5, "how often each row is measured, by both in turn")
	f.IntVar(&b.count, "iterations", 0, "messages of a run of traffic (default: depends on the size)")
	sizes := f.String("sizes", joined(defaultSizes), "`sizes` of messages in bytes, with commas")
	mrs := f.String("mr", "4096", "`sizes` of memory to register in bytes, with commas")
	qps := f.String("qps", "1,100,1000", "`numbers` of queue pairs, CQs, memory regions and connections, with commas")
	only := f.String("rows", "", "`regexp` of the names of the rows to measure (default: all)")
	f.BoolVar(&b.guest, "guest", false, "the machine is a guest of the run's own: have TCP keep no ports of connections that have ended, which iWARP needs")
	f.BoolVar(&b.cm, "cm", false, "connect by the connection manager, as on iWARP; only these rows are measured: open, connect, dial, mr, send, write, read")
	f.BoolVar(&b.counted, "counted", false, "measure only what one process does at a time, for a guest whose clock counts instructions; on a card call, dc and srd alone, as other rows wait for it; names begin with "+counted)
	f.StringVar(&b.verbs, "verbs", "verbs", "our `program` for traffic")
	f.StringVar(&b.open, "open", "bench-open", "our `program` that opens a device")
	f.StringVar(&b.plain, "plain", "bench-plain", "our `program` that plays ping-pong without tuning")
	f.StringVar(&b.theirs, "rdma-core", "rdmacore", "what the `names` of rdma-core's C programs begin with")
	f.StringVar(&b.commit, "commit", "unknown", "what of ours is measured")
	f.StringVar(&b.json, "json", "", "write the result as JSON to this `file`")
	f.StringVar(&b.html, "html", "", "write a page with plots to this `file`")
	f.StringVar(&b.text, "benchstat", "", "write text for benchstat to this `file`")
	f.BoolVar(&b.progress, "progress", terminal(os.Stderr), "tell on standard error what is being measured (default: on a terminal)")
	if err := parse(f, args, usage, stdout); err != nil {
		return nil, err
	}
	var err error
	for _, n := range []struct {
		name            string
		given           int
		lowest, highest int
	}{{"rounds", b.rounds, 1, 1000}, {"iterations", b.count, 0, 10_000_000}} {
		if n.given < n.lowest || n.given > n.highest {
			return nil, usageError{fmt.Errorf("-%s is %d, allowed: %d to %d", n.name, n.given, n.lowest, n.highest)}
		}
	}
	if b.count > 0 && b.count < 5 {
		return nil, usageError{fmt.Errorf("-iterations is %d, allowed: 0 for what suits the size, or 5 and more, which perftest wants", b.count)}
	}
	if b.sizes, err = numbers("sizes", *sizes, 1, 1<<30); err != nil {
		return nil, err
	}
	if b.mrs, err = numbers("mr", *mrs, 1, 1<<40); err != nil {
		return nil, err
	}
	if b.qps, err = numbers("qps", *qps, 1, 1<<20); err != nil {
		return nil, err
	}
	if b.only, err = regexp.Compile(*only); err != nil {
		return nil, usageError{fmt.Errorf("-rows: %w", err)}
	}
	if !kept.MatchString(b.commit) {
		return nil, usageError{fmt.Errorf("-commit is %q, allowed: letters, digits and . _ + -", b.commit)}
	}
	if f.NArg() > 0 {
		return nil, usageError{fmt.Errorf("%q: no arguments are wanted", f.Args())}
	}
	if !b.counted && !b.known() {
		return nil, usageError{fmt.Errorf("-rows is %q, which is no row's name", *only)}
	}
	return b, nil
}

// numbers parses a list of different numbers from lowest to highest, separated by commas.
func numbers(name, s string, lowest, highest int) ([]int, error) {
	var all []int
	for _, text := range strings.Split(s, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || n < lowest || n > highest || slices.Contains(all, n) {
			return nil, usageError{fmt.Errorf("-%s is %q, allowed: different numbers from %d to %d, with commas", name, s, lowest, highest)}
		}
		all = append(all, n)
	}
	return all, nil
}

// joined returns numbers separated by commas.
func joined(n []int) string { return strings.Trim(strings.ReplaceAll(fmt.Sprint(n), " ", ","), "[]") }

// parse parses flags. It prints the help, but leaves it to the caller to print errors.
func parse(f *flag.FlagSet, args []string, help string, stdout io.Writer) error {
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, help)
		f.SetOutput(stdout)
		f.PrintDefaults()
		return err
	}
	if err != nil {
		return usageError{err}
	}
	return nil
}

// terminal reports whether a file is a terminal.
func terminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
