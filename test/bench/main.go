// Bench measures our library beside rdma-core's, on the same device, in turn: verbs perf beside the
// programs of perftest, connections beside cmtime, and what those do not measure beside small C
// programs. It runs in the VM that tools/vmrun boots, or where there is RDMA.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/uverbs"
)

const usage = `Bench measures goverbs beside rdma-core, on the same device, in turn.

  bench [flags]           measure, and print a table
  bench compare A B       how the JSON of two runs differs, such as of two commits
  bench keep [flags] JSON  put a run where those of its architecture, kernel and commit are:
                          DIR/ARCH-KERNEL/COMMIT.json, .html and .txt
  bench render [flags] JSON  print the table of a run, and write the page and the text
  bench readme [flags] [JSON]  check a run in, and render its figures into test/bench/README.md

Rows, each of which -rows can choose:
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
          first line
  connect  connections that are made 50 at once by two processes, beside cmtime
  call    a call that posts a SEND of 64 bytes, and one that polls a completion. Both sides are
          compiled for speed, rdma-core's with -O2 as the distribution does it, and have one
          processor; both take the locks that a program with several threads needs
  mr      memory that is there already is registered, and deregistered
  qps     so many RC queue pairs are made and connected with themselves; and messages of 64
          bytes go over one after the other

Each figure of ours is divided by rdma-core's of the same round, and the ratios' median and
spread are told: below 1 is better for times, above 1 for msg/s and MiB/s. "!" marks what is not
as wanted.

The JSON has version (1), commit, date, kernel, arch, cpus, cpu, device, perftest (its version),
rounds, perftest_hung (runs of perftest's that hung and were done again; may be missing) and rows,
each with
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

// bench is a run of the whole.
type bench struct {
	device string
	rounds int
	count  int // messages of a run; 0 depends on the size
	sizes  []int
	mrs    []int
	qps    []int
	only   *regexp.Regexp

	verbs, open, theirs, self string // programs
	commit                    string
	json, html, text          string // files
	progress                  bool

	cm    bool // connect by the connection manager, and measure what iWARP has too
	guest bool // the machine may be set up

	gid         int
	port        int
	hung        int     // runs of perftest's that were given up, and done again
	serving     *server // verbs perf serve
	servingPort int
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// usageError is an error in the command line.
type usageError struct{ error }

// run does what the command line says, and returns the exit status.
func run(args []string, stdout, stderr io.Writer) int {
	var err error
	command := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		command, args = args[0], args[1:]
	}
	switch command {
	case "":
		err = measure(args, stdout, stderr)
	case "compare":
		err = compareFiles(args, stdout)
	case "keep":
		err = keepFile(args, stdout, stderr)
	case "render":
		err = renderFile(args, stdout, stderr)
	case "readme":
		err = writeReadme(args, stdout)
	case "child":
		err = child(args, stdout)
	default:
		err = usageError{fmt.Errorf("%q is no command, allowed: compare, keep, render, readme, or flags alone to measure", command)}
	}
	var u usageError
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &u):
		fmt.Fprintf(stderr, "bench: %s (bench -help tells more)\n", err)
		return 2
	}
	fmt.Fprintf(stderr, "bench: %s\n", err)
	return 1
}

// parse parses flags, of which errors are for the caller to tell.
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

// numbers parses a list of numbers of a range.
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

// joined writes numbers with commas.
func joined(n []int) string { return strings.Trim(strings.ReplaceAll(fmt.Sprint(n), " ", ","), "[]") }

// options reads the command line.
func options(args []string, stdout io.Writer) (*bench, error) {
	b := &bench{port: 18600}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.StringVar(&b.device, "device", "", "the RDMA device (default: the first one)")
	f.IntVar(&b.rounds, "rounds", 5, "how often each row is measured, by both in turn")
	f.IntVar(&b.count, "iterations", 0, "messages of a run of traffic (default: depends on the size)")
	sizes := f.String("sizes", joined(defaultSizes), "`sizes` of messages in bytes, with commas")
	mrs := f.String("mr", "4096,1048576,1073741824", "`sizes` of memory to register in bytes, with commas")
	qps := f.String("qps", "1,10,100,1000,10000", "`numbers` of queue pairs, with commas")
	only := f.String("rows", "", "`regexp` of the names of the rows to measure (default: all)")
	f.BoolVar(&b.guest, "guest", false, "the machine is a guest of the run's own: have TCP keep no ports of connections that have ended, which iWARP needs")
	f.BoolVar(&b.cm, "cm", false, "connect by the connection manager, as on iWARP; what iWARP has not is left out: atomic, call, qps")
	f.StringVar(&b.verbs, "verbs", "verbs", "our `program` for traffic")
	f.StringVar(&b.open, "open", "bench-open", "our `program` that opens a device")
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
	if len(b.selected()) == 0 {
		return nil, usageError{fmt.Errorf("-rows is %q, which is no row's name", *only)}
	}
	return b, nil
}

// selected returns the work that has a row which is wanted.
func (b *bench) selected() []work {
	return slices.DeleteFunc(b.all(), func(w work) bool {
		return !slices.ContainsFunc(w.rows, func(r Row) bool { return b.only.MatchString(r.Name) })
	})
}

// terminal reports whether a file is one.
func terminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// measure measures.
func measure(args []string, stdout, stderr io.Writer) error {
	b, err := options(args, stdout)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	r, err := b.prepare(ctx)
	if err != nil {
		return err
	}
	if b.progress {
		defer fmt.Fprint(stderr, "\r\x1b[K")
	}
	fmt.Fprintf(stdout, "%s\n%s\n", r.title(), heading)
	failed := 0
	for _, w := range b.selected() {
		rows := b.turns(ctx, w, stderr)
		if ctx.Err() != nil {
			break
		}
		for _, row := range rows {
			if row.Error != "" {
				failed++
			}
			if b.only.MatchString(row.Name) {
				fmt.Fprintln(stdout, row.line())
				r.Rows = append(r.Rows, row)
			}
		}
	}
	if b.serving != nil {
		b.serving.stop()
	}
	fmt.Fprintln(stdout, footing)
	if r.Hung = b.hung; r.Hung > 0 {
		fmt.Fprintf(stdout, "Runs of perftest's that hung and were done again: %d.\n", r.Hung)
	}
	if len(r.Rows) == 0 {
		return errors.New("interrupted")
	}
	if err := b.write(r); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d rows could not be measured", failed)
	}
	return ctx.Err()
}

// write writes the files that are asked for.
func (b *bench) write(r *Report) error {
	for _, f := range []struct {
		name  string
		write func(io.Writer) error
	}{{b.json, r.writeJSON}, {b.html, r.writeHTML}, {b.text, r.writeBenchstat}} {
		if f.name == "" {
			continue
		}
		if err := save(f.name, f.write); err != nil {
			return err
		}
	}
	return nil
}

// prepare finds what the programs must be told, and says what is measured.
func (b *bench) prepare(ctx context.Context) (*Report, error) {
	if b.device == "" {
		all, err := uverbs.Devices()
		if err != nil {
			return nil, err
		}
		if len(all) == 0 {
			return nil, errors.New("there is no RDMA device")
		}
		b.device = all[0].Name
	}
	var err error
	if b.self, err = os.Executable(); err != nil {
		return nil, err
	}
	if !b.cm {
		if b.gid, err = gidIndex(b.device); err != nil {
			return nil, err
		}
	}
	if b.guest { // on iWARP rdma-core's programs fail if TCP still has a port
		if err := os.WriteFile("/proc/sys/net/ipv4/tcp_max_tw_buckets", []byte("0"), 0); err != nil {
			return nil, err
		}
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, err
	}
	r := &Report{
		Version: ReportVersion, Commit: b.commit, Date: time.Now().UTC().Format("2006-01-02 15:04"),
		Kernel: unix.ByteSliceToString(u.Release[:]), Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), CPU: cpuName(),
		Device: b.device, Rounds: b.rounds,
	}
	if out, _ := exec.CommandContext(ctx, "ib_send_lat", "--version").CombinedOutput(); len(out) > 0 { // its status says nothing
		if _, version, ok := strings.Cut(string(out), "Version: "); ok {
			r.Perftest = strings.Fields(version)[0]
		}
	}
	return r, nil
}

// cpuName returns what the processor calls itself.
func cpuName() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	for l := range strings.Lines(string(b)) {
		if key, name, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(name)
		}
	}
	return "unknown"
}

// turns has both do some work, in turn.
func (b *bench) turns(ctx context.Context, w work, log io.Writer) []Row {
	rows := slices.Clone(w.rows)
	for round := range b.rounds {
		if b.progress {
			fmt.Fprintf(log, "\r\x1b[Kround %d of %d: %s", round+1, b.rounds, rows[0].Name)
		}
		var figures [2][]float64
		for k := range figures {
			k = (k + round) % 2 // neither has the advantage of being first
			one, cancel := context.WithTimeout(ctx, patience)
			var err error
			figures[k], err = []func(context.Context) ([]float64, error){w.ours, w.theirs}[k](one)
			cancel()
			if err != nil {
				for i := range rows {
					rows[i].Ours, rows[i].RdmaCore, rows[i].Error = nil, nil, err.Error()
				}
				return rows
			}
		}
		for i := range rows {
			rows[i].Ours = append(rows[i].Ours, figures[0][i])
			rows[i].RdmaCore = append(rows[i].RdmaCore, figures[1][i])
		}
	}
	for i := range rows {
		rows[i].sum()
	}
	if b.progress {
		fmt.Fprint(log, "\r\x1b[K")
	}
	return rows
}

// compareFiles compares two reports.
func compareFiles(args []string, stdout io.Writer) error {
	f := flag.NewFlagSet("compare", flag.ContinueOnError)
	if err := parse(f, args, "bench compare A B: how the JSON of two runs differs\n", stdout); err != nil {
		return err
	}
	if f.NArg() != 2 {
		return usageError{fmt.Errorf("compare has %d arguments, want the JSON of two runs", f.NArg())}
	}
	a, err := readReport(f.Arg(0))
	if err != nil {
		return err
	}
	b, err := readReport(f.Arg(1))
	if err != nil {
		return err
	}
	return compare(stdout, a, b)
}

// keepFile keeps a report.
func keepFile(args []string, stdout, stderr io.Writer) error {
	f := flag.NewFlagSet("keep", flag.ContinueOnError)
	dir := f.String("dir", ".build/bench", "the `directory` of all runs")
	help := "bench keep [flags] JSON: puts a run where those of its architecture, kernel and commit are.\nRows that its commit has there already stay, unless they were measured anew.\n"
	r, err := one(f, args, help, stdout)
	if err != nil {
		return err
	}
	file, err := r.keep(*dir)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "kept as %s, and as .html and .txt\n", file)
	others, err := filepath.Glob(filepath.Join(filepath.Dir(file), "*.json"))
	if err == nil && len(others) > 1 {
		fmt.Fprintf(stdout, "there are %d others, to compare with: bench compare %s %s\n", len(others)-1, filepath.Join(filepath.Dir(file), "OTHER.json"), file)
	}
	return nil
}

// one parses flags and reads the report that is the argument.
func one(f *flag.FlagSet, args []string, help string, stdout io.Writer) (*Report, error) {
	if err := parse(f, args, help, stdout); err != nil {
		return nil, err
	}
	if f.NArg() != 1 {
		return nil, usageError{fmt.Errorf("%s has %d arguments, want the JSON of a run", f.Name(), f.NArg())}
	}
	return readReport(f.Arg(0))
}

// renderFile prints a report, and writes it in other forms.
func renderFile(args []string, stdout, stderr io.Writer) error {
	b := &bench{}
	f := flag.NewFlagSet("render", flag.ContinueOnError)
	f.StringVar(&b.html, "html", "", "write a page with plots to this `file`")
	f.StringVar(&b.text, "benchstat", "", "write text for benchstat to this `file`")
	r, err := one(f, args, "bench render [flags] JSON: prints the table of a run\n", stdout)
	if err != nil {
		return err
	}
	if err := r.writeText(stdout); err != nil {
		return err
	}
	return b.write(r)
}

// child is what this program does when it is the one that is timed.
func child(args []string, out io.Writer) error {
	bad := usageError{fmt.Errorf("child %q: not what this program tells itself", args)}
	if len(args) < 2 {
		return bad
	}
	device := args[1]
	switch {
	case args[0] == "accept" && len(args) == 2:
		return accept(out, device)
	case args[0] == "connect" && len(args) == 3:
		return connect(out, device, args[2])
	}
	var n []int
	for _, a := range args[2:] {
		v, err := strconv.Atoi(a)
		if err != nil || v < 0 {
			return bad
		}
		n = append(n, v)
	}
	w := bufio.NewWriter(out) // so that nobody wakes up to read in the middle, as from the C programs
	var err error
	switch {
	case args[0] == "calls" && len(n) == 4:
		err = calls(w, device, n[1], n[2], n[3])
	case args[0] == "mr" && len(n) == 2:
		err = registrations(w, device, n[0], n[1])
	case args[0] == "qps" && len(n) == 3:
		err = manyQPs(w, device, n[0], n[1], n[2])
	default:
		return bad
	}
	return errors.Join(err, w.Flush())
}
