// Package initramfs builds the guest's file tree as a cpio archive. The kernel
// takes several archives in one file, so what seldom changes (the kernel's
// modules, unpacked packages) is built once and kept.
package initramfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cavaliergopher/cpio"
)

// Tree is a file tree to be. Paths are absolute; /bin, /sbin, /lib and /lib64
// are symbolic links into /usr, as Debian has them. It is for one goroutine.
type Tree struct {
	nodes map[string]node
}

type node struct {
	mode fs.FileMode
	data []byte // contents, or the target of a symbolic link
	host string // file on the host with the contents, if data is nil
	size int64
}

// New returns a tree with the directories that every guest has.
func New() *Tree { return &Tree{nodes: map[string]node{}} }

// AddBase adds the directories and links that every guest has.
func (t *Tree) AddBase() {
	for _, l := range usrMerged {
		t.nodes["/usr/"+l] = node{mode: fs.ModeDir | 0o755}
		t.nodes["/"+l] = node{mode: fs.ModeSymlink | 0o777, data: []byte("usr/" + l)}
	}
	for _, d := range []string{"/usr", "/dev", "/proc", "/sys", "/etc", "/run", "/var"} {
		t.nodes[d] = node{mode: fs.ModeDir | 0o755}
	}
	t.nodes["/root"] = node{mode: fs.ModeDir | 0o700}
	t.nodes["/tmp"] = node{mode: fs.ModeDir | fs.ModeSticky | 0o777}
	t.nodes["/var/run"] = node{mode: fs.ModeSymlink | 0o777, data: []byte("/run")}
	t.AddBytes("/etc/passwd", []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"), 0o644)
	t.AddBytes("/etc/group", []byte("root:x:0:\nnogroup:x:65534:\n"), 0o644)
	t.AddBytes("/etc/hosts", []byte("127.0.0.1 localhost vmrun\n::1 localhost\n10.1.0.1 ve0\n10.1.0.2 ve1\n"), 0o644)
	t.AddBytes("/etc/nsswitch.conf", []byte("passwd: files\ngroup: files\nhosts: files\n"), 0o644)
}

var usrMerged = []string{"bin", "sbin", "lib", "lib64"}

// Clean gives the path under which the tree keeps p.
func Clean(p string) string {
	p = path.Clean("/" + p)
	first, rest, below := strings.Cut(p[1:], "/")
	if below && slices.Contains(usrMerged, first) {
		return "/usr/" + first + "/" + rest
	}
	return p
}

// AddBytes adds a file.
func (t *Tree) AddBytes(p string, data []byte, perm fs.FileMode) {
	t.put(p, node{mode: perm, data: data, size: int64(len(data))})
}

// AddDir adds an empty directory.
func (t *Tree) AddDir(p string, perm fs.FileMode) {
	if _, ok := t.nodes[Clean(p)]; !ok {
		t.put(p, node{mode: fs.ModeDir | perm.Perm()})
	}
}

// AddLink adds a symbolic link at p.
func (t *Tree) AddLink(p, target string) {
	t.put(p, node{mode: fs.ModeSymlink | 0o777, data: []byte(target)})
}

// AddHost adds the file or directory src of the host at p. A symbolic link that
// is src itself is followed; below a directory, links stay links.
func (t *Tree) AddHost(p, src string) error {
	resolved, err := filepath.EvalSymlinks(src)
	if err != nil {
		return err
	}
	return filepath.WalkDir(resolved, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(resolved, name)
		if err != nil {
			return err
		}
		return t.addEntry(path.Join(p, filepath.ToSlash(rel)), name, d)
	})
}

func (t *Tree) addEntry(p, name string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	switch info.Mode().Type() {
	case 0:
		t.put(p, node{mode: info.Mode().Perm(), host: name, size: info.Size()})
	case fs.ModeDir:
		t.AddDir(p, info.Mode())
	case fs.ModeSymlink:
		target, err := os.Readlink(name)
		if err != nil {
			return err
		}
		t.AddLink(p, target)
	}
	// Sockets, pipes and devices are of no use in another machine.
	return nil
}

func (t *Tree) put(p string, n node) {
	p = Clean(p)
	for dir := path.Dir(p); dir != "/"; dir = path.Dir(dir) {
		if _, ok := t.nodes[dir]; ok {
			break
		}
		t.nodes[dir] = node{mode: fs.ModeDir | 0o755}
	}
	// A package's own /lib must not take the place of the link.
	if old, ok := t.nodes[p]; ok && n.mode.IsDir() && old.mode.Type() == fs.ModeSymlink {
		return
	}
	t.nodes[p] = n
}

// Open opens the file that the guest will see at p, through symbolic links. The
// error is fs.ErrNotExist if the tree has nothing there.
func (t *Tree) Open(p string) (io.ReadCloser, error) {
	for range 40 {
		p = Clean(p)
		n, ok := t.nodes[p]
		switch {
		case !ok:
			return nil, &fs.PathError{Op: "open", Path: p, Err: fs.ErrNotExist}
		case n.mode.Type() == fs.ModeSymlink:
			target := string(n.data)
			if !path.IsAbs(target) {
				target = path.Join(path.Dir(p), target)
			}
			p = target
		case n.mode.IsDir():
			return nil, &fs.PathError{Op: "open", Path: p, Err: errors.New("is a directory")}
		case n.host != "":
			return os.Open(n.host)
		default:
			return io.NopCloser(bytes.NewReader(n.data)), nil
		}
	}
	return nil, &fs.PathError{Op: "open", Path: p, Err: errors.New("too many symbolic links")}
}

// Write writes the tree as one cpio archive, padded so that another one can
// follow it.
func (t *Tree) Write(w io.Writer) error {
	count := &counter{w: w}
	cw := cpio.NewWriter(count)
	paths := make([]string, 0, len(t.nodes))
	for p := range t.nodes {
		paths = append(paths, p)
	}
	slices.Sort(paths) // a directory comes before what is in it
	for i, p := range paths {
		if err := t.writeNode(cw, p, int64(i+1)); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	if err := cw.Close(); err != nil {
		return err
	}
	_, err := w.Write(make([]byte, (512-count.n%512)%512))
	return err
}

func (t *Tree) writeNode(cw *cpio.Writer, p string, inode int64) error {
	n := t.nodes[p]
	h := &cpio.Header{Name: p[1:], Inode: inode, Links: 1, Mode: cpio.FileMode(n.mode.Perm()), Size: n.size}
	if n.mode&fs.ModeSticky != 0 {
		h.Mode |= cpio.ModeSticky
	}
	switch n.mode.Type() {
	case fs.ModeDir:
		h.Mode |= cpio.TypeDir
		h.Links = 2
	case fs.ModeSymlink:
		h.Mode |= cpio.TypeSymlink
		h.Size = int64(len(n.data))
	default:
		h.Mode |= cpio.TypeReg
	}
	if err := cw.WriteHeader(h); err != nil {
		return err
	}
	if n.mode.IsDir() {
		return nil
	}
	if n.host == "" {
		_, err := cw.Write(n.data)
		return err
	}
	f, err := os.Open(n.host)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(cw, f)
	return err
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
