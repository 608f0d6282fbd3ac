package uverbs_test

import (
	"fmt"
	"log"
	"os"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/flow"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// The examples of this file are about what rxe does not have; see [uverbs.FeatureError].

// Processes that open the same file share a domain. Senders of other hosts connect to a QP of
// it, and choose with each message the SRQ, that is the process, which receives it.
func ExampleXRCD() {
	var dev *uverbs.Device
	var pd *uverbs.PD
	var cq *uverbs.CQ
	f := must(os.OpenFile("/run/service.xrcd", os.O_RDWR|os.O_CREATE, 0o600))
	defer f.Close()
	domain := must(dev.OpenXRCD(uverbs.XRCDOptions{File: f, Flags: os.O_CREATE}))
	defer domain.Close()
	srq := must(pd.CreateSRQ(uverbs.SRQOptions{XRCD: domain, CQ: cq}))
	defer srq.Close()
	qp := must(domain.CreateQP(uverbs.XRCRecvOptions{}))
	defer qp.Close()
	fmt.Println("connect to", must(qp.Endpoint()), "and send to SRQ", srq.SRQN())
}

// All packets to a UDP port go to one raw packet QP, and are counted.
func ExampleQP_CreateFlow() {
	var dev *uverbs.Device
	var pd *uverbs.PD
	var cq *uverbs.CQ
	qp := must(pd.CreateQP(uverbs.QPOptions{Type: ib.RawPacket, SendCQ: cq, RecvCQ: cq}))
	defer qp.Close()
	check(qp.ReadyUD(0))
	counters := must(dev.CreateCounters())
	defer counters.Close()
	rule := must(qp.CreateFlow(uverbs.FlowOptions{Specs: []flow.Spec{
		flow.Eth{}, flow.IPv4{},
		flow.UDP{Val: flow.Ports{Dst: 53}, Mask: flow.Ports{Dst: 0xffff}},
	}, Counters: counters}))
	defer rule.Close()
	packets := make([]uint64, 1)
	check(counters.Read(packets, false))
}

// A packet's hash chooses one of four receive queues.
func ExampleDevice_CreateRWQIndTable() {
	var dev *uverbs.Device
	var pd *uverbs.PD
	var cqs [4]*uverbs.CQ // one for each processor
	var wqs []*uverbs.WQ
	for _, cq := range cqs {
		wq := must(pd.CreateWQ(uverbs.WQOptions{CQ: cq, MaxWR: 1024}))
		defer wq.Close()
		check(wq.Modify(uverbs.WQReady))
		wqs = append(wqs, wq)
	}
	table := must(dev.CreateRWQIndTable(wqs))
	defer table.Close()
	qp := must(pd.CreateQP(uverbs.QPOptions{Type: ib.RawPacket, IndTable: table}))
	defer qp.Close()
}

// Memory of the device itself is near to it: a counter that peers add to costs no way over
// the bus.
func ExampleDevice_AllocDM() {
	var dev *uverbs.Device
	var pd *uverbs.PD
	dm := must(dev.AllocDM(64, uverbs.DMOptions{Align: 64}))
	defer dm.Close()
	mr := must(pd.RegDM(dm, 0, 64, uverbs.AccessLocalWrite|uverbs.AccessRemoteAtomic))
	defer mr.Close()
	must(dm.WriteAt(make([]byte, 8), 0))
	fmt.Printf("add to the word at 0 with rkey %#x\n", mr.RKey())
	counter := make([]byte, 8)
	must(dm.ReadAt(counter, 0))
}

// The device's writes go to the cache of the processor that will read them.
func ExampleDevice_AllocDMAH() {
	var dev *uverbs.Device
	var pd *uverbs.PD
	var buf *uverbs.Buffer
	h := must(dev.AllocDMAH(uverbs.DMAHOptions{CPU: new(2), MemType: uverbs.TPHMemVolatile}))
	defer h.Close()
	mr := must(pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite, DMAH: h}))
	defer mr.Close()
}

// The objects of a parent domain are used by one goroutine at a time, so that the driver does
// without locks for them.
func ExamplePD_AllocParentDomain() {
	var dev *uverbs.Device
	var pd *uverbs.PD
	td, err := dev.AllocTD()
	if err != nil {
		log.Print(err) // as well without
		return
	}
	defer td.Close()
	mine := must(pd.AllocParentDomain(td))
	defer mine.Close()
}

// The device counts the receives of a QP, and the program waits for ten of them without a system call. The CQ has their
// completions as well.
func ExampleCompCounter() {
	var dev *uverbs.Device
	var qp *uverbs.QP
	counter, err := dev.CreateCompCounter(uverbs.CompCounterOptions{})
	if err != nil {
		log.Fatal(err) // a FeatureError on most devices
	}
	check(qp.AttachCompCounter(counter, uverbs.CompCounterRecv))
	for {
		received, failed, err := counter.Read()
		check(err)
		if received+failed >= 10 {
			fmt.Println(received, "messages have arrived")
			break
		}
	}
	check(qp.Close()) // it uses the counter
	check(counter.Close())
}

// Counters say how many packets and bytes a flow has steered.
func ExampleCounters() {
	var dev *uverbs.Device
	var qp *uverbs.QP // of type RawPacket
	counters := must(dev.CreateCounters())
	defer counters.Close()
	rule := must(qp.CreateFlow(uverbs.FlowOptions{Specs: []flow.Spec{
		flow.Eth{},
	}, Counters: counters}))
	defer rule.Close()
	values := make([]uint64, 2)
	check(counters.Read(values, false))
	fmt.Println(values)
}

// A WQ receives what the hash of a packet sends there, into memory that is posted to it.
func ExampleWQ() {
	var pd *uverbs.PD
	var cq *uverbs.CQ
	var mr *uverbs.MR
	wq := must(pd.CreateWQ(uverbs.WQOptions{CQ: cq, MaxWR: 64}))
	defer wq.Close()
	check(wq.Modify(uverbs.WQReady))
	for i := range 64 {
		check(wq.PostRecv(uint64(i), mr.SGE(i*2048, 2048)))
	}
}

// A TD promises that what belongs to its domain is used by one goroutine at a time, which with
// mlx5 gets doorbells of its own.
func ExampleTD() {
	var dev *uverbs.Device
	var pd *uverbs.PD
	var cq *uverbs.CQ
	td := must(dev.AllocTD())
	defer td.Close()
	mine := must(pd.AllocParentDomain(td))
	defer mine.Close()
	qp := must(mine.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}))
	defer qp.Close()
}

// CloseAll closes a device with everything that it has, in the right order.
func ExampleDevice_CloseAll() {
	dev := must(uverbs.OpenNetdev("eth0"))
	defer dev.CloseAll()
	pd := must(dev.AllocPD())
	cq := must(dev.CreateCQ(uverbs.CQOptions{Size: 16}))
	qp := must(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}))
	fmt.Println(qp.Endpoint())
}
