package main

import (
	"math"
	"strings"
	"time"

	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
	"github.com/goverbs/goverbs/tools/verbs/internal/pingpong"
)

func newPingpong() *command.Command {
	var o pingpong.Options
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
Type srd, of driver efa, is like ud, but reliable, and no program of rdma-core has it.
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
			if cmd.Flags().Changed("num-qp") && o.Type != pingpong.TypeSRQ {
				return command.Usagef("--num-qp is %d, allowed: only with --type %s", o.QPs, pingpong.TypeSRQ)
			}
			o.Poll = cmd.Flags().Changed("events") && !o.Events
			return o.Run(cmd.Context(), cmd.Out(), cmd.Err(), host)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Type, "type", perf.RC, "`TYPE` of ping-pong: "+strings.Join(pingpong.Types, ", "))
	command.NumberVar(f, &o.Port, "port", "p", 18515, 1, maxPort, "TCP `PORT` for the exchange of addresses")
	f.StringVarP(&o.Device, "dev", "d", "", "RDMA device `DEV` (default the one with the address of the TCP connection, or else the first usable one)")
	command.NumberVar(f, &o.IBPort, "ib-port", "i", 1, 1, math.MaxUint8, "`PORT` of the device")
	command.NumberVar(f, &o.Size, "size", "s", 4096, 1, math.MaxInt, "message size in `BYTES`")
	f.IntVarP(&o.MTU, "mtu", "m", 1024, "path MTU in `BYTES`, the same on both sides")
	command.NumberVar(f, &o.RecvDepth, "recv-depth", "r", 500, 2, math.MaxInt, "post `N` receives at a time")
	command.NumberVar(f, &o.QPs, "num-qp", "q", 16, 1, pingpong.MaxQPs, "number `N` of queue pairs of type srq")
	command.NumberVar(f, &o.Iterations, "iterations", "n", 1000, 1, math.MaxInt, "exchange `N` messages each way")
	command.NumberVar(f, &o.SL, "sl", "l", 0, 0, 15, "service `LEVEL`")
	command.PKeyFlag(f, &o.PKey, "`KEY` of the partition, such as 0x8001; ibv_rc_pingpong and the others use the first in the port's table", command.MyPartition)
	f.BoolVarP(&o.Events, "events", "e", false, "sleep until a completion event instead of polling (software devices: unless --events=false)")
	command.NumberVar(f, &o.GID, "gid", "g", -1, 0, math.MaxInt, "`INDEX` of the local GID")
	command.DefaultIs(f, "gid", "chosen to match the peer")
	f.BoolVarP(&o.ODP, "odp", "o", false, "register the buffer for on-demand paging")
	f.BoolVarP(&o.ImplicitODP, "iodp", "O", false, "register all memory of the process for on-demand paging, instead of the buffer")
	f.BoolVarP(&o.Prefetch, "prefetch", "P", false, "have the device page the buffer in before the first message (with --odp or --iodp)")
	f.BoolVarP(&o.DM, "dm", "j", false, "have the messages in memory of the device")
	f.BoolVarP(&o.Timestamps, "ts", "t", false, "print the time between completions of receives, in cycles of the device's clock")
	f.BoolVarP(&o.Verify, "verify", "c", false, "compare the received data (server, not with ibv_uc_pingpong and ibv_ud_pingpong)")
	f.DurationVar(&o.Timeout, "timeout", 30*time.Second, "give up when nothing completes for this `TIME`")
	command.JSONFlag(cmd, &o.JSON)
	return cmd
}
