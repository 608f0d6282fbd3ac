package command

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
)

// UsageError is a mistake on the command line. The exit status of the program is 2.
type UsageError struct{ Err error }

// Error implements error.
func (e UsageError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e UsageError) Unwrap() error { return e.Err }

// Usagef returns a UsageError, whose text names the flag or argument, its value and what is allowed.
func Usagef(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// Arguments returns a check that a command gets up to max arguments.
func Arguments(max int) func(*Command, []string) error {
	return func(cmd *Command, args []string) error {
		if len(args) <= max {
			return nil
		}
		allowed := "none"
		if max > 0 {
			allowed = fmt.Sprintf("at most %d", max)
		}
		return Usagef("the arguments of %s are %s, allowed: %s", cmd.Path(), peertext.Quote(strings.Join(args, " ")), allowed)
	}
}

// Group makes a command that consists of other commands, and prints its help without one.
func Group(cmd *Command) *Command {
	cmd.Args = func(cmd *Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return UnknownCommand(cmd, args[0])
	}
	cmd.Run = func(cmd *Command, _ []string) error { return cmd.Help() }
	return cmd
}

// UnknownCommand is the error for a command that a group does not have. Others are words that may stand there, too.
func UnknownCommand(cmd *Command, name string, others ...string) error {
	allowed := others
	for _, c := range cmd.Commands() {
		allowed = append(allowed, c.Name())
	}
	if like := Like(name, allowed); like != "" {
		return Usagef("unknown command %s; did you mean %s?", peertext.Quote(name), like)
	}
	slices.Sort(allowed)
	return Usagef("the command of %s is %s, allowed: %s", cmd.Path(), peertext.Quote(name), strings.Join(allowed, ", "))
}

// Like returns the word that a mistyped one most likely stands for: one that begins with it, or that differs by a
// letter, or by two if it is longer than four. It returns nothing if there is none.
func Like(typed string, words []string) (like string) {
	best := 2
	if len(typed) > 4 {
		best = 3
	}
	for _, w := range words {
		if n := edits(typed, w); n < best {
			like, best = w, n
		}
	}
	for _, w := range words {
		if like == "" && len(typed) > 2 && strings.HasPrefix(w, typed) {
			like = w
		}
	}
	return like
}

// edits counts the letters that are inserted, left out, replaced or swapped with their neighbor between two words.
func edits(a, b string) int {
	var before, last []int // rows for the prefixes of a
	for i := range len(a) + 1 {
		row := make([]int, len(b)+1)
		for j := range row {
			switch {
			case i == 0 || j == 0:
				row[j] = i + j
				continue
			case a[i-1] == b[j-1]:
				row[j] = last[j-1]
			default:
				row[j] = 1 + min(last[j-1], last[j], row[j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}

// number is the value of a flag that is a whole number from min to max.
type number[T int | uint8] struct {
	value    *T
	min, max int
}

// NumberVar defines a flag for a number from min to max; a max of [math.MaxInt] is no limit. The help
// shows the limits.
func NumberVar[T int | uint8](f *pflag.FlagSet, value *T, name, letter string, def T, min, max int, usage string) {
	*value = def
	n := &number[T]{value, min, max}
	if max != math.MaxInt {
		usage += ", " + n.Allowed()
	}
	f.VarP(n, name, letter, usage)
}

// Allowed says which values are allowed.
func (n *number[T]) Allowed() string {
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

// list is the value of a flag that lists words.
type list []string

// ListVar defines a flag for words that commas separate. A flag that is repeated adds to the list.
func ListVar(f *pflag.FlagSet, words *[]string, name, letter, usage string) {
	f.VarP((*list)(words), name, letter, usage)
}

// Set implements pflag.Value.
func (l *list) Set(text string) error {
	if *l == nil {
		*l = list{} // the flag is given, even if its list is empty
	}
	if text != "" {
		*l = append(*l, strings.Split(text, ",")...)
	}
	return nil
}

// String implements pflag.Value.
func (l *list) String() string { return strings.Join(*l, ",") }

// Type implements pflag.Value.
func (l *list) Type() string { return "list" }

// PKeyFlag defines --pkey, for a partition key. The words say what the default is.
func PKeyFlag(f *pflag.FlagSet, value *uint16, usage, words string) {
	f.Var((*pkey)(value), "pkey", usage)
	DefaultIs(f, "pkey", words)
}

// MyPartition is the default of programs that choose the partition.
const MyPartition = "the first one of which the port is a full member"

// allowedPKeys are the partition keys that a port can have.
const allowedPKeys = "0x1 to 0x7fff, with or without the bit of full members, 0x8000"

// pkey is the value of a flag for a partition key.
type pkey uint16

// Allowed says which values are allowed.
func (k *pkey) Allowed() string { return allowedPKeys }

// Set implements pflag.Value.
func (k *pkey) Set(text string) error {
	n, err := strconv.ParseUint(text, 0, 16)
	if err == nil && n&0x7fff == 0 {
		err = strconv.ErrRange
	}
	*k = pkey(n)
	return err
}

// String implements pflag.Value.
func (k *pkey) String() string { return fmt.Sprintf("0x%04x", uint16(*k)) }

// Type implements pflag.Value.
func (k *pkey) Type() string { return "key" }

// JSONFlag defines --json.
func JSONFlag(cmd *Command, asJSON *bool) {
	cmd.Flags().BoolVar(asJSON, "json", false, `print JSON; "verbs help json" describes it`)
}

// PrintJSON writes a value as indented JSON.
func PrintJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// DefaultIs has the help describe a flag's default in words.
func DefaultIs(f *pflag.FlagSet, name, words string) { f.Lookup(name).DefValue = words }
