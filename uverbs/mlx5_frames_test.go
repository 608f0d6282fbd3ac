//go:build amd64 || arm64

package uverbs_test

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/mlx5"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// received is the opcode of a frame's completion.
const received = 2 << 4

// newFrameQueue makes a queue of two buffers of 8 strides of 64 bytes.
func newFrameQueue(t *testing.T) (*uverbs.FrameCard, *mlx5.FrameQueue) {
	t.Helper()
	c := uverbs.NewFrameCard(t, true)
	q, err := mlx5.NewFrameQueue(c.PD, mlx5.FrameQueueOptions{StrideSize: 64, Strides: 8, Buffers: 2})
	testenv.Must(t, err)
	return c, q
}

// TestFrameQueueStrides: frames are lent where the adapter has put them, strides that it has not used are passed over, and a
// buffer is posted again when all of its frames were given back.
func TestFrameQueueStrides(t *testing.T) {
	c, q := newFrameQueue(t)
	frames := make([]mlx5.Frame, 8)
	poll := func(want int) {
		t.Helper()
		if n, err := q.Poll(frames); n != want || err != nil {
			t.Fatalf("%d frames, %v, want %d", n, err, want)
		}
	}
	for range 5 { // nothing to give back when the adapter has filled the buffer
		c.Put(t, received, 1<<31|8<<16, 0, nil)
		poll(0)
		c.Put(t, received, 1<<16|60, 0, nil)
		poll(1)
		testenv.Must(t, q.Release(frames))
		c.Put(t, received, 1<<31|7<<16, 1, nil)
		poll(0)
	}
	for range 5 {
		c.Put(t, received, 3<<16|130, 0, map[int]byte{28: 6, 29: 1, 30: 0x20, 31: 5, 59: 9})
		c.Put(t, received, 4<<16|200, 3, map[int]byte{28: 2})
		c.Put(t, received, 1<<31|1<<16, 7, nil)
		c.Put(t, received, 8<<16|512, 0, nil)
		poll(3)
		all := uverbs.WCIPChecksumOK | uverbs.WCL4ChecksumOK | uverbs.WCWithVLAN
		if f := frames[0]; len(f.Data) != 130 || cap(f.Data) != 192 || f.Flags != all || f.VLAN != 0x2005 || f.Tag != 9 {
			t.Errorf("frame of %d bytes in %d: %+v", len(f.Data), cap(f.Data), f)
		}
		if f := frames[1]; len(f.Data) != 200 || cap(f.Data) != 256 || f.Flags != uverbs.WCIPChecksumOK || f.VLAN != 0 || f.Tag != 0 {
			t.Errorf("frame of %d bytes in %d: %+v", len(f.Data), cap(f.Data), f)
		}
		for i := range 3 { // no memory is of two frames
			for k := range frames[i].Data[:cap(frames[i].Data)] {
				frames[i].Data[:cap(frames[i].Data)][k] = byte(i + 1)
			}
		}
		for i, n := range []int{192, 256, 512} {
			if want := bytes.Repeat([]byte{byte(i + 1)}, n); !bytes.Equal(frames[i].Data[:n], want) {
				t.Errorf("frame %d of %d bytes has memory of another one", i, n)
			}
		}
		if err := q.Close(); err == nil || !strings.Contains(err.Error(), "3 frames") {
			t.Errorf("Close with 3 lent frames: %v", err)
		}
		poll(0)
		// Both buffers are lent: a completion without a receive is an error, which the next round would have.
		testenv.Must(t, q.Release(frames[1:3]), q.Release(frames), q.Release(frames))
	}
	testenv.Must(t, q.Close(), q.Close())
	if _, err := q.Poll(frames); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Poll after Close: %v", err)
	}
}

// TestFrameQueueBad: what an adapter cannot have meant is an error, and no memory beyond the buffers is lent.
func TestFrameQueueBad(t *testing.T) {
	for name, put := range map[string]func(c *uverbs.FrameCard){
		"no strides":          func(c *uverbs.FrameCard) { c.Put(t, received, 60, 0, nil) },
		"too many strides":    func(c *uverbs.FrameCard) { c.Put(t, received, 9<<16|60, 0, nil) },
		"strides beyond":      func(c *uverbs.FrameCard) { c.Put(t, received, 2<<16|60, 7, nil) },
		"a stride far beyond": func(c *uverbs.FrameCard) { c.Put(t, received, 1<<16|60, 0xffff, nil) },
		"longer than strides": func(c *uverbs.FrameCard) { c.Put(t, received, 1<<16|65, 0, nil) },
		"the largest values":  func(c *uverbs.FrameCard) { c.Put(t, received, 1<<32-1, 0xffff, nil) },
		"a send":              func(c *uverbs.FrameCard) { c.Put(t, 0, 0, 0, nil) },
		"a failed receive":    func(c *uverbs.FrameCard) { c.Put(t, 14<<4, 0, 0, map[int]byte{54: 0x11, 55: 5}) },
		"compressed":          func(c *uverbs.FrameCard) { c.Put(t, received|0xc, 2, 0, nil) },
		"more than is posted": func(c *uverbs.FrameCard) {
			c.Put(t, received, 8<<16, 0, nil)
			c.Put(t, received, 8<<16, 0, nil)
			c.Put(t, received, 8<<16, 0, nil)
		},
		"strides used once too": func(c *uverbs.FrameCard) { c.Put(t, received, 7<<16, 0, nil); c.Put(t, received, 2<<16, 0, nil) },
	} {
		c, q := newFrameQueue(t)
		put(c)
		frames := make([]mlx5.Frame, 8)
		_, err := q.Poll(frames)
		if err == nil || name == "a failed receive" && !errors.Is(err, uverbs.WCWRFlushErr) {
			t.Errorf("%s: %v, want an error", name, err)
		}
		testenv.Must(t, q.Release(frames), q.Close())
	}
}

// TestFrameQueueLarge: no two buffers have the same memory, beyond 4 GiB either.
func TestFrameQueueLarge(t *testing.T) {
	c := uverbs.NewFrameCard(t, true)
	const strides, size = 1 << 15, 8192
	q, err := mlx5.NewFrameQueue(c.PD, mlx5.FrameQueueOptions{StrideSize: size, Strides: strides, Buffers: 18})
	testenv.Must(t, err)
	frames := make([]mlx5.Frame, 18)
	for range frames { // a count has 15 bits
		c.Put(t, received, 1<<16|60, 1, nil)
		c.Put(t, received, 1<<31|(strides-1)<<16|0xffff, 2, nil)
	}
	if n, err := q.Poll(frames); n != len(frames) || err != nil {
		t.Fatalf("%d frames, %v", n, err)
	}
	for i, f := range frames {
		f.Data[0] = byte(i + 1)
	}
	for i, f := range frames {
		if f.Data[0] != byte(i+1) {
			t.Errorf("frame %d has the memory of frame %d", i, f.Data[0]-1)
		}
	}
	testenv.Must(t, q.Release(frames), q.Close())
}

// TestFrameQueueConcurrent: goroutines give back the frames of one buffer while Poll lends those of the other one.
func TestFrameQueueConcurrent(t *testing.T) {
	c, q := newFrameQueue(t)
	var given [2]sync.WaitGroup
	for round := range 1000 {
		given[round%2].Wait()
		frames := make([]mlx5.Frame, 8)
		for i := range uint16(8) {
			c.Put(t, received, 1<<16|uint32(i+1), i, nil)
			if n, err := q.Poll(frames[i:]); n != 1 || err != nil || len(frames[i].Data) != int(i+1) {
				t.Fatalf("round %d: %d frames, %v", round, n, err)
			}
			given[round%2].Go(func() {
				if err := q.Release(frames[i : i+1]); err != nil {
					t.Error(err)
				}
			})
		}
	}
	given[0].Wait()
	given[1].Wait()
	testenv.Must(t, q.Close())
}

// TestFrameQueueLateFrame: a frame that Poll lends while Close destroys the WQ keeps its memory until Release.
func TestFrameQueueLateFrame(t *testing.T) {
	c, q := newFrameQueue(t)
	frames := make([]mlx5.Frame, 8)
	c.Ask = func() {
		c.Ask = nil
		c.Put(t, received, 1<<16|60, 0, nil)
		if n, err := q.Poll(frames); n != 1 || err != nil {
			t.Errorf("%d frames, %v, want 1", n, err)
		}
	}
	if err := q.Close(); err == nil || !strings.Contains(err.Error(), "1 frames") {
		t.Errorf("Close with a frame that came meanwhile: %v", err)
	}
	frames[0].Data[0]++
	testenv.Must(t, q.Release(frames), q.Close())
}

// TestFrameQueueRefused: what is not supported, or out of range, is refused before anything is created.
func TestFrameQueueRefused(t *testing.T) {
	c := uverbs.NewFrameCard(t, true)
	for field, o := range map[string]mlx5.FrameQueueOptions{
		"StrideSize": {StrideSize: 96}, "Strides": {Strides: 4}, "Buffers": {Buffers: -1}, "Flags": {Flags: 1 << 30},
	} {
		_, err := mlx5.NewFrameQueue(c.PD, o)
		isArg(t, err, field)
	}
	_, err := mlx5.NewFrameQueue(uverbs.NewFrameCard(t, false).PD, mlx5.FrameQueueOptions{})
	lacksCap(t, err, "striding_rq")
	d, err := uverbs.Open(soft.NewT(t, soft.Options{}).Name(), uverbs.OpenOptions{})
	testenv.Must(t, err)
	defer d.Close()
	pd, err := d.AllocPD()
	testenv.Must(t, err)
	defer pd.Close()
	_, err = mlx5.NewFrameQueue(pd, mlx5.FrameQueueOptions{})
	errorUnsupported(t, err)
	_, err = d.CreateCQ(uverbs.CQOptions{Flags: uverbs.CQCompressed})
	errorUnsupported(t, err)
}

func errorUnsupported(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("%v, want a FeatureError", err)
	}
}
