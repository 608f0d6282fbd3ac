// Verbs is the command-line tool of goverbs: it lists RDMA devices, shows their properties,
// objects and counters, changes its settings, finds out why one cannot be used, plays ping-pong over them and measures
// them. It needs nothing but the kernel.
//
// JSON.md describes what each command prints with --json; "verbs help json" prints it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/ib"
	"github.com/goverbs/goverbs/tools/verbs/internal/terminal"
)

// version is set at build time.
var version = "devel"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the next signal ends a command that does not end by itself
	err := newRoot().Execute(ctx, os.Args[1:])
	if err != nil && !errors.As(err, new(programStatus)) {
		fmt.Fprintf(terminal.Stderr, "verbs: %s\n", err)
	}
	terminal.Stdout.Flush() // a cut character at the end of all: an error would have come earlier
	terminal.Stderr.Flush()
	os.Exit(exitStatus(err))
}

// newRoot builds the command tree.
func newRoot() *command.Root {
	root := &command.Root{Version: version, PrintHelp: printHelp, FlagError: flagError, FlagName: flagName}
	root.Command = command.Command{
		Use:   "verbs [flags] COMMAND",
		Short: "Work with RDMA devices, from a single static binary",
		Long: `verbs lists RDMA devices, shows their properties, objects and counters, finds out why one
cannot be used, plays ping-pong over them and measures them. It talks to the kernel itself and
needs neither libibverbs nor provider libraries.

Environment:
  RDMAABI=ioctl|write  issue commands to the kernel by ioctl or write only
  RDMADEBUG=level=1    trace commands on standard error
  GOVERBS_SOFT=auto    use a software device inside this process, without any RDMA; or addresses
                       of this host, each with options: "127.0.0.2 127.0.0.3:4791,name=b,mtu=1024"`,
		Example: `  verbs devices                  # which devices are there?
  verbs status                   # the state of each port, in one line
  verbs link add rxe0 type rxe netdev eth0   # a device without a card
  verbs doctor                   # why does RDMA not work here?
  GOVERBS_SOFT=auto verbs doctor # the same without RDMA, on a software device
  verbs top                      # rates, errors, processes and QPs, live
  verbs info rxe0 --json         # properties of a device, for a program
  verbs help pingpong            # the help of a command
  verbs help json                # what the commands print with --json
  verbs help metrics             # what verbs exporter serves`,
	}
	root.Init()
	command.Group(&root.Command)
	root.Add(newHelp(), newDevices(), newStatus(), newInfo(), newLink(), newDev(), newSystem(), newCDI(), newPingpong(), newRping(), newDoctor(), newRes(), newStat(), newEvents(), newExporter(), newPerf(), newMesh(), newTrace(), newTop(), ib.New(&ib.Kernel), newCompletion())
	completeAll(&root.Command)
	return root
}
