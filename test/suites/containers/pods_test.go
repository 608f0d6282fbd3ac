package containers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// podsEnv is 1 in the boot of TestPods, a VM with two modelled ConnectX whose devices every network namespace sees.
const podsEnv = "GOVERBS_PODS"

// pod is a network namespace.
type pod struct {
	name string // empty for the first network namespace
	addr string // its address on the network of the pods
}

// command returns a program in the pod, with variables of the environment.
func (p pod) command(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	all := append([]string{"env"}, append(env, args...)...)
	if p.name != "" {
		all = append([]string{"ip", "netns", "exec", p.name}, all...)
	}
	return exec.CommandContext(t.Context(), all[0], all[1:]...)
}

// see returns what a program prints in the pod.
func (p pod) see(t *testing.T, args ...string) string {
	t.Helper()
	out, err := p.command(t, nil, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// play runs a server in a pod, and in another one its client until it has found the server. It returns what the client
// prints. Both must succeed, unless the server serves on.
func play(t *testing.T, server, client pod, serverEnv, clientEnv []string, serve, call string) string {
	t.Helper()
	s := server.command(t, serverEnv, strings.Fields(serve)...)
	var said bytes.Buffer
	s.Stdout, s.Stderr = &said, &said
	must(t, s.Start())
	t.Logf("%s in %s, %s in %s", serve, server.name, call, client.name)
	ended := make(chan error, 1)
	go func() { ended <- s.Wait() }()
	for limit := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		out, err := client.command(t, clientEnv, strings.Fields(call)...).Output()
		if err == nil {
			servesOn := strings.Contains(serve, "perf serve")
			if servesOn {
				must(t, s.Process.Kill())
			}
			if serr := <-ended; serr != nil && !servesOn {
				t.Fatalf("%s in %s: %v\n%s", serve, server.name, serr, said.String())
			}
			return string(out)
		}
		select {
		case serr := <-ended:
			t.Fatalf("%s in %s: %v\n%s\n%s in %s: %v\n%s", serve, server.name, serr, said.String(), call, client.name, err, stderr(err))
		default:
		}
		if time.Now().After(limit) {
			must(t, s.Process.Kill())
			<-ended
			t.Fatalf("%s in %s: %v\n%s\nthe server: %s", call, client.name, err, stderr(err), said.String())
		}
	}
}

// stderr returns what a program has printed that failed.
func stderr(err error) string {
	if e, ok := err.(*exec.ExitError); ok {
		return string(e.Stderr)
	}
	return ""
}

// gids returns the addresses of both sides that verbs pingpong --json has printed.
func gids(t *testing.T, out string) (local, remote string) {
	t.Helper()
	var r struct{ Local, Remote struct{ GID string } }
	must(t, json.Unmarshal([]byte(out), &r))
	addr := func(text string) string {
		gid, err := ib.ParseGID(text)
		must(t, err)
		return gid.Addr().String()
	}
	return addr(r.Local.GID), addr(r.Remote.GID)
}

// playAll connects two pods, each as the server, by every program that names no device.
func playAll(t *testing.T, a, b pod) {
	t.Helper()
	for _, ends := range [][2]pod{{a, b}, {b, a}} {
		server, client := ends[0], ends[1]
		at := server.addr
		if local, remote := gids(t, play(t, server, client, nil, nil, "verbs pingpong -n 20", "verbs pingpong --json -n 20 "+at)); local != client.addr || remote != at {
			t.Errorf("verbs pingpong in %s uses %s, and its server %s", client.name, local, remote)
		}
		play(t, server, client, nil, nil, "verbs perf serve", "verbs perf write-bw -s 4096 -n 100 "+at)
		play(t, server, client, nil, nil, "verbs rping -s -a "+at, "verbs rping -c -C 2 -a "+at)
		play(t, server, client, nil, nil, "pingpong -listen "+at+":7471", "pingpong "+at+":7471")
		play(t, server, client, nil, nil, "pingpong -verbs -listen "+at+":7472", "pingpong -verbs "+at+":7472")
	}
}

// podIndex is the index of the network interface of each pod, and of one of the first network namespace whose GIDs come
// before theirs in the table of the first device.
const podIndex = 77

// newPods makes two pods with an interface each on a network of the cards.
func newPods(t *testing.T, kind, subnet string) (a, b pod) {
	t.Helper()
	rig := testenv.TheRig()
	eventually(t, "verbs system set netns shared")
	add := func(name, netdev string) {
		shell(t, fmt.Sprintf("ip link add link %s name %s index %d type %s", netdev, name, podIndex, strings.Replace(kind, "ipvlan", "ipvlan mode l2", 1)))
	}
	all := []*pod{&a, &b}
	for i, p := range all {
		p.name, p.addr = kind[:3]+string("ab"[i]), fmt.Sprintf("%s.%d", subnet, i+1)
		name := p.name
		shell(t, "ip netns add "+name)
		t.Cleanup(func() { must(t, exec.Command("ip", "netns", "del", name).Run()) })
		add("pod0", rig.Netdevs[i])
		shell(t, "ip link set pod0 netns "+name)
	}
	add("first0", rig.Netdevs[0])
	t.Cleanup(func() { must(t, exec.Command("ip", "link", "del", "first0").Run()) })
	shell(t, "ip link set first0 up; ip addr add "+subnet+".99/32 dev first0")
	eventually(t, fmt.Sprintf("verbs info %s --json | grep -q %s.99", rig.Devices[0], subnet))
	for i, p := range all { // the kernel adds GIDs some time later
		shell(t, fmt.Sprintf(`ip -n %[1]s link set lo up
			ip -n %[1]s link set pod0 up
			ip -n %[1]s addr add %[2]s/24 dev pod0
			ip -n %[1]s addr add fe80::5:%[3]d/64 dev pod0 nodad`, p.name, p.addr, i+1))
		eventually(t, fmt.Sprintf("ip netns exec %s verbs info %s --json | grep -q '%s\"'", p.name, rig.Devices[i], p.addr))
	}
	return a, b
}

// TestPods: a pod whose interface is on a card that all network namespaces share uses its own address, and the device
// of its interface, wherever no device is named.
func TestPods(t *testing.T) {
	testenv.Boot(t, podsEnv, "containers/pods")
	devices := testenv.TheRig().Devices
	for kind, subnet := range map[string]string{"macvlan": "10.5.0", "ipvlan": "10.6.0"} {
		t.Run(kind, func(t *testing.T) {
			a, b := newPods(t, kind, subnet)
			playAll(t, a, b)
			for i, p := range []pod{a, b} {
				for _, line := range strings.Split(p.see(t, "verbs", "status"), "\n") {
					if has := strings.Contains(line, "pod0"); strings.HasPrefix(line, devices[0]) && has != (i == 0) || strings.HasPrefix(line, devices[1]) && has != (i == 1) {
						t.Errorf("verbs status in %s: %s", p.name, line)
					}
				}
			}
			foreign(t, a, b, devices)
		})
	}
}

// foreign checks the error of a device whose GIDs are all of other network namespaces.
func foreign(t *testing.T, a, b pod, devices [2]string) {
	t.Helper()
	server := a.command(t, nil, "verbs", "pingpong", "-n", "20")
	must(t, server.Start())
	want := "belongs to an interface of another network namespace; "
	for end := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		out, err := b.command(t, nil, "verbs", "pingpong", "-n", "20", "-d", devices[0], a.addr).CombinedOutput()
		if err == nil {
			t.Fatalf("%s in %s plays:\n%s", devices[0], b.name, out)
		}
		if strings.Contains(string(out), want) {
			if own := devices[1] + " has "; !strings.Contains(string(out), own) || !strings.Contains(string(out), b.addr) {
				t.Errorf("%s in %s: want %s%s\n%s", devices[0], b.name, own, b.addr, out)
			}
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%s in %s: %s", devices[0], b.name, out)
		}
	}
	_ = server.Process.Kill() // it may have ended
	_ = server.Wait()
}

// TestPodsSoft: a software device of the environment comes before the kernel's devices, and one with a link-local
// address is reached by it.
func TestPodsSoft(t *testing.T) {
	testenv.Boot(t, podsEnv, "containers/pods")
	a, b := newPods(t, "macvlan", "10.7.0")
	for _, linkLocal := range []bool{false, true} {
		if linkLocal {
			a.addr, b.addr = "fe80::5:1%pod0", "fe80::5:2%pod0"
		}
		soft := func(p pod) []string {
			return []string{"GOVERBS_SOFT=" + netip.AddrPortFrom(netip.MustParseAddr(p.addr), 4792).String()} // cards have 4791
		}
		plain := func(p pod) string { return netip.MustParseAddr(p.addr).WithZone("").String() }
		local, remote := gids(t, play(t, b, a, soft(b), soft(a), "verbs pingpong -n 20", "verbs pingpong --json -n 20 "+b.addr))
		if local != plain(a) || remote != plain(b) {
			t.Errorf("verbs pingpong uses %s, and its server %s", local, remote)
		}
		play(t, b, a, soft(b), soft(a), "verbs perf serve", "verbs perf write-bw -s 4096 -n 100 "+b.addr)
		play(t, b, a, soft(b), soft(a), "verbs rping -s -a "+b.addr, "verbs rping -c -C 2 -a "+b.addr)
		at := netip.AddrPortFrom(netip.MustParseAddr(b.addr), 7473).String()
		play(t, b, a, soft(b), soft(a), "pingpong -listen "+at, "pingpong "+at)
	}
}

// TestPodExclusive: a device that was moved to a network namespace, beside one of the first namespace.
func TestPodExclusive(t *testing.T) {
	testenv.Boot(t, podsEnv, "containers/pods")
	rig := testenv.TheRig()
	eventually(t, "verbs system set netns exclusive") // namespaces of other tests may still be going
	host, moved := pod{"", "10.8.0.1"}, pod{"moved", "10.8.0.2"}
	t.Cleanup(func() {
		must(t, exec.Command("ip", "addr", "del", "10.8.0.1/24", "dev", rig.Netdevs[0]).Run(), exec.Command("ip", "netns", "del", "moved").Run())
	})
	shell(t, fmt.Sprintf(`ip netns add moved
		ip link set %[1]s netns moved
		verbs dev set %[2]s netns moved
		ip -n moved link set lo up
		ip -n moved link set %[1]s up
		ip -n moved addr add 10.8.0.2/24 dev %[1]s
		ip addr add 10.8.0.1/24 dev %[3]s`, rig.Netdevs[1], rig.Devices[1], rig.Netdevs[0]))
	eventually(t, "verbs info "+rig.Devices[0]+" --json | grep -q 10.8.0.1")
	eventually(t, "ip netns exec moved verbs info "+rig.Devices[1]+" --json | grep -q 10.8.0.2")
	playAll(t, host, moved)
}

// TestPodsRXE: in a pod whose interface is a macvlan on the one of rxe, rxe cannot send, and the errors say why.
func TestPodsRXE(t *testing.T) {
	testenv.Boot(t, podsEnv, "containers/pods")
	p := pod{"rxe", "10.9.0.1"}
	eventually(t, "verbs system set netns shared")
	t.Cleanup(func() {
		must(t, exec.Command("verbs", "link", "delete", "rxe9").Run(), exec.Command("ip", "netns", "del", p.name).Run(), exec.Command("ip", "link", "del", "ve9").Run())
	})
	shell(t, `ip link add ve9 type veth peer name ve8
		ip link set ve9 up
		ip link set ve8 up
		ip netns add rxe
		ip link add link ve9 name pod9 type macvlan
		ip link set pod9 netns rxe
		verbs link add rxe9 type rxe netdev ve9
		ip -n rxe link set lo up
		ip -n rxe link set pod9 up
		ip -n rxe addr add 10.9.0.1/24 dev pod9`)
	eventually(t, `ip netns exec rxe verbs info rxe9 --json | grep -q '10.9.0.1"'`)
	out, err := p.command(t, nil, "verbs", "doctor", "rxe9").CombinedOutput()
	t.Logf("%s", out)
	if want := "rxe9 sends in the network namespace of its own interface, which is not this one"; err == nil || !strings.Contains(string(out), want) {
		t.Errorf("verbs doctor in the pod: %v, want %q", err, want)
	}
}
