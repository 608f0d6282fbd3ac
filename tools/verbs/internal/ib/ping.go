package ib

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// PingResult is what "verbs ib ping" prints as JSON.
type PingResult struct {
	Device   string  `json:"device"`
	Port     int     `json:"port"`
	LID      uint16  `json:"lid"`
	Host     string  `json:"host,omitempty"`
	Sent     int     `json:"sent"`
	Received int     `json:"received"`
	Seconds  float64 `json:"seconds"`
	MinUS    float64 `json:"min_us"`
	AvgUS    float64 `json:"avg_us"`
	MaxUS    float64 `json:"max_us"`
	Reason   string  `json:"reason,omitempty"`

	sum time.Duration
}

// pingFlags are the flags of "verbs ib ping".
type pingFlags struct {
	*options
	count         int
	interval      time.Duration
	flood, serve  bool
	quiet, asJSON bool
}

// newPing makes the command that pings over management datagrams.
func newPing(s *System) *command.Command {
	cmd := &command.Command{
		Use:   "ping [flags] [LID | GUID]",
		Short: "Ping a port by management datagrams, or serve pings",
		Long: `A ping is a management datagram of vendor class 0x32, which crosses the subnet by LID and needs no
addresses and no connection. The other end runs "verbs ib ping --serve" or rdma-core's ibping -S. It
looks up a GUID, which must belong to a port, with the subnet administrator.`,
		Example: `  verbs ib ping --serve
  verbs ib ping 7               # to the port with LID 7
  verbs ib ping -c 1000 --flood 0x0002c90300010001`,
		Exit: "  0  a ping was answered, or the server was interrupted\n  1  none was answered, or a failure; standard error has the reason",
		Args: command.Arguments(1),
	}
	p := &pingFlags{options: newOptions(s, cmd)}
	p.tries = 1
	command.DefaultIs(cmd.Flags(), "tries", "1")
	f := cmd.Flags()
	command.NumberVar(f, &p.count, "count", "c", 0, 1, math.MaxInt, "stop after `N` pings")
	command.DefaultIs(f, "count", "until an interrupt")
	f.DurationVar(&p.interval, "interval", time.Second, "begin a ping each `TIME`")
	f.BoolVarP(&p.flood, "flood", "f", false, "begin a ping as soon as the one before is answered, and print no lines for them")
	f.BoolVarP(&p.serve, "serve", "S", false, "serve pings until an interrupt")
	f.BoolVarP(&p.quiet, "quiet", "q", false, "print no line for each ping, or for each new client")
	command.JSONFlag(cmd, &p.asJSON)
	cmd.Run = func(cmd *command.Command, args []string) error {
		switch {
		case p.serve && len(args) > 0:
			return command.Usagef("a destination is given with --serve, allowed: one of them")
		case !p.serve && len(args) == 0:
			return command.Usagef("the destination is missing, allowed: a LID or GUID, or --serve")
		case p.interval < 0:
			return command.Usagef("--interval is %v, allowed: 0s and more", p.interval)
		}
		var to destination
		if !p.serve {
			var err error
			if to, err = parseDest(args[0]); err != nil {
				return err
			}
		}
		port, err := p.open()
		if err != nil {
			return err
		}
		defer port.Close()
		if p.serve {
			return p.server(cmd, port)
		}
		return p.client(cmd, port, to)
	}
	return cmd
}

// client pings a port, and prints the result.
func (p *pingFlags) client(cmd *command.Command, port *umad.Port, dest destination) error {
	ctx := cmd.Context()
	to, err := p.resolve(ctx, port, dest)
	if err != nil {
		return err
	}
	agent, err := port.Register(p.agent(mad.ClassPing))
	if err != nil {
		return err
	}
	defer agent.Close()
	var lines io.Writer = cmd.Out()
	if p.quiet || p.flood || p.asJSON {
		lines = io.Discard
	}
	r, err := p.pings(ctx, agent, to, lines)
	if err != nil {
		return err
	}
	r.Device, r.Port = port.Device()
	if p.asJSON {
		err = command.PrintJSON(cmd.Out(), r)
	} else {
		err = r.print(cmd.Out())
	}
	if err == nil && r.Received == 0 {
		return fmt.Errorf("no ping was answered: %s", r.Reason)
	}
	return err
}

// pings sends pings until there were enough or ctx ends. It fails only if there is no sense in going on.
func (p *pingFlags) pings(ctx context.Context, agent *umad.Agent, to umad.Addr, lines io.Writer) (*PingResult, error) {
	r := &PingResult{LID: to.LID}
	start := time.Now()
	for next := start; p.count == 0 || r.Sent < p.count; next = next.Add(p.interval) {
		if now := time.Now(); now.After(next) {
			next = now // after a long wait for an answer there is no burst
		}
		if !p.flood && !sleepUntil(ctx, next) {
			break
		}
		begin := time.Now()
		answer, err := agent.Do(ctx, to, mad.NewVendor(mad.ClassPing, mad.OUIOpenIB, mad.MethodGet, 0))
		end := time.Now()
		took := end.Sub(begin)
		if ctx.Err() != nil {
			break
		}
		r.Sent++
		r.Seconds = end.Sub(start).Seconds()
		if err != nil {
			if err = r.lost(err, to); err != nil {
				return nil, err
			}
			fmt.Fprintf(lines, "%s\n", r.Reason)
			continue
		}
		host, _, _ := bytes.Cut(answer.Data, []byte{0})
		r.add(string(host), took)
		fmt.Fprintf(lines, "Pong from %s: time %.3f ms\n", r.peer(), took.Seconds()*1e3)
	}
	switch {
	case r.Received > 0:
		r.AvgUS = us(r.sum) / float64(r.Received)
	case r.Sent == 0:
		r.Reason = "interrupted before an answer"
	}
	return r, nil
}

// sleepUntil sleeps until a time. It returns false if ctx ends before.
func sleepUntil(ctx context.Context, t time.Time) bool {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// us returns a time in microseconds.
func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// add counts an answer.
func (r *PingResult) add(host string, took time.Duration) {
	t := us(took)
	if r.Received == 0 || t < r.MinUS {
		r.MinUS = t
	}
	r.MaxUS = max(r.MaxUS, t)
	r.Host = host
	r.sum += took
	r.Received++
}

// lost notes why a ping was not answered. It returns an error if that is not the peer's fault.
func (r *PingResult) lost(err error, to umad.Addr) error {
	switch {
	case errors.As(err, new(*mad.StatusError)):
		r.Reason = fmt.Sprintf("%v answers, but serves no pings; run verbs ib ping --serve there", to)
	case errors.Is(err, os.ErrDeadlineExceeded):
		r.Reason = fmt.Sprintf("no answer from %v", to)
	default:
		return err
	}
	return nil
}

// peer returns what the other end calls itself, if it does, and its LID.
func (r *PingResult) peer() string {
	lid := fmt.Sprintf("LID %d", r.LID)
	if r.Host == "" {
		return lid
	}
	return fmt.Sprintf("%s (%s)", printable(r.Host), lid)
}

// print prints the result as text.
func (r *PingResult) print(w io.Writer) error {
	loss := 0.0
	if r.Sent > 0 {
		loss = 100 * float64(r.Sent-r.Received) / float64(r.Sent)
	}
	_, err := fmt.Fprintf(w, "\n%s: %d sent, %d received, %.4g%% lost, %.3f s\n", r.peer(), r.Sent, r.Received, loss, r.Seconds)
	if err == nil && r.Received > 0 {
		_, err = fmt.Fprintf(w, "round trip min/avg/max = %.3f/%.3f/%.3f ms\n", r.MinUS/1e3, r.AvgUS/1e3, r.MaxUS/1e3)
	}
	return err
}

// server answers pings with the name of this host until ctx ends. It prints a line for each new client.
func (p *pingFlags) server(cmd *command.Command, port *umad.Port) error {
	o := p.agent(mad.ClassPing)
	o.Methods, o.OUI = []mad.Method{mad.MethodGet}, mad.OUIOpenIB
	agent, err := port.Register(o)
	if err != nil {
		return err
	}
	defer agent.Close()
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	var lines io.Writer = cmd.Out()
	if p.quiet {
		lines = io.Discard
	}
	device, number := port.Device()
	fmt.Fprintf(lines, "%s/%d serves pings as %s\n", device, number, printable(host))
	counts := map[uint16]int{} // by LID
	err = agent.Serve(cmd.Context(), func(req *mad.Packet, from umad.Addr) *mad.Packet {
		if counts[from.LID]++; counts[from.LID] == 1 {
			fmt.Fprintf(lines, "%v pings\n", from)
		}
		r := req.Reply()
		r.Data = append([]byte(host), 0)
		return r
	})
	total := 0
	for _, n := range counts {
		total += n
	}
	fmt.Fprintf(lines, "served %d pings of %d ports\n", total, len(counts))
	if cmd.Context().Err() != nil {
		return nil
	}
	return err
}
