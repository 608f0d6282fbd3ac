package perf

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
)

// The control connection is TCP. Both sides first send 16 bytes: the text "goverbs perf" and
// the version of the protocol, in network byte order; the client speaks first. Then there are
// frames: the length of 4 bytes, in network byte order, and a message as JSON.
//
//	client                     server
//	hello {limits}          →
//	                        ←  hello {limits}
//	open {config}           →
//	                        ←  opened {address of the connection manager, token}
//	peers {path}            →
//	                        ←  peers {path}
//	connected {token}       →
//	for each size:
//	start {size}            →
//	                        ←  ready
//	(traffic)
//	finished {sent}         →  all that the client sends has been sent
//	                        ←  finished {sent}, if the server sends on its own account
//	                        ←  report
//
// A side that fails says why in an error instead, as far as that is the peer's business, and hangs
// up. The client hangs up at the end.
//
// Nothing that comes is trusted. Frames are short, except for peers, whose limit follows from the
// number of queue pairs that were agreed on; message.go checks each number as it is decoded; and
// the server opens no device for a client before its request is valid and has its share of the
// memory.
const (
	magic           = "goverbs perf"
	ProtocolVersion = 6
	preambleLen     = len(magic) + 4
)

// DefaultPort is the TCP port of the control connection.
const DefaultPort = 18516

// answerTime bounds the steps in which the peer has nothing to wait for. Tests shorten it.
var answerTime = 10 * time.Second

// inboxRoom is one more than the maximum number of messages that a side may have before it takes
// the first.
const inboxRoom = 3

// received is a message that has come, and what is wrong with it.
type received struct {
	message
	err error
}

// control is one side's end of a control connection.
type control struct {
	conn   net.Conn
	name   string // of the peer, for errors
	server bool   // this is the server's side
	frame  int    // the longest frame in bytes; 0 is maxFrame

	mu sync.Mutex // guards writing

	inbox  chan received
	cancel context.CancelCauseFunc
	end    func(sent int64) error // gets what the peer has sent
	terms  atomic.Pointer[terms]  // nil until both sides have agreed
	peers  atomic.Int32           // the queue pairs that peers may have; 0 unless that message is due
}

// agree has the messages from now on checked against a config, and lets peers come once.
func (c *control) agree(config Config, iwarp bool) {
	c.terms.Store(&terms{config: config, iwarp: iwarp})
	c.peers.Store(int32(config.QPs))
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
func preamble() []byte { return preambleOf(magic) }

// preambleOf is preamble for a protocol of another name.
func preambleOf(magic string) []byte {
	return binary.BigEndian.AppendUint32([]byte(magic), ProtocolVersion)
}

// checkPreamble reads the peer's, and returns its version.
func checkPreamble(c io.Reader, magic string) (version uint32, err error) {
	var b [preambleLen]byte
	for n := 0; n < len(b); { // what does not begin so may be all that comes
		k, err := c.Read(b[n:])
		n += k
		if m := min(n, len(magic)); string(b[:m]) != magic[:m] {
			return 0, &BannerError{b[:n], magic}
		}
		if err != nil && n < len(b) {
			return 0, fmt.Errorf("got %d of %d bytes: %w", n, preambleLen, silence(err, answerTime))
		}
	}
	return binary.BigEndian.Uint32(b[len(magic):]), nil
}

// BannerError is the error if a peer speaks another protocol, or something else does before the peer.
type BannerError struct {
	Got  []byte // Got is what came, up to 16 bytes.
	want string
}

// Error implements error.
func (e *BannerError) Error() string {
	return fmt.Sprintf("the peer speaks another protocol: got %s, expected %q and a version", peertext.Quote(e.Got), e.want)
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

// fail sends the peer an error, if the connection allows it.
func (c *control) fail(err error) {
	text, _ := publicText(err)
	_ = c.put(message{Kind: kindError, Error: text[:min(len(text), maxError)]})
}

// maxError is the maximum length of the text of an error for a peer, in bytes: it fits into a frame
// even if each byte is escaped.
const maxError = 512

// read reads and checks a message.
func (c *control) read() (received, error) {
	qps := 0
	b, err := readFrame(c.conn, func() int {
		if qps = int(c.peers.Load()); qps > 0 {
			return peersFrame(qps)
		}
		return cmp.Or(c.frame, maxFrame)
	})
	if err != nil {
		return received{}, err
	}
	m, err := decodeMessage(b, qps)
	if err != nil {
		return received{}, err
	}
	if m.Kind == kindPeers {
		c.peers.Store(0)
	}
	return received{m, m.validate(c.terms.Load(), c.server)}, nil
}

// listen reads messages until the connection ends. The end, or an error that the peer reports,
// cancels the context. Nothing is read after a message that is wrong.
func (c *control) listen() {
	defer close(c.inbox)
	for {
		m, err := c.read()
		switch {
		case err != nil:
			if _, public := publicText(err); public {
				c.cancel(fmt.Errorf("%s: %w", c.name, err))
			} else {
				c.cancel(fmt.Errorf("%s is gone: %w", c.name, silence(err, answerTime)))
			}
			return
		case m.err == nil && m.Kind == kindError:
			c.cancel(&PeerError{Peer: c.name, Text: m.Error})
			return
		case m.err == nil && m.Kind == kindFinished:
			if err := c.end(m.Sent); err != nil {
				c.cancel(fmt.Errorf("%s: %w", c.name, err))
				return
			}
			continue
		}
		select {
		case c.inbox <- m:
		default:
			c.cancel(c.outOfOrder(m.Kind, ""))
			return
		}
		if m.err != nil {
			c.cancel(fmt.Errorf("%s: %w", c.name, m.err))
			return
		}
	}
}

// PeerError is an error that the peer reports.
type PeerError struct {
	Peer string // Peer is its address.
	Text string // Text is what it says.
}

// Error implements error.
func (e *PeerError) Error() string { return e.Peer + " says: " + peertext.Quote(e.Text) }

// take waits for a message of one of some kinds, for so long; 0 is without end.
func (c *control) take(ctx context.Context, timeout time.Duration, kinds ...string) (message, error) {
	var late <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case m, ok := <-c.inbox:
		if !ok {
			return message{}, context.Cause(ctx)
		}
		return m.message, c.inOrder(m, kinds)
	case <-ctx.Done():
		// What came before the end counts: a server hangs up when it has answered.
		select {
		case m, ok := <-c.inbox:
			if ok {
				return m.message, c.inOrder(m, kinds)
			}
		default:
		}
		return message{}, context.Cause(ctx)
	case <-late:
		return message{}, refusef("%s has not sent %q for %s", c.name, kinds[0], timeout)
	}
}

// inOrder checks that a message is the one that is expected, and without faults.
func (c *control) inOrder(m received, kinds []string) error {
	if !slices.Contains(kinds, m.Kind) {
		return c.outOfOrder(m.Kind, fmt.Sprintf(" instead of %q", kinds[0]))
	}
	if m.err != nil {
		return fmt.Errorf("%s: %w", c.name, m.err)
	}
	return nil
}

// outOfOrder is the error of a message that has come at the wrong time.
func (c *control) outOfOrder(kind, instead string) error {
	return refusef("%s does not keep to the order of messages: %s%s", c.name, peertext.Quote(kind), instead)
}
