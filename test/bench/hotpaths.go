package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/test/steps"
)

// hotRecord is how the record is made anew.
const hotRecord = "go run ./test/bench hotpaths -record"

// hotRefused is how many more instructions than recorded a hot path may execute without an error. It leaves
// room for another version of Go.
const hotRefused = 0.25

// hotFile is the record of hot paths for an architecture, below the root of the checkout.
func hotFile(root, arch string) string {
	return filepath.Join(root, "test/bench/results/hotpaths-"+arch+".json")
}

// hotColumns are the columns of the table: what the names of hot paths have behind the driver, one by one and in a list
// of 32, or in a list only.
var hotColumns = []struct {
	label string
	names []string
}{
	{"`PostSend`, inline", []string{"post/inline/n=1", "post/inline/n=32"}},
	{"`PostSend`, one SGE", []string{"post/sge/n=1", "post/sge/n=32"}},
	{"`SendBuilder` with 32, inline", []string{"builder/inline/n=32"}},
	{"the same, one SGE", []string{"builder/sge/n=32"}},
	{"`SendInline`, 32", []string{"onecall/inline/n=32"}},
	{"`SendSGE`", []string{"onecall/sge/n=1", "onecall/sge/n=32"}},
	{"DCI, 32 to one target, inline", []string{"dci/inline/n=32"}},
	{"`PostRecv`", []string{"recv/n=1", "recv/n=32"}},
	{"`Poll` of sends", []string{"poll/send/n=1", "poll/send/n=32"}},
	{"of receives", []string{"poll/recv/n=1", "poll/recv/n=32"}},
}

// libmlx5 has the instructions of version 44 for the same, as the suite sidebyside/mlx5 counts them: ibv_post_send
// and ibv_poll_cq one by one, and ibv_wr_start and so on for lists, with the loop that calls them.
var libmlx5 = map[string]float64{
	"libmlx5/post/inline/n=1": 357, "libmlx5/post/inline/n=32": 163, "libmlx5/builder/inline/n=32": 163, "libmlx5/onecall/inline/n=32": 163, "libmlx5/dci/inline/n=32": 188, "libmlx5/poll/send/n=1": 200,
}

// hotPathsCommand counts the instructions of posting and polling on ring memory, function by function, and compares
// them with the record, or makes them the record.
func hotPathsCommand(args []string, stdout io.Writer) error {
	f := flag.NewFlagSet("hotpaths", flag.ContinueOnError)
	root := f.String("root", ".", "the `directory` of the checkout")
	record := f.Bool("record", false, "make the figures the record, and render them into "+readmeFile)
	brief := f.Bool("brief", false, "print the totals only")
	help := "bench hotpaths [flags]: counts the instructions of posting and polling, for each request, on ring memory, without a kernel or a card.\nIt warns of each row with more than 3 % more instructions than recorded, and fails if there are over 25 % more, or if a row is missing.\n"
	if err := parse(f, args, help, stdout); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return usageError{fmt.Errorf("hotpaths has %d arguments, want none", f.NArg())}
	}
	regions, err := hotRegions(*root)
	if err != nil {
		return err
	}
	now := &costs{Go: runtime.Version(), Instructions: map[string]float64{}}
	for _, r := range regions {
		now.Instructions[r.Name] = float64(int(r.Total()*10+0.5)) / 10
		if !*brief {
			writeHotFunctions(stdout, &r)
		}
	}
	file := hotFile(*root, runtime.GOARCH)
	if *record {
		if err := now.save(file); err != nil {
			return err
		}
		return writeReadme([]string{"-root", *root}, stdout)
	}
	recorded, err := readCosts(file)
	if errors.Is(err, os.ErrNotExist) {
		fmt.Fprintf(stdout, "no hot paths are recorded for %s: %s\n", runtime.GOARCH, hotRecord)
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "instructions of a request, recorded (%s) and now (%s):\n", recorded.Go, now.Go)
	return compareCosts(stdout, recorded, now, hotRefused, hotRecord)
}

// hotRegions builds the tests of uverbs, which have the hot paths, and counts.
func hotRegions(root string) ([]steps.Region, error) {
	dir, err := os.MkdirTemp("", "hotpaths")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "uverbs.test")
	build := exec.Command("go", "test", "-c", "-buildmode=exe", "-o", program, "./uverbs")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0", "GOAMD64=v1")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", build, err, out)
	}
	regions, err := steps.Count([]string{program, "-test.run", "^TestHotPaths$"})
	if err == nil && len(regions) == 0 {
		err = errors.New("TestHotPaths of uverbs has marked nothing")
	}
	return regions, err
}

// writeHotFunctions prints a row, and below it the functions that have 1 % of its instructions or more.
func writeHotFunctions(out io.Writer, r *steps.Region) {
	fmt.Fprintf(out, "%-28s %8.1f\n", r.Name, r.Total())
	all := map[string]float64{}
	for name, n := range r.Functions {
		name = strings.TrimPrefix(name, "github.com/goverbs/goverbs/")
		if strings.Contains(name, "TestHotPaths") || strings.Contains(name, "hotRing") {
			name = "the loop that calls"
		}
		all[name] += n
	}
	rest := 0.0
	for _, name := range slices.SortedFunc(maps.Keys(all), func(a, b string) int { return cmp.Or(cmp.Compare(all[b], all[a]), cmp.Compare(a, b)) }) {
		if all[name] < r.Total()/100 {
			rest += all[name]
			continue
		}
		fmt.Fprintf(out, "  %8.1f %s\n", all[name], name)
	}
	if rest >= 0.05 {
		fmt.Fprintf(out, "  %8.1f others\n", rest)
	}
}

// hotTable returns the table of hot paths, its heading first.
func (c *costs) hotTable() [][]string {
	heading := []string{"amd64, " + c.Go}
	for _, column := range hotColumns {
		heading = append(heading, column.label)
	}
	table := [][]string{heading}
	for _, driver := range []string{"mlx5", "libmlx5", "efa", "rxe", "siw"} {
		row := []string{driver}
		for _, column := range hotColumns {
			var cell []string
			for _, name := range column.names {
				name = driver + "/" + name
				if n := cmp.Or(c.Instructions[name], libmlx5[name]); n != 0 {
					cell = append(cell, fmt.Sprintf("%.0f", n))
				}
			}
			row = append(row, strings.Join(cell, " / "))
		}
		table = append(table, row)
	}
	return table
}

// hotTitle is the title of the table.
const hotTitle = "Posting and polling 64 B on ring memory: instructions of a request, one by one / in a list of 32; libmlx5 44 by `-suite sidebyside/mlx5`, lists by `ibv_wr_*`"

// writeHotPaths writes the table.
func (c *costs) writeHotPaths(b *strings.Builder) {
	fmt.Fprintf(b, "\n**%s**\n\n", hotTitle)
	for i, row := range c.hotTable() {
		fmt.Fprintf(b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			b.WriteString("|" + strings.Repeat(" --- |", len(row)) + "\n")
		}
	}
}
