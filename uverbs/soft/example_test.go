package soft_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// A goroutine writes to the memory of another one by RDMA WRITE, over a device in software. An immediate
// value tells how many bytes were written.
func Example() {
	dev := must(soft.New(soft.Options{}))
	defer dev.Close()
	ctx := must(uverbs.Open(dev.Name(), uverbs.OpenOptions{})) // like any other device
	defer ctx.CloseAll()
	pd := must(ctx.AllocPD())
	var mem [2]*uverbs.MR
	var cq [2]*uverbs.CQ
	var qp [2]*uverbs.QP
	for i := range qp {
		mem[i] = must(pd.RegMR(must(uverbs.AllocBuffer(4096, uverbs.BufferOptions{})), uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite}))
		cq[i] = must(ctx.CreateCQ(uverbs.CQOptions{Events: true}))
		qp[i] = must(pd.CreateQP(uverbs.QPOptions{SendCQ: cq[i], RecvCQ: cq[i], Path: uverbs.PathOptions{Access: uverbs.AccessRemoteWrite}}))
		check(qp[i].Init())
	}
	check(qp[0].PostRecv(1)) // for the immediate value
	for i := range qp {
		check(qp[i].Connect(context.Background(), must(qp[1-i].Endpoint())))
	}
	go func() {
		n := copy(mem[1].Bytes(), "hello")
		check(qp[1].PostSend(uverbs.SendWR{
			Opcode: uverbs.WRRDMAWriteWithImm, SGL: []uverbs.SGE{mem[1].SGE(0, n)},
			RemoteAddr: mem[0].Addr(), RKey: mem[0].RKey(), Imm: uint32(n),
		}))
	}()
	var wc [1]uverbs.WC
	must(cq[0].Wait(context.Background(), wc[:]))
	check(qp[0].Err(&wc[0]))
	fmt.Printf("%s\n", mem[0].Bytes()[:wc[0].Imm])
	// Output: hello
}

// A test runs a program with loss, separates two devices for a while, and keeps the packets for Wireshark.
func ExampleDevice_Partition() {
	capture := must(os.Create(filepath.Join(os.TempDir(), "loss.pcapng")))
	defer capture.Close()
	faults := soft.Faults{Seed: 7, Rules: []soft.Rule{
		{Class: soft.ClassMAD}, // nothing happens to the connection manager, which repeats its messages after seconds
		{Loss: 1 * soft.Percent, Reorder: 1 * soft.Percent},
	}}
	left := must(soft.New(soft.Options{Faults: faults, Capture: capture}))
	defer left.Close()
	right := must(soft.New(soft.Options{}))
	defer right.Close()

	// ... connect, with left.Name() and right.Name(), and exchange messages.

	left.Partition(right.Addr())
	// ... messages are sent again and again, and fail in the end.
	left.Heal(right.Addr())

	check(left.SetFaults(soft.Faults{})) // no loss any more
	sent, received := left.FaultCounters()
	fmt.Println("lost", sent.Lost+received.Lost)
	// Output: lost 0
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
