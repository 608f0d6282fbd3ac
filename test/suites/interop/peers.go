package interop

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/suites/classic"
	"github.com/goverbs/goverbs/uverbs"
)

// What rdma-core's programs send unless told otherwise.
const (
	messages    = 10
	messageSize = 100
	helloSize   = 16 // of rdma_client and rdma_server
)

// burst is an end that receives messages into the first slots and has as many to send.
var burst = classic.Options{Space: rdmacm.TCP, Size: messageSize, Slots: 2 * messages, Recvs: messages}

// hello is the end of rdma_client and rdma_server.
var hello = classic.Options{Space: rdmacm.TCP, Size: helloSize, Slots: 2, Recvs: 1}

// sendBurst sends all messages.
func sendBurst(ctx context.Context, e *classic.End) error {
	for slot := messages; slot < 2*messages; slot++ {
		if err := e.Send(slot, messageSize); err != nil {
			return err
		}
	}
	_, err := e.Until(ctx, e.Poll, messages, 0)
	return err
}

// receiveBurst receives all messages.
func receiveBurst(ctx context.Context, e *classic.End) error {
	wc, err := e.Until(ctx, e.Poll, 0, messages)
	if err == nil && wc.ByteLen != 0 && wc.ByteLen != messageSize {
		err = fmt.Errorf("a message has %d bytes, want %d", wc.ByteLen, messageSize)
	}
	return err
}

// ServeMatose is the server of cmatose: it sends first, and ends the connections.
func ServeMatose(ctx context.Context, l *rdmacm.ID, connections int) error {
	var all []*classic.End
	for range connections {
		request, err := l.NextRequest(ctx)
		if err != nil {
			return err
		}
		e, err := classic.Accept(ctx, request, burst)
		if err != nil {
			return err
		}
		defer e.Close()
		all = append(all, e)
	}
	for _, e := range all {
		if err := sendBurst(ctx, e); err != nil {
			return err
		}
	}
	for _, e := range all {
		if err := receiveBurst(ctx, e); err != nil {
			return err
		}
	}
	for _, e := range all {
		if err := e.Hangup(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Matose is the client of cmatose, over so many connections.
func Matose(ctx context.Context, c *rdmacm.Channel, server netip.AddrPort, connections int) error {
	var all []*classic.End
	for range connections {
		e, _, err := classic.Dial(ctx, c, server, burst)
		if err != nil {
			return err
		}
		defer e.Close()
		all = append(all, e)
	}
	for _, step := range []func(context.Context, *classic.End) error{receiveBurst, sendBurst,
		func(ctx context.Context, e *classic.End) error { return e.Gone(ctx) }} {
		for _, e := range all {
			if err := step(ctx, e); err != nil {
				return err
			}
		}
	}
	return nil
}

// ServeHello is rdma_server.
func ServeHello(ctx context.Context, l *rdmacm.ID) error {
	_, _, err := serveHello(ctx, l, hello)
	return err
}

// serveHello is ServeHello with options. It returns the options for enhanced connections that the peer has
// asked for, and those of the QP.
func serveHello(ctx context.Context, l *rdmacm.ID, o classic.Options) (asked, used rdmacm.ECE, err error) {
	request, err := l.NextRequest(ctx)
	if err != nil {
		return asked, used, err
	}
	asked = request.Param.ECE
	e, err := classic.Accept(ctx, request, o)
	if err != nil {
		return asked, used, err
	}
	defer e.Close()
	used = e.ID.ECE()
	return asked, used, answerHello(ctx, e)
}

// answerHello receives a message and answers it. The peer ends the connection, see [greet].
func answerHello(ctx context.Context, e *classic.End) error {
	wc, err := e.Until(ctx, e.Poll, 0, 1)
	if err != nil {
		return err
	}
	if wc.ByteLen != helloSize {
		return fmt.Errorf("the message has %d bytes, want %d", wc.ByteLen, helloSize)
	}
	if err := e.Send(1, helloSize); err != nil {
		return err
	}
	return e.Gone(ctx)
}

// Greet is rdma_client.
func Greet(ctx context.Context, c *rdmacm.Channel, server netip.AddrPort) error {
	_, _, err := greet(ctx, c, server, hello)
	return err
}

// greet is Greet with options. It returns the options for enhanced connections that the peer has answered
// with, and those of the QP.
//
// It neither waits for the completion of its send nor ends the connection first: rxe acknowledges a message
// after the receiver has its completion, and not at all if the receiver moves its QP to ERR before. The sender
// waits for ever then, since rxe takes the 7 retries that librdmacm asks for as no limit. rdma_server and
// rdma_client end the connection when they have both completions.
func greet(ctx context.Context, c *rdmacm.Channel, server netip.AddrPort, o classic.Options) (answered, used rdmacm.ECE, err error) {
	e, answer, err := classic.Dial(ctx, c, server, o)
	if err != nil {
		return answered, used, err
	}
	defer e.Close()
	answered, used = answer.Param.ECE, e.ID.ECE()
	if err := e.Send(1, helloSize); err != nil {
		return answered, used, err
	}
	wc, err := e.Until(ctx, e.Poll, 0, 1)
	if err != nil {
		return answered, used, err
	}
	if wc.ByteLen != helloSize {
		return answered, used, fmt.Errorf("the message has %d bytes, want %d", wc.ByteLen, helloSize)
	}
	return answered, used, e.Gone(ctx)
}

// datagrams is an end of udaddy and mckey, whose messages come after a header.
var datagrams = classic.Options{Space: rdmacm.UDP, Size: uverbs.GRHSize + messageSize, Slots: 2 * messages, Recvs: messages}

// way is where datagrams are sent.
type way struct {
	ah        *uverbs.AH
	qpn, qkey uint32
}

// sendDatagrams sends all messages, with the sender's QPN.
func sendDatagrams(ctx context.Context, e *classic.End, to way) error {
	for slot := messages; slot < 2*messages; slot++ {
		err := e.QP.PostSend(uverbs.SendWR{Opcode: uverbs.WRSendWithImm, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{e.SGE(slot, messageSize)},
			Imm: e.QP.QPN(), AH: to.ah, RemoteQPN: to.qpn, RemoteQKey: to.qkey})
		if err != nil {
			return err
		}
	}
	_, err := e.Until(ctx, e.Poll, messages, 0)
	return err
}

// ReceiveDatagrams receives all messages, and returns the last completion.
func ReceiveDatagrams(ctx context.Context, e *classic.End) (uverbs.WC, error) {
	var wc uverbs.WC
	for e.Received < messages {
		var err error
		if wc, err = e.Until(ctx, e.Poll, 0, e.Received+1); err != nil {
			return wc, err
		}
		if wc.ByteLen != uverbs.GRHSize+messageSize || wc.Flags&uverbs.WCWithImm == 0 || wc.Imm != wc.SrcQP {
			return wc, fmt.Errorf("a datagram is %+v, want %d bytes from QP %#x", wc, uverbs.GRHSize+messageSize, wc.Imm)
		}
	}
	return wc, nil
}

// ServeDaddy is the server of udaddy, which answers on the way that the messages came.
func ServeDaddy(ctx context.Context, l *rdmacm.ID) error {
	request, err := l.NextRequest(ctx)
	if err != nil {
		return err
	}
	e, err := classic.Accept(ctx, request, datagrams)
	if err != nil {
		return err
	}
	defer e.Close()
	wc, err := ReceiveDatagrams(ctx, e)
	if err != nil {
		return err
	}
	a, err := e.ID.Addrs()
	if err != nil {
		return err
	}
	ah, err := e.PD.CreateAHFor(a.Port, &wc, e.Slot(int(wc.ID)))
	if err != nil {
		return err
	}
	defer ah.Close()
	attr, err := e.QP.Query()
	if err != nil {
		return err
	}
	return sendDatagrams(ctx, e, way{ah, wc.Imm, attr.QKey})
}

// Daddy is the client of udaddy.
func Daddy(ctx context.Context, c *rdmacm.Channel, server netip.AddrPort) error {
	e, answer, err := classic.Dial(ctx, c, server, datagrams)
	if err != nil {
		return err
	}
	defer e.Close()
	ah, err := e.PD.CreateAH(answer.UD.AH)
	if err != nil {
		return err
	}
	defer ah.Close()
	if err := sendDatagrams(ctx, e, way{ah, answer.UD.QPN, answer.UD.QKey}); err != nil {
		return err
	}
	_, err = ReceiveDatagrams(ctx, e)
	return err
}

// ServeConnections accepts connections, each of which the peer ends.
func ServeConnections(ctx context.Context, l *rdmacm.ID, connections int) error {
	ended := make(chan error, connections)
	for range connections {
		request, err := l.NextRequest(ctx)
		if err != nil {
			return err
		}
		go func() {
			e, err := classic.Accept(ctx, request, hello)
			if err == nil {
				err = errors.Join(e.Gone(ctx), e.Close())
			}
			ended <- err
		}()
	}
	var all error
	for range connections {
		all = errors.Join(all, <-ended)
	}
	return all
}

// dialsAtOnce is how many connections ConnectAll makes at a time. A listener of rdma_ucm has room for 1,024
// requests.
const dialsAtOnce = 100

// ConnectAll opens all connections before it closes any, because cmtime shares the CQs of the first
// one.
func ConnectAll(ctx context.Context, c *rdmacm.Channel, server netip.AddrPort, connections int) error {
	ended := make(chan error, connections)
	var dialling sync.WaitGroup
	dialling.Add(connections)
	turn := make(chan struct{}, dialsAtOnce)
	for range connections {
		go func() {
			turn <- struct{}{}
			e, _, err := classic.Dial(ctx, c, server, hello)
			<-turn
			dialling.Done()
			dialling.Wait()
			if err == nil {
				err = errors.Join(e.Hangup(ctx), e.Close())
			}
			ended <- err
		}()
	}
	var all error
	for range connections {
		all = errors.Join(all, <-ended)
	}
	return all
}

// Hear receives as many messages as mckey does unless told otherwise, of those that are sent to a group.
// As datagrams may be lost, it is enough if some have arrived when ctx ends.
func Hear(ctx context.Context, c *rdmacm.Channel, local, group netip.Addr) error {
	m, err := classic.Join(ctx, c, local, group, datagrams)
	if err != nil {
		return err
	}
	if _, err = ReceiveDatagrams(ctx, m.End); ctx.Err() != nil && m.Received > 0 {
		err = nil
	}
	return errors.Join(err, m.Leave())
}

// Say sends all messages to a group.
func Say(ctx context.Context, c *rdmacm.Channel, local, group netip.Addr) error {
	m, err := classic.Join(ctx, c, local, group, datagrams)
	if err != nil {
		return err
	}
	for slot := messages; slot < 2*messages && err == nil; slot++ {
		err = m.Say(slot, messageSize)
	}
	if err == nil {
		_, err = m.Until(ctx, m.Poll, messages, 0)
	}
	return errors.Join(err, m.Leave())
}
