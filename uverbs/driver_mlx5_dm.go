package uverbs

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// mlx5DM is the location of device memory and its mapping, which is created on first use.
type mlx5DM struct {
	page, start [8]byte // the kernel's response

	mu     sync.Mutex
	region *mmio.Region // guarded by mu
	mem    *mlx5.Memory // guarded by mu
}

// dmWord must be the word size of the device.
const _ = -(dmWord ^ mlx5.WordSize)

// allocAttrsMlx5 adds the attributes for the location of the memory, which the kernel requires.
func (m *DM) allocAttrsMlx5(cmd *ioctlCommand) {
	m.mlx5 = &mlx5DM{}
	cmd.out(mlx5.AttrDMPage, m.mlx5.page[:2])
	cmd.out(mlx5.AttrDMOffset, m.mlx5.start[:])
}

// queryMlx5 reads the location and the length of imported memory (MLX5_IB_METHOD_DM_QUERY).
func (m *DM) queryMlx5() error {
	m.mlx5 = &mlx5DM{}
	cmd := newIoctl(abi.UVERBS_OBJECT_DM, mlx5.MethodDMQuery)
	defer cmd.done()
	var length [8]byte
	cmd.obj(mlx5.AttrDMQueryHandle, m.handle)
	cmd.out(mlx5.AttrDMQueryPage, m.mlx5.page[:2])
	cmd.out(mlx5.AttrDMQueryOffset, m.mlx5.start[:])
	cmd.out(mlx5.AttrDMQueryLength, length[:])
	errno := m.dev.cmd.ioctl(cmd)
	m.length = le64(length[:])
	return m.dev.importErr("QUERY_DM", "DM", m.handle, errno, Version{5, 13})
}

// copyMlx5 copies b to the memory, or from it. b is within the memory.
func (m *DM) copyMlx5(at int, b []byte, store bool) error {
	mem, err := m.mlx5.mapped(m)
	switch {
	case err != nil:
		return err
	case store:
		mem.Store(at, b)
	default:
		mem.Load(at, b)
	}
	return nil
}

// mapped returns the mapping, and creates it on first use.
func (x *mlx5DM) mapped(m *DM) (*mlx5.Memory, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mem != nil {
		return x.mem, nil
	}
	offset, size := mlx5.MemoryMap(uint16(le64(x.page[:])), m.Len(), os.Getpagesize())
	region, err := m.dev.cmd.Map(offset, size)
	if errno := syscall.Errno(0); errors.As(err, &errno) { // EIO if the device was removed
		return nil, m.dev.cmd.fail("MAP_DM", errno, "")
	}
	if err != nil {
		return nil, fmt.Errorf("uverbs: %s: map device memory: %w", m.dev.Name(), err)
	}
	mem, err := mlx5.NewMemory(region.Bytes(), le64(x.start[:]), m.Len())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("uverbs: %s: %w", m.dev.Name(), err), region.Close())
	}
	x.region, x.mem = region, mem
	return mem, nil
}

// locateMlx5 returns the offset at which programs map the memory, and where it begins in that mapping.
func (m *DM) locateMlx5() (page, start uint64, err error) {
	page, size := mlx5.MemoryMap(uint16(le64(m.mlx5.page[:])), m.Len(), os.Getpagesize())
	start = le64(m.mlx5.start[:])
	if start > uint64(size) || uint64(m.Len()) > uint64(size)-start {
		return 0, 0, fmt.Errorf("uverbs: %s: %d bytes of device memory at %#x of a mapping of %d: %w", m.dev.Name(), m.Len(), start, size, mlx5.ErrLayout)
	}
	return page, start, nil
}

// unmapMlx5 removes the mapping, if there is one. Before that, the kernel does not give the memory to
// another process.
func (m *DM) unmapMlx5() error {
	x := m.mlx5
	if x == nil {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return closeRegions(x.region)
}
