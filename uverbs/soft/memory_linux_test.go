package soft

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
)

// limitMemory limits the address space of the process to what it uses now and some bytes more, until
// the function that it returns is called.
func limitMemory(t *testing.T, more uint64) (restore func()) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	must(t, err)
	_, after, _ := bytes.Cut(status, []byte("VmSize:"))
	var used uint64 // in KiB
	if _, err := fmt.Sscan(string(after), &used); err != nil {
		t.Fatal(err)
	}
	var was syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_AS, &was))
	limit := was
	limit.Cur = used<<10 + more
	must(t, syscall.Setrlimit(syscall.RLIMIT_AS, &limit))
	return func() {
		must(t, syscall.Setrlimit(syscall.RLIMIT_AS, &was))
	}
}

// TestNoMemory: creating a queue without memory in the process fails with ENOMEM, as in the kernel,
// and a queue that cannot be resized keeps its size.
func TestNoMemory(t *testing.T) {
	c := newClient(t)
	pd, cq := c.pd(), c.cq()
	srq := c.srq(pd)
	drv := make([]byte, 64)
	var place [16]byte
	addr := kernel.Addr(place[:])

	send, recv := rcRequest(pd, cq), rcRequest(pd, cq)
	send.MaxSendWR, send.MaxSendSGE = maxWR, ring.MaxSGE // 2 GiB
	recv.MaxRecvWR, recv.MaxRecvSGE = maxWR, ring.MaxSGE
	largeSRQ := abi.CreateSRQ{PDHandle: pd, MaxWR: maxSRQWR, MaxSGE: 2}
	calls := []struct {
		what string
		do   func() syscall.Errno
	}{
		{"CREATE_QP, send queue", func() syscall.Errno { _, _, _, errno := c.createQP(send); return errno }},
		{"CREATE_QP, receive queue", func() syscall.Errno { _, _, _, errno := c.createQP(recv); return errno }},
		{"CREATE_SRQ", func() syscall.Errno {
			return c.legacy(abi.IB_USER_VERBS_CMD_CREATE_SRQ, kernel.Bytes(&largeSRQ), kernel.Bytes(&abi.CreateSRQResp{}), nil, drv)
		}},
		{"MODIFY_SRQ", func() syscall.Errno {
			req := abi.ModifySRQ{SRQHandle: srq, AttrMask: srqMaxWR, MaxWR: maxSRQWR}
			return c.legacy(abi.IB_USER_VERBS_CMD_MODIFY_SRQ, kernel.Bytes(&req), nil, kernel.Bytes(&addr), nil)
		}},
	}
	var errnos []syscall.Errno
	for _, call := range calls {
		restore := limitMemory(t, 128<<20) // the Go heap grows in steps of 64 MiB
		errnos = append(errnos, call.do())
		restore()
	}
	for i, errno := range errnos {
		c.want(calls[i].what+" without memory", errno, syscall.ENOMEM)
		c.want(calls[i].what+" with memory", calls[i].do(), 0)
	}
	c.qp(pd, cq)
}
