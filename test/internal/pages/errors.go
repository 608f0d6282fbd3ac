package pages

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// errorPackages are the packages whose documentation has a list of errors.
var errorPackages = []string{"uverbs", "cm", "cm/rdmacm"}

// An entry is a line of the list of errors of a package: errors, when they come, and what a program does.
type entry struct{ errors, when, do string }

// errorList returns the list in the section Errors of the documentation of a package.
func errorList(root, pkg string) (all []entry, err error) {
	text, err := os.ReadFile(filepath.Join(root, pkg, "doc.go"))
	if err != nil {
		return nil, err
	}
	_, section, _ := strings.Cut(string(text), "\n// # Errors\n")
	section, _, _ = strings.Cut(section, "\n// # ")
	section, _, _ = strings.Cut(section, "\npackage ")
	section = strings.ReplaceAll(section, "\n//     ", " ")
	for line := range strings.Lines(section) {
		item, ok := strings.CutPrefix(line, "//   - ")
		if !ok {
			continue
		}
		names, rest, ok := strings.Cut(strings.TrimSpace(item), ": ")
		when, do, complete := strings.Cut(rest, ". ")
		if !ok || !complete {
			return nil, fmt.Errorf("%s/doc.go: want the error and a colon, a sentence that says when it comes, and what to do: %s", pkg, item)
		}
		all = append(all, entry{names, when + ".", do})
	}
	return all, nil
}

// link is a link in a doc comment, and what follows without a space.
var link = regexp.MustCompile(`\[([\w.]+)\](\.\w+)?`)

// plain returns a doc comment in Markdown.
func plain(text string) string { return link.ReplaceAllString(text, "`$1$2`") }

// errorTable returns a table of the errors of all packages.
func errorTable(root string) (string, error) {
	var b strings.Builder
	for _, pkg := range errorPackages {
		list, err := errorList(root, pkg)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "### Package %s\n\n| error | when | what a program does |\n| --- | --- | --- |\n", pkg)
		for _, e := range list {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", plain(e.errors), plain(e.when), plain(e.do))
		}
		b.WriteString("\n")
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}
