package ibsim

import (
	"fmt"
	"strings"
)

// FatTree returns the topology of a fat tree with up to 324 hosts and switches of 36 ports: a leaf switch
// for each 18 hosts, and 9 spine switches, to each of which every leaf has two links. With up to 18 hosts
// there is one switch. Hosts are named "h1", switches "leaf1" and "spine1". Links are 4xEDR.
func FatTree(hosts int) string {
	const perLeaf, spines = 18, 9
	links := map[string][]string{} // the lines of a switch
	link := func(a string, portA int, b string, portB int) {
		links[a] = append(links[a], fmt.Sprintf("[%d]\t%q[%d]\t\t# %q lid 0 4xEDR", portA, b, portB, b))
	}
	leaves := (hosts + perLeaf - 1) / perLeaf
	var b strings.Builder
	write := func(kind string, ports int, name string) {
		fmt.Fprintf(&b, "%s\t%d %q\t\t# %q\n%s\n\n", kind, ports, name, name, strings.Join(links[name], "\n"))
	}
	for h := range hosts {
		host, leaf := fmt.Sprintf("h%d", h+1), fmt.Sprintf("leaf%d", h/perLeaf+1)
		link(leaf, h%perLeaf+1, host, 1)
		links[host] = []string{fmt.Sprintf("[1]\t%q[%d]\t\t# lid 0 lmc 0 %q lid 0 4xEDR", leaf, h%perLeaf+1, leaf)}
	}
	for l := range leaves {
		for up := 0; up < 2*spines && leaves > 1; up++ {
			leaf, spine := fmt.Sprintf("leaf%d", l+1), fmt.Sprintf("spine%d", up/2+1)
			link(leaf, perLeaf+1+up, spine, 2*l+up%2+1)
			link(spine, 2*l+up%2+1, leaf, perLeaf+1+up)
		}
	}
	for l := range leaves {
		write("Switch", 36, fmt.Sprintf("leaf%d", l+1))
	}
	for s := 0; s < spines && leaves > 1; s++ {
		write("Switch", 36, fmt.Sprintf("spine%d", s+1))
	}
	for h := range hosts {
		write("Hca", 1, fmt.Sprintf("h%d", h+1))
	}
	return b.String()
}
