package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// goPackage is what go list says of a package.
type goPackage struct {
	Dir        string
	ImportPath string
	GoFiles    []string
}

// inRoot returns a path that is relative to the module's root.
func inRoot(root, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(root, path)
}

// packageOf returns the pattern of the package that a FILE:LINE lies in.
func packageOf(at string) string {
	file, _, _ := strings.Cut(at, ":")
	return "./" + filepath.ToSlash(filepath.Dir(file))
}

// listPackages asks go list for packages that are separated by commas. A pattern without ./ is a
// folder of the module.
func listPackages(root, patterns string) ([]goPackage, error) {
	args := []string{"list", "-json=Dir,ImportPath,GoFiles"}
	for p := range strings.SplitSeq(patterns, ",") {
		if p = strings.TrimSpace(p); p == "" {
			continue
		}
		if !strings.HasPrefix(p, ".") && !strings.Contains(strings.SplitN(p, "/", 2)[0], ".") {
			p = "./" + p
		}
		args = append(args, p)
	}
	if len(args) == 2 {
		return nil, usageError{errors.New("no package is given")}
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", patterns, withStderr(err))
	}
	var all []goPackage
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p goPackage
		if err := d.Decode(&p); err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		all = append(all, p)
	}
	return all, nil
}

// withStderr adds what a program printed to its exit status.
func withStderr(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	return err
}

// findAll returns every mutant of some packages, in the order of files and lines.
func findAll(root string, pkgs []goPackage) ([]*mutant, error) {
	var all []*mutant
	for _, p := range pkgs {
		for _, name := range p.GoFiles {
			if strings.HasPrefix(name, "z") {
				continue
			}
			path := filepath.Join(p.Dir, name)
			src, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return nil, err
			}
			some, err := find(filepath.ToSlash(rel), src)
			if err != nil {
				return nil, err
			}
			for _, m := range some {
				m.Package, m.path, m.src = p.ImportPath, path, src
			}
			all = append(all, some...)
		}
	}
	return all, nil
}

// finder collects the mutants of a file.
type finder struct {
	set  *token.FileSet
	file *token.File
	name string
	src  []byte
	all  []*mutant

	fn       string         // the function that is walked, "" outside of functions
	results  *ast.FieldList // those of the innermost function
	constant bool           // in a constant's declaration
}

// find returns the mutants of a file in the order of their places. A generated file has none.
func find(name string, src []byte) ([]*mutant, error) {
	f := &finder{set: token.NewFileSet(), name: name, src: src}
	tree, err := parser.ParseFile(f.set, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	if ast.IsGenerated(tree) {
		return nil, nil
	}
	f.file = f.set.File(tree.Pos())
	for _, d := range tree.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Body != nil {
				f.fn, f.results = funcName(d), d.Type.Results
				f.locks(d.Body)
				f.walk(d.Body)
				f.fn, f.results = "", nil
			}
		case *ast.GenDecl:
			if d.Tok == token.CONST || d.Tok == token.VAR {
				f.walk(d)
			}
		}
	}
	slices.SortStableFunc(f.all, func(a, b *mutant) int { return a.edits[0].from - b.edits[0].from })
	return f.all, nil
}

// funcName returns a function's name, with its receiver's type.
func funcName(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	typ := d.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	switch t := typ.(type) {
	case *ast.IndexExpr:
		typ = t.X
	case *ast.IndexListExpr:
		typ = t.X
	}
	if id, ok := typ.(*ast.Ident); ok {
		return id.Name + "." + d.Name.Name
	}
	return d.Name.Name
}

// at returns the offset of a position.
func (f *finder) at(p token.Pos) int { return f.file.Offset(p) }

// text returns the source of a node.
func (f *finder) text(n ast.Node) string { return string(f.src[f.at(n.Pos()):f.at(n.End())]) }

// add adds a mutant that replaces the source between two positions.
func (f *finder) add(k kind, from, to token.Pos, by string) {
	f.addEdits(k, edit{f.at(from), f.at(to), by})
}

func (f *finder) addEdits(k kind, edits ...edit) {
	m := &mutant{File: f.name, Func: f.fn, Kind: k, edits: edits}
	m.Line = f.set.Position(f.file.Pos(edits[0].from)).Line
	m.describe(f.src)
	f.all = append(f.all, m)
}

// walk finds the mutants of a tree.
func (f *finder) walk(tree ast.Node) {
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			results := f.results
			f.results = n.Type.Results
			f.walk(n.Body)
			f.results = results
			return false
		case *ast.GenDecl:
			if n.Tok == token.CONST && !f.constant {
				f.constant = true
				f.walk(n)
				f.constant = false
				return false
			}
		case *ast.ValueSpec:
			// const _ = ... and var _ = ... are checks by the compiler.
			return len(n.Names) > 1 || n.Names[0].Name != "_"
		case *ast.ArrayType:
			return false
		case *ast.BinaryExpr:
			f.binary(n)
		case *ast.BasicLit:
			f.literal(n)
		case *ast.Ident:
			f.boolean(n)
		case *ast.SliceExpr:
			f.bound(n.Low)
			f.bound(n.High)
		case *ast.IfStmt:
			f.condition(n.Cond, f.returnsError(n.Body))
		case *ast.ForStmt:
			if n.Cond != nil {
				f.add(conditionKind, n.Cond.Pos(), n.Cond.End(), "false && ("+f.text(n.Cond)+")")
			}
		case *ast.SwitchStmt:
			if n.Tag == nil {
				f.cases(n.Body)
			}
		case *ast.BlockStmt:
			f.statements(n.List)
		case *ast.CaseClause:
			f.statements(n.Body)
		case *ast.CommClause:
			f.statements(n.Body)
		case *ast.ReturnStmt:
			f.errorResult(n)
		}
		return true
	})
}

// swaps are the operators that are exchanged.
var swaps = map[token.Token]struct {
	by   token.Token
	kind kind
}{
	token.EQL: {token.NEQ, compareKind}, token.NEQ: {token.EQL, compareKind},
	token.LSS: {token.LEQ, compareKind}, token.LEQ: {token.LSS, compareKind},
	token.GTR: {token.GEQ, compareKind}, token.GEQ: {token.GTR, compareKind},
	token.ADD: {token.SUB, operatorKind}, token.SUB: {token.ADD, operatorKind},
	token.MUL: {token.QUO, operatorKind}, token.QUO: {token.MUL, operatorKind},
	token.SHL: {token.SHR, operatorKind}, token.SHR: {token.SHL, operatorKind},
	token.AND: {token.OR, operatorKind}, token.OR: {token.AND, operatorKind},
	token.LAND: {token.LOR, operatorKind}, token.LOR: {token.LAND, operatorKind},
	token.AND_NOT: {token.AND, operatorKind},
}

// binary exchanges an operator.
func (f *finder) binary(n *ast.BinaryExpr) {
	if text, ok := n.Y.(*ast.BasicLit); ok && text.Kind == token.STRING && n.Op == token.ADD {
		return // strings have no difference
	}
	if s, ok := swaps[n.Op]; ok {
		f.add(s.kind, n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), s.by.String())
	}
}

// literal changes an integer by one.
func (f *finder) literal(n *ast.BasicLit) {
	if n.Kind != token.INT {
		return
	}
	k := numberKind
	if f.constant {
		k = constantKind
	}
	for _, by := range neighbours(n.Value) {
		f.add(k, n.Pos(), n.End(), by)
	}
}

// boolean exchanges true and false.
func (f *finder) boolean(n *ast.Ident) {
	switch n.Name {
	case "true":
		f.add(constantKind, n.Pos(), n.End(), "false")
	case "false":
		f.add(constantKind, n.Pos(), n.End(), "true")
	}
}

// bound changes a slice's bound by one.
func (f *finder) bound(n ast.Expr) {
	if n == nil {
		return
	}
	if _, ok := n.(*ast.BasicLit); ok {
		return // literal does that
	}
	f.add(numberKind, n.End(), n.End(), "+1")
	f.add(numberKind, n.End(), n.End(), "-1")
}

// condition negates a condition, and makes it never true. Its operands stay, so the compiler finds
// no variable unused.
func (f *finder) condition(n ast.Expr, isError bool) {
	f.add(conditionKind, n.Pos(), n.End(), "!("+f.text(n)+")")
	k := conditionKind
	if isError {
		k = errorKind
	}
	f.add(k, n.Pos(), n.End(), "false && ("+f.text(n)+")")
}

// cases changes the conditions of a switch without an operand.
func (f *finder) cases(b *ast.BlockStmt) {
	for _, s := range b.List {
		if c, ok := s.(*ast.CaseClause); ok && len(c.List) == 1 {
			f.condition(c.List[0], false)
		}
	}
}

// returnsError reports whether a block ends by a return of what may be an error.
func (f *finder) returnsError(b *ast.BlockStmt) bool {
	if len(b.List) == 0 {
		return false
	}
	r, ok := b.List[len(b.List)-1].(*ast.ReturnStmt)
	return ok && f.lastIsError() && len(r.Results) > 0 && f.text(r.Results[len(r.Results)-1]) != "nil"
}

// lastIsError reports whether the last result of the innermost function is an error.
func (f *finder) lastIsError() bool {
	if f.results == nil || len(f.results.List) == 0 {
		return false
	}
	id, ok := f.results.List[len(f.results.List)-1].Type.(*ast.Ident)
	return ok && id.Name == "error"
}

// errorResult returns nil for an error.
func (f *finder) errorResult(n *ast.ReturnStmt) {
	if len(n.Results) == 0 || len(n.Results) != f.results.NumFields() || !f.lastIsError() {
		return
	}
	if last := n.Results[len(n.Results)-1]; f.text(last) != "nil" {
		f.add(errorKind, last.Pos(), last.End(), "nil")
	}
}

// barriers are the functions and methods that order memory and have no result that is used.
var barriers = []string{"ToDevice", "FromDevice", "StartWC", "FlushWC", "Store", "Add", "And", "Or", "Publish"}

// statements drops each statement of a list that can be dropped.
func (f *finder) statements(list []ast.Stmt) {
	for _, s := range list {
		k := statementKind
		switch s := s.(type) {
		case *ast.ExprStmt:
			if call, ok := s.X.(*ast.CallExpr); ok {
				name := calledName(call)
				if slices.Contains(locking, name) {
					continue
				}
				if slices.Contains(barriers, name) {
					k = barrierKind
				}
			}
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE || f.text(s.Lhs[0]) == "_" {
				continue
			}
		case *ast.DeferStmt:
			if slices.Contains(locking, calledName(s.Call)) {
				continue
			}
		case *ast.ReturnStmt:
			if len(s.Results) > 0 || s == list[len(list)-1] && f.results.NumFields() > 0 {
				continue
			}
		case *ast.IncDecStmt, *ast.GoStmt, *ast.SendStmt, *ast.BranchStmt:
		default:
			continue
		}
		f.add(k, s.Pos(), s.End(), "")
	}
}

// calledName returns the name of the function or method that is called, or "".
func calledName(call *ast.CallExpr) string {
	switch fun := call.Fun.(type) {
	case *ast.SelectorExpr:
		return fun.Sel.Name
	case *ast.Ident:
		return fun.Name
	}
	return ""
}

// locking are the methods of a lock.
var locking = []string{"Lock", "Unlock", "RLock", "RUnlock"}

// locks drops each lock of a function, in all statements that take or release it. A function
// literal counts as a part of its function.
func (f *finder) locks(body *ast.BlockStmt) {
	edits := map[string][]edit{}
	var order []string
	takes := map[string]bool{}
	ast.Inspect(body, func(n ast.Node) bool {
		var call *ast.CallExpr
		switch s := n.(type) {
		case *ast.DeferStmt:
			call = s.Call
		case *ast.ExprStmt:
			call, _ = s.X.(*ast.CallExpr)
		}
		if call == nil || len(call.Args) > 0 {
			return true
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains(locking, sel.Sel.Name) {
			return true
		}
		lock := f.text(sel.X)
		if edits[lock] == nil {
			order = append(order, lock)
		}
		takes[lock] = takes[lock] || strings.HasSuffix(sel.Sel.Name, "Lock") && !strings.Contains(sel.Sel.Name, "Un")
		edits[lock] = append(edits[lock], edit{f.at(n.Pos()), f.at(n.End()), ""})
		return false
	})
	for _, lock := range order {
		if takes[lock] && len(edits[lock]) > 1 {
			f.addEdits(lockKind, edits[lock]...)
		}
	}
}
