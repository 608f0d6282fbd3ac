// Bench times calls of our library beside those of rdma-core's, on the same device, in turn: the
// posting of a small inline SEND, its doorbell included, and the polling of its completion. It
// runs in the VM that tools/vmrun boots.
//
// Both sides are compiled for speed, rdma-core's with -O2 as the distribution does it, and both
// take the locks that a program with several threads needs: rdma-core a spin lock for each call
// that posts or polls, ours one for each that posts, and with mlx5 for each that polls, which keeps
// Close out. Neither side's process has a second thread at work: our goroutines have one
// processor, unless -procs says otherwise.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/uverbs"
)

// setup is what is timed.
type setup struct {
	device string
	size   int // of a message, in bytes
	count  int // messages of a round
	rounds int // of a run
}

func main() {
	var s setup
	flag.StringVar(&s.device, "device", "", "the device; none is the first one")
	flag.IntVar(&s.size, "size", 64, "size of a message, in bytes")
	flag.IntVar(&s.count, "count", 64, "messages that are posted, and then polled, one by one")
	flag.IntVar(&s.rounds, "rounds", 60, "how often that is done in a run")
	runs := flag.Int("runs", 9, "runs of each, in turn")
	theirs := flag.String("rdma-core", "/bin/rdmacore-post", "the program that does the same with rdma-core")
	procs := flag.Int("procs", 1, "processors that our side's goroutines have; rdma-core's side is one thread")
	once := flag.Bool("once", false, "only one run of ours, whose rounds are printed")
	asJSON := flag.Bool("json", false, "print JSON")
	flag.Parse()
	err := s.check(*runs, *procs, flag.Args())
	switch {
	case err != nil:
	case *once:
		// With more, Go's scheduler looks after them meanwhile. In a machine that emulates as many
		// processors as the host has, on which the device is emulated as well, that is timed, too.
		runtime.GOMAXPROCS(*procs)
		err = s.ours()
	default:
		err = s.compare(*runs, *procs, *theirs, *asJSON)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %s\n", err)
		os.Exit(1)
	}
}

// check compares the numbers with their ranges, and finds a device.
func (s *setup) check(runs, procs int, rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("%q: no arguments are wanted", rest)
	}
	for _, f := range []struct {
		name           string
		given, highest int
	}{{"size", s.size, 1024}, {"count", s.count, 4096}, {"rounds", s.rounds, 1 << 20}, {"runs", runs, 1 << 10}, {"procs", procs, 1 << 10}} {
		if f.given < 1 || f.given > f.highest {
			return fmt.Errorf("-%s is %d; want 1 to %d", f.name, f.given, f.highest)
		}
	}
	if s.device != "" {
		return nil
	}
	all, err := uverbs.Devices()
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return errors.New("there is no RDMA device")
	}
	s.device = all[0].Name
	return nil
}

// ours does a run, and prints the nanoseconds per call of each round.
func (s *setup) ours() error {
	dev, err := uverbs.Open(s.device)
	if err != nil {
		return err
	}
	defer dev.Close()
	b, err := s.open(dev)
	if err != nil {
		return err
	}
	for done := 0; done < s.rounds; {
		post, poll, ok, err := b.round()
		if err != nil {
			return err
		}
		if ok {
			done++
			fmt.Printf("%.1f %.1f\n", post, poll)
		}
	}
	return nil
}

// bench is a QP that is connected with itself. All of it goes with the device.
type bench struct {
	count      int
	qp         *uverbs.QP
	send, recv *uverbs.CQ
	mr         *uverbs.MR
	wrs        [1]uverbs.SendWR
	wcs        [1]uverbs.WC
}

// open makes the QP.
func (s *setup) open(dev *uverbs.Device) (*bench, error) {
	b := &bench{count: s.count}
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, err
	}
	buf, err := uverbs.AllocBuffer(s.size)
	if err != nil {
		return nil, err
	}
	if b.mr, err = pd.RegMR(buf, uverbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	for _, cq := range []**uverbs.CQ{&b.send, &b.recv} {
		if *cq, err = dev.CreateCQ(s.count, uverbs.CQOptions{}); err != nil {
			return nil, err
		}
	}
	b.qp, err = pd.CreateQP(uverbs.QPOptions{
		SendCQ: b.send, RecvCQ: b.recv, MaxSendWR: s.count, MaxRecvWR: s.count, MaxInline: s.size, SignalAll: true,
	})
	if err != nil {
		return nil, err
	}
	here, err := b.qp.Endpoint()
	if err != nil {
		return nil, err
	}
	b.wrs[0] = uverbs.SendWR{Opcode: uverbs.WRSend, Inline: make([]byte, s.size)}
	return b, b.qp.Connect(context.Background(), here)
}

// settle is how long is waited between posting and polling.
const settle = 10 * time.Millisecond

// round posts and polls, and returns the nanoseconds per call. They are not ok if a completion
// was not there yet, so that what was timed was a wait.
func (b *bench) round() (post, poll float64, ok bool, err error) {
	for range b.count {
		if err := b.qp.PostRecv(0, b.mr.SGE(0, b.mr.Len())); err != nil {
			return 0, 0, false, err
		}
	}
	begin := time.Now()
	for i := range b.count {
		b.wrs[0].ID = uint64(i)
		if err := b.qp.PostSend(b.wrs[:]...); err != nil {
			return 0, 0, false, err
		}
	}
	posted := time.Since(begin)
	if err := b.drain(b.recv, b.count); err != nil {
		return 0, 0, false, err
	}
	for drained := time.Now(); time.Since(drained) < settle; { // the completions of the sends are there, or about to be
		runtime.Gosched() // as a program does that polls; asleep, it would find cold what it is timed with
	}
	missing := 0
	begin = time.Now()
	for range b.count {
		n, err := b.send.Poll(b.wcs[:])
		if err != nil {
			return 0, 0, false, err
		}
		missing += 1 - n
	}
	polled := time.Since(begin)
	perCall := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / float64(b.count) }
	return perCall(posted), perCall(polled), missing == 0, b.drain(b.send, missing)
}

// drain polls until there were so many completions.
func (b *bench) drain(cq *uverbs.CQ, count int) error {
	for count > 0 {
		n, err := cq.Poll(b.wcs[:])
		if err != nil {
			return err
		}
		if n > 0 {
			if err := b.qp.Err(&b.wcs[0]); err != nil {
				return err
			}
		}
		count -= n
	}
	return nil
}

// row is what is told of a call.
type row struct {
	Call     string  `json:"call"`
	Ours     float64 `json:"ours_ns"`
	RdmaCore float64 `json:"rdma_core_ns"`
	Ratio    float64 `json:"ratio"`
	Least    float64 `json:"ratio_least"`
	Most     float64 `json:"ratio_most"`
}

// compare has both do runs in turn, and prints how they compare.
func (s *setup) compare(runs, procs int, theirs string, asJSON bool) error {
	index, err := s.gidIndex()
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	num := strconv.Itoa
	lines := [2][]string{
		{self, "-once", "-device", s.device, "-size", num(s.size), "-count", num(s.count), "-rounds", num(s.rounds), "-procs", num(procs)},
		{theirs, s.device, num(index), num(s.size), num(s.count), num(s.rounds)},
	}
	var all [2][2][]float64 // by the program and the call
	for i := range runs {
		for k := range lines {
			k = (k + i) % 2 // neither has the advantage of being first
			times, err := run(lines[k])
			if err != nil {
				return err
			}
			for call, ns := range times {
				all[k][call] = append(all[k][call], ns)
			}
		}
		fmt.Fprintf(os.Stderr, "bench: run %d of %d\n", i+1, runs)
	}
	var rows []row
	for call, name := range []string{"post", "poll"} {
		ours, core := all[0][call], all[1][call]
		ratios := make([]float64, len(ours))
		for i := range ratios {
			ratios[i] = ours[i] / core[i]
		}
		rows = append(rows, row{name, median(ours), median(core), median(ratios), slices.Min(ratios), slices.Max(ratios)})
	}
	return s.print(rows, runs, procs, asJSON)
}

// gidIndex returns which of the port's GIDs a QP of ours uses.
func (s *setup) gidIndex() (int, error) {
	dev, err := uverbs.Open(s.device)
	if err != nil {
		return 0, err
	}
	defer dev.Close()
	b, err := s.open(dev)
	if err != nil {
		return 0, err
	}
	attr, err := b.qp.Query()
	return int(attr.AH.GRH.SGIDIndex), err
}

// run does a run of a program, and returns the medians of its rounds by the call.
func run(line []string) (times [2]float64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return times, fmt.Errorf("%s: %w\n%s", strings.Join(line, " "), err, stderr.Bytes())
	}
	var rounds [2][]float64
	for text := range strings.Lines(string(out)) {
		var post, poll float64
		if _, err := fmt.Sscan(text, &post, &poll); err != nil {
			return times, fmt.Errorf("%s says %q: %w", line[0], text, err)
		}
		rounds[0], rounds[1] = append(rounds[0], post), append(rounds[1], poll)
	}
	if len(rounds[0]) == 0 {
		return times, fmt.Errorf("%s says nothing", line[0])
	}
	return [2]float64{median(rounds[0]), median(rounds[1])}, nil
}

// print prints the table, or JSON.
func (s *setup) print(rows []row, runs, procs int, asJSON bool) error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err
	}
	kernel := unix.ByteSliceToString(u.Release[:])
	if asJSON {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(struct {
			Kernel string `json:"kernel"`
			Arch   string `json:"arch"`
			Device string `json:"device"`
			Size   int    `json:"size"`
			Runs   int    `json:"runs"`
			Procs  int    `json:"procs"`
			Rows   []row  `json:"rows"`
		}{kernel, runtime.GOARCH, s.device, s.size, runs, procs, rows})
	}
	fmt.Printf("Linux %s, %s, RC SEND of %d bytes inline, %d runs of %d rounds of %d, in turn, GOMAXPROCS=%d\n", kernel, s.device, s.size, runs, s.rounds, s.count, procs)
	t := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "call\tgoverbs\trdma-core\tratio\tspread of the ratio\t")
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%.0f ns\t%.0f ns\t%.2f\t%.2f to %.2f\t\n", r.Call, r.Ours, r.RdmaCore, r.Ratio, r.Least, r.Most)
	}
	fmt.Fprintln(t, "(medians; the ratio is that of neighbouring runs, below 1 is faster)")
	return t.Flush()
}

// median returns the middle value.
func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}
