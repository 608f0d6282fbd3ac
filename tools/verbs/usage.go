package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
)

// arguments returns a check that a command gets up to max arguments.
func arguments(max int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) <= max {
			return nil
		}
		allowed := "none"
		if max > 0 {
			allowed = fmt.Sprintf("at most %d", max)
		}
		return fmt.Errorf("the arguments of %s are %s, allowed: %s", cmd.CommandPath(), peertext.Quote(strings.Join(args, " ")), allowed)
	}
}

// defaultIs has the help say in words what a flag is without being given.
func defaultIs(f *pflag.FlagSet, name, words string) { f.Lookup(name).DefValue = words }

// trust is the part of a server's help that says what the server does not protect against.
const trust = `
TRUST
There is neither authentication nor encryption. Anyone who reaches the port is served and can keep
the device, the link and a processor busy, and anyone who sees the network's packets sees all data.
The keys of memory (rkeys) are bearer tokens: anyone who knows one and can send packets to the queue
pair that it is for, for example with a forged address, can access that memory. What a peer sends is
checked, and its text is quoted where it is shown.

`
