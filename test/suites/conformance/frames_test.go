package conformance

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/mlx5"
)

// frameQueue makes a frame queue of the second device, to which the frames of a go, and puts one of n bytes into the
// memory of a.
func frameQueue(t *testing.T, o mlx5.FrameQueueOptions, n int) (a *side, q *mlx5.FrameQueue, frame []byte) {
	t.Helper()
	testenv.NeedsRoCE(t, "Ethernet")
	a, b := rawSide(t, rig.Devices[0], uverbs.QPOptions{}), newSide(t, openDevice(t, rig.Devices[1]), uverbs.QPOptions{})
	rawReady(t, a)
	q, err := mlx5.NewFrameQueue(b.pd, o)
	testenv.Skip(t, err)
	must(t, err)
	closeLater(t, q)
	table, err := b.dev.CreateRWQIndTable([]*uverbs.WQ{q.WQ()})
	must(t, err)
	closeLater(t, table)
	qp, err := b.pd.CreateQP(uverbs.QPOptions{Type: ib.RawPacket, IndTable: table})
	must(t, err)
	closeLater(t, qp)
	return a, q, steerAll(t, a, qp, n)
}

// until waits until done.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !done(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("no %s within %s", what, deadline)
		}
	}
}

// TestFrameQueue receives frames of several sizes into the strides of a frame queue, holds some of them, and gives all back:
// each has what was sent, in order, while it is lent. Polling allocates nothing.
func TestFrameQueue(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "frame queues", "mlx5")
		testenv.NeedsRoCE(t, "Ethernet")
		for name, compressed := range map[string]bool{"plain": false, "compressed": true} {
			t.Run(name, func(t *testing.T) {
				a, q, frame := frameQueue(t, mlx5.FrameQueueOptions{StrideSize: 256, Strides: 512, Buffers: 2, Compressed: compressed, Events: true}, 1000)
				sizes := []int{60, 256, 257, 1000}
				frames, held := make([]mlx5.Frame, 64), []mlx5.Frame(nil)
				sent, got := 0, 0
				check := func(f *mlx5.Frame, i int) {
					if n := sizes[i%len(sizes)]; len(f.Data) != n || binary.BigEndian.Uint32(f.Data[20:]) != uint32(i) || !bytes.Equal(f.Data[:20], frame[:20]) || !bytes.Equal(f.Data[24:], frame[24:n]) {
						t.Fatalf("frame %d has %d bytes, number %d, want %d bytes", i, len(f.Data), binary.BigEndian.Uint32(f.Data[20:]), n)
					}
					if f.Flags != 0 || f.Tag != 0 {
						t.Fatalf("frame %d: flags %s, tag %#x", i, f.Flags, f.Tag)
					}
				}
				// More than all buffers hold: 1,024 strides, of which 4 frames have 8.
				for got < 1200 {
					for range 16 {
						binary.BigEndian.PutUint32(frame[20:], uint32(sent))
						must(t, a.qp.PostSend(send(1, a.mr.SGE(0, sizes[sent%len(sizes)]))))
						a.want(t, 1, uverbs.WCSend)
						sent++
					}
					for got < sent {
						ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
						n, err := q.Wait(ctx, frames)
						cancel()
						must(t, err)
						for i := range n {
							check(&frames[i], got+i)
						}
						if got == 0 { // its first frame is held until the end
							held = append(held, frames[0])
							frames[0] = mlx5.Frame{}
						}
						got += n
						must(t, q.Release(frames[:n]))
					}
				}
				check(&held[0], 0)
				if err := q.Close(); err == nil || errors.Is(err, os.ErrClosed) {
					t.Errorf("Close with a lent frame: %v", err)
				}
				must(t, q.Release(held), q.Release(held))
				if n := testing.AllocsPerRun(100, func() { must(t, func() error { _, err := q.Poll(frames); return err }(), q.Release(frames)) }); n != 0 {
					t.Errorf("Poll and Release allocate %v times", n)
				}
			})
		}
	})
}

// TestFrameQueueFull has no buffer for frames while all are lent, and receives again once they were given back.
func TestFrameQueueFull(t *testing.T) {
	testenv.Needs(t, "frame queues", "mlx5")
	a, q, _ := frameQueue(t, mlx5.FrameQueueOptions{StrideSize: 64, Strides: 512, Buffers: 1}, 1000)
	frames := make([]mlx5.Frame, 64)
	receive := func(n int) (got int) {
		for range n {
			must(t, a.qp.PostSend(send(1, a.mr.SGE(0, 1000)))) // 16 strides
			a.want(t, 1, uverbs.WCSend)
		}
		until(t, "frames", func() bool {
			k, err := q.Poll(frames[got:])
			must(t, err)
			got += k
			return got >= min(n, 32)
		})
		return got
	}
	if n := receive(40); n != 32 {
		t.Errorf("a buffer of 512 strides got %d frames of 16", n)
	}
	if n, err := q.Poll(frames[32:]); n != 0 || err != nil {
		t.Errorf("%d frames more, %v", n, err)
	}
	must(t, q.Release(frames))
	if n := receive(3); n != 3 {
		t.Errorf("%d frames after all were given back, want 3", n)
	}
	must(t, q.Release(frames))
}

// TestFrameQueueOptions: options that the adapter does not have are refused by name.
func TestFrameQueueOptions(t *testing.T) {
	testenv.Needs(t, "frame queues", "mlx5")
	testenv.NeedsRoCE(t, "Ethernet")
	s := newSide(t, openDevice(t, rig.Devices[0]), uverbs.QPOptions{})
	for field, o := range map[string]mlx5.FrameQueueOptions{
		"StrideSize": {StrideSize: 100}, "Strides": {Strides: 1 << 17}, "Buffers": {Buffers: 1 << 20}, "Flags": {Flags: 1 << 20},
	} {
		q, err := mlx5.NewFrameQueue(s.pd, o)
		testenv.Skip(t, err)
		if e, ok := errors.AsType[*uverbs.ArgError](err); !ok || e.Field != field || q != nil {
			t.Errorf("%s: %v, want an ArgError", field, err)
		}
	}
}

// TestCompressedCQ receives bursts of frames by receives of a QP whose CQ has compressed completions, around its ring.
func TestCompressedCQ(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "compressed completions", "mlx5")
		testenv.NeedsRoCE(t, "Ethernet")
		a, b := rawSide(t, rig.Devices[0], uverbs.QPOptions{}), newSide(t, openDevice(t, rig.Devices[1]), uverbs.QPOptions{})
		rawReady(t, a)
		cq, err := b.dev.CreateCQ(uverbs.CQOptions{Size: 63, Flags: uverbs.CQCompressed})
		testenv.Skip(t, err)
		must(t, err)
		closeLater(t, cq)
		b.qp, err = asSide(b.pd.CreateQP(uverbs.QPOptions{Type: ib.RawPacket, SendCQ: b.cq, RecvCQ: cq}))
		must(t, err)
		closeLater(t, b.qp)
		must(t, b.qp.Modify(uverbs.QPAttr{State: ib.QPInit, Port: 1}, uverbs.AttrState|uverbs.AttrPort))
		rawReady(t, b)
		steerAll(t, a, b.qp.QP, 1000)
		wcs := make([]uverbs.WC, 64)
		id := uint64(0)
		for burst := range 40 {
			n := burst%20 + 1
			for i := range n {
				must(t, b.qp.PostRecv(id+uint64(i), b.mr.SGE(0, 2048)))
			}
			for i := range n {
				must(t, a.qp.PostSend(send(1, a.mr.SGE(0, 60+i))))
			}
			for got := 0; got < n; {
				k := 0
				until(t, "a frame", func() bool {
					var err error
					k, err = cq.Poll(wcs)
					must(t, err)
					return k > 0
				})
				for _, wc := range wcs[:k] {
					if wc.Err() != nil || wc.ID != id+uint64(got) || wc.ByteLen != uint32(60+got) || wc.Opcode != uverbs.WCRecv || wc.QPN != b.qp.QPN() {
						t.Fatalf("burst %d: completion %+v, want receive %d of %d bytes", burst, wc, id+uint64(got), 60+got)
					}
					got++
				}
			}
			for range n {
				a.want(t, 1, uverbs.WCSend)
			}
			id += uint64(n)
		}
	})
}

// TestChecksumFlags: completions tell which checksums of a frame are right.
func TestChecksumFlags(t *testing.T) {
	testenv.Needs(t, "raw packets", "mlx5")
	testenv.NeedsRoCE(t, "Ethernet")
	a, b := rawPair(t)
	frame := steer(t, a, b.qp.QP, 60, 0x0800)
	udp := []byte{8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0x66, 0xab, 10, 9, 0, 1, 10, 9, 0, 2, 0, 7, 0, 9, 0, 26, 0, 0}
	for i := range frame[42:] {
		frame[42+i] = 0
	}
	const both = uverbs.WCIPChecksumOK | uverbs.WCL4ChecksumOK
	for name, c := range map[string]struct {
		at    int // of a byte that is changed, or 0
		value byte
		want  uverbs.WCFlags
	}{
		"right":          {0, 0, both}, // UDP has no checksum here
		"header":         {22, 63, uverbs.WCL4ChecksumOK},
		"data":           {41, 1, uverbs.WCIPChecksumOK},
		"another packet": {23, 253, 0},
	} {
		copy(frame[12:], udp)
		if c.at != 0 {
			frame[c.at] = c.value
		}
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, 2048)), a.qp.PostSend(send(1, a.mr.SGE(0, 60))))
		a.want(t, 1, uverbs.WCSend)
		if wc := b.want(t, 1, uverbs.WCRecv); wc.Flags != c.want {
			t.Errorf("%s: flags %s, want %s", name, wc.Flags, c.want)
		}
	}
}

// TestManyFrames receives very many frames (GOVERBS_FRAMES) that the modelled card makes up, without a copy: it looks at the
// number of each frame where the card has put it. It prints the rate.
func TestManyFrames(t *testing.T) {
	testenv.Needs(t, "frame queues", "mlx5")
	testenv.NeedsRoCE(t, "Ethernet")
	do := inject(t, rig.Devices[1])
	count := uint64(20000)
	if s := os.Getenv("GOVERBS_FRAMES"); s != "" {
		var err error
		count, err = strconv.ParseUint(s, 10, 63)
		must(t, err)
	}
	for name, compressed := range map[string]bool{"plain": false, "compressed": true} {
		t.Run(name, func(t *testing.T) {
			_, q, _ := frameQueue(t, mlx5.FrameQueueOptions{StrideSize: 64, Strides: 512, Buffers: 16, Compressed: compressed}, 64)
			do("frames %d 64", count)
			frames, next, polls := make([]mlx5.Frame, 64), uint64(0), 0
			begin := time.Now()
			last, inPoll, inRelease, bursts := begin, time.Duration(0), time.Duration(0), 0
			allocs := testing.AllocsPerRun(1, func() {
				for next < count/2*uint64(min(polls, 1)+1) { // AllocsPerRun calls it once before it counts
					start := time.Now()
					n, err := q.Poll(frames)
					end := time.Now()
					if err != nil {
						t.Fatal(err)
					}
					if n == 0 && time.Since(last) > deadline {
						t.Fatalf("%d of %d frames have arrived", next, count)
					}
					if n > 0 {
						last, inPoll = end, inPoll+end.Sub(start)
						bursts++
					}
					for i := range n {
						f := &frames[i]
						if got := binary.BigEndian.Uint64(f.Data[42:]); got != next || len(f.Data) != 64 || f.Flags != uverbs.WCIPChecksumOK|uverbs.WCL4ChecksumOK {
							t.Fatalf("frame %d has %d bytes, number %d, flags %s", next, len(f.Data), got, f.Flags)
						}
						next++
					}
					start = time.Now()
					if err := q.Release(frames[:n]); err != nil {
						t.Fatal(err)
					}
					if n > 0 {
						inRelease += time.Since(start)
					}
				}
				polls++
			})
			if allocs != 0 {
				t.Errorf("%v allocations", allocs)
			}
			took := time.Since(begin)
			t.Logf("%d frames in %s: %.0f a second", next, took.Round(time.Millisecond), float64(next)/took.Seconds())
			const calls = 1000
			start := time.Now()
			for range calls {
				_ = time.Now()
			}
			clock := time.Since(start) / calls
			each := func(d time.Duration) float64 { return float64(d-time.Duration(bursts)*clock) / float64(next) }
			// With vmrun -icount a nanosecond of the guest is an instruction.
			t.Logf("%.1f ns of Poll and %.1f ns of Release for a frame, in bursts of %.1f", each(inPoll), each(inRelease), float64(next)/float64(bursts))
			noViolation(t, do)
		})
	}
}
