package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/goverbs/goverbs/uverbs"
)

// pingpongOptions are the command line's; the names are those of ibv_rc_pingpong.
type pingpongOptions struct {
	port     int
	device   string
	ibPort   uint8
	size     int
	mtu      int
	rxDepth  int
	iters    int
	sl       uint8
	event    bool
	gidIndex int
	odp      bool
	iodp     bool
	prefetch bool
	ts       bool
	chk      bool
	dm       bool
	newSend  bool
	timeout  time.Duration
	json     bool
}

func newPingpong() *cobra.Command {
	var o pingpongOptions
	cmd := &cobra.Command{
		Use:   "pingpong [HOST]",
		Short: "Exchange messages with a peer and time it",
		Long: `Exchange messages over an RC queue pair and print bandwidth and time per iteration.
Without HOST wait for a client, with HOST connect to the server there. Either end may
be rdma-core's ibv_rc_pingpong; give both the same --size and --iters.
` + trust + `A server listens on all addresses, takes the first client that connects, and ends with it: run it
where only hosts that you trust can reach --port.`,
		Example: `  verbs pingpong                 wait for a client
  verbs pingpong 10.1.0.1        connect to it
  verbs pingpong -e -n 10000 10.1.0.1`,
		Args: arguments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			host := ""
			if len(args) == 1 {
				host = args[0]
			}
			return o.run(cmd.Context(), cmd.OutOrStdout(), host)
		},
	}
	f := cmd.Flags()
	f.IntVarP(&o.port, "port", "p", 18515, "TCP port of the exchange")
	f.StringVarP(&o.device, "ib-dev", "d", "", "RDMA device (default: the first usable one)")
	f.Uint8VarP(&o.ibPort, "ib-port", "i", 1, "port of the device")
	f.IntVarP(&o.size, "size", "s", 4096, "message size in bytes")
	f.IntVarP(&o.mtu, "mtu", "m", 1024, "path MTU in bytes, the same on both sides")
	f.IntVarP(&o.rxDepth, "rx-depth", "r", 500, "number of receives to post at a time")
	f.IntVarP(&o.iters, "iters", "n", 1000, "number of exchanges")
	f.Uint8VarP(&o.sl, "sl", "l", 0, "service level")
	f.BoolVarP(&o.event, "events", "e", false, "sleep on completion events instead of polling")
	f.BoolVar(&o.event, "event", false, "the same as --events")
	f.IntVarP(&o.gidIndex, "gid-idx", "g", -1, "local GID index")
	defaultIs(f, "gid-idx", "chosen to suit the peer")
	f.BoolVarP(&o.odp, "odp", "o", false, "register the buffer for on-demand paging")
	f.BoolVarP(&o.iodp, "iodp", "O", false, "use implicit on-demand paging")
	f.BoolVarP(&o.prefetch, "prefetch", "P", false, "prefetch an on-demand MR")
	f.BoolVarP(&o.ts, "ts", "t", false, "get completions with a timestamp")
	f.BoolVarP(&o.chk, "chk", "c", false, "validate the received data (server)")
	f.BoolVarP(&o.dm, "dm", "j", false, "use device memory")
	f.BoolVarP(&o.newSend, "new_send", "N", false, "accepted for ibv_rc_pingpong's sake: there is one way to post")
	f.DurationVar(&o.timeout, "timeout", 30*time.Second, "give up when nothing completes for this long")
	f.BoolVar(&o.json, "json", false, "print the result as JSON")
	return cmd
}

// check refuses impossible options before anything is opened.
func (o *pingpongOptions) check() error {
	switch {
	case o.port < 1 || o.port > 65535:
		return fmt.Errorf("--port is %d, allowed: 1 to 65535", o.port)
	case o.size < 1:
		return fmt.Errorf("--size is %d, allowed: 1 byte and more", o.size)
	case o.rxDepth < 2:
		return fmt.Errorf("--rx-depth is %d, allowed: 2 and more", o.rxDepth)
	case o.iters < 1:
		return fmt.Errorf("--iters is %d, allowed: 1 and more", o.iters)
	case o.ibPort < 1:
		return fmt.Errorf("--ib-port is %d, allowed: 1 and more", o.ibPort)
	case o.gidIndex < -1:
		return fmt.Errorf("--gid-idx is %d, allowed: 0 and more", o.gidIndex)
	case o.timeout <= 0:
		return fmt.Errorf("--timeout is %s, allowed: more than 0", o.timeout)
	}
	_, err := uverbs.MTUFromBytes(o.mtu)
	return err
}

// result is what a run measured.
type result struct {
	Bytes         int64   `json:"bytes"`          // both directions
	Iterations    int     `json:"iterations"`     // exchanges
	Seconds       float64 `json:"seconds"`        // all of them
	MbitPerSecond float64 `json:"mbit_per_s"`     // both directions
	UsecPerIter   float64 `json:"usec_per_iter"`  // a message there and one back
	Local         string  `json:"local_address"`  // GID or LID and QP number
	Remote        string  `json:"remote_address"` // the same of the peer
}

// run plays a whole game.
func (o *pingpongOptions) run(ctx context.Context, out io.Writer, host string) error {
	if err := o.check(); err != nil {
		return err
	}
	text := out
	if o.json {
		text = io.Discard
	}
	g, err := newGame(o)
	if err != nil {
		return err
	}
	runErr := g.play(ctx, text, host)
	if err := g.close(); runErr == nil && err != nil {
		return err
	}
	if runErr != nil {
		return runErr
	}
	if o.json {
		return printJSON(out, g.result)
	}
	fmt.Fprintf(out, "%d bytes in %.2f seconds = %.2f Mbit/sec\n", g.result.Bytes, g.result.Seconds, g.result.MbitPerSecond)
	fmt.Fprintf(out, "%d iters in %.2f seconds = %.2f usec/iter\n", g.result.Iterations, g.result.Seconds, g.result.UsecPerIter)
	return nil
}
