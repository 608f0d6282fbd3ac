//go:build amd64 || arm64

package uverbs

import (
	"errors"
	"math"
	"os"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/mmio/mlx5"
)

// fakeUARs are the registers of a context on a fake device, with UARs of 4 KiB on pages of a size.
func fakeUARs(t *testing.T, perPage int, blueFlame uint32) (*mlx5UARs, *fakeKernel) {
	t.Helper()
	d, k, err := openFakeMlx5(t, func([]byte) {})
	must(t, err)
	k.uarPage = perPage * mlx5.UARSize
	if perPage == 1 {
		k.uarPage = os.Getpagesize()
	}
	u := &mlx5UARs{cmd: d.cmd}
	must(t, u.open(&mlx5.Context{BlueFlame: blueFlame, UARsPerPage: perPage}))
	t.Cleanup(func() {
		must(t, u.close(), d.Close())
		if len(k.uars) != 0 {
			t.Errorf("UAR pages %v were not given back", k.uars)
		}
	})
	k.took()
	return u, k
}

// base returns where a register is in memory, and how many bytes it has.
func (r *mlx5Register) base() (at uintptr, size int) {
	v := reflect.ValueOf(r.Register).Elem()
	return v.FieldByName("base").Pointer(), int(max(2*v.FieldByName("halfSize").Uint(), 8))
}

// asked returns how many pages were requested from the kernel since the last call.
func asked(k *fakeKernel) int {
	n := 0
	for _, c := range k.took() {
		if c == "ioctl ALLOC_UAR" {
			n++
		}
	}
	return n
}

// checkRegisterUse checks registers with the number of QPs that use each: only locked registers have
// more than one QP, these are used evenly, and no two registers overlap.
func checkRegisterUse(t *testing.T, users map[*mlx5Register]int) {
	t.Helper()
	least, most := math.MaxInt, 0
	for r, n := range users {
		if n != r.users {
			t.Errorf("a register of %d QPs counts %d", n, r.users)
		}
		if r.Shared() {
			least, most = min(least, n), max(most, n)
		} else if n != 1 {
			t.Errorf("%d QPs have a register that is not locked", n)
		}
		at, size := r.base()
		for other := range users {
			if from, _ := other.base(); other != r && from >= at && from < at+uintptr(size) {
				t.Errorf("registers at %#x and %#x overlap", at, from)
			}
		}
	}
	if most-least > 1 {
		t.Errorf("shared registers have between %d and %d QPs", least, most)
	}
}

// TestMlx5Registers: the first QPs have a register each, and the others share locked registers
// evenly. All registers of a page are used, and no two of them overlap.
func TestMlx5Registers(t *testing.T) {
	for _, c := range []struct {
		perPage, pages   int
		own, shared      int
		last             int // offset of the page's last register
		bf               uint32
		firstUAR, lastID uint32 // of the first page, in units of its first UAR
	}{
		{1, 8, 4, 12, 0x800 + 512, 512, 0, 0},
		{16, 1, 20, 12, 15*4096 + 0x800 + 512, 512, 0, 15},
		{1, 8, 4, 12, 0x800 + 256, 256, 0, 0},
	} {
		u, k := fakeUARs(t, c.perPage, c.bf)
		const qps = 68
		users := map[*mlx5Register]int{}
		var taken []*mlx5Register
		for i := range qps {
			r := value(u.take())(t)
			users[r]++
			taken = append(taken, r)
			if least := (i + 2) / 2; c.perPage == 1 && len(u.pages)-1 > least {
				t.Errorf("%d QPs have %d pages, want %d", i+1, len(u.pages)-1, least)
			}
			if own := i < c.own; r.Shared() == own {
				t.Errorf("%d UARs on a page: register of QP %d is shared: %v", c.perPage, i, r.Shared())
			}
		}
		if n := asked(k); n != c.pages {
			t.Errorf("%d UARs on a page: %d pages for %d QPs, want %d", c.perPage, n, qps, c.pages)
		}
		if len(users) != c.own+c.shared {
			t.Errorf("%d UARs on a page: %d QPs use %d registers, want %d", c.perPage, qps, len(users), c.own+c.shared)
		}
		if own, shared := u.count(); own != c.own || shared != c.shared {
			t.Errorf("%d UARs on a page: %d registers for one QP each and %d shared, want %d and %d", c.perPage, own, shared, c.own, c.shared)
		}
		checkRegisterUse(t, users)
		page := u.pages[1]
		for r := range users {
			at, _ := r.base()
			if off := int(uint64(at) - addrOf(page.region.Bytes())); off == c.last && r.uar != page.id+c.lastID || off == 0x800 && r.uar != page.id {
				t.Errorf("the register at offset %#x is on UAR %d, the page begins with %d", off, r.uar, page.id)
			}
		}
		// A register that is given back is used again, and no other.
		for i, r := range taken {
			u.give(r)
			if got := value(u.take())(t); got.Shared() != r.Shared() || !r.Shared() && got != r {
				t.Errorf("instead of register %d of QP %d, which was given back, there is another", r.uar, i)
			} else {
				taken[i] = got
			}
		}
		if n := asked(k); n != 0 {
			t.Errorf("%d more pages", n)
		}
		for _, r := range taken {
			u.give(r)
		}
		for r := range users {
			if r.users != 0 {
				t.Errorf("a register has %d QPs when all are gone", r.users)
			}
		}
	}
}

// TestMlx5RegistersRefused: if the device has no page left, QPs use what there is, and now and then
// the library requests one again; a request that the kernel refuses for good is not repeated.
func TestMlx5RegistersRefused(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOMEM, syscall.EINVAL, syscall.EAGAIN, syscall.EBUSY, syscall.ENOSPC} {
		u, k := fakeUARs(t, 1, 512)
		k.refuse["ALLOC_UAR"] = errno
		var attempts []int
		for i := range 200 {
			if r := value(u.take())(t); r != u.plain {
				t.Fatalf("%v: QP %d has another register than the plain one", errno, i)
			}
			if asked(k) > 0 {
				attempts = append(attempts, i)
			}
		}
		// After each refusal twice as many QPs do without, up to 64.
		if want := []int{0, 2, 5, 10, 19, 36, 69, 134, 199}; !reflect.DeepEqual(attempts, want) {
			t.Errorf("%v: QPs %v request a page, want %v", errno, attempts, want)
		}
		delete(k.refuse, "ALLOC_UAR")
		got := 0
		for range 100 {
			if value(u.take())(t) != u.plain {
				got++
			}
		}
		if got < 100-mlx5MaxPause {
			t.Errorf("%v: %d of 100 QPs have BlueFlame once the device has pages again", errno, got)
		}
	}

	u, k := fakeUARs(t, 1, 512)
	first := value(u.take())(t)
	k.refuse["ALLOC_UAR"] = syscall.EOPNOTSUPP
	for range 5 {
		value(u.take())(t)
	}
	if n := asked(k); n != 2 || first == u.plain {
		t.Errorf("the kernel gets %d requests, want 2", n)
	}
	u, k = fakeUARs(t, 1, 512)
	k.refuse["ALLOC_UAR"] = syscall.EIO
	errorIs(t, second(u.take()), syscall.EIO, "another failure")
}

// TestMlx5PagesFreed: pages are given back when the device is closed and when something fails that
// follows.
func TestMlx5PagesFreed(t *testing.T) {
	u, k := fakeUARs(t, 1, 512)
	for range 20 {
		value(u.take())(t)
	}
	if len(k.uars) != 10 { // the device has one for CQs, and so has u
		t.Errorf("%d pages, want 10", len(k.uars))
	}
	must(t, u.close())
	if len(k.uars) != 1 || len(u.pages) != 0 {
		t.Errorf("%d pages are left, want that of the device itself", len(k.uars))
	}

	u, k = fakeUARs(t, 1, 512)
	k.uarOdd = true
	if _, err := u.take(); err == nil || !strings.Contains(err.Error(), "map registers") || len(k.uars) != 2 {
		t.Errorf("a page that cannot be mapped: %v, and %d pages are left", err, len(k.uars))
	}
	k.uarOdd = false
	u.perPage = 2 // but the kernel maps one
	if _, err := u.take(); !errors.Is(err, mlx5.ErrLayout) || len(k.uars) != 2 || len(u.pages) != 1 || len(u.all) != 0 {
		t.Errorf("a page that is too short: %v, and %d pages are left", err, len(k.uars))
	}
	k.refuse["FREE_UAR"] = syscall.EIO
	if err := u.close(); !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "FREE_UAR") {
		t.Errorf("a page that cannot be given back: %v", err)
	}
	delete(k.refuse, "FREE_UAR")
	if err := u.free(&mlx5UAR{object: true, handle: k.uars[1]}); err != nil {
		t.Error(err)
	}
}

// TestMlx5NoUAR: a device without a page for the doorbells of CQs is not opened, and the error says
// what can be done.
func TestMlx5NoUAR(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOMEM, syscall.EINVAL, syscall.EPERM} {
		_, k, err := openFake(t, pathAuto, func(k *fakeKernel) {
			k.driver, k.context = mlx5Driver{}, mlx5Answer(func([]byte) {})
			k.refuse["ALLOC_UAR"] = errno
		})
		if !errors.Is(err, errno) || strings.Contains(err.Error(), "PF_LOG_BAR_SIZE") != (errno != syscall.EPERM) {
			t.Errorf("%v: %v", errno, err)
		}
		if k.ringsMapped() != 0 {
			t.Errorf("%v: %d bytes are mapped", errno, k.ringsMapped())
		}
	}
}

// TestMlx5ThreadDomains: each has a register that no other QP uses, as long as the device has pages.
// Where the device takes no whole WQEs there is one that needs no lock.
func TestMlx5ThreadDomains(t *testing.T) {
	u, k := fakeUARs(t, 1, 512)
	seen := map[*mlx5Register]bool{}
	var tds []*mlx5Register
	for range 21 {
		for _, take := range []func() (*mlx5Register, error){u.own, u.take} {
			r := value(take())(t)
			if seen[r] && !r.Shared() {
				t.Fatal("a register without a lock is used twice")
			}
			seen[r] = true
			tds = append(tds, r)
		}
	}
	for i, r := range tds {
		if i%2 == 0 && (r.Shared() || r.users != 1) {
			t.Errorf("thread domain %d has a register with %d users, shared %v", i/2, r.users, r.Shared())
		}
	}
	k.refuse["ALLOC_UAR"] = syscall.ENOMEM
	free := 0
	for free < 2 && u.unused() != nil {
		value(u.own())(t)
		free++
	}
	if _, err := u.own(); !errors.Is(err, syscall.ENOMEM) || !strings.Contains(err.Error(), "PF_LOG_BAR_SIZE") || free > 1 {
		t.Errorf("without a page: %v, and %d registers were free", err, free)
	}

	u, k = fakeUARs(t, 1, 0)
	for range 3 {
		if r := value(u.own())(t); r != u.plain || r.Shared() {
			t.Errorf("without BlueFlame a thread domain has %+v", r)
		}
	}
	if n := asked(k); n != 0 {
		t.Errorf("%d pages without BlueFlame", n)
	}
	u, k = fakeUARs(t, 1, 512)
	k.refuse["ALLOC_UAR"] = syscall.EOPNOTSUPP
	if r := value(u.own())(t); r != u.plain {
		t.Errorf("where stores are not combined a thread domain has %+v", r)
	}
}
