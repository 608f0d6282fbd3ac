//go:build unix

package soft

import (
	"io/fs"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// noFollow has the opening of a symbolic link fail.
const noFollow = syscall.O_NOFOLLOW

// ownerOf returns the user that a file belongs to, and the number of its names.
func ownerOf(info fs.FileInfo) (user int, links uint64) {
	s := info.Sys().(*syscall.Stat_t)
	return int(s.Uid), uint64(s.Nlink)
}

// pipeEnd is the write end of a pipe.
type pipeEnd struct {
	fd int

	mu     sync.Mutex
	file   *os.File // guarded by mu: of fd, made when the pipe is full for the first time
	closed bool     // guarded by mu
}

// newPipe returns the descriptor of the read end and the write end of a new pipe.
func newPipe() (int, *pipeEnd, syscall.Errno) {
	p, err := openPipe()
	if err != nil {
		errno, _ := err.(syscall.Errno)
		return -1, nil, errno
	}
	return p[0], &pipeEnd{fd: p[1]}, 0
}

// write writes an event, all of it or nothing. It returns EAGAIN if the pipe is full.
func (p *pipeEnd) write(event []byte) syscall.Errno {
	for {
		_, err := unix.Write(p.fd, event)
		switch errno, _ := err.(syscall.Errno); errno {
		case syscall.EINTR:
		default:
			return errno
		}
	}
}

// pipeSize is the number of bytes that a pipe holds at most, unless somebody makes it larger.
const pipeSize = 1 << 16

// readAll takes everything out of a pipe, at once, by its read end.
func readAll(fd int) []byte {
	b := make([]byte, pipeSize)
	n, _ := unix.Read(fd, b)
	return b[:max(n, 0)]
}

// unread returns the number of bytes in a pipe, by its read end.
func unread(fd int) int {
	n, err := unix.IoctlGetInt(fd, fionread)
	if err != nil {
		return 0
	}
	return n
}

// closeEnd closes the read end of a pipe.
func closeEnd(fd int) { unix.Close(fd) }

// whenReady calls try until it reports that it is done, at first and each time there may be room
// in the pipe. It returns early if the end is closed.
func (p *pipeEnd) whenReady(try func() bool) {
	if f := p.open(); f != nil {
		if raw, err := f.SyscallConn(); err == nil {
			raw.Write(func(uintptr) bool { return try() })
		}
	}
}

// open returns the file, or nil if the end is closed.
func (p *pipeEnd) open() *os.File {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.file == nil && !p.closed {
		p.file = os.NewFile(uintptr(p.fd), "event channel")
	}
	return p.file
}

// close closes the end, if there is one. It ends whenReady, and waits for a call of try.
func (p *pipeEnd) close() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
	case p.file != nil:
		p.file.Close()
	default:
		unix.Close(p.fd)
	}
	p.closed = true
}
