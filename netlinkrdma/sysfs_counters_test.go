package netlinkrdma

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"
)

// brokenFile is a tree of files, one of which cannot be read.
type brokenFile struct {
	tree fs.FS
	name string
	err  error
}

func (b brokenFile) Open(name string) (fs.File, error) {
	if name == b.name {
		return nil, &fs.PathError{Op: "read", Path: name, Err: b.err}
	}
	return b.tree.Open(name)
}

// TestStandardCounters: a counter that a driver does not have is left out, and one that cannot be read
// does not take the others with it.
func TestStandardCounters(t *testing.T) {
	const dir = "class/infiniband/mlx5_0/ports/2/counters/"
	tree := sysfsTree()
	for name, text := range map[string]string{"link_downed": "3\n", "port_rcv_data": "18446744073709551615\n", "symbol_error": "N/A (no PMA)\n", "port_xmit_wait": "7\n"} {
		tree[dir+name] = &fstest.MapFile{Data: []byte(text)}
	}
	dev := Device{Name: "mlx5_0", Ports: 10, DriverID: DriverMLX5}
	all := []Counter{{"link_downed", 3}, {"port_rcv_data", 1<<64 - 1}, {"port_xmit_wait", 7}}
	for _, c := range []struct {
		sysfs fs.FS
		want  []Counter
		err   string
	}{
		{tree, all, "<nil>"},
		{brokenFile{tree, dir + "port_xmit_wait", unix.EINVAL}, all[:2], "<nil>"},
		{brokenFile{tree, dir + "port_xmit_wait", unix.ENOSYS}, all[:2], "<nil>"},
		{brokenFile{tree, dir + "link_downed", unix.EIO}, all[1:], "netlinkrdma: read standard counters of port 2 of mlx5_0: read class/infiniband/mlx5_0/ports/2/counters/link_downed: input/output error"},
	} {
		got, err := deafClient(unix.EACCES, c.sysfs).sysfsCounters(dev, 2, feature{name: "standard counters"}, "counters")
		if !slices.Equal(got, c.want) || fmtError(err) != c.err {
			t.Errorf("counters %v, %v, want %v, %q", got, err, c.want, c.err)
		}
	}
	if got, err := deafClient(unix.EACCES, tree).sysfsCounters(dev, 10, feature{name: "standard counters"}, "counters"); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "not supported by driver mlx5") {
		t.Errorf("of a port without counters: %v, %v", got, err)
	}
	dev.Name = "mlx5_9"
	if got, err := deafClient(unix.EACCES, tree).sysfsCounters(dev, 1, feature{name: "standard counters"}, "counters"); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("of a device that is gone: %v, %v", got, err)
	}
}

// TestPortCountersSysfs: without netlink, hardware counters come from sysfs.
func TestPortCountersSysfs(t *testing.T) {
	tree := sysfsTree()
	for name, text := range map[string]string{"sent_pkts": "12\n", "lifespan": "10\n"} {
		tree["class/infiniband/rxe0/ports/1/hw_counters/"+name] = &fstest.MapFile{Data: []byte(text)}
	}
	got, err := deafClient(unix.EACCES, tree).portCounters(Device{Name: "rxe0", Ports: 1, FromSysfs: true}, 1)
	if err != nil || !slices.Equal(got, []Counter{{"sent_pkts", 12}}) {
		t.Errorf("counters %v, %v", got, err)
	}
}
