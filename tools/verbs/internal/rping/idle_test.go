package rping

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// lineChan passes what is written to it on.
type lineChan chan string

func (c lineChan) Write(b []byte) (int, error) { c <- string(b); return len(b), nil }

// TestIdle: clients that connect and send nothing do not keep the server from its client. It disconnects
// them when the client has sent a ping.
func TestIdle(t *testing.T) {
	c, err := net.ListenUDP("udp4", nil)
	if err != nil {
		t.Fatal(err)
	}
	udp := c.LocalAddr().(*net.UDPAddr).Port // one that nobody uses
	c.Close()
	addrs := []string{"127.0.0.2", "127.0.0.3", "127.0.0.4"} // of the server, the client and the idle clients
	devs := make([]*soft.Device, len(addrs))
	for i, addr := range addrs {
		if devs[i], err = soft.New(soft.Options{Addr: netip.MustParseAddr(addr), Port: uint16(udp)}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { devs[i].Close() })
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const port, strangers = 7174, 3
	out, log, ended := make(lineChan, 16), make(lineChan, 16), make(chan error, 1)
	go func() {
		o := Options{Server: true, Address: addrs[0], Port: port, Timeout: time.Minute, MaxClients: 64}
		ended <- o.Run(ctx, out, log)
	}()
	select {
	case line := <-out:
		if !strings.HasPrefix(line, "listening on ") {
			t.Fatalf("the server says %q", line)
		}
	case err := <-ended:
		t.Fatal(err)
	}
	channel, err := rdmacm.OpenChannel(rdmacm.ChannelOptions{Local: devs[2].Addr()})
	if err != nil {
		t.Fatal(err)
	}
	defer channel.Close()
	for range strangers {
		id, err := channel.NewID(rdmacm.TCP)
		if err != nil {
			t.Fatal(err)
		}
		e := &end{run: &run{o: &Options{Client: true, Timeout: time.Minute}, log: io.Discard, channel: channel}, id: id, size: MinPing}
		defer e.close()
		if err := e.connect(ctx, netip.AddrPortFrom(devs[2].Addr(), 0), netip.AddrPortFrom(devs[0].Addr(), port)); err != nil {
			t.Fatal(err)
		}
	}
	o := Options{Client: true, Address: addrs[0], Source: addrs[1], Port: port, Count: 5, Size: 64, Verify: true, Timeout: 20 * time.Second}
	said := make(lineChan, 16)
	if err := o.Run(ctx, said, io.Discard); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, c := range []lineChan{said, out} {
		if line := <-c; !strings.HasPrefix(line, "5 pings") {
			t.Errorf("one side says %q", line)
		}
	}
	close(log)
	n := 0
	for line := range log {
		if strings.Contains(line, errNotTheClient.Error()) {
			n++
		}
	}
	if n != strangers {
		t.Errorf("%d clients were disconnected, want %d", n, strangers)
	}
}
