package softrxe

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// TestProcesses: while rdma_rxe has port 4791 on all addresses and is busy, processes of nobody play ping-pong,
// each with a software device of its own.
func TestProcesses(t *testing.T) {
	testenv.Guest(t)
	rxe, _ := places(false)
	port := func() int { return 20000 + int(nextPort.Add(1)) }
	busy := port()
	load := []string{"ibv_rc_pingpong", "-d", rxe.dev, "-g", rxe.gid, "-e", "-n", "100000000", "-p", strconv.Itoa(busy)}
	server := program.Launch(t, load...)
	server.Until(t, "listened", func() bool { return rxe.listens(busy) })
	client := program.Launch(t, append(load, rxe.tcp.String())...)

	own := func(line ...string) *program.Program {
		return program.LaunchBy(t, func(cmd *exec.Cmd) error {
			cmd.Env = append(cmd.Environ(), "GOVERBS_SOFT=auto")
			cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
			return cmd.Start()
		}, append([]string{os.Getenv("VERBS")}, line...)...)
	}
	type session struct{ server, client *program.Program }
	var sessions []session
	for range 3 {
		p := port()
		args := []string{"pingpong", "-d", softName, "-e", "-c", "-s", "10000", "-n", "300", "-p", strconv.Itoa(p)}
		s := own(args...)
		s.Until(t, "listened", func() bool { return rxe.listens(p) })
		sessions = append(sessions, session{s, own(append(args, "127.0.0.1")...)})
	}
	for _, c := range sessions {
		for _, p := range []*program.Program{c.client, c.server} {
			if out := p.Wait(t); !strings.Contains(out, "300 iters in ") {
				t.Errorf("%s: %s", p.Name, out)
			}
		}
	}
	doctor := own("doctor", softName)
	if <-doctor.Ended; !strings.Contains(doctor.Output(), ":14791") {
		t.Errorf("the doctor does not say that the port is 14791: %v\n%s", doctor.Err, doctor.Output())
	}
	for _, p := range []*program.Program{client, server} {
		select {
		case <-p.Ended:
			t.Errorf("%s has ended: %v\n%s", p.Name, p.Err, p.Output())
		default:
			p.Signal(os.Kill)
		}
	}
}
