//go:build unix

package soft

import (
	"io/fs"
	"syscall"
)

// noFollow has the opening of a symbolic link fail.
const noFollow = syscall.O_NOFOLLOW

// ownerOf returns the user that a file belongs to, and the number of its names.
func ownerOf(info fs.FileInfo) (user int, links uint64) {
	s := info.Sys().(*syscall.Stat_t)
	return int(s.Uid), uint64(s.Nlink)
}
