package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Which runs README.md in this directory shows, and where in it.
const (
	shownFile  = "test/bench/results/readme.json"        // of Linux 6.1
	latestFile = "test/bench/results/readme-latest.json" // of the newest kernel, if there is one
	readmeFile = "test/bench/README.md"
	blockBegin = "<!-- bench: written by bench readme -->\n"
	blockEnd   = "<!-- end of bench -->\n"
)

// writeReadme renders the tables in README.md from the runs that are checked in, or checks another run in
// first.
func writeReadme(args []string, stdout io.Writer) error {
	f := flag.NewFlagSet("readme", flag.ContinueOnError)
	root := f.String("root", ".", "the `directory` of the checkout")
	latest := f.Bool("latest", false, "the run is of the newest kernel: check it in as "+latestFile)
	help := "bench readme [flags] [JSON]: checks a run in as " + shownFile + ", if one is named, and renders the tables in " + readmeFile + ".\n"
	if err := parse(f, args, help, stdout); err != nil {
		return err
	}
	if f.NArg() > 1 {
		return usageError{fmt.Errorf("readme has %d arguments, want the JSON of a run or none", f.NArg())}
	}
	if f.NArg() == 1 {
		r, err := readReport(f.Arg(0))
		if err != nil {
			return err
		}
		file := filepath.Join(*root, shownFile)
		if *latest {
			file = filepath.Join(*root, latestFile)
		}
		r.trim()
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o777), save(file, r.writeJSON)); err != nil {
			return err
		}
	}
	runs, err := shownRuns(*root)
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
	hot, err := readCosts(hotFile(*root, "amd64"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.WriteFile(path, []byte(before+markdown(runs, hot)+after), 0o666)
}

// trim leaves of a run the samples of the rows that the tables show.
func (r *Report) trim() {
	markdown([]*Report{r}, nil)
	r.Rows = slices.DeleteFunc(r.Rows, func(row Row) bool { return !row.shown })
	for i := range r.Rows {
		r.Rows[i].OursMedian, r.Rows[i].RdmaCoreMedian, r.Rows[i].Ratio = 0, 0, Spread{}
	}
}

// shownRuns reads the runs that README.md shows.
func shownRuns(root string) ([]*Report, error) {
	var runs []*Report
	for _, file := range []string{shownFile, latestFile} {
		r, err := readReport(filepath.Join(root, file))
		switch {
		case err == nil:
			runs = append(runs, r)
		case !errors.Is(err, os.ErrNotExist):
			return nil, err
		}
	}
	if len(runs) == 0 {
		return nil, fmt.Errorf("there is no %s: name the JSON of a run", shownFile)
	}
	return runs, nil
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

// A question is a table of README.md, with a row for each label and a column for each run.
type question struct {
	title string
	rows  []labelled
}

// labelled is a row of the report with its label in the table.
type labelled struct{ label, name string }

// questions are the tables whose rows compare one figure.
var questions = []question{
	{"What a user gets: an exchange of messages by a program without tuning, beside `ibv_rc_pingpong`", []labelled{
		{"64 B, polling", "plain/size=64/wait=poll"},
		{"4 KiB, polling", "plain/size=4096/wait=poll"},
		{"64 KiB, polling", "plain/size=65536/wait=poll"},
		{"64 B, events", "plain/size=64/wait=events"},
		{"4 KiB, events", "plain/size=4096/wait=events"},
		{"64 B from a QP to itself, polling, by instructions, beside a C program", counted + "qps/n=1/message"},
		{"64 B, events, by instructions", counted + "plain/size=64/wait=events"},
		{"64 B, events, by instructions, processor time of the client", counted + "plain/size=64/wait=events/processor"},
		{"4 KiB, events, by instructions", counted + "plain/size=4096/wait=events"},
		{"4 KiB, events, by instructions, processor time of the client", counted + "plain/size=4096/wait=events/processor"},
	}},
	{"Control path, by instructions", []labelled{
		{"start a program that does nothing", counted + "open/nothing"},
		{"a system call: `fcntl(F_GETFD)`", counted + "call/system"},
		{"start a program that opens a device", counted + "open/program"},
		{"open a device", counted + "open/device"},
		{"create and connect a QP", counted + "qps/n=100/create"},
		{"close a QP", counted + "qps/n=100/close"},
		{"register 4 KiB", counted + "mr/size=4096/reg"},
		{"deregister 4 KiB", counted + "mr/size=4096/dereg"},
		{"one of 50 connections, `rdmacm.ID` beside cmtime", counted + "connect/n=50"},
		{"one of 50 connections, `rdmacm.ID` beside cmtime, by the clock", "connect/n=50"},
		{"one of 50 connections, `cm.Dial` beside cmtime, the first of a program", counted + "dial/n=50/first"},
		{"one of 50 connections, `cm.Dial` beside cmtime, later ones", counted + "dial/n=50/later"},
	}},
}

// markdown renders the tables of some runs, and of the record of hot paths if there is one.
func markdown(runs []*Report, hot *costs) string {
	var b strings.Builder
	for _, r := range runs {
		var of []string
		if r.clocked() {
			of = append(of, r.title()+".")
		}
		if r.Counted != "" {
			of = append(of, "By instructions: "+r.Counted+".")
		}
		fmt.Fprintln(&b, strings.Join(of, " "))
	}
	b.WriteString("\nA cell has both medians, the median ratio, and the middle half of the ratios. Less is better for times.\n")
	for _, q := range questions {
		writeTable(&b, runs, q)
	}
	writeTool(&b, runs)
	writeScale(&b, runs)
	if hot != nil {
		hot.writeHotPaths(&b)
	}
	return b.String()
}

// kernel returns the version of the kernel without the distribution's part.
func (r *Report) kernel() string {
	if p := strings.SplitN(r.Kernel, ".", 3); len(p) == 3 {
		return p[0] + "." + p[1]
	}
	return r.Kernel
}

// find returns the row with a name, or one that was not measured, for a table that shows it.
func (r *Report) find(name string) *Row {
	for i := range r.Rows {
		if r.Rows[i].Name == name {
			r.Rows[i].shown = true
			return &r.Rows[i]
		}
	}
	return &Row{}
}

// has reports whether one of the runs has measured a row.
func has(runs []*Report, name string) bool {
	return slices.ContainsFunc(runs, func(r *Report) bool { return r.find(name).measured() })
}

// writeTable writes the table of a question, without the rows that no run has.
func writeTable(b *strings.Builder, runs []*Report, q question) {
	rows := slices.DeleteFunc(slices.Clone(q.rows), func(l labelled) bool { return !has(runs, l.name) })
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(b, "\n**%s**\n\n| |", q.title)
	for _, r := range runs {
		fmt.Fprintf(b, " Linux %s |", r.kernel())
	}
	b.WriteString("\n|" + strings.Repeat(" --- |", 1+len(runs)) + "\n")
	for _, l := range rows {
		fmt.Fprintf(b, "| %s |", l.label)
		for _, r := range runs {
			fmt.Fprintf(b, " %s |", r.find(l.name).cell())
		}
		b.WriteString("\n")
	}
}

// toolTests are the columns of the table of the tuned tool.
var toolTests = []labelled{
	{"SEND, latency", "send-lat"}, {"WRITE", "write-lat"}, {"READ", "read-lat"},
	{"SEND, rate", "send-bw"}, {"WRITE", "write-bw"}, {"READ", "read-bw"},
}

// writeTool writes the ratios of verbs perf to perftest, polling.
func writeTool(b *strings.Builder, runs []*Report) {
	var table strings.Builder
	for _, r := range runs {
		for _, size := range []int{64, 4 << 10, 64 << 10} {
			line, measured := fmt.Sprintf("| %s, %s |", r.kernel(), bytesText(size)), false
			for _, t := range toolTests {
				row := r.find(fmt.Sprintf("%s/size=%d/wait=poll", t.name, size))
				measured = measured || row.measured()
				line += " " + row.ratio() + " |"
			}
			if measured {
				table.WriteString(line + "\n")
			}
		}
	}
	if table.Len() == 0 {
		return
	}
	b.WriteString("\n**The tuned tool: `verbs perf` beside perftest, polling; ratios**\n\n| |")
	for _, t := range toolTests {
		fmt.Fprintf(b, " %s |", t.label)
	}
	b.WriteString("\n|" + strings.Repeat(" --- |", 1+len(toolTests)) + "\n" + table.String())
}

// scaleCounts are the columns of the table of scale.
var scaleCounts = []int{10, 100, 1000, 10000}

// scaleRows are its rows. With one object a queue pair, a CQ and an MR are the same.
var scaleRows = []struct{ label, name, one string }{
	{"queue pairs", "qps", "qps"}, {"CQs", "cqs", "qps"}, {"MRs", "mrs", "qps"},
	{"`cm.Conn`s, beside queue pairs with a CQ each", "conns", "conns"},
}

// writeScale writes how the cost of a message grows with the number of objects, in the first run.
func writeScale(b *strings.Builder, runs []*Report) {
	var table strings.Builder
	r := runs[0]
	for _, s := range scaleRows {
		one := r.find(counted + s.one + "/n=1/message")
		line, measured := "| "+s.label+" |", false
		for _, n := range scaleCounts {
			row := r.find(fmt.Sprintf("%s%s/n=%d/message", counted, s.name, n))
			if !row.measured() || !one.measured() {
				line += " |"
				continue
			}
			measured = true
			line += fmt.Sprintf(" %.2f / %.2f |", row.OursMedian/one.OursMedian, row.RdmaCoreMedian/one.RdmaCoreMedian)
		}
		if measured {
			table.WriteString(line + "\n")
		}
	}
	if table.Len() == 0 {
		return
	}
	b.WriteString("\n**Scale: instructions of a message with so many objects in turn, relative to one; goverbs / rdma-core**\n\n| Linux " + r.kernel() + " |")
	for _, n := range scaleCounts {
		fmt.Fprintf(b, " %d |", n)
	}
	b.WriteString("\n|" + strings.Repeat(" --- |", 1+len(scaleCounts)) + "\n" + table.String())
}

// ratio is what a table of ratios has of a row.
func (r *Row) ratio() string {
	if !r.measured() {
		return ""
	}
	return fmt.Sprintf("%.2f (%.2f to %.2f)", r.Ratio.Median, r.Ratio.Q1, r.Ratio.Q3)
}

// cell is what a table has of a row.
func (r *Row) cell() string {
	if !r.measured() {
		return "not measured"
	}
	return fmt.Sprintf("%s / %s %s, %.2f (%.2f to %.2f)", figure(r.OursMedian), figure(r.RdmaCoreMedian), r.Unit, r.Ratio.Median, r.Ratio.Q1, r.Ratio.Q3)
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
