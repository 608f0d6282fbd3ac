package conformance

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// pkeysOf reads a device's partition keys from sysfs. A software device has that of rxe.
func pkeysOf(t *testing.T, device string) (keys []uint16) {
	t.Helper()
	if rig.Soft {
		return []uint16{0xffff}
	}
	for i := 0; ; i++ {
		b, err := os.ReadFile(fmt.Sprintf("/sys/class/infiniband/%s/ports/1/pkeys/%d", device, i))
		if errors.Is(err, fs.ErrNotExist) && i > 0 {
			return keys
		}
		must(t, err)
		key, err := strconv.ParseUint(strings.TrimSpace(string(b)), 0, 16)
		must(t, err)
		keys = append(keys, uint16(key))
	}
}

// TestQueryPKey compares the partition keys with those that sysfs has. The default one need not be
// the first.
func TestQueryPKey(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard)
	testenv.NeedsIB(t, "partition keys")
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		attr, err := dev.Port(1)
		must(t, err)
		keys := pkeysOf(t, deviceName)
		if len(keys) != attr.PKeyTableLen {
			t.Errorf("the table has %d entries, want %d", attr.PKeyTableLen, len(keys))
		}
		for i, want := range keys {
			if pkey, err := dev.PKey(1, i); pkey != want || err != nil {
				t.Errorf("partition key %d is %#x, %v, want %#x", i, pkey, err, want)
			}
		}
		if i, err := dev.PKeyIndex(1, 0xffff); i != slices.Index(keys, 0xffff) || err != nil {
			t.Errorf("0xffff is at %d, %v, want %d", i, err, slices.Index(keys, 0xffff))
		}
		if i, err := dev.PKeyIndex(1, 0x8123); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("0x8123 is at %d, %v, want fs.ErrNotExist", i, err)
		}
		_, err = dev.PKey(1, attr.PKeyTableLen)
		argError(t, err, "index")
		_, err = dev.PKey(2, 0)
		argError(t, err, "port")
	})
}

// TestQueryGID compares single entries with the table.
func TestQueryGID(t *testing.T) {
	testenv.NeedsIB(t, "GIDs")
	eachPath(t, func(t *testing.T) {
		testenv.NeedsRoCE(t, "Ethernet")
		dev := openDevice(t, deviceName)
		table, err := dev.GIDTable(1)
		must(t, err)
		if len(table) < 2 {
			t.Fatalf("the table has %d entries", len(table))
		}
		used := map[int]bool{}
		for _, want := range table {
			if got, err := dev.GID(1, want.Index); got != want || err != nil {
				t.Errorf("entry is %v, %v, want %v", got, err, want)
			}
			used[want.Index] = true
		}
		attr, err := dev.Port(1)
		must(t, err)
		last := attr.GIDTableLen - 1
		if used[last] {
			t.Fatal("the table is full")
		}
		errorIs(t, errorOf(dev.GID(1, last)), syscall.ENODATA, "an unused entry")
		_, err = dev.GID(1, attr.GIDTableLen)
		argError(t, err, "index")
	})
}

// TestQueryGIDTableErrors queries tables of ports that do not exist, and of a closed device. The
// caller gives no number of entries, which C programs get wrong.
func TestQueryGIDTableErrors(t *testing.T) {
	testenv.NeedsIB(t, "GIDs")
	eachPath(t, func(t *testing.T) {
		dev, err := uverbs.Open(deviceName, uverbs.OpenOptions{})
		must(t, err)
		ports := dev.Attr().PhysPortCount
		for _, port := range []uint8{0, ports + 1, 255} {
			table, err := dev.GIDTable(port)
			if arg := argError(t, err, "port"); table != nil || arg.Allowed != fmt.Sprintf("1 to %d", ports) {
				t.Errorf("port %d: %v, %v", port, table, err)
			}
		}
		must(t, dev.Close())
		if table, err := dev.GIDTable(1); table != nil || !errors.Is(err, os.ErrClosed) {
			t.Errorf("of a closed device: %v, %v", table, err)
		}
	})
}

// TestPortCount: as many ports as the device says can be asked for, and no more.
func TestPortCount(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		n := dev.Attr().PhysPortCount
		if n == 0 || dev.Info().Ports != int(n) {
			t.Errorf("%d ports, and %d when it was listed", n, dev.Info().Ports)
		}
		for port := uint8(1); port <= n; port++ {
			_, err := dev.Port(port)
			must(t, err)
		}
		_, err := dev.Port(n + 1)
		argError(t, err, "port")
	})
}

// TestDataInOrder: what may be looked at before its completion.
func TestDataInOrder(t *testing.T) {
	testenv.Guest(t)
	a, _ := pair(t, uverbs.QPOptions{})
	for _, op := range []uverbs.WROpcode{uverbs.WRSend, uverbs.WRRDMAWrite, uverbs.WRRDMARead} {
		if got, err := a.qp.DataInOrder(op); got != 0 || err != nil {
			t.Errorf("%s: %d, %v, want 0", op, got, err)
		}
	}
}
