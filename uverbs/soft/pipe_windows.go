package soft

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/windows"
)

// noFollow is nothing, since Windows lets only administrators make symbolic links.
const noFollow = 0

// ownerOf returns what is allowed, since files have no number of a user.
func ownerOf(fs.FileInfo) (user int, links uint64) { return os.Geteuid(), 1 }

// pipeEnd is the write end of a pipe. The pipe is a named one: the ends of an anonymous pipe have no
// overlapped I/O, which the deadlines of an os.File need.
type pipeEnd struct {
	handle windows.Handle
	done   chan struct{} // closed when the end is closed

	trying sync.Mutex // held during a call of try
}

// newPipe returns the handle of the read end, for overlapped I/O, and the write end of a new pipe.
func newPipe() (int, *pipeEnd, syscall.Errno) {
	name, err := windows.UTF16PtrFromString(`\\.\pipe\goverbs-` + rand.Text())
	if err != nil {
		return -1, nil, syscall.EINVAL
	}
	// A write to a pipe of messages that does not wait writes a whole event or nothing.
	w, err := windows.CreateNamedPipe(name, windows.PIPE_ACCESS_OUTBOUND|windows.FILE_FLAG_FIRST_PIPE_INSTANCE,
		windows.PIPE_TYPE_MESSAGE|windows.PIPE_NOWAIT|windows.PIPE_REJECT_REMOTE_CLIENTS, 1, pipeSize, 0, 0, nil)
	if err != nil {
		return -1, nil, errnoOf(err)
	}
	r, err := windows.CreateFile(name, windows.GENERIC_READ, 0, nil, windows.OPEN_EXISTING, windows.FILE_FLAG_OVERLAPPED, 0)
	if err != nil {
		windows.CloseHandle(w)
		return -1, nil, errnoOf(err)
	}
	return int(r), &pipeEnd{handle: w, done: make(chan struct{})}, 0
}

// errnoOf returns the errno in an error, or EIO.
func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return syscall.EIO
	}
	return errno
}

// write writes an event, all of it or nothing. It returns EAGAIN if the pipe is full.
func (p *pipeEnd) write(event []byte) syscall.Errno {
	var n uint32
	if err := windows.WriteFile(p.handle, event, &n, nil); err != nil {
		return errnoOf(err)
	}
	if n == 0 {
		return syscall.EAGAIN
	}
	return 0
}

// pipeSize is the number of bytes that a pipe holds.
const pipeSize = 1 << 16

// readAll takes everything out of a pipe, at once, by its read end.
func readAll(fd int) []byte {
	b := make([]byte, unread(fd))
	if len(b) == 0 {
		return b
	}
	event, err := windows.CreateEvent(nil, 1, 0, nil)
	if err != nil {
		return nil
	}
	defer windows.CloseHandle(event)
	// The lowest bit keeps the completion away from Go's netpoller.
	o := &windows.Overlapped{HEvent: event | 1}
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(o)
	pin.Pin(&b[0])
	h := windows.Handle(fd)
	var n uint32
	switch err := windows.ReadFile(h, b, nil, o); {
	case errors.Is(err, windows.ERROR_IO_PENDING): // the program has read everything meanwhile
		windows.CancelIoEx(h, o)
	case err != nil:
		return b[:0]
	}
	if err := windows.GetOverlappedResult(h, o, &n, true); err != nil {
		return b[:0]
	}
	return b[:n]
}

// closeEnd closes the read end of a pipe.
func closeEnd(fd int) { windows.CloseHandle(windows.Handle(fd)) }

// fullPause is the time after which a full pipe is tried again. It is full when the program has not
// read thousands of events, so nobody waits for the next one.
const fullPause = 10 * time.Millisecond

// whenReady calls try until it reports that it is done, at first and each time there may be room
// in the pipe. It returns early if the end is closed.
func (p *pipeEnd) whenReady(try func() bool) {
	for !p.try(try) {
		select {
		case <-p.done:
		case <-time.After(fullPause):
		}
	}
}

// try calls try and returns its result, or true if the end is closed.
func (p *pipeEnd) try(try func() bool) bool {
	p.trying.Lock()
	defer p.trying.Unlock()
	select {
	case <-p.done:
		return true
	default:
		return try()
	}
}

// close closes the end, if there is one. It ends whenReady, and waits for a call of try. It is called
// once.
func (p *pipeEnd) close() {
	if p == nil {
		return
	}
	close(p.done)
	p.trying.Lock()
	defer p.trying.Unlock()
	windows.CloseHandle(p.handle)
}
