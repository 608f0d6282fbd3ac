package uverbs_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/flow"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// The examples of this file use a software device of the process, so that they run on any machine. With a device of the
// kernel, open it by its name or by [uverbs.OpenFirst].

// A device is opened by its name. CloseAll closes it with everything that it has.
func ExampleDevice() {
	dev := must(uverbs.Open(must(soft.New(soft.Options{})).Name(), uverbs.OpenOptions{}))
	defer dev.CloseAll()
	port := must(dev.Port(1))
	fmt.Println("port 1 is", port.State, "with an MTU of", port.ActiveMTU.Bytes())
	fmt.Println("up to", dev.Attr().MaxSGE, "SGEs in a work request")
	// Output:
	// port 1 is ACTIVE with an MTU of 4096
	// up to 32 SGEs in a work request
}

// Only objects of the same PD work together: a QP of another PD cannot use the memory.
func ExamplePD() {
	dev := must(uverbs.Open(must(soft.New(soft.Options{})).Name(), uverbs.OpenOptions{}))
	defer dev.CloseAll()
	cq := must(dev.CreateCQ(uverbs.CQOptions{Events: true}))
	mine, other := must(dev.AllocPD()), must(dev.AllocPD())
	var qps [2]*uverbs.QP
	for i := range qps {
		qps[i] = must(mine.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}))
	}
	check(uverbs.ConnectPair(context.Background(), qps[0], qps[1]))
	mr := must(other.RegSlice(make([]byte, 4096), uverbs.AccessLocalWrite))
	check(qps[0].PostSend(uverbs.SendWR{Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{mr.SGE(0, 5)}}))
	var wcs [1]uverbs.WC
	must(cq.Wait(context.Background(), wcs[:]))
	fmt.Println(wcs[0].Status)
	// Output: uverbs: local protection error
}

// One side makes its memory accessible, and the other one reads it. The address and the key travel in a message; here
// both sides are in one program.
func ExampleMR() {
	dev := must(uverbs.Open(must(soft.New(soft.Options{})).Name(), uverbs.OpenOptions{}))
	defer dev.CloseAll()
	pd, cq := must(dev.AllocPD()), must(dev.CreateCQ(uverbs.CQOptions{Events: true}))
	table := must(pd.RegSlice([]byte("one two three"), uverbs.AccessRemoteRead))
	local := must(pd.RegSlice(make([]byte, 64), uverbs.AccessLocalWrite)) // a READ writes here

	o := uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}
	reader, owner := must(pd.CreateQP(o)), must(pd.CreateQP(o))
	check(uverbs.ConnectPair(context.Background(), reader, owner))
	check(reader.PostSend(uverbs.SendWR{
		Opcode: uverbs.WRRDMARead, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{local.SGE(0, 3)},
		RemoteAddr: table.Addr() + 4, RKey: table.RKey(),
	}))
	var wcs [1]uverbs.WC
	must(cq.Wait(context.Background(), wcs[:]))
	check(reader.Err(&wcs[0]))
	fmt.Printf("%s\n", local.Bytes()[:3])
	// Output: two
}

// A window gives the peer a key to a part of a region. A work request binds it.
func ExampleMW() {
	dev := must(uverbs.Open(must(soft.New(soft.Options{})).Name(), uverbs.OpenOptions{}))
	defer dev.CloseAll()
	pd, cq := must(dev.AllocPD()), must(dev.CreateCQ(uverbs.CQOptions{Events: true}))
	mr := must(pd.RegSlice(make([]byte, 8192), uverbs.AccessLocalWrite|uverbs.AccessMWBind))
	o := uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}
	owner, peer := must(pd.CreateQP(o)), must(pd.CreateQP(o))
	check(uverbs.ConnectPair(context.Background(), owner, peer))
	mw := must(pd.AllocMW(uverbs.MWType2))
	check(owner.PostSend(uverbs.SendWR{Opcode: uverbs.WRBindMW, Flags: uverbs.SendSignaled,
		Bind: uverbs.BindInfo{MW: mw, MR: mr, Addr: mr.Addr() + 4096, Length: 5, Access: uverbs.AccessRemoteWrite}}))
	var wcs [1]uverbs.WC
	must(cq.Wait(context.Background(), wcs[:])) // now mw.RKey is a key to 5 bytes
	check(owner.Err(&wcs[0]))
	check(peer.PostSend(uverbs.SendWR{Opcode: uverbs.WRRDMAWrite, Flags: uverbs.SendSignaled, Inline: []byte("hello"),
		RemoteAddr: mr.Addr() + 4096, RKey: mw.RKey()}))
	must(cq.Wait(context.Background(), wcs[:]))
	check(peer.Err(&wcs[0]))
	fmt.Printf("%s\n", mr.Bytes()[4096:4101])
	// Output: hello
}

// A CQ without events is polled. One Poll returns as many completions as the slice has room for.
func ExampleCQ() {
	dev := must(uverbs.Open(must(soft.New(soft.Options{})).Name(), uverbs.OpenOptions{}))
	defer dev.CloseAll()
	pd, cq := must(dev.AllocPD()), must(dev.CreateCQ(uverbs.CQOptions{Size: 16}))
	o := uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}
	a, b := must(pd.CreateQP(o)), must(pd.CreateQP(o))
	check(uverbs.ConnectPair(context.Background(), a, b))
	for id := range uint64(3) {
		check(b.PostRecv(100 + id))
		check(a.PostSend(uverbs.SendWR{ID: id, Opcode: uverbs.WRSendWithImm, Flags: uverbs.SendSignaled, Imm: uint32(10 * id)}))
	}
	sent, received := 0, 0
	for wcs := make([]uverbs.WC, 16); sent+received < 6; {
		for _, wc := range wcs[:must(cq.Poll(wcs))] {
			check(wc.Err())
			if wc.QPN == b.QPN() { // which of the QPs that share the CQ
				fmt.Println("received", wc.Imm, "by receive", wc.ID)
				received++
			} else {
				sent++
			}
		}
	}
	fmt.Println(sent, "sent")
	// Output:
	// received 0 by receive 100
	// received 10 by receive 101
	// received 20 by receive 102
	// 3 sent
}

// Two QPs of a program send to each other. If the peer is another program, [uverbs.QP.ConnectOver] connects them; see the
// example of the package.
func ExampleQP() {
	dev := must(uverbs.Open(must(soft.New(soft.Options{})).Name(), uverbs.OpenOptions{}))
	defer dev.CloseAll()
	pd, cq := must(dev.AllocPD()), must(dev.CreateCQ(uverbs.CQOptions{Events: true}))
	mr := must(pd.RegSlice(make([]byte, 64), uverbs.AccessLocalWrite))
	o := uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, MaxSendWR: 8, MaxRecvWR: 8}
	a, b := must(pd.CreateQP(o)), must(pd.CreateQP(o))
	check(uverbs.ConnectPair(context.Background(), a, b))
	fmt.Println(a.State(), b.State())

	check(b.PostRecv(7, mr.SGE(0, 64)))                                              // before the peer sends
	check(a.PostSend(uverbs.SendWR{Opcode: uverbs.WRSend, Inline: []byte("hello")})) // no completion unless it fails
	var wcs [1]uverbs.WC
	must(cq.Wait(context.Background(), wcs[:]))
	check(b.Err(&wcs[0]))
	fmt.Printf("receive %d has %q\n", wcs[0].ID, mr.Bytes()[:wcs[0].ByteLen])
	// Output:
	// RTS RTS
	// receive 7 has "hello"
}

// Two QPs take their receives from one SRQ, whichever peer sends.
func ExampleSRQ() {
	dev := must(uverbs.Open(must(soft.New(soft.Options{})).Name(), uverbs.OpenOptions{}))
	defer dev.CloseAll()
	pd, cq := must(dev.AllocPD()), must(dev.CreateCQ(uverbs.CQOptions{Events: true}))
	mr := must(pd.RegSlice(make([]byte, 4*64), uverbs.AccessLocalWrite))
	srq := must(pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 4}))
	for i := range 4 {
		check(srq.PostRecv(uint64(i), mr.SGE(i*64, 64)))
	}
	for _, name := range []string{"left", "right"} {
		server := must(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, SRQ: srq}))
		client := must(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}))
		check(uverbs.ConnectPair(context.Background(), server, client))
		check(client.PostSend(uverbs.SendWR{Opcode: uverbs.WRSend, Inline: []byte(name)}))
		var wcs [1]uverbs.WC
		must(cq.Wait(context.Background(), wcs[:]))
		check(server.Err(&wcs[0]))
		fmt.Printf("receive %d has %q\n", wcs[0].ID, mr.Bytes()[wcs[0].ID*64:][:wcs[0].ByteLen])
	}
	// Output:
	// receive 0 has "left"
	// receive 1 has "right"
}

// An AH is the way to a peer of datagrams. PathTo makes its attributes for an Endpoint, and CreateAHFor makes an AH for the
// sender of a datagram.
func ExampleAH() {
	dev := must(uverbs.Open(must(soft.New(soft.Options{})).Name(), uverbs.OpenOptions{}))
	defer dev.CloseAll()
	pd, cq := must(dev.AllocPD()), must(dev.CreateCQ(uverbs.CQOptions{Events: true}))
	mr := must(pd.RegSlice(make([]byte, uverbs.GRHSize+4096), uverbs.AccessLocalWrite))
	const qkey = 0x1ee7
	o := uverbs.QPOptions{Type: ib.UD, SendCQ: cq, RecvCQ: cq}
	a, b := must(pd.CreateQP(o)), must(pd.CreateQP(o))
	check(errors.Join(a.ReadyUD(qkey), b.ReadyUD(qkey)))

	to := must(b.Endpoint())
	ah := must(pd.CreateAH(must(a.PathTo(to))))
	check(b.PostRecv(0, mr.SGE(0, mr.Len())))
	check(a.PostSend(uverbs.SendWR{Opcode: uverbs.WRSend, Inline: []byte("hello"), AH: ah, RemoteQPN: to.QPN, RemoteQKey: qkey}))
	var wcs [1]uverbs.WC
	must(cq.Wait(context.Background(), wcs[:]))
	check(b.Err(&wcs[0]))
	fmt.Printf("%s\n", mr.Bytes()[uverbs.GRHSize:wcs[0].ByteLen])
	back := must(pd.CreateAHFor(1, &wcs[0], mr.Bytes())) // and the QP is wcs[0].SrcQP
	fmt.Println(back != nil, wcs[0].SrcQP == a.QPN())
	// Output:
	// hello
	// true true
}

// Two CQs share a channel, so one goroutine waits for both.
func ExampleCompChannel() {
	dev := must(uverbs.Open(must(soft.New(soft.Options{})).Name(), uverbs.OpenOptions{}))
	defer dev.CloseAll()
	ch := must(dev.CreateCompChannel())
	pd, sends, recvs := must(dev.AllocPD()), must(dev.CreateCQ(uverbs.CQOptions{Channel: ch})), must(dev.CreateCQ(uverbs.CQOptions{Channel: ch}))
	o := uverbs.QPOptions{SendCQ: sends, RecvCQ: recvs}
	a, b := must(pd.CreateQP(o)), must(pd.CreateQP(o))
	check(uverbs.ConnectPair(context.Background(), a, b))
	check(b.PostRecv(2))
	check(errors.Join(sends.Notify(), recvs.Notify()))
	check(a.PostSend(uverbs.SendWR{ID: 1, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled}))
	ids := map[uint64]bool{}
	for len(ids) < 2 {
		cq := must(ch.Next(context.Background()))
		check(cq.Notify()) // before Poll: a completion after it raises another event
		var wcs [8]uverbs.WC
		for _, wc := range wcs[:must(cq.Poll(wcs[:]))] {
			check(wc.Err())
			ids[wc.ID] = true
		}
	}
	fmt.Println(ids)
	// Output: map[1:true 2:true]
}

// The builder posts a WRITE and, behind it, a message that tells the peer of it, with one doorbell.
func ExampleSendBuilder() {
	dev := must(uverbs.Open(must(soft.New(soft.Options{})).Name(), uverbs.OpenOptions{}))
	defer dev.CloseAll()
	pd, cq := must(dev.AllocPD()), must(dev.CreateCQ(uverbs.CQOptions{Events: true}))
	local := must(pd.RegSlice([]byte("hello"), 0))
	remote := must(pd.RegSlice(make([]byte, 4096), uverbs.AccessLocalWrite|uverbs.AccessRemoteWrite))
	o := uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}
	a, b := must(pd.CreateQP(o)), must(pd.CreateQP(o))
	check(uverbs.ConnectPair(context.Background(), a, b))
	check(b.PostRecv(3))
	batch := a.BeginSend()
	batch.WriteSGE(1, 0, remote.Addr(), remote.RKey(), local.SGE(0, 5))
	batch.SendImm(2, 0, 5)
	check(batch.Post())
	var wcs [1]uverbs.WC
	must(cq.Wait(context.Background(), wcs[:]))
	check(b.Err(&wcs[0]))
	fmt.Printf("%s\n", remote.Bytes()[:wcs[0].Imm])
	// Output: hello
}

// A pool divides one region into slots, for many small messages. The number of a slot is the ID of its work request.
func ExampleBufferPool() {
	dev := must(uverbs.Open(must(soft.New(soft.Options{})).Name(), uverbs.OpenOptions{}))
	defer dev.CloseAll()
	pd, cq := must(dev.AllocPD()), must(dev.CreateCQ(uverbs.CQOptions{Events: true}))
	pool := must(uverbs.NewBufferPool(pd, uverbs.PoolOptions{SlotSize: 256, Slots: 1000, Access: uverbs.AccessLocalWrite}))
	o := uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}
	a, b := must(pd.CreateQP(o)), must(pd.CreateQP(o))
	check(uverbs.ConnectPair(context.Background(), a, b))
	slots := map[uint64]uverbs.Slot{}
	in, out := must(pool.Get()), must(pool.Get())
	slots[uint64(in.Index())], slots[uint64(out.Index())] = in, out
	check(b.PostRecv(uint64(in.Index()), in.SGE(256)))
	n := copy(out.Bytes(), "hello")
	check(a.PostSend(uverbs.SendWR{ID: uint64(out.Index()), Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{out.SGE(n)}}))
	for wc, err := range cq.Completions(context.Background()) {
		check(err)
		if wc.QPN == b.QPN() {
			fmt.Printf("%s\n", slots[wc.ID].Bytes()[:wc.ByteLen])
		}
		if check(pool.Put(slots[wc.ID])); pool.Free() == 1000 {
			break
		}
	}
	// Output: hello
}

// An atomic adds to 8 bytes of the peer's memory and returns what was there.
func ExampleSendBuilder_FetchAdd() {
	dev := must(uverbs.Open(must(soft.New(soft.Options{})).Name(), uverbs.OpenOptions{}))
	defer dev.CloseAll()
	pd, cq := must(dev.AllocPD()), must(dev.CreateCQ(uverbs.CQOptions{Events: true}))
	counter := must(pd.RegSlice(make([]byte, 64), uverbs.AccessLocalWrite|uverbs.AccessRemoteAtomic))
	before := must(pd.RegSlice(make([]byte, 64), uverbs.AccessLocalWrite))
	o := uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}
	a, b := must(pd.CreateQP(o)), must(pd.CreateQP(o))
	check(uverbs.ConnectPair(context.Background(), a, b))
	for range 2 {
		batch := a.BeginSend()
		batch.FetchAdd(1, uverbs.SendSignaled, counter.Addr(), counter.RKey(), 5)
		batch.SGE(before.SGE(0, 8))
		check(batch.Post())
		var wcs [1]uverbs.WC
		must(cq.Wait(context.Background(), wcs[:]))
		check(a.Err(&wcs[0]))
		fmt.Println(binary.NativeEndian.Uint64(before.Bytes()), binary.NativeEndian.Uint64(counter.Bytes()))
	}
	// Output:
	// 0 5
	// 5 10
}

// A flow directs packets to a QP, on devices such as ConnectX. Others say that they do not support it.
func ExampleFlow() {
	dev := must(uverbs.Open(must(soft.New(soft.Options{})).Name(), uverbs.OpenOptions{}))
	defer dev.CloseAll()
	pd, cq := must(dev.AllocPD()), must(dev.CreateCQ(uverbs.CQOptions{}))
	qp := must(pd.CreateQP(uverbs.QPOptions{Type: ib.UD, SendCQ: cq, RecvCQ: cq}))
	rule, err := qp.CreateFlow(uverbs.FlowOptions{Specs: []flow.Spec{
		flow.Eth{}, flow.IPv4{},
		flow.UDP{Val: flow.Ports{Dst: 53}, Mask: flow.Ports{Dst: 0xffff}},
	}})
	if errors.Is(err, errors.ErrUnsupported) {
		fmt.Println("this device has no flows")
		return
	}
	check(err)
	defer rule.Close()
	// Output: this device has no flows
}

// Memory of the device itself is fast for what peers change often, such as counters. Without it a buffer does.
func ExampleDM() {
	dev := must(uverbs.Open(must(soft.New(soft.Options{})).Name(), uverbs.OpenOptions{}))
	defer dev.CloseAll()
	pd := must(dev.AllocPD())
	const rights = uverbs.AccessLocalWrite | uverbs.AccessRemoteAtomic
	var mr *uverbs.MR
	dm, err := dev.AllocDM(64, uverbs.DMOptions{})
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		fmt.Println("the device has no memory")
		mr = must(pd.RegSlice(make([]byte, 64), rights))
	case err == nil:
		mr = must(pd.RegDM(dm, 0, 64, rights))
	default:
		check(err)
	}
	fmt.Println(mr.Len(), "bytes for peers")
	// Output:
	// the device has no memory
	// 64 bytes for peers
}

// An error of a completion says what has failed and why, here that the peer's memory may not be written.
func ExampleWCError() {
	dev := must(uverbs.Open(must(soft.New(soft.Options{Name: "example", Seed: 1})).Name(), uverbs.OpenOptions{}))
	defer dev.CloseAll()
	pd, cq := must(dev.AllocPD()), must(dev.CreateCQ(uverbs.CQOptions{Events: true}))
	table := must(pd.RegSlice(make([]byte, 64), uverbs.AccessRemoteRead))
	o := uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}
	a, b := must(pd.CreateQP(o)), must(pd.CreateQP(o))
	check(uverbs.ConnectPair(context.Background(), a, b))
	check(a.PostSend(uverbs.SendWR{Opcode: uverbs.WRRDMAWrite, Inline: []byte("hello"), RemoteAddr: table.Addr(), RKey: table.RKey()}))
	var wcs [1]uverbs.WC
	must(cq.Wait(context.Background(), wcs[:]))
	err := a.Err(&wcs[0])
	if e, ok := errors.AsType[*uverbs.WCError](err); ok && errors.Is(err, uverbs.WCRemAccessErr) {
		fmt.Println(e.AtPeer)
	}
	// Output: the peer's MR with rkey 0x219b06ae does not have REMOTE_WRITE; its access is REMOTE_READ; the peer is QP 3300504 of example, of this program
}
