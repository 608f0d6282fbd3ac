package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"

	"golang.org/x/sys/unix"
)

// command is a command and its answer.
type command struct {
	File string `json:"file"` // in /dev/infiniband
	Call string `json:"call"` // "ioctl" or "write"

	// Of RDMA_VERBS_IOCTL (struct ib_uverbs_ioctl_hdr).
	Object uint16  `json:"object,omitempty"`
	Method uint16  `json:"method,omitempty"`
	Driver uint32  `json:"driver,omitempty"`
	Attrs  []*attr `json:"attrs,omitempty"`

	// Of a write, with its header (struct ib_uverbs_cmd_hdr, rdma_ucm_cmd_hdr).
	Request  octets `json:"request,omitempty"`
	Response octets `json:"response,omitempty"`

	Errno string `json:"errno,omitempty"` // the name of the error, empty for success

	addr uint64 // of the ioctl's bytes, or of the response to a write
}

// attr is an attribute (struct ib_uverbs_attr).
type attr struct {
	ID    uint16 `json:"id"`
	Len   uint16 `json:"len"`
	Flags uint16 `json:"flags"`
	Enum  uint16 `json:"enum,omitempty"` // attr_data
	Data  word   `json:"data"`           // the value, a handle or an address
	In    octets `json:"in,omitempty"`   // what the address points to, if it is more than 8 bytes
	New   *word  `json:"new,omitempty"`  // Data afterwards, if it is another
	Out   octets `json:"out,omitempty"`  // what the address points to afterwards, if it is something else
}

// octets are bytes, printed in hex.
type octets []byte

// MarshalJSON implements [json.Marshaler].
func (o octets) MarshalJSON() ([]byte, error) { return json.Marshal(hex.EncodeToString(o)) }

// word is the data word of an attribute, printed in hex as it lies in memory.
type word [8]byte

// MarshalJSON implements [json.Marshaler].
func (w word) MarshalJSON() ([]byte, error) { return json.Marshal(hex.EncodeToString(w[:])) }

func (w word) addr() uint64 { return binary.NativeEndian.Uint64(w[:]) }

// Sizes of struct ib_uverbs_ioctl_hdr and struct ib_uverbs_attr.
const (
	hdrSize  = 24
	attrSize = 16
)

// verbsIoctl is RDMA_VERBS_IOCTL, the only ioctl that carries commands.
const verbsIoctl = 0xc0181b01

// inlineMax is how many bytes of an attribute stand in place of the address.
const inlineMax = 8

// begin reads a command that is about to be issued.
func begin(tid int, file string, i *info) (*command, error) {
	c := &command{File: file, Call: "write"}
	if i.nr() == unix.SYS_WRITE {
		b, err := read(tid, i.arg(1), int(min(i.arg(2), 1<<16)))
		if err != nil {
			return nil, err
		}
		c.Request = b
		if len(b) >= 16 {
			c.addr = binary.NativeEndian.Uint64(b[8:])
		}
		return c, nil
	}
	c.Call, c.addr = "ioctl", i.arg(2)
	hdr, err := read(tid, c.addr, hdrSize)
	if err != nil {
		return nil, err
	}
	c.Object = binary.NativeEndian.Uint16(hdr[2:])
	c.Method = binary.NativeEndian.Uint16(hdr[4:])
	c.Driver = binary.NativeEndian.Uint32(hdr[16:])
	attrs, err := read(tid, c.addr+hdrSize, attrSize*int(binary.NativeEndian.Uint16(hdr[6:])))
	if err != nil {
		return nil, err
	}
	for ; len(attrs) > 0; attrs = attrs[attrSize:] {
		a := &attr{
			ID:    binary.NativeEndian.Uint16(attrs),
			Len:   binary.NativeEndian.Uint16(attrs[2:]),
			Flags: binary.NativeEndian.Uint16(attrs[4:]),
			Enum:  binary.NativeEndian.Uint16(attrs[6:]),
			Data:  word(attrs[8:attrSize]),
		}
		if a.Len > inlineMax {
			if a.In, err = read(tid, a.Data.addr(), int(a.Len)); err != nil {
				return nil, err
			}
		}
		c.Attrs = append(c.Attrs, a)
	}
	return c, nil
}

// finish adds the answer.
func (c *command) finish(tid int, result int64) {
	if result < 0 {
		c.Errno = unix.ErrnoName(unix.Errno(-result))
		return
	}
	if c.Call == "write" {
		c.Response = c.response(tid)
		return
	}
	attrs, err := read(tid, c.addr+hdrSize, attrSize*len(c.Attrs))
	if err != nil {
		return
	}
	for n, a := range c.Attrs {
		if now := word(attrs[attrSize*n+8 : attrSize*(n+1)]); now != a.Data {
			a.New = &now
			continue
		}
		// An output of up to 8 bytes can't be told from a value that looks like an address;
		// a pointer is what can be read.
		b, err := read(tid, a.Data.addr(), int(a.Len))
		if err == nil && !bytes.Equal(b, a.In) {
			a.Out = b
		}
	}
}

// response reads the answer to a write, whose size the header tells: for rdma_cm in bytes,
// for uverbs in words of 4 bytes, or of 8 for an extended command.
func (c *command) response(tid int) octets {
	if len(c.Request) < 16 || c.addr == 0 {
		return nil
	}
	n := int(binary.NativeEndian.Uint16(c.Request[6:]))
	switch {
	case c.File == "rdma_cm":
	case binary.NativeEndian.Uint32(c.Request)>>31 == 0:
		n *= 4
	case len(c.Request) >= 24:
		n = 8 * (n + int(binary.NativeEndian.Uint16(c.Request[18:])))
	}
	b, err := read(tid, c.addr, n)
	if err != nil {
		return nil
	}
	return b
}
