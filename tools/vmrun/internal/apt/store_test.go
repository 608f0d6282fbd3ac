package apt

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/tools/vmrun/internal/cache"
	"github.com/goverbs/goverbs/tools/vmrun/internal/progress"
)

// fakeApt stands in for apt-get: it has one package, x, and does what the
// variable FAKE says.
const fakeApt = `#!/bin/sh
echo "$FAKE $*" >> "$FAKEDIR/calls"
case "$*" in
*update)
	[ "$FAKE" = offline ] && { echo "W: a warning" >&2; echo "E: Temporary failure resolving" >&2; exit 100; }
	exit 0;;
*" --print-uris install nosuch")
	echo "E: Unable to locate package nosuch" >&2; exit 100;;
*" --print-uris install x")
	echo "'http://mirror.test/x_1%3a2_amd64.deb' x_1%3a2_amd64.deb $SIZE MD5Sum:00";;
*" --print-uris download x=1:2"|*" --print-uris download x")
	[ "$FAKE" = nohash ] && SUM=MD5Sum:00
	echo "'http://mirror.test/x_1%3a2_amd64.deb' x_1%3a2_amd64.deb $SIZE $SUM";;
*" download x=1:2")
	case "$FAKE" in
	short) head -c 100 "$FAKEDIR/x.deb" > x_1%3a2_amd64.deb;;
	wrong) head -c "$SIZE" /dev/zero > x_1%3a2_amd64.deb;;
	killed) head -c 100 "$FAKEDIR/x.deb" > x_1%3a2_amd64.deb; kill -9 $$;;
	*) cp "$FAKEDIR/x.deb" x_1%3a2_amd64.deb;;
	esac;;
*) echo "E: unexpected: $*" >&2; exit 1;;
esac
`

// fakeStore gives a store on a system with fakeApt and a Debian archive.
func fakeStore(t *testing.T) *Store {
	t.Helper()
	dir := t.TempDir()
	tree := filepath.Join(dir, "x")
	for name, text := range map[string]string{
		"x/DEBIAN/control":      "Package: x\nVersion: 1:2\nArchitecture: amd64\nMaintainer: nobody <nobody@mirror.test>\nDescription: x\n",
		"x/lib/libx.so":         "library",
		"x/usr/share/doc/x/doc": "documentation",
		"apt-get":               fakeApt,
	} {
		p := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(p), 0o755))
		must(t, os.WriteFile(p, []byte(text), 0o755))
	}
	deb := filepath.Join(dir, "x.deb")
	if out, err := exec.Command("dpkg-deb", "--root-owner-group", "-b", tree, deb).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b, err := os.ReadFile(deb)
	must(t, err)
	sum := sha256.Sum256(b)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("FAKEDIR", dir)
	t.Setenv("SIZE", fmt.Sprint(len(b)))
	t.Setenv("SUM", "SHA256:"+hex.EncodeToString(sum[:]))
	c, err := cache.Open(filepath.Join(dir, "cache"), t.Logf)
	must(t, err)
	return &Store{
		Cache: c, Progress: progress.New(&bytes.Buffer{}), Logf: t.Logf,
		Etc: etc(t, map[string]string{"sources.list.d/debian.sources": deb822}),
	}
}

// calls counts apt-get's calls that match.
func calls(t *testing.T, pattern string) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(os.Getenv("FAKEDIR"), "calls"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return len(regexp.MustCompile("(?m)"+pattern).FindAll(b, -1))
}

var reqX = Request{Suite: "bookworm", Arch: "amd64", Packages: []string{"x"}, Deps: true}

func TestGet(t *testing.T) {
	s := fakeStore(t)
	root, err := s.Get(t.Context(), reqX)
	must(t, err)
	want := map[string]string{
		"bin": "-> usr/bin", "sbin": "-> usr/sbin", "lib": "-> usr/lib", "lib64": "-> usr/lib64",
		"usr/lib/libx.so": "library",
	}
	if d := cmp.Diff(want, listing(t, root)); d != "" {
		t.Error(d)
	}
	if b, err := os.ReadFile(filepath.Join(root, "../packages.json")); err != nil || !strings.Contains(string(b), `"x=1:2"`) {
		t.Errorf("packages.json: %s, %v", b, err)
	}
	// A warm cache asks nobody, not even apt.
	t.Setenv("FAKE", "offline")
	before := calls(t, ".")
	if again, err := s.Get(t.Context(), reqX); again != root || err != nil || calls(t, ".") != before {
		t.Errorf("from the cache: %s, %v, %d calls", again, err, calls(t, ".")-before)
	}
}

// A file that is cut short or differs from the index must not get into the cache, nor make the next
// try fail.
func TestGetNeverPoisons(t *testing.T) {
	for fake, says := range map[string]string{
		"short": "100 bytes", "wrong": "the package index says", "killed": "signal: killed", "nohash": "no SHA256", "offline": "Temporary failure",
	} {
		t.Run(fake, func(t *testing.T) {
			s := fakeStore(t)
			t.Setenv("FAKE", fake)
			if _, err := s.Get(t.Context(), reqX); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("error %v, want %q in it", err, says)
			}
			entry := "pkg-bookworm-amd64-x"
			if s.Cache.Has(entry) || s.Cache.Has(entry+".tmp") {
				t.Error("something is left in the cache")
			}
			t.Setenv("FAKE", "")
			if _, err := s.Get(t.Context(), reqX); err != nil {
				t.Errorf("the next try: %v", err)
			}
		})
	}
}

func TestGetErrors(t *testing.T) {
	s := fakeStore(t)
	req := reqX
	req.Packages = []string{"nosuch"}
	if _, err := s.Get(t.Context(), req); err == nil || !strings.Contains(err.Error(), "Unable to locate package nosuch") {
		t.Errorf("unknown package: %v", err)
	}
	if n := calls(t, "update$"); n != 1 {
		t.Errorf("the new index was fetched %d times", n)
	}
	req.Packages = []string{"../x"}
	if _, err := s.Get(t.Context(), req); err == nil || !strings.Contains(err.Error(), "package names") {
		t.Errorf("a path for a name: %v", err)
	}
	req = reqX
	req.Only = regexp.MustCompile("^y")
	if _, err := s.Get(t.Context(), req); err == nil {
		t.Error("a filter that leaves nothing was taken")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("stopped")
	cancel(why)
	if _, err := s.Get(ctx, reqX); !errors.Is(err, why) {
		t.Errorf("after cancelling: %v", err)
	}
	req = reqX
	downloads := calls(t, " download ")
	req.Finish = func(string) error { return why }
	if _, err := s.Get(t.Context(), req); !errors.Is(err, why) || s.Cache.Has("pkg-bookworm-amd64-x") {
		t.Errorf("Finish fails: %v", err)
	}
	if n := calls(t, " download ") - downloads; n > 2 { // the question and the download
		t.Errorf("Finish fails: asked and downloaded %d times", n)
	}
	before := calls(t, ".")
	req.Check = func() error { return why }
	if _, err := s.Get(t.Context(), req); !errors.Is(err, why) || calls(t, ".") != before {
		t.Errorf("Check fails: %v, %d calls of apt", err, calls(t, ".")-before)
	}
}

// The index is used for a day, an old one is better than none, and one that no
// longer fits the mirror is renewed.
func TestIndexAge(t *testing.T) {
	s := fakeStore(t)
	get := func(names ...string) error {
		req := reqX
		req.Entry = "entry-" + strings.Join(names, "") + fmt.Sprint(calls(t, "."))
		_, err := s.Get(t.Context(), req)
		return err
	}
	if err := errors.Join(get(), get()); err != nil || calls(t, "update$") != 1 {
		t.Errorf("two requests: %v, %d updates", err, calls(t, "update$"))
	}
	su := &suite{dir: s.Cache.Path("apt-bookworm-amd64")}
	old := su.stamp()
	must(t, os.Chtimes(old, timeAgo(2*maxAge), timeAgo(2*maxAge)))
	if err := get(); err != nil || calls(t, "update$") != 2 {
		t.Errorf("after two days: %v, %d updates", err, calls(t, "update$"))
	}
	t.Setenv("FAKE", "offline")
	must(t, os.Chtimes(old, timeAgo(2*maxAge), timeAgo(2*maxAge)))
	if err := get(); err != nil {
		t.Errorf("with an old index and no network: %v", err)
	}
	t.Setenv("FAKE", "short")
	before := calls(t, "update$")
	must(t, os.Chtimes(old, timeAgo(0), timeAgo(0)))
	if err := get(); err == nil || calls(t, "update$") != before+1 {
		t.Errorf("a file that is not as the index says: %v, %d updates", err, calls(t, "update$")-before)
	}
}

func TestNowhereToFetchFrom(t *testing.T) {
	s := fakeStore(t)
	s.Etc = t.TempDir()
	if _, err := s.Get(t.Context(), reqX); !errors.Is(err, ErrNoArchive) {
		t.Errorf("without sources: %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := s.Get(t.Context(), reqX); !errors.Is(err, ErrNoApt) {
		t.Errorf("without apt: %v", err)
	}
}

// The system's apt state is not touched, its hooks are not run, and signatures
// are checked.
func TestConfig(t *testing.T) {
	dir := t.TempDir()
	su := &suite{name: "trixie", arch: "arm64", dir: dir}
	a := Archive{Main: Source{"http://mirror.test/debian", "/k"}, Security: Source{"http://mirror.test/debian-security", "/k"}}
	must(t, su.prepare(a, true))
	out, err := exec.Command("apt-config", "-c", filepath.Join(dir, "apt.conf"), "dump").Output()
	must(t, err)
	for line := range strings.Lines(string(out)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		value = strings.Trim(value, `";`)
		if value == "" {
			continue
		}
		for _, hook := range []string{"APT::Update::", "DPkg::P"} {
			if strings.HasPrefix(key, hook) {
				t.Errorf("a hook of the system's is left: %s", line)
			}
		}
		for _, state := range []string{"Dir::State", "Dir::Cache", "Dir::Etc::SourceList", "Dir::Etc::SourceParts", "Dir::Etc::Preferences"} {
			// A relative one is below another of them.
			if strings.HasPrefix(key, state) && filepath.IsAbs(value) && !strings.HasPrefix(value, dir) {
				t.Errorf("%s is the system's: %s", key, value)
			}
		}
		if (key == "APT::Architecture" && value != "arm64") || (strings.HasPrefix(key, "APT::Architectures") && value != "arm64") {
			t.Errorf("%s is %s", key, value)
		}
		if (strings.HasPrefix(key, "Acquire::AllowInsecure") || key == "APT::Get::AllowUnauthenticated") && value != "false" && value != "0" {
			t.Errorf("%s is %s", key, value)
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, "debian.sources"))
	must(t, err)
	var suites []string
	for _, e := range parseDeb822(string(b)) {
		suites = append(suites, e.suites...)
	}
	if d := cmp.Diff([]string{"trixie", "trixie-updates", "trixie-security"}, suites); d != "" {
		t.Error(d)
	}
	// Packages that experimental does not have come from sid.
	su.name = "experimental"
	must(t, su.prepare(a, true))
	for file, want := range map[string]string{"debian.sources": "Suites: sid", "apt.conf": `APT::Default-Release "experimental"`} {
		if b, err := os.ReadFile(filepath.Join(dir, file)); err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s of experimental, %v, does not have %s:\n%s", file, err, want, b)
		}
	}
}

func TestParseURI(t *testing.T) {
	got, err := parseURI("'http://mirror.test/pool/libx_1%3a2+b1_all.deb' libx_1%3a2+b1_all.deb 1234 SHA256:abcd\n")
	want := pkg{file: "libx_1%3a2+b1_all.deb", size: 1234, sha256: "abcd", name: "libx", spec: "libx=1:2+b1"}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(pkg{})); d != "" || err != nil {
		t.Error(err, d)
	}
	for _, bad := range []string{"", "'u' f", "'u' x_1_all.deb big SHA256:0", "'u' x.deb 1 SHA256:0"} {
		if _, err := parseURI(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func timeAgo(d time.Duration) time.Time { return time.Now().Add(-d) }
