package conformance

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// BenchmarkQPs sends messages of 64 bytes over connections that share one CQ, a list of
// them over each in turn, or all over the same one. The time per message should not depend on
// how many connections there are: 1,000 QPs of one device take turns with 2 of the other, as
// many messages each, and x-2-QPs is the median of what the former take of the latter's time.
//
// Where the machine's clock counts instructions (go run ./test/run -suite flat) that is what is executed for a
// message, and not the time in which. By the host's clock, what grows with the number of
// connections in use is the memory that a turn touches, most of it the kernel's. In an emulated
// machine that shows, as each page costs a walk of the page table, and lists of 16 share that.
//
// GOVERBS_FLAT_MOST fails the benchmark where x-2-QPs is more. It is for a clock that counts
// instructions: no other is the same twice.
//
// With GOVERBS_FLAT, the path of test/bench/rdmacore/flat.c as a program, rdma-core's library does
// the same in turn: rdmacore-x-2-QPs is the median of its ratios, and x-rdmacore that of ours by
// the one beside it, which is what is the library's and not the kernel's or the machine's.
func BenchmarkQPs(b *testing.B) {
	testenv.Guest(b)
	for _, used := range []int{benchPairs, 1} {
		for _, list := range []int{1, 16} {
			name := fmt.Sprintf("list of %d", list)
			if used == 1 {
				name += ", one connection in use"
			}
			b.Run(name, func(b *testing.B) { benchmarkQPs(b, used, list) })
		}
	}
}

// benchPairs is how many connections are compared with one.
const benchPairs = 500

func benchmarkQPs(b *testing.B, used, list int) {
	sides := []*connections{newConnections(b, rig.Devices[0], benchPairs, list), newConnections(b, rig.Devices[1], 1, list)}
	sides[0].used, sides[1].used = used, 1
	theirs := newFlat(b, used, list)
	var took [2][]float64 // for each lot
	var ratios, core, relative []float64
	for _, c := range sides { // what is done once
		c.lot(b)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		var lot [2]time.Duration
		for k := range sides {
			which := (i + k) % 2 // each is the first one as often
			begin := time.Now()
			sides[which].lot(b)
			lot[which] = time.Since(begin)
			took[which] = append(took[which], float64(lot[which])/float64(benchPairs*list))
		}
		ratios = append(ratios, float64(lot[0])/float64(lot[1]))
		if theirs != nil {
			core = append(core, theirs.ratio(b, i%2))
			relative = append(relative, ratios[i]/core[i])
		}
	}
	if theirs != nil {
		b.ReportMetric(median(core), "rdmacore-x-2-QPs")
		b.ReportMetric(median(relative), "x-rdmacore")
	}
	b.ReportMetric(median(ratios), "x-2-QPs")
	if text := os.Getenv("GOVERBS_FLAT_MOST"); text != "" {
		most, err := strconv.ParseFloat(text, 64)
		if got := median(ratios); err != nil || got > most {
			b.Errorf("a message costs %.3f times as much with 1,000 QPs as with 2, want at most GOVERBS_FLAT_MOST=%s", got, text)
		}
	}
	b.ReportMetric(median(took[0]), "ns/message-of-1000")
	b.ReportMetric(median(took[1]), "ns/message-of-2")
}

// flat is the program that does the same with rdma-core's library.
type flat struct {
	in  io.Writer
	out *bufio.Reader
}

// newFlat starts it, if there is one.
func newFlat(b *testing.B, used, list int) *flat {
	b.Helper()
	path := os.Getenv("GOVERBS_FLAT")
	if path == "" {
		return nil
	}
	cmd := exec.Command(path, rig.Devices[0], rig.Devices[1], fmt.Sprint(ipv4Index), fmt.Sprint(benchPairs), fmt.Sprint(used), fmt.Sprint(list))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			b.Error(err)
		}
	})
	return &flat{in: in, out: bufio.NewReader(out)}
}

// ratio has it do a lot over many connections and one over one, that first which first names.
func (f *flat) ratio(b *testing.B, first int) float64 {
	b.Helper()
	if _, err := fmt.Fprintln(f.in, first); err != nil {
		b.Fatal(err)
	}
	line, err := f.out.ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	var many, one float64
	if _, err := fmt.Sscan(line, &many, &one); err != nil {
		b.Fatalf("rdma-core's side says %q: %v", line, err)
	}
	return many / one
}

// median returns the one in the middle.
func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

// connections are QPs of one device that are connected in pairs and share a CQ.
type connections struct {
	cq    *uverbs.CQ
	qps   [][2]*uverbs.QP
	sends []uverbs.SendWR
	recvs []uverbs.RecvWR
	wcs   []uverbs.WC
	used  int // the pairs that messages go over
	next  int // the one whose turn it is
}

// newConnections makes them, for lists of a length.
func newConnections(b *testing.B, device string, pairs, list int) *connections {
	b.Helper()
	check := func(err error) {
		if err != nil {
			b.Helper()
			b.Fatal(err)
		}
	}
	later := func(c closer) { b.Cleanup(func() { check(c.Close()) }) }
	dev, err := uverbs.Open(device, uverbs.OpenOptions{})
	check(err)
	later(dev)
	pd, err := dev.AllocPD()
	check(err)
	later(pd)
	buf, err := uverbs.AllocBuffer(4096, uverbs.BufferOptions{})
	check(err)
	later(buf)
	mr, err := pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
	check(err)
	later(mr)
	c := &connections{qps: make([][2]*uverbs.QP, pairs), wcs: make([]uverbs.WC, 2*list)}
	c.cq, err = dev.CreateCQ(uverbs.CQOptions{Size: 2 * list})
	check(err)
	later(c.cq)
	for i := range c.qps {
		var ends [2]uverbs.Endpoint
		for side := range 2 {
			qp, err := pd.CreateQP(uverbs.QPOptions{SendCQ: c.cq, RecvCQ: c.cq, MaxSendWR: list, MaxRecvWR: list,
				Path: uverbs.PathOptions{GIDIndex: new(ipv4Index)}})
			check(err)
			later(qp)
			c.qps[i][side] = qp
			ends[side], err = qp.Endpoint()
			check(err)
		}
		check(c.qps[i][0].Connect(b.Context(), ends[1]))
		check(c.qps[i][1].Connect(b.Context(), ends[0]))
	}
	for i := range list {
		c.sends = append(c.sends, send(uint64(i), mr.SGE(0, 64)))
		c.recvs = append(c.recvs, uverbs.RecvWR{SGL: []uverbs.SGE{mr.SGE(2048, 64)}})
	}
	return c
}

// lot sends benchPairs lists, a list over each connection in turn.
func (c *connections) lot(b *testing.B) {
	for range benchPairs {
		from, to := c.qps[c.next][0], c.qps[c.next][1]
		c.next = (c.next + 1) % c.used
		if err := to.PostRecvs(c.recvs...); err != nil {
			b.Fatal(err)
		}
		if err := from.PostSend(c.sends...); err != nil {
			b.Fatal(err)
		}
		for done := 0; done < len(c.wcs); {
			n, err := c.cq.Poll(c.wcs)
			if err != nil {
				b.Fatal(err)
			}
			for i := range c.wcs[:n] {
				if err := c.wcs[i].Err(); err != nil {
					b.Fatal(err)
				}
			}
			done += n
		}
	}
}
