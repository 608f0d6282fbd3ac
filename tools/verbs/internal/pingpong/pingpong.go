// Package pingpong exchanges messages with another host, which may run a ping-pong program of rdma-core.
package pingpong

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
	"github.com/goverbs/goverbs/uverbs"
)

// Options say what is played.
type Options struct {
	Type        string        // Type is one of Types.
	Port        int           // Port is the TCP port for the exchange of addresses.
	Device      string        // Device is the name of the RDMA device; "" is the one that has the address of the TCP connection, or else the first usable one.
	IBPort      uint8         // IBPort is the port of the device.
	Size        int           // Size of a message, in bytes.
	MTU         int           // MTU of the path, in bytes.
	RecvDepth   int           // RecvDepth is the number of receives that are posted at a time.
	QPs         int           // QPs is the number of queue pairs of TypeSRQ.
	Iterations  int           // Iterations is the number of messages each way.
	SL          uint8         // SL is the service level.
	PKey        uint16        // PKey is the partition; 0 is the first one of which the port is a full member.
	Events      bool          // Events says to sleep until a completion event. On a software device that is the default.
	Poll        bool          // Poll says to poll on a software device, too.
	GID         int           // GID is the index of the local GID; -1 is one that suits the peer.
	ODP         bool          // ODP registers the buffer for on-demand paging.
	ImplicitODP bool          // ImplicitODP registers all memory of the process for on-demand paging, instead of the buffer.
	Prefetch    bool          // Prefetch has the device page the buffer in before the first message.
	DM          bool          // DM has the messages in memory of the device.
	Timestamps  bool          // Timestamps measures the time between completions of receives by the device's clock.
	Verify      bool          // Verify compares the received data.
	Timeout     time.Duration // Timeout ends a ping-pong in which nothing completes.
	JSON        bool          // JSON prints the result as JSON.
}

// Types of ping-pong that are not named after a type of queue pair.
const (
	TypeSRQ = "srq"
	TypeXRC = "xrc"
)

// Types are the types of ping-pong.
var Types = []string{perf.RC, perf.UC, perf.UD, perf.SRD, TypeSRQ, TypeXRC}

// check refuses impossible options before anything is opened.
func (o *Options) check() error {
	if !slices.Contains(Types, o.Type) {
		return command.Usagef("--type is %s, allowed: %s", o.Type, strings.Join(Types, ", "))
	}
	if o.Type == TypeSRQ && o.RecvDepth <= o.QPs {
		return command.Usagef("--recv-depth is %d, allowed: %d and more, for --num-qp %d", o.RecvDepth, o.QPs+1, o.QPs)
	}
	if o.Timeout <= 0 {
		return command.Usagef("--timeout is %s, allowed: more than 0", o.Timeout)
	}
	if _, err := uverbs.MTUFromBytes(o.MTU); err != nil {
		return command.Usagef("--mtu is %d, allowed: 256, 512, 1024, 2048, 4096", o.MTU)
	}
	return o.checkMemory()
}

// Result is what a run measured.
type Result struct {
	Bytes              int64        `json:"bytes"`            // both directions
	Iterations         int          `json:"iterations"`       // exchanges
	Seconds            float64      `json:"seconds"`          // all of them
	MbitPerSecond      float64      `json:"mbit_per_s"`       // both directions
	MicrosPerIteration float64      `json:"us_per_iteration"` // a message there and one back
	QPs                int          `json:"qp_count"`
	Local              endpointJSON `json:"local"`
	Remote             endpointJSON `json:"remote"`
	Clock              *clock       `json:"clock,omitempty"` // between receives, with --ts
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

// Run plays one side: the server, or the client of the one at a host. It prints the result to out, and connections that
// are not the client's to log.
func (o *Options) Run(ctx context.Context, out, log io.Writer, host string) error {
	if err := o.check(); err != nil {
		return err
	}
	text := out
	if o.JSON {
		text = io.Discard
	}
	e := &side{o: o, client: host != ""}
	err := e.open(o.Device)
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
	if o.JSON {
		return command.PrintJSON(out, e.result)
	}
	fmt.Fprintf(out, "%d bytes in %.2f seconds = %.2f Mbit/sec\n", e.result.Bytes, e.result.Seconds, e.result.MbitPerSecond)
	fmt.Fprintf(out, "%d iters in %.2f seconds = %.2f usec/iter\n", e.result.Iterations, e.result.Seconds, e.result.MicrosPerIteration)
	if c := e.result.Clock; c != nil {
		fmt.Fprintf(out, "Max receive completion clock cycles = %d\nMin receive completion clock cycles = %d\nAverage receive completion clock cycles = %f\n", c.Max, c.Min, c.Average)
	}
	return nil
}
