package mlx5

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync/atomic"

	layout "github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/internal/hook"
)

// FrameQueueOptions are the options of [NewFrameQueue]. The queue has a memory of
// Buffers * Strides * StrideSize bytes, by default 8 MiB.
type FrameQueueOptions struct {
	StrideSize int            // StrideSize is a power of two from 64 to 8192; by default 2048. A frame takes as many strides as it needs.
	Strides    int            // Strides is the number of strides of a buffer, a power of two; by default 512. Adapters since ConnectX-5 have fewer, too.
	Buffers    int            // Buffers is the number of buffers; by default 8. One that has a lent frame receives no others.
	Flags      uverbs.WQFlags // Flags are properties of the queue.
	Compressed bool           // Compressed is uverbs.CQCompressed for the completions of the queue.
	Events     bool           // Events gives the queue a channel, for [FrameQueue.Wait].
}

// Defaults of FrameQueueOptions.
const (
	defaultStrideSize = 2048
	defaultStrides    = 512
	defaultBuffers    = 8
)

// A FrameQueue receives Ethernet frames into registered memory without a copy, many to a work request: a
// WQ with strides (a multi-packet or striding receive queue, mlx5dv_create_wq). Poll lends frames to the
// program, which gives them back with Release, in any order. A frame for which there is no buffer is lost.
//
// A QP for raw packets with an [uverbs.RWQIndTable] of the queues brings it frames, as other WQs, and a
// flow says which. The queue keeps its WQ in state [uverbs.WQReady]; post no receives to it.
//
// One goroutine at a time may call Poll and Wait. Release may be called by any number of goroutines.
type FrameQueue struct {
	wq    *uverbs.WQ
	cq    *uverbs.CQ
	ch    *uverbs.CompChannel
	mr    *uverbs.MR
	mem   *uverbs.Buffer
	rings *hook.Strided
	armed bool

	bytes   []byte
	size    uint32 // of a buffer, in bytes
	strides uint32 // of a buffer
	log     uint32 // binary logarithm of the size of a stride

	// The buffer that the device fills, for Poll. Guarded by rings.Mu.
	entry  uint16
	buffer uint32
	used   uint32 // strides; 0 before the first completion
	lent   int32  // frames

	done []uint32 // buffers to post again, while Poll runs

	// refs has, for each buffer, the number of frames that are lent, plus inUse while the device fills it.
	refs []atomic.Int32
}

// inUse is more than the strides of a buffer.
const inUse = 1 << 20

// A Frame is a received Ethernet frame. It is valid until Release.
type Frame struct {
	Data  []byte         // Data is the frame, without its checksum (FCS) unless the queue has uverbs.WQScatterFCS. It lies in the memory of the queue.
	Tag   uint32         // Tag is the tag of the flow that took the frame; see flow.Tag.
	Flags uverbs.WCFlags // Flags have WCWithVLAN, WCIPChecksumOK and WCL4ChecksumOK.
	VLAN  uint16         // VLAN is the tag that the device removed, if Flags has WCWithVLAN; see uverbs.WC.

	buffer uint32 // index + 1
}

// Errors of Poll.
var errStrides = errors.New("mlx5: the adapter has written a completion with strides that the buffer does not have")

// NewFrameQueue creates a queue that is ready to receive. It fails with a [uverbs.FeatureError] if the
// driver is not mlx5, or the adapter does not support strides or compressed completions.
func NewFrameQueue(p *uverbs.PD, o FrameQueueOptions) (*FrameQueue, error) {
	d := p.Device()
	s, err := strides(d, &o)
	if err != nil {
		return nil, err
	}
	q := &FrameQueue{size: 1 << (s.LogBytes + s.LogCount), strides: 1 << s.LogCount, log: uint32(s.LogBytes)}
	q.refs, q.done = make([]atomic.Int32, o.Buffers), make([]uint32, 0, o.Buffers)
	if err := q.create(p, d, &o, s); err != nil {
		return nil, errors.Join(err, q.Close())
	}
	return q, nil
}

// strides checks the options and returns the strides.
func strides(d *uverbs.Device, o *FrameQueueOptions) (s layout.Strides, err error) {
	const op = "NewFrameQueue"
	h, err := core.Device(d)
	if err != nil {
		return s, err
	}
	defer h.Release()
	if h.Part == nil {
		return s, noFeature(h, "CREATE_WQ with strides")
	}
	b, err := core.QueryDevice(d)
	if err != nil {
		return s, err
	}
	l := layout.DecodeStrides(b)
	if l.Max == (layout.Strides{}) {
		return s, lacks("CREATE_WQ with strides", "striding_rq")
	}
	defaults := func(v *int, n int) {
		if *v == 0 {
			*v = n
		}
	}
	defaults(&o.StrideSize, defaultStrideSize)
	defaults(&o.Strides, defaultStrides)
	defaults(&o.Buffers, defaultBuffers)
	for _, f := range []struct {
		field    string
		n        int
		min, max int // binary logarithms
		to       *int
	}{
		{"StrideSize", o.StrideSize, l.Min.LogBytes, l.Max.LogBytes, &s.LogBytes},
		{"Strides", o.Strides, l.Min.LogCount, min(l.Max.LogCount, maxLogStrides), &s.LogCount},
	} {
		if *f.to = bits.Len(uint(f.n)) - 1; f.n < 1 || f.n&(f.n-1) != 0 || *f.to < f.min || *f.to > f.max {
			return s, argErr(op, f.field, f.n, "a power of two, %d to %d", 1<<f.min, 1<<f.max)
		}
	}
	if most := min(int(d.Attr().MaxQPWR), int(d.Attr().MaxCQE)>>s.LogCount); o.Buffers < 1 || o.Buffers > most {
		return s, argErr(op, "Buffers", o.Buffers, "1 to %d with %d strides", most, o.Strides)
	}
	return s, nil
}

// maxLogStrides keeps the number of strides below inUse.
const maxLogStrides = 16

// create creates the objects of the queue and posts all buffers.
func (q *FrameQueue) create(p *uverbs.PD, d *uverbs.Device, o *FrameQueueOptions, s layout.Strides) (err error) {
	if q.mem, err = uverbs.AllocBuffer(o.Buffers*int(q.size), uverbs.BufferOptions{}); err != nil {
		return err
	}
	q.bytes = q.mem.Bytes()
	if q.mr, err = p.RegMR(q.mem, uverbs.MROptions{Access: uverbs.AccessLocalWrite}); err != nil {
		return err
	}
	cq := uverbs.CQOptions{Size: o.Buffers * o.Strides}
	compression := layout.NotCompressed
	if o.Compressed {
		cq.Flags, compression = uverbs.CQCompressed, layout.CompressedStrides
	}
	if o.Events {
		if q.ch, err = d.CreateCompChannel(); err != nil {
			return err
		}
		cq.Channel = q.ch
	}
	if q.cq, err = d.CreateCQ(cq); err != nil {
		return err
	}
	if q.wq, q.rings, err = core.CreateStrided(p, uverbs.WQOptions{CQ: q.cq, MaxWR: o.Buffers, Flags: o.Flags}, s, compression); err != nil {
		return err
	}
	if err = q.wq.Modify(uverbs.WQReady); err != nil {
		return err
	}
	for i := range o.Buffers {
		err = errors.Join(err, q.post(uint32(i)))
	}
	return err
}

// WQ returns the WQ for an indirection table.
func (q *FrameQueue) WQ() *uverbs.WQ { return q.wq }

// post gives a buffer without lent frames to the device.
func (q *FrameQueue) post(buffer uint32) error {
	q.refs[buffer].Store(inUse)
	return q.wq.PostRecv(uint64(buffer), q.mr.SGE(int(buffer)*int(q.size), int(q.size)))
}

// Poll lends the frames that have arrived to the program, up to the length of the slice, and returns
// their number. It does not wait and does not allocate. After an error the queue receives nothing more;
// close it.
func (q *FrameQueue) Poll(frames []Frame) (n int, err error) {
	q.rings.Mu.Lock()
	ring := *q.rings.CQ
	if ring == nil {
		q.rings.Mu.Unlock()
		return 0, fmt.Errorf("mlx5: Poll: %w", os.ErrClosed)
	}
	read := false
	for n < len(frames) {
		e, word := ring.Look()
		if !word.Plain() || !word.Recv() {
			if !word.There() {
				break
			}
			if e, word = ring.Unpack(); !word.Plain() || !word.Recv() {
				err = failed(e)
				break
			}
		}
		if q.used == 0 && !q.begin() {
			err = errStrides
			break
		}
		s, first := e.Strides(), uint32(word.Counter())
		count, length := uint32(s.Count()), s.Length()
		if count == 0 || q.used+count > q.strides || !s.Filler() && (first+count > q.strides || length > count<<q.log) {
			err = errStrides
			break
		}
		if !s.Filler() {
			at := uint64(q.buffer)*uint64(q.size) + uint64(first<<q.log)
			f := &frames[n]
			f.Data, f.Tag, f.buffer = q.bytes[at:at+uint64(length):at+uint64(count<<q.log)], e.QPN(), q.buffer+1
			f.Flags, f.VLAN = uverbs.WCIPChecksumOK*uverbs.WCFlags(e.Checks()), 0
			if tag, ok := e.VLAN(); ok {
				f.VLAN, f.Flags = tag, f.Flags|uverbs.WCWithVLAN
			}
			n++
			q.lent++
		}
		ring.Skip()
		read = true
		if q.used += count; q.used == q.strides {
			q.end()
		}
	}
	if read {
		ring.Release(0)
	}
	q.rings.Mu.Unlock()
	if len(q.done) > 0 {
		err = errors.Join(err, q.repost())
	}
	return n, err
}

// begin takes the buffer whose first completion is there. It returns false if there is no such completion.
func (q *FrameQueue) begin() bool {
	entry, id, ok := q.rings.WQ.Oldest()
	q.entry, q.buffer = entry, uint32(id)
	return ok && id < uint64(len(q.refs))
}

// end ends the use of a buffer by the device.
func (q *FrameQueue) end() {
	q.rings.WQ.Complete(q.entry)
	if q.refs[q.buffer].Add(q.lent-inUse) == 0 {
		q.done = append(q.done, q.buffer)
	}
	q.used, q.lent = 0, 0
}

// repost posts the buffers that the device has filled and of whose frames none are lent.
func (q *FrameQueue) repost() (err error) {
	for _, b := range q.done {
		err = errors.Join(err, q.post(b))
	}
	q.done = q.done[:0]
	return err
}

// failed returns the error of a completion that is not a frame's.
func failed(e layout.CQE) error {
	if e.Kind() == layout.KindRecvError {
		vendor, _ := e.Vendor()
		return fmt.Errorf("mlx5: frame queue: %w (vendor error %#x)", uverbs.WCStatus(e.Status()), vendor)
	}
	return fmt.Errorf("mlx5: frame queue: %w: a completion with opcode %#x", uverbs.ErrCQOverrun, e.RawOpcode())
}

// Release gives frames back and clears them, so that frames that were given back are ignored. The device
// fills a buffer again when all of its frames were given back. Release does not allocate.
//
// A copy of a Frame is the same frame: of both, give only one back.
func (q *FrameQueue) Release(frames []Frame) error {
	var err error
	for i := 0; i < len(frames); {
		buffer, n := frames[i].buffer, int32(0)
		for ; i < len(frames) && frames[i].buffer == buffer; i++ { // frames that came together have one buffer
			frames[i].Data, frames[i].buffer = nil, 0
			n++
		}
		if buffer == 0 {
			continue
		}
		if buffer > uint32(len(q.refs)) {
			return argErr("Release", "frame", "one of another queue", "frames of this queue")
		}
		if q.refs[buffer-1].Add(-n) == 0 {
			err = errors.Join(err, q.post(buffer-1))
		}
	}
	return err
}

// Wait is Poll, but waits for a frame until the context ends. The queue needs the option Events.
func (q *FrameQueue) Wait(ctx context.Context, frames []Frame) (int, error) {
	switch {
	case q.ch == nil:
		return 0, argErr("Wait", "Events", false, "true in FrameQueueOptions")
	case len(frames) == 0:
		return 0, argErr("Wait", "frames", "an empty slice", "room for at least one frame")
	}
	for {
		n, err := q.Poll(frames)
		if n > 0 || err != nil {
			return n, err
		}
		if !q.armed { // and poll again, for what came before
			if err := q.cq.Notify(); err != nil {
				return 0, err
			}
			q.armed = true
			continue
		}
		if _, err := q.ch.Next(ctx); err != nil {
			return 0, err
		}
		q.armed = false
	}
}

// Close destroys the queue and frees its memory. It fails with EBUSY while an indirection table has its
// WQ, and with another error while frames are lent.
func (q *FrameQueue) Close() error {
	if q.wq != nil {
		for _, step := range []func() error{q.unused, q.wq.Close, q.unused} { // again, for what Poll has lent meanwhile
			if err := step(); err != nil {
				return err
			}
		}
	}
	var all []error
	if q.cq != nil {
		all = append(all, q.cq.Close())
	}
	if q.ch != nil {
		all = append(all, q.ch.Close())
	}
	if q.mr != nil {
		all = append(all, q.mr.Close())
	}
	if q.mem != nil {
		all = append(all, q.mem.Close())
	}
	return errors.Join(all...)
}

// unused returns an error while frames are lent.
func (q *FrameQueue) unused() error {
	q.rings.Mu.Lock()
	defer q.rings.Mu.Unlock()
	n := int(q.lent)
	for i := range q.refs {
		if r := int(q.refs[i].Load()); r < inUse/2 {
			n += r
		} else {
			n += r - inUse
		}
	}
	if n > 0 {
		return fmt.Errorf("mlx5: Close: %d frames are lent: Release them first", n)
	}
	return nil
}
