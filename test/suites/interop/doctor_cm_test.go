package interop

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestDoctorDeadCM: a client is killed while the link is down, so that the connection manager sends something then.
// rxe's queue pair for it is dead since. The doctor says so, with a cure, and the cure helps.
func TestDoctorDeadCM(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsLinks(t)
	restored(t)
	iface := link(t, rig.Netdevs[1])
	addrs := addresses(t, iface, unix.AF_INET6)
	up := func() {
		change(t, netlink.LinkSetUp(iface))
		for _, a := range addrs { // gone with the link
			if !a.IP.IsLinkLocalUnicast() {
				change(t, netlink.AddrReplace(iface, &netlink.Addr{IPNet: a.IPNet, Flags: unix.IFA_F_NODAD}))
			}
		}
		settle(t, dev1, func(a uverbs.PortAttr, table []uverbs.GIDEntry) bool {
			return a.State == ib.PortActive && len(table) > 2
		})
	}
	renew := func() error {
		err := errors.Join(netlinkrdma.DeleteLink(dev1), netlinkrdma.AddLink(dev1, netlinkrdma.RXE, rig.Netdevs[1]))
		settle(t, dev1, func(a uverbs.PortAttr, table []uverbs.GIDEntry) bool {
			return a.State == ib.PortActive && len(table) > 2
		})
		return err
	}
	undone(t, renew)

	ours, _ := rpings()
	number, port := cmPort()
	server := program.Launch(t, line(ours, "-s", "-P", "-a", rig.Addrs[1], "-p", port)...)
	serving(t, server, netlinkrdma.PortSpaceTCP, number)
	client := program.Launch(t, line(ours, "-c", "-v", "-a", rig.Addrs[1], "-p", port)...)
	client.Until(t, "ping", func() bool { return pingData(client.Output()) != "" })
	change(t, netlink.LinkSetDown(iface))
	settle(t, dev1, func(a uverbs.PortAttr, _ []uverbs.GIDEntry) bool { return a.State != ib.PortActive })
	client.Signal(unix.SIGKILL)
	<-client.Ended
	up()

	r := doctor(t, patient{names: []string{dev1}})
	r.works(t, false, dev1+" port 1: the connection manager gets no answer from "+rig.Addrs[1])
	r.want(t, "loopback", dev1, "ok")
	cure := "verbs link delete " + dev1 + "; verbs link add " + dev1 + " type rxe netdev " + rig.Netdevs[1]
	r.want(t, "cm", dev1, "error", "rxe has this bug", "no answer within", cure)
	server.Signal(unix.SIGKILL)
	<-server.Ended
	must(t, renew())
	r = doctor(t, patient{names: []string{dev1}})
	r.works(t, true)
	r.want(t, "cm", dev1, "ok", rig.Addrs[1]+" to itself: connected")
}

// TestDoctorPeer: the doctor connects to a host where another one serves, and says what to do where none does.
func TestDoctorPeer(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	testenv.Guest(t)
	testenv.NeedsRoCE(t, "addresses of ports")
	number, port := cmPort()
	at := rig.Addrs[0] + ":" + port
	visit := func() (string, error) {
		out, err := exec.CommandContext(timed(t), os.Getenv(VerbsEnv), "doctor", "-v", "--peer", at, dev0).CombinedOutput()
		return string(out), err
	}
	if out, err := visit(); err == nil || !strings.Contains(out, "fix: on "+at+": verbs doctor --serve") {
		t.Errorf("nobody serves: %v\n%s", err, out)
	}
	server := program.Launch(t, os.Getenv(VerbsEnv), "doctor", "--serve", "--listen", rig.Addrs[0], "-p", port)
	serving(t, server, netlinkrdma.PortSpaceTCP, number)
	out, err := visit()
	if err != nil || !strings.Contains(out, "; it connects to "+at) || !strings.Contains(out, rig.Addrs[0]+" to "+at+": connected") {
		t.Errorf("a doctor serves: %v\n%s", err, out)
	}
	server.Signal(os.Interrupt)
	server.Wait(t)
}
