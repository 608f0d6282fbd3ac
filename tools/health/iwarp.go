package health

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/internal/objects"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// checkAddress lists the addresses of an iWARP port, by which peers reach it.
func (m *machine) checkAddress(device string, p portFacts) Finding {
	f := Finding{Code: CodeAddress, Device: device, Port: int(p.Num)}
	n, err := m.netdev(p.NetdevIndex)
	if err != nil {
		f.see("%s", err)
		return f.conclude(LevelWarning, "the addresses of its network interface are not known")
	}
	for _, a := range n.Addrs {
		f.see("IP address of %s: %s", n.Name, a)
	}
	f.see("iWARP has no GIDs: peers are found by these addresses, and connected by the connection manager alone")
	if !slices.ContainsFunc(n.Addrs, routableAddr) {
		f.fix("ip address add ADDRESS/24 dev %s", n.Name)
		return f.conclude(LevelError, "network interface %s has no address to be reached by", n.Name)
	}
	return f.conclude(LevelOK, "peers reach it by %s of %s", choose(len(n.Addrs) == 1, "the address", fmt.Sprintf("%d addresses", len(n.Addrs))), n.Name)
}

// routableAddr reports whether an address with a prefix can be used without a zone.
func routableAddr(prefix string) bool {
	p, err := netip.ParsePrefix(prefix)
	return err == nil && !p.Addr().IsLinkLocalUnicast()
}

// loopAddr finds an address of a device's network interfaces.
func loopAddr(dev *uverbs.Device) (netip.Addr, error) {
	devs, err := netlinkrdma.Devices()
	if err != nil {
		return netip.Addr{}, err
	}
	for _, d := range devs {
		if d.Index != dev.Info().Index {
			continue
		}
		ports, err := netlinkrdma.Ports(d)
		if err != nil {
			return netip.Addr{}, err
		}
		for _, p := range ports {
			if p.NetdevIndex == 0 {
				return netip.Addr{}, fmt.Errorf("the network interface of %s is not in this network namespace", dev.Name())
			}
			n, err := liveNetdev(p.NetdevIndex)
			if err != nil {
				return netip.Addr{}, err
			}
			for _, a := range n.Addrs {
				if routableAddr(a) {
					return netip.MustParsePrefix(a).Addr(), nil
				}
			}
		}
	}
	return netip.Addr{}, fmt.Errorf("the network interface of %s has no address to connect to", dev.Name())
}

// connectIWARP connects the two QPs by the connection manager, the first to the second, which
// then may not send before it has received. It closes everything that it has opened before the QPs.
func (l *loop) connectIWARP(ctx context.Context, dev *uverbs.Device, opened *objects.Stack) (told string, err error) {
	addr, err := loopAddr(dev)
	if err != nil {
		return "", err
	}
	ch, err := rdmacm.OpenChannel(rdmacm.ChannelOptions{})
	if err != nil {
		return "", err
	}
	opened.Keep(ch)
	newID := func() (*rdmacm.ID, error) {
		id, err := ch.NewID(rdmacm.TCP)
		if err == nil {
			opened.Keep(id)
		}
		return id, err
	}
	listener, err := newID()
	if err != nil {
		return "", err
	}
	if err := listener.Bind(rdmacm.Addr{IP: addr}); err != nil {
		return "", err
	}
	if err := listener.Listen(1); err != nil {
		return "", err
	}
	at, err := listener.Addrs()
	if err != nil {
		return "", err
	}
	told = fmt.Sprintf("%s QP %d to %s QP %d", addr, l.sides[0].qp.QPN(), at.Local, l.sides[1].qp.QPN())
	if at.Device != dev.Name() {
		return told, fmt.Errorf("the connection manager finds %s on device %q", addr, at.Device)
	}
	id, err := newID()
	if err != nil {
		return told, err
	}
	first, second := l.sides[0].qp, l.sides[1].qp
	for _, qp := range []*uverbs.QP{first, second} {
		if err := qp.Init(); err != nil {
			return told, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	accepted := make(chan error, 1)
	var taken *rdmacm.ID
	go func() {
		e, err := listener.NextRequest(ctx)
		if err == nil {
			taken = e.ID
			err = taken.AcceptWait(ctx, rdmacm.ConnParam{QPN: second.QPN()})
		}
		accepted <- err
	}()
	err = id.ResolveWait(ctx, rdmacm.Addr{IP: addr}, at.Local)
	if err == nil {
		_, err = id.ConnectWait(ctx, rdmacm.ConnParam{QPN: first.QPN()})
	}
	if err != nil {
		cancel()
		<-accepted
	} else {
		err = <-accepted
	}
	if taken != nil {
		opened.Keep(taken)
	}
	if err != nil {
		return told, err
	}
	return told, errors.Join(first.SetKernelState(ib.QPRTS), second.SetKernelState(ib.QPRTR))
}
