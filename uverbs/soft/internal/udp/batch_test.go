package udp

import (
	"bytes"
	"net/netip"
	"testing"
)

func TestBatch(t *testing.T) {
	a, b := netip.MustParseAddrPort("10.0.0.1:4791"), netip.MustParseAddrPort("[fd00::1]:4792")
	var batch Batch
	batch.Reset() // of a zero batch
	for round := range 3 {
		copy(batch.Reserve(a, 20), bytes.Repeat([]byte{1}, 20))
		batch.Reserve(a, 100)
		batch.Drop()
		copy(batch.Reserve(b, 24), bytes.Repeat([]byte{2}, 24))
		batch.SetIP(IP{TrafficClass: 4, HopLimit: 5})
		if batch.Len() != 2 {
			t.Fatalf("round %d: Len is %d, want 2", round, batch.Len())
		}
		for i, want := range []struct {
			to   netip.AddrPort
			data []byte
			ip   IP
		}{
			{a, bytes.Repeat([]byte{1}, 20), IP{}},
			{b, bytes.Repeat([]byte{2}, 24), IP{TrafficClass: 4, HopLimit: 5}},
		} {
			to, data := batch.Packet(i)
			if to != want.to || !bytes.Equal(data, want.data) || cap(data) != len(data) || batch.IP(i) != want.ip {
				t.Errorf("round %d: packet %d is % x to %v with %+v", round, i, data, to, batch.IP(i))
			}
		}
		batch.Reset()
		if batch.Len() != 0 {
			t.Errorf("Len after Reset is %d", batch.Len())
		}
	}
}

func TestBatchFull(t *testing.T) {
	to := netip.MustParseAddrPort("10.0.0.1:4791")
	for _, c := range []struct{ size, want int }{
		{16, BatchPackets},
		{4096 + 32, BatchBytes / (4096 + 32)},
		{BatchBytes, 1},
		{BatchBytes + 1, 0},
	} {
		var b Batch
		for range 2 {
			n := 0
			for b.Reserve(to, c.size) != nil {
				n++
			}
			if n != c.want || b.Len() != c.want {
				t.Errorf("packets of %d bytes: %d fit, Len is %d, want %d", c.size, n, b.Len(), c.want)
			}
			b.Reset()
		}
	}
}

func TestBatchAllocations(t *testing.T) {
	to := netip.MustParseAddrPort("10.0.0.1:4791")
	var b Batch
	if n := testing.AllocsPerRun(100, func() {
		for b.Reserve(to, 64) != nil {
			b.SetIP(IP{HopLimit: 1})
		}
		b.Reset()
	}); n != 0 {
		t.Errorf("a batch allocates %v times", n)
	}
}
