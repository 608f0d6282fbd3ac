package metrics

import (
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/tools/probe"
)

// samples has the lines of each family, without its name: {LABELS} VALUE.
type samples [familyCount][]string

// add adds a value. The labels have the order of the family.
func (s *samples) add(family int, value string, labels ...string) {
	s[family] = append(s[family], series(family, "", value, labels...))
}

// addHistogram adds a histogram.
func (s *samples) addHistogram(family int, h *probe.Histogram, labels ...string) {
	sum := uint64(0)
	for i, n := range h.Counts {
		sum += n
		bound := "+Inf"
		if i < len(probe.Bounds) {
			bound = number(probe.Bounds[i].Seconds())
		}
		s[family] = append(s[family], series(family, "_bucket", integer(sum), append(labels[:len(labels):len(labels)], bound)...))
	}
	s[family] = append(s[family], series(family, "_sum", number(h.Sum.Seconds()), labels...), series(family, "_count", integer(sum), labels...))
}

// series returns the line of a series, without the name of its family. One label more than the family has is le.
func series(family int, ending, value string, labels ...string) string {
	names := families[family].Labels
	if ending == "_bucket" {
		names = append(names[:len(names):len(names)], "le")
	}
	if len(labels) != len(names) {
		panic("metrics: " + families[family].Name + " has other labels")
	}
	b := []byte(ending)
	for i, name := range names {
		b = append(b, "{,"[min(i, 1)])
		b = append(b, name...)
		b = append(b, `="`...)
		b = append(b, escape(labels[i])...)
		b = append(b, '"')
	}
	if len(names) > 0 {
		b = append(b, '}')
	}
	return string(append(append(b, ' '), value...))
}

// join adds what others have.
func (s *samples) join(more *samples) {
	for i := range s {
		s[i] = append(s[i], more[i]...)
	}
}

// number, integer and truth are values.
func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
func integer(v uint64) string { return strconv.FormatUint(v, 10) }
func truth(v bool) string {
	if v {
		return "1"
	}
	return "0"
}

// escaper escapes what may not stand in the value of a label.
var escaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// escape returns the value of a label as it is written. The format allows any other UTF-8, but a terminal may show
// it: what is not printable becomes a replacement character.
func escape(v string) string {
	return escaper.Replace(strings.Map(func(r rune) rune {
		if r != '\n' && !strconv.IsGraphic(r) {
			return '\ufffd'
		}
		return r
	}, v))
}

// render writes samples in the text format. Of two values for one series, which a server would refuse, it writes
// one.
func (s *samples) render() []byte {
	var b []byte
	for i, lines := range s {
		if len(lines) == 0 {
			continue
		}
		f := &families[i]
		b = append(b, "# HELP "+f.Name+" "+f.Help+"\n# TYPE "+f.Name+" "+string(f.Type)+"\n"...)
		if f.Type != Histogram { // which are in order, as their buckets have to be
			slices.Sort(lines)
		}
		last := ""
		for _, line := range lines {
			labels := line[:strings.LastIndexByte(line, ' ')+1]
			if labels == last {
				continue
			}
			last = labels
			b = append(b, f.Name...)
			b = append(b, line...)
			b = append(b, '\n')
		}
	}
	return b
}
