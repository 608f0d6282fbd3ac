package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
	"github.com/goverbs/goverbs/uverbs"
)

// pingpongOptions are the flags of the command, with the letters of ibv_rc_pingpong.
type pingpongOptions struct {
	typ        string
	port       int
	device     string
	ibPort     uint8
	size       int
	mtu        int
	recvDepth  int
	qps        int
	iterations int
	sl         uint8
	event      bool
	gidIndex   int
	odp        bool
	verify     bool
	timeout    time.Duration
	json       bool
}

func newPingpong() *command.Command {
	var o pingpongOptions
	cmd := &command.Command{
		Use:   "pingpong [flags] [HOST]",
		Short: "Exchange messages with a peer and measure how long they take",
		Long: `Both sides send messages in turn over a queue pair. Without HOST it is the server, which waits for a
client; with HOST it is the client, which connects to the server there. Either side may be
rdma-core's ibv_rc_pingpong, ibv_uc_pingpong, ibv_ud_pingpong, ibv_srq_pingpong or
ibv_xsrq_pingpong. Their flags have the same letters, except for -c of ibv_xsrq_pingpong, and are
accepted by their long names, too. Give both sides the same --type, --size and --iterations.
Type srq is several RC queue pairs that receive from one shared receive queue. Type xrc is a queue
pair for each direction, and a shared receive queue in an XRC domain; ibv_xsrq_pingpong plays 5
iterations by default.
Queue pairs of type uc and ud do not repeat lost messages: after a loss, both sides hang until
--timeout.
` + trust + `A server listens on all addresses, serves the first client that sends an endpoint, and exits. It
reports and closes other connections. Run it where only hosts that you trust can reach --port.`,
		Example: `  verbs pingpong                          # wait for a client
  verbs pingpong 10.1.0.1                 # connect to it
  verbs pingpong -e -n 10000 10.1.0.1     # sleep instead of polling
  verbs pingpong --type srq -q 4          # four queue pairs, one shared receive queue
  verbs pingpong --json 10.1.0.1 | jq .us_per_iteration`,
		Args: command.Arguments(1),
		Run: func(cmd *command.Command, args []string) error {
			host := ""
			if len(args) == 1 {
				host = args[0]
			}
			if cmd.Flags().Changed("num-qp") && o.typ != typeSRQ {
				return command.Usagef("--num-qp is %d, allowed: only with --type %s", o.qps, typeSRQ)
			}
			return o.run(cmd.Context(), cmd.Out(), cmd.Err(), host)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.typ, "type", perf.RC, "`TYPE` of ping-pong: "+strings.Join(pingpongTypes, ", "))
	command.NumberVar(f, &o.port, "port", "p", 18515, 1, maxPort, "TCP `PORT` for the exchange of addresses")
	f.StringVarP(&o.device, "dev", "d", "", "RDMA device `DEV` (default the first usable one)")
	command.NumberVar(f, &o.ibPort, "ib-port", "i", 1, 1, math.MaxUint8, "`PORT` of the device")
	command.NumberVar(f, &o.size, "size", "s", 4096, 1, math.MaxInt, "message size in `BYTES`")
	f.IntVarP(&o.mtu, "mtu", "m", 1024, "path MTU in `BYTES`, the same on both sides")
	command.NumberVar(f, &o.recvDepth, "recv-depth", "r", 500, 2, math.MaxInt, "post `N` receives at a time")
	command.NumberVar(f, &o.qps, "num-qp", "q", 16, 1, srqQPs-1, "number `N` of queue pairs of type srq")
	command.NumberVar(f, &o.iterations, "iterations", "n", 1000, 1, math.MaxInt, "exchange `N` messages each way")
	command.NumberVar(f, &o.sl, "sl", "l", 0, 0, 15, "service `LEVEL`")
	f.BoolVarP(&o.event, "events", "e", false, "sleep until a completion event instead of polling")
	command.NumberVar(f, &o.gidIndex, "gid", "g", -1, 0, math.MaxInt, "`INDEX` of the local GID")
	command.DefaultIs(f, "gid", "chosen to match the peer")
	f.BoolVarP(&o.odp, "odp", "o", false, "register the buffer for on-demand paging")
	f.BoolVarP(&o.verify, "verify", "c", false, "compare the received data (server, not with ibv_uc_pingpong and ibv_ud_pingpong)")
	f.DurationVar(&o.timeout, "timeout", 30*time.Second, "give up when nothing completes for this `TIME`")
	command.JSONFlag(cmd, &o.json)
	return cmd
}

// maxPort is the largest TCP or UDP port.
const maxPort = 65535

// Types of ping-pong that are not named after a type of queue pair.
const (
	typeSRQ = "srq"
	typeXRC = "xrc"
)

// pingpongTypes are the types of ping-pong.
var pingpongTypes = []string{perf.RC, perf.UC, perf.UD, typeSRQ, typeXRC}

// check refuses impossible options before anything is opened.
func (o *pingpongOptions) check() error {
	if !slices.Contains(pingpongTypes, o.typ) {
		return command.Usagef("--type is %s, allowed: %s", o.typ, strings.Join(pingpongTypes, ", "))
	}
	if o.typ == typeSRQ && o.recvDepth <= o.qps {
		return command.Usagef("--recv-depth is %d, allowed: %d and more, for --num-qp %d", o.recvDepth, o.qps+1, o.qps)
	}
	if o.timeout <= 0 {
		return command.Usagef("--timeout is %s, allowed: more than 0", o.timeout)
	}
	if _, err := uverbs.MTUFromBytes(o.mtu); err != nil {
		return command.Usagef("--mtu is %d, allowed: 256, 512, 1024, 2048, 4096", o.mtu)
	}
	return nil
}

// result is what a run measured.
type result struct {
	Bytes              int64        `json:"bytes"`            // both directions
	Iterations         int          `json:"iterations"`       // exchanges
	Seconds            float64      `json:"seconds"`          // all of them
	MbitPerSecond      float64      `json:"mbit_per_s"`       // both directions
	MicrosPerIteration float64      `json:"us_per_iteration"` // a message there and one back
	QPs                int          `json:"qp_count"`
	Local              endpointJSON `json:"local"`
	Remote             endpointJSON `json:"remote"`
}

// endpointJSON is the address of a QP.
type endpointJSON struct {
	LID uint16 `json:"lid"`
	QPN uint32 `json:"qpn"`
	PSN uint32 `json:"psn"`
	GID string `json:"gid"`
}

// endpointOf returns an endpoint for JSON.
func endpointOf(e uverbs.Endpoint) endpointJSON {
	return endpointJSON{e.LID, e.QPN, e.PSN, e.GID.String()}
}

// run plays one side.
func (o *pingpongOptions) run(ctx context.Context, out, log io.Writer, host string) error {
	if err := o.check(); err != nil {
		return err
	}
	text := out
	if o.json {
		text = io.Discard
	}
	e, err := newPingpongEnd(o)
	if err != nil {
		return err
	}
	err = e.play(ctx, text, log, host)
	if closeErr := e.opened.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	if o.json {
		return command.PrintJSON(out, e.result)
	}
	fmt.Fprintf(out, "%d bytes in %.2f seconds = %.2f Mbit/sec\n", e.result.Bytes, e.result.Seconds, e.result.MbitPerSecond)
	fmt.Fprintf(out, "%d iters in %.2f seconds = %.2f usec/iter\n", e.result.Iterations, e.result.Seconds, e.result.MicrosPerIteration)
	return nil
}
