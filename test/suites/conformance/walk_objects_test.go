package conformance

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// node is an object and what the walk knows of it.
type node struct {
	name   string
	kind   string
	dev    int // which of the two, or -1
	obj    closer
	uses   []*node
	users  int // open objects that use this one
	closed bool
	shared bool // two goroutines use it, and it is not closed before they end

	groups  map[byte]bool // of a QP: multicast groups that it is attached to
	slots   []uverbs.Slot // of a BufferPool: those that are out
	size    int           // of a BufferPool: how many there are
	windows int           // of an MR: windows bound to it
	bound   *node         // of an MW: the MR, or nil
	by      *node         // of an MW that is bound: the binder that did it
	broken  bool          // of a binder: its QP is in state Err
}

// inUse counts what keeps an object from being closed.
func (n *node) inUse() int { return n.users + n.windows + len(n.groups) + len(n.slots) }

// closing is an order in which users come before what they use.
var closing = []string{"MW", "Binder", "QP", "SRQ", "CQ", "CompChannel", "AH", "MR", "BufferPool", "PD", "Buffer"}

// closeAll closes objects of all kinds, which must succeed.
func (w *walker) closeAll(nodes []*node) {
	for _, kind := range closing {
		for _, n := range nodes {
			if n.kind != kind || n.closed || w.t.Failed() {
				continue
			}
			for _, g := range slices.Sorted(maps.Keys(n.groups)) {
				w.multicast(n, g, false)
			}
			for _, s := range n.slots {
				if err := n.obj.(*uverbs.BufferPool).Put(s); err != nil {
					w.fail("put a slot of %s back: %v", n.name, err)
				}
			}
			n.slots = nil
			if w.close(n); !n.closed {
				w.fail("%s is left open", n.name)
			}
		}
	}
}

// add adds an object.
func (w *walker) add(n *node) {
	w.made++
	n.name = fmt.Sprintf("%s%d", n.kind, len(w.nodes))
	if n.dev >= 0 {
		n.name += " of " + rig.Devices[n.dev]
	}
	for _, u := range n.uses {
		u.ref()
	}
	w.nodes = append(w.nodes, n)
}

// ref and unref count users, except of objects that goroutines share: those always have one.
func (n *node) ref() {
	if !n.shared {
		n.users++
	}
}

func (n *node) unref() {
	if !n.shared {
		n.users--
	}
}

// create makes an object of others, and knows whether that can be.
func (w *walker) create(kind string, of ...string) {
	var uses []*node
	for _, k := range of {
		n := w.pick(k)
		if n == nil {
			return
		}
		if k == "PD" && w.rand.IntN(2) == 0 { // so that much is of one PD
			n = w.nodes[slices.IndexFunc(w.nodes, func(n *node) bool { return n.kind == k })]
		}
		uses = append(uses, n)
	}
	dev := uses[0].dev
	closed, foreign := false, false
	names := make([]string, len(uses))
	for i, n := range uses {
		closed = closed || n.closed
		foreign = foreign || n.dev >= 0 && n.dev != dev
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
			w.fail("create %s of %v: it is there", kind, names)
			obj.Close()
		} else if !errors.Is(err, os.ErrClosed) && !(foreign && errors.As(err, &arg)) {
			w.fail("create %s of %v: %v", kind, names, err)
		}
	case kind == "MW" && !w.windows, rig.EFA() && kind == "SRQ":
		if !errors.Is(err, errors.ErrUnsupported) {
			w.fail("create %s of %v: %v", kind, names, err)
		}
	case err != nil:
		w.fail("create %s of %v: %v", kind, names, err)
	default:
		if len(uses) > 2 && uses[1] == uses[2] {
			uses = append(uses[:1:1], uses[2:]...)
		}
		n := &node{kind: kind, dev: dev, obj: obj, uses: uses, groups: map[byte]bool{}}
		if p, ok := obj.(*uverbs.BufferPool); ok {
			n.size = p.Free()
		}
		w.add(n)
	}
}

// rights are the rights of regions.
func (w *walker) rights() uverbs.Access {
	access := uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite | uverbs.Access(w.rand.IntN(2))*uverbs.AccessRemoteRead
	if w.windows {
		access |= uverbs.AccessMWBind
	}
	return access
}

// make calls the constructor.
func (w *walker) make(kind string, uses []*node) (closer, error) {
	dev, _ := uses[0].obj.(*uverbs.Device)
	pd, _ := uses[0].obj.(*uverbs.PD)
	switch kind {
	case "PD":
		return dev.AllocPD()
	case "CompChannel":
		return dev.CreateCompChannel()
	case "CQ":
		size := 1 + w.rand.IntN(100)
		if rig.EFA() { // where no CQ may overrun
			size += 1000
		}
		return dev.CreateCQ(uverbs.CQOptions{Size: size, Channel: uses[1].obj.(*uverbs.CompChannel)})
	case "MR":
		if len(uses) > 1 {
			return pd.RegMR(uses[1].obj.(*uverbs.Buffer), uverbs.MROptions{Access: rightsOnDevice(pd.Device(), w.rights())})
		}
		return pd.RegSlice(make([]byte, 1+w.rand.IntN(10000)), rightsOnDevice(pd.Device(), w.rights()))
	case "SRQ":
		return pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 1 + w.rand.IntN(100)})
	case "AH":
		return pd.CreateAH(w.paths[uses[0].dev])
	case "MW":
		return pd.AllocMW([]uverbs.MWType{uverbs.MWType1, uverbs.MWType2}[w.rand.IntN(2)])
	case "Binder":
		return newBinder(w.t, pd)
	case "BufferPool":
		return uverbs.NewBufferPool(pd, uverbs.PoolOptions{SlotSize: 1 + w.rand.IntN(300), Slots: 1 + w.rand.IntN(3), Access: uverbs.AccessLocalWrite})
	}
	o := uverbs.QPOptions{
		Type:   []ib.QPType{ib.RC, ib.UC, ib.UD}[w.rand.IntN(3)],
		SendCQ: uses[1].obj.(*uverbs.CQ), RecvCQ: uses[2].obj.(*uverbs.CQ), MaxSendWR: 1 + w.rand.IntN(40),
		Path: ownGID(),
	}
	if rig.EFA() {
		o.Type = []ib.QPType{ib.SRD, ib.UD}[w.rand.IntN(2)]
	}
	if len(uses) > 3 {
		o.SRQ = uses[3].obj.(*uverbs.SRQ)
	}
	return pd.CreateQP(o)
}

// ownGID chooses the GID where the library would read a thousand files for it, as newSide does.
func ownGID() (o uverbs.PathOptions) {
	if os.Getenv("RDMAABI") == "write" {
		o.GIDIndex = new(ipv4Index)
	}
	return o
}

// close closes an object, and knows whether that can be.
func (w *walker) close(n *node) {
	if n.kind == "Binder" {
		// rxe frees the QP, and a window of type 2 goes on pointing to it.
		for _, m := range w.nodes {
			if m.kind == "MW" && m.by == n && m.obj.(*uverbs.MW).Type() == uverbs.MWType2 {
				w.close(m)
			}
		}
	}
	if n.windows > 0 && !w.refusal {
		return
	}
	w.note("close %s", n.name)
	err := n.obj.Close()
	errno, outcome := syscall.EBUSY, "closed"
	switch {
	case n.closed:
		outcome = "closed again"
	case n.windows > 0:
		if outcome = "with a window"; !onMLX5 {
			errno = syscall.EINVAL
		}
	case len(n.groups) > 0:
		outcome = "attached to a group"
	case n.inUse() > 0:
		outcome = "busy"
	}
	w.count[outcome]++
	switch {
	case n.closed && err != nil:
		w.fail("close %s again: %v", n.name, err)
	case n.closed:
	case n.inUse() > 0 && !errors.Is(err, errno):
		w.fail("close %s with %d users: %v, want %v", n.name, n.inUse(), err, errno)
	case n.inUse() == 0 && err != nil:
		w.fail("close %s: %v", n.name, err)
	case n.inUse() == 0:
		n.closed = true
		for _, u := range n.uses {
			u.unref()
		}
		n.tie(nil, nil)
	}
}
