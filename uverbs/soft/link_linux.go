package soft

import (
	"errors"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/uverbs/internal/rtnetlink"
)

// linkWatch watches the network interface of a device. Its sockets belong to the network namespace of the
// thread that has opened them, as the socket of the device does.
type linkWatch struct {
	index   int
	addr    netip.Addr
	changes *os.File                            // rtnetlink's notifications
	conn    rtnetlink.Conn                      // for queries
	own     atomic.Pointer[map[netip.Addr]bool] // the addresses of all interfaces; nil until start
	done    sync.WaitGroup
}

// watchLink opens the sockets. It returns nil if the system does not allow it: the device then takes its
// network interface for one that does not change.
func watchLink(index int, addr netip.Addr) *linkWatch {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil
	}
	w := &linkWatch{index: index, addr: addr, changes: os.NewFile(uintptr(fd), "rtnetlink")}
	err = unix.Bind(fd, &unix.SockaddrNetlink{
		Family: unix.AF_NETLINK, Groups: unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR,
	})
	if err == nil {
		w.conn, err = rtnetlink.Open()
	}
	if err != nil {
		w.changes.Close()
		return nil
	}
	return w
}

// start reports the state of the network interface now, in this goroutine, and from then on each time when
// it may have changed, in another one. gone is called once the interface does not exist any more.
func (w *linkWatch) start(report func(linkState), gone func()) {
	if w == nil {
		return
	}
	if s, err := w.state(); err == nil {
		report(s)
	}
	w.done.Go(func() {
		var b [1]byte // what a notification says does not matter
		for {
			// ENOBUFS says that notifications were lost.
			if _, err := w.changes.Read(b[:]); err != nil && !errors.Is(err, unix.ENOBUFS) {
				return
			}
			s, err := w.state()
			switch {
			case err == nil:
				report(s)
			case errors.Is(err, unix.ENODEV):
				gone()
				return
			}
		}
	})
}

// state returns the state of the network interface. It keeps the addresses of all interfaces.
func (w *linkWatch) state() (linkState, error) {
	link, err := w.conn.Link(w.index)
	if err != nil {
		return linkState{}, err
	}
	s := linkState{down: link.Flags&unix.IFF_RUNNING == 0, disabled: link.Flags&unix.IFF_UP == 0, noAddress: true, mtu: link.MTU}
	addrs, err := w.conn.Addrs() // each change during it has a notification, so that it is read again after an error
	all := map[netip.Addr]bool{}
	for _, a := range addrs {
		own := a.Prefix.Addr()
		all[own] = true
		// All of 127.0.0.0/8 belongs to the loopback interface.
		if a.Link == w.index && (own == w.addr.WithZone("") || w.addr.IsLoopback() && a.Prefix.Contains(w.addr)) {
			s.noAddress = false
		}
	}
	if err == nil {
		w.own.Store(&all)
	}
	return s, err
}

// ownAddrs returns the addresses of all interfaces in the network namespace of the device, apart from most
// loopback addresses. It reports whether they are known.
func (w *linkWatch) ownAddrs() (addrs map[netip.Addr]bool, ok bool) {
	if w == nil {
		return nil, false
	}
	all := w.own.Load()
	if all == nil {
		return nil, false
	}
	return *all, true
}

// close closes the sockets and waits for the goroutine.
func (w *linkWatch) close() {
	if w != nil {
		w.changes.Close()
		w.done.Wait()
		w.conn.Close()
	}
}
