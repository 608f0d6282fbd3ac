package conformance

import (
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/mlx5"
)

// TestTimestamps checks that completions have the device's time, that it increases and lies between
// two reads of the clock, and that its time of day is about now.
func TestTimestamps(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "time stamps", "mlx5")
		a, b := pair(t, uverbs.QPOptions{})
		cq, err := a.dev.CreateCQ(uverbs.CQOptions{Size: 64, Flags: uverbs.CQTimestamp})
		must(t, err)
		closeLater(t, cq)
		qp, err := a.pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, Path: uverbs.PathOptions{GIDIndex: new(ipv4Index)}})
		must(t, err)
		closeLater(t, qp)
		e, err := qp.Endpoint()
		must(t, err, qp.Connect(t.Context(), e)) // to itself
		before, err := a.dev.ReadClock()
		must(t, err)
		last := before
		for i := range uint64(5) {
			must(t, qp.PostRecv(i, a.mr.SGE(0, 8)), qp.PostSend(send(i, a.mr.SGE(0, 8))))
			for n := 0; n < 2; {
				var wc [2]uverbs.WC
				k, err := cq.Poll(wc[:])
				must(t, err)
				for _, w := range wc[:k] {
					must(t, w.Err())
					if w.Timestamp < last {
						t.Errorf("a completion is of %d, after one of %d", w.Timestamp, last)
					}
					last = w.Timestamp
				}
				n += k
			}
		}
		after, err := a.dev.ReadClock()
		must(t, err)
		if last <= before || last > after {
			t.Errorf("the last completion is of %d, not between %d and %d", last, before, after)
		}
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, 8)), a.qp.PostSend(send(1, a.mr.SGE(0, 8))))
		if wc := b.want(t, 1, uverbs.WCRecv); wc.Timestamp != 0 {
			t.Errorf("a completion of a CQ without time stamps is of %d", wc.Timestamp)
		}
		a.want(t, 1, uverbs.WCSend)
		at, err := mlx5.ClockTime(a.dev, after)
		if testenv.Lacks(t, err) {
			return
		}
		must(t, err)
		if d := time.Since(at); d < -time.Hour || d > time.Hour {
			t.Errorf("the time of day of %d is %s", after, at)
		}
	})
}

// TestRawTimestamps checks that completions of frames have the time of their device, at both ends.
func TestRawTimestamps(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "time stamps", "mlx5")
		testenv.NeedsRoCE(t, "Ethernet")
		var ends [2]*side
		var last [2]uint64
		for i, name := range rig.Devices[:2] {
			s := newSide(t, openDevice(t, name), uverbs.QPOptions{})
			var err error
			s.cq, err = s.dev.CreateCQ(uverbs.CQOptions{Size: 16, Flags: uverbs.CQTimestamp})
			must(t, err)
			closeLater(t, s.cq)
			rawQP(t, s, uverbs.QPOptions{})
			rawReady(t, s)
			last[i], err = s.dev.ReadClock()
			must(t, err)
			ends[i] = s
		}
		a, b := ends[0], ends[1]
		steerAll(t, a, b.qp.QP, 100)
		for id := range uint64(5) {
			must(t, b.qp.PostRecv(id, b.mr.SGE(0, 2048)), a.qp.PostSend(send(id, a.mr.SGE(0, 100))))
			for i, wc := range []uverbs.WC{a.want(t, id, uverbs.WCSend), b.want(t, id, uverbs.WCRecv)} {
				now, err := ends[i].dev.ReadClock()
				must(t, err)
				if wc.Timestamp <= last[i] || wc.Timestamp > now {
					t.Errorf("frame %d: %s completed at %d, not between %d and %d", id, wc.Opcode, wc.Timestamp, last[i], now)
				}
				last[i] = wc.Timestamp
			}
		}
	})
}
