package apt

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// Documentation and translations are of no use here, except the tests that rdma-core has as an
// example of its bindings for Python.
var docs = regexp.MustCompile(`^usr/share/(doc|man|info|locale|lintian|bug|doc-base)/`)

// rdmaTests is where python3-pyverbs has tests.
const rdmaTests = "usr/share/doc/rdma-core/tests/"

// topLinks are what a system with a merged /usr has instead of directories.
var topLinks = []string{"bin", "sbin", "lib", "lib64"}

// unpack unpacks a package file below root, with /usr merged, and leaves out what
// skip matches. Maintainer scripts are not run.
func unpack(ctx context.Context, file string, root *os.Root, skip *regexp.Regexp) error {
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	terr := untar(out, root, skip)
	if terr != nil {
		_ = cmd.Process.Kill()
	} else {
		// dpkg-deb minds a reader that leaves before the padding.
		_, terr = io.Copy(io.Discard, out)
	}
	if err := cmd.Wait(); err != nil && terr == nil {
		terr = fmt.Errorf("dpkg-deb: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	if terr != nil {
		return fmt.Errorf("unpack %s: %w", path.Base(file), terr)
	}
	return nil
}

// mergeUsr makes the links of a merged /usr.
func mergeUsr(root *os.Root) error {
	for _, l := range topLinks {
		if err := root.MkdirAll("usr/"+l, 0o755); err != nil {
			return err
		}
		if err := root.Symlink("usr/"+l, l); err != nil {
			return err
		}
	}
	return nil
}

// untar unpacks r. An os.Root keeps everything below it, whatever the names and
// links in the archive say.
func untar(r io.Reader, root *os.Root, skip *regexp.Regexp) error {
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := merged(h.Name)
		if name == "." || slices.Contains(topLinks, name) || docs.MatchString(name) && !strings.HasPrefix(name, rdmaTests) || (skip != nil && skip.MatchString(name)) {
			continue
		}
		if err := untarEntry(tr, h, name, root); err != nil {
			return err
		}
	}
}

func merged(name string) string {
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	if name == "" {
		return "."
	}
	if top, _, below := strings.Cut(name, "/"); below && slices.Contains(topLinks, top) {
		return "usr/" + name
	}
	return name
}

func untarEntry(r io.Reader, h *tar.Header, name string, root *os.Root) error {
	if h.Typeflag == tar.TypeDir {
		return root.MkdirAll(name, 0o755)
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, fs.FileMode(h.Mode)&0o777|0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		return errors.Join(err, f.Close())
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		return root.Link(merged(h.Linkname), name)
	}
	return nil // a device or a pipe
}
