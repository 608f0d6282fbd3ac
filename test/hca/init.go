package hca

import (
	"slices"

	"github.com/goverbs/goverbs/test/hca/prm"
)

// Pages of 4 KiB that the card wants for itself, and modifiers of QUERY_PAGES and
// MANAGE_PAGES (drivers/net/ethernet/mellanox/mlx5/core/pagealloc.c).
const (
	bootPages = 4
	initPages = 4

	pagesBoot    = 1
	pagesInit    = 2
	pagesRegular = 3

	pagesCantGive = 0
	pagesGive     = 1
	pagesTake     = 2
)

// issiOne is the one version of the interface there is (a bit in the list of versions).
const issiOne = 1

func (d *Device) enableHCA(c *call) error {
	if d.phase != phaseReset {
		return refuse(prm.BadSysState, "state", "ENABLE_HCA of a card that is enabled")
	}
	d.phase = phaseEnabled
	return nil
}

func (d *Device) disableHCA(c *call) error {
	if d.phase == phaseRunning {
		return refuse(prm.BadSysState, "state", "DISABLE_HCA before TEARDOWN_HCA")
	}
	if n := len(d.pages); n > 0 {
		d.violation("DISABLE_HCA while the card still has %d pages of the driver's", n)
	}
	d.phase = phaseReset
	return nil
}

func (d *Device) initHCA(c *call) error {
	if d.phase == phaseRunning {
		return refuse(prm.BadSysState, "state", "INIT_HCA of a card that is initialized")
	}
	if d.issi != issiOne {
		return refuse(prm.BadSysState, "state", "INIT_HCA before SET_ISSI")
	}
	if len(d.pages) < bootPages+initPages {
		return refuse(prm.BadSysState, "state", "INIT_HCA with %d pages, of %d that were requested", len(d.pages), bootPages+initPages)
	}
	d.phase = phaseRunning
	d.deaf.Store(false)
	return nil
}

func (d *Device) teardownHCA(c *call) error {
	if profile := prm.TeardownProfile.Get(c.in); profile > 2 {
		return refuse(prm.BadParam, "profile", "%d", profile)
	}
	d.phase = phaseEnabled
	d.cmdEQ = 0
	d.eng.Reset()
	d.uars, d.domains = map[uint32]bool{}, map[uint32]bool{}
	d.eth.clear()
	d.users.clear()
	return nil
}

func (d *Device) queryISSI(c *call) error {
	prm.ISSICurrent.Put(c.out, uint64(d.issi))
	prm.ISSISupported.Put(c.out, 1<<issiOne)
	return nil
}

func (d *Device) setISSI(c *call) error {
	want := uint16(prm.ISSICurrent.Get(c.in))
	if want != issiOne {
		return refuse(prm.BadParam, "issi", "%d, where %d is the one there is", want, issiOne)
	}
	d.issi = want
	return nil
}

// queryPages says how many pages the driver shall give.
func (d *Device) queryPages(c *call) error {
	n := 0
	switch c.opmod {
	case pagesBoot:
		n = bootPages
	case pagesInit:
		n = initPages
	case pagesRegular:
	default:
		return refuse(prm.BadParam, "modifier", "%d", c.opmod)
	}
	prm.PagesNum.Put(c.out, uint64(n))
	return nil
}

// managePages takes pages of the driver's, or gives them back.
func (d *Device) managePages(c *call) error {
	n := int(prm.PagesNum.Get(c.in))
	switch c.opmod {
	case pagesCantGive:
		return refuse(prm.NoResource, "pages", "the driver can't give %d pages", n)
	case pagesGive:
		return d.takePages(c, n)
	case pagesTake:
		return d.returnPages(c, n)
	}
	return refuse(prm.BadParam, "modifier", "%d", c.opmod)
}

func (d *Device) takePages(c *call, n int) error {
	list := c.in[prm.PagesList:]
	if n > len(list)/8 {
		return refuse(prm.BadInLen, "pages", "a list of %d pages in %d bytes", n, len(list))
	}
	var given []uint64
	for i := range n {
		pa := be.Uint64(list[8*i:])
		if pa%4096 != 0 {
			return refuse(prm.BadParam, "pages", "page %d at %#x is not aligned", i, pa)
		}
		if d.pages[pa] || slices.Contains(given, pa) {
			return refuse(prm.BadParam, "pages", "page %#x is given twice", pa)
		}
		if _, err := d.memory(pa, 4096); err != nil {
			return refuse(prm.BadParam, "pages", "page %d: %v", i, err)
		}
		given = append(given, pa)
	}
	for _, pa := range given {
		d.pages[pa] = true
	}
	return nil
}

// returnPages gives back what a card that is not initialized has no use for.
func (d *Device) returnPages(c *call, n int) error {
	if d.phase == phaseRunning {
		n = 0
	}
	list := c.out[prm.PagesList:]
	i := 0
	for pa := range d.pages {
		if i == n || i == len(list)/8 {
			break
		}
		be.PutUint64(list[8*i:], pa)
		delete(d.pages, pa)
		i++
	}
	prm.PagesOut.Put(c.out, uint64(i))
	return nil
}

// PSID names the card's firmware configuration. libibverbs shows it as board_id.
const PSID = "GOVERBS0000001"

func (d *Device) queryAdapter(c *call) error {
	prm.AdapterIEEE.Put(c.out, 0x0002c9) // Mellanox
	prm.AdapterVendor.Put(c.out, uint64(ID.Vendor))
	copy(prm.Record(c.out, prm.AdapterPSID, 16), PSID)
	return nil
}

func (d *Device) querySpecialContexts(c *call) error {
	prm.NullMKey.Put(c.out, nullLKey)
	prm.DumpFillMKey.Put(c.out, dumpFillMKey)
	prm.TermMKey.Put(c.out, terminateLKey)
	return nil
}
