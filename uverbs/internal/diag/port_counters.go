package diag

import (
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/netlinkrdma"
)

// CounterGrowth lists the counters that have grown, and by how much. A counter that has no value
// before is left out. The text is empty if there are no values before at all.
func CounterGrowth(before, now []netlinkrdma.Counter) string {
	if len(before) == 0 {
		return ""
	}
	old := map[string]uint64{}
	for _, c := range before {
		old[c.Name] = c.Value
	}
	var grown []string
	for _, c := range now {
		if v, ok := old[c.Name]; ok && c.Value > v {
			grown = append(grown, fmt.Sprintf("%s %d", c.Name, c.Value-v))
		}
	}
	if grown == nil {
		return "nothing"
	}
	return strings.Join(grown, ", ")
}
