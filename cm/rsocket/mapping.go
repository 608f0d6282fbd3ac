package rsocket

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"syscall"

	"github.com/goverbs/goverbs/cm/internal/protocol"
	"github.com/goverbs/goverbs/uverbs"
)

// mappingSize is the size of an entry for mapped memory on the wire, in bytes.
const mappingSize = 24

// maxMappings is how many mappings [Options] may allow.
const maxMappings = 128

// mapping is memory that can be written at offsets from its own on.
type mapping struct {
	offset uint64
	memory segment
}

// put writes a mapping in the given byte order.
func (m mapping) put(b []byte, order binary.ByteOrder) {
	order.PutUint64(b, m.offset)
	m.memory.put(b[8:], order)
}

// getMapping reads a mapping.
func getMapping(b []byte, order binary.ByteOrder) mapping {
	return mapping{order.Uint64(b), getSegment(b[8:], order)}
}

// at returns the part of the memory from an offset on, which is empty if the offset is not in it.
func (m mapping) at(offset uint64) segment {
	if offset < m.offset || offset-m.offset >= uint64(m.memory.length) {
		return segment{}
	}
	skip := uint32(offset - m.offset)
	return segment{m.memory.addr + uint64(skip), m.memory.key, m.memory.length - skip}
}

// Mapping is memory of this side that the peer can write at any time, by riowrite or [Conn.WriteAt].
// No method reports when it does; a program may look at the memory, or wait for data that the peer has
// sent afterwards. Its methods may be called at any time.
type Mapping struct {
	c      *conn
	index  int
	region *protocol.Region
	size   int
}

// Bytes returns the memory, which is valid until the mapping or the connection is closed. It returns nil afterwards.
func (m *Mapping) Bytes() []byte {
	b := m.region.MR.Bytes()
	if len(b) < m.size { // closed
		return nil
	}
	return b[:m.size:m.size]
}

// Close takes the memory away from the peer (riounmap). It does not tell the peer, whose later writes
// end the connection. After the connection was closed, Close does nothing.
func (m *Mapping) Close() error {
	m.c.Mu.Lock()
	defer m.c.Mu.Unlock()
	if m.c.Closed || m.c.mapped[m.index] != m {
		return nil
	}
	m.c.mapped[m.index] = nil
	return m.c.OpError("unmap", m.c.Unregister(m.region))
}

// Map gives the peer memory of the given size, in bytes up to 1 GiB, that it can write at offsets from
// offset on, which is at least 0 (riomap). The peer must have room for one more mapping; otherwise the error
// matches ENOSPC. librdmacm has room for as many as the option RDMA_IOMAPSIZE says. Each Map costs the
// connection one of its credits for good, because librdmacm does not give it back; after half of them
// the error matches ENOSPC too. Map waits for a credit, until the deadline of Write.
func (c *Conn) Map(size int, offset int64) (*Mapping, error) { return c.c.mapMemory(size, offset) }

// mapMemory is [Conn.Map].
func (c *conn) mapMemory(size int, offset int64) (*Mapping, error) {
	if size < 1 || size > 1<<30 {
		return nil, protocol.ArgErr(Network, "Map", "size", size, "1 to %d", 1<<30)
	}
	if offset < 0 || offset > math.MaxInt64-int64(size) {
		return nil, protocol.ArgErr(Network, "Map", "offset", offset, "0 to %d", math.MaxInt64-int64(size))
	}
	c.WriteMu.Lock()
	defer c.WriteMu.Unlock()
	c.Mu.Lock()
	defer c.Mu.Unlock()
	m, err := c.mapLocked(size, offset)
	return m, c.OpError("map", err)
}

// mapLocked is mapMemory for a caller that holds c.Mu.
func (c *conn) mapLocked(size int, offset int64) (*Mapping, error) {
	index := 0
	for index < len(c.mapped) && c.mapped[index] != nil {
		index++
	}
	if index == c.remoteMappings {
		return nil, fmt.Errorf("the peer has room for %d mappings: %w", c.remoteMappings, syscall.ENOSPC)
	}
	if most := int(c.mostCredits) / 2; c.mapsMade >= most {
		return nil, fmt.Errorf("the connection has made %d mappings, and each costs a credit: %w", most, syscall.ENOSPC)
	}
	if err := c.Wait(&c.Writer, c.canAnnounce); err != nil {
		return nil, err
	}
	if err := c.writable(); err != nil {
		return nil, err
	}
	r, err := c.Register(size, uverbs.AccessRemoteWrite)
	if err != nil {
		return nil, err
	}
	m := &Mapping{c: c, index: index, region: r, size: size}
	if index == len(c.mapped) {
		c.mapped = append(c.mapped, nil)
	}
	c.mapped[index] = m
	from, used := c.stageMapping(mapping{uint64(offset), segment{r.MR.Addr(), r.MR.RKey(), uint32(size)}})
	c.sent++ // the peer does not give this credit back
	c.mapsMade++
	c.Slots -= c.PerMessage()
	b := c.QP.BeginSend()
	c.write(b, protocol.IDData|uint64(used), protocol.IDMessage, from, c.mappingEntry(index), message(opMapping, uint32(index)))
	c.Post(b)
	return m, nil
}

// stageMapping puts an entry in one piece into the buffer for sending. It returns how many bytes of the
// buffer that takes.
func (c *conn) stageMapping(m mapping) (from uverbs.SGE, used int) {
	if end := c.SendBuffer - c.SendAt; end < mappingSize {
		used, c.SendAt = end, 0
	}
	used += mappingSize
	m.put(c.SendMem.MR.Bytes()[c.SendAt:], c.order)
	from = c.SendMem.MR.SGE(c.SendAt, mappingSize)
	c.SendAt = (c.SendAt + mappingSize) % c.SendBuffer
	c.Room -= used
	return from, used
}

// mappingEntry returns where the peer has room for a mapping: behind its table of buffers.
func (s *state) mappingEntry(index int) segment {
	return segment{addr: s.remoteTable.addr + uint64(s.remoteTable.length)*segmentSize + uint64(index)*mappingSize, key: s.remoteTable.key}
}

// canAnnounce reports whether a mapping can be announced, or never again.
func (c *conn) canAnnounce() bool {
	return c.sent != c.sendUntil && c.CanStage() && !c.MustReceive || c.neverWrites()
}

// handleMapping handles a message that announces a mapping of the peer.
func (s *state) handleMapping(index, written uint32) error {
	switch {
	case int(index) >= len(s.mappings):
		return protocol.Violation("the peer announces mapping %d, and this side has said that it has room for %d", index, len(s.mappings))
	case !s.iwarp && written != mappingSize:
		return protocol.Violation("the peer has announced a mapping with %d bytes, want %d", written, mappingSize)
	}
	m := getMapping(s.table[tableEntries*segmentSize+int(index)*mappingSize:], binary.LittleEndian)
	switch {
	case m.memory.length == 0:
		return protocol.Violation("the peer has announced a mapping of 0 bytes")
	case m.memory.wraps() || m.offset > math.MaxUint64-uint64(m.memory.length):
		return protocol.Violation("the peer has announced a mapping of %d bytes at %#x, with the offset %#x, which goes beyond the largest address or offset", m.memory.length, m.memory.addr, m.offset)
	}
	s.mappings[index] = m
	return nil
}

// mappedAt returns memory that the peer has mapped at an offset; it is empty if there is none.
func (s *state) mappedAt(offset uint64) segment {
	for _, m := range s.mappings {
		if to := m.at(offset); to.length > 0 {
			return to
		}
	}
	return segment{}
}

var _ io.WriterAt = (*Conn)(nil)

// WriteAt writes p into memory that the peer has mapped at an offset (riowrite). The peer's program is not
// involved, and its buffer for data is not used. Data that is written by Write afterwards arrives later. If
// the peer has mapped nothing there, or not all of it, the error matches ENXIO. The number of mappings
// that the peer may make is [Options].Mappings. WriteAt returns as soon as all of p is copied and posted.
func (c *Conn) WriteAt(p []byte, offset int64) (n int, err error) { return c.c.writeAt(p, offset) }

// writeAt is [Conn.WriteAt].
func (c *conn) writeAt(p []byte, offset int64) (n int, err error) {
	if offset < 0 {
		return 0, protocol.ArgErr(Network, "WriteAt", "offset", offset, "at least 0")
	}
	c.WriteMu.Lock()
	defer c.WriteMu.Unlock()
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for n < len(p) && err == nil {
		if err = c.Wait(&c.Writer, c.canTransfer); err == nil {
			err = c.writable()
		}
		if err != nil {
			break
		}
		at := uint64(offset) + uint64(n)
		if to := c.mappedAt(at); to.length > 0 {
			n += c.transfer(p[n:], to)
		} else {
			err = fmt.Errorf("the peer has mapped no memory at offset %d: %w", at, syscall.ENXIO)
		}
	}
	return n, c.OpError("write", err)
}

// canTransfer reports whether mapped memory can be written, or never again.
func (c *conn) canTransfer() bool {
	return c.Slots > 0 && c.Room >= protocol.LeastRoom && !c.MustReceive || c.neverWrites()
}

// transfer writes the beginning of p into memory of the peer.
func (c *conn) transfer(p []byte, to segment) int {
	from, n := c.Stage(p, to.length)
	c.Slots--
	b := c.QP.BeginSend()
	b.Write(protocol.IDData|uint64(n), uverbs.SendSignaled, to.addr, to.key)
	b.SGE(from)
	c.Post(b)
	return n
}

// writable returns why nothing can be sent, or nil.
func (c *conn) writable() error {
	switch {
	case c.Closing:
		return net.ErrClosed
	case c.writeClosed || c.endingWrites > 0:
		return fmt.Errorf("this side was closed for writing: %w", syscall.EPIPE)
	case c.gone:
		return fmt.Errorf("the peer has closed the connection: %w", syscall.EPIPE)
	}
	return c.Err
}
