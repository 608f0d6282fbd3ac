package conformance

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

func TestSend(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{})
		for i, n := range []int{1, 2, 64, 1024, 4096, 5000, 20000} {
			if rig.EFA() && n > efaMTU {
				testenv.NotSupported(t, "messages longer than the MTU")
				continue
			}
			want := a.fill(0, n, byte(i))
			must(t, b.qp.PostRecv(10, b.mr.SGE(32768, 20000)))
			must(t, a.qp.PostSend(send(20, a.mr.SGE(0, n))))
			a.want(t, 20, uverbs.WCSend)
			wc := b.want(t, 10, uverbs.WCRecv)
			if int(wc.ByteLen) != n || wc.Flags&uverbs.WCWithImm != 0 {
				t.Fatalf("received %d bytes with flags %#x, want %d with none", wc.ByteLen, wc.Flags, n)
			}
			b.holds(t, 32768, want)
		}
	})
}

// TestSendAcross uses two devices: packets go from one netdev to the other.
func TestSendAcross(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		a := newSide(t, openDevice(t, rig.Devices[0]), uverbs.QPOptions{})
		b := newSide(t, openDevice(t, rig.Devices[1]), uverbs.QPOptions{})
		connect(t, a, b)
		want := a.fill(0, 4096, 7)
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, 4096)), a.qp.PostSend(send(2, a.mr.SGE(0, 4096))))
		a.want(t, 2, uverbs.WCSend)
		b.want(t, 1, uverbs.WCRecv)
		b.holds(t, 0, want)
	})
}

func TestSendEmpty(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{})
		must(t, b.qp.PostRecv(1), a.qp.PostSend(send(2)))
		a.want(t, 2, uverbs.WCSend)
		if wc := b.want(t, 1, uverbs.WCRecv); wc.ByteLen != 0 {
			t.Fatalf("received %d bytes, want 0", wc.ByteLen)
		}
	})
}

func TestImmediate(t *testing.T) {
	testenv.NeedsIB(t, "immediate data")
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{})
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, 100)), b.qp.PostRecv(2))

		want := a.fill(0, 100, 1)
		wr := send(3, a.mr.SGE(0, 100))
		wr.Opcode, wr.Imm = uverbs.WRSendWithImm, 0x01020304
		must(t, a.qp.PostSend(wr))
		a.want(t, 3, uverbs.WCSend)
		wc := b.want(t, 1, uverbs.WCRecv)
		if wc.Imm != wr.Imm || wc.Flags&uverbs.WCWithImm == 0 {
			t.Fatalf("immediate %#x with flags %#x, want %#x", wc.Imm, wc.Flags, wr.Imm)
		}
		b.holds(t, 0, want)

		wr.Opcode, wr.Imm, wr.RemoteAddr, wr.RKey = uverbs.WRRDMAWriteWithImm, 0xfffffffe, b.mr.Addr()+500, b.mr.RKey()
		must(t, a.qp.PostSend(wr))
		a.want(t, 3, uverbs.WCRDMAWrite)
		wc = b.want(t, 2, uverbs.WCRecvRDMAWrite)
		if wc.Imm != wr.Imm || wc.ByteLen != 100 {
			t.Fatalf("immediate %#x and length %d, want %#x and 100", wc.Imm, wc.ByteLen, wr.Imm)
		}
		b.holds(t, 500, want)
	})
}

func TestWriteRead(t *testing.T) {
	testenv.Tags(t, testenv.Unordered)
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{})
		for _, n := range []int{1, 1024, 20000} {
			want := a.fill(0, n, byte(n))
			wr := send(1, a.mr.SGE(0, n))
			wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMAWrite, b.mr.Addr()+1000, b.mr.RKey()
			must(t, a.qp.PostSend(wr))
			a.want(t, 1, uverbs.WCRDMAWrite)
			b.holds(t, 1000, want)

			wr.ID, wr.Opcode, wr.SGL = 2, uverbs.WRRDMARead, []uverbs.SGE{a.mr.SGE(40000, n)}
			must(t, a.qp.PostSend(wr))
			a.want(t, 2, uverbs.WCRDMARead)
			a.holds(t, 40000, want)
		}
		b.none(t)
	})
}

func TestManySGEs(t *testing.T) {
	testenv.NotOnEFA(t, "requests with 4 SGEs")
	testenv.Tags(t, testenv.AnyLink)
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{MaxSendSGE: 4, MaxRecvSGE: 3})
		want := append([]byte{}, a.fill(100, 10, 1)...)
		want = append(want, a.fill(3000, 2000, 2)...)
		want = append(want, a.fill(9000, 1, 3)...)
		want = append(want, a.fill(10000, 989, 4)...)
		must(t, b.qp.PostRecv(1, b.mr.SGE(5000, 1), b.mr.SGE(0, 1999), b.mr.SGE(6000, 5000)))
		must(t, a.qp.PostSend(send(2, a.mr.SGE(100, 10), a.mr.SGE(3000, 2000), a.mr.SGE(9000, 1), a.mr.SGE(10000, 989))))
		a.want(t, 2, uverbs.WCSend)
		if wc := b.want(t, 1, uverbs.WCRecv); wc.ByteLen != 3000 {
			t.Fatalf("received %d bytes, want 3000", wc.ByteLen)
		}
		b.holds(t, 5000, want[:1])
		b.holds(t, 0, want[1:2000])
		b.holds(t, 6000, want[2000:])

		sge := a.mr.SGE(0, 1)
		err := a.qp.PostSend(send(1, sge), send(3, sge, sge, sge, sge, sge))
		var post *uverbs.PostError
		if !errors.As(err, &post) || post.Index != 1 || !errors.Is(err, uverbs.ErrTooManySGE) {
			t.Fatalf("five SGEs: %v, want ErrTooManySGE at index 1", err)
		}
		a.none(t)
	})
}

func TestInline(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard)
	testenv.NeedsIB(t, "inline data of 128 bytes")
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{MaxInline: 128})
		if got := a.qp.Caps().MaxInline; got < 128 {
			t.Fatalf("Caps().MaxInline is %d, asked for 128", got)
		}
		data := []byte("inline data that lives on the Go heap and is not registered")
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, 128)))
		wr := uverbs.SendWR{ID: 2, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, Inline: data}
		must(t, a.qp.PostSend(wr))
		want := string(data)
		clear(data) // it has been copied
		a.want(t, 2, uverbs.WCSend)
		b.want(t, 1, uverbs.WCRecv)
		b.holds(t, 0, []byte(want))

		copy(data, want)
		wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMAWrite, b.mr.Addr()+300, b.mr.RKey()
		must(t, a.qp.PostSend(wr))
		a.want(t, 2, uverbs.WCRDMAWrite)
		b.holds(t, 300, []byte(want))

		wr.Inline = make([]byte, a.qp.Caps().MaxInline+1)
		if err := a.qp.PostSend(wr); !errors.Is(err, uverbs.ErrInlineTooLong) {
			t.Fatalf("too much inline data: %v", err)
		}
	})
}

// TestInlineLimit asks for more inline data than any driver has and learns the limit.
func TestInlineLimit(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		s := newSide(t, openDevice(t, deviceName), uverbs.QPOptions{})
		o := uverbs.QPOptions{Type: reliable, SendCQ: s.cq, RecvCQ: s.cq, MaxInline: 60000}
		_, err := s.pd.CreateQP(o)
		arg := argError(t, err, "MaxInline")
		limit, least := 0, 64
		if rig.EFA() {
			least = 32
		}
		if _, err := fmt.Sscanf(arg.Allowed, "0 to %d bytes", &limit); err != nil || limit < least {
			t.Fatalf("allowed is %q, want a limit", arg.Allowed)
		}
		o.MaxInline = limit
		qp, err := s.pd.CreateQP(o)
		must(t, err)
		must(t, qp.Close())
		o.MaxInline++
		if qp, err := s.pd.CreateQP(o); err == nil {
			qp.Close()
			t.Fatalf("%d bytes are taken, but the limit was said to be %d", o.MaxInline, limit)
		}
	})
}

// TestBatch posts a list with one doorbell, of which only the last is signalled.
func TestBatch(t *testing.T) {
	testenv.NotOnEFA(t, "completions in the order of posting")
	eachPath(t, func(t *testing.T) {
		const n = 16
		a, b := pair(t, uverbs.QPOptions{})
		var sends []uverbs.SendWR
		var recvs []uverbs.RecvWR
		for i := range n {
			binary.LittleEndian.PutUint64(a.buf.Bytes()[8*i:], uint64(1000+i))
			wr := send(uint64(i), a.mr.SGE(8*i, 8))
			if i < n-1 {
				wr.Flags = 0
			}
			sends = append(sends, wr)
			recvs = append(recvs, uverbs.RecvWR{ID: uint64(100 + i), SGL: []uverbs.SGE{b.mr.SGE(8*i, 8)}})
		}
		must(t, b.qp.PostRecvs(recvs...), a.qp.PostSend(sends...))
		a.want(t, n-1, uverbs.WCSend)
		for i := range n {
			b.want(t, uint64(100+i), uverbs.WCRecv)
			if got := binary.LittleEndian.Uint64(b.buf.Bytes()[8*i:]); got != uint64(1000+i) {
				t.Fatalf("message %d holds %d", i, got)
			}
		}
		a.none(t)
	})
}

// TestSignalAll checks that SignalAll raises completions of unsignalled requests.
func TestSignalAll(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{SignalAll: true})
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, 8)))
		wr := send(5, a.mr.SGE(0, 8))
		wr.Flags = 0
		must(t, a.qp.PostSend(wr))
		a.want(t, 5, uverbs.WCSend)
		b.want(t, 1, uverbs.WCRecv)
	})
}

// TestFence reads and then writes the same memory in one batch; the fence makes the write
// wait for the read. On rxe the link is slow, so that without the fence the write does not
// have what the read brings; otherwise nobody could tell. Where the processor is taken away in
// between it may have it all the same, but not every time.
func TestFence(t *testing.T) {
	testenv.Tags(t, testenv.Unordered)
	testenv.NeedsIB(t, "completions in the order of posting")
	eachPath(t, func(t *testing.T) {
		const n, to = 20000, 30000
		a := newSide(t, openDevice(t, rig.Devices[0]), uverbs.QPOptions{})
		b := newSide(t, openDevice(t, rig.Devices[1]), uverbs.QPOptions{})
		connect(t, a, b)
		if !onMLX5 && !rig.Soft {
			slowLink(t, "5ms")
		}
		told := false // whether the fence makes a difference
		for round := 0; round < 3 || round < 20 && !told; round++ {
			for _, fence := range []uverbs.SendFlags{uverbs.SendFence, 0} {
				old := append([]byte{}, b.fill(0, n, byte(50+round))...)
				clear(a.buf.Bytes()[:n])
				read := uverbs.SendWR{ID: 1, Opcode: uverbs.WRRDMARead, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{a.mr.SGE(0, n)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
				write := uverbs.SendWR{ID: 2, Opcode: uverbs.WRRDMAWrite, Flags: uverbs.SendSignaled | fence, SGL: []uverbs.SGE{a.mr.SGE(0, n)}, RemoteAddr: b.mr.Addr() + to, RKey: b.mr.RKey()}
				must(t, a.qp.PostSend(read, write))
				a.want(t, 1, uverbs.WCRDMARead)
				a.want(t, 2, uverbs.WCRDMAWrite)
				if fence != 0 {
					b.holds(t, to, old) // what was written is what the read brought
				} else if !bytes.Equal(b.buf.Bytes()[to:][:n], old) {
					told = true
				}
			}
		}
		if !told {
			t.Error("without the fence the write waits as well: the test sees nothing")
		}
	})
}

// slowLink has what the first device sends take a while, such as "5ms", until the end of the test.
func slowLink(t *testing.T, delay string) {
	t.Helper()
	testenv.Tags(t, testenv.Machine)
	netdev := rig.Netdevs[0]
	if rig.IWARP() { // TCP between two addresses of one host
		netdev = "lo"
	}
	link := func(args ...string) {
		if out, err := exec.Command("vmlink", append([]string{netdev, "netem"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("vmlink: %s%v", out, err)
		}
	}
	link("delay", delay)
	t.Cleanup(func() { link("off") })
}

// TestRingWrap sends more messages than any ring has entries.
func TestRingWrap(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink, testenv.SpecialCard)
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{MaxSendWR: 5, MaxRecvWR: 5})
		for i := range 1000 {
			binary.LittleEndian.PutUint32(a.buf.Bytes(), uint32(i))
			must(t, b.qp.PostRecv(uint64(i), b.mr.SGE(0, 8)), a.qp.PostSend(send(uint64(i), a.mr.SGE(0, 4))))
			a.want(t, uint64(i), uverbs.WCSend)
			b.want(t, uint64(i), uverbs.WCRecv)
			if got := binary.LittleEndian.Uint32(b.buf.Bytes()); got != uint32(i) {
				t.Fatalf("message %d holds %d", i, got)
			}
		}
	})
}

// TestRegSlice uses memory of the Go heap.
func TestRegSlice(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{})
		heap := make([]byte, 3000)
		for i := range heap {
			heap[i] = byte(i * 7)
		}
		mr, err := a.pd.RegSlice(heap, 0)
		must(t, err)
		closeLater(t, mr)
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, 3000)), a.qp.PostSend(send(2, mr.SGE(0, 3000))))
		a.want(t, 2, uverbs.WCSend)
		b.want(t, 1, uverbs.WCRecv)
		b.holds(t, 0, heap)
	})
}

// TestManyQPs has several goroutines play on QPs of their own, on one device.
func TestManyQPs(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		const pairs, rounds = 8, 50
		var wg sync.WaitGroup
		errs := make(chan error, pairs)
		for p := range pairs {
			a, b := newSide(t, dev, uverbs.QPOptions{}), newSide(t, dev, uverbs.QPOptions{})
			connect(t, a, b)
			wg.Go(func() {
				for i := range rounds {
					if err := exchange(a, b, uint32(p*rounds+i)); err != nil {
						errs <- err
						return
					}
				}
			})
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			t.Error(err)
		}
	})
}

// exchange sends a number from a to b. It does not use testing.T, so that it can run in
// a goroutine.
func exchange(a, b *side, number uint32) error {
	binary.LittleEndian.PutUint32(a.buf.Bytes(), number)
	if err := errors.Join(b.qp.PostRecv(1, b.mr.SGE(0, 4)), a.qp.PostSend(send(2, a.mr.SGE(0, 4)))); err != nil {
		return err
	}
	var wcs [2]uverbs.WC
	for _, s := range []*side{a, b} {
		for {
			n, err := s.cq.Poll(wcs[:])
			if err != nil {
				return err
			}
			if n > 0 {
				if err := s.qp.Err(&wcs[0]); err != nil {
					return err
				}
				break
			}
		}
	}
	if got := binary.LittleEndian.Uint32(b.buf.Bytes()); got != number {
		return fmt.Errorf("message holds %d, want %d", got, number)
	}
	return nil
}
