package soft

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	"github.com/goverbs/goverbs/test/pairs"
)

// concurrency is what the documentation of Device says.
var concurrency = pairs.Table{
	{Object: (*Device)(nil), Methods: map[pairs.Use]string{
		pairs.Freely: "Addr Close FaultCounters Faults Heal JoinGroup LeaveGroup Name Network Partition Resources SetFaults",
	}},
}

// TestConcurrencyTable: the table has every exported method of every object, once.
func TestConcurrencyTable(t *testing.T) { concurrency.Check(t) }

// TestPairs runs pairs and triples of methods of a device.
func TestPairs(t *testing.T) {
	pairs.Run(t, concurrency, map[string]func(*testing.T) pairs.World{"device": func(t *testing.T) pairs.World {
		d, err := New(Options{})
		must(t, err)
		return &deviceWorld{t, d}
	}})
}

// deviceWorld is a device.
type deviceWorld struct {
	t *testing.T
	d *Device
}

func (w *deviceWorld) Objects() []any                                { return []any{w.d} }
func (w *deviceWorld) Override(any, string) (func(*rand.Rand), bool) { return nil, false }
func (w *deviceWorld) Check(string, error)                           {} // groups and faults may be refused
func (w *deviceWorld) Exchange() (done bool, err error)              { return ByName(w.d.Name()) == nil, nil }
func (w *deviceWorld) Agree() error                                  { return nil }

// Argument makes groups and peers, and faults.
func (w *deviceWorld) Argument(r *rand.Rand, typ reflect.Type) (v reflect.Value, ok bool) {
	switch typ {
	case reflect.TypeFor[netip.Addr]():
		return reflect.ValueOf([]netip.Addr{netip.MustParseAddr("239.1.2.3"), netip.MustParseAddr("239.1.2.4"), netip.MustParseAddr("127.0.0.9")}[r.IntN(3)]), true
	case reflect.TypeFor[string]():
		return reflect.ValueOf([]string{"", "loss=1%", "nonsense"}[r.IntN(3)]), true
	}
	return v, false
}

// End closes the device again, which does nothing if it is closed.
func (w *deviceWorld) End() {
	if err := w.d.Close(); err != nil {
		w.t.Error(err)
	}
}
