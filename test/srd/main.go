// Srd sends, reads and writes over SRD, the reliable datagrams of AWS's EFA, between two processes, in both
// directions at a time. They exchange their addresses over TCP, and leave out what a card does not have.
//
//	srd efa_0 listen 10.1.0.1:7471
//	srd efa_1 dial 10.1.0.1:7471
package main

import (
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
	Endpoint uverbs.Endpoint
	Addr     uint64
	RKey     uint32
	Card     uverbs.EFAAttr
}

const qkey = 0x11111111

func main() {
	log.SetFlags(0)
	if len(os.Args) != 4 || os.Args[2] != "listen" && os.Args[2] != "dial" {
		log.Fatal("usage: srd DEVICE listen|dial ADDRESS")
	}
	time.AfterFunc(time.Minute, func() { log.Fatal("not done within a minute") })
	dev := must(uverbs.Open(os.Args[1], uverbs.OpenOptions{}))
	defer dev.CloseAll()
	pd, cq := must(dev.AllocPD()), must(dev.CreateCQ(uverbs.CQOptions{}))
	card, _ := dev.EFA()
	rights := uverbs.AccessLocalWrite
	if card.RDMARead {
		rights |= uverbs.AccessRemoteRead
	}
	if card.RDMAWrite {
		rights |= uverbs.AccessRemoteWrite
	}
	mr := must(pd.RegMR(must(uverbs.AllocBuffer(4096, uverbs.BufferOptions{})), uverbs.MROptions{Access: rights}))
	qp := must(pd.CreateQP(uverbs.QPOptions{Type: ib.SRD, SendCQ: cq, RecvCQ: cq, UnsolicitedWrite: card.UnsolicitedWrite}))
	check(qp.ReadyUD(qkey))
	for range 2 { // for the SEND and, unless it needs none, the WRITE with immediate data
		check(qp.PostRecv(0, mr.SGE(0, 1024)))
	}
	n := copy(mr.Bytes()[1024:], "bytes of "+os.Args[1])

	conn := connect(os.Args[2] == "listen", os.Args[3])
	out, in, peer := json.NewEncoder(conn), json.NewDecoder(conn), side{}
	swap := func(own, peers any) {
		check(out.Encode(own))
		check(in.Decode(peers))
	}
	swap(side{must(qp.Endpoint()), mr.Addr(), mr.RKey(), card}, &peer)
	ah := must(pd.CreateAH(must(qp.PathTo(peer.Endpoint))))
	swap("RDMA needs an AH on both sides", new(string))

	send := uverbs.SendWR{
		Opcode: uverbs.WRSend, SGL: []uverbs.SGE{mr.SGE(1024, n)}, Flags: uverbs.SendSignaled,
		AH: ah, RemoteQPN: peer.Endpoint.QPN, RemoteQKey: qkey, RemoteAddr: peer.Addr + 1024, RKey: peer.RKey,
	}
	requests, receives := []uverbs.SendWR{send}, 1
	if card.RDMARead && peer.Card.RDMARead {
		read := send
		read.Opcode, read.SGL = uverbs.WRRDMARead, []uverbs.SGE{mr.SGE(2048, n)}
		requests = append(requests, read)
	}
	if card.RDMAWrite && peer.Card.RDMAWrite && card.UnsolicitedWrite == peer.Card.UnsolicitedWrite {
		write := send
		write.Opcode, write.RemoteAddr = uverbs.WRRDMAWriteWithImm, peer.Addr+3072
		requests, receives = append(requests, write), 2
	}
	check(qp.PostSend(requests...))
	wcs := make([]uverbs.WC, 8)
	for left := len(requests) + receives; left > 0; { // in any order
		done := must(cq.Poll(wcs))
		for i := range wcs[:done] {
			check(qp.Err(&wcs[i]))
			fmt.Println(wcs[i].Opcode)
		}
		left -= done
	}
	swap("the memory is not needed any more", new(string))
	fmt.Printf("received %q, read %q, was written %q\n", mr.Bytes()[:n], mr.Bytes()[2048:][:n], mr.Bytes()[3072:][:n])
}

// connect returns the connection to the other process.
func connect(listens bool, address string) net.Conn {
	for !listens {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			return conn
		}
		log.Print(err) // it may not listen yet
		time.Sleep(time.Second)
	}
	l := must(net.Listen("tcp", address))
	fmt.Println("listening on", l.Addr())
	return must(l.Accept())
}

func must[T any](v T, err error) T { check(err); return v }

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
