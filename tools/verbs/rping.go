package main

import (
	"math"
	"time"

	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/rping"
)

func newRping() *command.Command {
	var o rping.Options
	cmd := &command.Command{
		Use:   "rping [flags] -s|-c",
		Short: "Ping a peer over the connection manager, by RDMA READ and WRITE",
		Long: `For each ping, the client sends the address of its text, the server fetches the text by RDMA READ,
the client sends the address of a second buffer, and the server writes the text there by RDMA WRITE.
Either side may be rdma-core's rping, whose flags have the same letters.

A server plays with one client, the first that sends a ping. With -P it plays with any number of
them. Up to --max-clients are connected at once, half of them from one address, so that a client
that sends nothing does not keep others out. The server takes pings of any size, and disconnects a
client that sends nothing for --timeout.
On InfiniBand a connection is in the partition of the network interface with the address, such as
ib0.8001: the connection manager chooses it, and --pkey only checks it.
` + trust + `A server without -a listens on all addresses. Give it an address of a network that you trust. Each
client takes 64 KiB of memory and a queue pair.`,
		Example: `  verbs rping -s                          # wait for a client, on all addresses
  verbs rping -s -P -a 10.1.0.1           # serve clients until interrupted
  verbs rping -c -a 10.1.0.1 -C 10 -v     # ping ten times, and show what comes back
  verbs rping -c -a 10.1.0.1 -V           # ping and compare until interrupted`,
		Args: command.Arguments(0),
		Run: func(cmd *command.Command, _ []string) error {
			return o.Run(cmd.Context(), cmd.Out(), cmd.Err())
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&o.Server, "server", "s", false, "be the server")
	f.BoolVarP(&o.Client, "client", "c", false, "be the client")
	f.StringVarP(&o.Address, "address", "a", "", "`HOST` or address of the server (server: default all)")
	f.StringVarP(&o.Source, "source", "I", "", "`HOST` or address to connect from (client)")
	command.NumberVar(f, &o.Port, "port", "p", 7174, 1, maxPort, "`PORT` of the connection manager")
	command.NumberVar(f, &o.Count, "count", "C", 0, 0, math.MaxInt, "ping `N` times (client; default until interrupted)")
	command.NumberVar(f, &o.Size, "size", "S", 64, rping.MinPing, rping.MaxPing, "size of a ping in `BYTES` (client)")
	command.PKeyFlag(f, &o.PKey, "fail unless the connection is in the partition with this `KEY`, such as 0x8001", "any")
	f.BoolVarP(&o.Verify, "verify", "V", false, "compare what comes back (client)")
	f.BoolVarP(&o.Verbose, "verbose", "v", false, "show the text of each ping")
	f.BoolVarP(&o.Persistent, "persistent", "P", false, "serve any number of clients (server)")
	f.BoolVarP(&o.OwnQP, "own-qp", "q", false, "change the states of the QP one by one instead of by the connection manager's ID")
	f.BoolVarP(&o.Debug, "debug", "d", false, "show each step on standard error")
	f.DurationVar(&o.Timeout, "timeout", 30*time.Second, "give up when the peer does nothing for this `TIME`")
	command.NumberVar(f, &o.MaxClients, "max-clients", "", 64, 1, maxClients, "serve up to `N` clients at once, half of them from one address (server)")
	command.JSONFlag(cmd, &o.JSON)
	return cmd
}
