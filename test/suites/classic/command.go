package classic

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/cm/rdmacm"
)

// settings are the flags of the commands.
type settings struct {
	size, count int
	text        string
}

// command is a program that people run: server waits for a client and client is one. They return what
// to print. A program that lists something has list alone.
type command struct {
	short  string // what it does, in a line
	server func(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort, s settings) (string, error)
	client func(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort, s settings) (string, error)
	list   func(io.Writer) error
}

// defaultPort is the port of the servers.
const defaultPort = 7471

// Limits of what the flags say, in bytes and messages.
const (
	maxSize  = 1 << 20
	maxCount = 1 << 30
)

// Names returns the names of the commands.
func Names() []string { return slices.Sorted(maps.Keys(commands)) }

// Main is the main function of a command. It ends the program.
func Main(name string) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := Run(ctx, name, os.Args[1:], os.Stdout)
	stop()
	if err == nil || errors.Is(err, flag.ErrHelp) { // it has printed the help
		os.Exit(0)
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	os.Exit(1)
}

// Run runs a command with arguments.
func Run(ctx context.Context, name string, args []string, out io.Writer) error {
	c, ok := commands[name]
	if !ok {
		return fmt.Errorf("the program is %q, allowed: %s", name, strings.Join(Names(), ", "))
	}
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(out)
	f.Usage = func() { c.usage(f) }
	var s settings
	var listen string
	port := uint(defaultPort)
	if c.list == nil {
		f.StringVar(&listen, "listen", "0.0.0.0", "`address` of the server")
		f.UintVar(&port, "port", port, "`port` of the server, 1 to 65535")
		f.IntVar(&s.size, "size", 64, "`bytes` of a message, 1 to 1048576; of the largest, on a server that is told the size")
		f.IntVar(&s.count, "count", 1000, "`number` of messages, 1 to 1073741824")
		f.StringVar(&s.text, "text", "written by RDMA, and read back", "`text` that rdma-example writes")
	}
	if err := f.Parse(args); err != nil {
		return err
	}
	switch {
	case c.list != nil && f.NArg() > 0:
		return fmt.Errorf("the arguments are %q, allowed: none", f.Args())
	case c.list != nil:
		return c.list(out)
	case f.NArg() > 1:
		return fmt.Errorf("the arguments are %q, allowed: the address of a server, or none to be one", f.Args())
	}
	return c.play(ctx, f, s, listen, port, out)
}
