package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	exact "go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// includeVariable names the directory of the kernel's headers to compare with, instead of /usr/include.
const includeVariable = "GOVERBS_UAPI_INCLUDE"

// A difference is what is known about the headers of a kernel beside a package.
type difference struct {
	absent  int      // claims about names that the headers do not have
	differs []string // what is laid out in another way there
}

// rxe5_10 is what Linux 5.10 has in another way: the address vector is not the end of rxe_send_wr but the
// field of rxe_send_wqe behind it. It is at the same place in memory.
var rxe5_10 = []string{"struct rxe_send_wr", "struct rxe_send_wr wr", "struct rxe_send_wr wr.ud", "struct rxe_send_wqe wr"}

// efa5_10 and efa6_1 are structs of efa that ended earlier in Linux 5.10 and 6.1.
var (
	efa5_10 = []string{"struct efa_ibv_create_cq_resp", "struct efa_ibv_create_cq_resp reserved_d0", "struct efa_ibv_create_qp"}
	efa6_1  = []string{"struct efa_ibv_create_qp"}
)

// generatedPackages are the packages and where the headers of a kernel differ from them.
var generatedPackages = []struct {
	dir   string
	known map[string]difference
}{
	{"uverbs/internal/abi", map[string]difference{"5.10": {absent: 142}, "6.1": {absent: 103}, "6.12": {absent: 87}, "7.2": {absent: 32}, "7.3": {}}},
	{"uverbs/soft/internal/abi", map[string]difference{"5.10": {absent: 24, differs: rxe5_10}, "6.1": {absent: 7}, "6.12": {}, "7.2": {}, "7.3": {}}},
	{"uverbs/umad/internal/abi", map[string]difference{"5.10": {}, "6.1": {}, "6.12": {}, "7.2": {}, "7.3": {}}},
	{"mmio/rxe/internal/abi", map[string]difference{"5.10": {absent: 29, differs: rxe5_10}, "6.1": {absent: 12}, "6.12": {}, "7.2": {}, "7.3": {}}},
	{"mmio/mlx5/internal/abi", map[string]difference{"5.10": {absent: 39}, "6.1": {absent: 18}, "6.12": {absent: 13}, "7.2": {absent: 10}, "7.3": {}}},
	{"mmio/siw/internal/abi", map[string]difference{"5.10": {}, "6.1": {}, "6.12": {}, "7.2": {}, "7.3": {}}},
	{"mmio/efa/internal/abi", map[string]difference{"5.10": {absent: 26, differs: efa5_10}, "6.1": {absent: 18, differs: efa6_1}, "6.12": {absent: 13}, "7.2": {absent: 6}, "7.3": {}}},
	{"netlinkrdma/internal/abi", map[string]difference{"5.10": {absent: 54}, "6.1": {absent: 39}, "6.12": {absent: 20}, "7.2": {absent: 1}, "7.3": {}}},
	{"cm/internal/abi", map[string]difference{"5.10": {absent: 36}, "6.1": {absent: 36}, "6.12": {absent: 36}, "7.2": {}, "7.3": {}}},
}

// TestLayout compares every size, offset and constant of the generated packages with the kernel's
// headers that are installed, whether they are older or newer than those that abigen read.
func TestLayout(t *testing.T) {
	include := cmp.Or(os.Getenv(includeVariable), "/usr/include")
	var dirs, listed []string
	for _, p := range generatedPackages {
		dirs = append(dirs, p.dir)
		t.Run(p.dir, func(t *testing.T) {
			summary, problems := checkLayout(filepath.Join("..", "..", p.dir), include, p.known)
			for _, problem := range problems {
				t.Error(problem)
			}
			t.Log(summary)
		})
	}
	list, err := parseList(strings.NewReader(allowList))
	must(t, err)
	for _, p := range list {
		if p.table == "" {
			listed = append(listed, p.dir)
		}
	}
	if slices.Sort(dirs); !slices.Equal(dirs, slices.Sorted(slices.Values(listed))) {
		t.Errorf("these packages are compared: %q, and abi.txt has %q", dirs, listed)
	}
}

// A claim is a C condition that holds if a piece of a package agrees with the headers.
type claim struct {
	about, condition string
}

// claimReader reads the claims of a generated package: the C names from its comments, and what the Go
// compiler makes of the rest.
type claimReader struct {
	sizes    types.Sizes
	scope    *types.Scope
	places   map[string]place // by Go type
	headers  []string
	claims   []claim
	problems []string // in which the numbers in the package are not those of the Go compiler
}

// A place is the C type of a Go type: that of field base of ctype, or the nameless member that lies
// origin bytes behind base.
type place struct {
	ctype, base, origin string
}

// What the comments of a generated package say.
var (
	sourceLine = regexp.MustCompile(`^// Source: (.+), [^,]+\.$`)
	typeLine   = regexp.MustCompile(`^\w+ is (?:the type of |the nameless member at offset (\d+) of )?(?:field (\S+) of )?((?:struct|union) \w+) \(\S+\), \d+ bytes?\.`)
	fieldLine  = regexp.MustCompile(`^(?:(\w+) )?at (\d+)$`)
	memberLine = regexp.MustCompile(`^\w+ is member (\w+)\.`)
	tailLine   = regexp.MustCompile(`^\w+ returns the n elements of (\w+),`)
)

// readClaims reads the package in dir.
func readClaims(dir string) (*claimReader, error) {
	names, err := filepath.Glob(filepath.Join(dir, "z*.go"))
	if err != nil {
		return nil, err
	}
	r := &claimReader{sizes: types.SizesFor("gc", runtime.GOARCH), places: map[string]place{}}
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		f, err := parser.ParseFile(set, name, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
		if filepath.Base(name) == "zabi.go" {
			if m := sourceLine.FindStringSubmatch(f.Comments[0].List[1].Text); m != nil {
				r.headers = strings.Split(m[1], ", ")
			}
		}
	}
	if r.headers == nil {
		return nil, fmt.Errorf("%s: no zabi.go that names its headers", dir)
	}
	conf := types.Config{Importer: declarations{}, IgnoreFuncBodies: true, Sizes: r.sizes}
	pkg, err := conf.Check(dir, set, files, nil)
	if err != nil {
		return nil, err
	}
	r.scope = pkg.Scope()
	for _, f := range files {
		for _, d := range f.Decls {
			r.read(d)
		}
	}
	return r, nil
}

// declarations imports as much of a package as the declarations in generated files need.
type declarations struct{}

func (declarations) Import(path string) (*types.Package, error) {
	if path == "unsafe" {
		return types.Unsafe, nil
	}
	p := types.NewPackage(path, path[strings.LastIndex(path, "/")+1:])
	name := types.NewTypeName(token.NoPos, p, "HostLayout", nil)
	types.NewNamed(name, types.NewStruct(nil, nil), nil)
	p.Scope().Insert(name)
	p.MarkComplete()
	return p, nil
}

func (r *claimReader) claim(about, format string, args ...any) {
	r.claims = append(r.claims, claim{about, fmt.Sprintf(format, args...)})
}

func (r *claimReader) problem(format string, args ...any) {
	r.problems = append(r.problems, fmt.Sprintf(format, args...))
}

// read reads a declaration. The Go type of a method stands before it.
func (r *claimReader) read(d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv != nil {
			r.method(d)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.ValueSpec:
				if name := spec.Names[0].Name; name != "_" {
					r.constant(name, cmp.Or(strings.TrimSpace(spec.Comment.Text()), name))
				}
			case *ast.TypeSpec:
				if m := typeLine.FindStringSubmatch(d.Doc.Text()); m != nil {
					r.places[spec.Name.Name] = place{m[3], m[2], m[1]}
					r.structure(spec.Name.Name, spec.Type.(*ast.StructType))
				} else if spec.Name.Name != "Ptr" && !strings.HasPrefix(spec.Name.Name, "Be") {
					r.problem("%s has no comment that names its C type", spec.Name)
				}
			}
		}
	}
}

func (r *claimReader) constant(name, expr string) {
	value := r.scope.Lookup(name).(*types.Const).Val()
	bits, ok := exact.Uint64Val(value)
	if !ok {
		n, _ := exact.Int64Val(value)
		bits = uint64(n)
	}
	negative := max(0, -exact.Sign(value))
	r.claim(name, "(unsigned long long)(%s) == %#xULL && ((%s) < 0) == %d", expr, bits, expr, negative)
}

// structure reads a Go struct. Its fields without a name in C are padding, reserved, or the storage of a union.
func (r *claimReader) structure(name string, tree *ast.StructType) {
	c, typ := r.places[name], r.scope.Lookup(name).Type()
	switch {
	case c.origin != "": // C has no expression for it, only for its members
	case c.base != "":
		r.claim(c.ctype+" "+c.base, "sizeof(((%s *)0)->%s) == %d", c.ctype, c.base, r.sizes.Sizeof(typ))
	default:
		r.claim(c.ctype, "sizeof(%s) == %d && _Alignof(%s) == %d", c.ctype, r.sizes.Sizeof(typ), c.ctype, r.sizes.Alignof(typ))
	}
	st := typ.Underlying().(*types.Struct)
	var fields []*types.Var
	for i := range st.NumFields() {
		fields = append(fields, st.Field(i))
	}
	offsets := r.sizes.Offsetsof(fields)
	for i, f := range fields {
		if f.Name() == "_" || f.Name() == "union" {
			continue
		}
		m := fieldLine.FindStringSubmatch(strings.TrimSpace(tree.Fields.List[i].Comment.Text()))
		if m == nil {
			r.problem("%s.%s has no comment with its C name and offset", name, f.Name())
			continue
		}
		if want := fmt.Sprint(offsets[i]); m[2] != want {
			r.problem("%s.%s is at %s in C, and at %s in Go", name, f.Name(), m[2], want)
		}
		if !f.Embedded() {
			r.part(name, m[1], offsets[i], r.sizes.Sizeof(f.Type()))
		}
	}
}

// method reads a method that returns a member of a union, or the array behind a struct.
func (r *claimReader) method(d *ast.FuncDecl) {
	star, ok := d.Recv.List[0].Type.(*ast.StarExpr)
	if !ok || r.places[star.X.(*ast.Ident).Name] == (place{}) {
		return // of Ptr or Be16
	}
	name, path := star.X.(*ast.Ident).Name, ""
	if m := memberLine.FindStringSubmatch(d.Doc.Text()); m != nil {
		path = m[1]
	} else if m := tailLine.FindStringSubmatch(d.Doc.Text()); m != nil {
		path = m[1] + "[0]"
	} else {
		r.problem("%s.%s has no comment with its C name", name, d.Name)
		return
	}
	// The only integer in the body is the offset: unsafe.Add(p, 2), or tail[uint32](p, 4, n).
	var offset int64
	ast.Inspect(d.Body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && len(call.Args) > 1 {
			offset, _ = strconv.ParseInt(call.Args[1].(*ast.BasicLit).Value, 10, 64)
		}
		return true
	})
	method, _, _ := types.LookupFieldOrMethod(types.NewPointer(r.scope.Lookup(name).Type()), true, nil, d.Name.Name)
	var elem types.Type
	switch result := method.Type().(*types.Signature).Results().At(0).Type().(type) {
	case *types.Pointer:
		elem = result.Elem()
	case *types.Slice:
		elem = result.Elem()
	}
	r.part(name, path, offset, r.sizes.Sizeof(elem))
}

// part adds the claim about a field or member of a Go type.
func (r *claimReader) part(name, path string, offset, size int64) {
	c, start := r.places[name], r.places[name].origin
	if c.base != "" {
		path = c.base + "." + path
		start = fmt.Sprintf("(__builtin_offsetof(%s, %s) + %s)", c.ctype, c.base, cmp.Or(c.origin, "0"))
	}
	r.claim(c.ctype+" "+path, "__builtin_offsetof(%s, %s) == %s + %d && sizeof(((%s *)0)->%s) == %d",
		c.ctype, path, cmp.Or(start, "0"), offset, c.ctype, path, size)
}

// headerVersion returns the version of the kernel that the headers in dir are from, "6.1".
func headerVersion(dir string) (string, error) {
	name := filepath.Join(dir, "linux", "version.h")
	text, err := os.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("the kernel's headers are missing: %w (on Debian: apt-get install linux-libc-dev; or name their directory in %s)", err, includeVariable)
	}
	m := regexp.MustCompile(`(?m)^#define LINUX_VERSION_CODE (\d+)$`).FindSubmatch(text)
	if m == nil {
		return "", fmt.Errorf("%s: no LINUX_VERSION_CODE", name)
	}
	code, err := strconv.Atoi(string(m[1]))
	if err != nil {
		return "", fmt.Errorf("LINUX_VERSION_CODE: %w", err)
	}
	return fmt.Sprintf("%d.%d", code>>16, code>>8&255), nil
}

var (
	claimError  = regexp.MustCompile(`^claim:(\d+):\d+: error: (.*)`)
	absentError = regexp.MustCompile(`has no member named|undeclared|incomplete type|undefined type`)
)

// compileClaims lets gcc check the claims against the headers in dir. It returns those that are wrong, and
// what the others are about whose names are absent.
func compileClaims(dir string, headers []string, claims []claim) (wrong []claim, absent []string, err error) {
	machine, err := exec.Command("gcc", "-dumpmachine").Output()
	if err != nil {
		return nil, nil, fmt.Errorf("gcc -dumpmachine: %w: this test needs gcc (on Debian: apt-get install gcc)", err)
	}
	var src bytes.Buffer
	for _, h := range headers {
		fmt.Fprintf(&src, "#include <%s>\n", h)
	}
	for i, c := range claims {
		fmt.Fprintf(&src, "#line %d \"claim\"\n_Static_assert(%s, \"\");\n", i+1, c.condition)
	}
	cmd := exec.Command("gcc", "-x", "c", "-std=gnu11", "-fsyntax-only", "-fmax-errors=0", "-w", "-nostdinc",
		"-isystem", dir, "-isystem", filepath.Join(dir, strings.TrimSpace(string(machine))), "-")
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stdin = &src
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		return nil, nil, fmt.Errorf("gcc: %w", err)
	}
	// One claim can draw several diagnostics. That a name is missing explains the others.
	missing, failed := map[int]bool{}, map[int]bool{}
	for line := range strings.Lines(stderr.String()) {
		m := claimError.FindStringSubmatch(line)
		if m == nil {
			if strings.Contains(line, "error:") {
				return nil, nil, fmt.Errorf("gcc: %s", stderr.String())
			}
			continue
		}
		n, err := strconv.Atoi(m[1])
		if err != nil || n < 1 || n > len(claims) {
			return nil, nil, fmt.Errorf("gcc: %s", line)
		}
		if absentError.MatchString(m[2]) {
			missing[n-1] = true
		} else {
			failed[n-1] = true // "static assertion failed", or no valid C at all
		}
	}
	for i, c := range claims {
		switch {
		case missing[i]:
			absent = append(absent, c.about)
		case failed[i]:
			wrong = append(wrong, c)
		}
	}
	return wrong, absent, nil
}

// checkLayout compares a generated package with the headers in include. known tells, by kernel version, where
// they disagree. The names that are absent from a version that is not in it must be as many as in one of its
// neighbours, or in between.
func checkLayout(dir, include string, known map[string]difference) (summary string, problems []string) {
	version, err := headerVersion(include)
	if err != nil {
		return "", []string{err.Error()}
	}
	r, err := readClaims(dir)
	if err != nil {
		return "", []string{err.Error()}
	}
	wrong, absent, err := compileClaims(include, r.headers, r.claims)
	if err != nil {
		return "", []string{err.Error()}
	}
	var differs []string
	for _, c := range wrong {
		differs = append(differs, c.about)
		if !slices.Contains(known[version].differs, c.about) {
			r.problem("%s is not as in the headers of Linux %s: %s", c.about, version, c.condition)
		}
	}
	for _, about := range known[version].differs {
		if !slices.Contains(differs, about) {
			r.problem("%s is on record as different in Linux %s, and is not", about, version)
		}
	}
	if err := checkAbsent(version, len(absent), known); err != nil {
		r.problem("%v; absent: %s", err, strings.Join(absent, ", "))
	}
	return fmt.Sprintf("%d claims hold against the headers of Linux %s, %d are about names that it does not have, %d are known to differ",
		len(r.claims)-len(absent)-len(wrong), version, len(absent), len(differs)), r.problems
}

// checkAbsent returns an error if n absent names are too many. Fewer than on record are no error: a
// distribution's update of an old kernel may bring new names.
func checkAbsent(version string, n int, known map[string]difference) error {
	number := func(v string) int {
		major, minor, _ := strings.Cut(v, ".")
		a, _ := strconv.Atoi(major)
		b, _ := strconv.Atoi(minor)
		return a<<8 | b
	}
	versions := slices.SortedFunc(maps.Keys(known), func(a, b string) int { return number(a) - number(b) })
	i, found := slices.BinarySearchFunc(versions, version, func(a, b string) int { return number(a) - number(b) })
	switch {
	case found && n > known[version].absent:
		return fmt.Errorf("the headers of Linux %s lack %d names of this package, and at most %d are on record", version, n, known[version].absent)
	case found:
		return nil
	case i == 0:
		return fmt.Errorf("the headers of Linux %s lack %d names of this package, and nothing is on record for so old a kernel", version, n)
	}
	most, least := known[versions[i-1]].absent, 0
	if i < len(versions) {
		least = known[versions[i]].absent
	}
	if n < least || n > most {
		return fmt.Errorf("the headers of Linux %s lack %d names of this package, and it should be %d to %d", version, n, least, most)
	}
	return nil
}
