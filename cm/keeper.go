package cm

import (
	"os"
	"runtime"
	"slices"
	"sync/atomic"
)

// The kernel takes commands from those threads alone that have the very credentials with which the
// file was opened: not such that are equal, but the same object in the kernel's memory. Threads
// share it until the process changes user or group, which each thread does for itself; from then on
// they differ. So a file that is opened after that is used by one thread.

// keeper is a thread that does one thing after another for others. A nil keeper has it done by who
// calls.
type keeper struct {
	work chan func()
	done chan struct{}
}

// newKeeper starts one, if there is need of it.
func newKeeper() *keeper {
	if !denied.Load() && identity().equal(&born) {
		return nil
	}
	k := &keeper{make(chan func()), make(chan struct{})}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for do := range k.work {
			do()
			k.done <- struct{}{}
		}
	}()
	return k
}

// do has something done, and waits for it.
func (k *keeper) do(what func()) {
	if k == nil {
		what()
		return
	}
	k.work <- what
	<-k.done
}

// stop ends it. Nothing is to be done any more.
func (k *keeper) stop() {
	if k != nil {
		close(k.work)
	}
}

// ids are what a process is to the kernel.
type ids struct {
	user, group int
	groups      []int
}

// identity returns what this process is.
func identity() ids {
	groups, _ := os.Getgroups() // without them there is less to see a change by
	return ids{os.Geteuid(), os.Getegid(), groups}
}

func (i ids) equal(other *ids) bool {
	return i.user == other.user && i.group == other.group && slices.Equal(i.groups, other.groups)
}

// born is what the process was in the beginning, when its threads were equal.
var born = identity()

// denied is set once the kernel has refused a command: it is likely that the threads differ.
var denied atomic.Bool
