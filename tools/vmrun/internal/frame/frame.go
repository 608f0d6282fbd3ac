// Package frame is the protocol that vmrun and the guest's init speak over one
// virtio-serial port: length-prefixed messages, with credit for the streams.
//
// A stream (stdin, stdout, stderr) may only have [Window] bytes under way that
// the receiver has not passed on yet; the receiver gives credit back as it does.
// So neither side ever stops reading the port because somebody behind it is
// slow, and a slow reader of one stream holds up no other stream and no
// control message.
package frame

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Kind says what a message is.
type Kind byte

// From the guest. Stdout and Stderr are streams and need credit.
const (
	Hello   Kind = 'h' // Hello: init runs and has read its configuration. JSON, see guest.HelloMsg.
	Stdout  Kind = 'o' // Stdout: bytes of the program's standard output; empty is end of file.
	Stderr  Kind = 'e' // Stderr: bytes of the program's standard error; empty is end of file.
	Kmsg    Kind = 'k' // Kmsg: one record as read from /dev/kmsg.
	Log     Kind = 'l' // Log: a line of init's own, shown under -v.
	Fatal   Kind = 'f' // Fatal: init gives up; the text says why.
	Started Kind = 's' // Started: a program runs. JSON, see guest.StartedMsg.
	Exited  Kind = 't' // Exited: a program ended. JSON, see guest.ExitedMsg.
	File    Kind = 'p' // File: a piece of a file that the program left behind. See guest.FileMsg.
	Barrier Kind = 'b' // Barrier: one of several hosts waits until the others have come as far.
	Done    Kind = 'd' // Done: every program has ended and the kernel's log is drained.
)

// From the host. Stdin is a stream and needs credit.
const (
	Stdin  Kind = 'i' // Stdin: bytes for the program's standard input; empty is end of file.
	Go     Kind = 'g' // Go: the other hosts have come as far.
	Signal Kind = 'q' // Signal: one byte, the signal to send to the program.
	Dump   Kind = 'w' // Dump: the time is up; let the kernel print its blocked tasks.
)

// Either way, about a stream.
const (
	Credit Kind = 'c' // Credit: the stream's kind, and a uint32 of bytes that were passed on.
	Closed Kind = 'x' // Closed: the stream's kind; nobody takes its bytes any more.
)

// Window is the number of bytes that a stream may have under way.
const Window = 256 << 10

// MaxPayload is the largest payload of one message, in bytes.
const MaxPayload = 32 << 10

const headerLen = 5

// ErrFormat is returned for bytes that are no message of this protocol.
var ErrFormat = errors.New("not a message of vmrun's protocol")

// Message is one message. Its payload is the receiver's to keep.
type Message struct {
	Kind    Kind
	Payload []byte
}

func (k Kind) valid() bool {
	return bytes.IndexByte([]byte("hoeklfstpbdigqwcx"), byte(k)) >= 0
}

// Append appends the message to b in its form on the wire.
func Append(b []byte, k Kind, payload []byte) []byte {
	b = append(b, byte(k))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...)
}

// Read reads one message. The error is io.EOF at a clean end, ErrFormat for
// bytes that are no message, and io.ErrUnexpectedEOF for half a message.
func Read(r io.Reader) (Message, error) {
	var h [headerLen]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return Message{}, err
	}
	k := Kind(h[0])
	n := binary.LittleEndian.Uint32(h[1:])
	if !k.valid() || n > MaxPayload {
		return Message{}, fmt.Errorf("%w: header % x", ErrFormat, h)
	}
	m := Message{Kind: k, Payload: make([]byte, n)}
	if _, err := io.ReadFull(r, m.Payload); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return Message{}, err
	}
	return m, nil
}

// Writer sends messages. It is safe for concurrent use; a message is never
// mixed with another one.
type Writer struct {
	mu  sync.Mutex
	w   io.Writer
	buf []byte
}

// NewWriter returns a Writer that sends to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Send sends one message. A payload above MaxPayload is an error, but for the
// kinds that carry text, which is cut.
func (w *Writer) Send(k Kind, payload []byte) error {
	if len(payload) > MaxPayload {
		if k != Kmsg && k != Log && k != Fatal {
			return fmt.Errorf("message %q of %d bytes, at most %d are allowed", byte(k), len(payload), MaxPayload)
		}
		payload = payload[:MaxPayload]
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = Append(w.buf[:0], k, payload)
	_, err := w.w.Write(w.buf)
	return err
}

// SendCredit tells the other side that n bytes of stream were passed on.
func (w *Writer) SendCredit(stream Kind, n int) error {
	return w.Send(Credit, binary.LittleEndian.AppendUint32([]byte{byte(stream)}, uint32(n)))
}

// ParseCredit takes a Credit message apart.
func ParseCredit(payload []byte) (stream Kind, n int, err error) {
	if len(payload) != 5 {
		return 0, 0, fmt.Errorf("%w: credit of %d bytes", ErrFormat, len(payload))
	}
	v := binary.LittleEndian.Uint32(payload[1:])
	if v > Window {
		return 0, 0, fmt.Errorf("%w: credit for %d bytes", ErrFormat, v)
	}
	return Kind(payload[0]), int(v), nil
}
