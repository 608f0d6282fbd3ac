package uverbs

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/mlx5"
)

// mlx5DM is where device memory is, and its mapping, which is made when it is first asked for.
type mlx5DM struct {
	page, start [8]byte // what the kernel has answered

	mu     sync.Mutex
	region *mmio.Region // guarded by mu
	mem    *mlx5.Memory // guarded by mu
}

// dmWord is the size of the device's words.
const _ = -(dmWord ^ mlx5.WordSize)

// allocDMAttrs asks the kernel where the memory can be mapped, without which it allocates none.
func (mlx5Driver) allocDMAttrs(m *DM, cmd *ioctlCommand) {
	m.mlx5 = &mlx5DM{}
	cmd.out(mlx5.AttrDMPage, m.mlx5.page[:2])
	cmd.out(mlx5.AttrDMOffset, m.mlx5.start[:])
}

func (mlx5Driver) storeDM(m *DM, at int, b []byte) error {
	mem, err := m.mlx5.mapped(m)
	if err != nil {
		return err
	}
	mem.Store(at, b)
	return nil
}

func (mlx5Driver) loadDM(m *DM, at int, b []byte) error {
	mem, err := m.mlx5.mapped(m)
	if err != nil {
		return err
	}
	mem.Load(at, b)
	return nil
}

// mapped maps the memory, unless it is mapped.
func (x *mlx5DM) mapped(m *DM) (*mlx5.Memory, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mem != nil {
		return x.mem, nil
	}
	offset, size := mlx5.MemoryMap(uint16(le64(x.page[:])), m.Len(), os.Getpagesize())
	region, err := m.dev.cmd.Map(offset, size)
	if errno := syscall.Errno(0); errors.As(err, &errno) { // EIO if the device is gone
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

// unmapDM takes the mapping away; the kernel gives the memory to nobody else before.
func (mlx5Driver) unmapDM(m *DM) error {
	x := m.mlx5
	x.mu.Lock()
	defer x.mu.Unlock()
	return closeRegions(x.region)
}
