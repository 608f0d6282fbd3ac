package uverbs

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/mlx5"
)

// How many registers a process takes of a device, which all processes share: some for one
// QP each, then some that QPs share. The kernel tells no limit: its num_dyn_bfregs is about an older
// way of having more registers, and is 0 where there are UAR objects. So these are limits of good
// manners; a device that has fewer refuses a page, and the rest of the QPs use what there is.
const (
	mlx5OwnRegisters    = 64
	mlx5SharedRegisters = 16
)

// mlx5UAR is a page of registers.
type mlx5UAR struct {
	region *mmio.Region
	object bool   // it is an object of the kernel, handle
	handle uint32 // of the object
	id     uint32 // by which the kernel's commands name it
}

// mlx5Register is a register that QPs use.
type mlx5Register struct {
	*mlx5.Register
	uar    *mlx5UAR
	shared bool
	users  int // guarded by mlx5UARs.mu
}

// mlx5UARs are the registers of a context. With UAR objects (Linux 5.7) pages are allocated
// as QPs need registers; without, the kernel has allocated some and chooses among them.
type mlx5UARs struct {
	dev *Device
	bf  uint32 // size of a register, or 0

	doorbell *mlx5UAR // the page for the doorbells of CQs

	static *mlx5.StaticUAR // nil with objects
	pages  []*mlx5UAR      // all, the doorbells' included

	mu     sync.Mutex
	all    []*mlx5Register          // of pages that were allocated as objects
	chosen map[uint32]*mlx5Register // by the kernel's number, without objects
	plain  *mlx5Register            // on the doorbells' page: takes 8 bytes, from many at once
}

// open gets the pages that are needed at once.
func (u *mlx5UARs) open(c *mlx5.Context) (err error) {
	u.bf, u.chosen = c.BlueFlame, map[uint32]*mlx5Register{}
	defer func() {
		if err != nil {
			err = errors.Join(err, u.close())
		}
	}()
	if c.Static.Pages > 0 {
		u.static = &c.Static
		for i := range c.Static.Pages {
			region, err := u.dev.mapPage(c.Static.Offset(i, os.Getpagesize()))
			if err != nil {
				return err
			}
			u.pages = append(u.pages, &mlx5UAR{region: region})
		}
		u.doorbell = u.pages[0]
		return nil
	}
	if u.doorbell, err = u.alloc(mlx5.UARNoCombine); err != nil {
		return err
	}
	reg, err := mlx5.NewRegister(u.doorbell.region.Bytes(), 0, 0, false)
	if err != nil {
		return err
	}
	u.plain = &mlx5Register{Register: reg, uar: u.doorbell}
	return nil
}

// alloc allocates a page as an object.
func (u *mlx5UARs) alloc(typ uint64) (*mlx5UAR, error) {
	d := u.dev
	cmd := newIoctl(mlx5.ObjectUAR, mlx5.MethodUARAlloc)
	handle := cmd.newObj(mlx5.AttrUARHandle)
	cmd.u64(mlx5.AttrUARType, typ)
	offset, length, id := make([]byte, 8), make([]byte, 4), make([]byte, 4)
	cmd.out(mlx5.AttrUARMapOffset, offset)
	cmd.out(mlx5.AttrUARMapLength, length)
	cmd.out(mlx5.AttrUARPageID, id)
	if errno := d.cmd.ioctl(cmd); errno != 0 {
		return nil, d.cmd.fail("ALLOC_UAR", errno, "")
	}
	p := &mlx5UAR{object: true, handle: uint32(handle.Data), id: le32(id)}
	var err error
	if p.region, err = mmio.Map(d.cmd.f, le64(offset), int(le32(length))); err != nil {
		return nil, errors.Join(fmt.Errorf("uverbs: %s: map registers: %w", d.Name(), err), u.free(p))
	}
	u.pages = append(u.pages, p)
	return p, nil
}

// free gives a page back.
func (u *mlx5UARs) free(p *mlx5UAR) error {
	err := closeRegions(p.region)
	if !p.object {
		return err
	}
	cmd := newIoctl(mlx5.ObjectUAR, mlx5.MethodUARDestroy)
	cmd.obj(mlx5.AttrUARDestroy, p.handle)
	return errors.Join(err, u.dev.cmd.fail("FREE_UAR", u.dev.cmd.ioctl(cmd), ""))
}

// close gives all pages back.
func (u *mlx5UARs) close() error {
	var err error
	for _, p := range u.pages {
		err = errors.Join(err, u.free(p))
	}
	u.pages = nil
	return err
}

// take returns a register for one more QP, nil if the kernel will choose one.
func (u *mlx5UARs) take() (*mlx5Register, error) {
	if u.static != nil {
		return nil, nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, r := range u.all {
		if r.users == 0 && !r.shared {
			r.users++
			return r, nil
		}
	}
	if u.bf != 0 && len(u.all) < mlx5OwnRegisters+mlx5SharedRegisters {
		if err := u.grow(); err != nil {
			return nil, err
		}
	}
	// The least used of those that may be shared, which a new page begins with.
	least := u.plain
	for _, r := range u.all {
		if r.users == 0 && !r.shared {
			least = r
			break
		}
		if r.shared && (least == u.plain || r.users < least.users) {
			least = r
		}
	}
	least.users++
	return least, nil
}

// grow allocates one more page. If the device has none left that is no error: there is the
// page for doorbells. The caller holds mu.
func (u *mlx5UARs) grow() error {
	p, err := u.alloc(mlx5.UARBlueFlame)
	if err != nil {
		// EOPNOTSUPP: the kernel has found that stores to the device are not combined.
		for _, none := range []error{syscall.ENOMEM, syscall.ENOSPC, syscall.EOPNOTSUPP, syscall.EINVAL} {
			if errors.Is(err, none) {
				u.bf = 0
				return nil
			}
		}
		return err
	}
	shared := len(u.all) >= mlx5OwnRegisters
	for i := range 2 {
		reg, err := mlx5.NewRegister(p.region.Bytes(), i, u.bf, shared)
		if err != nil {
			return err
		}
		u.all = append(u.all, &mlx5Register{Register: reg, uar: p, shared: shared})
	}
	return nil
}

// choose returns the register that the kernel has chosen.
func (u *mlx5UARs) choose(index uint32) (*mlx5Register, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if r, ok := u.chosen[index]; ok {
		return r, nil
	}
	var pages [][]byte
	for _, p := range u.pages {
		pages = append(pages, p.region.Bytes())
	}
	reg, err := u.static.Register(pages, index)
	if err != nil {
		return nil, err
	}
	r := &mlx5Register{Register: reg, users: 1}
	u.chosen[index] = r
	return r, nil
}

// give takes a register back.
func (u *mlx5UARs) give(r *mlx5Register) {
	if r == nil || u.static != nil {
		return
	}
	u.mu.Lock()
	r.users--
	u.mu.Unlock()
}

// own returns a register that no QP has but those of one thread domain.
func (u *mlx5UARs) own() (*mlx5Register, error) {
	if u.static != nil {
		return nil, &FeatureError{Feature: "ALLOC_TD", Driver: "mlx5", Err: errors.New("this context has no registers to allocate")}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	free := func() int {
		return slices.IndexFunc(u.all, func(r *mlx5Register) bool { return r.users == 0 && !r.shared })
	}
	i := free()
	if i < 0 && u.bf != 0 && len(u.all) < mlx5OwnRegisters {
		if err := u.grow(); err != nil {
			return nil, err
		}
		i = free()
	}
	if i < 0 {
		return nil, fmt.Errorf("all %d registers are in use: %w", len(u.all), syscall.ENOSPC)
	}
	u.all[i].users++
	return u.all[i], nil
}

// mapPage maps one page of the device's file.
func (d *Device) mapPage(offset uint64) (*mmio.Region, error) {
	r, err := mmio.Map(d.cmd.f, offset, os.Getpagesize())
	if err != nil {
		return nil, fmt.Errorf("uverbs: %s: map registers: %w", d.Name(), err)
	}
	return r, nil
}
