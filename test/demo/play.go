package main

import (
	"context"
	"encoding/json"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// sizes are the message sizes of the ping-pong in bytes.
var sizes = []int{64, 4096}

// writeSize is the size of an RDMA WRITE in bytes.
const writeSize = 64 << 10

// depth is the number of work requests that a queue has room for.
const depth = 16

// hello is the first message from one process to the other.
type hello struct {
	Addr   uint64 // of the memory
	RKey   uint32
	Listen string // address of the listener of the server
}

// end is one side of a connection. The first half of its memory is for sending, the second half for
// receiving.
type end struct {
	dev *uverbs.Device
	cq  *uverbs.CQ
	qp  *uverbs.QP
	buf *uverbs.Buffer
	mr  *uverbs.MR

	received int // bytes of the last message
}

// play runs one of the processes.
func play(ctx context.Context, role, addr string, per time.Duration) (err error) {
	e, err := newEnd(addr)
	if err != nil {
		return err
	}
	s := &service{}
	mine := hello{Addr: e.mr.Addr() + writeSize, RKey: e.mr.RKey()}
	if role == "serve" {
		if s, err = listen(ctx, addr); err != nil {
			return err
		}
		mine.Listen = s.listener.Addr().String()
	}
	peer, err := e.connect(ctx, mine)
	if err != nil {
		return err
	}
	if role == "serve" {
		if err := e.echo(ctx); err != nil {
			return err
		}
		return s.serve(ctx)
	}
	rows, err := e.ask(ctx, peer, per)
	if err != nil {
		return err
	}
	more, err := talk(ctx, peer.Listen, per)
	if err != nil {
		return err
	}
	results := os.NewFile(3, "results")
	defer results.Close()
	return json.NewEncoder(results).Encode(append(rows, more...))
}

// newEnd opens the device of the process and creates the objects of a connection.
func newEnd(addr string) (*end, error) {
	at, err := netip.ParseAddr(addr)
	if err != nil {
		return nil, err
	}
	e := &end{}
	if e.dev, err = uverbs.OpenAddr(at); err != nil {
		return nil, err
	}
	pd, err := e.dev.AllocPD()
	if err != nil {
		return nil, err
	}
	if e.buf, err = uverbs.AllocBuffer(2*writeSize, uverbs.BufferOptions{}); err != nil {
		return nil, err
	}
	if e.mr, err = pd.RegMR(e.buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite}); err != nil {
		return nil, err
	}
	if e.cq, err = e.dev.CreateCQ(uverbs.CQOptions{Size: 4 * depth, Events: true}); err != nil {
		return nil, err
	}
	e.qp, err = pd.CreateQP(uverbs.QPOptions{
		SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: depth, MaxRecvWR: depth, Path: uverbs.PathOptions{Access: uverbs.AccessRemoteWrite},
	})
	if err != nil {
		return nil, err
	}
	return e, e.qp.Init()
}

// connect exchanges hellos over standard input and output, and connects the QP.
func (e *end) connect(ctx context.Context, mine hello) (peer hello, err error) {
	if err = e.recv(); err != nil {
		return peer, err
	}
	note, err := json.Marshal(mine)
	if err != nil {
		return peer, err
	}
	stdio := struct {
		io.Reader
		io.Writer
	}{os.Stdin, os.Stdout}
	if note, err = e.qp.ConnectOver(ctx, stdio, note); err != nil {
		return peer, err
	}
	return peer, json.Unmarshal(note, &peer)
}

// IDs of work requests.
const (
	sendID = iota + 1
	recvID
)

// recv posts a receive.
func (e *end) recv() error { return e.qp.PostRecv(recvID, e.mr.SGE(writeSize, writeSize)) }

// send sends a message.
func (e *end) send(size int) error {
	return e.qp.PostSend(uverbs.SendWR{ID: sendID, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{e.mr.SGE(0, size)}})
}

// wait waits for completions: so many of sends and of receives.
func (e *end) wait(ctx context.Context, sends, recvs int) error {
	var wcs [depth]uverbs.WC
	for sends > 0 || recvs > 0 {
		n, err := e.cq.Wait(ctx, wcs[:min(depth, sends+recvs)])
		if err != nil {
			return err
		}
		for i := range wcs[:n] {
			if err := e.qp.Err(&wcs[i]); err != nil {
				return err
			}
			if wcs[i].ID == recvID {
				e.received = int(wcs[i].ByteLen)
				recvs--
			} else {
				sends--
			}
		}
	}
	return nil
}

// last is the first byte of the last message.
const last = 1

// echo answers each message with one of the same size, until the last one.
func (e *end) echo(ctx context.Context) error {
	sends := 0 // that have not completed
	for done := false; !done; {
		if err := e.wait(ctx, sends, 1); err != nil {
			return err
		}
		done = e.buf.Bytes()[writeSize] == last
		if err := e.recv(); err != nil {
			return err
		}
		if err := e.send(e.received); err != nil {
			return err
		}
		sends = 1
	}
	return e.wait(ctx, sends, 0)
}

// ask plays ping-pong and writes to the memory of the peer.
func (e *end) ask(ctx context.Context, peer hello, per time.Duration) ([]row, error) {
	var rows []row
	for _, size := range sizes {
		r := row{What: "ping-pong, SEND", Size: size, Pairs: true}
		for start := time.Now(); r.Time < per; r.Time = time.Since(start) {
			if err := e.exchange(ctx, size); err != nil {
				return nil, err
			}
			r.Count++
		}
		rows = append(rows, r)
	}
	r := row{What: "RDMA WRITE", Size: writeSize}
	for start := time.Now(); r.Time < per; r.Time = time.Since(start) {
		for range depth {
			err := e.qp.PostSend(uverbs.SendWR{ID: sendID, Opcode: uverbs.WRRDMAWrite, Flags: uverbs.SendSignaled,
				SGL: []uverbs.SGE{e.mr.SGE(0, writeSize)}, RemoteAddr: peer.Addr, RKey: peer.RKey})
			if err != nil {
				return nil, err
			}
		}
		if err := e.wait(ctx, depth, 0); err != nil {
			return nil, err
		}
		r.Count += depth
	}
	e.buf.Bytes()[0] = last
	return append(rows, r), e.exchange(ctx, 1)
}

// exchange sends a message and waits for the answer.
func (e *end) exchange(ctx context.Context, size int) error {
	if err := e.send(size); err != nil {
		return err
	}
	if err := e.wait(ctx, 1, 1); err != nil {
		return err
	}
	return e.recv()
}
