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
