// Efa serves EFA cards over vfio-user, one on each socket, all of them on one fabric:
//
//	efa -personality first card0.sock card1.sock
//
// A socket may also be fd:3, one that is listened to already, with which the program was started. When all clients
// are gone, or on SIGTERM, it prints what the cards have seen, and its exit status is 1 if a driver did what it must
// not. Package efa says how the cards differ; command hca of test/hca has the command line of QEMU.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/goverbs/goverbs/test/efa"
	"github.com/goverbs/goverbs/test/hca/vfiouser"
)

type options struct {
	personality       efa.Personality
	describe, verbose bool
	report            string
	seed              uint64
	sockets           []string
}

func main() {
	o, err := parse(os.Args[1:])
	violations := uint64(0)
	switch {
	case err != nil:
	case o.describe:
		fmt.Println(o.personality.String())
	default:
		violations, err = run(o, os.Stdout)
	}
	vfiouser.Exit(violations, err)
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("efa", flag.ContinueOnError)
	personality := f.String("personality", efa.Personalities()[0], "the cards' `PERSONALITY`: "+strings.Join(efa.Personalities(), ", "))
	f.BoolVar(&o.describe, "describe", false, "print the personality and do nothing else")
	f.StringVar(&o.report, "report", "", "write the report as JSON to `FILE`")
	f.BoolVar(&o.verbose, "verbose", false, "print commands and messages as they come")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the order in which messages arrive")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	var err error
	if o.personality, err = efa.ParsePersonality(*personality); err != nil {
		return o, fmt.Errorf("-personality: %w", err)
	}
	if o.sockets = f.Args(); len(o.sockets) == 0 && !o.describe {
		return o, errors.New("no socket named; see -help")
	}
	if len(o.sockets) > 255 {
		return o, fmt.Errorf("%d sockets, want 1 to 255", len(o.sockets))
	}
	return o, nil
}

// run serves the cards until their clients are gone, and prints the reports.
func run(o options, out io.Writer) (violations uint64, err error) {
	var mu sync.Mutex // of out
	say := func(line string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(out, line)
	}
	if o.personality.Name != efa.Personalities()[0] {
		say("personality " + o.personality.String())
	}
	fabric := efa.NewFabric(o.seed)
	go fabric.Run()
	defer fabric.Close()
	var cards []vfiouser.Card
	var devices []*efa.Device
	for i, socket := range o.sockets {
		cfg := efa.Config{Name: "card " + strconv.Itoa(i), Personality: o.personality, Index: uint8(i), Fabric: fabric}
		bus := o.personality.Bus()
		if o.verbose {
			cfg.Trace = say
			bus.Logf = func(format string, args ...any) { say(cfg.Name + ": " + fmt.Sprintf(format, args...)) }
		}
		server := vfiouser.New(bus)
		cfg.Memory, cfg.Interrupt = server, server.Interrupt
		dev := efa.New(cfg)
		devices = append(devices, dev)
		cards = append(cards, vfiouser.Card{Name: cfg.Name, Socket: socket, Server: server, Device: dev})
	}
	err = vfiouser.ServeAll(cards, func() {
		for _, dev := range devices {
			dev.KeepAlive()
		}
	})
	var all []efa.Report
	for _, dev := range devices {
		dev.Close()
		r := dev.Report()
		violations += uint64(r.Total())
		all = append(all, r)
		r.Print(out)
	}
	return violations, errors.Join(err, vfiouser.WriteReport(o.report, all))
}
