package control

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// efaEnv is 1 in boots with the modelled EFA cards of test/efa.
const efaEnv = "GOVERBS_EFA"

// TestEFA runs rdma-core's programs, with its libefa, on modelled EFA cards.
func TestEFA(t *testing.T) {
	testenv.Boot(t, efaEnv, "efa/model")
	out := program.Launch(t, "ibv_devinfo", "-v", "-d", "efa_0").Wait(t)
	for _, want := range []string{"vendor_id:\t\t\t0x1d0f", "state:\t\t\tPORT_ACTIVE (4)", "link_layer:\t\tUnspecified", "max_msg_sz:\t\t0x22e0", "GID[  0]:\t\tfe80:0000:0000:0000:0200:00ff:fe00:ef01"} {
		if !strings.Contains(out, want) {
			t.Errorf("ibv_devinfo says nothing of %q:\n%s", want, out)
		}
	}
	lines := [][]string{
		{"ibv_ud_pingpong", "-g", "0", "-n", "100"},
		{"ib_send_lat", "-x", "0", "-c", "SRD", "-n", "100"},
		{"ib_send_bw", "-x", "0", "-c", "SRD", "-n", "200", "-s", "8192"},
		{"ib_send_bw", "-x", "0", "-c", "SRD", "-n", "100", "-s", "32", "-I", "32", "-q", "4"},
		{"ib_send_lat", "-x", "0", "-c", "UD", "-n", "100", "-s", "2048"}, // ib_send_bw waits for ever for a datagram that is lost
	}
	if !testenv.CardIs("no-eqs") {
		lines = append(lines, []string{"ibv_ud_pingpong", "-g", "0", "-n", "20", "-e"})
	}
	if os.Getenv("GOVERBS_EFA_NEWEST") == "1" { // perftest of Debian 12 has no RDMA of EFA
		for _, name := range []string{"ib_read_lat", "ib_read_bw", "ib_write_lat", "ib_write_bw"} {
			lines = append(lines, []string{name, "-x", "0", "-c", "SRD", "-n", "50", "-s", "65536"})
		}
		lines = append(lines,
			[]string{"ib_send_bw", "-x", "0", "-c", "SRD", "-n", "2000", "-s", "80", "-I", "80", "-q", "2"},
			[]string{"ib_write_bw", "-x", "0", "-c", "SRD", "-n", "100", "-s", "4096", "--write_with_imm"})
	}
	for _, line := range lines {
		t.Run(strings.Join(line, " "), func(t *testing.T) {
			play(t, append(line[:len(line):len(line)], "-d", "efa_0"), append(line[:len(line):len(line)], "-d", "efa_1"))
		})
	}
	for name, least := range map[string]int{"hw_counters/keep_alive_rcvd": 1, "ports/1/hw_counters/recv_wrs": 900, "ports/1/hw_counters/send_wrs": 200} {
		if n, err := strconv.Atoi(attribute(t, "efa_0", name)); err != nil || n < least {
			t.Errorf("%s is %d, want at least %d; %v", name, n, least, err)
		}
	}
}

// TestEFAVerbs: the command verbs shows what an EFA device has, and its doctor asks for nothing that it does without.
func TestEFAVerbs(t *testing.T) {
	testenv.Boot(t, efaEnv, "efa/model")
	verbs := func(args ...string) string {
		return program.Launch(t, append([]string{"/bin/verbs"}, args...)...).Wait(t)
	}
	out := verbs("devices") + verbs("info", "efa_0") + verbs("status") + verbs("res")
	rdma := map[bool]string{true: "yes", false: "no"}[!testenv.CardIs("no-read")]
	for _, want := range []string{
		`efa_0 +\S+ +efa +efa +1 +yes`, `efa_rdma_read: +` + rdma, `efa_max_rdma_size: +0x[0-9a-f]+ bytes`, `max_msg_sz: +0x22e0 bytes`,
		`GID\[  0\]: +\S+, fe80::200:ff:fe00:ef01\n`, `efa_0/1 +ACTIVE +LINK_UP +100 Gb/s \(4X\) +Unspecified +- +8928 `,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("nothing matches %q:\n%s", want, out)
		}
	}
	qp := func() error {
		dev, err := uverbs.Open("efa_0", uverbs.OpenOptions{})
		if err != nil {
			return err
		}
		t.Cleanup(func() { dev.Close() })
		pd, err := dev.AllocPD()
		if err != nil {
			return err
		}
		cq, err := dev.CreateCQ(uverbs.CQOptions{Size: 1})
		if err == nil {
			_, err = pd.CreateQP(uverbs.QPOptions{Type: ib.SRD, SendCQ: cq, RecvCQ: cq})
		}
		return err
	}
	if err := qp(); err != nil {
		t.Fatal(err)
	}
	for command, want := range map[string]string{
		"exporter --once":   `rdma_device_qps{device="efa_0",transport="SRD",state="RESET"} 1`,
		"top --once --json": `"process":"control.test","qp_count":1,`,
	} {
		if out := verbs(strings.Fields(command)...); !strings.Contains(out, want) {
			t.Errorf("%s does not print %q:\n%s", command, want, out)
		}
	}
	out = verbs("doctor", "-v")
	for _, want := range []string{"RDMA works: a ping-pong went through on efa_0, efa_1", "8 messages of 5000 bytes polled", "security group"} {
		if !strings.Contains(out, want) {
			t.Errorf("the doctor does not say %q:\n%s", want, out)
		}
	}
	for _, wrong := range []string{"warning  ", "error  ", "4791", "modprobe rdma_ucm\n"} {
		if strings.Contains(out, wrong) {
			t.Errorf("the doctor says %q:\n%s", wrong, out)
		}
	}
}

// TestEFAReload unloads the driver, which takes down all that it has made on the cards, and loads it again.
func TestEFAReload(t *testing.T) {
	testenv.Boot(t, efaEnv, "efa/model")
	unload(t, "efa")
	if s := state("efa_0"); s != "" {
		t.Errorf("without its driver the card is %s", s)
	}
	load(t, "efa")
	for _, card := range []string{"efa_0", "efa_1"} {
		eventually(t, card+" is there", func() bool { return strings.Contains(state(card), "ACTIVE") })
	}
}

// TestEFAHosts has the card of a machine send to that of another one.
func TestEFAHosts(t *testing.T) {
	testenv.Boot(t, efaEnv, "efa/hosts")
	meet(t, []string{"ibv_ud_pingpong", "-d", "efa_0", "-g", "0", "-n", "100"})
	for _, c := range []struct{ listen, dial, at string }{{"srd efa_0 listen", "srd efa_0 dial", ":7471"}, {"srdcat -device efa_0 -listen", "srdcat -device efa_0", ":7472"}} {
		if host, peer := testenv.Hosts(t); host == 1 {
			serve(t, with(strings.Fields(c.listen), c.at))
		} else {
			visit(t, strings.Fields(c.dial), peer+c.at)
		}
	}
}

// TestLibfabric sends with libfabric, which has a protocol of its own over SRD, from a machine to another one.
func TestLibfabric(t *testing.T) {
	testenv.Boot(t, "GOVERBS_LIBFABRIC", "efa/libfabric")
	for _, endpoint := range []string{"rdm", "dgram"} {
		t.Run(endpoint, func(t *testing.T) { meet(t, []string{"fi_pingpong", "-p", "efa", "-e", endpoint, "-I", "20"}) })
	}
}

// meet runs a program as the server on one machine and as the client on the other one.
func meet(t *testing.T, line []string) {
	t.Helper()
	host, peer := testenv.Hosts(t)
	if host == 1 {
		serve(t, line)
	} else {
		visit(t, line, peer)
	}
}
