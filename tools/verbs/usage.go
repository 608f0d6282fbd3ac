package main

import (
	"errors"
	"slices"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
)

// exitStatus returns the exit status of the program.
func exitStatus(err error) int {
	var status programStatus
	switch {
	case err == nil:
		return 0
	case errors.As(err, new(command.UsageError)):
		return 2
	case errors.As(err, &status):
		return int(status)
	}
	return 1
}

// flagNames has other names of flags: those that rdma-core's and perftest's programs use.
var flagNames = map[string]string{
	"ib-dev": "dev", "gid-idx": "gid", "gid-index": "gid", "iters": "iterations", "rx-depth": "recv-depth",
	"chk": "verify", "validate": "verify", "event": "events",
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
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		for other, name := range flagNames {
			if cmd.Flag(name) != nil {
				names = append(names, other)
			}
		}
		slices.Sort(names)
		if like := command.Like(unknown.GetSpecifiedName(), names); like != "" {
			return command.Usagef("%w; did you mean --%s?", err, like)
		}
	}
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return command.Usagef("%w; \"%s --help\" lists the flags", err, cmd.Path())
	}
	f, value := invalid.GetFlag(), invalid.GetValue()
	if _, err := strconv.ParseInt(value, 10, 64); err != nil {
		value = peertext.Quote(value)
	}
	allowed := map[string]string{
		"bool": "true, false", "duration": "a time such as 10s or 200ms", "int": "a whole number", "uint64": "a number of 64 bits, such as 0x1f", "float64": "a number",
		"intSlice": "whole numbers, separated by commas",
	}[f.Value.Type()]
	if n, ok := f.Value.(interface{ Allowed() string }); ok {
		allowed = n.Allowed()
	}
	return command.Usagef("--%s is %s, allowed: %s", f.Name, value, allowed)
}
