package hosts

import (
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// pair is a server and a client, on two hosts.
type pair struct {
	server, client []string
	ready          string // when the server is ready, see there
	endless        bool   // the server does not end by itself
	says           string // what rdma-core's side prints at its good end
}

// run runs a pair whose server is on a host.
func (p pair) run(t *testing.T, host int) {
	t.Helper()
	_, ctx := client(t)
	serving, dialling := next(), next()
	on(t, ctx, host, append([]string{startWord, serving, p.ready}, p.server...)...)
	on(t, ctx, 3-host, append([]string{startWord, dialling, "at-once"}, p.client...)...)
	said, err := try(t, ctx, 3-host, waitWord, dialling)
	if err != nil {
		t.Errorf("client: %v", err)
	}
	end := waitWord
	if p.endless || err != nil {
		end = killWord
	}
	told, err := try(t, ctx, host, end, serving)
	if err != nil {
		t.Errorf("server: %v", err)
	}
	if p.says != "" && !strings.Contains(told+said, p.says) {
		t.Errorf("nobody says %q: the server %q, the client %q", p.says, told, said)
	}
}

// direction is a subtest's name, of the host that serves.
func direction(host int) string { return fmt.Sprintf("host %d serves", host) }

// role is this program's command line for a role.
func role(words ...string) []string { return append([]string{"role"}, words...) }

// TestClassic: the classic programs, in both directions.
func TestClassic(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	client(t)
	for _, host := range []int{1, 2} {
		t.Run(direction(host), func(t *testing.T) {
			for _, name := range slices.Sorted(maps.Keys(classics)) {
				t.Run(name, func(t *testing.T) {
					port := next()
					to := net.JoinHostPort(address[host], port)
					pair{server: role("serves", name, to), client: role("dials", name, to), ready: "TCP:" + port}.run(t, host)
				})
			}
			t.Run("events", func(t *testing.T) {
				port := next()
				to := net.JoinHostPort(address[host], port)
				pair{server: role("events", "serves", to), client: role("events", "dials", to), ready: "TCP:" + port}.run(t, host)
			})
		})
	}
	t.Run("chat", func(t *testing.T) {
		const group = "239.3.4.5"
		pair{server: role("chats", address[1], group), client: role("chats", address[2], group), ready: "at-once"}.run(t, 1)
	})
}

// multicastMAC is what rxe joins on Ethernet for a group, as /proc/net/dev_mcast writes it.
func multicastMAC(group string) string {
	ip := net.ParseIP(group).To4()
	return fmt.Sprintf("3333%x", []byte(ip))
}

// TestPeers: rdma-core's programs and ours, in both roles and both directions.
func TestPeers(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	client(t)
	for _, host := range []int{1, 2} {
		to := address[host]
		// with runs both roles: our server with their client, and the other way round.
		with := func(name string, make func(port string) (ours, theirs pair)) {
			t.Run(direction(host)+"/"+name, func(t *testing.T) {
				for i, which := range []string{"our server", "our client"} {
					t.Run(which, func(t *testing.T) {
						ours, theirs := make(next())
						one := [2]pair{ours, theirs}[i]
						one.client = [2]pair{theirs, ours}[i].client
						one.says = theirs.says
						one.run(t, host)
					})
				}
			})
		}
		verbs := os.Getenv("VERBS")
		with("rping", func(port string) (ours, theirs pair) {
			server, client := []string{"-s", "-v", "-a", to, "-p", port, "-C", "20", "-S", "65535"}, []string{"-c", "-v", "-V", "-C", "20", "-S", "1000", "-a", to, "-p", port}
			line := func(program []string, options []string) []string { return append(slices.Clone(program), options...) }
			return pair{server: line([]string{verbs, "rping"}, server), client: line([]string{verbs, "rping"}, client), ready: "TCP:" + port},
				pair{server: line([]string{"rping"}, server), client: line([]string{"rping"}, client), ready: "TCP:" + port, says: "rdma-ping-19: "}
		})
		with("ucmatose", func(port string) (ours, theirs pair) {
			return peer("ucmatose", to, port), pair{
				server: []string{"ucmatose", "-b", to, "-p", port, "-c", "5"}, client: []string{"ucmatose", "-s", to, "-p", port, "-c", "5"},
				ready: "TCP:" + port, says: "return status 0"}
		})
		with("rdma_server", func(port string) (ours, theirs pair) {
			return peer("rdma_server", to, port), pair{
				server: []string{"rdma_server", "-s", to, "-p", port}, client: []string{"rdma_client", "-s", to, "-p", port},
				ready: "TCP:" + port, says: "end 0"}
		})
		with("udaddy", func(string) (ours, theirs pair) {
			const port = "7174" // always
			return peer("udaddy", to, port), pair{
				server: []string{"udaddy", "-b", to}, client: []string{"udaddy", "-s", to}, ready: "UDP:" + port, says: "return status 0"}
		})
		with("mckey", func(string) (ours, theirs pair) {
			group := "239.7.8." + strconv.Itoa(number%200+1) // who serves receives
			from := address[3-host]
			return pair{server: role("hears", to, group), client: role("says", from, group), ready: "group:" + multicastMAC(group)}, pair{
				server: []string{"mckey", "-m", group, "-b", to}, client: []string{"mckey", "-m", group, "-b", from, "-s", "-C", "1000"},
				ready: "group:" + multicastMAC(group), says: "joined dgid: ::ffff:" + group}
		})
	}
}

// TestCmtime: hundreds of connections at once with cmtime, in both roles and both directions.
func TestCmtime(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	client(t)
	for _, host := range []int{1, 2} {
		t.Run(direction(host), func(t *testing.T) {
			to, port := address[host], next()
			ours := peer("cmtime", to, port)
			ours.client, ours.says = []string{"cmtime", "-s", to, "-p", port, "-c", strconv.Itoa(load)}, "us / conn"
			ours.run(t, host)
			port = next()
			theirs := peer("cmtime", to, port)
			theirs.server, theirs.endless = []string{"cmtime", "-b", to, "-p", port}, true
			theirs.run(t, host)
		})
	}
}

// peer is a pair of which both sides are ours.
func peer(name, to, port string) pair {
	at := net.JoinHostPort(to, port)
	return pair{server: role("serves", name, at), client: role("dials", name, at), ready: map[bool]string{true: "UDP:", false: "TCP:"}[name == "udaddy"] + port}
}
