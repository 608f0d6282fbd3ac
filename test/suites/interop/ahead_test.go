package interop

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/internal/program"
)

// serving waits until a server listens, which then runs ahead of its first client.
func serving(t *testing.T, server *program.Program, space netlinkrdma.PortSpace, port uint16) {
	t.Helper()
	server.Serving(t, space, port)
	ahead(t, server.PID())
}

// ahead lets a process that accepts run before all others for a moment, or until back is called. Soft
// iWARP answers a client and only then looks for what comes: a first message that is there before it
// does is not noticed, and the two wait for ever. rdma-core's programs do not avoid this.
func ahead(t *testing.T, pid int) (back func()) {
	t.Helper()
	if !rig.IWARP() {
		return func() {}
	}
	const moment, before, usual = time.Second, -20, 0
	nice := func(to int) error {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		for _, task := range tasks {
			tid, perr := strconv.Atoi(task.Name())
			if perr == nil {
				perr = unix.Setpriority(unix.PRIO_PROCESS, tid, to)
			}
			if !errors.Is(perr, unix.ESRCH) { // it has ended
				err = errors.Join(err, perr)
			}
		}
		return err
	}
	must(t, nice(before))
	back = sync.OnceFunc(func() { _ = nice(usual) }) // the process may be gone
	timer := time.AfterFunc(moment, back)
	t.Cleanup(func() {
		timer.Stop()
		back()
	})
	return back
}
