package mesh

import (
	"fmt"
	"strings"
)

// heats are the colours of cells, from the fleet's median and better to the worst, and then that of a cell without a
// value. They get darker, so that they can be told apart in grey.
var heats = []struct {
	upTo         float64 // how many times worse than the median
	colour, text string
}{
	{1.25, "#ffffb2", "#000"}, {1.5, "#fecc5c", "#000"}, {2, "#fd8d3c", "#000"}, {3, "#e3311d", "#fff"}, {0, "#8c0022", "#fff"},
	{0, "#fff", "#000"},
}

// Indices of heats.
const (
	hottest = 4
	noHeat  = 5
)

// heat returns the index of a cell's colour.
func (r *Report) heat(t table, m *Measurement) int {
	if m == nil {
		return noHeat
	}
	usual, worse := r.usual(m.Type), 0.0
	switch {
	case t.bandwidth && m.Bandwidth != nil:
		if worse = 1; *m.Bandwidth < usual.Bandwidth {
			worse = usual.Bandwidth / max(*m.Bandwidth, usual.Bandwidth/1e3)
		}
	case !t.bandwidth && m.Latency != nil && usual.Latency > 0:
		worse = m.Latency.Median / usual.Latency
	default:
		return noHeat
	}
	for i := range hottest {
		if worse <= heats[i].upTo {
			return i
		}
	}
	return hottest
}

// scale returns what each colour of a matrix stands for, with the values.
func (r *Report) scale(t table) (labels []string) {
	usual, unit := r.usual(t.typ), "µs"
	for i := range noHeat {
		ratio := heats[min(i, hottest-1)].upTo
		value, than := usual.Latency*ratio, "up to"
		if t.bandwidth {
			value, unit, than = usual.Bandwidth/ratio, "Gb/s", "from"
		}
		if i == hottest {
			than = map[string]string{"up to": "over", "from": "under"}[than]
		}
		digits := 1
		if value < 10 {
			digits = 2
		}
		labels = append(labels, fmt.Sprintf("%s %.*f %s", than, digits, value, unit))
	}
	return labels
}

// title returns lines about the run: the date and the outcome, the devices, and the options.
func (r *Report) title() []string {
	what := fmt.Sprintf("verbs mesh, %s: %d hosts, findings: %d", r.Time.UTC().Format("2006-01-02 15:04 UTC"), len(r.Hosts), len(r.Findings))
	if r.Interrupted {
		what += ", interrupted"
	}
	var devices []string
	seen := map[string]bool{}
	for i := range r.Hosts {
		for _, d := range r.Hosts[i].Rails {
			if name := d.Name + " (" + d.Driver + ")"; !seen[name] {
				seen[name] = true
				devices = append(devices, name)
			}
		}
	}
	o := &r.Options
	options := fmt.Sprintf("latency of %d messages, bandwidth of %d messages of %d bytes (ud: at most the MTU)", o.Iterations, o.Messages, o.Size)
	if o.Events {
		options += ", events"
	}
	return []string{what, "devices " + strings.Join(devices, ", "), options}
}
