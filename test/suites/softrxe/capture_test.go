package softrxe

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/internal/program"
)

// captured is a packet in a capture or a trace.
type captured struct {
	from, to string // addresses
	opcode   string // with the type of queue pair, such as "rc send first"
	qp, psn  uint64 // of the destination
}

// TestCaptures has Wireshark's dissector read captures of a software device that talks with rxe: it finds the
// packets that are in the trace, the messages of the connection manager, and no mistake.
func TestCaptures(t *testing.T) {
	for _, c := range []struct {
		name  string
		play  func(t *testing.T, rxe, software place)
		wants []string // in the output of the dissector
	}{
		{"RC", playPingpong("rc", "-e", "-s", "9000", "-n", "10"), nil},
		{"UC", playPingpong("uc", "-e", "-s", "9000", "-n", "10"), nil},
		{"UD", playPingpong("ud", "-e", "-s", "1024", "-n", "10"), nil},
		{"connection", func(t *testing.T, rxe, software place) {
			addr, _ := cmAddr(software)
			s, c := rping(t, software, rxe, addr, []string{"-v", "-S", "9000"}, []string{"-C", "3", "-V"})
			for _, p := range []*program.Program{c, s} {
				p.Wait(t)
			}
		}, []string{"Attribute ID: 0x0010", "Attribute ID: 0x0013", "Attribute ID: 0x0014", "Attribute ID: 0x0015", "Attribute ID: 0x0016"}}, // REQ, REP, RTU, DREQ, DREP
	} {
		t.Run(c.name, func(t *testing.T) {
			eachFamily(t, func(t *testing.T, rxe, software place) {
				dir, err := os.MkdirTemp("", "capture") // not t.TempDir: the program is nobody
				must(t, err)
				t.Cleanup(func() { os.RemoveAll(dir) })
				must(t, os.Chmod(dir, 0o777))
				file, trace := filepath.Join(dir, "packets.pcapng"), filepath.Join(dir, "trace")
				software.options = fmt.Sprintf(",capture=%s,trace=%s", file, trace)
				c.play(t, rxe, software)
				text := dissect(t, file)
				got, want := fromWireshark(t, text), fromTrace(t, trace)
				if len(got) != len(want) || len(got) < 10 {
					t.Fatalf("the capture has %d packets, the trace %d", len(got), len(want))
				}
				for i := range want {
					if got[i] != want[i] {
						t.Fatalf("packet %d is %+v in the capture, %+v in the trace", i+1, got[i], want[i])
					}
				}
				for _, w := range c.wants {
					if !strings.Contains(text, w) {
						t.Errorf("the dissector has not found %q", w)
					}
				}
			})
		})
	}
}

// playPingpong returns a ping-pong of a type with rdma-core's on rxe.
func playPingpong(typ string, options ...string) func(t *testing.T, rxe, software place) {
	return func(t *testing.T, rxe, software place) {
		pingpong(t, software, rxe, func(p place) []string {
			l := []string{"ibv_" + typ + "_pingpong", "-d", p.dev}
			if p.soft {
				l = verbs(p, "pingpong", "--type", typ)
			}
			return append(append(l, "-g", p.gid), options...)
		})
	}
}

// dissect returns what the dissector says of a capture. Whatever it complains of fails the test.
func dissect(t *testing.T, file string) string {
	t.Helper()
	var complaints strings.Builder
	cmd := exec.Command("tshark", "-r", file, "-V", "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE")
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v\n%s", err, complaints.String())
	}
	for line := range strings.Lines(string(out)) {
		for _, bad := range []string{"Malformed", "[Expert Info (Error", "[Expert Info (Warn", "checksum status: Bad", "Checksum Status: Bad", "Truncated"} {
			if strings.Contains(line, bad) {
				t.Errorf("tshark complains: %s", strings.TrimSpace(line))
			}
		}
	}
	return string(out)
}

// inWireshark finds, in the text of one packet, the fields of captured in their order.
var inWireshark = regexp.MustCompile(`(?s)Source Address: (\S+)\n.*?Destination Address: (\S+)\n.*?` +
	`Opcode: [^\n]*\((RC|UC|UD)\) - ([^\n]*) \(\d+\)\n.*?Destination Queue Pair: 0x([0-9a-f]+)\n.*?Packet Sequence Number: (\d+)\n`)

// fromWireshark takes the packets from what the dissector says.
func fromWireshark(t *testing.T, text string) (all []captured) {
	t.Helper()
	for _, frame := range regexp.MustCompile(`(?m)^Frame \d+: `).Split(text, -1)[1:] {
		f := inWireshark.FindStringSubmatch(frame)
		if f == nil {
			t.Fatalf("not a packet of InfiniBand:\n%s", frame)
		}
		all = append(all, captured{f[1], f[2], strings.ToLower(f[3] + " " + f[4]), number(t, f[5], 16), number(t, f[6], 10)})
	}
	return all
}

// inTrace finds the same fields in a line of a trace.
var inTrace = regexp.MustCompile(`^\S+ (?:sent|received) (\S+):\d+ > (\S+):\d+: (.+?) QP (\d+) PSN (\d+)`)

// fromTrace takes the packets from a trace.
func fromTrace(t *testing.T, file string) (all []captured) {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	for line := range strings.Lines(string(text)) {
		f := inTrace.FindStringSubmatch(line)
		if f == nil {
			t.Fatalf("a line of the trace cannot be read: %s", line)
		}
		all = append(all, captured{strings.Trim(f[1], "[]"), strings.Trim(f[2], "[]"), strings.ToLower(f[3]), number(t, f[4], 10), number(t, f[5], 10)})
	}
	return all
}

// number reads a number.
func number(t *testing.T, s string, base int) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s, base, 64)
	must(t, err)
	return n
}
