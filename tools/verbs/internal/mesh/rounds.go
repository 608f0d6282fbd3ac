package mesh

// rounds returns the rounds of a tournament: each host meets each other one once, and no host is in two
// pairs of a round. An odd number of hosts leaves one out in each round.
func rounds(hosts int) (all [][][2]int) {
	n := hosts + hosts%2
	for r := range n - 1 {
		// The last one stays where it is, and the others go around.
		at := func(i int) int {
			if i == n-1 {
				return i
			}
			return (i + r) % (n - 1)
		}
		var pairs [][2]int
		for i := range n / 2 {
			a, b := at(i), at(n-1-i)
			if a < hosts && b < hosts {
				pairs = append(pairs, [2]int{min(a, b), max(a, b)})
			}
		}
		all = append(all, pairs)
	}
	return all
}
