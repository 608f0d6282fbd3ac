package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Which run README.md in this directory shows, and where in it.
const (
	shownFile  = "test/bench/results/readme.json" // the run
	readmeFile = "test/bench/README.md"
	blockBegin = "<!-- bench: written by bench readme -->\n"
	blockEnd   = "<!-- end of bench -->\n"
)

// writeReadme renders the table in README.md from the run that is checked in, or checks another run
// in first.
func writeReadme(args []string, stdout io.Writer) error {
	f := flag.NewFlagSet("readme", flag.ContinueOnError)
	root := f.String("root", ".", "the `directory` of the checkout")
	help := "bench readme [flags] [JSON]: checks a run in as " + shownFile + ", if one is named, and renders the table in " + readmeFile + " from it.\n"
	if err := parse(f, args, help, stdout); err != nil {
		return err
	}
	if f.NArg() > 1 {
		return usageError{fmt.Errorf("readme has %d arguments, want the JSON of a run or none", f.NArg())}
	}
	shown := filepath.Join(*root, shownFile)
	if f.NArg() == 1 {
		r, err := readReport(f.Arg(0))
		if err != nil {
			return err
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(shown), 0o777), save(shown, r.writeJSON)); err != nil {
			return err
		}
	}
	r, err := readReport(shown)
	if err != nil {
		return err
	}
	path := filepath.Join(*root, readmeFile)
	readme, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, _, after, err := cutBlock(string(readme))
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(before+r.markdown()+after), 0o666)
}

// cutBlock cuts README.md where the table is.
func cutBlock(readme string) (before, block, after string, err error) {
	before, rest, begins := strings.Cut(readme, blockBegin)
	block, after, ends := strings.Cut(rest, blockEnd)
	if !begins || !ends {
		return "", "", "", fmt.Errorf("%s has no %q followed by %q", readmeFile, blockBegin, blockEnd)
	}
	return before + blockBegin, block, blockEnd + after, nil
}

// trafficRow matches the rows that README.md has by size: traffic with polling.
var trafficRow = regexp.MustCompile(`^(send|write|read)-(lat|bw)/size=([0-9]+)/wait=poll$`)

// markdown renders the table: traffic by its size, and all other rows except those with events.
func (r *Report) markdown() string {
	var b strings.Builder
	with := ""
	if r.Perftest != "" {
		with = ", perftest " + r.Perftest
	}
	fmt.Fprintf(&b, "Linux %s on %s, %d processors (%s), %s%s, commit %s, %s, polling, %d rounds.\n",
		r.Kernel, r.Arch, r.CPUs, r.CPU, r.Device, with, r.Commit, r.Date, r.Rounds)
	b.WriteString("Each cell has the median of goverbs and of rdma-core, the median of the ratios of all rounds, and the\n" +
		"range of the middle half of the ratios. For times less than 1 is better, for rates more than 1.\n")
	var sizes []int
	rest := false
	for i := range r.Rows {
		m := trafficRow.FindStringSubmatch(r.Rows[i].Name)
		if m == nil {
			rest = rest || !strings.Contains(r.Rows[i].Name, "wait=events")
			continue
		}
		size, err := strconv.Atoi(m[3])
		if err == nil && !slices.Contains(sizes, size) {
			sizes = append(sizes, size)
		}
	}
	slices.Sort(sizes)
	for _, t := range []struct{ metric, title string }{{"lat", "latency"}, {"bw", "bandwidth"}} {
		if len(sizes) == 0 {
			break
		}
		fmt.Fprintf(&b, "\n| %s | send | write | read |\n| --- | --- | --- | --- |\n", t.title)
		for _, size := range sizes {
			fmt.Fprintf(&b, "| %s |", bytesText(size))
			for _, op := range []string{"send", "write", "read"} {
				name := fmt.Sprintf("%s-%s/size=%d/wait=poll", op, t.metric, size)
				i := slices.IndexFunc(r.Rows, func(row Row) bool { return row.Name == name })
				if i < 0 {
					b.WriteString(" not measured |")
					continue
				}
				fmt.Fprintf(&b, " %s |", r.Rows[i].cell())
			}
			b.WriteString("\n")
		}
	}
	if !rest {
		return b.String()
	}
	b.WriteString("\n| | |\n| --- | --- |\n")
	for i := range r.Rows {
		row := &r.Rows[i]
		if !trafficRow.MatchString(row.Name) && !strings.Contains(row.Name, "wait=events") {
			fmt.Fprintf(&b, "| %s | %s |\n", label(row.Name), row.cell())
		}
	}
	return b.String()
}

// cell is what a table has of a row.
func (r *Row) cell() string {
	if !r.measured() {
		return "not measured"
	}
	return fmt.Sprintf("%s / %s %s, %.2f (%.2f to %.2f)", figure(r.OursMedian), figure(r.RdmaCoreMedian), r.Unit, r.Ratio.Median, r.Ratio.Q1, r.Ratio.Q3)
}

// labels say what rows are, in words.
var labels = []struct {
	name *regexp.Regexp
	text string // with the first number in the name, as bytes, for %s
}{
	{regexp.MustCompile(`^atomic-lat/`), "atomic, latency"},
	{regexp.MustCompile(`^atomic-bw/`), "atomic, rate"},
	{regexp.MustCompile(`^send-bw/size=(\d+)/wait=poll/list=16$`), "send of %s, goverbs in lists of 16, perftest one by one"},
	{regexp.MustCompile(`^send-bw/size=(\d+)/wait=poll/list=1$`), "send of %s, both one by one"},
	{regexp.MustCompile(`^open/program$`), "start a program that opens a device"},
	{regexp.MustCompile(`^open/device$`), "open a device"},
	{regexp.MustCompile(`^call/post$`), "one call that posts"},
	{regexp.MustCompile(`^call/poll$`), "one call that polls"},
	{regexp.MustCompile(`^mr/size=(\d+)/reg$`), "register %s"},
	{regexp.MustCompile(`^mr/size=(\d+)/dereg$`), "deregister %s"},
}

// manyRow matches the rows that are about a number of things.
var manyRow = regexp.MustCompile(`^(connect|qps)/n=(\d+)(?:/(create|message|close))?$`)

// label says what a row is.
func label(name string) string {
	if m := manyRow.FindStringSubmatch(name); m != nil {
		switch {
		case m[1] == "connect" && m[3] == "":
			return "connect, " + m[2] + " connections at once"
		case m[3] == "create":
			return "create and connect a QP, " + m[2] + " in all"
		case m[3] == "message":
			return "a message, with " + m[2] + " QPs"
		case m[3] == "close":
			return "close a QP, " + m[2] + " in all"
		}
	}
	for _, l := range labels {
		switch m := l.name.FindStringSubmatch(name); len(m) {
		case 1:
			return l.text
		case 2:
			n, err := strconv.Atoi(m[1])
			if err == nil {
				return fmt.Sprintf(l.text, bytesText(n))
			}
		}
	}
	return "`" + name + "`"
}

// bytesText writes a number of bytes.
func bytesText(n int) string {
	for _, u := range []struct {
		shift int
		name  string
	}{{30, "GiB"}, {20, "MiB"}, {10, "KiB"}} {
		if n >= 1<<u.shift && n%(1<<u.shift) == 0 {
			return fmt.Sprintf("%d %s", n>>u.shift, u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}
