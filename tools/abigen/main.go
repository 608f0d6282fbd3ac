// Command abigen writes the Go packages that hold the kernel's RDMA ABI: the
// structs and constants of the uapi headers.
//
//	abigen -include DIR [-include DIR] [-version TEXT] [-root DIR] [-check]
//
// DIR holds the headers as the Debian package linux-libc-dev installs them:
// /usr/include, or "$(vmrun get -suite experimental linux-libc-dev)/usr/include". gcc
// compiles them and abigen reads what it made of them: the layout of structs
// from the debug information, the values of constants from initialized data. The
// names to take are listed in abi.txt, which also describes its own format.
//
// With -check nothing is written. If the files in the repository were made from
// the same version, they must be what abigen would write. If the headers are of
// another version, whatever stands in the files must still hold: constants,
// sizes, offsets and types of fields. Only additions are allowed.
package main

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

//go:embed abi.txt
var allowList string

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "abigen:", err)
		}
		os.Exit(1)
	}
}

func run(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("abigen", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var dirs []string
	flags.Func("include", "`directory` with the kernel's headers (repeatable)", func(s string) error {
		dirs = append(dirs, s)
		return nil
	})
	version := flags.String("version", "", "what the headers are, such as \"linux-libc-dev 7.2.13-1\" (default: what the unpacked package says)")
	root := flags.String("root", ".", "root `directory` of the repository")
	gcc := flags.String("gcc", "gcc", "C `compiler`")
	list := flags.String("list", "", "allow-list `file` (default: the one in abigen)")
	check := flags.Bool("check", false, "write nothing, compare")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if dirs == nil {
		return errors.New("-include is missing: the directory of the kernel's headers, such as usr/include of an unpacked linux-libc-dev")
	}
	if *version == "" {
		v, err := packageVersion(dirs[0])
		if err != nil {
			return err
		}
		*version = v
	}
	if strings.ContainsAny(*version, ",\n") {
		return fmt.Errorf("-version is %q, allowed: a text without commas and line breaks, as it is part of the second line of each file", *version)
	}
	text := allowList
	if *list != "" {
		b, err := os.ReadFile(*list)
		if err != nil {
			return err
		}
		text = string(b)
	}
	pkgs, err := parseList(strings.NewReader(text))
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "abigen")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	c, err := newCompiler(*gcc, dirs, temp)
	if err != nil {
		return err
	}
	files, err := generate(c, pkgs, *version)
	if err != nil {
		return err
	}
	if *check {
		return compare(*root, files, *version, stdout)
	}
	return write(*root, files, stdout)
}

// write writes the files that differ from what is there, and removes those that
// were generated once and are not now.
func write(root string, files map[string][]byte, stdout io.Writer) error {
	stale, err := staleFiles(root, files)
	if err != nil {
		return err
	}
	for _, name := range stale {
		if err := os.Remove(filepath.Join(root, filepath.FromSlash(name))); err != nil {
			return err
		}
		fmt.Fprintln(stdout, name, "removed")
	}
	for _, name := range sortedKeys(files) {
		path := filepath.Join(root, filepath.FromSlash(name))
		if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, files[name]) {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			return err
		}
		if err := os.WriteFile(path, files[name], 0o666); err != nil {
			return err
		}
		fmt.Fprintln(stdout, name)
	}
	return nil
}

var changelogHead = regexp.MustCompile(`^\S+ \(([^)]+)\) `)

// packageVersion returns the version of linux-libc-dev, whose headers are in
// dir. "vmrun get" notes it beside the package's tree; where the package was
// unpacked or installed with its documentation, the changelog has it.
func packageVersion(dir string) (string, error) {
	v, err := notedVersion(filepath.Join(dir, "..", "..", "..", "packages.json"))
	if errors.Is(err, fs.ErrNotExist) {
		v, err = changelogVersion(filepath.Join(dir, "..", "share", "doc", "linux-libc-dev", "changelog.Debian.gz"))
	}
	if err != nil {
		return "", fmt.Errorf("version of the headers: %w (name it with -version)", err)
	}
	return "linux-libc-dev " + v, nil
}

// notedVersion reads a list of packages: ["linux-libc-dev=7.2.13-1"].
func notedVersion(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	var packages []string
	if err := json.Unmarshal(b, &packages); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	for _, p := range packages {
		if v, ok := strings.CutPrefix(p, "linux-libc-dev="); ok && v != "" {
			return v, nil
		}
	}
	return "", fmt.Errorf("%s: has no linux-libc-dev", path)
}

// changelogVersion reads the first line of a Debian changelog.
func changelogVersion(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	head, err := io.ReadAll(io.LimitReader(z, 256))
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	m := changelogHead.FindSubmatch(head)
	if m == nil {
		return "", fmt.Errorf("%s: no version in the first line", path)
	}
	return string(m[1]), nil
}
