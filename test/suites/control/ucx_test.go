package control

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// ucxRuns are runs of ucx_perftest: of each of UCX's transports, which take the card by libibverbs (rc_verbs,
// ud_verbs) or by code of UCX's own (the others), and of its protocols with the transports that UCX chooses.
var ucxRuns = []struct {
	transport string // empty is for UCX to choose
	tests     []string
}{
	{"rc_verbs", []string{"am_lat", "am_bw", "put_lat", "put_bw", "get", "add_lat", "fadd", "cswap"}},
	{"rc_mlx5", []string{"am_lat", "am_bw", "put_lat", "put_bw", "get", "add_lat", "fadd", "cswap"}},
	{"dc_mlx5", []string{"am_lat", "am_bw", "put_lat", "put_bw", "get", "add_lat", "fadd", "cswap"}},
	{"ud_verbs", []string{"am_lat", "am_bw"}},
	{"ud_mlx5", []string{"am_lat", "am_bw"}},
	{"", []string{"tag_lat", "tag_bw", "stream_lat", "ucp_put_lat", "ucp_put_bw", "ucp_get", "ucp_add", "ucp_fadd", "ucp_cswap"}},
}

// TestUCX measures with UCX between two machines whose cards are on one fabric: host 1 serves. UCX has its
// default settings, and chooses the card by itself where no transport is named.
func TestUCX(t *testing.T) {
	testenv.Boot(t, "GOVERBS_UCX", "control/ucx")
	host, peer := testenv.Hosts(t)
	for _, run := range ucxRuns {
		for _, test := range run.tests {
			t.Run(run.transport+"/"+test, func(t *testing.T) {
				line := []string{"ucx_perftest", "-t", test, "-n", "100", "-w", "10"}
				if run.transport != "" {
					line = append(line, "-d", first+":1", "-x", run.transport)
				}
				if test == "get" { // without a copy there is no short get
					line = append(line, "-D", "bcopy")
				}
				if host == 1 {
					p := program.Launch(t, line...)
					p.Wait(t)
					checkUCX(t, p.Output())
				} else {
					visitUCX(t, append(line, peer), run.transport == "")
				}
			})
		}
	}
}

// visitUCX is the client's side. The server may not be there yet.
func visitUCX(t *testing.T, line []string, chooses bool) {
	t.Helper()
	for deadline := time.Now().Add(program.Patience); ; time.Sleep(50 * time.Millisecond) {
		cmd := exec.CommandContext(t.Context(), line[0], line[1:]...)
		cmd.Env = append(cmd.Environ(), "UCX_LOG_LEVEL=info") // it tells the transports that UCX has chosen
		b, err := cmd.CombinedOutput()
		out := string(b)
		if err != nil && strings.Contains(out, "connect() failed: Connection refused") && time.Now().Before(deadline) {
			continue
		}
		if err = program.End(err, out); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(line, " "), err, out)
		}
		checkUCX(t, out)
		if !regexp.MustCompile(`(?m)^Final: +100 `).MatchString(out) {
			t.Errorf("%s has no result of 100 messages:\n%s", strings.Join(line, " "), out)
		}
		if chooses && !regexp.MustCompile(`_mlx5/`+first+`:1`).MatchString(out) {
			t.Errorf("%s did not use %s:\n%s", strings.Join(line, " "), first, out)
		}
		return
	}
}

// checkUCX checks that UCX has printed no error.
func checkUCX(t *testing.T, out string) {
	t.Helper()
	if strings.Contains(out, "UCX  ERROR") {
		t.Errorf("UCX has printed an error:\n%s", out)
	}
}
