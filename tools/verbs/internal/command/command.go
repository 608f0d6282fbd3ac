// Package command is the command line of verbs: a tree of commands with flags, help and completion. It
// has what verbs needs of github.com/spf13/cobra, which would bring regular expressions and templates
// along, 600 kB in all.
package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/goverbs/goverbs/tools/verbs/internal/terminal"
)

// Command is a command, or a group of commands. Set the fields before the first call of a method.
type Command struct {
	Use     string   // Use is the usage line: the name, and the form of the arguments.
	Aliases []string // Aliases are other names of the command.
	Short   string   // Short says in a line what the command is for.
	Long    string
	Example string
	Exit    string // Exit describes the exit statuses 0 and 1, if they have a meaning of their own.

	Args func(cmd *Command, args []string) error // Args checks the arguments; nil allows all.
	Run  func(cmd *Command, args []string) error

	// Complete lists what the argument after others may be, of which text is there already.
	Complete func(args []string, text string) []Completion
	// CompleteFile says whether that argument is the name of a file.
	CompleteFile func(args []string) bool
	// CompleteFlag lists the values of a flag, of which text is there already; it returns false if they
	// are the names of files.
	CompleteFlag func(f *pflag.Flag, text string) ([]Completion, bool)

	parent   *Command
	children []*Command
	flags    *pflag.FlagSet
	ctx      context.Context
	root     *Root
}

// Root is the command at the top, with what is the same for all commands.
type Root struct {
	Command
	Version string
	Stdout  *terminal.Writer // Stdout is where commands print; nil is standard output.
	Stderr  *terminal.Writer // Stderr is where commands print what is not their result; nil is standard error.

	PrintHelp func(cmd *Command)
	FlagError func(cmd *Command, err error) error                        // FlagError words an error of the flag parser.
	FlagName  func(set *pflag.FlagSet, name string) pflag.NormalizedName // FlagName returns the name of a flag for any name of it.
}

// Init makes the root of a tree, to which every other command must be added.
func (r *Root) Init() {
	r.root = r
	r.Flags().BoolP("version", "v", false, "print the version")
}

// Add adds commands to a group.
func (c *Command) Add(children ...*Command) {
	for _, child := range children {
		child.parent = c
	}
	c.children = append(c.children, children...)
	slices.SortFunc(c.children, func(a, b *Command) int { return cmp.Compare(a.Name(), b.Name()) })
}

// Root returns the root of the tree.
func (c *Command) Root() *Root {
	for c.parent != nil {
		c = c.parent
	}
	return c.root
}

// Commands returns the commands of a group, sorted by name.
func (c *Command) Commands() []*Command { return c.children }

// Name returns the command's name.
func (c *Command) Name() string {
	name, _, _ := strings.Cut(c.Use, " ")
	return name
}

// Path returns the names from the program's to the command's.
func (c *Command) Path() string {
	if c.parent == nil {
		return c.Name()
	}
	return c.parent.Path() + " " + c.Name()
}

// UseLine returns the usage line, from the program's name.
func (c *Command) UseLine() string {
	if c.parent == nil {
		return c.Use
	}
	return c.parent.Path() + " " + c.Use
}

// Flags returns the flags of the command.
func (c *Command) Flags() *pflag.FlagSet {
	if c.flags == nil {
		c.flags = pflag.NewFlagSet(c.Name(), pflag.ContinueOnError)
		c.flags.SetOutput(io.Discard)
		c.flags.BoolP("help", "h", false, "print this help")
	}
	return c.flags
}

// Flag returns a flag, or nil.
func (c *Command) Flag(name string) *pflag.Flag { return c.Flags().Lookup(name) }

// Context returns the context of the run.
func (c *Command) Context() context.Context { return c.ctx }

// Out returns where the command prints its result.
func (c *Command) Out() *terminal.Writer { return cmp.Or(c.Root().Stdout, terminal.Stdout) }

// Err returns where the command prints everything else.
func (c *Command) Err() *terminal.Writer { return cmp.Or(c.Root().Stderr, terminal.Stderr) }

// Help prints the help of the command.
func (c *Command) Help() error {
	c.Root().PrintHelp(c)
	return nil
}

// child returns the command of a group with a name or alias, or nil.
func (c *Command) child(name string) *Command {
	for _, child := range c.children {
		if child.Name() == name || slices.Contains(child.Aliases, name) {
			return child
		}
	}
	return nil
}

// Find returns the command that the first words name, and the other words. The flags of a group, which
// have no values, may stand before the command.
func (c *Command) Find(words []string) (*Command, []string) {
	i := slices.IndexFunc(words, func(w string) bool { return !strings.HasPrefix(w, "-") })
	if i < 0 || slices.Contains(words[:i], "--") {
		return c, words
	}
	if child := c.child(words[i]); child != nil {
		return child.Find(slices.Concat(words[:i], words[i+1:]))
	}
	return c, words
}

// ParseFlags parses the flags among the words.
func (c *Command) ParseFlags(words []string) error {
	f := c.Flags()
	if name := c.Root().FlagName; name != nil {
		f.SetNormalizeFunc(name)
	}
	if err := f.Parse(words); err != nil {
		return c.Root().FlagError(c, err)
	}
	return nil
}

// Execute runs the command that the words name.
func (r *Root) Execute(ctx context.Context, words []string) error {
	if len(words) > 0 && (words[0] == completeRequest || words[0] == completeNamesRequest) {
		return r.complete(words[1:], words[0] == completeRequest)
	}
	c, rest := r.Find(words)
	c.ctx = ctx
	if err := c.ParseFlags(rest); err != nil {
		return err
	}
	given := func(name string) bool { f := c.Flag(name); return f != nil && f.Value.String() == "true" }
	switch {
	case given("help"):
		return c.Help()
	case c == &r.Command && given("version"):
		_, err := fmt.Fprintf(c.Out(), "%s version %s\n", c.Name(), r.Version)
		return err
	}
	args := c.Flags().Args()
	if c.Args != nil {
		if err := c.Args(c, args); err != nil {
			return err
		}
	}
	err := c.Run(c, args)
	if errors.Is(err, fs.ErrNotExist) && len(args) > 0 && len(c.children) > 0 {
		var names []string
		for _, child := range c.children {
			names = append(names, child.Name())
		}
		if like := Like(args[0], names); like != "" {
			err = fmt.Errorf("%w; did you mean %s %s?", err, c.Path(), like)
		}
	}
	return err
}
