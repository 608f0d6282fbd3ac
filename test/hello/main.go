// Hello writes to the memory of a goroutine by RDMA, on a machine without RDMA.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

func main() {
	ctx := context.Background()
	reader, writer := newPeer(), newPeer()
	check(reader.qp.PostRecv(1)) // for the immediate value
	check(reader.qp.Connect(ctx, must(writer.qp.Endpoint())))
	check(writer.qp.Connect(ctx, must(reader.qp.Endpoint())))
	go func() {
		n := copy(writer.mr.Bytes(), "hello")
		check(writer.qp.PostSend(uverbs.SendWR{Opcode: uverbs.WRRDMAWriteWithImm, SGL: []uverbs.SGE{writer.mr.SGE(0, n)},
			RemoteAddr: reader.mr.Addr(), RKey: reader.mr.RKey(), Imm: uint32(n)}))
	}()
	var wc [1]uverbs.WC
	must(reader.cq.Wait(ctx, wc[:])) // until data and immediate value are here
	fmt.Printf("%d bytes: %s\n", wc[0].Imm, reader.mr.Bytes()[:wc[0].Imm])
}

// peer is one end of a connection.
type peer struct {
	cq *uverbs.CQ
	mr *uverbs.MR
	qp *uverbs.QP
}

func newPeer() (p peer) {
	dev := must(soft.New(soft.Options{}))
	ctx := must(uverbs.Open(dev.Name()))
	pd := must(ctx.AllocPD())
	p.cq = must(ctx.CreateCQ(uverbs.CQOptions{Events: true}))
	p.mr = must(pd.RegMR(must(uverbs.AllocBuffer(4096)), uverbs.AccessLocalWrite|uverbs.AccessRemoteWrite))
	p.qp = must(pd.CreateQP(uverbs.QPOptions{SendCQ: p.cq, RecvCQ: p.cq, Path: uverbs.PathOptions{Access: uverbs.AccessRemoteWrite}}))
	check(p.qp.Init())
	return p
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
