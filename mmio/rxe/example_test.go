package rxe_test

import (
	"fmt"
	"log"

	"github.com/goverbs/goverbs/mmio/rxe"
)

// A work request is written in place. The kernel looks at it when it is told to, by the command
// POST_SEND without a request.
func ExampleSendQueue() {
	var mem []byte // mapped as the response of CREATE_QP says, for 64 requests of 2 SGEs or 32 bytes
	sq, err := rxe.NewSendQueue(mem, 64, 2, 32)
	if err != nil {
		log.Fatal(err)
	}
	if room, err := sq.Room(1); !room || err != nil {
		log.Fatal("no room for a request: ", err)
	}
	s := sq.Slot(0)
	s.Start(1, rxe.Write, rxe.Signaled)
	s.SetRDMA(0x10000, 0x1234)
	if err := s.AddSGE(0x7f0000000000, 4096, 0x5678); err != nil {
		log.Fatal(err)
	}
	sq.Publish(1)
}

// A datagram carries its destination, besides its data.
func ExampleSendSlot() {
	var sq *rxe.SendQueue
	s := sq.Slot(0)
	s.Start(2, rxe.Send, rxe.Signaled)
	s.SetUD(17, 0x11111111, 3, nil)
	if err := s.AddInline([]byte("hello")); err != nil {
		log.Fatal(err)
	}
	sq.Publish(1)
}

// Receives have no doorbell: they are there once they are published.
func ExampleRecvQueue() {
	var mem []byte // mapped as the response of CREATE_QP or CREATE_SRQ says
	rq, err := rxe.NewRecvQueue(mem, 64, 1)
	if err != nil {
		log.Fatal(err)
	}
	for i := range 2 {
		if room, err := rq.Room(1); !room || err != nil {
			log.Fatal("no room for a receive: ", err)
		}
		s := rq.Slot(0)
		s.Start(uint64(i))
		if err := s.AddSGE(0x7f0000000000+uint64(i)*4096, 4096, 0x5678); err != nil {
			log.Fatal(err)
		}
		rq.Publish(1)
	}
}

// All completions that are there are read, and their places given back at once.
func ExampleCompQueue() {
	var mem []byte // mapped as the response of CREATE_CQ says, for 100 completions
	cq, err := rxe.NewCompQueue(mem, 100)
	if err != nil {
		log.Fatal(err)
	}
	n, err := cq.Avail()
	if err != nil {
		log.Fatal(err)
	}
	for i := range n {
		c := cq.Entry(i)
		fmt.Println(c.WRID(), c.Status(), c.ByteLen())
	}
	cq.Release(n)
}
