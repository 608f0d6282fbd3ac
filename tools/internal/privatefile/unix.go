//go:build unix

package privatefile

import (
	"io/fs"
	"syscall"
)

// noFollow has open fail for a symbolic link.
const noFollow = syscall.O_NOFOLLOW

// ownerOf returns the user that a file belongs to, and the number of its names.
func ownerOf(info fs.FileInfo) (uid int, links uint64) {
	s := info.Sys().(*syscall.Stat_t)
	return int(s.Uid), uint64(s.Nlink)
}
