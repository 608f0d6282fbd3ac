package main

import (
	"bytes"
	"debug/dwarf"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// A compiler runs gcc over probes: small C files that include the kernel's
// headers and nothing else. Nothing that it compiles is ever executed.
type compiler struct {
	gcc  string   // name or path of gcc, which may be a cross compiler
	dirs []string // directories to search for headers; gcc's own are not
	temp string   // a directory for the probes
}

// newCompiler returns a compiler that finds headers in dirs and, as Debian
// keeps a part of them there, in the folder of each that has the name of the
// machine that gcc compiles for.
func newCompiler(gcc string, dirs []string, temp string) (*compiler, error) {
	out, err := exec.Command(gcc, "-dumpmachine").Output()
	if err != nil {
		return nil, fmt.Errorf("%s -dumpmachine: %w (on Debian: apt-get install gcc)", gcc, err)
	}
	machine := strings.TrimSpace(string(out))
	c := &compiler{gcc: gcc, temp: temp}
	for _, dir := range dirs {
		if st, err := os.Stat(dir); err != nil || !st.IsDir() {
			return nil, fmt.Errorf("include directory %s: not a directory", dir)
		}
		c.dirs = append(c.dirs, dir)
		if sub := filepath.Join(dir, machine); isDir(sub) {
			c.dirs = append(c.dirs, sub)
		}
	}
	return c, nil
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

// find returns the path of a header.
func (c *compiler) find(header string) (string, error) {
	for _, dir := range c.dirs {
		path := filepath.Join(dir, header)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("header %s: not in %s", header, strings.Join(c.dirs, ", "))
}

// compile compiles source into an object file with debug information.
func (c *compiler) compile(name, source string) (*elf.File, error) {
	cfile := filepath.Join(c.temp, name+".c")
	ofile := filepath.Join(c.temp, name+".o")
	if err := os.WriteFile(cfile, []byte(source), 0o600); err != nil {
		return nil, err
	}
	args := []string{"-c", "-w", "-std=gnu11", "-fmax-errors=0", "-nostdinc"}
	for _, dir := range c.dirs {
		args = append(args, "-isystem", dir)
	}
	args = append(args, "-g", "-gdwarf-4", "-fno-eliminate-unused-debug-types", "-o", ofile, cfile)
	cmd := exec.Command(c.gcc, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		if stderr.Len() == 0 {
			return nil, fmt.Errorf("%s: %w", c.gcc, err)
		}
		return nil, &compileError{diagnostics: stderr.String(), err: err}
	}
	return elf.Open(ofile)
}

// A compileError is gcc's refusal of a probe.
type compileError struct {
	diagnostics string
	err         error
}

func (e *compileError) Error() string { return fmt.Sprintf("gcc: %v\n%s", e.err, e.diagnostics) }
func (e *compileError) Unwrap() error { return e.err }

func includes(headers []string) string {
	var b strings.Builder
	for _, h := range headers {
		fmt.Fprintf(&b, "#include <%s>\n", h)
	}
	return b.String()
}

// A universe is what a set of headers declares.
type universe struct {
	types map[string]*declared     // "struct x" and "union x"
	enums map[string]*declaredEnum // "x"
	owner map[string]*declaredEnum // enumerator to the enum that declares it
}

type declared struct {
	typ    *dwarf.StructType
	header string // path of the file that declares it
}

type declaredEnum struct {
	name   string // "" if it has none
	header string
	values []string // names of the enumerators, in order
}

// declarations compiles the headers and reads what they declare.
func (c *compiler) declarations(headers []string) (*universe, error) {
	for _, h := range headers {
		if _, err := c.find(h); err != nil {
			return nil, err
		}
	}
	f, err := c.compile("types", includes(headers))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	u, err := readDeclarations(f)
	if err != nil {
		return nil, fmt.Errorf("debug information: %w", err)
	}
	return u, nil
}

// readDeclarations reads what the debug information of an object file declares.
func readDeclarations(f *elf.File) (*universe, error) {
	data, err := f.DWARF()
	if err != nil {
		return nil, err
	}
	r := &declReader{
		data:   data,
		Reader: data.Reader(),
		universe: &universe{
			types: map[string]*declared{},
			enums: map[string]*declaredEnum{},
			owner: map[string]*declaredEnum{},
		},
	}
	for {
		e, err := r.Next()
		if err != nil {
			return nil, err
		}
		if e == nil {
			return r.universe, nil
		}
		if err := r.entry(e); err != nil {
			return nil, err
		}
	}
}

// A declReader reads declarations from debug information into a universe.
type declReader struct {
	data *dwarf.Data
	*dwarf.Reader
	files    []*dwarf.LineFile // of the current compilation unit
	universe *universe
}

// entry reads one entry and, of a type, its children too.
func (r *declReader) entry(e *dwarf.Entry) error {
	switch e.Tag {
	case dwarf.TagCompileUnit:
		lines, err := r.data.LineReader(e)
		if err == nil && lines != nil {
			r.files = lines.Files()
		}
		return err
	case dwarf.TagStructType, dwarf.TagUnionType:
		return r.structType(e)
	case dwarf.TagEnumerationType:
		return r.enum(e)
	case dwarf.TagSubprogram:
		r.SkipChildren()
	}
	return nil
}

// header returns the path of the file that declares an entry, or "".
func (r *declReader) header(e *dwarf.Entry) string {
	i, _ := e.Val(dwarf.AttrDeclFile).(int64)
	if i <= 0 || int(i) >= len(r.files) || r.files[i] == nil {
		return ""
	}
	return filepath.Clean(r.files[i].Name)
}

// structType reads a struct or union, if it is defined and has a name.
func (r *declReader) structType(e *dwarf.Entry) error {
	name, _ := e.Val(dwarf.AttrName).(string)
	if decl, _ := e.Val(dwarf.AttrDeclaration).(bool); decl || name == "" {
		return nil
	}
	t, err := r.data.Type(e.Offset)
	if err != nil {
		return err
	}
	if st, ok := t.(*dwarf.StructType); ok {
		r.universe.types[st.Kind+" "+name] = &declared{typ: st, header: r.header(e)}
	}
	r.SkipChildren()
	return nil
}

// enum reads an enum and its enumerators.
func (r *declReader) enum(e *dwarf.Entry) error {
	name, _ := e.Val(dwarf.AttrName).(string)
	en := &declaredEnum{name: name, header: r.header(e)}
	if name != "" {
		r.universe.enums[name] = en
	}
	for e.Children {
		kid, err := r.Next()
		if err != nil {
			return err
		}
		if kid == nil || kid.Tag == 0 {
			break
		}
		value, _ := kid.Val(dwarf.AttrName).(string)
		en.values = append(en.values, value)
		r.universe.owner[value] = en
	}
	return nil
}

// An expression is a C constant expression that has to be evaluated.
type expression struct {
	name string // for messages
	expr string
}

// A value is what a C integer constant expression comes to.
type value struct {
	bits     uint64
	negative bool
}

func (v value) String() string {
	if v.negative {
		return fmt.Sprint(int64(v.bits))
	}
	if v.bits < 256 {
		return fmt.Sprint(v.bits)
	}
	return fmt.Sprintf("%#x", v.bits)
}

// evaluate returns the values of the expressions, in order. gcc computes them
// and they are read from the initialized data of an object file, so it works
// with a cross compiler too.
func (c *compiler) evaluate(headers []string, exprs []expression) ([]value, error) {
	if len(exprs) == 0 {
		return nil, nil
	}
	var b strings.Builder
	b.WriteString(includes(headers))
	b.WriteString("const struct { unsigned long long bits, negative; } abigen_values[] = {\n")
	for i, e := range exprs {
		// The line number tells which expression a diagnostic is about. Only an
		// integer has a remainder: text and floating point are refused.
		fmt.Fprintf(&b, "#line %d \"abigen\"\n{ (unsigned long long)(%s), ((%s) < 0) + (%s) %% 1 },\n", i+1, e.expr, e.expr, e.expr)
	}
	b.WriteString("};\n")
	f, err := c.compile("values", b.String())
	if err != nil {
		return nil, explain(err, exprs)
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		return nil, fmt.Errorf("probe: %w", err)
	}
	i := slices.IndexFunc(symbols, func(s elf.Symbol) bool { return s.Name == "abigen_values" })
	if i < 0 || int(symbols[i].Section) >= len(f.Sections) {
		return nil, errors.New("probe: gcc left out the table of values")
	}
	data, err := f.Sections[symbols[i].Section].Data()
	if err != nil {
		return nil, fmt.Errorf("probe: %w", err)
	}
	if start := symbols[i].Value; start > uint64(len(data)) || uint64(len(data))-start < 16*uint64(len(exprs)) {
		return nil, errors.New("probe: the table of values is cut short")
	}
	data = data[symbols[i].Value:]
	values := make([]value, len(exprs))
	for i := range values {
		values[i].bits = f.ByteOrder.Uint64(data[16*i:])
		values[i].negative = f.ByteOrder.Uint64(data[16*i+8:]) != 0
	}
	return values, nil
}

// explain turns gcc's diagnostics into one message that names the expressions
// that it refused.
func explain(err error, exprs []expression) error {
	var ce *compileError
	if !errors.As(err, &ce) {
		return err
	}
	var lines []string
	for line := range strings.SplitSeq(ce.diagnostics, "\n") {
		var at, column int
		if n, _ := fmt.Sscanf(line, "abigen:%d:%d: error:", &at, &column); n != 2 || at < 1 || at > len(exprs) {
			continue
		}
		_, message, _ := strings.Cut(line, "error: ")
		lines = append(lines, fmt.Sprintf("%s: %s", exprs[at-1].name, message))
	}
	if lines == nil {
		return err
	}
	return fmt.Errorf("gcc can't evaluate %s", strings.Join(slices.Compact(lines), "; "))
}
