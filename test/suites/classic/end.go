// Package classic has the programs that everybody writes first with RDMA, each as a pair of
// functions in a file: ping-pong in its variations, a blast, a client that lends its memory
// to the server, a file copy, a chat by multicast. They use the steps of package cm and the
// verbs, and nothing above.
//
// The file end.go has what all of them need: a side of a connection with memory and queues.
//
// Those that people know by name are commands, too, in a folder of that name: ping-sr-0 to ping-sr-4,
// blast-sr, rdma-example and devices. Run one as a server, and as its client with the address of the
// server:
//
//	go run -C test/suites ./classic/ping-sr-1
//	go run -C test/suites ./classic/ping-sr-1 10.1.0.1
//
// Without RDMA, give each a software device:
//
//	GOVERBS_SOFT=127.0.0.2 go run -C test/suites ./classic/ping-sr-1 -listen 127.0.0.2
//	GOVERBS_SOFT=127.0.0.3 go run -C test/suites ./classic/ping-sr-1 127.0.0.2
//
// The tests run the functions in a VM, and the commands in a VM and on software devices.
package classic

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
)

// Options say what an end has.
type Options struct {
	Space  rdmacm.PortSpace // Space is TCP or UDP.
	Size   int              // Size is the size of a message, in bytes.
	Slots  int              // Slots is how many messages there is memory for.
	Recvs  int              // Recvs is how many of them, the first, are posted as receives.
	Access uverbs.Access    // Access is what the peer may do with the memory.
	Sleeps bool             // Sleeps gives the CQ a completion channel.
	Param  rdmacm.ConnParam // Param goes with the request or the answer.
	ECE    rdmacm.ECEMode   // ECE says whether the QP uses options for enhanced connections.
}

// End is one side of a connection. It is for one goroutine.
type End struct {
	ID   *rdmacm.ID          // ID is the end of the connection.
	Dev  *uverbs.Device      // Dev is the device that the ID is on.
	PD   *uverbs.PD          // PD is what the objects below belong to.
	MR   *uverbs.MR          // MR has the slots, one after another.
	Comp *uverbs.CompChannel // Comp is nil unless the options say Sleeps.
	CQ   *uverbs.CQ          // CQ gets the completions of both queues.
	QP   *uverbs.QP          // QP follows the ID.

	Sent, Received int // Sent and Received count completions; see Until.

	size int
	bufs []*uverbs.Buffer
}

// connTries are the numbers of retries that programs on one machine can afford: 7 is without
// end where the peer has no receive posted.
const connTries = 7

// Listen makes a listener. With port 0 the kernel chooses one, which [rdmacm.ID.Addrs] tells.
func Listen(c *rdmacm.Channel, space rdmacm.PortSpace, addr netip.AddrPort) (*rdmacm.ID, error) {
	l, err := c.NewID(space)
	if err != nil {
		return nil, err
	}
	err = l.Bind(rdmacm.AddrOf(addr))
	if err == nil {
		err = l.Listen(0)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Dial connects. The event is the answer, with the peer's private data.
func Dial(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort, o Options) (_ *End, answer *rdmacm.Event, err error) {
	id, err := c.NewID(o.Space)
	if err != nil {
		return nil, nil, err
	}
	e := &End{ID: id}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	if err := id.ResolveWait(ctx, rdmacm.Addr{}, rdmacm.AddrOf(addr)); err != nil {
		return nil, nil, err
	}
	if err := e.Open(o); err != nil {
		return nil, nil, err
	}
	o.Param.RetryCount, o.Param.RNRRetryCount = connTries, connTries
	answer, err = id.ConnectWait(ctx, o.Param)
	return e, answer, err
}

// Accept accepts a request.
func Accept(ctx context.Context, request *rdmacm.Event, o Options) (_ *End, err error) {
	e := &End{ID: request.ID}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	if err := e.Open(o); err != nil {
		return nil, err
	}
	o.Param.RNRRetryCount = connTries
	return e, e.ID.AcceptWait(ctx, o.Param)
}

// Open opens the device that the ID is on, makes memory and queues, and posts the receives.
func (e *End) Open(o Options) error {
	a, err := e.ID.Addrs()
	if err != nil {
		return err
	}
	if e.Dev, err = uverbs.Open(a.Device, uverbs.OpenOptions{}); err != nil {
		return err
	}
	if e.PD, err = e.Dev.AllocPD(); err != nil {
		return err
	}
	if e.MR, err = e.buffer(o.Size*o.Slots, uverbs.AccessLocalWrite|o.Access); err != nil {
		return err
	}
	if o.Sleeps {
		if e.Comp, err = e.Dev.CreateCompChannel(); err != nil {
			return err
		}
	}
	depth := o.Slots + 2
	if e.CQ, err = e.Dev.CreateCQ(uverbs.CQOptions{Size: 2 * depth, Channel: e.Comp}); err != nil {
		return err
	}
	if err := e.ID.SetECE(o.ECE); err != nil {
		return err
	}
	// The ID brings the QP through its states, and closes it.
	e.QP, err = e.ID.CreateQP(e.PD, uverbs.QPOptions{SendCQ: e.CQ, RecvCQ: e.CQ, MaxSendWR: depth, MaxRecvWR: depth})
	if err != nil {
		return err
	}
	e.size = o.Size
	for slot := range o.Recvs {
		if err := e.Recv(slot); err != nil {
			return err
		}
	}
	return nil
}

// Close closes the ID and its QP, then the device with all that was opened on it, and then the buffers.
func (e *End) Close() error {
	errs := []error{e.ID.Close()}
	if e.Dev != nil {
		errs = append(errs, e.Dev.CloseAll())
	}
	for _, buf := range e.bufs {
		errs = append(errs, buf.Close())
	}
	return errors.Join(errs...)
}

// Slot returns the memory of a slot.
func (e *End) Slot(slot int) []byte { return e.MR.Bytes()[slot*e.size : (slot+1)*e.size] }

// SGE describes the first bytes of a slot.
func (e *End) SGE(slot, length int) uverbs.SGE { return e.MR.SGE(slot*e.size, length) }

// Recv posts a slot as a receive.
func (e *End) Recv(slot int) error { return e.QP.PostRecv(uint64(slot), e.SGE(slot, e.size)) }

// Send sends the first bytes of a slot.
func (e *End) Send(slot, length int) error {
	return e.QP.PostSend(uverbs.SendWR{ID: uint64(slot), Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{e.SGE(slot, length)}})
}

// Poll waits for a completion by polling. A failed work request is an error.
func (e *End) Poll(ctx context.Context) (uverbs.WC, error) {
	for {
		wc, ok, err := e.look()
		if ok || err != nil {
			return wc, err
		}
		if ctx.Err() != nil {
			return wc, ctx.Err()
		}
		runtime.Gosched() // the peer may want this processor
	}
}

// look polls once.
func (e *End) look() (wc uverbs.WC, ok bool, err error) {
	var wcs [1]uverbs.WC
	n, err := e.CQ.Poll(wcs[:])
	if n == 0 || err != nil {
		return wc, false, err
	}
	return wcs[0], true, e.QP.Err(&wcs[0])
}

// Until takes completions, by poll, until as many sends and receives are done as are wanted,
// counted from the beginning. It returns the last completion of a receive.
func (e *End) Until(ctx context.Context, poll func(context.Context) (uverbs.WC, error), sent, received int) (last uverbs.WC, err error) {
	for e.Sent < sent || e.Received < received {
		wc, err := poll(ctx)
		if err != nil {
			return wc, fmt.Errorf("after %d sends and %d receives: %w", e.Sent, e.Received, err)
		}
		if wc.Opcode == uverbs.WCRecv || wc.Opcode == uverbs.WCRecvRDMAWrite {
			e.Received++
			last = wc
		} else {
			e.Sent++
		}
	}
	return last, nil
}

// Hangup ends the connection, and waits for the peer to do so too.
func (e *End) Hangup(ctx context.Context) error { return e.ID.DisconnectWait(ctx) }

// Gone waits for the peer to end the connection, and then does so too.
func (e *End) Gone(ctx context.Context) error {
	event, err := e.ID.Next(ctx)
	if err != nil {
		return err
	}
	if event.Type != rdmacm.EventDisconnected {
		return fmt.Errorf("event %s, want %s", event.Type, rdmacm.EventDisconnected)
	}
	return e.ID.Disconnect()
}
