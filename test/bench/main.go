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

// bench is a run of the whole.
type bench struct {
	device string
	rounds int
	count  int // messages of a run; 0 depends on the size
	sizes  []int
	mrs    []int
	qps    []int
	only   *regexp.Regexp

	verbs, open, plain, theirs, self string // programs
	commit                           string
	json, html, text                 string // files
	progress                         bool

	cm    bool // connect by the connection manager, and measure what iWARP has too
	guest bool // the machine may be set up

	counted bool // the clock counts instructions
	card    bool // the device is a card, which the guest's processor does not execute

	gid         int
	dc          bool // the device has DC
	srd         bool // the device has SRD, and no connections
	port        int
	hung        int     // runs of perftest's that were given up, and done again
	serving     *server // verbs perf serve
	servingPort int
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

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
	case "memory":
		err = memoryCommand(args, stdout)
	case "costs":
		err = costsCommand(args, stdout)
	case "hotpaths":
		err = hotPathsCommand(args, stdout)
	case "child":
		err = child(args, stdout)
	default:
		err = usageError{fmt.Errorf("%q is no command, allowed: compare, keep, render, readme, costs, hotpaths, memory, or flags alone to measure", command)}
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

// selected returns the work that has a row which is wanted.
func (b *bench) selected() []work { return b.having(b.wants) }

// having returns the work that has a row of such a name.
func (b *bench) having(name func(string) bool) []work {
	return slices.DeleteFunc(b.all(), func(w work) bool {
		return !slices.ContainsFunc(w.rows, func(r Row) bool { return name(r.Name) })
	})
}

// counted is what the names of rows begin with whose unit of time is a number of instructions.
const counted = "count/"

// countable are the rows that can be counted in instructions: on the one processor of such a guest two
// programs that poll would share it.
var countable = regexp.MustCompile(`^(open|connect|dial|call|dc|srd|mr|qps|cqs|mrs|conns)/|^plain/.*events(/processor)?$|^(read|atomic)-(lat|bw)/.*/wait=poll$`)

// countableOnCard are the countable rows if the device is a card. They time only calls that do not
// wait: a call that waits would count the time of the card, or how often the program polls
// meanwhile.
var countableOnCard = regexp.MustCompile(`^(call|dc|srd)/`)

// wants reports whether a row is wanted.
func (b *bench) wants(name string) bool {
	can := countable
	if b.card {
		can = countableOnCard
	}
	return b.only.MatchString(name) && (!b.counted || can.MatchString(name))
}

// known reports whether a device that can do other things may have a row that -rows names.
func (b *bench) known() bool {
	connected, datagrams := *b, *b
	connected.dc, connected.srd, datagrams.srd = !b.cm, false, !b.cm
	return len(connected.having(b.only.MatchString))+len(datagrams.having(b.only.MatchString)) > 0
}

// check reports why no row is left to measure. Without a card -counted may leave none: make bench gives the same
// -rows to a run by the clock and to one that counts, which has other sizes.
func (b *bench) check() error {
	switch {
	case len(b.having(b.only.MatchString)) == 0 && b.known():
		return fmt.Errorf("-rows is %q: %s cannot do what these rows measure", b.only, b.device)
	case b.card && len(b.selected()) == 0:
		return fmt.Errorf("-rows is %q: with -counted, %s can measure only the rows %s, as all others wait for the card", b.only, b.device, countableOnCard)
	}
	return nil
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
	if err := b.check(); err != nil {
		return err
	}
	if b.counted {
		r.Counted = r.title()
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
			if b.wants(row.Name) {
				if b.counted {
					row.Name = counted + row.Name
				}
				fmt.Fprintln(stdout, row.line())
				r.Rows = append(r.Rows, row)
			}
		}
	}
	if b.serving != nil {
		b.serving.stop()
	}
	fmt.Fprintf(stdout, "%s\n%s", footing, r.notice())
	if r.Hung = b.hung; r.Hung > 0 {
		fmt.Fprintf(stdout, "Runs of perftest's that hung and were done again: %d.\n", r.Hung)
	}
	if len(r.Rows) == 0 && (ctx.Err() != nil || !b.counted) {
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

// write writes the files that the flags name.
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

// find finds the device.
func (b *bench) find() error {
	all, err := uverbs.Devices()
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return errors.New("there is no RDMA device")
	}
	if b.device == "" {
		b.device = all[0].Name
	}
	i := slices.IndexFunc(all, func(d uverbs.DeviceInfo) bool { return d.Name == b.device })
	if i < 0 {
		return fmt.Errorf("-device is %q, which no RDMA device is called", b.device)
	}
	b.card, b.srd = !slices.Contains([]string{"rxe", "siw"}, all[i].Driver), all[i].Driver == "efa"
	return nil
}

// prepare finds what the programs must be told, and says what is measured.
func (b *bench) prepare(ctx context.Context) (*Report, error) {
	err := b.find()
	if err != nil {
		return nil, err
	}
	if b.self, err = os.Executable(); err != nil {
		return nil, err
	}
	if !b.cm && !b.srd {
		if b.gid, err = gidIndex(b.device); err != nil {
			return nil, err
		}
		if b.dc, err = hasDC(b.device); err != nil {
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
	case args[0] == "listen" && len(args) == 2:
		return listen(out)
	case args[0] == "dial" && len(args) == 3:
		return dial(out, device, args[2])
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
	case args[0] == "dc" && len(n) == 4:
		err = dc(w, device, n[1], n[2], n[3])
	case args[0] == "srd" && len(n) == 4 && n[2]%srdList == 0:
		err = srd(w, device, n[1], n[2], n[3])
	case args[0] == "mr" && len(n) == 2:
		err = registrations(w, device, n[0], n[1])
	case args[0] == "qps" && len(n) == 5 && !slices.Contains(n[1:4], 0):
		err = many(w, device, n[1], n[2], n[3], n[4])
	case args[0] == "conns" && len(n) == 2 && n[0] > 0:
		err = conns(w, serverAny, n[0], n[1])
	default:
		return bad
	}
	return errors.Join(err, w.Flush())
}
