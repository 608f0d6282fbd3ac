package uverbs_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"syscall"

	"github.com/goverbs/goverbs/uverbs"
)

// A broker registers memory and hands it to a worker, another process, over a Unix socket. The worker
// needs no permission for the device, and uses the memory with queues of its own. In test/suites/broker this is a
// program for any number of workers.
//
// If the worker must read and write the memory itself, make the memory shareable, for example a memfd
// that both processes map; register it with [uverbs.PD.RegSlice] and send its descriptor, too.
func ExampleImportDevice() {
	type handles struct{ PD, MR uint32 }

	broker := func(worker *net.UnixConn) {
		dev := must(uverbs.OpenFirst())
		pd := must(dev.AllocPD())
		buf := must(uverbs.AllocBuffer(4096, uverbs.BufferOptions{}))
		mr := must(pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite}))

		f := must(dev.File())
		message := must(json.Marshal(handles{PD: pd.Handle(), MR: mr.Handle()}))
		_, _, err := worker.WriteMsgUnix(message, syscall.UnixRights(int(f.Fd())), nil)
		check(err)
		check(f.Close())

		worker.Read(make([]byte, 1)) // the worker is done, or gone
		check(dev.CloseAll())        // works even if the worker has crashed
		check(buf.Close())
	}

	worker := func(broker *net.UnixConn) {
		message, rights := make([]byte, 256), make([]byte, syscall.CmsgSpace(4))
		n, nr, _, _, err := broker.ReadMsgUnix(message, rights)
		check(err)
		var h handles
		check(json.Unmarshal(message[:n], &h))
		fds := must(syscall.ParseUnixRights(&must(syscall.ParseSocketControlMessage(rights[:nr]))[0]))
		f := os.NewFile(uintptr(fds[0]), "device")

		dev := must(uverbs.ImportDevice(f))
		check(f.Close())
		pd := must(dev.ImportPD(h.PD))
		mr := must(pd.ImportMR(h.MR, uverbs.ImportMROptions{}))
		cq := must(dev.CreateCQ(uverbs.CQOptions{}))
		qp := must(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}))
		fmt.Println("receive into the broker's memory:", mr.SGE(0, 1024))
		// Connect the QP, post receives with mr, and so on.
		check(qp.Close())
		check(cq.Close())
		check(mr.Close()) // the broker's region stays registered
		check(pd.Close())
		check(dev.Close())
	}
	_, _ = broker, worker
}
