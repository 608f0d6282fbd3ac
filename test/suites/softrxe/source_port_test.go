package softrxe

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/mlx5"
)

// TestSourcePort gives a connection of the kernel's device other UDP source ports, and sees them on a plain
// socket where its packets arrive. Only a ConnectX card has such ports.
func TestSourcePort(t *testing.T) {
	testenv.Guest(t)
	t.Setenv("RDMADEVX", "1")
	card := host{name: kernelName, addr: rxeAddr}
	e := newEnd(t, "a", card, uverbs.QPOptions{Type: ib.UC}, &record{})
	remote, err := e.qp.Endpoint()
	must(t, err)
	remote.QPN = 0x77 // nobody answers a UC QP
	remote.GID, err = ib.ParseGID(softAddr.String())
	must(t, err)
	must(t, e.qp.Connect(t.Context(), remote))
	if !card.card() {
		if err := mlx5.SetUDPSourcePort(e.qp, 0xc000); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("rxe: %v, want ErrUnsupported", err)
		}
		return
	}
	var socket *net.UDPConn
	must(t, lab.nobody.do(func() (err error) {
		socket, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(softAddr, rocePort)))
		return err
	}))
	closeLater(t, socket)
	first := e.arrivesFrom(t, socket)
	for _, want := range []uint16{0xd903, 0xffff, 0xc000} {
		must(t, mlx5.SetUDPSourcePort(e.qp, want))
		if got := e.arrivesFrom(t, socket); got != want {
			t.Errorf("a packet has the source port %#x, want %#x", got, want)
		}
	}
	if want := uint16(0xc000); first < want {
		t.Errorf("at first the source port is %#x, want at least %#x", first, want)
	}
}

// rocePort is the UDP port of RoCE v2.
const rocePort = 4791

// arrivesFrom sends a message and returns the source port of its packet.
func (e *end) arrivesFrom(t *testing.T, socket *net.UDPConn) uint16 {
	t.Helper()
	e.post(uverbs.SendWR{ID: 1, Opcode: uverbs.WRSend, SGL: []uverbs.SGE{e.sge(0, 100)}})
	if _, ok := e.next(e.sendCQ, "send"); !ok {
		t.Fatal("the send has not completed")
	}
	must(t, socket.SetReadDeadline(time.Now().Add(deadline)))
	b := make([]byte, 2048)
	n, from, err := socket.ReadFromUDPAddrPort(b)
	must(t, err)
	const bth, icrc = 12, 4
	if n != bth+100+icrc || from.Addr() != rxeAddr {
		t.Errorf("%d bytes have arrived from %s, want %s", n, from, fmt.Sprint(bth+100+icrc, " from ", rxeAddr))
	}
	return from.Port()
}
