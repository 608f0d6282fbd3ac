package ib

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/ibsim"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad/fabric"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
	"github.com/goverbs/goverbs/uverbs/umad/sa"
)

// activity is the counter that grows while a subnet manager lives.
var activity = regexp.MustCompile(`activity count \d+`)

// contents returns the nodes of a fabric with their LIDs, and its links.
func contents(f *fabric.Fabric) (all []string) {
	for _, n := range f.Nodes {
		all = append(all, fmt.Sprintf("%v %#x LID %d", n, uint64(n.GUID()), n.Ports[0].LID()))
	}
	for a, b := range f.Links() {
		all = append(all, fmt.Sprintf("%v - %v", a, b))
	}
	return all
}

// TestTakeoverSim kills opensm in the middle of a walk, with a standby that takes over. Walks go on all the time:
// they do not depend on the subnet manager, so each one finds all nodes and links. Then the standby is the master for
// "verbs ib sm" and for sminfo, and answers requests for records.
func TestTakeoverSim(t *testing.T) {
	s := ibsim.Start(t, ibsim.FatTree(324))
	config := filepath.Join(t.TempDir(), "opensm.conf")
	if err := os.WriteFile(config, []byte("sminfo_polling_timeout 1000\npolling_retry_number 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	master := s.OpenSM("h1", false, "-F", config, "-p", "14")
	standby := s.OpenSM("h324", true, "-F", config, "-p", "1")
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of the master:\n%s\nthe log of the standby:\n%s", master.Log(), standby.Log())
		}
	})
	p := s.Port("h2")
	var want []string
	walk := func(progress func(nodes int)) *fabric.Fabric {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		f, err := fabric.Discover(ctx, p, fabric.Options{Progress: func(nodes, _ int) { progress(nodes) }})
		if err != nil {
			t.Fatal(err)
		}
		if got := contents(f); len(f.Problems) > 0 || want != nil && !slices.Equal(got, want) {
			t.Errorf("%d nodes and links, want %d; problems: %v", len(got), len(want), f.Problems)
		}
		return f
	}
	f := walk(func(int) {})
	want = contents(f)
	lids := map[string]uint16{}
	for _, n := range f.Nodes {
		lids[n.Description] = n.Ports[0].LID()
	}
	if len(want) != 351+324+18*18 {
		t.Fatalf("%d nodes and links", len(want))
	}

	// The standby must not wait for an answer of the master when that is killed: ibsim tells a sender that its packet
	// is lost only if the receiver is gone already, and opensm waits for a lost packet for ever. So the standby sends
	// nothing any more, and the master answers several requests after the last one of the standby.
	if err := standby.Pause(); err != nil {
		t.Fatal(err)
	}
	asked(t, s, lids["h1"], lids["h324"])
	if strings.Contains(standby.Log(), "SUBNET UP") {
		t.Fatal("the standby has taken over before the master was killed")
	}
	walk(func(nodes int) {
		if nodes == 100 {
			if err := errors.Join(master.Kill(), standby.Resume()); err != nil {
				t.Error(err)
			}
		}
	})
	walks, end := 1, time.Now().Add(time.Minute)
	for ; !standby.WaitFor("SUBNET UP", time.Millisecond); walks++ {
		if walk(func(int) {}); time.Now().After(end) {
			t.Fatal("the standby does not take over")
		}
	}
	t.Logf("%d walks without a master or while it takes over", walks)
	walk(func(int) {})
	asked(t, s, lids["h324"], lids["h2"])
}

// asked checks that the subnet manager is at one LID, where it answers a request for the path to another one.
func asked(t *testing.T, s *ibsim.Sim, sm, other uint16) {
	t.Helper()
	theirs := activity.ReplaceAllString(s.Output("h3", "sminfo"), "")
	ours := activity.ReplaceAllString(must(t, simulated(s, "h4"), "sm", "--compat"), "")
	if ours != theirs || !strings.Contains(ours, fmt.Sprintf("sm lid %d ", sm)) || !strings.Contains(ours, "SMINFO_MASTER") {
		t.Errorf("verbs ib sm: %ssminfo: %swant the master at LID %d", ours, theirs, sm)
	}
	p := s.Port("h5")
	defer p.Close()
	c, err := sa.NewClient(p, sa.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	own, err := sa.LocalPort(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	path := mad.PathRecord{SLID: own.LID, DLID: other, NumbPath: 1}
	if err := c.Get(t.Context(), &path, mad.PathSLID|mad.PathDLID|mad.PathNumbPath); err != nil || path.DGID == (ib.GID{}) {
		t.Errorf("the path to LID %d: %+v, %v", other, path, err)
	}
}
