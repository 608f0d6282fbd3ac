package cm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// attacker is a program that speaks raw verbs and knows the protocol of Conn.
type attacker struct {
	t       *testing.T
	channel *rdmacm.Channel
	pd      *uverbs.PD
	mr      *uverbs.MR // the first half is sent from, the second received into
	to      netip.AddrPort
	rng     *rand.Rand
}

// newAttacker returns an attacker that attacks a listener.
func newAttacker(t *testing.T, l *Listener) *attacker {
	t.Helper()
	pd, _ := openPD(t)
	mem := value(uverbs.AllocBuffer(2*attackMemory, uverbs.BufferOptions{}))(t)
	mr := value(pd.RegMR(mem, uverbs.MROptions{Access: uverbs.AccessLocalWrite}))(t)
	t.Cleanup(func() { must(t, mr.Close(), mem.Close()) })
	return &attacker{t: t, channel: openKernel(t), pd: pd, mr: mr, to: netip.MustParseAddrPort(l.Addr().String())}
}

// victim is a connection from an attacker to the server.
type victim struct {
	*attacker
	id     *rdmacm.ID
	qp     *uverbs.QP
	cq     *uverbs.CQ
	remote Remote // the memory that the server describes in its answer

	version uint8 // protocol version in the answer
}

// attack is something that a hostile peer does.
type attack struct {
	name  string
	does  func(ctx context.Context, v *victim) error   // on a connection, if the attack needs one
	dials func(ctx context.Context, a *attacker) error // connects by itself
	ends  error                                        // the error that ends the server's connection
	goes  bool                                         // disconnects afterwards
}

// send posts a SEND of the first bytes of the memory.
func (v *victim) send(op uverbs.WROpcode, b []byte, change func(*uverbs.SendWR)) error {
	copy(v.mr.Bytes(), b)
	wr := uverbs.SendWR{Opcode: op, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{v.mr.SGE(0, len(b))}}
	if change != nil {
		change(&wr)
	}
	return v.qp.PostSend(wr)
}

// frame returns the bytes of a message.
func frame(h header, data []byte) []byte {
	b := make([]byte, headerSize, headerSize+len(data))
	h.put(b)
	return append(b, data...)
}

// sends returns an attack that posts one SEND.
func sends(b []byte) func(context.Context, *victim) error {
	return func(_ context.Context, v *victim) error { return v.send(uverbs.WRSend, b, nil) }
}

// attacks returns the attacks that the device supports.
func attacks() []attack {
	all := []attack{
		{name: "no header", does: sends([]byte{1, 0, 0}), ends: syscall.EPROTO},
		{name: "nothing", does: sends(nil), ends: syscall.EPROTO},
		{name: "kind 9", does: sends([]byte{9, 0, 0, 0, 0, 0, 0, 0}), ends: syscall.EPROTO},
		{name: "a length that is too long", does: sends([]byte{1, 0, 0, 0, 0, 0, 1, 0xb8, 'x'}), ends: syscall.EPROTO},
		{name: "a length that is too short", does: sends([]byte{1, 0, 0, 0, 0, 0, 0, 0, 'x'}), ends: syscall.EPROTO},
		{name: "forged credits", does: sends(frame(header{kind: msgCredits, credits: 60000}, nil)), ends: syscall.EPROTO},
		{name: "forged credits with data", does: sends(frame(header{kind: msgData, credits: 13, length: 1}, []byte{1})), ends: syscall.EPROTO},
		{name: "growth without end", does: sends(frame(header{kind: msgGrown, recvs: 1<<31 - 1}, nil)), ends: syscall.EPROTO},
		{name: "a flag", does: sends([]byte{1, 1, 0, 0, 0, 0, 0, 0}), ends: syscall.EPROTO},
		{name: "a message that is longer than the receive", does: sends(frame(header{kind: msgData, length: 2000}, make([]byte, 2000))), ends: syscall.EPROTO},
		{name: "a flood of control messages", goes: true, ends: errAny, does: floodControl},
		{name: "gone", goes: true, ends: syscall.ECONNRESET, does: func(context.Context, *victim) error { return nil }},
		{name: "a greeting of another kind", dials: func(ctx context.Context, a *attacker) error {
			_, err := a.dial(ctx, greeting{kind: greetingAnswer, depth: 1, size: 1}.encode())
			return err
		}},
		{name: "no greeting", dials: func(ctx context.Context, a *attacker) error {
			b := make([]byte, a.rng.IntN(50))
			for i := range b {
				b[i] = byte(a.rng.Uint32())
			}
			_, err := a.dial(ctx, b)
			return err
		}},
	}
	if testenv.TheRig().IWARP() {
		return all
	}
	return append(all, attacksByIB()...)
}

// attacksByIB returns attacks that iWARP cannot make: it has no immediate data, and siw does not
// report invalidation to programs.
func attacksByIB() []attack {
	data := []byte("a message that looks well")
	good := frame(header{kind: msgData, length: len(data)}, data)
	imm := func(b []byte, size int) func(context.Context, *victim) error {
		return func(_ context.Context, v *victim) error {
			return v.send(uverbs.WRRDMAWriteWithImm, b, func(wr *uverbs.SendWR) {
				wr.SGL[0].Length = uint32(size)
				wr.RemoteAddr, wr.RKey, wr.Imm = v.remote.Addr, v.remote.RKey, 7
			})
		}
	}
	return []attack{
		{name: "a WRITE with immediate data", does: imm(good, len(good)), ends: syscall.EPROTO},
		{name: "a long WRITE with immediate data", does: imm(good, attackMemory), ends: syscall.EPROTO},
		{name: "a WRITE of nothing with immediate data", does: imm(nil, 0), ends: syscall.EPROTO},
		{name: "a SEND with immediate data", ends: syscall.EPROTO, does: func(_ context.Context, v *victim) error {
			return v.send(uverbs.WRSendWithImm, good, func(wr *uverbs.SendWR) { wr.Imm = 7 })
		}},
		{name: "a SEND that invalidates", ends: syscall.EPROTO, does: func(_ context.Context, v *victim) error {
			return v.send(uverbs.WRSendWithInv, good, func(wr *uverbs.SendWR) { wr.InvalidateRKey = v.remote.RKey })
		}},
		{name: "a request that stays half open", dials: leaveHalfOpen},
	}
}

// floodControl sends control messages without end.
func floodControl(ctx context.Context, v *victim) error {
	for range 200 {
		err := v.send(uverbs.WRSend, frame(header{kind: msgPad}, nil), nil)
		if err == nil {
			err = v.await(ctx)
		}
		if err != nil && (testenv.TheRig().IWARP() || errors.Is(err, uverbs.WCRNRRetryExcErr)) {
			return nil // the server had no receive in time, which ends an iWARP connection at once
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// leaveHalfOpen requests a connection, and does not answer the server's reply. The ID stays in
// halfOpens.
func leaveHalfOpen(ctx context.Context, a *attacker) error {
	id, err := a.channel.NewID(rdmacm.TCP)
	if err != nil {
		return err
	}
	if err := id.ResolveWait(ctx, rdmacm.Addr{}, rdmacm.AddrOf(a.to)); err != nil {
		return errors.Join(err, id.Close())
	}
	err = id.Connect(rdmacm.ConnParam{PrivateData: attackRequest.encode(), QPN: unusedQPN()})
	if err == nil {
		_, err = id.Next(ctx)
	}
	halfOpens.Store(id, true)
	return err
}

// attackRequest is the greeting of an attacker that begins like an honest client.
var attackRequest = greeting{kind: greetingRequest, depth: 16, size: 32 << 10, first: 4}

// halfOpens are IDs of half-open requests.
var halfOpens sync.Map

// attackMemory is the size in bytes of the memory that the server lets its peers write to.
const attackMemory = 64 << 10

// errAny stands for any error, where the device itself refuses an attack.
var errAny = errors.New("an error")

// dial connects to the server with a greeting.
func (a *attacker) dial(ctx context.Context, greeting []byte) (v *victim, err error) {
	id, err := a.channel.NewID(rdmacm.TCP)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, id.Close())
		}
	}()
	if err := id.ResolveWait(ctx, rdmacm.Addr{}, rdmacm.AddrOf(a.to)); err != nil {
		return nil, err
	}
	v = &victim{attacker: a, id: id}
	if v.cq, err = a.pd.Device().CreateCQ(uverbs.CQOptions{Size: 64}); err != nil {
		return nil, err
	}
	if v.qp, err = id.CreateQP(a.pd, uverbs.QPOptions{SendCQ: v.cq, RecvCQ: v.cq, MaxSendWR: 8, MaxRecvWR: 8}); err != nil {
		return nil, errors.Join(err, v.cq.Close())
	}
	for range 8 {
		if err := v.qp.PostRecv(1, a.mr.SGE(attackMemory, 512)); err != nil {
			return nil, err
		}
	}
	e, err := id.ConnectWait(ctx, rdmacm.ConnParam{PrivateData: greeting, RetryCount: 6, RNRRetryCount: 6, ResponderResources: 1, InitiatorDepth: 1})
	if err != nil {
		return nil, errors.Join(err, id.Close(), v.cq.Close())
	}
	h, err := parseGreeting(e.Param.PrivateData, greetingAnswer)
	if v.version = h.version; err == nil {
		err = v.remote.UnmarshalBinary(h.data)
	}
	return v, err
}

// await waits for the completion of the last send.
func (v *victim) await(ctx context.Context) error {
	var wcs [4]uverbs.WC
	for ctx.Err() == nil {
		n, err := v.cq.Poll(wcs[:])
		if err != nil {
			return err
		}
		for _, wc := range wcs[:n] {
			if wc.ID == 0 {
				return wc.Err()
			}
		}
		runtime.Gosched()
	}
	return ctx.Err()
}

// errFirstLost is the outcome of an attack that did not arrive. Soft iWARP loses a first message that
// arrives while the server's kernel accepts the connection, more often on a busy CPU.
var errFirstLost = errors.New("the server's kernel has lost the first message")

// make makes an attack, and compares the error that ends the server's connection.
func (a *attacker) make(ctx context.Context, what attack, ended *outcomes) error {
	if what.dials != nil {
		if err := what.dials(ctx, a); err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
		return nil
	}
	v, err := a.dial(ctx, attackRequest.encode())
	if err != nil {
		return err
	}
	own, err := v.id.Addrs()
	if err == nil {
		err = what.does(ctx, v)
	}
	if err == nil && what.goes {
		v.id.Disconnect() // it fails if the connection is over
	}
	if err != nil {
		return errors.Join(err, v.id.Close(), v.cq.Close())
	}
	select {
	case err = <-ended.of(own.Local.String()):
		ended.forget(own.Local.String())
		switch expected := errors.Is(err, what.ends) || what.ends == errAny && err != nil && err != io.EOF; {
		case expected:
			err = nil
		case onIWARP(v.qp.Device()) && errors.Is(err, syscall.ETIMEDOUT) && strings.Contains(err.Error(), "has to send first"):
			err = errFirstLost
		default:
			err = fmt.Errorf("the server's connection has ended with %v, want %w", err, what.ends)
		}
	case <-ctx.Done():
		err = fmt.Errorf("the server's connection does not end: %w", ctx.Err())
	}
	return errors.Join(err, v.id.Close(), v.cq.Close())
}
