package main

import (
	_ "embed"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// jsonHelp describes the output with --json.
//
//go:embed JSON.md
var jsonHelp string

// helpWidth is the number of columns of a help text.
const helpWidth = 100

// exitKey is the annotation of a command whose exit statuses 0 and 1 have a meaning of their own.
const exitKey = "exit status"

// printHelp prints the help of a command. Every command's has the same parts in the same order.
func printHelp(cmd *cobra.Command, _ []string) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s.\n\nUsage:\n  %s\n", cmd.Short, cmd.UseLine())
	if cmd.Long != "" {
		fmt.Fprintf(&b, "\n%s\n", cmd.Long)
	}
	part := func(title, text string) {
		if text = strings.TrimRight(text, "\n"); text != "" {
			fmt.Fprintf(&b, "\n%s:\n%s\n", title, text)
		}
	}
	var commands string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() || c.Name() == "help" {
			commands += fmt.Sprintf("  %-*s  %s\n", c.NamePadding(), c.Name(), c.Short)
		}
	}
	part("Commands", commands)
	part("Examples", cmd.Example)
	part("Flags", cmd.Flags().FlagUsagesWrapped(helpWidth))
	exit := cmd.Annotations[exitKey]
	if exit == "" {
		exit = "  0  success\n  1  failure; standard error has the reason"
	}
	part("Exit status", exit+"\n  2  an unknown command or flag, or a value that is not allowed")
	io.WriteString(cmd.OutOrStdout(), b.String())
}

// newHelp makes the help command.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:   "help [flags] [COMMAND... | json]",
		Short: "Print the help of a command, or what the commands print with --json",
		Example: `  verbs help perf send-lat
  verbs help json`,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var all []cobra.Completion
			for _, c := range about.Commands() {
				all = append(all, cobra.CompletionWithDesc(c.Name(), c.Short))
			}
			if about == cmd.Root() {
				all = append(all, "json")
			}
			return all, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && args[0] == "json" {
				_, err := io.WriteString(cmd.OutOrStdout(), jsonHelp)
				return err
			}
			about := cmd.Root()
			for _, name := range args {
				next, _, err := about.Find([]string{name})
				if err != nil || next == about {
					return unknownCommand(about, name)
				}
				about = next
			}
			return about.Help()
		},
	}
}

// trust is the part of a server's help that says what the server does not protect against.
const trust = `
Security:
There is no authentication and no encryption. Anyone who can reach the port is served, and can keep
the device, the link and a processor busy. Anyone who sees the packets of the network sees all data.
The keys of memory (rkeys) are bearer tokens: anyone who knows one and can send packets to its queue
pair, for example with a forged address, can access that memory. What a peer sends is checked, and
its text is quoted where it is shown.

`
