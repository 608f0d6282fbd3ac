package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/goverbs/goverbs/uverbs"
	"golang.org/x/sys/unix"
)

func init() {
	for _, driver := range []string{"rxe", "siw"} {
		attacks = append(attacks,
			attack{name: "mapping-kept-" + driver, device: driver, run: mappingKept},
			attack{name: "mapping-race-" + driver, device: driver, run: mappingRace})
	}
}

// mappingKept keeps the memory of queues mapped when they are gone, or have been replaced by larger ones, and
// looks whether it belongs to somebody else then.
func mappingKept(r *rig) error {
	pd, err := r.dev.AllocPD()
	if err != nil {
		return err
	}
	var kept [][]byte
	for range 16 {
		before, err := mappings()
		if err != nil {
			return err
		}
		cq, err := r.dev.CreateCQ(uverbs.CQOptions{Size: 100})
		if err != nil {
			return err
		}
		srq, err := pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 100, MaxSGE: 1})
		if err != nil {
			return err
		}
		qp, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq})
		if err != nil {
			return err
		}
		moved, err := moveAway(before)
		if err != nil {
			return err
		}
		kept = append(kept, moved...)
		if r.driver == "rxe" { // which alone has other sizes
			if err := errors.Join(cq.Resize(1000), srq.Resize(1000)); err != nil {
				return err
			}
		}
		if err := errors.Join(qp.Close(), srq.Close(), cq.Close()); err != nil {
			return err
		}
	}
	for i, m := range kept {
		for j := range m {
			m[j] = byte(i + 1)
		}
	}
	for range 64 { // which would get the memory, and have it cleared
		if _, err := r.side(uverbs.QPOptions{}); err != nil {
			return err
		}
	}
	for i, m := range kept {
		if n := bytes.Count(m, []byte{byte(i + 1)}); n != len(m) {
			return fmt.Errorf("%w: of %d bytes of a queue that is gone %d have changed", errWrong, len(m), len(m)-n)
		}
		if err := unix.MunmapPtr(unsafe.Pointer(&m[0]), uintptr(len(m))); err != nil {
			return err
		}
	}
	return nil
}

// moveAway moves the mappings that are new since before to other addresses, and leaves copies of the
// memory in their places.
func moveAway(before map[uintptr]mapping) (moved [][]byte, err error) {
	all, err := mappings()
	if err != nil {
		return nil, err
	}
	for begin, old := range all {
		if before[begin] == old {
			continue
		}
		size := old.end - begin
		to, err := unix.MmapPtr(-1, 0, nil, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return nil, err
		}
		if to, err = unix.MremapPtr(pointer(begin), size, to, size, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED); err != nil {
			return nil, fmt.Errorf("move a mapping: %w", err)
		}
		m := unsafe.Slice((*byte)(to), size)
		place, err := mapAt(begin, size)
		if err != nil {
			return nil, err
		}
		copy(place, m)
		moved = append(moved, m)
	}
	return moved, nil
}

// mappingRace maps the memory of CQs that come and go, by offsets that it guesses.
func mappingRace(r *rig) error {
	fd, err := deviceFile()
	if err != nil {
		return err
	}
	before, err := mappings()
	if err != nil {
		return err
	}
	o := uverbs.CQOptions{Size: 1 << 14} // of many pages: it takes its time to map them
	first, err := r.dev.CreateCQ(o)
	if err != nil {
		return err
	}
	all, err := mappings()
	if err != nil {
		return err
	}
	var size, offset atomic.Uintptr
	for begin, m := range all {
		if before[begin] != m {
			size.Store(m.end - begin)
			offset.Store(m.offset)
		}
	}
	if err := first.Close(); err != nil {
		return err
	}
	stop, caught := make(chan struct{}), make(chan int, 1)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				caught <- n
				return
			default:
			}
			if p, err := unix.MmapPtr(fd, int64(offset.Load()), nil, size.Load(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
				n++
				_ = unix.MunmapPtr(p, size.Load())
			}
		}
	}()
	made, failed := 0, 0
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if r.driver == "rxe" { // which counts on, while siw uses an offset again
			offset.Add(size.Load())
		}
		cq, err := r.dev.CreateCQ(o)
		if err != nil {
			failed++ // the other goroutine has mapped it
			continue
		}
		made++
		if err := cq.Close(); err != nil {
			return err
		}
	}
	close(stop)
	n := <-caught
	fmt.Printf("%d CQs were made, %d could not be, and %d mappings were guessed\n", made, failed, n)
	if n == 0 || made == 0 {
		return errors.New("it is no race")
	}
	return nil
}

// deviceFile returns the file descriptor of the device that this process has open.
func deviceFile() (int, error) {
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		return 0, err
	}
	for _, l := range links {
		var fd int
		if to, err := os.Readlink(l); err != nil || !strings.HasPrefix(to, "/dev/infiniband/uverbs") {
			continue
		}
		_, err := fmt.Sscanf(filepath.Base(l), "%d", &fd)
		return fd, err
	}
	return 0, errors.New("no RDMA device is open")
}
