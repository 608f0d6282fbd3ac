// Srd sends, reads and writes over SRD, the reliable datagrams of AWS's EFA, between two processes. They
// exchange their addresses over TCP. Where a card cannot read or write they leave that out, and say so.
//
//	srd efa_0 listen 10.1.0.1:7471
//	srd efa_1 dial 10.1.0.1:7471
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"os"
	"time"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// side is what each process tells the other one.
type side struct {
	Endpoint    uverbs.Endpoint
	Addr        uint64
	RKey        uint32
	Read, Write bool // its card can
}

const qkey = 0x11111111

func main() {
	log.SetFlags(0)
	if len(os.Args) != 4 || os.Args[2] != "listen" && os.Args[2] != "dial" {
		log.Fatal("usage: srd DEVICE listen|dial ADDRESS")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	listens := os.Args[2] == "listen"
	conn := meet(ctx, listens, os.Args[3])
	dev := must(uverbs.Open(os.Args[1], uverbs.OpenOptions{}))
	defer dev.CloseAll()
	pd, cq := must(dev.AllocPD()), must(dev.CreateCQ(uverbs.CQOptions{}))
	attr, _ := dev.EFA()
	rights := uverbs.AccessLocalWrite
	if attr.RDMARead {
		rights |= uverbs.AccessRemoteRead
	}
	if attr.RDMAWrite {
		rights |= uverbs.AccessRemoteWrite
	}
	mr := must(pd.RegMR(must(uverbs.AllocBuffer(4096, uverbs.BufferOptions{})), uverbs.MROptions{Access: rights}))
	qp := must(pd.CreateQP(uverbs.QPOptions{Type: ib.SRD, SendCQ: cq, RecvCQ: cq}))
	check(qp.ReadyUD(qkey))
	for i := range 2 { // of the SEND and of the WRITE with an immediate
		check(qp.PostRecv(uint64(i), mr.SGE(1024*i, 1024)))
	}
	copy(mr.Bytes()[2048:], "bytes of "+os.Args[1])
	own := side{must(qp.Endpoint()), mr.Addr(), mr.RKey(), attr.RDMARead, attr.RDMAWrite}
	var peer side
	out, in := json.NewEncoder(conn), json.NewDecoder(conn)
	check(out.Encode(own))
	check(in.Decode(&peer))
	ah := must(pd.CreateAH(must(qp.PathTo(peer.Endpoint)))) // RDMA needs one on both sides
	reads, writes := own.Read && peer.Read, own.Write && peer.Write
	if listens {
		check(out.Encode(true)) // the peer may begin
		messages := 1
		if writes {
			messages = 2
		}
		for range messages {
			wc := wait(ctx, qp, cq)
			fmt.Printf("%s of %d bytes, immediate %d\n", wc.Opcode, wc.ByteLen, wc.Imm)
		}
		if writes {
			fmt.Printf("the peer has written %q\n", mr.Bytes()[3072:][:len("bytes of efa_0")])
		}
		return
	}
	var ready bool
	check(in.Decode(&ready))
	to := uverbs.SendWR{AH: ah, RemoteQPN: peer.Endpoint.QPN, RemoteQKey: qkey, Flags: uverbs.SendSignaled, RemoteAddr: peer.Addr + 2048, RKey: peer.RKey}
	send, read, write := to, to, to
	send.Opcode, send.Imm, send.SGL = uverbs.WRSendWithImm, 1, []uverbs.SGE{mr.SGE(2048, 14)}
	read.Opcode, read.SGL = uverbs.WRRDMARead, []uverbs.SGE{mr.SGE(3072, 14)}
	write.Opcode, write.Imm, write.SGL, write.RemoteAddr = uverbs.WRRDMAWriteWithImm, 2, send.SGL, peer.Addr+3072
	for _, s := range []struct {
		wr uverbs.SendWR
		do bool
	}{{send, true}, {read, reads}, {write, writes}} {
		if !s.do {
			fmt.Printf("no %s: a card, or its kernel, does not have it\n", s.wr.Opcode)
			continue
		}
		check(qp.PostSend(s.wr))
		fmt.Printf("%s done\n", wait(ctx, qp, cq).Opcode)
	}
	if reads {
		fmt.Printf("read %q of the peer\n", mr.Bytes()[3072:][:14])
	}
}

// wait returns the next completion.
func wait(ctx context.Context, qp *uverbs.QP, cq *uverbs.CQ) uverbs.WC {
	wcs := make([]uverbs.WC, 1)
	for ctx.Err() == nil {
		if must(cq.Poll(wcs)) == 1 {
			check(qp.Err(&wcs[0]))
			return wcs[0]
		}
	}
	log.Fatal(ctx.Err())
	return uverbs.WC{}
}

// meet returns the connection to the other process, which ends with ctx.
func meet(ctx context.Context, listens bool, address string) (conn net.Conn) {
	if listens {
		l := must(net.Listen("tcp", address))
		fmt.Println("listening on", l.Addr())
		context.AfterFunc(ctx, func() { l.Close() })
		conn = must(l.Accept())
	} else {
		var err error
		for conn == nil { // the other one may not listen yet
			if conn, err = new(net.Dialer).DialContext(ctx, "tcp", address); ctx.Err() != nil {
				check(err)
			} else if err != nil {
				time.Sleep(100 * time.Millisecond)
			}
		}
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	return conn
}

func must[T any](v T, err error) T { check(err); return v }

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
