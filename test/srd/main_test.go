package main

import (
	"bufio"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// TestSRD runs both sides on modelled EFA cards, each in a process of its own and on a card of its own.
func TestSRD(t *testing.T) {
	testenv.Boot(t, "GOVERBS_EFA", "efa/verbs")
	server := program.Self(t, "", "efa_0", "listen", "127.0.0.1:0")
	out, err := server.StdoutPipe()
	testenv.Must(t, err, server.Start())
	t.Cleanup(func() { server.Process.Kill() })
	lines := bufio.NewReader(out)
	first, err := lines.ReadString('\n')
	testenv.Must(t, err)
	got, err := program.Self(t, "", "efa_1", "dial", strings.TrimPrefix(strings.TrimSpace(first), "listening on ")).CombinedOutput()
	if err != nil {
		t.Fatalf("the client ends with %v after\n%s", err, got)
	}
	rest, err := io.ReadAll(lines)
	testenv.Must(t, err, server.Wait())
	for peer, text := range map[string]string{"efa_0": string(got), "efa_1": string(rest)} {
		lines := strings.Split(strings.TrimSpace(text), "\n")
		slices.Sort(lines[:len(lines)-1])
		want := []string{"RDMA_READ", "RDMA_WRITE", "RECV", "RECV_RDMA_WITH_IMM", "SEND"}
		if want = append(want, strings.ReplaceAll(`received "PEER", read "PEER", was written "PEER"`, "PEER", "bytes of "+peer)); !slices.Equal(lines, want) {
			t.Errorf("the peer of %s prints\n%swant, after sorting,\n%s", peer, text, strings.Join(want, "\n"))
		}
	}
}
