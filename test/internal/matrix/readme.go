package matrix

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Render merges the results that dir has for the columns, such as amd64/6.1/siw. It prints the
// table and writes it to matrix.json and matrix.html in dir. It reports whether every test ran and
// none failed.
func Render(dir, root string, columns []string) (good bool, err error) {
	tests, err := kernelTests(root)
	if err != nil {
		return false, err
	}
	var runs []*Run
	for _, c := range columns {
		r, err := readRun(dir, ParseColumn(c))
		if err != nil {
			return false, err
		}
		runs = append(runs, r)
	}
	m := merge(tests, runs)
	if err := m.stamp(root); err != nil {
		return false, err
	}
	page, err := html(m)
	if err != nil {
		return false, err
	}
	if err := os.WriteFile(filepath.Join(dir, "matrix.json"), m.encode(), 0o666); err != nil {
		return false, err
	}
	if err := os.WriteFile(filepath.Join(dir, "matrix.html"), page, 0o666); err != nil {
		return false, err
	}
	fmt.Print(text(m))
	return m.good(), nil
}

// Where the rendered matrix stands in the checkout.
const (
	dataFile   = "test/matrix/matrix.json"
	pageFile   = "test/matrix/MATRIX.md"
	readmeFile = "README.md"
)

// CheckIn puts the columns that Render has left in dir into the matrix that is checked in. If there are
// none it does nothing.
func CheckIn(dir, root string) error {
	newer, err := readMatrix(filepath.Join(dir, "matrix.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	m, err := readMatrix(filepath.Join(root, dataFile))
	if err != nil {
		return err
	}
	tests, err := kernelTests(root)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, dataFile), m.with(newer, tests).encode(), 0o666)
}

// WriteReadme renders the matrix that is checked in into MATRIX.md and the README, and writes its part about
// the verbs for the program of test/suites/conformance.
func WriteReadme(root string) error {
	m, err := readMatrix(filepath.Join(root, dataFile))
	if err != nil {
		return err
	}
	cards, err := readCards(root)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, pageFile), append(markdown(m), cardTable(cards)...), 0o666); err != nil {
		return err
	}
	if err := writePublished(root, m); err != nil {
		return err
	}
	path := filepath.Join(root, readmeFile)
	readme, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, _, after, err := cutBlock(string(readme))
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(before+summary(m)+after), 0o666)
}

// What encloses the table in the README.
const (
	blockBegin = "<!-- matrix: written by make readme -->\n"
	blockEnd   = "<!-- end of matrix -->\n"
)

// cutBlock cuts a README at the markers, which stay with what is before and after.
func cutBlock(readme string) (before, block, after string, err error) {
	before, rest, ok := strings.Cut(readme, blockBegin)
	block, after, ok2 := strings.Cut(rest, blockEnd)
	if !ok || !ok2 {
		return "", "", "", fmt.Errorf("%s has no %q followed by %q", readmeFile, blockBegin, blockEnd)
	}
	return before + blockBegin, block, blockEnd + after, nil
}
