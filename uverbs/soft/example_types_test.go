package soft_test

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// A device is opened by its name, like one of the kernel.
func ExampleNew() {
	dev := must(soft.New(soft.Options{Name: "left"}))
	defer dev.Close()
	d := must(uverbs.Open("left", uverbs.OpenOptions{}))
	defer d.Close()
	fmt.Println(d.Name(), must(d.Port(1)).State)

	_, err := soft.New(soft.Options{MTU: 1500}) // an error names the field, its value, and what is allowed
	if e, ok := errors.AsType[*soft.OptionError](err); ok {
		fmt.Println(e.Field, e.Value)
	}
	// Output:
	// left ACTIVE
	// MTU 1500
}

// Each test has a device of its own, which fails the test if something is left open.
func ExampleNewT() {
	var t recorder // in a test: its *testing.T
	d := must(uverbs.Open(soft.NewT(&t, soft.Options{}).Name(), uverbs.OpenOptions{}))
	must(d.AllocPD())
	check(d.CloseAll()) // without it: "the test has left objects of device soft0 open: 1 context, 1 PD"
	t.end()
	fmt.Println(len(t.failures), "failures")
	// Output: 0 failures
}

// Options have a text form, for flags and environment variables. Two devices that are small and repeatable:
func ExampleOptions() {
	for _, text := range soft.SplitList("local,name=a,mtu=1024,seed=7 local,name=b,qps=2") {
		dev := must(soft.New(must(soft.ParseOptions(text))))
		defer dev.Close()
		d := must(uverbs.Open(dev.Name(), uverbs.OpenOptions{}))
		defer d.Close()
		fmt.Println(d.Name(), must(d.Port(1)).ActiveMTU.Bytes(), d.Attr().MaxQP)
	}
	// Output:
	// a 1024 1048560
	// b 4096 2
}

// A tenth of the packets is lost, and all messages arrive nevertheless, in order.
func ExampleFaults() {
	dev := must(soft.New(soft.Options{Seed: 7, Faults: soft.Faults{Seed: 7, Rules: []soft.Rule{{Loss: 10 * soft.Percent}}}}))
	defer dev.Close()
	d := must(uverbs.Open(dev.Name(), uverbs.OpenOptions{}))
	defer d.CloseAll()
	pd, cq := must(d.AllocPD()), must(d.CreateCQ(uverbs.CQOptions{Events: true}))
	o := uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, Path: uverbs.PathOptions{Timeout: 8, RetryCount: 7}} // a packet is sent again after 1 ms
	a, b := must(pd.CreateQP(o)), must(pd.CreateQP(o))
	check(uverbs.ConnectPair(context.Background(), a, b))
	for i := range uint32(20) {
		check(b.PostRecv(uint64(i)))
		check(a.PostSend(uverbs.SendWR{Opcode: uverbs.WRSendWithImm, Imm: i}))
		var wcs [1]uverbs.WC
		must(cq.Wait(context.Background(), wcs[:]))
		check(b.Err(&wcs[0]))
		fmt.Print(wcs[0].Imm, " ")
	}
	sent, _ := dev.FaultCounters()
	fmt.Println("lost some:", sent.Lost > 0)
	// Output: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 lost some: true
}

// The second send of each queue pair fails, so that a program's way to handle it can be tested.
func ExampleParseFaults() {
	dev := must(soft.New(soft.Options{Faults: must(soft.ParseFaults("fail=send:1:retry_exc_err"))}))
	defer dev.Close()
	d := must(uverbs.Open(dev.Name(), uverbs.OpenOptions{}))
	defer d.CloseAll()
	pd, cq := must(d.AllocPD()), must(d.CreateCQ(uverbs.CQOptions{Events: true}))
	o := uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}
	a, b := must(pd.CreateQP(o)), must(pd.CreateQP(o))
	check(uverbs.ConnectPair(context.Background(), a, b))
	for id := range uint64(2) {
		check(a.PostSend(uverbs.SendWR{ID: id, Opcode: uverbs.WRRDMAWrite, Flags: uverbs.SendSignaled}))
		var wcs [1]uverbs.WC
		must(cq.Wait(context.Background(), wcs[:]))
		err := a.Err(&wcs[0])
		fmt.Println(id, wcs[0].Status == uverbs.WCSuccess, err != nil && strings.Contains(err.Error(), "fail=send:1"))
	}
	// Output:
	// 0 true false
	// 1 false true
}
