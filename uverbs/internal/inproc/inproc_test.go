package inproc

import (
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// named is a device that has nothing but a name.
type named struct{ name string }

func (n *named) Info() Info                   { return Info{Name: n.name} }
func (n *named) Open() (kernel.Device, error) { return nil, errors.ErrUnsupported }
func (n *named) Addrs() []netip.Addr          { return nil }
func (n *named) GIDs(uint8) []GIDEntry        { return nil }
func (n *named) PKeys(uint8) []uint16         { return nil }
func (n *named) Counters(uint8) []Counter     { return nil }

// names returns the names of all devices.
func names() (all []string) {
	for _, d := range All() {
		all = append(all, d.Info().Name)
	}
	return all
}

// TestRegistry adds, finds and removes devices.
func TestRegistry(t *testing.T) {
	if got := names(); len(got) != 0 || ByName("b") != nil {
		t.Fatalf("the registry starts with %v", got)
	}
	b, a, other := &named{"b"}, &named{"a"}, &named{"b"}
	for _, d := range []*named{b, a} {
		if err := Add(d); err != nil {
			t.Fatal(err)
		}
	}
	if err := Add(other); !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "name b") {
		t.Errorf("a second device b: %v, want ErrExist", err)
	}
	if err := Add(&named{}); err == nil {
		t.Error("a device without a name was added")
	}
	if got := names(); !slices.Equal(got, []string{"b", "a"}) {
		t.Errorf("devices are %v, want b and a in the order in which they were added", got)
	}
	if ByName("b") != Device(b) || ByName("a") != Device(a) || ByName("c") != nil || ByName("") != nil {
		t.Errorf("by name: b %v, a %v, c %v", ByName("b"), ByName("a"), ByName("c"))
	}
	if Remove(other) {
		t.Error("a device that was not added was removed, by its name")
	}
	for _, d := range []*named{b, a} {
		if !Remove(d) || Remove(d) || ByName(d.name) != nil {
			t.Errorf("%s is not removed, or twice", d.name)
		}
	}
	if err := Add(other); err != nil || !Remove(other) {
		t.Errorf("the name b is not free again: %v", err)
	}
}

// TestNewIndex: indices of goroutines differ, and the kernel's are lower.
func TestNewIndex(t *testing.T) {
	const goroutines, each = 4, 100
	var mu sync.Mutex
	seen := map[uint32]bool{}
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range each {
				i := NewIndex()
				mu.Lock()
				seen[i] = i >= FirstIndex
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(seen) != goroutines*each {
		t.Errorf("%d different indices, want %d", len(seen), goroutines*each)
	}
	for i, ok := range seen {
		if !ok {
			t.Errorf("index %d is below %d", i, FirstIndex)
		}
	}
}
