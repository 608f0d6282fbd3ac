package perf

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// The control connection is TCP. Both sides first send 16 bytes: the text "goverbs perf" and
// the version of the protocol, in network byte order; the client speaks first. Then there are
// frames: the length of 4 bytes, in network byte order, and a message as JSON.
//
//	client                     server
//	hello {limits}          →
//	                        ←  hello {limits}
//	open {config}           →
//	                        ←  opened {port of the connection manager}
//	peers                   →
//	                        ←  peers
//	connected               →
//	for each size:
//	start {size}            →
//	                        ←  ready
//	(traffic)
//	finished {sent}         →  all that the client sends has been sent
//	                        ←  finished {sent}, if the server sends on its own account
//	                        ←  report
//
// Whoever fails says why in an error instead, and hangs up. The client hangs up at the end.
const (
	magic           = "goverbs perf"
	ProtocolVersion = 1
	preambleLen     = len(magic) + 4
	maxFrame        = 8 << 20
)

// DefaultPort is the TCP port of the control connection.
const DefaultPort = 18516

// answerTime bounds the steps in which the peer has nothing to wait for. Tests shorten it.
var answerTime = 10 * time.Second

// Kinds of messages.
const (
	kindHello     = "hello"
	kindOpen      = "open"
	kindOpened    = "opened"
	kindPeers     = "peers"
	kindConnected = "connected"
	kindStart     = "start"
	kindReady     = "ready"
	kindFinished  = "finished"
	kindReport    = "report"
	kindError     = "error"
)

// message is a frame's content. Which fields it has depends on its kind.
type message struct {
	Kind   string  `json:"kind"`
	Error  string  `json:"error,omitempty"`
	Limits *Limits `json:"limits,omitempty"`
	Config *Config `json:"config,omitempty"`
	Peers  []Peer  `json:"peers,omitempty"`
	CMAddr string  `json:"cm_addr,omitempty"` // IP address and port
	Inline int     `json:"inline,omitempty"`
	Size   int     `json:"size,omitempty"`
	Sent   int64   `json:"sent,omitempty"`
	Run    *Run    `json:"run,omitempty"`
}

// inboxRoom is one more than the most messages that are on their way to a side that has not taken
// the first of them.
const inboxRoom = 3

// control is one side's end of a control connection.
type control struct {
	conn net.Conn
	name string // of the peer, for errors

	mu sync.Mutex // guards writing

	inbox  chan message
	cancel context.CancelCauseFunc
	end    func(sent int64) // gets what the peer has sent
}

// start listens in a goroutine. What it returns closes the connection, and waits for that to end.
func (c *control) start() (stop func()) {
	var all sync.WaitGroup
	all.Go(c.listen)
	return func() {
		c.conn.Close()
		all.Wait()
	}
}

// preamble returns what both sides send first.
func preamble() []byte { return binary.BigEndian.AppendUint32([]byte(magic), ProtocolVersion) }

// checkPreamble reads the peer's, and returns its version.
func checkPreamble(c net.Conn) (version uint32, err error) {
	var b [preambleLen]byte
	n, err := io.ReadFull(c, b[:])
	if err != nil && (n == 0 || string(b[:min(n, len(magic))]) == magic[:min(n, len(magic))]) {
		return 0, fmt.Errorf("got %d of %d bytes: %w", n, preambleLen, silence(err, answerTime))
	}
	if string(b[:len(magic)]) != magic {
		return 0, fmt.Errorf("the peer speaks another protocol: got %q, expected %q and a version", b[:n], magic)
	}
	return binary.BigEndian.Uint32(b[len(magic):]), nil
}

// silence says how long was waited.
func silence(err error, for_ time.Duration) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("nothing came for %s: %w", for_, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("the peer has hung up: %w", err)
	}
	return err
}

// versionError says that the sides do not fit together.
func versionError(theirs uint32) error {
	return fmt.Errorf("the peer speaks version %d of the protocol, this side version %d: use the same verbs on both", theirs, ProtocolVersion)
}

// put sends a message.
func (c *control) put(m message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.conn.SetWriteDeadline(time.Now().Add(answerTime)); err != nil {
		return err
	}
	if _, err := c.conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)); err != nil {
		return fmt.Errorf("tell %s: %w", c.name, err)
	}
	return nil
}

// fail tells the peer of an error, as far as it hears it.
func (c *control) fail(err error) { _ = c.put(message{Kind: kindError, Error: err.Error()}) }

// readMessage reads a frame.
func readMessage(r io.Reader) (m message, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return m, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 || n > maxFrame {
		return m, fmt.Errorf("a message of %d bytes, allowed: 1 to %d", n, maxFrame)
	}
	// What is said to come is not believed: memory grows with what has come.
	b, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err == nil && len(b) < int(n) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("a message that is none: %w", err)
	}
	return m, nil
}

// listen reads messages until the connection ends, and has that, or an error that the peer
// tells of, end the context.
func (c *control) listen() {
	for {
		m, err := readMessage(c.conn)
		switch {
		case err != nil:
			c.cancel(fmt.Errorf("%s is gone: %w", c.name, silence(err, answerTime)))
			close(c.inbox)
			return
		case m.Kind == kindError:
			c.cancel(&PeerError{Peer: c.name, Text: m.Error})
			close(c.inbox)
			return
		case m.Kind == kindFinished:
			c.end(m.Sent)
			continue
		}
		select {
		case c.inbox <- m:
		default:
			c.cancel(fmt.Errorf("%s does not keep to the order of messages: %q", c.name, m.Kind))
			close(c.inbox)
			return
		}
	}
}

// PeerError is what the other side says is wrong.
type PeerError struct {
	Peer string // Peer is its address.
	Text string // Text is what it says.
}

// Error implements error.
func (e *PeerError) Error() string { return e.Peer + " says: " + e.Text }

// take waits for a message of a kind, for so long; 0 is without end.
func (c *control) take(ctx context.Context, kind string, patience time.Duration) (message, error) {
	var late <-chan time.Time
	if patience > 0 {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case m, ok := <-c.inbox:
		if !ok {
			return m, context.Cause(ctx)
		}
		return m, c.inOrder(m, kind)
	case <-ctx.Done():
		// What came before the end says more, if it is wrong.
		select {
		case m, ok := <-c.inbox:
			if err := c.inOrder(m, kind); ok && err != nil {
				return m, err
			}
		default:
		}
		return message{}, context.Cause(ctx)
	case <-late:
		return message{}, fmt.Errorf("%s has not sent %q for %s", c.name, kind, patience)
	}
}

// inOrder checks that a message is the one that is expected.
func (c *control) inOrder(m message, kind string) error {
	if m.Kind != kind {
		return fmt.Errorf("%s does not keep to the order of messages: %q instead of %q", c.name, m.Kind, kind)
	}
	return nil
}
