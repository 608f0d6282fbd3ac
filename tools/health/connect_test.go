package health

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// connectsTo has connections to an address end in one way.
func connectsTo(peer string, a attempt) func(patient) {
	return func(p patient) {
		well := p.connect
		p.connect = func(ctx context.Context, device string, at netip.Addr, to string) attempt {
			if to == peer {
				return a
			}
			return well(ctx, device, at, to)
		}
	}
}

// TestDoctorPeer: a peer that cannot be reached is an error, with what to do.
func TestDoctorPeer(t *testing.T) {
	refused := fmt.Errorf("nobody listens: %w", syscall.ECONNREFUSED)
	for name, c := range map[string]struct {
		end   attempt
		level Level
		words []string
	}{
		"well":          {attempt{mtu: 4096, sizes: []int{64, 4096, 65536}}, LevelOK, []string{"to host9 from 10.1.0.1, and messages"}},
		"smaller MTU":   {attempt{mtu: 1024}, LevelInfo, []string{"a path MTU of 1024 there; it is 4096 here"}},
		"no server":     {attempt{err: refused}, LevelError, []string{"from 10.1.0.1 to host9", "fix: on host9: verbs doctor --serve"}},
		"other device":  {elsewhere, LevelError, []string{"connections from 10.1.0.1 to host9 use device rxe9"}},
		"busy":          {attempt{err: fmt.Errorf("dial: %w", &cm.RefusedError{Addr: "host9", Why: "too many"})}, LevelError, []string{`fix: the server on host9 refuses with "too many": try again later`}},
		"no answer":     {attempt{err: errLate}, LevelError, []string{"udp dport 4791 accept"}},
		"a full frame":  {attempt{mtu: 4096, sizes: []int{64}, failed: 4096, err: errLate}, LevelError, []string{"packets of the path MTU, 4096 bytes, are lost", "MTU of 4192"}},
		"a short frame": {attempt{mtu: 1024, sizes: []int{64}, failed: 1024, err: errLate}, LevelError, []string{"a message of 1024 bytes does not", "verbs stat"}},
		"no memory":     {attempt{err: syscall.ENOMEM}, LevelError, []string{"no connection by the connection manager from 10.1.0.1 to host9", "LimitMEMLOCK"}},
		"long":          {attempt{mtu: 4096, sizes: []int{64, 4096}, failed: 65536, err: errLate}, LevelError, []string{"a message of 65536 bytes does not", "verbs stat"}},
	} {
		p := healthy(t)
		p.peer = "host9"
		connectsTo("10.1.0.2:7175", c.end)(p)
		d := examine(t.Context(), p.machine, nil)
		i := slices.IndexFunc(d.Findings, func(f Finding) bool { return f.Code == CodePeer })
		if d.Works != (c.level != LevelError) || strings.HasSuffix(d.Verdict, "; it connects to host9") != d.Works || i < 0 || d.Findings[i].Level != c.level {
			t.Errorf("%s: works is %t, finding %d of %+v", name, d.Works, i, d.Findings)
			continue
		}
		f := d.Findings[i]
		text := f.Title + "\n" + strings.Join(f.Evidence, "\n") + "\nfix: " + strings.Join(f.Fix, "\nfix: ")
		for _, w := range c.words {
			if !strings.Contains(text, w) {
				t.Errorf("%s: the finding does not say %q:\n%s", name, w, text)
			}
		}
		if c.end.mtu == 1024 && strings.Contains(text, "fix: give all") {
			t.Errorf("%s: advice about the MTU:\n%s", name, text)
		}
	}
	for name, ill := range map[string]func(patient){
		"host9 has no address": func(p patient) {
			p.lookUp = func(context.Context, string) ([]netip.AddrPort, error) { return nil, errors.New("no such host") }
		},
		"no address from which host9 can be reached": func(p patient) {
			p.own = func(portFacts, bool) []ownAddr { return []ownAddr{{netip.MustParseAddr("fd00::1"), 2}} }
		},
		"eth0 has to be up": func(p patient) { p.facts.state = ib.PortDown },
	} {
		p := healthy(t)
		p.peer = "host9"
		ill(p)
		if d := examine(t.Context(), p.machine, nil); d.Works || !strings.Contains(d.Verdict, name) {
			t.Errorf("works is %t, want %q: %s", d.Works, name, d.Verdict)
		}
	}
}

// TestDoctorPeerAddresses: each address of a peer is tried from those of the same family and link, and one way is enough.
func TestDoctorPeerAddresses(t *testing.T) {
	p := healthy(t)
	p.peer = "host9"
	p.own = func(portFacts, bool) (own []ownAddr) {
		for _, a := range []string{"10.1.0.1", "10.2.0.1", "fd00::1", "fe80::1%eth0", "fe80::1%eth1"} {
			own = append(own, ownAddr{netip.MustParseAddr(a), 2})
		}
		return own
	}
	p.lookUp = func(context.Context, string) (all []netip.AddrPort, err error) {
		for _, a := range []string{"10.1.0.2:7175", "10.1.0.3:7175", "[fe80::2%eth0]:7175"} {
			all = append(all, netip.MustParseAddrPort(a))
		}
		return all, nil
	}
	var tried []string
	p.connect = func(_ context.Context, _ string, from netip.Addr, to string) attempt {
		if to == "" {
			return attempt{mtu: 4096}
		}
		tried = append(tried, from.String()+" "+to)
		if to == "10.1.0.2:7175" || from.String() == "10.2.0.1" {
			return attempt{err: errLate}
		}
		return attempt{mtu: 4096}
	}
	d := examine(t.Context(), p.machine, nil)
	want := []string{"10.1.0.1 10.1.0.2:7175", "10.1.0.1 10.1.0.3:7175", "10.2.0.1 10.1.0.2:7175", "10.2.0.1 10.1.0.3:7175", "fe80::1%eth0 [fe80::2%eth0]:7175"}
	if !slices.Equal(tried, want) {
		t.Errorf("tried are %q, want %q", tried, want)
	}
	i := slices.IndexFunc(d.Findings, func(f Finding) bool { return f.Code == CodePeer })
	if !d.Works || i < 0 {
		t.Fatalf("finding %d of %+v", i, d)
	}
	f := d.Findings[i]
	if f.Level != LevelInfo || len(f.Fix) > 0 || f.Title != "the connection manager connects to host9 from 10.1.0.1, fe80::1%eth0, but not from 10.2.0.1" {
		t.Errorf("the finding is %+v", f)
	}
}

// TestConnect: a connection of a software device to itself carries messages of all sizes, and says nothing about another
// device; one to a port where nobody serves is refused, and one that gets no answer ends in time.
func TestConnect(t *testing.T) {
	d, err := soft.New(soft.Options{Auto: true, Port: uint16(freeUDP(t)), Name: "connected"})
	must(t, err)
	defer d.Close()
	a := liveConnect(t.Context(), "connected", d.Addr(), "")
	if a.err != nil || !slices.Equal(a.sizes, []int{64, a.mtu, 65536}) || a.device != "" {
		t.Errorf("to itself: %s, %v", a, a.err)
	}
	m := healthy(t).machine
	m.connect = liveConnect
	went, f := m.checkConnections(t.Context(), uverbs.DeviceInfo{Name: "other"}, portFacts{own: []ownAddr{{Addr: d.Addr()}}}, "")
	if want := fmt.Sprintf("connections from %s use device connected", d.Addr()); !went || f.Level != LevelInfo || f.Title != want {
		t.Errorf("the other device: %t, %+v, want %q", went, f, want)
	}
	a = liveConnect(t.Context(), "connected", d.Addr(), netip.AddrPortFrom(d.Addr(), 1).String())
	if !errors.Is(a.err, syscall.ECONNREFUSED) || len(a.sizes) > 0 {
		t.Errorf("nobody serves: %s, %v", a, a.err)
	}
	must(t, d.SetFaults(soft.Faults{Rules: []soft.Rule{{Class: soft.ClassMAD, Loss: soft.Always}}}))
	if a = liveConnect(t.Context(), "connected", d.Addr(), ""); !a.late() || a.failed != 0 {
		t.Errorf("no answer: %s, %v", a, a.err)
	}
}

// TestLimited: only a step that its limit ends is late.
func TestLimited(t *testing.T) {
	ends := func(of func(context.Context) error) error {
		return limited(t.Context(), time.Millisecond, func(ctx context.Context) error { <-ctx.Done(); return of(ctx) })
	}
	if err := ends(context.Context.Err); err != errLate {
		t.Errorf("a step that the limit ends: %v", err)
	}
	if err := ends(func(context.Context) error { return syscall.ECONNREFUSED }); err != syscall.ECONNREFUSED {
		t.Errorf("a refusal after the limit: %v", err)
	}
	if err := ends(func(context.Context) error { return nil }); err != nil {
		t.Errorf("success after the limit: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := limited(ctx, time.Minute, context.Context.Err); err != context.Canceled {
		t.Errorf("a step that is canceled: %v", err)
	}
}

// failing is a listener that fails after its first client.
type failing struct {
	*cm.Listener
	accepted bool
}

func (f *failing) Accept(ctx context.Context) (*cm.Conn, error) {
	if f.accepted {
		return nil, syscall.EIO
	}
	f.accepted = true
	return f.Listener.Accept(ctx)
}

// TestServeFails: when the listener fails, the server ends at once, and does not wait for a client that is silent.
func TestServeFails(t *testing.T) {
	d, err := soft.New(soft.Options{Auto: true, Port: uint16(freeUDP(t)), Name: "failing"})
	must(t, err)
	defer d.Close()
	l, err := cm.Listen(t.Context(), netip.AddrPortFrom(d.Addr(), 0).String(), cm.ListenOptions{ConnOptions: connOptions})
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- serve(t.Context(), &failing{Listener: l}) }()
	c, err := cm.Dial(t.Context(), l.Addr().String(), cm.DialOptions{ConnOptions: connOptions})
	must(t, err)
	defer c.Close()
	select {
	case err := <-served:
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("the server ends with %v", err)
		}
	case <-time.After(clientTime / 2):
		t.Error("the server waits for the client")
	}
}
