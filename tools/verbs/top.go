package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/goverbs/goverbs/tools/internal/privatefile"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/tools/verbs/internal/top"
	"github.com/goverbs/goverbs/uverbs"
)

// The bounds of --interval of "verbs top".
const (
	minTopInterval = 100 * time.Millisecond
	maxTopInterval = time.Hour
)

func newTop() *command.Command {
	var o top.Options
	var device string
	var record recordFile
	cmd := &command.Command{
		Use:   "top [flags] [FILE]",
		Short: "Show rates, errors, link changes, processes and QPs, live",
		Long: `It shows three tables: the ports with their rates; counters of errors and congestion that have grown
and links that have changed since it started; and the processes that own QPs and memory regions,
with their containers. Enter opens a port, a process or a QP; ? lists the keys. B/s are bytes in a
second, pkt/s are packets, k is 1000. A rate that a driver does not count is "-": rxe has no
counters of bytes, and siw has no counters. Registered memory is pinned, except with ODP.

Where standard output is not a terminal, or with TERM=dumb, it prints the tables as text after each
interval. --no-color and the environment variable NO_COLOR leave out colours.

The counters are read each interval, and the objects as often as that takes up to 0.5 % of the time:
some drivers ask the firmware for each QP. A record has what was read. With FILE, which is a record,
the same screen shows it at the pace at which it was made; space pauses, n goes on by one reading.

A software device is inside this process, which has just made it: its counters show the packets that
come to its address.`,
		Example: `  verbs top
  verbs top --dev mlx5_0 --interval 200ms
  verbs top --once
  verbs top --json | jq --unbuffered -r '.ports[] | [.device, .rx_bytes_per_s] | @tsv'
  verbs top --record top.json
  verbs top top.json
  verbs top top.json --once`,
		Exit: "  0  success, interrupted, or the key q\n  1  failure; standard error has the reason",
		Args: command.Arguments(1),
		Run: func(cmd *command.Command, args []string) (err error) {
			if o.Interval < minTopInterval || o.Interval > maxTopInterval {
				return command.Usagef("--interval is %v, allowed: %v to %v", o.Interval, minTopInterval, maxTopInterval)
			}
			if o.NoColour && o.JSON {
				return command.Usagef("--no-color is given with --json, allowed: without it")
			}
			if len(args) > 0 {
				return replayTop(cmd, o, args[0])
			}
			if o.Reader, err = topReader(device); err != nil {
				return err
			}
			f, err := record.create()
			if err != nil {
				return err
			}
			if f != nil {
				o.Record = f
				defer func() { err = cmp.Or(err, f.Close()) }()
			}
			return top.Run(cmd.Context(), o, cmd.Out())
		},
	}
	f := cmd.Flags()
	f.DurationVar(&o.Interval, "interval", time.Second, "read each `TIME`, 100ms to 1h")
	f.BoolVar(&o.Once, "once", false, "print the tables as text after one interval, and end")
	record.flags(cmd, "record", "", "write the readings to this `FILE`, with mode 0600")
	f.BoolVar(&o.NoColour, "no-color", false, "do not use colours")
	f.StringVarP(&device, "dev", "d", "", "RDMA device `DEV` (default all)")
	command.JSONFlag(cmd, &o.JSON)
	return cmd
}

// topReader returns a reader of a device, or of all without a name.
func topReader(device string) (*top.Reader, error) {
	infos, err := uverbs.Devices()
	switch {
	case err != nil:
		return nil, err
	case len(infos) == 0:
		return nil, errNoDevice()
	case device != "" && !slices.ContainsFunc(infos, func(d uverbs.DeviceInfo) bool { return d.Name == device }):
		return nil, command.Usagef("--dev is %s, allowed: %s", peertext.Quote(device), deviceNames(infos))
	}
	return top.NewReader(infos, device)
}

// replayTop shows a record.
func replayTop(cmd *command.Command, o top.Options, name string) error {
	for _, flag := range []string{"record", "force", "dev", "interval"} {
		if cmd.Flag(flag).Changed {
			return command.Usagef("--%s is given with the record %s, allowed: without one", flag, peertext.Quote(name))
		}
	}
	f, err := cmd.Open(name)
	if err != nil {
		infos, _ := uverbs.Devices() // the error says enough without them
		if errors.Is(err, fs.ErrNotExist) && slices.ContainsFunc(infos, func(d uverbs.DeviceInfo) bool { return d.Name == name }) {
			err = fmt.Errorf("%w; to show only the device %s: verbs top --dev %s", err, name, name)
		}
		return err
	}
	defer f.Close()
	o.Replay = top.NewRecord(name, f)
	if err := top.Run(cmd.Context(), o, cmd.Out()); err != nil {
		return err
	}
	if err := o.Replay.Cut(); err != nil {
		fmt.Fprintf(cmd.Err(), "verbs: %v\n", err)
	}
	return nil
}

// recordFile is the file of a record, which cannot be made again: --force alone overwrites one.
type recordFile struct {
	flag, name string
	force      bool
}

// flags defines the flags of a command.
func (r *recordFile) flags(cmd *command.Command, name, short, about string) {
	r.flag = name
	cmd.Flags().StringVarP(&r.name, name, short, "", about)
	cmd.Flags().BoolVar(&r.force, "force", false, "overwrite the file of --"+name)
}

// create creates the file; without its flag it returns nil.
func (r *recordFile) create() (f *os.File, err error) {
	switch {
	case r.name == "" && r.force:
		return nil, command.Usagef("--force is given without --%s, allowed: with it", r.flag)
	case r.name == "":
		return nil, nil
	case r.force:
		return privatefile.Create(r.name)
	}
	f, err = privatefile.CreateNew(r.name)
	if errors.Is(err, fs.ErrExist) {
		err = fmt.Errorf("%w; --force overwrites it", err)
	}
	return f, err
}
