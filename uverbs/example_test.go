package uverbs_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// talk sends one message to the peer at the other end of a TCP connection, over RDMA, and
// returns the one that comes from there.
func talk(ctx context.Context, c net.Conn, msg string) (answer string) {
	dev := must(uverbs.OpenFirst())
	pd := must(dev.AllocPD())
	buf := must(uverbs.AllocBuffer(8192, uverbs.BufferOptions{})) // the first half to send, the second to receive
	mr := must(pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite}))
	cq := must(dev.CreateCQ(uverbs.CQOptions{Events: true}))
	qp := must(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}))
	defer buf.Close()
	defer dev.CloseAll() // before buf, which a device could still write to
	check(qp.Init())
	check(qp.PostRecv(1, mr.SGE(4096, 4096)))
	must(qp.ConnectOver(ctx, c, nil))
	sgl := []uverbs.SGE{mr.SGE(0, copy(buf.Bytes(), msg))}
	check(qp.PostSend(uverbs.SendWR{ID: 2, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: sgl}))
	done := 0
	for wc, err := range cq.Completions(ctx) {
		check(err)
		if wc.ID == 1 {
			answer = string(buf.Bytes()[4096 : 4096+wc.ByteLen])
		}
		if done++; done == 2 { // the send and the receive
			break
		}
	}
	return answer
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

// Two programs run talk, each at its end of a TCP connection.
func Example() {
	c, err := net.Dial("tcp", "server:7471")
	check(err)
	fmt.Println(talk(context.Background(), c, "hello from the client"))
}

// TestExample runs both ends of the example.
func TestExample(t *testing.T) {
	testenv.Guest(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	defer l.Close()
	got := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		check(err)
		got <- talk(t.Context(), c, "hello from the server")
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	check(err)
	if answer := talk(t.Context(), c, "hello from the client"); answer != "hello from the server" {
		t.Errorf("the client got %q", answer)
	}
	if answer := <-got; answer != "hello from the client" {
		t.Errorf("the server got %q", answer)
	}
}

// Devices lists every device, also those that cannot be used.
func ExampleDevices() {
	devices, err := uverbs.Devices()
	check(err)
	for _, d := range devices {
		fmt.Println(d.Name, d.Driver, d.Err)
	}
}

// Wait sleeps until there are completions.
func ExampleCQ_Wait() {
	var dev *uverbs.Device
	var qp *uverbs.QP
	cq := must(dev.CreateCQ(uverbs.CQOptions{Events: true}))
	defer cq.Close()
	var wcs [16]uverbs.WC
	for {
		n, err := cq.Wait(context.Background(), wcs[:])
		check(err)
		for i := range wcs[:n] {
			fmt.Println(wcs[i].ID, qp.Err(&wcs[i]))
		}
	}
}

// Several CQs share a channel; [uverbs.CQ.Wait] is for one. Arm, poll until the CQ is empty, and only
// then wait: a completion that came before the CQ was armed raises no event.
func ExampleCompChannel_Next() {
	var ch *uverbs.CompChannel // of dev.CreateCompChannel
	var cq *uverbs.CQ          // of dev.CreateCQ with CQOptions{Channel: ch}
	ctx := context.Background()
	for {
		check(cq.Notify())
		var wcs [16]uverbs.WC
		for n := -1; n != 0; {
			var err error
			n, err = cq.Poll(wcs[:])
			check(err)
			for _, wc := range wcs[:n] {
				fmt.Println(wc.ID, wc.Err())
			}
		}
		_, err := ch.Next(ctx)
		check(err)
	}
}

// An RDMA WRITE needs the address and the rkey of the peer's MR, which the peer tells.
func ExampleQP_PostSend_write() {
	var qp *uverbs.QP
	var mr *uverbs.MR
	var remoteAddr uint64
	var rkey uint32
	check(qp.PostSend(uverbs.SendWR{
		ID:         1,
		Opcode:     uverbs.WRRDMAWrite,
		Flags:      uverbs.SendSignaled,
		SGL:        []uverbs.SGE{mr.SGE(0, 4096)},
		RemoteAddr: remoteAddr,
		RKey:       rkey,
	}))
}
