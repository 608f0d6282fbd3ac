// Verbs is the command-line tool of goverbs: it lists RDMA devices, shows what they
// can do, plays ping-pong over them and measures them. It needs nothing but the kernel.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set at build time.
var version = "devel"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newRoot().ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "verbs: %s\n", err)
		os.Exit(1)
	}
}

// newRoot builds the command tree.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "verbs",
		Short: "RDMA devices, from a single static binary",
		Long: `verbs lists RDMA devices, shows what they can do and what is open on them, finds out why one
cannot be used, plays ping-pong over them and measures them.

It talks to the kernel itself and needs neither libibverbs nor provider libraries.

Environment:
  RDMAABI=ioctl|write  force one way of giving commands to the kernel
  RDMADEBUG=level=1    trace commands on standard error`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newDevices(), newInfo(), newPingpong(), newRping(), newDoctor(), newRes(), newStat(), newMonitor(), newPerf())
	return root
}
