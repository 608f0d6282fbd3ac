package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/uverbs"
)

// eventRow is an event, and a line of the JSON of "verbs events".
type eventRow struct {
	Time        string  `json:"time"`
	Event       string  `json:"event"`
	Device      string  `json:"device,omitempty"`
	DeviceIndex *uint32 `json:"device_index,omitempty"`
	Port        uint32  `json:"port,omitempty"`
	Netdev      string  `json:"netdev,omitempty"`
	NetdevIndex int     `json:"netdev_index,omitempty"`
	Address     string  `json:"address,omitempty"`
}

func newEvents() *command.Command {
	var asJSON bool
	cmd := &command.Command{
		Use:     "events [flags]",
		Aliases: []string{"monitor"},
		Short:   "Show what happens to devices, ports and addresses, until interrupted",
		Long: `It prints a line for
  - a device that appears, disappears or is renamed, and a network interface that is attached to a
    port, detached or renamed, as "rdma monitor" does; before Linux 6.12, devices that appear and
    disappear are seen within a second;
  - an asynchronous event of a port or device, such as PORT_ERR, GID_CHANGE or CLIENT_REREGISTER, as
    ibv_asyncwatch does; this needs the rights to open the device, which is tried again each second
    until it succeeds; a device of rxe or siw that is deleted meanwhile is gone up to a second
    later;
  - an address that is added to or deleted from a network interface of an RDMA port, and an
    interface that goes up or down.`,
		Example: `  verbs events
  verbs events --json | jq --unbuffered -r 'select(.event == "PORT_ERR") | .device'`,
		Exit: "  0  interrupted\n  1  failure; standard error has the reason",
		Args: command.Arguments(0),
		Run: func(cmd *command.Command, _ []string) error {
			row, warning := eventPrinters(cmd.Out(), cmd.Err(), asJSON)
			return newWatch().run(cmd.Context(), row, warning)
		},
	}
	command.JSONFlag(cmd, &asJSON)
	return cmd
}

// watch collects events from all sources.
type watch struct {
	rows     chan eventRow
	warnings chan error
	all      sync.WaitGroup

	mu      sync.Mutex
	watched map[string]*watched // whose asynchronous events are waited for; see watchKey

	ended error // why the kernel reports nothing more of devices; nil if it does

	open func(name string) (*uverbs.Device, error) // uverbs.Open
}

// missing says why the events of a device are not read, or, if name is empty, what the kernel reports of devices; nil if
// they are.
func (w *watch) missing(name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if name == "" {
		return w.ended
	}
	for _, d := range w.watched {
		if d.name == name && d.said != "" {
			return errors.New(d.said)
		}
	}
	return nil
}

// newWatch returns a watch of nothing.
func newWatch() *watch {
	open := func(name string) (*uverbs.Device, error) { return uverbs.Open(name, uverbs.OpenOptions{}) }
	return &watch{rows: make(chan eventRow), warnings: make(chan error), watched: map[string]*watched{}, open: open}
}

// watched is a device whose asynchronous events are waited for.
type watched struct {
	name string             // the latest
	stop context.CancelFunc // closes the device; nil if it could not be watched, so that a retry follows
	said string             // the last warning; empty if its events are read
}

// run calls row for each event, and warning for what is not seen, until the context ends, which is no error.
func (w *watch) run(ctx context.Context, row func(eventRow) error, warning func(error)) error {
	m, err := netlinkrdma.OpenMonitor()
	switch {
	case err == nil:
		defer m.Close()
	case errors.As(err, new(*netlinkrdma.FeatureError)):
		m = nil
	default:
		if _, soft := uverbs.Devices(); soft != nil { // there are no software devices either
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer w.all.Wait()
	defer cancel()
	if err := w.addresses(ctx); err != nil {
		return err
	}
	if err := w.devices(ctx); err != nil {
		return err
	}
	if m != nil {
		w.all.Go(func() { w.monitor(ctx, m) })
	}
	w.all.Go(func() { w.look(ctx, m == nil) })
	return w.pass(ctx, row, warning)
}

// eventPrinters returns functions that print events and warnings.
func eventPrinters(out, warn io.Writer, asJSON bool) (row func(eventRow) error, warning func(error)) {
	return func(r eventRow) error { return r.print(out, asJSON) }, func(err error) { fmt.Fprintf(warn, "verbs: %v\n", err) }
}

// pass passes on what comes until the context ends.
func (w *watch) pass(ctx context.Context, row func(eventRow) error, warning func(error)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case r := <-w.rows:
			if err := row(r); err != nil {
				return err
			}
		case err := <-w.warnings:
			warning(err)
		}
	}
}

// send passes an event on.
func (w *watch) send(ctx context.Context, row eventRow) {
	row.Time = time.Now().Format("2006-01-02T15:04:05.000Z07:00")
	select {
	case w.rows <- row:
	case <-ctx.Done():
	}
}

// warn passes on what is not seen.
func (w *watch) warn(ctx context.Context, err error) {
	select {
	case w.warnings <- err:
	case <-ctx.Done():
	}
}

// changes is what monitor needs of a monitor.
type changes interface {
	Next(context.Context) (netlinkrdma.Event, error)
}

// monitor passes on what the kernel reports of devices.
func (w *watch) monitor(ctx context.Context, m changes) {
	for {
		e, err := m.Next(ctx)
		if ctx.Err() != nil {
			return
		}
		if err := w.devices(ctx); err != nil { // before the event is shown, so that what follows is seen too
			w.warn(ctx, err)
		}
		switch {
		case errors.Is(err, netlinkrdma.ErrEventsLost):
			w.warn(ctx, err)
			continue
		case err != nil:
			w.mu.Lock()
			w.ended = err
			w.mu.Unlock()
			w.warn(ctx, err)
			return
		}
		row := eventRow{Event: e.Type.String(), Device: e.Device, Port: e.Port, Netdev: e.Netdev, NetdevIndex: e.NetdevIndex}
		if e.Device != "" {
			row.DeviceIndex = &e.Index
		}
		w.send(ctx, row)
	}
}

// look lists the devices each second: the kernel cannot delete a device of rxe or siw while it is open, and
// reports its end only afterwards. With report it passes on what has changed.
func (w *watch) look(ctx context.Context, report bool) {
	before, _ := netlinkrdma.Devices()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		now, listed := netlinkrdma.Devices()
		if err := w.devices(ctx); err != nil {
			w.warn(ctx, err)
		}
		if listed != nil { // on a system without RDMA
			continue
		}
		onlyIn := func(some, others []netlinkrdma.Device, event netlinkrdma.EventType) {
			for _, d := range some {
				if !slices.ContainsFunc(others, func(o netlinkrdma.Device) bool { return o.Name == d.Name && o.Index == d.Index }) {
					w.send(ctx, eventRow{Event: event.String(), Device: d.Name, DeviceIndex: &d.Index})
				}
			}
		}
		if report {
			onlyIn(before, now, netlinkrdma.EventUnregister)
			onlyIn(now, before, netlinkrdma.EventRegister)
		}
		before = now
	}
}

// devices begins to wait for the asynchronous events of devices that are new or could not be watched so
// far, and closes those that are gone. It returns when the devices are open, so that no later event is
// missed, but does not wait long for a device that hangs.
func (w *watch) devices(ctx context.Context) error {
	const longest = time.Second
	infos, err := uverbs.Devices()
	if err != nil {
		return err
	}
	late := time.After(longest)
	for _, opened := range w.begin(ctx, infos) {
		select {
		case <-opened:
		case <-late:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// begin starts a goroutine for each device that is not watched, and stops those of devices that are
// gone. The channels that it returns are closed when the devices are open or have failed.
func (w *watch) begin(ctx context.Context, infos []uverbs.DeviceInfo) (opening []chan struct{}) {
	w.mu.Lock()
	there := map[string]bool{}
	for _, d := range infos {
		key := watchKey(d)
		there[key] = true
		known := w.watched[key]
		if known == nil {
			known = &watched{}
			w.watched[key] = known
		}
		known.name = d.Name
		if known.stop != nil {
			continue
		}
		one, cancel := context.WithCancel(ctx)
		known.stop = cancel
		opened := make(chan struct{})
		opening = append(opening, opened)
		w.all.Go(func() {
			defer cancel()
			w.failed(ctx, known, d.Name, w.follow(one, known, d, opened))
		})
	}
	for key, d := range w.watched {
		if !there[key] {
			if d.stop != nil {
				d.stop()
			}
			delete(w.watched, key)
		}
	}
	w.mu.Unlock()
	return opening
}

// failed has a device tried again, and warns unless the warning would be the last one again.
func (w *watch) failed(ctx context.Context, d *watched, name string, err error) {
	if err == nil {
		return
	}
	w.mu.Lock()
	again := d.said == err.Error()
	d.stop, d.said = nil, err.Error()
	w.mu.Unlock()
	if !again {
		w.warn(ctx, fmt.Errorf("asynchronous events of %s are missing: %w", name, err))
	}
}

// follow opens a device, closes opened, and passes on the device's events.
func (w *watch) follow(ctx context.Context, known *watched, d uverbs.DeviceInfo, opened chan<- struct{}) error {
	type result struct {
		dev *uverbs.Device
		err error
	}
	done := make(chan result)
	go func() { // it may hang, also when the program is to end
		var r result
		if r.err = d.Err; r.err == nil {
			r.dev, r.err = w.open(d.Name)
		}
		close(opened)
		select {
		case done <- r:
		case <-ctx.Done():
			if r.err == nil {
				r.dev.Close()
			}
		}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return r.err
		}
		w.mu.Lock()
		known.said = ""
		w.mu.Unlock()
		return w.device(ctx, d, r.dev)
	case <-ctx.Done():
		return nil
	}
}

// watchKey identifies a device, also one with the name of an earlier device; it stays when a device
// is renamed.
func watchKey(d uverbs.DeviceInfo) string {
	if d.InProcess {
		return d.Name
	}
	return fmt.Sprint("kernel ", d.Index)
}

// device passes on the asynchronous events of a device until it is removed, and closes it.
func (w *watch) device(ctx context.Context, d uverbs.DeviceInfo, dev *uverbs.Device) error {
	defer dev.Close()
	for {
		e, err := dev.NextEvent(ctx)
		switch {
		case ctx.Err() != nil || errors.Is(err, uverbs.ErrDeviceRemoved):
			return nil
		case err != nil:
			return err
		}
		w.mu.Lock()
		row := eventRow{Event: eventName(e.Type), Device: d.Name, Port: uint32(e.Port)}
		if now := w.watched[watchKey(d)]; now != nil {
			row.Device = now.name
		}
		w.mu.Unlock()
		if !d.InProcess {
			row.DeviceIndex = &d.Index
		}
		w.send(ctx, row)
	}
}

// eventNames are the kernel's names of events of ports and devices, without IB_EVENT_.
var eventNames = map[uverbs.EventType]string{
	uverbs.EventDeviceFatal: "DEVICE_FATAL", uverbs.EventPortActive: "PORT_ACTIVE", uverbs.EventPortErr: "PORT_ERR",
	uverbs.EventLIDChange: "LID_CHANGE", uverbs.EventPKeyChange: "PKEY_CHANGE", uverbs.EventSMChange: "SM_CHANGE",
	uverbs.EventClientReregister: "CLIENT_REREGISTER", uverbs.EventGIDChange: "GID_CHANGE", uverbs.EventDeviceSpeedChange: "DEVICE_SPEED_CHANGE",
}

// eventName returns the kernel's name of an event.
func eventName(t uverbs.EventType) string {
	if name, ok := eventNames[t]; ok {
		return name
	}
	return fmt.Sprintf("EVENT_%d", uint32(t))
}

// addresses begins to pass on changes of the network interfaces of RDMA ports.
func (w *watch) addresses(ctx context.Context) error {
	s, err := subscribe()
	if err != nil {
		return fmt.Errorf("listen for changes of network interfaces and addresses: %w", err)
	}
	stop := context.AfterFunc(ctx, s.Close)
	w.all.Go(func() {
		defer s.Close()
		defer stop()
		up := interfacesUp{}
		up.look()
		for {
			msgs, from, err := s.Receive()
			switch {
			case ctx.Err() != nil:
				return
			case err == nil && from.Pid != nl.PidKernel:
				continue
			case errors.Is(err, unix.ENOBUFS):
				w.warn(ctx, errors.New("changes of network interfaces and addresses were lost: there were too many at once"))
				for _, row := range up.look() {
					w.netdev(ctx, row)
				}
			case err != nil:
				w.warn(ctx, fmt.Errorf("changes of network interfaces and addresses: %w", err))
				return
			}
			for i := range msgs {
				if row, ok := up.event(&msgs[i]); ok {
					w.netdev(ctx, row)
				}
			}
		}
	})
	return nil
}

// subscribe opens a socket for changes of network interfaces and their addresses.
func subscribe() (*nl.NetlinkSocket, error) {
	return nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
}

// interfacesUp has the indexes of the network interfaces that can pass packets.
type interfacesUp map[int]bool

// look reads which they are, and returns the events of those that have changed. Without an answer,
// the next change of each is an event.
func (up interfacesUp) look() (rows []eventRow) {
	all, err := net.Interfaces()
	if err != nil {
		return nil
	}
	now := interfacesUp{}
	for _, i := range all {
		if i.Flags&net.FlagUp != 0 && i.Flags&net.FlagRunning != 0 {
			now[i.Index] = true
		}
	}
	for _, some := range []interfacesUp{up, now} {
		for index := range some {
			if row, ok := up.set(index, now[index]); ok {
				rows = append(rows, row)
			}
		}
	}
	return rows
}

// set returns the event of a network interface, and whether it has changed. It keeps those that are up.
func (up interfacesUp) set(index int, now bool) (row eventRow, ok bool) {
	row = eventRow{Event: "NETDEV_DOWN", NetdevIndex: index}
	ok = now != up[index]
	if now {
		row.Event = "NETDEV_UP"
		up[index] = true
	} else {
		delete(up, index)
	}
	return row, ok
}

// event decodes a notification. It returns false for a change that has no event.
func (up interfacesUp) event(m *syscall.NetlinkMessage) (row eventRow, ok bool) {
	if len(m.Data) < unix.SizeofIfAddrmsg { // the smaller header
		return row, false
	}
	index := int(binary.NativeEndian.Uint32(m.Data[4:])) // in both headers
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(m.Data) < unix.SizeofIfInfomsg || m.Data[0] != unix.AF_UNSPEC { // others are about ports of bridges
			return row, false
		}
		const running = unix.IFF_UP | unix.IFF_RUNNING
		return up.set(index, m.Header.Type == unix.RTM_NEWLINK && binary.NativeEndian.Uint32(m.Data[8:])&running == running)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		row = eventRow{Event: "ADDRESS_ADDED", NetdevIndex: index}
		if m.Header.Type == unix.RTM_DELADDR {
			row.Event = "ADDRESS_DELETED"
		}
		attrs, err := nl.ParseRouteAttrAsMap(m.Data[unix.SizeofIfAddrmsg : len(m.Data)&^(unix.RTA_ALIGNTO-1)]) // it panics without the last padding
		ip, bits := attrs[unix.IFA_ADDRESS].Value, int(m.Data[1])
		if own := attrs[unix.IFA_LOCAL].Value; own != nil && !bytes.Equal(own, ip) { // ip belongs to a peer
			ip, bits = own, 8*len(own)
		}
		addr, ok := netip.AddrFromSlice(ip)
		row.Address = netip.PrefixFrom(addr, bits).String()
		return row, ok && err == nil
	}
	return row, false
}

// netdev passes on an event of a network interface if it belongs to RDMA ports, with the first of them.
func (w *watch) netdev(ctx context.Context, row eventRow) {
	devs, err := netlinkrdma.Devices()
	if err != nil {
		return
	}
	for _, d := range devs {
		ports, err := netlinkrdma.Ports(d)
		if err != nil {
			continue
		}
		for _, p := range ports {
			if p.NetdevIndex == row.NetdevIndex {
				row.Device, row.DeviceIndex, row.Port, row.Netdev = d.Name, &d.Index, p.Num, p.Netdev
				w.send(ctx, row)
				return
			}
		}
	}
}

// print writes one line.
func (r eventRow) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	line := fmt.Sprintf("%s  %-15s", r.Time, r.Event)
	if r.Device != "" {
		line += " dev " + r.Device
	}
	if r.Port != 0 {
		line += fmt.Sprintf(" port %d", r.Port)
	}
	if r.Netdev != "" {
		line += " netdev " + r.Netdev
	}
	if r.Address != "" {
		line += " address " + r.Address
	}
	_, err := fmt.Fprintln(w, strings.TrimRight(line, " "))
	return err
}
