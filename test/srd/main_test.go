package main

import (
	"io"
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
	var listens strings.Builder
	out, err := server.StdoutPipe()
	testenv.Must(t, err, server.Start())
	t.Cleanup(func() { server.Process.Kill() })
	for b := make([]byte, 1); !strings.HasSuffix(listens.String(), "\n"); listens.Write(b) {
		if _, err := out.Read(b); err != nil {
			t.Fatalf("the server ends after %q: %v", listens.String(), err)
		}
	}
	where := strings.TrimPrefix(strings.TrimSpace(listens.String()), "listening on ")
	got, err := program.Self(t, "", "efa_1", "dial", where).CombinedOutput()
	if want := "SEND done\nRDMA_READ done\nRDMA_WRITE done\nread \"bytes of efa_0\" of the peer\n"; err != nil || string(got) != want {
		t.Errorf("%v, the client prints\n%swant\n%s", err, got, want)
	}
	rest, err := io.ReadAll(out)
	testenv.Must(t, err, server.Wait())
	const want = "RECV of 14 bytes, immediate 1\nRECV_RDMA_WITH_IMM of 14 bytes, immediate 2\nthe peer has written \"bytes of efa_1\"\n"
	if string(rest) != want {
		t.Errorf("the server prints\n%swant\n%s", rest, want)
	}
}
