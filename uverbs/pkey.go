package uverbs

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
)

// QueryPKey returns an entry of a port's partition key table (ibv_query_pkey). On RoCE the only
// entry is 0xffff. For a device of the kernel it reads sysfs, because there is no command for it. The
// error matches [io/fs.ErrNotExist] if sysfs is not mounted at /sys or belongs to another network
// namespace.
func (d *Device) QueryPKey(port uint8, index int) (uint16, error) {
	attr, err := d.QueryPort(port)
	if err != nil {
		return 0, err
	}
	if index < 0 || index >= attr.PKeyTableLen {
		return 0, argErr("QueryPKey", "index", index, "0 to %d", attr.PKeyTableLen-1)
	}
	if d.info.InProcess {
		return d.inProcessPKey(port, index), nil
	}
	return sysfsPKey(sysClassInfiniband, d.Name(), port, index)
}

// PKeyIndex returns the index of a partition key in a port's table (ibv_get_pkey_index). It
// compares all 16 bits, including the membership bit. The error matches [io/fs.ErrNotExist] if the
// table does not contain the key. It also returns the errors of [Device.QueryPKey].
func (d *Device) PKeyIndex(port uint8, pkey uint16) (int, error) {
	attr, err := d.QueryPort(port)
	if err != nil {
		return 0, err
	}
	read := func(index int) (uint16, error) { return sysfsPKey(sysClassInfiniband, d.Name(), port, index) }
	if d.info.InProcess {
		read = func(index int) (uint16, error) { return d.inProcessPKey(port, index), nil }
	}
	return pkeyIndex(read, d.Name(), port, attr.PKeyTableLen, pkey)
}

// pkeyIndex returns the index of a partition key in a table of n entries that read returns.
func pkeyIndex(read func(index int) (uint16, error), device string, port uint8, n int, pkey uint16) (int, error) {
	for i := range n {
		switch got, err := read(i); {
		case err != nil:
			return 0, err
		case got == pkey:
			return i, nil
		}
	}
	return 0, fmt.Errorf("uverbs: %s: port %d: partition key %#04x is not among its %d keys: %w", device, port, pkey, n, fs.ErrNotExist)
}

// sysfsPKey reads a partition key below root.
func sysfsPKey(root, device string, port uint8, index int) (uint16, error) {
	text, err := readLine(filepath.Join(root, device, "ports", strconv.Itoa(int(port)), "pkeys", strconv.Itoa(index)))
	if err != nil {
		return 0, fmt.Errorf("uverbs: %s: read partition key %d of port %d from sysfs: %w", device, index, port, err)
	}
	pkey, err := strconv.ParseUint(text, 0, 16)
	if err != nil {
		return 0, fmt.Errorf("uverbs: %s: partition key %d of port %d: %w", device, index, port, err)
	}
	return uint16(pkey), nil
}
