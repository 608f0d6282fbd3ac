//go:build unix

package replay_test

import (
	"bytes"
	"testing"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/replay"
)

// FuzzRecord: no record makes the replay, or the library on it, panic. It overwrites a part of a record.
func FuzzRecord(f *testing.F) {
	var seeds [][]byte
	for _, name := range []string{"ours_rxe", "ours_siw", "ours_mlx5_roce", "rc_pingpong_write"} {
		seeds = append(seeds, read(f, name+".record"))
	}
	for i := range seeds {
		f.Add(byte(i), 0, []byte(nil))
		f.Add(byte(i), 3000, []byte("0123456789abcdef"))
		f.Add(byte(i), 7000, []byte("ffffffffffffffff"))
	}
	f.Fuzz(func(t *testing.T, seed byte, at int, change []byte) {
		record := bytes.Clone(seeds[int(seed)%len(seeds)])
		copy(record[uint(at)%uint(len(record)):], change)
		r, err := replay.New(bytes.NewReader(record), replay.Options{Name: "fuzzed"})
		if err != nil {
			return
		}
		defer r.Close()
		d, err := uverbs.Open("fuzzed", uverbs.OpenOptions{})
		if err != nil {
			return
		}
		defer d.CloseAll()
		pd, err := d.AllocPD()
		if err != nil {
			return
		}
		if buf, err := uverbs.AllocBuffer(8192, uverbs.BufferOptions{}); err == nil {
			pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteRead})
			defer buf.Close()
		}
		d.Port(1)
		d.GIDTable(1)
		channel, _ := d.CreateCompChannel()
		cq, err := d.CreateCQ(uverbs.CQOptions{Size: 100, Channel: channel})
		if err != nil {
			return
		}
		cq.Notify()
		cq.Poll(make([]uverbs.WC, 4))
		srq, _ := pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 20, MaxSGE: 2})
		if qp, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, SRQ: srq, MaxSendWR: 10, MaxSendSGE: 2, MaxInline: 32}); err == nil {
			qp.Query()
		}
		r.Err()
		r.Unused()
	})
}
