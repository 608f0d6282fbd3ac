package matrix

import (
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// stamp records for all columns the date and the commit of the checkout at root, with "-dirty" if files
// differ from it.
func (m *Matrix) stamp(root string) error {
	out, err := exec.Command("git", "-C", root, "describe", "--always", "--dirty").Output()
	if err != nil {
		return fmt.Errorf("git describe: %w", err)
	}
	for i := range m.Columns {
		m.Columns[i].Commit = strings.TrimSpace(string(out))
		m.Columns[i].Date = time.Now().UTC().Format(time.DateOnly)
	}
	return nil
}

// recorded says when the columns were recorded: "2026-01-02, commit abc1234", and, if that differs, of
// which columns. The columns that most have in common come last, as the others.
func (m *Matrix) recorded() string {
	var stamps []string
	titles := map[string][]string{}
	for _, c := range m.Columns {
		s := c.Date + ", commit " + c.Commit
		if titles[s] == nil {
			stamps = append(stamps, s)
		}
		titles[s] = append(titles[s], c.title())
	}
	slices.SortStableFunc(stamps, func(a, b string) int { return len(titles[a]) - len(titles[b]) })
	for i, s := range stamps {
		if i < len(stamps)-1 {
			stamps[i] = s + " (" + strings.Join(titles[s], ", ") + ")"
		} else if i > 0 {
			stamps[i] = s + " (the others)"
		}
	}
	return strings.Join(stamps, "; ")
}

// days is recorded for a short text, which names the commit only if there is one.
func (m *Matrix) days() string {
	days, commits := map[string]bool{}, map[string]bool{}
	for _, c := range m.Columns {
		days[c.Date], commits[c.Commit] = true, true
	}
	if len(commits) == 1 {
		return m.recorded()
	}
	return strings.Join(slices.Sorted(maps.Keys(days)), ", ")
}
