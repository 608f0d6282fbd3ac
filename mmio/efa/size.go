package efa

import "fmt"

// SendSize is the size of a send queue.
type SendSize struct {
	Depth       int  // Depth is the number of requests, a power of two.
	Width       int  // Width is the number of bytes of a request, 64 or 128.
	MaxSGE      int  // MaxSGE is how many scatter/gather entries a SEND may have.
	MaxInline   int  // MaxInline is how many bytes of inline data a request may have.
	InlineWrite bool // InlineWrite says that WRITEs may have inline data.
	Batch       int  // Batch is how many requests one doorbell may announce, 0 without a limit.
}

// Bytes returns the size of the ring in bytes.
func (s SendSize) Bytes() int { return s.Depth * s.Width }

// inlineRoom returns how many bytes of inline data a request has room for.
func (s SendSize) inlineRoom() int {
	if s.Width == wide {
		return inlineWide
	}
	return inlineNarrow
}

// RecvSize is the size of a receive queue. The zero value is none.
type RecvSize struct {
	MaxWR       int // MaxWR is the number of receives.
	MaxSGE      int // MaxSGE is how many scatter/gather entries a receive may have.
	Descriptors int // Descriptors is the number of descriptors, a power of two and at least MaxWR times MaxSGE.
}

// Bytes returns the size of the ring in bytes.
func (s RecvSize) Bytes() int { return s.Descriptors * descriptorSize }

// SendSize returns the size of a send queue for at least maxWR requests, with up to maxSGE entries and
// maxInline bytes of inline data each, also for WRITEs if inlineWrite is set. The error matches ErrSize.
func (c *Context) SendSize(d *Device, maxWR, maxSGE, maxInline int, inlineWrite bool) (SendSize, error) {
	fail := func(what string, got, most int) (SendSize, error) {
		return SendSize{}, fmt.Errorf("%w: %s: got %d, must be from 0 to %d", ErrSize, what, got, most)
	}
	s := SendSize{Width: narrow, MaxSGE: maxSGE, MaxInline: maxInline, InlineWrite: inlineWrite}
	if maxInline > inlineNarrow || inlineWrite {
		s.Width = wide
	}
	if most := c.MaxInline(); maxInline < 0 || maxInline > most {
		return fail("inline data of a send", maxInline, most)
	}
	if inlineWrite && c.MaxInline() <= inlineNarrow {
		return SendSize{}, fmt.Errorf("%w: inline data of a WRITE: the device has no requests of %d bytes", ErrSize, wide)
	}
	if most := min(int(d.MaxSendSGE), MaxSendSGE); maxSGE < 0 || maxSGE > most {
		return fail("scatter/gather entries of a send", maxSGE, most)
	}
	most := floor2(min(int(c.MaxLLQ)/s.Width, int(d.MaxSends), maxDepth))
	if maxWR < 0 || maxWR > most {
		return fail("sends", maxWR, most)
	}
	s.Depth = pow2(max(maxWR, int(c.MinSends), 1))
	if c.MinSends > 0 {
		s.Depth = max(s.Depth, 2) // see Batch below
	}
	if s.Depth > most {
		return SendSize{}, fmt.Errorf("%w: send queue: the device wants at least %d requests, and has memory for %d", ErrSize, c.MinSends, most)
	}
	if c.MaxBatch > 0 {
		if s.Batch = int(c.MaxBatch) * narrow / s.Width; s.Batch == 0 {
			return SendSize{}, fmt.Errorf("%w: send queue: the device accepts %d bytes at a time, and a request has %d", ErrSize, int(c.MaxBatch)*narrow, s.Width)
		}
	}
	if c.MinSends > 0 { // such a device does not accept a whole queue at a time
		if s.Batch == 0 || s.Batch >= s.Depth {
			s.Batch = s.Depth - 1
		}
	}
	return s, nil
}

// floor2 rounds n down to a power of two, or returns 0.
func floor2(n int) int {
	if n < 1 {
		return 0
	}
	return pow2(n/2 + 1)
}

// RecvSize returns the size of a receive queue for at least maxWR receives with up to maxSGE entries each.
// It is the zero value for no receives. The error matches ErrSize.
func (d *Device) RecvSize(maxWR, maxSGE int) (RecvSize, error) {
	if maxWR == 0 {
		return RecvSize{}, nil
	}
	if most := int(d.MaxRecvSGE); maxSGE < 0 || maxSGE > most {
		return RecvSize{}, fmt.Errorf("%w: scatter/gather entries of a receive: got %d, must be from 0 to %d", ErrSize, maxSGE, most)
	}
	maxSGE = max(maxSGE, 1)
	if most := floor2(min(int(d.MaxRecvs), maxDepth)) / maxSGE; maxWR < 0 || maxWR > most {
		return RecvSize{}, fmt.Errorf("%w: receives with %d entries: got %d, must be from 0 to %d", ErrSize, maxSGE, maxWR, most)
	}
	n := pow2(maxWR * maxSGE)
	return RecvSize{MaxWR: n / maxSGE, MaxSGE: maxSGE, Descriptors: n}, nil
}

// CompSize returns the number of entries of each ring of a CQ for at least n completions. The error matches
// ErrSize.
func CompSize(n int) (int, error) {
	if n < 1 || n > maxDepth {
		return 0, fmt.Errorf("%w: completions: got %d, must be from 1 to %d", ErrSize, n, maxDepth)
	}
	return pow2(n), nil
}
