// Efa serves EFA cards over vfio-user, one on each socket, all of them on one fabric:
//
//	efa -personality first card0.sock card1.sock
//
// A socket may also be fd:3, one that is listened to already, with which the program was started. When all clients
// are gone, or on SIGTERM, it prints what the cards have seen, and its exit status is 1 if a driver did what it must
// not. Package efa says how the cards differ; command hca of test/hca has the command line of QEMU.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/test/efa"
	"github.com/goverbs/goverbs/test/hca/vfiouser"
)

// Exit statuses.
const (
	statusViolation = 1
	statusFailure   = 2
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
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	violations := 0
	if err == nil && o.describe {
		fmt.Println(o.personality.String())
		return
	}
	if err == nil {
		violations, err = run(o, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "efa:", err)
		os.Exit(statusFailure)
	}
	if violations > 0 {
		os.Exit(statusViolation)
	}
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

// card is one card and where it is served.
type card struct {
	dev    *efa.Device
	server *vfiouser.Server
	socket string
}

// keepAlive is the time between the events by which a card says that it works.
const keepAlive = time.Second

// run serves the cards until their clients are gone.
func run(o options, out io.Writer) (int, error) {
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
	var cards []*card
	errs := make(chan error, len(o.sockets))
	for i, socket := range o.sockets {
		c := newCard(o, i, socket, fabric, say)
		cards = append(cards, c)
		go func() { errs <- c.serve() }()
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	var err error
	for gone := 0; gone < len(cards); {
		select {
		case e := <-errs:
			err = errors.Join(err, e)
			gone++
		case <-tick.C:
			for _, c := range cards {
				c.dev.KeepAlive()
			}
		case <-stop:
			gone = len(cards)
		}
	}
	return finish(o, cards, out, err)
}

func newCard(o options, i int, socket string, fabric *efa.Fabric, say func(string)) *card {
	cfg := efa.Config{Name: "card " + strconv.Itoa(i), Personality: o.personality, Index: uint8(i), Fabric: fabric}
	bus := o.personality.Bus()
	if o.verbose {
		cfg.Trace = say
		bus.Logf = func(format string, args ...any) { say(cfg.Name + ": " + fmt.Sprintf(format, args...)) }
	}
	server := vfiouser.New(bus)
	cfg.Memory, cfg.Interrupt = server, server.Interrupt
	return &card{dev: efa.New(cfg), server: server, socket: socket}
}

// serve answers the client at the socket.
func (c *card) serve() error {
	conn, err := vfiouser.Accept(c.socket)
	if err != nil {
		return fmt.Errorf("%s: %w", c.socket, err)
	}
	defer conn.Close()
	if err := c.server.Serve(conn, c.dev); err != nil {
		return fmt.Errorf("%s: %w", c.socket, err)
	}
	return nil
}

// finish prints the reports.
func finish(o options, cards []*card, out io.Writer, err error) (violations int, _ error) {
	var all []efa.Report
	for _, c := range cards {
		c.dev.Close()
		r := c.dev.Report()
		violations += r.Total()
		all = append(all, r)
		r.Print(out)
	}
	if o.report != "" {
		b, e := json.MarshalIndent(all, "", "\t")
		if e == nil {
			e = os.WriteFile(o.report, append(b, '\n'), 0o644)
		}
		err = errors.Join(err, e)
	}
	return violations, err
}
