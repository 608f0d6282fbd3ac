// Pingpong exchanges messages with another such program, or with the one in C in test/bench/rdmacore. They
// connect over their standard input and output.
//
//	pingpong [begin]
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/goverbs/goverbs/uverbs"
)

const size, count = 64, 1000

func main() {
	dev, err := uverbs.OpenFirst()
	if err == nil {
		err = play(context.Background(), dev, struct {
			io.Reader
			io.Writer
		}{os.Stdin, os.Stdout}, len(os.Args) > 1)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func play(ctx context.Context, dev *uverbs.Device, stream io.ReadWriter, begins bool) error {
	buf, err := uverbs.AllocBuffer(4096, uverbs.BufferOptions{})
	if err != nil {
		return err
	}
	defer buf.Close()
	defer dev.CloseAll()
	pd, err := dev.AllocPD()
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

	// Connect. The receive is posted before the peer can send.
	if err := qp.Init(); err != nil {
		return err
	}
	in := mr.SGE(size, size)
	send := uverbs.SendWR{ID: 1, Opcode: uverbs.WRSend, SGL: []uverbs.SGE{mr.SGE(0, size)}}
	if err := qp.PostRecv(2, in); err != nil {
		return err
	}
	if _, err := qp.ConnectOver(ctx, stream, nil); err != nil {
		return err
	}

	// Play.
	sent, done := 0, 0
	if begins {
		if err := qp.PostSend(send); err != nil {
			return err
		}
		sent++
	}
	for wc, err := range cq.Completions(ctx) {
		if err != nil {
			return err // which request failed, and why
		}
		if done++; done == 2*count {
			break
		}
		if wc.ID == send.ID {
			continue
		}
		if err := qp.PostRecv(2, in); err != nil {
			return err
		}
		if sent < count {
			if err := qp.PostSend(send); err != nil {
				return err
			}
			sent++
		}
	}
	fmt.Fprintf(os.Stderr, "%d messages of %d bytes in each direction\n", count, size)

	// Close everything in the right order. After an error the deferred call does it.
	return dev.CloseAll()
}
