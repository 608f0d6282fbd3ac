package pages

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// page is the page with the tables.
const page = "uverbs/RDMA-CORE.md"

// Write renders the tables of the page.
func Write(root string) error {
	text, err := render(root)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, page), []byte(text), 0o666)
}

// render returns the text of the page with current tables and programs.
func render(root string) (string, error) {
	old, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		return "", err
	}
	text := string(old)
	names, err := nameTables(root)
	if err != nil {
		return "", err
	}
	if text, err = replace(text, "names", names); err != nil {
		return "", err
	}
	table, err := errorTable(root)
	if err != nil {
		return "", err
	}
	return replace(text, "errors", table)
}

// replace replaces what the page has between the two comments of a table.
func replace(text, title, table string) (string, error) {
	begin, end := "<!-- "+title+": written by make readme -->\n", "<!-- end of "+title+" -->\n"
	before, rest, ok := strings.Cut(text, begin)
	_, after, ends := strings.Cut(rest, end)
	if !ok || !ends {
		return "", fmt.Errorf("%s has no %q followed by %q", page, begin, end)
	}
	return before + begin + "\n" + table + "\n" + end + after, nil
}

// nameTables returns a table of the functions of each library and their names in Go, and a list of those without.
func nameTables(root string) (string, error) {
	var b strings.Builder
	of, err := counterparts(root)
	if err != nil {
		return "", err
	}
	titles, names := lists()
	for _, title := range titles {
		library, isFunctions := strings.CutSuffix(title, ": functions")
		if !isFunctions {
			continue
		}
		fmt.Fprintf(&b, "### %s\n\n| C | Go |\n| --- | --- |\n", library)
		for _, n := range names[title] {
			if len(of[n]) > 0 {
				fmt.Fprintf(&b, "| `%s` | `%s` |\n", n, strings.Join(of[n], "`, `"))
			}
		}
		b.WriteString("\n| why there is no counterpart | C |\n| --- | --- |\n")
		reasons, without := absent(names[title])
		for _, r := range reasons {
			fmt.Fprintf(&b, "| %s | `%s` |\n", r, strings.Join(without[r], "`, `"))
		}
		b.WriteString("\n")
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}
