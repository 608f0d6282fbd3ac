package uverbs

import (
	"fmt"
	"math/bits"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// createCQ makes a completion ring.
func (k *fakeKernel) createCQ(c *fakeCall, cqe uint32) uint32 {
	handle := k.handle()
	ring := k.newRing(6, cqe)
	k.rings[handle] = []*fakeRing{ring}
	k.put(c.drv, ring.info)
	return handle
}

// resizeCQ moves what is in a completion ring to the start of a new one, as rxe does.
func (k *fakeKernel) resizeCQ(c *fakeCall, handle, cqe uint32) syscall.Errno {
	old := k.rings[handle][0]
	n := (old.producer.Acquire() - old.consumer.Acquire()) & old.mask
	if cqe < n {
		return syscall.EINVAL
	}
	ring := k.newRing(old.shift, cqe)
	for i := range n {
		from := 384 + ((old.consumer.Acquire()+i)&old.mask)<<old.shift
		to := 384 + i<<ring.shift
		copy(ring.mem[to:to+1<<ring.shift], old.mem[from:])
	}
	ring.producer.Release(n)
	k.rings[handle] = []*fakeRing{ring}
	k.old += len(old.mem)
	k.put(c.drv, ring.info)
	return 0
}

// createSRQ makes a receive ring.
func (k *fakeKernel) createSRQ(c *fakeCall, maxWR, maxSGE uint32) uint32 {
	handle := k.handle()
	ring := k.newRing(uint(bits.Len32(40+16*maxSGE-1)), maxWR)
	k.rings[handle] = []*fakeRing{ring}
	k.put(c.drv, append(slices.Clone(ring.info), append(u32(0x200+handle), u32(0)...)...))
	return handle
}

// createQP makes a send and a receive ring.
func (k *fakeKernel) createQP(c *fakeCall, req *abi.CreateQP) (*abi.CreateQPResp, syscall.Errno) {
	if k.invalid != nil {
		if errno := k.invalid(req); errno != 0 {
			return nil, errno
		}
	}
	handle := k.handle()
	// struct rxe_send_wqe has 208 bytes, struct rxe_recv_wqe 40, an SGE 16.
	sq := k.newRing(uint(bits.Len32(208+max(16*req.MaxSendSGE, req.MaxInlineData)-1)), req.MaxSendWR)
	rq := k.newRing(uint(bits.Len32(40+16*req.MaxRecvSGE-1)), req.MaxRecvWR)
	k.rings[handle] = []*fakeRing{sq, rq}
	k.put(c.drv, append(slices.Clone(rq.info), sq.info...))
	return &abi.CreateQPResp{QPHandle: handle, QPN: 0x100 + handle, MaxSendWR: req.MaxSendWR, MaxRecvWR: req.MaxRecvWR,
		MaxSendSGE: req.MaxSendSGE, MaxRecvSGE: req.MaxRecvSGE, MaxInlineData: req.MaxInlineData}, 0
}

// fakeRing is the kernel's own mapping of a ring (struct rxe_queue_buf).
type fakeRing struct {
	mem                []byte
	shift              uint
	mask               uint32
	producer, consumer *mmio.Index
	info               []byte // struct mminfo
}

// newRing makes a ring for so many entries, rounded up as rxe does.
func (k *fakeKernel) newRing(shift uint, entries uint32) *fakeRing {
	mask := uint32(1)<<bits.Len32(entries) - 1
	page := os.Getpagesize() - 1
	size := (384 + int(mask+1)<<shift + page) &^ page
	offset := k.space
	k.space += int64(size)
	if k.space > doorbells {
		k.t.Fatal("the rings reach into the doorbells")
	}
	r := &fakeRing{mem: k.ringMemory(offset, size), shift: shift, mask: mask, info: append(u64(uint64(offset)), u64(uint64(size))...)}
	copy(r.mem, append(u32(uint32(shift)), u32(mask)...))
	for at, index := range map[uintptr]**mmio.Index{128: &r.producer, 256: &r.consumer} {
		*index = value(mmio.IndexAt(r.mem, at))(k.t)
	}
	return r
}

// ringMemory returns the memory of a ring: Go memory, or a part of the memfd.
func (k *fakeKernel) ringMemory(offset int64, size int) []byte {
	if k.goMem != nil {
		mem := make([]byte, size+63)
		mem = mem[-addrOf(mem)&63:][:size]
		k.goMem[uint64(offset)] = mem
		return mem
	}
	if _, err := k.file.WriteAt([]byte{0}, offset+int64(size)-1); err != nil {
		k.t.Fatal(err)
	}
	region := value(mmio.Map(k.file, uint64(offset), size))(k.t)
	k.t.Cleanup(func() { region.Close() })
	return region.Bytes()
}

// ringsMapped returns how much of the command file is mapped by the library since the
// device was opened, in bytes.
func (k *fakeKernel) ringsMapped() int {
	k.t.Helper()
	total := -k.mapped - k.old
	for line := range strings.Lines(string(value(os.ReadFile("/proc/self/maps"))(k.t))) {
		if !strings.Contains(line, "memfd:uverbs0") {
			continue
		}
		var from, to int
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
			k.t.Fatal(err)
		}
		total += to - from
	}
	for _, rings := range k.rings {
		for _, r := range rings {
			total -= len(r.mem)
		}
	}
	return total
}
