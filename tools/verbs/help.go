package main

import (
	_ "embed"
	"fmt"
	"io"
	"strings"

	"github.com/goverbs/goverbs/tools/verbs/internal/command"
)

// jsonHelp describes the output with --json.
//
//go:embed JSON.md
var jsonHelp string

// metricsHelp describes the metrics of "verbs exporter".
//
//go:embed METRICS.md
var metricsHelp string

// topics are pages of the help that are about no single command.
var topics = map[string]*string{"json": &jsonHelp, "metrics": &metricsHelp}

// helpWidth is the number of columns of a help text.
const helpWidth = 100

// printHelp prints the help of a command. Every command's has the same parts in the same order.
func printHelp(cmd *command.Command) {
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
	const nameWidth = 11
	for _, c := range cmd.Commands() {
		commands += fmt.Sprintf("  %-*s  %s\n", nameWidth, c.Name(), c.Short)
	}
	part("Commands", commands)
	part("Examples", cmd.Example)
	part("Flags", cmd.Flags().FlagUsagesWrapped(helpWidth))
	exit := cmd.Exit
	if exit == "" {
		exit = "  0  success\n  1  failure; standard error has the reason"
	}
	part("Exit status", exit+"\n  2  an unknown command or flag, or a value that is not allowed")
	io.WriteString(cmd.Out(), b.String())
}

// newHelp makes the help command.
func newHelp() *command.Command {
	help := &command.Command{
		Use:   "help [flags] [COMMAND... | json | metrics]",
		Short: "Print the help of a command, what commands print with --json, or the metrics",
		Example: `  verbs help perf send-lat
  verbs help json
  verbs help metrics`,
		Run: func(cmd *command.Command, args []string) error {
			if len(args) == 1 && topics[args[0]] != nil {
				_, err := io.WriteString(cmd.Out(), *topics[args[0]])
				return err
			}
			about := &cmd.Root().Command
			for _, name := range args {
				next, _ := about.Find([]string{name})
				if next == about {
					return command.UnknownCommand(about, name)
				}
				about = next
			}
			return about.Help()
		},
	}
	help.Complete = func(args []string, _ string) (all []command.Completion) {
		about, rest := help.Root().Find(args)
		if len(rest) > 0 {
			return nil
		}
		for _, c := range about.Commands() {
			all = append(all, command.Completion{Text: c.Name(), About: c.Short})
		}
		if about == &help.Root().Command {
			all = append(all, plain([]string{"json", "metrics"})...)
		}
		return all
	}
	return help
}

// trust is the part of a server's help that says what the server does not protect against.
const trust = `
Security:
There is no authentication and no encryption. Anyone who can reach the port is served, and can keep
the device, the link and a processor busy. Anyone who sees the packets of the network sees all data.
The keys of memory (rkeys) are bearer tokens: anyone who knows one and can send packets to its queue
pair, for example with a forged address, can access that memory. Everything that
a peer sends is checked, and its text is quoted where it is shown.

`
