package control

import (
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/flow"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/mlx5"
)

// TestDPDK has dpdk-testpmd send 32 frames from each card to the other and forward all that arrives, so that they
// go around. DPDK's driver mlx5 has the kernel create its queues by libmlx5, and uses them with code of its own.
// It counts the frames at both ends. Completions of receives are compressed, which is its default.
func TestDPDK(t *testing.T) {
	testenv.Boot(t, "GOVERBS_DPDK", "control/dpdk")
	line := []string{"dpdk-testpmd", "--no-huge", "-m", "256", "--no-shconf", "--no-telemetry", "-l", "0,1"}
	for _, card := range []string{first, second} {
		dir, err := filepath.EvalSymlinks("/sys/class/infiniband/" + card + "/device")
		must(t, err)
		line = append(line, "-a", filepath.Base(dir))
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
// receive queues, both also with compressed completions, and a frame queue of this library receive as many. It prints for
// each what a frame costs, with vmrun -icount in instructions: of the calls that have received frames, and of giving them
// back. All have the frames of a round in their queue when they begin, and take up to 32 at a time. It is the least of the
// rounds, as the kernel may run something else within one.
func TestDPDKReceive(t *testing.T) {
	testenv.Boot(t, "GOVERBS_DPDK_RECEIVE", "control/dpdk-receive")
	card, err := testenv.OpenCard(first)
	must(t, err)
	defer card.Close()
	const striding = "mprq_en=1,rxqs_min_mprq=1,mprq_log_stride_num=9,"
	costs := map[string]float64{}
	for _, c := range []struct{ name, options string }{
		{"plain", "rxq_cqe_comp_en=0"},
		{"plain, compressed", "rxq_cqe_comp_en=1"},
		{"striding", striding + "mprq_max_memcpy_len=0,rxq_cqe_comp_en=0"},
		{"striding, compressed", striding + "mprq_max_memcpy_len=0,rxq_cqe_comp_en=3"},
		{"striding, copied", striding + "rxq_cqe_comp_en=0"},
	} {
		t.Run(c.name, func(t *testing.T) { costs[c.name] = testpmdReceives(t, card, c.options) })
	}
	for name, compressed := range map[string]bool{"striding": false, "striding, compressed": true} {
		t.Run("frame queue, "+name, func(t *testing.T) {
			cost := frameQueueReceives(t, card, compressed)
			t.Logf("%.1f a frame, %.2f of what testpmd needs, %.2f of its least", cost, cost/costs[name], cost/slices.Min(slices.Collect(maps.Values(costs))))
		})
	}
}

// Frames of TestDPDKReceive: a queue holds those of a round.
const (
	frameRounds = 4
	roundFrames = 4000
	frameBurst  = 32
)

// testpmdReceives returns what testpmd needs for a frame.
func testpmdReceives(t *testing.T, card *testenv.Card, options string) float64 {
	dir, err := filepath.EvalSymlinks("/sys/class/infiniband/" + first + "/device")
	must(t, err)
	var commands io.Writer
	p := program.LaunchBy(t, func(c *exec.Cmd) (err error) {
		if commands, err = c.StdinPipe(); err != nil {
			return err
		}
		return c.Start()
	}, "dpdk-testpmd", "--no-huge", "-m", "512", "--no-shconf", "--no-telemetry", "--lcores=(0,1)@0", "-a", filepath.Base(dir)+","+options,
		"--", "--interactive", "--no-flush-rx", "--total-num-mbufs=16384", "--rxd=4096", "--txd=64", "--forward-mode=rxonly", fmt.Sprintf("--burst=%d", frameBurst), "--record-core-cycles")
	do := func(command string) {
		t.Helper()
		_, err := io.WriteString(commands, command+"\n")
		must(t, err)
	}
	p.Until(t, "asked for a command", func() bool { return strings.Contains(p.Output(), "testpmd>") })
	for round := range frameRounds {
		_, err := card.Do("frames %d 64", roundFrames)
		must(t, err)
		time.Sleep(fillTime)
		do("start")
		time.Sleep(pollTime)
		p.Until(t, "received frames", func() bool {
			do("show port stats 0")
			time.Sleep(pollTime)
			return counts(p.Output(), `NIC statistics for port %d +#+\s+RX-packets: (\d+)`)[0][0] >= (round+1)*roundFrames
		})
		do("stop")
	}
	do("quit")
	select {
	case <-p.Ended:
	case <-time.After(program.Patience):
		t.Fatal("dpdk-testpmd does not end")
	}
	packets, least := 0, math.Inf(1)
	for _, m := range regexp.MustCompile(`total cycles=(\d+) / total rxonly packets=(\d+)`).FindAllStringSubmatch(p.Output(), -1) {
		cycles, err := strconv.Atoi(m[1])
		must(t, err)
		n, err := strconv.Atoi(m[2])
		must(t, err)
		packets, least = packets+n, min(least, float64(cycles)/float64(n))
	}
	if packets < frameRounds*roundFrames {
		t.Fatalf("dpdk-testpmd has received %d frames, want %d", packets, frameRounds*roundFrames)
	}
	t.Logf("%d frames, %.1f each", packets, least)
	return least
}

const (
	fillTime = 200 * time.Millisecond // more than the card needs for the frames of a round; if it is not, bursts are smaller
	pollTime = 20 * time.Millisecond  // more than testpmd needs for them, so that nothing disturbs it
)

// frameQueueReceives returns what a frame queue needs for a frame.
func frameQueueReceives(t *testing.T, card *testenv.Card, compressed bool) float64 {
	d, err := uverbs.Open(first, uverbs.OpenOptions{})
	must(t, err)
	defer d.Close()
	pd, err := d.AllocPD()
	must(t, err)
	defer pd.Close()
	q, err := mlx5.NewFrameQueue(pd, mlx5.FrameQueueOptions{Compressed: compressed})
	must(t, err)
	defer q.Close()
	table, err := d.CreateRWQIndTable([]*uverbs.WQ{q.WQ()})
	must(t, err)
	defer table.Close()
	qp, err := pd.CreateQP(uverbs.QPOptions{Type: ib.RawPacket, IndTable: table})
	must(t, err)
	defer qp.Close()
	link, err := net.InterfaceByName(testenv.TheRig().Netdevs[0])
	must(t, err)
	f, err := qp.CreateFlow(uverbs.FlowOptions{Specs: []flow.Spec{flow.Eth{
		Val: flow.EthFilter{DstMAC: [6]byte(link.HardwareAddr)}, Mask: flow.EthFilter{DstMAC: [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}},
	}}})
	must(t, err)
	defer f.Close()
	const calls = 1000
	start := time.Now()
	for range calls {
		_ = time.Now()
	}
	clock := time.Since(start) / calls
	frames, got, least := make([]mlx5.Frame, frameBurst), 0, math.Inf(1)
	for round := range frameRounds {
		_, err := card.Do("frames %d 64", roundFrames)
		must(t, err)
		time.Sleep(fillTime)
		busy, bursts := time.Duration(0), 0
		for last := time.Now(); got < (round+1)*roundFrames; {
			start := time.Now()
			n, err := q.Poll(frames)
			if err == nil {
				err = q.Release(frames[:n])
			}
			end := time.Now()
			must(t, err)
			if n > 0 {
				last, got, bursts, busy = end, got+n, bursts+1, busy+end.Sub(start)
			} else if end.Sub(last) > program.Patience {
				t.Fatalf("%d frames of %d have arrived", got, (round+1)*roundFrames)
			}
		}
		least = min(least, float64(busy-time.Duration(bursts)*clock)/roundFrames)
		t.Logf("bursts of %.1f", roundFrames/float64(bursts))
	}
	t.Logf("%d frames, %.1f each, without time.Now, which is %d", got, least, clock)
	return least
}
