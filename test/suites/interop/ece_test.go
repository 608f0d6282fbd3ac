package interop

import (
	"context"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
)

// TestECE agrees on options for enhanced connections with librdmacm, in both roles, if the devices have
// them. With a device without options, librdmacm names its vendor at most, and the sides connect
// without options.
func TestECE(t *testing.T) {
	o := hello
	o.ECE = rdmacm.ECEOptional
	has := testenv.CardIs("ece")
	if has {
		o.ECE = rdmacm.ECERequired
	}
	check := func(role string, peer, used rdmacm.ECE) {
		t.Helper()
		t.Logf("%s: librdmacm has sent %+v, the QP uses %+v", role, peer, used)
		if has != (used.Options != 0) || used.Options != peer.Options || has && used.VendorID != peer.VendorID {
			t.Errorf("%s: librdmacm has sent %+v, the QP uses %+v", role, peer, used)
		}
	}
	number, port := cmPort()
	out := against(t, rdmacm.TCP, number, func(ctx context.Context, l *rdmacm.ID) error {
		asked, used, err := serveHello(ctx, l, o)
		check("server", asked, used)
		return err
	}, "rdma_client", "-s", ServerAddr, "-p", port)
	if !strings.Contains(out, "end 0") {
		t.Errorf("rdma_client says %q", out)
	}
	number, port = cmPort()
	p, addr := server(t, netlinkrdma.PortSpaceTCP, number, "rdma_server", "-s", ServerAddr, "-p", port)
	answered, used, err := greet(timed(t), channel(t), addr, o)
	check("client", answered, used)
	if err != nil {
		t.Fatalf("our client: %v", err)
	}
	if out := p.Wait(t); !strings.Contains(out, "end 0") {
		t.Errorf("rdma_server says %q", out)
	}
}
