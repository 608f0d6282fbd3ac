// Kv is a key-value store whose clients read and change the server's table by RDMA. The server sends
// each client the address and the key of the table, and has nothing else to do.
//
//	kv serve 10.1.0.1:7471
//	kv put 10.1.0.1:7471 sky blue
//	kv get 10.1.0.1:7471 sky
//
// Without RDMA:
//
//	GOVERBS_SOFT=127.0.0.2 kv serve 127.0.0.2:7471
//	GOVERBS_SOFT=auto kv get 127.0.0.2:7471 sky
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"log"
	"os"
	"time"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/uverbs"
)

// A slot of the table begins with a version, which is 0 while the slot is free and odd while a client
// changes it, and a checksum of the rest. Then follow a key and a value, each behind its length.
const (
	slots, slotSize       = 1024, 256
	sumAt, keyAt, valueAt = 8, 12, 64
	maxKey, maxValue      = valueAt - keyAt - 1, slotSize - valueAt - 1
	rights                = uverbs.AccessLocalWrite | uverbs.AccessRemoteRead | uverbs.AccessRemoteWrite | uverbs.AccessRemoteAtomic
)

func main() {
	log.SetFlags(0)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	switch args := os.Args[1:]; {
	case len(args) == 2 && args[0] == "serve":
		serve(context.Background(), args[1])
	case len(args) == 3 && args[0] == "get":
		s := dial(ctx, args[1])
		defer s.conn.Close()
		if s.find(ctx, args[2]); s.version() == 0 {
			log.Fatalf("there is no key %q", args[2])
		}
		fmt.Println(s.field(valueAt, maxValue))
	case len(args) == 4 && args[0] == "put" && len(args[2]) <= maxKey && len(args[3]) <= maxValue:
		s := dial(ctx, args[1])
		defer s.conn.Close()
		s.put(ctx, args[2], args[3])
	default:
		log.Fatalf("usage: kv serve ADDRESS, kv put ADDRESS KEY VALUE, or kv get ADDRESS KEY, with up to %d and %d bytes", maxKey, maxValue)
	}
}

// serve gives every client access to the table.
func serve(ctx context.Context, address string) {
	table := make([]byte, slots*slotSize)
	l := must(cm.Listen(ctx, address, cm.ListenOptions{Prepare: func(pd *uverbs.PD) ([]byte, error) {
		mr, err := pd.RegSlice(table, rights)
		if err != nil {
			return nil, err
		}
		return cm.RemoteOf(mr).MarshalBinary() // for each client
	}}))
	fmt.Println("listening on", l.Addr())
	for {
		conn := must(l.Accept(ctx))
		go func() {
			conn.Recv(ctx) // until the client is done, or gone
			conn.Close()
		}()
	}
}

// A store is a client's way to the table.
type store struct {
	conn  *cm.Conn
	table cm.Remote
	slot  []byte     // a copy of a slot, and 8 bytes for what a compare and swap finds
	mr    *uverbs.MR // the memory of slot
}

func dial(ctx context.Context, address string) *store {
	s := &store{conn: must(cm.Dial(ctx, address, cm.DialOptions{})), slot: make([]byte, slotSize+8)}
	check(s.table.UnmarshalBinary(s.conn.PrivateData()))
	s.mr = must(s.conn.PD().RegSlice(s.slot, uverbs.AccessLocalWrite))
	return s
}

func (s *store) version() uint64 { return binary.NativeEndian.Uint64(s.slot) }

func (s *store) sum() uint32 {
	return crc32.Update(crc32.ChecksumIEEE(s.slot[:sumAt]), crc32.IEEETable, s.slot[keyAt:slotSize])
}

func (s *store) field(at, most int) string {
	return string(s.slot[at+1:][:min(int(s.slot[at]), most)])
}

// find reads the slot of a key, or the free one where the key belongs, and returns where it is.
func (s *store) find(ctx context.Context, key string) (at uint32) {
	for i := range uint32(slots) {
		at = (crc32.ChecksumIEEE([]byte(key)) + i) % slots * slotSize
		for whole := false; !whole; { // a slot that a client changes has a wrong checksum
			check(s.conn.RDMARead(ctx, s.mr.SGE(0, slotSize), s.table.At(at)))
			whole = s.version() == 0 || s.sum() == binary.NativeEndian.Uint32(s.slot[sumAt:])
		}
		if s.version() == 0 || s.field(keyAt, maxKey) == key {
			return at
		}
	}
	log.Fatal("the table is full")
	return 0
}

// put adds a key or changes its value.
func (s *store) put(ctx context.Context, key, value string) {
	at := s.find(ctx, key)
	version, found := s.version(), s.mr.SGE(slotSize, 8)
	check(s.conn.CompareSwap(ctx, found, s.table.At(at), version, version+1))
	if binary.NativeEndian.Uint64(s.slot[slotSize:]) != version {
		s.put(ctx, key, value) // another client was faster
		return
	}
	binary.NativeEndian.PutUint64(s.slot, version+2)
	copy(s.slot[keyAt:], append([]byte{byte(len(key))}, key...))
	copy(s.slot[valueAt:], append([]byte{byte(len(value))}, value...))
	binary.NativeEndian.PutUint32(s.slot[sumAt:], s.sum())
	check(s.conn.RDMAWrite(ctx, s.mr.SGE(sumAt, slotSize-sumAt), s.table.At(at+sumAt)))
	check(s.conn.CompareSwap(ctx, found, s.table.At(at), version+1, version+2))
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
