// Package proc says what /proc knows of the processes that own RDMA objects. All text that a process
// chooses itself is made printable.
package proc

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unicode"
)

// FS is a /proc.
type FS struct{ root fs.FS }

// System is the /proc of this machine.
var System = FS{os.DirFS("/proc")}

// New returns the /proc below a directory.
func New(root fs.FS) FS { return FS{root} }

// Thread returns the number of a thread's process and the thread's name. The error matches
// [fs.ErrNotExist] if the thread has ended.
func (p FS) Thread(tid uint32) (pid uint32, name string, err error) {
	status, err := p.read(tid, "status")
	if err != nil {
		return tid, "", err
	}
	pid, name = parseStatus(status, tid)
	return pid, name, nil
}

// Name returns the name of a process's first thread, which is the name of the process, or "".
func (p FS) Name(pid uint32) string {
	text, _ := p.read(pid, "comm") // the process may be gone
	return printable(strings.TrimSuffix(text, "\n"))
}

// Container returns the ID of the container that a process is in, or "".
func (p FS) Container(pid uint32) string {
	text, _ := p.read(pid, "cgroup") // the process may be gone
	return containerOf(text)
}

// Netns returns the inode of a process's network namespace in decimal, as "lsns -t net" prints it, or ""
// without the right to trace the process, which the kernel asks for.
func (p FS) Netns(pid uint32) string {
	link, err := fs.ReadLink(p.root, strconv.FormatUint(uint64(pid), 10)+"/ns/net")
	inode, ok := strings.CutPrefix(link, "net:[")
	if err != nil || !ok {
		return ""
	}
	return strings.TrimSuffix(inode, "]")
}

// read reads a file of a process.
func (p FS) read(pid uint32, name string) (string, error) {
	b, err := fs.ReadFile(p.root, strconv.FormatUint(uint64(pid), 10)+"/"+name)
	if errors.Is(err, syscall.ESRCH) {
		err = fs.ErrNotExist // it ended between open and read
	}
	return string(b), err
}

// parseStatus reads the number of a thread's process and the thread's name from /proc/TID/status.
func parseStatus(status string, tid uint32) (pid uint32, name string) {
	pid = tid
	for line := range strings.Lines(status) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		value = strings.TrimSpace(value)
		switch key {
		case "Name":
			name = printable(value)
		case "Tgid":
			n, err := strconv.ParseUint(value, 10, 32)
			if err != nil {
				return tid, name
			}
			return uint32(n), name // the rest is long
		}
	}
	return pid, name
}

// idLength is the length of a container's ID: Docker, containerd, CRI-O and podman make one of 32 random
// bytes in hexadecimal.
const idLength = 64

// containerOf finds the container's ID in /proc/PID/cgroup. The name of a control group is the ID, or ends
// with it, as in docker-ID.scope, cri-containerd-ID.scope, crio-ID.scope and libpod-ID.scope, or
// kubepods-besteffort-podUID.slice:cri-containerd:ID; processes in the container may have made groups below it.
func containerOf(cgroup string) string {
	for line := range strings.Lines(cgroup) {
		names := strings.Split(strings.TrimSpace(line), "/")
		for i := len(names) - 1; i >= 0; i-- {
			name := strings.TrimSuffix(names[i], ".scope")
			id := name[max(0, len(name)-idLength):]
			before := name[:len(name)-len(id)]
			if len(id) == idLength && strings.Trim(id, "0123456789abcdef") == "" && (before == "" || strings.HasSuffix(before, "-") || strings.HasSuffix(before, ":")) {
				return id
			}
		}
	}
	return ""
}

// printable replaces characters that could control a terminal: a process chooses its own name.
func printable(s string) string { return strings.Map(visible, s) }

func visible(r rune) rune {
	if !unicode.IsPrint(r) {
		return '?'
	}
	return r
}
