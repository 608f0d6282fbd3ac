package streamtest

import (
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/protocol"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
)

// A usage is what the process has, and the objects on the devices.
type usage struct {
	goroutines, files int
	heap              uint64                       // bytes in use after a garbage collection
	objects           []netlinkrdma.ResourceCounts // of each device; none of software devices
}

// use counts it.
func use(t *testing.T) (u usage) {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	Must(t, err)
	u.goroutines, u.files = runtime.NumGoroutine(), len(files)
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u.heap = m.HeapAlloc
	if testenv.TheRig().Soft {
		return u
	}
	devices, err := netlinkrdma.Devices()
	Must(t, err)
	for _, dev := range devices {
		n, err := netlinkrdma.Resources(dev, netlinkrdma.ListOptions{})
		Must(t, err)
		u.objects = append(u.objects, n)
	}
	return u
}

// connsEnv says how many connections TestLeaks makes, if not as many as take some seconds.
const connsEnv = "GOVERBS_CONNS"

// Leaks: many connections, closed by either side first, leave nothing: no goroutine, open file or object of the
// device, and no more memory than 1 MiB or 100 bytes per connection. A software device keeps 8 bytes for each number
// of a QP or a memory region, 80 bytes per connection, until it uses the numbers again. The device closes after the
// last connection only if no object is left.
func (p *Protocol) Leaks(t *testing.T) {
	testenv.Guest(t)
	n := 200
	if s := os.Getenv(connsEnv); s != "" {
		var err error
		n, err = strconv.Atoi(s)
		Must(t, err)
	}
	objects := use(t).objects
	l := p.Listener(t, Options{})
	var before usage
	begin := time.Now()
	for i := range n {
		if i == 10 { // what is made once is there
			before = use(t)
		}
		client, server, err := p.Connect(l, Options{})
		Must(t, err)
		if i%2 == 0 {
			client, server = server, client
		}
		_, err = client.Write([]byte("bye"))
		Must(t, err, client.Close())
		got, err := io.ReadAll(server)
		Must(t, err, server.Close())
		if string(got) != "bye" {
			t.Fatalf("%q arrives", got)
		}
	}
	took := time.Since(begin)
	Must(t, l.Close())
	if n := protocol.OpenDevices(); n > 0 {
		t.Errorf("%d devices are open", n)
	}
	before.objects = objects
	heap := before.heap + max(1<<20, uint64(100*n))
	var after usage
	for end := time.Now().Add(Timeout); ; time.Sleep(20 * time.Millisecond) {
		after = use(t)
		if after.goroutines <= before.goroutines && after.files <= before.files && after.heap <= heap && slices.Equal(after.objects, objects) {
			break
		}
		if time.Now().After(end) {
			t.Error("something is left")
			break
		}
	}
	t.Logf("%d connections were made and closed in %s", n, took.Round(time.Millisecond))
	t.Logf("before: %+v", before)
	t.Logf("after:  %+v", after)
}
