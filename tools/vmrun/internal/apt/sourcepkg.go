package apt

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/ulikunitz/xz"
)

// SourceRequest says which source package is wanted.
type SourceRequest struct {
	Entry   string // Entry is the name in the cache.
	Suite   string // Suite is Debian's name for the release: testing, sid.
	Package string // Package is the name of the source package.

	// Check says before anything is fetched why it would be in vain; nil is nothing.
	Check func() error
	// Finish does what is left to do in the unpacked tree; nil is nothing.
	Finish func(root string) error
}

// Source returns the directory in which the upstream source of a package is unpacked, without Debian's
// changes, and fetches it first if the cache does not have it. It returns the errors of Get.
func (s *Store) Source(ctx context.Context, r SourceRequest) (string, error) {
	dir, err := s.Cache.Make(ctx, r.Entry, s.Renew, func(tmp string) error {
		if r.Check != nil {
			if err := r.Check(); err != nil {
				return err
			}
		}
		if err := s.downloadSource(ctx, r, tmp); err != nil || r.Finish == nil {
			return err
		}
		return r.Finish(filepath.Join(tmp, "root"))
	})
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "root"), nil
}

// downloadSource fetches and unpacks a source package, while no other process does so with the same suite.
func (s *Store) downloadSource(ctx context.Context, r SourceRequest, tmp string) error {
	archive, err := ReadArchive(cmp.Or(s.Etc, "/etc/apt"))
	if err != nil {
		return err
	}
	name := "apt-" + r.Suite + "-source"
	unlock, err := s.Cache.Lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	su := &suite{name: r.Suite, arch: "amd64", source: true, dir: s.Cache.Path(name)} // source has no architecture; apt wants one
	isNew, err := s.index(ctx, su, archive, s.Renew)
	if err != nil {
		return err
	}
	err = s.fetchSource(ctx, su, r, tmp)
	if err == nil || isNew || ctx.Err() != nil {
		return err
	}
	// The mirror may have moved on since the index was fetched.
	s.Logf("%v; trying again with a new package index", err)
	if _, ierr := s.index(ctx, su, archive, true); ierr != nil {
		return errors.Join(err, ierr)
	}
	return s.fetchSource(ctx, su, r, tmp)
}

// upstream is the name of the file with the upstream source.
var upstream = regexp.MustCompile(`\.orig\.tar\.(gz|xz)$`)

// fetchSource fetches the files with the upstream source of a package, checks them, and unpacks the source.
// Debian's changes are not fetched: a mirror removes them when there is a new version of them.
func (s *Store) fetchSource(ctx context.Context, su *suite, r SourceRequest, tmp string) error {
	out, err := su.apt(ctx, su.dir, "apt-get", "-qq", "--print-uris", "--tar-only", "source", r.Package)
	if err != nil {
		return err
	}
	var want []pkg
	var total int64
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, "'") {
			continue
		}
		p, err := parseSourceURI(line)
		if err != nil {
			return err
		}
		want = append(want, p)
		total += p.size
	}
	files, root := filepath.Join(tmp, "files"), filepath.Join(tmp, "root")
	if err := errors.Join(os.RemoveAll(tmp), os.MkdirAll(files, 0o755), os.MkdirAll(root, 0o755)); err != nil {
		return err
	}
	end := s.Progress.Start(fmt.Sprintf("source of %s (Debian %s)", r.Package, r.Suite), total, func() int64 { return dirSize(files) })
	_, err = su.apt(ctx, files, "apt-get", "-qq", "--download-only", "--tar-only", "source", r.Package)
	end(err)
	if err != nil {
		return err
	}
	var orig string
	for _, p := range want {
		if err := p.check(files); err != nil {
			return err
		}
		if upstream.MatchString(p.file) {
			orig = p.file
		}
	}
	if orig == "" {
		return fmt.Errorf("the source package %s of Debian %s has no upstream source", r.Package, r.Suite)
	}
	if err := unpackSource(filepath.Join(files, orig), root); err != nil {
		return fmt.Errorf("unpack %s: %w", orig, err)
	}
	return os.RemoveAll(files)
}

// parseSourceURI parses a line "'URI' FILE SIZE SHA256:HEX".
func parseSourceURI(line string) (pkg, error) {
	f := strings.Fields(line)
	if len(f) != 4 {
		return pkg{}, fmt.Errorf("apt's line about a source package: %q", line)
	}
	size, err := strconv.ParseInt(f[2], 10, 64)
	if err != nil {
		return pkg{}, fmt.Errorf("size of a source package: %w", err)
	}
	sum, ok := strings.CutPrefix(f[3], "SHA256:")
	if !ok {
		return pkg{}, fmt.Errorf("apt gave no SHA256 for %s", f[1])
	}
	return pkg{file: f[1], size: size, sha256: sum}, nil
}

// unpackSource unpacks a compressed tar file below a directory.
func unpackSource(file, dir string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	var r io.Reader = bufio.NewReaderSize(f, 1<<20)
	if strings.HasSuffix(file, ".gz") {
		r, err = gzip.NewReader(r)
	} else {
		r, err = xz.NewReader(r)
	}
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return untar(r, root, nil)
}
