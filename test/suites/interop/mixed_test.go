package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// mixedDevice is one of several devices of a guest.
type mixedDevice struct {
	uverbs.DeviceInfo
	addr netip.Addr // of its network interface, IPv4
}

// mixedDevices lists the guest's devices. There are several drivers', each with a network
// interface that has an address.
func mixedDevices(t *testing.T) (all []mixedDevice) {
	t.Helper()
	infos, err := uverbs.Devices()
	change(t, err)
	devs, err := netlinkrdma.Devices()
	change(t, err)
	drivers := map[string]bool{}
	for i, info := range infos {
		if info.Err != nil {
			t.Errorf("%s: %v", info.Name, info.Err)
		}
		ports, err := netlinkrdma.Ports(devs[i])
		change(t, err)
		iface, err := net.InterfaceByIndex(ports[0].NetdevIndex)
		change(t, err)
		addrs, err := iface.Addrs()
		change(t, err)
		for _, a := range addrs {
			if p := netip.MustParsePrefix(a.String()); p.Addr().Is4() {
				all = append(all, mixedDevice{info, p.Addr()})
			}
		}
		drivers[info.Driver] = true
	}
	if len(drivers) < 2 || len(all) != len(infos) {
		t.Fatalf("drivers are %v, devices with an address %v of %d", drivers, all, len(infos))
	}
	return all
}

// TestMixedLists: every list has all devices, and the doctor finds all of them well.
func TestMixedLists(t *testing.T) {
	testenv.Mixed(t)
	devices := mixedDevices(t)
	for _, command := range []string{"devices", "info", "res", "stat"} {
		out, err := exec.CommandContext(timed(t), os.Getenv(VerbsEnv), command).CombinedOutput()
		if err != nil {
			t.Errorf("verbs %s: %v\n%s", command, err, out)
		}
		for _, d := range devices {
			if !strings.Contains(string(out), d.Name) {
				t.Errorf("verbs %s does not mention %s:\n%s", command, d.Name, out)
			}
		}
	}
	var rows []struct{ Device, Driver, Protocol string }
	out, err := exec.CommandContext(timed(t), os.Getenv(VerbsEnv), "devices", "--json").Output()
	change(t, err)
	change(t, json.Unmarshal(out, &rows))
	for i, d := range devices {
		if r := rows[i]; r.Device != d.Name || r.Driver != d.Driver || r.Protocol != d.Protocol || (d.Driver == "siw") != (r.Protocol == "iw") {
			t.Errorf("the list has %+v, want %+v", r, d)
		}
	}
	r := doctor(t, patient{})
	for _, d := range devices {
		r.works(t, true, d.Name)
		r.want(t, "loopback", d.Name, "ok")
		r.want(t, choose(d.IWARP(), "address", "gid"), d.Name, "ok", d.addr.String())
	}
	r.want(t, "firewall", "", "info", "4791", "TCP ports")
}

// choose is what C's ?: does.
func choose(cond bool, yes, no string) string {
	if cond {
		return yes
	}
	return no
}

// talk has a message go from one end to the other and back.
func talk(ctx context.Context, client, server *cm.Conn) error {
	for _, pair := range [][2]*cm.Conn{{client, server}, {server, client}} {
		if err := pair[0].Send(ctx, []byte("over here")); err != nil {
			return err
		}
		if m, err := pair[1].Recv(ctx); err != nil || string(m) != "over here" {
			return fmt.Errorf("%q came: %w", m, err)
		}
	}
	return nil
}

// TestMixedConnections: an address belongs to one device, which a connection to it uses, be the
// listener one of that address or of all; and drivers that do not understand each other do not
// meet.
func TestMixedConnections(t *testing.T) {
	testenv.Mixed(t)
	devices := mixedDevices(t)
	ctx := timed(t)
	every, err := cm.Listen(ctx, "0.0.0.0:0", cm.ListenOptions{})
	change(t, err)
	defer every.Close()
	port := every.Addr().(rdmacm.Addr).Port
	for _, d := range devices {
		own, err := cm.Listen(ctx, netip.AddrPortFrom(d.addr, 0).String(), cm.ListenOptions{})
		change(t, err)
		for _, l := range []*cm.Listener{own, every} {
			to := netip.AddrPortFrom(d.addr, port).String()
			if l == own {
				to = own.Addr().String()
			}
			type accepted struct {
				c   *cm.Conn
				err error
			}
			server := make(chan accepted, 1)
			go func() {
				c, err := l.Accept(ctx)
				server <- accepted{c, err}
			}()
			c, err := cm.Dial(ctx, to, cm.DialOptions{})
			if err != nil {
				t.Fatalf("Dial %s: %v", to, err)
			}
			s := <-server
			change(t, s.err)
			for _, end := range []*cm.Conn{c, s.c} {
				if name := end.QP().Device().Name(); name != d.Name {
					t.Errorf("a connection with %s is on %s, want %s", to, name, d.Name)
				}
			}
			if err := talk(ctx, c, s.c); err != nil {
				t.Errorf("%s: %v", d.Name, err)
			}
			change(t, c.Close())
			change(t, s.c.Close())
		}
		change(t, own.Close())
	}
	first := map[string]mixedDevice{} // by protocol
	for _, d := range devices {
		if _, ok := first[d.Protocol]; !ok {
			first[d.Protocol] = d
		}
	}
	for _, from := range first {
		for _, to := range first {
			if from.Protocol == to.Protocol {
				continue
			}
			soon, cancel := context.WithTimeout(ctx, time.Second)
			c, err := cm.Dial(soon, netip.AddrPortFrom(to.addr, port).String(), cm.DialOptions{LocalAddr: netip.AddrPortFrom(from.addr, 0)})
			cancel()
			if err == nil {
				c.Close()
				t.Errorf("%s has connected with %s", from.Name, to.Name)
			} else if !strings.Contains(err.Error(), to.addr.String()) {
				t.Errorf("from %s to %s: %v", from.Name, to.Name, err)
			}
			t.Logf("from %s to %s: %v", from.Name, to.Name, err)
		}
	}
}

// TestMixedTools: each device is measured and pinged by its address, with one server for all.
func TestMixedTools(t *testing.T) {
	testenv.Mixed(t)
	devices := mixedDevices(t)
	server, port := perfServe(t)
	_, pings := cmPort()
	rping := program.Launch(t, os.Getenv(VerbsEnv), "rping", "-s", "-P", "-a", "0.0.0.0", "-p", pings)
	for _, d := range devices {
		for _, options := range []string{"send-lat --cm -n 20", "write-bw --cm -n 20", "send-lat -n 20"} {
			f := strings.Fields(options)
			out, err := exec.CommandContext(timed(t), os.Getenv(VerbsEnv), append([]string{"perf", f[0], d.addr.String(), "-p", port, "--json"}, f[1:]...)...).CombinedOutput()
			if d.IWARP() && !strings.Contains(options, "--cm") {
				if err == nil || !strings.Contains(string(out), "--cm is missing: "+d.Name) {
					t.Errorf("perf %s of %s: %v\n%s", options, d.Name, err, out)
				}
				continue
			}
			var r perfReport
			if err == nil {
				err = json.Unmarshal(out, &r)
			}
			if err != nil || r.Client.Device != d.Name || r.Server.Device != d.Name {
				t.Errorf("perf %s of %s: %v\n%s", options, d.Name, err, out)
			}
		}
		out, err := exec.CommandContext(timed(t), os.Getenv(VerbsEnv), "rping", "-c", "-V", "-C", "3", "-a", d.addr.String(), "-p", pings).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "3 pings") {
			t.Errorf("rping of %s: %v\n%s", d.Name, err, out)
		}
	}
	for _, p := range []*program.Program{server, rping} {
		p.Signal(syscall.SIGTERM)
		p.Wait(t)
	}
}
