package main

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/goverbs/goverbs/tools/internal/objects"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/uverbs"
)

// newCompletion makes the command that prints the scripts for shells.
func newCompletion() *command.Command {
	return &command.Command{
		Use:   "completion [flags] bash|zsh|fish",
		Short: "Print the script for a shell that completes commands, flags, devices and ports",
		Example: `  verbs completion bash > /etc/bash_completion.d/verbs
  verbs completion zsh > "${fpath[1]}/_verbs"
  verbs completion fish > ~/.config/fish/completions/verbs.fish`,
		Args: exactly(1),
		Run: func(cmd *command.Command, args []string) error {
			script, err := choice("the shell", args[0], map[string]string{
				"bash": command.Bash, "zsh": command.Zsh, "fish": command.Fish,
			})
			if err != nil {
				return err
			}
			_, err = io.WriteString(cmd.Out(), script)
			return err
		},
	}
}

// completeAll completes a command and all below it.
func completeAll(cmd *command.Command) {
	if cmd.Complete == nil {
		cmd.Complete = func(args []string, text string) (all []command.Completion) {
			for _, form := range nextArguments(cmd.Use, args) {
				all = append(all, completions(form, text)...)
			}
			return all
		}
	}
	cmd.CompleteFile = func(args []string) bool { return slices.Contains(nextArguments(cmd.Use, args), "FILE") }
	cmd.CompleteFlag = func(f *pflag.Flag, text string) ([]command.Completion, bool) { return flagCompletions(cmd, f, text) }
	for _, c := range cmd.Commands() {
		completeAll(c)
	}
}

// flagCompletions lists the values of a flag, and returns false if they are files, which the shell
// completes.
func flagCompletions(cmd *command.Command, f *pflag.Flag, text string) ([]command.Completion, bool) {
	switch f.Name {
	case "dev":
		return completions("DEV", ""), true
	case "devs":
		return command.ListCompletions(completions("DEV", ""), text), true
	case "kinds":
		return command.ListCompletions(plain(kindsWith("")), text), true
	case "filter":
		return filterCompletions(text), true
	case "ib-port":
		return portNumbers(cmd.Flag("dev").Value.String()), true
	case "report-counters":
		return command.ListCompletions(plain(counterNames(cmd.Flag("dev").Value.String())), text), true
	case "type", "types", "kind", "atomic-type": // the help lists them
		_, types, _ := strings.Cut(f.Usage, ": ")
		all := plain(strings.Split(types, ", "))
		if f.Name == "types" {
			all = command.ListCompletions(all, text)
		}
		return all, true
	}
	return nil, !strings.Contains(f.Usage, "`FILE`")
}

// counterNames lists the counters of a device, or of the first one.
func counterNames(name string) (names []string) {
	dev, err := objects.OpenDevice(name)
	if err != nil {
		return nil
	}
	defer dev.Close()
	counters, _ := dev.PortCounters(1)
	for _, c := range counters {
		names = append(names, c.Name)
	}
	return names
}

// plain returns completions without a description.
func plain(words []string) (all []command.Completion) {
	for _, w := range words {
		all = append(all, command.Completion{Text: w})
	}
	return all
}

// nextArguments returns the forms that the next argument may have, from the usage line of a command and
// the arguments before it. A usage line is a list of arguments, and then pairs of a word and its value
// in any order, such as "set [flags] DEV [name NAME] [netns NAME]".
func nextArguments(use string, args []string) []string {
	words := slices.DeleteFunc(strings.Fields(use)[1:], func(w string) bool { return w == "[flags]" })
	pairs := map[string]string{}
	for i, w := range words {
		name, ok := strings.CutPrefix(w, "[")
		if ok && !strings.HasSuffix(w, "]") && i+1 < len(words) && words[i+1][0] != '[' { // the arguments of [DEST [PORT]] are a list
			pairs[name] = strings.TrimSuffix(words[i+1], "]")
		}
	}
	list := words[:len(words)-2*len(pairs)]
	switch {
	case len(args) < len(list):
		form := strings.TrimPrefix(list[len(args)], "[")
		for strings.Count(form, "]") > strings.Count(form, "[") {
			form = strings.TrimSuffix(form, "]")
		}
		return []string{form}
	case len(list) > 0 && strings.Contains(list[len(list)-1], "...]"): // the last one repeats
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
func completions(form, text string) (all []command.Completion) {
	switch form {
	case "DEV", "DEV...":
		for _, d := range completionDevices() {
			all = append(all, command.Completion{Text: d.Name, About: d.Driver})
		}
	case "DEV/PORT", "DEV[/PORT]":
		for _, d := range completionDevices() {
			if form != "DEV/PORT" && !strings.HasPrefix(text, d.Name+"/") {
				all = append(all, command.Completion{Text: d.Name, About: d.Driver})
			}
			if form == "DEV/PORT" || d.Ports > 1 || strings.HasPrefix(text, d.Name) {
				for port := 1; port <= d.Ports; port++ {
					all = append(all, command.Completion{Text: fmt.Sprintf("%s/%d", d.Name, port), About: d.Driver})
				}
			}
		}
	case "NETDEV":
		links, _ := net.Interfaces()
		for _, l := range links {
			all = append(all, command.Completion{Text: l.Name})
		}
	default:
		for word := range strings.SplitSeq(form, "|") {
			if word != "" && word == strings.ToLower(word) && word[0] >= 'a' {
				all = append(all, command.Completion{Text: word})
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
func portNumbers(device string) (all []command.Completion) {
	most := 0
	for _, d := range completionDevices() {
		if device == "" || device == d.Name {
			most = max(most, d.Ports)
		}
	}
	for port := 1; port <= most; port++ {
		all = append(all, command.Completion{Text: strconv.Itoa(port)})
	}
	return all
}
