package soft

import (
	"maps"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// source makes decisions of the bytes of a fuzz input.
type source struct{ b []byte }

// byte returns the next byte, or 0 at the end.
func (s *source) byte() byte {
	if len(s.b) == 0 {
		return 0
	}
	c := s.b[0]
	s.b = s.b[1:]
	return c
}

// uint returns a number that is often small: a handle, a size or a flag.
func (s *source) uint() uint64 {
	switch c := s.byte(); {
	case c < 120:
		return uint64(c % 3)
	case c < 240:
		return uint64(c % 16)
	case c < 246: // but no queue of hundreds of megabytes
		return 1 << ((c%52 + 22) % 64)
	case c < 252:
		return uint64(s.byte())<<8 | uint64(s.byte())
	default:
		return ^uint64(0) - uint64(c)
	}
}

// bytes returns n bytes, mostly of small numbers in words of 4 bytes.
func (s *source) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		if i%4 == 0 || s.byte() > 252 {
			b[i] = byte(s.uint())
		}
	}
	return b
}

// size returns a number of bytes around a given one.
func (s *source) size(n int) int {
	switch c := int(s.byte()); {
	case c < 236:
		return n
	case c < 246:
		return n + c - 236
	default:
		return max(0, n-(c-245))
	}
}

// methodList and legacyList return what the device has, in an order that is always the same.
func methodList() []methodKey {
	return slices.SortedFunc(maps.Keys(methods), func(a, b methodKey) int {
		return int(a.object)<<16 - int(b.object)<<16 + int(a.method) - int(b.method)
	})
}

func legacyList() []uint32 { return slices.Sorted(maps.Keys(legacyCommands)) }

// pick chooses an element.
func pick[T any](s *source, all []T) T { return all[int(s.byte())%len(all)] }

// command returns a command with attributes that are more or less those of a method.
func (s *source) command() *kernel.Command {
	key := pick(s, methodList())
	m := methods[key]
	cmd := kernel.NewCommand(key.object, key.method)
	for i := range m.attrs {
		c := s.byte()
		if c > 250 || !m.attrs[i].mandatory && c > 80 {
			continue // it is missing
		}
		if len(cmd.Attrs()) == 13 { // a command has at most 16
			break
		}
		s.fill(cmd.Add(m.attrs[i].id), &m.attrs[i])
	}
	switch c := s.byte(); {
	case c > 250 && len(cmd.Attrs()) < 14:
		cmd.Add(uint16(s.uint())).Data = s.uint()
	case c > 245:
		cmd.Method = uint16(c)
	}
	if m.udata {
		cmd.AddDriver(s.bytes(s.size(0)), make([]byte, s.size(32)))
	}
	return cmd
}

// fill fills in an attribute.
func (s *source) fill(a *kernel.Attr, spec *attrSpec) {
	size := int(spec.max)
	if size > 1000 {
		size = 4 * int(spec.min)
	}
	switch spec.kind {
	case input:
		if size = s.size(size); size <= 8 {
			a.SetUint(s.uint(), uint16(size))
		} else {
			a.SetIn(s.bytes(size))
		}
	case output:
		a.SetOut(make([]byte, s.size(size)))
	default:
		a.Data = s.uint()
	}
	switch c := s.byte(); {
	case c > 252:
		a.Len = uint16(s.uint())
	case c > 250:
		a.Enum = c
	case c > 248:
		a.Flags = 0
	}
}

// legacy issues a legacy command.
func (s *source) legacy(c *client) (number uint32, errno syscall.Errno) {
	number = pick(s, legacyList())
	l := legacyCommands[number]
	in, out := s.bytes(s.size(l.req)), make([]byte, s.size(l.resp))
	drvIn, drvOut := s.bytes(s.size(0)), make([]byte, s.size(32))
	if number == abi.IB_USER_VERBS_CMD_MODIFY_SRQ { // its driver's part is an address to write to
		drvIn = make([]byte, s.size(8))
	}
	return number, c.legacy(number, in, out, drvIn, drvOut)
}

// issue issues all commands of a source in a new context and closes it. It counts those that
// succeed.
func (s *source) issue(t *testing.T, d *Device, succeeded map[any]int) {
	c := open(t, d, []kernel.Path{kernel.PathAuto, kernel.PathWrite}[s.byte()%2])
	c.begin()
	c.everything()
	for len(s.b) > 0 {
		if s.byte()%2 == 0 {
			if number, errno := s.legacy(c); errno == 0 {
				succeeded[number]++
			}
			continue
		}
		cmd := s.command()
		if errno := c.ctx.Do(cmd, false); errno == 0 {
			succeeded[methodKey{cmd.Object, cmd.Method}]++
		}
	}
	if err := c.conn.Close(); err != nil {
		t.Error(err)
	}
	p := &d.pools
	for i, pool := range []*pool{&p.qps, &p.cqs, &p.srqs, &p.mrs, &p.mws, &p.pds, &p.ahs} {
		if n := pool.n.Load(); n != 0 {
			t.Errorf("the device counts %d objects of pool %d", n, i)
		}
	}
}

// TestRandomCommands issues many commands at random. Most methods and commands succeed now and then,
// so that the test reaches more than the refusal of nonsense.
func TestRandomCommands(t *testing.T) {
	d := newDevice(t, Options{Limits: Limits{QPs: 20, CQs: 20, SRQs: 20}, Seed: 1})
	succeeded := map[any]int{}
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		b := make([]byte, 8192)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		(&source{b}).issue(t, d, succeeded)
	}
	if all := len(methods) + len(legacyCommands); len(succeeded) < all*2/3 {
		t.Errorf("%d of %d methods and commands have succeeded: %v", len(succeeded), all, succeeded)
	}
}

// FuzzDo issues commands. None panics, and closing the context leaves nothing.
func FuzzDo(f *testing.F) {
	for i := range 40 { // each method and each command, in another order
		var seed []byte
		for j := range 60 {
			seed = append(seed, byte(j%2), byte(i*7+j*5), byte(i), byte(j), 0, byte(i+j), 0, 0, 1, 2, byte(j))
		}
		f.Add(seed)
	}
	d, err := New(Options{Limits: Limits{QPs: 20, CQs: 20, SRQs: 20}, Seed: 1})
	must(f, err)
	f.Cleanup(func() { d.Close() })
	f.Fuzz(func(t *testing.T, b []byte) { (&source{b}).issue(t, d, map[any]int{}) })
}
