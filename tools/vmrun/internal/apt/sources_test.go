package apt

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// etc makes a directory like /etc/apt.
func etc(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		p := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(p), 0o755))
		must(t, os.WriteFile(p, []byte(text), 0o644))
	}
	return dir
}

const deb822 = `Types: deb deb-src
# a comment inside a paragraph
URIs: http://mirror.test/debian/
Suites: bookworm
 bookworm-updates
Components: main contrib
Signed-By: /etc/keys/company.gpg

Types: deb
URIs: http://mirror.test/debian-security
Suites: bookworm-security
Components: main
Signed-By: /etc/keys/company.gpg
`

const thirdParty = `Types: deb
URIs: https://download.test/linux/debian
Suites: bookworm
Components: stable

Types: deb
URIs: https://nodes.test/node_20.x
Suites: nodistro
Components: main
`

func TestReadArchive(t *testing.T) {
	company := Archive{
		Main:     Source{"http://mirror.test/debian", "/etc/keys/company.gpg"},
		Security: Source{"http://mirror.test/debian-security", "/etc/keys/company.gpg"},
	}
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  Archive
		err   error
	}{
		{"deb822", map[string]string{"sources.list.d/debian.sources": deb822, "sources.list.d/a.sources": thirdParty}, company, nil},
		{"one line", map[string]string{"sources.list": `
# deb http://old.test/debian bookworm main
deb cdrom:[Debian 12]/ bookworm main
deb-src http://src.test/debian bookworm main
deb https://download.test/linux/debian bookworm stable # a third party
deb	[ arch=amd64 signed-by=/etc/keys/company.gpg ]  http://mirror.test/debian/ bookworm main non-free-firmware
deb [signed-by=/etc/keys/company.gpg] http://mirror.test/debian-security bookworm-security main
deb http://second.test/debian bookworm main
`}, company, nil},
		{"list directory", map[string]string{"sources.list.d/x.list": "deb [signed-by=/k] http://mirror.test/debian trixie main\n"},
			Archive{Main: Source{"http://mirror.test/debian", "/k"}}, nil},
		{"disabled", map[string]string{"sources.list.d/debian.sources": "Enabled: no\n" + deb822[:200]}, Archive{}, ErrNoArchive},
		{"other file names", map[string]string{"sources.list.d/debian.sources.off": deb822}, Archive{}, ErrNoArchive},
		{"third parties only", map[string]string{"sources.list.d/a.sources": thirdParty}, Archive{}, ErrNoArchive},
		{"another distribution", map[string]string{"sources.list": "deb http://mirror.test/ubuntu noble main\n"}, Archive{}, ErrNoArchive},
		{"nothing", nil, Archive{}, ErrNoArchive},
		{"nonsense", map[string]string{"sources.list": "deb\ndeb [x\ndeb a b\n", "sources.list.d/x.sources": " continued\n:\nTypes\n"}, Archive{}, ErrNoArchive},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ReadArchive(etc(t, tt.files))
			if !errors.Is(err, tt.err) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if err == nil {
				if d := cmp.Diff(tt.want, got); d != "" {
					t.Error(d)
				}
			}
		})
	}
}

// A key in the file itself goes on as it is, continuation lines and all.
func TestInlineKey(t *testing.T) {
	key := "\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mDMEY\n -----END PGP PUBLIC KEY BLOCK-----"
	a, err := ReadArchive(etc(t, map[string]string{
		"sources.list.d/debian.sources": "Types: deb\nURIs: http://mirror.test/debian\nSuites: bookworm\nComponents: main\nSigned-By:" + key + "\n",
	}))
	must(t, err)
	again := parseDeb822(a.Main.lines("deb", "sid"))
	want := []entry{{uris: []string{"http://mirror.test/debian"}, suites: []string{"sid"}, components: []string{"main"}, signedBy: a.Main.SignedBy}}
	if d := cmp.Diff(want, again, cmp.AllowUnexported(entry{})); d != "" {
		t.Error(d)
	}
}

func FuzzSources(f *testing.F) {
	f.Add(deb822)
	f.Add("deb [signed-by=/x] http://a/debian bookworm main\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, e := range append(parseList(text), parseDeb822(text)...) {
			if _, err := pick([]entry{e}); err != nil && !errors.Is(err, ErrNoArchive) {
				t.Error(err)
			}
		}
	})
}
