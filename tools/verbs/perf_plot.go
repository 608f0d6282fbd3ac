package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/goverbs/goverbs/tools/internal/privatefile"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
	"github.com/goverbs/goverbs/tools/verbs/internal/perf/plot"
)

// newPerfPlot makes the command that draws earlier results.
func newPerfPlot() *command.Command {
	var o plot.Options
	var output string
	cmd := &command.Command{
		Use:   "plot [flags] FILE [FILE...]",
		Short: "Draw earlier results, and how much they differ",
		Long: `Each FILE is what a test has printed with --json. The first one is what the others are compared
with: the picture says by how many percent they differ. --kind sizes draws bandwidth or latency over
the size, with a second pair of axes for the differences. --kind latency draws the latencies of one
size: a histogram, and below it the latency that each part of the messages does not exceed. --kind
time draws the throughput over the time, for tests with --timeline; times without messages, and
those with a port that is not active, are marked. A flap of a link that is shorter than a sample
shows by its messages only.`,
		Example: `  verbs perf plot -o bw.svg before.json after.json
  verbs perf plot -o lat.svg --kind latency --size 64 before.json after.json
  verbs perf write-bw 10.1.0.1 -D 10m --timeline 1s --json >long.json
  verbs perf plot -o long.svg long.json`,
		Args: func(cmd *command.Command, args []string) error {
			if n := len(args); n < 1 || n > plot.MaxReports {
				return command.Usagef("the number of FILEs is %d, allowed: 1 to %d", n, plot.MaxReports)
			}
			return nil
		},
		Run: func(cmd *command.Command, args []string) error {
			switch o.Kind {
			case "", plot.Sizes, plot.Latency, plot.Time:
			default:
				return command.Usagef("--kind is %q, allowed: %s, %s, %s", o.Kind, plot.Sizes, plot.Latency, plot.Time)
			}
			if output == "" {
				return command.Usagef("--output is missing: the file to draw into (.svg)")
			}
			if err := checkPicture("output", output); err != nil {
				return command.UsageError{Err: err}
			}
			var reports []plot.Named
			for _, name := range args {
				r, err := readReport(cmd, name)
				if err != nil {
					return err
				}
				reports = append(reports, plot.Named{Name: filepath.Base(name), Report: r})
			}
			return draw("output", output, o, reports)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&output, "output", "o", "", "draw into `FILE` (.svg), which only its owner can read")
	f.StringVar(&o.Kind, "kind", "", "`KIND` of the picture (default what suits the results): sizes, latency, time")
	command.NumberVar(f, &o.Size, "size", "s", 0, 1, 1<<31-1, "draw only messages of so many `BYTES`")
	command.DefaultIs(f, "size", "all")
	return cmd
}

// checkPicture checks the file of a picture before there is anything to draw.
func checkPicture(flag, file string) error {
	if err := plot.CheckFile(flag, file); err != nil {
		return err
	}
	if dir, err := os.Stat(filepath.Dir(file)); err != nil {
		return fmt.Errorf("--%s is %q, allowed: a file in an existing directory: %w", flag, file, err)
	} else if !dir.IsDir() {
		return fmt.Errorf("--%s is %q, allowed: a file in a directory; %s is not one", flag, file, dir.Name())
	}
	if err := privatefile.Check(file); err != nil {
		return fmt.Errorf("--%s: %w", flag, err)
	}
	return nil
}

// readReport reads the file of a report.
func readReport(cmd *command.Command, name string) (*perf.Report, error) {
	text, err := cmd.ReadFile(name)
	if err != nil {
		return nil, err
	}
	r, err := perf.ReadReport(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return r, nil
}

// draw draws reports into a file. One that cannot be drawn leaves the file as it is.
func draw(flag, file string, o plot.Options, reports []plot.Named) error {
	var b bytes.Buffer
	if err := plot.Write(&b, o, reports...); err != nil {
		return err // which names the report
	}
	f, err := privatefile.Create(file)
	if err != nil {
		return fmt.Errorf("--%s: %w", flag, err)
	}
	_, err = f.Write(b.Bytes())
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("--%s %s: %w", flag, file, err)
	}
	return nil
}
