package vfiouser

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// ErrNotMapped is returned for bus addresses at which the client has mapped no memory that
// can be read and written.
var ErrNotMapped = errors.New("bus address is not mapped")

// window is a range of bus addresses with memory behind it.
type window struct {
	addr, size uint64
	mem        []byte // nil if it is not accessible
}

// source identifies a piece of a file: the same piece is mapped once, however often the
// client maps and unmaps it.
type source struct {
	dev, ino, offset, size uint64
}

// memory is the guest's memory. A mapping stays in this process's address space until close,
// because a piece that was just handed out may still be in use when its window goes, as a transfer
// of a real device may still be on its way.
type memory struct {
	windows atomic.Pointer[[]window] // sorted by address; a new slice with every change

	mu    sync.Mutex
	files map[source][]byte // guarded by mu
}

func newMemory() *memory {
	m := &memory{files: map[source][]byte{}}
	m.windows.Store(&[]window{})
	return m
}

// bytes gives the longest contiguous piece at a bus address, of at most n bytes.
func (m *memory) bytes(addr uint64, n int) ([]byte, error) {
	w := *m.windows.Load()
	i, found := slices.BinarySearchFunc(w, addr, func(w window, a uint64) int {
		switch {
		case a < w.addr:
			return 1
		case a-w.addr >= w.size:
			return -1
		}
		return 0
	})
	if !found || n < 1 || w[i].mem == nil {
		return nil, fmt.Errorf("%#x, %d bytes: %w", addr, n, ErrNotMapped)
	}
	off := addr - w[i].addr
	n = int(min(uint64(n), w[i].size-off))
	return w[i].mem[off : off+uint64(n) : off+uint64(n)], nil
}

// add makes a window. Without a descriptor (-1), or if it can't be both read and written, it
// is one that nothing can be done with.
func (m *memory) add(addr, size uint64, fd int, offset uint64, flags uint32) error {
	if size == 0 || addr+size-1 < addr || size > 1<<46 {
		return unix.EINVAL
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old := *m.windows.Load()
	i, _ := slices.BinarySearchFunc(old, addr, func(w window, a uint64) int {
		if w.addr < a {
			return -1
		}
		return 1
	})
	if i > 0 && addr-old[i-1].addr < old[i-1].size || i < len(old) && old[i].addr-addr < size {
		return unix.EEXIST
	}
	if len(old) >= maxMappings {
		return unix.ENOSPC
	}
	w := window{addr: addr, size: size}
	if fd >= 0 && flags&(dmaRead|dmaWrite) == dmaRead|dmaWrite {
		var err error
		if w.mem, err = m.mapFile(fd, offset, size); err != nil {
			return err
		}
	}
	next := slices.Insert(slices.Clone(old), i, w)
	m.windows.Store(&next)
	return nil
}

// mapFile maps a piece of a file, or finds it mapped.
func (m *memory) mapFile(fd int, offset, size uint64) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	// Memory behind the end of a file is a bus error when it is touched. A file that may
	// shrink is therefore no memory.
	if seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, unix.EPERM
	}
	if offset+size < offset || offset+size > uint64(st.Size) || offset%uint64(unix.Getpagesize()) != 0 {
		return nil, unix.EINVAL
	}
	src := source{dev: st.Dev, ino: st.Ino, offset: offset, size: size}
	if mem, ok := m.files[src]; ok {
		return mem, nil
	}
	if len(m.files) >= maxMappings {
		return nil, unix.ENOSPC
	}
	mem, err := unix.Mmap(fd, int64(offset), int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	m.files[src] = mem
	return mem, nil
}

// remove takes the windows of a range away, which must not cut one in pieces.
func (m *memory) remove(addr, size uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if size == 0 || addr+size-1 < addr {
		return unix.EINVAL
	}
	old := *m.windows.Load()
	last := addr + size - 1
	var next []window
	for _, w := range old {
		wlast := w.addr + w.size - 1
		switch {
		case wlast < addr || w.addr > last:
			next = append(next, w)
		case w.addr < addr || wlast > last:
			return unix.EINVAL
		}
	}
	if len(next) == len(old) {
		return unix.ENOENT
	}
	m.windows.Store(&next)
	return nil
}

// clear takes all windows away.
func (m *memory) clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.windows.Store(&[]window{})
}

// close unmaps all that was ever mapped. Nobody may use it any more.
func (m *memory) close() error {
	m.clear()
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for src, mem := range m.files {
		errs = append(errs, unix.Munmap(mem))
		delete(m.files, src)
	}
	return errors.Join(errs...)
}
