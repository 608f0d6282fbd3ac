package softrxe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/suites/classic"
	"github.com/goverbs/goverbs/test/suites/interop"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// A cmCase is an exchange of messages of the connection manager. The subject is in this process, and its peer,
// which records the messages, in another one.
type cmCase struct {
	name string
	peer string // what the peer does, see peerMain
	n    string // how often
	port uint16

	since [2]int // the first kernel that sends what the newest one sends
	run   cmRun
}

// A cmRun is what the subject does.
type cmRun func(ctx context.Context, p *cmPlay) error

// cmPlay is what a subject needs.
type cmPlay struct {
	*rdmacm.Channel
	own, peer netip.AddrPort
	start     func() // starts the peer

	messages func() [][]byte // those that the peer has received from the subject
}

// untilSent waits until the peer has received a message with an attribute.
func (p *cmPlay) untilSent(ctx context.Context, attribute uint16) error {
	sent := func(b []byte) bool { return attributeOf(b) == attribute }
	for !slices.ContainsFunc(p.messages(), sent) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("no message with attribute %#x was sent: %w", attribute, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// dials is a subject that dials a peer, which serves.
func dials(dial func(ctx context.Context, c *rdmacm.Channel, server netip.AddrPort) error) cmRun {
	return func(ctx context.Context, p *cmPlay) error {
		p.start()
		return dial(ctx, p.Channel, p.peer)
	}
}

// serves is a subject that serves a peer, which dials.
func serves(space rdmacm.PortSpace, serve func(ctx context.Context, l *rdmacm.ID) error) cmRun {
	return servesSlowly(space, func(ctx context.Context, _ *cmPlay, l *rdmacm.ID) error { return serve(ctx, l) })
}

// servesSlowly is serves with a server that waits for what its device does meanwhile.
func servesSlowly(space rdmacm.PortSpace, serve func(ctx context.Context, p *cmPlay, l *rdmacm.ID) error) cmRun {
	return func(ctx context.Context, p *cmPlay) error {
		l, err := classic.Listen(p.Channel, space, p.own)
		if err != nil {
			return err
		}
		p.start()
		return errors.Join(serve(ctx, p, l), l.Close())
	}
}

// acceptSlowly accepts a connection when the peer has repeated its REQ and got an MRA.
func acceptSlowly(ctx context.Context, p *cmPlay, l *rdmacm.ID) error {
	request, err := l.NextRequest(ctx)
	if err != nil {
		return err
	}
	if err := p.untilSent(ctx, attrMRA); err != nil {
		return errors.Join(err, request.ID.Close())
	}
	e, err := classic.Accept(ctx, request, classic.Options{Space: rdmacm.TCP, Size: 1, Slots: 1})
	if err != nil {
		return err
	}
	return errors.Join(e.Gone(ctx), e.Close())
}

// establishSlowly makes a connection, and is ready when the peer has repeated its REP and got an MRA. It has no
// QP: with one, package cm would be ready at once.
func establishSlowly(ctx context.Context, p *cmPlay) error {
	p.start()
	id, err := p.NewID(rdmacm.TCP)
	if err != nil {
		return err
	}
	const anyQPN = 0x123456
	for _, step := range []func() error{
		func() error { return id.ResolveWait(ctx, rdmacm.Addr{}, rdmacm.AddrOf(p.peer)) },
		func() error {
			_, err := id.ConnectWait(ctx, rdmacm.ConnParam{QPN: anyQPN})
			return err
		},
		func() error { return p.untilSent(ctx, attrMRA) },
		id.Establish,
		func() error { return id.DisconnectWait(ctx) },
	} {
		if err = step(); err != nil {
			break
		}
	}
	return errors.Join(err, id.Close())
}

// cmCases are all exchanges of the connection manager.
var cmCases = []cmCase{
	// Before Linux 6.12 the time in a REQ for which the sender waits for an ACK is longer.
	{name: "REQ, RTU and DREQ", since: v6_12, peer: "serve-connections", n: "1", port: 7471, run: dials(func(ctx context.Context, c *rdmacm.Channel, server netip.AddrPort) error {
		return interop.ConnectAll(ctx, c, server, 1)
	})},
	{name: "REP and DREP", peer: "connections", n: "1", port: 7472, run: serves(rdmacm.TCP, func(ctx context.Context, l *rdmacm.ID) error {
		return interop.ServeConnections(ctx, l, 1)
	})},
	{name: "REJ", peer: "refused", n: "1", port: 7473, run: func(_ context.Context, p *cmPlay) error {
		p.start() // nobody listens
		return nil
	}},
	{name: "MRA of a REQ", peer: "connections", n: "1", port: 7474, run: servesSlowly(rdmacm.TCP, acceptSlowly)},
	{name: "MRA of a REP", since: v6_12, peer: "serve-connections", n: "1", port: 7475, run: establishSlowly},
	{name: "SIDR_REQ", peer: "serve-daddy", n: "1", port: 7174, run: dials(interop.Daddy)},
	{name: "SIDR_REP", peer: "daddy", n: "1", port: 7174, run: serves(rdmacm.UDP, interop.ServeDaddy)},
}

// cmPlaces returns the address of the subject, which is in this process, the place of its peer, and the file to
// which the software device there writes its packets.
func cmPlaces(t *testing.T) (subject netip.Addr, peer place, capture string) {
	t.Helper()
	rxe, peer := places(false)
	dir, err := os.MkdirTemp("", "capture")
	must(t, err, os.Chmod(dir, 0o777)) // the peer may be nobody
	t.Cleanup(func() { os.RemoveAll(dir) })
	capture = filepath.Join(dir, "capture")
	peer.options = ",capture=" + capture
	if lab != nil {
		return rxe.addr, peer, capture
	}
	dev, err := soft.New(soft.Options{Auto: true, MTU: 1024})
	must(t, err)
	closeLater(t, dev)
	peer.addr = softPlaces(t, 1)[0].addr
	peer.options += ",mtu=1024"
	return dev.Addr(), peer, capture
}

// softPlaces returns places for n software devices outside of a VM.
func softPlaces(t *testing.T, n int) []place {
	t.Helper()
	_, p := places(false)
	all, devices := slices.Repeat([]place{p}, n), make([]*soft.Device, n)
	for i := range all {
		var err error
		devices[i], err = soft.New(soft.Options{Auto: true})
		must(t, err)
		all[i].addr = devices[i].Addr()
	}
	for _, d := range devices { // the programs there have them
		must(t, d.Close())
	}
	return all
}

// play runs an exchange and returns the messages of the subject in words.
func (c *cmCase) play(t *testing.T) *recorded {
	subject, place, capture := cmPlaces(t)
	ctx, cancel := context.WithTimeout(t.Context(), program.Patience)
	defer cancel()
	channel, err := rdmacm.OpenChannel(rdmacm.ChannelOptions{Local: subject})
	must(t, err)
	var peer *program.Program
	own, others := netip.AddrPortFrom(subject, c.port), netip.AddrPortFrom(place.addr, c.port)
	messages := func() [][]byte { return cmMessages(t, capture, subject) }
	must(t, c.run(ctx, &cmPlay{Channel: channel, own: own, peer: others, messages: messages, start: func() {
		if strings.HasPrefix(c.peer, "serve-") {
			peer = place.server(t, c.peer, others.String(), c.n)
		} else {
			peer = place.peer(t, c.peer, own.String(), c.n)
		}
	}}))
	peer.Wait(t)
	must(t, channel.Close())
	return &recorded{numbers{}, messages()}
}

// cmMessages returns the messages of the connection manager from an address in a file with a capture, the end
// of which may not be written yet.
func cmMessages(t *testing.T, capture string, from netip.Addr) (all [][]byte) {
	t.Helper()
	file, err := os.ReadFile(capture)
	must(t, err)
	var packets tap
	for len(file) >= 8 { // of blocks with their length at byte 4
		n := int(binary.LittleEndian.Uint32(file[4:]))
		if n > len(file) {
			break
		}
		_, err := packets.Write(file[:n])
		must(t, err)
		file = file[n:]
	}
	for _, p := range packets.from(from) {
		if b := roce(p); binary.BigEndian.Uint32(b[4:])&0xffffff == 1 {
			all = append(all, p)
		}
	}
	return all
}

// attrMRA is the attribute of an MRA.
const attrMRA = 0x11

// madHeaders is the size of what is before the MAD in a message to QP 1, from the BTH on.
const madHeaders = bthSize + 8

// attributeOf returns the attribute of a message of the connection manager.
func attributeOf(p []byte) uint16 { return binary.BigEndian.Uint16(roce(p)[madHeaders+16:]) }

// chosen are the places in messages with numbers that their sender has chosen, by the attribute: the offset from
// the start of the MAD and the size, and in brackets the offset of an address.
var chosen = map[uint16]string{
	0x10:    "8+8 24+4 40+8 56+3 68+3 [80] [96] 112+3 166+2 [168] [184]", // REQ: transaction, ID, GUID, QPN, PSN, GIDs, flow label (of the ports), port, addresses
	attrMRA: "8+8 24+8",                                                  // MRA: transaction, IDs
	0x12:    "8+8 24+8",                                                  // REJ: transaction, IDs
	0x13:    "8+8 24+8 36+3 44+3 52+8",                                   // REP: transaction, IDs, QPN, PSN, GUID
	0x14:    "8+8 24+8",                                                  // RTU
	0x15:    "8+8 24+8 32+3",                                             // DREQ: transaction, IDs, QPN
	0x16:    "8+8 24+8",                                                  // DREP
	0x17:    "8+8 24+4 42+2 [44] [60]",                                   // SIDR_REQ: transaction, ID, port, addresses
	0x18:    "8+8 24+4 32+3",                                             // SIDR_REP: transaction, ID, QPN
}

// madForm returns a message of the connection manager in words: all bytes of the headers and the MAD, with the
// numbers that the sender chose left out.
func madForm(t *testing.T, p []byte) string {
	t.Helper()
	b := roce(p)
	if len(b) != madHeaders+256+icrcSize {
		t.Fatalf("%d bytes are no MAD: %x", len(b), b)
	}
	form := (numbers{}).form(p)
	at := strings.Index(form, "PSN ") + len("PSN ")
	form = form[:at] + "......" + form[at+6:] // of QP 1
	mad := b[madHeaders:][:256]
	text := []byte(fmt.Sprintf("%x", mad))
	blank := func(at, n int) { copy(text[2*at:], strings.Repeat(".", 2*n)) }
	places, ok := chosen[attributeOf(p)]
	if !ok {
		t.Fatalf("attribute %#x", mad[16:18])
	}
	for _, place := range strings.Fields(places) {
		if place[0] == '[' {
			n, err := strconv.Atoi(strings.Trim(place, "[]"))
			must(t, err)
			if mad[n+10] == 0xff || mad[n+10] == 0 { // an IPv4 address, mapped or not
				n += 12
			}
			blank(n, 4)
			continue
		}
		var n, size int
		_, err := fmt.Sscanf(place, "%d+%d", &n, &size)
		must(t, err)
		blank(n, size)
	}
	form, _, _ = strings.Cut(form, "256 bytes")
	for i := 0; i < len(text); i += 64 {
		form += fmt.Sprintf("\n%3d %s", i/2, text[i:i+64])
	}
	return form
}

// madForms returns the forms of messages.
func madForms(t *testing.T, r *recorded) (all []string) {
	for _, p := range r.packets {
		all = append(all, madForm(t, p))
	}
	return all
}

// TestExchangesCM is TestExchanges for messages of the connection manager.
func TestExchangesCM(t *testing.T) {
	all := readRecorded(t, recordedText)
	cases := slices.Clone(cmCases)
	if lab != nil {
		kernel := testenv.Kernel(t)
		cases = slices.DeleteFunc(cases, func(c cmCase) bool { return slices.Compare(kernel[:], c.since[:]) < 0 })
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := c.play(t)
			if os.Getenv(recordEnv) != "" {
				testenv.Guest(t)
				got.put(os.Stdout, c.name)
				return
			}
			r := all[c.name]
			if r == nil {
				t.Fatalf("nothing is recorded for %q", c.name)
			}
			if diff := cmp.Diff(expect(madForms(t, r)), madForms(t, got)); diff != "" {
				t.Errorf("differs from what rxe sent:\n%s", diff)
			}
		})
	}
}
