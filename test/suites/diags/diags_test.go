// Package diags compares "verbs ib" with infiniband-diags, on modelled cards that a subnet manager rules.
// The tests run in a VM with -device mlx5,mode=ipoib.
package diags

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// must fails a test on an error.
var must = testenv.Must

func TestMain(m *testing.M) { os.Exit(testenv.Main(m, "")) }

// cards are the devices of the guest.
var cards = []string{"mlx5_0", "mlx5_1"}

// verbs returns the program.
func verbs() string { return os.Getenv("VERBS") }

// lids returns the LIDs of the cards.
func lids(t *testing.T) (all []uint16) {
	t.Helper()
	testenv.Boot(t, "GOVERBS_SM", "fabric/diags")
	for _, name := range cards {
		all = append(all, uint16(port(t, name).LID))
	}
	return all
}

// port returns what the kernel knows of the port of a card.
func port(t *testing.T, name string) netlinkrdma.Port {
	t.Helper()
	dev, err := netlinkrdma.DeviceByName(name)
	must(t, err)
	ports, err := netlinkrdma.Ports(dev)
	if err != nil || len(ports) != 1 {
		t.Fatalf("%d ports, %v", len(ports), err)
	}
	return ports[0]
}

// output runs a program, and returns what it prints.
func output(t *testing.T, line string) string {
	t.Helper()
	words := strings.Fields(line)
	if words[0] == "verbs" {
		words[0] = verbs()
	}
	cmd := exec.Command(words[0], words[1:]...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%s: %v\n%s%s", line, err, out, stderr.String())
	}
	return string(out)
}

// moving are numbers that change between two runs of a program.
var moving = regexp.MustCompile(`(activity count|ActCount\.+|Data:\.+|Pkts:\.+|PortXmitWait:\.+|VL15Dropped:\.+) ?[0-9]+`)

// xdr are the lines of PortInfo that infiniband-diags prints from version 48 on.
var xdr = regexp.MustCompile(`(?m)^\s*LinkSpeedExt[A-Z][a-z]+2:.*\n`)

// TestText: the text with --compat is the same as infiniband-diags', byte for byte, except for
// counters that count, and lines that its version does not have yet.
func TestText(t *testing.T) {
	l := lids(t)
	lid := func(text string) string {
		return strings.NewReplacer("$1", fmt.Sprint(l[0]), "$2", fmt.Sprint(l[1])).Replace(text)
	}
	for ours, theirs := range map[string]string{
		"status --compat":                       "ibstat",
		"status --compat mlx5_1":                "ibstat mlx5_1",
		"status --compat mlx5_1/1":              "ibstat mlx5_1 1",
		"status --compat-ibstatus":              "ibstatus",
		"sm --compat":                           "sminfo",
		"sm --compat $1":                        "sminfo $1",
		"sa --compat node":                      "saquery NR",
		"sa --compat node lid=$2":               "saquery NR $2",
		"sa --compat port":                      "saquery PIR",
		"sa --compat port endport_lid=$2":       "saquery PIR $2",
		"sa --compat path":                      "saquery PR",
		"sa --compat path slid=$1 dlid=$2":      "saquery PR --slid $1 --dlid $2",
		"sa --compat path dlid=$2 p_key=0xffff": "saquery PR --dlid $2 --pkey 0xffff",
		"sa --compat group":                     "saquery MCMR",
		"sa --compat group --sm-key 1":          "saquery MCMR --smkey 1",
		"sa --compat group mlid=0xc000":         "saquery MCMR --mlid 0xc000",
		"sa --compat link":                      "saquery LR",
		"sa --compat link from_lid=$1":          "saquery LR $1",
		"sa --compat switch":                    "saquery SWIR",
		"sa --compat lft":                       "saquery LFTR",
		"sa --compat mft":                       "saquery MFTR",
		"sa --compat sm":                        "saquery SMIR",
		"sa --compat guid":                      "saquery GIR",
		"sa --compat inform":                    "saquery IIR",
		"sa --compat class":                     "saquery CPI",
		"counters --compat -d mlx5_1":           "perfquery -C mlx5_1 -P 1",
		"counters --compat -x -d mlx5_1":        "perfquery -x -C mlx5_1 -P 1",
		"counters --compat $2 1":                "perfquery $2 1",
		"counters --compat -x $1 1":             "perfquery -x $1 1",
		"counters --compat $2":                  "perfquery -a -l $2",
		"counters --compat $2 --sum":            "perfquery -a $2",
		"counters --compat -x $2 --sum":         "perfquery -a -x $2",
		"counters --compat -r $2 1":             "perfquery -r $2 1",
	} {
		ours, theirs = lid(ours), lid(theirs)
		want, got := output(t, theirs), output(t, "verbs ib "+ours)
		if !xdr.MatchString(want) {
			got = xdr.ReplaceAllString(got, "")
		}
		if want, got = moving.ReplaceAllString(want, "$1 N"), moving.ReplaceAllString(got, "$1 N"); got != want {
			t.Errorf("verbs ib %s prints\n%s\n%s prints\n%s", ours, got, theirs, want)
		}
		if empty := strings.Contains("saquery SWIR, saquery LFTR, saquery MFTR, saquery IIR", theirs); (want == "") != empty { // there is no switch
			t.Errorf("%s prints %q", theirs, want)
		}
	}
}

// TestService announces a service by its record, which both programs then show alike.
func TestService(t *testing.T) {
	lids(t)
	withService(t, func() {
		want, got := output(t, "saquery SR"), output(t, "verbs ib sa --compat service")
		if got != want || !strings.Contains(want, "ServiceName.............diags") {
			t.Errorf("verbs prints\n%s\nsaquery prints\n%s", got, want)
		}
	})
}

// TestReset: the counters that one program resets are 0 for the other, and count from there.
func TestReset(t *testing.T) {
	l := lids(t)
	sent := func() (n int) {
		var rows []struct {
			Counters []struct {
				Name  string
				Value int
			}
		}
		must(t, json.Unmarshal([]byte(output(t, fmt.Sprintf("verbs ib counters -x --json %d 1", l[1]))), &rows))
		for _, c := range rows[0].Counters {
			if c.Name == "PortXmitPkts" {
				n = c.Value
			}
		}
		return n
	}
	server := program.Launch(t, verbs(), "ib", "ping", "--serve", "-d", cards[1])
	server.Until(t, "serves", func() bool { return strings.Contains(server.Output(), "serves pings") })
	ping := fmt.Sprintf("verbs ib ping -d %s -f -c 200 %d", cards[0], l[1])
	output(t, ping)
	if n := sent(); n < 200 {
		t.Errorf("%d packets sent after 200 answers", n)
	}
	output(t, fmt.Sprintf("verbs ib counters -x -R %d 1", l[1]))
	if n := sent(); n >= 200 {
		t.Errorf("%d packets sent after a reset", n)
	}
	output(t, ping)
	output(t, fmt.Sprintf("perfquery -x -R %d 1", l[1]))
	if n := sent(); n >= 200 {
		t.Errorf("%d packets sent after perfquery's reset", n)
	}
}

// TestPing plays both roles against ibping, by LID and by GUID.
func TestPing(t *testing.T) {
	l := lids(t)
	host, err := os.Hostname()
	must(t, err)
	serve := func(name string, line ...string) *program.Program {
		p := program.Launch(t, line...)
		p.Until(t, "serves pings", func() bool {
			out, err := exec.Command(verbs(), "ib", "ping", "-f", "-c", "1", "-d", cards[0], name).CombinedOutput()
			return err == nil && strings.Contains(string(out), "1 received")
		})
		return p
	}
	theirs := serve(strconv.Itoa(int(l[1])), "ibping", "-S", "-C", cards[1])
	dev, err := netlinkrdma.DeviceByName(cards[1])
	must(t, err)
	for _, to := range []string{fmt.Sprint(l[1]), fmt.Sprintf("%#x", uint64(dev.NodeGUID)), dev.NodeGUID.String()} {
		out := output(t, "verbs ib ping --interval 10ms -c 5 -d "+cards[0]+" "+to)
		if strings.Count(out, "Pong from "+host) != 5 || !strings.Contains(out, "5 sent, 5 received, 0% lost") {
			t.Errorf("ping %s:\n%s", to, out)
		}
	}
	theirs.Signal(syscall.SIGKILL)
	<-theirs.Ended
	ours := serve(strconv.Itoa(int(l[1])), verbs(), "ib", "ping", "--serve", "-d", cards[1])
	out := output(t, fmt.Sprintf("ibping -c 3 -C %s %d", cards[0], l[1]))
	if strings.Count(out, "Pong from "+host) != 3 || !strings.Contains(out, "3 received, 0% packet loss") {
		t.Errorf("ibping:\n%s", out)
	}
	out = output(t, fmt.Sprintf("ibping -f -c 300 -C %s -G %#x", cards[0], uint64(dev.NodeGUID)))
	if !strings.Contains(out, "300 received, 0% packet loss") {
		t.Errorf("ibping -f:\n%s", out)
	}
	ours.Signal(syscall.SIGINT)
	if out := ours.Wait(t); !strings.Contains(out, fmt.Sprintf("LID %d pings", l[0])) || !strings.Contains(out, "of 1 ports") {
		t.Errorf("the server:\n%s", out)
	}
}

// TestErrors: what is missing is named.
func TestErrors(t *testing.T) {
	l := lids(t)
	for line, want := range map[string]string{
		fmt.Sprintf("sm %d", l[1]):                           "no subnet manager runs at LID",
		"counters 77 1 --timeout 100ms":                      "no answer to PerfGet(ClassPortInfo) from LID 77",
		"ping -c 2 -f --timeout 100ms 77":                    "no answer from LID 77",
		fmt.Sprintf("ping -c 2 -f -d %s %d", cards[0], l[1]): "answers, but serves no pings",
		"ping -c 1 0x1234567812345678":                       "the subnet administrator has no such record",
		"sa pkey":                                            "invalid request",
		"counters -d mlx5_9":                                 `--dev is "mlx5_9", allowed: mlx5_0, mlx5_1`,
	} {
		out, err := exec.Command(verbs(), append([]string{"ib"}, strings.Fields(line)...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("verbs ib %s: %v\n%s\nwant %s", line, err, out, want)
		}
	}
	cmd := exec.Command(verbs(), "ib", "sa", "node")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "permission denied") {
		t.Errorf("as an ordinary user: %v\n%s", err, out)
	}
}

// TestTakeover kills the subnet manager while a client asks for records, and starts one on the other card:
// what fails meanwhile is that nobody answers, and the client then asks the new one by itself.
func TestTakeover(t *testing.T) {
	l := lids(t)
	if sm := port(t, cards[0]).SMLID; sm != uint32(l[0]) {
		t.Fatalf("the subnet manager is at LID %d, want %d", sm, l[0])
	}
	takeover(t, l, func() {
		for _, pid := range processes(t, "opensm") {
			must(t, syscall.Kill(pid, syscall.SIGKILL))
		}
		time.Sleep(time.Second)
		dev, err := netlinkrdma.DeviceByName(cards[1])
		must(t, err)
		sm := program.LaunchBy(t, func(c *exec.Cmd) error {
			c.Env = append(os.Environ(), "OSM_CACHE_DIR=/tmp", "OSM_TMP_DIR=/tmp")
			return c.Start()
		}, "/usr/sbin/opensm", "-g", fmt.Sprintf("%#x", uint64(dev.NodeGUID)), "--log_file", "/tmp/opensm2.log")
		sm.KeepRunning()
		sm.Until(t, "rules", func() bool { return port(t, cards[0]).SMLID == uint32(l[1]) })
	})
	for ours, theirs := range map[string]string{"sm --compat": "sminfo", "sa --compat node": "saquery NR"} {
		want, got := output(t, theirs), output(t, "verbs ib "+ours)
		if !xdr.MatchString(want) {
			got = xdr.ReplaceAllString(got, "")
		}
		if want, got = moving.ReplaceAllString(want, "$1 N"), moving.ReplaceAllString(got, "$1 N"); got != want || got == "" {
			t.Errorf("verbs ib %s prints\n%s\n%s prints\n%s", ours, got, theirs, want)
		}
	}
}

// processes returns the processes of a program.
func processes(t *testing.T, name string) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	must(t, err)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if b, err := os.ReadFile("/proc/" + e.Name() + "/comm"); err == nil && strings.TrimSpace(string(b)) == name {
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 {
		t.Fatalf("%s does not run", name)
	}
	return pids
}
