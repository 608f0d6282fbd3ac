package uverbs

import (
	"testing"

	"github.com/goverbs/goverbs/netlinkrdma"
)

func TestCountedText(t *testing.T) {
	then := []netlinkrdma.Counter{{Name: "sent_pkts", Value: 5}, {Name: "rcvd_pkts", Value: 7}, {Name: "lost", Value: 9}}
	for _, c := range []struct {
		then, now []netlinkrdma.Counter
		want      string
	}{
		{then, []netlinkrdma.Counter{{Name: "sent_pkts", Value: 12}, {Name: "rcvd_pkts", Value: 7}, {Name: "new", Value: 1}, {Name: "lost", Value: 10}}, "sent_pkts 7, lost 1"},
		{then, then, "nothing"},
		{then, nil, "nothing"},
		{nil, then, ""},
	} {
		if got := countedText(c.then, c.now); got != c.want {
			t.Errorf("from %v to %v is %q, want %q", c.then, c.now, got, c.want)
		}
	}
}
