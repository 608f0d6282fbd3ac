package matrix

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode"
)

// Card is a user's report of the conformance tests on a device.
type Card struct {
	Device, Firmware, Driver, Kernel, Arch, Version, Date string

	Groups []CardGroup
}

// CardGroup counts the outcomes of the tests with one title.
type CardGroup struct {
	Title string

	Passed, Failed, Unsupported int
}

// cardFolder has the blocks that users reported, a file for each.
const cardFolder = "test/matrix/cards"

const cardBegin, cardEnd = "goverbs card 1", "end"

// fields are the lines of a block that have one value each, in their order.
func (c *Card) fields() []struct {
	name  string
	value *string
} {
	return []struct {
		name  string
		value *string
	}{{"device", &c.Device}, {"firmware", &c.Firmware}, {"driver", &c.Driver}, {"kernel", &c.Kernel}, {"arch", &c.Arch}, {"version", &c.Version}, {"date", &c.Date}}
}

// Card returns the report of a column, with its counts by title.
func (m *Matrix) Card(column int, device, firmware string) *Card {
	col := m.Columns[column]
	c := &Card{Device: device, Firmware: firmware, Driver: col.Driver, Kernel: col.Release, Arch: col.Arch, Version: col.Commit, Date: col.Date}
	for _, g := range m.groups() {
		n := m.counts(column, g)
		if n[Passed]+n[Failed]+n[Unsupported] > 0 {
			c.Groups = append(c.Groups, CardGroup{g, n[Passed], n[Failed], n[Unsupported]})
		}
	}
	return c
}

// String returns the block that a user pastes. Every line ends with a checksum of itself and the lines before it.
func (c *Card) String() string {
	lines := []string{cardBegin}
	for _, f := range c.fields() {
		lines = append(lines, f.name+": "+strings.Join(strings.Fields(*f.value), " "))
	}
	for _, g := range c.Groups {
		lines = append(lines, fmt.Sprintf("%d passed, %d failed, %d not supported: %s", g.Passed, g.Failed, g.Unsupported, g.Title))
	}
	var b strings.Builder
	sum := uint32(0)
	for _, l := range append(lines, cardEnd) {
		sum = crc32.Update(sum, crc32.IEEETable, []byte(l+"\n"))
		fmt.Fprintf(&b, "%s #%08x\n", l, sum)
	}
	return b.String()
}

// ParseCard reads the block of a user. Empty lines, and spaces around lines, do not count.
func ParseCard(text string) (*Card, error) {
	c := new(Card)
	fields := c.fields()
	sum, count, number, ended := uint32(0), 0, 0, false
	for line := range strings.Lines(text) {
		number++
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		bad := func(why string) error { return fmt.Errorf("line %d, %.100q: %s", number, line, why) }
		switch {
		case ended:
			return nil, bad("there is text after the end of the block")
		case strings.ContainsFunc(line, unicode.IsControl):
			return nil, bad("it has a control character")
		}
		text, check, _ := strings.Cut(line, " #")
		sum = crc32.Update(sum, crc32.IEEETable, []byte(text+"\n"))
		if want := fmt.Sprintf("%08x", sum); check != want {
			return nil, bad(fmt.Sprintf("the checksum is %.100q, want %s: this line was changed, or one before it is missing", check, want))
		}
		name, value, _ := strings.Cut(text, ": ")
		var g CardGroup
		switch {
		case count == 0 && text != cardBegin:
			return nil, bad("want " + cardBegin)
		case count == 0:
		case text == cardEnd && count > len(fields):
			ended = true
		case count <= len(fields):
			if strings.TrimSuffix(name, ":") != fields[count-1].name {
				return nil, bad("want " + fields[count-1].name)
			}
			*fields[count-1].value = value
		default:
			if n, err := fmt.Sscanf(name, "%d passed, %d failed, %d not supported", &g.Passed, &g.Failed, &g.Unsupported); n != 3 || err != nil || min(g.Passed, g.Failed, g.Unsupported) < 0 || value == "" {
				return nil, bad("want N passed, N failed, N not supported: TITLE")
			}
			g.Title = value
			c.Groups = append(c.Groups, g)
		}
		count++
	}
	if !ended {
		return nil, fmt.Errorf("line %d: the block ends without the line %q", number+1, cardEnd)
	}
	return c, nil
}

// readCards reads the blocks that are checked in.
func readCards(root string) (all []*Card, err error) {
	entries, err := os.ReadDir(filepath.Join(root, cardFolder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		b, readErr := os.ReadFile(filepath.Join(root, cardFolder, e.Name()))
		c, parseErr := ParseCard(string(b))
		if err := errors.Join(readErr, parseErr); err != nil {
			return nil, fmt.Errorf("%s/%s: %w", cardFolder, e.Name(), err)
		}
		all = append(all, c)
	}
	return all, err
}

// cardTable renders the reports of users as Markdown.
func cardTable(all []*Card) string {
	if len(all) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("\n## Reported by users\n\nNobody else has checked these results.\n\n")
	row(&b, "device", "firmware", "driver", "kernel", "version", "date", "all", "failed")
	row(&b, "---", "---", "---", "---", "---", "---", "---", "---")
	for _, c := range all {
		n := map[Outcome]int{}
		var failed []string
		for _, g := range c.Groups {
			n[Passed], n[Failed], n[Unsupported] = n[Passed]+g.Passed, n[Failed]+g.Failed, n[Unsupported]+g.Unsupported
			if g.Failed > 0 {
				failed = append(failed, fmt.Sprintf("%s: %d", g.Title, g.Failed))
			}
		}
		cells := []string{c.Device, c.Firmware, c.Driver, c.Kernel + " " + c.Arch, c.Version, c.Date, tally(n), strings.Join(failed, ", ")}
		for i := range cells { // text of strangers
			cells[i] = strings.NewReplacer(`\`, `\\`, "|", `\|`, "<", "&lt;", "[", `\[`, "`", "'").Replace(cells[i])
		}
		row(&b, cells...)
	}
	return b.String()
}
