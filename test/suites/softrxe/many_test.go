package softrxe

import (
	"os"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// connsEnv says how many connections the tests have open at once, if not 1,000.
const connsEnv = "GOVERBS_CONNS"

// manyConns returns how many connections are open at once.
func manyConns() string {
	if n := os.Getenv(connsEnv); n != "" {
		return n
	}
	if testenv.Brief() {
		return "200"
	}
	return "1000"
}

// ends waits for the end of programs that have more time than others, by the number of their connections.
func ends(t *testing.T, client *program.Program, want string, server *program.Program) {
	t.Helper()
	client.KeepRunning()
	server.KeepRunning()
	<-client.Ended
	says(t, client, want)
	t.Log(client.Output())
}

// TestManyConns has many connections of package cm open at once: in a VM between rxe and a software device, in
// both roles, and elsewhere between two software devices.
func TestManyConns(t *testing.T) {
	if lab == nil {
		places := softPlaces(t, 2)
		manyOpen(t, places[0], places[1])
		return
	}
	rxe, software := places(false)
	eachRole(t, rxe, software, manyOpen)
}

// manyOpen opens many connections of a client to a server.
func manyOpen(t *testing.T, server, client place) {
	addr, _ := cmAddr(server)
	n := manyConns()
	s := server.server(t, "serve-many", addr.String(), n)
	ends(t, client.peer(t, "many", addr.String(), n), "all are closed", s)
	says(t, s)
}

// cmtimeConns returns with how many connections cmtime plays if n are wanted. It requests all at once, and rxe
// of old kernels has 100 address handles, of which each request takes some.
func cmtimeConns(t *testing.T, n string) string {
	t.Helper()
	if v := testenv.Kernel(t); v[0] == 5 && v[1] < 19 {
		return "20"
	}
	return n
}

// TestManyCmtime has as many connections open at once with rdma-core's cmtime.
func TestManyCmtime(t *testing.T) {
	testenv.Guest(t)
	rxe, software := places(false)
	eachRole(t, rxe, software, func(t *testing.T, server, client place) {
		addr, port := cmAddr(server)
		n := cmtimeConns(t, manyConns())
		if server.soft {
			s := server.server(t, "serve-connections", addr.String(), n)
			ends(t, client.launch(t, "cmtime", "-c", n, "-s", addr.Addr().String(), "-p", port), "us / conn", s)
			says(t, s)
			return
		}
		s := core(t, netlinkrdma.PortSpaceTCP, addr, "cmtime", "-c", n, "-b", addr.Addr().String(), "-p", port)
		ends(t, client.peer(t, "connections", addr.String(), n), "", s)
		s.Signal(syscall.SIGKILL) // it does not end
	})
}
