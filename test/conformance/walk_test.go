package conformance

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// walkTime is how long TestWalk walks if GOVERBS_WALK does not say otherwise.
const walkTime = 10 * time.Second

// Variables of TestWalk: how long, and the seed of the walk that is to be repeated.
const (
	walkEnv = "GOVERBS_WALK"
	seedEnv = "GOVERBS_SEED"
)

// TestWalk creates, uses and destroys objects of two devices in random order, legal and
// illegal: closed objects, objects of the other device, objects that are in use. It knows
// what each step must answer, and the kernel must have as many objects afterwards as before. GOVERBS_WALK=1h makes it longer, GOVERBS_SEED=N repeats a
// walk.
func TestWalk(t *testing.T) {
	testenv.Guest(t)
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
	for _, name := range rig.Devices {
		firstUse(t, name)
	}
	before := kernelObjects(t)
	w := &walk{t: t, rand: rand.New(rand.NewPCG(seed, 0)), sends: !rxeBefore(t, 6, 0), count: map[string]int{}}
	for i, name := range rig.Devices {
		w.paths[i] = pathToSelf(t, name)
	}
	defer func() {
		if t.Failed() {
			t.Logf("%d steps with %s=%d; the last were:\n%s", w.steps, seedEnv, seed, strings.Join(w.last, "\n"))
		}
	}()
	for end := time.Now().Add(length); time.Now().Before(end) && !t.Failed(); {
		w.round()
		if after := kernelObjects(t); after != before && !t.Failed() {
			t.Errorf("the kernel has %+v, before the walk it had %+v", after, before)
		}
	}
	t.Logf("%d steps, %d objects; %v", w.steps, w.made, w.count)
	if !t.Failed() {
		for _, outcome := range []string{"of a closed object", "of two devices", "closed", "closed again", "busy", "used", "used when closed"} {
			if w.count[outcome] == 0 {
				t.Errorf("no step was %q", outcome)
			}
		}
	}
}

// pathToSelf is the way from a device to itself.
func pathToSelf(t *testing.T, name string) uverbs.AHAttr {
	t.Helper()
	dev, err := uverbs.Open(name)
	must(t, err)
	gid := gidOf(t, dev)
	must(t, dev.Close())
	return uverbs.AHAttr{Port: 1, DLID: lidOf(t, gid.GID), Global: true,
		GRH: uverbs.GRH{DGID: gid.GID, SGIDIndex: uint8(gid.Index), HopLimit: 64}}
}

// kernelObjects counts what the kernel has of both devices.
func kernelObjects(t *testing.T) (counts [2]netlinkrdma.ResourceCounts) {
	t.Helper()
	for i, name := range rig.Devices {
		dev, err := netlinkrdma.DeviceByName(name)
		must(t, err)
		counts[i], err = netlinkrdma.Resources(dev)
		must(t, err)
	}
	return counts
}

// walk is a walk.
type walk struct {
	t     *testing.T
	rand  *rand.Rand
	sends bool             // the kernel bears sends to a peer that is not ready
	paths [2]uverbs.AHAttr // of the devices to themselves
	steps int
	made  int
	last  []string       // the last steps
	count map[string]int // of outcomes

	nodes []*node
}

// node is an object and what the walk knows of it.
type node struct {
	name   string
	kind   string
	dev    int // which of the two
	obj    closer
	uses   []*node
	users  int // open objects that use this one
	closed bool
}

// lastSteps is how many steps are kept for a failure.
const lastSteps = 40

// note keeps a step.
func (w *walk) note(format string, args ...any) {
	w.steps++
	w.last = append(w.last, fmt.Sprintf(format, args...))
	if len(w.last) > lastSteps {
		w.last = w.last[1:]
	}
}

// round opens both devices, walks, and closes everything.
func (w *walk) round() {
	w.nodes = nil
	for i, name := range rig.Devices {
		d, err := uverbs.Open(name)
		must(w.t, err)
		w.add(&node{kind: "Device", dev: i, obj: d})
	}
	for range 50 + w.rand.IntN(300) {
		w.step()
		if w.t.Failed() {
			return
		}
	}
	// Users are younger than what they use.
	for i := len(w.nodes) - 1; i >= 0; i-- {
		w.close(w.nodes[i])
	}
	for _, n := range w.nodes {
		if !n.closed && !w.t.Failed() {
			w.t.Errorf("%s is left open", n.name)
		}
	}
}

// add adds an object.
func (w *walk) add(n *node) {
	w.made++
	n.name = fmt.Sprintf("%s%d of %s", n.kind, len(w.nodes), rig.Devices[n.dev])
	for _, u := range n.uses {
		u.users++
	}
	w.nodes = append(w.nodes, n)
}

// pick returns any object of a kind, or nil.
func (w *walk) pick(kind string) *node {
	var all []*node
	for _, n := range w.nodes {
		if n.kind == kind {
			all = append(all, n)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[w.rand.IntN(len(all))]
}

// step does one thing.
func (w *walk) step() {
	switch w.rand.IntN(16) {
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
	case 8, 9:
		if n := w.nodes[w.rand.IntN(len(w.nodes))]; n.kind != "Device" {
			w.close(n)
		}
	default:
		w.use()
	}
}

// create makes an object of others, and knows whether that can be.
func (w *walk) create(kind string, of ...string) {
	var uses []*node
	for _, k := range of {
		n := w.pick(k)
		if n == nil {
			return
		}
		uses = append(uses, n)
	}
	dev := uses[0].dev
	closed, foreign := false, false
	names := make([]string, len(uses))
	for i, n := range uses {
		closed = closed || n.closed
		foreign = foreign || n.dev != dev
		names[i] = n.name
	}
	w.note("create %s from %s", kind, strings.Join(names, ", "))
	obj, err := w.make(kind, uses)
	if closed {
		w.count["of a closed object"]++
	} else if foreign {
		w.count["of two devices"]++
	}
	switch {
	case closed || foreign:
		var arg *uverbs.ArgError
		if err == nil {
			w.t.Errorf("create %s of %v: it is there", kind, names)
			obj.Close()
		} else if !errors.Is(err, os.ErrClosed) && !(foreign && errors.As(err, &arg)) {
			w.t.Errorf("create %s of %v: %v", kind, names, err)
		}
	case err != nil:
		w.t.Errorf("create %s of %v: %v", kind, names, err)
	default:
		if len(uses) > 2 && uses[1] == uses[2] {
			uses = append(uses[:1:1], uses[2:]...)
		}
		w.add(&node{kind: kind, dev: dev, obj: obj, uses: uses})
	}
}

// make calls the constructor.
func (w *walk) make(kind string, uses []*node) (closer, error) {
	dev, _ := uses[0].obj.(*uverbs.Device)
	pd, _ := uses[0].obj.(*uverbs.PD)
	switch kind {
	case "PD":
		return dev.AllocPD()
	case "CompChannel":
		return dev.CreateCompChannel()
	case "CQ":
		return dev.CreateCQ(1+w.rand.IntN(100), uverbs.CQOptions{Channel: uses[1].obj.(*uverbs.CompChannel)})
	case "MR":
		return pd.RegSlice(make([]byte, 1+w.rand.IntN(10000)), uverbs.AccessLocalWrite|uverbs.AccessRemoteWrite)
	case "SRQ":
		return pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 1 + w.rand.IntN(100)})
	case "AH":
		return pd.CreateAH(w.paths[uses[0].dev])
	}
	o := uverbs.QPOptions{
		Type:   []uverbs.QPType{uverbs.RC, uverbs.UC, uverbs.UD}[w.rand.IntN(3)],
		SendCQ: uses[1].obj.(*uverbs.CQ), RecvCQ: uses[2].obj.(*uverbs.CQ), MaxSendWR: 1 + w.rand.IntN(40),
	}
	if len(uses) > 3 {
		o.SRQ = uses[3].obj.(*uverbs.SRQ)
	}
	return pd.CreateQP(o)
}

// close closes an object, and knows whether that can be.
func (w *walk) close(n *node) {
	w.note("close %s", n.name)
	err := n.obj.Close()
	switch {
	case n.closed:
		w.count["closed again"]++
	case n.users > 0:
		w.count["busy"]++
	default:
		w.count["closed"]++
	}
	switch {
	case n.closed && err != nil:
		w.t.Errorf("close %s again: %v", n.name, err)
	case n.closed:
	case n.users > 0 && !errors.Is(err, syscall.EBUSY):
		w.t.Errorf("close %s with %d users: %v, want EBUSY", n.name, n.users, err)
	case n.users == 0 && err != nil:
		w.t.Errorf("close %s: %v", n.name, err)
	case n.users == 0:
		n.closed = true
		for _, u := range n.uses {
			u.users--
		}
	}
}

// use calls a method of an object.
func (w *walk) use() {
	n := w.nodes[w.rand.IntN(len(w.nodes))]
	what, err := "", error(nil)
	var arg *uverbs.ArgError
	var kernel *uverbs.Error
	var post *uverbs.PostError
	allowed := func() bool {
		return err == nil || errors.As(err, &arg) || errors.As(err, &kernel) || errors.As(err, &post) ||
			errors.Is(err, uverbs.ErrQueueFull) || errors.Is(err, uverbs.ErrState) || errors.Is(err, uverbs.ErrSRQ)
	}
	switch o := n.obj.(type) {
	case *uverbs.Device:
		what = "QueryPort"
		_, err = o.QueryPort(uint8(w.rand.IntN(3)))
	case *uverbs.CQ:
		switch w.rand.IntN(2) {
		case 0:
			what = "Poll"
			var wcs [8]uverbs.WC
			_, err = o.Poll(wcs[:])
			if errors.Is(err, uverbs.ErrCQOverrun) {
				return // more completions than it has room for are possible
			}
		case 1:
			what = "Notify"
			err = o.Notify()
		}
	case *uverbs.SRQ:
		switch w.rand.IntN(3) {
		case 0:
			what = "PostRecv"
			err = o.PostRecv(w.rand.Uint64(), w.sge())
		case 1:
			what = "Query"
			_, err = o.Query()
		case 2:
			what = "SetLimit"
			err = o.SetLimit(w.rand.IntN(20))
		}
	case *uverbs.QP:
		what, err = w.useQP(o)
	default:
		return
	}
	w.note("%s of %s: %v", what, n.name, err)
	if w.count["used"]++; n.closed {
		w.count["used when closed"]++
	}
	if n.closed && !errors.Is(err, os.ErrClosed) && !errors.As(err, &arg) {
		w.t.Errorf("%s of %s after Close: %v", what, n.name, err)
	}
	if !n.closed && !allowed() {
		w.t.Errorf("%s of %s: %v", what, n.name, err)
	}
}

// useQP calls a method of a QP.
func (w *walk) useQP(qp *uverbs.QP) (string, error) {
	switch w.rand.IntN(6) {
	case 0:
		if err := qp.Activate(testQKey); err == nil {
			return "Activate", nil
		}
		local, err := qp.Endpoint()
		if err != nil {
			return "Endpoint", err
		}
		return "Connect", qp.Connect(w.t.Context(), local) // to itself
	case 1:
		states := []uverbs.QPState{uverbs.Reset, uverbs.Init, uverbs.RTR, uverbs.RTS, uverbs.SQD, uverbs.SQE, uverbs.Err}
		return "Modify", qp.Modify(uverbs.QPAttr{State: states[w.rand.IntN(len(states))], Port: 1}, uverbs.AttrState|uverbs.QPAttrMask(w.rand.Uint32()&w.rand.Uint32()&w.rand.Uint32()&0x7f))
	case 2:
		_, err := qp.Query()
		return "Query", err
	case 3:
		return "PostRecv", qp.PostRecv(w.rand.Uint64(), w.sge())
	default:
		if w.sends {
			return "PostSend", qp.PostSend(w.wr())
		}
		return "QPN", qp.Modify(uverbs.QPAttr{}, 0)
	}
}

// sge returns a piece of any MR, which may be closed.
func (w *walk) sge() uverbs.SGE {
	if n := w.pick("MR"); n != nil {
		return n.obj.(*uverbs.MR).SGE(w.rand.IntN(20), w.rand.IntN(4000))
	}
	return uverbs.SGE{}
}

// wr returns any work request.
func (w *walk) wr() uverbs.SendWR {
	wr := uverbs.SendWR{
		ID: w.rand.Uint64(), Opcode: uverbs.WROpcode(w.rand.IntN(18)), Flags: uverbs.SendFlags(w.rand.IntN(8)),
		SGL: []uverbs.SGE{w.sge()}, RemoteQPN: w.rand.Uint32(), RemoteQKey: testQKey, RemoteAddr: w.rand.Uint64(), RKey: w.rand.Uint32(),
	}
	if n := w.pick("AH"); n != nil && w.rand.IntN(2) == 0 {
		wr.AH = n.obj.(*uverbs.AH)
	}
	return wr
}
