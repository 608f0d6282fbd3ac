package uverbs

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// GIDTable returns the used entries of a port's GID table, sorted by index (ibv_query_gid_table).
// If the kernel or RDMAABI rules out the ioctl, it reads sysfs.
func (d *Device) GIDTable(port uint8) ([]GIDEntry, error) {
	attr, err := d.facts(port)
	if err != nil {
		return nil, err
	}
	if attr.LinkLayer == ib.LinkLayerUnspecified && !d.info.InProcess { // the ioctl knows no such port
		return sysfsGIDs(sysClassInfiniband, d.Name(), port, *attr)
	}
	all, errno := d.gidIoctl()
	if absent(errno) && d.info.InProcess {
		return d.inProcessGIDs(port), nil
	}
	if absent(errno) {
		return sysfsGIDs(sysClassInfiniband, d.Name(), port, *attr)
	}
	if errno != 0 {
		return nil, d.cmd.fail("QUERY_GID_TABLE", errno, "")
	}
	return ofPort(all, port), nil
}

// GID returns one entry of a port's GID table (ibv_query_gid, ibv_query_gid_ex). The error matches
// ENODATA if the entry is unused. If the kernel or RDMAABI rules out the ioctl, it reads sysfs.
func (d *Device) GID(port uint8, index int) (GIDEntry, error) {
	p, err := d.facts(port)
	if err != nil {
		return GIDEntry{}, err
	}
	return d.gidOf(port, index, p.GIDTableLen, p.LinkLayer)
}

// currentGID is an entry of a port's GID table, from the cache if no event has come since. Entries
// that are not in the cache are read from the kernel.
func (d *Device) currentGID(port uint8, index int, facts *PortAttr) (GIDEntry, error) {
	table, err := d.currentGIDs(port)
	for _, e := range table {
		if e.Index == index && err == nil {
			return e, nil
		}
	}
	return d.gidOf(port, index, facts.GIDTableLen, facts.LinkLayer)
}

// gidOf is GID for a port with a table of n entries.
func (d *Device) gidOf(port uint8, index, n int, link ib.LinkLayer) (GIDEntry, error) {
	if index < 0 || index >= n {
		return GIDEntry{}, argErr("GID", "index", index, "0 to %d", n-1)
	}
	entry := &abi.GIDEntry{}
	cmd := newIoctl(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_GID_ENTRY)
	defer cmd.done()
	cmd.u64(abi.UVERBS_ATTR_QUERY_GID_ENTRY_PORT, uint64(port))
	cmd.u64(abi.UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX, uint64(index))
	cmd.u32(abi.UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS, 0)
	cmd.out(abi.UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, bytesOf(entry))
	errno := d.cmd.ioctl(cmd)
	if absent(errno) || link == ib.LinkLayerUnspecified && errno == syscall.EOPNOTSUPP {
		e, used, err := d.gidWithoutIoctl(port, index, link)
		if used || err != nil {
			return e, err
		}
		errno = kernel.ENODATA
	}
	if errno == kernel.ENODATA {
		return GIDEntry{}, d.cmd.fail("QUERY_GID_ENTRY", errno, fmt.Sprintf("entry %d of port %d is not used", index, port))
	}
	if errno != 0 {
		return GIDEntry{}, d.cmd.fail("QUERY_GID_ENTRY", errno, "")
	}
	return gidEntry(entry), nil
}

// gidWithoutIoctl returns one entry where no command does, and reports whether it is used.
func (d *Device) gidWithoutIoctl(port uint8, index int, link ib.LinkLayer) (e GIDEntry, used bool, err error) {
	if d.info.InProcess {
		e, used = d.inProcessGID(port, index)
		return e, used, nil
	}
	return sysfsGID(sysClassInfiniband, d.Name(), port, index, link)
}

// gidEntry converts the kernel's struct.
func gidEntry(e *abi.GIDEntry) GIDEntry {
	return GIDEntry{
		Port:   uint8(e.PortNum),
		Index:  int(e.GIDIndex),
		GID:    ib.GID(bytesOf(&e.GID)),
		Type:   ib.GIDType(e.GIDType),
		Netdev: int(e.NetdevIfindex),
	}
}

// maxGIDs limits the size of a device's GID tables. Real ones have some hundreds of entries.
const maxGIDs = 1 << 20

// usualGIDs is the number of used entries that gidIoctl expects at first. Tables have hundreds of
// entries, most of them unused, and the kernel clears as much memory as it is given.
const usualGIDs = 32

// gidIoctl returns the entries of all ports.
func (d *Device) gidIoctl() ([]GIDEntry, syscall.Errno) {
	n := 0
	for port := 1; port <= int(d.attr.PhysPortCount); port++ {
		attr, err := d.facts(uint8(port))
		if err != nil {
			return nil, errnoOf(err)
		}
		n += attr.GIDTableLen
	}
	switch {
	case n < 1:
		return nil, 0
	case n > maxGIDs:
		return nil, syscall.EOVERFLOW
	}
	result := newCached[[]GIDEntry](d)
	table, errno := d.gidIoctlFor(min(n, usualGIDs))
	if errno == syscall.EINVAL && n > usualGIDs { // more are in use
		table, errno = d.gidIoctlFor(n)
	}
	if errno == 0 {
		result.value = table
		d.ports.gids.Store(result)
	}
	return table, errno
}

// gidIoctlFor uses UVERBS_METHOD_QUERY_GID_TABLE, which returns the entries of all ports. It fails
// with EINVAL if more than n are in use.
func (d *Device) gidIoctlFor(n int) ([]GIDEntry, syscall.Errno) {
	entries := make([]abi.GIDEntry, n)
	var used [8]byte
	cmd := newIoctl(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_GID_TABLE)
	defer cmd.done()
	cmd.u64(abi.UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE, uint64(len(sliceBytes(entries[:1]))))
	cmd.u32(abi.UVERBS_ATTR_QUERY_GID_TABLE_FLAGS, 0)
	cmd.out(abi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, sliceBytes(entries))
	cmd.out(abi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, used[:])
	if errno := d.cmd.ioctl(cmd); errno != 0 {
		return nil, errno
	}
	entries = entries[:min(le64(used[:]), uint64(n))]
	table := make([]GIDEntry, len(entries))
	for i := range entries {
		table[i] = gidEntry(&entries[i])
	}
	return table, 0
}

// sysClassInfiniband is where sysfs shows RDMA devices.
const sysClassInfiniband = "/sys/class/infiniband"

// sysfsGID reads one entry and reports whether it is used.
func sysfsGID(root, device string, port uint8, i int, link ib.LinkLayer) (e GIDEntry, used bool, err error) {
	dir := sysfsPort(root, device, port)
	text, err := readLine(filepath.Join(dir, "gids", strconv.Itoa(i)))
	if err != nil {
		return GIDEntry{}, false, sysfsErr(device, port, err)
	}
	return sysfsEntry(root, dir, text, GIDEntry{Port: port, Index: i}, link)
}

// sysfsPort returns the directory of a port.
func sysfsPort(root, device string, port uint8) string {
	return filepath.Join(root, device, "ports", strconv.Itoa(int(port)))
}

// sysfsErr returns the error for a table that cannot be read.
func sysfsErr(device string, port uint8, err error) error {
	return fmt.Errorf("uverbs: %s: GIDs of port %d: the ioctl for GIDs is not available, and reading sysfs failed: %w", device, port, err)
}

// sysfsEntry completes an entry from the text of its GID file and from the files beside it.
func sysfsEntry(root, dir, text string, e GIDEntry, link ib.LinkLayer) (_ GIDEntry, used bool, err error) {
	if e.GID, err = ib.ParseGID(text); err != nil || e.GID.IsZero() {
		return GIDEntry{}, false, err
	}
	index := strconv.Itoa(e.Index)
	e.Type = sysfsGIDType(filepath.Join(dir, "gid_attrs", "types", index), link)
	if name, err := readLine(filepath.Join(dir, "gid_attrs", "ndevs", index)); err == nil {
		text, err := readLine(filepath.Join(filepath.Dir(root), "net", name, "ifindex"))
		if err == nil {
			e.Netdev, _ = strconv.Atoi(text)
		}
	}
	return e, true, nil
}

// sysfsGIDType reads the type of a GID. InfiniBand ports have no readable file.
func sysfsGIDType(path string, link ib.LinkLayer) ib.GIDType {
	text, err := readLine(path)
	switch {
	case err == nil && text == "RoCE v2":
		return ib.GIDTypeRoCEv2
	case link == ib.LinkLayerEthernet:
		return ib.GIDTypeRoCEv1
	}
	return ib.GIDTypeIB
}

// gidList lists the entries of a GID table.
func gidList(table []GIDEntry) string {
	if len(table) == 0 {
		return "none"
	}
	var all []string
	for _, e := range table {
		all = append(all, e.String())
	}
	return strings.Join(all, "; ")
}
