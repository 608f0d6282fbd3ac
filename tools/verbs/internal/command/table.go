package command

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Table begins a table with a line of names, which tabs separate. Write the other lines to it, and flush it.
func Table(w io.Writer, names string) *tabwriter.Writer {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, names)
	return t
}
