package perf

import (
	"context"
	"fmt"
	"math"
	"os/signal"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// occupied counts the runs of this process.
var occupied struct {
	sync.Mutex
	runs  int
	procs int // GOMAXPROCS otherwise
	gc    int // GOGC otherwise

	monitor *monitor
}

// occupy sets the Go runtime up for a run. GOMAXPROCS is the number of runs, because with idle
// processors the scheduler would move goroutines and wake threads. The garbage collector is off,
// and the scheduler's monitor has the lowest priority. Its preemption signal is ignored from the
// first run on, because the loops yield by themselves; see the package documentation. occupy
// returns a function that undoes all this but the ignored signal.
func occupy() func() {
	o := &occupied
	o.Lock()
	defer o.Unlock()
	if o.runs == 0 {
		o.procs = runtime.GOMAXPROCS(0)
		o.gc = debug.SetGCPercent(-1)
		o.monitor = hushMonitor()
		signal.Ignore(unix.SIGURG)
	}
	o.runs++
	runtime.GOMAXPROCS(min(o.runs, o.procs))
	return func() {
		o.Lock()
		defer o.Unlock()
		o.runs--
		if o.runs == 0 {
			debug.SetGCPercent(o.gc)
			runtime.GOMAXPROCS(o.procs)
			o.monitor.loud()
			return
		}
		runtime.GOMAXPROCS(min(o.runs, o.procs))
	}
}

// Pinned calls a function on a thread that stays on one processor, and is not used for
// anything else afterwards.
func Pinned(cpu int, f func() error) error {
	if cpu == Auto {
		return f()
	}
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and no unlock: the thread ends with the goroutine
		var set unix.CPUSet
		set.Set(cpu)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			ended <- fmt.Errorf("--cpu is %d, allowed: a processor that this process may use: %w", cpu, err)
			return
		}
		ended <- f()
	}()
	return <-ended
}

// Watch calls stalled, and returns, when a count stays the same for as long as timeout; it also
// returns when ctx ends.
func Watch(ctx context.Context, timeout time.Duration, count *atomic.Int64, stalled func()) {
	tick := time.NewTicker(timeout)
	defer tick.Stop()
	for seen := int64(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			now := count.Load()
			if now == seen {
				stalled()
				return
			}
			seen = now
		}
	}
}

// machineMemory returns the memory of this machine in bytes, or as much as there can be if the kernel
// does not say.
func machineMemory() int {
	var i unix.Sysinfo_t
	if unix.Sysinfo(&i) != nil {
		return math.MaxInt
	}
	return int(i.Totalram) * int(i.Unit)
}

// DefaultMaxMemory returns the default for the memory that a server gives its clients, in bytes:
// half of the machine's, and at most 4 GiB.
func DefaultMaxMemory() int {
	const most = 4 << 30
	return min(machineMemory()/2, most)
}

// garbage is what tidy knows of the heap.
var garbage struct {
	sync.Mutex
	live uint64 // bytes after the last collection
}

// tidy collects garbage if there is much. The collector is off during runs, and runs may follow
// each other without a pause while clients come and go.
func tidy() {
	const much = 16 << 20
	g := &garbage
	g.Lock()
	defer g.Unlock()
	if heap() < g.live+much {
		return
	}
	runtime.GC()
	g.live = heap()
}

// heap returns how many bytes are taken by objects, garbage included.
func heap() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}
