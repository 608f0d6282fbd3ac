// Package mesh tests that "verbs mesh" names the one bad link of a fleet: four VMs on one Ethernet, each with
// "verbs mesh serve", while netem loses or holds back what two of them send each other. It also tests
// "verbs mesh run --via" with OpenSSH on two VMs.
package mesh

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
)

const (
	controlPort = "7100" // where hosts take orders, see obey
	secret      = "GOVERBS_MESH_SECRET=a secret of this test alone"
	end         = "end"
)

// address returns the address of a host.
func address(host int) string { return fmt.Sprint("10.2.0.", host) }

// command is "verbs" with arguments.
func command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, os.Getenv("VERBS"), args...)
	c.Env, c.Stderr = append(os.Environ(), secret), os.Stderr
	return c
}

// obey does what host 1 says until that is the end.
func obey(t *testing.T, do func(order string) error) {
	l, err := net.Listen("tcp4", ":"+controlPort)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(c).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		order, answer := strings.TrimSpace(line), "done"
		if order != end {
			if err := do(order); err != nil {
				answer = err.Error()
			}
		}
		fmt.Fprintln(c, answer)
		c.Close()
		if order == end {
			return
		}
	}
}

// change calls vmlink.
func change(args string) error {
	if out, err := exec.Command("vmlink", strings.Fields(args)...).CombinedOutput(); err != nil {
		return fmt.Errorf("vmlink %s: %w: %s", args, err, out)
	}
	return nil
}

// listens waits until a server does.
func listens(t *testing.T, address string) {
	t.Helper()
	for patience := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		c, err := net.Dial("tcp4", address)
		if err == nil {
			c.Close()
			return
		}
		if time.Now().After(patience) {
			t.Fatal(err)
		}
	}
}

// order has a host do something. The hosts' tests do not start at the same time.
func order(host int, what string) error {
	if host == 1 {
		return change(what)
	}
	for patience := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		c, err := net.DialTimeout("tcp4", net.JoinHostPort(address(host), controlPort), time.Second)
		if err != nil && time.Now().Before(patience) {
			continue
		}
		if err != nil {
			return err
		}
		defer c.Close()
		fmt.Fprintln(c, what)
		answer, err := bufio.NewReader(c).ReadString('\n')
		if err == nil && answer != "done\n" {
			err = errors.New(answer)
		}
		return err
	}
}

// report is what the test reads of the report of "verbs mesh run".
type report struct {
	OK       bool      `json:"ok"`
	Hosts    []any     `json:"hosts"`
	Medians  any       `json:"medians"`
	Findings []finding `json:"findings"`
}

// finding is a finding of a report.
type finding struct {
	Cause    string   `json:"cause"`
	Hosts    []string `json:"hosts"`
	Problems []string `json:"problems"`
	Evidence []string `json:"evidence"`
}

// run runs "verbs mesh run" on all hosts. The VMs share the processors of one machine: pairs are tested one after the
// other, since they would disturb each other, bandwidth matters little, and what looks wrong is measured three times
// again. Few and short messages keep the runs short.
func run(t *testing.T, hosts int) (rep report) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	args := []string{"mesh", "run", "--json", "--events", "--at-once", "1", "--bandwidth-ratio", "0.1", "--repeat", "3",
		"--iterations", "100", "--msg-size", "4096", "--timeout", "2s"}
	for host := 1; host <= hosts; host++ {
		args = append(args, address(host))
	}
	out, err := command(ctx, args...).Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out, &rep); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if rep.OK != (err == nil) || len(rep.Hosts) != hosts {
		t.Errorf("ok is %v, and the command ended with %v; %d hosts, want %d", rep.OK, err, len(rep.Hosts), hosts)
	}
	return rep
}

// TestMesh: a fleet without a fault has no finding, and each bad link is named, and no other one.
func TestMesh(t *testing.T) {
	host, hosts := testenv.Fleet(t, 4)
	server := command(t.Context(), "mesh", "serve", "--quiet")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer server.Wait()
	defer server.Process.Kill()
	listens(t, "127.0.0.1:18517")
	if host != 1 {
		obey(t, change)
		return
	}
	defer func() {
		for other := 2; other <= hosts; other++ {
			if err := order(other, end); err != nil {
				t.Error(err)
			}
		}
	}()
	for other := 2; other <= hosts; other++ { // all of them are there
		if err := order(other, "netem off"); err != nil {
			t.Fatal(err)
		}
	}
	if rep := run(t, hosts); !rep.OK || len(rep.Findings) != 0 {
		t.Errorf("there is no fault; medians %v, findings %+v", rep.Medians, rep.Findings)
	}
	faults := []struct{ netem, problem string }{{"loss 1%", "loss"}, {"delay 5ms", "latency"}}
	links := [][2]int{{1, 2}, {3, 4}, {1, 3}, {2, 4}, {1, 4}, {2, 3}}
	for i := range 10 {
		link, fault := links[i%len(links)], faults[(i+i/len(links))%len(faults)]
		t.Run(fmt.Sprintf("%d-%d %s", link[0], link[1], fault.netem), func(t *testing.T) {
			for n, h := range link {
				if err := order(h, "netem to "+address(link[1-n])+" "+fault.netem); err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := order(h, "netem off"); err != nil {
						t.Error(err)
					}
				}()
			}
			begin := time.Now()
			rep := run(t, hosts)
			t.Logf("%v; %+v", time.Since(begin).Round(time.Second), rep.Findings)
			want := []string{address(link[0]), address(link[1])}
			if len(rep.Findings) != 1 || rep.Findings[0].Cause != "link" || !slices.Equal(rep.Findings[0].Hosts, want) ||
				!slices.Contains(rep.Findings[0].Problems, fault.problem) {
				t.Errorf("want one finding, of the link of %v, with %s; medians %v, findings %+v", want, fault.problem, rep.Medians, rep.Findings)
			}
		})
	}
}
