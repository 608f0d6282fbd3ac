package perftest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Timeouts of a session.
const (
	stepTimeout = 10 * time.Second // for a message that the peer sends at once; write-bw sleeps for a second
	runTimeout  = 10 * time.Minute // for one that comes when the peer's run has ended
	lastWords   = time.Second      // for what a peer has done before it hung up to be seen
)

// link carries messages.
type link interface {
	write(ctx context.Context, b []byte) error
	read(ctx context.Context, n int) ([]byte, error)
	writeRecord(ctx context.Context, r Record) error
	readRecord(ctx context.Context) (Record, error)
	watch(gone func()) (stop func())
	finish(ctx context.Context) error
	close() error
}

// Params are what both sides agree on.
type Params struct {
	CycleBuffer int    // CycleBuffer is the memory that short messages go through, in bytes: the larger page size.
	CacheLine   int    // CacheLine is how far such messages are apart, in bytes: the larger of both.
	MTU         ib.MTU // MTU is the path MTU, the smaller of both.
}

// DefaultParams returns the parameters of a side with a port of this MTU.
func DefaultParams(mtu ib.MTU) Params {
	return Params{CycleBuffer: 4096, CacheLine: 64, MTU: mtu}
}

// Session is a conversation with a perftest program. It is for one goroutine.
type Session struct {
	Server  bool   // Server says that this is the server's side.
	Version string // Version is the peer's, after Hello.
	Agreed  Params // Agreed is there after Hello.
	Test    Test

	// Timeout is how long the peer of a test that sends messages may be silent when this side has
	// sent and received all of its own; 0 is as long as for any test.
	Timeout time.Duration

	link   link
	cm     bool
	step   time.Duration
	run    time.Duration
	first  Record // what barriers send
	mine   []Record
	remote []Record
}

// NewSession begins one on a TCP connection. A client says whether records have GIDs in them, as
// they do on Ethernet; a server does as the client.
func NewSession(c net.Conn, server, gid bool) *Session {
	return &Session{Server: server, link: &tcpLink{c: c, gid: gid}, step: stepTimeout, run: runTimeout}
}

// Close ends the session.
func (s *Session) Close() error { return s.link.close() }

// within bounds an exchange.
func within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("%w: nothing came for %s", errSilent, d))
}

var errSilent = errors.New("the peer is silent")

// swap has each side write and read once, the client first.
func (s *Session) swap(ctx context.Context, d time.Duration, what string, write, read func(ctx context.Context) error) error {
	ctx, cancel := within(ctx, d)
	defer cancel()
	steps := [2]func(context.Context) error{write, read}
	if s.Server {
		steps = [2]func(context.Context) error{read, write}
	}
	for _, f := range steps {
		if err := f(ctx); err != nil {
			return fmt.Errorf("exchange of %s with perftest: %w", what, s.explain(err))
		}
	}
	return nil
}

// explain says what is probably wrong.
func (s *Session) explain(err error) error {
	lost := errors.Is(err, errGone) || errors.Is(err, errSilent) || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	switch {
	case lost && s.Version == "":
		return fmt.Errorf("%w: expected the version of a perftest program", err)
	case atLeast(s.Version, negotiates) && !atLeast(s.Version, validates) && s.remote == nil:
		return fmt.Errorf("%w: the peer is perftest %s, and the first programs of version %.2f exchange parameters with everybody, "+
			"in a struct whose size depends on how they were built: use an older one, or 6.29", err, s.Version, negotiates)
	case lost:
		return fmt.Errorf("%w: it must run %s", err, s.Command())
	}
	return err
}

// Command is what the peer must run, with the options that are not known here and of which it says
// nothing, or nothing in time.
func (s *Session) Command() string {
	without := ", without -D"
	if atLeast(s.Version, validates) {
		without += " and --data_validation"
	}
	return s.Test.command(s.cm) + without
}

// bytes exchanges a message of fixed length.
func (s *Session) bytes(ctx context.Context, what string, mine []byte) (theirs []byte, err error) {
	return s.bytesIn(ctx, s.step, what, mine)
}

// bytesIn does so within a time.
func (s *Session) bytesIn(ctx context.Context, d time.Duration, what string, mine []byte) (theirs []byte, err error) {
	err = s.swap(ctx, d, what,
		func(ctx context.Context) error { return s.link.write(ctx, mine) },
		func(ctx context.Context) (err error) { theirs, err = s.link.read(ctx, len(mine)); return err })
	return theirs, err
}

// number exchanges a number.
func (s *Session) number(ctx context.Context, what string, mine, least, most int) (int, error) {
	b, err := s.bytes(ctx, what, binary.BigEndian.AppendUint32(nil, uint32(mine)))
	if err != nil {
		return 0, err
	}
	theirs := binary.BigEndian.Uint32(b)
	if theirs < uint32(least) || theirs > uint32(most) {
		return 0, fmt.Errorf("exchange of %s with perftest: got %d, expected %d to %d", what, theirs, least, most)
	}
	return int(theirs), nil
}

// Greet reads a client's version, as the first step of a server. Hello answers it.
func (s *Session) Greet(ctx context.Context) error {
	ctx, cancel := within(ctx, s.step)
	defer cancel()
	theirs, err := s.link.read(ctx, versionLen)
	if err != nil {
		return s.explain(err)
	}
	s.Version, err = checkVersion(theirs)
	return err
}

// versions exchanges versions.
func (s *Session) versions(ctx context.Context) error {
	var b [versionLen]byte
	copy(b[:], Version)
	if s.Version != "" { // the client's is known: see Greet
		ctx, cancel := within(ctx, s.step)
		defer cancel()
		return s.link.write(ctx, b[:])
	}
	theirs, err := s.bytes(ctx, "versions", b[:])
	if err != nil {
		return err
	}
	s.Version, err = checkVersion(theirs)
	return err
}

// Hello exchanges versions and parameters.
func (s *Session) Hello(ctx context.Context, mine Params) error {
	if err := s.versions(ctx); err != nil {
		return err
	}
	const maxBuffer, maxLine = 1 << 30, 1 << 16
	cycle, err := s.number(ctx, "page sizes", mine.CycleBuffer, 1, maxBuffer)
	if err != nil {
		return err
	}
	line, err := s.number(ctx, "cache line sizes", mine.CacheLine, 1, maxLine)
	if err != nil {
		return err
	}
	mtu, err := s.bytes(ctx, "MTUs", []byte{'0' + byte(mine.MTU), 0})
	if err != nil {
		return err
	}
	theirMTU := ib.MTU(mtu[0] - '0')
	if theirMTU < ib.MTU256 || theirMTU > ib.MTU4096 || mtu[1] != 0 {
		return fmt.Errorf("exchange of MTUs with perftest: got %s, expected \"1\" (256 bytes) to \"5\" (4096 bytes)", peertext.Quote(mtu))
	}
	s.Agreed = Params{CycleBuffer: max(mine.CycleBuffer, cycle), CacheLine: max(mine.CacheLine, line), MTU: min(mine.MTU, theirMTU)}
	return nil
}

// records exchanges a record.
func (s *Session) records(ctx context.Context, d time.Duration, what string, mine Record) (theirs Record, err error) {
	err = s.swap(ctx, d, what,
		func(ctx context.Context) error { return s.link.writeRecord(ctx, mine) },
		func(ctx context.Context) (err error) { theirs, err = s.link.readRecord(ctx); return err })
	return theirs, err
}

// barrier waits until the peer is at the same point.
func (s *Session) barrier(ctx context.Context, what string) error {
	_, err := s.records(ctx, s.step, what, s.first)
	return err
}

// ended waits until the peer's run has ended.
func (s *Session) ended(ctx context.Context) error {
	_, err := s.records(ctx, s.run, "the end of the run", s.first)
	return err
}

// all exchanges the records of all queue pairs.
func (s *Session) all(ctx context.Context, what string) error {
	var remote []Record
	for i, mine := range s.mine {
		r, err := s.records(ctx, s.step, fmt.Sprintf("%s (QP %d of %d)", what, i+1, len(s.mine)), mine)
		if err != nil {
			return err
		}
		if i < len(s.remote) && (r.QPN != s.remote[i].QPN && !s.Test.dc() || r.Addr != s.remote[i].Addr) {
			return fmt.Errorf("the peer is at another point of the test: got the record of QP %#x, expected that of %#x: it must run %s",
				r.QPN, s.remote[i].QPN, s.Command())
		}
		if r.SRQN != 0 && !s.Test.split() {
			return fmt.Errorf("exchange of %s with perftest: %w: it must run %s", what, errSRQ, s.Command())
		}
		if r.SRQN == 0 && s.Test.targetOf(!s.Server) {
			return fmt.Errorf("exchange of %s with perftest: %w: it must run %s", what, errNoSRQ, s.Command())
		}
		remote = append(remote, r)
	}
	s.remote = remote
	return nil
}

// report exchanges what was measured. A side that has measured nothing sends whatever its memory
// contains.
func (s *Session) report(ctx context.Context, mine Report) (theirs Report, err error) {
	var got [5][reportFieldLen]byte
	for i, f := range mine.fields() {
		d := s.step
		if i == 0 {
			d = s.run // the peer may be running yet
		}
		b, err := s.bytesIn(ctx, d, "reports", f[:])
		if err != nil {
			return theirs, err
		}
		copy(got[i][:], b)
	}
	return parseReport(got), nil
}

// finish is the last barrier, and the end.
func (s *Session) finish(ctx context.Context) error {
	if err := s.ended(ctx); err != nil {
		return err
	}
	return s.link.finish(ctx)
}
