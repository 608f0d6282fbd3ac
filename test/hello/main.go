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
	dev := must(uverbs.Open(must(soft.New(soft.Options{})).Name(), uverbs.OpenOptions{}))
	pd, cq := must(dev.AllocPD()), must(dev.CreateCQ(uverbs.CQOptions{Events: true}))
	mr := must(pd.RegMR(must(uverbs.AllocBuffer(8192, uverbs.BufferOptions{})), uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite}))
	o := uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, Path: uverbs.PathOptions{Access: uverbs.AccessRemoteWrite}}
	reader, writer := must(pd.CreateQP(o)), must(pd.CreateQP(o))
	check(uverbs.ConnectPair(ctx, reader, writer))
	check(reader.PostRecv(1)) // for the immediate value
	go func() {
		n := copy(mr.Bytes(), "hello")
		check(writer.PostSend(uverbs.SendWR{Opcode: uverbs.WRRDMAWriteWithImm, SGL: []uverbs.SGE{mr.SGE(0, n)},
			RemoteAddr: mr.Addr() + 4096, RKey: mr.RKey(), Imm: uint32(n)}))
	}()
	var wc [1]uverbs.WC
	must(cq.Wait(ctx, wc[:])) // until data and immediate value are here
	fmt.Printf("%d bytes: %s\n", wc[0].Imm, mr.Bytes()[4096:][:wc[0].Imm])
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
