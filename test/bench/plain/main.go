// Plain is a ping-pong without tuning: plain [-e] [-s BYTES] [-n COUNT] ADDRESS. The first process listens.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

func main() {
	events, size, count := flag.Bool("e", false, "wait for events"), flag.Int("s", 64, "bytes"), flag.Int("n", 1000, "exchanges")
	flag.Parse()
	conn, refused := net.Dial("tcp", flag.Arg(0))
	if refused != nil {
		conn = must(must(net.Listen("tcp", flag.Arg(0))).Accept())
	}
	pd := must(must(uverbs.OpenFirst()).AllocPD())
	mr := must(pd.RegMR(must(uverbs.AllocBuffer(2**size, uverbs.BufferOptions{})), uverbs.MROptions{Access: uverbs.AccessLocalWrite}))
	cq := must(pd.Device().CreateCQ(uverbs.CQOptions{Events: *events}))
	qp := must(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, SignalAll: true}))
	next := cq.Poll
	if *events {
		next = func(wcs []uverbs.WC) (int, error) { return cq.Wait(context.Background(), wcs) }
	}
	out, in := uverbs.SendWR{ID: 1, Opcode: uverbs.WRSend, SGL: []uverbs.SGE{mr.SGE(0, *size)}}, mr.SGE(*size, *size)
	check(qp.Init())
	check(qp.PostRecv(2, in))
	must(qp.ConnectOver(context.Background(), conn, nil))
	begin, wcs := time.Now(), make([]uverbs.WC, 2)
	if refused == nil { // the client begins
		check(qp.PostSend(out))
	}
	for done := 0; done < 2**count; { // sends and receives
		for i := range wcs[:must(next(wcs))] {
			check(qp.Err(&wcs[i]))
			if done++; wcs[i].ID == 2 {
				check(qp.PostRecv(2, in))
				check(qp.PostSend(out))
			}
		}
	}
	fmt.Printf("%.2f µs per exchange\n", float64(time.Since(begin).Nanoseconds())/1e3/float64(*count))
}

func must[T any](v T, err error) T { check(err); return v }
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
