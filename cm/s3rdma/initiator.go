package s3rdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/mlx5"
)

// InitiatorOptions are the options of [NewInitiator]. The zero value suits most servers.
type InitiatorOptions struct {
	AccessKey uint64             // AccessKey is the key of the clients' targets; by default [DefaultAccessKey].
	Path      uverbs.PathOptions // Path has the port, the GID, and how long targets may take to answer.
	Transfers int                // Transfers is how many transfers there may be at a time, each with an initiator of DC, from 1 to 4096; by default 16. More wait.
	PerPeer   int                // PerPeer is how many of them, and of those that wait, one peer may have, from 1 to Transfers; by default half of Transfers. More are declined.
	Chunk     int                // Chunk is how many bytes a READ or WRITE moves, from 4 KiB to 1 GiB; by default 1 MiB.
	Depth     int                // Depth is how many chunks of a transfer are in flight or being handled, from 1 to 64; by default 4. A transfer has memory for so many.
	Timeout   time.Duration      // Timeout ends a transfer of which no chunk completes for so long; by default 30 s.

	// Networks are where the memory of clients may be, as addresses of the GIDs. By default a
	// request may name only the address that it comes from. A client names its target itself:
	// without a limit, it could have the server write into the memory of others.
	Networks []netip.Prefix
}

// Initiator is a server's side: it reads and writes the memory that requests offer. It is safe for
// concurrent use.
type Initiator struct {
	o    InitiatorOptions
	dev  *uverbs.Device
	pd   *uverbs.PD
	open func() (channel, error)

	slots chan struct{} // has an element for each transfer
	done  chan struct{} // closed by Close

	closing  sync.Once
	closeErr error

	mu    sync.Mutex
	idle  []*lane
	peers map[netip.Addr]int // transfers by peer: by the address of its GID, and by the one that its request comes from
}

// channel is what reads and writes the memory of one target at a time: an initiator of DC. Another
// transport, with a connection to each target, would be another channel.
type channel interface {
	// Point makes the target of a token that of the requests that follow.
	Point(ctx context.Context, t Token) error
	// Post posts the READ or WRITE of a chunk.
	Post(read bool, id uint64, addr uint64, rkey uint32, sge uverbs.SGE) error
	// Wait waits for completions.
	Wait(ctx context.Context, wcs []uverbs.WC) (int, error)
	// Err explains a completion.
	Err(wc *uverbs.WC) error
	// Reset ends all requests, so that none touches memory any more, and makes the channel usable
	// again.
	Reset() error
	Close() error
}

// lane is a channel with memory for a transfer.
type lane struct {
	channel
	mr  *uverbs.MR
	buf *uverbs.Buffer
}

// NewInitiator makes an initiator on a device. It fails with a [uverbs.FeatureError] if the device
// does not have DC.
func NewInitiator(dev *uverbs.Device, o InitiatorOptions) (*Initiator, error) {
	return newInitiator(dev, o, func(i *Initiator) (channel, error) { return newDCI(i) })
}

// newInitiator makes an initiator, whose channels a function makes.
func newInitiator(dev *uverbs.Device, o InitiatorOptions, open func(*Initiator) (channel, error)) (_ *Initiator, err error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	i := &Initiator{o: o, dev: dev, slots: make(chan struct{}, o.Transfers), done: make(chan struct{}), peers: map[netip.Addr]int{}}
	i.open = func() (channel, error) { return open(i) }
	if i.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	l, err := i.newLane() // whether the device can
	if err != nil {
		i.pd.Close()
		return nil, err
	}
	i.idle = append(i.idle, l)
	return i, nil
}

// defaults fills in the options, or returns an error.
func (o *InitiatorOptions) defaults() error {
	o.AccessKey, o.Networks = cmp.Or(o.AccessKey, DefaultAccessKey), slices.Clone(o.Networks)
	o.Transfers = cmp.Or(o.Transfers, 16)
	o.PerPeer = cmp.Or(o.PerPeer, max(o.Transfers/2, 1))
	o.Chunk, o.Depth, o.Timeout = cmp.Or(o.Chunk, 1<<20), cmp.Or(o.Depth, 4), cmp.Or(o.Timeout, 30*time.Second)
	if o.Timeout < 0 {
		return fmt.Errorf("s3rdma: Timeout is %v, want 0 or more", o.Timeout)
	}
	o.Path.RNRRetry = cmp.Or(o.Path.RNRRetry, 6) // 7 would be forever
	for _, f := range []struct {
		name               string
		value, least, most int
	}{{"Transfers", o.Transfers, 1, 4096}, {"PerPeer", o.PerPeer, 1, o.Transfers}, {"Chunk", o.Chunk, 4 << 10, 1 << 30}, {"Depth", o.Depth, 1, 64}} {
		if f.value < f.least || f.value > f.most {
			return fmt.Errorf("s3rdma: %s is %d, want %d to %d", f.name, f.value, f.least, f.most)
		}
	}
	if n := slices.IndexFunc(o.Networks, func(p netip.Prefix) bool { return !p.IsValid() }); n >= 0 {
		return fmt.Errorf("s3rdma: Networks[%d] is not a prefix", n)
	}
	return nil
}

// newLane makes a channel with memory.
func (i *Initiator) newLane() (_ *lane, err error) {
	l := new(lane)
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if l.buf, err = uverbs.AllocBuffer(i.o.Chunk*i.o.Depth, uverbs.BufferOptions{}); err != nil {
		return nil, err
	}
	if l.mr, err = i.pd.RegMR(l.buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite}); err != nil {
		return nil, err
	}
	c, err := i.open()
	if err == nil { // else c may be a nil pointer
		l.channel = c
	}
	return l, err
}

// close closes the channel before its memory.
func (l *lane) close() error {
	var errs []error
	if l.channel != nil {
		errs = append(errs, l.channel.Close())
	}
	if l.mr != nil {
		errs = append(errs, l.mr.Close())
	}
	if l.buf != nil {
		errs = append(errs, l.buf.Close())
	}
	return errors.Join(errs...)
}

// Close closes the initiator. It waits for transfers that are under way; there are no more
// afterwards.
func (i *Initiator) Close() error {
	i.closing.Do(func() {
		close(i.done)
		for range cap(i.slots) {
			i.slots <- struct{}{}
		}
		var errs []error
		for _, l := range i.idle {
			errs = append(errs, l.close())
		}
		i.closeErr = errors.Join(append(errs, i.pd.Close())...)
	})
	return i.closeErr
}

// allows reports whether a server that got a request from an address may use a token.
func (i *Initiator) allows(t Token, from netip.Addr) bool {
	at := t.GID.Addr().Unmap()
	if len(i.o.Networks) == 0 {
		return at == from.Unmap().WithZone("")
	}
	return slices.ContainsFunc(i.o.Networks, func(p netip.Prefix) bool {
		if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 { // the addresses of GIDs are not mapped here
			p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
		}
		return p.Contains(at)
	})
}

// errTooMany says that a peer has as many transfers as it may have.
var errTooMany = errors.New("the peer has too many transfers")

// begin begins a transfer, which reads or writes the memory of a token: it waits until there may be
// one more. The request comes from an address, which may be unknown.
func (i *Initiator) begin(ctx context.Context, t Token, from netip.Addr, read bool) (_ *transfer, err error) {
	if err := t.check(); err != nil {
		return nil, fmt.Errorf("s3rdma: %w", err)
	}
	peers := []netip.Addr{t.GID.Addr().Unmap()}
	if from = from.Unmap().WithZone(""); from.IsValid() && from != peers[0] {
		peers = append(peers, from)
	}
	if err := i.enter(peers); err != nil {
		return nil, err
	}
	select {
	case i.slots <- struct{}{}:
	case <-ctx.Done():
		i.leave(peers)
		return nil, ctx.Err()
	case <-i.done:
		i.leave(peers)
		return nil, fmt.Errorf("s3rdma: the initiator is closed: %w", os.ErrClosed)
	}
	defer func() {
		if err != nil {
			<-i.slots
			i.leave(peers)
		}
	}()
	l, err := i.lane()
	if err != nil {
		return nil, err
	}
	if err := l.Point(ctx, t); err != nil {
		return nil, errors.Join(err, i.give(l, false))
	}
	return &transfer{i: i, ctx: ctx, token: t, peers: peers, lane: l, read: read, slots: make([]slot, i.o.Depth)}, nil
}

// enter counts a transfer of a peer, or returns an error if it has too many.
func (i *Initiator) enter(peers []netip.Addr) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, p := range peers {
		if i.peers[p] >= i.o.PerPeer {
			return fmt.Errorf("s3rdma: %w: %d of %s", errTooMany, i.o.PerPeer, p)
		}
	}
	for _, p := range peers {
		i.peers[p]++
	}
	return nil
}

// leave counts the end of a transfer.
func (i *Initiator) leave(peers []netip.Addr) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, p := range peers {
		if i.peers[p]--; i.peers[p] == 0 {
			delete(i.peers, p)
		}
	}
}

// lane returns a lane that no transfer uses.
func (i *Initiator) lane() (*lane, error) {
	i.mu.Lock()
	if n := len(i.idle); n > 0 {
		l := i.idle[n-1]
		i.idle = i.idle[:n-1]
		i.mu.Unlock()
		return l, nil
	}
	i.mu.Unlock()
	return i.newLane()
}

// give gives a lane back, whose requests have all completed, or closes it, which ends them.
func (i *Initiator) give(l *lane, clean bool) error {
	if !clean && l.Reset() != nil {
		return l.close()
	}
	i.mu.Lock()
	i.idle = append(i.idle, l)
	i.mu.Unlock()
	return nil
}

// dci is an initiator of DC with a CQ of its own.
type dci struct {
	*uverbs.QP
	pd  *uverbs.PD
	cq  *uverbs.CQ
	key uint64

	peer uverbs.Endpoint // whose address ah is
	ah   *uverbs.AH      // nil at first
	dctn uint32
}

// newDCI makes an initiator of DC.
func newDCI(i *Initiator) (_ *dci, err error) {
	d := &dci{pd: i.pd, key: i.o.AccessKey}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	if d.cq, err = i.dev.CreateCQ(uverbs.CQOptions{Size: 2 * i.o.Depth, Events: true}); err != nil {
		return nil, err
	}
	if d.QP, err = mlx5.CreateDCI(i.pd, mlx5.DCIOptions{SendCQ: d.cq, MaxSendWR: i.o.Depth, Path: i.o.Path}); err != nil {
		return nil, err
	}
	return d, mlx5.ReadyDC(d.QP)
}

// Point implements [channel]. It keeps the address of the last target, since a client has many
// requests.
func (d *dci) Point(_ context.Context, t Token) error {
	d.dctn = t.DCTN
	peer := uverbs.Endpoint{LID: t.LID, GID: t.GID}
	if d.ah != nil && d.peer == peer {
		return nil
	}
	attr, err := d.PathTo(peer)
	if err != nil {
		return err
	}
	ah, err := d.pd.CreateAH(attr)
	if err != nil {
		return err
	}
	old := d.ah
	d.ah, d.peer = ah, peer
	if old == nil {
		return nil
	}
	return old.Close()
}

// Post implements [channel].
func (d *dci) Post(read bool, id uint64, addr uint64, rkey uint32, sge uverbs.SGE) error {
	b := d.BeginSend()
	if read {
		b.Read(id, uverbs.SendSignaled, addr, rkey)
	} else {
		b.Write(id, uverbs.SendSignaled, addr, rkey)
	}
	b.ToDCT(d.ah, d.dctn, d.key)
	b.SGE(sge)
	return b.Post()
}

// Wait implements [channel].
func (d *dci) Wait(ctx context.Context, wcs []uverbs.WC) (int, error) { return d.cq.Wait(ctx, wcs) }

// Reset implements [channel]. The address goes too: it may be why requests have failed.
func (d *dci) Reset() error {
	if err := d.Modify(uverbs.QPAttr{State: ib.QPReset}, uverbs.AttrState); err != nil {
		return err
	}
	if ah := d.ah; ah != nil {
		d.ah = nil
		if err := ah.Close(); err != nil {
			return err
		}
	}
	var wcs [16]uverbs.WC
	for { // completions of before
		if n, err := d.cq.Poll(wcs[:]); n == 0 || err != nil {
			return errors.Join(err, mlx5.ReadyDC(d.QP))
		}
	}
}

// Close implements [channel].
func (d *dci) Close() error {
	var errs []error
	if d.QP != nil {
		errs = append(errs, d.QP.Close())
	}
	if d.ah != nil {
		errs = append(errs, d.ah.Close())
	}
	if d.cq != nil {
		errs = append(errs, d.cq.Close())
	}
	return errors.Join(errs...)
}
