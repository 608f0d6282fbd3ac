package interop

import (
	"fmt"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestPerftestGroup sends to a multicast group with perftest, in both roles. perftest joins no group, so the one to
// its server is that of all hosts, of which each host is a member.
func TestPerftestGroup(t *testing.T) {
	testenv.Tags(t, testenv.Perftest)
	testenv.Guest(t)
	testenv.NeedsRoCE(t, "groups of RoCE")
	const n, allHosts, default4 = 200, "255:2:0:0:0:0:0:0:0:0:0:0:0:0:0:1", "0:0:0:0:0:0:0:0:0:0:255:255:239:255:18:10"
	for _, c := range []struct {
		server bool
		v4     bool // the group's address family
		mgid   string
	}{{false, false, allHosts}, {true, true, default4}} {
		t.Run(fmt.Sprintf("server=%v", c.server), func(t *testing.T) {
			dev, err := uverbs.Open(dev1, uverbs.OpenOptions{})
			must(t, err)
			defer dev.Close()
			table, err := dev.GIDTable(1)
			must(t, err)
			to := ib.GID{0: 0xff, 1: 2, 15: 1}
			if c.v4 {
				to = ib.GID{10: 0xff, 11: 0xff, 12: 239}
			}
			from, ok := uverbs.ChooseGID(table, to)
			if !ok || from.GID.Addr().Is4() != c.v4 {
				t.Fatalf("%s has no GID for %s", dev1, to)
			}
			r := perftestPair{
				test: "send-bw", server: c.server, row: 1000,
				theirs: fmt.Sprintf("-F -g -c UD -s 1000 -n %d -x %d -M %s", n, from.Index, c.mgid), ours: fmt.Sprintf("--mcg -s 1000 -n %d", n),
			}.play(t)
			if len(r.Results) != 1 || r.Results[0].Iterations != n {
				t.Errorf("%+v, want %d messages", r, n)
			}
		})
	}
}
