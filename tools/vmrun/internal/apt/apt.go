// Package apt fetches and unpacks Debian packages of any suite and architecture,
// as whoever runs it, without installing them. It uses the system's apt with its
// settings (proxies, credentials) and the mirror and keys that the system's
// sources name, but with lists, caches and locks of its own.
package apt

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ErrNoApt is returned on a system without apt.
var ErrNoApt = errors.New("no apt on this system")

// suite is apt's state for one suite and architecture, in a directory of ours.
type suite struct {
	name, arch string
	source     bool // it has source packages instead of binary ones
	dir        string
}

// pkg is one package file as apt knows it.
type pkg struct {
	file   string // as the archive names it, epoch colons escaped
	size   int64
	sha256 string
	name   string
	spec   string // name=version
}

// maxAge is how long a package index is used before it is looked for anew.
const maxAge = 24 * time.Hour

// config goes on top of the system's configuration. Hooks of the system's and
// indexes for other programs have no place here. The sandbox user could not
// enter a cache in somebody's home directory.
const config = `#clear APT::Update;
#clear DPkg;
#clear Acquire::IndexTargets;
Acquire::IndexTargets::deb::Packages {
  MetaKey "$(COMPONENT)/binary-$(ARCHITECTURE)/Packages";
  flatMetaKey "Packages";
  ShortDescription "Packages";
  Description "$(RELEASE)/$(COMPONENT) $(ARCHITECTURE) Packages";
  flatDescription "$(RELEASE) Packages";
  Optional "false";
};
Acquire::IndexTargets::deb-src::Sources {
  MetaKey "$(COMPONENT)/source/Sources";
  flatMetaKey "Sources";
  ShortDescription "Sources";
  Description "$(RELEASE)/$(COMPONENT) Sources";
  flatDescription "$(RELEASE) Sources";
  Optional "false";
};
#clear APT::Architectures;
APT::Architecture "%[2]s";
APT::Architectures { "%[2]s"; };
APT::Install-Recommends "false";
APT::Install-Suggests "false";
APT::Default-Release "%[3]s";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::AllowInsecureRepositories "false";
Acquire::AllowWeakRepositories "false";
APT::Get::AllowUnauthenticated "false";
Dir::State "%[1]s/state";
Dir::State::lists "%[1]s/state/lists";
Dir::State::status "%[1]s/status";
Dir::State::extended_states "%[1]s/extended_states";
Dir::Cache "%[1]s/cache";
Dir::Cache::archives "%[1]s/cache/archives";
Dir::Cache::pkgcache "pkgcache.bin";
Dir::Cache::srcpkgcache "";
Dir::Etc::SourceList "%[1]s/debian.sources";
Dir::Etc::SourceParts "%[1]s/empty";
Dir::Etc::Preferences "%[1]s/empty/preferences";
Dir::Etc::PreferencesParts "%[1]s/empty";
`

// kind is the type of the packages in apt's sources.
func (s *suite) kind() string {
	if s.source {
		return "deb-src"
	}
	return "deb"
}

func (s *suite) prepare(a Archive, withUpdates bool) error {
	for _, d := range []string{"state/lists/partial", "cache/archives/partial", "empty"} {
		if err := os.MkdirAll(filepath.Join(s.dir, d), 0o755); err != nil {
			return err
		}
	}
	sources, preferred := a.Main.lines(s.kind(), s.name), ""
	if s.name == "experimental" { // Only what is newer than in sid: packages depend on those of sid.
		sources, preferred = sources+a.Main.lines(s.kind(), "sid"), s.name
	} else if withUpdates && s.name != "sid" && s.name != "unstable" {
		sources += a.Main.lines(s.kind(), s.name+"-updates")
		if a.Security.URI != "" {
			sources += a.Security.lines(s.kind(), s.name+"-security")
		}
	}
	for file, text := range map[string]string{
		"status": "", "extended_states": "",
		"apt.conf":       fmt.Sprintf(config, s.dir, s.arch, preferred),
		"debian.sources": sources,
	} {
		if err := os.WriteFile(filepath.Join(s.dir, file), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// apt runs one of apt's programs with our state. What it says on stderr becomes
// part of the error.
func (s *suite) apt(ctx context.Context, dir, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, append([]string{"-c", filepath.Join(s.dir, "apt.conf")}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, ErrNoApt
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", program, err, said(stderr.String()))
	}
	return out, nil
}

// said gives apt's errors out of what it wrote on stderr, in one line.
func said(stderr string) string {
	var errs []string
	for line := range strings.Lines(stderr) {
		if e, ok := strings.CutPrefix(line, "E: "); ok {
			errs = append(errs, strings.TrimSpace(e))
		}
	}
	if len(errs) == 0 {
		return strings.TrimSpace(stderr)
	}
	return strings.Join(errs, "; ")
}

func (s *suite) stamp() string { return filepath.Join(s.dir, "updated") }

// fresh reports whether the package index needs no update, and whether there is
// one at all.
func (s *suite) fresh() (fresh, usable bool) {
	st, err := os.Stat(s.stamp())
	if err != nil {
		return false, false
	}
	return time.Since(st.ModTime()) < maxAge, true
}

// update fetches the package index. Updates and security updates are taken too
// where the mirror has them.
func (s *suite) update(ctx context.Context, a Archive) error {
	var err error
	for _, with := range []bool{true, false} {
		if err := s.prepare(a, with); err != nil {
			return err
		}
		_, err = s.apt(ctx, s.dir, "apt-get", "-q", "-o", "APT::Update::Error-Mode=any", "update")
		if err == nil {
			return os.WriteFile(s.stamp(), nil, 0o644)
		}
		if errors.Is(err, ErrNoApt) || ctx.Err() != nil {
			return err
		}
	}
	return fmt.Errorf("package index of Debian %s: %w", s.name, err)
}

// resolve gives the packages that installing names would bring to an empty
// system, or the named ones alone.
func (s *suite) resolve(ctx context.Context, names []string, deps bool) ([]pkg, error) {
	if deps {
		all, err := s.uris(ctx, "install", names)
		if err != nil {
			return nil, err
		}
		names = nil
		for _, p := range all {
			names = append(names, p.spec)
		}
	}
	// For an installation apt prints MD5 sums, for a download the SHA256.
	pkgs, err := s.uris(ctx, "download", names)
	if err != nil {
		return nil, err
	}
	for _, p := range pkgs {
		if p.sha256 == "" {
			return nil, fmt.Errorf("apt gave no SHA256 for the package %s", p.file)
		}
	}
	return pkgs, nil
}

// uris asks apt for the package files that a command would fetch.
func (s *suite) uris(ctx context.Context, command string, names []string) ([]pkg, error) {
	out, err := s.apt(ctx, s.dir, "apt-get", append([]string{"-qq", "--print-uris", command}, names...)...)
	if err != nil {
		return nil, err
	}
	var pkgs []pkg
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, "'") {
			continue
		}
		p, err := parseURI(line)
		if err != nil {
			return nil, err
		}
		pkgs = append(pkgs, p)
	}
	if len(pkgs) == 0 {
		return nil, fmt.Errorf("apt names no package files for %s in Debian %s", strings.Join(names, ", "), s.name)
	}
	return pkgs, nil
}

// parseURI parses a line "'URI' FILE SIZE HASH:HEX"; the hash may be missing.
func parseURI(line string) (pkg, error) {
	f := append(strings.Fields(line), "")
	if len(f) < 4 {
		return pkg{}, fmt.Errorf("apt's line about a package: %q", line)
	}
	size, err := strconv.ParseInt(f[2], 10, 64)
	if err != nil {
		return pkg{}, fmt.Errorf("size of a package: %w", err)
	}
	parts := strings.Split(strings.TrimSuffix(f[1], ".deb"), "_")
	if len(parts) != 3 {
		return pkg{}, fmt.Errorf("name of a package file: %q", f[1])
	}
	version := strings.ReplaceAll(parts[1], "%3a", ":")
	p := pkg{file: f[1], size: size, name: parts[0], spec: parts[0] + "=" + version}
	if sum, ok := strings.CutPrefix(f[3], "SHA256:"); ok {
		p.sha256 = sum
	}
	return p, nil
}

// download fetches the packages into dir and checks them.
func (s *suite) download(ctx context.Context, dir string, pkgs []pkg) error {
	args := []string{"-qq", "download"}
	for _, p := range pkgs {
		args = append(args, p.spec)
	}
	if _, err := s.apt(ctx, dir, "apt-get", args...); err != nil {
		return err
	}
	for _, p := range pkgs {
		if err := p.check(dir); err != nil {
			return err
		}
	}
	return nil
}

// check compares the file in dir with what the signed index says of it.
func (p pkg) check(dir string) error {
	f, err := os.Open(filepath.Join(dir, p.file))
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	if err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); n != p.size || got != p.sha256 {
		return fmt.Errorf("%s: %d bytes with SHA256 %s, the package index says %d bytes with %s", p.file, n, got, p.size, p.sha256)
	}
	return nil
}

// dirSize gives the bytes of the files in dir, for progress.
func dirSize(dir string) int64 {
	var n int64
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // files come and go while apt works
		}
		if info, err := d.Info(); err == nil {
			n += info.Size()
		}
		return nil
	})
	return n
}
