package mesh

import (
	"cmp"
	"slices"
	"sort"
)

// edge is a link: two hosts on a rail.
type edge struct {
	a, b int // a < b
	rail string
}

// port is a host's device.
type port struct {
	host int
	rail string
}

// has reports whether a link is one of the port.
func (p port) has(e edge) bool { return e.rail == p.rail && (e.a == p.host || e.b == p.host) }

// graph is which links were tested, and which are bad.
type graph struct {
	report *Report
	bad    map[edge]bool // of each link that was tested
	left   map[edge]bool // bad links that no finding explains yet
}

// edgeOf returns the link of a measurement.
func edgeOf(m *Measurement) edge { return edge{min(m.from, m.to), max(m.from, m.to), m.Rail} }

// findings finds what bad measurements have in common. The largest cause that explains all of its links
// comes first: the rail, the port or host, and then the link.
func (r *Report) findings() (all []Finding) {
	g := &graph{report: r, bad: map[edge]bool{}, left: map[edge]bool{}}
	for i := range r.Measurements {
		m := &r.Measurements[i]
		e, bad := edgeOf(m), len(m.Problems) > 0
		g.bad[e] = g.bad[e] || bad
		if bad {
			g.left[e] = true
		}
	}
	all = append(all, g.rails()...)
	all = append(all, g.ports()...)
	return append(all, g.links()...)
}

// edges returns the links that a function chooses, in a fixed order, and how many of them are bad.
func (g *graph) edges(choose func(edge) bool) (some []edge, bad int) {
	for e, isBad := range g.bad {
		if choose(e) {
			some = append(some, e)
			if isBad {
				bad++
			}
		}
	}
	sort.SliceStable(some, func(i, j int) bool {
		x, y := some[i], some[j]
		return cmp.Or(cmp.Compare(x.a, y.a), cmp.Compare(x.b, y.b), cmp.Compare(x.rail, y.rail)) < 0
	})
	return some, bad
}

// names returns the rails that were tested.
func (g *graph) names() (names []string) {
	for e := range g.bad {
		if !slices.Contains(names, e.rail) {
			names = append(names, e.rail)
		}
	}
	slices.Sort(names)
	return names
}

// rails finds rails of which each link is bad, if that is more than a port could explain.
func (g *graph) rails() (all []Finding) {
	names := g.names()
	for _, name := range names {
		const least = 3 // links
		some, bad := g.edges(func(e edge) bool { return e.rail == name })
		if len(some) < least || bad < len(some) {
			continue
		}
		f := g.explain(some)
		f.Cause, f.Rail = CauseRail, name
		if len(names) == 1 {
			f.Cause = CauseFleet
		}
		all = append(all, f)
	}
	return all
}

// ports finds ports of which each link is bad, and joins those of a host.
func (g *graph) ports() (all []Finding) {
	found := map[int][]port{}
	for {
		best, most := port{}, 1 // a single link is not the port's fault
		for host := range g.report.Hosts {
			for _, rail := range g.names() {
				some, bad := g.edges(port{host, rail}.has)
				left := 0
				for _, e := range some {
					if g.left[e] {
						left++
					}
				}
				if bad == len(some) && left > most {
					best, most = port{host, rail}, left
				}
			}
		}
		if most == 1 {
			break
		}
		found[best.host] = append(found[best.host], best)
		some, _ := g.edges(best.has)
		for _, e := range some {
			delete(g.left, e)
		}
	}
	for host := range g.report.Hosts {
		ports := found[host]
		if len(ports) == 0 {
			continue
		}
		rails := 0
		for _, rail := range g.names() {
			if some, _ := g.edges(port{host, rail}.has); len(some) > 0 {
				rails++
			}
		}
		of := func(ports ...port) Finding {
			some, _ := g.edges(func(e edge) bool { return slices.ContainsFunc(ports, func(p port) bool { return p.has(e) }) })
			f := g.explain(some)
			f.Hosts = []string{g.report.Hosts[host].Name}
			return f
		}
		if len(ports) == rails {
			f := of(ports...)
			f.Cause = CauseHost
			all = append(all, f)
			continue
		}
		for _, p := range ports {
			f := of(p)
			f.Cause, f.Rail = CausePort, p.rail
			all = append(all, f)
		}
	}
	return all
}

// links makes a finding of each pair that is still bad, or of each link if other rails of the pair are
// good.
func (g *graph) links() (all []Finding) {
	for len(g.left) > 0 {
		some, _ := g.edges(func(e edge) bool { return g.left[e] })
		first := some[0]
		pair, bad := g.edges(func(e edge) bool { return e.a == first.a && e.b == first.b })
		whole := bad == len(pair) && len(pair) > 1
		if !whole {
			pair = []edge{first}
		}
		f := g.explain(pair)
		f.Cause = CauseLink
		f.Hosts = []string{g.report.Hosts[first.a].Name, g.report.Hosts[first.b].Name}
		if !whole {
			f.Rail = first.rail
		}
		g.direct(&f, pair)
		all = append(all, f)
	}
	return all
}

// direct says which directions and flow labels of a link are bad.
func (g *graph) direct(f *Finding, links []edge) {
	var ways []string
	var labels, badLabels []int
	for i := range g.report.Measurements {
		m := &g.report.Measurements[i]
		if !slices.Contains(links, edgeOf(m)) {
			continue
		}
		labels = append(labels, m.FlowLabel)
		if len(m.Problems) > 0 {
			ways, badLabels = append(ways, m.From+" -> "+m.To), append(badLabels, m.FlowLabel)
		}
	}
	unique := func(all []int) []int { slices.Sort(all); return slices.Compact(all) }
	labels, badLabels = unique(labels), unique(badLabels)
	slices.Sort(ways)
	if ways = slices.Compact(ways); len(ways) == 1 {
		f.Direction = ways[0]
	} else {
		f.Direction = "both"
	}
	if len(badLabels) < len(labels) {
		f.Cause, f.FlowLabels = CausePath, badLabels
	}
}

// explain makes a finding of links, and takes them from those that are left.
func (g *graph) explain(links []edge) (f Finding) {
	const most = 8 // lines of evidence
	for i := range g.report.Measurements {
		m := &g.report.Measurements[i]
		if !slices.Contains(links, edgeOf(m)) || len(m.Problems) == 0 {
			continue
		}
		f.Problems = append(f.Problems, m.Problems...)
		if lines := g.report.describe(m); len(f.Evidence) < most {
			f.Evidence = append(f.Evidence, lines[:min(len(lines), most-len(f.Evidence))]...)
		}
	}
	slices.Sort(f.Problems)
	f.Problems = slices.Compact(f.Problems)
	for _, e := range links {
		delete(g.left, e)
	}
	return f
}
