package main

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestHelp: the help of every command has the same parts in the same order, in at most [helpWidth]
// columns, and a name for each value of a flag.
func TestHelp(t *testing.T) {
	status := 0
	root := command(&status)
	for _, cmd := range append([]*cobra.Command{root}, root.Commands()...) {
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetArgs(append(strings.Fields(cmd.CommandPath())[1:], "--help"))
		if err := root.Execute(); err != nil {
			t.Errorf("%s: %v", cmd.Name(), err)
		}
		rest := "\n" + out.String()
		for _, title := range []string{cmd.Short + ".\n", "Usage:\n", "Examples:\n  ", "Flags, with one dash or two:\n", "Exit status:\n"} {
			_, after, ok := strings.Cut(rest, "\n"+title)
			if !ok {
				t.Errorf("the help of %s has no %q, or not in this order:\n%s", cmd.Name(), title, out.String())
				break
			}
			rest = after
		}
		for line := range strings.Lines(out.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > helpWidth {
				t.Errorf("%s: %d columns: %s", cmd.Name(), n, line)
			}
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if name, _ := pflag.UnquoteUsage(f); f.Value.Type() != "bool" && name == f.Value.Type() {
				t.Errorf("%s: the value of -%s has no name", cmd.Name(), f.Name)
			}
		})
	}
}

// TestFlagErrors: an error about a flag has its name, its value and what is allowed.
func TestFlagErrors(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--cpus many prog", `-cpus "many": want a whole number`},
		{"--timeout 90 prog", `-timeout "90": want a time such as 90s or 5m`},
		{"--verbose=x prog", `-verbose "x": want true or false`},
		{"--bogus prog", `unknown flag: --bogus; "vmrun -help" lists the flags`},
		{"get", "get: want the name of a Debian package, or several"},
	} {
		status := 0
		root := command(&status)
		root.SetArgs(strings.Fields(c.args))
		if err := root.Execute(); err == nil || err.Error() != c.want {
			t.Errorf("vmrun %s: %v, want %q", c.args, err, c.want)
		}
	}
}
