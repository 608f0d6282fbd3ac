//go:build linux

package trace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// fail sets the error of a call.
func (c *Call) fail(errno syscall.Errno) {
	c.Errno = unix.ErrnoName(errno)
	if c.Errno == "" {
		c.Errno = fmt.Sprintf("ERRNO%d", uint(errno))
	}
}

// readMemory reads a process's memory.
func readMemory(pid int, addr uint64, n int) ([]byte, error) {
	b := make([]byte, n)
	if n == 0 {
		return b, nil
	}
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(n)
	got, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: n}}, 0)
	if err == nil && got != n {
		err = unix.EFAULT
	}
	if err != nil {
		return nil, fmt.Errorf("%d bytes at %#x: %w", n, addr, err)
	}
	return b, nil
}

// readText reads a text that ends with a zero byte, and "" if it cannot be read. The text must not be
// long.
func readText(pid int, addr uint64) string {
	var text []byte
	for len(text) < 4096 {
		n := 64 - int(addr%64) // a page that is there
		b, err := readMemory(pid, addr, n)
		if err != nil {
			return ""
		}
		if i := bytes.IndexByte(b, 0); i >= 0 {
			return string(append(text, b[:i]...))
		}
		text = append(text, b...)
		addr += uint64(n)
	}
	return ""
}

// Limits of what is read of a program's memory in a call. The line of a record has two digits for a byte.
const (
	maxAttrs   = 1 << 8
	maxRequest = 1 << 19
	maxBytes   = maxLine / 4
)

// get reads memory of the program, and notes what cannot be read.
func (c *Call) get(addr uint64, n int) []byte {
	if c.bytes += n; c.bytes > maxBytes {
		c.Lost = fmt.Sprintf("%d bytes at %#x: more than %d bytes in a call", n, addr, maxBytes)
		return nil
	}
	b, err := readMemory(c.PID, addr, n)
	if err != nil {
		c.Lost = err.Error()
	}
	return b
}

// read reads what a call that begins passes to the kernel.
func (c *Call) read(info *syscallInfo) {
	switch c.Call {
	case CallWrite:
		c.Request = c.get(info.arg(1), int(min(info.arg(2), maxRequest)))
		c.addr = responseAddr(c.File, c.Request)
		if addr, n := optionValue(c.File, c.Request); n > 0 {
			c.More = c.get(addr, n)
		}
	case CallRead:
		c.addr = info.arg(1)
	case CallIoctl:
		c.addr = info.arg(2)
		if uint32(info.arg(1)) != verbsIoctl {
			c.Command = uint32(info.arg(1))
			if n := int(c.Command >> 16 & 0x3fff); n > 0 && c.Command>>30 != 0 {
				c.Request = c.get(c.addr, n)
			}
			return
		}
		c.readAttrs()
	}
}

// readAttrs reads the header and attributes of RDMA_VERBS_IOCTL, and what they point to.
func (c *Call) readAttrs() {
	hdr := c.get(c.addr, hdrSize)
	if hdr == nil {
		return
	}
	c.Object = binary.LittleEndian.Uint16(hdr[2:])
	c.Method = binary.LittleEndian.Uint16(hdr[4:])
	c.Driver = binary.LittleEndian.Uint32(hdr[16:])
	n := int(min(binary.LittleEndian.Uint16(hdr[6:]), maxAttrs))
	attrs := c.get(c.addr+hdrSize, attrSize*n)
	for ; len(attrs) > 0; attrs = attrs[attrSize:] {
		a := &Attr{
			ID:    binary.LittleEndian.Uint16(attrs),
			Len:   binary.LittleEndian.Uint16(attrs[2:]),
			Flags: binary.LittleEndian.Uint16(attrs[4:]),
			Enum:  binary.LittleEndian.Uint16(attrs[6:]),
			Data:  Word(attrs[8:attrSize]),
		}
		if a.Len > inlineMax {
			a.In = c.get(a.Data.value(), int(a.Len))
		}
		c.Attrs = append(c.Attrs, a)
	}
}

// finish reads the answer to a call.
func (c *Call) finish(result int64, failed bool) {
	switch {
	case failed:
		if c.Call == CallIoctl && c.Command == 0 {
			return
		}
	case c.Call == CallRead:
		c.Response = c.get(c.addr, int(min(result, 1<<12)))
	case c.Call == CallWrite:
		c.Response = c.response()
	case c.Command != 0:
		if c.Command>>30&2 != 0 {
			c.Response = c.get(c.addr, len(c.Request))
		}
	default:
		c.finishAttrs()
	}
}

// finishAttrs reads what the kernel has written to attributes.
func (c *Call) finishAttrs() {
	attrs := c.get(c.addr+hdrSize, attrSize*len(c.Attrs))
	if attrs == nil {
		return
	}
	for n, a := range c.Attrs {
		now := attrs[attrSize*n:][:attrSize]
		if data := Word(now[8:]); data != a.Data {
			a.New = &data
			continue
		}
		a.Flags |= binary.LittleEndian.Uint16(now[4:]) & validOutput
		switch {
		case a.Len > inlineMax:
			if b := c.get(a.Data.value(), int(a.Len)); b != nil && (a.Flags&validOutput != 0 || !bytes.Equal(b, a.In)) {
				a.Out = b
			}
		case a.Len > 0 && a.Flags&validOutput != 0:
			a.Out = c.get(a.Data.value(), int(a.Len))
		}
	}
}

// beginning returns how memory that was mapped begins, nil if all of it is 0 or it cannot be read: pages for
// doorbells cannot.
func beginning(pid int, addr, length uint64) []byte {
	b, err := readMemory(pid, addr, int(min(length, memoryKept)))
	if err != nil || zero(b) {
		return nil
	}
	return b
}

// memoryKept is the number of bytes of mapped memory that a record has: the sizes of a queue of rxe.
const memoryKept = 64

// responseAddr returns where the answer to a request goes, or 0.
func responseAddr(file string, request []byte) uint64 {
	if len(request) < 16 {
		return 0
	}
	if file != CMFile {
		return binary.LittleEndian.Uint64(request[8:])
	}
	name, _ := abi().enums["RDMA_USER_CM_CMD_CREATE_ID"].name(uint64(binary.LittleEndian.Uint32(request)))
	addr, _ := fieldOf(name, "response", request[8:])
	return addr
}

// fieldOf returns a number in the struct of a request by the name of its field.
func fieldOf(command, field string, b []byte) (uint64, bool) {
	in, _ := structsOf(command)
	st := abi().structs[in]
	if st == nil {
		return 0, false
	}
	for _, f := range st.fields {
		if f.name == field && f.offset+f.size <= len(b) {
			return integer(b[f.offset:][:f.size], f.big), true
		}
	}
	return 0, false
}

// optionValue returns where the value of an option of rdma_cm is, and its length.
func optionValue(file string, request []byte) (addr uint64, n int) {
	const setOption = "RDMA_USER_CM_CMD_SET_OPTION"
	if file != CMFile || len(request) < 8 || uint64(binary.LittleEndian.Uint32(request)) != abi().values[setOption] {
		return 0, 0
	}
	addr, _ = fieldOf(setOption, "optval", request[8:])
	length, _ := fieldOf(setOption, "optlen", request[8:])
	return addr, int(min(length, 1<<12))
}

// response reads the answer to a write, whose size the header tells: for rdma_cm in bytes, for uverbs in
// words of 4 bytes, or of 8 for an extended command.
func (c *Call) response() []byte {
	if len(c.Request) < 16 || c.addr == 0 {
		return nil
	}
	n := int(binary.LittleEndian.Uint16(c.Request[6:]))
	switch {
	case c.File == CMFile:
	case binary.LittleEndian.Uint32(c.Request)>>31 == 0:
		n *= 4
	case len(c.Request) >= 24:
		n = 8 * (n + int(binary.LittleEndian.Uint16(c.Request[18:])))
	}
	if n == 0 {
		return nil
	}
	return c.get(c.addr, n)
}
