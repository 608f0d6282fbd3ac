package interop

import (
	"context"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/suites/classic"
	"github.com/goverbs/goverbs/test/testenv"
)

// channel opens an event channel, which is closed at the end of the test.
func channel(t *testing.T) *rdmacm.Channel {
	t.Helper()
	testenv.Guest(t)
	c, err := rdmacm.OpenChannel(rdmacm.ChannelOptions{})
	must(t, err)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// against runs our server against rdma-core's client, and returns what that printed.
func against(t *testing.T, space rdmacm.PortSpace, port uint16, serve func(context.Context, *rdmacm.ID) error, client ...string) string {
	t.Helper()
	l, err := classic.Listen(channel(t), space, netip.AddrPortFrom(netip.MustParseAddr(ServerAddr), port))
	must(t, err)
	defer l.Close()
	p := program.Launch(t, client...)
	defer ahead(t, os.Getpid())()
	if err := serve(timed(t), l); err != nil {
		t.Fatalf("our server: %v", err)
	}
	return p.Wait(t)
}

// server starts rdma-core's server and waits until it listens.
func server(t *testing.T, space netlinkrdma.PortSpace, port uint16, line ...string) (*program.Program, netip.AddrPort) {
	t.Helper()
	p := program.Launch(t, line...)
	serving(t, p, space, port)
	return p, netip.AddrPortFrom(netip.MustParseAddr(ServerAddr), port)
}

// TestUcmatose sends and receives a burst over several connections.
func TestUcmatose(t *testing.T) {
	c := channel(t)
	for _, connections := range []int{1, 5} {
		n := strconv.Itoa(connections)
		t.Run("verbs server, "+n+" connections", func(t *testing.T) {
			testenv.NeedsIB(t, "servers that send first")
			number, port := cmPort()
			out := against(t, rdmacm.TCP, number, func(ctx context.Context, l *rdmacm.ID) error { return ServeMatose(ctx, l, connections) },
				"ucmatose", "-s", ServerAddr, "-p", port, "-c", n)
			if !strings.Contains(out, "data transfers complete") || !strings.Contains(out, "return status 0") {
				t.Errorf("ucmatose says %q", out)
			}
		})
		t.Run("verbs client, "+n+" connections", func(t *testing.T) {
			testenv.NeedsIB(t, "servers that send first")
			number, port := cmPort()
			p, addr := server(t, netlinkrdma.PortSpaceTCP, number, "ucmatose", "-b", ServerAddr, "-p", port, "-c", n)
			if err := Matose(timed(t), c, addr, connections); err != nil {
				t.Fatalf("our client: %v", err)
			}
			if out := p.Wait(t); !strings.Contains(out, "data transfers complete") || !strings.Contains(out, "return status 0") {
				t.Errorf("ucmatose says %q", out)
			}
		})
	}
}

// TestRdmaClientServer sends a message each way.
func TestRdmaClientServer(t *testing.T) {
	c := channel(t)
	number, port := cmPort()
	out := against(t, rdmacm.TCP, number, ServeHello, "rdma_client", "-s", ServerAddr, "-p", port)
	if !strings.Contains(out, "end 0") {
		t.Errorf("rdma_client says %q", out)
	}
	number, port = cmPort()
	p, addr := server(t, netlinkrdma.PortSpaceTCP, number, "rdma_server", "-s", ServerAddr, "-p", port)
	if err := Greet(timed(t), c, addr); err != nil {
		t.Fatalf("our client: %v", err)
	}
	if out := p.Wait(t); !strings.Contains(out, "end 0") {
		t.Errorf("rdma_server says %q", out)
	}
}

// TestUdaddy sends datagrams there and back.
func TestUdaddy(t *testing.T) {
	const port = 7174 // always
	c := channel(t)
	testenv.NeedsIB(t, "datagrams")
	out := against(t, rdmacm.UDP, port, ServeDaddy, "udaddy", "-s", ServerAddr)
	if !strings.Contains(out, "data transfers complete") || !strings.Contains(out, "return status 0") {
		t.Errorf("udaddy says %q", out)
	}
	p, addr := server(t, netlinkrdma.PortSpaceUDP, port, "udaddy", "-b", ServerAddr)
	if err := Daddy(timed(t), c, addr); err != nil {
		t.Fatalf("our client: %v", err)
	}
	if out := p.Wait(t); !strings.Contains(out, "data transfers complete") || !strings.Contains(out, "return status 0") {
		t.Errorf("udaddy says %q", out)
	}
}

// TestMckey sends datagrams to multicast groups, one with mckey as the receiver and one with
// mckey as the sender, at the same time: it sleeps for three seconds before each.
func TestMckey(t *testing.T) {
	c := channel(t)
	testenv.NeedsIB(t, "datagrams")
	local := netip.MustParseAddr(ServerAddr)
	ctx := timed(t)
	receiver := program.Launch(t, "mckey", "-m", "239.7.7.1", "-b", ServerAddr)
	// It closes its QP without waiting for its sends, and new kernels drop those that are not
	// on the wire yet: of many some get there.
	sender := program.Launch(t, "mckey", "-m", "239.7.7.2", "-b", ServerAddr, "-s", "-C", "1000")

	arriving, stop := context.WithCancel(ctx)
	go func() {
		<-sender.Ended
		time.AfterFunc(time.Second, stop)
	}()
	if err := Hear(arriving, c, local, netip.MustParseAddr("239.7.7.2")); err != nil {
		t.Errorf("from mckey: %v", err)
	}
	sender.Wait(t)

	if err := Say(ctx, c, local, netip.MustParseAddr("239.7.7.1")); err != nil {
		t.Errorf("to mckey: %v", err)
	}
	group := "::ffff:239.7.7.1"
	if testenv.TheRig().InfiniBand() {
		group = "ff12:4001:ffff::f07:701"
	}
	if out := receiver.Wait(t); !strings.Contains(out, "joined dgid: "+group) || !strings.Contains(out, "data transfers complete") {
		t.Errorf("mckey says %q", out)
	}
}

// TestCmtime has hundreds of connections come and go at once.
func TestCmtime(t *testing.T) {
	connections := 150
	if v := testenv.Kernel(t); testenv.Brief() || v[0] == 5 && v[1] < 19 { // rxe has 100 address handles, of which each attempt takes some
		connections = 20
	}
	c := channel(t)
	number, port := cmPort()
	out := against(t, rdmacm.TCP, number, func(ctx context.Context, l *rdmacm.ID) error { return ServeConnections(ctx, l, connections) },
		"cmtime", "-s", ServerAddr, "-p", port, "-c", strconv.Itoa(connections))
	if !strings.Contains(out, "us / conn") || strings.Contains(out, "error") {
		t.Errorf("cmtime says %q", out)
	}
	number, port = cmPort()
	p, addr := server(t, netlinkrdma.PortSpaceTCP, number, "cmtime", "-b", ServerAddr, "-p", port)
	if err := ConnectAll(timed(t), c, addr, connections); err != nil {
		t.Fatalf("our client: %v", err)
	}
	p.Signal(syscall.SIGKILL) // it goes on for ever
}
