package control

import (
	"bytes"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// efaPerfEnv is 1 in the boot with modelled EFA cards and this project's programs.
const efaPerfEnv = "GOVERBS_EFA_PERF"

// with appends words to a command line.
func with(line []string, words string) []string {
	return append(line[:len(line):len(line)], strings.Fields(words)...)
}

// TestEFAPerftest plays tests over SRD and UD with perftest's programs as the peer of verbs perf,
// in both roles.
func TestEFAPerftest(t *testing.T) {
	testenv.Boot(t, efaPerfEnv, "efa/perf")
	for _, c := range []struct{ test, theirs, ours string }{
		{"send-lat", "-c SRD -n 50", "-t srd -n 50"},
		{"send-lat", "-c SRD -n 20 -s 8192", "-t srd -n 20 -s 8192"},
		{"send-bw", "-c SRD -n 200 -s 8192", "-t srd -n 200 -s 8192"},
		{"send-bw", "-c SRD -n 100 -s 32 -I 32 -q 2 -b", "-t srd -n 100 -s 32 -I 32 -q 2 -b"},
		{"send-bw", "-c SRD -n 10 -a", "-t srd -n 10 -a"},
		{"read-lat", "-c SRD -n 50 -s 65536", "-t srd -n 50 -s 65536"},
		{"read-bw", "-c SRD -n 100 -s 65536 -q 2", "-t srd -n 100 -s 65536 -q 2"},
		{"write-lat", "-c SRD -n 50 -s 65536", "-t srd -n 50 -s 65536"},
		{"write-bw", "-c SRD -n 100 -s 100 -q 2 -b", "-t srd -n 100 -s 100 -q 2 -b"},
		{"write-bw", "-c SRD -n 100 -s 4096 --write_with_imm", "-t srd -n 100 -s 4096 --imm"},
		{"send-lat", "-c UD -n 50 -s 2048", "-t ud -n 50 -s 2048"},
	} {
		theirs := with([]string{"ib_" + strings.ReplaceAll(c.test, "-", "_")}, "-x 0 "+c.theirs)
		ours := with([]string{"verbs", "perf", c.test, "--perftest"}, c.ours)
		t.Run(strings.Join(theirs, " "), func(t *testing.T) { play(t, with(theirs, "-d efa_0"), with(ours, "-d efa_1")) })
		t.Run(strings.Join(ours, " "), func(t *testing.T) { play(t, with(ours, "-d efa_0"), with(theirs, "-d efa_1")) })
	}
}

// TestEFAPerf plays tests over SRD and UD between two processes of verbs, with the data compared.
func TestEFAPerf(t *testing.T) {
	testenv.Boot(t, efaPerfEnv, "efa/perf")
	port++
	server := program.Launch(t, "verbs", "perf", "serve", "-d", "efa_0", "-p", strconv.Itoa(port))
	server.Until(t, "listened", func() bool { return listens(t, port) })
	server.KeepRunning()
	for _, line := range []string{
		"send-lat -t srd -s 2,8192", "send-bw -t srd -s 2,8192 -q 2 -b --imm", "send-bw -t srd -D 300ms -s 4096", "read-lat -t srd -s 2,65536", "read-bw -t srd -s 64,65536 -q 2 -b",
		"write-lat -t srd -s 2,65536", "write-bw -t srd -s 64,65536 -q 2 -b", "write-bw -t srd -s 64 --imm", "write-lat -t srd -s 64 --imm", "send-bw -t srd -s 64 --events", "send-lat -t ud -s 2,4096", "send-bw -t srd", "send-bw -t ud",
	} {
		t.Run(line, func(t *testing.T) {
			l := append([]string{"verbs", "perf"}, strings.Fields(line)...)
			l = with(l, "-V -d efa_1 -p "+strconv.Itoa(port)+" "+serverAddr)
			if !strings.Contains(line, "-D") {
				l = with(l, "-n 50")
			}
			program.Launch(t, l...).Wait(t)
		})
	}
	for _, c := range []struct{ line, want string }{
		{"send-bw -t rc", "--type: efa_1: uverbs: QP type RC not supported by driver efa"},
		{"send-bw -t srd --cm", "--type is srd, allowed: rc, ud, as the connection manager (--cm) connects nothing for type srd"},
		{"read-bw -t srd -s 1073741825", "--size is 1073741825, allowed: 1 to 1073741824, efa_max_rdma_size of efa_1"},
		{"send-bw -t ud --moderate 10", "--moderate is 10, allowed: 1, as each message of efa_1 has a completion"},
		{"write-bw -t srd --moderate 10", "--moderate is 10, allowed: 1, as each message of type srd has a completion"},
	} {
		out := fails(t, append(strings.Fields("verbs perf "+c.line), "-d", "efa_1", "-p", strconv.Itoa(port), serverAddr)...)
		if !strings.Contains(out, c.want) {
			t.Errorf("%s: %q, want %q", c.line, out, c.want)
		}
	}
}

// TestEFAPingpong plays ping-pong over SRD, where rdma-core has no program, and with its program
// over UD.
func TestEFAPingpong(t *testing.T) {
	testenv.Boot(t, efaPerfEnv, "efa/perf")
	ours, theirs := strings.Fields("verbs pingpong -n 100"), strings.Fields("ibv_ud_pingpong -g 0 -n 100 -s 2048")
	ud := with(ours, "--type ud -s 2048")
	for _, c := range []struct {
		name           string
		server, client []string
	}{
		{"srd", with(ours, "--type srd -s 8000"), with(ours, "--type srd -s 8000")},
		{"srd-events", with(ours, "--type srd -e"), with(ours, "--type srd -e")},
		{"client of ibv_ud_pingpong", theirs, ud},
		{"server of ibv_ud_pingpong", ud, theirs},
	} {
		t.Run(c.name, func(t *testing.T) { play(t, with(c.server, "-d efa_0"), with(c.client, "-d efa_1")) })
	}
}

// TestEFAOrdered sends a file in order from a process to another one, by the example test/ordered, and
// has a sender die.
func TestEFAOrdered(t *testing.T) {
	testenv.Boot(t, efaPerfEnv, "efa/perf")
	data := bytes.Repeat([]byte("in order, by datagrams without order\n"), 1<<14) // 600 KiB
	for i := range data {
		data[i] ^= byte(i >> 12) // no two messages are the same
	}
	receive := func(out io.Writer, window string) (server *program.Program, at string) {
		port++
		at = serverAddr + ":" + strconv.Itoa(port)
		server = program.LaunchBy(t, func(c *exec.Cmd) error {
			c.Stdout = out
			return c.Start()
		}, "srdcat", "-device", "efa_0", "-window", window, "-listen", at)
		server.Until(t, "listened", func() bool { return listens(t, port) })
		return server, at
	}
	send := func(window, at string) *exec.Cmd {
		return exec.CommandContext(t.Context(), "srdcat", "-device", "efa_1", "-window", window, at)
	}
	for _, windows := range [][2]string{{"64", "64"}, {"3", "100"}, {"1", "1"}} {
		var out bytes.Buffer
		server, at := receive(&out, windows[0])
		client := send(windows[1], at)
		client.Stdin = bytes.NewReader(data)
		if b, err := client.CombinedOutput(); err != nil {
			t.Fatalf("the sender: %v\n%s", err, b)
		}
		if server.Wait(t); !bytes.Equal(out.Bytes(), data) {
			t.Fatalf("what has arrived, %d bytes, are not the %d that were sent; windows %v", out.Len(), len(data), windows)
		}
	}
	server, at := receive(io.Discard, "8")
	client := send("8", at)
	in, err := client.StdinPipe()
	must(t, err)
	must(t, client.Start())
	_, err = in.Write(data[:1<<18]) // more than a pipe holds, so that much of it has been sent
	must(t, err)
	must(t, client.Process.Kill())
	client.Wait()
	if <-server.Ended; server.Err == nil || !strings.Contains(server.Output(), "the peer has gone") {
		t.Errorf("the receiver of a sender that was killed: %v\n%s", server.Err, server.Output())
	}
}
