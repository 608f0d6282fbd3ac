package conformance

import (
	"errors"
	"io/fs"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// TestQueryPKey reads the partition keys of RoCE, of which there is one.
func TestQueryPKey(t *testing.T) {
	testenv.NeedsIB(t, "partition keys")
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		attr, err := dev.QueryPort(1)
		must(t, err)
		if pkey, err := dev.QueryPKey(1, 0); pkey != 0xffff || err != nil {
			t.Errorf("partition key is %#x, %v, want 0xffff", pkey, err)
		}
		if i, err := dev.PKeyIndex(1, 0xffff); i != 0 || err != nil {
			t.Errorf("0xffff is at %d, %v, want 0", i, err)
		}
		if i, err := dev.PKeyIndex(1, 0x8123); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("0x8123 is at %d, %v, want fs.ErrNotExist", i, err)
		}
		_, err = dev.QueryPKey(1, attr.PKeyTableLen)
		argError(t, err, "index")
		_, err = dev.QueryPKey(2, 0)
		argError(t, err, "port")
	})
}

// TestQueryGID compares single entries with the table.
func TestQueryGID(t *testing.T) {
	testenv.NeedsIB(t, "GIDs")
	eachPath(t, func(t *testing.T) {
		testenv.NeedsEthernet(t)
		dev := openDevice(t, deviceName)
		table, err := dev.GIDTable(1)
		must(t, err)
		if len(table) < 2 {
			t.Fatalf("the table has %d entries", len(table))
		}
		used := map[int]bool{}
		for _, want := range table {
			if got, err := dev.QueryGID(1, want.Index); got != want || err != nil {
				t.Errorf("entry is %v, %v, want %v", got, err, want)
			}
			used[want.Index] = true
		}
		attr, err := dev.QueryPort(1)
		must(t, err)
		last := attr.GIDTableLen - 1
		if used[last] {
			t.Fatal("the table is full")
		}
		if _, err := dev.QueryGID(1, last); !errors.Is(err, syscall.ENODATA) {
			t.Errorf("an unused entry: %v, want ENODATA", err)
		}
		_, err = dev.QueryGID(1, attr.GIDTableLen)
		argError(t, err, "index")
	})
}
