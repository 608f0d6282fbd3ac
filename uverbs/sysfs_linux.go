package uverbs

import (
	"bytes"
	"io/fs"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// sysfsGIDs reads a GID table from sysfs below root. It opens the files relative to their
// directory, because there are about a thousand and most have no GID.
func sysfsGIDs(root, device string, port uint8, attr PortAttr) ([]GIDEntry, error) {
	dir := sysfsPort(root, device, port)
	gids, err := unix.Open(filepath.Join(dir, "gids"), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, sysfsErr(device, port, &fs.PathError{Op: "open", Path: filepath.Join(dir, "gids"), Err: err})
	}
	defer unix.Close(gids)
	var table []GIDEntry
	for i := range attr.GIDTableLen {
		text, err := readLineAt(gids, strconv.Itoa(i))
		if err != nil {
			return nil, sysfsErr(device, port, err)
		}
		e, used, err := sysfsEntry(root, dir, text, GIDEntry{Port: port, Index: i}, attr.LinkLayer)
		if err != nil {
			return nil, err
		}
		if used {
			table = append(table, e)
		}
	}
	return table, nil
}

// readLine returns the first line of a sysfs file of at most one page.
func readLine(path string) (string, error) { return readLineAt(unix.AT_FDCWD, path) }

// readLineAt is readLine for a file in an open directory. It creates no os.File, which would double
// the number of system calls.
func readLineAt(dir int, name string) (string, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	var buf [4096]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return "", &fs.PathError{Op: "read", Path: name, Err: err}
	}
	line, _, _ := bytes.Cut(buf[:n], []byte("\n"))
	return string(bytes.TrimSpace(line)), nil
}
