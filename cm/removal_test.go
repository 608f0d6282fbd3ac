package cm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// removable returns a device with an address, and what removes it.
func removable(t *testing.T) (device, addr string, remove func() error) {
	t.Helper()
	testenv.Guest(t)
	if testenv.TheRig().Driver == "mlx5" {
		return unbindable(t)
	}
	if testenv.TheRig().Soft {
		const addr = "127.0.0.9"
		dev := value(soft.New(soft.Options{Addr: netip.MustParseAddr(addr)}))(t)
		t.Cleanup(func() { must(t, dev.Close()) })
		return dev.Name(), addr, dev.Close
	}
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "cr0"}, PeerName: "cr1"}))
	dev, peer := value(netlink.LinkByName("cr0"))(t), value(netlink.LinkByName("cr1"))(t)
	t.Cleanup(func() { netlink.LinkDel(dev) })
	must(t, netlink.AddrAdd(dev, value(netlink.ParseAddr("10.9.0.1/24"))(t)), netlink.LinkSetUp(peer), netlink.LinkSetUp(dev),
		netlinkrdma.AddLink("rxecr", netlinkrdma.LinkKind(testenv.TheRig().Driver), "cr0"))
	return "rxecr", "10.9.0.1", func() error { return netlinkrdma.DeleteLink("rxecr") }
}

// unbindable is removable for mlx5: the second device, whose driver is told to leave it, and
// after the test to take it back.
func unbindable(t *testing.T) (device, addr string, remove func() error) {
	t.Helper()
	device = testenv.TheRig().Devices[1]
	found := value(filepath.Glob("/sys/class/infiniband/" + device + "/device/mlx5_core.rdma.*"))(t)
	if len(found) != 1 {
		t.Fatalf("%s is on %q", device, found)
	}
	tell := func(what string) error {
		return os.WriteFile("/sys/bus/auxiliary/drivers/mlx5_ib.rdma/"+what, []byte(filepath.Base(found[0])), 0)
	}
	removed := false
	t.Cleanup(func() {
		if !removed {
			return
		}
		must(t, tell("bind"))
		if testenv.TheRig().InfiniBand() {
			addIPoIB(t, device)
			return
		}
		until(t, "the device is back with its address", func() bool {
			dev, err := uverbs.Open(device, uverbs.OpenOptions{})
			if err != nil {
				return false
			}
			defer dev.Close()
			has := func(e uverbs.GIDEntry) bool { return e.GID.Addr().Unmap() == second }
			return slices.ContainsFunc(value(dev.GIDTable(1))(t), has)
		})
	})
	unbind := func() error {
		err := tell("unbind")
		removed = err == nil
		return err
	}
	if !testenv.Modelled() {
		return device, second.String(), unbind
	}
	// The driver destroys what programs have before it takes their doorbells away, and they ring
	// in between. The model is told that this is no fault of theirs.
	card := value(testenv.OpenCard(device))(t)
	t.Cleanup(func() { must(t, card.Close()) })
	return device, second.String(), func() error {
		before, err := card.Do("violations")
		if err != nil || before != "0" {
			return fmt.Errorf("violations before the driver leaves: %q, %w", before, err)
		}
		err = unbind()
		for _, rule := range []string{"doorbell-state", "doorbell-qpn", "bf-stray", "cq-doorbell-number"} {
			_, err2 := card.Do("forgive %s", rule)
			err = errors.Join(err, err2)
		}
		return err
	}
}

// addIPoIB gives the network interface of the second device, which is a new one, its address.
func addIPoIB(t *testing.T, device string) {
	t.Helper()
	var name string
	until(t, "the device is back with a network interface", func() bool {
		found, _ := filepath.Glob("/sys/class/infiniband/" + device + "/device/net/*")
		if len(found) == 1 {
			name = filepath.Base(found[0])
		}
		return name != ""
	})
	link := value(netlink.LinkByName(name))(t)
	must(t, os.WriteFile("/proc/sys/net/ipv4/conf/"+name+"/accept_local", []byte("1"), 0), // see vmrun
		netlink.AddrAdd(link, value(netlink.ParseAddr(second.String()+"/24"))(t)), netlink.LinkSetUp(link))
	until(t, "the network interface has a carrier", func() bool {
		b, _ := os.ReadFile("/sys/class/net/" + name + "/carrier")
		return string(b) == "1\n"
	})
}

// removal is a device that is removed while calls on it go on.
type removal struct {
	t      *testing.T
	ctx    context.Context
	device string
	addr   string
	l      *Listener
	conns  []*Conn
	calls  sync.WaitGroup
}

// until starts a call again and again until it fails, which it must do with ENODEV and the name of
// the device.
func (r *removal) until(what string, do func() error) {
	r.calls.Go(func() {
		var err error
		for err == nil {
			err = do()
		}
		if !errors.Is(err, syscall.ENODEV) || !strings.Contains(err.Error(), r.device) {
			r.t.Errorf("%s: %v", what, err)
		}
	})
}

// pair makes a connection on the device.
func (r *removal) pair() (client, server *Conn) {
	client, server = value(Dial(r.ctx, r.l.Addr().String(), DialOptions{}))(r.t), value(r.l.Accept(r.ctx))(r.t)
	if d := client.addrs.Device; d != r.device {
		r.t.Fatalf("the connection is on %s", d)
	}
	r.conns = append(r.conns, client, server)
	return client, server
}

// useConns starts calls on connections and streams, and returns memory to close after the removal.
func (r *removal) useConns() (mrs [2]*uverbs.MR) {
	t, ctx := r.t, r.ctx
	client, server := r.pair()
	r.until("Send", func() error { return client.Send(ctx, make([]byte, 5000)) })
	r.until("Recv of a client", func() error { return second1(client.Recv(ctx)) })
	r.until("Recv of a server", func() error { return second1(server.Recv(ctx)) })

	from, to := r.pair()
	fromStream, toStream := from.Stream(), to.Stream()
	r.until("Stream.Read", func() error { return second1(fromStream.Read(make([]byte, 100))) })
	r.until("Stream.Write", func() error { return second1(toStream.Write(make([]byte, 100000))) })
	r.until("Stream.Read of nothing", func() error { return second1(toStream.Read(make([]byte, 100))) })

	near, far := r.pair()
	for i, c := range []*Conn{near, far} {
		buf := value(uverbs.AllocBuffer(4096, uverbs.BufferOptions{}))(t)
		t.Cleanup(func() { buf.Close() })
		mrs[i] = value(c.PD().RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite | uverbs.AccessRemoteRead}))(t)
	}
	r.until("RDMAWrite", func() error { return near.RDMAWrite(ctx, mrs[0].SGE(0, 2048), RemoteOf(mrs[1])) })
	r.until("RDMARead", func() error { return near.RDMARead(ctx, mrs[0].SGE(2048, 2048), RemoteOf(mrs[1])) })
	r.until("Flush", func() error { return near.Flush(ctx) })
	return mrs
}

// usePackets starts calls on sockets for datagrams. It returns nil if the device has no datagrams.
func (r *removal) usePackets() *PacketConn {
	if testenv.TheRig().IWARP() {
		return nil
	}
	packets := value(ListenPacket(r.ctx, r.addr+":0", PacketOptions{}))(r.t)
	dialled := value(DialPacket(r.ctx, packets.LocalAddr().String(), PacketOptions{}))(r.t)
	peer, _ := dialled.DialedPeer()
	r.until("Recv of datagrams", func() error { _, _, err := packets.Recv(r.ctx); return err })
	r.until("Send of datagrams", func() error { return dialled.Send(r.ctx, []byte("x"), peer) })
	r.t.Cleanup(func() { dialled.Close() })
	return packets
}

// removeUsed removes the device while an ID listens on it that does not answer requests. It returns
// the address of that ID.
func (r *removal) removeUsed(remove func() error, mrs [2]*uverbs.MR) (silent netip.AddrPort) {
	t, ctx := r.t, r.ctx
	raw, silent := listen(t, openKernel(t), rdmacm.TCP, netip.MustParseAddr(r.addr))
	r.until("Dial", func() error { return second1(Dial(ctx, silent.String(), DialOptions{})) })
	request := value(raw.NextRequest(ctx))(t)

	removed := make(chan error, 1)
	go func() { removed <- remove() }() // the kernel waits until every object on the device is closed
	if e := value(raw.Next(ctx))(t); e.Type != rdmacm.EventDeviceRemoval || e.ID != raw {
		t.Errorf("event is %+v", e)
	}
	must(t, raw.Close(), request.ID.Close()) // the kernel reports no removal for an unanswered request
	r.calls.Wait()
	must(t, mrs[0].Close(), mrs[1].Close())
	must(t, <-removed)
	return silent
}

// TestDeviceRemoved: every call returns when the device goes, and says so; and it can go.
func TestDeviceRemoved(t *testing.T) {
	device, addr, remove := removable(t)
	before := quiet(t)
	ctx := within(t)
	r := &removal{t: t, ctx: ctx, device: device, addr: addr}
	r.l = value(Listen(ctx, addr+":0", ListenOptions{}))(t)
	l, everywhere := r.l, value(Listen(ctx, ":0", ListenOptions{}))(t)
	mrs := r.useConns()
	r.until("Accept", func() error { return second1(l.Accept(ctx)) })
	streams := value(Listen(ctx, addr+":0", ListenOptions{}))(t)
	r.until("Accept of streams", func() error { return second1(streams.Streams().Accept()) })
	packets := r.usePackets()
	silent := r.removeUsed(remove, mrs)

	short, cancel := context.WithTimeout(ctx, time.Second) // from a software device, Dial waits for an answer
	defer cancel()
	for name, err := range map[string]error{"Send": r.conns[0].Send(ctx, nil), "Accept": second1(l.Accept(ctx)), "Dial": second1(Dial(short, silent.String(), DialOptions{}))} {
		if err == nil || name != "Dial" && !errors.Is(err, syscall.ENODEV) {
			t.Errorf("%s afterwards: %v", name, err)
		}
	}
	for _, c := range r.conns {
		c.Close()
	}
	must(t, l.Close(), streams.Close())
	if _, err := l.Accept(ctx); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
	if packets != nil {
		must(t, packets.Close())
		if _, _, err := packets.Recv(ctx); !errors.Is(err, os.ErrClosed) {
			t.Errorf("Recv after Close: %v", err)
		}
	}

	// The listener on all addresses still listens on the other device, except on siw, which loses
	// listeners whose connections are aborted.
	if !testenv.TheRig().IWARP() {
		again := value(Dial(ctx, netip.AddrPortFrom(first, everywhere.addr.Port).String(), DialOptions{}))(t)
		must(t, again.Close(), value(everywhere.Accept(ctx))(t).Close())
	}
	must(t, everywhere.Close())
	for end := time.Now().Add(6 * timeout); ; time.Sleep(20 * time.Millisecond) {
		_, err := uverbs.Open(device, uverbs.OpenOptions{})
		after := use(t)
		if errors.Is(err, fs.ErrNotExist) && after.goroutines <= before.goroutines && after.files <= before.files+1 { // c
			break
		}
		if time.Now().After(end) {
			t.Fatalf("looking for the device: %v; there was %+v, and is %+v", err, before, after)
		}
	}
}

// second1 returns the second of two results.
func second1[T any](_ T, err error) error { return err }

// TestDialAfterCrash: a host that has crashed comes back and counts its QPs from the start again,
// so the peer, which has not noticed the crash, rejects the first request as stale.
func TestDialAfterCrash(t *testing.T) {
	ctx := within(t)
	server := value(soft.New(soft.Options{}))(t)
	defer func() { must(t, server.Close()) }()
	o := soft.Options{Seed: 7}
	dev := value(soft.New(o))(t)
	from := netip.AddrPortFrom(dev.Addr(), 0)
	l := value(Listen(ctx, netip.AddrPortFrom(server.Addr(), 0).String(), ListenOptions{}))(t)
	defer l.Close()
	old := value(Dial(ctx, l.Addr().String(), DialOptions{LocalAddr: from}))(t)
	stays := value(l.Accept(ctx))(t)
	defer stays.Close()
	qpn := old.qp.QPN()
	dev.Partition(netip.Addr{})
	must(t, dev.Close())
	old.Close() // of which the peer learns nothing

	dev = value(soft.New(o))(t) // at the same address
	defer func() { must(t, dev.Close()) }()
	again := value(Dial(ctx, l.Addr().String(), DialOptions{LocalAddr: from}))(t)
	defer again.Close()
	if got := again.qp.QPN(); got == qpn {
		t.Errorf("QP %#x was not rejected: the test shows nothing", got)
	}
}
