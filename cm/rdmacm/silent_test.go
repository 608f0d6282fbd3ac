package rdmacm

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/abi"
)

// silent is a connection manager that accepts all commands and reports no event, except that of a command that it
// answers.
type silent struct {
	commander
	answers uint32        // RDMA_USER_CM_CMD_RESOLVE_ADDR, or 0 for no command
	uid     atomic.Uint64 // of the last ID
	asked   atomic.Bool   // the command that it answers was given
}

// Do implements [commander].
func (s *silent) Do(cmd uint32, in, out []byte) syscall.Errno {
	switch cmd {
	case abi.RDMA_USER_CM_CMD_CREATE_ID:
		s.uid.Store(binary.NativeEndian.Uint64(in))
	case abi.RDMA_USER_CM_CMD_RESOLVE_ADDR:
		s.asked.Store(s.answers == cmd)
	case abi.RDMA_USER_CM_CMD_GET_EVENT:
		if !s.asked.Swap(false) {
			return syscall.EAGAIN
		}
		binary.NativeEndian.PutUint64(out, s.uid.Load())
		binary.NativeEndian.PutUint32(out[12:], uint32(EventAddrResolved))
	}
	return 0
}

// openSilent opens a channel of a silent connection manager.
func openSilent(t *testing.T, answers uint32) *Channel {
	t.Helper()
	f := value(openSoft())(t)
	f.local = &silent{commander: f.local, answers: answers}
	c := newChannel(f)
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

// TestSilence: the steps that ask the network and not a peer give up within their limits, though their context has
// no deadline and the connection manager never answers.
func TestSilence(t *testing.T) {
	if answerLimit != 2*time.Minute || resolveLimit != time.Minute {
		t.Errorf("the limits are %v and %v, and the table of the package documentation says 2 min and 1 min", answerLimit, resolveLimit)
	}
	defer func(a, r, g time.Duration) { answerLimit, resolveLimit, resolveGrace = a, r, g }(answerLimit, resolveLimit, resolveGrace)
	answerLimit, resolveLimit, resolveGrace = 100*time.Millisecond, 50*time.Millisecond, 50*time.Millisecond
	bg, cancel := context.WithCancel(t.Context()) // without a deadline
	defer cancel()
	defer time.AfterFunc(timeout, cancel).Stop()
	to := AddrOf(netip.MustParseAddrPort("10.1.0.1:7471"))
	resolve := func(answers uint32) func() error {
		return func() error {
			id := newID(t, openSilent(t, answers), TCP)
			return id.ResolveWait(bg, Addr{}, to)
		}
	}
	for name, step := range map[string]struct {
		call func() error
		want error
	}{
		"ResolveWait, no address": {resolve(0), syscall.ETIMEDOUT},
		"ResolveWait, no route":   {resolve(abi.RDMA_USER_CM_CMD_RESOLVE_ADDR), syscall.ETIMEDOUT},
		"JoinWait": {func() error {
			_, err := newID(t, openSilent(t, 0), UDP).JoinWait(bg, netip.MustParseAddr("239.1.2.3"), JoinFullMember)
			return err
		}, syscall.ETIMEDOUT},
	} {
		if err := step.call(); !errors.Is(err, step.want) || bg.Err() != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
