package main

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/mesh"
)

// commands calls a function for a command and all below it.
func commands(cmd *command.Command, do func(*command.Command)) {
	do(cmd)
	for _, c := range cmd.Commands() {
		commands(c, do)
	}
}

// tree returns the command at the top.
func tree() *command.Command { return &newRoot().Command }

// TestUsageDefaults: the help shows the default of a flag once.
func TestUsageDefaults(t *testing.T) {
	flags := 0
	commands(tree(), func(cmd *command.Command) {
		for l := range strings.Lines(cmd.Flags().FlagUsages()) {
			flags++
			if strings.Count(l, "default") > 1 || strings.Contains(l, "default -1") {
				t.Errorf("%s: %s", cmd.Path(), l)
			}
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.DefValue != f.Value.String() && strings.Contains(f.Usage, "default") {
				t.Errorf("%s: --%s has its default in words twice: %s", cmd.Path(), f.Name, f.Usage)
			}
		})
	})
	if flags < 100 {
		t.Errorf("there are %d flags", flags)
	}
	for command, want := range map[string]string{
		"perf send-bw":   "TCP PORT of the server, 1 to 65535 (default 18516, with --perftest 18515)",
		"perf serve":     "INDEX of the local GID (default chosen to match the peer)",
		"perf write-lat": "run on processor N, 0 to 1023 (default any)",
		"perf read-bw":   "request one completion for N messages (default 100, 1 above 8 KiB, or --list)",
		"pingpong":       "INDEX of the local GID (default chosen to match the peer)",
		"link":           "verbs link [flags] [show [DEV[/PORT]]] | COMMAND",
		"dev":            "verbs dev [flags] [show [DEV]] | COMMAND",
	} {
		out, err := run(t, append(strings.Fields(command), "--help")...)
		if out = strings.Join(strings.Fields(out), " "); err != nil || !strings.Contains(out, want) {
			t.Errorf("verbs %s --help does not say %q: %v\n%s", command, want, err, out)
		}
	}
}

// TestUsageStyle: the help of every command has the same parts in the same order, in at most
// [helpWidth] columns, and one name for each value of a flag.
func TestUsageStyle(t *testing.T) {
	commands(tree(), func(cmd *command.Command) {
		out, err := run(t, append(strings.Fields(cmd.Path())[1:], "--help")...)
		if err != nil {
			t.Errorf("%s --help: %v", cmd.Path(), err)
		}
		rest := "\n" + out
		for _, title := range []string{cmd.Short + ".\n", "Usage:\n", "Examples:\n  " + cmd.Path(), "Flags:\n", "Exit status:\n  0  "} {
			_, after, ok := strings.Cut(rest, "\n"+title)
			if !ok {
				t.Errorf("the help of %s has no %q, or not in this order:\n%s", cmd.Path(), title, out)
				break
			}
			rest = after
		}
		for line := range strings.Lines(out) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > helpWidth {
				t.Errorf("%s --help: %d columns: %s", cmd.Path(), n, line)
			}
		}
		if s := cmd.Short; s == "" || strings.ToUpper(s[:1]) != s[:1] || strings.HasSuffix(s, ".") {
			t.Errorf("the purpose of %s is %q", cmd.Path(), s)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if name, _ := pflag.UnquoteUsage(f); f.Value.Type() != "bool" && strings.ToUpper(name) != name {
				t.Errorf("%s: the value of --%s has no name", cmd.Path(), f.Name)
			}
		})
	})
}

// TestUsageAllowed: the error of a value that a flag does not take says what it takes.
func TestUsageAllowed(t *testing.T) {
	commands(tree(), func(cmd *command.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			const bad = "zz zz"
			err := cmd.Flags().Parse([]string{"--" + f.Name + "=" + bad})
			if err == nil {
				return // any text, which the command looks at
			}
			if err = flagError(cmd, err); strings.HasSuffix(err.Error(), "allowed: ") {
				t.Errorf("%s: %v", cmd.Path(), err)
			}
		})
	})
}

// TestUsageSame: a flag has the same kind of value in every command.
func TestUsageSame(t *testing.T) {
	type meaning struct{ command, value string }
	seen := map[string]meaning{}
	commands(tree(), func(cmd *command.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			value, _ := pflag.UnquoteUsage(f)
			m, ok := seen[f.Name]
			if !ok {
				seen[f.Name] = meaning{cmd.Path(), value}
			} else if m.value != value {
				t.Errorf("--%s is %q in %s and %q in %s", f.Name, value, cmd.Path(), m.value, m.command)
			}
		})
	})
}

// TestUsageExamples: the command lines of all examples have flags and arguments that are allowed.
func TestUsageExamples(t *testing.T) {
	count := 0
	commands(tree(), func(cmd *command.Command) {
		for line := range strings.Lines(cmd.Example) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), " #")
			line, _, _ = strings.Cut(line, " |")
			line, _, _ = strings.Cut(line, " >")
			args, err := mesh.SplitWords(strings.TrimSpace(line))
			if err != nil || len(args) == 0 {
				t.Fatalf("%s: %v", cmd.Path(), err)
			}
			for strings.Contains(args[0], "=") { // of the environment
				args = args[1:]
			}
			found, rest := tree().Find(args[1:])
			if args[0] != "verbs" {
				t.Errorf("%s: %q", cmd.Path(), line)
				continue
			}
			count++
			if err := found.ParseFlags(rest); err != nil {
				t.Errorf("%q: %v", line, err)
			} else if found.Args != nil {
				if err := found.Args(found, found.Flags().Args()); err != nil {
					t.Errorf("%q: %v", line, err)
				}
			}
		}
	})
	if count < 40 {
		t.Errorf("there are %d examples", count)
	}
}

// TestUsageArguments: the error for too many arguments, or for an unknown command, has their text and
// what is allowed.
func TestUsageArguments(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"devices extra", `the arguments of verbs devices are "extra", allowed: none`},
		{"monitor extra", `the arguments of verbs events are "extra", allowed: none`},
		{"info a b", `the arguments of verbs info are "a b", allowed: at most 1`},
		{"stat a b", `the arguments of verbs stat are "a b", allowed: at most 1`},
		{"res a b", `the arguments of verbs res are "a b", allowed: at most 1`},
		{"perf bogus", `the command of verbs perf is "bogus", allowed: atomic-bw, atomic-lat, plot, read-bw, read-lat, send-bw, send-lat, serve, `},
		{"bogus", `the command of verbs is "bogus", allowed: `},
		{"devises", `unknown command "devises"; did you mean devices?`},
		{"pingpng", `unknown command "pingpng"; did you mean pingpong?`},
		{"help pingpogn", `unknown command "pingpogn"; did you mean pingpong?`},
		{"perf send-late", `unknown command "send-late"; did you mean send-lat?`},
		{"link shwo", `unknown command "shwo"; did you mean show?`},
		{"dev add0", `unknown command "add0"; did you mean add?`},
		{"system shoe", `unknown command "shoe"; did you mean show?`},
		{"link bogus", `the command of verbs link is "bogus", allowed: add, delete, show`},
		{"link show a b", `the arguments of verbs link are "a b", allowed: at most 1`},
		{"res show qp a b c d e f x --kinds mr", `--kinds is "mr", allowed: without the kind qp`},
		{"res show bogus a", `the kind of objects is "bogus", allowed: cm_id, cq, ctx, `},
		{"pingpong --iteratons 3", "unknown flag: --iteratons; did you mean --iterations?"},
		{"pingpong --gid-inde 3", "unknown flag: --gid-inde; did you mean --gid-index?"},
		{"perf read-bw --recv-depth 3", `unknown flag: --recv-depth; "verbs perf read-bw --help" lists the flags`},
		{"help bogus", `the command of verbs is "bogus", allowed: `},
		{"help perf bogus", `the command of verbs perf is "bogus", allowed: `},
	} {
		out, err := run(t, strings.Fields(c.args)...)
		if exitStatus(err) != 2 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("verbs %s: status %d, %v, want %q\n%s", c.args, exitStatus(err), err, c.want, out)
		}
	}
	if out, err := run(t, "perf"); err != nil || !strings.Contains(out, "verbs perf serve") {
		t.Errorf("verbs perf does not print its help: %v\n%s", err, out)
	}
}

// TestUsageRoot: the help without a command names each command, and claims nothing about sysfs,
// which some commands read.
func TestUsageRoot(t *testing.T) {
	out, err := run(t, "--help")
	if err != nil || strings.Contains(out, "sysfs") {
		t.Errorf("the help: %v\n%s", err, out)
	}
	for _, c := range newRoot().Commands() {
		if !strings.Contains(out, "\n  "+c.Name()+" ") {
			t.Errorf("the help does not name %s", c.Name())
		}
	}
}

// TestUsageTrust: the help of the commands that serve others says what they do not protect against,
// and with which flag to keep others out. All commands with --listen are among them.
func TestUsageTrust(t *testing.T) {
	open := []string{"no authentication and no encryption", "bearer tokens", "trust"}
	all := map[string][]string{
		"perf serve": append(open[:3:3], "--listen"), "rping": append(open[:3:3], "-a"), "pingpong": append(open[:3:3], "--port"),
		"doctor":     append(open[:3:3], "--listen"),
		"mesh serve": {"The secret keeps everybody else", "no encryption", "offline", "any host and port", "bearer tokens", "trust", "--listen"},
		"exporter":   {"no authentication and no encryption", "names of processes", "this host only", "--listen", "10 s", "64 connections"},
	}
	commands(tree(), func(cmd *command.Command) {
		_, name, _ := strings.Cut(cmd.Path(), " ")
		if _, ok := all[name]; !ok && cmd.Flag("listen") != nil {
			t.Errorf("verbs %s has --listen, and its help is not checked", name)
		}
	})
	for command, words := range all {
		out, err := run(t, append(strings.Fields(command), "--help")...)
		_, text, ok := strings.Cut(out, "\nSecurity:\n")
		text, _, _ = strings.Cut(text, "\nExamples:")
		text = strings.Join(strings.Fields(text), " ")
		for _, want := range words {
			if err != nil || !ok || !strings.Contains(text, want) {
				t.Errorf("verbs %s --help does not say %q: %v\n%s", command, want, err, text)
			}
		}
	}
}
