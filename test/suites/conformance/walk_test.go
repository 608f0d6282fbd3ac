package conformance

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// walkTime is how long TestWalk walks if GOVERBS_WALK does not say otherwise.
const walkTime = 10 * time.Second

// extraTime is how much longer it walks at most, if not all that can happen has happened yet.
const extraTime = 30 * time.Second

// Variables of TestWalk: how long, and the seed of a walk to repeat.
const (
	walkEnv = testenv.WalkEnv
	seedEnv = "GOVERBS_SEED"
)

// TestWalk creates, uses and destroys objects of two devices in random order, legal and
// illegal: closed objects, objects of the other device, objects that are in use. Each round
// gives its commands one of the three ways, and in some there are two goroutines. It knows
// what each step must answer, and when all is closed the kernel must have as many objects as
// before, and the process as many files and mapped rings. GOVERBS_WALK=1h makes it longer, as
// the suite walk does in a VM; GOVERBS_SEED=N, with the number that is printed at the start, repeats a
// walk (go run ./test/run -suite walk -env GOVERBS_SEED=N): each goroutine's steps are the same, not
// how they interleave.
//
// No kernel counts AHs, memory windows and multicast attachments. But it refuses to give up a
// PD that has one of the first two, and a QP that has one of the last; here it must not.
func TestWalk(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "GIDs")
	testenv.Guest(t)
	t.Setenv("RDMAABI", "auto") // put back at the end what rounds set
	length, seed := walkTime, rand.Uint64()
	if s := os.Getenv(walkEnv); s != "" {
		var err error
		length, err = time.ParseDuration(s)
		must(t, err)
	}
	if s := os.Getenv(seedEnv); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		must(t, err)
	}
	// Now, since who panics or hangs logs nothing at the end.
	fmt.Printf("TestWalk: %s of random steps; again with %s=%d\n", length, seedEnv, seed)
	hang := time.AfterFunc(length+extraTime+10*time.Minute, func() { panic(fmt.Sprintf("TestWalk hangs, with %s=%d", seedEnv, seed)) })
	defer hang.Stop()
	for _, name := range rig.Devices {
		firstUse(t, name)
	}
	w := &walk{t: t, rand: rand.New(rand.NewPCG(seed, 0)), sends: !rxeBefore(t, 6, 0), count: map[string]int{}}
	w.windows, w.rereg = hasWindows(t), !rxeBefore(t, 6, 3) && !rig.EFA()
	w.refusal = refusesBound(t)
	w.resize = !testenv.Lacks(t, resizes(t, deviceName))
	for i, name := range rig.Devices {
		w.paths[i] = pathToSelf(t, name)
	}
	before := holdings(t)
	defer func() {
		if t.Failed() {
			t.Logf("%d steps with %s=%d", w.steps, seedEnv, seed)
		}
	}()
	end := time.Now().Add(length)
	for now := time.Now(); (now.Before(end) || len(w.missing()) > 0 && now.Before(end.Add(extraTime))) && !t.Failed(); now = time.Now() {
		w.round()
		if after := holdings(t); after != before && !t.Failed() {
			t.Errorf("there are %+v, before the walk there were %+v", after, before)
		}
	}
	t.Logf("%d steps, %d objects; %v", w.steps, w.made, w.count)
	if missing := w.missing(); len(missing) > 0 && !t.Failed() {
		t.Errorf("no step was %q", missing)
	}
}

// hasWindows reports whether the devices have memory windows, as TestMW checks.
func hasWindows(t *testing.T) bool {
	dev, err := uverbs.Open(deviceName, uverbs.OpenOptions{})
	must(t, err)
	defer dev.Close()
	return dev.Attr().MaxMW != 0
}

// pathToSelf is the way from a device to itself.
func pathToSelf(t *testing.T, name string) uverbs.AHAttr {
	t.Helper()
	dev, err := uverbs.Open(name, uverbs.OpenOptions{})
	must(t, err)
	gid := gidOf(t, dev)
	must(t, dev.Close())
	return uverbs.AHAttr{Port: 1, DLID: lidOf(t, gid.GID), Global: true,
		GRH: uverbs.GRH{DGID: gid.GID, SGIDIndex: uint8(gid.Index), HopLimit: 64}}
}

// held is what the kernel and the process have.
type held struct {
	Kernel [2]netlinkrdma.ResourceCounts // of both devices
	Soft   [2]soft.ResourceCounts        // the same of software devices
	Files  int                           // open in the process
	Rings  int                           // mapped by it from devices
}

// holdings counts it.
func holdings(t *testing.T) (h held) {
	t.Helper()
	for i := range rig.Devices {
		if rig.Soft {
			h.Soft[i] = soft.ByName(rig.Devices[i]).Resources()
		} else {
			h.Kernel[i] = resources(t, trackedDevice(t, rig.Devices[i]))
		}
	}
	files, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	maps, err := os.ReadFile("/proc/self/maps")
	must(t, err)
	h.Files, h.Rings = len(files), bytes.Count(maps, []byte("/infiniband/uverbs"))
	return h
}

// walk is all that the test does.
type walk struct {
	t       *testing.T
	rand    *rand.Rand
	sends   bool             // the kernel bears sends to a peer that is not ready
	windows bool             // the devices have memory windows
	rereg   bool             // the driver changes PD and rights of regions
	resize  bool             // CQs can be resized
	refusal bool             // the driver says that a region has a window
	paths   [2]uverbs.AHAttr // of the devices to themselves
	steps   int
	made    int
	count   map[string]int // of outcomes
}

// walkWays are the interfaces to the kernel that the walk uses: all by which CQs can be created, see needsCQ.
func walkWays(t *testing.T) []string {
	if rig.EFA() && since(t, 7, 0) {
		return []string{"auto", "ioctl"}
	}
	return []string{"auto", "ioctl", "write"}
}

// missing returns what has not happened, but must.
func (w *walk) missing() []string {
	all := []string{
		"of two goroutines",
		"of a closed object", "of two devices", "closed", "closed again", "busy", "used", "used when closed",
		"abandoned", "left begun", "pool empty", "slot put", "slot put again",
		"waited for", "no event", "Rereg of a closed object",
	}
	for _, way := range walkWays(w.t) {
		all = append(all, "by "+way)
	}
	if !rig.InfiniBand() && !rig.EFA() {
		all = append(all, "attached", "detached", "not attached", "attached to a group")
	}
	if w.sends {
		all = append(all, "built")
	}
	if !onMLX5 && !rig.EFA() {
		all = append(all, "SRQ resized")
	}
	if w.resize {
		all = append(all, "CQ resized")
	}
	if w.rereg {
		all = append(all, "Rereg")
	}
	if w.windows {
		all = append(all, "bound", "unbound", "bound twice", "invalidated", "written through", "bind of closed")
	}
	if w.windows && w.refusal {
		all = append(all, "with a window")
	}
	return slices.DeleteFunc(all, func(outcome string) bool { return w.count[outcome] > 0 })
}

// walker is one goroutine of a round.
type walker struct {
	*walk
	index int // which of the goroutines
	alone bool
	rand  *rand.Rand
	steps int
	made  int
	last  []string       // the last steps
	count map[string]int // of outcomes
	nodes []*node
}

// lastSteps is how many steps are kept for a failure.
const lastSteps = 40

// note keeps a step.
func (w *walker) note(format string, args ...any) {
	w.steps++
	w.last = append(w.last, fmt.Sprintf(format, args...))
	if len(w.last) > lastSteps {
		w.last = w.last[1:]
	}
}

// fail is an error of the step that was noted last.
func (w *walker) fail(format string, args ...any) {
	w.t.Errorf("goroutine %d: %s\nafter:\n%s", w.index, fmt.Sprintf(format, args...), strings.Join(w.last, "\n"))
}

// round opens both devices, walks, and closes everything, the devices last.
func (w *walk) round() {
	ways := walkWays(w.t)
	way := ways[w.rand.IntN(len(ways))]
	w.count["by "+way]++
	must(w.t, os.Setenv("RDMAABI", way))
	walkers := []*walker{w.walker(0), w.walker(1)}
	if w.rand.IntN(3) > 0 {
		walkers, walkers[0].alone = walkers[:1], true
	} else {
		w.count["of two goroutines"]++
	}
	first := walkers[0]
	for i, name := range rig.Devices {
		d, err := uverbs.Open(name, uverbs.OpenOptions{})
		must(w.t, err)
		first.add(&node{kind: "Device", dev: i, obj: d, shared: true})
	}
	opened := holdings(w.t)
	var keep []closer // which keep what is shared from being closed
	if !first.alone {
		keep = w.share(first)
		walkers[1].nodes = slices.Clone(first.nodes)
	}
	common := len(first.nodes)
	var group sync.WaitGroup
	for _, r := range walkers {
		group.Go(func() {
			r.create("PD", "Device")
			for range 50 + r.rand.IntN(300) {
				if r.step(); w.t.Failed() {
					return
				}
			}
			r.closeAll(r.nodes[common:])
		})
	}
	group.Wait()
	for _, r := range walkers {
		w.steps += r.steps
		w.made += r.made
		for k, n := range r.count {
			w.count[k] += n
		}
	}
	if w.t.Failed() {
		return
	}
	for _, c := range keep {
		must(w.t, c.Close())
	}
	shared := first.nodes[:common]
	for _, n := range slices.Backward(shared) {
		if n.kind == "Device" {
			break
		}
		must(w.t, n.obj.Close())
	}
	if now := holdings(w.t); now.Kernel != opened.Kernel || now.Soft != opened.Soft || now.Rings != opened.Rings && !onMLX5 { // mlx5 keeps registers
		w.t.Errorf("with all closed but the devices there are %+v, before there were %+v", now, opened)
	}
	for _, n := range shared[:len(rig.Devices)] {
		must(w.t, n.obj.Close())
		if n.obj.Close() != nil {
			w.t.Errorf("close %s again", n.name)
		}
	}
}

// walker makes one goroutine of a round. Its steps depend on nothing that it meets.
func (w *walk) walker(index int) *walker {
	return &walker{walk: w, index: index, rand: rand.New(rand.NewPCG(w.rand.Uint64(), 0)), count: map[string]int{}}
}

// share makes what two goroutines share, a PD and a CQ with a channel on each device, and
// returns users of it, in the order in which to close them.
func (w *walk) share(r *walker) (keep []closer) {
	for _, d := range r.nodes[:len(rig.Devices)] {
		dev := d.obj.(*uverbs.Device)
		pd, err := dev.AllocPD()
		must(w.t, err)
		ch, err := dev.CreateCompChannel()
		must(w.t, err)
		cq, err := dev.CreateCQ(uverbs.CQOptions{Size: 100, Channel: ch})
		must(w.t, err)
		qp, err := pd.CreateQP(uverbs.QPOptions{Type: reliable, SendCQ: cq, RecvCQ: cq})
		must(w.t, err)
		keep = append(keep, qp)
		for _, n := range []*node{{kind: "PD", obj: pd}, {kind: "CompChannel", obj: ch}, {kind: "CQ", obj: cq}} {
			n.dev, n.shared, n.users = d.dev, true, 1
			r.add(n)
		}
		r.nodes[len(r.nodes)-1].uses = []*node{r.nodes[len(r.nodes)-2]} // the CQ's channel
	}
	return keep
}

// pick returns any object of a kind, or nil.
func (w *walker) pick(kind string) *node { return w.pickOf(kind, func(*node) bool { return true }) }

// pickOf returns any of those of a kind that are right, or nil.
func (w *walker) pickOf(kind string, right func(*node) bool) *node {
	at := w.rand.Uint64()
	var all []*node
	for _, n := range w.nodes {
		if n.kind == kind && right(n) {
			all = append(all, n)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[at%uint64(len(all))]
}

// step does one thing.
func (w *walker) step() {
	switch w.rand.IntN(40) {
	case 0:
		w.create("PD", "Device")
	case 1:
		w.create("CompChannel", "Device")
	case 2:
		w.create("CQ", "Device", "CompChannel")
	case 3:
		w.create("MR", "PD")
	case 4:
		w.create("SRQ", "PD")
	case 5:
		w.create("AH", "PD")
	case 6:
		w.create("QP", "PD", "CQ", "CQ")
	case 7:
		w.create("QP", "PD", "CQ", "CQ", "SRQ")
	case 8:
		w.create("MR", "PD", "Buffer")
	case 9:
		w.create("BufferPool", "PD")
	case 10:
		w.create("MW", "PD")
	case 11:
		if w.windows && w.rand.IntN(3) == 0 { // it is slow
			w.create("Binder", "PD")
		}
	case 12:
		buf, err := uverbs.AllocBuffer(1+w.rand.IntN(10000), uverbs.BufferOptions{})
		if w.note("create Buffer"); err != nil {
			w.fail("AllocBuffer: %v", err)
			return
		}
		w.add(&node{kind: "Buffer", dev: -1, obj: buf})
	case 13, 14, 15:
		if n := w.nodes[w.rand.IntN(len(w.nodes))]; n.kind != "Device" {
			w.close(n)
		}
	case 16, 17, 18, 19, 20:
		w.window()
	case 21, 22, 23, 24, 25, 26, 27:
		if n := w.pick("QP"); n != nil {
			w.use(n)
		}
	case 28:
		if n := w.pick("BufferPool"); n != nil {
			w.use(n)
		}
	default:
		w.use(w.nodes[w.rand.IntN(len(w.nodes))])
	}
}
