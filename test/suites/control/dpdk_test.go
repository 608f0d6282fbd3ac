package control

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// TestDPDK has dpdk-testpmd send 32 frames from each card to the other and forward all that arrives, so that they
// go around. DPDK's driver mlx5 has the kernel create its queues by libmlx5, and uses them with code of its own.
// It counts the frames at both ends. An option leaves out what the model does not have, compressed completions.
func TestDPDK(t *testing.T) {
	testenv.Boot(t, "GOVERBS_DPDK", "control/dpdk")
	line := []string{"dpdk-testpmd", "--no-huge", "-m", "256", "--no-shconf", "--no-telemetry", "-l", "0,1"}
	for _, card := range []string{first, second} {
		dir, err := filepath.EvalSymlinks("/sys/class/infiniband/" + card + "/device")
		must(t, err)
		line = append(line, "-a", filepath.Base(dir)+",rxq_cqe_comp_en=0")
	}
	line = append(line, "--", "--total-num-mbufs=2048", "--rxd=64", "--txd=64", "--forward-mode=io", "--tx-first", "--stats-period=1")
	for port, netdev := range []int{1, 0} {
		b, err := os.ReadFile("/sys/class/net/" + testenv.TheRig().Netdevs[netdev] + "/address")
		must(t, err)
		line = append(line, fmt.Sprintf("--eth-peer=%d,%s", port, strings.TrimSpace(string(b))))
	}
	p := program.Launch(t, line...)
	const enough = 10000
	p.Until(t, "forwarded frames", func() bool {
		n := counts(p.Output(), `NIC statistics for port %d +#+\s+RX-packets: (\d+)`)
		return n[0][0] >= enough && n[1][0] >= enough
	})
	p.Signal(os.Interrupt)
	select {
	case <-p.Ended: // by the signal, after it has stopped the ports
	case <-time.After(program.Patience):
		t.Fatal("dpdk-testpmd does not end")
	}
	out := p.Output()
	if !strings.Contains(out, "Bye...") {
		t.Errorf("dpdk-testpmd has ended early: %v", p.Err)
	}
	n := counts(out, `Forward statistics for port %d +-+\s+RX-packets: +(\d+) +RX-dropped: +(\d+) +RX-total: +(\d+)\s+TX-packets: +(\d+) +TX-dropped: +(\d+)`)
	for from, to := range []int{1, 0} {
		sent, refused, arrived, missed := n[from][3], n[from][4], n[to][0], n[to][1]
		t.Logf("from port %d to port %d: sent %d, arrived %d, missed for want of a receive %d", from, to, sent, arrived, missed)
		// The frames that are not counted at the other end are under way.
		if under := sent - arrived - missed; arrived < enough || refused != 0 || under < 0 || under > 64 {
			t.Errorf("from port %d to port %d: sent %d and could not send %d, arrived %d, missed %d", from, to, sent, refused, arrived, missed)
		}
	}
}

// counts returns the last numbers that an expression finds in the output for each of the ports.
func counts(out, expr string) (n [2][5]int) {
	for port := range n {
		all := regexp.MustCompile(fmt.Sprintf(expr, port)).FindAllStringSubmatch(out, -1)
		if len(all) == 0 {
			continue
		}
		for i, s := range all[len(all)-1][1:] {
			n[port][i], _ = strconv.Atoi(s) // digits
		}
	}
	return n
}

// TestDPDKReceive has dpdk-testpmd receive frames that the card makes up, with one receive for each and with striding
// receive queues, the latter also with compressed completions, and prints its cycles for a frame: with vmrun -icount they are
// instructions. GOVERBS_FRAMES is the number of frames.
func TestDPDKReceive(t *testing.T) {
	testenv.Boot(t, "GOVERBS_DPDK_RECEIVE", "control/dpdk-receive")
	frames, err := strconv.Atoi(os.Getenv("GOVERBS_FRAMES"))
	must(t, err)
	dir, err := filepath.EvalSymlinks("/sys/class/infiniband/" + first + "/device")
	must(t, err)
	card, err := testenv.OpenCard(first)
	must(t, err)
	defer card.Close()
	const striding = "mprq_en=1,rxqs_min_mprq=1,mprq_log_stride_num=9"
	for name, options := range map[string]string{
		"plain":    "rxq_cqe_comp_en=0",
		"striding": striding + ",mprq_max_memcpy_len=0,rxq_cqe_comp_en=0", "striding, compressed": striding + ",mprq_max_memcpy_len=0,rxq_cqe_comp_en=3",
		"striding, copied": striding + ",rxq_cqe_comp_en=0",
	} {
		t.Run(name, func(t *testing.T) {
			p := program.Launch(t, "dpdk-testpmd", "--no-huge", "-m", "512", "--no-shconf", "--no-telemetry", "--lcores=(0,1)@0", "-a", filepath.Base(dir)+","+options,
				"--", "--total-num-mbufs=16384", "--rxd=4096", "--txd=64", "--forward-mode=rxonly", "--record-core-cycles", "--record-burst-stats", "--stats-period=1")
			p.Until(t, "received statistics", func() bool { return strings.Contains(p.Output(), "NIC statistics for port 0") })
			if _, err := card.Do("frames %d 64", frames); err != nil {
				t.Fatal(err)
			}
			p.Until(t, "received frames", func() bool {
				return counts(p.Output(), `NIC statistics for port %d +#+\s+RX-packets: (\d+)`)[0][0] >= frames
			})
			p.Signal(os.Interrupt)
			select {
			case <-p.Ended:
			case <-time.After(program.Patience):
				t.Fatal("dpdk-testpmd does not end")
			}
			for _, m := range regexp.MustCompile(`(?m)^.*(?:RX-packets: \d+ +RX-dropped|cycles/packet|RX-bursts).*$`).FindAllString(p.Output(), -1) {
				t.Log(strings.TrimSpace(m))
			}
		})
	}
}
