// Hca serves ConnectX cards over vfio-user, one on each socket, all of them on one fabric:
//
//	hca -mode roce card0.sock card1.sock
//
// and for each of them
//
//	qemu-system-x86_64 ... -object memory-backend-memfd,id=mem,size=1G,share=on -machine q35,memory-backend=mem \
//	    -device '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"card0.sock"}}'
//
// With -personality the cards differ from the usual ones in registers, capabilities and behavior,
// see package hca. "random" draws a personality; what it prints has the seed that gives it again.
//
// With -topology the cards are connected by a modelled subnet (package subnet), which a subnet manager in one of the
// guests rules. They take the places of the adapters that are called card0, card1 and so on, or else of the
// first ones in the file that have one port. The other adapters answer by themselves.
//
// A socket may also be one that is listened to already, with which the program was started:
// fd:3. When all clients are gone, or on SIGTERM, it prints what the cards have seen, and
// its exit status is 1 if a driver did what it must not.
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

	"github.com/goverbs/goverbs/test/hca"
	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/subnet"
	"github.com/goverbs/goverbs/test/hca/vfiouser"
)

type options struct {
	mode        hca.Mode
	managed     bool
	topology    *subnet.Topology
	personality hca.Personality
	strict      bool
	describe    bool
	report      string
	verbose     bool
	quiet       bool
	fabric      engine.FabricConfig
	sockets     []string
}

func main() {
	o, err := parse(os.Args[1:])
	violations := uint64(0)
	switch {
	case err != nil:
	case o.describe:
		fmt.Println(o.personality)
	default:
		violations, err = run(o, os.Stdout)
	}
	vfiouser.Exit(violations, err)
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("hca", flag.ContinueOnError)
	mode := f.String("mode", "ib", "what the ports speak: ib or roce")
	f.BoolVar(&o.managed, "managed", false, "the InfiniBand ports wait for a subnet manager, and have no LIDs before")
	topology := f.String("topology", "", "connect the cards by a subnet of switches, from a `FILE` in the format of ibnetdiscover; or fattree:HOSTS, ring:SWITCHES, line:SWITCHES")
	personality := f.String("personality", hca.Personalities()[0], "the cards' `PERSONALITY`: "+strings.Join(hca.Personalities(), ", ")+", a seed, or random")
	f.BoolVar(&o.strict, "strict", false, "reserved bits in queues and doorbells that a card does not read must be 0")
	f.BoolVar(&o.describe, "describe", false, "print the personality and do nothing else")
	f.StringVar(&o.report, "report", "", "write the report as JSON to `FILE`")
	f.BoolVar(&o.verbose, "verbose", false, "print commands, work queue entries, completions and packets as they come")
	f.BoolVar(&o.quiet, "quiet", false, "print no report")
	f.Float64Var(&o.fabric.Loss, "loss", 0, "lose packets with this probability, 0 to 1")
	f.Float64Var(&o.fabric.Duplicate, "duplicate", 0, "duplicate packets with this probability")
	f.DurationVar(&o.fabric.Delay, "delay", 0, "hold packets back for up to this time")
	f.Uint64Var(&o.fabric.Seed, "seed", 1, "seed for what is left to chance")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	var err error
	if o.personality, err = hca.ParsePersonality(*personality); err != nil {
		return o, err
	}
	o.sockets = f.Args()
	if len(o.sockets) == 0 && !o.describe {
		return o, errors.New("no socket named; see -help")
	}
	if o.mode, err = hca.ParseMode(*mode); err != nil {
		return o, err
	}
	managed := "-managed"
	if *topology != "" {
		managed = "-topology"
		if o.topology, err = subnet.Load(*topology); err != nil {
			return o, fmt.Errorf("-topology: %w", err)
		}
		o.managed = true
	}
	if o.managed && o.mode != hca.IB {
		return o, fmt.Errorf("%s: with -mode %s there is no subnet manager; want -mode %s", managed, o.mode, hca.IB)
	}
	for name, share := range map[string]float64{"loss": o.fabric.Loss, "duplicate": o.fabric.Duplicate} {
		if !(share >= 0 && share <= 1) { // nor NaN
			return o, fmt.Errorf("-%s %v: want 0 to 1", name, share)
		}
	}
	if o.fabric.Delay < 0 {
		return o, fmt.Errorf("-delay %v: want 0 and more", o.fabric.Delay)
	}
	return o, nil
}

// run serves the cards until their clients are gone, and prints the reports.
func run(o options, out io.Writer) (violations uint64, err error) {
	var mu sync.Mutex // of out
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(out, format+"\n", args...)
	}
	if text := o.personality.String(); text != hca.Personalities()[0] {
		say("personality %s", text)
	}
	fabric := engine.NewFabric(o.fabric)
	defer fabric.Close()
	var cards []vfiouser.Card
	var devices []*hca.Device
	var net *subnet.Subnet
	var places []string
	if o.topology != nil {
		net = hca.NewSubnet(o.topology, fabric, o.fabric.Seed)
		if places, err = hca.Places(o.topology, len(o.sockets)); err != nil {
			return 0, err
		}
	}
	for i, socket := range o.sockets {
		dc := hca.Config{Personality: o.personality, Strict: o.strict, Mode: o.mode, Managed: o.managed, Index: uint8(i), Fabric: fabric, Subnet: net}
		if net != nil {
			dc.Node = places[i]
		}
		dc.Name = "card " + strconv.Itoa(i)
		bus := vfiouser.Config{ID: hca.ID, Vectors: hca.Vectors, Table: hca.MSIXTable, PBA: hca.MSIXPBA}
		bus.BARs[0] = o.personality.BARBytes()
		if o.verbose {
			bus.Logf = func(format string, args ...any) { say(dc.Name+": "+format, args...) }
			dc.Trace = func(line string) { say("%s", line) }
		}
		server := vfiouser.New(bus)
		dc.Memory, dc.Interrupt = server, server.Interrupt
		dc.BAR0 = func() uint64 { return server.BAR(0) }
		dev, err := hca.New(dc)
		if err != nil {
			return 0, err
		}
		devices = append(devices, dev)
		cards = append(cards, vfiouser.Card{Name: dc.Name, Socket: socket, Server: server, Device: dev})
	}
	err = vfiouser.ServeAll(cards, func() {})
	var all []hca.Report
	for _, dev := range devices {
		dev.Close()
		r := dev.Report()
		violations += r.Violations
		all = append(all, r)
		if !o.quiet {
			r.Print(out)
		}
	}
	return violations, errors.Join(err, vfiouser.WriteReport(o.report, all))
}
