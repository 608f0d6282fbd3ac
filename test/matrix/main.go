// Command matrix makes a table of what works where: it records the results of kernel tests,
// merges those of several kernels, and renders them for the terminal, as HTML, and for the
// README. The Makefile calls it; see the targets kernel, matrix and readme.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const usage = `usage:
  matrix record -kernel K -arch A [-driver D] -name NAME [-path P] -dir DIR COMMAND [ARG...]
        run COMMAND, take test results from its output, keep them in DIR as the kernel's boot NAME,
        whose tests give commands by P (auto, ioctl, write) where they don't choose themselves
  matrix render -dir DIR -root ROOT ARCH/KERNEL[/DRIVER]...
        print what is in DIR and write matrix.json and matrix.html there
  matrix readme -root ROOT
        render test/matrix/matrix.json into test/matrix/MATRIX.md and README.md
`

var errUsage = errors.New("wrong arguments")

func main() {
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	f := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	f.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	kernel := f.String("kernel", "", "")
	arch := f.String("arch", "", "")
	driver := f.String("driver", rxe, "")
	name := f.String("name", "", "")
	path := f.String("path", "", "")
	dir := f.String("dir", "", "")
	root := f.String("root", ".", "")
	f.Parse(os.Args[2:])
	var err error
	code := 0
	switch os.Args[1] {
	case "record":
		code, err = record(Column{Kernel: *kernel, Arch: *arch, Driver: *driver}, Boot{Name: *name, Path: *path}, *dir, f.Args())
	case "render":
		code, err = render(*dir, *root, f.Args())
	case "readme":
		err = writeReadme(*root)
	default:
		err = errUsage
	}
	if err == errUsage {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "matrix: %v\n", err)
		os.Exit(2)
	}
	os.Exit(code)
}

// render merges the results of the kernels and writes them in every form.
func render(dir, root string, columns []string) (code int, err error) {
	tests, err := kernelTests(root)
	if err != nil {
		return 0, err
	}
	var runs []*Run
	for _, c := range columns {
		r, err := readRun(dir, parseColumn(c))
		if err != nil {
			return 0, err
		}
		runs = append(runs, r)
	}
	m := merge(tests, runs)
	page, err := html(m)
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(filepath.Join(dir, "matrix.json"), m.encode(), 0o666); err != nil {
		return 0, err
	}
	if err := os.WriteFile(filepath.Join(dir, "matrix.html"), page, 0o666); err != nil {
		return 0, err
	}
	fmt.Print(text(m))
	if !m.good() {
		return 1, nil
	}
	return 0, nil
}

// Where the rendered matrix stands in the checkout.
const (
	dataFile   = "test/matrix/matrix.json"
	pageFile   = "test/matrix/MATRIX.md"
	readmeFile = "README.md"
)

// writeReadme renders the matrix that is checked in.
func writeReadme(root string) error {
	m, err := readMatrix(filepath.Join(root, dataFile))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, pageFile), markdown(m), 0o666); err != nil {
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
