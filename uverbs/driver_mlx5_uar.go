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

// mlx5UAR is a page of registers (user access region).
type mlx5UAR struct {
	region *mmio.Region
	object bool   // the page is an object of the kernel, with handle
	handle uint32 // of the object
	id     uint32 // number of the page's first UAR in commands
}

// mlx5Register is a doorbell register of one or more QPs.
type mlx5Register struct {
	*mlx5.Register
	uar   uint32 // number of its UAR in commands
	users int    // guarded by mlx5UARs.mu
}

// mlx5UARs are the doorbell registers of a context. With UAR objects (Linux 5.7) the library
// allocates pages when QPs need registers, up to [mlx5.OwnRegisters] and [mlx5.SharedRegisters],
// and for thread domains. Without them the kernel allocates some at the start and selects one for
// each QP.
type mlx5UARs struct {
	cmd     *commands
	bf      uint32 // size of a register, or 0
	perPage int    // UARs on a page

	doorbell *mlx5UAR // the page for the doorbells of CQs

	static *mlx5.StaticUAR // nil with objects
	pages  []*mlx5UAR      // all pages, including doorbell

	mu     sync.Mutex
	all    []*mlx5Register          // on pages that are objects
	chosen map[uint32]*mlx5Register // by the kernel's number, without objects
	plain  *mlx5Register            // on page doorbell; takes 8 bytes at a time and needs no lock

	// After the device has refused a page, the next pause QPs do not request one; paused counts
	// them. Then a page is requested again, because other processes may have freed some.
	pause, paused int
}

// mlx5MaxPause is the maximum of mlx5UARs.pause.
const mlx5MaxPause = 64

// open maps the pages of the kernel, or allocates the page for the doorbells of CQs.
func (u *mlx5UARs) open(c *mlx5.Context) (err error) {
	u.bf, u.perPage, u.chosen = c.BlueFlame, max(c.UARsPerPage, 1), map[uint32]*mlx5Register{}
	defer func() {
		if err != nil {
			err = errors.Join(err, u.close())
		}
	}()
	if c.Static.Pages > 0 {
		u.static = &c.Static
		for i := range c.Static.Pages {
			region, err := u.registers(c.Static.Offset(i, os.Getpagesize()), os.Getpagesize())
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
	u.plain = &mlx5Register{Register: reg, uar: u.doorbell.id}
	return nil
}

// uarHint explains a refused page.
func uarHint(errno syscall.Errno) string {
	if !mlx5NoPage(errno) {
		return ""
	}
	return "the device may have no free UAR page, of which every process takes some; close other programs, or give the device more by its firmware's PF_LOG_BAR_SIZE"
}

// mlx5NoPage reports whether an errno may mean that the device has no free page. The kernel derives
// it from the status of the command (mlx5_cmd_check).
func mlx5NoPage(errno syscall.Errno) bool {
	switch errno {
	case syscall.ENOMEM, syscall.ENOSPC, syscall.EINVAL, syscall.EAGAIN, syscall.EBUSY:
		return true
	}
	return false
}

// uarRefused returns the errno if err is a refusal of a page, and otherwise 0.
func uarRefused(err error) syscall.Errno {
	var e *Error
	if errors.As(err, &e) && e.Op == "ALLOC_UAR" {
		return e.Errno
	}
	return 0
}

// alloc allocates a page as an object.
func (u *mlx5UARs) alloc(typ uint64) (*mlx5UAR, error) {
	cmd := newIoctl(mlx5.ObjectUAR, mlx5.MethodUARAlloc)
	defer cmd.done()
	handle := cmd.newObj(mlx5.AttrUARHandle)
	cmd.u64(mlx5.AttrUARType, typ)
	offset, length, id := make([]byte, 8), make([]byte, 4), make([]byte, 4)
	cmd.out(mlx5.AttrUARMapOffset, offset)
	cmd.out(mlx5.AttrUARMapLength, length)
	cmd.out(mlx5.AttrUARPageID, id)
	if errno := u.cmd.ioctl(cmd); errno != 0 {
		return nil, u.cmd.fail("ALLOC_UAR", errno, uarHint(errno))
	}
	p := &mlx5UAR{object: true, handle: uint32(handle.Data), id: le32(id)}
	var err error
	if p.region, err = u.registers(le64(offset), int(le32(length))); err != nil {
		return nil, errors.Join(err, u.free(p))
	}
	u.pages = append(u.pages, p)
	return p, nil
}

// free frees a page.
func (u *mlx5UARs) free(p *mlx5UAR) error {
	err := mmio.RetireAll(p.region)
	if !p.object {
		return err
	}
	errno := u.cmd.destroy(mlx5.ObjectUAR, mlx5.MethodUARDestroy, mlx5.AttrUARDestroy, p.handle)
	return errors.Join(err, u.cmd.fail("FREE_UAR", errno, ""))
}

// close frees all pages.
func (u *mlx5UARs) close() error {
	var err error
	for _, p := range u.pages {
		err = errors.Join(err, u.free(p))
	}
	u.pages = nil
	return err
}

// take returns a register for a QP, or nil if the kernel will select one.
func (u *mlx5UARs) take() (*mlx5Register, error) {
	if u.static != nil {
		return nil, nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	r := u.unused()
	if s := u.leastShared(); r == nil && s != u.plain && s.users == 0 {
		r = s
	}
	if own, shared := u.count(); r == nil && u.bf != 0 && (own < mlx5.OwnRegisters || shared < mlx5.SharedRegisters) && u.mayAsk() {
		if err := u.growForQPs(own, shared); err != nil {
			return nil, err
		}
		r = u.unused()
	}
	if r == nil {
		r = u.leastShared()
	}
	r.users++
	return r, nil
}

// unused returns an exclusive register that no QP uses, or nil. The caller holds mu, as for the
// methods below.
func (u *mlx5UARs) unused() *mlx5Register {
	i := slices.IndexFunc(u.all, func(r *mlx5Register) bool { return r.users == 0 && !r.Shared() })
	if i < 0 {
		return nil
	}
	return u.all[i]
}

// leastShared returns the shared register with the fewest QPs, or the plain one if there are no
// shared ones.
func (u *mlx5UARs) leastShared() *mlx5Register {
	least := u.plain
	for _, r := range u.all {
		if r.Shared() && (least == u.plain || r.users < least.users) {
			least = r
		}
	}
	return least
}

// count returns the numbers of exclusive and of shared registers.
func (u *mlx5UARs) count() (own, shared int) {
	for _, r := range u.all {
		if r.Shared() {
			shared++
		} else {
			own++
		}
	}
	return own, shared
}

// mayAsk reports whether a page may be requested from the device, and counts the calls that it
// refuses.
func (u *mlx5UARs) mayAsk() bool {
	if u.paused < u.pause {
		u.paused++
		return false
	}
	u.paused = 0
	return true
}

// growForQPs allocates a page. Its registers become exclusive ones up to mlx5.OwnRegisters, then
// shared ones up to mlx5.SharedRegisters, then exclusive ones again. It is no error if the device
// has no page left: the existing registers are used instead.
func (u *mlx5UARs) growForQPs(own, shared int) error {
	n := u.perPage * mlx5.RegistersPerUAR
	first := max(0, mlx5.OwnRegisters-own)                                    // of their own
	last := first + min(max(0, n-first), max(0, mlx5.SharedRegisters-shared)) // of the shared ones
	err := u.grow(func(i int) bool { return i >= first && i < last })
	switch errno := uarRefused(err); {
	case errno == syscall.EOPNOTSUPP: // the kernel found that write combining does not work
		u.bf = 0
		return nil
	case mlx5NoPage(errno):
		u.pause = min(max(1, 2*u.pause), mlx5MaxPause)
		return nil
	case err == nil:
		u.pause = 0
	}
	return err
}

// grow allocates a page. Its i-th register is shared if share(i) is true.
func (u *mlx5UARs) grow(share func(i int) bool) error {
	p, err := u.alloc(mlx5.UARBlueFlame)
	if err != nil {
		return err
	}
	var regs []*mlx5Register
	for i := range u.perPage * mlx5.RegistersPerUAR {
		uar, number := i/mlx5.RegistersPerUAR, i%mlx5.RegistersPerUAR
		page := p.region.Bytes()
		reg, err := mlx5.NewRegister(page[min(uar*mlx5.UARSize, len(page)):], number, u.bf, share(i))
		if err != nil {
			u.pages = u.pages[:len(u.pages)-1]
			return errors.Join(err, u.free(p))
		}
		regs = append(regs, &mlx5Register{Register: reg, uar: p.id + uint32(uar)})
	}
	u.all = append(u.all, regs...)
	return nil
}

// choose returns the register that the kernel has selected.
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

// give returns a register of take or own.
func (u *mlx5UARs) give(r *mlx5Register) {
	if r == nil || u.static != nil {
		return
	}
	u.mu.Lock()
	r.users--
	u.mu.Unlock()
}

// own returns a register for the QPs of one thread domain alone. Without BlueFlame it is the plain
// one, which needs no lock.
func (u *mlx5UARs) own() (*mlx5Register, error) {
	if u.static != nil {
		return nil, &FeatureError{Feature: "ALLOC_TD", Driver: "mlx5", Err: errors.New("this context has no registers to allocate")}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	r := u.unused()
	if r == nil && u.bf != 0 {
		err := u.grow(func(int) bool { return false })
		switch {
		case uarRefused(err) == syscall.EOPNOTSUPP:
			u.bf = 0
		case err != nil:
			return nil, err
		}
		r = u.unused()
	}
	if r == nil {
		r = u.plain
	}
	r.users++
	return r, nil
}

// registers maps registers of the device's file.
func (u *mlx5UARs) registers(offset uint64, length int) (*mmio.Region, error) {
	r, err := u.cmd.Map(offset, length)
	if err != nil {
		return nil, fmt.Errorf("uverbs: %s: map registers: %w", u.cmd.device, err)
	}
	return r, nil
}
