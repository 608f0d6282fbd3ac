package trace

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// Kinds of calls.
const (
	CallOpen  = "open"
	CallClose = "close"
	CallDup   = "dup"
	CallIoctl = "ioctl"
	CallWrite = "write"
	CallRead  = "read"
	CallMmap  = "mmap"
	CallExec  = "exec" // a process runs a program
	CallExit  = "exit" // a process ended
)

// Call is a call of a program to a file of the kernel's RDMA interface, with its bytes as they were.
// It is a line of a record.
type Call struct {
	Time     int64  `json:"time_ns"`               // since the trace began
	Duration int64  `json:"duration_ns,omitempty"` // as the tracer saw it
	PID      int    `json:"pid,omitempty"`         // PID is the process.
	TID      int    `json:"tid,omitempty"`         // TID is the thread.
	File     string `json:"file,omitempty"`        // in /dev/infiniband, or "event" for an event channel
	Open     int    `json:"open,omitempty"`        // number of the open file, counted from 1
	FD       int    `json:"fd,omitempty"`          // FD is the descriptor.
	Call     string `json:"call"`                  // a kind of call

	// Of RDMA_VERBS_IOCTL (struct ib_uverbs_ioctl_hdr), and Request of another ioctl.
	Object  uint16  `json:"object,omitempty"`
	Method  uint16  `json:"method,omitempty"`  // Method is the number of the method.
	Driver  uint32  `json:"driver,omitempty"`  // of a device that was opened, too
	Attrs   []*Attr `json:"attrs,omitempty"`   // Attrs are the attributes, in their order.
	Command uint32  `json:"command,omitempty"` // of another ioctl

	// Of a write, with its header (struct ib_uverbs_cmd_hdr, rdma_ucm_cmd_hdr), and of a read. A request
	// to which there is more has the memory that it points to as well.
	Request  Octets `json:"request,omitempty"`
	Response Octets `json:"response,omitempty"` // Response is what the kernel answered, or what was read.
	More     Octets `json:"more,omitempty"`     // More is memory that the request points to.

	// Of a mmap. Result is where it is.
	Length uint64 `json:"length,omitempty"`
	Offset uint64 `json:"offset,omitempty"` // Offset is the offset in the file.
	Prot   uint64 `json:"prot,omitempty"`   // Prot has the bits of PROT_READ and PROT_WRITE.
	Memory Octets `json:"memory,omitempty"` // Memory is how it begins, unless that is 0 or cannot be read.

	Device string `json:"device,omitempty"` // name of the RDMA device that was opened
	Text   string `json:"text,omitempty"`   // the program of an exec
	Result uint64 `json:"result,omitempty"` // a descriptor, a length, an address or an exit status
	Errno  string `json:"errno,omitempty"`  // the name of the error, empty for success
	Count  int    `json:"count,omitempty"`  // number of equal calls, if more than one

	// Lost says what memory of the program could not be read, and Unfinished that the program ended during
	// the call.
	Lost       string `json:"lost,omitempty"`
	Unfinished bool   `json:"unfinished,omitempty"` // Unfinished is set if the program ended during the call.

	addr  uint64 // of the ioctl's bytes, the response to a write, or the buffer of a read
	bytes int    // number of bytes that were read of the program's memory
}

// Attr is an attribute of RDMA_VERBS_IOCTL (struct ib_uverbs_attr).
type Attr struct {
	ID    uint16 `json:"id"`             // ID is the number of the attribute.
	Len   uint16 `json:"len"`            // Len is its length in bytes.
	Flags uint16 `json:"flags"`          // Flags are the flags in struct ib_uverbs_attr.
	Enum  uint16 `json:"enum,omitempty"` // attr_data
	Data  Word   `json:"data"`           // the value, a handle or an address
	In    Octets `json:"in,omitempty"`   // what the address points to, if it is more than 8 bytes
	New   *Word  `json:"new,omitempty"`  // Data afterwards, if it is another
	Out   Octets `json:"out,omitempty"`  // what the address points to afterwards, if it was written
}

// Octets are bytes, which are hexadecimal in JSON.
type Octets []byte

// MarshalJSON implements [json.Marshaler].
func (o Octets) MarshalJSON() ([]byte, error) { return json.Marshal(hex.EncodeToString(o)) }

// UnmarshalJSON implements [json.Unmarshaler].
func (o *Octets) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return err
	}
	raw, err := hex.DecodeString(text)
	*o = raw
	return err
}

// Word is the data word of an attribute, in JSON hexadecimal as it lies in memory.
type Word [8]byte

// MarshalJSON implements [json.Marshaler].
func (w Word) MarshalJSON() ([]byte, error) { return json.Marshal(hex.EncodeToString(w[:])) }

// UnmarshalJSON implements [json.Unmarshaler].
func (w *Word) UnmarshalJSON(b []byte) error {
	var o Octets
	if err := o.UnmarshalJSON(b); err != nil {
		return err
	}
	if len(o) != len(w) {
		return fmt.Errorf("the data of an attribute has %d bytes, want %d", len(o), len(w))
	}
	copy(w[:], o)
	return nil
}

func (w Word) value() uint64 { return binary.LittleEndian.Uint64(w[:]) }

// Sizes of struct ib_uverbs_ioctl_hdr and struct ib_uverbs_attr.
const (
	hdrSize  = 24
	attrSize = 16
)

// verbsIoctl is RDMA_VERBS_IOCTL, the only ioctl that carries commands of the verbs.
const verbsIoctl = 0xc0181b01

// rdmaMagic is RDMA_IOCTL_MAGIC, the type of all ioctls of RDMA.
const rdmaMagic = 0x1b

// inlineMax is how many bytes of an attribute stand in place of the address.
const inlineMax = 8

// validOutput is UVERBS_ATTR_F_VALID_OUTPUT: the kernel has written what the address points to.
const validOutput = 2
