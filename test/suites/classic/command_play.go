package classic

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"

	"github.com/goverbs/goverbs/cm/rdmacm"
)

// usage prints the help of a command.
func (c command) usage(f *flag.FlagSet) {
	use := "[flags] [ADDRESS]\n\nWithout ADDRESS it is the server, and otherwise the client of the server there."
	if c.list != nil {
		use = ""
	}
	fmt.Fprintf(f.Output(), "%s: %s\n\nUsage: %s %s\n", f.Name(), c.short, f.Name(), use)
	if c.list == nil {
		fmt.Fprintf(f.Output(), "\nExample:\n  %s -port 7471             # on 10.1.0.1\n  %s -port 7471 10.1.0.1    # elsewhere\n\nFlags:\n", f.Name(), f.Name())
		f.PrintDefaults()
	}
}

// play checks the flags and is the server or the client.
func (c command) play(ctx context.Context, f *flag.FlagSet, s settings, listen string, port uint, out io.Writer) (err error) {
	switch {
	case port < 1 || port > 65535:
		return fmt.Errorf("-port is %d, allowed: 1 to 65535", port)
	case s.size < 1 || s.size > maxSize:
		return fmt.Errorf("-size is %d, allowed: 1 to %d", s.size, maxSize)
	case s.count < 1 || s.count > maxCount:
		return fmt.Errorf("-count is %d, allowed: 1 to %d", s.count, maxCount)
	case s.text == "" || len(s.text) > maxSize:
		return fmt.Errorf("-text has %d bytes, allowed: 1 to %d", len(s.text), maxSize)
	}
	run, name, field := c.server, listen, "-listen"
	if f.NArg() == 1 {
		run, name, field = c.client, f.Arg(0), "ADDRESS"
	}
	ip, err := netip.ParseAddr(name)
	if err != nil {
		return fmt.Errorf("%s is %q, allowed: an IP address", field, name)
	}
	local, remote := ip, netip.Addr{}
	if f.NArg() == 1 {
		local, remote = remote, local
	}
	channel, err := rdmacm.OpenChannel(rdmacm.ChannelOptions{Local: local, Remote: remote})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, channel.Close()) }()
	text, err := run(ctx, channel, netip.AddrPortFrom(ip, uint16(port)), s)
	if err == nil {
		_, err = fmt.Fprintln(out, text)
	}
	return err
}

// served is a server that needs a listener only, and its report.
func served(serve func(ctx context.Context, l *rdmacm.ID, s settings) (string, error)) func(context.Context, *rdmacm.Channel, netip.AddrPort, settings) (string, error) {
	return func(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort, s settings) (_ string, err error) {
		l, err := Listen(c, rdmacm.TCP, addr)
		if err != nil {
			return "", err
		}
		defer func() { err = errors.Join(err, l.Close()) }()
		return serve(ctx, l, s)
	}
}

// messages reports what a side has sent or received.
func messages(count, size int) string { return fmt.Sprintf("%d messages of %d bytes", count, size) }
