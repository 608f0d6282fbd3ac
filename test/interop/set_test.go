package interop

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/test/testenv"
)

// verbsText runs verbs and returns what it prints on both outputs.
func verbsText(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(timed(t), os.Getenv(VerbsEnv), args...).CombinedOutput()
	return string(out), err
}

// TestSet: verbs adds a link, renames it, changes settings, and deletes it; "verbs status" and "verbs stat" see it.
func TestSet(t *testing.T) {
	testenv.Guest(t)
	testenv.Needs(t, "links that can be added", "rxe", "siw")
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "vs0"}, PeerName: "vs1"}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netlink.LinkDel(veth) })
	ok := func(line string) string {
		t.Helper()
		out, err := verbsText(t, strings.Fields(line)...)
		if err != nil {
			t.Fatalf("verbs %s: %v\n%s", line, err, out)
		}
		return out
	}
	refused := func(line, want string) {
		t.Helper()
		out, err := verbsText(t, strings.Fields(line)...)
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("verbs %s: %v\n%s, want %q", line, err, out, want)
		}
	}
	kind := rig.Driver
	ok("link add setlink type " + kind + " netdev vs0")
	refused("link add setlink2 type "+kind+" netdev vs0", "vs0 has a device of kind "+kind)
	refused("link add setlink3 type "+kind+" netdev nosuch0", "nosuch0")
	refused("status setlink", "not every port is active") // its interface is down
	for _, name := range []string{"vs0", "vs1"} {
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ok("dev set setlink name setnew")
	refused("dev set setlink name other", "setnew") // the error lists the devices that there are
	for {                                           // until the port is active, or the test's time is over
		out, err := verbsText(t, "status", "setnew")
		if err == nil {
			break
		}
		if !strings.Contains(out, "not every port is active") {
			t.Fatalf("verbs status: %v\n%s", err, out)
		}
		time.Sleep(50 * time.Millisecond)
	}
	row := verbsJSON(t, "status", "--json", "setnew/1").([]any)[0].(map[string]any)
	if row["netdev"] != "vs0" || row["state"] != "ACTIVE" || row["device"] != "setnew" {
		t.Errorf("the state is %v", row)
	}
	readDocumented(t)["status"].check(t, []any{row}, "")
	if !rig.IWARP() { // which has no modes of counters
		ok("stat auto setnew/1 type,pid")
		if out := ok("stat setnew --json"); !strings.Contains(out, `"mode": "auto"`) {
			t.Errorf("after auto:\n%s", out)
		}
		ok("stat auto setnew off")
		refused("stat bind setnew/1 lqpn 4000000", "setnew")
	}
	want := "nosuch"
	switch k := testenv.Kernel(t); {
	case rig.IWARP(): // which has no counters
		want = "hardware counters not supported by driver siw"
	case slices.Compare(k[:], []int{5, 16}) < 0:
		want = "5.16"
	}
	refused("stat enable setnew/1 nosuch", want)
	refused("stat unbind setnew/2 cntn 1 lqpn 17", "the port is 2, allowed: 1 to 1")
	ok("system set netns exclusive")
	defer ok("system set netns shared")
	if v := verbsJSON(t, "system", "--json"); v.(map[string]any)["netns"] != "exclusive" {
		t.Errorf("the system's settings are %v", v)
	}
	refused("dev set setnew netns nosuch", "ip netns")
	ok("link delete setnew")
	refused("link delete setnew", "setnew")
	refused("status setnew", "the device is")
}
