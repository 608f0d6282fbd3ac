package soft_test

import (
	"context"
	"fmt"
	"log"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// peer is one side of a connection: a device with a connected queue pair and some memory.
type peer struct {
	dev *soft.Device
	ctx *uverbs.Device
	cq  *uverbs.CQ
	qp  *uverbs.QP
	mr  *uverbs.MR
	buf *uverbs.Buffer
}

// newPeer makes a device in software and opens it like any other.
func newPeer() *peer {
	p := &peer{dev: must(soft.New(soft.Options{}))}
	p.ctx = must(uverbs.Open(p.dev.Name()))
	pd := must(p.ctx.AllocPD())
	p.buf = must(uverbs.AllocBuffer(4096))
	p.mr = must(pd.RegMR(p.buf, uverbs.AccessLocalWrite|uverbs.AccessRemoteWrite))
	p.cq = must(p.ctx.CreateCQ(uverbs.CQOptions{Events: true}))
	p.qp = must(pd.CreateQP(uverbs.QPOptions{SendCQ: p.cq, RecvCQ: p.cq, Path: uverbs.PathOptions{Access: uverbs.AccessRemoteWrite}}))
	check(p.qp.Init())
	return p
}

// close releases everything.
func (p *peer) close() {
	check(p.ctx.CloseAll())
	check(p.buf.Close())
	check(p.dev.Close())
}

// wait returns the next completion.
func (p *peer) wait(ctx context.Context) uverbs.WC {
	var wc [1]uverbs.WC
	must(p.cq.Wait(ctx, wc[:]))
	check(p.qp.Err(&wc[0]))
	return wc[0]
}

// A goroutine writes to the memory of another one, by RDMA WRITE over two devices in software, and
// tells it with an immediate value.
func Example() {
	ctx := context.Background()
	reader, writer := newPeer(), newPeer()
	defer reader.close()
	defer writer.close()
	check(reader.qp.PostRecv(1)) // for the immediate value
	check(reader.qp.Connect(ctx, must(writer.qp.Endpoint())))
	check(writer.qp.Connect(ctx, must(reader.qp.Endpoint())))

	go func() {
		n := copy(writer.buf.Bytes(), "hello")
		check(writer.qp.PostSend(uverbs.SendWR{
			Opcode: uverbs.WRRDMAWriteWithImm, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{writer.mr.SGE(0, n)},
			RemoteAddr: reader.mr.Addr(), RKey: reader.mr.RKey(), Imm: uint32(n),
		}))
	}()
	n := reader.wait(ctx).Imm
	fmt.Printf("%d bytes: %s\n", n, reader.buf.Bytes()[:n])
	writer.wait(ctx)
	// Output: 5 bytes: hello
}

// must returns a value, and ends the program on an error.
func must[T any](v T, err error) T {
	check(err)
	return v
}

// check ends the program on an error.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
