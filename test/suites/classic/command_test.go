package classic

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
)

// commandEnv makes the test binary run as the command that it names.
const commandEnv = "GOVERBS_CLASSIC"

func init() {
	if name := os.Getenv(commandEnv); name != "" {
		Main(name)
	}
}

// sides are the addresses of the two sides, and the software devices that they need natively.
func sides(t *testing.T) (server string, devices [2]string) {
	t.Helper()
	if os.Getenv(testenv.GuestEnv) == "1" {
		return first.String(), devices
	}
	c, err := net.ListenUDP("udp4", nil)
	must(t, err)
	defer c.Close()
	port := c.LocalAddr().(*net.UDPAddr).Port
	return "127.0.0.2", [2]string{fmt.Sprintf("127.0.0.2:%d", port), fmt.Sprintf("127.0.0.3:%d", port)}
}

// program returns a command to start, with what it will print.
func program(ctx context.Context, devices, name string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), commandEnv+"="+name, "GOVERBS_SOFT="+devices)
	out := new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, out
}

// TestCommands runs each command as two processes, or as one if it lists something: in a VM on the
// kernel's devices, and otherwise on software devices.
func TestCommands(t *testing.T) {
	for i, name := range Names() {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			address, devices := sides(t)
			if commands[name].list != nil {
				cmd, out := program(ctx, devices[0], name)
				if testenv.TheRig().InfiniBand() { // where the GIDs are not addresses
					address = devices[0]
				}
				if err := cmd.Run(); err != nil || !strings.Contains(out.String(), address) {
					t.Errorf("%v\n%s", err, out)
				}
				return
			}
			flags := []string{"-port", fmt.Sprint(17471 + i), "-size", "100", "-count", "50", "-text", "a few words"}
			server, served := program(ctx, devices[0], name, append(flags, "-listen", address)...)
			must(t, server.Start())
			ended := make(chan error, 1)
			go func() { ended <- server.Wait() }()
			said, err := "", error(nil)
			for { // until the server listens, or has ended after a client that failed
				client, out := program(ctx, devices[1], name, append(flags, address)...)
				if err = client.Run(); err == nil || len(ended) > 0 || ctx.Err() != nil {
					said = out.String()
					break
				}
			}
			if err != nil {
				t.Errorf("client: %v\n%s", err, said)
				cancel()
			}
			if err := <-ended; err != nil {
				t.Errorf("server: %v\n%s", err, served)
			}
			want := map[string][2]string{ // what client and server print
				"rdma-example": {"the server's buffer holds what was written", "a few words"}, "ping-sr-1": {"", "done"}, "ping-sr-2": {"", "done"},
				"ping-sr-3": {"", "done"}, "ping-sr-4": {"", "50 messages"},
			}[name]
			for i, got := range []string{said, served.String()} {
				if want[i] == "" {
					want[i] = "50 messages of 100 bytes"
				}
				if got != want[i]+"\n" {
					t.Errorf("side %d prints %q, want %q", i, got, want[i])
				}
			}
		})
	}
}

// TestCommandArguments: each wrong argument has an error that says what is allowed.
func TestCommandArguments(t *testing.T) {
	for args, want := range map[string]string{
		"ping-sr-0 -size 0":           "-size is 0, allowed: 1 to 1048576",
		"ping-sr-0 -count -1":         "-count is -1, allowed: 1 to",
		"ping-sr-1 -port 70000":       "-port is 70000, allowed: 1 to 65535",
		"ping-sr-1 -listen nobody":    `-listen is "nobody", allowed: an IP address`,
		"blast-sr example.org":        `ADDRESS is "example.org", allowed: an IP address`,
		"blast-sr 10.1.0.1 10.1.0.2":  "allowed: the address of a server, or none to be one",
		"rdma-example -text= 1.2.3.4": "-text has 0 bytes, allowed: 1 to 1048576",
		"devices all":                 "allowed: none",
		"devices -size 1":             "flag provided but not defined: -size",
		"ping-sr-9":                   "allowed: blast-sr, devices, ping-sr-0",
	} {
		words := strings.Fields(args)
		var out bytes.Buffer
		if err := Run(t.Context(), words[0], words[1:], &out); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
	for _, name := range Names() {
		var out bytes.Buffer
		if err := Run(t.Context(), name, []string{"-h"}, &out); err == nil || !strings.HasPrefix(out.String(), name+": "+commands[name].short+"\n") {
			t.Errorf("%s -h: %v\n%s", name, err, out.String())
		}
	}
}

// TestBlastSize: a message has room for its number.
func TestBlastSize(t *testing.T) {
	server := BlastServer(t.Context(), nil, 7, 1, 1)
	client := BlastClient(t.Context(), nil, netip.AddrPort{}, 7, 1, 1)
	for _, err := range []error{server, client} {
		if err == nil || !strings.Contains(err.Error(), "the size is 7, allowed: 8 and more") {
			t.Error(err)
		}
	}
}

//go:embed *.go */main.go
var sources embed.FS

// TestSources: each command has its main package, whose comment names a file with the program, which is
// short.
func TestSources(t *testing.T) {
	const longest = 100 // lines
	mains, err := fs.Glob(sources, "*/main.go")
	if err != nil || len(mains) != len(commands) {
		t.Errorf("the main packages are %q, %v, want %d", mains, err, len(commands))
	}
	see := regexp.MustCompile(`; see ([a-z]+\.go) of package classic\.\n`)
	for _, name := range Names() {
		text, err := sources.ReadFile(name + "/main.go")
		if want := fmt.Sprintf("classic.Main(%q)", name); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v, want %s", name, err, want)
			continue
		}
		file := see.FindSubmatch(text)
		if file == nil {
			t.Errorf("the comment of %s does not say where the program is:\n%s", name, text)
			continue
		}
		if text, err = sources.ReadFile(string(file[1])); err != nil || bytes.Count(text, []byte("\n")) >= longest {
			t.Errorf("%s has %d lines, want fewer than %d: %v", file[1], bytes.Count(text, []byte("\n")), longest, err)
		}
	}
}
