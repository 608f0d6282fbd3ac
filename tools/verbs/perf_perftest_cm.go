package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/tools/verbs/internal/peer"
	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
	"github.com/goverbs/goverbs/tools/verbs/internal/perftest"
	"github.com/goverbs/goverbs/uverbs"
)

// connectCM connects the queue pairs by the connection manager.
func (e *perftestEnd) connectCM(ctx context.Context) error {
	if err := e.end.Routes(e.remote.Addr().As16()); err != nil {
		return err
	}
	for range e.o.config.QPs {
		var err error
		if e.server {
			err = e.acceptQP(ctx)
		} else {
			err = e.dialQP(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// connParam are the parameters of a queue pair's connection.
func (e *perftestEnd) connParam() rdmacm.ConnParam {
	p := rdmacm.ConnParam{RetryCount: uint8(e.o.config.Retry), RNRRetryCount: perf.DefaultRNRRetry}
	if e.test.Op == perftest.Read || e.test.Op == perftest.Atomic {
		p.ResponderResources, p.InitiatorDepth = uint8(e.reads()), uint8(e.reads())
	}
	return p
}

// makeQP makes a queue pair on an ID.
func (e *perftestEnd) makeQP(id *rdmacm.ID) error {
	_, err := e.end.CreateQP(func(o uverbs.QPOptions) (*uverbs.QP, error) { return id.CreateQP(e.end.PD, o) })
	return err
}

// dialQP connects the next queue pair to the server.
func (e *perftestEnd) dialQP(ctx context.Context) error {
	qps := e.end.QPs
	local := netip.AddrPortFrom(e.local.Addr(), 0)
	id, event, err := perftest.DialData(ctx, e.channel, e.space(), local, e.remote, e.connParam(), e.makeQP, func() { e.end.QPs = qps })
	if err != nil {
		return err
	}
	e.keep(id)
	if e.o.config.Type == perf.UD && (e.test.Latency || e.test.Both) {
		return e.sendFirst(event.UD)
	}
	return nil
}

// keep adds the ID of a queue pair.
func (e *perftestEnd) keep(id *rdmacm.ID) {
	e.opened.Keep(id)
	e.ids = append(e.ids, id)
}

// sendFirst sends the first datagram, from which a server gets the number of the queue pair.
func (e *perftestEnd) sendFirst(to rdmacm.UDParam) (err error) {
	ah, err := e.end.PD.CreateAH(to.AH)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ah.Close()) }()
	qp := e.end.QPs[len(e.end.QPs)-1]
	sge := e.end.MR.SGE(0, 4)
	binary.NativeEndian.PutUint32(e.end.MR.Bytes(), qp.QPN())
	err = qp.PostSend(uverbs.SendWR{
		Opcode: uverbs.WRSendWithImm, Flags: uverbs.SendSignaled, Imm: qp.QPN(), SGL: []uverbs.SGE{sge},
		AH: ah, RemoteQPN: to.QPN, RemoteQKey: to.QKey,
	})
	if err != nil {
		return err
	}
	var wcs [1]uverbs.WC
	for deadline := time.Now().Add(time.Second); ; {
		n, err := e.end.SendCQ.Poll(wcs[:])
		switch {
		case err != nil:
			return err
		case n > 0:
			return qp.Err(&wcs[0])
		case time.Now().After(deadline):
			return errors.New("the first datagram does not go out")
		}
	}
}

// acceptQP accepts the connection of the client's next queue pair.
func (e *perftestEnd) acceptQP(ctx context.Context) error {
	const timeout = 10 * time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("the client has not connected its queue pairs for %s: does it run %s -R with %d?", timeout, e.test.Program(), e.o.config.QPs))
	defer cancel()
	for {
		request, err := e.listeners[e.space()].NextRequest(ctx)
		if err != nil {
			return peer.Cause(ctx, err)
		}
		id := request.ID
		a, err := id.Addrs()
		if err == nil && (a.Remote.IP != e.remote.Addr() || a.Device != e.dev.Name()) { // somebody else
			if err := errors.Join(id.Reject(nil, rdmacm.ReasonConsumer), id.Close()); err != nil {
				return err
			}
			continue
		}
		if err == nil {
			err = e.makeQP(id)
		}
		if err == nil {
			err = id.AcceptWait(ctx, e.connParam())
		}
		if err != nil {
			return errors.Join(peer.Cause(ctx, err), id.Close())
		}
		e.keep(id)
		return nil
	}
}

// disconnect ends the connections of the queue pairs, the client first.
func (e *perftestEnd) disconnect() error {
	if e.space() == rdmacm.UDP {
		return nil
	}
	for _, id := range e.ids {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		err := id.DisconnectWait(ctx)
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
	return nil
}
