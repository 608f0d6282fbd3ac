package perf

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
)

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

	// Of a server with a secret or at a pipe; see probe.go.
	kindInventory = "inventory"
	kindRails     = "rails"
	kindProbe     = "probe"
	kindProbed    = "probed"
)

// message is a frame's content. Which fields it has depends on its kind.
type message struct {
	Kind   string  `json:"kind"`
	Error  string  `json:"error,omitempty"`
	Limits *Limits `json:"limits,omitempty"`
	Config *Config `json:"config,omitempty"`
	Peers  []Peer  `json:"peers,omitempty"`
	Path   *Peer   `json:"path,omitempty"`    // in peers, but not on iWARP; see path.go
	Token  []byte  `json:"token,omitempty"`   // in connected, with path
	CMAddr string  `json:"cm_addr,omitempty"` // IP address and port
	// CMToken is what requests to CMAddr begin with: bytes that only the client knows.
	CMToken []byte `json:"cm_token,omitempty"`
	Inline  int    `json:"inline,omitempty"`
	// MaxTime is how long a test without an end may take, in opened.
	MaxTime time.Duration `json:"max_time_ns,omitempty"`
	Size    int           `json:"size,omitempty"`
	Sent    int64         `json:"sent,omitempty"`
	Run     *Run          `json:"run,omitempty"`
	Device  string        `json:"device,omitempty"` // the server's, in hello
	Rails   []Rail        `json:"rails,omitempty"`
	Probe   *Probe        `json:"probe,omitempty"`
	Result  *Size         `json:"result,omitempty"`
}

// Limits of frames, in bytes.
const (
	// maxFrame is the limit for every message but peers. The longest of them is open, with 64
	// sizes.
	maxFrame = 4 << 10

	// maxPeer is the limit for each queue pair in peers. The longest one takes 273 bytes.
	maxPeer = 320
)

// peersFrame returns the limit for a message with so many queue pairs.
func peersFrame(qps int) int { return maxFrame + maxPeer*qps }

// Limits of what a message may contain, beside those of a Config.
const (
	max24Bits  = 1<<24 - 1 // queue pair numbers and packet sequence numbers
	maxName    = 64        // of a device or driver, in bytes (IB_DEVICE_NAME_MAX)
	maxOutcome = 1 << 54   // messages of a run that has a duration: sendMask for each of maxQPs
)

// terms are what the two sides have agreed on: messages are checked against them.
type terms struct {
	config Config
	iwarp  bool // the devices are iWARP devices
}

// outcome returns how many messages one side can have sent for one size, at most.
func (t *terms) outcome() int64 {
	if total := t.config.total(); total > 0 {
		return int64(total) * int64(t.config.QPs)
	}
	return maxOutcome
}

// readFrame reads a frame of up to max bytes; max is called when the length is known.
func readFrame(r io.Reader, max func() int) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if most := max(); n == 0 || uint64(n) > uint64(most) {
		return nil, refusef("a message of %d bytes, allowed: 1 to %d", n, most)
	}
	// Memory grows with what has come, and not by what is announced.
	b, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err == nil && len(b) < int(n) {
		err = io.ErrUnexpectedEOF
	}
	return b, err
}

// decodeMessage decodes the content of a frame. It does not look at values, except that a message
// with more than qps queue pairs is refused before they are decoded.
func decodeMessage(b []byte, qps int) (message, error) {
	var wire struct {
		message
		Peers json.RawMessage `json:"peers"`
	}
	if err := json.Unmarshal(b, &wire); err != nil {
		return message{}, refusef("a message that is not valid JSON for this protocol: %s", clip(err.Error()))
	}
	m := wire.message
	if wire.Peers == nil {
		return m, nil
	}
	dec := json.NewDecoder(bytes.NewReader(wire.Peers))
	if t, err := dec.Token(); err != nil || t != json.Delim('[') {
		return message{}, refusef("peers is not a JSON array")
	}
	for dec.More() {
		if len(m.Peers) == qps {
			return message{}, refusef("peers has more than %d queue pairs, allowed: %d", qps, qps)
		}
		var p Peer
		if err := dec.Decode(&p); err != nil {
			return message{}, refusef("queue pair %d in peers: %s", len(m.Peers), clip(err.Error()))
		}
		m.Peers = append(m.Peers, p)
	}
	return m, nil
}

// integer is a type of number in a message.
type integer interface {
	~int | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// within refuses a number that is outside of a range.
func within[T integer](name string, given, least, most T) error {
	if given < least || given > most {
		return refusef("%s is %d, allowed: %d to %d", name, given, least, most)
	}
	return nil
}

// validate checks everything in a message that has come to the server's side or the client's.
// Before the two sides have agreed, t is nil, and the messages that need an agreement are out of
// order.
func (m *message) validate(t *terms, server bool) error {
	early := func(check func() error) error {
		if t == nil {
			return refusef("%s has come before the two sides have agreed on a test", m.Kind)
		}
		return check()
	}
	switch {
	case m.Kind == kindError, m.Kind == kindConnected && server, m.Kind == kindReady && !server:
		return nil
	case m.Kind == kindHello:
		if m.Limits == nil {
			return refusef("hello does not contain the limits of the device")
		}
		if m.Device != "" {
			if err := validName("device", m.Device); err != nil {
				return err
			}
		}
		return m.Limits.validate()
	case m.Kind == kindInventory && server:
		return nil
	case m.Kind == kindRails && !server:
		return validateRails(m.Rails)
	case m.Kind == kindProbe && server:
		if m.Probe == nil {
			return refusef("probe does not say what to test")
		}
		return m.Probe.validate()
	case m.Kind == kindProbed && !server:
		return m.validateProbed()
	case m.Kind == kindOpen && server:
		if m.Config == nil {
			return refusef("open does not contain the config of the test")
		}
		return refuse(m.Config.Validate())
	case m.Kind == kindOpened && !server:
		return early(func() error { return m.validateOpened(t) })
	case m.Kind == kindPeers:
		return early(func() error { return m.validatePeers(t) })
	case m.Kind == kindStart && server:
		return early(func() error {
			if !slices.Contains(t.config.Sizes, m.Size) {
				return refusef("size is %d, allowed: one of %v, the sizes of the test", m.Size, t.config.Sizes)
			}
			return nil
		})
	case m.Kind == kindFinished:
		return early(func() error { return within("sent", m.Sent, 0, t.outcome()) })
	case m.Kind == kindReport && !server:
		return early(func() error { return m.validateReport(t) })
	}
	return refusef("the kind of a message is %s, which is not one that this side gets", peertext.Quote(m.Kind))
}

// validateOpened checks the address of the connection manager.
func (m *message) validateOpened(t *terms) error {
	if t.config.Endless {
		if err := within("max_time_ns", m.MaxTime, 1, MaxMaxTime); err != nil {
			return err
		}
	}
	if !t.config.CM {
		return nil
	}
	a, err := netip.ParseAddrPort(m.CMAddr)
	if err != nil || a.Port() == 0 || a.Addr().IsUnspecified() || a.Addr().IsMulticast() {
		return refusef("cm_addr is %s, allowed: a unicast IP address and a port from 1 to 65535", peertext.Quote(m.CMAddr))
	}
	return within("length of cm_token", len(m.CMToken), tokenSize, tokenSize)
}

// validatePeers checks the queue pairs of the peer.
func (m *message) validatePeers(t *terms) error {
	if n := len(m.Peers); n != t.config.QPs {
		return refusef("peers has %d queue pairs, allowed: %d, the qps of the test", n, t.config.QPs)
	}
	for i := range m.Peers {
		if err := m.Peers[i].validate(t); err != nil {
			return refuse(fmt.Errorf("queue pair %d in peers: %w", i, err))
		}
	}
	switch {
	case t.iwarp:
	case m.Path == nil:
		return refusef("peers does not contain the path")
	default:
		if err := m.Path.validate(t); err != nil {
			return refuse(fmt.Errorf("path in peers: %w", err))
		}
		if err := samePlace(m.Peers, m.Path); err != nil {
			return err
		}
	}
	return within("inline", m.Inline, 0, maxMessage)
}

// validate checks one queue pair. GID and LID may have any value, since the kernel resolves them,
// as may the RKey, since the peer's device checks it.
func (p *Peer) validate(t *terms) error {
	reach := uint64(cycle + roundUp(t.config.maxSize(), cacheLine)) // of memory from Addr on
	err := cmp.Or(
		within("qpn", p.QPN, 0, max24Bits),
		within("psn", p.PSN, 0, max24Bits),
		within("srqn", p.SRQN, 0, max24Bits),
		within("send_qpn", p.SendQPN, 0, max24Bits),
		within("send_psn", p.SendPSN, 0, max24Bits),
		within("addr", p.Addr, 0, math.MaxUint64-reach),
	)
	if err != nil {
		return err
	}
	if !t.iwarp {
		return cmp.Or(within("own", p.Own, 0, 0), within("recvs", p.Recvs, 0, 0))
	}
	return cmp.Or(within("own", p.Own, 1, math.MaxUint64-ownSize), within("recvs", p.Recvs, 1, maxDepth))
}

// validateReport checks what the server has measured.
func (m *message) validateReport(t *terms) error {
	c := &t.config
	r := m.Run
	if r == nil {
		return refusef("the server does not report its run of %s", c.Name())
	}
	most := t.outcome()
	if !c.sends(true) && !c.receives(true) {
		most = 0
	}
	return cmp.Or(
		within("latencies of the server", len(r.Latencies), 0, 0),
		within("took", r.Took, 0, math.MaxInt64),
		within("cpu", r.CPU, 0, math.MaxInt64),
		within("sent", r.Sent, 0, most),
		within("received", r.Received, 0, most),
		within("all_sent", r.AllSent, 0, most),
	)
}

// validate checks the limits of the peer's device.
func (l *Limits) validate() error {
	for _, f := range []struct{ name, given string }{{"device", l.Device}, {"driver", l.Driver}} {
		if len(f.given) > maxName || strings.ContainsFunc(f.given, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return refusef("the limits' %s is %s, allowed: up to %d printable ASCII characters", f.name, peertext.Quote(f.given), maxName)
		}
	}
	if !slices.Contains([]int{256, 512, 1024, 2048, 4096}, l.MTU) {
		return refusef("the limits' MTU is %d, allowed: 256, 512, 1024, 2048, 4096", l.MTU)
	}
	return cmp.Or(
		within("the limits' MaxMsg", l.MaxMsg, 1, math.MaxUint32),
		within("the limits' MaxRDMA", l.MaxRDMA, 0, math.MaxUint32),
		within("the limits' MaxWR", l.MaxWR, 1, math.MaxUint32),
		within("the limits' MaxCQE", l.MaxCQE, 1, math.MaxUint32),
		within("the limits' MaxQPs", l.MaxQPs, 1, math.MaxUint32),
		within("the limits' RdAtomic", l.RdAtomic, 0, math.MaxUint8),
	)
}

// refusal is an error whose text is sent to the peer. It is about what the peer has sent or what
// this side allows. All other errors, such as those of the kernel, may contain addresses and limits
// of this machine: the peer only learns that there is one.
type refusal struct{ error }

// Unwrap returns the error itself.
func (r refusal) Unwrap() error { return r.error }

// refuse marks an error as one whose text may be sent to the peer.
//
//go:noinline
func refuse(err error) error {
	if err == nil {
		return nil
	}
	return refusal{err}
}

// refusef is refuse of fmt.Errorf.
//
//go:noinline
func refusef(format string, args ...any) error { return refusal{fmt.Errorf(format, args...)} }

// atSize says at which message size an error has come up.
func atSize(size int, err error) error {
	text, public := publicText(err)
	err = fmt.Errorf("size %d: %w", size, err)
	if public {
		return &sizeError{error: err, text: fmt.Sprintf("size %d: %s", size, text)}
	}
	return err
}

// sizeError is an error at a message size, whose text may be sent to the peer.
type sizeError struct {
	error
	text string
}

// Unwrap returns the error itself.
func (e *sizeError) Unwrap() error { return e.error }

// privateText is the text that a peer gets for an error whose text is private.
const privateText = "it cannot go on, and its own output says why"

// publicText returns the text of an error that a peer may see, and whether that is the error's own
// text.
func publicText(err error) (text string, public bool) {
	var size *sizeError
	if errors.As(err, &size) {
		return size.text, true
	}
	var r refusal
	if errors.As(err, &r) {
		return r.Error(), true
	}
	var d *DataError
	if errors.As(err, &d) {
		return d.Error(), true
	}
	return privateText, false
}
