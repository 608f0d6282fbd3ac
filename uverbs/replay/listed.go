//go:build unix

package replay

import (
	"net/netip"
	"os"

	"github.com/goverbs/goverbs/uverbs/internal/inproc"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// listed is a device as package uverbs lists and opens it. It implements [inproc.Device].
type listed struct{ d *Device }

func (l listed) Info() inproc.Info { return l.d.info }

// Open returns a context. All contexts take their answers from the same record.
func (l listed) Open() (kernel.Device, error) {
	return &context{d: l.d, events: map[uint32]*os.File{}}, nil
}

func (l listed) Addrs() []netip.Addr { return nil }

// GIDs returns the entries that the record has answers about.
func (l listed) GIDs(port uint8) []inproc.GIDEntry { return l.d.gids[port] }

// PKeys returns the default partition key, which every port has.
func (l listed) PKeys(uint8) []uint16 { return []uint16{0xffff} }

func (l listed) Counters(uint8) []inproc.Counter { return nil }
