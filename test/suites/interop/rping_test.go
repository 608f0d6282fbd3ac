package interop

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// rpings are our rping and rdma-core's, which take the same options.
func rpings() (ours, theirs []string) {
	return []string{os.Getenv(VerbsEnv), "rping"}, []string{"rping"}
}

// line puts a command line together.
func line(program []string, options ...string) []string {
	return append(append([]string{}, program...), options...)
}

// cmPort returns a port for one pair.
func cmPort() (uint16, string) {
	port := 20000 + uint16(nextPort.Add(1))
	return port, strconv.Itoa(int(port))
}

// pingData returns the data of the first line that shows a ping, as far as it is shown: ours is
// quoted, and cut where it is long.
func pingData(out string) string {
	for l := range strings.Lines(out) {
		_, data, ok := strings.Cut(l, "ping data: ")
		if !ok {
			continue
		}
		if quoted, err := strconv.QuotedPrefix(data); err == nil {
			data, _ = strconv.Unquote(quoted)
		}
		return strings.TrimSpace(data)
	}
	return ""
}

// shown is how much of a ping our rping shows, in bytes.
const shown = 256

// TestRping plays rping in both roles.
func TestRping(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	testenv.Guest(t)
	ours, theirs := rpings()
	for _, options := range []string{"-C 10 -V", "-C 3 -V -S 65535", "-C 3 -V -S 26", "-C 10 -V -q"} {
		for name, p := range map[string][2][]string{
			"verbs-verbs":      {ours, ours},
			"rdma-core server": {theirs, ours},
			"rdma-core client": {ours, theirs},
		} {
			t.Run(name+" "+options, func(t *testing.T) {
				if name == "rdma-core client" && strings.Contains(options, "-q") {
					testenv.NeedsIB(t, "a step between RTR and RTS")
				}
				number, port := cmPort()
				var common []string
				if strings.Contains(options, "-q") {
					common = append(common, "-q")
				}
				server := program.Launch(t, line(p[0], append(common, "-s", "-v", "-a", ServerAddr, "-p", port, "-S", "65535")...)...)
				serving(t, server, netlinkrdma.PortSpaceTCP, number)
				client := program.Launch(t, line(p[1], append(strings.Fields(options), "-c", "-v", "-a", ServerAddr, "-p", port)...)...)
				sent, got := pingData(client.Wait(t)), pingData(server.Wait(t))
				if len(sent) > shown || len(got) > shown {
					sent, got = sent[:min(len(sent), shown)], got[:min(len(got), shown)]
				}
				if !strings.HasPrefix(sent, "rdma-ping-0: ABC") || got != sent {
					t.Errorf("the server has seen %q, the client got %q back", got, sent)
				}
			})
		}
	}
}

// TestRpingDevices plays between the two devices.
func TestRpingDevices(t *testing.T) {
	testenv.Guest(t)
	ours, theirs := rpings()
	for _, p := range [][2][]string{{ours, theirs}, {theirs, ours}} {
		number, port := cmPort()
		server := program.Launch(t, line(p[0], "-s", "-a", ServerAddr, "-p", port)...)
		serving(t, server, netlinkrdma.PortSpaceTCP, number)
		client := program.Launch(t, line(p[1], "-c", "-V", "-C", "10", "-a", ServerAddr, "-I", "10.1.0.2", "-p", port)...)
		client.Wait(t)
		server.Wait(t)
	}
}

// TestRpingPersistent has servers take many clients: ours at once, and rdma-core's one after
// another.
func TestRpingPersistent(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard, testenv.AnyTransport)
	testenv.Guest(t)
	ours, theirs := rpings()
	number, port := cmPort()
	server := program.Launch(t, line(ours, "-s", "-P", "--json", "-a", ServerAddr, "-p", port)...)
	serving(t, server, netlinkrdma.PortSpaceTCP, number)
	const clients, pings = 6, 20
	for range 2 {
		var all []*program.Program
		for i := range clients {
			kind := [][]string{ours, theirs}[i%2]
			all = append(all, program.Launch(t, line(kind, "-c", "-V", "-C", strconv.Itoa(pings), "-a", ServerAddr, "-p", port)...))
		}
		for _, c := range all {
			c.Wait(t) // what the server has counted tells whether the client was done
		}
	}
	server.Signal(syscall.SIGINT)
	var result struct {
		Role                       string
		Connections, Failed, Pings int
	}
	must(t, json.Unmarshal([]byte(server.Wait(t)), &result))
	if result.Role != "server" || result.Connections != 2*clients || result.Failed != 0 || result.Pings != 2*clients*pings {
		t.Errorf("the server tells %+v", result)
	}

	number, port = cmPort()
	server = program.Launch(t, line(theirs, "-s", "-P", "-a", ServerAddr, "-p", port)...)
	serving(t, server, netlinkrdma.PortSpaceTCP, number)
	for range 3 {
		out := program.Launch(t, line(ours, "-c", "-V", "-C", "10", "-a", ServerAddr, "-p", port)...).Wait(t)
		if want := "10 pings, 1280 bytes"; !strings.Contains(out, want) {
			t.Errorf("the client does not say %q: %q", want, out)
		}
	}
}

// TestRpingLimits: a server rejects a client too many, and hangs up on one that sends nothing any
// more, while it goes on to serve the others.
func TestRpingLimits(t *testing.T) {
	testenv.Guest(t)
	ours, _ := rpings()
	number, port := cmPort()
	server := program.Launch(t, line(ours, "-s", "-P", "-v", "-d", "--max-clients", "1", "--timeout", "2s", "-a", ServerAddr, "-p", port)...)
	serving(t, server, netlinkrdma.PortSpaceTCP, number)
	ping := func(options ...string) *program.Program {
		return program.Launch(t, line(ours, append(options, "-c", "-V", "-a", ServerAddr, "-p", port)...)...)
	}
	first := ping()
	server.Until(t, "was pinged", func() bool { return pingData(server.Output()) != "" })
	second := ping("-C", "1")
	if <-second.Ended; second.Err == nil || !strings.Contains(second.Output(), "reject") {
		t.Errorf("a client too many: %v, %q", second.Err, second.Output())
	}
	server.Until(t, "rejected one", func() bool { return strings.Contains(server.Output(), "a client is rejected, as 1 are being served") })
	first.Signal(syscall.SIGSTOP)
	server.Until(t, "hung up", func() bool { return strings.Contains(server.Output(), "the peer has done nothing for 2s") })
	out := ping("-C", "3").Wait(t)
	if want := "3 pings, 384 bytes"; !strings.Contains(out, want) {
		t.Errorf("a later client does not say %q: %q", want, out)
	}
	first.Signal(syscall.SIGKILL)
	<-first.Ended
	server.Signal(syscall.SIGINT)
	server.Wait(t)
}

// TestRpingFails: the messages of pings that come to nothing.
func TestRpingFails(t *testing.T) {
	testenv.Guest(t)
	ours, theirs := rpings()
	fails := func(p *program.Program, wants ...string) {
		t.Helper()
		if <-p.Ended; p.Err == nil {
			t.Errorf("%s ends well", p.Name)
		}
		for _, want := range wants {
			if !strings.Contains(p.Output(), want) {
				t.Errorf("%s does not say %q: %q", p.Name, want, p.Output())
			}
		}
	}
	_, port := cmPort()
	fails(program.Launch(t, line(ours, "-c", "-a", ServerAddr, "-p", port)...), "nobody listens", fmt.Sprintf("%s:%s", ServerAddr, port))
	fails(program.Launch(t, line(ours, "-s", "-a", "192.0.2.1")...), "192.0.2.1:7174", "no network interface")
	for _, victim := range []string{"server", "client"} {
		for _, kind := range [][]string{ours, theirs} {
			number, port := cmPort()
			programs := map[string][]string{"server": ours, "client": ours}
			programs[victim] = kind
			server := program.Launch(t, line(programs["server"], "-s", "-v", "-a", ServerAddr, "-p", port)...)
			serving(t, server, netlinkrdma.PortSpaceTCP, number)
			client := program.Launch(t, line(programs["client"], "-c", "-v", "-a", ServerAddr, "-p", port)...)
			killed, survivor := server, client
			if victim == "client" {
				killed, survivor = client, server
			}
			survivor.Until(t, "was pinged", func() bool { return pingData(survivor.Output()) != "" })
			killed.Signal(syscall.SIGKILL)
			<-killed.Ended
			// Between two pings a client may go.
			if <-survivor.Ended; survivor.Err != nil || victim == "server" {
				fails(survivor, ServerAddr, "ping ", "the peer has disconnected")
			}
		}
	}
}
