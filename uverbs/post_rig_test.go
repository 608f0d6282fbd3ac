package uverbs

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/mmio/rxe"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// Offsets and sizes as rdma_user_rxe.h and ib_user_verbs.h have them.
const (
	ringLog2ElemSize = 0   // rxe_queue_buf.log2_elem_size
	ringIndexMask    = 4   // rxe_queue_buf.index_mask
	ringProducer     = 128 // rxe_queue_buf.producer_index
	ringConsumer     = 256 // rxe_queue_buf.consumer_index
	ringData         = 384 // rxe_queue_buf.data

	sendSlotSize = 208 // sizeof(struct rxe_send_wqe)
	recvSlotSize = 40  // sizeof(struct rxe_recv_wqe)
)

// ringBytes is the kernel's side of a ring: memory, and nothing else.
type ringBytes struct {
	mem   []byte
	shift int
	mask  uint32
}

// newRingBytes makes a ring of 1<<log2Len slots of 1<<shift bytes, which are full of
// somebody else's bytes.
func newRingBytes(shift, log2Len int) *ringBytes {
	r := &ringBytes{shift: shift, mask: 1<<log2Len - 1, mem: bytes.Repeat([]byte{0xee}, ringData+1<<(shift+log2Len))}
	clear(r.mem[:ringData])
	r.set(ringLog2ElemSize, uint32(shift))
	r.set(ringIndexMask, r.mask)
	return r
}

func (r *ringBytes) set(at int, v uint32) { binary.NativeEndian.PutUint32(r.mem[at:], v) }
func (r *ringBytes) get(at int) uint32    { return binary.NativeEndian.Uint32(r.mem[at:]) }

// slot is the slot at an index.
func (r *ringBytes) slot(index uint32) []byte {
	at := ringData + int(index&r.mask)<<r.shift
	return r.mem[at : at+1<<r.shift]
}

// take consumes everything that is in a send or receive ring.
func (r *ringBytes) take() { r.set(ringConsumer, r.get(ringProducer)) }

// put produces n completions in a completion ring.
func (r *ringBytes) put(n uint32) { r.set(ringProducer, (r.get(ringProducer)+n)&r.mask) }

// slotField is what a slot must hold at an offset, under the name that C has for it.
type slotField struct {
	name string
	at   int
	want []byte
}

func host32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
func host64(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }
func wire32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }

// checkSlot compares a slot: its first size bytes are zero but for the fields, and those
// behind are as they were.
func checkSlot(t *testing.T, slot []byte, size int, fields []slotField) {
	t.Helper()
	want := bytes.Repeat([]byte{0xee}, len(slot))
	clear(want[:size])
	for _, f := range fields {
		copy(want[f.at:], f.want)
		if got := slot[f.at : f.at+len(f.want)]; !bytes.Equal(got, f.want) {
			t.Errorf("%s is % x, want % x", f.name, got, f.want)
		}
	}
	if diff := cmp.Diff(want, slot); diff != "" {
		t.Errorf("slot (-want +got):\n%s", diff)
	}
}

// postRig is a QP whose rings are in the test's hand, and the pipe that its doorbells
// come out of.
type postRig struct {
	qp     *QP
	sq, rq *ringBytes
	pipe   *os.File
}

// qpHandle is the handle of the QP of a postRig.
const qpHandle = 0x51525354

// newPostRig makes a QP in RTS, of 1<<log2Len - 1 work requests each way.
func newPostRig(tb testing.TB, log2Len int) *postRig {
	tb.Helper()
	cmd, pipe := pipeFile(tb, pathWrite)
	return newPostRigOn(tb, log2Len, cmd, pipe)
}

// newQuietRig makes one whose doorbells are not heard, so that there may be many.
func newQuietRig(tb testing.TB, log2Len int) *postRig {
	tb.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	must(tb, err)
	tb.Cleanup(func() { null.Close() })
	return newPostRigOn(tb, log2Len, fileCommands(tb, null, pathWrite, rxeDriver{}), nil)
}

func newPostRigOn(tb testing.TB, log2Len int, cmd *commands, pipe *os.File) *postRig {
	tb.Helper()
	r := &postRig{
		qp:   &QP{kind: rxeDriver{}.kind(), typ: ib.RC, handle: qpHandle},
		sq:   newRingBytes(9, log2Len),
		rq:   newRingBytes(8, log2Len),
		pipe: pipe,
	}
	ops, _ := rxeDriver{}.operations(ib.RC)
	r.qp.setOps(ops)
	r.qp.dev, r.qp.object.kind = &Device{cmd: cmd, driver: rxeDriver{}, info: DeviceInfo{Name: "rxe0"}}, "QP"
	r.qp.rxe.sq = *value(rxe.NewSendQueue(r.sq.mem, int(r.sq.mask), 3, 100))(tb)
	r.qp.rxe.rq = *value(rxe.NewRecvQueue(r.rq.mem, int(r.rq.mask), 3))(tb)
	req := &abi.PostSend{QPHandle: qpHandle, WQESize: uint32(len(bytesOf(&abi.SendWR{})))}
	r.qp.doorbell.Init(cmd.Conn, abi.IB_USER_VERBS_CMD_POST_SEND, bytesOf(req), len(bytesOf(&abi.PostSendResp{})))
	r.qp.state.Store(uint32(ib.QPRTS))
	return r
}

// rung returns what has come out of the pipe since the last call.
func (r *postRig) rung(t *testing.T) []byte {
	t.Helper()
	raw, err := r.pipe.SyscallConn()
	must(t, err)
	buf := make([]byte, 4096)
	var n int
	var readErr error
	if err := raw.Read(func(fd uintptr) bool {
		n, readErr = unix.Read(int(fd), buf)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if readErr == unix.EAGAIN {
		return nil
	}
	if readErr != nil {
		t.Fatal(readErr)
	}
	return buf[:n]
}

// checkDoorbell compares what came out of the pipe with one doorbell
// (struct ib_uverbs_cmd_hdr, struct ib_uverbs_post_send).
func (r *postRig) checkDoorbell(t *testing.T) {
	t.Helper()
	b := r.rung(t)
	if len(b) != 32 {
		t.Fatalf("%d bytes came out of the command file, want one doorbell of 32", len(b))
	}
	compare(t, b, []word{
		{"command", 4, 28},
		{"in_words", 2, 8},
		{"out_words", 2, 1},
		{"response", 8, anyValue},
		{"qp_handle", 4, qpHandle},
		{"wr_count", 4, 0},
		{"sge_count", 4, 0},
		{"wqe_size", 4, 56},
	})
}

// checkNothing makes sure that nothing was published and no doorbell rung.
func (r *postRig) checkNothing(t *testing.T, sq, rq uint32) {
	t.Helper()
	if got := r.sq.get(ringProducer); got != sq {
		t.Errorf("the send ring's producer index is %d, want %d as before", got, sq)
	}
	if got := r.rq.get(ringProducer); got != rq {
		t.Errorf("the receive ring's producer index is %d, want %d as before", got, rq)
	}
	if b := r.rung(t); len(b) != 0 {
		t.Errorf("%d bytes came out of the command file, want no doorbell", len(b))
	}
}
