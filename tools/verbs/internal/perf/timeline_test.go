package perf

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestTimeline: samples have what was done in them, an interruption shows, and a long run has no more samples than
// allowed.
func TestTimeline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		at := func() time.Duration { return time.Since(begin) }
		count := func() int64 { // 1000 in a second, and none from 2 s to 3 s
			return (min(at(), 2*time.Second) + max(at()-3*time.Second, 0)).Milliseconds()
		}
		down := func() bool { return at() > 2*time.Second && at() <= 2500*time.Millisecond }
		stop := sampleEvery(500*time.Millisecond, count, down)
		time.Sleep(4600 * time.Millisecond)
		got := stop()
		want := []Sample{{0.5, 500, false}, {1, 500, false}, {1.5, 500, false}, {2, 500, false}, {2.5, 0, true}, {3, 0, false}, {3.5, 500, false}, {4, 500, false}, {4.6, 600, false}}
		if len(got) != len(want) {
			t.Fatalf("%v, want %v", got, want)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Errorf("sample %d is %v, want %v", i, got[i], want[i])
			}
		}
		begin = time.Now()
		stop = sampleEvery(10*time.Millisecond, func() int64 { return at().Milliseconds() }, func() bool { return at() == time.Second })
		time.Sleep(10 * time.Minute)
		got = stop()
		total, downs := int64(0), 0
		for i, s := range got {
			total += s.Messages
			if s.Down {
				downs++
			}
			if i > 0 && s.Seconds <= got[i-1].Seconds {
				t.Fatalf("sample %d ends at %v, and the one before at %v", i, s.Seconds, got[i-1].Seconds)
			}
		}
		if len(got) < MaxSamples/2 || len(got) > MaxSamples || total != 600_000 || downs != 1 {
			t.Errorf("%d samples with %d messages, %d of them down", len(got), total, downs)
		}
	})
}
