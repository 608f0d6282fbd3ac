package mlx5

import "fmt"

// Limits that follow from the width of fields, on every device.
const (
	maxBlocks     = 1 << 15 // of a send queue: the difference of two 16-bit indices tells full from empty
	maxEntries    = 1 << 15 // of a receive queue: the difference of two 16-bit indices tells full from empty
	maxSRQEntries = 1 << 16
	maxCQEs       = 1 << 24 // of the index that the device is told; it has fewer as a rule, and says so in max_cqe
	maxInlineData = 0x3ff   // the field's width
	minSendWQE    = 512
	maxSendWQE    = ctrlSizeMask * octoSize // the field for the size has 6 bits, so the last 16 bytes of 1,024 stay empty
	ethHeader     = 18                      // MLX5_ETH_L2_INLINE_HEADER_SIZE
)

// Transport is the type of a QP as far as it determines the format of WQEs.
type Transport uint8

// Transports.
const (
	Connected Transport = iota // RC and UC
	Datagram                   // UD
	XRC                        // sending side of XRC
	Raw                        // Ethernet frames
	DC                         // initiators of the dynamically connected transport
)

// head returns how many bytes a WQE has before its data, and how many of them are before the part
// that depends on the operation.
func (t Transport) head() (first, all int) {
	switch t {
	case Datagram:
		return ctrlSize + avSize, ctrlSize + avSize
	case Raw:
		return ctrlSize + ethSize, ctrlSize + ethRoom
	case XRC:
		return ctrlSize + xrcSize, xrcSize + umrWQE
	case DC:
		return ctrlSize + avSize, avSize + umrWQE
	}
	return ctrlSize, umrWQE
}

// room returns how many bytes of data segments fit into a WQE with any operation.
func (t Transport) room() int {
	switch t {
	case Datagram:
		return maxSendWQE - ctrlSize - avSize
	case Raw:
		return maxSendWQE - ctrlSize - ethRoom
	case XRC:
		return maxSendWQE - ctrlSize - xrcSize - raddrSize - atomicSize
	case DC:
		return maxSendWQE - ctrlSize - avSize - raddrSize - atomicSize
	}
	return maxSendWQE - ctrlSize - raddrSize - atomicSize
}

// umrWQE is the size of the WQE that binds a window, in bytes. It is the longest WQE without data.
const umrWQE = ctrlSize + umrCtrlSize + mkeySize + klmSize

// SendSize is the size of a send queue.
type SendSize struct {
	Blocks    int // Blocks is the number of 64-byte blocks, a power of two; 0 if there is no queue.
	MaxWR     int // MaxWR is the maximum number of work requests.
	MaxSGE    int // MaxSGE is the maximum number of SGEs of a work request.
	MaxInline int // MaxInline is the maximum number of bytes of inline data.
}

// SizeSend returns the size of a send queue for maxWR work requests, each with maxSGE entries or
// maxInline bytes. The error matches ErrSize and says what the device allows.
func (c *Context) SizeSend(t Transport, maxWR, maxSGE, maxInline int) (SendSize, error) {
	if maxWR == 0 {
		return SendSize{}, nil
	}
	_, head := t.head()
	if most := min(c.MaxSendWQE-head, t.room()) / dataSize; maxSGE < 0 || maxSGE > most {
		return SendSize{}, sizeErr("MaxSendSGE", maxSGE, most)
	}
	if most := min(c.MaxSendWQE-head-inlineSize, t.room()-inlineSize, maxInlineData); maxInline < 0 || maxInline > most {
		return SendSize{}, sizeErr("MaxInline", maxInline, most)
	}
	wqe := head + maxSGE*dataSize
	if maxInline > 0 {
		wqe = max(wqe, head+alignUp(inlineSize+maxInline, octoSize))
	}
	wqe = alignUp(wqe, blockSize)
	if wqe > c.MaxSendWQE {
		return SendSize{}, sizeErr("MaxInline", maxInline, c.MaxSendWQE-head-inlineSize)
	}
	if most := c.MaxBlocks * blockSize / wqe; maxWR < 0 || maxWR > most {
		return SendSize{}, sizeErr("MaxSendWR", maxWR, most)
	}
	bytes := pow2(maxWR * wqe)
	if bytes/blockSize > c.MaxBlocks {
		return SendSize{}, sizeErr("MaxSendWR", maxWR, c.MaxBlocks*blockSize/wqe/2)
	}
	return SendSize{
		Blocks: bytes / blockSize,
		MaxWR:  bytes / wqe,
		MaxSGE: maxSGE,
		// The space that rounding up adds can be used.
		MaxInline: max(0, min(wqe-head-inlineSize, t.room()-inlineSize, maxInlineData)),
	}, nil
}

// Bytes returns the size of the ring in bytes.
func (s SendSize) Bytes() int { return s.Blocks * blockSize }

// RecvSize is the size of a receive queue.
type RecvSize struct {
	Entries int     // Entries is the number of entries, a power of two; 0 if there is no queue.
	Shift   int     // Shift is the binary logarithm of an entry's size in bytes.
	MaxSGE  int     // MaxSGE is the maximum number of SGEs of an entry.
	InUse   int     // InUse is the number of entries that may be posted at a time, if it is not all of them.
	Strides Strides // Strides divide the memory of a receive; only for a WQ.
	Cooling int     // Cooling is the number of entries kept unused after page faults; only for a shared receive queue.
}

// SizeRecv returns the size of a receive queue for maxWR work requests of maxSGE entries.
func (c *Context) SizeRecv(maxWR, maxSGE int) (RecvSize, error) {
	if maxWR == 0 {
		return RecvSize{}, nil
	}
	if most := c.MaxRecvWQE / dataSize; maxSGE < 0 || maxSGE > most {
		return RecvSize{}, sizeErr("MaxRecvSGE", maxSGE, most)
	}
	if most := c.MaxRecvWR; maxWR < 0 || maxWR > most {
		return RecvSize{}, sizeErr("MaxRecvWR", maxWR, most)
	}
	size := pow2(max(maxSGE, 1) * dataSize)
	entries := max(pow2(maxWR)*size, blockSize) / size
	return RecvSize{Entries: entries, Shift: log2(size), MaxSGE: size / dataSize}, nil
}

// SizeRecvOutOfOrder is SizeRecv for a queue whose entries the device uses in any order, which at most half
// of the entries may be posted to at a time.
func (c *Context) SizeRecvOutOfOrder(maxWR, maxSGE int) (RecvSize, error) {
	if most := c.MaxRecvWR / 2; maxWR < 0 || maxWR > most {
		return RecvSize{}, sizeErr("MaxRecvWR", maxWR, most)
	}
	s, err := c.SizeRecv(2*maxWR, maxSGE)
	s.InUse = s.Entries / 2
	return s, err
}

// Bytes returns the size of the ring in bytes.
func (s RecvSize) Bytes() int { return s.Entries << s.Shift }

// SizeSRQ returns the size of a shared receive queue. The entry after the last posted one is always
// unused. If faults says that receives may wait for pages, at least maxWR more entries are kept
// unused after page faults, unless the device has no room for them; see [SharedRecvQueue.Repost].
func (c *Context) SizeSRQ(maxWR, maxSGE int, faults bool) (RecvSize, error) {
	if most := max(c.MaxRecvWQE/dataSize-nextSize/dataSize, 0); maxSGE < 0 || maxSGE > most {
		return RecvSize{}, sizeErr("MaxSGE", maxSGE, most)
	}
	if most := max(c.MaxSRQWR-1, 0); maxWR < 1 || maxWR > most {
		return RecvSize{}, sizeErr("MaxWR", maxWR, most)
	}
	size := max(pow2(nextSize+maxSGE*dataSize), minSRQEntry)
	s := RecvSize{Entries: pow2(maxWR + 1), Shift: log2(size), MaxSGE: (size - nextSize) / dataSize}
	if all := pow2(2*maxWR + 1); faults && all <= c.MaxSRQWR {
		s.Entries, s.Cooling = all, all-s.Entries
	}
	return s, nil
}

// minSRQEntry is the size of the smallest entry of a shared receive queue, in bytes.
const minSRQEntry = 32

// SizeCQ returns the number of entries of a completion queue, a power of two. The kernel gets this
// number minus one.
func SizeCQ(cqe int) (int, error) {
	if cqe < 1 || cqe > maxCQEs-1 {
		return 0, sizeErr("size", cqe, maxCQEs-1)
	}
	return pow2(cqe + 1), nil
}

// log2 returns the binary logarithm of a power of two.
func log2(n int) int {
	k := 0
	for n > 1 {
		n >>= 1
		k++
	}
	return k
}

// A SizeError reports a size of a queue that the device does not support. It matches ErrSize.
type SizeError struct {
	What string // What names the size, usually by its option: MaxSendSGE and so on.
	Got  int    // Got is the requested value.
	Most int    // Most is the largest value that the device supports.
}

// Error implements error.
func (e *SizeError) Error() string {
	return fmt.Sprintf("%s: %s: got %d, at most %d", ErrSize, e.What, e.Got, e.Most)
}

// Unwrap returns ErrSize.
func (e *SizeError) Unwrap() error { return ErrSize }

func sizeErr(what string, got, most int) error { return &SizeError{What: what, Got: got, Most: most} }
