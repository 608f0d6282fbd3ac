package control

import (
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// TestDC measures every operation over DC, the dynamically connected transport, also with streams.
func TestDC(t *testing.T) {
	e := setting(t)
	for _, op := range []string{"send", "write", "read", "atomic"} {
		if op == "atomic" && testenv.CardIs("no-atomics") {
			continue // TestPerftest has them
		}
		for _, what := range []string{"lat", "bw"} {
			for name, more := range map[string][]string{"": nil, "/streams": {"--log_dci_streams", "2"}} {
				t.Run(op+"_"+what+name, func(t *testing.T) {
					line := append([]string{"ib_" + op + "_" + what, "-F", "-n", "100", "-c", "DC"}, more...)
					server, client := append(line[:len(line):len(line)], e.serverX...), append(line[:len(line):len(line)], e.clientX...)
					if testenv.CardIs("no-dc") {
						if out := playFails(t, server, client); !strings.Contains(out, "Unable to create QP") {
							t.Errorf("%s says %q", line[0], out)
						}
						return
					}
					play(t, server, client)
				})
			}
		}
	}
}
