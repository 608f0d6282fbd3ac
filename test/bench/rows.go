package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// work is what both do in turn. One run of it can give several figures.
type work struct {
	rows   []Row
	ours   func(context.Context) ([]float64, error)
	theirs func(context.Context) ([]float64, error)
}

// Sizes of messages, in bytes, if none are given.
var defaultSizes = []int{2, 64, 4 << 10, 64 << 10}

// Ratios that are wanted.
const (
	noWorse   = 1.0
	listGain  = 1.2 // of the message rate, when messages are posted 16 at a time
	openRatio = 0.2 // of the time to open a device

	createRatio    = 1.25
	registerRatio  = 1.1
	closeRatio     = 1.15
	dialFirstRatio = 1.3
	dialRatio      = 1.1
	srdPostRatio   = 1.2
)

// listLength is how many messages are posted at a time in a row about that.
const listLength = 16

// iterations returns the messages of a run, so that it takes a tenth of a second to a second where the
// device is software and the machine is emulated: a shorter one is mostly of a program's first steps.
func (b *bench) iterations(metric string, size int) int {
	if b.count != 0 {
		return b.count
	}
	n := 20
	switch {
	case size <= 1<<10:
		n = 4000
	case size <= 8<<10:
		n = 1000
	case size <= 128<<10:
		n = 150
	}
	if b.cm && size > 1<<10 { // soft iWARP, where the kernel's TCP takes large messages at a time
		n *= 8
	}
	if metric == "bw" {
		n = n * 5 / 2
	}
	return n
}

// all returns all that there is to do, in the order of the table: what every program gets comes before
// the tuned tool.
func (b *bench) all() []work {
	var all []work
	if b.srd {
		return b.datagramRows()
	}
	if !b.cm {
		all = b.plainRows()
	}
	return slices.Concat(all, b.controlRows(), b.manyRows(), b.toolRows())
}

// controlRows are about the control path, and about single calls.
func (b *bench) controlRows() []work {
	all := []work{b.opening(), b.starting(), b.connecting(), b.dialing()}
	if !b.cm {
		all = append(all, b.calling())
	}
	if b.dc {
		all = append(all, b.initiating())
	}
	for _, size := range b.mrs {
		all = append(all, b.registering(size))
	}
	return all
}

// manyRows are about many objects.
func (b *bench) manyRows() []work {
	if b.cm {
		return nil
	}
	var all []work
	for _, kind := range []string{"qps", "cqs", "mrs"} {
		for _, n := range b.qps {
			if n == 1 && kind != "qps" {
				continue // one queue pair has one CQ and one region
			}
			all = append(all, b.many(kind, n))
		}
	}
	for _, n := range b.qps {
		all = append(all, b.conns(n))
	}
	return all
}

// toolRows are about verbs perf.
func (b *bench) toolRows() []work {
	var all []work
	for _, op := range []string{"send", "write", "read", "atomic"} {
		sizes := b.sizes
		if op == "atomic" && b.cm {
			continue
		}
		if op == "atomic" {
			sizes = []int{8}
		}
		for _, metric := range []string{"lat", "bw"} {
			for _, events := range []bool{false, true} {
				if events && op == "write" {
					continue // write-lat polls memory, and perftest has no events in write-bw
				}
				for _, size := range sizes {
					all = append(all, b.traffic(op, metric, size, events, 0))
				}
			}
		}
	}
	for _, size := range b.sizes {
		if size <= 64 {
			all = append(all, b.traffic("send", "bw", size, false, listLength), b.traffic("send", "bw", size, false, 1))
		}
	}
	return all
}

// row makes a row.
func row(name, unit string, wanted float64) Row {
	r := Row{Name: name, Unit: unit, Better: less, Wanted: wanted}
	if unit == rate || unit == bandwidth {
		r.Better = more
	}
	return r
}

// traffic is a test of verbs perf beside perftest's program for it. Both get the same options
// wherever their defaults differ, except for the number of messages per doorbell if list is 0.
func (b *bench) traffic(op, metric string, size int, events bool, list int) work {
	test := op + "-" + metric
	name := fmt.Sprintf("%s/size=%d/wait=poll", test, size)
	if events {
		name = fmt.Sprintf("%s/size=%d/wait=events", test, size)
	}
	if list > 0 {
		name += fmt.Sprintf("/list=%d", list)
	}
	unit := microseconds
	if metric == "bw" {
		if unit = rate; size > 1<<10 {
			unit = bandwidth
		}
	}
	wanted := noWorse
	switch list {
	case 1:
		wanted = 0 // it is there to compare with
	case listLength:
		wanted = listGain
	}
	n := strconv.Itoa(b.iterations(metric, size))
	ours := []string{b.verbs, "perf", test, "--json", "--warmup", "0", "-n", n, "-d", b.device}
	theirs := []string{"ib_" + strings.ReplaceAll(test, "-", "_"), "-F", "-n", n, "-d", b.device}
	if op != "atomic" {
		ours = append(ours, "-s", strconv.Itoa(size))
		theirs = append(theirs, "-s", strconv.Itoa(size))
	}
	if b.cm {
		ours, theirs = append(ours, "--cm"), append(theirs, "-R")
	}
	if metric == "bw" {
		theirs = append(theirs, "-N") // ours does not look for the peak either, which takes a time stamp for each message
	}
	if list > 0 {
		ours = append(ours, "--list", strconv.Itoa(list))
	}
	if events {
		ours = append(ours, "-e")
		theirs = append(theirs, "-e")
	}
	return work{
		rows:   []Row{row(name, unit, wanted)},
		ours:   func(ctx context.Context) ([]float64, error) { return b.perf(ctx, ours, unit) },
		theirs: func(ctx context.Context) ([]float64, error) { return b.perftest(ctx, theirs, size, unit) },
	}
}

// child returns the command line of a program of ours that is this one, or of rdma-core's, with
// what both are told.
func (b *bench) child(args ...any) (ours, theirs []string) {
	ours, theirs = []string{b.self, "child"}, []string{b.theirs + "-" + fmt.Sprint(args[0])}
	for i, a := range args {
		ours = append(ours, fmt.Sprint(a))
		if i > 0 {
			theirs = append(theirs, fmt.Sprint(a))
		}
	}
	return ours, theirs
}

// pair is work of two programs which print lines of figures in the order of the rows, of which the medians
// count.
func pair(rows []Row, ours, theirs []string, each float64) work {
	return work{rows, figures(ours, len(rows), each), figures(theirs, len(rows), each)}
}

// figures runs a program that prints lines of n figures, and divides their medians.
func figures(line []string, n int, each float64) func(context.Context) ([]float64, error) {
	return func(ctx context.Context) ([]float64, error) {
		v, err := medians(ctx, line, n)
		for i := range v {
			v[i] /= each
		}
		return v, err
	}
}

// column returns one figure of several.
func column(i int, do func(context.Context) ([]float64, error)) func(context.Context) ([]float64, error) {
	return func(ctx context.Context) ([]float64, error) {
		v, err := do(ctx)
		if err != nil {
			return nil, err
		}
		return v[i : i+1], nil
	}
}

// calling is the posting of a small SEND, and the polling of its completion.
func (b *bench) calling() work {
	const size, count, rounds = 64, 64, 20
	ours, theirs := b.child("calls", b.device, b.gid, size, count, rounds)
	return pair([]Row{row("call/post", nanoseconds, noWorse), row("call/poll", nanoseconds, noWorse), row("call/system", nanoseconds, 0)}, ours, theirs, 1)
}

// initiating is the posting of a list of small SENDs by an RC queue pair and by an initiator of DC.
func (b *bench) initiating() work {
	const size, count, rounds = 64, 64, 20
	ours, theirs := b.child("dc", b.device, b.gid, size, count, rounds)
	return pair([]Row{row("dc/rc", nanoseconds, noWorse), row("dc/one", nanoseconds, noWorse), row("dc/each", nanoseconds, noWorse)}, ours, theirs, 1)
}

// datagramRows measures a device whose QPs are not connected.
func (b *bench) datagramRows() []work {
	const size, count, rounds = 64, 64, 20
	ours, theirs := b.child("srd", b.device, 0, size, count, rounds)
	var rows []Row
	for _, name := range srdRows {
		wanted := noWorse
		if strings.HasPrefix(name, "post/") {
			wanted = srdPostRatio
		}
		rows = append(rows, row("srd/"+name, nanoseconds, wanted))
	}
	all := []work{b.opening(), b.starting(), pair(rows, ours, theirs, 1)}
	for _, size := range b.mrs {
		all = append(all, b.registering(size))
	}
	return all
}

// registering is the registration of memory.
func (b *bench) registering(size int) work {
	count := 50
	if size > 1<<27 {
		count = 1
	}
	ours, theirs := b.child("mr", b.device, size, count)
	name := fmt.Sprintf("mr/size=%d/", size)
	return pair([]Row{row(name+"reg", microseconds, registerRatio), row(name+"dereg", microseconds, registerRatio)}, ours, theirs, 1e3)
}

// many is about n objects of a kind: queue pairs, CQs with a queue pair each, or memory regions.
func (b *bench) many(kind string, n int) work {
	qps, cqs, mrs := n, 1, 1
	switch kind {
	case "cqs":
		cqs = n
	case "mrs":
		qps, mrs = 1, n
	}
	ours, theirs := b.child("qps", b.device, b.gid, qps, cqs, mrs, manyMessages(n))
	name := fmt.Sprintf("%s/n=%d/", kind, n)
	return pair([]Row{row(name+"create", microseconds, createRatio), row(name+"message", microseconds, noWorse),
		row(name+"close", microseconds, closeRatio)}, ours, theirs, 1e3)
}

// manyMessages is how many messages go over n objects, so that what making these leaves to the background
// counts little.
func manyMessages(n int) int { return max(10_000, 5*n) }

// conns is about n connections of package cm, beside as many queue pairs with a CQ each. Only their growth
// can be compared: a connection counts credits, copies messages, and sends between two queue pairs.
func (b *bench) conns(n int) work {
	ours, _ := b.child("conns", b.device, n, manyMessages(n))
	_, theirs := b.child("qps", b.device, b.gid, n, n, 1, manyMessages(n))
	return work{[]Row{row(fmt.Sprintf("conns/n=%d/message", n), microseconds, 0)}, figures(ours, 1, 1e3), column(1, figures(theirs, 3, 1e3))}
}

// opening is the opening of a device by a program: from its start, and from its first line.
func (b *bench) opening() work {
	do := func(program string) []string {
		return []string{b.theirs + "-start", strconv.Itoa(starts), program, b.device}
	}
	return pair([]Row{row("open/program", milliseconds, openRatio), row("open/device", milliseconds, openRatio)}, do(b.open), do(b.theirs+"-open"), 1e6)
}

// starting is the start of a program that is linked with the library and does nothing.
func (b *bench) starting() work {
	do := func(program string) []string {
		return []string{b.theirs + "-start", strconv.Itoa(starts), program, ""}
	}
	return work{[]Row{row("open/nothing", milliseconds, 0)}, column(0, figures(do(b.open), 2, 1e6)), column(0, figures(do(b.theirs+"-open"), 2, 1e6))}
}

// connecting is the making of connections, step by step.
func (b *bench) connecting() work {
	ours := func(ctx context.Context) ([]float64, error) { return b.connect(ctx, "accept", "connect", 1) }
	return work{[]Row{row(fmt.Sprintf("connect/n=%d", atOnce), microseconds, noWorse)}, ours, b.cmtime}
}

// dialing is the same with Dial and Listen: the first connections of a program, and later ones, which use
// memory and CQs of those that were closed.
func (b *bench) dialing() work {
	ours := func(ctx context.Context) ([]float64, error) { return b.connect(ctx, "listen", "dial", 2) }
	theirs := func(ctx context.Context) ([]float64, error) {
		v, err := b.cmtime(ctx)
		return append(v, v...), err
	}
	name := fmt.Sprintf("dial/n=%d/", atOnce)
	return work{[]Row{row(name+"first", microseconds, dialFirstRatio), row(name+"later", microseconds, dialRatio)}, ours, theirs}
}
