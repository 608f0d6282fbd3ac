package interop

import (
	"fmt"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestPerftestGroup sends to a multicast group with perftest, in both roles. perftest joins no group, so the group is
// the one that has all hosts as members.
func TestPerftestGroup(t *testing.T) {
	testenv.Tags(t, testenv.Perftest)
	testenv.Guest(t)
	testenv.NeedsRoCE(t, "groups of RoCE")
	const n = 200
	dev, err := uverbs.Open(dev1, uverbs.OpenOptions{})
	must(t, err)
	defer dev.Close()
	table, err := dev.GIDTable(1)
	must(t, err)
	from, ok := uverbs.ChooseGID(table, ib.GID{10: 0xff, 11: 0xff, 12: 224, 15: 1})
	if !ok || !from.GID.Addr().Is4() {
		t.Fatalf("%s has no GID of IPv4", dev1)
	}
	for _, server := range []bool{false, true} {
		t.Run(fmt.Sprintf("server=%v", server), func(t *testing.T) {
			r := perftestPair{
				test: "send-bw", server: server, row: 1000, ours: fmt.Sprintf("--mcg -s 1000 -n %d", n),
				theirs: fmt.Sprintf("-F -g -c UD -s 1000 -n %d -x %d -M 0:0:0:0:0:0:0:0:0:0:255:255:224:0:0:1", n, from.Index),
			}.play(t)
			if len(r.Results) != 1 || r.Results[0].Iterations != n {
				t.Errorf("%+v, want %d messages", r, n)
			}
		})
	}
}
