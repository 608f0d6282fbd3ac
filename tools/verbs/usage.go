package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
)

// usageError is a mistake on the command line.
type usageError struct{ error }

// Unwrap returns the reason.
func (e usageError) Unwrap() error { return e.error }

// usagef returns a usageError, whose text names the flag or argument, its value and what is allowed.
func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// exitStatus returns the exit status of the program.
func exitStatus(err error) int {
	var status programStatus
	switch {
	case err == nil:
		return 0
	case errors.As(err, new(usageError)):
		return 2
	case errors.As(err, &status):
		return int(status)
	}
	return 1
}

// arguments returns a check that a command gets up to max arguments.
func arguments(max int) func(*command.Command, []string) error {
	return func(cmd *command.Command, args []string) error {
		if len(args) <= max {
			return nil
		}
		allowed := "none"
		if max > 0 {
			allowed = fmt.Sprintf("at most %d", max)
		}
		return usagef("the arguments of %s are %s, allowed: %s", cmd.Path(), peertext.Quote(strings.Join(args, " ")), allowed)
	}
}

// group makes a command that consists of other commands, and prints its help without one.
func group(cmd *command.Command) *command.Command {
	cmd.Args = func(cmd *command.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return unknownCommand(cmd, args[0])
	}
	cmd.Run = func(cmd *command.Command, _ []string) error { return cmd.Help() }
	return cmd
}

// unknownCommand is the error for a command that a group does not have.
func unknownCommand(cmd *command.Command, name string) error {
	var allowed []string
	for _, c := range cmd.Commands() {
		allowed = append(allowed, c.Name())
	}
	return usagef("the command of %s is %s, allowed: %s", cmd.Path(), peertext.Quote(name), strings.Join(allowed, ", "))
}

// flagNames has other names of flags: those that rdma-core's and perftest's programs use.
var flagNames = map[string]string{
	"ib-dev": "dev", "gid-idx": "gid", "gid-index": "gid", "iters": "iterations", "rx-depth": "recv-depth",
	"chk": "verify", "validate": "verify", "event": "events", "new_send": "new-send",
}

// flagName returns the name of a flag, whichever name is given for it.
func flagName(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	if n, ok := flagNames[name]; ok {
		name = n
	}
	return pflag.NormalizedName(name)
}

// flagError turns an error of the flag parser into one in the form of the others.
func flagError(cmd *command.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return usagef("%w; \"%s --help\" lists the flags", err, cmd.Path())
	}
	f, value := invalid.GetFlag(), invalid.GetValue()
	if _, err := strconv.ParseInt(value, 10, 64); err != nil {
		value = peertext.Quote(value)
	}
	allowed := map[string]string{
		"bool": "true, false", "duration": "a time such as 10s or 200ms", "int": "a whole number", "float64": "a number",
		"intSlice": "whole numbers, separated by commas",
	}[f.Value.Type()]
	if n, ok := f.Value.(interface{ allowed() string }); ok {
		allowed = n.allowed()
	}
	return usagef("--%s is %s, allowed: %s", f.Name, value, allowed)
}

// number is the value of a flag that is a whole number from min to max.
type number[T int | uint8] struct {
	value    *T
	min, max int
}

// numberVar defines a flag for a number from min to max; a max of [math.MaxInt] is no limit. The help
// shows the limits.
func numberVar[T int | uint8](f *pflag.FlagSet, value *T, name, letter string, def T, min, max int, usage string) {
	*value = def
	n := &number[T]{value, min, max}
	if max != math.MaxInt {
		usage += ", " + n.allowed()
	}
	f.VarP(n, name, letter, usage)
}

// allowed says which values are allowed.
func (n *number[T]) allowed() string {
	if n.max == math.MaxInt {
		return fmt.Sprintf("%d and more", n.min)
	}
	return fmt.Sprintf("%d to %d", n.min, n.max)
}

// Set implements pflag.Value.
func (n *number[T]) Set(text string) error {
	v, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	if v < n.min || v > n.max {
		return strconv.ErrRange
	}
	*n.value = T(v)
	return nil
}

// String implements pflag.Value.
func (n *number[T]) String() string { return strconv.Itoa(int(*n.value)) }

// Type implements pflag.Value.
func (n *number[T]) Type() string { return "int" }

// jsonFlag defines --json.
func jsonFlag(cmd *command.Command, asJSON *bool) {
	cmd.Flags().BoolVar(asJSON, "json", false, `print JSON; "verbs help json" describes it`)
}

// defaultIs has the help describe a flag's default in words.
func defaultIs(f *pflag.FlagSet, name, words string) { f.Lookup(name).DefValue = words }
