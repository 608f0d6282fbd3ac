package uverbs_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// The builder posts work requests without a struct for each: here a WRITE and, behind
// it, a SEND that tells the peer of it, with one doorbell.
func ExampleQP_BeginSend() {
	var qp *uverbs.QP
	var mr *uverbs.MR
	var remoteAddr uint64
	var rkey uint32
	b := qp.BeginSend()
	b.Write(1, 0, remoteAddr, rkey)
	b.SGE(mr.SGE(0, 4096))
	b.Send(2, uverbs.SendSignaled)
	b.Inline([]byte("4096 bytes are there"))
	check(b.Post())
}

// A UD queue pair receives from anybody who knows its Q_Key, and answers.
func ExampleQP_ReadyUD() {
	var pd *uverbs.PD
	var cq *uverbs.CQ
	var mr *uverbs.MR // of at least 40 + 4096 bytes
	const qkey = 0x1ee7
	qp := must(pd.CreateQP(uverbs.QPOptions{Type: ib.UD, SendCQ: cq, RecvCQ: cq}))
	defer qp.Close()
	check(qp.ReadyUD(qkey))
	check(qp.PostRecv(1, mr.SGE(0, uverbs.GRHSize+4096)))
	wcs := make([]uverbs.WC, 1)
	for must(cq.Poll(wcs)) == 0 {
	}
	check(qp.Err(&wcs[0]))
	ah := must(pd.CreateAHFor(1, &wcs[0], mr.Bytes())) // the way back
	defer ah.Close()
	check(qp.PostSend(uverbs.SendWR{
		Opcode: uverbs.WRSend, SGL: []uverbs.SGE{mr.SGE(uverbs.GRHSize, int(wcs[0].ByteLen)-uverbs.GRHSize)},
		AH: ah, RemoteQPN: wcs[0].SrcQP, RemoteQKey: qkey,
	}))
}

// Several queue pairs take their receives from one SRQ. An event says when it runs low.
func ExamplePD_CreateSRQ() {
	var dev *uverbs.Device
	var pd *uverbs.PD
	var cq *uverbs.CQ
	var mr *uverbs.MR
	srq := must(pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 1000}))
	defer srq.Close()
	for range 10 {
		qp := must(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, SRQ: srq}))
		defer qp.Close()
	}
	for i := range 1000 {
		check(srq.PostRecv(uint64(i), mr.SGE(i*4096, 4096)))
	}
	check(srq.SetLimit(100))
	ev := must(dev.NextEvent(context.Background()))
	if ev.Type == uverbs.EventSRQLimitReached && ev.SRQ == srq {
		fmt.Println("fewer than 100 receives are left")
	}
}

// Before QPs are added to a CQ it is made larger. Its completions stay.
func ExampleCQ_Resize() {
	var cq *uverbs.CQ
	check(cq.Resize(2 * cq.Size()))
	fmt.Println(cq.Size())
}

// One event for 16 completions, or for those of 50 µs, where the device can do that.
func ExampleCQ_Modify() {
	var cq *uverbs.CQ
	if err := cq.Modify(16, 50*time.Microsecond); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		fmt.Println(err)
	}
}
