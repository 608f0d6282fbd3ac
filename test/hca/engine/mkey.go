package engine

import (
	"errors"
	"slices"
)

// mkey is a memory key.
type mkey struct {
	index uint32
	spec  MKeySpec
	pd    *pd
	under []*mkey // of a window: the keys that it is bound to
	bound int     // windows that are bound to this key
}

// rights are the access bits that exist.
const rights = LocalRead | LocalWrite | RemoteRead | RemoteWrite | RemoteAtomic

// CreateMKey makes a memory key and gives its index; the key is index<<8 | Variant.
func (d *Device) CreateMKey(s MKeySpec) (uint32, error) {
	if err := d.lock("MKEY"); err != nil {
		return 0, err
	}
	defer d.f.mu.Unlock()
	if s.Mode > ModeKSM && s.Mode != ModeOwn {
		return 0, refuse(BadParam, "MKEY", 0, "access_mode", "mode %d is not modelled", s.Mode)
	}
	if s.Access&^rights != 0 {
		return 0, refuse(BadParam, "MKEY", 0, "access", "%#x", s.Access&^rights)
	}
	if s.Mode == ModeMTT || s.Mode == ModeKSM {
		if s.LogPageSize < 3 || s.LogPageSize > 43 || s.LogPageSize < 12 && s.Mode == ModeMTT {
			if !s.Free || s.LogPageSize != 0 {
				return 0, refuse(BadParam, "MKEY", 0, "log_page_size", "%d", s.LogPageSize)
			}
		}
	}
	if !s.Length64 && s.Length != 0 && s.Start+s.Length-1 < s.Start {
		return 0, refuse(BadParam, "MKEY", 0, "len", "%#x from %#x wraps", s.Length, s.Start)
	}
	if own := uint64(len(d.own)); s.Mode == ModeOwn && (s.Free || s.UMREnable || s.Length64 || s.Start > own || s.Length > own-s.Start) {
		return 0, refuse(BadParam, "MKEY", 0, "start_addr", "%#x bytes at %#x of the device's memory, which has %#x", s.Length, s.Start, own)
	}
	if !s.Free && !s.Length64 {
		if err := s.complete(); err != nil {
			return 0, err
		}
	}
	if !s.Free && s.Mode == ModeMTT {
		for i, p := range s.Pages {
			if p&^0xfff == 0 && p&3 == 0 {
				continue // not present: an access finds out
			}
			if err := d.checkPage(p &^ 0xfff); err != nil {
				return 0, refuse(BadParam, "MKEY", 0, "pas", "page %d at %#x: %v", i, p, err)
			}
		}
	}
	p, err := d.usePD("MKEY", s.PD)
	if err != nil {
		return 0, err
	}
	n, err := number(d, "MKEY", firstMKey, d.mkeys)
	if err != nil {
		p.refs--
		return 0, err
	}
	s.Pages, s.KLMs = slices.Clone(s.Pages), slices.Clone(s.KLMs)
	d.mkeys[n] = &mkey{index: n, spec: s, pd: p}
	d.bind(d.mkeys[n])
	return n, nil
}

// complete refuses a key whose translation does not cover its length.
func (s *MKeySpec) complete() error {
	var have uint64
	switch s.Mode {
	case ModePA, ModeOwn:
		return nil
	case ModeMTT:
		have = uint64(len(s.Pages))<<s.LogPageSize - s.Start&(1<<s.LogPageSize-1)
		if len(s.Pages) == 0 {
			have = 0
		}
	case ModeKLM:
		for _, k := range s.KLMs {
			have += uint64(k.Length)
		}
	case ModeKSM:
		have = uint64(len(s.KLMs)) << s.LogPageSize
	}
	if have < s.Length {
		return refuse(BadParam, "MKEY", 0, "translations_octword_size", "the translation covers %#x bytes, the key has %#x", have, s.Length)
	}
	return nil
}

// QueryMKey says what a memory key is like now.
func (d *Device) QueryMKey(index uint32) (MKeySpec, error) {
	if err := d.lock("MKEY"); err != nil {
		return MKeySpec{}, err
	}
	defer d.f.mu.Unlock()
	m := d.mkeys[index]
	if m == nil {
		return MKeySpec{}, unknown("MKEY", index)
	}
	s := m.spec
	s.Pages, s.KLMs = slices.Clone(s.Pages), slices.Clone(s.KLMs)
	return s, nil
}

// DestroyMKey removes a memory key. One that windows are bound to stays; the windows'
// accesses fail from then on, since the key is looked up each time, and so is refused here.
func (d *Device) DestroyMKey(index uint32) error {
	if err := d.lock("MKEY"); err != nil {
		return err
	}
	defer d.f.mu.Unlock()
	m := d.mkeys[index]
	if m == nil {
		return unknown("MKEY", index)
	}
	if m.bound > 0 {
		return refuse(Busy, "MKEY", index, "", "%d memory windows are bound to it", m.bound)
	}
	m.unbind()
	m.pd.refs--
	delete(d.mkeys, index)
	return nil
}

// bind counts a window, which is a valid indirect key that UMR may change, at the keys that
// it leads to.
func (d *Device) bind(m *mkey) {
	m.unbind()
	if m.spec.Free || m.spec.Mode != ModeKLM || !m.spec.UMREnable {
		return
	}
	for _, k := range m.spec.KLMs {
		if u := d.mkeys[k.Key>>8]; u != nil && u != m {
			u.bound++
			m.under = append(m.under, u)
		}
	}
}

// unbind says that the key leads nowhere.
func (m *mkey) unbind() {
	for _, u := range m.under {
		u.bound--
	}
	m.under = nil
}

// extent is memory that an access goes to, the guest's or the device's own. A null extent reads as zeros.
type extent struct {
	addr uint64
	n    int
	null bool
	own  bool // addr is a place in the device's memory
	// absent says that the driver has not given the page to the device: a page fault.
	absent bool
}

// maxExtents is how many pieces an access may fall into: 2 GiB of pages of 4 KiB, doubled.
const maxExtents = 1 << 20

// maxIndirection is how many keys may stand behind each other.
const maxIndirection = 4

// translate finds the memory behind n bytes of a key. The reason says why not.
func (d *Device) translate(key uint32, q *qp, pdn uint32, va uint64, n uint64, need Access) ([]extent, string) {
	return d.walk(nil, key, q, pdn, va, n, need, 0)
}

func (d *Device) walk(out []extent, key uint32, q *qp, pdn uint32, va, n uint64, need Access, depth int) ([]extent, string) {
	if n == 0 {
		return out, ""
	}
	if n > 1<<31 {
		return nil, "more than 2 GiB"
	}
	if len(out) > maxExtents {
		return nil, "too many pieces"
	}
	if key == DumpFillLKey {
		return append(out, extent{n: int(n), null: true}), ""
	}
	if key == NullLKey && depth > 0 {
		return append(out, extent{n: int(n), absent: true}), ""
	}
	m := d.mkeys[key>>8]
	switch {
	case m == nil:
		return nil, hex("no key has index ", key>>8)
	case m.spec.Free:
		return nil, hex("the key is free: ", key)
	case m.spec.Variant != byte(key):
		return nil, hex("the key's low byte is not ", key&0xff)
	case m.spec.PD != pdn && (q == nil || q.spec.Type != RegUMR):
		return nil, hex("the key belongs to another PD: ", m.spec.PD)
	case q != nil && m.spec.QPN != NoUserIndex && m.spec.QPN != 0 && m.spec.QPN != q.n:
		return nil, hex("the key is bound to another QP: ", m.spec.QPN)
	case m.spec.Access&need != need:
		return nil, hex("the key does not allow this access; it allows ", uint32(m.spec.Access))
	case depth > maxIndirection:
		return nil, "too many keys behind each other"
	}
	s := &m.spec
	if s.Mode == ModeOwn {
		if va > s.Length || n > s.Length-va {
			return nil, hex("outside of the key's range, which has length ", uint32(s.Length))
		}
		return append(out, extent{addr: s.Start + va, n: int(n), own: true}), ""
	}
	if !s.Length64 && (va < s.Start || va-s.Start > s.Length || n > s.Length-(va-s.Start)) {
		return nil, hex("outside of the key's range, which has length ", uint32(s.Length))
	}
	switch s.Mode {
	case ModePA:
		return append(out, extent{addr: va, n: int(n)}), ""
	case ModeMTT:
		first := len(out)
		out, why := s.walkPages(out, va, n, need)
		if why == "" {
			d.toOwn(out[first:])
		}
		return out, why
	}
	return d.walkKLMs(out, s, q, pdn, va-s.Start, n, need, depth)
}

// walkPages translates by a list of pages. A page that is missing or read-only is a page fault with
// keys that have page faults, and with keys that the driver fills by UMR.
func (s *MKeySpec) walkPages(out []extent, va, n uint64, need Access) ([]extent, string) {
	size := uint64(1) << s.LogPageSize
	off := va - s.Start&^(size-1)
	for n > 0 {
		i, o := off/size, off%size
		if i >= uint64(len(s.Pages)) {
			return nil, "beyond the key's page list"
		}
		p := s.Pages[i]
		gone := p&^0xfff == 0 && p&(pageRead|pageWrite) == 0
		if gone && !s.PageFaults && !s.UMREnable {
			return nil, notPresent
		}
		if need&(LocalWrite|RemoteWrite|RemoteAtomic) != 0 && p&(pageRead|pageWrite) == pageRead {
			gone = true
		}
		k := min(n, size-o)
		out = append(out, extent{addr: p&^0xfff + o, n: int(k), absent: gone})
		off, n = off+k, n-k
	}
	return out, ""
}

// walkKLMs translates by a list of keys. Rights and bounds of the key behind count too;
// its remote rights do not, since a window gives them.
func (d *Device) walkKLMs(out []extent, s *MKeySpec, q *qp, pdn uint32, off, n uint64, need Access, depth int) ([]extent, string) {
	below := need & (LocalRead | LocalWrite)
	if need&(RemoteWrite|RemoteAtomic) != 0 {
		below |= LocalWrite
	}
	list := s.KLMs
	if s.Mode == ModeKSM {
		first := min(off>>s.LogPageSize, uint64(len(list)))
		list, off = list[first:], off-first<<s.LogPageSize
	}
	for _, k := range list {
		size := uint64(k.Length)
		if s.Mode == ModeKSM {
			size = 1 << s.LogPageSize
		} else if size == 0 && k.Key != 0 {
			size = 1 << 31
		}
		if off >= size {
			off -= size
			continue
		}
		part := min(n, size-off)
		var why string
		if out, why = d.walk(out, k.Key, q, pdn, k.VA+off, part, below, depth+1); why != "" {
			return nil, why
		}
		if n -= part; n == 0 {
			return out, ""
		}
		off = 0
	}
	return nil, "beyond the key's list"
}

// length is how many bytes extents have.
func length(all []extent) (n int) {
	for _, e := range all {
		n += e.n
	}
	return n
}

// load reads extents.
func (d *Device) load(all []extent) ([]byte, error) {
	if absent(all) {
		return nil, errors.New(notPresent)
	}
	out := make([]byte, length(all))
	at := out
	for _, e := range all {
		switch {
		case e.own:
			copy(at[:e.n], d.own[e.addr:])
		case !e.null:
			if err := d.read(e.addr, at[:e.n]); err != nil {
				return nil, err
			}
		}
		at = at[e.n:]
	}
	return out, nil
}

// store writes extents as far as there is data.
func (d *Device) store(all []extent, data []byte) error {
	if absent(all) {
		return errors.New(notPresent)
	}
	for _, e := range all {
		k := min(e.n, len(data))
		switch {
		case e.own:
			copy(d.own[e.addr:], data[:k])
		case !e.null:
			if err := d.write(e.addr, data[:k]); err != nil {
				return err
			}
		}
		data = data[k:]
	}
	return nil
}
