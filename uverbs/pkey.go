package uverbs

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
)

// QueryPKey returns an entry of a port's partition key table (ibv_query_pkey). On RoCE the only
// entry is 0xffff. The kernel has no command for it, so it is read from sysfs. The error matches
// [io/fs.ErrNotExist] if sysfs is not mounted at /sys or belongs to another network namespace.
func (d *Device) QueryPKey(port uint8, index int) (uint16, error) {
	attr, err := d.QueryPort(port)
	if err != nil {
		return 0, err
	}
	if index < 0 || index >= attr.PKeyTableLen {
		return 0, argErr("QueryPKey", "index", index, "0 to %d", attr.PKeyTableLen-1)
	}
	return sysfsPKey(sysClassInfiniband, d.Name(), port, index)
}

// PKeyIndex returns the index of a partition key in a port's table (ibv_get_pkey_index). Like the C
// function it compares all 16 bits, including the membership bit. The error matches
// [io/fs.ErrNotExist] if the table does not contain the key; see [Device.QueryPKey] for other
// errors.
func (d *Device) PKeyIndex(port uint8, pkey uint16) (int, error) {
	attr, err := d.QueryPort(port)
	if err != nil {
		return 0, err
	}
	return sysfsPKeyIndex(sysClassInfiniband, d.Name(), port, attr.PKeyTableLen, pkey)
}

// sysfsPKeyIndex looks for a partition key in a table of n below root.
func sysfsPKeyIndex(root, device string, port uint8, n int, pkey uint16) (int, error) {
	for i := range n {
		switch got, err := sysfsPKey(root, device, port, i); {
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
