package diag

import (
	"testing"

	"github.com/goverbs/goverbs/netlinkrdma"
)

// TestCounterGrowth: only counters that have grown are listed, in the order of the device.
func TestCounterGrowth(t *testing.T) {
	before := []netlinkrdma.Counter{{Name: "sent_pkts", Value: 5}, {Name: "rcvd_pkts", Value: 7}, {Name: "lost", Value: 9}}
	for _, c := range []struct {
		before, now []netlinkrdma.Counter
		want        string
	}{
		{before, []netlinkrdma.Counter{{Name: "sent_pkts", Value: 12}, {Name: "rcvd_pkts", Value: 7}, {Name: "new", Value: 1}, {Name: "lost", Value: 10}}, "sent_pkts 7, lost 1"},
		{before, before, "nothing"},
		{before, nil, "nothing"},
		{nil, before, ""},
	} {
		if got := CounterGrowth(c.before, c.now); got != c.want {
			t.Errorf("from %v to %v is %q, want %q", c.before, c.now, got, c.want)
		}
	}
}
