package interop

import (
	"bytes"
	"context"
	"io"
	"net/netip"
	"os"
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
	defer idle(t)
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

// idle waits until the devices that Dial and Listen have opened are closed, which takes a moment: tests of
// what processes have count them.
func idle(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		left := 0
		for _, name := range rig.Devices {
			dev, err := netlinkrdma.DeviceByName(name)
			change(t, err)
			pds, err := netlinkrdma.PDs(dev)
			change(t, err)
			for _, pd := range pds {
				if int(pd.PID) == os.Getpid() {
					left++
				}
			}
		}
		if left == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d PDs are left", left)
		}
	}
}
