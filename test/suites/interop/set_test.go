package interop

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/netlinkrdma"
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
	must(t, netlink.LinkAdd(veth))
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
		must(t, err)
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
	if want == "nosuch" {
		ok("stat enable setnew/1 none")
	}
	refused("stat unbind setnew/2 cntn 1 lqpn 17", "the port is 2, allowed: 1 to 1")
	ok("system set netns exclusive")
	defer ok("system set netns shared")
	if v := verbsJSON(t, "system", "--json"); v.(map[string]any)["netns"] != "exclusive" {
		t.Errorf("the system's settings are %v", v)
	}
	switches(t, ok)
	refused("dev set setnew netns nosuch", "ip netns")
	ok("link delete setnew")
	refused("link delete setnew", "setnew")
	refused("status setnew", "the device is")
}

// switches turns the settings of the device setnew and of the system that are on or off, and reads them back.
func switches(t *testing.T, ok func(line string) string) {
	t.Helper()
	for _, on := range []bool{true, false} {
		word := map[bool]string{true: "on", false: "off"}[on]
		ok("dev set setnew adaptive-moderation " + word)
		if dev, err := netlinkrdma.DeviceByName("setnew"); err != nil || dev.AdaptiveModeration != on {
			t.Errorf("after adaptive-moderation %s: %v, %+v", word, err, dev)
		}
		out, err := verbsText(t, "system", "set", "privileged-qkey", word)
		k := testenv.Kernel(t)
		switch since := slices.Compare(k[:], []int{6, 7}) >= 0; {
		case err == nil: // distributions have it in some older kernels, too
			if v := verbsJSON(t, "system", "--json"); v.(map[string]any)["privileged_qkey"] != on {
				t.Errorf("after privileged-qkey %s: %v", word, v)
			}
		case since || !strings.Contains(out, "6.7"):
			t.Errorf("privileged-qkey %s: %v\n%s", word, err, out)
		}
	}
}

// TestEvents: verbs events shows a device that comes and goes, its asynchronous events, and its interface's addresses.
func TestEvents(t *testing.T) {
	testenv.Guest(t)
	testenv.Needs(t, "links that can be added", "rxe", "siw")
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "vv0"}, PeerName: "vv1"}
	must(t, netlink.LinkAdd(veth))
	t.Cleanup(func() { netlink.LinkDel(veth) })
	cmd := exec.CommandContext(timed(t), os.Getenv(VerbsEnv), "events", "--json")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	must(t, err)
	events := make(chan map[string]any)
	go func() {
		defer close(events)
		for d := json.NewDecoder(out); ; {
			var e map[string]any
			if err := d.Decode(&e); err != nil {
				return
			}
			events <- e
		}
	}()
	doc := readDocumented(t)["events"]
	seen := func(event, key, value string) {
		t.Helper()
		for e := range events {
			doc.check(t, e, "")
			if e["event"] == event && e[key] == value {
				return
			}
		}
		t.Fatalf("no event %s with %s %s", event, key, value)
	}
	step := func(errs ...error) {
		t.Helper()
		must(t, errors.Join(errs...))
	}
	addr, err := netlink.ParseAddr("10.7.0.1/24")
	step(err)
	self, err := netlink.LinkByName("vv0")
	step(err)
	peer, err := netlink.LinkByName("vv1")
	step(err)
	// A device that is there before the command looks is not reported, so it is made until one is.
	for registered := false; !registered; {
		step(netlinkrdma.AddLink("setevent", netlinkrdma.LinkKind(rig.Driver), "vv0"))
		for wait := time.After(5 * time.Second); ; {
			select {
			case e := <-events:
				registered = e["event"] == "REGISTER" && e["device"] == "setevent"
			case <-wait:
				step(netlinkrdma.DeleteLink("setevent"))
				wait = nil
			}
			if registered || wait == nil {
				break
			}
		}
	}
	step(netlink.LinkSetUp(peer), netlink.LinkSetUp(self))
	seen("NETDEV_UP", "netdev", "vv0")
	step(netlink.AddrAdd(self, addr))
	seen("ADDRESS_ADDED", "address", "10.7.0.1/24")
	step(netlink.LinkSetDown(self))
	seen("NETDEV_DOWN", "netdev", "vv0")
	step(netlink.LinkSetUp(self))
	seen("PORT_ACTIVE", "device", "setevent")
	step(netlink.AddrDel(self, addr))
	seen("ADDRESS_DELETED", "address", "10.7.0.1/24")
	step(netlinkrdma.DeleteLink("setevent"))
	seen("UNREGISTER", "device", "setevent")
	step(cmd.Process.Signal(os.Interrupt))
	for range events {
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("interrupted, verbs events ends with %v", err)
	}
}
