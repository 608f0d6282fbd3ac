// Package control runs rdma-core's programs, with its libmlx5 and libefa, on the modelled cards of
// test/hca and test/efa: it is how we know that a driver which fails there is the one at fault. The
// tests run in a VM that vmrun boots with -device mlx5 or efa; what a library or the kernel's drivers
// do to the card that they must not makes vmrun fail.
package control

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

func TestMain(m *testing.M) {
	os.Exit(testenv.Main(m, ""))
}

// The cards of the guest.
const (
	first  = "mlx5_0"
	second = "mlx5_1"
)

// ends says which devices play against each other, and with what options.
type ends struct {
	server, client []string // options of the pingpong programs
	serverX        []string // options of perftest's
	clientX        []string
	ethernet       bool
}

// setting finds out what the cards speak. On InfiniBand the two play against each other. On
// Ethernet it is one with itself, as the kernel's routes to an address of its own do not lead
// out of a device.
func setting(t *testing.T) ends {
	t.Helper()
	testenv.Guest(t)
	switch layer := attribute(t, first, "ports/1/link_layer"); layer {
	case "InfiniBand":
		e := ends{
			server: []string{"-d", first}, client: []string{"-d", second},
			serverX: []string{"-d", first}, clientX: []string{"-d", second},
		}
		if testenv.CardIs("grh-required") { // the programs do not find that out by themselves
			for _, o := range []*[]string{&e.server, &e.client} {
				*o = append(*o, "-g", "0")
			}
			for _, o := range []*[]string{&e.serverX, &e.clientX} {
				*o = append(*o, "-x", "0")
			}
		}
		return e
	case "Ethernet":
		gid := gidIndex(t, first, serverAddr)
		return ends{
			server: []string{"-d", first, "-g", gid}, client: []string{"-d", first, "-g", gid},
			serverX: []string{"-d", first, "-x", gid}, clientX: []string{"-d", first, "-x", gid}, ethernet: true,
		}
	default:
		t.Fatalf("link layer %q", layer)
		return ends{}
	}
}

// TestPingpong runs all ping-pongs, polled and with events.
func TestPingpong(t *testing.T) {
	e := setting(t)
	for _, name := range []string{"rc", "uc", "ud", "srq", "xsrq"} {
		for _, mode := range [][]string{nil, {"-e"}} {
			title := name
			if mode != nil {
				title += "/events"
			}
			t.Run(title, func(t *testing.T) {
				options := append([]string{"-n", "200"}, mode...)
				line := append([]string{"ibv_" + name + "_pingpong"}, options...)
				play(t, append(line[:len(line):len(line)], e.server...), append(line[:len(line):len(line)], e.client...))
			})
		}
	}
}

// TestOnDemandPages runs ping-pongs in memory that is on demand: of the buffer alone, with its pages fetched
// ahead, and of all of the process; and of receives that are in an SRQ.
func TestOnDemandPages(t *testing.T) {
	e := setting(t)
	for _, options := range [][]string{{"-o"}, {"-o", "-P"}, {"-O"}, {"-O", "-P"}, {"-o", "-e"}} {
		t.Run(strings.Join(options, ""), func(t *testing.T) {
			line := append([]string{"ibv_rc_pingpong", "-n", "50", "-s", "100000", "-c"}, options...)
			play(t, append(line[:len(line):len(line)], e.server...), append(line[:len(line):len(line)], e.client...))
		})
	}
	for _, name := range []string{"srq", "xsrq"} {
		t.Run(name, func(t *testing.T) {
			line := []string{"ibv_" + name + "_pingpong", "-n", "200", "-s", "100000", "-o"}
			play(t, append(line[:len(line):len(line)], e.server...), append(line[:len(line):len(line)], e.client...))
		})
	}
}

// TestPerftest measures latency and bandwidth of every operation.
func TestPerftest(t *testing.T) {
	e := setting(t)
	for _, op := range []string{"send", "write", "read", "atomic"} {
		for _, what := range []string{"lat", "bw"} {
			t.Run(op+"_"+what, func(t *testing.T) {
				line := []string{"ib_" + op + "_" + what, "-F", "-n", "100"}
				if op == "atomic" && testenv.CardIs("no-atomics") {
					out := playFails(t, append(line[:len(line):len(line)], e.serverX...), append(line[:len(line):len(line)], e.clientX...))
					if !strings.Contains(out, "Unable to create QP") {
						t.Errorf("%s says %q", line[0], out)
					}
					return
				}
				play(t, append(line[:len(line):len(line)], e.serverX...), append(line[:len(line):len(line)], e.clientX...))
			})
		}
	}
}

// TestDevices lists what the cards are like.
func TestDevices(t *testing.T) {
	setting(t)
	for _, card := range []string{first, second} {
		out := program.Launch(t, "ibv_devinfo", "-v", "-d", card).Wait(t)
		for _, want := range []string{"vendor_part_id:\t\t\t4120", "state:\t\t\tPORT_ACTIVE (4)", "board_id:\t\t\tGOVERBS"} {
			if !strings.Contains(out, want) {
				t.Errorf("ibv_devinfo says nothing of %q:\n%s", want, out)
			}
		}
	}
}

// TestManagement asks the agents in the kernel and the cards, over QP 0 and QP 1. On Ethernet
// there is no QP 0.
func TestManagement(t *testing.T) {
	e := setting(t)
	if e.ethernet {
		fails(t, "smpquery", "-C", first, "nodedesc", "1")
		return
	}
	if testenv.CardIs("grh-required") { // the programs give no GRH, and the kernel refuses
		if out := fails(t, "smpquery", "-C", first, "-D", "nodedesc", "0"); !strings.Contains(out, "send failed; Invalid argument") {
			t.Errorf("smpquery says %q", out)
		}
		return
	}
	lid := func(card string) string {
		n, err := strconv.ParseUint(attribute(t, card, "ports/1/lid"), 0, 16)
		must(t, err)
		return strconv.FormatUint(n, 10)
	}
	type query struct {
		want string
		line []string
	}
	queries := []query{
		{"goverbs ConnectX model card 0", []string{"smpquery", "-C", first, "-D", "nodedesc", "0"}},
		{"goverbs ConnectX model card 0", []string{"smpquery", "-C", second, "nodedesc", lid(first)}},
		{attribute(t, first, "ports/1/pkeys/0") + " " + attribute(t, first, "ports/1/pkeys/1"), []string{"smpquery", "-C", second, "pkeys", lid(first), "1"}},
	}
	if lid(first) != lid(second) {
		queries = append(queries,
			query{"goverbs ConnectX model card 1", []string{"smpquery", "-C", first, "nodedesc", lid(second)}},
			query{"LinkState:.......................Active", []string{"smpquery", "-C", first, "portinfo", lid(second), "1"}},
			query{"Lid " + lid(second) + " port 1", []string{"perfquery", "-C", first, lid(second), "1"}})
	}
	for _, tt := range queries {
		if out := program.Launch(t, tt.line...).Wait(t); !strings.Contains(out, tt.want) {
			t.Errorf("%s says nothing of %q:\n%s", tt.line, tt.want, out)
		}
	}
}

// TestConnectionManager connects by IP addresses, which only Ethernet carries here; on
// InfiniBand the address is of no device and must be refused.
func TestConnectionManager(t *testing.T) {
	e := setting(t)
	if !e.ethernet {
		out := fails(t, "rping", "-c", "-a", serverAddr, "-C", "1")
		if !strings.Contains(out, "RDMA_CM_EVENT_ADDR_ERROR") {
			t.Errorf("rping says %q", out)
		}
		return
	}
	if testenv.CardIs("no-atomics") { // the connection manager gives them to each peer, and mlx5_ib refuses that
		s := program.Launch(t, "rping", "-s", "-a", serverAddr, "-C", "1")
		s.Serving(t, netlinkrdma.PortSpaceTCP, 7174)
		fails(t, "rping", "-c", "-a", serverAddr, "-C", "1")
		if <-s.Ended; !strings.Contains(s.Output(), "rdma_accept: Operation not supported") {
			t.Errorf("rping says %q", s.Output())
		}
		connect(t, netlinkrdma.PortSpaceUDP, 7174, []string{"udaddy"}, []string{"udaddy", "-s", serverAddr})
		return
	}
	connect(t, netlinkrdma.PortSpaceTCP, 7174, []string{"rping", "-s", "-a", serverAddr, "-C", "20"}, []string{"rping", "-c", "-a", serverAddr, "-C", "20"})
	connect(t, netlinkrdma.PortSpaceTCP, 7471, []string{"ucmatose", "-C", "5"}, []string{"ucmatose", "-s", serverAddr, "-C", "5"})
	connect(t, netlinkrdma.PortSpaceUDP, 7174, []string{"udaddy"}, []string{"udaddy", "-s", serverAddr})
}

// TestMulticast has mckey hear what another one says to a group, which is by IP addresses too.
func TestMulticast(t *testing.T) {
	if e := setting(t); !e.ethernet {
		out := fails(t, "mckey", "-m", "239.7.7.1", "-b", serverAddr)
		if !strings.Contains(out, "No such device") {
			t.Errorf("mckey says %q", out)
		}
		return
	}
	receiver := program.Launch(t, "mckey", "-m", "239.7.7.1", "-b", serverAddr)
	// It closes its QP without waiting for its sends: of many some get there.
	program.Launch(t, "mckey", "-m", "239.7.7.1", "-b", serverAddr, "-s", "-C", "300").Wait(t)
	if out := receiver.Wait(t); !strings.Contains(out, "joined dgid: ::ffff:239.7.7.1") || !strings.Contains(out, "data transfers complete") {
		t.Errorf("mckey says %q", out)
	}
}
