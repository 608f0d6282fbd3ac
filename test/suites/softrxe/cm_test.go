package softrxe

import (
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// cmAddr returns an address of the place with a port that nobody else has, and that port as text.
func cmAddr(p place) (netip.AddrPort, string) {
	port := 20000 + uint16(nextPort.Add(1))
	return netip.AddrPortFrom(p.addr, port), strconv.Itoa(int(port))
}

// core starts a program of rdma-core that listens on the kernel's device, and waits until it does.
func core(t *testing.T, space netlinkrdma.PortSpace, addr netip.AddrPort, line ...string) *program.Program {
	t.Helper()
	p := program.Launch(t, line...)
	p.Serving(t, space, addr.Port())
	return p
}

// cmTest runs a test of connections with both families and in both roles.
func cmTest(t *testing.T, test func(t *testing.T, server, client place, addr netip.AddrPort, port string)) {
	eachFamily(t, func(t *testing.T, rxe, software place) {
		eachRole(t, rxe, software, func(t *testing.T, server, client place) {
			addr, port := cmAddr(server)
			test(t, server, client, addr, port)
		})
	})
}

// says ends the test if a program has failed or does not say something.
func says(t *testing.T, p *program.Program, wants ...string) {
	t.Helper()
	out := p.Wait(t)
	for _, want := range wants {
		if !strings.Contains(out, want) {
			t.Errorf("%s does not say %q", p.Name, want)
		}
	}
}

// TestCMRping plays rping with rdma-core's on the kernel's device.
func TestCMRping(t *testing.T) {
	for _, options := range []string{"-C 10 -V", "-C 3 -V -S 65535", "-C 10 -V -q"} {
		t.Run(options, func(t *testing.T) {
			cmTest(t, func(t *testing.T, server, client place, addr netip.AddrPort, _ string) {
				common := []string{"-v", "-S", "65535"}
				if strings.Contains(options, "-q") {
					common = append(common, "-q")
				}
				s, c := rping(t, server, client, addr, common, strings.Fields(options))
				for _, p := range []*program.Program{c, s} {
					if out := p.Wait(t); !strings.Contains(out, "rdma-ping-0: ABC") {
						t.Errorf("%s shows no ping", p.Name)
					}
				}
			})
		})
	}
}

// rping starts an rping server and a client. Both get the common options.
func rping(t *testing.T, server, client place, addr netip.AddrPort, common, clients []string) (s, c *program.Program) {
	t.Helper()
	line := func(p place, role string, more ...string) []string {
		l := []string{"rping"}
		if p.soft {
			l = []string{os.Getenv("VERBS"), "rping"}
		}
		l = append(l, role, "-a", addr.Addr().String(), "-p", strconv.Itoa(int(addr.Port())))
		return append(append(l, common...), more...)
	}
	s = server.launch(t, line(server, "-s")...)
	if server.soft {
		s.Until(t, "listened", func() bool { return strings.Contains(s.Output(), peerListens) })
	} else {
		s.Serving(t, netlinkrdma.PortSpaceTCP, addr.Port())
	}
	return s, client.launch(t, line(client, "-c", clients...)...)
}

// TestCMPrograms plays the other programs of rdma-core that connect.
func TestCMPrograms(t *testing.T) {
	testenv.Guest(t)
	conns := cmtimeConns(t, "100")
	for _, p := range []struct {
		name, does, n  string
		space          netlinkrdma.PortSpace
		server, client []string // command lines of rdma-core without address and port
		fixed          bool     // the program has one port
		want           string
		endless        bool // rdma-core's server does not end
	}{
		{name: "ucmatose 1", does: "matose", n: "1", space: netlinkrdma.PortSpaceTCP,
			server: []string{"ucmatose", "-c", "1", "-b"}, client: []string{"ucmatose", "-c", "1", "-s"}, want: "return status 0"},
		{name: "ucmatose 5", does: "matose", n: "5", space: netlinkrdma.PortSpaceTCP,
			server: []string{"ucmatose", "-c", "5", "-b"}, client: []string{"ucmatose", "-c", "5", "-s"}, want: "return status 0"},
		{name: "rdma_client", does: "hello", n: "1", space: netlinkrdma.PortSpaceTCP,
			server: []string{"rdma_server", "-s"}, client: []string{"rdma_client", "-s"}, want: "end 0"},
		{name: "udaddy", does: "daddy", n: "1", space: netlinkrdma.PortSpaceUDP, fixed: true,
			server: []string{"udaddy", "-b"}, client: []string{"udaddy", "-s"}, want: "return status 0"},
		{name: "cmtime", does: "connections", n: conns, space: netlinkrdma.PortSpaceTCP, endless: true,
			server: []string{"cmtime", "-c", conns, "-b"}, client: []string{"cmtime", "-c", conns, "-s"}, want: "us / conn"},
	} {
		t.Run(p.name, func(t *testing.T) {
			cmTest(t, func(t *testing.T, server, client place, addr netip.AddrPort, port string) {
				line := func(words []string) []string {
					words = append(words[:len(words):len(words)], addr.Addr().String())
					if p.fixed {
						return words
					}
					return append(words, "-p", port)
				}
				if p.fixed {
					addr = netip.AddrPortFrom(addr.Addr(), 7174)
				}
				if server.soft {
					s := server.server(t, "serve-"+p.does, addr.String(), p.n)
					says(t, client.launch(t, line(p.client)...), p.want)
					says(t, s)
					return
				}
				s := core(t, p.space, addr, line(p.server)...)
				says(t, client.peer(t, p.does, addr.String(), p.n))
				if p.endless {
					s.Signal(syscall.SIGKILL)
					return
				}
				says(t, s, p.want)
			})
		})
	}
}

// TestCMConns makes connections of package cm one after another and at once, and streams.
func TestCMConns(t *testing.T) {
	for _, kind := range []struct{ does, n string }{{"conns", "30"}, {"conns-once", "30"}, {"streams", "3"}} {
		t.Run(kind.does, func(t *testing.T) {
			cmTest(t, func(t *testing.T, server, client place, addr netip.AddrPort, _ string) {
				s := server.server(t, "serve-conns", addr.String(), kind.n)
				says(t, client.peer(t, kind.does, addr.String(), kind.n))
				says(t, s)
			})
		})
	}
}

// TestCMRefused dials where nobody listens, and where the server rejects with a text.
func TestCMRefused(t *testing.T) {
	cmTest(t, func(t *testing.T, server, client place, addr netip.AddrPort, _ string) {
		s := server.server(t, "serve-conns", addr.String(), "1")
		nobody := netip.AddrPortFrom(addr.Addr(), addr.Port()+10000)
		says(t, client.peer(t, "refused", nobody.String(), "3"), "nobody listens")
		says(t, client.peer(t, "denied", addr.String(), "1"))
		says(t, client.peer(t, "conns", addr.String(), "1")) // the server goes on
		says(t, s)
	})
}

// TestCMDead kills one end of a connection, which the other notices.
func TestCMDead(t *testing.T) {
	for _, victim := range []string{"server", "client"} {
		t.Run(victim, func(t *testing.T) {
			cmTest(t, func(t *testing.T, server, client place, addr netip.AddrPort, _ string) {
				s := server.server(t, "serve-dead", addr.String(), "1")
				c := client.peer(t, "dead", addr.String(), "1")
				for _, p := range []*program.Program{s, c} {
					p.Until(t, "was connected", func() bool { return strings.Contains(p.Output(), "connected\n") })
				}
				if victim == "server" {
					s, c = c, s
				}
				c.Signal(syscall.SIGKILL)
				<-c.Ended
				says(t, s)
			})
		})
	}
}

// TestCMPerf connects the queue pairs of verbs perf and of perftest.
func TestCMPerf(t *testing.T) {
	for _, typ := range []string{"rc", "ud"} {
		t.Run("perf "+typ, func(t *testing.T) {
			cmTest(t, func(t *testing.T, server, client place, addr netip.AddrPort, port string) {
				s := server.launch(t, verbs(server, "perf", "serve", "-p", port)...)
				s.Until(t, "listened", func() bool { return server.listens(int(addr.Port())) })
				says(t, client.launch(t, verbs(client, "perf", "send-lat", addr.Addr().String(), "--cm", "-p", port, "-t", typ, "-n", "50", "-s", "500")...), "500")
			})
		})
	}
	t.Run("perftest", func(t *testing.T) {
		testenv.Guest(t)
		rxe, software := places(false)
		eachRole(t, rxe, software, func(t *testing.T, server, client place) {
			addr, port := cmAddr(server)
			line := func(p place, more ...string) []string {
				l := []string{"ib_send_lat", "-R", "-F", "-d", p.dev, "-n", "50", "-p", port, "-s", "500"}
				if p.soft {
					l = verbs(p, "perf", "send-lat", "--perftest", "--cm", "-n", "50", "-p", port, "-s", "500")
				}
				return append(l, more...)
			}
			s := server.launch(t, line(server)...)
			if server.soft {
				s.Until(t, "listened", func() bool { return strings.Contains(s.Output(), "waiting for") })
			} else {
				s.Serving(t, netlinkrdma.PortSpaceTCP, addr.Port())
			}
			says(t, client.launch(t, line(client, addr.Addr().String())...), "500")
			says(t, s)
		})
	})
}
