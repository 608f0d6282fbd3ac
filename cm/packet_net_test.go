package cm

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
)

// TestPacketNet: datagrams by the methods of net.PacketConn, and the errors that programs of package net look for.
func TestPacketNet(t *testing.T) {
	before := quiet(t)
	t.Run("all", func(t *testing.T) {
		server := newPackets(t, firstAny, PacketOptions{})
		client := value(DialPacket(within(t), server.LocalAddr().String(), PacketOptions{}))(t)
		var p net.PacketConn = client
		t.Cleanup(func() { must(t, p.Close()) })
		to, _ := client.DialedPeer()

		for _, msg := range []string{"", "a datagram", "another one"} {
			n, err := p.WriteTo([]byte(msg), to)
			if err != nil || n != len(msg) {
				t.Fatalf("WriteTo: %d bytes, %v", n, err)
			}
			b := make([]byte, 4)
			n, from, err := server.ReadFrom(b)
			if want := msg[:min(len(b), len(msg))]; err != nil || string(b[:n]) != want || from.(Peer).QPN() != client.qp.QPN() {
				t.Fatalf("ReadFrom: %q from %v, %v; want %q", b[:n], from, err, want)
			}
			if _, err := server.WriteTo(b[:n], from); err != nil {
				t.Fatal(err)
			}
			if got, _ := received(t, client); got != string(b[:n]) {
				t.Errorf("the answer is %q", got)
			}
		}

		var arg *rdmacm.ArgError
		var op *net.OpError
		for _, to := range []net.Addr{nil, &net.UDPAddr{}, Peer{}} {
			if n, err := p.WriteTo([]byte("x"), to); n != 0 || !errors.As(err, &arg) || arg.Field != "to" || !errors.As(err, &op) || op.Op != "write" {
				t.Errorf("to %T: %d bytes, %v", to, n, err)
			}
		}

		must(t, p.SetDeadline(time.Now().Add(-time.Second)))
		_, _, read := p.ReadFrom(nil)
		_, write := p.WriteTo(nil, to)
		for _, err := range []error{read, write} {
			var timeout net.Error
			if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() {
				t.Errorf("after the deadline: %v", err)
			}
		}
		must(t, p.SetDeadline(time.Time{}))
		done := make(chan error)
		wait := func() { _, _, err := p.ReadFrom(nil); done <- err }
		go wait()
		must(t, p.SetReadDeadline(time.Now())) // ends a call that waits
		if err := <-done; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a deadline for a call that waits: %v", err)
		}
		must(t, p.SetReadDeadline(time.Time{}), p.SetWriteDeadline(time.Time{}))
		var toAddr net.Addr = to
		if n := testing.AllocsPerRun(1000, func() { value(p.WriteTo(nil, toAddr))(t) }); n > 0 {
			t.Errorf("WriteTo allocates %v times", n)
		}
		go wait()
		must(t, p.Close())
		if err := <-done; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Close of a call that waits: %v", err)
		}
		_, _, read = p.ReadFrom(nil)
		_, write = p.WriteTo(nil, to)
		for _, err := range []error{read, write, p.SetDeadline(time.Now()), p.SetReadDeadline(time.Time{}), p.SetWriteDeadline(time.Time{})} {
			if !errors.Is(err, net.ErrClosed) || !errors.As(err, &op) {
				t.Errorf("after Close: %v", err)
			}
		}
	})
	nothingLeft(t, before)
}
