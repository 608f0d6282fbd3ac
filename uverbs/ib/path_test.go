package ib

import (
	"testing"
	"time"
)

func TestAckTimeout(t *testing.T) {
	if got := AckTimeout(14).Duration(); got != 67108864*time.Nanosecond {
		t.Errorf("14 is %s, want 67.108864ms", got)
	}
	if AckTimeout(0).Duration() != 0 || AckTimeout(40).Duration() != AckTimeout(31).Duration() {
		t.Error("0 is not for ever, or 40 is more than 31")
	}
	for d := time.Duration(1); d < 3*time.Hour; d = d*3/2 + 1 {
		got := AckTimeoutFor(d)
		if got < 31 && got.Duration() < d || got > 1 && (got-1).Duration() >= d {
			t.Errorf("AckTimeoutFor(%s) is %d, %s", d, got, got.Duration())
		}
	}
}

func TestRNRTimer(t *testing.T) {
	// Table 45 of the InfiniBand specification, volume 1.
	for timer, want := range map[RNRTimer]time.Duration{0: 655360 * time.Microsecond, 1: 10 * time.Microsecond, 12: 640 * time.Microsecond, 31: 491520 * time.Microsecond, 32 | 1: 10 * time.Microsecond} {
		if got := timer.Duration(); got != want {
			t.Errorf("%d is %s, want %s", timer, got, want)
		}
	}
	for d := time.Duration(1); d < 700*time.Millisecond; d = d*5/4 + 1 {
		got := RNRTimerFor(d)
		if got != 0 && got.Duration() < d || got > 1 && (got-1).Duration() >= d || got == 0 && RNRTimer(31).Duration() >= d {
			t.Errorf("RNRTimerFor(%s) is %d, %s", d, got, got.Duration())
		}
	}
}
