package soft_test

import (
	"net/netip"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// TestLargePackets: between loopback addresses a packet has more than the MTU, unless one of the two devices may lose
// or record packets.
func TestLargePackets(t *testing.T) {
	var devs []*soft.Device
	a, b := twoSides(t, func(o soft.Options) (*soft.Device, error) {
		d, err := soft.NewViaSocket(o)
		devs = append(devs, d)
		return d, err
	}, uverbs.QPOptions{})
	testenv.Must(t, b.qp.PostRecv(1, b.mr.SGE(1<<15, 1<<15)))
	const n, size, mtu = 40, 32 << 10, 4096
	exchange := func(least, most int) {
		t.Helper()
		before := devs[1].Network().Received
		done := make(chan error, 1)
		go func() { done <- b.exchange(t.Context(), n, size, false) }()
		testenv.Must(t, a.exchange(t.Context(), n, size, true))
		testenv.Must(t, <-done)
		if got := int(devs[1].Network().Received - before); got < least || got > most {
			t.Errorf("%d messages of %d bytes have taken %d packets, want %d to %d", n, size, got, least, most)
		}
	}
	all := n * size / mtu
	exchange(n, 2*all) // until they know of each other
	exchange(n, all/2)
	for _, d := range devs {
		d.Partition(netip.MustParseAddr("127.9.9.9")) // of no concern to these two
		exchange(1, 2*all)                            // of which some are on their way already
		exchange(all, 2*all)
		d.Heal(netip.MustParseAddr("127.9.9.9"))
		exchange(1, 2*all)
		exchange(n, all/2)
	}
}
