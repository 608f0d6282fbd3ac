package rdmacm

import (
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/uverbs"
)

// handles are the handles of the IDs and groups of a fake kernel.
type handles struct {
	mu   sync.Mutex
	live map[uint32]bool
	dead []uint32 // the commands with a handle that is not live
}

// newHandles makes a channel to a fake kernel whose handles are watched.
func newHandles(t *testing.T) (*Channel, *handles) {
	c, k := newFake(t)
	h := &handles{live: map[uint32]bool{}}
	k.answer = map[uint32]func(in, out unsafe.Pointer) syscall.Errno{
		abi.RDMA_USER_CM_CMD_JOIN_MCAST: func(_, out unsafe.Pointer) syscall.Errno {
			k.handle++
			(*abi.CreateIDResp)(out).ID = k.handle
			return 0
		},
	}
	fake := c.file.local
	c.file.local = commandFunc(func(cmd uint32, in, out unsafe.Pointer) syscall.Errno {
		h.mu.Lock()
		defer h.mu.Unlock()
		handle, has := handleOf(cmd, in)
		if has && !h.live[handle] {
			h.dead = append(h.dead, cmd)
			return syscall.ENOENT
		}
		errno := fake.(commandFunc)(cmd, in, out)
		switch cmd {
		case abi.RDMA_USER_CM_CMD_CREATE_ID, abi.RDMA_USER_CM_CMD_JOIN_MCAST:
			h.live[(*abi.CreateIDResp)(out).ID] = true
		case abi.RDMA_USER_CM_CMD_DESTROY_ID:
			clear(h.live) // there is one ID at a time, and its groups
		case abi.RDMA_USER_CM_CMD_LEAVE_MCAST:
			delete(h.live, handle)
		}
		return errno
	})
	return c, h
}

// handleOf returns the handle in a command; has is false for other commands.
func handleOf(cmd uint32, in unsafe.Pointer) (handle uint32, has bool) {
	switch cmd {
	case abi.RDMA_USER_CM_CMD_BIND:
		return (*abi.Bind)(in).ID, true
	case abi.RDMA_USER_CM_CMD_RESOLVE_ADDR:
		return (*abi.ResolveAddr)(in).ID, true
	case abi.RDMA_USER_CM_CMD_CONNECT:
		return (*abi.Connect)(in).ID, true
	case abi.RDMA_USER_CM_CMD_ACCEPT:
		return (*abi.Accept)(in).ID, true
	case abi.RDMA_USER_CM_CMD_INIT_QP_ATTR:
		return (*abi.InitQPAttr)(in).ID, true
	case abi.RDMA_USER_CM_CMD_QUERY:
		return (*abi.Query)(in).ID, true
	case abi.RDMA_USER_CM_CMD_SET_OPTION:
		return (*abi.SetOption)(in).ID, true
	case abi.RDMA_USER_CM_CMD_JOIN_MCAST:
		return (*abi.JoinMcast)(in).ID, true
	case abi.RDMA_USER_CM_CMD_MIGRATE_ID:
		return (*abi.MigrateID)(in).ID, true
	case abi.RDMA_USER_CM_CMD_DESTROY_ID, abi.RDMA_USER_CM_CMD_LEAVE_MCAST:
		return (*abi.DestroyID)(in).ID, true
	case abi.RDMA_USER_CM_CMD_RESOLVE_ROUTE, abi.RDMA_USER_CM_CMD_LISTEN, abi.RDMA_USER_CM_CMD_REJECT, abi.RDMA_USER_CM_CMD_DISCONNECT,
		abi.RDMA_USER_CM_CMD_NOTIFY, abi.RDMA_USER_CM_CMD_WRITE_CM_EVENT, abi.RDMA_USER_CM_CMD_RESOLVE_IB_SERVICE:
		return *(*uint32)(in), true
	}
	return 0, false
}

// TestNoCommandAfterDestroy: no method issues a command with the handle of an ID that Close has destroyed, and which
// may be that of another ID. Each method begins while Close is about to destroy the ID, or just before. Afterwards it
// fails because the ID is closed.
func TestNoCommandAfterDestroy(t *testing.T) {
	other, _ := newFake(t)
	a := &idArgs{ctx: within(t), addr: AddrOf(netip.MustParseAddrPort("10.1.0.2:4660")), group: netip.AddrFrom4([4]byte{239, 1, 2, 3}), to: other, pd: &uverbs.PD{}}
	for m := range reflect.TypeFor[*ID]().Methods() {
		switch m.Name {
		case "CheckRemote", "Close", "ECE", "JoinWait", "NextRequest", "SetECE", "SetQPAckTimeout", "SetRNRRetryCount", "SetRetryCount", "ShareEvents", "Next":
			continue // they issue no commands, or by other methods
		}
		t.Run(m.Name, func(t *testing.T) {
			c, h := newHandles(t)
			for round := range 20 {
				id := value(c.NewID(UDP))(t)
				call := func() error {
					err, ok := a.call(id, m.Name)
					if !ok {
						t.Error("the test does not call it")
					}
					return err
				}
				err := besideClose(c, id, round%2 == 0, call)
				noDevice := strings.HasPrefix(m.Name, "Create") && errors.Is(err, syscall.EINVAL)
				if err != nil && !isClosedError(err) && !noDevice {
					t.Errorf("beside Close: %v", err)
				}
				if err := call(); !isClosedError(err) {
					t.Errorf("after Close: %v", err)
				}
				if id.channel.Load() == other {
					return // whose kernel is another one
				}
			}
			if len(h.dead) != 0 {
				t.Errorf("commands %d have handles that are not in use", h.dead)
			}
		})
	}
	t.Run("Group.Close", func(t *testing.T) {
		c, h := newHandles(t)
		for round := range 20 {
			id := value(c.NewID(UDP))(t)
			g := value(id.Join(a.group, 0))(t)
			must(t, besideClose(c, id, round%2 == 0, g.Close), g.Close())
		}
		if len(h.dead) != 0 {
			t.Errorf("commands %d have handles that are not in use", h.dead)
		}
	})
}

// besideClose calls a method while id.Close is about to destroy the ID, or just before if closeFirst is false, and
// returns its error.
func besideClose(c *Channel, id *ID, closeFirst bool, call func() error) (err error) {
	both := []func(){func() { id.Close() }, func() { err = call() }}
	if !closeFirst {
		slices.Reverse(both)
	}
	sideBySide(&c.file.open, both...) // where each command waits
	return err
}

// sideBySide starts functions one after the other while it holds a lock that they wait for, and lets all of them go
// on at once.
func sideBySide(lock sync.Locker, calls ...func()) {
	var all sync.WaitGroup
	lock.Lock()
	for _, call := range calls {
		all.Go(call)
		time.Sleep(500 * time.Microsecond) // so that it comes to the lock, in most cases
	}
	lock.Unlock()
	all.Wait()
}

// TestCommandBesideMigrate: a command goes to the channel that the ID is on.
func TestCommandBesideMigrate(t *testing.T) {
	c, h := newHandles(t)
	to, k := newFake(t)
	k.answer = map[uint32]func(in, out unsafe.Pointer) syscall.Errno{
		abi.RDMA_USER_CM_CMD_MIGRATE_ID: func(in, _ unsafe.Pointer) syscall.Errno {
			h.mu.Lock()
			defer h.mu.Unlock()
			delete(h.live, (*abi.MigrateID)(in).ID)
			return 0
		},
	}
	for range 20 {
		id := value(c.NewID(UDP))(t)
		sideBySide(&h.mu, func() { must(t, id.Migrate(to)) }, func() { value(id.Addrs())(t) })
		must(t, id.Close())
	}
	if len(h.dead) != 0 {
		t.Errorf("commands %d came to the channel that the ID had left", h.dead)
	}
}

// TestGroupOfEvent: a program that learns of a group by its event, before Join has returned, can close it.
func TestGroupOfEvent(t *testing.T) {
	c, k := newFake(t)
	id := value(c.NewID(UDP))(t)
	closed := make(chan error, 1)
	var left uint32
	k.answer = map[uint32]func(in, out unsafe.Pointer) syscall.Errno{
		abi.RDMA_USER_CM_CMD_JOIN_MCAST: func(in, out unsafe.Pointer) syscall.Errno {
			e := c.newEvent(eventResp((*abi.JoinMcast)(in).Uid, id.handle, EventMulticastJoin, 0))
			go func() { closed <- e.Group.Close() }()
			time.Sleep(time.Millisecond) // in which it would take the handle
			(*abi.CreateIDResp)(out).ID = 77
			return 0
		},
		abi.RDMA_USER_CM_CMD_LEAVE_MCAST: func(in, _ unsafe.Pointer) syscall.Errno {
			left = (*abi.DestroyID)(in).ID
			return 0
		},
	}
	value(id.Join(netip.AddrFrom4([4]byte{239, 1, 2, 3}), 0))(t)
	must(t, <-closed)
	if left != 77 {
		t.Errorf("group %d is left, want 77", left)
	}
	must(t, id.Close())
}
