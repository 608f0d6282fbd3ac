package main

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/goverbs/goverbs/uverbs"
)

// newCompletion makes the command that prints the scripts for shells. A root command with it gets no
// other one from cobra.
func newCompletion() *cobra.Command {
	return &cobra.Command{
		Use:   "completion [flags] bash|zsh|fish|powershell",
		Short: "Print the script for a shell that completes commands, flags, devices and ports",
		Long:  `The script for bash needs the package bash-completion.`,
		Example: `  verbs completion bash > /etc/bash_completion.d/verbs
  verbs completion zsh > "${fpath[1]}/_verbs"
  verbs completion fish > ~/.config/fish/completions/verbs.fish`,
		Args: cobra.MatchAll(atLeast(1), arguments(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			root, out := cmd.Root(), cmd.OutOrStdout()
			write, err := choice("the shell", args[0], map[string]func() error{
				"bash":       func() error { return root.GenBashCompletionV2(out, true) },
				"zsh":        func() error { return root.GenZshCompletion(out) },
				"fish":       func() error { return root.GenFishCompletion(out, true) },
				"powershell": func() error { return root.GenPowerShellCompletionWithDesc(out) },
			})
			if err != nil {
				return err
			}
			return write()
		},
	}
}

// completeAll completes a command and all below it.
func completeAll(cmd *cobra.Command) {
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) {
		var all []cobra.Completion
		for _, form := range nextArguments(cmd.Use, args) {
			all = append(all, completions(form, text)...)
		}
		return all, cobra.ShellCompDirectiveNoFileComp
	}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if values := flagCompletions(cmd, f.Name); values != nil {
			cmd.RegisterFlagCompletionFunc(f.Name, func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
				return values(), cobra.ShellCompDirectiveNoFileComp
			})
		}
	})
	for _, c := range cmd.Commands() {
		completeAll(c)
	}
}

// flagCompletions returns the function that lists the values of a flag, or nil. Files are completed by
// the shell.
func flagCompletions(cmd *cobra.Command, name string) func() []cobra.Completion {
	switch name {
	case "dev":
		return func() []cobra.Completion { return completions("DEV", "") }
	case "ib-port":
		return func() []cobra.Completion { return portNumbers(cmd.Flag("dev").Value.String()) }
	case "type": // the help lists them
		_, types, _ := strings.Cut(cmd.Flag(name).Usage, ": ")
		return func() []cobra.Completion { return strings.Split(types, ", ") }
	}
	if f := cmd.Flag(name); f.Value.Type() == "bool" || strings.Contains(f.Usage, "`FILE`") {
		return nil
	}
	return func() []cobra.Completion { return nil } // nothing, and no files either
}

// nextArguments returns the forms that the next argument may have, from the usage line of a command and
// the arguments before it. A usage line is a list of arguments, and then pairs of a word and its value
// in any order, such as "set [flags] DEV [name NAME] [netns NAME]".
func nextArguments(use string, args []string) []string {
	words := slices.DeleteFunc(strings.Fields(use)[1:], func(w string) bool { return w == "[flags]" })
	pairs := map[string]string{}
	for i, w := range words {
		if name, ok := strings.CutPrefix(w, "["); ok && !strings.HasSuffix(w, "]") && i+1 < len(words) {
			pairs[name] = strings.TrimSuffix(words[i+1], "]")
		}
	}
	list := words[:len(words)-2*len(pairs)]
	switch {
	case len(args) < len(list):
		return []string{strings.TrimSuffix(strings.TrimPrefix(list[len(args)], "["), "]")}
	case len(list) > 0 && strings.HasSuffix(list[len(list)-1], "...]"): // the last one repeats
		return []string{strings.Trim(list[len(list)-1], "[.]")}
	}
	given := args[len(list):]
	if len(given)%2 == 1 {
		return []string{pairs[given[len(given)-1]]}
	}
	var names []string
	for name := range pairs {
		if !slices.Contains(given, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// completions lists what an argument of a form may be: the usage line has it in capitals if it is one of
// many, and the word itself otherwise.
func completions(form, text string) (all []cobra.Completion) {
	switch form {
	case "DEV", "DEV...":
		for _, d := range completionDevices() {
			all = append(all, cobra.CompletionWithDesc(d.Name, d.Driver))
		}
	case "DEV/PORT", "DEV[/PORT]":
		for _, d := range completionDevices() {
			if form != "DEV/PORT" && !strings.HasPrefix(text, d.Name+"/") {
				all = append(all, cobra.CompletionWithDesc(d.Name, d.Driver))
			}
			if form == "DEV/PORT" || d.Ports > 1 || strings.HasPrefix(text, d.Name) {
				for port := 1; port <= d.Ports; port++ {
					all = append(all, cobra.CompletionWithDesc(fmt.Sprintf("%s/%d", d.Name, port), d.Driver))
				}
			}
		}
	case "NETDEV":
		links, _ := net.Interfaces()
		for _, l := range links {
			all = append(all, l.Name)
		}
	default:
		for word := range strings.SplitSeq(form, "|") {
			if word != "" && word == strings.ToLower(word) && word[0] >= 'a' {
				all = append(all, word)
			}
		}
	}
	return all
}

// completionDevices lists the devices; none if they cannot be listed.
func completionDevices() []uverbs.DeviceInfo {
	infos, _ := uverbs.Devices()
	return infos
}

// portNumbers lists the ports of a device, or of all if the name is empty.
func portNumbers(device string) (all []cobra.Completion) {
	most := 0
	for _, d := range completionDevices() {
		if device == "" || device == d.Name {
			most = max(most, d.Ports)
		}
	}
	for port := 1; port <= most; port++ {
		all = append(all, strconv.Itoa(port))
	}
	return all
}
