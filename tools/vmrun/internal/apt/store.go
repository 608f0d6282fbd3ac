package apt

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/goverbs/goverbs/tools/vmrun/internal/cache"
	"github.com/goverbs/goverbs/tools/vmrun/internal/progress"
)

// Store keeps unpacked packages in a cache. It is for one goroutine; several
// processes may use one cache.
type Store struct {
	Cache    *cache.Dir
	Progress *progress.Printer
	Logf     func(format string, args ...any) // Logf is told the steps.
	Renew    bool                             // Renew fetches anew what the cache has.
	Etc      string                           // Etc is apt's directory of settings; empty is /etc/apt.
}

// Request says which packages are wanted.
type Request struct {
	Entry    string         // Entry is the name in the cache; empty for one made from the other fields.
	Suite    string         // Suite is Debian's name for the release: bookworm, sid.
	Arch     string         // Arch is Debian's name for the architecture: amd64, arm64.
	Packages []string       // Packages are the names.
	Deps     bool           // Deps asks for the packages' dependencies as well.
	Only     *regexp.Regexp // Only restricts which of the packages are fetched; nil is all.
	Skip     *regexp.Regexp // Skip leaves files out; nil is none.

	// Check says before anything is fetched why it would be in vain; nil is nothing.
	Check func() error
	// Finish does what is left to do in the unpacked tree; nil is nothing.
	Finish func(root string) error
}

// Get returns the directory in which the packages are unpacked, with /usr
// merged, and fetches them first if the cache does not have them. The error
// matches ErrNoApt or ErrNoArchive where nothing can be fetched.
func (s *Store) Get(ctx context.Context, r Request) (string, error) {
	if r.Entry == "" {
		r.Entry = "pkg-" + r.Suite + "-" + r.Arch + "-" + strings.Join(r.Packages, "+")
		if !r.Deps {
			r.Entry += "-nodeps"
		}
	}
	if strings.ContainsAny(r.Entry, "/\x00") || strings.HasPrefix(r.Entry, ".") {
		return "", fmt.Errorf("package names %q: a name has letters, digits, '+', '-' and '.' only", r.Packages)
	}
	dir, err := s.Cache.Make(ctx, r.Entry, s.Renew, func(tmp string) error { return s.fill(ctx, r, tmp) })
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "root"), nil
}

func (s *Store) fill(ctx context.Context, r Request, tmp string) error {
	if r.Check != nil {
		if err := r.Check(); err != nil {
			return err
		}
	}
	if err := s.download(ctx, r, tmp); err != nil || r.Finish == nil {
		return err
	}
	return r.Finish(filepath.Join(tmp, "root"))
}

// download fetches and unpacks, while no other process does so with the same suite.
func (s *Store) download(ctx context.Context, r Request, tmp string) error {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return ErrNoApt
	}
	archive, err := ReadArchive(cmp.Or(s.Etc, "/etc/apt"))
	if err != nil {
		return err
	}
	name := "apt-" + r.Suite + "-" + r.Arch
	unlock, err := s.Cache.Lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	su := &suite{name: r.Suite, arch: r.Arch, dir: s.Cache.Path(name)}
	isNew, err := s.index(ctx, su, archive, s.Renew)
	if err != nil {
		return err
	}
	err = s.fetch(ctx, su, r, tmp)
	if err == nil || isNew || ctx.Err() != nil {
		return err
	}
	// The mirror may have moved on since the index was fetched.
	s.Logf("%v; trying again with a new package index", err)
	if _, ierr := s.index(ctx, su, archive, true); ierr != nil {
		return errors.Join(err, ierr)
	}
	return s.fetch(ctx, su, r, tmp)
}

// index sees to it that there is a package index, a fresh one if possible, and
// reports whether it was fetched now.
func (s *Store) index(ctx context.Context, su *suite, a Archive, force bool) (bool, error) {
	fresh, usable := su.fresh()
	if fresh && !force {
		return false, nil
	}
	lists := filepath.Join(su.dir, "state/lists")
	end := s.Progress.Start(fmt.Sprintf("package index of Debian %s, %s", su.name, su.arch), 0, func() int64 { return dirSize(lists) })
	err := su.update(ctx, a)
	end(err)
	if err != nil && usable && !force && ctx.Err() == nil {
		s.Logf("%v; going on with the index of an earlier run", err)
		return false, nil
	}
	return true, err
}

func (s *Store) fetch(ctx context.Context, su *suite, r Request, tmp string) error {
	pkgs, err := su.resolve(ctx, r.Packages, r.Deps)
	if err != nil {
		return err
	}
	var want []pkg
	var total int64
	for _, p := range pkgs {
		if r.Only == nil || r.Only.MatchString(p.name) {
			want = append(want, p)
			total += p.size
		}
	}
	if len(want) == 0 {
		return fmt.Errorf("no package for %s in Debian %s", strings.Join(r.Packages, ", "), su.name)
	}
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	debs, rootDir := filepath.Join(tmp, "debs"), filepath.Join(tmp, "root")
	for _, d := range []string{debs, rootDir} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	end := s.Progress.Start(what(r, want), total, func() int64 { return dirSize(debs) })
	err = su.download(ctx, debs, want)
	end(err)
	if err != nil {
		return err
	}
	return s.unpackAll(ctx, r, want, tmp)
}

// what names a download in one line.
func what(r Request, pkgs []pkg) string {
	if len(pkgs) == 1 {
		return fmt.Sprintf("%s (Debian %s, %s)", pkgs[0].spec, r.Suite, r.Arch)
	}
	return fmt.Sprintf("%s (Debian %s, %s; %d packages)", strings.Join(r.Packages, ", "), r.Suite, r.Arch, len(pkgs))
}

func (s *Store) unpackAll(ctx context.Context, r Request, pkgs []pkg, tmp string) error {
	root, err := os.OpenRoot(filepath.Join(tmp, "root"))
	if err != nil {
		return err
	}
	defer root.Close()
	if err := mergeUsr(root); err != nil {
		return err
	}
	var specs []string
	for _, p := range pkgs {
		s.Logf("unpacking %s", p.spec)
		if err := unpack(ctx, filepath.Join(tmp, "debs", p.file), root, r.Skip); err != nil {
			return err
		}
		specs = append(specs, p.spec)
	}
	b, err := json.MarshalIndent(specs, "", "\t")
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(tmp, "packages.json"), b, 0o644),
		os.RemoveAll(filepath.Join(tmp, "debs")))
}
