package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpWidth is the number of columns of a help text.
const helpWidth = 100

// exitStatus is the part of the help about the exit status.
const exitStatus = `  123  the program succeeded, but a driver misused a modelled card
  124  the time is up; the end of the kernel's log and of the console is printed
  125  vmrun failed, or a flag or argument is not allowed
  126  the program succeeded, but the kernel reported an error (oops, warning, hung task, lockdep
       and so on) that is not on the list of known kernel bugs
  128+N  signal N killed the program
  other  the program's`

// printHelp prints the help of a command. Every command's has the same parts in the same order.
func printHelp(cmd *cobra.Command, _ []string) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s.\n\nUsage:\n  %s\n", cmd.Short, cmd.UseLine())
	part := func(title, text string) {
		if text = strings.TrimRight(text, "\n"); text != "" {
			fmt.Fprintf(&b, "\n%s%s\n", title, text)
		}
	}
	part("", cmd.Long)
	var commands string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			commands += fmt.Sprintf("  %-*s  %s\n", c.NamePadding(), c.Name(), c.Short)
		}
	}
	part("Commands:\n", commands)
	part("Examples:\n", cmd.Example)
	part("Flags, with one dash or two:\n", cmd.Flags().FlagUsagesWrapped(helpWidth))
	status := exitStatus
	if cmd.HasParent() {
		status = "  0    success\n  125  failure, or a flag or argument is not allowed"
	}
	part("Exit status:\n", status)
	io.WriteString(cmd.OutOrStdout(), b.String())
}

// flagError turns an error of the flag parser into one in the form of the others.
func flagError(cmd *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return fmt.Errorf("%w; \"%s -help\" lists the flags", err, cmd.CommandPath())
	}
	want := map[string]string{"bool": "true or false", "duration": "a time such as 90s or 5m", "int": "a whole number"}[invalid.GetFlag().Value.Type()]
	return fmt.Errorf("-%s %q: want %s", invalid.GetFlag().Name, invalid.GetValue(), want)
}
