package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ring is a queue of rxe in memory that it shares with this process (struct rxe_queue_buf).
type ring struct{ mem []byte }

// Offsets in struct rxe_queue_buf, in bytes.
const (
	log2Size = 0
	elements = 384
)

// Offsets in the elements of the queues, in bytes, and of struct rxe_dma_info from its beginning.
const (
	sendOpcode = 12  // rxe_send_wqe.wr.opcode
	sendUnion  = 24  // rxe_send_wqe.wr.wr
	sendState  = 148 // rxe_send_wqe.state
	sendDMA    = 184 // rxe_send_wqe.dma
	recvDMA    = 16  // rxe_recv_wqe.dma

	dmaResid     = 4
	dmaCurSGE    = 8
	dmaNumSGE    = 12
	dmaSGEOffset = 16
)

// size returns the size of an element, in bytes.
func (r *ring) size() int { return 1 << binary.NativeEndian.Uint32(r.mem[log2Size:]) }

// word returns a 32-bit word of an element.
func (r *ring) word(element, offset int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&r.mem[elements+element*r.size()+offset]))
}

// mapping is memory of an RDMA device that is mapped in this process.
type mapping struct{ end, offset uintptr }

// mappings returns them by where they begin.
func mappings() (map[uintptr]mapping, error) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all := map[uintptr]mapping{}
	s := bufio.NewScanner(f)
	for s.Scan() {
		var begin uintptr
		var m mapping
		if !strings.Contains(s.Text(), "/dev/infiniband/uverbs") {
			continue
		}
		if _, err := fmt.Sscanf(s.Text(), "%x-%x rw-s %x ", &begin, &m.end, &m.offset); err != nil {
			return nil, fmt.Errorf("/proc/self/maps: %q: %w", s.Text(), err)
		}
		all[begin] = m
	}
	return all, s.Err()
}

// newRings returns the queues that were mapped after before was read, those with the largest elements first.
func newRings(before map[uintptr]mapping) ([]*ring, error) {
	all, err := mappings()
	if err != nil {
		return nil, err
	}
	var found []*ring
	for begin, m := range all {
		if before[begin] != m {
			found = append(found, &ring{unsafe.Slice((*byte)(pointer(begin)), m.end-begin)})
		}
	}
	slices.SortFunc(found, func(a, b *ring) int { return b.size() - a.size() })
	return found, nil
}

// pointer makes an address of memory outside of Go's heap a pointer.
func pointer(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

// mapAt maps memory at an address.
func mapAt(addr, size uintptr) ([]byte, error) {
	p, err := unix.MmapPtr(-1, 0, pointer(addr), size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE)
	if err != nil {
		return nil, fmt.Errorf("map memory at %#x: %w", addr, err)
	}
	return unsafe.Slice((*byte)(p), size), nil
}
