package apt

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// ErrNoArchive is returned on a system whose apt sources name no Debian archive.
var ErrNoArchive = errors.New("no Debian archive among this system's apt sources")

// Archive says where Debian's packages come from on this system.
type Archive struct {
	Main     Source // Main is the archive itself.
	Security Source // Security is the archive of security updates; its URI is empty if there is none.
}

// Source is one place for packages.
type Source struct {
	URI      string // URI is the address as the system's sources give it.
	SignedBy string // SignedBy is a keyring's path or the key itself; empty means apt's own trusted keys.
}

// entry is one line of a one-line-style file, or one paragraph of a deb822 file.
type entry struct {
	uris, suites, components []string
	signedBy                 string
}

// keyring has the keys of all of Debian's suites, if the package
// debian-archive-keyring is installed.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// ReadArchive reads apt's sources in dir, which is /etc/apt but for tests.
func ReadArchive(dir string) (Archive, error) {
	var all []entry
	lists, err := filepath.Glob(filepath.Join(dir, "sources.list.d", "*.list"))
	if err != nil {
		return Archive{}, err
	}
	for _, file := range append([]string{filepath.Join(dir, "sources.list")}, lists...) {
		b, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Archive{}, err
		}
		all = append(all, parseList(string(b))...)
	}
	sources, err := filepath.Glob(filepath.Join(dir, "sources.list.d", "*.sources"))
	if err != nil {
		return Archive{}, err
	}
	for _, file := range sources {
		b, err := os.ReadFile(file)
		if err != nil {
			return Archive{}, err
		}
		all = append(all, parseDeb822(string(b))...)
	}
	return pick(all)
}

// A third party's archive may use Debian's suite names too, but hardly together
// with a component main and a path that ends as Debian's does. Should it happen,
// apt finds the signature to be another's.
var (
	suiteName    = regexp.MustCompile(`^(stable|oldstable|oldoldstable|testing|unstable|sid|buster|bullseye|bookworm|trixie|forky|duke)(-updates|-backports|-proposed-updates)?$`)
	securityName = regexp.MustCompile(`^[a-z]+(-security|/updates)$`)
	debianPath   = regexp.MustCompile(`/debian/*$|/[^/]*mirror[^/]*$`)
	securityPath = regexp.MustCompile(`/debian-security/*$|/[^/]*security[^/]*$`)
)

func pick(all []entry) (Archive, error) {
	var a Archive
	for _, e := range all {
		if !slices.Contains(e.components, "main") || len(e.uris) == 0 || strings.HasPrefix(e.uris[0], "cdrom:") {
			continue
		}
		s := Source{URI: strings.TrimRight(e.uris[0], "/"), SignedBy: e.signedBy}
		switch {
		case a.Main.URI == "" && slices.ContainsFunc(e.suites, suiteName.MatchString) && debianPath.MatchString(s.URI):
			a.Main = s
		case a.Security.URI == "" && slices.ContainsFunc(e.suites, securityName.MatchString) && securityPath.MatchString(s.URI):
			a.Security = s
		}
	}
	if a.Main.URI == "" {
		return a, ErrNoArchive
	}
	for _, s := range []*Source{&a.Main, &a.Security} {
		// The key of the installed suite alone can't vouch for the others.
		if s.URI != "" && s.SignedBy == "" || strings.HasPrefix(path.Base(s.SignedBy), "debian-archive-") {
			if _, err := os.Stat(keyring); err == nil {
				s.SignedBy = keyring
			}
		}
	}
	return a, nil
}

// parseList parses lines "deb [option=value ...] URI SUITE COMPONENT...".
func parseList(text string) []entry {
	var all []entry
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "deb")
		if !ok || rest == "" || !strings.ContainsAny(rest[:1], " \t") {
			continue
		}
		rest = strings.TrimSpace(rest)
		var e entry
		if opts, after, ok := strings.Cut(strings.TrimPrefix(rest, "["), "]"); ok && strings.HasPrefix(rest, "[") {
			rest = after
			for o := range strings.FieldsSeq(opts) {
				if v, ok := strings.CutPrefix(o, "signed-by="); ok {
					e.signedBy = v
				}
			}
		}
		f := strings.Fields(rest)
		if len(f) < 3 {
			continue
		}
		e.uris, e.suites, e.components = f[:1], f[1:2], f[2:]
		all = append(all, e)
	}
	return all
}

// parseDeb822 parses paragraphs of "Field: value" lines, where a line that
// begins with a blank continues the one before.
func parseDeb822(text string) []entry {
	var all []entry
	fields := map[string]string{}
	last := ""
	flush := func() {
		types := strings.Fields(fields["types"])
		if slices.Contains(types, "deb") && !strings.EqualFold(strings.TrimSpace(fields["enabled"]), "no") {
			all = append(all, entry{
				uris:       strings.Fields(fields["uris"]),
				suites:     strings.Fields(fields["suites"]),
				components: strings.Fields(fields["components"]),
				signedBy:   strings.TrimSpace(fields["signed-by"]),
			})
		}
		fields, last = map[string]string{}, ""
	}
	for sc := bufio.NewScanner(strings.NewReader(text)); sc.Scan(); {
		line := sc.Text()
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.TrimSpace(line) == "":
			flush()
		case line[0] == ' ' || line[0] == '\t':
			fields[last] += "\n" + line
		default:
			key, value, _ := strings.Cut(line, ":")
			last = strings.ToLower(strings.TrimSpace(key))
			fields[last] = value
		}
	}
	flush()
	return all
}

// lines writes the source of packages of a kind (deb, deb-src) for one suite in deb822 form.
func (s Source) lines(kind, suite string) string {
	text := fmt.Sprintf("Types: %s\nURIs: %s\nSuites: %s\nComponents: main\n", kind, s.URI, suite)
	if s.SignedBy != "" {
		text += "Signed-By: " + s.SignedBy + "\n"
	}
	return text + "\n"
}
