package hca

import (
	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// Memory keys that always exist: QUERY_SPECIAL_CONTEXTS.
const (
	nullLKey      = engine.NullLKey
	terminateLKey = engine.TerminateLKey

	dumpFillMKey = engine.DumpFillLKey
)

func (d *Device) createMKey(c *call) error {
	x := prm.Record(c.in, prm.MKCtx, prm.MKCSize)
	for _, f := range []struct {
		name string
		on   bool
	}{
		{"mkey_umem_valid", prm.MKeyUMEMValid.Bool(c.in)}, {"bsf_en", prm.MKCBSFEn.Bool(x)},
	} {
		if f.on {
			return refuse(prm.BadParam, "mkey "+f.name, "is not modelled")
		}
	}
	mode := prm.MKCMode42.Get(x)<<2 | prm.MKCMode10.Get(x)
	if mode > uint64(engine.ModeKSM) && mode != uint64(engine.ModeOwn) {
		return refuse(prm.BadParam, "mkey access_mode", "%d is not modelled", mode)
	}
	s := engine.MKeySpec{
		Variant: uint8(prm.MKCKey.Get(x)), PD: prm.MKCPD.U32(x), QPN: prm.MKCQPN.U32(x), Mode: engine.AccessMode(mode),
		Start: prm.MKCStart.Get(x), Length: prm.MKCLen.Get(x), Length64: prm.MKCLength64.Bool(x),
		Free: prm.MKCFree.Bool(x), UMREnable: prm.MKCUMREn.Bool(x), RemoteInval: prm.MKCRemoteInv.Bool(x),
		LogPageSize: uint(prm.MKCLogPage.Get(x)), Entries: prm.MKCTranslations.Int(x),
		PageFaults: prm.MKeyPGAccess.Bool(c.in),
	}
	if s.Mode == engine.ModeOwn {
		if s.Length64 || !d.inDM(s.Start, s.Length) {
			return refuse(prm.BadParam, "mkey start_addr", "%#x bytes at %#x were not given out by ALLOC_MEMIC", s.Length, s.Start)
		}
		s.Start -= d.dmStart()
	}
	if indirect := s.Mode == engine.ModeKLM || s.Mode == engine.ModeKSM; indirect && s.Entries > 1<<logMaxKLMs {
		return refuse(prm.BadParam, "mkey translations_octword_size", "%d entries that lead to keys, and a key has at most %d", s.Entries, 1<<logMaxKLMs)
	}
	for _, right := range mkeyRights {
		if right.f.Bool(x) {
			s.Access |= right.a
		}
	}
	if err := c.translations(&s); err != nil {
		return err
	}
	n, err := d.eng.CreateMKey(s)
	if err != nil {
		return err
	}
	c.answer(n)
	return nil
}

var mkeyRights = []struct {
	f prm.Field
	a engine.Access
}{
	{prm.MKCLocalRead, engine.LocalRead}, {prm.MKCLocalWrite, engine.LocalWrite}, {prm.MKCRemoteRead, engine.RemoteRead},
	{prm.MKCRemoteWrite, engine.RemoteWrite}, {prm.MKCAtomic, engine.RemoteAtomic},
}

// translations reads the list behind the context: of so many octowords as the command says,
// each of them two pages or one KLM.
func (c *call) translations(s *engine.MKeySpec) error {
	n := prm.MKeyTranslations.Int(c.in)
	if n == 0 {
		return nil
	}
	list := prm.Record(c.in, prm.PageList, 16*n)
	if s.Mode == engine.ModePA || s.Mode == engine.ModeOwn {
		return refuse(prm.BadParam, "mkey translations", "%d octowords in mode %d, allowed: 0", n, s.Mode)
	}
	if s.Mode == engine.ModeMTT {
		// The driver may leave the second half of the last octoword out.
		if len(list) < 16*n-8 {
			return refuse(prm.BadInLen, "mkey translations", "%d octowords in %d bytes", n, len(list))
		}
		for ; len(list) >= 8; list = list[8:] {
			s.Pages = append(s.Pages, be.Uint64(list))
		}
		if s.LogPageSize >= 12 && s.LogPageSize < 64 {
			first := s.Start >> s.LogPageSize
			if s.Length > 0 && s.Start+s.Length-1 >= s.Start {
				need := (s.Start+s.Length-1)>>s.LogPageSize - first + 1
				s.Pages = s.Pages[:min(uint64(len(s.Pages)), need)]
			}
		}
		return nil
	}
	if len(list) < 16*n {
		return refuse(prm.BadInLen, "mkey translations", "%d octowords in %d bytes", n, len(list))
	}
	for ; len(list) >= 16; list = list[16:] {
		s.KLMs = append(s.KLMs, engine.KLM{Length: be.Uint32(list), Key: be.Uint32(list[4:]), VA: be.Uint64(list[8:])})
	}
	return nil
}

// resumePageFault is PAGE_FAULT_RESUME.
func (d *Device) resumePageFault(c *call) error {
	return d.eng.ResumePageFault(engine.PageFault{
		Type: uint8(prm.FaultType.Get(c.in)), Token: prm.FaultToken.U32(c.in), WQ: prm.FaultWQ.U32(c.in),
	}, prm.FaultError.Bool(c.in))
}

func (d *Device) destroyMKey(c *call) error { return d.eng.DestroyMKey(c.number()) }

func (d *Device) queryMKey(c *call) error {
	s, err := d.eng.QueryMKey(c.number())
	if err != nil {
		return err
	}
	x := prm.Record(c.out, prm.MKCtx, prm.MKCSize)
	prm.MKCFree.PutBool(x, s.Free)
	if s.Mode == engine.ModeOwn {
		s.Start += d.dmStart()
	}
	prm.MKCMode10.Put(x, uint64(s.Mode&3))
	prm.MKCMode42.Put(x, uint64(s.Mode>>2))
	prm.MKCUMREn.PutBool(x, s.UMREnable)
	for _, right := range mkeyRights {
		right.f.PutBool(x, s.Access&right.a != 0)
	}
	prm.MKCQPN.Put(x, uint64(s.QPN))
	prm.MKCKey.Put(x, uint64(s.Variant))
	prm.MKCLength64.PutBool(x, s.Length64)
	prm.MKCRemoteInv.PutBool(x, s.RemoteInval)
	prm.MKCPD.Put(x, uint64(s.PD))
	prm.MKCStart.Put(x, s.Start)
	prm.MKCLen.Put(x, s.Length)
	prm.MKCTranslations.Put(x, uint64(s.Entries))
	prm.MKCLogPage.Put(x, uint64(s.LogPageSize))
	// The driver looks behind a window when an access through it faults.
	for i, k := range s.KLMs {
		b := prm.Record(c.out, prm.MKeyList+16*i, 16)
		if s.Mode != engine.ModeKLM || len(b) < 16 {
			break
		}
		be.PutUint32(b, k.Length)
		be.PutUint32(b[4:], k.Key)
		be.PutUint64(b[8:], k.VA)
	}
	return nil
}
