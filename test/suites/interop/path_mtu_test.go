package interop

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestStreamMTU: between interfaces of MTU 9000 and 1500, a Stream carries long messages both ways,
// whichever side dials.
func TestStreamMTU(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsIB(t, "path MTUs")
	testenv.NeedsRoCE(t, "path MTUs of network interfaces")
	testenv.Needs(t, "jumbo frames", "rxe") // the modelled card has none
	l := link(t, netdev0)
	change(t, netlink.LinkSetMTU(l, 9000))
	undone(t, func() error { return netlink.LinkSetMTU(l, l.Attrs().MTU) })
	settle(t, dev0, func(a uverbs.PortAttr, _ []uverbs.GIDEntry) bool { return a.ActiveMTU == ib.MTU4096 })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	addr := func(i int) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(rig.Addrs[i]), 0) }
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(i>>16 + i>>8 + i)
	}
	before := pds(t)
	undone(t, func() error { // tests of what processes have count them
		for end := time.Now().Add(20 * time.Second); pds(t) > before; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				return errors.New("PDs are left")
			}
		}
		return nil
	})
	for from := range 2 {
		listener, err := cm.Listen(ctx, addr(1-from).String(), cm.ListenOptions{})
		change(t, err)
		client, err := cm.Dial(ctx, listener.Addr().String(), cm.DialOptions{LocalAddr: addr(from)})
		change(t, err)
		server, err := listener.Accept(ctx)
		change(t, err)
		writer, reader := client.Stream(), server.Stream()
		for range 2 {
			written := make(chan error, 1)
			go func() {
				_, err := writer.Write(data)
				written <- err
			}()
			got := make([]byte, len(data))
			_, err := io.ReadFull(reader, got)
			change(t, err)
			change(t, <-written)
			if !bytes.Equal(got, data) {
				t.Errorf("from %s: other bytes arrive", rig.Devices[from])
			}
			writer, reader = reader, writer
		}
		client.Close()
		server.Close()
		change(t, listener.Close())
	}
}

// pds returns how many PDs the devices have. Those of cm stay for a moment after the last connection.
func pds(t *testing.T) (n int) {
	t.Helper()
	for _, name := range rig.Devices {
		dev, err := netlinkrdma.DeviceByName(name)
		change(t, err)
		all, err := netlinkrdma.PDs(dev)
		change(t, err)
		n += len(all)
	}
	return n
}
