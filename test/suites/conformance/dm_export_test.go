package conformance

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// TestDeviceMemoryExport exports device memory as a dma-buf and registers it with another context of
// the same device: what a peer writes there, the owner of the memory reads, and the other way around.
// When the memory is freed, the region leads nowhere.
func TestDeviceMemoryExport(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "device memory", "mlx5")
		owner := openDevice(t, deviceName)
		dm, err := owner.AllocDM(8192, uverbs.DMOptions{})
		testenv.Skip(t, err)
		must(t, err)
		defer dm.Close()
		f, offset, err := dm.ExportDMABuf()
		testenv.Skip(t, err)
		must(t, err)

		dev := openDevice(t, deviceName)
		a, b := newSide(t, dev, uverbs.QPOptions{}), newSide(t, dev, uverbs.QPOptions{})
		connect(t, a, b)
		mr, err := b.pd.RegDMABuf(f, uverbs.MROptions{Offset: offset + 64, Length: 8192 - 64, IOVA: new(uint64(64)), Access: remoteRights})
		must(t, err, f.Close())
		defer mr.Close()
		const at = 3000 // the text lies over the end of the first page
		want := a.fill(0, 2000, 5)
		if st := a.rdma(t, uverbs.WRRDMAWrite, a.mr.SGE(0, 2000), at, mr.RKey()); st != uverbs.WCSuccess {
			t.Fatalf("RDMA WRITE to exported memory: %s", st)
		}
		got := make([]byte, 2000)
		if _, err := dm.ReadAt(got, at); err != nil || !bytes.Equal(got, want) {
			t.Errorf("the owner of the memory reads something else, %v", err)
		}
		for i := range got {
			got[i] ^= 0x55
		}
		if _, err := dm.WriteAt(got, at+64); err != nil {
			t.Error(err)
		}
		if st := a.rdma(t, uverbs.WRRDMARead, a.mr.SGE(8192, 2000), at+64, mr.RKey()); st != uverbs.WCSuccess {
			t.Errorf("RDMA READ of exported memory: %s", st)
		}
		a.holds(t, 8192, got)
		must(t, b.qp.PostRecv(1, mr.SGE(0, 100)), a.qp.PostSend(send(2, a.mr.SGE(0, 100))))
		a.want(t, 2, uverbs.WCSend)
		b.want(t, 1, uverbs.WCRecv)
		if _, err := dm.ReadAt(got[:100], 64); err != nil || !bytes.Equal(got[:100], want[:100]) {
			t.Errorf("the owner of the memory reads something else than was received, %v", err)
		}

		must(t, dm.Close())
		if st := a.rdma(t, uverbs.WRRDMAWrite, a.mr.SGE(0, 10), 64, mr.RKey()); st == uverbs.WCSuccess {
			t.Error("RDMA WRITE to exported memory that was freed succeeds")
		}
		if _, _, err := dm.ExportDMABuf(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("ExportDMABuf of closed memory: %v, want %v", err, os.ErrClosed)
		}
	})
}
