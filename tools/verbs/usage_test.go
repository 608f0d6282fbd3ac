package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// commands calls a function for a command and all below it.
func commands(cmd *cobra.Command, do func(*cobra.Command)) {
	do(cmd)
	for _, c := range cmd.Commands() {
		commands(c, do)
	}
}

// TestUsageDefaults: the help says once what the default of a flag is.
func TestUsageDefaults(t *testing.T) {
	flags := 0
	commands(newRoot(), func(cmd *cobra.Command) {
		for l := range strings.Lines(cmd.LocalFlags().FlagUsages()) {
			flags++
			if strings.Count(l, "default") > 1 || strings.Contains(l, "default -1") {
				t.Errorf("%s: %s", cmd.CommandPath(), l)
			}
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.DefValue != f.Value.String() && strings.Contains(f.Usage, "default") {
				t.Errorf("%s: --%s has its default in words twice: %s", cmd.CommandPath(), f.Name, f.Usage)
			}
		})
	})
	if flags < 100 {
		t.Errorf("there are %d flags", flags)
	}
	for command, want := range map[string]string{
		"perf send-bw":   "TCP port of the server (default 18516, with --perftest 18515)",
		"perf serve":     "local GID index (default chosen to suit the peer)",
		"perf write-lat": "keep to this processor (default any)",
		"perf read-bw":   "one completion for so many messages (default 100, 1 above 8 KiB, or --list)",
		"pingpong":       "local GID index (default chosen to suit the peer)",
	} {
		out, err := run(t, append(strings.Fields(command), "--help")...)
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("verbs %s --help does not say %q: %v\n%s", command, want, err, out)
		}
	}
}

// TestUsageArguments: an argument too many is named, whichever command gets it, and is no command.
func TestUsageArguments(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"devices extra", `the arguments of verbs devices are "extra", allowed: none`},
		{"monitor extra", `the arguments of verbs monitor are "extra", allowed: none`},
		{"info a b", `the arguments of verbs info are "a b", allowed: at most 1`},
		{"stat a b", `the arguments of verbs stat are "a b", allowed: at most 1`},
		{"res a b", `the arguments of verbs res are "a b", allowed: at most 1`},
		{"perf bogus", `the arguments of verbs perf are "bogus", allowed: none`},
		{"bogus", `unknown command "bogus" for "verbs"`},
	} {
		out, err := run(t, strings.Fields(c.args)...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("verbs %s: %v, want %q\n%s", c.args, err, c.want, out)
		}
	}
	if out, err := run(t, "perf"); err != nil || !strings.Contains(out, "verbs perf serve") {
		t.Errorf("verbs perf does not print its help: %v\n%s", err, out)
	}
}

// TestUsageRoot: the help of all names each command, and claims nothing of sysfs, which some of
// them read.
func TestUsageRoot(t *testing.T) {
	out, err := run(t, "--help")
	if err != nil || strings.Contains(out, "sysfs") {
		t.Errorf("the help of all: %v\n%s", err, out)
	}
	for _, c := range newRoot().Commands() {
		if !strings.Contains(out, "\n  "+c.Name()+" ") {
			t.Errorf("the help of all does not name %s", c.Name())
		}
	}
}

// TestUsageTrust: the commands that serve others say what they do not protect against.
func TestUsageTrust(t *testing.T) {
	for command, flag := range map[string]string{"perf serve": "--listen", "rping": "-a", "pingpong": "--port"} {
		out, err := run(t, append(strings.Fields(command), "--help")...)
		_, text, ok := strings.Cut(out, "\nTRUST\n")
		text, _, _ = strings.Cut(text, "Usage:")
		for _, want := range []string{"neither authentication nor encryption", "bearer tokens", "trust", flag} {
			if err != nil || !ok || !strings.Contains(text, want) {
				t.Errorf("verbs %s --help does not say %q: %v\n%s", command, want, err, text)
			}
		}
	}
}
