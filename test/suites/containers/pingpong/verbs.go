package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// sends exchanges the messages of two queue pairs.
func (o *options) sends(ctx context.Context, address string) error {
	dev, err := o.open()
	if err != nil {
		return err
	}
	defer dev.CloseAll()
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	buf, err := uverbs.AllocBuffer(2*o.size, uverbs.BufferOptions{})
	if err != nil {
		return err
	}
	mr, err := pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
	if err != nil {
		return err
	}
	cq, err := dev.CreateCQ(uverbs.CQOptions{Events: true})
	if err != nil {
		return err
	}
	qp, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, SignalAll: true})
	if err != nil {
		return err
	}
	if err := errors.Join(qp.Init(), qp.PostRecv(received, mr.SGE(o.size, o.size))); err != nil {
		return err
	}
	if err := o.meet(ctx, address, qp); err != nil {
		return err
	}
	return o.exchange(ctx, cq, qp, mr)
}

// open opens the device.
func (o *options) open() (*uverbs.Device, error) {
	if o.device == "" {
		return uverbs.OpenFirst()
	}
	return uverbs.Open(o.device, uverbs.OpenOptions{})
}

// IDs of work requests.
const (
	sent = iota
	received
)

// exchange sends o.count messages and receives as many.
func (o *options) exchange(ctx context.Context, cq *uverbs.CQ, qp *uverbs.QP, mr *uverbs.MR) error {
	out := uverbs.SendWR{ID: sent, Opcode: uverbs.WRSend, SGL: []uverbs.SGE{mr.SGE(0, o.size)}}
	toSend := o.count
	send := func() error {
		if toSend == 0 {
			return nil
		}
		toSend--
		return qp.PostSend(out)
	}
	if !o.listen {
		if err := send(); err != nil {
			return err
		}
	}
	for done, wcs := 0, make([]uverbs.WC, 2); done < 2*o.count; {
		n, err := cq.Wait(ctx, wcs)
		if err != nil {
			return err
		}
		for i := range wcs[:n] {
			if err := qp.Err(&wcs[i]); err != nil {
				return err
			}
			if done++; wcs[i].ID == received {
				if err := errors.Join(qp.PostRecv(received, mr.SGE(o.size, o.size)), send()); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// meet connects a QP with that of the other program. The client repeats its datagram until it has the
// answer, which the server sends when its QP is connected. The server answers again if an answer is lost.
func (o *options) meet(ctx context.Context, address string, qp *uverbs.QP) error {
	local, err := qp.Endpoint()
	if err != nil {
		return err
	}
	mine, err := json.Marshal(local)
	if err != nil {
		return err
	}
	if !o.listen {
		theirs, err := ask(ctx, address, mine)
		if err != nil {
			return err
		}
		return qp.Connect(ctx, theirs)
	}
	at, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { at.Close() })
	buf := make([]byte, 512)
	n, from, err := at.ReadFrom(buf)
	if err != nil {
		return err
	}
	var theirs uverbs.Endpoint
	if err := json.Unmarshal(buf[:n], &theirs); err != nil {
		return fmt.Errorf("%s sent %q: %w", from, buf[:n], err)
	}
	if err := qp.Connect(ctx, theirs); err != nil {
		return err
	}
	if _, err := at.WriteTo(mine, from); err != nil {
		return err
	}
	go func() { // until the process ends
		for {
			_, from, err := at.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = at.WriteTo(mine, from) // it asks again
		}
	}()
	return nil
}

// ask sends an endpoint until an endpoint comes back.
func ask(ctx context.Context, address string, mine []byte) (theirs uverbs.Endpoint, err error) {
	conn, err := net.Dial("udp", address)
	if err != nil {
		return theirs, err
	}
	defer conn.Close()
	at := conn.(*net.UDPConn)
	for buf := make([]byte, 512); ctx.Err() == nil; {
		// A Write of a connected socket is write(2), and this is sendmsg(2).
		_, _, err := at.WriteMsgUDP(mine, nil, nil)
		n := 0
		if err == nil {
			if err := at.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
				return theirs, err
			}
			n, err = at.Read(buf)
		}
		switch {
		case err == nil:
			return theirs, json.Unmarshal(buf[:n], &theirs)
		case errors.Is(err, syscall.ECONNREFUSED): // it does not listen yet
			time.Sleep(100 * time.Millisecond)
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return theirs, err
		}
	}
	return theirs, ctx.Err()
}
