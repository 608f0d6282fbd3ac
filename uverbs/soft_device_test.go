//go:build amd64 || arm64

package uverbs

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// softUser is what a program has on a software device.
type softUser struct {
	t   *testing.T
	dev *Device
	pd  *PD
	cq  *CQ
	mr  *MR
	buf []byte
}

// newSoftUser opens a software device of its own.
func newSoftUser(t *testing.T) *softUser {
	t.Helper()
	return newSoftUserWith(t, soft.Options{})
}

// newSoftUserWith is newSoftUser for a device with options.
func newSoftUserWith(t *testing.T, o soft.Options) *softUser {
	t.Helper()
	s := value(soft.New(o))(t)
	u := &softUser{t: t, dev: value(Open(s.Name(), OpenOptions{}))(t), buf: make([]byte, 4096)}
	t.Cleanup(func() { must(t, u.dev.CloseAll(), s.Close()) })
	u.pd, u.cq = value(u.dev.AllocPD())(t), value(u.dev.CreateCQ(CQOptions{Size: 63}))(t)
	u.mr = value(u.pd.RegSlice(u.buf, AccessLocalWrite|AccessRemoteWrite|AccessRemoteRead|AccessMWBind))(t)
	return u
}

// qp creates a QP.
func (u *softUser) qp(typ ib.QPType, srq *SRQ) *QP {
	u.t.Helper()
	o := QPOptions{Type: typ, SendCQ: u.cq, RecvCQ: u.cq, SRQ: srq, MaxSendWR: 7, MaxSendSGE: 2, MaxInline: 16}
	if srq == nil {
		o.MaxRecvWR, o.MaxRecvSGE = 7, 1
	}
	return value(u.pd.CreateQP(o))(u.t)
}

// pair creates two connected QPs.
func (u *softUser) pair(srq *SRQ, path PathOptions) (a, b *QP) {
	u.t.Helper()
	a, b = u.qp(ib.RC, nil), u.qp(ib.RC, srq)
	a.path, b.path = path, path
	must(u.t, a.Connect(u.t.Context(), value(b.Endpoint())(u.t)), b.Connect(u.t.Context(), value(a.Endpoint())(u.t)))
	return a, b
}

// next waits for a completion.
func (u *softUser) next() WC {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(u.t.Context(), 20*time.Second)
	defer cancel()
	wcs := make([]WC, 1)
	for {
		n := value(u.cq.Poll(wcs))(u.t)
		switch {
		case n == 1:
			return wcs[0]
		case ctx.Err() != nil:
			u.t.Fatal("no completion comes")
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// TestWindowKeys: a window has the key of the last bind that was posted, within a batch as well, and
// the key before it if the bind fails. The peer can use the key that the window has.
func TestWindowKeys(t *testing.T) {
	u := newSoftUser(t)
	a, b := u.pair(nil, PathOptions{})
	mw := value(u.pd.AllocMW(MWType2))(t)
	first := IncRKey(mw.RKey())
	second := IncRKey(first)
	batch := b.BeginSend()
	batch.BindMW(1, SendSignaled, mw, first, u.mr, u.mr.Addr(), 64, AccessRemoteWrite)
	batch.LocalInv(2, SendSignaled, first)
	batch.BindMW(3, SendSignaled|SendFence, mw, second, u.mr, u.mr.Addr()+64, 64, AccessRemoteWrite)
	must(t, batch.Post())
	if got := mw.RKey(); got != second {
		t.Errorf("key %#x after the batch, want %#x", got, second)
	}
	for id := range uint64(3) {
		if wc := u.next(); wc.ID != id+1 || wc.Status != WCSuccess {
			t.Fatalf("completion %+v, want %d", wc, id+1)
		}
	}
	copy(u.buf[1000:], "by the window")
	must(t, a.PostSend(SendWR{ID: 4, Opcode: WRRDMAWrite, Flags: SendSignaled, RemoteAddr: u.mr.Addr() + 64, RKey: second, SGL: []SGE{u.mr.SGE(1000, 13)}}))
	if wc := u.next(); wc.ID != 4 || wc.Status != WCSuccess || string(u.buf[64:77]) != "by the window" {
		t.Errorf("WRITE by the window: %+v, %q", wc, u.buf[64:77])
	}
	// A key of 0 in the slice API is the next key. Neither bind can be carried out: the window is bound.
	bind := BindInfo{MW: mw, MR: u.mr, Addr: u.mr.Addr(), Length: 64, Access: AccessRemoteWrite}
	must(t, b.PostSend(SendWR{ID: 5, Opcode: WRBindMW, Flags: SendSignaled, Bind: bind}, SendWR{ID: 6, Opcode: WRBindMW, Flags: SendSignaled, Bind: bind}))
	if got, want := mw.RKey(), IncRKey(IncRKey(second)); got != want {
		t.Errorf("key %#x after two binds, want %#x", got, want)
	}
	for id := range uint64(2) {
		if wc := u.next(); wc.ID != 5+id || wc.Status == WCSuccess {
			t.Fatalf("completion %+v, want a failure of %d", wc, 5+id)
		}
	}
	if got := mw.RKey(); got != second {
		t.Errorf("key %#x after binds that failed, want %#x", got, second)
	}
}

// TestBindRefused: binds that are not posted.
func TestBindRefused(t *testing.T) {
	u, other := newSoftUser(t), newSoftUser(t)
	q, _ := u.pair(nil, PathOptions{})
	mw, gone := value(u.pd.AllocMW(MWType2))(t), value(u.pd.AllocMW(MWType2))(t)
	must(t, gone.Close())
	closed := value(u.pd.RegSlice(make([]byte, 8), AccessMWBind))(t)
	must(t, closed.Close())
	foreign := value(other.pd.AllocMW(MWType2))(t)
	key := mw.RKey()
	for name, c := range map[string]struct {
		mw   *MW
		mr   *MR
		rkey uint32
		want error
	}{
		"no window":                     {nil, u.mr, key, errBind},
		"no MR":                         {mw, nil, key, errBind},
		"window that is closed":         {gone, u.mr, gone.RKey(), errBind},
		"MR that is closed":             {mw, closed, key, errBind},
		"window of another device":      {foreign, u.mr, foreign.RKey(), errBindForeign},
		"MR of another device":          {mw, other.mr, key, errBindForeign},
		"another index":                 {mw, u.mr, key ^ 0x100, errBindKey},
		"index with the highest bit on": {mw, u.mr, key ^ 1<<31, errBindKey},
	} {
		b := q.BeginSend()
		b.Send(1, 0)
		b.BindMW(2, 0, c.mw, c.rkey, c.mr, u.mr.Addr(), 8, 0)
		err := b.Post()
		if p, ok := errors.AsType[*PostError](err); !ok || p.Index != 1 || !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v of work request 1", name, err, c.want)
		}
	}
	if mw.RKey() != key {
		t.Errorf("key %#x, want %#x", mw.RKey(), key)
	}
}

// TestBuilderMisused: calls of a builder that do not fit the work request or the QP.
func TestBuilderMisused(t *testing.T) {
	u, other := newSoftUser(t), newSoftUser(t)
	rc, _ := u.pair(nil, PathOptions{})
	ud := u.qp(ib.UD, nil)
	must(t, ud.ReadyUD(5))
	attr := AHAttr{Port: 1, Global: true, GRH: GRH{DGID: value(u.dev.GIDTable(1))(t)[0].GID, HopLimit: 1}}
	ah, gone := value(u.pd.CreateAH(attr))(t), value(u.pd.CreateAH(attr))(t)
	must(t, gone.Close())
	attr.GRH.DGID = value(other.dev.GIDTable(1))(t)[0].GID
	foreign := value(other.pd.CreateAH(attr))(t)
	for name, c := range map[string]struct {
		q     *QP
		build func(b *SendBuilder)
		index int
		want  error
	}{
		"SGE before all":        {rc, func(b *SendBuilder) { b.SGE(u.mr.SGE(0, 1)) }, 0, errNothingBegun},
		"inline before all":     {rc, func(b *SendBuilder) { b.Inline([]byte{1}) }, 0, errNothingBegun},
		"address of others":     {ud, func(b *SendBuilder) { b.To(ah, 1, 1); b.SendInline(1, 0, []byte{1}) }, 1, errNoAddress},
		"no address of a whole": {ud, func(b *SendBuilder) { b.SendInline(1, 0, []byte{1}) }, 0, errNoAddress},
		"address of RC before":  {rc, func(b *SendBuilder) { b.To(ah, 1, 1) }, 0, errNotDatagram},
		"SRQ before all":        {rc, func(b *SendBuilder) { b.ToSRQ(1) }, 0, errNothingBegun},
		"address of RC":         {rc, func(b *SendBuilder) { b.Send(1, 0); b.To(ah, 1, 1) }, 0, errNotDatagram},
		"SRQ of RC":             {rc, func(b *SendBuilder) { b.Send(1, 0); b.ToSRQ(1) }, 0, errNotXRC},
		"no address":            {ud, func(b *SendBuilder) { b.Send(1, 0) }, 0, errNoAddress},
		"address that is gone":  {ud, func(b *SendBuilder) { b.Send(1, 0); b.To(gone, 1, 1) }, 0, errNoAddress},
		"address of a stranger": {ud, func(b *SendBuilder) { b.Send(1, 0); b.To(foreign, 1, 1) }, 0, errForeignAH},
		"SGE of LOCAL_INV":      {rc, func(b *SendBuilder) { b.Send(1, 0); b.LocalInv(2, 0, 1); b.SGE(u.mr.SGE(0, 1)) }, 1, errNoSGL},
		"inline of a flush":     {rc, func(b *SendBuilder) { b.Flush(1, 0, 0, 8, 1, 0, 0); b.Inline([]byte{1}) }, 0, errNoInline},
		"SGE of ATOMIC WRITE":   {rc, func(b *SendBuilder) { b.AtomicWrite(1, 0, 0, 1, [8]byte{}); b.SGE(u.mr.SGE(0, 1)) }, 0, errNoSGL},
		"inline too long":       {rc, func(b *SendBuilder) { b.Send(1, 0); b.Inline(make([]byte, maxInline)); b.Inline([]byte{1}) }, 0, ErrInlineTooLong},
	} {
		b := c.q.BeginSend()
		c.build(b)
		b.Send(9, 0) // the first error counts
		err := b.Post()
		if p, ok := errors.AsType[*PostError](err); !ok || p.Index != c.index || !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v of work request %d", name, err, c.want, c.index)
		}
	}
	// No data is no misuse, and after an error the builder is empty.
	b := ud.BeginSend()
	b.Send(1, SendSignaled)
	b.To(ah, ud.QPN(), 5)
	b.SGE()
	must(t, b.Post())
	b = ud.BeginSend()
	b.To(ah, ud.QPN(), 5)
	b.SendSGE(2, SendSignaled, u.mr.SGE(0, 1))
	b.SendInline(3, SendSignaled, []byte{1})
	must(t, b.Post())
	for id := range uint64(3) {
		if wc := u.next(); wc.ID != id+1 || wc.Status != WCSuccess {
			t.Errorf("completion %+v, want one of %d", wc, id+1)
		}
	}
}

// TestNotReadyText: a message for which the peer has no receive fails with the number of receives that
// the peer has posted, if the peer is of this program.
func TestNotReadyText(t *testing.T) {
	u := newSoftUser(t)
	srq := value(u.pd.CreateSRQ(SRQOptions{MaxWR: 7, MaxSGE: 1}))(t)
	for _, c := range []struct {
		srq  *SRQ
		want string
	}{{nil, "has 2 receives posted now and a MinRNRTimer of 10µs"}, {srq, "has 2 receives posted in its SRQ now and a MinRNRTimer of 10µs"}} {
		a, b := u.pair(c.srq, PathOptions{RNRRetry: 1, MinRNRTimer: 1})
		must(t, a.PostSend(SendWR{ID: 1, Opcode: WRSend, Flags: SendSignaled}))
		wc := u.next()
		if wc.Status != WCRNRRetryExcErr {
			t.Fatalf("completion %+v, want %s", wc, WCRNRRetryExcErr)
		}
		post := b.PostRecv
		if c.srq != nil {
			post = c.srq.PostRecv
		}
		must(t, post(2, u.mr.SGE(0, 8)), post(3, u.mr.SGE(0, 8)))
		if text := a.Err(&wc).Error(); !strings.Contains(text, c.want) {
			t.Errorf("%q does not say %q", text, c.want)
		}
		must(t, a.Close(), b.Close())
	}
}

// TestAHAttrForRefused: the way back of a datagram that no sender of this port can have sent.
func TestAHAttrForRefused(t *testing.T) {
	u := newSoftUser(t)
	here := value(u.dev.GIDTable(1))(t)[0].GID
	grh := func(to ib.GID) []byte {
		b := make([]byte, 40)
		b[0], b[6] = 6<<4, nextUDP
		copy(b[8:], here[:])
		copy(b[24:], to[:])
		return b
	}
	with := &WC{Flags: WCWithGRH, SLID: 7, SL: 2, PathBits: 1}
	if attr := value(u.dev.AHAttrFor(1, with, grh(here)))(t); !attr.Global || attr.GRH.DGID != here || attr.DLID != 0 {
		t.Errorf("the way back is %+v, want one to %s without a LID", attr, here)
	}
	if attr := value(u.dev.AHAttrFor(1, &WC{SLID: 7, SL: 2, PathBits: 1}, nil))(t); attr != (AHAttr{DLID: 7, SL: 2, SrcPathBits: 1, Port: 1}) {
		t.Errorf("the way back without a GRH is %+v", attr)
	}
	for name, c := range map[string]struct {
		wc   *WC
		grh  []byte
		want string
	}{
		"no completion":       {nil, grh(here), "wc is nil"},
		"no GRH":              {with, nil, "GRH"},
		"another destination": {with, grh(gid(t, "10.1.2.3")), "destination of the datagram is 10.1.2.3"},
	} {
		_, err := u.dev.AHAttrFor(1, c.wc, c.grh)
		_, err2 := u.pd.CreateAHFor(1, c.wc, c.grh)
		for _, err := range []error{err, err2} {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %q", name, err, c.want)
			}
		}
	}
	must(t, value(u.pd.CreateAHFor(1, with, grh(here)))(t).Close())
}

// TestClosedParents: an object whose PD or device is closed cannot be created, and leaves nothing that
// keeps another parent open.
func TestClosedParents(t *testing.T) {
	u := newSoftUser(t)
	pd := value(u.dev.AllocPD())(t)
	must(t, pd.Close())
	group := gid(t, "239.1.2.3")
	for name, create := range map[string]func() error{
		"MR":  func() error { _, err := pd.RegSlice(make([]byte, 8), 0); return err },
		"MW":  func() error { _, err := pd.AllocMW(MWType2); return err },
		"SRQ": func() error { _, err := pd.CreateSRQ(SRQOptions{MaxWR: 1, MaxSGE: 1}); return err },
		"QP":  func() error { _, err := pd.CreateQP(QPOptions{SendCQ: u.cq, RecvCQ: u.cq}); return err },
		"AH": func() error {
			_, err := pd.CreateAH(AHAttr{Port: 1, Global: true, GRH: GRH{DGID: group, HopLimit: 1}})
			return err
		},
		"pool": func() error { _, err := NewBufferPool(pd, PoolOptions{SlotSize: 64, Slots: 1}); return err },
	} {
		errorIs(t, create(), os.ErrClosed, "%s of a closed PD", name)
	}
	must(t, u.cq.Close())
}

// TestArguments: arguments out of range are refused with their name, value and range.
func TestArguments(t *testing.T) {
	u := newSoftUser(t)
	srq := value(u.pd.CreateSRQ(SRQOptions{MaxWR: 7, MaxSGE: 1}))(t)
	size := srq.Attr().MaxWR
	ud := u.qp(ib.UD, nil)
	must(t, srq.SetLimit(0), srq.SetLimit(size))
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"limit of -1":       {srq.SetLimit(-1), "limit is -1, allowed: 0 to "},
		"limit above":       {srq.SetLimit(size + 1), "the size of the SRQ"},
		"Init of a UD QP":   {ud.Init(), "use ReadyUD"},
		"pool without a PD": {func() error { _, err := NewBufferPool(nil, PoolOptions{SlotSize: 1, Slots: 1}); return err }(), "pd is nil"},
	} {
		if arg, ok := errors.AsType[*ArgError](c.err); !ok || !strings.Contains(arg.Error(), c.want) {
			t.Errorf("%s: %v, want an ArgError with %q", name, c.err, c.want)
		}
	}
}

// TestMulticastRefused: a group that cannot be joined or left.
func TestMulticastRefused(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd, cq := value(d.AllocPD())(t), value(d.CreateCQ(CQOptions{Size: 1}))(t)
	q := value(pd.CreateQP(QPOptions{Type: ib.UD, SendCQ: cq, RecvCQ: cq}))(t)
	group := gid(t, "239.1.2.3")
	for _, c := range []struct {
		verb  string
		call  func(ib.GID, uint16) error
		errno syscall.Errno
		want  string
	}{
		{"ATTACH_MCAST", q.AttachMulticast, syscall.ENOMEM, "no room for another group or QP"},
		{"ATTACH_MCAST", q.AttachMulticast, syscall.EINVAL, "invalid argument; given: 239.1.2.3"},
		{"DETACH_MCAST", q.DetachMulticast, syscall.EINVAL, "is not attached to the group"},
	} {
		k.refuse[c.verb] = c.errno
		if err := c.call(group, 0); !errors.Is(err, c.errno) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %v with %q", c.verb, err, c.errno, c.want)
		}
		delete(k.refuse, c.verb)
	}
	if err := q.AttachMulticast(gid(t, "10.1.0.1"), 0); !strings.Contains(err.Error(), "a multicast address") {
		t.Errorf("no group: %v", err)
	}
	must(t, q.AttachMulticast(group, 3), q.DetachMulticast(group, 3), q.Close(), cq.Close(), pd.Close())
}

// TestBufferUsers: regions of one buffer come and go at the same time, and the buffer is closed after
// the last of them.
func TestBufferUsers(t *testing.T) {
	u := newSoftUser(t)
	buf := value(AllocBuffer(4096, BufferOptions{}))(t)
	use := func() {
		for range 50 {
			mr, err := u.pd.RegMR(buf, MROptions{Access: AccessLocalWrite})
			if err == nil {
				err = mr.Close()
			}
			if err != nil {
				t.Error(err)
			}
		}
	}
	together(use, use, use)
	mr := value(u.pd.RegMR(buf, MROptions{}))(t)
	if err := buf.Close(); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "1 MR") {
		t.Errorf("a buffer with one MR: %v, want EBUSY", err)
	}
	must(t, mr.Close(), buf.Close(), buf.Close())
	if _, err := u.pd.RegMR(buf, MROptions{}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a buffer that is closed: %v, want os.ErrClosed", err)
	}
}

// TestEndpointAddress: which addresses belong to a QP's port.
func TestEndpointAddress(t *testing.T) {
	u := newSoftUser(t)
	a, _ := u.pair(nil, PathOptions{})
	table := value(u.dev.GIDTable(1))(t)
	for _, c := range []struct {
		e    Endpoint
		want bool
	}{
		{Endpoint{GID: table[0].GID}, true},
		{Endpoint{GID: table[len(table)-1].GID}, true},
		{Endpoint{GID: gid(t, "10.9.9.9")}, false},
		{Endpoint{LID: 0}, true}, // the port has no LID
		{Endpoint{LID: 9}, false},
	} {
		if got := a.hasAddress(c.e); got != c.want {
			t.Errorf("%+v: %v, want %v", c.e, got, c.want)
		}
	}
}

// TestPathMTUs: of two devices whose ports have different MTUs the smaller one is the path's. If an
// endpoint does not have its MTU, the error of a message that fails names both.
func TestPathMTUs(t *testing.T) {
	for _, told := range []bool{true, false} {
		small, large := newSoftUserWith(t, soft.Options{MTU: 1024}), newSoftUserWith(t, soft.Options{MTU: 4096})
		a, b := small.qp(ib.RC, nil), large.qp(ib.RC, nil)
		ea, eb := value(a.Endpoint())(t), value(b.Endpoint())(t)
		if ea.MTU != ib.MTU1024 || eb.MTU != ib.MTU4096 {
			t.Fatalf("the endpoints have MTUs %d and %d", ea.MTU.Bytes(), eb.MTU.Bytes())
		}
		if !told {
			ea.MTU, eb.MTU = 0, 0
		}
		var peer, own Endpoint // as programs exchange them
		must(t, json.Unmarshal(value(json.Marshal(eb))(t), &peer), json.Unmarshal(value(json.Marshal(ea))(t), &own))
		must(t, a.Connect(t.Context(), peer), b.Connect(t.Context(), own))
		for _, s := range []struct {
			u    *softUser
			qp   *QP
			to   *softUser
			here string
		}{{small, a, large, "the path MTU is 1024 here, 4096 at the peer"}, {large, b, small, "the path MTU is 4096 here, 1024 at the peer"}} {
			must(t, s.qp.PostSend(SendWR{Opcode: WRRDMAWrite, Flags: SendSignaled, SGL: []SGE{s.u.mr.SGE(0, 4096)}, RemoteAddr: s.to.mr.SGE(0, 0).Addr, RKey: s.to.mr.RKey()}))
			wc := s.u.next()
			err := s.qp.Err(&wc)
			if told {
				must(t, err)
			} else if err == nil || !strings.Contains(err.Error(), s.here) {
				t.Errorf("MTUs that differ: %v", err)
			}
		}
	}
	// A failure of another cause is explained by that cause.
	small, large := newSoftUserWith(t, soft.Options{MTU: 1024}), newSoftUserWith(t, soft.Options{MTU: 4096})
	a, b := small.qp(ib.RC, nil), large.qp(ib.RC, nil)
	ea, eb := value(a.Endpoint())(t), value(b.Endpoint())(t)
	ea.MTU, eb.MTU = 0, 0
	must(t, a.Connect(t.Context(), eb), b.Connect(t.Context(), ea))
	must(t, a.PostSend(SendWR{Opcode: WRRDMAWrite, Flags: SendSignaled, SGL: []SGE{small.mr.SGE(0, 8)}, RemoteAddr: large.mr.Addr(), RKey: large.mr.RKey() + 1}))
	wc := small.next()
	if err := a.Err(&wc); err == nil || !strings.Contains(err.Error(), "no MR and no memory window of the peer has rkey") || strings.Contains(err.Error(), "MTU") {
		t.Errorf("a wrong rkey: %v", err)
	}
}

// TestNoSocket: a device that has no socket says so about a peer that is not in this process.
func TestNoSocket(t *testing.T) {
	u := newSoftUser(t)
	to := gid(t, "127.0.0.200")
	connected := u.qp(ib.RC, nil).Connect(t.Context(), Endpoint{QPN: 17, GID: to})
	_, made := u.pd.CreateAH(AHAttr{Port: 1, Global: true, GRH: GRH{DGID: to, SGIDIndex: 1}})
	for what, err := range map[string]error{"Connect": connected, "CreateAH": made} {
		errorIs(t, err, syscall.ENETUNREACH, "%s", what)
		if !strings.Contains(err.Error(), u.dev.Name()+" has no socket to reach others") || strings.Contains(err.Error(), "ARP") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
