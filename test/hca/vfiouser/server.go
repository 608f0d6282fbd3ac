package vfiouser

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"golang.org/x/sys/unix"
)

// Device is what a PCI device does when the guest accesses it. The methods are called one at
// a time, in the guest's order. An access stays within the BAR's size.
type Device interface {
	// ReadBAR fills p with what is at the offset.
	ReadBAR(bar int, offset uint64, p []byte)
	// WriteBAR is a store of the guest. The data may be kept.
	WriteBAR(bar int, offset uint64, p []byte)
	// Reset brings the device into the state after power-on.
	Reset()
}

// Config describes the device to its client.
type Config struct {
	ID      ID        // ID is what the device is.
	BARs    [6]uint64 // BARs are sizes in bytes, powers of two; 0, 2 and 4 may be used.
	Vectors int       // Vectors is the number of MSI-X interrupts.
	Table   uint32    // Table is where the MSI-X table is in BAR 0.
	PBA     uint32    // PBA is where the pending array is in BAR 0.

	Logf func(format string, args ...any) // Logf is told what was refused; nil is nobody.
}

// Server serves a device. Bytes and Interrupt may be called from any goroutine.
type Server struct {
	cfg    Config
	dev    Device
	memory *memory
	irqs   *vectors
	space  *space
}

// New returns a server.
func New(cfg Config) *Server {
	if cfg.Logf == nil {
		cfg.Logf = func(string, ...any) {}
	}
	return &Server{
		cfg: cfg, memory: newMemory(), irqs: newVectors(cfg.Vectors),
		space: newSpace(cfg.ID, cfg.BARs, cfg.Vectors, cfg.Table, cfg.PBA),
	}
}

// Bytes gives the guest's memory at a bus address: the longest piece of it that is contiguous
// here, at least one byte and at most n. It is the memory itself, not a copy. The error
// matches ErrNotMapped if the client has mapped nothing there.
func (s *Server) Bytes(addr uint64, n int) ([]byte, error) { return s.memory.bytes(addr, n) }

// BAR says at which bus address the guest has put a BAR (0, 2 or 4). It may be called from any goroutine.
func (s *Server) BAR(i int) uint64 { return s.space.bars[i].Load() }

// Interrupt raises an MSI-X vector.
func (s *Server) Interrupt(vector int) { s.irqs.raise(vector) }

// Close gives the guest's memory back. The device must not use it any more.
func (s *Server) Close() error {
	s.irqs.disable()
	return s.memory.close()
}

// Serve answers a client until it goes away, which is no error, or until what it sends is
// no message. It then forgets the memory and the interrupts of that client.
func (s *Server) Serve(conn *net.UnixConn, dev Device) error {
	s.dev = dev
	defer s.memory.clear()
	defer s.irqs.disable()
	for {
		m, err := s.read(conn)
		if gone(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("vfio-user client: %w", err)
		}
		body, err := s.handle(m)
		closeAll(m.fds) // those that nobody took
		if err != nil {
			s.cfg.Logf("vfio-user: command %d refused: %v", m.cmd, err)
		}
		if m.flags&flagNoReply != 0 {
			continue
		}
		if err := reply(conn, m.header, body, err); gone(err) {
			return nil
		} else if err != nil {
			return fmt.Errorf("vfio-user client: %w", err)
		}
	}
}

// gone reports whether an error says that the client is no longer there. One that is killed
// leaves messages unread.
func gone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}

// message is one message of the client.
type message struct {
	header
	body []byte
	fds  []int
}

// read reads one message. An error other than what gone knows means that the client does not speak the
// protocol.
func (s *Server) read(conn *net.UnixConn) (*message, error) {
	var head [headerSize]byte
	oob := make([]byte, unix.CmsgSpace(4*maxFDs))
	n, oobn, flags, _, err := conn.ReadMsgUnix(head[:], oob)
	m := &message{}
	if oobn > 0 {
		m.fds = descriptors(oob[:oobn])
	}
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err == nil && flags&unix.MSG_CTRUNC != 0 {
		err = fmt.Errorf("more than %d descriptors in a message", maxFDs)
	}
	if err == nil && n < headerSize {
		err = readRest(conn, head[n:])
	}
	if err == nil {
		m.header = parseHeader(&head)
		err = m.check()
	}
	if err == nil {
		m.body = make([]byte, m.size-headerSize)
		err = readRest(conn, m.body)
	}
	if err != nil {
		closeAll(m.fds)
		return nil, err
	}
	return m, nil
}

// readRest reads what belongs to a message that has begun.
func readRest(r io.Reader, b []byte) error {
	_, err := io.ReadFull(r, b)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

func (m *message) check() error {
	if m.size < headerSize || m.size > maxMessage {
		return fmt.Errorf("a message of %d bytes", m.size)
	}
	if m.flags&typeMask != 0 {
		return fmt.Errorf("a message with flags %#x, which is no command", m.flags)
	}
	return nil
}

// descriptors takes the file descriptors out of control messages.
func descriptors(oob []byte) []int {
	var fds []int
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range messages {
		if f, err := unix.ParseUnixRights(&messages[i]); err == nil {
			fds = append(fds, f...)
		}
	}
	return fds
}

// reply answers with a body, or with an error's number.
func reply(conn *net.UnixConn, h header, body []byte, err error) error {
	h.flags, h.errno = flagReply, 0
	if err != nil {
		errno := unix.EINVAL
		errors.As(err, &errno)
		h.flags |= flagError
		h.errno = uint32(errno)
		body = nil
	}
	_, err = conn.Write(append(h.appendTo(nil, len(body)), body...))
	return err
}

// fixed are the sizes of what a command's message begins with.
var fixed = map[command]int{
	cmdVersion: 4, cmdDMAMap: 32, cmdDMAUnmap: 24, cmdGetInfo: 16, cmdRegionInfo: 32, cmdIRQInfo: 16,
	cmdSetIRQs: 20, cmdRegionRead: 16, cmdRegionWrite: 16, cmdDeviceReset: 0,
}

// handle executes a command and gives the body of the answer.
func (s *Server) handle(m *message) ([]byte, error) {
	least, known := fixed[m.cmd]
	if !known {
		return nil, unix.ENOTSUP
	}
	if len(m.body) < least {
		return nil, unix.EINVAL
	}
	switch m.cmd {
	case cmdVersion:
		return s.version(m.body)
	case cmdDMAMap:
		return nil, s.dmaMap(m)
	case cmdDMAUnmap:
		return m.body[:24], s.dmaUnmap(m.body)
	case cmdGetInfo:
		return s.info(), nil
	case cmdRegionInfo:
		return s.regionInfo(le.Uint32(m.body[8:]))
	case cmdIRQInfo:
		return s.irqInfo(le.Uint32(m.body[8:]))
	case cmdSetIRQs:
		return nil, s.setIRQs(m)
	case cmdRegionRead:
		return s.regionRead(m.body)
	case cmdRegionWrite:
		return s.regionWrite(m.body)
	}
	s.dev.Reset()
	return nil, nil
}

// version agrees on the protocol. Major 0 is the only one there is.
func (s *Server) version(b []byte) ([]byte, error) {
	if le.Uint16(b) != 0 {
		return nil, unix.ENOTSUP
	}
	if !strings.HasSuffix(string(b[4:]), "\x00") && len(b) > 4 {
		return nil, unix.EINVAL
	}
	caps := fmt.Sprintf(`{"capabilities":{"max_msg_fds":%d,"max_data_xfer_size":%d,"pgsizes":4096,"max_dma_maps":%d}}`, maxFDs, maxData, maxMappings)
	return append(append([]byte{0, 0, b[2], b[3]}, caps...), 0), nil
}

func (s *Server) dmaMap(m *message) error {
	fd := -1
	switch len(m.fds) {
	case 0:
	case 1:
		fd = m.fds[0]
	default:
		return unix.EINVAL
	}
	flags, offset, addr, size := le.Uint32(m.body[4:]), le.Uint64(m.body[8:]), le.Uint64(m.body[16:]), le.Uint64(m.body[24:])
	return s.memory.add(addr, size, fd, offset, flags)
}

func (s *Server) dmaUnmap(b []byte) error {
	flags, addr, size := le.Uint32(b[4:]), le.Uint64(b[8:]), le.Uint64(b[16:])
	switch {
	case flags&^uint32(unmapAll) != 0:
		return unix.ENOTSUP
	case flags&unmapAll == 0:
		return s.memory.remove(addr, size)
	case addr != 0 || size != 0:
		return unix.EINVAL
	}
	s.memory.clear()
	return nil
}

func (s *Server) info() []byte {
	b := le.AppendUint32(nil, 16)
	b = le.AppendUint32(b, infoReset|infoPCI)
	b = le.AppendUint32(b, numRegions)
	return le.AppendUint32(b, numIRQs)
}

// regionSize gives the size of a region, 0 for one that this device does not have.
func (s *Server) regionSize(index uint32) uint64 {
	switch {
	case index < uint32(len(s.cfg.BARs)):
		return s.cfg.BARs[index]
	case index == configRegion:
		return configSize
	}
	return 0
}

func (s *Server) regionInfo(index uint32) ([]byte, error) {
	if index >= numRegions {
		return nil, unix.EINVAL
	}
	size, flags := s.regionSize(index), uint32(0)
	if size > 0 {
		flags = regionRead | regionWrite
	}
	b := le.AppendUint32(nil, 32)
	b = le.AppendUint32(b, flags)
	b = le.AppendUint32(b, index)
	b = le.AppendUint32(b, 0)
	b = le.AppendUint64(b, size)
	return le.AppendUint64(b, 0), nil
}

func (s *Server) irqInfo(index uint32) ([]byte, error) {
	if index >= numIRQs {
		return nil, unix.EINVAL
	}
	flags, count := uint32(0), uint32(0)
	if index == irqMSIX {
		flags, count = irqEventFD|irqNoResize, uint32(s.cfg.Vectors)
	}
	b := le.AppendUint32(nil, 16)
	b = le.AppendUint32(b, flags)
	b = le.AppendUint32(b, index)
	return le.AppendUint32(b, count), nil
}

func (s *Server) setIRQs(m *message) error {
	flags, index := le.Uint32(m.body[4:]), le.Uint32(m.body[8:])
	start, count := le.Uint32(m.body[12:]), le.Uint32(m.body[16:])
	if index != irqMSIX || int64(start)+int64(count) > int64(s.cfg.Vectors) {
		return unix.EINVAL
	}
	switch flags {
	case irqDataEventFD | irqTrigger:
		if n := len(m.fds); n != 0 && n != int(count) {
			return unix.EINVAL
		}
		fds := m.fds
		m.fds = nil
		return s.irqs.assign(int(start), int(count), fds)
	case irqDataNone | irqTrigger:
		if count == 0 {
			s.irqs.disable()
		}
		for i := range count {
			s.irqs.raise(int(start + i))
		}
		return nil
	}
	return unix.ENOTSUP
}

// access checks an access to a region, which may not be empty and may not leave it.
func (s *Server) access(b []byte) (region uint32, off uint64, count int, err error) {
	off, region = le.Uint64(b), le.Uint32(b[8:])
	n, size := le.Uint32(b[12:]), s.regionSize(region)
	if n == 0 || n > maxData || off >= size || uint64(n) > size-off {
		return 0, 0, 0, fmt.Errorf("%d bytes at %#x of region %d: %w", n, off, region, unix.EINVAL)
	}
	return region, off, int(n), nil
}

func (s *Server) regionRead(b []byte) ([]byte, error) {
	region, off, n, err := s.access(b)
	if err != nil {
		return nil, err
	}
	out := append(append(make([]byte, 0, 16+n), b[:16]...), make([]byte, n)...)
	if region == configRegion {
		copy(out[16:], s.space.value[off:])
	} else {
		s.dev.ReadBAR(int(region), off, out[16:])
	}
	return out, nil
}

func (s *Server) regionWrite(b []byte) ([]byte, error) {
	region, off, n, err := s.access(b)
	if err != nil {
		return nil, err
	}
	if len(b)-16 != n {
		return nil, fmt.Errorf("a store of %d bytes with %d bytes of data: %w", n, len(b)-16, unix.EINVAL)
	}
	if region == configRegion {
		s.space.write(off, b[16:])
	} else {
		s.dev.WriteBAR(int(region), off, b[16:])
	}
	return b[:16], nil
}
