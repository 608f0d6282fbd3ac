package mesh

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
)

// startSSHD starts OpenSSH's server, which lets root in by key. Its default key exchange is slow in an emulated VM.
func startSSHD(t *testing.T) {
	t.Helper()
	const key = "/etc/ssh/host_key"
	passwd, err := os.OpenFile("/etc/passwd", os.O_APPEND|os.O_WRONLY, 0)
	testenv.Must(t, err)
	_, err = passwd.WriteString("sshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n")
	testenv.Must(t, err, passwd.Close(), os.MkdirAll("/run/sshd", 0o755), os.MkdirAll("/root/.ssh", 0o700), os.MkdirAll(filepath.Dir(key), 0o755))
	keygen(t, key)
	server := exec.Command("/usr/sbin/sshd", "-D", "-e", "-f", "/dev/null", "-h", key, "-o", "KexAlgorithms=curve25519-sha256", "-o", "AuthorizedKeysFile=/root/.ssh/authorized_keys")
	server.Stderr = os.Stderr
	testenv.Must(t, server.Start())
	t.Cleanup(func() { server.Process.Kill(); server.Wait() })
	listens(t, "127.0.0.1:22")
}

// keygen makes a pair of keys and returns the public one.
func keygen(t *testing.T, file string) string {
	t.Helper()
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file).CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen: %v: %s", err, out)
	}
	b, err := os.ReadFile(file + ".pub")
	testenv.Must(t, err)
	return strings.TrimSpace(string(b))
}

// sshOrder does an order of TestSSH: to let the owner of a key in, or to wait until verbs runs, or none does.
func sshOrder(order string) error {
	if key, ok := strings.CutPrefix(order, "admit "); ok {
		return os.WriteFile("/root/.ssh/authorized_keys", []byte(key+"\n"), 0o600)
	}
	for patience := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		names, _ := filepath.Glob("/proc/[0-9]*/comm")
		running := 0
		for _, name := range names {
			if b, _ := os.ReadFile(name); string(b) == "verbs\n" {
				running++
			}
		}
		if running == 1 && order == "runs" || running == 0 && order == "ended" {
			return nil
		}
		if time.Now().After(patience) {
			return fmt.Errorf("%d processes of verbs after a minute, and the order is %q", running, order)
		}
	}
}

// TestSSH: "verbs mesh run --via" reaches two hosts by OpenSSH's programs, and no server runs on after a run, even one
// that is killed. The report has the reason that ssh prints if it cannot log in.
func TestSSH(t *testing.T) {
	testenv.Boot(t, "GOVERBS_MESH_SSH", "mesh/ssh")
	host, _ := testenv.Fleet(t, 2)
	startSSHD(t)
	if host != 1 {
		obey(t, sshOrder)
		return
	}
	ask := func(what string) { t.Helper(); testenv.Must(t, order(2, what)) }
	defer ask(end)
	key := filepath.Join(t.TempDir(), "key")
	public := "admit " + keygen(t, key)
	testenv.Must(t, sshOrder(public))
	ask(public)
	const ssh, known = "ssh -o BatchMode=yes -o StrictHostKeyChecking=", "yes -i "
	mesh := func(options string, more ...string) *exec.Cmd {
		return command(t.Context(), append([]string{"mesh", "run", "--json", "--events", "--types", "rc", "--latency-ratio", "1000", "--bandwidth-ratio", "0.001",
			"--via", ssh + options + " root@{host}", address(1), address(2)}, more...)...)
	}
	for _, c := range []struct{ options, want string }{
		{"accept-new -i " + key, ""},
		{known + key, ""},
		{known + key + " -o UserKnownHostsFile=/dev/null", "Host key verification failed."},
		{"yes", "Permission denied (publickey"},
		{known + key + " -p 23", "Connection refused"},
	} {
		out, err := mesh(c.options, "--iterations", "100", "--messages", "100").Output()
		var rep struct {
			report
			Measurements []any
		}
		if jerr := json.Unmarshal(out, &rep); jerr != nil {
			t.Fatalf("%q: %v, %v in %s", c.options, err, jerr, out)
		}
		if c.want == "" && (err != nil || !rep.OK || len(rep.Measurements) != 2) || c.want != "" && len(rep.Findings) != 2 {
			t.Errorf("%q: %v, %s", c.options, err, out)
		}
		for _, f := range rep.Findings {
			if !strings.Contains(f.Evidence[0], c.want) {
				t.Errorf("%q: %q, want %q", c.options, f.Evidence, c.want)
			}
		}
	}
	for _, s := range []os.Signal{os.Interrupt, os.Kill} {
		cmd := mesh(known+key, "--iterations", "1000000")
		testenv.Must(t, cmd.Start())
		ask("runs")
		testenv.Must(t, cmd.Process.Signal(s))
		cmd.Wait()
		ask("ended")
	}
}
