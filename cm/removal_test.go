package cm

import (
	"errors"
	"fmt"
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

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/hca/bench"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// removable returns a device with an address, and what removes it.
func removable(t *testing.T) (device, addr string, remove func() error) {
	t.Helper()
	testenv.Guest(t)
	if testenv.TheRig().Driver == "mlx5" {
		return unbindable(t)
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
		until(t, "the device is back with its address", func() bool {
			dev, err := uverbs.Open(device)
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
	card := value(bench.Open(device))(t)
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

// TestDeviceRemoved: every call returns when the device goes, and says so; and it can go.
func TestDeviceRemoved(t *testing.T) {
	device, addr, remove := removable(t)
	before := quiet(t)
	ctx := within(t)
	l := value(Listen(ctx, addr+":0", ListenOptions{}))(t)
	everywhere := value(Listen(ctx, ":0", ListenOptions{}))(t)
	pair := func(o DialOptions) (client, server *Conn) {
		client, server = value(Dial(ctx, l.Addr().String(), o))(t), value(l.Accept(ctx))(t)
		if d := client.addrs.Device; d != device {
			t.Fatalf("the connection is on %s", d)
		}
		return client, server
	}
	var all sync.WaitGroup
	// until does something again and again until it fails.
	until := func(what string, do func() error) {
		all.Go(func() {
			var err error
			for err == nil {
				err = do()
			}
			if !errors.Is(err, syscall.ENODEV) || !strings.Contains(err.Error(), device) {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	client, server := pair(DialOptions{})
	until("Send", func() error { return client.Send(ctx, make([]byte, 5000)) })
	until("Recv of a client", func() error { return second1(client.Recv(ctx)) })
	until("Recv of a server", func() error { return second1(server.Recv(ctx)) })

	from, to := pair(DialOptions{})
	fromStream, toStream := from.Stream(), to.Stream()
	until("Stream.Read", func() error { return second1(fromStream.Read(make([]byte, 100))) })
	until("Stream.Write", func() error { return second1(toStream.Write(make([]byte, 100000))) })
	until("Stream.Read of nothing", func() error { return second1(toStream.Read(make([]byte, 100))) })

	near, far := pair(DialOptions{})
	mrs := make([]*uverbs.MR, 2)
	for i, c := range []*Conn{near, far} {
		buf := value(uverbs.AllocBuffer(4096))(t)
		defer buf.Close()
		mrs[i] = value(c.PD().RegMR(buf, uverbs.AccessLocalWrite|uverbs.AccessRemoteWrite|uverbs.AccessRemoteRead))(t)
	}
	until("RDMAWrite", func() error { return near.RDMAWrite(ctx, mrs[0].SGE(0, 2048), RemoteOf(mrs[1])) })
	until("RDMARead", func() error { return near.RDMARead(ctx, mrs[0].SGE(2048, 2048), RemoteOf(mrs[1])) })
	until("Flush", func() error { return near.Flush(ctx) })

	until("Accept", func() error { return second1(l.Accept(ctx)) })
	streams := value(Listen(ctx, addr+":0", ListenOptions{}))(t)
	until("Accept of streams", func() error { return second1(streams.Streams().Accept()) })

	var packets *PacketConn
	if !testenv.TheRig().IWARP() {
		packets = value(ListenPacket(ctx, addr+":0", PacketOptions{}))(t)
		dialled := value(DialPacket(ctx, packets.LocalAddr().String(), PacketOptions{}))(t)
		peer, _ := dialled.DialedPeer()
		until("Recv of datagrams", func() error { _, _, err := packets.Recv(ctx); return err })
		until("Send of datagrams", func() error { return dialled.Send(ctx, []byte("x"), peer) })
		defer dialled.Close()
	}

	// An ID that nobody answers for.
	c := openKernel(t)
	raw, silent := listen(t, c, TCP, netip.MustParseAddr(addr))
	until("Dial", func() error { return second1(Dial(ctx, silent.String(), DialOptions{})) })
	request := value(raw.Request(ctx))(t)

	removed := make(chan error, 1)
	go func() { removed <- remove() }() // the kernel waits for all that is on the device
	if e := value(raw.Wait(ctx))(t); e.Type != EventDeviceRemoval || e.ID != raw {
		t.Errorf("event is %+v", e)
	}
	must(t, raw.Close(), request.ID.Close()) // the kernel tells of no request that was not answered
	all.Wait()
	for _, mr := range mrs {
		must(t, mr.Close())
	}
	must(t, <-removed)
	for name, err := range map[string]error{"Send": client.Send(ctx, nil), "Accept": second1(l.Accept(ctx)), "Dial": second1(Dial(ctx, silent.String(), DialOptions{}))} {
		if err == nil || name != "Dial" && !errors.Is(err, syscall.ENODEV) {
			t.Errorf("%s afterwards: %v", name, err)
		}
	}
	for _, c := range []*Conn{client, server, from, to, near, far} {
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

	// The other device is there, and who listens everywhere listens on that; but siw loses listeners
	// with connections that are broken off.
	if !testenv.TheRig().IWARP() {
		again := value(Dial(ctx, netip.AddrPortFrom(first, everywhere.addr.Port).String(), DialOptions{}))(t)
		must(t, again.Close(), value(everywhere.Accept(ctx))(t).Close())
	}
	must(t, everywhere.Close())
	for end := time.Now().Add(6 * timeout); ; time.Sleep(20 * time.Millisecond) {
		_, err := netlinkrdma.DeviceByName(device)
		after := use(t)
		if err != nil && after.goroutines <= before.goroutines && after.files <= before.files+1 { // c
			break
		}
		if time.Now().After(end) {
			t.Fatalf("looking for the device: %v; there was %+v, and is %+v", err, before, after)
		}
	}
}

// second1 returns the second of two results.
func second1[T any](_ T, err error) error { return err }
