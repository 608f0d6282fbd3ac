//go:build amd64 || arm64

package uverbs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/inproc"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// refuser is a software device that refuses one command.
type refuser struct {
	inproc.Device
	info  inproc.Info
	errno syscall.Errno

	mu      sync.Mutex
	refuse  int    // the number of the command, from 1; 0: none
	given   int    // commands so far
	refused string // the command that was refused
	open    int    // contexts

	asked map[string]bool // the queries among the commands
}

// newRefuser makes a software device and one that passes commands to it.
func newRefuser(t *testing.T) *refuser {
	t.Helper()
	dev := value(soft.New(soft.Options{Name: "behind"}))(t)
	r := &refuser{Device: inproc.ByName("behind"), errno: syscall.ENOMEM}
	r.info = r.Device.Info()
	r.info.Name, r.info.Index = "refuser", inproc.NewIndex()
	must(t, inproc.Add(r))
	t.Cleanup(func() {
		if !inproc.Remove(r) || r.open != 0 {
			t.Errorf("%d contexts are open", r.open)
		}
		must(t, dev.Close())
	})
	return r
}

// Info implements [inproc.Device].
func (r *refuser) Info() inproc.Info { return r.info }

// Open implements [inproc.Device].
func (r *refuser) Open() (kernel.Device, error) {
	c, err := r.Device.Open()
	if err != nil {
		return nil, err
	}
	r.open++
	return &refusingContext{c, r}, nil
}

// from has the n-th command from now refused, or none if n is 0.
func (r *refuser) from(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse, r.given, r.refused, r.asked = n, 0, "", map[string]bool{}
}

// took returns the name of the command that was refused, "" if there were fewer.
func (r *refuser) took() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refused
}

// refusingContext is a context of a refuser.
type refusingContext struct {
	kernel.Device
	r *refuser
}

// Do implements [kernel.Device].
func (c *refusingContext) Do(cmd *kernel.Command, byWrite bool) syscall.Errno {
	r := c.r
	verb := fakeMethods[[2]uint16{cmd.Object, cmd.Method}]
	if l, legacy := cmd.Legacy(); legacy {
		verb = fakeVerbs[l.Number].name
	}
	r.mu.Lock()
	// The library remembers these answers for a millisecond: whether it asks again depends on how fast it is.
	remembered := verb == "QUERY_PORT" || verb == "QUERY_GID_TABLE"
	again := remembered && r.asked[verb]
	r.asked[verb] = true
	if !again {
		r.given++
	}
	refuse := r.given == r.refuse && !again
	if refuse {
		r.refused = verb
	}
	r.mu.Unlock()
	if refuse {
		return r.errno
	}
	return c.Device.Do(cmd, byWrite)
}

// EventsClosed implements [kernel.EventsCloser].
func (c *refusingContext) EventsClosed(n uint32) { c.Device.(kernel.EventsCloser).EventsClosed(n) }

// Close implements [kernel.Device].
func (c *refusingContext) Close() error {
	c.r.open--
	return c.Device.Close()
}

// TestRefusedOnce has every command of a program refused, one in each run. The call that needs it
// fails with the kernel's errno. Everything else can be closed then, and the same program works
// afterwards.
func TestRefusedOnce(t *testing.T) {
	for _, path := range []string{"ioctl", "write"} {
		t.Run(path, func(t *testing.T) {
			t.Setenv(abiPathEnv, path)
			refuseEach(t, newRefuser(t))
		})
	}
}

// refuseEach is TestRefusedOnce for one device.
func refuseEach(t *testing.T, r *refuser) {
	optional := []string{"QUERY_GID_TABLE"} // the library has another source
	seen := map[string]bool{}
	for n := 1; ; n++ {
		r.from(n)
		err := useAll(r.info.Name)
		verb := r.took()
		if verb == "" {
			must(t, err)
			break
		}
		seen[verb] = true
		if !errors.Is(err, r.errno) && !slices.Contains(optional, verb) {
			t.Errorf("command %d, %s: %v, want %v", n, verb, err, r.errno)
		}
		if r.open != 0 {
			t.Fatalf("command %d, %s: %d contexts stay open after %v", n, verb, r.open, err)
		}
		r.from(0)
		if err := useAll(r.info.Name); err != nil {
			t.Fatalf("after command %d, %s, was refused: %v", n, verb, err)
		}
	}
	for _, verb := range []string{
		"GET_CONTEXT", "EX_QUERY_DEVICE", "ALLOC_PD", "REG_MR", "ALLOC_MW", "CREATE_COMP_CHANNEL", "CREATE_CQ", "RESIZE_CQ", "CREATE_SRQ",
		"MODIFY_SRQ", "QUERY_SRQ", "CREATE_QP", "MODIFY_QP", "QUERY_QP", "CREATE_AH", "ATTACH_MCAST", "DETACH_MCAST", "POST_SEND",
		"DESTROY_AH", "DESTROY_QP", "DESTROY_SRQ", "DESTROY_CQ", "DEALLOC_MW", "DEREG_MR", "DEALLOC_PD",
	} {
		if !seen[verb] {
			t.Errorf("%s was not refused", verb)
		}
	}
}

// useAll opens a device, uses one object of every kind, and closes everything. It returns the first
// error, after it has closed what there is.
func useAll(name string) error {
	d, err := Open(name, OpenOptions{})
	if err != nil {
		return err
	}
	err = useObjects(d)
	for range 2 { // a command that was refused is not refused again
		if e := d.CloseAll(); e == nil {
			return err
		} else if err == nil {
			err = e
		}
	}
	return fmt.Errorf("the device cannot be closed: %w", err)
}

// useObjects leaves its objects open.
func useObjects(d *Device) error {
	u := using{dev: d}
	pd := add(&u, func() (*PD, error) { return d.AllocPD() })
	mr := add(&u, func() (*MR, error) {
		return pd.RegSlice(make([]byte, 4096), AccessLocalWrite|AccessMWBind|AccessRemoteWrite)
	})
	mw := add(&u, func() (*MW, error) { return pd.AllocMW(MWType2) })
	ch := add(&u, func() (*CompChannel, error) { return d.CreateCompChannel() })
	cq := add(&u, func() (*CQ, error) { return d.CreateCQ(CQOptions{Size: 7, Channel: ch}) })
	u.do(func() error { return cq.Resize(15) }, func() error { return cq.Notify() })
	srq := add(&u, func() (*SRQ, error) { return pd.CreateSRQ(SRQOptions{MaxWR: 7, MaxSGE: 1}) })
	u.do(func() error { return srq.Resize(15) }, func() error { return srq.SetLimit(2) },
		func() error { _, err := srq.Query(); return err }, func() error { return srq.PostRecv(1, mr.SGE(0, 64)) })
	qp := func(typ ib.QPType, srq *SRQ) *QP {
		o := QPOptions{Type: typ, SendCQ: cq, RecvCQ: cq, SRQ: srq, MaxSendWR: 7, MaxSendSGE: 1}
		if srq == nil {
			o.MaxRecvWR, o.MaxRecvSGE = 7, 1
		}
		return add(&u, func() (*QP, error) { return pd.CreateQP(o) })
	}
	rc, ud := qp(ib.RC, srq), qp(ib.UD, nil)
	u.do(func() error {
		peer, err := rc.Endpoint()
		if err != nil {
			return err
		}
		return rc.Connect(context.Background(), peer) // with itself
	}, func() error { _, err := rc.Query(); return err })
	u.do(func() error {
		b := rc.BeginSend()
		b.BindMW(1, SendSignaled, mw, IncRKey(mw.RKey()), mr, mr.Addr(), 64, AccessRemoteWrite)
		b.Send(2, SendSignaled)
		b.SGE(mr.SGE(64, 64))
		return b.Post()
	})
	group, _ := ib.ParseGID("239.1.2.3")
	defer func() {
		if u.err != nil && ud != nil { // a QP is not closed while it is in a group
			ud.DetachMulticast(group, 0)
		}
	}()
	u.do(func() error { return ud.ReadyUD(5) }, func() error { return ud.AttachMulticast(group, 0) }, func() error { return ud.DetachMulticast(group, 0) })
	ah := add(&u, func() (*AH, error) {
		return pd.CreateAH(AHAttr{Port: 1, Global: true, GRH: GRH{DGID: group, HopLimit: 1}})
	})
	u.do(func() error { return ah.Close() }, func() error { return mw.Close() }, func() error { return rc.Close() }, func() error { return ud.Close() },
		func() error { return srq.Close() }, func() error { return cq.Close() }, func() error { return ch.Close() },
		func() error { return mr.Close() }, func() error { return pd.Close() })
	return u.err
}

// using stops at the first error.
type using struct {
	dev *Device
	err error
}

// add creates an object unless there was an error.
func add[T any](u *using, create func() (T, error)) (v T) {
	if u.err == nil {
		v, u.err = create()
	}
	return v
}

// do calls functions until one returns an error.
func (u *using) do(fs ...func() error) {
	for _, f := range fs {
		if u.err == nil {
			u.err = f()
		}
	}
}
