package mmio_test

import (
	"fmt"
	"log"
	"sync"

	"github.com/goverbs/goverbs/mmio"
)

// Memory for a ring, off the Go heap and zeroed.
func ExampleRegion() {
	ring, err := mmio.MapAnonymous(8192, false)
	if err != nil {
		log.Fatal(err)
	}
	defer ring.Close()
	fmt.Println(len(ring.Bytes()), "bytes, the first is", ring.Bytes()[0])
	// Output: 8192 bytes, the first is 0
}

// One side writes an entry of a ring and then says so, the other sees both.
func ExampleIndex() {
	ring, err := mmio.MapAnonymous(4096, false)
	if err != nil {
		log.Fatal(err)
	}
	defer ring.Close()
	mem := ring.Bytes()
	index, err := mmio.IndexAt(mem, 128)
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		copy(mem[1024:], "an entry")
		index.Release(1)
	}()
	for index.Acquire() == 0 {
	}
	fmt.Printf("%s\n", mem[1024:1032])
	// Output: an entry
}

// The lock of a ring that Close takes and never gives back, so that nobody posts to it any more.
func ExampleLock() {
	var posting mmio.Lock
	var group sync.WaitGroup
	posted := 0
	for range 4 {
		group.Go(func() {
			posting.Lock()
			posted++
			posting.Unlock()
		})
	}
	group.Wait()
	posting.Lock()
	fmt.Println(posted, "posted, and more:", posting.TryLock())
	// Output: 4 posted, and more: false
}

// A number that one goroutine counts and others look at.
func ExampleWord() {
	var bytes mmio.Word
	for _, n := range []uint64{100, 200} {
		bytes.Store(bytes.Load() + n)
	}
	fmt.Println(bytes.Load())
	// Output: 300
}
