package command

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Completion is what a word may be, and what that is.
type Completion struct {
	Text, About string
}

// The words with which a shell's script calls the program. The last word that follows is the one to be
// completed. The answer is a line for each completion, and a colon with one of the numbers below.
// cobra's scripts do the same.
const (
	completeRequest      = "__complete"
	completeNamesRequest = "__completeNoDesc" // without what each completion is
)

const (
	orFiles = 0 // the shell completes the names of files
	noFiles = 4
)

// Scripts for shells.
var (
	//go:embed bash.sh
	Bash string
	//go:embed zsh.sh
	Zsh string
	//go:embed fish.fish
	Fish string
)

// complete prints what the last word may be.
func (r *Root) complete(words []string, about bool) error {
	if len(words) == 0 {
		words = []string{""}
	}
	all, files := r.completions(words[:len(words)-1], words[len(words)-1])
	var b strings.Builder
	for _, c := range all {
		if b.WriteString(c.Text); about && c.About != "" {
			b.WriteString("\t" + c.About)
		}
		b.WriteString("\n")
	}
	end := noFiles
	if files {
		end = orFiles
	}
	_, err := fmt.Fprintf(r.Out(), "%s:%d\n", &b, end)
	return err
}

// completions lists what comes after some words, of which text is there already, and says whether it
// may be a file.
func (r *Root) completions(words []string, text string) (all []Completion, files bool) {
	c, rest := r.Find(words)
	if name, value, ok := strings.Cut(text, "="); ok && strings.HasPrefix(name, "--") {
		return c.flagValues(c.flag(name), value)
	}
	var waits *pflag.Flag // for its value
	if len(rest) > 0 {
		if waits = c.flag(rest[len(rest)-1]); waits != nil {
			rest = rest[:len(rest)-1]
		}
	}
	_ = c.ParseFlags(rest) // what is wrong is no matter yet
	args := c.Flags().Args()
	switch {
	case waits != nil:
		return c.flagValues(waits, text)
	case strings.HasPrefix(text, "-"):
		c.Flags().VisitAll(func(f *pflag.Flag) {
			_, about := pflag.UnquoteUsage(f) // without the quotes of the value's name
			if strings.HasPrefix("--"+f.Name, text) {
				all = append(all, Completion{"--" + f.Name, about})
			}
			if f.Shorthand != "" && text == "-" {
				all = append(all, Completion{"-" + f.Shorthand, about})
			}
		})
		return all, false
	}
	if len(args) == 0 {
		for _, child := range c.children {
			if strings.HasPrefix(child.Name(), text) {
				all = append(all, Completion{child.Name(), child.Short})
			}
		}
	}
	if c.Complete != nil {
		all = append(all, c.Complete(args, text)...)
	}
	return all, c.CompleteFile != nil && c.CompleteFile(args)
}

// ListCompletions completes the last word of a list with commas with one that is not in it yet. The word "all" stands
// alone.
func ListCompletions(words []Completion, text string) (all []Completion) {
	before := text[:strings.LastIndex(text, ",")+1]
	given := strings.Split(before, ",")
	for _, w := range words {
		if !slices.Contains(given, w.Text) && (w.Text != "all" || before == "") {
			all = append(all, Completion{Text: before + w.Text, About: w.About})
		}
	}
	return all
}

// flag returns the flag that a word names and that has a value, or nil.
func (c *Command) flag(word string) *pflag.Flag {
	var f *pflag.Flag
	if name, ok := strings.CutPrefix(word, "--"); ok && name != "" {
		if rename := c.Root().FlagName; rename != nil {
			name = string(rename(c.Flags(), name))
		}
		f = c.Flag(name)
	} else if len(word) == len("-x") && word[0] == '-' && word != "--" {
		f = c.Flags().ShorthandLookup(word[1:])
	}
	if f == nil || f.NoOptDefVal != "" {
		return nil
	}
	return f
}

// flagValues lists the values of a flag, of which text is there already.
func (c *Command) flagValues(f *pflag.Flag, text string) (all []Completion, files bool) {
	if f == nil || c.CompleteFlag == nil {
		return nil, false
	}
	all, listed := c.CompleteFlag(f, text)
	return all, !listed
}
