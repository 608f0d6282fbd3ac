package strangers

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/ibcm"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m, "")) }

// classCM is the management class of the connection manager.
const classCM mad.Class = 7

// kernelHost is a host with a device of the kernel, from which a program with rights sends messages of the connection
// manager as it likes. The source address of the packets is the device's.
type kernelHost struct {
	agent *umad.Agent
	gid   uint8 // index of the GID of its address
}

// newKernelHost opens a device.
func newKernelHost(t *testing.T, device string, gid int) *kernelHost {
	t.Helper()
	port, err := umad.Open(device, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { port.Close() })
	agent, err := port.Register(umad.AgentOptions{Class: classCM})
	if err != nil {
		t.Fatal(err)
	}
	return &kernelHost{agent, uint8(gid)}
}

// cm sends a message of the connection manager.
func (h *kernelHost) cm(t *testing.T, to netip.Addr, tid uint64, m ibcm.Message) {
	t.Helper()
	var b [ibcm.MADSize]byte
	ibcm.Encode(&b, tid, m)
	p, err := mad.Parse(b[:])
	if err == nil {
		err = h.agent.Send(umad.Addr{GRH: true, GID: to.As16(), GIDIndex: h.gid, HopLimit: 64}, p)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestKernelForged: on a kernel device, a stranger asks for connections in the name of another host. Each listener
// refuses a request whose CM header has another address than its path, says which two addresses it has compared, and
// accepts no such connection. The remote address of an honest client is true.
func TestKernelForged(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsRoCE(t, "addresses of requests that can be checked")
	rig := testenv.TheRig()
	server, own, other := netip.MustParseAddr(rig.Addrs[0]), netip.MustParseAddr(rig.Addrs[1]), netip.MustParseAddr("10.1.0.77")
	type refusal struct {
		remote rdmacm.Addr
		err    error
	}
	refused, accepted := make(chan refusal, 64), make(chan net.Addr, 64)
	all := services(t, place{server: server, client: own,
		refused:  func(remote rdmacm.Addr, err error) { refused <- refusal{remote, err} },
		accepted: func(remote net.Addr) { accepted <- remote },
	})
	stranger := newKernelHost(t, rig.Devices[1], rig.GID)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	qpn := uint32(1 << 23)
	for _, s := range all {
		for _, forged := range []struct {
			what         string
			header, path netip.Addr
		}{
			{"the header has the address of another host", other, own},
			{"the header has the address of the server", server, own},
			{"the path leads to another host", own, other},
			{"the path leads to the server", own, server},
		} {
			qpn++
			stranger.cm(t, server, uint64(qpn), request(forged.path, forged.header, server, s.port, 0x5a000000+qpn, qpn, 3, s.hello))
			select {
			case r := <-refused:
				text := r.err.Error()
				if !errors.Is(r.err, syscall.EADDRNOTAVAIL) || r.remote.IP != forged.header || !strings.Contains(text, forged.header.String()) ||
					!strings.Contains(text, "go to "+forged.path.String()) {
					t.Errorf("%s: %s: refused is %v: %v", s.name, forged.what, r.remote, r.err)
				}
			case remote := <-accepted:
				t.Errorf("%s: %s: a connection is accepted, from %v", s.name, forged.what, remote)
			case <-ctx.Done():
				t.Fatalf("%s: %s: the listener does not refuse it", s.name, forged.what)
			}
		}
		x, err := open(ctx, s)
		if err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		if remote := <-accepted; remote.String() != x.LocalAddr().String() {
			t.Errorf("%s: the remote address of an honest client at %v is %v", s.name, x.LocalAddr(), remote)
		}
		if err := x.Close(); err != nil {
			t.Errorf("%s: %v", s.name, err)
		}
	}
	if len(refused)+len(accepted) != 0 {
		t.Errorf("%d more requests are refused, %d more accepted", len(refused), len(accepted))
	}
}
